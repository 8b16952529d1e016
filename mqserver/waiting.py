"""Those who wait for something to arrive in a queue: each stands in line, and is told to look.

Of those who take any message, as many are told as messages arrived, first come first; those who
wait for certain ones are all told. Whoever was told and went away with nothing tells the next. A
thread does not miss an arrival: it stands in line before it looks the last time. It also looks now
and then without being told, so that nothing depends on being told. It knows no storage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from typing import TypeVar

from idl.turns import step_aside
from mqserver.arrivals import Arrival
from mqserver.storage.contract import EVERYTHING, Selection

T = TypeVar("T")


class _Waiter:
    """One thread that waits."""

    __slots__ = ("event", "group", "is_picky")

    def __init__(self, selection: Selection) -> None:
        self.event = threading.Event()
        self.group = selection.group
        self.is_picky = selection != EVERYTHING


class Waiting:
    """All who wait, by queue. May be used from any thread."""

    def __init__(self, clock: Callable[[], float], recheck_s: float) -> None:
        self._clock = clock
        self._recheck_s = recheck_s
        self._lock = threading.Lock()
        self._lines: dict[str, dict[_Waiter, None]] = {}
        # The queues for which somebody waits.
        self.queues: Container[str] = self._lines
        self._is_closed = False

    def wait(
        self,
        queue: str,
        selection: Selection,
        look: Callable[[], T],
        check: Callable[[], None],
        wait_s: float,
    ) -> T:
        """What `look` found: the first that is something, or nothing when it was nothing so long.

        `check` may raise, and end the waiting so.
        """
        found = look()
        if found or wait_s <= 0:
            return found
        step_aside()
        waiter = _Waiter(selection)
        deadline = self._clock() + wait_s
        try:
            while True:
                self._line_up(queue, waiter)
                found = look()
                left_s = deadline - self._clock()
                if found or left_s <= 0 or self._is_closed:
                    return found
                waiter.event.wait(min(left_s, self._recheck_s))
                check()
        finally:
            self._leave(queue, waiter, is_served=bool(found))

    def arrived(self, arrival: Arrival) -> None:
        """Those who wait for such messages look."""
        if arrival.queue in self._lines:
            self.wake(arrival.queue, arrival.groups)

    def wake(self, queue: str, groups: tuple[int, ...] = ()) -> None:
        """Those who wait look again: as many as there are groups, one for each message, or all."""
        with self._lock:
            line = self._lines.get(queue)
            if not line:
                return
            left = len(groups) or len(line)
            for waiter in list(line):
                if groups and waiter.group and waiter.group not in groups:
                    continue
                if waiter.is_picky:
                    # It may leave the message to the next, who is told as well.
                    waiter.event.set()
                elif left:
                    left -= 1
                    del line[waiter]
                    waiter.event.set()

    def wake_everybody(self) -> None:
        """Everybody who waits looks again."""
        for queue in list(self._lines):
            self.wake(queue)

    def close(self) -> None:
        """Nobody waits any longer."""
        self._is_closed = True
        self.wake_everybody()

    def _line_up(self, queue: str, waiter: _Waiter) -> None:
        with self._lock:
            waiter.event.clear()
            self._lines.setdefault(queue, {})[waiter] = None

    def _leave(self, queue: str, waiter: _Waiter, is_served: bool) -> None:
        with self._lock:
            line = self._lines.get(queue, {})
            line.pop(waiter, None)
            if not line:
                self._lines.pop(queue, None)
        if waiter.event.is_set() and not is_served:
            self.wake(queue)
