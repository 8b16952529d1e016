"""`format("oncemq")`: what Spark asks for, and who does it.

Each method reads its options first, so that a wrong one is told before anything happens. Only here
and in the front door does Spark find us; what reads and writes is in modules of its own, which are
imported where they are needed: Spark asks in many short-lived processes.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from clients.spark.options import Role, read_options
from clients.spark.rows import schema_for


class OnceMQDataSource(DataSource):
    """Queues of OnceMQ as sources and sinks of Spark."""

    @classmethod
    def name(cls) -> str:
        """What people write: `format("oncemq")`."""
        return "oncemq"

    def schema(self) -> StructType | str:
        """The columns of a read whose schema nobody said."""
        return schema_for(read_options(self.options, self._reading()))

    def reader(self, schema: StructType) -> DataSourceReader:
        """See `source.py`."""
        from clients.spark.source import reader_for

        return reader_for(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """See `stream_source.py`."""
        from clients.spark.stream_source import stream_reader_for

        return stream_reader_for(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """See `sink.py`. A transaction is begun here."""
        from clients.spark.overwriting import check_overwriting
        from clients.spark.sink import QueueWriter

        options = read_options(self.options, Role.SINK)
        check_overwriting(options, overwrite)
        return QueueWriter(schema, options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """See `stream_sink.py`. Asked for twice in each batch, so that nothing is begun here."""
        from clients.spark.stream_sink import QueueStreamWriter, refuse_complete

        options = read_options(self.options, Role.STREAM_SINK)
        if overwrite:
            refuse_complete()
        return QueueStreamWriter(schema, options)

    def _reading(self) -> Role:
        if "transaction" in self.options:
            return Role.TAKE
        return Role.STREAM_SOURCE if "consumer" in self.options else Role.BROWSE
