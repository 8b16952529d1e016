"""Values of the Python image as plain sequences, and back: what is packed into a message.

A struct becomes the tuple of its fields, an enum its member's name, a reference a string; numbers,
text and bytes stay as they are. Reading is led by the declared type alone: nothing that arrives can
name a class, so nothing is built that the contract does not say. Pure, and ignorant of the packing
itself and of every transport; what a reference means is asked of the `References` handed in.

Values are checked when they are made: a struct by its own constructor, a bare argument here.
"""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from idl import straight, system
from idl.mapping import (
    Enumeration,
    IdlType,
    Integer,
    InvalidValue,
    ObjectReference,
    Operation,
    SequenceOf,
    Structure,
    UserException,
    field_values,
    fields_of,
    operations_of,
    own_check_of,
    repository_id,
)

REASON_LENGTH_MAX = 2000
# From so many on, structures are worth reading field by field.
COLUMN_MIN = 8


class References(Protocol):
    """Names objects, and finds the object for a name."""

    def export(self, target: object, interface: type) -> str:
        """The name under which the other side reaches this object."""

    def resolve(self, name: str, interface: type) -> object:
        """An object with this interface that stands for the name."""


Writer = Callable[[Any, References], Any]
Reader = Callable[[Any, References], Any]
Function = Callable[[Any, References], Any]


@dataclass(frozen=True)
class Codec:
    """How values of one type are written and read; None stands for 'as it is'."""

    write: Writer | None
    read: Reader | None


# --- Operations ----------------------------------------------------------------------------------


# What one value needs on its way: where it is, its check and its conversion, each unless needless.
Slot = tuple[str, Callable[[Any, str], None] | None, Callable[[Any, References], Any] | None]
Slots = tuple[Slot, ...]
# Arguments or results: how each is called, and its type.
Values = list[tuple[str, IdlType]]


@dataclass(frozen=True)
class OperationCodec:
    """Arguments, result and exceptions of one operation, in both directions."""

    operation: Operation
    # Checks the arguments of a call and makes them plain.
    write_arguments: Callable[[tuple[Any, ...], References], tuple[Any, ...]]
    # The arguments of a call, checked again: they come from a stranger.
    read_arguments: Callable[[object, References], list[Any]]
    # Makes plain what the operation returned.
    write_result: Callable[[Any, References], tuple[Any, ...]]
    # What the operation returned.
    read_result: Callable[[object, References], Any]
    exceptions: dict[str, type[UserException]]


@functools.cache
def operation_codecs(interface: type) -> dict[str, OperationCodec]:
    """The codecs of all operations of an interface, by name."""
    return {name: _operation_codec(op) for name, op in operations_of(interface).items()}


def _operation_codec(op: Operation) -> OperationCodec:
    def later(name: str, make: Callable[[], Function]) -> Function:
        """The function, which is made when it is first used: most never are."""

        @functools.cache
        def own() -> Function:
            function = make()
            object.__setattr__(codec, name, function)
            return function

        return lambda given, references: own()(given, references)

    results = () if op.result is None else (("result", op.result),)
    arguments = [(f"{op.name}.{name}", kind) for name, kind in op.parameters]
    returned = [(f"{op.name}.{name}", kind) for name, kind in (*results, *op.out)]
    codec = OperationCodec(
        operation=op,
        write_arguments=later("write_arguments", lambda: _arguments_writer(arguments, op.name)),
        read_arguments=later("read_arguments", lambda: _arguments_reader(arguments, op.name)),
        write_result=later("write_result", lambda: _result_writer(returned, op.name)),
        read_result=later("read_result", lambda: _result_reader(returned, op.name)),
        exceptions={repository_id(raised): raised for raised in op.raises},
    )
    return codec


# Each is straight where values fit, and else goes the way that is told here.


