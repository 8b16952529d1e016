"""All systems that are compared: what they are, what they promise, and what they can do.

The literal table is what the report shows beside the figures, so that nobody compares a message on
disk with one that is not.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.operations import IN_BATCHES, ONE_BY_ONE, Operation

TRANSACTIONAL = IN_BATCHES | {Operation.MOVE}
OURS = "OnceMQ"
TWO_NODES = "OnceMQ, two nodes"
SHALLOW, DEEP = "OnceMQ, 1,000 queued", "OnceMQ, 1,000,000 queued"
LIMIT = "bare limit"
SPARK_LIMIT = "Spark, nothing kept"
COPIED = "PostgreSQL COPY"
FILES = "parquet files"
STREAMED = "OnceMQ, batch of a stream"
IN_SPARK = frozenset({Operation.SPARK_WRITE, Operation.SPARK_READ})


@dataclass(frozen=True)
class System:
    """One way to have a queue. `servers` are the kinds of what it needs, in their order."""

    name: str
    servers: tuple[str, ...]
    module: str
    client: str
    can: frozenset[Operation]
    durability: str
    # Messages that are in its queue all the time.
    queued: int = 0
    # What it answers before that is on disk (witness.py); it is shown, and nobody is judged by it.
    unsynced: frozenset[Operation] = frozenset()

    def connect(self, address: str, number: int = 0, count: int = 1) -> Any:
        """A `Client`, one of several. What it needs is imported here and may be missing.

        A system that deals messages out beforehand is told which of its clients this is.
        """
        client = self.load()(address)
        if hasattr(client, "be_one_of"):
            client.be_one_of(number, count)
        return client

    def load(self) -> Callable[[str], Any]:
        """What makes its clients, imported."""
        module = importlib.import_module(f"benchmarks.peers.{self.module}")
        make: Callable[[str], Any] = getattr(module, self.client)
        return make

    @property
    def is_limit(self) -> bool:
        """Whether it is no queue, but what no queue can go beyond."""
        return self.name in (LIMIT, SPARK_LIMIT)

    @property
    def is_networked(self) -> bool:
        """Whether there is a network between the client and the queue."""
        return not self.is_limit and self.servers not in ((), ("sqlite",))


# fmt: off
SYSTEMS = (
    System(OURS, ("oncemq",), "clients", "OnceMQ",
           TRANSACTIONAL | {Operation.MOVE_AT_ONCE} | IN_SPARK,
           "fdatasync before the answer; transactions over any number of queues and nodes"),
    System(TWO_NODES, ("oncemq", "oncemq"), "clients", "TwoNodes",
           frozenset({Operation.TWO_PHASE}),
           "two-phase commit that one of them decides; finished by itself after any crash"),
    System(SHALLOW, ("oncemq",), "clients", "ShallowOnceMQ", frozenset({Operation.PUT_AND_GET}),
           "as OnceMQ", 1_000),
    System(DEEP, ("oncemq",), "clients", "DeepOnceMQ", frozenset({Operation.PUT_AND_GET}),
           "as OnceMQ", 1_000_000),
    System("PostgreSQL", ("postgres",), "tables", "PostgreSQL",
           TRANSACTIONAL | {Operation.MOVE_AT_ONCE},
           "SKIP LOCKED; one statement, one commit; synchronous_commit = on"),
    System("PostgreSQL, begin … commit", ("postgres",), "tables", "InteractivePostgreSQL",
           ONE_BY_ONE, "the same in interactive transactions"),
    System("two PostgreSQL, tpc_*", ("postgres", "postgres"), "tables", "TwoPostgreSQL",
           frozenset({Operation.TWO_PHASE}),
           "two-phase commit by hand, with nobody to finish it after a crash"),
    System("MariaDB", ("mariadb",), "tables", "MariaDB", TRANSACTIONAL,
           "InnoDB, SKIP LOCKED; innodb_flush_log_at_trx_commit = 1"),
    System("RabbitMQ, quorum", ("rabbitmq",), "brokers", "RabbitMQ", ONE_BY_ONE,
           "quorum queue of one node, publisher confirms; nobody answers that a get is done"),
    System("RabbitMQ, classic", ("rabbitmq",), "brokers", "ClassicRabbitMQ", TRANSACTIONAL,
           "durable classic queue; confirms, batches by tx, which is not atomic in a crash;"
           " that a message was got is not synced, not even by tx",
           unsynced=frozenset({Operation.GET, Operation.GET_MANY})),
    System("NATS JetStream", ("nats",), "brokers", "Nats", IN_BATCHES,
           "sync_interval: always; batches are not one act"),
    System("ActiveMQ", ("activemq",), "brokers", "ActiveMQ", TRANSACTIONAL,
           "KahaDB, journalDiskSyncStrategy = always; STOMP with receipts and transactions"),
    System("Kafka", ("kafka",), "kafka", "Kafka", ONE_BY_ONE,
           "log.flush.interval.messages = 1, acks = all, idempotent; a get commits its offset"),
    System("Kafka, transactions", ("kafka",), "kafka", "TransactionalKafka", TRANSACTIONAL,
           "the same in its transactions, which hold messages and offsets"),
    System("Redis streams", ("redis",), "brokers", "RedisStreams", TRANSACTIONAL,
           "appendfsync always; MULTI is not undone by a crash of the client in between"),
    System("beanstalkd", ("beanstalkd",), "brokers", "Beanstalkd", ONE_BY_ONE,
           "-f 0: synced at every write; no transactions"),
    System("SQLite", ("sqlite",), "tables", "SQLite", TRANSACTIONAL,
           "in the client's process; WAL, synchronous = FULL"),
    System(LIMIT, ("bare",), "clients", "Bare", TRANSACTIONAL,
           "an empty round trip in Python and the same bytes to a file that is there, fdatasync"),
    System(STREAMED, (), "", "", frozenset({Operation.SPARK_READ}),
           "rows that a stream has reserved, which its commit removes"),
    System(COPIED, ("postgres",), "", "", frozenset({Operation.SPARK_WRITE}),
           "each task copies its rows and commits alone: a repeated task leaves them twice"),
    System(FILES, (), "", "", frozenset({Operation.SPARK_WRITE}),
           "Spark's own writer; not synced, and no queue"),
    System(SPARK_LIMIT, (), "", "", IN_SPARK,
           "rows are made, or counted, in Spark's Python workers and not kept"),
)
# fmt: on
BY_NAME = {system.name: system for system in SYSTEMS}
