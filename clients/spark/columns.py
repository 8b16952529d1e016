"""Rows of Spark as a database takes them: COPY where there is one, INSERTs elsewhere.

Which types a table can hold is checked before any row is written. It knows record batches and
statements, and no transaction.
"""

from __future__ import annotations

import datetime
import decimal
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.csv
from pyspark.sql import types

from clients.spark.errors import SchemaError
from idl.databases import Kind

ROWS_TOGETHER = 1000

_PLAIN = (
    types.BooleanType,
    types.ByteType,
    types.ShortType,
    types.IntegerType,
    types.LongType,
    types.FloatType,
    types.DoubleType,
    types.DecimalType,
    types.StringType,
    types.CharType,
    types.VarcharType,
    types.BinaryType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
)


@dataclass(frozen=True)
class Inserter:
    """Puts record batches into one table. It pickles."""

    kind: Kind
    table: str
    columns: tuple[str, ...]

    def insert(self, connection: Any, batches: Iterator[Any]) -> int:
        """The rows are in the table, as far as this connection sees; raises what it raises."""
        if self.kind is Kind.POSTGRESQL:
            return self._copy(connection, batches)
        place = "?" if self.kind is Kind.SQLITE else "%s"
        places = ", ".join(place for _ in self.columns)
        statement = f"INSERT INTO {self._target()} VALUES ({places})"
        count = 0
        cursor = connection.cursor()
        try:
            for batch in batches:
                for rows in _rows(batch, self.kind):
                    cursor.executemany(statement, rows)
                count += batch.num_rows
        finally:
            cursor.close()
        return count

    def _copy(self, connection: Any, batches: Iterator[Any]) -> int:
        count = 0
        with connection.cursor() as cursor:
            statement = f"COPY {self._target()} FROM STDIN (FORMAT csv)"
            with cursor.copy(statement) as copy:
                for batch in batches:
                    copy.write(csv_of(batch))
                    count += batch.num_rows
        return count

    def _target(self) -> str:
        quote = "`" if self.kind is Kind.MARIADB else '"'
        table = ".".join(_quoted(part, quote) for part in self.table.split("."))
        return f"{table} ({', '.join(_quoted(each, quote) for each in self.columns)})"


def _quoted(name: str, quote: str) -> str:
    return f"{quote}{name.replace(quote, 2 * quote)}{quote}"


def inserter_for(kind: Kind, table: str, schema: types.StructType) -> Inserter:
    """What puts rows of this schema into the table; raises `SchemaError` where that cannot be."""
    if not table or not all(table.split(".")):
        raise SchemaError(f"{table!r} is not the name of a table: write TABLE or SCHEMA.TABLE")
    for column in schema:
        if not isinstance(column.dataType, _PLAIN):
            raise SchemaError(
                f"column {column.name!r} is {column.dataType.simpleString()}, which is not written "
                f"to a table: make it a text, as with to_json({column.name})"
            )
    lower = [name.lower() for name in schema.names]
    if len(set(lower)) < len(lower):
        raise SchemaError("two columns have the same name: rename one, or select what is wanted")
    return Inserter(kind, table, tuple(schema.names))


def csv_of(batch: Any) -> bytes:
    """The rows as PostgreSQL reads them: nothing is null, and every value is quoted."""
    arrays = [_text_of(batch.column(number)) for number in range(batch.num_columns)]
    names = [str(number) for number in range(batch.num_columns)]
    sink = io.BytesIO()
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(arrays, names), sink, options)
    return sink.getvalue()


def _text_of(column: Any) -> Any:
    """Columns that the writer of CSV does not know, or writes otherwise, as text."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if v is None else f"\\x{v.hex()}" for v in column.to_pylist()])
    if pa.types.is_decimal(kind):
        return pa.array([None if v is None else f"{v:f}" for v in column.to_pylist()], pa.string())
    if pa.types.is_timestamp(kind):
        return pa.array(
            [None if v is None else v.isoformat(" ") for v in column.to_pylist()], pa.string()
        )
    return column


def _rows(batch: Any, kind: Kind) -> Iterator[list[tuple[Any, ...]]]:
    for start in range(0, batch.num_rows, ROWS_TOGETHER):
        part = batch.slice(start, ROWS_TOGETHER)
        columns = [
            [_value(value, kind) for value in part.column(number).to_pylist()]
            for number in range(part.num_columns)
        ]
        yield list(zip(*columns, strict=True))


def _value(value: Any, kind: Kind) -> Any:
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        return value.isoformat(" ") if kind is Kind.SQLITE else value
    if kind is Kind.SQLITE and isinstance(value, datetime.date | decimal.Decimal):
        return str(value)
    return value
