"""Runs the workloads: rounds of all systems in turn, each with client processes of its own.

The rounds alternate, so that a slow minute slows everybody, and ratios are taken within a round.
The first round of each is thrown away. A system that cannot be had, or that fails, is reported with
the reason, and the others go on. It knows neither how a system works nor how the report looks.
"""

from __future__ import annotations

import collections
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import Round, Spread, percentile, spread
from benchmarks.peers.operations import Operation
from benchmarks.peers.servers import Absent, Servers
from benchmarks.peers.systems import LIMIT, System
from benchmarks.peers.workloads import SMALL, Workload

ROOT = Path(__file__).resolve().parents[2]
FILL = 1000
END_S = 30.0


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
) -> list[Row]:
    """One row for each system that can do the work; `step` is called with each name in turn."""
    rows = [Row(workload, system) for system in workload.participants()]
    with ExitStack() as started:
        teams: dict[str, _Team] = {}
        for row in rows:
            try:
                teams[row.system.name] = started.enter_context(
                    closing(_Team(workload, row.system, addresses.of(row.system)))
                )
            except (Absent, Broken, ImportError) as reason:
                row.absent = str(reason)
        for row in rows:
            try:
                if not row.absent:
                    teams[row.system.name].await_ready()
            except Broken as reason:
                row.absent = str(reason)
        for number in range(rounds + 1):
            for row in rows:
                step(row.system.name)
                if row.absent:
                    continue
                try:
                    taken = teams[row.system.name].take_round()
                except Broken as reason:
                    row.absent = str(reason)
                    continue
                if number:
                    row.rounds.append(taken)
    return rows


@contextmanager
def filled_client(system: System, address: str, count: int) -> Iterator[None]:
    """The system's queue has so many small messages, and those that were there are gone."""
    client = system.connect(address)
    try:
        client.create()
        if Operation.GET in system.can:
            client.put_many([b"x" * SMALL] * count)
        yield
    finally:
        client.close()


class Broken(Exception):
    """A client has failed; the text is its last word."""


@contextmanager
def told_as_broken() -> Iterator[None]:
    """Whatever a system or its client raises is `Broken`."""
    try:
        yield
    except Exception as failed:
        raise Broken(f"{type(failed).__name__}: {failed}") from failed


class _Team:
    """The client processes of one system, and the connection that fills its queue."""

    def __init__(self, workload: Workload, system: System, address: str) -> None:
        self._workload = workload
        self._payload = b"x" * workload.payload_bytes
        self._filler: Any = None
        self._left = 0
        self._worker: subprocess.Popen[str] | None = None
        try:
            with told_as_broken():
                self._filler = system.connect(address, 0, workload.clients)
                self._filler.create()
                self._fill(system.queued)
        except Broken:
            self.close()
            raise
        command = [sys.executable, "-m", "benchmarks.peers.worker", system.name, address]
        command += [workload.operation.value, str(workload.payload_bytes), str(workload.clients)]
        self._worker = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def await_ready(self) -> None:
        """All clients are connected. Those of other teams start meanwhile."""
        self._heard()

    def close(self) -> None:
        """All processes have ended."""
        if self._worker is not None:
            _end(self._worker)
        if self._filler is not None:
            self._filler.close()

    def take_round(self) -> Round:
        """The clients do their calls, all at once."""
        workload = self._workload
        needed = workload.calls * workload.clients * workload.messages_per_call
        if workload.takes:
            with told_as_broken():
                self._fill(needed - self._left)
        assert self._worker is not None
        assert self._worker.stdin is not None
        self._worker.stdin.write(f"{workload.calls}\n")
        self._worker.stdin.flush()
        moments = json.loads(self._heard())
        if workload.takes and workload.clients == 1:
            # What a slow client has left. With several, each may have left another's share.
            self._left = needed - (len(moments[0]) - 1) * workload.messages_per_call
        durations = sorted(b - a for own in moments for a, b in itertools.pairwise(own))
        took_s = max(own[-1] for own in moments) - min(own[0] for own in moments)
        return Round(percentile(durations, 50), percentile(durations, 99), len(durations) / took_s)

    def _fill(self, count: int) -> None:
        for begin in range(0, count, FILL):
            self._filler.put_many([self._payload] * min(FILL, count - begin))

    def _heard(self) -> str:
        assert self._worker is not None
        assert self._worker.stdout is not None
        line = self._worker.stdout.readline()
        if not line:
            assert self._worker.stderr is not None
            words = self._worker.stderr.read().strip().splitlines()
            raise Broken(_last_word(words))
        return line


def _last_word(lines: list[str]) -> str:
    """What a client has failed of: its own exception, and not that nobody heard of it any more."""
    said = [line for line in lines if line[:1].strip() and ": " in line and "EOF" not in line]
    return said[-1] if said else "its client ended without a word"


def _end(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    # One that has failed does not read any more.
    with suppress(BrokenPipeError):
        worker.stdin.close()
    try:
        worker.wait(END_S)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait(END_S)
    for pipe in (worker.stdout, worker.stderr):
        assert pipe is not None
        pipe.close()
