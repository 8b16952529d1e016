"""What the servants of a node share: its queues, its work, who may do what, and its clock.

Each servant asks here who calls and whether they may; nothing here belongs to one interface.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from idl import system
from idl.call import Call, Orb, call_here, current_call
from idl.mapping import InvalidValue
from idl.mq import USEC_PER_SEC, check_queue_name
from mqserver.permissions import Permissions, Right
from mqserver.queues import Queues
from mqserver.storage.contract import Storage
from mqserver.transactions.alone import Alone
from mqserver.transactions.joining import Joining
from mqserver.transactions.work import Work


class Notifying(Protocol):
    """As much of the event channels as the queues' interfaces need."""

    def start_notify(self, channel: str, queue: str, group: int) -> None:
        """The channel hears of what is in the queue, then of each message that arrives."""


@dataclass(eq=False)
class Parts:
    """The parts of a node. `lock_wait_s` is how long a get by key waits for others."""

    name: str
    coordinator: str
    orb: Orb
    storage: Storage
    queues: Queues
    work: Work
    alone: Alone
    joining: Joining
    permissions: Permissions
    channels: Notifying
    wall_clock: Callable[[], float]
    lock_wait_s: float
    messages_per_call_max: int
    # Set once, when nothing new is begun any more.
    is_closing: bool = False
    # The thread of each call that is being served: whoever closes the node waits for the others.
    # A thread has more than one where a call makes another, and where calls take turns.
    running: list[int] = field(default_factory=list)

    def entered(self) -> Call:
        """The call that is being served; refused while the node is being shut down."""
        if self.is_closing:
            raise system.TRANSIENT("the node is being shut down; try again when it is back")
        call = call_here()
        return current_call() if call is None else call

    def check(self, call: Call, queue: str, right: Right, operation: str) -> None:
        """Raises NO_PERMISSION unless the caller may do this to the queue; it need not exist."""
        if queue not in self.queues.known:
            try:
                check_queue_name(queue)
            except InvalidValue as wrong:
                raise system.BAD_PARAM(str(wrong)) from wrong
        principal = call.principal.name
        if not self.permissions.allows(principal, queue, right):
            self.permissions.check(principal, queue, right, operation)

    def start_notify(self, queue: str, channel: str, group: int) -> None:
        """The channel hears of the queue, for a caller who may browse it."""
        self.check(self.entered(), queue, Right.BROWSE, "mqStartNotify")
        self.queues.check_usable(queue)
        self.channels.start_notify(channel, queue, group)

    def now_us(self) -> int:
        """The time that messages get."""
        return int(self.wall_clock() * USEC_PER_SEC)
