"""The whole comparison with the peers: servers, rounds, a bar while it runs, and what was found."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.orb import ServerProcess
from benchmarks.peers.report import Group, grouped
from benchmarks.peers.running import Addresses, Row, run
from benchmarks.peers.servers import Servers
from benchmarks.peers.workloads import WORKLOADS, Workload

QUICK_ROUNDS, THOROUGH_ROUNDS = 5, 15


def study(is_thorough: bool, rounds: int | None, only: str = "") -> list[Group]:
    """Everything is measured; `only` names the workloads that are meant, such as "W1 W4"."""
    wanted = only.split()
    due = [
        workload
        for workload in WORKLOADS
        if (is_thorough or not workload.is_thorough) and (not wanted or workload.name in wanted)
    ]
    rounds = rounds or (THOROUGH_ROUNDS if is_thorough else QUICK_ROUNDS)
    # Where other users' servers may look into it, and not in memory.
    with tempfile.TemporaryDirectory(prefix="oncemq-peers-", dir="/var/tmp") as folder:
        echo = ServerProcess("benchmarks.orb", "tcp")
        try:
            with closing(Servers(Path(folder))) as servers:
                return grouped(_measured(due, rounds, Addresses(servers, echo.announced)))
        finally:
            echo.stop()


def _measured(due: list[Workload], rounds: int, addresses: Addresses) -> list[Row]:
    # Drawn between the rounds only: a thread that redraws would be measured along with the rest.
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
    total = sum(len(workload.participants()) for workload in due) * (rounds + 1)
    rows: list[Row] = []
    with progress:
        task = progress.add_task("", total=total)
        for workload in due:

            def step(system: str, title: str = workload.title) -> None:
                progress.update(task, description=f"{title}: {system}", advance=1, refresh=True)

            rows += run(workload, rounds, addresses, step)
    return rows
