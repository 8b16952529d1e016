"""A node, put together: storage, queues, work, resources, and the objects that it publishes.

It starts with what the storage brings back: branches in doubt can be called before anything else,
and ask for their outcome in the background. It knows no process and no command line: `__main__.py`
runs it, and so does the embedded client, each with an orb of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from idl import system
from idl.call import Orb
from idl.custody import CARRIED, Mq_Carried
from idl.decider import DECIDER, Mq_Decider
from idl.mapping import InvalidValue
from idl.mq import Mq_Admin, Mq_Fifo, Mq_Node, Mq_Standard
from idl.otids import check_branch
from idl.proxies import new_request_id
from mqserver.arrivals import WatchedStorage
from mqserver.errors import MqError
from mqserver.events.settings import EventSettings
from mqserver.interfaces.carried import CarriedServant
from mqserver.interfaces.decider import DeciderServant
from mqserver.interfaces.events import Channels
from mqserver.interfaces.fifo import FifoServant
from mqserver.interfaces.node import NodeServant
from mqserver.interfaces.parts import Parts
from mqserver.interfaces.reservations import Reservations
from mqserver.interfaces.service import AdminServant
from mqserver.interfaces.standard import StandardServant
from mqserver.permissions import Permissions, Right
from mqserver.queues import QueueLimits, Queues
from mqserver.storage.contract import Outcome, Storage
from mqserver.transactions.abandoned import Abandoned
from mqserver.transactions.alone import Alone
from mqserver.transactions.custodian import CarryingTimes, Custodian
from mqserver.transactions.custody import Custody
from mqserver.transactions.decisions import Decisions
from mqserver.transactions.joining import Joining
from mqserver.transactions.orphans import AskingTimes, Orphans
from mqserver.transactions.requests import WorkLimits, named
from mqserver.transactions.resource import Resources
from mqserver.transactions.settling import Settling, SettlingTimes
from mqserver.transactions.work import Work

log = logging.getLogger("oncemq.node")

NODE = "node"
ADMIN = "admin"
STANDARD = "standard"
FIFO = "fifo"

PAUSE_S_MIN = 0.1
PAUSE_CLOSING_S = 0.005
SHUTDOWN_DELAY_S = 0.2
CLOSE_S_MAX = 10.0
# A get stops at about so much, however many messages were asked for.
ANSWER_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class NodeSettings:
    """How a node behaves. `is_shared`: other nodes have the same storage.

    `creates_queues` false: only operators make queues. `enabled` false: it starts switched off.
    """

    creates_queues: bool = True
    enabled: bool = True
    is_shared: bool = False
    queues_max: int = 10_000
    message_bytes_max: int = 16 * 1024 * 1024
    messages_per_call_max: int = 100_000
    # The orb's limit for one message on the wire: no answer may be larger.
    call_bytes_max: int = 64 * 1024 * 1024
    branches_per_principal_max: int = 1000
    branch_messages_max: int = 1_000_000
    branch_bytes_max: int = 256 * 1024 * 1024
    lock_wait_s: float = 5.0
    # After so much silence the coordinator is asked whether a transaction is still under way.
    silent_asked_s: float = 10.0
    asking: AskingTimes = field(default_factory=AskingTimes)
    settling: SettlingTimes = field(default_factory=SettlingTimes)
    carrying: CarryingTimes = field(default_factory=CarryingTimes)
    events: EventSettings = field(default_factory=EventSettings)

    def queue_limits(self) -> QueueLimits:
        """What of it concerns queues."""
        return QueueLimits(
            queues_max=self.queues_max,
            message_bytes_max=self.message_bytes_max,
            is_creating=self.creates_queues,
            is_shared=self.is_shared,
            bytes_soft_max=min(ANSWER_BYTES, self.call_bytes_max // 4),
            bytes_hard_max=self.call_bytes_max // 4 * 3,
        )

    def work_limits(self) -> WorkLimits:
        """What of it concerns branches."""
        return WorkLimits(
            branches_per_principal_max=self.branches_per_principal_max,
            branch_messages_max=self.branch_messages_max,
            branch_bytes_max=self.branch_bytes_max,
        )


def _checked(name: str) -> str:
    try:
        check_branch(name)
    except InvalidValue:
        raise InvalidValue(
            f"node name {name[:60]!r}: use 1 to 64 letters, digits, dots, hyphens, underscores"
        ) from None
    return name


def _log_end(branch: bytes, outcome: Outcome) -> None:
    """At level debug the log says how each branch ended; what it did was said by the queues."""
    if log.isEnabledFor(logging.DEBUG):
        told = outcome.name.lower().replace("_", " ")
        log.debug("a branch is %s", told, extra=named(branch))


class Node:
    """One node. `start` it once; `close` it once. The orb is its maker's, who closes it."""

    def __init__(
        self,
        orb: Orb,
        storage: Storage,
        *,
        name: str,
        coordinator: str = "",
        permissions: Permissions | None = None,
        settings: NodeSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        on_shutdown: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = _checked(name)
        self.settings = settings or NodeSettings()
        self._orb = orb
        self._clock = clock
        self._on_shutdown = on_shutdown
        self.storage = WatchedStorage(storage)
        self.queues = Queues(self.storage, clock, self.settings.queue_limits())
        self.queues.set_enabled(self.settings.enabled)
        self.resources = Resources(orb, self.storage)
        self.orphans = Orphans(orb, self.resources, clock, self.settings.asking)
        self.work = Work(self.storage, clock, self.orphans.heard_of, self.settings.work_limits())
        after_s, call_s = self.settings.silent_asked_s, self.settings.asking.call_s
        self._abandoned = Abandoned(orb, coordinator, self.work, clock, after_s, call_s)
        may = permissions or Permissions.everything()
        self.channels = Channels(
            orb,
            self.storage,
            self.settings.events,
            clock,
            may_browse=lambda principal, queue: may.allows(principal, queue, Right.BROWSE),
            is_operator=may.is_operator,
        )
        self._parts = self._composed(coordinator, may, wall_clock)
        self.decisions = Decisions(storage, clock, new_request_id)
        self._settling = Settling(orb, self.decisions, clock, self.settings.settling)
        self.custody = Custody(storage, clock, new_request_id, self.work.give_up)
        # Of two nodes with one storage each would take over what the other has put.
        relay = "" if self.settings.is_shared else coordinator
        self._custodian = Custodian(orb, relay, self.custody, clock, self.settings.carrying)
        self._is_closing = False
        self._is_closed = False
        self._is_shutting_down = False
        self._wakeup = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"node {name}", daemon=True)

    def _composed(
        self, coordinator: str, may: Permissions, wall_clock: Callable[[], float]
    ) -> Parts:
        return Parts(
            name=self.name,
            coordinator=coordinator,
            orb=self._orb,
            storage=self.storage,
            queues=self.queues,
            work=self.work,
            alone=Alone(self.storage, self.settings.work_limits()),
            joining=Joining(self._orb, self.resources, self.name, new_request_id()),
            permissions=may,
            channels=self.channels,
            wall_clock=wall_clock,
            lock_wait_s=self.settings.lock_wait_s,
            messages_per_call_max=self.settings.messages_per_call_max,
        )

    def start(self) -> None:
        """Everything can be called; what is in doubt asks for its outcome, in the background."""
        self.storage.listen(self.queues.waiting.arrived, self.queues.waiting.queues)
        self.storage.listen(self.channels.arrived, self.channels.board.queues)
        self.storage.listen_to_ends(self.work.has_ended)
        self.storage.listen_to_ends(_log_end)
        self.decisions.load()
        self.custody.load()
        self.resources.publish()
        self._thread.start()
        self._publish()
        doubts = [i for i in self.storage.branches() if i.outcome is Outcome.PREPARED]
        log.info(
            "node %s: %d queues, %d branches in doubt",
            self.name,
            len(self.storage.queues()),
            len(doubts),
        )

    def _publish(self) -> None:
        orb, parts = self._orb, self._parts
        reservations = Reservations(parts, self._clock)
        servant = NodeServant(parts, reservations)
        orb.publish(servant, Mq_Node, NODE)
        orb.publish(DeciderServant(parts, servant, self.decisions), Mq_Decider, DECIDER)
        carried = CarriedServant(parts, servant, self.custody, self._custodian)
        orb.publish(carried, Mq_Carried, CARRIED)
        self._custodian.start(carried.take_over)
        orb.publish(AdminServant(parts, reservations, self.shut_down), Mq_Admin, ADMIN)
        orb.publish_family(STANDARD, lambda queue: StandardServant(parts, queue), Mq_Standard)
        orb.publish_family(FIFO, lambda queue: FifoServant(parts, queue), Mq_Fifo)
        self.channels.publish()

    def drain(self) -> None:
        """Nothing new is begun, and nobody waits: calls that are running come to an end soon."""
        self._is_closing = self._parts.is_closing = True
        self.queues.close()

    def close(self) -> None:
        """Running work is rolled back, what is prepared is kept, and the storage is closed."""
        if self._is_closed:
            return
        self._is_closed = True
        self.drain()
        self._wakeup.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S_MAX)
        self._custodian.close()
        self.channels.close()
        self._await_calls()
        count = self.work.roll_back_running()
        if count:
            log.info("node %s: %d running branches are rolled back", self.name, count)
        self.storage.close()
        log.info("node %s: closed", self.name)

    def _await_calls(self) -> None:
        """Those who are inside finish: the storage is closed under nobody's feet."""
        deadline = self._clock() + CLOSE_S_MAX
        pause = threading.Event()
        while set(self._parts.running) - {threading.get_ident()} and self._clock() < deadline:
            pause.wait(PAUSE_CLOSING_S)

    def shut_down(self) -> None:
        """Whoever runs the node is told soon, after the answer to this call has gone out."""
        self._is_shutting_down = True
        self._wakeup.set()

    # --- In the background

    def _run(self) -> None:
        self._tried(self.orphans.ask_at_once)
        while not self._is_closing:
            self._tried(self._abandoned.ask)
            due = self._tried(self.orphans.ask_those_due)
            pause_s = 1.0 if due is None else due - self._clock()
            if self.decisions:
                self._tried(self._settling.settle)
            pause_s = min(pause_s, self.settings.settling.after_s)
            self._wakeup.wait(max(PAUSE_S_MIN, min(pause_s, 5.0)))
            if self._is_shutting_down and not self._is_closing:
                self._is_shutting_down = False
                self._wakeup.clear()
                self._wakeup.wait(SHUTDOWN_DELAY_S)
                self._on_shutdown()

    def _tried(self, work: Callable[[], float | None]) -> float | None:
        if self._is_closing:
            return None
        try:
            return work()
        except (MqError, system.SystemException) as failed:
            log.error("asking for outcomes failed: %s", failed)
            return None
