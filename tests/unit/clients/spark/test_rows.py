"""Rows as messages and back: headers, sizes of calls, and what cannot be mapped."""

from __future__ import annotations

import pickle
import re
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from clients.errors import Damaged
from clients.spark.errors import PayloadError, SchemaError
from clients.spark.headers import HEADERS
from clients.spark.options import Options
from clients.spark.rows import (
    BATCH_BYTES_MAX,
    BINARY_SCHEMA,
    decoder_for,
    encoder_for,
    schema_for,
)
from idl.mq import mqAttribute, mqBatch, mqTaken, mqTimestamp

TEXT, INT = StringType(), IntegerType()
BINARY = Options(queue="q")
JSON = Options(queue="q", payload_format="json")


def struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def written(schema: StructType, options: Options = BINARY, **columns: Any) -> list[mqBatch]:
    """The batches, from an encoder that went to another process."""
    encoder = pickle.loads(pickle.dumps(encoder_for(schema, options)))
    return list(encoder.batches(pa.record_batch(columns)))


def taken(*payloads: bytes, **columns: Any) -> mqTaken:
    named = {"priorities": (), "groups": (), "times": (), "senders": (), "attribs": (), **columns}
    keys = tuple(f"{number:015d}" for number in range(1, len(payloads) + 1))
    return mqTaken(keys, mqBatch(payloads, tuple(map(crc32, payloads)), **named))


# --- Writing -------------------------------------------------------------------------------------


def test_text_is_written_as_utf_8_and_bytes_as_they_are() -> None:
    (texts,) = written(struct(value=TEXT), value=pa.array(["é", ""]))
    (raw,) = written(struct(value=BinaryType()), value=pa.array([b"\xff\x00"]))
    assert texts.payloads == ("é".encode(), b"")
    assert texts.digests == (crc32("é".encode()), 0)
    assert raw.payloads == (b"\xff\x00",)


def test_header_columns_become_headers_and_nulls_their_defaults() -> None:
    schema = struct(value=TEXT, priority=LongType(), group=INT, sender=TEXT)
    (batch,) = written(
        schema,
        Options(queue="q", sender="job"),
        value=pa.array(["a", "b"]),
        priority=pa.array([None, 65_535]),
        group=pa.array([3, None], pa.int32()),
        sender=pa.array([None, "me"]),
    )
    assert (batch.priorities, batch.groups) == ((0, 65_535), (3, 0))
    assert batch.senders == ("job", "me")


def test_headers_that_say_nothing_are_left_out() -> None:
    schema = struct(value=TEXT, priority=INT, sender=TEXT, attributes=MapType(TEXT, TEXT))
    (batch,) = written(
        schema,
        value=pa.array(["a"]),
        priority=pa.array([0], pa.int32()),
        sender=pa.array([""]),
        attributes=pa.array([None], pa.map_(pa.string(), pa.string())),
    )
    assert batch == mqBatch((b"a",), (crc32(b"a"),), (), (), (), (), ())


def test_attributes_are_a_map_or_a_list_of_pairs() -> None:
    pair = struct(name=TEXT, value=TEXT)
    listed = pa.array(
        [[{"name": "a", "value": "1"}, {"name": "a", "value": "2"}], None],
        pa.list_(pa.struct({"name": pa.string(), "value": pa.string()})),
    )
    (lists,) = written(
        struct(value=TEXT, attributes=ArrayType(pair)),
        value=pa.array(["x", "y"]),
        attributes=listed,
    )
    (maps,) = written(
        struct(value=TEXT, attributes=MapType(TEXT, TEXT)),
        value=pa.array(["x"]),
        attributes=pa.array([[("b", "")]], pa.map_(pa.string(), pa.string())),
    )
    assert lists.attribs == ((mqAttribute("a", "1"), mqAttribute("a", "2")), ())
    assert maps.attribs == ((mqAttribute("b", ""),),)


def test_what_was_read_can_be_written_again() -> None:
    rows = decoder_for(None, BINARY).record_batch(taken(b"a", times=(mqTimestamp(1, 2),)))
    (batch,) = encoder_for(BINARY_SCHEMA, BINARY).batches(rows)
    assert batch.payloads == (b"a",)


