"""Checksums of large payloads, taken by another thread while this one is busy with the disk.

Pure but for that thread. What sums up lets go of the interpreter meanwhile (`idl.checksums`), so
that a second processor does it beside the first. Whoever wants a sum that nobody has begun takes it
itself: the helper makes things faster, and nothing depends on it.
"""

from __future__ import annotations

import queue
import threading
from collections import deque

from idl.checksums import crc32

# Below this, to wake another thread takes longer than to sum up.
APART_BYTES_MIN = 128 * 1024
# How many payloads are kept in memory, at most, because they are not summed up yet.
WAITING_MAX = 4
IDLE_S_MAX = 1.0


class Sum:
    """The CRC-32 of a payload, taken once, by whoever comes first."""

    __slots__ = ("_lock", "_payload", "_value")

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._value: int | None = None
        self._lock = threading.Lock()

    def value(self) -> int:
        """The checksum. The payload is not needed any more."""
        with self._lock:
            if self._value is None:
                self._value = crc32(self._payload)
                self._payload = b""
            return self._value


class Summing:
    """Sums under way. Its thread comes with the first large payload, and goes when none come."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Sum] = queue.SimpleQueue()
        self._waiting: deque[Sum] = deque()
        self._has_helper = False

    def begin(self, payload: bytes) -> Sum:
        """The sum of this payload will be known soon. Not for several threads at once."""
        begun = Sum(payload)
        if len(payload) < APART_BYTES_MIN:
            begun.value()
            return begun
        if not self._has_helper:
            self._has_helper = True
            threading.Thread(target=self._help, name="sums", daemon=True).start()
        self._orders.put(begun)
        self._waiting.append(begun)
        if len(self._waiting) > WAITING_MAX:
            self._waiting.popleft().value()
        return begun

    def _help(self) -> None:
        try:
            while True:
                self._orders.get(timeout=IDLE_S_MAX).value()
        except queue.Empty:
            # An order that comes right now is left to whoever wants the sum.
            self._has_helper = False
