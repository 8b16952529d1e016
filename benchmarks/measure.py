"""Measures several ways of doing one thing side by side, and tells by how much they differ.

A figure in microseconds describes the machine and the minute; a ratio of two that were taken
together describes the programs. Therefore:

1. The rounds of a comparison's subjects alternate (A B C A B C ...), so that a slow minute slows
   all of them.
2. A ratio is taken within one round, and what is told is the median of the rounds' ratios with the
   quartiles around it. A bar is judged as certain only where both quartiles agree.
3. The first round of each subject warms it up and is thrown away.

What is measured, and how its servers are started, is known to the subjects alone. A benchmark is a
module with a function `comparisons(setting)`; `__main__` lists them.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from threading import Barrier
from typing import Protocol

GATHER_S_MAX = 30.0


# --- What is compared ----------------------------------------------------------------------------


class Subject(Protocol):
    """One way of doing the work. It is started once and then called very often."""

    @property
    def name(self) -> str:
        """How the tables call it."""

    def start(self) -> None:
        """Makes everything ready; what was started is cleared away if this fails."""

    def stop(self) -> None:
        """Clears everything away."""

    def one_call(self) -> None:
        """Does the work once. With several clients it is called by as many threads at a time."""


class Yardstick(Enum):
    """By which time two subjects are compared."""

    MEDIAN_CALL = "p50"
    # All calls of all clients over the time they took together: what a server can bear.
    THROUGHPUT = "time per call"


@dataclass(frozen=True)
class Bar:
    """How long a subject may take at most, as a multiple of what another takes."""

    subject: str
    reference: str
    ratio_max: float


@dataclass(frozen=True)
class Comparison:
    """Subjects that do the same work; the baseline is the limit that nothing can go below.

    One that cannot take place here has no subjects and says why in `skipped`.
    """

    title: str
    subjects: tuple[Subject, ...]
    baseline: str
    bars: tuple[Bar, ...] = ()
    clients: int = 1
    yardstick: Yardstick = Yardstick.MEDIAN_CALL
    skipped: str = ""
    # Calls in a round, where one call is much; otherwise as many as the effort says.
    calls: int | None = None

    def __post_init__(self) -> None:
        names = [subject.name for subject in self.subjects]
        assert len(set(names)) == len(names), f"{self.title}: two subjects have the same name"
        meant = {
            self.baseline,
            *(name for bar in self.bars for name in (bar.subject, bar.reference)),
        }
        assert self.skipped or meant <= set(names), f"{self.title}: {meant} are not all in {names}"
        assert self.clients > 0, f"{self.title}: {self.clients} clients"


@dataclass(frozen=True)
class Setting:
    """What a benchmark is told about the run: a folder for its files, and what was asked for."""

    scratch: Path
    with_tls: bool = False


@dataclass(frozen=True)
class Effort:
    """How much is measured: the rounds of each subject, and the calls in each of them."""

    rounds: int = 25
    calls: int = 500

    def __post_init__(self) -> None:
        assert self.rounds > 0, f"{self.rounds} rounds"
        assert self.calls > 0, f"{self.calls} calls"


# --- What was found ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """The times of one subject in one round, or its medians over several."""

    p50_s: float
    p99_s: float
    calls_per_s: float
    # How many it was taken of, where that is not the same for all subjects.
    calls: int = 0

    def time_s(self, yardstick: Yardstick) -> float:
        """The time by which this yardstick compares."""
        return self.p50_s if yardstick is Yardstick.MEDIAN_CALL else 1 / self.calls_per_s


@dataclass(frozen=True)
class Spread:
    """The middle of several values, and the quartiles between which half of them lie."""

    median: float
    low: float
    high: float


class Verdict(Enum):
    """Whether a bar is kept; uncertain where the rounds do not agree about it."""

    KEPT = "kept"
    PERHAPS_KEPT = "kept, within the noise"
    PERHAPS_MISSED = "missed, within the noise"
    MISSED = "missed"


@dataclass(frozen=True)
class Result:
    """All rounds of a comparison, by subject; those at the same place were taken together."""

    comparison: Comparison
    rounds: dict[str, tuple[Round, ...]]

    def typical(self, name: str) -> Round:
        """The medians of the subject's rounds."""
        rounds = self.rounds[name]
        return Round(
            p50_s=statistics.median(taken.p50_s for taken in rounds),
            p99_s=statistics.median(taken.p99_s for taken in rounds),
            calls_per_s=statistics.median(taken.calls_per_s for taken in rounds),
        )

    def ratio(self, name: str, reference: str) -> Spread:
        """How many times as long as the reference the subject takes."""
        yardstick = self.comparison.yardstick
        pairs = zip(self.rounds[name], self.rounds[reference], strict=True)
        return spread([one.time_s(yardstick) / other.time_s(yardstick) for one, other in pairs])

    def verdict(self, bar: Bar) -> Verdict:
        """Whether the bar is kept, and how sure that is."""
        ratio = self.ratio(bar.subject, bar.reference)
        if ratio.median <= bar.ratio_max:
            return Verdict.KEPT if ratio.high <= bar.ratio_max else Verdict.PERHAPS_KEPT
        return Verdict.MISSED if ratio.low > bar.ratio_max else Verdict.PERHAPS_MISSED


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spread(values: Sequence[float]) -> Spread:
    """The median and the quartiles of some values."""
    ordered = sorted(values)
    return Spread(statistics.median(ordered), percentile(ordered, 25), percentile(ordered, 75))


