"""Payloads by their format: how they look, what they cannot hold, and those that do not fit."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

from clients.spark.errors import PayloadError, SchemaError
from clients.spark.options import Options
from clients.spark.payloads import payload_reader, payload_writer

ROW = StructType(
    [
        StructField("id", LongType()),
        StructField("name", StringType()),
        StructField("share", DoubleType()),
        StructField("amount", DecimalType(9, 2)),
        StructField("raw", BinaryType()),
        StructField("day", DateType()),
        StructField("at", TimestampType()),
        StructField("local", TimestampNTZType()),
        StructField("tags", ArrayType(StringType())),
        StructField("counts", MapType(StringType(), IntegerType())),
        StructField("place", StructType([StructField("city", StringType())])),
    ]
)
# Local: it has no zone.
NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC).replace(tzinfo=None)
BERLIN = pa.timestamp("us", "Europe/Berlin")


def rows() -> pa.RecordBatch:
    """One full row, and one of nulls; in the zone of some session."""
    noon = NOON.replace(microsecond=5)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([2**63 - 1, None]),
            pa.array(['a"\\\n', None]),
            pa.array([float("nan"), None]),
            pa.array([Decimal("-12.30"), None], pa.decimal128(9, 2)),
            pa.array([b"\x00\xff", None]),
            pa.array([noon.date(), None]),
            pa.array([noon.replace(tzinfo=dt.UTC), None], BERLIN),
            pa.array([noon, None], pa.timestamp("us")),
            pa.array([["x", None], None], pa.list_(pa.field("element", pa.string()))),
            pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
            pa.array([{"city": "ü"}, None], pa.struct({"city": pa.string()})),
        ],
        names=ROW.names,
    )


def test_json_looks_so() -> None:
    full, empty = payload_writer(ROW, "json")(rows())
    assert full.decode() == (
        '{"id":9223372036854775807,"name":"a\\"\\\\\\n","share":"NaN","amount":"-12.30",'
        '"raw":"AP8=","day":"2026-01-31","at":"2026-01-31T12:00:00.000005Z",'
        '"local":"2026-01-31T12:00:00.000005","tags":["x",null],"counts":{"k":1},'
        '"place":{"city":"ü"}}'
    )
    assert set(re.findall(r":(\w+)", empty.decode())) == {"null"}


def test_msgpack_looks_so() -> None:
    full, empty = payload_writer(ROW, "msgpack")(rows())
    found = msgpack.unpackb(full, timestamp=3)
    assert found.pop("share") != found
    assert found == {
        "id": 2**63 - 1,
        "name": 'a"\\\n',
        "amount": "-12.30",
        "raw": b"\x00\xff",
        "day": "2026-01-31",
        "at": dt.datetime(2026, 1, 31, 12, 0, 0, 5, dt.UTC),
        "local": "2026-01-31T12:00:00.000005",
        "tags": ["x", None],
        "counts": {"k": 1},
        "place": {"city": "ü"},
    }
    assert set(msgpack.unpackb(empty).values()) == {None}


def test_any_reader_of_arrow_reads_a_row_in_arrow() -> None:
    full, _ = payload_writer(ROW, "arrow")(rows())
    (found,) = pa.ipc.open_stream(full).read_all().to_pylist()
    assert (found["id"], found["amount"], found["tags"]) == (
        2**63 - 1,
        Decimal("-12.30"),
        ["x", None],
    )
    assert found["at"] == dt.datetime(2026, 1, 31, 12, 0, 0, 5, dt.UTC)


@pytest.mark.parametrize("payload_format", ["json", "msgpack"])
def test_years_that_no_reader_knows_are_refused(payload_format: str) -> None:
    schema = StructType([StructField("day", DateType())])
    far = pa.record_batch({"day": pa.array([10_000_000], pa.int32()).cast(pa.date32())})
    with pytest.raises(PayloadError, match="outside of the years 1 to 9999"):
        payload_writer(schema, payload_format)(far)


@pytest.mark.parametrize(
    ("kind", "payload_format", "told"),
    [
        (DayTimeIntervalType(), "json", 'the column "c" has the type interval day to second'),
        (YearMonthIntervalType(), "arrow", "which payloadFormat arrow cannot hold: cast it"),
        (VariantType(), "msgpack", 'the column "c" has the type variant'),
        (ArrayType(VariantType()), "json", 'the column "c" has the type variant'),
        (
            StructType([StructField("d", YearMonthIntervalType())]),
            "json",
            'the column "c.d" has the type interval year to month',
        ),
        (MapType(BooleanType(), StringType()), "json", "are strings, integers or dates: cast them"),
        (MapType(StringType(), VariantType()), "msgpack", 'the column "c" has the type variant'),
        (
            StructType([StructField("d", StringType()), StructField("d", StringType())]),
            "json",
            "the name stands twice in its struct",
        ),
    ],
)
def test_a_type_that_a_payload_cannot_hold_is_told(
    kind: DataType, payload_format: str, told: str
) -> None:
    schema = StructType([StructField("c", kind)])
    with pytest.raises(SchemaError, match=re.escape(told)):
        payload_writer(schema, payload_format)
    with pytest.raises(SchemaError, match=re.escape(told)):
        payload_reader(schema, Options(queue="q", payload_format=payload_format))


# --- Payloads that others have written -----------------------------------------------------------


def read(kind: DataType, *payloads: bytes, payload_format: str = "json") -> list[Any]:
    """The column `c` of the payloads."""
    schema = StructType([StructField("c", kind)])
    options = Options(queue="orders", payload_format=payload_format)
    keys = [f"{number:015d}" for number in range(1, len(payloads) + 1)]
    (column,) = payload_reader(schema, options)(payloads, keys)
    column.validate(full=True)
    found: list[Any] = column.to_pylist()
    return found


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (LongType(), " 5 ", 5),
        (DoubleType(), "5", 5.0),
        (DoubleType(), '"-Infinity"', float("-inf")),
        (DoubleType(), "Infinity", float("inf")),
        (DecimalType(20, 10), "0.1234567891", Decimal("0.1234567891")),
        (DecimalType(9, 2), "7", Decimal("7.00")),
        (DecimalType(9, 2), '"1e2"', Decimal("100.00")),
        (
            TimestampType(),
            '"2026-01-31 13:00:00+01:00"',
            dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC),
        ),
        (TimestampType(), '"2026-01-31T12:00Z"', dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)),
        (TimestampNTZType(), '"2026-01-31T12:00"', NOON),
        (MapType(LongType(), StringType()), '{"-7": "x"}', [(-7, "x")]),
        (StringType(), "null", None),
    ],
)
def test_what_others_write_as_json_is_read(kind: DataType, text: str, value: Any) -> None:
    payload = f'\n {{"more": [1], "c": {text}}} '.encode()
    assert read(kind, payload, b"{}") == [value, None]


@pytest.mark.parametrize(
    ("kind", "payload", "told"),
    [
        (LongType(), b'{"c": "x"}', "c is 'x', not bigint"),
        (LongType(), b'{"c": 1.5}', "c is 1.5, not bigint"),
        (LongType(), b'{"c": true}', "c is True, not bigint"),
        (LongType(), b'{"c": 9223372036854775808}', "c is 9223372036854775808, not bigint"),
        (DoubleType(), b'{"c": "much"}', "c is 'much', not double"),
        (DecimalType(5, 2), b'{"c": 1.234}', "not decimal(5,2)"),
        (DecimalType(5, 2), b'{"c": "NaN"}', "c is 'NaN', not decimal(5,2)"),
        (StringType(), b'{"c": "\\ud800"}', "not string"),
        (BinaryType(), b'{"c": "!"}', "c is '!', not binary"),
        (DateType(), b'{"c": "31.1.2026"}', "not date"),
        (TimestampType(), b'{"c": "2026-01-31T12:00:00"}', "not timestamp"),
        (TimestampNTZType(), b'{"c": "2026-01-31T12:00:00Z"}', "not timestamp_ntz"),
        (ArrayType(LongType()), b'{"c": [1, "x"]}', "c is 'x', not bigint"),
        (ArrayType(LongType(), False), b'{"c": [null]}', "c has a null in it"),
        (MapType(LongType(), LongType()), b'{"c": {"x": 1}}', "c is 'x', not bigint"),
        (StructType([StructField("d", LongType(), False)]), b'{"c": {}}', "c.d is missing or null"),
        (LongType(), b"[1]", "the payload is not a JSON object but [1]"),
        (LongType(), b"{} {}", "there is more behind the object"),
        (LongType(), b"", "the payload is not JSON"),
        (LongType(), b"\xff", "the payload is not JSON"),
        (LongType(), b'{"c":' * 100_000, "the payload is not JSON"),
    ],
)
def test_json_that_does_not_fit_is_told_with_queue_and_key(
    kind: DataType, payload: bytes, told: str
) -> None:
    with pytest.raises(PayloadError) as raised:
        read(kind, b"{}", payload, b"{}")
    assert 'the message 000000000000002 of the queue "orders" does not fit' in str(raised.value)
    assert told in str(raised.value)
    assert "onBadPayload" in str(raised.value)


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", msgpack.packb([1]), msgpack.packb({"c": "x"}), b"\x91" * 5_000]
)
def test_msgpack_that_does_not_fit_is_told(payload: bytes) -> None:
    with pytest.raises(PayloadError, match="the message 000000000000001"):
        read(LongType(), payload, payload_format="msgpack")


def test_rows_in_arrow_are_cast_where_nothing_is_lost() -> None:
    (small,) = payload_writer(StructType([StructField("c", IntegerType())]), "arrow")(
        pa.record_batch({"c": pa.array([7], pa.int32())})
    )
    (text,) = payload_writer(StructType([StructField("c", StringType())]), "arrow")(
        pa.record_batch({"c": pa.array(["x"])})
    )
    assert read(LongType(), small, payload_format="arrow") == [7]
    for wrong in (text, b"", small[:-20], small[:200] + small[210:]):
        with pytest.raises(PayloadError, match="not a row of Arrow"):
            read(LongType(), wrong, payload_format="arrow")


def test_a_bad_payload_can_be_a_row_of_nulls_and_be_kept() -> None:
    schema = StructType([StructField("bad", BinaryType()), StructField("c", LongType())])
    options = Options(
        queue="q", payload_format="json", on_bad_payload="null", bad_payload_column="bad"
    )
    read_them = payload_reader(schema, options)
    bad, column = read_them([b'{"c": 1}', b"torn", b'{"c": 3}'], ["1", "2", "3"])
    assert (bad.to_pylist(), column.to_pylist()) == ([None, b"torn", None], [1, None, 3])
    bad, column = read_them([b'{"c": 1}'], ["1"])
    assert (bad.to_pylist(), column.to_pylist()) == ([None], [1])


def test_text_that_is_not_utf_8_does_not_fit() -> None:
    schema = StructType([StructField("value", StringType())])
    with pytest.raises(PayloadError, match="the payload is not text in UTF-8"):
        payload_reader(schema, Options(queue="q"))([b"\xff"], ["1"])
    nulls = Options(queue="q", on_bad_payload="null")
    (column,) = payload_reader(schema, nulls)([b"a", b"\xff"], ["1", "2"])
    assert column.to_pylist() == ["a", None]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (StructType([StructField("c", LongType(), False)]), "declare it without NOT NULL"),
        (StructType([StructField("c", LongType())]), 'badPayloadColumn names "bad"'),
    ],
)
def test_nulls_for_bad_payloads_need_room_in_the_schema(schema: StructType, told: str) -> None:
    options = Options(
        queue="q", payload_format="json", on_bad_payload="null", bad_payload_column="bad"
    )
    with pytest.raises(SchemaError, match=re.escape(told)):
        payload_reader(schema, options)
