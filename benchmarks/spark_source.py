"""What reading a queue in Spark costs, against a source that makes the same Arrow batches up.

The latter is the limit of Spark's Python data sources: partitions, batches and columns are the
same, and nothing is fetched. Ours reads a queue as a look (`browse`), and as a stream reads one of
its batches (`reserved`): the rows of a reservation, without what Spark does around a batch. Rows
have 100 bytes; nothing is done with them (`noop`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import oncemq
from benchmarks.measure import Bar, Comparison, Setting, Yardstick
from benchmarks.orb import ServerProcess
from clients.spark.datasource import OnceMQDataSource
from clients.spark.java import session
from clients.spark.rows import BINARY_SCHEMA
from clients.spark.source import AT_ONCE
from clients.spark.stream_source import Offset, ReservationReader, stream_reader_for
from idl.mq import mqSelection

HOST = "127.0.0.1"
QUEUE = "rows"
ROWS = 400_000
FILLED_AT_ONCE = 10_000
PARTITIONS = 4
# At least 40 % of the limit.
RATIO_MAX = 2.5
MADE_UP = "Arrow batches made up"
BROWSED = "browse of a queue"
RESERVED = "batch of a stream"
READER = Offset("bench", "reading")


def comparisons(setting: Setting) -> list[Comparison]:
    """What this benchmark compares."""
    world = World(setting.scratch / "spark-source")
    return [
        Comparison(
            title=f"{ROWS:,} rows of 100 bytes read in Spark",
            subjects=(
                Reading(world, MADE_UP, "made-up"),
                Reading(world, BROWSED, "oncemq"),
                Reading(world, RESERVED, "reserved"),
            ),
            baseline=MADE_UP,
            bars=(Bar(BROWSED, MADE_UP, RATIO_MAX), Bar(RESERVED, MADE_UP, RATIO_MAX)),
            yardstick=Yardstick.MEDIAN_CALL,
            calls=1,
        )
    ]


def payload(number: int) -> bytes:
    """The payload of a row."""
    return b"%0100d" % number


class World:
    """A Spark session and a node with a full queue, shared by the subjects."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._users = 0
        self.url = ""
        self.spark: Any = None

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
        self.url = f"mq://{_address(self._servers[1])}"
        with oncemq.connect(self.url) as mq:
            for queue in (QUEUE, f"{QUEUE}-reserved"):
                for start in range(0, ROWS, FILLED_AT_ONCE):
                    numbers = range(start, start + FILLED_AT_ONCE)
                    mq.queue(queue).put_many(list(map(payload, numbers)))
            everything = mqSelection(0, 0, ())
            mq.node().calls.reserve(READER.holder, f"{QUEUE}-reserved", everything, 0, ROWS, 0)
        self.spark = session(
            "benchmark", master="local[2]", log=self._folder / "spark.log", conf={}
        )
        for kind in (OnceMQDataSource, MadeUpSource, ReservedSource):
            self.spark.dataSource.register(kind)

    def leave(self) -> None:
        """It is gone when nobody is left."""
        self._users -= 1
        if self._users == 0:
            self.spark.stop()
            for server in self._servers:
                server.stop()


@dataclass
class Reading:
    """One way of reading all rows."""

    world: World
    name: str
    kind: str

    def start(self) -> None:
        """See `Subject.start`."""
        self.world.enter()

    def stop(self) -> None:
        """See `Subject.stop`."""
        self.world.leave()

    def one_call(self) -> None:
        """See `Subject.one_call`."""
        reader = self.world.spark.read.format(self.kind).option("url", self.world.url)
        rows = reader.option("queue", QUEUE).option("partitions", str(PARTITIONS)).load()
        rows.write.format("noop").mode("overwrite").save()


def _address(process: ServerProcess) -> str:
    return process.announced.rpartition(" ")[2]


# --- Data sources to compare with ----------------------------------------------------------------


class MadeUpSource(DataSource):
    """The same rows as in the queue, made where they are read."""

    @classmethod
    def name(cls) -> str:
        """What the subjects call it."""
        return "made-up"

    def schema(self) -> StructType:
        """As a queue has it."""
        return BINARY_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Makes rows up."""
        return MadeUpReader()


class MadeUpReader(DataSourceReader):
    """Makes batches of the same size, with the same columns and values."""

    def partitions(self) -> list[InputPartition]:
        """As many rows in each."""
        share = ROWS // PARTITIONS
        return [InputPartition((n * share, (n + 1) * share)) for n in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a partition."""
        schema = to_arrow_schema(BINARY_SCHEMA, timezone="UTC")
        first, last = partition.value
        for start in range(first, last, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, last))
            count = len(numbers)
            columns: tuple[list[Any], ...] = (
                list(map(payload, numbers)),
                [f"{number:015d}" for number in numbers],
                [0] * count,
                [0] * count,
                [1_700_000_000_000_000] * count,
                ["local"] * count,
                [[]] * count,
            )
            made = [
                pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(made, schema=schema)


class ReservedSource(OnceMQDataSource):
    """A batch of a stream as often as wanted: the node keeps it for its consumer."""

    @classmethod
    def name(cls) -> str:
        """What the subjects call it."""
        return "reserved"

    def schema(self) -> StructType | str:
        """As a queue has it."""
        return BINARY_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads as the stream does."""
        return ReservedReader(self.options, schema)


class ReservedReader(DataSourceReader):
    """Reads the first reservation of the benchmark's consumer."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        given = {**options, "queue": f"{QUEUE}-reserved", "consumer": READER.consumer}
        stream = stream_reader_for(given, schema)
        assert isinstance(stream, ReservationReader)
        self._stream = stream

    def partitions(self) -> list[InputPartition]:
        """See `ReservationReader.partitions`."""
        end = Offset(READER.consumer, READER.query, 1)
        return self._stream.partitions(asdict(READER), asdict(end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """See `ReservationReader.read`."""
        return self._stream.read(partition)
