"""Straight-line code for values that are as they should be: the way of almost every call.

`marshal.py` says how values are written and read, type by type. What it says is the same for every
call of an operation, so that here it is spelled out once, as a function without loops: for
`otid_t`, in essence,

    def read(plain, references):
        if type(plain) is tuple and len(plain) == 3:
            a, b, c = plain
            if type(a) is int and -2147483648 <= a <= 2147483647 and ... and type(c) is bytes:
                made = new(otid_t)
                set_formatID(made, a)
                ...
                own_check(made)
                return made
        return otherwise(plain, references)

Whatever does not fit goes the general way, `otherwise`, which reads it all the same or says what is
wrong: nothing is refused here, and nothing let in that would not be there. The functions are made
from the types of the image alone; nothing that arrives has a part in them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from idl.mapping import (
    Enumeration,
    IdlType,
    Integer,
    InvalidValue,
    ObjectReference,
    Plain,
    SequenceOf,
    Structure,
    Text,
    checks_fast,
    own_check_of,
)

Function = Callable[..., Any]
# A value on its way: where it is, its type, and its conversion, unless it stays as it is.
Part = tuple[str, IdlType, Function | None]
Parts = Sequence[Part]


class _Source:
    """The text of one function, and the objects that its names stand for."""

    def __init__(self, otherwise: Function) -> None:
        self._lines: list[str] = []
        self._names: dict[str, Any] = {"otherwise": otherwise}

    def name(self, meant: object) -> str:
        """A name for the object."""
        made = f"n{len(self._names)}"
        self._names[made] = meant
        return made

    def add(self, *lines: str) -> None:
        self._lines += lines

    def made(self, parameters: str) -> Function:
        text = [f"def function({parameters}):"]
        text += [f"    {line}" for line in self._lines]
        text += [f"    return otherwise({parameters})", ""]
        # Made of the types' own numbers and of names that were given here.
        exec("\n".join(text), self._names)
        function: Function = self._names["function"]
        return function

    # --- Conditions under which a value is as it should be

    def is_fine(self, place: str, kind: IdlType) -> str:
        """The condition for a value of the image; empty where there is none."""
        match kind:
            case Plain(python=python) | Structure(python=python) | Enumeration(python=python):
                return f"type({place}) is {self.name(python)}"
            case Integer(low=low, high=high):
                return f"type({place}) is int and {low} <= {place} <= {high}"
            case Text(bound=bound):
                is_short = "" if bound is None else f"len({place}) <= {bound} and "
                return (
                    f"type({place}) is str and {is_short}{place}.isascii() and '\\0' not in {place}"
                )
            case SequenceOf(element=element):
                every = self.name(_all_fine(element))
                return f"type({place}) is tuple and (not {place} or {every}({place}))"
            case ObjectReference():
                return ""
            case _:
                return f"{self.name(_is_content(kind))}({place})"

    def can_be_read(self, place: str, part: Part) -> str:
        """The same for a plain value that is going to be read."""
        _, kind, read = part
        match kind:
            case Enumeration(python=python):
                return f"type({place}) is str and {place} in {self.name(python.__members__)}"
            case ObjectReference():
                return f"({place} is None or type({place}) is str)"
            case _:
                # What has a reader of its own is judged by that.
                return self.is_fine(place, kind) if read is None else ""

    # --- Conversions

    def read(self, place: str, part: Part) -> str:
        """The value that is made of a plain one."""
        _, kind, read = part
        match kind:
            case Enumeration(python=python):
                return f"{self.name(python.__members__)}[{place}]"
            case ObjectReference(python=python):
                resolved = f"references.resolve({place}, {self.name(python)})"
                return f"(None if {place} is None else {resolved})"
            case SequenceOf() if read is not None:
                # An empty one stays as it is.
                return f"({place} if {place} == () else {self.name(read)}({place}, references))"
            case _ if read is not None:
                return f"{self.name(read)}({place}, references)"
        return place

    def written(self, place: str, part: Part) -> str:
        """The plain value that is made of one of the image."""
        _, kind, write = part
        match kind:
            case Enumeration():
                return f"{place}._name_"
            case ObjectReference(python=python):
                exported = f"references.export({place}, {self.name(python)})"
                return f"(None if {place} is None else {exported})"
            case SequenceOf() if write is not None:
                return f"({place} if {place} == () else {self.name(write)}({place}, references))"
            case _ if write is not None:
                return f"{self.name(write)}({place}, references)"
        return place


def _is_content(kind: IdlType) -> Callable[[object], bool]:
    def is_content(value: object) -> bool:
        try:
            kind.check(value, "")
        except InvalidValue:
            return False
        return True

    return is_content


def _all_fine(element: IdlType) -> Callable[[tuple[Any, ...]], bool]:
    """Whether all of some values are as they should be; there is at least one."""
    if isinstance(element, ObjectReference):
        return lambda values: True

    def otherwise(values: tuple[Any, ...]) -> bool:
        if are_parts_fine is None:
            return checks_fast(element, values)
        return all(type(each) is tuple and (not each or are_parts_fine(each)) for each in values)

    are_parts_fine = _all_fine(element.element) if isinstance(element, SequenceOf) else None

    source = _Source(otherwise)
    condition = source.is_fine("one", element)
    source.add("if len(values) == 1:", "    one, = values", f"    return {condition}")
    return source.made("values")


def _places(parts: Parts) -> list[str]:
    return [f"v{position}" for position in range(len(parts))]


def _guarded(source: _Source, given: str, places: list[str], conditions: list[str]) -> str:
    """The parts of a sequence have their names, and are fine; the indentation of what follows."""
    source.add(f"if type({given}) is tuple and len({given}) == {len(places)}:")
    indent = "    "
    if places:
        source.add(f"{indent}{', '.join(places)}, = {given}")
    wanted = " and ".join(condition for condition in conditions if condition)
    if wanted:
        source.add(f"{indent}if {wanted}:")
        indent += "    "
    return indent


# --- Structures ----------------------------------------------------------------------------------


def structure_reader(python: Any, parts: Parts, otherwise: Function) -> Function:
    """A function that makes the structure of a plain sequence. `parts` are its fields."""
    source = _Source(otherwise)
    places = _places(parts)
    both = list(zip(places, parts, strict=True))
    conditions = [source.can_be_read(place, part) for place, part in both]
    indent = _guarded(source, "plain", places, conditions)
    values = [source.read(place, part) for place, part in both]
    source.add(f"{indent}made = {source.name(object.__new__)}({source.name(python)})")
    for (name, _, _), value in zip(parts, values, strict=True):
        setter = source.name(getattr(python, name).__set__)
        source.add(f"{indent}{setter}(made, {value})")
    own_check = own_check_of(python)
    if own_check is not None:
        source.add(f"{indent}{source.name(own_check)}(made)")
    source.add(f"{indent}return made")
    return source.made("plain, references")


def structure_writer(parts: Parts, otherwise: Function) -> Function:
    """A function that makes a plain sequence of the structure."""
    source = _Source(otherwise)
    written = [source.written(f"value.{part[0]}", part) for part in parts]
    source.add(f"return ({''.join(each + ', ' for each in written)})")
    return source.made("value, references")


# --- Arguments and results -----------------------------------------------------------------------


def sequence_reader(parts: Parts, otherwise: Function) -> Function:
    """A function that makes the values of a plain sequence, as a list."""
    source = _Source(otherwise)
    places = _places(parts)
    both = list(zip(places, parts, strict=True))
    conditions = [source.can_be_read(place, part) for place, part in both]
    indent = _guarded(source, "plain", places, conditions)
    values = [source.read(place, part) for place, part in both]
    source.add(f"{indent}return [{', '.join(values)}]")
    return source.made("plain, references")


def sequence_writer(parts: Parts, otherwise: Function) -> Function:
    """A function that makes a plain sequence of values."""
    source = _Source(otherwise)
    places = _places(parts)
    both = list(zip(places, parts, strict=True))
    conditions = [source.is_fine(place, part[1]) for place, part in both]
    indent = _guarded(source, "values", places, conditions)
    written = [source.written(place, part) for place, part in both]
    source.add(f"{indent}return ({''.join(each + ', ' for each in written)})")
    return source.made("values, references")
