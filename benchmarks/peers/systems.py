"""All systems that are compared: what they are, what they promise, and what they can do.

The literal table is what the report shows beside the figures, so that nobody compares a message on
disk with one that is not.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.clients import IN_BATCHES, ONE_BY_ONE, Operation

TRANSACTIONAL = IN_BATCHES | {Operation.MOVE}
OURS = "OnceMQ"
LIMIT = "bare limit"


@dataclass(frozen=True)
class System:
    """One way to have a queue. `servers` are the kinds of what it needs, in their order."""

    name: str
    servers: tuple[str, ...]
    module: str
    client: str
    can: frozenset[Operation]
    durability: str

    def connect(self, address: str) -> Any:
        """A `Client`. Its package is imported here, so that one that is missing harms no other."""
        module = importlib.import_module(f"benchmarks.peers.{self.module}")
        make: Callable[[str], Any] = getattr(module, self.client)
        return make(address)

    @property
    def is_in_process(self) -> bool:
        """Whether there is no network between the client and the queue."""
        return self.servers == ("sqlite",)


# fmt: off
SYSTEMS = (
    System(OURS, ("oncemq",), "clients", "OnceMQ", TRANSACTIONAL | {Operation.MOVE_AT_ONCE},
           "fdatasync before the answer; transactions over any number of queues and nodes"),
    System("OnceMQ, two nodes", ("oncemq", "oncemq"), "clients", "TwoNodes",
           frozenset({Operation.TWO_PHASE}),
           "two-phase commit by a coordinator that finishes it after any crash"),
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
           "quorum queue of one node, publisher confirms"),
    System("RabbitMQ, classic", ("rabbitmq",), "brokers", "ClassicRabbitMQ", TRANSACTIONAL,
           "durable classic queue; confirms, batches by tx, which is not atomic in a crash"),
    System("NATS JetStream", ("nats",), "brokers", "Nats", IN_BATCHES,
           "sync_interval: always; batches are not one act"),
    System("ActiveMQ", ("activemq",), "brokers", "ActiveMQ", TRANSACTIONAL,
           "KahaDB, journalDiskSyncStrategy = always; STOMP with receipts and transactions"),
    System("Redis streams", ("redis",), "brokers", "RedisStreams", TRANSACTIONAL,
           "appendfsync always; MULTI is not undone by a crash of the client in between"),
    System("beanstalkd", ("beanstalkd",), "brokers", "Beanstalkd", ONE_BY_ONE,
           "-f 0: synced at every write; no transactions"),
    System("SQLite", ("sqlite",), "tables", "SQLite", TRANSACTIONAL,
           "in the client's process; WAL, synchronous = FULL"),
    System(LIMIT, ("bare",), "clients", "Bare", TRANSACTIONAL,
           "an empty round trip in Python and the same bytes to a file that is there, fdatasync"),
)
# fmt: on
BY_NAME = {system.name: system for system in SYSTEMS}
