"""`format("dying")`: OnceMQ's data source in processes that die where a test wants them to.

The option `deaths` names a folder with a file for each place where somebody has to die. Whoever
removes it does: alone, or with the Java process whose id is in the file.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from clients.spark.datasource import OnceMQDataSource
from clients.spark.options import Role, read_options
from clients.spark.source import BrowseReader
from clients.spark.stream_sink import QueueStreamWriter
from clients.spark.stream_source import ReservationReader

DEATHS = "deaths"
# Where a process can die.
READING = "while-a-task-reads"
RESERVED = "reserved-and-not-logged"
UNCOMMITTED = "before-the-sink-commits"
COMMITTED = "after-the-sink-has-committed"


def plan_deaths(folder: Path, *places: str, jvm: int = 0) -> None:
    """Somebody dies at each of these places, once; with this Java process, if it is named."""
    for place in places:
        (folder / place).write_text(str(jvm))


def left_of(folder: Path) -> list[str]:
    """The places to which nobody has come yet."""
    return sorted(each.name for each in folder.iterdir())


def perhaps_die(folder: str, place: str) -> None:
    """The process is gone if that is planned."""
    file = Path(folder) / place
    try:
        jvm = int(file.read_text())
        # Who removes it is the one: several tasks may come here at once.
        file.unlink()
    except FileNotFoundError:
        return
    if jvm:
        os.kill(jvm, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class DyingReader(BrowseReader):
    """Dies after its first rows."""

    folder = ""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """See `BrowseReader.read`."""
        for rows in super().read(partition):
            yield rows
            perhaps_die(self.folder, READING)


class DyingStreamReader(ReservationReader):
    """Dies in a task, or between reserving and telling Spark."""

    folder = ""

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """See `ReservationReader.latestOffset`."""
        found = super().latestOffset(start, limit)
        if found["reservation"] > start["reservation"]:
            perhaps_die(self.folder, RESERVED)
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """See `ReservationReader.read`."""
        for rows in super().read(partition):
            yield rows
            perhaps_die(self.folder, READING)


class DyingStreamWriter(QueueStreamWriter):
    """Dies before or after it commits a batch that has rows."""

    folder = ""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """See `QueueStreamWriter.commit`."""
        has_rows = any(each is not None and getattr(each, "rows", 0) for each in messages)
        if has_rows:
            perhaps_die(self.folder, UNCOMMITTED)
        super().commit(messages, batchId)
        if has_rows:
            perhaps_die(self.folder, COMMITTED)


class DyingDataSource(OnceMQDataSource):
    """OnceMQ's data source, as mortal as its processes."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.folder = options.get(DEATHS, "")
        super().__init__({key: value for key, value in options.items() if key != DEATHS})

    @classmethod
    def name(cls) -> str:
        """See `OnceMQDataSource.name`."""
        return "dying"

    def reader(self, schema: StructType) -> DataSourceReader:
        """See `OnceMQDataSource.reader`."""
        made = DyingReader(read_options(self.options, Role.BROWSE), schema)
        made.folder = self.folder
        return made

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """See `OnceMQDataSource.streamReader`."""
        made = DyingStreamReader(read_options(self.options, Role.STREAM_SOURCE), schema)
        made.folder = self.folder
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """See `OnceMQDataSource.streamWriter`."""
        made = DyingStreamWriter(schema, read_options(self.options, Role.STREAM_SINK))
        made.folder = self.folder
        return made
