"""Rows of a DataFrame and messages of a queue, column by column.

    column       type                                  on writing
    value        binary (or string, as UTF-8)          the payload; only with payloadFormat binary
    key          string                                the queue gives it: left out
    priority     int                                   0 where null
    group        int                                   0 where null
    time         timestamp                             the queue gives it: left out
    sender       string                                the option `sender` where null
    attributes   array<struct<name, value: string>>    none where null; map<string, string> too

With another payloadFormat all other columns are the payload (`payloads.py`). A schema that cannot
be mapped is refused when the encoder or decoder is made, before any row. Both are made of Arrow's
columns and of nothing else: no Spark session, no connection, no clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from clients import structs
from clients.errors import Damaged
from clients.messages import ATTRIBUTE_BYTES, OVERHEAD_BYTES
from clients.spark.errors import SchemaError
from clients.spark.headers import (
    HEADER_DDL,
    check_header_read,
    check_header_written,
    read_header,
    written_headers,
)
from clients.spark.headers import HEADERS as HEADERS
from clients.spark.options import Options
from clients.spark.payloads import PayloadReader, PayloadWriter, payload_reader, payload_writer
from idl.checksums import crc32_of_each
from idl.mq import mqAttribute, mqBatch, mqTaken

BATCH_ROWS_MAX = 5_000
BATCH_BYTES_MAX = 4 * 2**20

VALUE = "value"
BINARY_SCHEMA = StructType([StructField(VALUE, BinaryType()), *HEADERS.fields])

# --- Rows to messages ----------------------------------------------------------------------------


def encoder_for(schema: StructType, options: Options) -> Encoder:
    """What turns rows of this schema into messages; raises `SchemaError` where that cannot be."""
    _check_names(schema)
    is_binary = options.payload_format == "binary"
    if not is_binary and options.headers is False:
        headers: list[StructField] = []
    else:
        headers = [each for each in schema if each.name in HEADERS.names]
    for each in headers:
        check_header_written(each, is_binary)
    payload = [each for each in schema if each not in headers]
    if is_binary:
        _check_value(payload)
    if not payload:
        raise SchemaError(
            "all columns are headers, and nothing is left for the payload: "
            'add a column, or set .option("headers", "false")'
        )
    writer = payload_writer(StructType(payload), options.payload_format)
    return Encoder(schema, options, [each.name for each in headers], writer)


def _check_names(schema: StructType) -> None:
    seen: set[str] = set()
    for name in schema.names:
        if name in seen:
            raise SchemaError(
                f'two columns have the name "{name}": rename one, as in df.toDF(…), or drop it'
            )
        seen.add(name)


def _check_value(payload: Sequence[StructField]) -> None:
    others = [each for each in payload if each.name != VALUE]
    if others:
        raise SchemaError(
            f'the column "{others[0].name}" of type {others[0].dataType.simpleString()} is no part '
            "of a message: drop it, or write whole rows with "
            '.option("payloadFormat", "json"), "msgpack" or "arrow"'
        )
    if not payload:
        raise SchemaError(
            'there is no column "value": name the column that is the payload, as in '
            '.select(col("body").alias("value")), or write whole rows with '
            '.option("payloadFormat", "json")'
        )


class Encoder:
    """Turns record batches of one schema into batches of messages. It pickles."""

    def __init__(
        self, schema: StructType, options: Options, headers: Sequence[str], payloads: PayloadWriter
    ) -> None:
        self._schema = schema
        self._options = options
        self._headers = headers
        self._payloads = payloads
        self._payload_columns = [each for each in schema.names if each not in headers]

    def __reduce__(self) -> tuple[Any, ...]:
        return encoder_for, (self._schema, self._options)

    def batches(self, rows: pa.RecordBatch) -> Iterator[mqBatch]:
        """The rows as messages, in calls of at most 5,000 messages and about 4 MiB.

        A message that is larger than that alone goes alone.
        """
        for start in range(0, rows.num_rows, BATCH_ROWS_MAX):
            yield from self._slice(rows.slice(start, BATCH_ROWS_MAX))

    def _slice(self, rows: pa.RecordBatch) -> Iterator[mqBatch]:
        payloads = self._payloads(rows.select(self._payload_columns))
        digests = crc32_of_each(payloads)
        headers = written_headers(rows, self._headers, self._options.sender)
        columns: tuple[Any, ...] = (tuple(payloads), digests, *headers)
        attribs = headers[-1]
        sizes = list(map(len, payloads))
        if attribs:
            sizes = [size + _text_size(each) for size, each in zip(sizes, attribs, strict=True)]
        if sum(sizes) + OVERHEAD_BYTES * len(sizes) <= BATCH_BYTES_MAX:
            yield structs.batch(*columns)
            return
        for start, stop in _spans(sizes):
            yield structs.batch(*[column[start:stop] for column in columns])


def _text_size(attributes: Sequence[mqAttribute]) -> int:
    return sum(len(each.key) + len(each.value) + ATTRIBUTE_BYTES for each in attributes)


def _spans(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    start, total = 0, 0
    for position, size in enumerate(sizes):
        size += OVERHEAD_BYTES
        if total and total + size > BATCH_BYTES_MAX:
            yield start, position
            start, total = position, 0
        total += size
    if start < len(sizes):
        yield start, len(sizes)


# --- Messages to rows ----------------------------------------------------------------------------


def schema_for(options: Options) -> StructType | str:
    """The columns of a read for which `.schema(…)` says nothing; DDL where that was given as such.

    Raises `SchemaError` where only the user can know.
    """
    if options.payload_format == "binary":
        return BINARY_SCHEMA
    text = options.schema.strip()
    if not text:
        raise SchemaError(
            f"the columns of a payload in {options.payload_format} are not known: say them by "
            '.schema("id BIGINT, name STRING") or .option("schema", …), or read the payload as '
            'it is with .option("payloadFormat", "binary")'
        )
    if not text.startswith("{"):
        return f"{text}, {HEADER_DDL}" if options.headers else text
    try:
        said = StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError) as wrong:
        raise SchemaError(f'the option "schema" is not the JSON of a schema: {wrong}') from wrong
    return StructType([*said.fields, *HEADERS.fields]) if options.headers else said


def decoder_for(schema: StructType | None, options: Options) -> Decoder:
    """What turns messages into rows of this schema; raises `SchemaError` where that cannot be.

    Without a schema it is that of the options, which has to be one of `binary`, or in JSON.
    """
    if schema is None:
        found = schema_for(options)
        if isinstance(found, str):
            raise SchemaError("the schema is DDL, which only a Spark session reads: pass it parsed")
        schema = found
    _check_names(schema)
    is_binary = options.payload_format == "binary"
    headers = [each for each in schema if each.name in HEADERS.names]
    if not is_binary:
        headers = _headers_asked(headers, options)
    for each in headers:
        check_header_read(each)
    payload = StructType([each for each in schema if each not in headers])
    if is_binary and payload.names not in ([], [VALUE]):
        other = next(each for each in payload if each.name != VALUE)
        raise SchemaError(
            f'the column "{other.name}" of type {other.dataType.simpleString()} is no part of a '
            'message: leave it out, or say how the payload holds it by .option("payloadFormat", …)'
        )
    return Decoder(schema, options, payload.names, payload_reader(payload, options))


def _headers_asked(found: list[StructField], options: Options) -> list[StructField]:
    if options.headers is None and found:
        raise SchemaError(
            f'the column "{found[0].name}" of type {found[0].dataType.simpleString()} may be the '
            "header of this name or a part of the payload: say which by "
            '.option("headers", "true") or .option("headers", "false")'
        )
    return found if options.headers else []


class Decoder:
    """Turns taken messages into record batches of one schema. It pickles."""

    def __init__(
        self,
        schema: StructType,
        options: Options,
        payload_columns: Sequence[str],
        payloads: PayloadReader,
    ) -> None:
        self.schema = schema
        self._options = options
        self._payload_columns = payload_columns
        self._payloads = payloads
        self._arrow = to_arrow_schema(schema, timezone="UTC")

    def __reduce__(self) -> tuple[Any, ...]:
        return decoder_for, (self.schema, self._options)

    def record_batch(self, taken: mqTaken) -> pa.RecordBatch:
        """The messages as rows, in their order; raises `Damaged`, or `PayloadError`."""
        messages = taken.messages
        if crc32_of_each(messages.payloads) != messages.digests:
            raise Damaged()
        columns: dict[str, pa.Array] = {}
        if self._payload_columns:
            read = self._payloads(messages.payloads, taken.keys)
            columns.update(zip(self._payload_columns, read, strict=True))
        made = [
            columns[each.name] if each.name in columns else read_header(each.name, each.type, taken)
            for each in self._arrow
        ]
        return pa.RecordBatch.from_arrays(made, schema=self._arrow)
