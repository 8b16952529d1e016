"""What is measured, and which bars there are: two literal tables.

W1  one durable message of 100 bytes for each transaction, one client
W2  1,000 for each transaction
W3  the first with 8 client processes
W4  a message moves from one queue to another
W5  two-phase commit over two independent resources
W6  the first with 1,000,000 bytes
W7  a put and a get with 1,000,000 messages in the queue; only ours, against itself with 1,000
W8  rows of 100 bytes written and read by Spark (spark_rows.py)
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.operations import Operation
from benchmarks.peers.systems import (
    COPIED,
    DEEP,
    IN_SPARK,
    LIMIT,
    OURS,
    SHALLOW,
    SPARK_LIMIT,
    SYSTEMS,
    TWO_NODES,
    System,
)

# So long the clients of one system begin calls in one turn; slow ones make fewer than they could.
TURN_S = 0.5
BATCH = 1000
MANY_CLIENTS = 8
SMALL = 100
LARGE = 1_000_000


@dataclass(frozen=True)
class Workload:
    """One row of work. `calls` are those of one client in one turn, if it has time for them."""

    name: str
    operation: Operation
    calls: int
    payload_bytes: int = SMALL
    clients: int = 1
    is_thorough: bool = False

    @property
    def title(self) -> str:
        """What the tables call it."""
        return f"{self.name} {TITLES[self.name]}: {self.operation.value}"

    @property
    def short(self) -> str:
        """What a narrow picture calls it."""
        details = [f"{self.clients} clients"] if self.clients > 1 else []
        details += [f"{self.payload_bytes:,} B"] if self.name == "W6" else []
        return ", ".join([f"{self.name} {self.operation.value}", *details])

    @property
    def messages_per_call(self) -> int:
        """How many messages one call is."""
        batched = (Operation.PUT_MANY, Operation.GET_MANY)
        return BATCH if self.operation in batched else 1

    @property
    def is_in_spark(self) -> bool:
        """Whether Spark does it, and not clients of ours."""
        return self.operation in IN_SPARK

    @property
    def takes(self) -> bool:
        """Whether it needs messages that are there."""
        return self.operation in (
            Operation.GET,
            Operation.GET_MANY,
            Operation.MOVE,
            Operation.MOVE_AT_ONCE,
        )

    def participants(self) -> tuple[System, ...]:
        """The systems that can do it."""
        return tuple(system for system in SYSTEMS if self.operation in system.can)


TITLES = {
    "W1": "one message, one client",
    "W2": f"{BATCH:,} messages for each transaction",
    "W3": f"{MANY_CLIENTS} client processes",
    "W4": "from one queue to another",
    "W5": "two resources, two-phase commit",
    "W6": "1 MB",
    "W7": "depth",
    "W8": "rows of 100 bytes",
}

# fmt: off
WORKLOADS = (
    Workload("W1", Operation.PUT, 150),
    Workload("W1", Operation.GET, 150),
    Workload("W2", Operation.PUT_MANY, 4),
    Workload("W2", Operation.GET_MANY, 4),
    Workload("W3", Operation.PUT, 40, clients=MANY_CLIENTS),
    Workload("W3", Operation.GET, 40, clients=MANY_CLIENTS),
    Workload("W4", Operation.MOVE, 100),
    Workload("W4", Operation.MOVE_AT_ONCE, 100),
    Workload("W5", Operation.TWO_PHASE, 60),
    Workload("W6", Operation.PUT, 12, payload_bytes=LARGE),
    Workload("W7", Operation.PUT_AND_GET, 100),
    Workload("W6", Operation.PUT, 100, payload_bytes=1_000, is_thorough=True),
    Workload("W6", Operation.PUT, 80, payload_bytes=10_000, is_thorough=True),
    Workload("W6", Operation.PUT, 40, payload_bytes=100_000, is_thorough=True),
    Workload("W6", Operation.GET, 12, payload_bytes=LARGE, is_thorough=True),
    Workload("W8", Operation.SPARK_WRITE, 1, is_thorough=True),
    Workload("W8", Operation.SPARK_READ, 1, is_thorough=True),
)


@dataclass(frozen=True)
class Goal:
    """Ours does at least `times` the work of each of these in the same time.

    `ours` is the one that is meant, where several systems are ours.
    """

    workload: str
    operation: Operation
    peers: tuple[str, ...]
    times: float = 1.0
    payload_bytes: int = SMALL
    ours: str = OURS


TRANSACTIONAL_PEERS = ("PostgreSQL", "MariaDB", "RabbitMQ, quorum", "RabbitMQ, classic",
                       "NATS JetStream", "ActiveMQ", "Redis streams")
BATCHING_PEERS = ("PostgreSQL", "RabbitMQ, classic", "NATS JetStream", "ActiveMQ")
GOALS = (
    Goal("W1", Operation.PUT, TRANSACTIONAL_PEERS),
    Goal("W1", Operation.GET, TRANSACTIONAL_PEERS),
    Goal("W1", Operation.PUT, ("beanstalkd",), 1 / 1.3),
    Goal("W1", Operation.GET, ("beanstalkd",), 1 / 1.3),
    Goal("W2", Operation.PUT_MANY, BATCHING_PEERS),
    Goal("W2", Operation.GET_MANY, BATCHING_PEERS),
    Goal("W3", Operation.GET, TRANSACTIONAL_PEERS),
    Goal("W3", Operation.PUT, ("RabbitMQ, quorum", "RabbitMQ, classic", "ActiveMQ",
                               "NATS JetStream", "MariaDB")),
    Goal("W3", Operation.PUT, ("PostgreSQL",), 0.9),
    Goal("W4", Operation.MOVE, ("PostgreSQL", "ActiveMQ"), 2.0),
    Goal("W4", Operation.MOVE_AT_ONCE, ("PostgreSQL",)),
    Goal("W5", Operation.TWO_PHASE, ("two PostgreSQL, tpc_*",), 2.0, ours=TWO_NODES),
    Goal("W6", Operation.PUT, (LIMIT,), 0.7, LARGE),
    Goal("W6", Operation.PUT, ("PostgreSQL", "RabbitMQ, quorum", "RabbitMQ, classic"), 1.0, LARGE),
    Goal("W7", Operation.PUT_AND_GET, (SHALLOW,), 0.8, ours=DEEP),
    Goal("W8", Operation.SPARK_WRITE, (SPARK_LIMIT,), 0.4),
    Goal("W8", Operation.SPARK_WRITE, (COPIED,)),
    Goal("W8", Operation.SPARK_READ, (SPARK_LIMIT,), 0.4),
)
# fmt: on
