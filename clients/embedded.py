"""Node and coordinator in this process, over calls without a network: for `file:` and `memory:`.

The only client module that imports the servers. The servants are those of the server processes;
only the transport differs. A directory has `coordinator` and `node` in it, as a server's would, and
one process at a time. Connections to the same directory share what runs here; it is closed with the
last of them, or when the process ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from clients.errors import OnceMQError
from clients.memory_disk import MemoryDisk
from coordinator import coordination, interfaces
from coordinator.database_objects import open_databases
from coordinator.decision_log import DecisionLog
from coordinator.service import Service
from coordinator.tasks import ThreadTasks
from idl.access import LOCAL
from idl.call import Call, current_outgoing, serve_within
from idl.local import HERE, HOST_HERE, LocalOrb
from idl.marshal import operation_codecs
from idl.mq import Mq_Node
from idl.proxies import new_request_id
from mqserver.errors import StorageError, StorageLocked
from mqserver.node import Node
from mqserver.permissions import Permissions
from mqserver.storage.contract import Storage
from mqserver.storage.disk import Disk, RealDisk
from mqserver.storage.memory import MemoryStorage
from mqserver.storage.paged import PagedStorage

IDENTITY_BYTES = 16
DRAIN_S = 5.0
MEMORY_SEGMENT_BLOCKS = 64
NODE_NAME = "embedded"

T = TypeVar("T")

# Makes a call as its class would, without a function of Python's in between: for every call.
_new_tuple = tuple.__new__

log = logging.getLogger("oncemq.client")


class EmbeddedOrb:
    """A `LocalOrb`, but for the node's own interface, which the client library alone calls.

    Its values were checked when they were made and do not change, so that they go to the servant as
    they are: there is nobody in between who could have altered them.
    """

    def __init__(self) -> None:
        self._inner = LocalOrb()
        self._node: object = None

    def publish(self, servant: T, interface: type[T], name: str | None = None) -> T:
        """See `Orb.publish`."""
        if interface is Mq_Node:
            self._node = servant
        return self._inner.publish(servant, interface, name)

    def proxy(self, reference: str, interface: type[T], timeout_s: float | None = None) -> T:
        """See `Orb.proxy`."""
        if interface is Mq_Node:
            return cast(T, DirectCalls(self._node))
        return self._inner.proxy(reference, interface, timeout_s)

    def publish_family(
        self, prefix: str, find: Callable[[str], object], interface: type[T]
    ) -> None:
        """See `Orb.publish_family`."""
        self._inner.publish_family(prefix, find, interface)

    def member(self, name: str, interface: type[T]) -> T:
        """See `Orb.member`."""
        return self._inner.member(name, interface)

    def withdraw(self, published: object) -> None:
        """See `Orb.withdraw`."""
        self._inner.withdraw(published)

    def named(self, reference: str, interface: type[T], host: str | None = None) -> T:
        """See `Orb.named`."""
        return self._inner.named(reference, interface, host)

    def reference_of(self, published: object) -> str:
        """See `Orb.reference_of`."""
        return self._inner.reference_of(published)

    def close(self) -> None:
        """See `Orb.close`."""
        self._inner.close()


class DirectCalls:
    """Calls the operations of a servant directly, as this process's own principal."""

    def __init__(self, servant: object) -> None:
        for name in operation_codecs(Mq_Node):
            setattr(self, name, _direct(getattr(servant, name)))


