"""Signs of life: one thread of this process renews the sessions of all its connections.

It begins with the first session and ends with the last; a forked child has none until it opens a
session of its own. A coordinator that cannot be reached is tried again soon, without a word: what
was lost thereby is told to whoever tries to commit.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable

from clients.leases import Leases
from idl import system
from idl.call import limited

CALL_S = 5.0
RETRY_S = 1.0


class Heartbeat:
    """Renews what it watches. May be used from any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._monitor = threading.Condition()
        self._watched: weakref.WeakSet[Leases] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._start_anew)

    def watch(self, leases: Leases) -> None:
        """The session is renewed from now on, until it is closed or nobody has it any more."""
        with self._monitor:
            self._watched.add(leases)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="oncemq-heartbeat", daemon=True
                )
                self._thread.start()
            self._monitor.notify()

    def unwatch(self, leases: Leases) -> None:
        """The session is renewed no longer."""
        with self._monitor:
            self._watched.discard(leases)
            self._monitor.notify()

    def _start_anew(self) -> None:
        # The thread is the parent's, and the lock may have been held there.
        self._monitor = threading.Condition()
        self._watched = weakref.WeakSet()
        self._thread = None

    def _run(self) -> None:
        retry_at = 0.0
        while True:
            with self._monitor:
                watched = list(self._watched)
                if not watched:
                    self._thread = None
                    return
                due_s = min(leases.seconds_to_renewal() for leases in watched)
                del watched
                pause_s = max(due_s, retry_at - self._clock())
                if pause_s > 0:
                    self._monitor.wait(pause_s)
                due = [each for each in self._watched if each.seconds_to_renewal() <= 0]
            for leases in due:
                with contextlib.suppress(system.SystemException), limited(CALL_S):
                    leases.renew()
            del due
            retry_at = self._clock() + RETRY_S
