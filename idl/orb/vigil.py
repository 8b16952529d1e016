"""How a client waits for an answer: awake for a moment, where it was told to, and then asleep.

To be woken up by another program, on a processor that has fallen asleep as well, takes longer than
most of what a node does for a call. So whoever is in a hurry looks again and again, and sleeps only
when that was in vain. It costs processor time, which is to cost nobody else much:

- One thread of a process is awake at a time.
- Whoever looks in vain too often lets it be for a while, and for longer each time. So who is one of
  many clients sleeps, since then answers take longer, and who has a slow disk.

It knows no connection: it is handed the way to look.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

# Of so many waits so many may be in vain: now and then an answer is late, or others had their turn.
BOUT = 16
VAIN_MAX = 8
REST_S_MIN = 0.02
REST_S_MAX = 2.0

# Held by the one thread of this process that is awake, whichever connection it waits for. A forked
# child may inherit it held; then nobody is awake there, which is no harm.
_ONE = threading.Lock()


class Vigil:
    """The waiting for some servers, for `awake_s` at most before one falls asleep."""

    def __init__(self, awake_s: float, clock: Callable[[], float]) -> None:
        self._awake_s = awake_s
        self._clock = clock
        self._waits = self._vain = 0
        self._rest_s = REST_S_MIN
        self._rests_until = clock()

    def wait(self, is_ready: Callable[[int], object]) -> None:
        """Returns when `is_ready(0)` says so, or when it is better to sleep until then."""
        clock = self._clock
        now = clock()
        if now < self._rests_until or not _ONE.acquire(False):
            return
        try:
            until = now + self._awake_s
            while not is_ready(0):
                now = clock()
                if now >= until:
                    self._was_vain(now)
                    return
            self._waits += 1
            if self._waits >= BOUT:
                self._waits = self._vain = 0
                self._rest_s = REST_S_MIN
        finally:
            _ONE.release()

    def _was_vain(self, now: float) -> None:
        self._waits += 1
        self._vain += 1
        if self._vain >= VAIN_MAX:
            self._waits = self._vain = 0
            self._rests_until = now + self._rest_s
            self._rest_s = min(self._rest_s * 2, REST_S_MAX)
