"""Rows as JSON objects. Knows nothing of headers or messages.

Written by columns: each becomes a column of JSON texts by Arrow's own functions, and these are
joined to objects, several times faster than row by row. Null is written as null. Read row by row by
Python's scanner, then made into columns by `plain_columns.py`; fields that the schema does not name
are passed over, and one that is missing is null.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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
    written_as_text,
)
from clients.spark.times import texts_of_dates, texts_of_times

# --- Writing -------------------------------------------------------------------------------------


class JsonWriter:
    """One JSON object for each row. See `PayloadWriter`."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema

    def __call__(self, rows: pa.RecordBatch) -> list[bytes]:
        texts = _object_texts(rows.columns, self._schema, rows.num_rows)
        found: list[bytes] = texts.view(pa.binary()).to_pylist()
        return found


def _object_texts(columns: Sequence[pa.Array], schema: StructType, count: int) -> pa.Array:
    if not schema.fields:
        return pa.array(["{}"] * count, pa.string())
    parts: list[Any] = []
    for each, column in zip(schema, columns, strict=True):
        begin = "," if parts else "{"
        parts += [f"{begin}{encode_basestring(each.name)}:", _texts(column, each.dataType)]
    return pc.binary_join_element_wise(*parts, "}", "")


def _texts(column: pa.Array, kind: DataType) -> pa.Array:
    """The JSON of each value, without nulls: null is a text too."""
    if isinstance(kind, StructType | ArrayType | MapType):
        if column.null_count == 0:
            return _nested(column, kind)
        texts = _nested(column.drop_null(), kind)
        return pc.fill_null(texts.take(_places(column)), "null")
    return pc.fill_null(_atom_texts(column, kind_of(kind)), "null")


def _places(column: pa.Array) -> pa.Array:
    """Where each valid value stands among the valid ones."""
    valid = column.is_valid()
    before = pc.subtract(pc.cumulative_sum(valid.cast(pa.int32())), 1)
    return pc.if_else(valid, before, None)


def _nested(column: pa.Array, kind: DataType) -> pa.Array:
    if isinstance(kind, StructType):
        return _object_texts(column.flatten(), kind, len(column))
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    offsets = pc.subtract(column.offsets, first)
    if isinstance(kind, ArrayType):
        values = column.values.slice(first, last - first)
        return _joined(offsets, _texts(values, kind.elementType), "[", "]")
    assert isinstance(kind, MapType)
    keys = _key_texts(column.keys.slice(first, last - first), kind_of(kind.keyType))
    values = _texts(column.items.slice(first, last - first), kind.valueType)
    pairs = pc.binary_join_element_wise(keys, values, ":")
    return _joined(offsets, pairs, "{", "}")


def _joined(offsets: pa.Array, texts: pa.Array, begin: str, end: str) -> pa.Array:
    inner = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")
    return pc.binary_join_element_wise(begin, inner, end, "")


def _key_texts(keys: pa.Array, kind: str) -> pa.Array:
    texts = _atom_texts(keys, kind)
    return _quoted(texts) if kind in INTEGERS else texts


def _atom_texts(column: pa.Array, kind: str) -> pa.Array:
    if kind == "string":
        return _escaped(column)
    if kind == "binary":
        encoded = [None if each is None else b64encode(each) for each in column.to_pylist()]
        return _quoted(pa.array(encoded, pa.binary()).cast(pa.string()))
    if kind == "date":
        return _quoted(texts_of_dates(column))
    if kind == "timestamp":
        return pc.binary_join_element_wise('"', texts_of_times(column), 'Z"', "")
    if kind == "timestamp_ntz":
        return _quoted(texts_of_times(column))
    if kind == "decimal":
        return _quoted(column.cast(pa.string()))
    if kind in ("float", "double"):
        return _float_texts(column)
    return column.cast(pa.string())


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _escaped(column: pa.Array) -> pa.Array:
    # Control characters are rare, and only they need more than a backslash before them.
    if pc.any(pc.match_substring_regex(column, "[\\x00-\\x1f]")).as_py():
        escape = encode_basestring
        escaped = [None if each is None else escape(each) for each in column.to_pylist()]
        return pa.array(escaped, pa.string())
    return _quoted(pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"'))


def _float_texts(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.string())
    # JSON knows neither these nor, for many a reader, the sign of an integer zero.
    for written, meant in (
        ("nan", '"NaN"'),
        ("inf", '"Infinity"'),
        ("-inf", '"-Infinity"'),
        ("-0", "-0.0"),
    ):
        texts = pc.if_else(pc.equal(texts, written), meant, texts)
    return texts


# --- Reading -------------------------------------------------------------------------------------

_NOT_NUMBERS = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "+Infinity": float("inf"),
    "-Infinity": float("-inf"),
}


def _read_float(value: Any) -> float:
    if type(value) is str:
        if value not in _NOT_NUMBERS:
            raise ValueError(value)
        return _NOT_NUMBERS[value]
    return float(value)


def _read_bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


def _read_key_integer(text: str) -> int:
    if not text.removeprefix("-").isdecimal():
        raise ValueError(text)
    return int(text)


_FLOAT = Atom(frozenset((int, float, Decimal, str)), _read_float, as_is=frozenset({float}))
_ATOMS = SHARED_ATOMS | {
    "float": _FLOAT,
    "double": _FLOAT,
    "decimal": written_as(int, Decimal, str, read=read_decimal),
    "binary": written_as(str, read=_read_bytes),
    "timestamp": written_as_text(read_instant),
    **{f"key {name}": written_as(str, read=_read_key_integer) for name in INTEGERS},
}


class JsonFormat:
    """Payloads that are JSON objects. See `PayloadFormat`."""

    def __init__(self, schema: StructType) -> None:
        self._columns = PlainColumns(schema, _ATOMS)
        # Digits behind the point survive only so; for others Python's own way is faster.
        exact = '"decimal(' in schema.json()
        self._decoder = json.JSONDecoder(parse_float=Decimal if exact else None)

    def parse(self, payloads: Sequence[bytes]) -> list[dict[Any, Any]]:
        """The objects."""
        try:
            return [self._object(payload.decode()) for payload in payloads]
        except (ValueError, RecursionError) as wrong:
            raise Misfit(f"the payload is not JSON ({wrong})") from wrong

    def _object(self, text: str) -> dict[Any, Any]:
        text = text.strip(" \t\n\r")
        found, end = self._decoder.raw_decode(text)
        if end != len(text):
            raise Misfit(f"the payload is not JSON (there is more behind the object, at {end})")
        if type(found) is not dict:
            raise Misfit(f"the payload is not a JSON object but {text[:60]}")
        return found

    def columns(self, parsed: Sequence[dict[Any, Any] | None]) -> list[pa.Array]:
        """The columns of the objects."""
        return self._columns.of(parsed)
