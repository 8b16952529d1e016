"""Runs the workloads: rounds of all systems in turn, each with client processes of its own.

The rounds alternate, so that a slow minute slows everybody, and ratios are taken within a round.
The first round of each is thrown away. A turn of a system has a budget of time: a slow one makes
fewer calls, and its rate is that of those. A system that cannot be had, or that fails, is reported
with the reason, and the others go on. It knows neither how a system works nor how the report looks.
"""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from benchmarks.measure import Round, Spread, percentile, spread
from benchmarks.peers.servers import Absent, Servers
from benchmarks.peers.systems import LIMIT, System
from benchmarks.peers.team import Broken, Team
from benchmarks.peers.workloads import TURN_S, Workload


@dataclass
class Row:
    """What was found of one system at one workload; `absent` says why nothing was."""

    workload: Workload
    system: System
    rounds: list[Round] = field(default_factory=list)
    absent: str = ""

    def middle(self, value: Callable[[Round], float]) -> Spread:
        """The median over the rounds, and its quartiles."""
        return spread([value(taken) for taken in self.rounds])

    @property
    def is_synced(self) -> bool:
        """Whether what was answered was on disk."""
        return self.workload.operation not in self.system.unsynced

    @property
    def messages_per_s(self) -> Spread:
        """How fast it was."""
        return self.middle(lambda taken: taken.calls_per_s * self.workload.messages_per_call)

    def times(self, other: Row) -> Spread:
        """How many times the other's work it does in the same time."""
        pairs = zip(self.rounds, other.rounds, strict=True)
        return spread([mine.calls_per_s / theirs.calls_per_s for mine, theirs in pairs])


class Addresses:
    """The servers of all systems; one of each kind, and more where a system needs several."""

    def __init__(self, servers: Servers, echo: str) -> None:
        self._servers = servers
        self._echo = echo
        self._known: dict[str, list[str]] = {}
        self._absent: dict[str, str] = {}

    def start(self, systems: Iterable[System]) -> None:
        """All servers that these need are started at once: most of their start is waiting."""
        needed: collections.Counter[str] = collections.Counter()
        for system in systems:
            needed |= collections.Counter(system.servers)
        with ThreadPoolExecutor(len(needed) or 1) as starters:
            # Those of one kind after each other, since they share what the first has made.
            for work in [starters.submit(self._start, *one) for one in needed.items()]:
                work.result()

    def _start(self, kind: str, count: int) -> None:
        for _ in range(count):
            try:
                self._known.setdefault(kind, []).append(self._servers.start(kind))
            except Absent as reason:
                self._absent[kind] = str(reason)

    def of(self, system: System) -> str:
        """Where the system is. Raises `Absent`."""
        found = []
        for kind, number in zip(system.servers, itertools.count(), strict=False):
            known = self._known.setdefault(kind, [])
            if len(known) <= number:
                raise Absent(self._absent[kind])
            found.append(known[number])
        return f"{self._echo} {found[0]}" if system.name == LIMIT else " ".join(found)


def run(
    workload: Workload,
    rounds: int,
    addresses: Addresses,
    step: Callable[[str], None],
    limit_s: float | None = None,
) -> list[Row]:
    """One row for each system that can do the work; `step` is called with each name in turn.

    Once the limit has passed, no other round begins; but one that counts is taken.
    """
    rows = [Row(workload, system) for system in workload.participants()]
    with ExitStack() as started:
        teams = _started(rows, addresses, started)
        # Before any of them is waited for.
        for team in teams.values():
            started.callback(team.dismiss)
        _each(rows, lambda row: teams[row.system.name].await_ready())
        began = time.monotonic()
        for number in range(rounds + 1):
            if number > 1 and limit_s is not None and time.monotonic() > began + limit_s:
                break

            def take(row: Row, is_warm: bool = number > 0) -> None:
                taken = round_of(teams[row.system.name].take_turn(TURN_S))
                row.rounds += [taken] if is_warm else []

            _each(rows, take, step)
    return rows


def _started(rows: Iterable[Row], addresses: Addresses, started: ExitStack) -> dict[str, Team]:
    teams = {}
    for row in rows:
        try:
            team = Team(row.workload, row.system, addresses.of(row.system))
            teams[row.system.name] = started.enter_context(closing(team))
        except Absent as reason:
            row.absent = str(reason)
    return teams


def _each(
    rows: Iterable[Row], act: Callable[[Row], None], step: Callable[[str], None] = lambda _: None
) -> None:
    """All that are there do it; who fails is there no more."""
    for row in rows:
        step(row.system.name)
        if not row.absent:
            try:
                act(row)
            except Broken as reason:
                row.absent = str(reason)


def round_of(moments: Sequence[Sequence[float]]) -> Round:
    """What the moments between the calls of each client amount to."""
    durations = sorted(b - a for own in moments for a, b in itertools.pairwise(own))
    took_s = max(own[-1] for own in moments) - min(own[0] for own in moments)
    rate = len(durations) / took_s
    return Round(percentile(durations, 50), percentile(durations, 99), rate, len(durations))
