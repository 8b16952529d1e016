"""IDL is read as written, names mean what its rules say, and an error has a place and a reason.

The tables below are also given to omniidl, a real IDL compiler: where the two differ, the
difference has a table of its own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import idl.parser
from idl.parser import (
    Basic,
    BoundedString,
    Const,
    Contract,
    Declaration,
    Enum,
    ExceptionDeclaration,
    IdlError,
    Interface,
    Module,
    Scoped,
    Sequence,
    Struct,
    Typedef,
    load,
    parse,
)

CONTRACTS = sorted(Path(idl.parser.__file__).parent.glob("*.idl"))

BOTH_ACCEPT = [
    "",
    "// nothing but a comment\n",
    "interface I {};",
    "exception E {};",
    "typedef sequence<sequence<long, 5> > a; typedef string<15> b; typedef unsigned long long c;",
    "const long A = -5; const unsigned short B = 0;",
    'const string A = "a // b"; const string<2> B = "ab";',
    "interface I { void f(inout float p, out string q, in any r); oneway void g(in octet p); };",
    "interface I; interface I; interface J { I f(in I x); }; interface I {}; interface I;",
    "interface A { void f(); }; interface B : A {}; interface C : A {}; interface D : B, C {};",
    "interface A { typedef long t; }; interface B : A { typedef short t; };",
    "interface A { typedef long t; }; interface B : A { void t(); };",
    "interface A { exception E {}; }; interface B : A { void f() raises (E); };",
    "interface A { struct T { long x; }; }; interface B : A {}; typedef B::T u;",
    "module A { interface I {}; }; module M { interface A : A::I {}; };",
    "module M { typedef long a; }; module M { typedef a b; }; typedef M::b c;",
    "module M { interface I; }; module M { interface I {}; };",
    "module M { module N { typedef long M; }; };",
    "module N { typedef long a; }; module M { typedef ::N::a b; typedef short N; };",
    "exception E {}; module M { exception E {}; interface I { void f() raises (E, ::E); }; };",
    "typedef long a; module M { struct S { a b; }; typedef short a; };",
    "typedef long a; interface I { a f(in long a); };",
    "typedef long a; interface I { void f(in ::a a); };",
    "interface I { void f(in long f); void g(in long f); };",
    "enum E { a, b }; interface I { enum F { a, b }; void g(in F p, in E q); };",
    "#ifndef X_IDL\n#define X_IDL\ntypedef long a;\n#endif // X_IDL\n",
    '#pragma prefix "example.org"\ntypedef/* one */long/* two */a; // three\n',
]

BOTH_REFUSE = [
    # Syntax.
    ("typedef long", "1:9: Expected 'long', identifier; the text ends."),
    ("struct S { long x; }", "1:20: Expected ';'; the text ends."),
    ("struct S { long x; } interface I {};", "1:22: Expected ';'; there is 'interface'."),
    ("typedef long a;;", "there is ';'"),
    ("module M {};", "Expected 'const', 'enum', 'exception', 'interface'"),
    ("struct S {};", "there is '}'"),
    ("enum E {};", "1:9: Expected identifier; there is '}'."),
    ("enum E { a, b, };", "1:16: Expected identifier; there is '}'."),
    ("interface I { void f(long x); };", "1:22: Expected ')', 'in', 'inout', 'out'; there is"),
    ("interface I { void f(in sequence<long> x); };", "'sequence' is a keyword"),
    ("interface I { void f() raises (); };", "Expected '::', identifier; there is ')'."),
    ("interface I { f(); };", "Expected '::', identifier; there is '('."),
    ("interface I { interface J {}; };", "1:15: 'interface' is a keyword of IDL"),
    ("typedef sequence<sequence<long>> t;", "1:31: Two closing brackets need a space"),
    ("typedef string<0> t;", "1:16: Expected positive number; there is '0'."),
    ("const long A = 5L;", "'5' begins no word that we read."),
    ('const long A = "a";', "Expected other number, positive number; there is '\"a\"'."),
    ("const string A = 5;", "Expected text; there is '5'."),
    ("typedef long a$;", "'$' begins no word that we read."),
    ("typedef long a; /* never closed", "1:17: The comment is not closed."),
    ("typedef long a; #pragma x\n", "1:17: A directive is #include, one include guard"),
    ("#ifndef X_IDL\n#define X_IDL\ntypedef long a;\n", "the text ends"),
    ("typedef long a;\n#endif\n", "there is '#endif'"),
    # Keywords, in any case, and those outside the subset.
    ("struct interface { long x; };", "1:8: 'interface' is a keyword of IDL"),
    ("struct Interface { long x; };", "1:8: 'Interface' is a keyword of IDL"),
    ("interface I { void f(in any Any); };", "1:29: 'Any' is a keyword of IDL"),
    ("struct S { long factory; };", "'factory' is a keyword of IDL"),
    # Unknown names.
    ("struct S { foo x; };", "1:12: 'foo' is not declared, or not yet."),
    ("typedef ::foo x;", "1:9: '::foo' is not declared, or not yet."),
    ("typedef a b; typedef long a;", "1:9: 'a' is not declared, or not yet."),
    ("interface I { void f() raises (E); };", "1:32: 'E' is not declared, or not yet."),
    ("interface I : J {}; interface J {};", "'J' is not declared, or not yet."),
    ("interface I : I {};", "'I' is not declared, or not yet."),
    ("interface I { typedef long a; }; typedef I J; typedef J::a b;", "'J::a' is not declared"),
    (
        "module A { module B { typedef long x; }; };"
        " module C { module A { typedef long y; }; typedef A::B::x z; };",
        "'A::B::x' is not declared, or not yet.",
    ),
    # Names declared twice.
    ("typedef long a; typedef short a;", "1:31: 'a' is already declared at test.idl:1:14."),
    ("struct S { long x; short x; };", "1:26: 'x' is already declared"),
    ("interface I { void f(in long a, in long a); };", "1:41: 'a' is already declared"),
    ("interface I { void f(); void f(); };", "'f' is already declared"),
    ("interface A { void f(); }; interface B : A { void f(); };", "'f' is already declared"),
    ("interface A { void f(); }; interface B : A { typedef long f; };", "'f' is already declared"),
    ("interface A { void b(); }; interface b : A {};", "1:38: 'b' is already declared"),
    ("enum E { a, a };", "1:13: 'a' is already declared"),
    ("enum E { a }; struct a { long x; };", "1:22: 'a' is already declared at test.idl:1:10."),
    ("interface I; struct I { long x; };", "'I' is already declared"),
    ("module M { typedef long a; }; exception M {};", "'M' is already declared"),
    # Names that differ only in case.
    ("typedef long a; typedef short A;", "'A' differs only in case from 'a', already declared"),
    ("typedef long a; typedef A b;", "'A' differs only in case from 'a', already declared"),
    ("module M { typedef long a; }; typedef m::a b;", "'m' differs only in case from 'M'"),
    ("interface I { void f(in long a, in long A); };", "'A' differs only in case from 'a'"),
    ("interface I {}; interface J { void f(in I i); };", "'I' has been used here for something"),
    ("interface I { void i(); };", "'i' is also the name of what it stands in."),
    # Names whose meaning would change.
    ("typedef long a; struct S { a a; };", "1:30: 'a' has been used here for something else."),
    ("typedef long a; interface I { void f(in a b); void a(); };", "'a' has been used here"),
    (
        "module N { typedef long a; }; module M { typedef N::a b; typedef short N; };",
        "'N' has been",
    ),
    ("struct S { long S; };", "1:17: 'S' is also the name of what it stands in."),
    # Names of the wrong kind.
    (
        "struct S { long x; }; interface I { void f() raises (S); };",
        "1:54: 'S' is not an exception.",
    ),
    ("interface I { void f(in long a) raises (a); };", "'a' is not an exception."),
    ("exception E {}; interface I { void f(in E x); };", "1:41: 'E' is not a type."),
    ("enum E { a }; typedef a b;", "'a' is not a type."),
    ("module M { typedef long a; }; typedef M b;", "'M' is not a type."),
    ("struct S { long x; }; interface I : S {};", "1:37: 'S' is not an interface"),
    (
        "interface I; interface J : I {}; interface I {};",
        "'I' is not an interface that is declared",
    ),
    ("struct S { sequence<S> x; };", "'S' cannot be a part of itself."),
    ("interface I;", "1:11: 'I' is announced, but never declared."),
    (
        "interface A { typedef long t; }; interface B { typedef long t; };"
        " interface C : A, B { void f(in t x); };",
        "'t' is ambiguous: A::t and B::t are both inherited.",
    ),
    # Operations that give nothing back.
    ("interface I { oneway long f(); };", "1:27: 'f' is oneway, but gives something back."),
    ("interface I { oneway void f(out long a); };", "'f' is oneway"),
    ("interface I { oneway void f(inout long a); };", "'f' is oneway"),
    ("exception E {}; interface I { oneway void f() raises (E); };", "'f' is oneway"),
    # Includes.
    ('typedef long a;\n#include "absent.idl"\n', "there is '#include \"absent.idl\"'"),
    ('// x\n#include "absent.idl"\n', "2:1: There is no file 'absent.idl' in the same folder."),
]

# IDL that our contracts do not use.
ONLY_OMNIIDL_ACCEPTS = [
    ("interface I { attribute long x; };", "'attribute' is a keyword of IDL"),
    ("union U switch (long) { case 1: long a; };", "'union' is a keyword of IDL"),
    ("typedef wstring a;", "'wstring' is a keyword of IDL"),
    ("typedef long double a;", "'double' is a keyword of IDL"),
    ("typedef long a, b;", "Expected ';'; there is ','."),
    ("typedef long a[3];", "'[' begins no word that we read."),
    ("struct _struct { long x; };", "'_' begins no word that we read."),
    ("const long A = 1; const long B = A;", "Expected other number, positive number"),
    ("#ifdef X\n#endif\n", "A directive is #include, one include guard"),
    ("#ifndef X_IDL\n#define Y_IDL\n#endif\n", "A directive is #include, one include guard"),
]

# What we leave to omniidl to find.
ONLY_OMNIIDL_REFUSES = [
    "const short A = 70000;",
    "interface A { void f(); }; interface B { void f(); }; interface C : A, B {};",
    "interface A {}; interface B : A, A {};",
    "local interface L {}; interface I { void f(in L x); };",
    "local interface L; interface L {};",
]


def loaded(folder: Path, text: str) -> Contract:
    path = folder / "test.idl"
    path.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    return load(path)


# --- Verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", BOTH_ACCEPT + ONLY_OMNIIDL_REFUSES)
def test_a_sound_text_is_read(text: str, tmp_path: Path) -> None:
    loaded(tmp_path, text)


@pytest.mark.parametrize(("text", "reason"), BOTH_REFUSE + ONLY_OMNIIDL_ACCEPTS)
def test_a_faulty_text_is_refused_with_its_reason(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(IdlError) as caught:
        loaded(tmp_path, text)
    assert reason in str(caught.value)


@pytest.mark.needs("omniidl")
def test_omniidl_gives_the_same_verdicts(tmp_path: Path) -> None:
    accepted = [*BOTH_ACCEPT, *(text for text, _ in ONLY_OMNIIDL_ACCEPTS)]
    refused = [*ONLY_OMNIIDL_REFUSES, *(text for text, _ in BOTH_REFUSE)]
    verdicts = dict.fromkeys(accepted, True) | dict.fromkeys(refused, False)
    with ThreadPoolExecutor(8) as pool:
        jobs = ((tmp_path / f"{number}.idl", text) for number, text in enumerate(verdicts))
        found = pool.map(lambda job: omniidl_accepts(*job), jobs)
        assert dict(zip(verdicts, found, strict=True)) == verdicts


def omniidl_accepts(path: Path, text: str) -> bool:
    path.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    done = subprocess.run(["omniidl", "-bdump", path.name], cwd=path.parent, capture_output=True)
    # A warning is a refusal: our contracts compile without any.
    return done.returncode == 0 and not done.stderr


def test_an_error_tells_its_file_line_and_column() -> None:
    with pytest.raises(IdlError) as caught:
        parse("typedef long a;\n\n  typedef long long long b;\n", "Some.idl")
    error = caught.value
    assert (error.file, error.line, error.column) == ("Some.idl", 3, 21)
    assert str(error) == f"Some.idl:3:21: {error.sentence}"


# --- What is read --------------------------------------------------------------------------------


def test_declarations_have_their_parts_in_the_order_of_the_text() -> None:
    [struct, error, interface, enum, name, number] = parse(
        "struct S { long long a; sequence<S2, 7> b; };"
        "exception E { any c; };"
        "local interface I : A, ::B::C {"
        "  typedef octet t; oneway void f(in t x, out string<3> y) raises (E, F); };"
        "enum N { one, two };"
        "typedef sequence<string<9> > l;"
        "const unsigned short K = 12;"
    ).declarations
    assert isinstance(struct, Struct)
    assert isinstance(error, ExceptionDeclaration)
    assert [(m.name, str(m.type)) for m in struct.members] == [
        ("a", "long long"),
        ("b", "sequence<S2, 7>"),
    ]
    assert [(m.name, m.type) for m in error.members] == [("c", Basic("any"))]
    assert isinstance(interface, Interface)
    assert (interface.local, [base.name for base in interface.bases]) == (True, ["A", "::B::C"])
    assert [part.name for part in declared(interface.body)] == ["t", "f"]
    [f] = interface.operations
    assert (f.oneway, f.result, [one.name for one in f.raises]) == (True, Basic("void"), ["E", "F"])
    assert [(p.direction, str(p.type), p.name) for p in f.parameters] == [
        ("in", "t", "x"),
        ("out", "string<3>", "y"),
    ]
    assert isinstance(enum, Enum)
    assert enum.enumerators == ("one", "two")
    assert isinstance(name, Typedef)
    assert name.type == Sequence(BoundedString(9))
    assert isinstance(number, Const)
    assert (number.type, number.value) == (Basic("unsigned short"), 12)


def declared(parts: Iterable[Declaration]) -> list[Any]:
    return list(parts)


def test_a_nested_sequence_is_spelled_so_that_idl_can_read_it() -> None:
    assert str(Sequence(BoundedString(9))) == "sequence<string<9> >"
    assert str(Sequence(Sequence(Basic("octet")), 4)) == "sequence<sequence<octet>, 4>"


def test_the_comment_directly_above_is_the_documentation() -> None:
    specification = parse(
        "// What the file\n// is about.\n"
        "\n"
        "// Not of the module: a line is free.\n"
        "\n"
        "/** Holds\n  * everything. */\n"
        "module M { // behind\n"
        "  // An exception,\n"
        "  //   indented.\n"
        "  exception E {\n"
        "    long a; // of a\n"
        "    long b;\n"
        "    // of c\n"
        "    long c; };\n"
        "  struct S { long x; }; typedef long t;\n"
        "};\n"
    )
    [module] = specification.declarations
    assert isinstance(module, Module)
    error, struct, name = declared(module.declarations)
    assert specification.doc == "What the file\nis about."
    assert module.doc == "Holds\neverything."
    assert error.doc == "An exception,\n  indented."
    assert [member.doc for member in error.members] == ["", "", "of c"]
    assert (struct.doc, struct.members[0].doc, name.doc) == ("", "", "")


def test_a_name_knows_where_it_stands() -> None:
    [first, second] = parse("typedef long a;\ntypedef\n  a b;\n", "x.idl").declarations
    assert isinstance(second, Typedef)
    assert isinstance(second.type, Scoped)
    assert [str(name.at) for name in (first.name, second.type.name, second.name)] == [
        "x.idl:1:14",
        "x.idl:3:3",
        "x.idl:3:5",
    ]


# --- What names mean -----------------------------------------------------------------------------


def test_names_become_absolute_from_the_inside_outwards(tmp_path: Path) -> None:
    contract = loaded(
        tmp_path,
        "typedef long t; exception E {};"
        "module M {"
        "  typedef short t;"
        "  interface A { exception E {}; };"
        "  interface B : A { typedef t u; void f(in t p, in ::t q, in u r) raises (E, ::E); };"
        "};",
    )
    [f] = contract.operations("M::B")
    assert [str(p.type) for p in f.parameters] == ["M::t", "t", "M::B::u"]
    assert [str(one) for one in f.raises] == ["M::A::E", "E"]
    assert [str(contract.expand(p.type)) for p in f.parameters] == ["short", "long", "short"]


def test_a_name_of_a_base_is_looked_up_around_the_interface(tmp_path: Path) -> None:
    text = (
        "module A { interface A1 { typedef long B; }; }; interface B {}; interface C : A::A1, B {};"
    )
    contract = loaded(tmp_path, text)
    interface = contract.declarations["C"]
    assert isinstance(interface, Interface)
    assert [base.name for base in interface.bases] == ["A::A1", "B"]


def test_operations_come_with_those_inherited_each_once(tmp_path: Path) -> None:
    contract = loaded(
        tmp_path,
        "interface A { void f(); }; interface B : A { void g(); };"
        "interface C : A { void h(); }; interface D : B, C { void i(); };",
    )
    assert [operation.name for operation in contract.operations("D")] == ["f", "g", "h", "i"]


def test_typedefs_are_expanded_inside_sequences(tmp_path: Path) -> None:
    contract = loaded(
        tmp_path,
        "typedef string<5> k; typedef sequence<k, 3> l; typedef sequence<l> m;"
        "struct S { long x; }; typedef sequence<S> n;",
    )
    expanded = {
        name: str(contract.expand(Scoped(contract.declarations[name].name))) for name in "mn"
    }
    assert expanded == {"m": "sequence<sequence<string<5>, 3> >", "n": "sequence<S>"}


# --- Files ---------------------------------------------------------------------------------------


def test_included_files_are_read_once_and_before(tmp_path: Path) -> None:
    guard = "#ifndef {0}_IDL\n#define {0}_IDL\n{1}\n#endif\n"
    (tmp_path / "a.idl").write_text(guard.format("A", "typedef long a;"))
    (tmp_path / "b.idl").write_text(guard.format("B", '#include "a.idl"\ntypedef a b;'))
    (tmp_path / "c.idl").write_text('#include "b.idl"\n#include <a.idl>\ntypedef a c;\n')
    contract = load(tmp_path / "c.idl", tmp_path / "a.idl")
    assert [specification.file for specification in contract.files] == ["a.idl", "b.idl", "c.idl"]
    assert contract.files[2].includes == ("b.idl", "a.idl")


def test_files_that_include_each_other_do_not_hang(tmp_path: Path) -> None:
    (tmp_path / "a.idl").write_text('#include "b.idl"\ntypedef long a;\n')
    (tmp_path / "b.idl").write_text('#include "a.idl"\ntypedef a b;\n')
    with pytest.raises(IdlError, match=r"b\.idl:2:9: 'a' is not declared"):
        load(tmp_path / "a.idl")


def test_an_include_from_another_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.idl").write_text("typedef long a;\n")
    with pytest.raises(IdlError, match=r"test\.idl:1:1: There is no file 'elsewhere/a\.idl'"):
        loaded(tmp_path, '#include "elsewhere/a.idl"')


# --- Our contracts -------------------------------------------------------------------------------


def test_our_contracts_are_one_contract() -> None:
    contract = load(*CONTRACTS)
    assert {specification.file for specification in contract.files} == {p.name for p in CONTRACTS}
    assert all(specification.doc for specification in contract.files)


@pytest.mark.needs("omniidl")
@pytest.mark.parametrize("path", CONTRACTS, ids=lambda path: path.stem)
def test_omniidl_reads_the_same_out_of_our_contracts(path: Path) -> None:
    ours = load(path).declarations
    assert read_by_omniidl(path) == {name: undocumented(one) for name, one in ours.items()}


def read_by_omniidl(path: Path) -> dict[str, Any] | None:
    """What omniidl makes of a file, or None if it finds any fault."""
    done = subprocess.run(["omniidl", "-d", path.name], cwd=path.parent, capture_output=True)
    if done.returncode != 0 or done.stderr:
        return None
    # It prints every name as what it found it to mean, so that nothing is left to look up; and
    # closing brackets together, which it would not read itself.
    dump = parse(done.stdout.decode().replace(">", "> "))
    return {name: undocumented(one) for name, one in flattened(dump.declarations)}


def flattened(declarations: Iterable[Declaration], path: str = "") -> Iterator[tuple[str, Any]]:
    """What `Contract.declarations` would have, by the same absolute names."""
    for one in declarations:
        inside = f"{path}{one.name}::"
        if isinstance(one, Module):
            yield from flattened(one.declarations, inside)
        elif isinstance(one, Interface):
            yield from flattened(one.body, inside)
        if isinstance(one, Interface | Struct | ExceptionDeclaration | Enum | Typedef | Const):
            yield path + one.name, one


def undocumented(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(undocumented(part) for part in value)
    parts = {
        name: undocumented(getattr(value, name))
        for name in ("members", "body")
        if hasattr(value, name)
    }
    return replace(value, **parts, doc="") if hasattr(value, "doc") else value
