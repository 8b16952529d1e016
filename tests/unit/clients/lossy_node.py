"""A node and a coordinator in this process, reached over calls that can be lost, for tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from clients.deciding import Deciding
from clients.nodes import NETWORK, Node
from clients.queue import Queue
from clients.transaction import Transaction
from idl import system
from idl.call import Reference
from idl.local import HERE
from idl.marshal import OperationCodec
from idl.proxies import Proxy, export_proxy, make_proxy, reference_of
from mqserver import node as server
from mqserver.storage.memory import MemoryStorage
from tests.unit.clients.embedded_coordinator import EmbeddedCoordinator

T = TypeVar("T")

TIMEOUT_S = 30.0
BEFORE = "the request is lost"
AFTER = "the answer is lost"
LATE = "no answer comes in time"


class LossyOrb:
    """Calls go to another orb; what happens to those of an operation is said beforehand."""

    def __init__(self, inner: Any, clock: ManualClock) -> None:
        self.inner = inner
        self._clock = clock
        self.plans: dict[str, list[str | Exception]] = {}
        self.calls: list[str] = []

    def proxy(self, reference: str, interface: type[T], timeout_s: float | None = None) -> T:
        return make_proxy(Reference.parse(reference), interface, self, timeout_s)

    def reference_of(self, published: Any) -> str:
        return str(reference_of(published))

    def invoke(self, proxy: Proxy, codec: OperationCodec, arguments: tuple[Any, ...]) -> Any:
        name = codec.operation.name
        self.calls.append(name)
        plan = self.plans.get(name, [])
        fate = plan.pop(0) if plan else ""
        if isinstance(fate, Exception):
            raise fate
        if fate == BEFORE:
            raise system.TRANSIENT("cut", system.Completion.NO)
        answer = self.inner.invoke(proxy, codec, arguments)
        if fate == LATE:
            self._clock.time += TIMEOUT_S
            raise system.TIMEOUT("late", system.Completion.MAYBE)
        if fate == AFTER:
            raise system.COMM_FAILURE("cut", system.Completion.MAYBE)
        return answer

    def start(
        self,
        proxy: Proxy,
        codec: OperationCodec,
        arguments: tuple[Any, ...],
        timeout_s: float | None = None,
    ) -> None:
        return None

    def get_ready(
        self, proxy: Proxy, codec: OperationCodec, arguments: tuple[Any, ...]
    ) -> Callable[[], Any]:
        return partial(self.invoke, proxy, codec, arguments)

    def export(self, target: object, interface: type) -> str:
        return export_proxy(target, interface)

    def resolve(self, name: str, interface: type) -> object:
        return make_proxy(Reference.parse(name), interface, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class ManualClock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class LossyHome:
    """What a connection is to its queues and transactions, over calls that can be lost."""

    sender = ""
    timeout_s = TIMEOUT_S
    realm = NETWORK

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.coordinator = EmbeddedCoordinator()
        self.orb = LossyOrb(self.coordinator.orb, self.clock)
        self.storage = MemoryStorage(self.clock)
        self.server = self._serve()
        self.doubts: list[bytes] = []
        self._node = Node(self.orb, HERE, NETWORK, TIMEOUT_S, self.clock, self.clock.sleep)
        self._deciding = Deciding(self.orb, HERE, self.clock, self.clock.sleep)
        self._node.ask(self._node.calls.getNode)
        self.orb.calls.clear()

    def _serve(self) -> server.Node:
        made = server.Node(
            self.coordinator.orb, self.storage, name="one", clock=self.clock, wall_clock=self.clock
        )
        made.start()
        return made

    def restart(self) -> None:
        """The node is gone and back, with what was committed or prepared."""
        for info in self.storage.branches():
            if info.outcome.name == "ACTIVE":
                self.storage.rollback(info.branch)
        for name in ("node", "settler", "admin", "decider", "carried"):
            self.coordinator.orb._objects._objects.pop(name, None)
        self.coordinator.orb._objects._families.clear()
        self.server = self._serve()

    def plan(self, operation: str, *fates: str | Exception) -> None:
        """The next calls of the operation end so."""
        self.orb.plans[operation] = list(fates)

    def queue(self, name: str) -> Queue:
        return Queue(self, name)

    def node(self) -> Node:
        return self._node

    def deciding(self) -> Deciding:
        return self._deciding

    def begin(self, timeout: float = 30.0) -> Transaction:
        return Transaction(self, timeout, self.clock)

    def doubt(self, gtrid: bytes, mark: str = "", node: Node | None = None) -> None:
        self.doubts.append(gtrid)

    def close(self) -> None:
        self.server.close()
