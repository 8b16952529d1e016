"""IDL text into declarations: how tests, documents and the console read the contracts.

Never used at run time, which is why lark is a development dependency. `parse` gives one text as it
is written; `load` gives files with all that they include, every name looked up and made absolute.

It keeps the scoping rules of OMG IDL: a name is looked up from where it stands outwards, in an
interface also among what is inherited; names that differ only in case clash; a name that a scope
has used keeps its meaning there.

It knows the subset of IDL in `grammar.lark`, and of the preprocessor includes from the same folder
and one include guard; pragmas are skipped. It does not know whether a constant fits its type, that
two bases must not have the same operation, that a local interface must not be passed to a remote
one, nor any binding to Python. A test compares its verdicts with those of omniidl.

It is long because half of it are the classes of what a text can say, which the rest is about.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypeAlias, get_args

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput, UnexpectedToken

# Also those outside the subset, and in any case, are no names.
KEYWORDS = """
    abstract any attribute boolean case char component const consumes context custom default double
    emits enum eventtype exception factory false finder fixed float getraises home import in inout
    interface local long manages module multiple native object octet oneway out primarykey private
    provides public publishes raises readonly sequence setraises short string struct supports switch
    true truncatable typedef typeid typeprefix union unsigned uses valuebase valuetype void wchar
    wstring
"""


@dataclass(frozen=True)
class Position:
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class IdlError(Exception):
    """A text is not IDL, or not the IDL we read; says where, and in one sentence why."""

    def __init__(self, at: Position, sentence: str) -> None:
        super().__init__(f"{at}: {sentence}")
        self.file, self.line, self.column = at.file, at.line, at.column
        self.sentence = sentence


class Name(str):
    """An identifier, or several joined by `::`: text that knows where it stands."""

    at: Position

    def __new__(cls, text: str, at: Position) -> Self:
        name = super().__new__(cls, text)
        name.at = at
        return name


# --- Types ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Basic:
    """A type without parts, spelled as in IDL: `unsigned long`, `string`, `any`, `void`."""

    spelling: str

    def __str__(self) -> str:
        return self.spelling


@dataclass(frozen=True)
class BoundedString:
    """`string<n>`."""

    bound: int

    def __str__(self) -> str:
        return f"string<{self.bound}>"


@dataclass(frozen=True)
class Sequence:
    """`sequence<T>` or `sequence<T, n>`."""

    element: Type
    bound: int | None = None

    def __str__(self) -> str:
        inside = f"{self.element}" if self.bound is None else f"{self.element}, {self.bound}"
        # IDL reads two closing brackets together as a shift.
        return f"sequence<{inside} >" if inside.endswith(">") else f"sequence<{inside}>"


@dataclass(frozen=True)
class Scoped:
    """A name in use: as written after `parse`, absolute and without leading `::` after `load`."""

    name: Name

    def __str__(self) -> str:
        return self.name


Type: TypeAlias = Basic | BoundedString | Sequence | Scoped


# --- Declarations --------------------------------------------------------------------------------
#
# The fields stand in the order of the text, which is also the order in which names become known:
# `load` relies on it. `doc` is the comment on the lines directly above.


@dataclass(frozen=True)
class Parameter:
    """One parameter of an operation; the direction is in, out or inout."""

    direction: str
    type: Type
    name: Name


@dataclass(frozen=True)
class Operation:
    """One operation of an interface."""

    oneway: bool
    result: Type
    name: Name
    parameters: tuple[Parameter, ...]
    raises: tuple[Scoped, ...]
    doc: str = ""


@dataclass(frozen=True)
class Member:
    """One member of a struct or an exception."""

    type: Type
    name: Name
    doc: str = ""


@dataclass(frozen=True)
class Struct:
    """A struct; it has at least one member."""

    name: Name
    members: tuple[Member, ...]
    doc: str = ""


@dataclass(frozen=True)
class ExceptionDeclaration:
    """A user exception."""

    name: Name
    members: tuple[Member, ...]
    doc: str = ""


@dataclass(frozen=True)
class Enum:
    """An enum; the names of its values belong to the scope around it."""

    name: Name
    enumerators: tuple[Name, ...]
    doc: str = ""


@dataclass(frozen=True)
class Typedef:
    """Another name for a type."""

    type: Type
    name: Name
    doc: str = ""


@dataclass(frozen=True)
class Const:
    """A constant: a number or a text."""

    type: Type
    name: Name
    value: int | str
    doc: str = ""


@dataclass(frozen=True)
class Forward:
    """An interface announced; its declaration follows in the same module."""

    local: bool
    name: Name


@dataclass(frozen=True)
class Interface:
    """An interface; `body` has its operations and declarations in the order of the text."""

    local: bool
    name: Name
    bases: tuple[Scoped, ...]
    body: tuple[Declaration, ...]
    doc: str = ""

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Its own operations, without the inherited ones."""
        return tuple(part for part in self.body if isinstance(part, Operation))


