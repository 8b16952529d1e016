"""What a server lets in: the limits, the judgement on a frame's header, and the places for peers.

All but the last is decided before any payload is looked at. `judge` is pure; `Gate` counts the
connections and says whom to turn away, and touches no socket itself; `Refusals` says how long
somebody who is refused again and again waits for the next refusal. It knows neither Pyro5, from
whose protocol the numbers of types and flags are handed in, nor who the peers are.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

C = TypeVar("C")

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """How much a peer may send, hold and dawdle."""

    message_bytes_max: int = 64 * MEBIBYTE
    handshake_bytes_max: int = 4096
    annotation_bytes_max: int = 4096
    connections_max: int = 512
    connections_before_login_max: int = 64
    handshake_s: float = 3.0
    message_s: float = 30.0
    idle_s: float = 600.0
    drain_s: float = 10.0
    # So many refused calls of a principal are answered at once, and so many a second from then on.
    refusals_at_once: int = 1000
    refusals_per_s: float = 100.0


class Header(NamedTuple):
    """What the head of a frame announces."""

    kind: int
    serializer: int
    flags: int
    data_bytes: int
    annotation_bytes: int


class Policy(NamedTuple):
    """Which frames are expected now, and how large they may be."""

    kinds: frozenset[int]
    serializer: int
    flags_allowed: int
    frame_bytes_max: int
    annotation_bytes_max: int
    # What the usual ones begin with; kind, serializer and flags, which must be such as are allowed,
    # are part of it: they need no longer look.
    start: bytes = b""
    # What those carry beside their digest that say for which life they are. Where it is empty, none
    # may say so; where it is not, one that does not is let in as well.
    named: bytes = b""


def judge(header: Header | tuple[int, int, int, int, int], policy: Policy) -> str | None:
    """Why the frame is refused, or None when its payload may be read."""
    kind, serializer, flags, data_bytes, annotation_bytes = header
    kinds, expected, flags_allowed, frame_bytes_max, annotation_bytes_max, _, _ = policy
    if kind not in kinds:
        return f"message type {kind}"
    if serializer != expected:
        return f"serializer {serializer}"
    if flags & ~flags_allowed:
        return f"flags {flags:#x}"
    if annotation_bytes > annotation_bytes_max:
        return f"{annotation_bytes} bytes of annotations"
    if data_bytes + annotation_bytes > frame_bytes_max:
        return f"{data_bytes + annotation_bytes} bytes"
    return None


class Gate(Generic[C]):
    """The places of a server: those of peers that have proven themselves, and the waiting room.

    The waiting room is never closed to a newcomer: whoever has been silent longest makes room. An
    honest client proves itself in milliseconds and is gone from it before its turn comes.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        # Ordered by arrival, so that the first is the one that has waited longest.
        self._waiting: dict[C, None] = {}
        self._inside: set[C] = set()

    def arrive(self, peer: C) -> C | None:
        """Gives the peer a place in the waiting room; returns whom to turn away for it.

        When every place is taken by peers that have proven themselves it is the newcomer.
        """
        with self._lock:
            if len(self._inside) >= self._limits.connections_max:
                return peer
            turned_away = None
            if len(self._waiting) >= self._limits.connections_before_login_max:
                turned_away = next(iter(self._waiting))
                del self._waiting[turned_away]
            self._waiting[peer] = None
            return turned_away

    def enter(self, peer: C) -> bool:
        """Moves a peer that has proven itself inside; False when there is no place for it."""
        with self._lock:
            if peer not in self._waiting or len(self._inside) >= self._limits.connections_max:
                return False
            del self._waiting[peer]
            self._inside.add(peer)
            return True

    def leave(self, peer: C) -> None:
        """The peer is gone, from wherever it was."""
        with self._lock:
            self._waiting.pop(peer, None)
            self._inside.discard(peer)

    def counts(self) -> tuple[int, int]:
        """How many have proven themselves, and how many have not yet."""
        with self._lock:
            return len(self._inside), len(self._waiting)

    def everyone(self) -> list[C]:
        """All peers that have a place now."""
        with self._lock:
            return [*self._waiting, *self._inside]


class Refusals:
    """How often each principal was refused of late, so that nobody finds anything by guessing.

    Only the answers that refuse are held back: whoever shares a principal with one that guesses is
    served as ever.
    """

    def __init__(self, limits: Limits) -> None:
        self._per_s = limits.refusals_per_s
        self._ahead_s = limits.refusals_at_once / limits.refusals_per_s
        self._lock = threading.Lock()
        # When each would have been refused last, if all of its refusals had been held back.
        self._last: dict[str, float] = {}

    def wait_s(self, principal: str, now: float) -> float:
        """Counts a refusal of the principal; how long it is to be held back."""
        with self._lock:
            last = max(self._last.pop(principal, now), now) + 1 / self._per_s
            # Put behind the others: those at the front were refused longest ago.
            self._last[principal] = last
            self._forget(now)
        return max(0.0, last - now - self._ahead_s)

    def __len__(self) -> int:
        """How many principals are kept in mind."""
        return len(self._last)

    def _forget(self, now: float) -> None:
        """Whoever has nothing to wait for any more is not kept; two go for each that comes."""
        for principal in [*itertools.islice(self._last, 2)]:
            if self._last[principal] <= now:
                del self._last[principal]
