"""Strategies: schemas of Spark, nested as they like, and rows of them as Arrow has them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

INTEGERS: dict[type[DataType], int] = {
    ByteType: 8,
    ShortType: 16,
    IntegerType: 32,
    LongType: 64,
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.one_of(st.sampled_from(["id", "a b", 'quote"', "ü", "x.y", "tab\t"]), TEXTS)
ATOMS: tuple[DataType, ...] = (
    BooleanType(),
    *[integer() for integer in INTEGERS],
    FloatType(),
    DoubleType(),
    DecimalType(38, 18),
    DecimalType(9, 2),
    DecimalType(5, 0),
    StringType(),
    BinaryType(),
    DateType(),
    TimestampType(),
    TimestampNTZType(),
    NullType(),
)
KEYS: tuple[DataType, ...] = (StringType(), IntegerType(), LongType(), DateType())


def kinds() -> st.SearchStrategy[DataType]:
    """Types, nested up to a few levels."""
    return st.recursive(
        st.sampled_from(ATOMS),
        lambda inner: st.one_of(
            st.builds(ArrayType, inner),
            st.builds(MapType, st.sampled_from(KEYS), inner),
            structs(inner),
        ),
        max_leaves=4,
    )


def structs(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[StructType]:
    """Structs of a few fields, whose names differ."""
    names = st.lists(NAMES, min_size=1, max_size=4, unique=True)
    return names.flatmap(
        lambda chosen: st.tuples(*[inner for _ in chosen]).map(
            lambda types: StructType(
                [StructField(name, kind) for name, kind in zip(chosen, types, strict=True)]
            )
        )
    )


def schemas() -> st.SearchStrategy[StructType]:
    """Schemas of whole payloads."""
    return structs(kinds())


def values(kind: DataType) -> st.SearchStrategy[Any]:
    """Values of the type, null among them."""
    return st.one_of(st.none(), _values(kind))


def _values(kind: DataType) -> st.SearchStrategy[Any]:
    if isinstance(kind, StructType):
        return st.fixed_dictionaries({each.name: values(each.dataType) for each in kind})
    if isinstance(kind, ArrayType):
        return st.lists(values(kind.elementType), max_size=3)
    if isinstance(kind, MapType):
        entries = st.tuples(_values(kind.keyType), values(kind.valueType))
        return st.lists(entries, max_size=3, unique_by=lambda entry: entry[0])
    return _atoms(kind)


def _atoms(kind: DataType) -> st.SearchStrategy[Any]:
    if isinstance(kind, DecimalType):
        units = st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1)
        return units.map(lambda unit: _decimal(unit, kind.scale))
    if type(kind) in INTEGERS:
        top = 2 ** (INTEGERS[type(kind)] - 1)
        return st.integers(-top, top - 1)
    found: dict[type[DataType], st.SearchStrategy[Any]] = {
        BooleanType: st.booleans(),
        FloatType: st.floats(width=32),
        DoubleType: st.floats(),
        StringType: TEXTS,
        BinaryType: st.binary(max_size=8),
        DateType: st.dates(),
        TimestampType: st.datetimes(timezones=st.just(dt.UTC)),
        TimestampNTZType: st.datetimes(),
        NullType: st.none(),
    }
    return found[type(kind)]


def _decimal(units: int, scale: int) -> Decimal:
    sign, digits = int(units < 0), tuple(int(each) for each in str(abs(units)))
    return Decimal((sign, digits, -scale))


def tables(schema: StructType) -> st.SearchStrategy[pa.RecordBatch]:
    """Rows of the schema, a few of them."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    rows = st.lists(st.tuples(*[values(each.dataType) for each in schema]), max_size=6)
    return rows.map(lambda made: _batch(made, arrow))


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.array([row[place] for row in rows], each.type) for place, each in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
