"""What is written as IDL is read back as it was; and whatever omniidl says of it, we say too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from idl.parser import (
    KEYWORDS,
    Basic,
    BoundedString,
    Const,
    Declaration,
    Enum,
    ExceptionDeclaration,
    Forward,
    IdlError,
    Interface,
    Member,
    Module,
    Name,
    Operation,
    Parameter,
    Position,
    Scoped,
    Sequence,
    Struct,
    Type,
    Typedef,
    load,
    parse,
)
from tests.unit.idl.test_parser import read_by_omniidl, undocumented

NOWHERE = Position("", 0, 0)
INTEGERS = tuple(
    Basic(f"{sign}{size}") for sign in ("", "unsigned ") for size in ("short", "long", "long long")
)
OTHERS = tuple(map(Basic, ("float", "double", "char", "boolean", "octet", "any", "string")))
VOID = Basic("void")


# --- Writing -------------------------------------------------------------------------------------


def to_text(one: Any) -> str:
    """A declaration, a member or a parameter as IDL, its documentation above it."""
    doc = getattr(one, "doc", "")
    comment = "".join(f"// {line}\n" for line in doc.split("\n")) if doc else ""
    return comment + _bare(one)


def _bare(one: Any) -> str:
    match one:
        case Module(name, declarations):
            return f"module {name} {{\n{_lines(declarations)}}};"
        case Forward(local, name):
            return f"{'local ' * local}interface {name};"
        case Interface(local, name, bases, body):
            above = f" : {_row(bases)}" if bases else ""
            return f"{'local ' * local}interface {name}{above} {{\n{_lines(body)}}};"
        case Operation(oneway, result, name, parameters, raises):
            end = f" raises ({_row(raises)})" if raises else ""
            return f"{'oneway ' * oneway}{result} {name}({_row(map(to_text, parameters))}){end};"
        case Parameter(direction, type_, name):
            return f"{direction} {type_} {name}"
        case Struct(name, members):
            return f"struct {name} {{\n{_lines(members)}}};"
        case ExceptionDeclaration(name, members):
            return f"exception {name} {{\n{_lines(members)}}};"
        case Enum(name, enumerators):
            return f"enum {name} {{ {_row(enumerators)} }};"
        case Member(type_, name):
            return f"{type_} {name};"
        case Typedef(type_, name):
            return f"typedef {type_} {name};"
        case Const(type_, name, value):
            return (
                f"const {type_} {name} = "
                + (f'"{value}"' if isinstance(value, str) else f"{value}")
                + ";"
            )
    raise AssertionError(one)


def _lines(parts: Iterable[Any]) -> str:
    return "".join(f"{to_text(part)}\n" for part in parts)


def _row(parts: Iterable[object]) -> str:
    return ", ".join(map(str, parts))


# --- Making --------------------------------------------------------------------------------------


class Maker:
    """Strategies for declarations that can be written, whether or not they make sense."""

    def __init__(self, words: st.SearchStrategy[str], docs: st.SearchStrategy[str]) -> None:
        self.names = words.map(lambda word: Name(word, NOWHERE))
        self.docs = docs
        paths = st.lists(words, min_size=1, max_size=2).map("::".join)
        rooted = st.builds(str.__add__, st.sampled_from(["", "", "", "::"]), paths)
        self.scoped = rooted.map(lambda path: Scoped(Name(path, NOWHERE)))
        self.strings = st.builds(BoundedString, st.integers(1, 2**31))
        # Of these a parameter can be; a sequence needs a typedef.
        self.simple = st.sampled_from(INTEGERS + OTHERS) | self.strings | self.scoped
        self.types: st.SearchStrategy[Type] = st.recursive(
            self.simple,
            lambda inner: st.builds(Sequence, inner, st.none() | st.integers(1, 2**31)),
            max_leaves=3,
        )

    def specifications(self) -> st.SearchStrategy[list[Declaration]]:
        return st.lists(self.declarations(2), min_size=1, max_size=5)

    def declarations(self, depth: int) -> st.SearchStrategy[Declaration]:
        forward = st.builds(Forward, st.just(False), self.names)
        outer = self.inner() | self.interfaces() | forward
        if depth == 0:
            return outer
        return outer | st.builds(
            Module, self.names, self.tuples(self.declarations(depth - 1), 1), self.docs
        )

    def inner(self) -> st.SearchStrategy[Any]:
        members = st.builds(Member, self.types, self.names, self.docs)
        return st.one_of(
            st.builds(Struct, self.names, self.tuples(members, 1), self.docs),
            st.builds(ExceptionDeclaration, self.names, self.tuples(members), self.docs),
            st.builds(Enum, self.names, self.tuples(self.names, 1), self.docs),
            st.builds(Typedef, self.types, self.names, self.docs),
            self.constants(),
        )

    def constants(self) -> st.SearchStrategy[Const]:
        texts = st.text(
            st.characters(codec="ascii", exclude_characters='"\\', categories=["L", "P"])
        )
        return st.one_of(
            st.builds(Const, st.sampled_from(INTEGERS), self.names, st.integers(0, 99), self.docs),
            st.builds(Const, st.just(INTEGERS[0]), self.names, st.integers(-99, -1), self.docs),
            st.builds(Const, st.just(Basic("string")), self.names, texts, self.docs),
        )

    def interfaces(self) -> st.SearchStrategy[Interface]:
        bases = self.tuples(self.scoped)
        body = self.tuples(self.operations() | self.inner())
        return st.builds(Interface, st.just(False), self.names, bases, body, self.docs)

    def operations(self) -> st.SearchStrategy[Operation]:
        ways = st.sampled_from(["in", "out", "inout"])
        parameters = self.tuples(st.builds(Parameter, ways, self.simple, self.names))
        results = st.just(VOID) | self.simple
        raises = self.tuples(self.scoped, 0, 2)
        oneways = st.sampled_from([False, False, False, True])
        return st.builds(Operation, oneways, results, self.names, parameters, raises, self.docs)

    def tuples(self, parts: st.SearchStrategy[Any], least: int = 0, most: int = 3) -> Any:
        return st.lists(parts, min_size=least, max_size=most).map(tuple)


WORDS = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,6}", fullmatch=True).filter(
    lambda word: word.lower() not in KEYWORDS.split()
)
LINES = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"], exclude_characters="*"))
DOCS = st.lists(LINES.map(str.rstrip), max_size=3).map(lambda lines: "\n".join(lines).strip())
MAKER = Maker(WORDS, DOCS)


class Sketcher:
    """Writes texts that make sense more often than not: most names are new and used as declared.

    No interface has two bases: if both had the same operation, only omniidl would see it.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.types = ["long", "string<5>"]
        self.exceptions: list[str] = []
        self.interfaces: list[str] = []
        self.names_count = 0

    def several(self, write: Callable[[str], str], path: str, least: int = 0) -> str:
        return " ".join(write(path) for _ in range(self.draw(st.integers(least, 3))))

    def name(self, path: str, *kinds: list[str]) -> str:
        self.names_count += 1
        new = f"n{self.names_count}"
        word: str = self.draw(st.sampled_from([new] * 12 + [*"aAb"]))
        for kind in kinds:
            kind.append(f"{path}::{word}")
        return word

    def use(self, kind: list[str]) -> str:
        """Something declared, by its path or by an end of it, which here may mean another."""
        parts = self.draw(st.sampled_from(kind)).split("::")
        return "::".join(parts[self.draw(st.integers(0, len(parts) - 1)) :])

    def definition(self, path: str) -> str:
        if path.count("::") < 2 and self.draw(st.booleans()):
            name = self.name(path)
            return f"module {name} {{ {self.several(self.definition, f'{path}::{name}', 1)} }};"
        return self.interface(path) if self.draw(st.booleans()) else self.export(path)

    def interface(self, path: str) -> str:
        has_base = self.draw(st.booleans()) and self.interfaces
        above = f" : {self.use(self.interfaces)}" if has_base else ""
        name = self.name(path, self.types, self.interfaces)
        return f"interface {name}{above} {{ {self.several(self.export, f'{path}::{name}')} }};"

    def export(self, path: str) -> str:
        kind = self.draw(st.sampled_from(["typedef", "struct", "exception", "enum", "operation"]))
        match kind:
            case "typedef":
                return f"typedef {self.use(self.types)} {self.name(path, self.types)};"
            case "enum":
                values = f"{self.name(path)}, {self.name(path)}"
                return f"enum {self.name(path, self.types)} {{ {values} }};"
            case "operation" if path in self.interfaces:
                return self.operation(path)
            case "exception":
                members = self.several(self.member, path)
                return f"exception {self.name(path, self.exceptions)} {{ {members} }};"
        members = self.several(self.member, path, 1)
        return f"struct {self.name(path, self.types)} {{ {members} }};"

    def member(self, path: str) -> str:
        return f"{self.use(self.types)} {self.name(path)};"

    def operation(self, path: str) -> str:
        raises = f" raises ({self.use(self.exceptions)})" if self.exceptions else ""
        result, name = self.use(self.types), self.name(path)
        return f"{result} {name}(in {self.use(self.types)} {self.name(path)}){raises};"


@st.composite
def sketches(draw: st.DrawFn) -> str:
    sketcher = Sketcher(draw)
    return sketcher.several(sketcher.definition, "", 1) + "\n"


# --- What holds ----------------------------------------------------------------------------------


@given(MAKER.specifications())
def test_declarations_are_read_back_as_they_were_written(declarations: list[Declaration]) -> None:
    assert list(parse(_lines(declarations)).declarations) == declarations


@pytest.mark.needs("omniidl")
@given(text=sketches())
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_omniidl_gives_every_name_the_same_meaning(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "sketch.idl"
    path.write_text(text)
    theirs = read_by_omniidl(path)
    event("refused" if theirs is None else "accepted")
    try:
        ours = load(path).declarations
    except IdlError:
        assert theirs is None
    else:
        assert theirs == {name: undocumented(one) for name, one in ours.items()}
