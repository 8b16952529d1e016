"""What a server can say of itself in numbers: counts, states, and how long things take.

A measure is a name with its values at one moment; whoever asks gets them, and what becomes of them
is not known here. Names follow the customs of Prometheus: the unit last, counters end in `_total`.
"""

from __future__ import annotations

import enum
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

# From a tenth of a millisecond, which a fast disk needs for a sync, to what nobody wants to see.
BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Kind(enum.Enum):
    """How values behave: they only ever grow, or they come and go."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True)
class Spread:
    """Durations by size: how many were at most as long as each bound, all of them, their sum."""

    at_most: tuple[tuple[float, int], ...]
    count: int
    sum_s: float


@dataclass(frozen=True)
class Measure:
    """One thing that is measured. The values are by the labels' values, in the labels' order.

    Durations have a spread, and no values.
    """

    name: str
    help: str
    kind: Kind
    values: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()
    spread: Spread | None = None


Measures = Callable[[], Iterable[Measure]]


def counter(name: str, help: str, value: float) -> Measure:
    """A count that has no labels."""
    return Measure(name, help, Kind.COUNTER, {(): value})


def gauge(name: str, help: str, value: float) -> Measure:
    """A state that has no labels."""
    return Measure(name, help, Kind.GAUGE, {(): value})


def counters(name: str, help: str, label: str, values: Mapping[str, float]) -> Measure:
    """Counts that one label tells apart."""
    return Measure(name, help, Kind.COUNTER, {(of,): n for of, n in values.items()}, (label,))


def gauges(name: str, help: str, label: str, values: Mapping[str, float]) -> Measure:
    """States that one label tells apart."""
    return Measure(name, help, Kind.GAUGE, {(of,): n for of, n in values.items()}, (label,))


def durations(name: str, help: str, spread: Spread) -> Measure:
    """How long something took, each time."""
    return Measure(name, help, Kind.COUNTER, {}, spread=spread)


class Durations:
    """How long something took, each time. May be used from any thread."""

    def __init__(self, bounds_s: tuple[float, ...] = BOUNDS_S) -> None:
        self._bounds_s = bounds_s
        self._lock = threading.Lock()
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def note(self, duration_s: float) -> None:
        """It has taken so long once more."""
        place = bisect_left(self._bounds_s, duration_s)
        with self._lock:
            self._counts[place] += 1
            self._sum_s += duration_s

    def spread(self) -> Spread:
        """All durations so far."""
        with self._lock:
            counts, sum_s = list(self._counts), self._sum_s
        total, at_most = 0, []
        for bound, count in zip(self._bounds_s, counts, strict=False):
            total += count
            at_most.append((bound, total))
        return Spread(tuple(at_most), total + counts[-1], sum_s)
