"""Straight-line code for values that are as they should be: the way of almost every call.

`marshal.py` says how values are written and read, type by type. What it says is the same for every
call of an operation, so that here it is spelled out once, as a function without loops, structures
within structures included: for `otid_t`, in essence,

    def read(plain, references):
        if type(plain) is tuple and len(plain) == 3:
            a, b, c = plain
            if type(a) is int and -2147483648 <= a <= 2147483647 and ... and type(c) is bytes:
                made = draft_of_otid_t()
                made.formatID = a
                ...
                made.__class__ = otid_t
                own_check(made)
                return made
        return otherwise(plain, references)

Whatever does not fit goes the general way, `otherwise`, which reads it all the same or says what is
wrong: nothing is refused here, and nothing let in that would not be there. The functions are made
from the types of the image alone; nothing that arrives has a part in them. Pure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
    draft_of,
    own_check_of,
)

Function = Callable[..., Any]


class Part(NamedTuple):
    """A value on its way: its name, its type, and its conversion, unless it stays as it is."""

    name: str
    kind: IdlType
    convert: Function | None
    # The fields of a structure.
    parts: tuple[Part, ...] = ()


Parts = Sequence[Part]
# Values that are going to be read, and where each of them is by then.
_Places = list[tuple[str, Part, Any]]


class _Source:
    """The text of one function, and the objects that its names stand for."""

    def __init__(self, otherwise: Function) -> None:
        self._lines: list[str] = []
        self.indent = "    "
        self._places = 0
        self._names: dict[str, Any] = {"otherwise": otherwise, "empty": ()}

    def name(self, meant: object) -> str:
        """A name for the object."""
        made = f"n{len(self._names)}"
        self._names[made] = meant
        return made

    def place(self) -> str:
        """A name for a value that nothing else has."""
        self._places += 1
        return f"v{self._places}"

    def add(self, line: str) -> None:
        self._lines.append(self.indent + line)

    def add_if(self, conditions: list[str]) -> None:
        """What is added from now on holds under these conditions, of which some may be empty."""
        wanted = " and ".join(filter(None, conditions))
        if wanted:
            self.begin(f"if {wanted}:")

    def begin(self, line: str) -> None:
        """What is added from now on belongs to what begins with this line."""
        self.add(line)
        self.indent += "    "

    def made(self, parameters: str) -> Function:
        end = f"    return otherwise({parameters})"
        text = "\n".join([f"def function({parameters}):", *self._lines, end, ""])
        # Made of the types' own numbers and of names that were given here.
        exec(text, self._names)
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
                # Most are empty, and most of the others have one element.
                is_only_fine = self.is_fine(f"{place}[0]", element) or "True"
                are_fine = self.name(_all_fine(element))
                is_one = f"len({place}) == 1 and {is_only_fine}"
                return (
                    f"({place} is empty or "
                    f"type({place}) is tuple and ({is_one} or {are_fine}({place})))"
                )
            case ObjectReference():
                return ""
            case _:
                return f"{self.name(_is_content(kind))}({place})"

    def can_be_read(self, place: str, part: Part) -> str:
        """The same for a plain value that is going to be read."""
        match part.kind:
            case Enumeration(python=python):
                return f"type({place}) is str and {place} in {self.name(_members_of(python))}"
            case ObjectReference():
                return f"({place} is None or type({place}) is str)"
            case Structure():
                return _has_parts(place, part.parts)
            case kind:
                # What has a reader of its own is judged by that.
                return self.is_fine(place, kind) if part.convert is None else ""

    def take_apart(self, plain: str, parts: Parts) -> _Places:
        """All parts of a plain sequence have their places, however deep, and can be read."""
        top: _Places = []
        level: list[tuple[str, Parts, _Places]] = [(plain, parts, top)]
        conditions = [_has_parts(plain, parts)]
        while level:
            self.add_if(conditions)
            conditions = []
            next_level: list[tuple[str, Parts, _Places]] = []
            for whole, its_parts, places in level:
                for part in its_parts:
                    place = self.place()
                    inner: _Places = []
                    places.append((place, part, inner))
                    conditions.append(self.can_be_read(place, part))
                    if isinstance(part.kind, Structure):
                        next_level.append((place, part.parts, inner))
                if places:
                    self.add(f"{''.join(f'{place}, ' for place, _, _ in places)}= {whole}")
            level = next_level
        self.add_if(conditions)
        return top

    # --- Conversions

    def read(self, place: str, part: Part, inner: _Places) -> None:
        """What is at the place is the value that is made of it, and of its parts."""
        convert = part.convert
        match part.kind:
            case Enumeration(python=python):
                self.add(f"{place} = {self.name(_members_of(python))}[{place}]")
            case ObjectReference(python=python):
                resolved = f"references.resolve({place}, {self.name(python)})"
                self.add(f"if {place} is not None: {place} = {resolved}")
            case Structure(python=python):
                self.read_structure(place, python, inner)
            case SequenceOf() if convert is not None:
                # An empty one stays as it is.
                read = f"{self.name(convert)}({place}, references)"
                self.add(f"if {place} is not empty: {place} = {read}")

    def read_structure(self, place: str, python: type, inner: _Places) -> None:
        self.add(f"{place} = {self.name(draft_of(python))}()")
        for part_place, part, parts in inner:
            self.read(part_place, part, parts)
            self.add(f"{place}.{part.name} = {part_place}")
        self.add(f"{place}.__class__ = {self.name(python)}")
        own_check = own_check_of(python)
        if own_check is not None:
            self.add(f"{self.name(own_check)}({place})")

    def written(self, place: str, part: Part) -> str:
        """The plain value that is made of one of the image."""
        convert = part.convert
        match part.kind:
            case Enumeration():
                return f"{place}._name_"
            case ObjectReference(python=python):
                exported = f"references.export({place}, {self.name(python)})"
                return f"(None if {place} is None else {exported})"
            case Structure():
                return self.all_written([f"{place}.{each.name}" for each in part.parts], part.parts)
            case SequenceOf() if convert is not None:
                return f"({place} and {self.name(convert)}({place}, references))"
        return place

    def all_written(self, places: list[str], parts: Parts) -> str:
        """The plain sequence that is made of values."""
        both = zip(places, parts, strict=True)
        return f"({''.join(f'{self.written(place, part)}, ' for place, part in both)})"


def _has_parts(place: str, parts: Parts) -> str:
    return f"type({place}) is tuple and len({place}) == {len(parts)}"


def _is_content(kind: IdlType) -> Callable[[object], bool]:
    def is_content(value: object) -> bool:
        try:
            kind.check(value, "")
        except InvalidValue:
            return False
        return True

    return is_content


def _all_fine(element: IdlType) -> Callable[[tuple[Any, ...]], bool]:
    """Whether all of several values are as they should be."""
    match element:
        case ObjectReference():
            return lambda values: True
        case SequenceOf(element=inner):
            are_parts_fine = _all_fine(inner)
            return lambda values: all(
                type(each) is tuple and (not each or are_parts_fine(each)) for each in values
            )
        case Plain(python=python) | Structure(python=python):
            return functools.partial(_are_of, {python})
        case Integer(low=low, high=high):
            return functools.partial(_are_numbers, {int}, low, high)
        case Text(bound=bound):
            return functools.partial(_are_texts, {str}, bound)
    # Of others the general way says more.
    return lambda values: False


def _are_of(kinds: set[type], values: tuple[Any, ...]) -> bool:
    return set(map(type, values)) <= kinds


def _are_numbers(kinds: set[type], low: int, high: int, values: tuple[Any, ...]) -> bool:
    return set(map(type, values)) == kinds and low <= min(values) and max(values) <= high


def _are_texts(kinds: set[type], bound: int | None, values: tuple[Any, ...]) -> bool:
    if set(map(type, values)) != kinds or (bound is not None and max(map(len, values)) > bound):
        return False
    whole = "".join(values)
    return whole.isascii() and "\0" not in whole


@functools.cache
def _members_of(python: Any) -> dict[str, Any]:
    # The enum's own mapping is a view of such a dictionary, and slower.
    return dict(python.__members__)


# --- Structures ----------------------------------------------------------------------------------


def structure_reader(python: type, parts: Parts, otherwise: Function) -> Function:
    """A function that makes the structure of a plain sequence. `parts` are its fields."""
    source = _Source(otherwise)
    inner = source.take_apart("plain", parts)
    source.read_structure("made", python, inner)
    source.add("return made")
    return source.made("plain, references")


def structure_writer(parts: Parts, otherwise: Function) -> Function:
    """A function that makes a plain sequence of the structure."""
    source = _Source(otherwise)
    source.add(f"return {source.all_written([f'value.{part.name}' for part in parts], parts)}")
    return source.made("value, references")


# --- Arguments, results and other sequences ------------------------------------------------------


def _read_all(source: _Source, plain: str, parts: Parts) -> list[str]:
    places = source.take_apart(plain, parts)
    for place, part, inner in places:
        source.read(place, part, inner)
    return [place for place, _, _ in places]


def sequence_reader(parts: Parts, otherwise: Function) -> Function:
    """A function that makes the values of a plain sequence, as a list."""
    source = _Source(otherwise)
    source.add(f"return [{', '.join(_read_all(source, 'plain', parts))}]")
    return source.made("plain, references")


def sequence_writer(parts: Parts, otherwise: Function) -> Function:
    """A function that makes a plain sequence of values."""
    source = _Source(otherwise)
    _write_all(source, "values", parts)
    return source.made("values, references")


def _write_all(source: _Source, values: str, parts: Parts) -> None:
    places = [source.place() for _ in parts]
    source.add_if([_has_parts(values, parts)])
    if places:
        source.add(f"{', '.join(places)}, = {values}")
    source.add_if([source.is_fine(p, part.kind) for p, part in zip(places, parts, strict=True)])
    source.add(f"return {source.all_written(places, parts)}")


def result_reader(parts: Parts, otherwise: Function) -> Function:
    """A function that makes what was returned of a plain sequence: None, a value, or several."""
    source = _Source(otherwise)
    made = _read_all(source, "plain", parts)
    returned = made[0] if len(made) == 1 else f"({', '.join(made)})"
    source.add(f"return {returned if made else 'None'}")
    return source.made("plain, references")


def result_writer(parts: Parts, otherwise: Function) -> Function:
    """A function that makes a plain sequence of what was returned."""
    source = _Source(otherwise)
    match list(parts):
        case []:
            source.add_if(["value is None"])
            source.add("return empty")
        case [part]:
            source.add_if([source.is_fine("value", part.kind)])
            source.add(f"return {source.all_written(['value'], parts)}")
        case _:
            _write_all(source, "value", parts)
    return source.made("value, references")


def elements_reader(part: Part, many: int | None, otherwise: Function) -> Function:
    """A function that makes a tuple of a plain sequence; straight if there are not so many.

    The only one with a loop, which is left for `otherwise` where an element does not fit.
    """
    source = _Source(otherwise)
    source.add_if(["type(plain) is tuple", "" if many is None else f"len(plain) < {many}"])
    source.add("made = []")
    before = source.indent
    source.begin("for one in plain:")
    within = source.indent
    if isinstance(part.kind, Structure):
        inner = source.take_apart("one", part.parts)
    else:
        inner = []
        source.add_if([source.can_be_read("one", part)])
    source.read("one", part, inner)
    source.add("made.append(one)")
    source.add("continue")
    source.indent = within
    source.add("break")
    source.indent = before
    source.add("else: return tuple(made)")
    return source.made("plain, references")


def elements_writer(part: Part, many: int | None, otherwise: Function) -> Function:
    """A function that makes a plain sequence of elements; straight if they are not so many."""
    source = _Source(otherwise)
    written = source.written("one", part)
    if many is not None:
        source.add_if([f"len(values) < {many}"])
    source.add(f"if len(values) == 1: one, = values; return ({written}, )")
    source.add(f"return tuple([{written} for one in values])")
    return source.made("values, references")
