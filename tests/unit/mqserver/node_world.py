"""A node in this process, for tests: memory, no network, a clock that the test moves."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from idl.cos import RecoveryCoordinator, Status
from idl.local import HERE, LocalOrb
from idl.mq import (
    Mq_Admin,
    Mq_Fifo,
    Mq_Node,
    Mq_Standard,
    mqBatch,
    mqBranch,
    mqCompletion,
    mqHeader,
    mqSelection,
    mqTimestamp,
    mqWork,
)
from idl.otids import NULL_OTID, otid_of
from mqserver.node import Node, NodeSettings
from mqserver.permissions import Permissions
from mqserver.storage.contract import Outcome, Storage
from mqserver.storage.memory import MemoryStorage
from tests.unit.clients.embedded_coordinator import EmbeddedCoordinator, calling_as

__all__ = ["ALONE", "ANY", "HEADER", "NOTHING", "Started", "World", "batch", "calling_as", "work"]

ALONE = mqBranch(NULL_OTID, "", None)
ANY = mqSelection(0, 0, ())
HEADER = mqHeader(0, 0, mqTimestamp(0, 0), "")
NOTHING = mqBatch((), (), (), (), (), (), ())
WALL_S = 1_700_000_000.25


def batch(*payloads: bytes, priority: int = 0, group: int = 0) -> mqBatch:
    """Messages with these payloads, each with its digest."""
    digests = tuple(zlib.crc32(payload) for payload in payloads)
    priorities = (priority,) * len(payloads) if priority else ()
    groups = (group,) * len(payloads) if group else ()
    return mqBatch(payloads, digests, priorities, groups, (), (), ())


def work(queue: str, *payloads: bytes, removes: tuple[str, ...] = ()) -> mqWork:
    """What one push-down puts into and removes from a queue."""
    return mqWork(queue, batch(*payloads), removes)


class World:
    """A node, and the storage beneath it, which outlives it."""

    def __init__(
        self,
        settings: NodeSettings | None = None,
        permissions: Permissions | None = None,
        coordinator: EmbeddedCoordinator | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.time = 1000.0
        self.coordinator = coordinator
        self.settings = settings
        self.permissions = permissions
        self.storage = storage or MemoryStorage(lambda: self.time)
        self.shutdowns = threading.Event()
        self._numbers = 0
        self.boot()

    def boot(self) -> None:
        """The node is started on what is in the storage."""
        self.orb = LocalOrb() if self.coordinator is None else self.coordinator.orb
        self.running = Node(
            self.orb,
            self.storage,
            name="test",
            coordinator=str(HERE),
            permissions=self.permissions,
            settings=self.settings,
            clock=lambda: self.time,
            wall_clock=lambda: WALL_S,
            on_shutdown=self.shutdowns.set,
        )
        self.running.start()
        self.node = self.orb.member("node", Mq_Node)
        self.admin = self.orb.member("admin", Mq_Admin)

    def crash(self) -> None:
        """As after a crash: what was at work is rolled back and forgotten, and the node is new."""
        assert isinstance(self.storage, MemoryStorage)
        active = [i.branch for i in self.storage.branches() if i.outcome is Outcome.ACTIVE]
        self.running.close()
        for branch in active:
            del self.storage._ended[branch]
        if self.coordinator is not None:
            self.coordinator.restart()
        self.boot()

    def close(self) -> None:
        """The node is closed."""
        self.running.close()

    def standard(self, queue: str) -> Mq_Standard:
        """The queue by key."""
        return self.orb.member(f"standard/{queue}", Mq_Standard)

    def fifo(self, queue: str) -> Mq_Fifo:
        """The queue in order."""
        return self.orb.member(f"fifo/{queue}", Mq_Fifo)

    def branch(self, name: str = "n1", number: int = 0) -> mqBranch:
        """A branch of a transaction; without a number, of a new one."""
        if not number:
            self._numbers += 1
            number = self._numbers
        return mqBranch(otid_of(number.to_bytes(32)), name, None)

    def put(self, queue: str, *payloads: bytes) -> tuple[str, ...]:
        """The messages are in the queue; their keys."""
        return self.node.putMany(ALONE, 0, queue, batch(*payloads))

    def get(self, queue: str, count: int = 1000) -> tuple[bytes, ...]:
        """The next messages, which are gone."""
        return self.node.getMany(ALONE, 0, queue, ANY, count, 0).messages.payloads

    def seen(self, queue: str) -> tuple[bytes, ...]:
        """What is to be had."""
        return self.node.browse(queue, ANY, "", 1000).messages.payloads

    def prepare(self, branch: mqBranch, *works: mqWork) -> mqBranch:
        """The branch has done this work, and voted; whom it asks answers that nothing is known."""
        recovery = self.orb.publish(Undecided(), RecoveryCoordinator)
        voting = mqBranch(branch.otid, branch.name, recovery)
        status, _, _ = self.node.pushDown(voting, 1, works, mqCompletion.PREPARE)
        assert status is Status.PREPARED
        return voting


class Undecided:
    """A coordinator that has not decided."""

    def replay_completion(self, r: object) -> Status:
        """Nothing is known yet."""
        return Status.PREPARING


class Started:
    """A call that another thread makes."""

    def __init__(self, call: Callable[[], object]) -> None:
        pool = ThreadPoolExecutor(max_workers=1)
        self._ends = pool.submit(call)
        pool.shutdown(wait=False)

    @property
    def is_running(self) -> bool:
        """Whether it waits for something."""
        return not self._ends.done()

    def result(self) -> object:
        """What it returned, or raised; a timeout where it does not end."""
        return self._ends.result(10)
