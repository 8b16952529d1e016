"""Payloads and the columns in them, by `payloadFormat`, and what becomes of one that does not fit.

A writer turns columns into one payload per row, a reader turns payloads into columns. Neither knows
of headers, which are columns of `rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from clients.spark.arrow_payloads import ArrowFormat, ArrowWriter
from clients.spark.errors import PayloadError, SchemaError
from clients.spark.json_payloads import JsonFormat, JsonWriter
from clients.spark.msgpack_payloads import MsgpackFormat, MsgpackWriter
from clients.spark.options import Options
from clients.spark.payload_types import check_types
from clients.spark.plain_columns import Misfit

# One payload for each row of the columns.
PayloadWriter = Callable[[pa.RecordBatch], Sequence[bytes]]
# The columns of the payloads; the keys of their messages name those that are wrong.
PayloadReader = Callable[[Sequence[bytes], Sequence[str]], Sequence[pa.Array]]


class PayloadFormat(Protocol):
    """How payloads are read. Both raise `Misfit`, which does not say for which of several."""

    def parse(self, payloads: Sequence[bytes]) -> Sequence[Any]:
        """Something for each payload, that `columns` understands."""

    def columns(self, parsed: Sequence[Any]) -> list[pa.Array]:
        """The columns; None stands for a row of nulls."""


_WRITERS: dict[str, Callable[[StructType], PayloadWriter]] = {
    "json": JsonWriter,
    "msgpack": MsgpackWriter,
    "arrow": ArrowWriter,
}
_FORMATS: dict[str, Callable[[StructType], PayloadFormat]] = {
    "json": JsonFormat,
    "msgpack": MsgpackFormat,
    "arrow": ArrowFormat,
}

# --- Writing -------------------------------------------------------------------------------------


def payload_writer(schema: StructType, payload_format: str) -> PayloadWriter:
    """How rows of these columns become payloads; raises `SchemaError` where they cannot."""
    if payload_format == "binary":
        _check_value(schema.fields[0])
        return _written_values
    check_types(schema, payload_format)
    write = _WRITERS[payload_format](schema)
    expected = to_arrow_schema(schema, timezone="UTC")

    def written(rows: pa.RecordBatch) -> Sequence[bytes]:
        # Zones and lengths of the offsets are those of the session: here they are always the same.
        return write(rows if rows.schema.equals(expected) else rows.cast(expected))

    return written


def _check_value(column: StructField) -> None:
    if not isinstance(column.dataType, BinaryType | StringType):
        raise SchemaError(
            f'the column "value" has the type {column.dataType.simpleString()}, and a payload is '
            "binary or string: cast it, or make the whole row the payload with "
            '.option("payloadFormat", "json"), "msgpack" or "arrow"'
        )


def _written_values(rows: pa.RecordBatch) -> list[bytes]:
    column = rows.column(0)
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise PayloadError(
            f'the column "value" is null (row {row:,} of a batch), and every message has a '
            "payload: filter such rows out, or say what stands for them, as in "
            "coalesce(value, '')"
        )
    if pa.types.is_string(column.type):
        column = column.view(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.view(pa.large_binary())
    found: list[bytes] = column.to_pylist()
    return found


# --- Reading -------------------------------------------------------------------------------------


def payload_reader(schema: StructType, options: Options) -> PayloadReader:
    """How payloads become these columns; raises `SchemaError` where they cannot."""
    if options.payload_format == "binary":
        for each in schema:
            _check_value(each)
        return _Reader(schema, _Values(schema), options)
    bad = options.bad_payload_column
    inside = StructType([each for each in schema if not bad or each.name != bad])
    check_types(inside, options.payload_format)
    _check_bad_payloads(schema, options)
    return _Reader(schema, _FORMATS[options.payload_format](inside), options)


def _check_bad_payloads(schema: StructType, options: Options) -> None:
    if options.on_bad_payload != "null":
        return
    for each in schema:
        if not each.nullable:
            raise SchemaError(
                f'the column "{each.name}" of type {each.dataType.simpleString()} cannot be null, '
                'and onBadPayload "null" makes it so: declare it without NOT NULL'
            )
    name = options.bad_payload_column
    if name and (name not in schema.names or schema[name].dataType != BinaryType()):
        raise SchemaError(
            f'badPayloadColumn names "{name}", which is not a column of type binary: add it to '
            f'the schema, as in "…, {name} BINARY"'
        )


class _Values:
    """Payloads as they are, in the column `value` or in none. See `PayloadFormat`."""

    def __init__(self, schema: StructType) -> None:
        self._kinds = [each.type for each in to_arrow_schema(schema, timezone="UTC")]

    def parse(self, payloads: Sequence[bytes]) -> Sequence[bytes]:
        """The payloads."""
        return payloads

    def columns(self, parsed: Sequence[bytes | None]) -> list[pa.Array]:
        """One column, or none."""
        try:
            return [pa.array(parsed, pa.binary()).cast(kind) for kind in self._kinds]
        except pa.ArrowInvalid as wrong:
            raise Misfit("the payload is not text in UTF-8") from wrong


class _Reader:
    """Reads payloads by their format, and does with those that do not fit what the user said."""

    def __init__(self, schema: StructType, payload_format: PayloadFormat, options: Options) -> None:
        self._format = payload_format
        self._options = options
        name = options.bad_payload_column
        self._bad_place = schema.names.index(name) if name and name in schema.names else None

    def __call__(self, payloads: Sequence[bytes], keys: Sequence[str]) -> Sequence[pa.Array]:
        bad: list[bytes | None] = []
        try:
            columns = self._format.columns(self._format.parse(payloads))
        except Misfit:
            columns, bad = self._one_by_one(payloads, keys)
        if self._bad_place is not None:
            column = pa.array(bad, pa.binary()) if bad else pa.nulls(len(payloads), pa.binary())
            columns.insert(self._bad_place, column)
        return columns

    def _one_by_one(
        self, payloads: Sequence[bytes], keys: Sequence[str]
    ) -> tuple[list[pa.Array], list[bytes | None]]:
        parsed: list[Any] = []
        bad: list[bytes | None] = []
        for payload, key in zip(payloads, keys, strict=True):
            try:
                found = self._format.parse([payload])
                self._format.columns(found)
            except Misfit as wrong:
                if self._options.on_bad_payload == "fail":
                    raise PayloadError(self._told(key, wrong)) from wrong
                parsed.append(None)
                bad.append(payload)
            else:
                parsed += found
                bad.append(None)
        return self._format.columns(parsed), bad

    def _told(self, key: str, wrong: Misfit) -> str:
        return (
            f'the message {key} of the queue "{self._options.queue}" does not fit the schema: '
            f"{wrong}; correct the schema, or read such messages as nulls with "
            '.option("onBadPayload", "null")'
        )
