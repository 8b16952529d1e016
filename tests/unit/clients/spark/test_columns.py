"""Rows as databases take them: what is refused before any row, and how values are written."""

from __future__ import annotations

import datetime
import pickle
import sqlite3
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import types

from clients.spark.columns import csv_of, inserter_for
from clients.spark.errors import SchemaError
from idl.databases import Kind

AT = datetime.datetime.fromisoformat("2026-11-17 01:02:03.000004")
BATCH = pa.RecordBatch.from_pydict(
    {
        "id": pa.array([1, 2], pa.int64()),
        "text": pa.array(['a "b", c', None], pa.string()),
        "raw": pa.array([b"\x00\xff", b""], pa.binary()),
        "amount": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "at": pa.array([AT, None], pa.timestamp("us")),
        "is_new": pa.array([True, None], pa.bool_()),
    }
)


def test_nothing_is_null_and_every_value_is_quoted() -> None:
    first, second = csv_of(BATCH).decode().splitlines()
    at = "2026-11-17 01:02:03.000004"
    assert first == f'"1","a ""b"", c","\\x00ff","1.50","{at}","true"'
    assert second == '"2",,"\\x",,,'


def test_rows_go_into_a_table_by_the_names_of_their_columns() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute('CREATE TABLE t ("a ""b" text, id integer, at text)')
    batch = pa.RecordBatch.from_pydict({"id": [7], 'a "b': ["x"], "at": [AT]})
    schema = types.StructType().add("id", "long").add('a "b', "string").add("at", "timestamp_ntz")
    inserter = pickle.loads(pickle.dumps(inserter_for(Kind.SQLITE, "t", schema)))
    assert inserter.insert(connection, iter([batch])) == 1
    [row] = connection.execute("SELECT * FROM t").fetchall()
    assert row == ("x", 7, "2026-11-17 01:02:03.000004")
    connection.close()


@pytest.mark.parametrize(
    "kind",
    [
        types.ArrayType(types.LongType()),
        types.MapType(types.StringType(), types.LongType()),
        types.StructType().add("a", "long"),
        types.NullType(),
    ],
)
def test_what_a_table_cannot_hold_is_refused_before_any_row(kind: types.DataType) -> None:
    schema = types.StructType().add("tags", kind)
    with pytest.raises(SchemaError, match=r"to_json\(tags\)"):
        inserter_for(Kind.POSTGRESQL, "t", schema)


@pytest.mark.parametrize("table", ["", ".", "a.", ".b"])
def test_a_table_needs_a_name(table: str) -> None:
    with pytest.raises(SchemaError, match="name of a table"):
        inserter_for(Kind.POSTGRESQL, table, types.StructType().add("id", "long"))


def test_two_columns_of_one_name_are_refused() -> None:
    schema = types.StructType().add("id", "long").add("ID", "long")
    with pytest.raises(SchemaError, match="same name"):
        inserter_for(Kind.POSTGRESQL, "t", schema)
