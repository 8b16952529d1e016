"""W8: rows written and read by Spark, as benchmarks/spark_sink.py and spark_source.py do it.

Here they stand beside what people would take instead: files, or PostgreSQL's COPY from every task.
A round is one job; its calls in a second are its rows in a second.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import measure, spark_sink, spark_source
from benchmarks.measure import Comparison, Effort, Round, Setting
from benchmarks.peers.operations import Operation
from benchmarks.peers.running import Addresses, Row
from benchmarks.peers.servers import Absent
from benchmarks.peers.systems import BY_NAME, COPIED, FILES, OURS, SPARK_LIMIT, STREAMED
from benchmarks.peers.workloads import Workload

# What the subjects of the two benchmarks are called in the tables of the peers.
WRITERS = {
    spark_sink.OURS: OURS,
    spark_sink.PARQUET: FILES,
    spark_sink.THROWN: SPARK_LIMIT,
    COPIED: COPIED,
}
READERS = {
    spark_source.BROWSED: OURS,
    spark_source.RESERVED: STREAMED,
    spark_source.MADE_UP: SPARK_LIMIT,
}


def run(
    workload: Workload, rounds: int, addresses: Addresses, step: Callable[[str], None]
) -> list[Row]:
    """See `running.run`."""
    with tempfile.TemporaryDirectory(prefix="oncemq-spark-", dir="/var/tmp") as folder:
        if workload.operation is Operation.SPARK_WRITE:
            comparison, absent = _writing(Path(folder), addresses)
            names, rows_each = WRITERS, spark_sink.ROWS
        else:
            [comparison], absent = spark_source.comparisons(Setting(Path(folder))), ""
            names, rows_each = READERS, spark_source.ROWS
        effort = Effort(rounds, calls=1)
        found = measure.run(comparison, effort, time.perf_counter, partial(step, "Spark"))
    rows = [
        Row(workload, BY_NAME[names[name]], [_in_rows(taken, rows_each) for taken in taken_all])
        for name, taken_all in found.rounds.items()
        if name in names
    ]
    return rows + [Row(workload, BY_NAME[COPIED], absent=absent)] * bool(absent)


def _in_rows(taken: Round, rows: int) -> Round:
    return Round(taken.p50_s, taken.p99_s, taken.calls_per_s * rows)


def _writing(folder: Path, addresses: Addresses) -> tuple[Comparison, str]:
    """The sink's comparison with COPY beside it, or why that is absent."""
    world = spark_sink.World(folder)
    subjects: list[measure.Subject] = [
        spark_sink.Writing(world, spark_sink.THROWN, spark_sink.World.throw_away),
        spark_sink.Writing(world, spark_sink.PARQUET, spark_sink.World.write_parquet),
        spark_sink.Writing(world, spark_sink.OURS, spark_sink.World.write_ours),
    ]
    absent = ""
    try:
        subjects.append(Copying(world, addresses.of(BY_NAME[COPIED])))
    except Absent as reason:
        absent = str(reason)
    return Comparison("rows written", tuple(subjects), spark_sink.THROWN, calls=1), absent


@dataclass
class Copying:
    """Every task copies its rows into a table, and commits by itself."""

    world: spark_sink.World
    dsn: str
    name: str = COPIED

    def start(self) -> None:
        """See `Subject.start`."""
        self.world.enter()

    def stop(self) -> None:
        """See `Subject.stop`."""
        self.world.leave()

    def one_call(self) -> None:
        """See `Subject.one_call`. The table is empty before, and its rows are counted after."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute("DROP TABLE IF EXISTS copied")
            connection.execute("CREATE TABLE copied (payload BYTEA NOT NULL)")
        self.world.frame.foreachPartition(partial(copy_rows, self.dsn))
        with psycopg.connect(self.dsn) as connection:
            [[count]] = connection.execute("SELECT count(*) FROM copied")
        assert count == spark_sink.ROWS, f"{count} of {spark_sink.ROWS} rows are there"


def copy_rows(dsn: str, rows: Iterable[Any]) -> None:
    """What a task does with the rows of a partition."""
    with (
        psycopg.connect(dsn) as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY copied FROM STDIN (FORMAT BINARY)") as copy,
    ):
        copy.set_types(["bytea"])
        for row in rows:
            copy.write_row((row.value,))
