"""What a durable put and get cost, held against a bare append with `fdatasync` of the same bytes.

Every backend does the same work in alternating rounds: so many puts, each in a transaction of its
own, and then as many gets, after which its queue is empty again. The limit is a file that was
written in full before, so that an append changes nothing but bytes; nothing durable goes below it.
Where a bar may be out of reach, a program that does no more than it must is measured beside ours.
The storage in memory is there to show what the contract costs without a disk.

The bars are those of the paged storage. What very many queued messages cost is `storage_depth`.
`python -m benchmarks.storage` runs both.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import storage_depth
from benchmarks.measure import Comparison, Effort, Result, Round, Subject, run, spread
from benchmarks.storage_depth import (
    BATCH,
    LARGE_BYTES,
    QUEUE,
    SMALL_BYTES,
    Finding,
    Work,
    letters,
    open_paged,
)
from benchmarks.storage_limits import BARE, BARE_TWICE, Bare, BareShared, BareTwice
from mqserver.storage.contract import NewMessage, QueueSettings, Storage
from mqserver.storage.memory import MemoryStorage

# Sizes of payloads, and how many messages a round puts and gets. Rounds are short and many, so that
# ours and the limit are measured within the same tenths of a second.
CALLS = {100: 60, 1_000: 60, 10_000: 40, 100_000: 15, 1_000_000: 6}
CALLS_OF_BATCHES = 6
CALLS_OF_THREADS = 400
ROUNDS = 30
ROUNDS_QUICK = 4
THREADS = 8
# What a put and its commit take of the processor, in a loop that never waits.
COMMIT_US = 17

SINGLE_RATIO_MAX = 1.4
THREADS_RATIO_MIN = 3.0
BATCH_RATE_MIN = 200_000.0
BANDWIDTH_MIN = 0.7

PAGED = "paged"
PAGED_PUT, PAGED_GET = f"{PAGED} put", f"{PAGED} get"
MICRO = 1e6


@dataclass(frozen=True)
class Report:
    """All that a run has found."""

    results: list[Result] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def study(scratch: Path, is_quick: bool, rounds: int | None, say: Callable[[str], None]) -> Report:
    """Measures everything. `say` is told what comes next, since some of it takes a while."""
    report = Report()
    rounds = rounds or (ROUNDS_QUICK if is_quick else ROUNDS)
    for size_bytes, calls in CALLS.items():
        say(f"messages of {size_bytes:,} bytes")
        folder = _folder(scratch, f"single-{size_bytes}")
        comparison = singles(folder, size_bytes)
        report.results.append(run(comparison, Effort(rounds, calls), time.perf_counter))
        report.findings.extend(single_findings(report.results[-1], size_bytes))
    say(f"batches of {BATCH:,} messages")
    comparison = batches(_folder(scratch, "batches"))
    report.results.append(run(comparison, Effort(rounds, CALLS_OF_BATCHES), time.perf_counter))
    report.findings.extend(batch_findings(report.results[-1]))
    say(f"{THREADS} threads")
    report.findings.extend(_group_commit(_folder(scratch, "threads"), rounds))
    say("very many queued messages")
    for finding in storage_depth.findings(scratch, is_quick, rounds):
        say(finding.what)
        report.findings.append(finding)
    return report


def _folder(scratch: Path, name: str) -> Path:
    folder = scratch / name
    folder.mkdir()
    return folder


# --- What is compared ----------------------------------------------------------------------------


def singles(folder: Path, size_bytes: int) -> Comparison:
    """One message of this size to a transaction, by every backend."""
    title = f"{size_bytes:,} bytes, one message to a transaction"
    return _comparison(title, folder, letters(size_bytes))


def batches(folder: Path) -> Comparison:
    """Very many small messages to a transaction, by every backend."""
    title = f"{SMALL_BYTES} bytes, {BATCH:,} messages to a transaction"
    return _comparison(title, folder, letters(SMALL_BYTES, BATCH))


def _comparison(title: str, folder: Path, messages: list[NewMessage]) -> Comparison:
    data = b"".join(message.payload for message in messages)
    subjects: list[Subject] = [Bare(folder / "bare", data)]
    if len(messages) == 1 and len(data) == LARGE_BYTES:
        subjects.append(BareTwice(folder, data))
    for name, opened in _backends(folder).items():
        store = _Store(opened, messages)
        # In this order, so that a round of gets finds what the round of puts before it has left.
        subjects += [_Put(f"{name} put", store), _Get(f"{name} get", store)]
    return Comparison(title, tuple(subjects), BARE)


def _backends(folder: Path) -> dict[str, Callable[[], Storage]]:
    found: dict[str, Callable[[], Storage]] = {
        "memory": lambda: MemoryStorage(time.monotonic),
        PAGED: lambda: open_paged(folder / "paged"),
    }
    if importlib.util.find_spec("sqlalchemy") is not None:
        found["sqlite"] = lambda: _open_sqlite(folder)
    return found


def _open_sqlite(folder: Path) -> Storage:
    from mqserver.storage.sql import SqlStorage

    return SqlStorage(f"sqlite:///{folder / 'queues.db'}", "benchmark", time.monotonic)


@dataclass
class _Store:
    """What the puts and the gets of one backend share."""

    opened: Callable[[], Storage]
    messages: list[NewMessage]

    def start(self) -> None:
        self.work = Work(self.opened())
        self.work.storage.create_queue(QUEUE, QueueSettings())

    def stop(self) -> None:
        self.work.storage.close()


@dataclass
class _Put:
    name: str
    store: _Store

    def start(self) -> None:
        self.store.start()

    def stop(self) -> None:
        self.store.stop()

    def one_call(self) -> None:
        self.store.work.put(self.store.messages)


@dataclass
class _Get:
    name: str
    store: _Store

    def start(self) -> None:
        """Nothing: the puts come first, and open the store."""

    def stop(self) -> None:
        """Nothing: the puts stop last, and close the store."""

    def one_call(self) -> None:
        self.store.work.get(len(self.store.messages))


# --- What is found -------------------------------------------------------------------------------


def single_findings(result: Result, size_bytes: int) -> list[Finding]:
    """The smallest payloads have a bar in time, the largest in bandwidth; the others have none."""
    if size_bytes == SMALL_BYTES:
        ratio = result.ratio(PAGED_PUT, BARE)
        what = f"p50 of a put of {size_bytes} bytes against a {BARE}"
        unit = "x as long"
        return [Finding(what, ratio.median, unit, SINGLE_RATIO_MAX, False, ratio)]
    if size_bytes == LARGE_BYTES:
        what = f"bandwidth of puts of {size_bytes:,} bytes against a {BARE}"
        limit = f"bandwidth of a {BARE_TWICE}, against a {BARE}"
        return [_bandwidth(result, PAGED_PUT, what), _bandwidth(result, BARE_TWICE, limit)]
    return []


def _bandwidth(result: Result, name: str, what: str) -> Finding:
    pairs = zip(result.rounds[name], result.rounds[BARE], strict=True)
    share = spread([one.calls_per_s / bare.calls_per_s for one, bare in pairs])
    return Finding(what, share.median, "x the bandwidth", BANDWIDTH_MIN, True, share)


def batch_findings(result: Result) -> list[Finding]:
    """How many messages go in and out in a second, many to a transaction."""

    def rate(name: str) -> Finding:
        rates = spread([taken.calls_per_s * BATCH for taken in result.rounds[name]])
        what = f"{name} of {SMALL_BYTES} bytes, {BATCH:,} to a transaction"
        return Finding(what, rates.median, "messages/s", BATCH_RATE_MIN, True, rates)

    return [rate(PAGED_PUT), rate(PAGED_GET)]


def _group_commit(folder: Path, rounds: int) -> list[Finding]:
    """How well threads share the disk: ours, and those of a program that does nothing else."""
    storage = open_paged(folder / "paged")
    storage.create_queue(QUEUE, QueueSettings())
    work = Work(storage)
    message = letters(SMALL_BYTES)
    limits = [BareShared(folder / "shared"), BareShared(folder / "busy", COMMIT_US)]
    for limit in limits:
        limit.start()
    actions = (lambda: work.put(message), *[limit.one_call for limit in limits])
    with ThreadPoolExecutor(THREADS) as pool:
        for action in actions:
            _time_s(action, pool, THREADS)
        ratios = [[_share(action, pool) for action in actions] for _ in range(rounds)]
    for limit in limits:
        limit.stop()
    storage.close()
    ours = f"commits/s of {THREADS} threads against one, a put of {SMALL_BYTES} bytes in each"
    bare = f"the same of a program whose {THREADS} threads do nothing but share a write and a sync"
    busy = f"the same of such a program with {COMMIT_US} µs of Python beside it, as a commit has"
    spreads = [spread(each) for each in zip(*ratios, strict=True)]
    return [
        Finding(what, each.median, "x as many", THREADS_RATIO_MIN, True, each)
        for what, each in zip((ours, bare, busy), spreads, strict=True)
    ]


def _share(action: Callable[[], None], pool: ThreadPoolExecutor) -> float:
    """How many times as often many threads do it as one."""
    return _time_s(action, pool, 1) / _time_s(action, pool, THREADS)


def _time_s(action: Callable[[], None], pool: ThreadPoolExecutor, threads: int) -> float:
    """How long so many threads take to do it equally often."""

    def do_share() -> None:
        for _ in range(CALLS_OF_THREADS // threads):
            action()

    begin = time.perf_counter()
    for done in [pool.submit(do_share) for _ in range(threads)]:
        done.result()
    return time.perf_counter() - begin


# --- For people and for programs -----------------------------------------------------------------


def show(report: Report, console: Console) -> None:
    """Prints a table for each comparison, and then a sentence for each bar."""
    for result in report.results:
        table = Table(title=result.comparison.title, title_justify="left", title_style="bold")
        table.add_column()
        for heading in ("p50 µs", "p99 µs", "transactions/s", f"p50 ÷ {BARE}"):
            table.add_column(heading, justify="right")
        for subject in result.comparison.subjects:
            table.add_row(subject.name, *_cells(result, subject.name))
        console.print(table)
    for finding in report.findings:
        style = "green" if finding.is_reached else "bold red"
        console.print(
            finding.sentence(),
            style=style if finding.is_certain else "yellow",
            soft_wrap=True,
        )


def _cells(result: Result, name: str) -> list[str]:
    typical: Round = result.typical(name)
    ratio = result.ratio(name, BARE)
    return [
        f"{typical.p50_s * MICRO:,.1f}",
        f"{typical.p99_s * MICRO:,.1f}",
        f"{typical.calls_per_s:,.0f}",
        f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
    ]


def described(report: Report) -> list[dict[str, Any]]:
    """The findings as plain values."""
    return [
        {
            "what": finding.what,
            "value": finding.value,
            "unit": finding.unit,
            "bar": finding.bar,
            "is_at_least": finding.is_at_least,
            "is_reached": finding.is_reached,
            "is_certain": finding.is_certain,
        }
        for finding in report.findings
    ]


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds, and shorter queues.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, max=1000, help="Rounds of each.")] = None,
) -> None:
    """Measure the storages against a bare file."""
    console = Console()
    if quick:
        depth = f"{storage_depth.DEEP_QUICK:,} instead of {storage_depth.DEEP:,}"
        console.print(f"--quick: few rounds, and deep queues hold {depth} messages", style="yellow")
    with tempfile.TemporaryDirectory(prefix="oncemq-benchmarks-") as scratch:
        report = study(Path(scratch), quick, rounds, lambda text: console.print(f"  {text} ..."))
    show(report, console)


if __name__ == "__main__":
    typer.run(main)
