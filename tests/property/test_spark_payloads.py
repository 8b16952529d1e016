"""Whatever rows a DataFrame has, they come back from their payloads as they were."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from clients.spark.options import Options
from clients.spark.payloads import payload_reader
from clients.spark.rows import Decoder, Encoder, decoder_for, encoder_for
from idl.mq import mqBatch, mqTaken
from tests.property.spark_rows import schemas, tables

FORMATS = ("json", "msgpack", "arrow")


def pair(schema: StructType, payload_format: str) -> tuple[Encoder, Decoder]:
    """What writes and what reads the schema, without headers."""
    options = Options(queue="q", payload_format=payload_format, headers=False)
    return encoder_for(schema, options), decoder_for(schema, options)


def taken(batches: list[mqBatch]) -> list[mqTaken]:
    """The messages, as a node hands them out."""
    return [
        mqTaken(tuple(f"{number:015d}" for number in range(len(each.payloads))), each)
        for each in batches
    ]


def come_back(rows: pa.RecordBatch, schema: StructType, payload_format: str) -> list[Any]:
    encoder, decoder = pair(schema, payload_format)
    found = [decoder.record_batch(each) for each in taken(list(encoder.batches(rows)))]
    for each in found:
        each.validate(full=True)
        assert each.schema.equals(rows.schema)
    return [row for each in found for row in each.to_pylist()]


@pytest.mark.parametrize("payload_format", FORMATS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_rows_come_back_as_they_were(payload_format: str, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    rows = data.draw(tables(schema))
    # As text, since a NaN equals nothing.
    assert repr(come_back(rows, schema, payload_format)) == repr(rows.to_pylist())


@pytest.mark.parametrize("payload_format", FORMATS)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_a_slice_of_rows_is_those_rows_alone(payload_format: str, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    rows = data.draw(tables(schema))
    start = data.draw(st.integers(0, rows.num_rows))
    part = rows.slice(start, data.draw(st.integers(0, 6)))
    assert repr(come_back(part, schema, payload_format)) == repr(part.to_pylist())


@pytest.mark.parametrize("payload_format", FORMATS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_bytes_are_a_row_or_are_told_to_be_none(
    payload_format: str, data: st.DataObject
) -> None:
    schema = StructType([StructField("id", IntegerType()), StructField("name", StringType())])
    encoder, _ = pair(schema, payload_format)
    rows = pa.record_batch({"id": pa.array([7], pa.int32()), "name": pa.array(["seven"])})
    good = next(iter(encoder.batches(rows))).payloads[0]
    spot = data.draw(st.integers(0, len(good) - 1))
    torn = good[:spot] + data.draw(st.binary(max_size=4)) + good[spot + 1 :]
    payloads = [good, torn, data.draw(st.binary(max_size=20)), good]
    options = Options(queue="q", payload_format=payload_format, on_bad_payload="null")
    ids, names = payload_reader(schema, options)(payloads, ["1", "2", "3", "4"])
    assert (ids[0].as_py(), names[0].as_py()) == (ids[3].as_py(), names[3].as_py()) == (7, "seven")
    ids.validate(full=True)
    names.validate(full=True)
