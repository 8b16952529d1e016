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

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from clients import structs
from clients.errors import Damaged
from clients.messages import NUMBER_MAX, OVERHEAD_BYTES, SENDER_LENGTH_MAX
from clients.spark.errors import PayloadError, SchemaError
from clients.spark.options import Options
from clients.spark.payloads import PayloadReader, PayloadWriter, payload_reader, payload_writer
from idl.mq import USEC_PER_SEC, mqAttribute, mqBatch, mqTaken

BATCH_ROWS_MAX = 5_000
BATCH_BYTES_MAX = 4 * 2**20

VALUE = "value"
_ATTRIBUTE = StructType([StructField("name", StringType()), StructField("value", StringType())])
HEADERS = StructType(
    [
        StructField("key", StringType()),
        StructField("priority", IntegerType()),
        StructField("group", IntegerType()),
        StructField("time", TimestampType()),
        StructField("sender", StringType()),
        StructField("attributes", ArrayType(_ATTRIBUTE)),
    ]
)
BINARY_SCHEMA = StructType([StructField(VALUE, BinaryType()), *HEADERS.fields])
# The queue gives these: a row cannot say them.
_GIVEN = ("key", "time")
_HEADER_DDL = (
    "key STRING, priority INT, `group` INT, time TIMESTAMP, sender STRING, "
    "attributes ARRAY<STRUCT<name: STRING, value: STRING>>"
)

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
        _check_header_written(each, is_binary)
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


def _check_header_written(column: StructField, is_binary: bool) -> None:
    if column.name in _GIVEN:
        if is_binary:
            return
        raise SchemaError(
            f'the column "{column.name}" has the name of a header that the queue gives: drop or '
            'rename it, or put it into the payload with .option("headers", "false")'
        )
    fits, told = _WRITTEN_AS[column.name]
    if not fits(column.dataType):
        aside = "" if is_binary else ', or put it into the payload with .option("headers", "false")'
        raise SchemaError(
            f'the column "{column.name}" has the type {column.dataType.simpleString()}, and a '
            f"header of this name is {told}: cast or rename it{aside}"
        )


def _is_number(found: DataType) -> bool:
    return isinstance(found, ByteType | ShortType | IntegerType | LongType)


def _is_text(found: DataType) -> bool:
    return isinstance(found, StringType)


def _is_attributes(found: DataType) -> bool:
    if isinstance(found, MapType):
        return _is_text(found.keyType) and _is_text(found.valueType)
    return (
        isinstance(found, ArrayType)
        and isinstance(found.elementType, StructType)
        and found.elementType.names == _ATTRIBUTE.names
        and all(_is_text(each.dataType) for each in found.elementType)
    )


_WRITTEN_AS: dict[str, tuple[Callable[[DataType], bool], str]] = {
    "priority": (_is_number, "an int"),
    "group": (_is_number, "an int"),
    "sender": (_is_text, "a string"),
    "attributes": (
        _is_attributes,
        "an array<struct<name:string,value:string>> or a map<string,string>",
    ),
}


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
        digests = tuple(map(crc32, payloads))
        attribs = self._attribs(rows)
        columns: tuple[Any, ...] = (
            tuple(payloads),
            digests,
            self._numbers(rows, "priority"),
            self._numbers(rows, "group"),
            self._senders(rows),
            attribs,
        )
        sizes = list(map(len, payloads))
        if attribs:
            sizes = [size + _text_size(each) for size, each in zip(sizes, attribs, strict=True)]
        if sum(sizes) + OVERHEAD_BYTES * len(sizes) <= BATCH_BYTES_MAX:
            yield structs.batch(*columns)
            return
        for start, stop in _spans(sizes):
            yield structs.batch(*[column[start:stop] for column in columns])

    def _numbers(self, rows: pa.RecordBatch, name: str) -> tuple[int, ...]:
        if name not in self._headers:
            return ()
        column = pc.fill_null(rows.column(name), 0)
        ends = pc.min_max(column).as_py()
        for value in (ends["min"], ends["max"]):
            if not 0 <= value <= NUMBER_MAX:
                raise PayloadError(
                    f'the column "{name}" has the value {value}: a {name} is from 0 to {NUMBER_MAX}'
                )
        return tuple(column.to_pylist()) if ends["max"] else ()

    def _senders(self, rows: pa.RecordBatch) -> tuple[str, ...]:
        sender = self._options.sender
        if "sender" not in self._headers:
            return (sender,) * rows.num_rows if sender else ()
        column = pc.fill_null(rows.column("sender"), sender)
        if pc.max(pc.utf8_length(column)).as_py() > SENDER_LENGTH_MAX:
            raise PayloadError(
                f'the column "sender" has a text of more than {SENDER_LENGTH_MAX} characters: '
                "shorten it, as in substring(sender, 1, 255)"
            )
        _check_no_nul("sender", column)
        found = tuple(column.to_pylist())
        return found if any(found) else ()

    def _attribs(self, rows: pa.RecordBatch) -> structs.Attribs:
        if "attributes" not in self._headers:
            return ()
        made = _attributes_written(rows.column("attributes"))
        return made if any(made) else ()


