"""Where a client can connect: embedded in memory, embedded on disk, and to servers on loopback."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clients.memory_disk import MemoryDisk
from coordinator import coordination, interfaces
from coordinator.database_objects import open_databases
from coordinator.decision_log import DecisionLog
from coordinator.service import Service
from coordinator.tasks import ThreadTasks
from idl.call import Address
from idl.orb import NetworkOrb
from mqserver.node import Node, NodeSettings
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.orphans import AskingTimes
from mqserver.transactions.settling import SettlingTimes

LOOPBACK = Address("127.0.0.1", 0)
SEGMENT_BLOCKS = 64
DRAIN_S = 5.0
SETTINGS = NodeSettings(
    asking=AskingTimes(first_s=0.2), settling=SettlingTimes(after_s=0.2, again_s=0.2)
)


@dataclass(frozen=True)
class Place:
    """What to connect to, and a second node whose transactions can be the same."""

    url: str
    far_url: str | None = None


@contextlib.contextmanager
def place(kind: str, folder: Path) -> Iterator[Place]:
    """A place of this kind."""
    if kind == "memory":
        yield Place(f"memory:{secrets.token_hex(4)}")
    elif kind == "file":
        yield Place(f"file:{folder}")
    else:
        with (
            running_coordinator() as coordinator,
            running_node("near", coordinator) as near,
            running_node("far", coordinator) as far,
        ):
            yield Place(f"mq://{near}", f"mq://{far}")


@contextlib.contextmanager
def running_coordinator() -> Iterator[Address]:
    """A coordinator on loopback, in this process."""
    orb = NetworkOrb(LOOPBACK)
    tasks = ThreadTasks(time.monotonic, lambda failed: None)
    disk = MemoryDisk()
    decisions = DecisionLog(disk, secrets.token_bytes, segment_blocks=SEGMENT_BLOCKS)
    service = Service(orb, decisions, tasks, secrets.token_bytes)
    databases = open_databases(service, disk, secrets.token_bytes)
    service.start()
    interfaces.publish(service)
    coordination.publish(service, databases)
    assert orb.address is not None
    try:
        yield orb.address
    finally:
        service.timeouts.close()
        databases.close()
        orb.close()
        tasks.close(DRAIN_S)
        service.close()


@contextlib.contextmanager
def running_node(
    name: str,
    coordinator: Address | None,
    settings: NodeSettings | None = None,
    listen: Address = LOOPBACK,
    storage: MemoryStorage | None = None,
) -> Iterator[Address]:
    """A node on loopback, in this process."""
    orb = NetworkOrb(listen, takes_turns=True)
    node = Node(
        orb,
        storage or MemoryStorage(time.monotonic),
        name=name,
        coordinator="" if coordinator is None else str(coordinator),
        settings=settings or SETTINGS,
    )
    node.start()
    assert orb.address is not None
    try:
        yield orb.address
    finally:
        node.drain()
        orb.close()
        node.close()