def test_a_call_has_at_most_5000_messages_and_4_mib() -> None:
    many = written(struct(value=TEXT), value=pa.array(["x"] * 12_000))
    assert [len(each.payloads) for each in many] == [5_000, 5_000, 2_000]
    mib = b"y" * 2**20
    large = written(struct(value=BinaryType()), value=pa.array([mib] * 5 + [mib * 6, b"z"]))
    assert [len(each.payloads) for each in large] == [3, 2, 1, 1]
    assert all(sum(map(len, each.payloads)) <= BATCH_BYTES_MAX for each in large[:2])


def test_attributes_count_for_the_size_of_a_call() -> None:
    long = pa.array([[("a", "x" * 2**21)]] * 3, pa.map_(pa.string(), pa.string()))
    schema = struct(value=TEXT, attributes=MapType(TEXT, TEXT))
    batches = written(schema, value=pa.array(["v"] * 3), attributes=long)
    assert [len(each.payloads) for each in batches] == [1, 1, 1]


def test_large_texts_of_the_session_are_texts_too() -> None:
    (batch,) = written(struct(value=TEXT), value=pa.array(["a"], pa.large_string()))
    (object_,) = written(struct(name=TEXT), JSON, name=pa.array(["a"], pa.large_string()))
    assert (batch.payloads, object_.payloads) == ((b"a",), (b'{"name":"a"}',))


@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        ("value", pa.array(["a", None]), 'the column "value" is null (row 1 of a batch)'),
        ("priority", pa.array([1, 65_536]), "has the value 65536: a priority is from 0 to 65535"),
        ("group", pa.array([1, -1]), "has the value -1: a group is from 0 to 65535"),
        ("sender", pa.array(["a", "x" * 256]), "more than 255 characters"),
        ("sender", pa.array(["a", "b\0"]), "a text with a NUL character"),
        (
            "attributes",
            pa.array([[("a", None)], []], pa.map_(pa.string(), pa.string())),
            "has the pair ('a', None)",
        ),
    ],
)
def test_a_row_that_can_be_no_message_is_told(column: str, values: Any, told: str) -> None:
    schema = struct(
        value=TEXT,
        priority=LongType(),
        group=LongType(),
        sender=TEXT,
        attributes=MapType(TEXT, TEXT),
    )
    columns = {"value": pa.array(["v", "w"]), column: values}
    kept = StructType([each for each in schema if each.name in columns])
    with pytest.raises(PayloadError, match=re.escape(told)):
        written(kept, **columns)


@pytest.mark.parametrize(
    ("schema", "options", "told"),
    [
        (struct(body=TEXT), BINARY, 'the column "body" of type string is no part of a message'),
        (struct(value=TEXT, x=INT), BINARY, 'the column "x" of type int is no part of a message'),
        (struct(priority=INT), BINARY, 'there is no column "value"'),
        (struct(value=DoubleType()), BINARY, 'the column "value" has the type double'),
        (struct(value=TEXT, priority=TEXT), BINARY, 'the column "priority" has the type string'),
        (struct(value=TEXT, attributes=TEXT), BINARY, "or a map<string,string>"),
        (struct(id=INT, group=DateType()), JSON, '.option("headers", "false")'),
        (struct(id=INT, key=TEXT), JSON, "a header that the queue gives: drop or rename it"),
        (struct(priority=INT), JSON, "nothing is left for the payload"),
        (
            StructType([StructField("a", INT), StructField("a", TEXT)]),
            JSON,
            'two columns have the name "a"',
        ),
    ],
)
def test_a_schema_that_cannot_be_written_is_told_before_any_row(
    schema: StructType, options: Options, told: str
) -> None:
    with pytest.raises(SchemaError, match=re.escape(told)):
        encoder_for(schema, options)


