"""How OMG IDL maps onto Python: types, structs, exceptions and interfaces as the image writes them.

`cos.py` and `mq.py` are written with the words of this module, `marshal.py` turns their values into
plain sequences and back, and the contract test compares them with the IDL texts. This module knows
no particular interface, no wire and no transport. It is long because every kind of type is in it.

The rules, chosen to be read without a manual:

    IDL                   Python
    boolean, double       bool, float
    sequence<octet>       bytes
    short, unsigned ...   `Short`, `UnsignedShort` ...: int with its range
    string, string<n>     `String`, `Annotated[str, Text(n)]`
    any                   `AnyValue`: None, bool, int, float, str, bytes; tuples and dicts of them
    sequence<T>           tuple[T, ...]
    struct                a frozen class made by `@struct`, checked when a value is made
    enum                  an `enum.Enum`; the enumerators lose the prefix that they share
    exception             a class made by `@exception`, derived from `UserException`
    interface             a `Protocol` made by `@interface`; a nil reference is None
    out parameters        follow the result in the returned tuple; `@operation` names them
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import reprlib
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, dataclass_transform

ANY_DEPTH_MAX = 16
SHOWN_BYTES_MAX = 30

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class InvalidValue(ValueError):
    """A value does not fit its IDL type; the message names the place, the value and the rule."""


class IdlType(Protocol):
    """One IDL type: how the IDL spells it, and which Python values it admits."""

    @property
    def idl(self) -> str:
        """The type as IDL text, with typedefs expanded."""

    def check(self, value: object, where: str) -> None:
        """Raises `InvalidValue` unless the value belongs to the type."""


# --- Types without parts -------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain:
    """A basic type that one Python class holds without limits of its own."""

    idl: str
    python: type

    def check(self, value: object, where: str) -> None:
        if type(value) is not self.python:
            raise _invalid(where, value, f"is not {_article(self.python.__name__)}")


@dataclass(frozen=True)
class Integer:
    """An integer type with its range."""

    idl: str
    low: int
    high: int

    def check(self, value: object, where: str) -> None:
        if type(value) is not int:
            raise _invalid(where, value, "is not an int")
        if not self.low <= value <= self.high:
            raise _invalid(where, value, f"is not between {self.low} and {self.high}")


@dataclass(frozen=True)
class Text:
    """A string, of at most `bound` characters where one is given; without NUL, as IDL has it."""

    bound: int | None = None

    @property
    def idl(self) -> str:
        return "string" if self.bound is None else f"string<{self.bound}>"

    def check(self, value: object, where: str) -> None:
        if type(value) is not str:
            raise _invalid(where, value, "is not a str")
        if self.bound is not None and len(value) > self.bound:
            raise _invalid(where, value, f"has {len(value)} characters, {self.bound} are allowed")
        _check_text(value, where)


@dataclass(frozen=True)
class Anything:
    """The IDL type any: plain values, and tuples and dicts of them, nested to a fixed depth."""

    idl: str = "any"

    def check(self, value: object, where: str) -> None:
        _check_any(value, where, ANY_DEPTH_MAX)


Boolean = bool
Short = Annotated[int, Integer("short", -(2**15), 2**15 - 1)]
UnsignedShort = Annotated[int, Integer("unsigned short", 0, 2**16 - 1)]
Long = Annotated[int, Integer("long", -(2**31), 2**31 - 1)]
UnsignedLong = Annotated[int, Integer("unsigned long", 0, 2**32 - 1)]
LongLong = Annotated[int, Integer("long long", -(2**63), 2**63 - 1)]
UnsignedLongLong = Annotated[int, Integer("unsigned long long", 0, 2**64 - 1)]
String = Annotated[str, Text()]
AnyValue = Annotated[object, Anything()]


def _check_any(value: object, where: str, depth: int) -> None:
    if depth == 0:
        raise InvalidValue(f"{where}: nested deeper than {ANY_DEPTH_MAX} levels")
    kind = type(value)
    if kind is int:
        if not -(2**63) <= typing.cast(int, value) < 2**64:
            raise _invalid(where, value, "does not fit into 64 bits")
    elif kind is str:
        _check_text(typing.cast(str, value), where)
    elif kind is tuple:
        for part in typing.cast("tuple[object, ...]", value):
            _check_any(part, where, depth - 1)
    elif kind is dict:
        for key, part in typing.cast("dict[object, object]", value).items():
            if type(key) is not str:
                raise _invalid(where, key, "is not a str, and keys of an any are")
            _check_text(key, where)
            _check_any(part, where, depth - 1)
    elif value is not None and kind not in (bool, float, bytes):
        raise _invalid(where, value, "is not a plain value")


def _check_text(value: str, where: str) -> None:
    if "\0" in value:
        raise _invalid(where, value, "has a NUL character")
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _invalid(where, value, "has a lone surrogate and cannot be encoded") from None


# --- Types with parts ----------------------------------------------------------------------------


@dataclass(frozen=True)
class SequenceOf:
    """A sequence of one element type, held as a tuple."""

    element: IdlType

    @property
    def idl(self) -> str:
        return f"sequence<{self.element.idl}>"

    def check(self, value: object, where: str) -> None:
        if type(value) is not tuple:
            raise _invalid(where, value, "is not a tuple")
        if value and not checks_fast(self.element, value):
            for position, element in enumerate(value):
                self.element.check(element, f"{where}[{position}]")


@dataclass(frozen=True)
class Enumeration:
    """An enum of the image."""

    python: type[enum.Enum]

    @property
    def idl(self) -> str:
        return idl_name(self.python)

    def check(self, value: object, where: str) -> None:
        if type(value) is not self.python:
            raise _invalid(where, value, f"is not a {self.python.__name__}")


@dataclass(frozen=True)
class Structure:
    """A struct of the image; its fields were checked when the value was made."""

    python: type

    @property
    def idl(self) -> str:
        return idl_name(self.python)

    def check(self, value: object, where: str) -> None:
        if type(value) is not self.python:
            raise _invalid(where, value, f"is not {_article(self.python.__name__)}")


@dataclass(frozen=True)
class ObjectReference:
    """A reference to an object with this interface, or None for nil."""

    python: type

    @property
    def idl(self) -> str:
        return idl_name(self.python)

    def check(self, value: object, where: str) -> None:
        """Admits everything: whether an object can be named is for the transport to say."""


def type_of(hint: object) -> IdlType:
    """The IDL type that a type hint of the image stands for."""
    match _without_none(hint):
        case annotated if typing.get_origin(annotated) is Annotated:
            described: IdlType = typing.get_args(annotated)[1]
            return described
        case sequence if typing.get_origin(sequence) is tuple:
            element, dots = typing.get_args(sequence)
            assert dots is Ellipsis, f"a sequence is written tuple[T, ...], not {sequence}"
            return SequenceOf(type_of(element))
        case type() as python:
            return _type_of_class(python)
        case other:
            raise TypeError(f"{other!r} stands for no IDL type")


def _type_of_class(python: type) -> IdlType:
    if python in _PLAIN:
        return _PLAIN[python]
    if issubclass(python, enum.Enum):
        return Enumeration(python)
    if is_interface(python):
        return ObjectReference(python)
    if dataclasses.is_dataclass(python):
        return Structure(python)
    raise TypeError(f"{python!r} stands for no IDL type")


_PLAIN: dict[type, IdlType] = {
    bool: Plain("boolean", bool),
    float: Plain("double", float),
    bytes: Plain("sequence<octet>", bytes),
}


def _without_none(hint: object) -> object:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (only,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        return only
    return hint


def checks_fast(element: IdlType, values: tuple[object, ...]) -> bool:
    """Whether a column of plain values is fine as a whole; the long way then finds what is not."""
    kinds = set(map(type, values))
    match element:
        case Plain(python=python):
            return kinds <= {python}
        case Integer(low=low, high=high) if kinds == {int}:
            numbers = typing.cast("tuple[int, ...]", values)
            return low <= min(numbers) and max(numbers) <= high
        case Text(bound=bound) if kinds == {str}:
            texts = typing.cast("tuple[str, ...]", values)
            whole = "".join(texts)
            is_short = bound is None or max(map(len, texts)) <= bound
            return is_short and whole.isascii() and "\0" not in whole
        case Structure(python=python):
            return kinds <= {python}
    return not values


# --- Structs, exceptions, interfaces -------------------------------------------------------------


@dataclass_transform(frozen_default=True)
def struct(scope: str = "") -> Callable[[type[T]], type[T]]:
    """Makes an IDL struct: frozen, and checked field by field when a value is made."""

    def make(python: type[T]) -> type[T]:
        own_check = python.__dict__.get("__post_init__")

        def check_fields(self: object) -> None:
            for name, check, where in _checks_of(type(self)):
                check(getattr(self, name), where)
            if own_check is not None:
                own_check(self)

        python.__post_init__ = check_fields  # type: ignore[attr-defined]
        made = dataclass(frozen=True, slots=True)(python)
        made.__idl_scope__ = scope  # type: ignore[attr-defined]
        made.__idl_own_check__ = own_check  # type: ignore[attr-defined]
        return made

    return make


@functools.cache
def draft_of(python: Any) -> type:
    """A class like that of the structure, but whose fields can be set.

    To make one of these, and then the structure of it by setting its class, takes a third of the
    time of setting the fields one by one past the structure's own refusal.
    """
    return type(f"draft of {python.__name__}", (), {"__slots__": python.__slots__})


class UserException(Exception):
    """An exception of the IDL: it arrives at the caller as itself, with its fields."""

    __idl_scope__: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, check, where in _checks_of(type(self)):
            check(getattr(self, name), where)

    def __reduce__(self) -> tuple[type[UserException], tuple[object, ...]]:
        return type(self), field_values(self)

    def __str__(self) -> str:
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name, _ in fields_of(type(self)))
        meaning = inspect.cleandoc(type(self).__doc__ or type(self).__name__)
        return f"{meaning} ({told})" if told else meaning


@dataclass_transform(eq_default=True)
def exception(scope: str = "") -> Callable[[type[T]], type[T]]:
    """Makes an IDL exception. Its docstring is its message, and says what to do next."""

    def make(python: type[T]) -> type[T]:
        python.__idl_scope__ = scope  # type: ignore[attr-defined]
        # Not frozen: the library's context managers set the traceback of what they re-raise.
        return dataclass(unsafe_hash=True)(python)

    return make


def enumeration(scope: str = "") -> Callable[[type[T]], type[T]]:
    """Marks an enum as the image of an IDL enum. Its members travel by name."""

    def mark(python: type[T]) -> type[T]:
        python.__idl_scope__ = scope  # type: ignore[attr-defined]
        return python

    return mark


def interface(scope: str = "", *, local: bool = False) -> Callable[[type[T]], type[T]]:
    """Marks a Protocol as the image of an IDL interface; a local one is never remote."""

    def mark(python: type[T]) -> type[T]:
        python.__idl_scope__ = scope  # type: ignore[attr-defined]
        python.__idl_local__ = local  # type: ignore[attr-defined]
        return python

    return mark


def operation(
    *raises: type[UserException], out: tuple[str, ...] = (), idempotent: bool = False
) -> Callable[[F], F]:
    """Says what the IDL says of an operation and a Python signature cannot: raises, out parameters.

    `idempotent` is ours: the operation may be sent again when the answer to it was lost.
    """

    def mark(function: F) -> F:
        function.__idl_operation__ = (raises, out, idempotent)  # type: ignore[attr-defined]
        return function

    return mark


def fields_of(python: type) -> tuple[tuple[str, IdlType], ...]:
    """The fields of a struct or an exception, in order, with their types."""
    try:
        known: tuple[tuple[str, IdlType], ...] = python.__dict__["__idl_fields__"]
    except KeyError:
        hints = typing.get_type_hints(python, include_extras=True)
        names = [field.name for field in dataclasses.fields(python)]
        known = tuple((name, type_of(hints[name])) for name in names)
        python.__idl_fields__ = known  # type: ignore[attr-defined]
    return known


def _checks_of(python: type) -> tuple[tuple[str, Callable[[object, str], None], str], ...]:
    """The checks of a struct's fields, and how each field is called when it is refused."""
    try:
        known: tuple[tuple[str, Callable[[object, str], None], str], ...]
        known = python.__dict__["__idl_checks__"]
    except KeyError:
        known = tuple(
            (name, idl_type.check, f"{python.__name__}.{name}")
            for name, idl_type in fields_of(python)
        )
        python.__idl_checks__ = known  # type: ignore[attr-defined]
    return known