def _arguments_writer(values: Values, name: str) -> Writer:
    slots = _slots_out(values)

    def write(given: Any, references: References) -> tuple[Any, ...]:
        return _write(slots, given, references, name)

    return straight.sequence_writer([_part_out(*value) for value in values], write)


def _arguments_reader(values: Values, name: str) -> Reader:
    slots = _slots_in(values)

    def read(plain: Any, references: References) -> list[Any]:
        return _read(slots, plain, references, name)

    return straight.sequence_reader([_part_in(*value) for value in values], read)


def _result_writer(values: Values, name: str) -> Writer:
    slots = _slots_out(values)

    def write(value: Any, references: References) -> tuple[Any, ...]:
        if len(slots) == 1:
            return _write(slots, (value,), references, name)
        if not slots and value is not None:
            raise InvalidValue(f"{name} returned {type(value).__name__}, not None")
        if slots and type(value) is not tuple:
            raise InvalidValue(f"{name} returned {type(value).__name__}, not a tuple")
        return _write(slots, value or (), references, name)

    return straight.result_writer([_part_out(*value) for value in values], write)


def _result_reader(values: Values, name: str) -> Reader:
    slots = _slots_in(values)

    def read(plain: Any, references: References) -> Any:
        made = _read(slots, plain, references, name)
        if not made:
            return None
        return made[0] if len(made) == 1 else tuple(made)

    return straight.result_reader([_part_in(*value) for value in values], read)


def _part_out(name: str, kind: IdlType) -> straight.Part:
    inner = fields_of(kind.python) if isinstance(kind, Structure) else ()
    return straight.Part(name, kind, codec_of(kind).write, tuple(_part_out(*one) for one in inner))


def _part_in(name: str, kind: IdlType) -> straight.Part:
    inner = fields_of(kind.python) if isinstance(kind, Structure) else ()
    return straight.Part(name, kind, codec_of(kind).read, tuple(_part_in(*one) for one in inner))


def _slots_out(values: Values) -> Slots:
    # Whether an object can be named is for whoever names it to say: there is nothing to check.
    return tuple(
        (where, None if isinstance(kind, ObjectReference) else kind.check, codec_of(kind).write)
        for where, kind in values
    )


def _slots_in(values: Values) -> Slots:
    # What a reader has made is of its type, and was checked as it was made.
    readers = [codec_of(kind).read for _, kind in values]
    return tuple(
        (where, kind.check if read is None else None, read)
        for (where, kind), read in zip(values, readers, strict=True)
    )


def _write(
    slots: Slots, values: tuple[Any, ...], references: References, name: str
) -> tuple[Any, ...]:
    if len(values) != len(slots):
        raise _wrong_count(slots, values, name)
    if not slots:
        return ()
    plain = []
    # The counts are equal; the plain zip is a good part faster, on the way of every call.
    for (where, check, write), value in zip(slots, values):  # noqa: B905
        if check is not None:
            check(value, where)
        plain.append(value if write is None else write(value, references))
    return tuple(plain)


def _read(slots: Slots, plain: object, references: References, name: str) -> list[Any]:
    if not isinstance(plain, tuple):
        raise InvalidValue(f"{name}: {type(plain).__name__} in place of a sequence")
    if len(plain) != len(slots):
        raise _wrong_count(slots, plain, name)
    values = []
    for (where, check, read), part in zip(slots, plain):  # noqa: B905
        value = part if read is None else read(part, references)
        if check is not None:
            check(value, where)
        values.append(value)
    return values


def _wrong_count(slots: Slots, values: tuple[Any, ...], name: str) -> InvalidValue:
    return InvalidValue(f"{name} has {len(slots)} values, {len(values)} were given")


# --- Exceptions ----------------------------------------------------------------------------------

_SYSTEM_EXCEPTIONS: dict[str, type[system.SystemException]] = {
    f"IDL:omg.org/CORBA/{raised.__name__}:1.0": raised
    for raised in system.SystemException.__subclasses__()
}
_SYSTEM_IDS = {raised: name for name, raised in _SYSTEM_EXCEPTIONS.items()}