@dataclass(frozen=True)
class Module:
    """A module, or a part of one: a module may be opened again."""

    name: Name
    declarations: tuple[Declaration, ...]
    doc: str = ""


_Kept: TypeAlias = Interface | Struct | ExceptionDeclaration | Enum | Typedef | Const
Declaration: TypeAlias = Module | Forward | Operation | _Kept


@dataclass(frozen=True)
class Specification:
    """One file; `doc` is the comment that it begins with."""

    file: str
    includes: tuple[Name, ...]
    declarations: tuple[Declaration, ...]
    doc: str = ""


@dataclass(frozen=True)
class Contract:
    """Files read together, as written; and by absolute name all they declare, names resolved."""

    files: tuple[Specification, ...]
    declarations: Mapping[str, Declaration]

    def operations(self, interface: str) -> tuple[Operation, ...]:
        """All operations of an interface, the inherited ones first, each once."""
        declared = self.declarations[interface]
        assert isinstance(declared, Interface), f"{interface} is not an interface"
        inherited = (found for base in declared.bases for found in self.operations(base.name))
        return tuple(dict.fromkeys([*inherited, *declared.operations]))

    def expand(self, type_: Type) -> Type:
        """The type without typedefs, down to the elements of sequences."""
        if isinstance(type_, Sequence):
            return replace(type_, element=self.expand(type_.element))
        named = self.declarations[type_.name] if isinstance(type_, Scoped) else None
        return self.expand(named.type) if isinstance(named, Typedef) else type_


# --- Reading: text to declarations ---------------------------------------------------------------

_BUILT = get_args(Declaration | Member | Parameter | Sequence | BoundedString)
_CLASSES = {kind.__name__.lower(): kind for kind in _BUILT}
_UNREADABLE = {
    "#": "A directive is #include, one include guard or #pragma, and begins in the first column.",
    "/*": "The comment is not closed.",
    ">>": "Two closing brackets need a space between them, or else they are a shift.",
}
# A comment that has its lines to itself, and what in it is not text.
_COMMENT = re.compile(r"^[ \t]*(//[^\n]*|/\*(?:(?!\*/).)*\*/)[ \t\r]*$", re.MULTILINE | re.DOTALL)
_MARKS = re.compile(r"^[ \t]*(//|/\*+|\*(?!/))? ?|[ \t]*(\*+/)?[ \t\r]*$", re.MULTILINE)


def load(*paths: Path) -> Contract:
    """Files and what they include from their folder, each once, looked up and checked as one."""
    seen: set[Path] = set()
    files = tuple(one for path in paths for one in _with_includes(path.resolve(), seen))
    resolver = _Resolver()
    for specification in files:
        resolver.resolve(specification.declarations, resolver.outermost)
    resolver.finish(resolver.outermost)
    return Contract(files, resolver.declarations)


def parse(text: str, file: str = "<text>") -> Specification:
    """One text as it is written; no name is looked up and no include followed."""
    grammar = _grammar()
    try:
        tree = grammar.parse(text)
    except UnexpectedInput as error:
        raise _syntax_error(error, text, file) from None
    return _Reader(file, text).specification(tree)


def _with_includes(path: Path, seen: set[Path]) -> Iterator[Specification]:
    """The file after all that it includes, without what has been seen."""
    if path in seen:
        return
    seen.add(path)
    specification = parse(path.read_text(encoding="utf-8"), path.name)
    for name in specification.includes:
        target = path.with_name(Path(name).name)
        if target.name != name or not target.is_file():
            raise IdlError(name.at, f"There is no file '{name}' in the same folder.")
        yield from _with_includes(target, seen)
    yield specification


@functools.cache
def _grammar() -> Lark:
    return Lark.open(
        "grammar.lark",
        rel_to=__file__,
        parser="lalr",
        # The contextual lexer would let a keyword be a name wherever it is not expected.
        lexer="basic",
        lexer_callbacks={"IDENTIFIER": _no_keyword},
        propagate_positions=True,
    )


def _no_keyword(word: Token) -> Token:
    if word.lower() in KEYWORDS.split():
        raise UnexpectedToken(word, {"IDENTIFIER"})  # type: ignore[no-untyped-call]
    return word


