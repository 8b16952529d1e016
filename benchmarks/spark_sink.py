"""What writing a DataFrame into a queue costs, against what Spark does with the same rows without.

    noop              Spark's floor: rows are made and nothing is done with them
    thrown away       an Arrow writer in Python that counts: the limit of Spark's Python sinks
    parquet           files, by Spark's own writer
    PostgreSQL COPY   `foreachPartition` with psycopg: rows come twice when a task fails
    PostgreSQL JDBC   Spark's own writer, without Python, inserts rewritten into few statements, in
                      batches as large as Spark makes them and in larger ones; comes twice, too
    OnceMQ            one transaction: rows are forced to disk, and committed in two phases

Rows have 100 bytes and come from memory. The servers are processes of their own on the loopback
interface, and share the machine with Spark. Each write has a new queue or table, so that nobody's
cleaning up is measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import oncemq
from benchmarks.databases import PostgresServer, why_no_postgres
from benchmarks.measure import Bar, Comparison, Setting
from benchmarks.orb import ServerProcess
from clients.spark.datasource import OnceMQDataSource
from clients.spark.java import session

HOST = "127.0.0.1"
QUEUE = "rows"
ROWS = 1_000_000
PARTITIONS = 4
# At least 40 % of the limit.
RATIO_MAX = 2.5
NOOP = "noop"
THROWN = "thrown away"
PARQUET = "parquet"
COPIED = "PostgreSQL COPY"
JDBC = "PostgreSQL JDBC, batches of {:,}"
# Spark's own, and one with which it is faster.
JDBC_BATCHES = 1000, 10_000
# Where Debian's libpostgresql-jdbc-java is.
JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")
OURS = "OnceMQ"


def comparisons(setting: Setting) -> list[Comparison]:
    """What this benchmark compares."""
    has_postgres = not why_no_postgres()
    world = World(setting.scratch / "spark-sink", has_postgres)
    subjects = [
        Writing(world, NOOP, World.write_noop),
        Writing(world, THROWN, World.throw_away),
        Writing(world, PARQUET, World.write_parquet),
        Writing(world, OURS, World.write_ours),
    ]
    bars = [Bar(OURS, THROWN, RATIO_MAX)]
    if has_postgres:
        subjects.append(Writing(world, COPIED, World.copy))
        bars.append(Bar(OURS, COPIED, 1.0))
    if has_postgres and JDBC_DRIVER.exists():
        for size in JDBC_BATCHES:
            name = JDBC.format(size)
            subjects.append(Writing(world, name, partial(World.write_jdbc, size=size)))
            bars.append(Bar(OURS, name, 1.0))
    title = f"{ROWS:,} rows of 100 bytes written by Spark"
    return [Comparison(title, tuple(subjects), THROWN, tuple(bars), calls=1)]


class World:
    """A Spark session with rows in memory, a node and a coordinator, shared by the subjects."""

    def __init__(self, folder: Path, has_postgres: bool) -> None:
        self._folder = folder
        self._users = 0
        self._postgres = PostgresServer() if has_postgres else None
        self._numbers = itertools.count(1)

    def enter(self) -> None:
        """It is there."""
        self._users += 1
        if self._users == 1:
            self._start()

    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        quiet = ["--listen", f"{HOST}:0", "--log-level", "error"]
        data = str(self._folder / "coordinator")
        self._servers = [ServerProcess("coordinator", "--data", data, *quiet)]
        known = ["--coordinator", _address(self._servers[0])]
        data = str(self._folder / "node")
        self._servers.append(ServerProcess("mqserver", "--data", data, *known, *quiet))
        self._url = f"mq://{_address(self._servers[1])}"
        self._mq = oncemq.connect(self._url)
        if self._postgres is not None:
            self._postgres.start()
            self._dsn = self._postgres.database()
        log = self._folder / "spark.log"
        conf = {"spark.driver.extraClassPath": str(JDBC_DRIVER)}
        self._spark: Any = session("benchmark", master="local[2]", conf=conf, log=log)
        for kind in (OnceMQDataSource, ThrowingAway):
            self._spark.dataSource.register(kind)
        rows = self._spark.range(0, ROWS, 1, PARTITIONS)
        payload = "CAST(lpad(CAST(id AS STRING), 100, 'x') AS BINARY) AS value"
        self._frame = rows.selectExpr(payload).cache()
        self._frame.count()

    def leave(self) -> None:
        """It is gone when nobody is left."""
        self._users -= 1
        if self._users == 0:
            self._mq.close()
            self._spark.stop()
            for server in self._servers:
                server.stop()
            if self._postgres is not None:
                self._postgres.stop()

    def enter_thread(self) -> None:
        """Spark finds our data source from threads other than the main one, too."""
        kind = self._spark._get_j_spark_session_class(self._spark._jvm)
        kind.setActiveSession(self._spark._jsparkSession)

    # --- Ways of writing

    def write_noop(self) -> None:
        """Into nothing."""
        self._frame.write.format("noop").mode("overwrite").save()

    def throw_away(self) -> None:
        """Into Python, and no further."""
        self._frame.write.format(ThrowingAway.name()).mode("append").save()

    def write_parquet(self) -> None:
        """Into files."""
        self._frame.write.mode("overwrite").parquet(str(self._folder / "parquet"))

    def write_ours(self) -> None:
        """Into a queue that is empty."""
        queue = f"{QUEUE}-{next(self._numbers)}"
        writer = self._frame.write.format("oncemq").option("url", self._url)
        writer.option("queue", queue).mode("append").save()
        found = len(self._mq.queue(queue))
        assert found == ROWS, f"{found} of {ROWS} rows are there"

    def copy(self) -> None:
        """Into a table that is empty."""
        self._frame.foreachPartition(Copying(self._dsn, self._new_table()))

    def write_jdbc(self, size: int) -> None:
        """Into a table that is empty, so many rows at a time."""
        at = urlsplit(self._dsn)
        url = f"jdbc:postgresql://{at.hostname}:{at.port}{at.path}?reWriteBatchedInserts=true"
        writer = self._frame.write.format("jdbc").option("url", url).option("batchsize", size)
        writer.option("user", at.username).option("password", at.password or "")
        writer.option("dbtable", self._new_table()).mode("append").save()

    def _new_table(self) -> str:
        table = f"{QUEUE}_{next(self._numbers)}"
        with psycopg.connect(self._dsn, autocommit=True) as database:
            database.execute(sql.SQL("CREATE TABLE {} (value bytea)").format(sql.Identifier(table)))
        return table


@dataclass
class Writing:
    """One way of writing all rows."""

    world: World
    name: str
    write: Callable[[World], None]

    def start(self) -> None:
        """See `Subject.start`."""
        self.world.enter()

    def stop(self) -> None:
        """See `Subject.stop`."""
        self.world.leave()

    def one_call(self) -> None:
        """See `Subject.one_call`."""
        self.world.enter_thread()
        self.write(self.world)


def _address(process: ServerProcess) -> str:
    return process.announced.rpartition(" ")[2]


@dataclass(frozen=True)
class Copying:
    """Writes the rows of a task into a table, in a transaction of the task's own."""

    dsn: str
    table: str

    def __call__(self, rows: Iterable[Any]) -> None:
        command = sql.SQL("COPY {} FROM STDIN (FORMAT BINARY)").format(sql.Identifier(self.table))
        with psycopg.connect(self.dsn) as database, database.cursor().copy(command) as copy:
            copy.set_types(["bytea"])
            for row in rows:
                copy.write_row((bytes(row[0]),))


# --- The limit of Spark's Python sinks -----------------------------------------------------------


@dataclass(frozen=True)
class Counted(WriterCommitMessage):
    """How many rows were thrown away."""

    rows: int


class CountingWriter(DataSourceArrowWriter):
    """Counts rows."""

    def write(self, iterator: Iterator[Any]) -> Counted:
        """The rows of a task are counted, and forgotten."""
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All rows have been seen."""
        counted = sum(each.rows for each in messages if isinstance(each, Counted))
        assert counted == ROWS, f"{counted} of {ROWS} rows were seen"


class ThrowingAway(DataSource):
    """A sink that keeps nothing."""

    @classmethod
    def name(cls) -> str:
        """What the subjects call it."""
        return "thrown-away"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Counts rows."""
        return CountingWriter()
