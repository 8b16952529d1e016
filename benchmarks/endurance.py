"""What very many transactions leave behind: `python -m benchmarks.endurance [--transactions N]`.

Client processes run two-phase commits over two participants in memory, and after each tenth of them
it is written down what the coordinator holds: memory, files and sockets, threads, and the bytes of
its log. What is remembered on purpose is bounded (`OUTCOMES_KEPT` outcomes, a log of so many bytes)
and full after the first half; so the second half must add nothing. The participants have a storage
in memory that remembers as many outcomes. A measurement, never a gate.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
from rich.console import Console

from benchmarks.coordinator import SHARE, ClientProcesses

TRANSACTIONS = 100_000
CLIENTS = 8
TENTHS = 10
# Settling, sweeping and the log's own checkpoints have come to rest by then.
REST_S = 1.5
MIB = 2**20


class Held(NamedTuple):
    """What a coordinator holds after so many transactions."""

    transactions: int
    memory_bytes: int
    handles: int
    threads: int
    log_bytes: int
    rate: float


def held_by(process: psutil.Process, folder: Path, transactions: int, rate: float) -> Held:
    """What the coordinator with this data folder holds now."""
    files = [each.stat() for each in folder.rglob("*") if each.is_file()]
    return Held(
        transactions,
        process.memory_info().rss,
        process.num_fds(),
        process.num_threads(),
        sum(each.st_blocks * 512 for each in files),
        rate,
    )


def endure(folder: Path, transactions: int) -> Iterator[Held]:
    """Runs so many, and looks after each tenth."""
    clients = ClientProcesses(folder, CLIENTS)
    clients.start()
    try:
        coordinator = psutil.Process(clients.coordinator_pid)
        rounds = max(1, transactions // (TENTHS * CLIENTS * SHARE))
        for tenth in range(1, TENTHS + 1):
            began = time.perf_counter()
            for _ in range(rounds):
                clients.one_call()
            rate = rounds * CLIENTS * SHARE / (time.perf_counter() - began)
            time.sleep(REST_S)
            yield held_by(coordinator, folder, tenth * rounds * CLIENTS * SHARE, rate)
    finally:
        clients.stop()


def _line(held: Held) -> str:
    memory, log = held.memory_bytes / MIB, held.log_bytes / MIB
    return (
        f"{held.transactions:>12,}{memory:>13.1f}{held.handles:>9}{held.threads:>9}{log:>10.1f}"
        f"{held.rate:>8.0f}"
    )


def main() -> None:
    """Runs, and shows what was found."""
    parser = argparse.ArgumentParser(description="what very many transactions leave behind")
    parser.add_argument("--transactions", type=int, default=TRANSACTIONS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        say = Console(highlight=False).print
        say("the coordinator, after so many transactions")
        say("transactions  memory MiB  handles  threads  log MiB      /s")
        # One by one, so that a run that is ended early has told something.
        for held in endure(Path(scratch) / "coordinator", asked.transactions):
            say(_line(held))


if __name__ == "__main__":
    main()