def own_check_of(python: type) -> Callable[[object], None] | None:
    """What a struct checks beyond the types of its fields."""
    found: Callable[[object], None] | None = python.__dict__.get("__idl_own_check__")
    return found


def field_values(value: object) -> tuple[object, ...]:
    """The fields' values of a struct or an exception, in order."""
    return tuple(getattr(value, name) for name, _ in fields_of(type(value)))


def is_interface(python: type) -> bool:
    """Whether a class is the image of an IDL interface."""
    return "__idl_local__" in python.__dict__


def is_local(python: type) -> bool:
    """Whether the interface is local: it has no remote objects."""
    return bool(python.__dict__["__idl_local__"])


def idl_name(python: type) -> str:
    """The scoped IDL name, such as `CosTransactions::Status`."""
    scope: str = getattr(python, "__idl_scope__", "")
    return f"{scope}::{python.__name__}" if scope else python.__name__


def repository_id(python: type) -> str:
    """The name by which an exception or an interface travels."""
    return f"IDL:{idl_name(python).replace('::', '/')}:1.0"


# --- Operations ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """One operation of an interface, as its Protocol declares it."""

    name: str
    parameters: tuple[tuple[str, IdlType], ...]
    result: IdlType | None
    out: tuple[tuple[str, IdlType], ...]
    raises: tuple[type[UserException], ...]
    idempotent: bool


