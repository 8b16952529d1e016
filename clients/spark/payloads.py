"""Payloads and the columns in them, by `payloadFormat`.

A writer turns columns into one payload per row, a reader turns payloads into columns. Neither knows
of headers, which are columns of `rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from clients.spark.errors import PayloadError, SchemaError
from clients.spark.options import Options

# One payload for each row of the columns.
PayloadWriter = Callable[[pa.RecordBatch], Sequence[bytes]]
# The columns of the payloads; the keys of their messages name those that are wrong.
PayloadReader = Callable[[Sequence[bytes], Sequence[str]], Sequence[pa.Array]]


def payload_writer(schema: StructType, payload_format: str) -> PayloadWriter:
    """How rows of these columns become payloads; raises `SchemaError` where they cannot."""
    assert payload_format == "binary"
    _check_value(schema.fields[0])
    return _written_values


def payload_reader(schema: StructType, options: Options) -> PayloadReader:
    """How payloads become these columns; raises `SchemaError` where they cannot."""
    assert options.payload_format == "binary"
    if not schema.fields:
        return lambda payloads, keys: ()
    _check_value(schema.fields[0])
    return lambda payloads, keys: (pa.array(payloads, pa.binary()),)


def _check_value(column: StructField) -> None:
    if not isinstance(column.dataType, BinaryType | StringType):
        raise SchemaError(
            f'the column "value" has the type {column.dataType.simpleString()}, and a payload is '
            "binary or string: cast it, or write whole rows with "
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
