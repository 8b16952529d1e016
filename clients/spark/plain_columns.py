"""Plain values, as JSON and msgpack have them, into columns of a schema.

Whole columns at once, nested ones too: a type is checked by looking at the set of Python types in a
column, and the rest is Arrow's. A value that does not fit raises `Misfit`, which says where and
what; who wants to know in which row tries them one by one. Nothing is guessed: a text is no number,
a number with a fraction is no integer, a time without a zone is no timestamp.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from clients.spark.payload_types import INTEGERS, kind_of

_NULL = type(None)
_SHOWN_MAX = 60


class Misfit(Exception):
    """A payload does not fit the schema; the text goes on behind `it does not fit:`."""


@dataclass(frozen=True)
class Atom:
    """How values of one type without parts are written: as these, and read by this.

    Those of a type in `as_is` need no reading, and `is_cast` tries Arrow's own reading of texts
    before: it is several times faster, and knows fewer ways to write the same.
    """

    written: frozenset[type]
    read: Callable[[Any], Any] | None = None
    as_is: frozenset[type] = frozenset()
    is_cast: bool = False


class PlainColumns:
    """Columns of one schema, from values whose atoms are written in the way of one format."""

    def __init__(self, schema: StructType, atoms: Mapping[str, Atom]) -> None:
        self._schema = schema
        self._atoms = atoms

    def of(self, rows: Sequence[dict[Any, Any] | None]) -> list[pa.Array]:
        """The columns; a row that is None is null in each of them."""
        return self._fields(rows, self._schema, "")

    def _fields(self, rows: Sequence[Any], schema: StructType, where: str) -> list[pa.Array]:
        # Where a struct is null its fields are filled with something, and nobody looks at it.
        has_gaps = None in rows
        made = []
        for each in schema:
            name = each.name
            inner = f"{where}.{name}" if where else name
            values = [None if row is None else row.get(name) for row in rows] if has_gaps else None
            values = [row.get(name) for row in rows] if values is None else values
            if not each.nullable:
                _check_filled(rows, values, inner, each.dataType)
            made.append(self._column(values, each.dataType, inner))
        return made

    def _column(self, values: Sequence[Any], kind: DataType, where: str) -> pa.Array:
        if isinstance(kind, StructType):
            return self._structs(values, kind, where)
        if isinstance(kind, ArrayType):
            return self._lists(values, kind, where)
        if isinstance(kind, MapType):
            return self._maps(values, kind, where)
        return self._atoms_of(values, kind, self._atoms[kind_of(kind)], where)

    def _structs(self, values: Sequence[Any], kind: StructType, where: str) -> pa.Array:
        _check_kinds(values, {dict}, kind, where)
        if not kind.fields:
            return pa.array([None if each is None else {} for each in values], _arrow(kind))
        fields = list(_arrow(kind))
        mask = pa.array([each is None for each in values], pa.bool_())
        return pa.StructArray.from_arrays(
            self._fields(values, kind, where), fields=fields, mask=mask
        )

    def _lists(self, values: Sequence[Any], kind: ArrayType, where: str) -> pa.Array:
        _check_kinds(values, {list}, kind, where)
        flat = list(chain.from_iterable(each for each in values if each))
        if not kind.containsNull and None in flat:
            raise Misfit(f"{where} has a null in it, and its type {_told(kind)} has none")
        elements = self._column(flat, kind.elementType, where)
        return pa.ListArray.from_arrays(
            _offsets(values), elements, type=_arrow(kind), mask=_mask(values)
        )

    def _maps(self, values: Sequence[Any], kind: MapType, where: str) -> pa.Array:
        _check_kinds(values, {dict}, kind, where)
        names = list(chain.from_iterable(each for each in values if each))
        parts = list(chain.from_iterable(each.values() for each in values if each))
        if not kind.valueContainsNull and None in parts:
            raise Misfit(f"{where} has a null in it, and its type {_told(kind)} has none")
        keys = self._atoms_of(
            names, kind.keyType, self._atoms[f"key {kind_of(kind.keyType)}"], where
        )
        items = self._column(parts, kind.valueType, where)
        arrow = _arrow(kind)
        entries = pa.StructArray.from_arrays(
            [keys, items], fields=[arrow.key_field, arrow.item_field]
        )
        # A map is a list of its entries; made as one, since that can have nulls everywhere.
        listed = pa.ListArray.from_arrays(_offsets(values), entries, mask=_mask(values))
        return pa.Array.from_buffers(
            arrow, len(values), listed.buffers()[:2], listed.null_count, children=[entries]
        )

    def _atoms_of(self, values: Sequence[Any], kind: DataType, atom: Atom, where: str) -> pa.Array:
        found = _check_kinds(values, atom.written, kind, where)
        read = atom.read
        try:
            if read is None or found <= atom.as_is:
                return pa.array(values, _arrow(kind))
            if atom.is_cast:
                with contextlib.suppress(pa.ArrowInvalid):
                    return pa.array(values, pa.string()).cast(_arrow(kind))
            return pa.array([None if each is None else read(each) for each in values], _arrow(kind))
        except (ValueError, TypeError, ArithmeticError) as wrong:
            if len(values) == 1:
                raise Misfit(f"{where} is {_shown(values[0])}, not {_told(kind)}") from wrong
            for each in values:
                self._atoms_of([each], kind, atom, where)
            raise


def _check_filled(rows: Sequence[Any], values: Sequence[Any], where: str, kind: DataType) -> None:
    for row, value in zip(rows, values, strict=True):
        if value is None and row is not None:
            raise Misfit(f"{where} is missing or null, and the schema says that it is not")


def _check_kinds(
    values: Sequence[Any], written: frozenset[type] | set[type], kind: DataType, where: str
) -> set[type]:
    found = set(map(type, values))
    found.discard(_NULL)
    if not found <= written:
        wrong = next(each for each in values if each is not None and type(each) not in written)
        raise Misfit(f"{where} is {_shown(wrong)}, not {_told(kind)}")
    return found


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _told(kind: DataType) -> str:
    return kind.simpleString()


def _arrow(kind: DataType) -> pa.DataType:
    return to_arrow_type(kind, timezone="UTC")


def _offsets(values: Sequence[Any]) -> pa.Array:
    sizes = (len(each) if each else 0 for each in values)
    return pa.array(accumulate(sizes, initial=0), pa.int32())


def _mask(values: Sequence[Any]) -> pa.Array | None:
    return pa.array([each is None for each in values], pa.bool_()) if None in values else None


# --- Atoms that are written alike ----------------------------------------------------------------


def read_decimal(value: Any) -> Decimal:
    """An exact number from a text or a number."""
    try:
        found = Decimal(value)
    except InvalidOperation:
        raise ValueError(value) from None
    if not found.is_finite():
        raise ValueError(value)
    return found


def read_instant(text: str) -> datetime:
    """A time with its zone."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(text)
    return found


def read_local(text: str) -> datetime:
    """A time that says no zone."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is not None:
        raise ValueError(text)
    return found


def written_as(*kinds: type, read: Callable[[Any], Any] | None = None) -> Atom:
    """An atom that is written as one of these types."""
    return Atom(frozenset(kinds), read)


def written_as_text(read: Callable[[str], Any]) -> Atom:
    """A date or time that is written as text."""
    return Atom(frozenset({str}), read, is_cast=True)


# What JSON and msgpack share; `key …` are the keys of maps.
SHARED_ATOMS: dict[str, Atom] = {
    "boolean": written_as(bool),
    **{name: written_as(int) for name in INTEGERS},
    "string": written_as(str),
    "date": written_as_text(date.fromisoformat),
    "timestamp_ntz": written_as_text(read_local),
    "void": written_as(),
    "key string": written_as(str),
    "key date": written_as_text(date.fromisoformat),
}
