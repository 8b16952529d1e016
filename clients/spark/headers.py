"""The header columns of a row: priority, group, sender, attributes, and what the queue gives.

Which types they may have, and how whole columns of them become those of messages and back. Numbers
and texts are looked at here, since whoever wrote the column should hear of it and not the node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
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
from clients.messages import NUMBER_MAX, SENDER_LENGTH_MAX
from clients.spark.errors import PayloadError, SchemaError
from idl.mq import USEC_PER_SEC, mqAttribute, mqTaken, mqTimestamp

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
# The queue gives these: a row cannot say them.
_GIVEN = ("key", "time")
HEADER_DDL = (
    "key STRING, priority INT, `group` INT, time TIMESTAMP, sender STRING, "
    "attributes ARRAY<STRUCT<name: STRING, value: STRING>>"
)

# --- Writing -------------------------------------------------------------------------------------


def check_header_written(column: StructField, is_binary: bool) -> None:
    """Raises `SchemaError` where the column cannot be the header of its name."""
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


HeaderColumns = tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...], structs.Attribs]


def written_headers(rows: pa.RecordBatch, names: Collection[str], sender: str) -> HeaderColumns:
    """Priorities, groups, senders and attributes; a column that says nothing is left out."""
    return (
        _numbers(rows, "priority", names),
        _numbers(rows, "group", names),
        _senders(rows, names, sender),
        _attribs(rows, names),
    )


def _numbers(rows: pa.RecordBatch, name: str, names: Collection[str]) -> tuple[int, ...]:
    if name not in names:
        return ()
    column = pc.fill_null(rows.column(name), 0)
    ends = pc.min_max(column).as_py()
    for value in (ends["min"], ends["max"]):
        if not 0 <= value <= NUMBER_MAX:
            raise PayloadError(
                f'the column "{name}" has the value {value}: a {name} is from 0 to {NUMBER_MAX}'
            )
    return tuple(column.to_pylist()) if ends["max"] else ()


def _senders(rows: pa.RecordBatch, names: Collection[str], sender: str) -> tuple[str, ...]:
    if "sender" not in names:
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


def _attribs(rows: pa.RecordBatch, names: Collection[str]) -> structs.Attribs:
    if "attributes" not in names:
        return ()
    made = _attributes_written(rows.column("attributes"))
    return made if any(made) else ()


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


# --- Reading -------------------------------------------------------------------------------------


def check_header_read(column: StructField) -> None:
    """Raises `SchemaError` where the header of this name is not read as the column says."""
    expected = HEADERS[column.name].dataType
    if column.dataType != expected:
        raise SchemaError(
            f'the column "{column.name}" has the type {column.dataType.simpleString()}, and the '
            f"header of this name is read as {expected.simpleString()}: declare it so and cast it "
            "afterwards"
        )


def read_header(name: str, kind: pa.DataType, taken: mqTaken) -> pa.Array:
    """The column of this name."""
    messages, count = taken.messages, len(taken.messages.payloads)
    if name == "key":
        return pa.array(taken.keys, kind)
    if name == "time":
        return _times_read(messages.times, kind) if messages.times else pa.nulls(count, kind)
    if name == "attributes":
        return _attributes_read(messages.attribs or ((),) * count, kind)
    column, default = {
        "priority": (messages.priorities, 0),
        "group": (messages.groups, 0),
        "sender": (messages.senders, ""),
    }[name]
    # A column that is left out has the default for all.
    return pa.array(column, kind) if column else pa.repeat(pa.scalar(default, kind), count)


def _times_read(times: Sequence[mqTimestamp], kind: pa.DataType) -> pa.Array:
    # Messages that were put together have the same time, and it is the same object.
    known = {id(each): each for each in times}
    told = {name: each.mq_sec * USEC_PER_SEC + each.mq_usec for name, each in known.items()}
    return pa.array([told[id(each)] for each in times], pa.int64()).cast(kind)


def _attributes_read(rows: structs.Attribs, kind: pa.DataType) -> pa.Array:
    flat = [each for row in rows for each in row]
    texts = [pa.array([each.key for each in flat], pa.string())]
    texts.append(pa.array([each.value for each in flat], pa.string()))
    pairs = pa.StructArray.from_arrays(texts, fields=list(kind.value_type))
    offsets = pa.array(accumulate(map(len, rows), initial=0), pa.int32())
    return pa.ListArray.from_arrays(offsets, pairs, type=kind)
