"""The whole comparison with the peers: servers, rounds, a bar while it runs, and what was found."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.orb import ServerProcess
from benchmarks.peers.figures import Found
from benchmarks.peers.running import Addresses, Row, run
from benchmarks.peers.servers import Servers
from benchmarks.peers.systems import SYSTEMS, System
from benchmarks.peers.witness import WATCHED, watched
from benchmarks.peers.workloads import WORKLOADS, Workload

QUICK_ROUNDS, THOROUGH_ROUNDS, SPARK_ROUNDS = 5, 15, 3
# A quick run takes fewer rounds where the machine is slow. Servers start and stop beyond that.
QUICK_S = 360.0


@dataclass(frozen=True)
class Plan:
    """What is asked for: `only` names workloads, such as "W1 W4"; those may be thorough ones."""

    is_measured: bool = True
    is_thorough: bool = False
    rounds: int | None = None
    only: str = ""
    is_watched: bool = False

    def workloads(self) -> list[Workload]:
        """What is measured. W8, which needs Spark, is for who names it or wants everything."""
        if not self.is_measured:
            return []
        named = self.only.split()
        return [
            workload
            for workload in WORKLOADS
            if (not named or workload.name in named)
            and (self.is_thorough or not workload.is_thorough or self._is_named_spark(workload))
        ]

    def _is_named_spark(self, workload: Workload) -> bool:
        return workload.is_in_spark and workload.name in self.only.split()

    def rounds_of(self, workload: Workload) -> int:
        """How often each system has its turn, beyond the first that is thrown away."""
        if workload.is_in_spark:
            return min(self.rounds or SPARK_ROUNDS, SPARK_ROUNDS)
        return self.rounds or (THOROUGH_ROUNDS if self.is_thorough else QUICK_ROUNDS)

    def systems(self) -> list[System]:
        """Whose servers are needed. The jobs in Spark bring their own."""
        ours = [one for one in self.workloads() if not one.is_in_spark]
        busy = [system for one in ours for system in one.participants()]
        return busy + [s for s in SYSTEMS if self.is_watched and s.can & set(WATCHED)]

    def turns_of(self, workload: Workload) -> int:
        """How many turns of a system that is."""
        return len(workload.participants()) * (self.rounds_of(workload) + 1)

    def limit_s(self, workload: Workload, passed_s: float) -> float | None:
        """How long its rounds may take after so much of the run: its share of what is left.

        None where rounds are what is asked for, and not a quick answer.
        """
        if self.is_thorough or self.rounds or workload.is_in_spark:
            return None
        workloads = self.workloads()
        due = sum(map(self.turns_of, workloads[workloads.index(workload) :]))
        return (QUICK_S - passed_s) * self.turns_of(workload) / due

    def steps(self) -> int:
        """How often the bar moves."""
        seen = [len(s.can & set(WATCHED)) for s in SYSTEMS if self.is_watched]
        return sum(map(self.turns_of, self.workloads())) + sum(seen)


def study(plan: Plan) -> Found:
    """Everything that is asked for is measured, and watched."""
    if not plan.steps():
        return Found()
    # Where other users' servers may look into it, and not in memory.
    with tempfile.TemporaryDirectory(prefix="oncemq-peers-", dir="/var/tmp") as name:
        echo = ServerProcess("benchmarks.orb", "tcp")
        folder = Path(name)
        try:
            with closing(Servers(folder)) as servers:
                addresses = Addresses(servers, echo.announced)
                return _with_a_bar(plan, folder, addresses)
        finally:
            echo.stop()


def _with_a_bar(plan: Plan, folder: Path, addresses: Addresses) -> Found:
    # Drawn between the rounds only: a thread that redraws would be measured along with the rest.
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
    with progress:
        task = progress.add_task("starting the servers", total=plan.steps())
        progress.refresh()

        def steps(title: str) -> Callable[[str], None]:
            return lambda system: progress.update(
                task, description=f"{title}: {system}", advance=1, refresh=True
            )

        began = time.monotonic()
        addresses.start(plan.systems())
        found, done = Found(), 0
        for workload in plan.workloads():
            text = f"{workload.title}: connecting"
            progress.update(task, description=text, completed=done, refresh=True)
            measure = _run_in_spark if workload.is_in_spark else run
            found.rows += measure(
                workload,
                plan.rounds_of(workload),
                addresses,
                steps(workload.title),
                plan.limit_s(workload, time.monotonic() - began),
            )
            # Also those turns for which there was no time.
            done += plan.turns_of(workload)
        progress.update(task, completed=done)
        if plan.is_watched:
            found.seen = watched(folder, addresses, steps("syncs"))
    return found


def _run_in_spark(
    workload: Workload,
    rounds: int,
    addresses: Addresses,
    step: Callable[[str], None],
    limit_s: float | None,
) -> list[Row]:
    # Spark need not be installed for the others.
    from benchmarks.peers import spark_rows

    return spark_rows.run(workload, rounds, addresses, step, limit_s)