def _text_size(attributes: Sequence[mqAttribute]) -> int:
    return sum(len(each.key) + len(each.value) for each in attributes)


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


def _check_no_nul(name: str, column: pa.Array) -> None:
    if pc.any(pc.match_substring(column, "\0")).as_py():
        raise PayloadError(
            f'the column "{name}" has a text with a NUL character, which a header cannot have: '
            f"remove it, as in replace({name}, char(0), '')"
        )


def _attributes_written(column: pa.Array) -> structs.Attribs:
    # The same few pairs come again and again: each is checked and made once.
    made: dict[tuple[str, str], mqAttribute] = {}

    def attribute(pair: Any) -> mqAttribute:
        name_and_value = tuple(pair.values()) if isinstance(pair, dict) else pair
        found = made.get(name_and_value)
        if found is None:
            if None in name_and_value or any("\0" in text for text in name_and_value):
                raise PayloadError(
                    f'the column "attributes" has the pair {name_and_value!r}: an attribute has a '
                    "name and a value, neither null nor with a NUL character"
                )
            found = made[name_and_value] = mqAttribute(*name_and_value)
        return found

    return tuple(
        [tuple([attribute(pair) for pair in row]) if row else () for row in column.to_pylist()]
    )


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
        return f"{text}, {_HEADER_DDL}" if options.headers else text
    try:
        said = StructType.fromJson(_parsed_json(text))
    except (ValueError, KeyError, TypeError) as wrong:
        raise SchemaError(f'the option "schema" is not the JSON of a schema: {wrong}') from wrong
    return StructType([*said.fields, *HEADERS.fields]) if options.headers else said


def _parsed_json(text: str) -> Any:
    import json

    return json.loads(text)


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
        _check_header_read(each)
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


def _check_header_read(column: StructField) -> None:
    expected = HEADERS[column.name].dataType
    if column.dataType != expected:
        raise SchemaError(
            f'the column "{column.name}" has the type {column.dataType.simpleString()}, and the '
            f"header of this name is read as {expected.simpleString()}: declare it so and cast it "
            "afterwards"
        )


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
        if tuple(map(crc32, messages.payloads)) != messages.digests:
            raise Damaged()
        columns: dict[str, pa.Array] = {}
        if self._payload_columns:
            read = self._payloads(messages.payloads, taken.keys)
            columns.update(zip(self._payload_columns, read, strict=True))
        made = [
            columns[each.name] if each.name in columns else _header(each.name, each.type, taken)
            for each in self._arrow
        ]
        return pa.RecordBatch.from_arrays(made, schema=self._arrow)


def _header(name: str, kind: pa.DataType, taken: mqTaken) -> pa.Array:
    messages, count = taken.messages, len(taken.messages.payloads)
    if name == "key":
        return pa.array(taken.keys, kind)
    if name == "priority":
        return pa.array(messages.priorities or [0] * count, kind)
    if name == "group":
        return pa.array(messages.groups or [0] * count, kind)
    if name == "sender":
        return pa.array(messages.senders or [""] * count, kind)
    if name == "time":
        times = [each.mq_sec * USEC_PER_SEC + each.mq_usec for each in messages.times]
        return pa.array(times, pa.int64()).cast(kind) if times else pa.nulls(count, kind)
    return _attributes_read(messages.attribs or ((),) * count, kind)


def _attributes_read(rows: structs.Attribs, kind: pa.DataType) -> pa.Array:
    flat = [each for row in rows for each in row]
    texts = [pa.array([each.key for each in flat], pa.string())]
    texts.append(pa.array([each.value for each in flat], pa.string()))
    pairs = pa.StructArray.from_arrays(texts, fields=list(kind.value_type))
    offsets = pa.array(accumulate(map(len, rows), initial=0), pa.int32())
    return pa.ListArray.from_arrays(offsets, pairs, type=kind)