# --- Measuring -----------------------------------------------------------------------------------


def run(
    comparison: Comparison,
    effort: Effort,
    clock: Callable[[], float],
    after_round: Callable[[], None] = lambda: None,
) -> Result:
    """Starts the subjects, measures them in turn, and stops them, whatever happens."""
    with ExitStack() as started:
        crews = [
            started.enter_context(_crew(subject, comparison.clients, clock))
            for subject in comparison.subjects
        ]
        calls = comparison.calls or effort.calls
        for crew in crews:
            crew.take_round(calls)
            after_round()
        taken: dict[str, list[Round]] = {crew.subject.name: [] for crew in crews}
        for _ in range(effort.rounds):
            for crew in crews:
                taken[crew.subject.name].append(crew.take_round(calls))
                after_round()
    return Result(comparison, {name: tuple(rounds) for name, rounds in taken.items()})


def count_rounds(comparison: Comparison, effort: Effort) -> int:
    """How often `after_round` is called."""
    return len(comparison.subjects) * (effort.rounds + 1)


@dataclass(frozen=True)
class _Crew:
    """The threads that call one subject. They last, and with them what a thread has of its own."""

    subject: Subject
    clients: int
    threads: ThreadPoolExecutor
    clock: Callable[[], float]

    def take_round(self, calls: int) -> Round:
        """Has the clients share the calls, beginning all at once."""
        gate = Barrier(self.clients)
        share = max(1, calls // self.clients)
        works = [self.threads.submit(self._call_often, gate, share) for _ in range(self.clients)]
        times = [work.result() for work in works]
        durations = sorted(end - begin for own in times for begin, end in itertools.pairwise(own))
        took_s = max(own[-1] for own in times) - min(own[0] for own in times)
        return Round(
            p50_s=percentile(durations, 50),
            p99_s=percentile(durations, 99),
            calls_per_s=len(durations) / took_s,
        )

    def _call_often(self, gate: Barrier, calls: int) -> list[float]:
        """The moments between the calls: one clock reading ends a call and begins the next."""
        call, clock = self.subject.one_call, self.clock
        gate.wait(GATHER_S_MAX)
        moments = [clock()]
        for _ in range(calls):
            call()
            moments.append(clock())
        return moments


@contextmanager
def _crew(subject: Subject, clients: int, clock: Callable[[], float]) -> Iterator[_Crew]:
    subject.start()
    try:
        with ThreadPoolExecutor(clients) as threads:
            yield _Crew(subject, clients, threads, clock)
    finally:
        subject.stop()