def _syntax_error(error: UnexpectedInput, text: str, file: str) -> IdlError:
    at = Position(file, error.line, error.column)
    if not isinstance(error, UnexpectedToken):
        rest = text[error.pos_in_stream or 0 :]
        known = [why for mark, why in _UNREADABLE.items() if rest.startswith(mark)]
        return IdlError(at, known[0] if known else f"{rest[:1]!r} begins no word that we read.")
    accepted = error.accepts or error.expected
    is_keyword = error.token.lower() in KEYWORDS.split()
    if is_keyword and "IDENTIFIER" in {error.token.type, *accepted}:
        return IdlError(at, f"'{error.token}' is a keyword of IDL, not a name, and not read here.")
    expected = ", ".join(sorted(map(_spelled, accepted)))
    found = "the text ends" if error.token.type == "$END" else f"there is '{error.token}'"
    return IdlError(at, f"Expected {expected}; {found}.")


def _spelled(terminal: str) -> str:
    """A terminal of the grammar for people: `'{'`, or `positive number`."""
    patterns = {known.name: known.pattern for known in _grammar().terminals}
    if terminal in patterns and patterns[terminal].type == "str":
        return f"'{patterns[terminal].value}'"
    return terminal.strip("$_").lower().replace("_", " ")


class _Reader:
    """Makes the declarations of one text out of its parse tree."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._text = text
        self._comments = {found.end(): found for found in _COMMENT.finditer(text)}

    def specification(self, tree: Tree[Token]) -> Specification:
        parts = tuple(map(self._build, tree.children))
        includes = tuple(part for part in parts if isinstance(part, Name))
        below = re.sub(r"\A(//[^\n]*\n)*", "", self._text)
        header = self._doc(len(self._text) - len(below))
        return Specification(self._file, includes, parts[len(includes) :], header)

    def _build(self, node: Any) -> Any:
        """What a node of the tree becomes; its children become the fields, in their order."""
        match node:
            case Token("INCLUDE", text):
                return Name(re.split('["<>]', text)[1], self._at(node))
            case Token("POSITIVE_NUMBER" | "OTHER_NUMBER"):
                return int(node)
            case Token("TEXT"):
                return str(node)[1:-1]
            case Token():
                return Name(node, self._at(node))
            case Tree("scoped_name", words):
                return Scoped(Name("".join(map(str, words)), self._at(node.meta)))
            case Tree("flag", words):
                return bool(words)
            case Tree("basic", words):
                return Basic(" ".join(map(str, words)))
        parts = tuple(map(self._build, node.children))
        if node.data not in _CLASSES:
            return parts
        kind = _CLASSES[node.data]
        return kind(*parts, *([self._doc(node.meta.start_pos)] if hasattr(kind, "doc") else []))

    def _at(self, place: Any) -> Position:
        return Position(self._file, place.line, place.column)

    def _doc(self, start: int) -> str:
        found, end = list[str](), len(self._text[:start].rstrip(" \t")) - 1
        while comment := self._comments.get(end):
            found.insert(0, comment[1])
            end = comment.start() - 1
        return "\n".join(_MARKS.sub("", comment) for comment in found).strip()


# --- Meaning: what a name stands for where it stands ---------------------------------------------

_TYPES = (Struct, Enum, Typedef, Interface, Forward), "a type"
_ROLES = {
    "bases": ((Interface,), "an interface that is declared already"),
    "raises": ((ExceptionDeclaration,), "an exception"),
}


@dataclass(eq=False)
class _Place:
    """A name, what it names, and the scope that this is: names by lower case, as case never counts.

    `used` are names that mean something from further out; they can no longer be declared here.
    """

    name: Name
    path: str
    value: object
    parent: _Place | None = None
    bases: list[_Place] = field(default_factory=list)
    names: dict[str, _Place] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)

    def declare(self, name: Name, value: object) -> _Place:
        key = name.lower()
        if key in self.names:
            raise _clash(name, name.at, self.names[key])
        self.check_operations(name)
        if key == self.name.lower() and not isinstance(self.value, Operation):
            raise IdlError(name.at, f"'{name}' is also the name of what it stands in.")
        if key in self.used:
            raise IdlError(name.at, f"'{self.used[key]}' has been used here for something else.")
        path = f"{self.path}::{name}".removeprefix("::")
        return self.names.setdefault(key, _Place(name, path, value, self))

    def check_operations(self, name: Name) -> None:
        """Raises `IdlError` if an inherited operation has the name; all else may be shadowed."""
        for known in self._all_named(name.lower()):
            if isinstance(known.value, Operation):
                raise _clash(name, name.at, known)

    def find(self, name: Name, *, is_use: bool) -> _Place:
        first, *rest = name.removeprefix("::").split("::")
        scopes = self._outwards()
        if name.startswith("::"):
            scopes = scopes[-1:]
        elif is_use:
            self._use(first)
        place = next(filter(None, (scope._named(first, name.at) for scope in scopes)), None)
        for part in rest:
            place = place and place._named(part, name.at)
        if place is None:
            raise IdlError(name.at, f"'{name}' is not declared, or not yet.")
        return place

    def _outwards(self) -> list[_Place]:
        return [self, *(self.parent._outwards() if self.parent else [])]

    def _use(self, identifier: str) -> None:
        self.used.setdefault(identifier.lower(), identifier)
        # What is used inside an interface is used in the interface, but not in its module.
        if self.parent and not isinstance(self.parent.value, Module):
            self.parent._use(identifier)

    def _named(self, identifier: str, at: Position) -> _Place | None:
        found = self._all_named(identifier.lower())
        if len(found) > 1:
            paths = " and ".join(place.path for place in found)
            raise IdlError(at, f"'{identifier}' is ambiguous: {paths} are both inherited.")
        if found and found[0].name != identifier:
            raise _clash(identifier, at, found[0])
        return found[0] if found else None

    def _all_named(self, key: str) -> list[_Place]:
        if key in self.names:
            return [self.names[key]]
        return list(dict.fromkeys(place for base in self.bases for place in base._all_named(key)))


def _clash(identifier: str, at: Position, known: _Place) -> IdlError:
    how = "is" if known.name == identifier else f"differs only in case from '{known.name}',"
    return IdlError(at, f"'{identifier}' {how} already declared at {known.name.at}.")


class _Resolver:
    """Declares everything in the order of the text, and makes the names in it absolute."""

    def __init__(self) -> None:
        nameless = Name("", Position("", 0, 0))
        self.outermost = _Place(nameless, "", Module(nameless, ()))
        self.declarations: dict[str, Declaration] = {}

    def resolve(self, value: Any, scope: _Place, role: str = "") -> Any:
        """The value with absolute names; what it declares is declared in the scope."""
        match value:
            case tuple():
                return tuple(self.resolve(part, scope, role) for part in value)
            case Scoped(name):
                return Scoped(Name(self._found(name, scope, role).path, name.at))
            case Sequence(element):
                return replace(value, element=self.resolve(element, scope))
        return self._declared(value, scope) if hasattr(value, "name") else value

    def finish(self, scope: _Place) -> None:
        """Raises `IdlError` if an interface was announced and not declared."""
        for place in scope.names.values():
            if isinstance(place.value, Forward):
                raise IdlError(place.name.at, f"'{place.name}' is announced, but never declared.")
            self.finish(place)

    def _declared(self, value: Any, scope: _Place) -> Any:
        if isinstance(value, Interface):
            # Bases are looked up before the interface has its name, and not among what they bring.
            value = replace(value, bases=self.resolve(value.bases, scope, "bases"))
        place, parts = scope, dict[str, Any]()
        for part in fields(value):
            if part.name == "name":
                place = self._place(value, scope)
            elif part.name != "bases":
                parts[part.name] = self.resolve(getattr(value, part.name), place, part.name)
        resolved = replace(value, **parts)
        if isinstance(resolved, _Kept):
            place.value = self.declarations[place.path] = resolved
        return resolved

    def _place(self, value: Any, scope: _Place) -> _Place:
        """Where the value is declared: a new place, or one announced or opened before."""
        again = {Module: (Module,), Interface: (Forward,), Forward: (Forward, Interface)}
        place = scope.names.get(value.name.lower())
        if not place or not isinstance(place.value, again.get(type(value), ())):
            place = scope.declare(value.name, value)
        elif place.name != value.name:
            raise _clash(value.name, value.name.at, place)
        match value:
            case Interface():
                place.value = value
                place.bases = [self.outermost.find(one.name, is_use=False) for one in value.bases]
                place.check_operations(value.name)
            case Operation(True, result, name, parameters, raises):
                gives = [one for one in parameters if one.direction != "in"]
                if gives or raises or result != Basic("void"):
                    raise IdlError(name.at, f"'{name}' is oneway, but gives something back.")
            case Enum():
                for enumerator in value.enumerators:
                    scope.declare(enumerator, enumerator)
        return place

    def _found(self, name: Name, scope: _Place, role: str) -> _Place:
        kinds, what = _ROLES.get(role, _TYPES)
        place = scope.find(name, is_use=role not in _ROLES)
        if not isinstance(place.value, kinds):
            raise IdlError(name.at, f"'{name}' is not {what}.")
        if isinstance(place.value, Struct) and place.path not in self.declarations:
            raise IdlError(name.at, f"'{name}' cannot be a part of itself.")
        return place
