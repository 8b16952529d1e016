"""Calls to those at the ends of channels: pushing to consumers, asking suppliers, telling the end.

Each end is served by one thread at a time. Every call has a time limit; one that fails is repeated
after pauses that grow, and after the last attempt the end is dropped, and the log says so. Whoever
is slow, fails, or is new shares its threads with others of that kind only, so that the quick are
not held up. What there is to say is known to the switchboard; this module only says it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar, cast

from idl import system
from idl.call import limited
from idl.cos import Disconnected, PullConsumer, PullSupplier, PushConsumer, PushSupplier
from mqserver.events.ends import End, Kind, event_of
from mqserver.events.feed import Entry
from mqserver.events.settings import EventSettings
from mqserver.events.workers import Workers

T = TypeVar("T")

CALLS_AT_ONCE = 50
# There is no such object, or never will be one for us: trying again is of no use.
FINAL = (system.OBJECT_NOT_EXIST, system.NO_PERMISSION, system.BAD_OPERATION, system.BAD_PARAM)

log = logging.getLogger("oncemq.events")


class Board(Protocol):
    """What is asked of the switchboard."""

    def distribute(self) -> None:
        """See `Switchboard.distribute`."""

    def sweep(self) -> bool:
        """See `Switchboard.sweep`."""

    def look_around(self) -> bool:
        """See `Switchboard.look_around`."""

    def take(self, end: End) -> Entry | None:
        """See `Switchboard.take`."""

    def give_back(self, end: End, entry: Entry) -> None:
        """See `Switchboard.give_back`."""

    def rest(self, end: End) -> bool:
        """See `Switchboard.rest`."""

    def push(self, end: End, event: object) -> None:
        """See `Switchboard.push`."""

    def end(self, end: End) -> bool:
        """See `Switchboard.end`."""


class Delivery:
    """Carries out what the switchboard's hooks ask for."""

    def __init__(
        self,
        board: Board,
        settings: EventSettings,
        clock: Callable[[], float],
        make_workers: Callable[[str, int], Workers],
        is_shared: bool,
    ) -> None:
        self._board = board
        self._settings = settings
        self._clock = clock
        self._is_shared = is_shared
        self._clerk = make_workers("events", 1)
        self._quick = make_workers("push", settings.pushers)
        self._slow = make_workers("push-slow", settings.pushers)

    def arrived(self) -> None:
        """See `Hooks.arrived`."""
        self._clerk.submit(self._board.distribute)

    def opened(self) -> None:
        """See `Hooks.opened`."""
        self._clerk.after(self._settings.sweep_s, self._sweep)
        if self._is_shared:
            self._clerk.after(self._settings.shared_look_s, self._look_around)

    def ready(self, end: End) -> None:
        """See `Hooks.ready`."""
        lane = self._slow if end.is_slow else self._quick
        lane.submit(partial(self._serve, end))

    def ended(self, end: End) -> None:
        """See `Hooks.ended`: the peer is told, once, and whether it listens or not."""
        if end.peer is not None:
            self._slow.submit(partial(self._tell, end.kind, end.peer))

    def close(self) -> None:
        """What was to be told is told, and all threads have ended, if that takes no longer."""
        deadline = self._clock() + self._settings.close_s
        for workers in (self._clerk, self._quick, self._slow):
            workers.close(max(deadline - self._clock(), 0.0))

    def _sweep(self) -> None:
        if self._board.sweep():
            self._clerk.after(self._settings.sweep_s, self._sweep)

    def _look_around(self) -> None:
        if self._board.look_around():
            self._clerk.after(self._settings.shared_look_s, self._look_around)

    def _serve(self, end: End) -> None:
        """Some of what is to be done for an end, by one thread; then it is the others' turn."""
        was_slow = end.is_slow
        one = self._push_one if end.kind is Kind.PUSH_CONSUMER else self._ask_one
        for _ in range(CALLS_AT_ONCE):
            try:
                if not one(end):
                    return
            except Disconnected:
                # It was ended while we were at it.
                return
            if end.is_slow is not was_slow:
                break
        self.ready(end)

    # --- Push consumers

    def _push_one(self, end: End) -> bool:
        """Whether there may be more to push at once."""
        entry = self._board.take(end)
        if entry is None:
            return not self._board.rest(end)
        consumer = cast(PushConsumer, end.peer)
        event = event_of(entry)
        try:
            self._timed(end, lambda: consumer.push(event))
        except Disconnected:
            self._peer_left(end)
            return False
        except system.SystemException as failed:
            if self._is_given_up(end, failed):
                return False
            self._board.give_back(end, entry)
            self._slow.after(end.pause_s, partial(self._serve, end))
            return False
        return True

    # --- Pull suppliers

    def _ask_one(self, end: End) -> bool:
        """Whether the supplier may have more."""
        supplier = cast(PullSupplier, end.peer)
        if end.is_ended:
            return False
        try:
            event, has_event = self._timed(end, supplier.try_pull)
        except Disconnected:
            self._peer_left(end)
            return False
        except system.SystemException as failed:
            if not self._is_given_up(end, failed):
                self._slow.after(end.pause_s, partial(self._serve, end))
            return False
        if has_event:
            end.pause_s = 0.0
            self._hand_on(end, event)
            return True
        end.pause_s = min(
            max(2 * end.pause_s, self._settings.poll_first_s), self._settings.poll_longest_s
        )
        self._slow.after(end.pause_s, partial(self._serve, end))
        return False

    def _hand_on(self, end: End, event: object) -> None:
        try:
            self._board.push(end, event)
        except system.IMP_LIMIT as too_large:
            log.warning("an event for channel %s was left out: %s", end.channel.name, too_large)

    # --- Calls that succeed, and that do not

    def _timed(self, end: End, call: Callable[[], T]) -> T:
        began = self._clock()
        with limited(self._settings.push_timeout_s):
            result = call()
        end.failures = 0
        end.heard_at = self._clock()
        end.is_slow = end.heard_at - began > self._settings.slow_s
        return result

    def _is_given_up(self, end: End, failed: system.SystemException) -> bool:
        end.failures += 1
        end.is_slow = True
        if end.failures < self._settings.push_attempts and not isinstance(failed, FINAL):
            growing = self._settings.retry_first_s * 2 ** (end.failures - 1)
            end.pause_s = min(growing, self._settings.retry_longest_s)
            return False
        # What the other side says of itself is shown as data, never as a line of its own.
        log.warning(
            "the %s of %s at channel %s was dropped after %d failed calls, the last with %.200a",
            end.kind.value,
            end.principal,
            end.channel.name,
            end.failures,
            str(failed),
        )
        self._board.end(end)
        return True

    def _peer_left(self, end: End) -> None:
        log.info("the %s of %s left %s", end.kind.value, end.principal, end.channel.name)
        # It knows: it need not be told.
        end.peer = None
        self._board.end(end)

    def _tell(self, kind: Kind, peer: object) -> None:
        try:
            with limited(self._settings.push_timeout_s):
                match kind:
                    case Kind.PUSH_CONSUMER:
                        cast(PushConsumer, peer).disconnect_push_consumer()
                    case Kind.PULL_CONSUMER:
                        cast(PullConsumer, peer).disconnect_pull_consumer()
                    case Kind.PUSH_SUPPLIER:
                        cast(PushSupplier, peer).disconnect_push_supplier()
                    case Kind.PULL_SUPPLIER:
                        cast(PullSupplier, peer).disconnect_pull_supplier()
        except system.SystemException as unheard:
            log.debug("a %s could not be told of the end: %.200a", kind.value, str(unheard))