@functools.cache
def operations_of(python: type) -> dict[str, Operation]:
    """The operations of an interface by name, those of its bases first."""
    found: dict[str, Operation] = {}
    for level in reversed(python.__mro__):
        if is_interface(level):
            found.update({op.name: op for op in _declared_operations(level)})
    return found


def _declared_operations(python: type) -> Iterable[Operation]:
    for name, function in vars(python).items():
        if inspect.isfunction(function) and hasattr(function, "__idl_operation__"):
            yield _operation(name, function)


def _operation(name: str, function: Callable[..., object]) -> Operation:
    raises, out, idempotent = function.__idl_operation__  # type: ignore[attr-defined]
    hints = typing.get_type_hints(function, include_extras=True)
    returned = _returned_types(hints.pop("return"))
    # The results that have no name are the operation's own: none for void, else the first.
    unnamed = len(returned) - len(out)
    assert unnamed in (0, 1), f"{name} returns {len(returned)} values and names {len(out)} of them"
    return Operation(
        name=name,
        parameters=tuple((parameter, type_of(hint)) for parameter, hint in hints.items()),
        result=returned[0] if unnamed else None,
        out=tuple(zip(out, returned[unnamed:], strict=True)),
        raises=raises,
        idempotent=idempotent,
    )


def _returned_types(hint: object) -> list[IdlType]:
    if hint is types.NoneType:
        return []
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[-1] is not Ellipsis:
        return [type_of(part) for part in typing.get_args(hint)]
    return [type_of(hint)]


def _invalid(where: str, value: object, rule: str) -> InvalidValue:
    # Shortened before it is shown: the value may be a payload of any size.
    if isinstance(value, bytes | bytearray) and len(value) > SHOWN_BYTES_MAX:
        return InvalidValue(f"{where}: {bytes(value[:SHOWN_BYTES_MAX])!r}... {rule}")
    return InvalidValue(f"{where}: {reprlib.repr(value)} {rule}")


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
