"""What is measured, and which bars there are: two literal tables.

W1  one durable message of 100 bytes for each transaction, one client
W2  1,000 for each transaction
W3  the first with 8 client processes
W4  a message moves from one queue to another
W5  two-phase commit over two independent resources
W6  the first with 1,000,000 bytes
W7  the first with 1,000,000 messages in the queue; only ours, against itself with 1,000
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.clients import Operation
from benchmarks.peers.systems import LIMIT, OURS, SYSTEMS, System

BATCH = 1000
MANY_CLIENTS = 8
SMALL = 100
LARGE = 1_000_000
SHALLOW, DEEP = 1_000, 1_000_000


@dataclass(frozen=True)
class Workload:
    """One row of work. `calls` are those of one client in one round."""

    name: str
    operation: Operation
    calls: int
    payload_bytes: int = SMALL
    clients: int = 1
    depth: int = 0
    systems: tuple[str, ...] = ()
    is_thorough: bool = False

    @property
    def title(self) -> str:
        """What the tables call it."""
        return f"{self.name} {TITLES[self.name]}: {self.operation.value}"

    @property
    def messages_per_call(self) -> int:
        """How many messages one call is."""
        batched = (Operation.PUT_MANY, Operation.GET_MANY)
        return BATCH if self.operation in batched else 1

    @property
    def takes(self) -> bool:
        """Whether it needs messages that are there."""
        return self.operation not in (Operation.PUT, Operation.PUT_MANY, Operation.TWO_PHASE)

    def participants(self) -> tuple[System, ...]:
        """The systems that can do it."""
        able = [system for system in SYSTEMS if self.operation in system.can]
        return tuple(s for s in able if not self.systems or s.name in self.systems)


TITLES = {
    "W1": "one message, one client",
    "W2": f"{BATCH:,} messages for each transaction",
    "W3": f"{MANY_CLIENTS} client processes",
    "W4": "from one queue to another",
    "W5": "two resources, two-phase commit",
    "W6": "1 MB",
    "W7": "depth",
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
    Workload("W7", Operation.PUT, 150, depth=SHALLOW, systems=(OURS,)),
    Workload("W7", Operation.PUT, 150, depth=DEEP, systems=(OURS,)),
    Workload("W6", Operation.PUT, 100, payload_bytes=1_000, is_thorough=True),
    Workload("W6", Operation.PUT, 80, payload_bytes=10_000, is_thorough=True),
    Workload("W6", Operation.PUT, 40, payload_bytes=100_000, is_thorough=True),
    Workload("W6", Operation.GET, 12, payload_bytes=LARGE, is_thorough=True),
)


@dataclass(frozen=True)
class Goal:
    """Ours does at least `times` the work of each of these in the same time."""

    workload: str
    operation: Operation
    peers: tuple[str, ...]
    times: float = 1.0
    payload_bytes: int = SMALL


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
    Goal("W5", Operation.TWO_PHASE, ("two PostgreSQL, tpc_*",), 2.0),
    Goal("W6", Operation.PUT, (LIMIT,), 0.7, LARGE),
    Goal("W6", Operation.PUT, ("PostgreSQL", "RabbitMQ, quorum", "RabbitMQ, classic"), 1.0, LARGE),
)
# fmt: on
DEPTH_RATIO_MIN = 0.8