def test_headers_of_whole_rows_leave_the_payload_unless_they_belong_to_it() -> None:
    schema = struct(id=INT, priority=INT)
    columns = {"id": pa.array([1], pa.int32()), "priority": pa.array([9], pa.int32())}
    (apart,) = written(schema, JSON, **columns)
    inside = Options(queue="q", payload_format="json", headers=False)
    (within,) = written(schema, inside, **columns)
    assert (apart.payloads, apart.priorities) == ((b'{"id":1}',), (9,))
    assert (within.payloads, within.priorities) == ((b'{"id":1,"priority":9}',), ())


# --- Reading -------------------------------------------------------------------------------------


def test_messages_become_rows_with_all_their_headers() -> None:
    found = taken(
        b"a",
        b"b",
        priorities=(0, 5),
        groups=(1, 0),
        times=(mqTimestamp(1_700_000_000, 250_000), mqTimestamp(0, 1)),
        senders=("", "me"),
        attribs=((mqAttribute("x", "1"), mqAttribute("x", "2")), ()),
    )
    rows = pickle.loads(pickle.dumps(decoder_for(None, BINARY))).record_batch(found).to_pylist()
    assert [row["value"] for row in rows] == [b"a", b"b"]
    assert rows[0]["key"] == "000000000000001"
    assert rows[0]["time"].isoformat() == "2023-11-14T22:13:20.250000+00:00"
    assert rows[0]["attributes"] == [{"name": "x", "value": "1"}, {"name": "x", "value": "2"}]
    assert (rows[1]["priority"], rows[0]["group"], rows[1]["sender"]) == (5, 1, "me")


def test_no_messages_are_no_rows_of_the_same_columns() -> None:
    rows = decoder_for(None, BINARY).record_batch(taken())
    assert (rows.num_rows, rows.schema.names) == (0, BINARY_SCHEMA.names)


def test_a_user_may_ask_for_some_columns_in_any_order() -> None:
    decoder = decoder_for(struct(key=TEXT, value=TEXT), BINARY)
    assert decoder.record_batch(taken(b"a")).to_pylist() == [{"key": f"{1:015d}", "value": "a"}]
    assert decoder_for(struct(key=TEXT), BINARY).record_batch(taken(b"a")).num_columns == 1


def test_a_payload_that_changed_on_its_way_is_told() -> None:
    broken = mqTaken(("1",), mqBatch((b"a",), (1,), (), (), (), (), ()))
    with pytest.raises(Damaged):
        decoder_for(None, BINARY).record_batch(broken)


def test_a_schema_in_the_options_gets_the_headers_that_were_asked_for() -> None:
    ddl = Options(queue="q", payload_format="json", schema="id INT")
    asked = Options(queue="q", payload_format="json", schema=struct(id=INT).json(), headers=True)
    assert schema_for(BINARY) == BINARY_SCHEMA
    assert schema_for(ddl) == "id INT"
    assert schema_for(asked) == StructType([StructField("id", INT), *HEADERS.fields])


def test_headers_are_read_beside_the_payload_when_asked_for() -> None:
    options = Options(queue="q", payload_format="json", headers=True)
    rows = decoder_for(struct(id=INT, key=TEXT, priority=INT), options).record_batch(
        taken(b'{"id": 1, "key": "inside"}', priorities=(4,))
    )
    assert rows.to_pylist() == [{"id": 1, "key": "000000000000001", "priority": 4}]


@pytest.mark.parametrize(
    ("schema", "options", "told"),
    [
        (None, JSON, 'say them by .schema("id BIGINT, name STRING")'),
        (
            None,
            Options(queue="q", payload_format="json", schema="{}"),
            "is not the JSON of a schema",
        ),
        (struct(id=INT, key=TEXT), JSON, "may be the header of this name or a part of the payload"),
        (struct(id=INT), BINARY, 'the column "id" of type int is no part of a message'),
        (struct(value=INT), BINARY, 'the column "value" has the type int'),
        (struct(time=TEXT), BINARY, "is read as timestamp: declare it so and cast it afterwards"),
        (struct(time=TimestampType(), priority=LongType()), BINARY, "is read as int"),
    ],
)
def test_a_schema_that_cannot_be_read_is_told_before_any_row(
    schema: StructType | None, options: Options, told: str
) -> None:
    with pytest.raises(SchemaError, match=re.escape(told)):
        decoder_for(schema, options)
