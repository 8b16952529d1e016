"""Work that goes on beside the calls of a node: a few threads, however many consumers there are.

`Workers` says what is asked for; `ThreadWorkers` gives it threads and real time, and tests give it
a time of their own. It knows nothing of events. Threads are started when there is work for them.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("oncemq.events")

Work = Callable[[], object]


class Workers(Protocol):
    """Carries out work beside the caller's, now or later. No work is carried out after `close`."""

    def submit(self, work: Work) -> None:
        """The work is done soon; the caller does not wait."""

    def after(self, delay_s: float, work: Work) -> None:
        """The work is done when the time has passed."""

    def close(self, timeout_s: float) -> None:
        """What was submitted is done, if that takes no longer; what was for later is dropped."""


class ThreadWorkers:
    """`Workers` on at most so many threads. See `Workers`."""

    def __init__(self, name: str, threads_max: int, clock: Callable[[], float]) -> None:
        self._name = name
        self._threads_max = threads_max
        self._clock = clock
        self._monitor = threading.Condition()
        self._due: deque[Work] = deque()
        self._later: list[tuple[float, int, Work]] = []
        self._order = 0
        self._idle = 0
        self._is_closed = False
        self._threads: list[threading.Thread] = []

    def submit(self, work: Work) -> None:
        """See `Workers.submit`."""
        with self._monitor:
            if not self._is_closed:
                self._due.append(work)
                self._wake()

    def after(self, delay_s: float, work: Work) -> None:
        """See `Workers.after`."""
        with self._monitor:
            if not self._is_closed:
                self._order += 1
                heapq.heappush(self._later, (self._clock() + delay_s, self._order, work))
                self._wake()

    def close(self, timeout_s: float) -> None:
        """See `Workers.close`."""
        deadline = self._clock() + timeout_s
        with self._monitor:
            self._is_closed = True
            self._later.clear()
            self._monitor.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - self._clock(), 0.0))
        with self._monitor:
            # Whoever is still at it ends with what it does now.
            self._due.clear()

    def _wake(self) -> None:
        # Who is idle and woken already is still counted so, and so is the work meant for it.
        if len(self._due) + bool(self._later) <= self._idle:
            self._monitor.notify()
        elif len(self._threads) < self._threads_max:
            name = f"oncemq-{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        elif self._idle:
            self._monitor.notify()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            # Nobody waits for this work: a fault in it is told, and the next is done.
            except Exception:
                log.exception("work of %s failed", self._name)

    def _next(self) -> Work | None:
        with self._monitor:
            while True:
                now = self._clock()
                while self._later and self._later[0][0] <= now:
                    self._due.append(heapq.heappop(self._later)[2])
                if self._due:
                    return self._due.popleft()
                if self._is_closed:
                    return None
                self._idle += 1
                self._monitor.wait(self._later[0][0] - now if self._later else None)
                self._idle -= 1
