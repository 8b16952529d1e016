"""Rows as maps of msgpack. Knows nothing of headers or messages.

Fields that the schema does not name are passed over, and one that is missing is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgpack
import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from clients.spark.payload_types import INTEGERS, kind_of
from clients.spark.plain_columns import (
    SHARED_ATOMS,
    Atom,
    Misfit,
    PlainColumns,
    read_decimal,
    read_instant,
    written_as,
)
from clients.spark.times import microseconds_of, texts_of_dates, texts_of_times

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# --- Writing -------------------------------------------------------------------------------------


class MsgpackWriter:
    """One map for each row. See `PayloadWriter`."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema
        self._packer = msgpack.Packer(datetime=True)

    def __call__(self, rows: pa.RecordBatch) -> list[bytes]:
        return list(map(self._packer.pack, _dicts(rows.columns, self._schema, rows.num_rows)))


def _dicts(columns: Sequence[pa.Array], schema: StructType, count: int) -> list[dict[str, Any]]:
    if not schema.fields:
        return [{} for _ in range(count)]
    names = schema.names
    values = [_values(column, each.dataType) for column, each in zip(columns, schema, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _values(column: pa.Array, kind: DataType) -> list[Any]:
    if not isinstance(kind, StructType | ArrayType | MapType):
        return _atom_values(column, kind_of(kind))
    if column.null_count == 0:
        return _nested(column, kind)
    found = iter(_nested(column.drop_null(), kind))
    return [next(found) if valid else None for valid in column.is_valid().to_pylist()]


def _nested(column: pa.Array, kind: DataType) -> list[Any]:
    if isinstance(kind, StructType):
        return _dicts(column.flatten(), kind, len(column))
    offsets = column.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    spans = [slice(low - first, high - first) for low, high in pairwise(offsets)]
    if isinstance(kind, ArrayType):
        values = _values(column.values.slice(first, last - first), kind.elementType)
        return [values[span] for span in spans]
    assert isinstance(kind, MapType)
    keys = _atom_values(column.keys.slice(first, last - first), kind_of(kind.keyType))
    values = _values(column.items.slice(first, last - first), kind.valueType)
    return [dict(zip(keys[span], values[span], strict=True)) for span in spans]


def _atom_values(column: pa.Array, kind: str) -> list[Any]:
    if kind == "date":
        column = texts_of_dates(column)
    elif kind == "timestamp_ntz":
        column = texts_of_times(column)
    elif kind == "timestamp":
        # Several times faster than Arrow makes them.
        return [
            None if each is None else _EPOCH + timedelta(0, 0, each)
            for each in microseconds_of(column).to_pylist()
        ]
    elif kind == "decimal":
        column = column.cast(pa.string())
    found: list[Any] = column.to_pylist()
    return found


# --- Reading -------------------------------------------------------------------------------------


def _read_instant(value: Any) -> datetime:
    return read_instant(value) if type(value) is str else value


_FLOAT = Atom(frozenset((int, float)), float, as_is=frozenset({float}))
_ATOMS = SHARED_ATOMS | {
    "float": _FLOAT,
    "double": _FLOAT,
    "decimal": written_as(int, str, read=read_decimal),
    "binary": written_as(bytes),
    "timestamp": Atom(frozenset((datetime, str)), _read_instant, as_is=frozenset({datetime})),
    **{f"key {name}": written_as(int) for name in INTEGERS},
}


class MsgpackFormat:
    """Payloads that are maps of msgpack. See `PayloadFormat`."""

    def __init__(self, schema: StructType) -> None:
        self._columns = PlainColumns(schema, _ATOMS)

    def parse(self, payloads: Sequence[bytes]) -> list[dict[Any, Any]]:
        """The maps."""
        try:
            found = [
                msgpack.unpackb(payload, timestamp=3, strict_map_key=False) for payload in payloads
            ]
        except (ValueError, TypeError, OverflowError, RecursionError) as wrong:
            raise Misfit(f"the payload is not msgpack ({wrong})") from wrong
        for each in found:
            if type(each) is not dict:
                raise Misfit(f"the payload is not a map of msgpack but a {type(each).__name__}")
        return found

    def columns(self, parsed: Sequence[dict[Any, Any] | None]) -> list[pa.Array]:
        """The columns of the maps."""
        return self._columns.of(parsed)
