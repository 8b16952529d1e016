"""Frozen lists of messages that named consumers hold: whose they are, and what may be read of them.

A consumer belongs to whoever first used it since the node was started, and to nobody else until an
operator drops it. Who it is must also be allowed to read from its queue. What a consumer holds is
kept by the storage.

A name of the form NAME@RUN says which run of a program it is that calls itself NAME. One run has
the name at a time: from its first reservation on until an operator drops it, across restarts of the
node; and before that while it keeps asking. So two runs that were given the same name by mistake
do not share the work without knowing it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from idl import system
from idl.call import Call
from mqserver.errors import MqError, ReservationNotFound
from mqserver.interfaces.parts import Parts
from mqserver.permissions import Right
from mqserver.storage.contract import Message, Selection

audit = logging.getLogger("oncemq.audit")

MESSAGES_RESERVED_MAX = 1_000_000
# For so long a run that holds nothing keeps its name without asking.
QUIET_S_MAX = 60.0
RUN = "@"
NOT_YOURS = "there is no such consumer of this caller's"
IN_USE = (
    "is in use by another query, which may have messages of its own: stop that one and go on from "
    "its checkpoint, choose another name, or have an operator drop it"
)


class Reservations:
    """The consumers of a node. May be used from any thread."""

    def __init__(self, parts: Parts, clock: Callable[[], float]) -> None:
        self._parts = parts
        self._clock = clock
        self._started_at = clock()
        self._lock = threading.Lock()
        self._owners: dict[str, str] = {}
        self._queues: dict[str, str] = {}
        self._since: dict[str, float] = {}
        # By name: the consumer whose run has it, and when it last asked.
        self._runs: dict[str, tuple[str, float]] = {}

    def reserve(
        self,
        call: Call,
        consumer: str,
        queue: str,
        selection: Selection,
        after: int,
        count: int,
        wait_s: float,
    ) -> int:
        """The number of the reservation behind `after`, 0 when nothing came for so long.

        With a count of 0 it is one that is there already, or none.
        """
        parts = self._parts
        parts.queues.check_usable(queue)
        self._claim(call, consumer)
        self._claim_name(consumer)
        most = min(count, MESSAGES_RESERVED_MAX)

        def look() -> int:
            if parts.queues.is_missing(queue):
                return 0
            return parts.storage.reserve(consumer, queue, selection, after, most)

        try:
            number = parts.queues.wait_for(queue, look, wait_s)
        except MqError:
            self._runs.pop(consumer.partition(RUN)[0], None)
            raise
        if number:
            self._queues[consumer] = queue
            self._since.setdefault(consumer, self._clock())
        return number

    def size(self, call: Call, consumer: str, number: int) -> int:
        """How many messages the reservation holds."""
        self._queue_of(call, consumer, number, "getReservationSize")
        return self._parts.storage.reserved(consumer, number)

    def fetch(self, call: Call, consumer: str, number: int, start: int, stop: int) -> list[Message]:
        """Messages of the reservation, from one position to before another."""
        queue = self._queue_of(call, consumer, number, "fetchReserved")
        return self._parts.queues.fetch(consumer, queue, number, start, stop)

    def finish(self, call: Call, consumer: str, upto: int) -> None:
        """Everything up to this number is processed, and gone."""
        if upto == 0:
            return
        self._queue_of(call, consumer, upto, "finishReservations")
        self._parts.storage.finish(consumer, upto)
        self._since.pop(consumer, None)

    def finished(self, call: Call, consumer: str) -> int:
        """The last number that is processed, 0 where there is none."""
        if not self._find(consumer):
            return 0
        self._queue_of(call, consumer, 0, "getFinished")
        known = [each for each in self._parts.storage.consumers() if each.consumer == consumer]
        return known[0].finished if known else 0

    def dropped(self, consumer: str) -> None:
        """The consumer is unknown; whoever uses the name next has it."""
        with self._lock:
            for table in (self._owners, self._queues):
                table.pop(consumer, None)
            self._since.pop(consumer, None)
            self._runs.pop(consumer.partition(RUN)[0], None)

    def age_of(self, consumer: str) -> float:
        """For how many seconds it has been holding something; since the start, at most."""
        return self._clock() - self._since.get(consumer, self._started_at)

    def _claim(self, call: Call, consumer: str) -> None:
        with self._lock:
            owner = self._owners.setdefault(consumer, call.principal.name)
        if owner != call.principal.name:
            audit.warning("%s names a consumer of another: %r", call.principal.name, consumer)
            raise system.NO_PERMISSION(NOT_YOURS)

    def _claim_name(self, consumer: str) -> None:
        """Raises BAD_PARAM where the name is another run's."""
        name, is_run, _ = consumer.partition(RUN)
        if not is_run:
            return
        with self._lock:
            now = self._clock()
            holder, asked_at = self._runs.get(name, ("", now))
            if holder != consumer:
                is_asking = bool(holder) and now - asked_at < QUIET_S_MAX
                known = [each.consumer for each in self._parts.storage.consumers()]
                others = [each for each in known if each.startswith(f"{name}{RUN}")]
                if is_asking or any(each != consumer for each in others):
                    raise system.BAD_PARAM(f"consumer {name!r} {IN_USE}")
            self._runs[name] = consumer, now

    def _find(self, consumer: str) -> str:
        queue = self._queues.get(consumer)
        if queue is None:
            known = [each for each in self._parts.storage.consumers() if each.consumer == consumer]
            if not known:
                return ""
            queue = self._queues[consumer] = known[0].queue
        return queue

    def _queue_of(self, call: Call, consumer: str, number: int, operation: str) -> str:
        queue = self._find(consumer)
        if not queue:
            raise ReservationNotFound(consumer, number)
        self._parts.check(call, queue, Right.READ, operation)
        self._claim(call, consumer)
        return queue