def write_exception(raised: UserException | system.SystemException, references: References) -> Any:
    """An exception of the IDL or of CORBA as its repository id and its fields."""
    if isinstance(raised, system.SystemException):
        # One that is not CORBA's own travels as the closest that is.
        known = next((k for k in type(raised).__mro__ if k in _SYSTEM_IDS), system.UNKNOWN)
        return (_SYSTEM_IDS[known], (raised.reason, raised.completed.name))
    kind: Any = type(raised)
    return (repository_id(kind), _structure_writer(kind)(raised, references))


def doubted(plain: Any) -> Any:
    """The written exception, told after an attempt of which nobody knows what it has done."""
    match plain:
        case (str() as name, (reason, system.Completion.NO.name)) if name in _SYSTEM_EXCEPTIONS:
            return (name, (reason, system.Completion.MAYBE.name))
    return plain


def read_exception(
    plain: object, declared: dict[str, type[UserException]], references: References
) -> Exception:
    """The exception that was written; one that the operation does not declare is UNKNOWN."""
    match plain:
        case (str() as name, (str() as reason, str() as completed)) if name in _SYSTEM_EXCEPTIONS:
            return _SYSTEM_EXCEPTIONS[name](printable(reason), _completion(completed))
        case (str() as name, tuple() as fields) if name in declared:
            kind: Any = declared[name]
            raised: Exception = _structure_reader(kind)(fields, references)
            return raised
        case (str() as name, _):
            text = f"the server raised {name[:200]!a}, which the operation does not declare"
            return system.UNKNOWN(text, system.Completion.MAYBE)
    return system.MARSHAL("the server's exception cannot be read", system.Completion.MAYBE)


def printable(text: str) -> str:
    """A stranger's text as it may stand on a terminal: what would steer the terminal is escaped."""
    shown = text[:REASON_LENGTH_MAX]
    return shown if shown.isprintable() else ascii(shown)


def _completion(name: str) -> system.Completion:
    return system.Completion.__members__.get(name, system.Completion.MAYBE)


# --- Types ---------------------------------------------------------------------------------------


def codec_of(idl_type: IdlType) -> Codec:
    """How values of this type are written and read."""
    match idl_type:
        case Enumeration(python=python):
            return Codec(lambda value, _: value._name_, _enumeration_reader(python))
        case ObjectReference(python=python):
            return _reference_codec(python)
        case Structure(python=python):
            return Codec(_structure_writer(python), _structure_reader(python))
        case SequenceOf():
            return _sequence_codec(idl_type)
        case _:
            return Codec(None, None)


def _enumeration_reader(python: Any) -> Reader:
    def read(plain: Any, _: References) -> Any:
        member = python.__members__.get(plain) if isinstance(plain, str) else None
        if member is None:
            raise InvalidValue(f"{python.__name__} has no member {reprlib.repr(plain)}")
        return member

    return read


def _reference_codec(python: type) -> Codec:
    def write(target: Any, references: References) -> str | None:
        return None if target is None else references.export(target, python)

    def read(plain: Any, references: References) -> Any:
        if plain is None:
            return None
        if type(plain) is not str:
            raise InvalidValue(f"{python.__name__}: {type(plain).__name__} in place of a reference")
        return references.resolve(plain, python)

    return Codec(write, read)