def _direct(operation: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        request_id = current_outgoing().request_id or new_request_id()
        served: Call = _new_tuple(Call, (request_id, LOCAL, HOST_HERE, None, None))
        return serve_within(served, operation, arguments)

    return call


class Runtime:
    """A node and its coordinator, at work until nobody uses them any more."""

    address = HERE

    def __init__(self, folder: str | None, let_go: Callable[[Runtime], None]) -> None:
        self._let_go = let_go
        self.users = 0
        self.process = os.getpid()
        self.orb = EmbeddedOrb()
        self._disks: list[Disk] = []
        try:
            disk = self._disk(folder, "coordinator") if folder else MemoryDisk()
            self._start(self._decisions(disk, folder), disk, folder)
        except StorageError as refused:
            self._close_disks()
            raise OnceMQError(_refusal(refused, folder)) from refused

    def _decisions(self, disk: Disk, folder: str | None) -> DecisionLog:
        if folder is None:
            return DecisionLog(disk, secrets.token_bytes, segment_blocks=MEMORY_SEGMENT_BLOCKS)
        return DecisionLog(disk, secrets.token_bytes)

    def _start(self, decisions: DecisionLog, disk: Disk, folder: str | None) -> None:
        try:
            storage = self._storage(folder)
        except StorageError:
            decisions.close()
            raise
        self._tasks = ThreadTasks(time.monotonic, self._failed)
        self._service = Service(
            self.orb, decisions, self._tasks, secrets.token_bytes, None, self._failed
        )
        self._node = Node(
            self.orb,
            storage,
            name=NODE_NAME,
            coordinator=str(HERE),
            permissions=Permissions.everything(),
        )
        self._databases = open_databases(self._service, disk, secrets.token_bytes)
        self._service.start()
        interfaces.publish(self._service)
        coordination.publish(self._service, self._databases)
        self._node.start()

    def _storage(self, folder: str | None) -> Storage:
        if folder is None:
            return MemoryStorage(time.monotonic)
        disk = self._disk(folder, "node")
        return PagedStorage(disk, lambda: secrets.token_bytes(IDENTITY_BYTES), time.monotonic)

    def _disk(self, folder: str, part: str) -> RealDisk:
        disk = RealDisk(os.path.join(folder, part), create=True)
        self._disks.append(disk)
        return disk

    def release(self) -> None:
        """One user less."""
        self._let_go(self)

    def close(self) -> None:
        """Running work is rolled back, what was decided is on disk, others may have the place."""
        self._service.timeouts.close()
        self._databases.close()
        self._node.drain()
        self._tasks.close(DRAIN_S)
        self._node.close()
        self.orb.close()
        self._service.close()
        self._close_disks()

    def _close_disks(self) -> None:
        for disk in self._disks:
            disk.close()

    def _failed(self, failure: BaseException) -> None:
        # Whoever waits was told; a restart will find out what is on disk.
        log.critical("the embedded coordinator has failed: %s", failure, exc_info=failure)


def _refusal(refused: StorageError, folder: str | None) -> str:
    if isinstance(refused, StorageLocked):
        return (
            f"{refused}. A directory belongs to one process: where a server has it, connect to "
            'that by "mq://HOST:PORT"'
        )
    return f"the data in {folder} cannot be used: {refused}"


class _Runtimes:
    """What runs in this process, by place; a forked child has none of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_place: dict[str, Runtime] = {}
        self._unnamed: list[Runtime] = []
        os.register_at_fork(after_in_child=self._start_anew)
        atexit.register(self.close_all)

    def opened(self, scheme: str, place: str) -> Runtime:
        """The runtime of a place, with one user more."""
        with self._lock:
            key = f"memory:{place}" if scheme == "memory" else str(Path(place).resolve())
            runtime = self._by_place.get(key) if place else None
            if runtime is None:
                runtime = Runtime(None if scheme == "memory" else place, self._let_go)
                if place:
                    self._by_place[key] = runtime
                else:
                    self._unnamed.append(runtime)
            runtime.users += 1
            return runtime

    def close_all(self) -> None:
        """Nothing runs here any more."""
        with self._lock:
            runtimes = [*self._by_place.values(), *self._unnamed]
            self._by_place.clear()
            self._unnamed.clear()
        for runtime in runtimes:
            runtime.close()

    def _let_go(self, runtime: Runtime) -> None:
        with self._lock:
            runtime.users -= 1
            # In a forked child it is the parent's, and must be left alone.
            if runtime.users or runtime.process != os.getpid():
                return
            for key, known in list(self._by_place.items()):
                if known is runtime:
                    del self._by_place[key]
            if runtime in self._unnamed:
                self._unnamed.remove(runtime)
            # With the lock held: who connects anew waits until the place is free.
            runtime.close()

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._by_place = {}
        self._unnamed = []


_RUNTIMES = _Runtimes()


def opened(scheme: str, place: str) -> Runtime:
    """The node and coordinator of this place, started if they do not run here yet."""
    return _RUNTIMES.opened(scheme, place)
