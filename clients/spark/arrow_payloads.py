"""Rows as streams of Arrow: each payload is a schema and one row, and says its own types.

Any reader of Arrow reads one by `pyarrow.ipc.open_stream(payload).read_all()`. The types are exact
and the payload is large, since it carries the schema: some hundred bytes more than the row. Columns
are found by name; those that the schema does not name are passed over, one that is missing is null,
and another type is cast where nothing is lost by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from clients.spark.plain_columns import Misfit

# The end of a stream: a continuation mark, and a message of no length.
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class ArrowWriter:
    """A stream of one row for each row. See `PayloadWriter`."""

    def __init__(self, schema: StructType) -> None:
        # As the session writes it, without Spark's own remarks on the columns.
        self._begin = bytes(_bare(to_arrow_schema(schema, timezone="UTC")).serialize())

    def __call__(self, rows: pa.RecordBatch) -> list[bytes]:
        begin = self._begin
        return [
            b"".join((begin, rows.slice(row, 1).serialize(), _END)) for row in range(rows.num_rows)
        ]


def _bare(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.remove_metadata() for each in schema])


class ArrowFormat:
    """Payloads that are streams of Arrow with one row. See `PayloadFormat`."""

    def __init__(self, schema: StructType) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._bare = _bare(self._schema)
        self._begin = bytes(self._bare.serialize())
        self._nothing = None
        if all(each.nullable for each in self._schema):
            nulls = [pa.nulls(1, each.type) for each in self._bare]
            self._nothing = pa.RecordBatch.from_arrays(nulls, schema=self._bare)

    def parse(self, payloads: Sequence[bytes]) -> list[Any]:
        """The rows, each a record batch of the schema."""
        try:
            return [self._row(payload) for payload in payloads]
        except (pa.ArrowException, OSError, ValueError) as wrong:
            raise Misfit(
                f"the payload is not a row of Arrow with these columns ({wrong})"
            ) from wrong

    def _row(self, payload: bytes) -> Any:
        if payload.startswith(self._begin):
            rest = pa.py_buffer(payload).slice(len(self._begin))
            row = pa.ipc.read_record_batch(rest, self._bare)
        else:
            row = self._other_row(payload)
        if row.num_rows != 1:
            raise Misfit(f"the payload has {row.num_rows} rows, and a message is one")
        # It may come from anywhere, and whoever gets the row believes what it says.
        row.validate(full=True)
        for each in self._bare:
            if not each.nullable and row.column(each.name).null_count:
                raise Misfit(f"{each.name} is missing or null, and the schema says that it is not")
        return row

    def _other_row(self, payload: bytes) -> Any:
        found = pa.ipc.open_stream(payload).read_all()
        columns = []
        for each in self._bare:
            if each.name in found.schema.names:
                column = found.column(each.name).combine_chunks()
                columns.append(column.cast(each.type))
            else:
                columns.append(pa.nulls(found.num_rows, each.type))
        return pa.RecordBatch.from_arrays(columns, names=self._bare.names).cast(self._bare)

    def columns(self, parsed: Sequence[Any]) -> list[pa.Array]:
        """The columns of the rows."""
        rows = [self._nothing if each is None else each for each in parsed]
        table = pa.Table.from_batches(rows, schema=self._bare)
        return [_one(column) for column in table.columns]


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 0:
        return pa.array([], column.type)
    return pa.concat_arrays(column.chunks)