# A type is part of many others; as its functions take time to make, they are made once.
@functools.cache
def _sequence_codec(sequence: SequenceOf) -> Codec:
    element = sequence.element
    codec = codec_of(element)
    write_element, read_element = codec.write, codec.read
    if write_element is None or read_element is None:
        return Codec(None, None)
    read_column = _column_reader(element)
    has_numbers_only = _is_of_numbers(element)

    def write(values: Any, references: References) -> Any:
        if has_numbers_only and len(values) >= COLUMN_MIN:
            # Times of messages are often the very same object, which is written once.
            distinct = {id(value): value for value in values}
            written = {name: write_element(each, references) for name, each in distinct.items()}
            return tuple([written[id(value)] for value in values])
        return tuple([write_element(value, references) for value in values])

    def read(plain: Any, references: References) -> Any:
        if type(plain) is not tuple:
            raise InvalidValue(f"{type(plain).__name__} in place of a sequence")
        if len(plain) >= COLUMN_MIN and (column := read_column(plain)) is not None:
            return column
        return tuple([read_element(part, references) for part in plain])

    many = COLUMN_MIN if has_numbers_only else None
    return Codec(
        straight.elements_writer(_part_out("", element), many, write),
        straight.elements_reader(_part_in("", element), many, read),
    )


def _is_of_numbers(element: IdlType) -> bool:
    """Whether it is a structure that has integers, and nothing else."""
    if not isinstance(element, Structure):
        return False
    fields = fields_of(element.python)
    return bool(fields) and all(isinstance(idl_type, Integer) for _, idl_type in fields)


def _column_reader(element: IdlType) -> Callable[[tuple[Any, ...]], tuple[Any, ...] | None]:
    """Reads many structures of numbers at once; None where the long way has to say what is wrong.

    Each number is checked as the structure itself would, only all of a field together. Values that
    are equal become one: they are never changed.
    """
    if not isinstance(element, Structure) or not _is_of_numbers(element):
        return lambda plain: None
    new, python = object.__new__, element.python
    fields = fields_of(python)
    checks = [SequenceOf(idl_type).check for _, idl_type in fields]
    setters = [getattr(python, name).__set__ for name, _ in fields]
    own_check = own_check_of(python)

    def read(plain: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if set(map(type, plain)) != {tuple} or set(map(len, plain)) != {len(fields)}:
            return None
        # What is equal to a number need not be one, so this is looked at before what is equal.
        if set(map(type, chain.from_iterable(plain))) != {int}:
            return None
        distinct = set(plain)
        if 2 * len(distinct) <= len(plain):
            parts = tuple(distinct)
            few = read(parts)
            made_of = None if few is None else dict(zip(parts, few, strict=True))
            return None if made_of is None else tuple([made_of[part] for part in plain])
        columns = list(zip(*plain, strict=True))
        try:
            for check, column in zip(checks, columns, strict=True):
                check(column, "")
            made: tuple[Any, ...] = tuple([new(python) for _ in plain])
            for setter, column in zip(setters, columns, strict=True):
                for value, number in zip(made, column, strict=True):
                    setter(value, number)
            if own_check is not None:
                for value in made:
                    own_check(value)
        except InvalidValue:
            return None
        return made

    return read


@functools.cache
def _structure_writer(python: Any) -> Writer:
    parts = [_part_out(name, kind) for name, kind in fields_of(python)]

    def write(value: Any, references: References) -> Any:
        both = zip(field_values(value), parts, strict=True)
        return tuple(
            [
                each if part.convert is None else part.convert(each, references)
                for each, part in both
            ]
        )

    return straight.structure_writer(parts, write)


@functools.cache
def _structure_reader(python: Any) -> Reader:
    parts = [_part_in(name, kind) for name, kind in fields_of(python)]
    readers = [part.convert for part in parts]
    count = len(readers)

    def read(plain: Any, references: References) -> Any:
        if type(plain) is not tuple or len(plain) != count:
            raise InvalidValue(f"{python.__name__}: not a sequence of {count} fields")
        values = list(plain)
        for place, reader in enumerate(readers):
            if reader is not None:
                values[place] = reader(values[place], references)
        return python(*values)

    # What an exception is made of beyond its fields only its own class knows.
    is_exception = issubclass(python, BaseException)
    return read if is_exception else straight.structure_reader(python, parts, read)
