"""What a paged storage costs when very much is queued in it: rate, memory, restart, and the file.

Each store that is compared lives in a process of its own, because the collector and the allocator
of a process feel all that is queued in it: beside a deep queue, a short one would be slow too. The
processes are told what to do on their input, one line for each order, and answer with one number.

What holds of the measuring:

1. The rounds of the short and the deep queue alternate, as in `measure`. The rate is taken over all
   rounds together, so that the checkpoints count which only some of the rounds have to bear.
2. Memory is what the process has grown by, less the payloads. Both are told by the process itself.
3. A restart is timed in a fresh process, after one that ended without closing its store.
"""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.measure import Spread, spread
from mqserver.storage.contract import EVERYTHING, NewMessage, QueueSettings, Storage
from mqserver.storage.disk import RealDisk
from mqserver.storage.paged import PagedStorage

QUEUE = "queue"
SMALL_BYTES = 100
LARGE_BYTES = 1_000_000
BATCH = 1000

SHALLOW = 1_000
DEEP = 1_000_000
DEEP_QUICK = 100_000
BATCHES_PER_ROUND = 40
SINGLES_PER_ROUND = 100
# How often younger objects are looked through before the oldest are; Python's own number is 10.
RARELY = 10_000
LARGE_COUNT = 100

FLAT_MIN = 0.8
MEMORY_BYTES_MAX = 500.0
RESTART_S_MAX = 15.0
SHRUNK_BYTES_MAX = 2.0 * LARGE_BYTES

ANSWER_S_MAX = 300.0
_ROOT_FOLDER = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Finding:
    """A value, and the bar it is held against; the quartiles where it was taken in rounds."""

    what: str
    value: float
    unit: str
    bar: float
    is_at_least: bool
    rounds: Spread | None = None

    @property
    def is_reached(self) -> bool:
        """Whether the value is on the right side of the bar."""
        return self._reaches(self.value)

    @property
    def is_certain(self) -> bool:
        """Whether most of the rounds say the same."""
        if self.rounds is None:
            return True
        ends = (self.rounds.low, self.rounds.high)
        return all(self._reaches(end) == self.is_reached for end in ends)

    def sentence(self) -> str:
        """The finding in words: what was found, what was asked for, and by how much they differ."""
        between = ""
        if self.rounds is not None:
            between = f" ({_shown(self.rounds.low)} to {_shown(self.rounds.high)})"
        asked = f"{'at least' if self.is_at_least else 'at most'} {_shown(self.bar)}"
        reached = "reached" if self.is_reached else "not reached"
        doubt = "" if self.is_certain else ", within the noise"
        return (
            f"{self.what}: {_shown(self.value)}{between} {self.unit}; the bar is {asked}: "
            f"{reached}, by {self._distance():.0%}{doubt}"
        )

    def _reaches(self, value: float) -> bool:
        return value >= self.bar if self.is_at_least else value <= self.bar

    def _distance(self) -> float:
        return abs(self.value / self.bar - 1)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


# --- Storages and what is done with them ---------------------------------------------------------


def open_paged(folder: Path) -> PagedStorage:
    """The store in this folder, made where there is none."""
    disk = RealDisk(folder, create=True)
    return PagedStorage(disk, lambda: os.urandom(16), time.monotonic)


def letters(size_bytes: int, count: int = 1) -> list[NewMessage]:
    """Messages whose payloads are all different, so that none of them is shared in memory."""
    payloads = [os.urandom(size_bytes) for _ in range(count)]
    return [NewMessage(payload, zlib.crc32(payload)) for payload in payloads]


class Work:
    """Puts and gets, each in a transaction of its own. May be used by several threads."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        # Different in every process that works on a store: a branch that ended is remembered.
        self._own = os.urandom(8)
        self._numbers = itertools.count()

    def put(self, messages: list[NewMessage]) -> None:
        """The messages are committed."""
        branch = self._branch()
        self.storage.store(branch, QUEUE, messages)
        self.storage.commit_one_phase(branch)

    def get(self, count: int) -> None:
        """So many messages have been taken, and the taking is committed."""
        branch = self._branch()
        taken = self.storage.take(branch, QUEUE, EVERYTHING, count)
        assert len(taken) == count, f"{len(taken)} messages instead of {count}"
        self.storage.commit_one_phase(branch)

    def _branch(self) -> bytes:
        return self._own + next(self._numbers).to_bytes(8, "big")


# --- A store in a process of its own -------------------------------------------------------------


class _Worker:
    """The other end of `_serve`: gives orders and waits for answers."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.storage_depth", str(folder)]
        pipe = subprocess.PIPE
        # In a session of its own, so that it hears of Ctrl-C from us alone.
        self._process = subprocess.Popen(
            command, cwd=_ROOT_FOLDER, stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )

    def ask(self, order: str, number: int = 0) -> float:
        """What the order brought: seconds for most of them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # A process that says nothing is ended, and the read below with it.
        watchdog = threading.Timer(ANSWER_S_MAX, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(f"{order} {number}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not answer:
            raise RuntimeError(f"the process of the store ended at the order {order!r}")
        return float(answer)

    def kill(self) -> None:
        """The process ends where it stands, as in a crash."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def _worker(folder: Path) -> Iterator[_Worker]:
    worker = _Worker(folder)
    try:
        yield worker
    finally:
        worker.kill()


def _serve(folder: Path) -> None:
    begin = time.perf_counter()
    storage = open_paged(folder)
    opened_s = time.perf_counter() - begin
    if not storage.queues():
        storage.create_queue(QUEUE, QueueSettings())
    work = Work(storage)
    orders: dict[str, Callable[[int], float]] = {
        "opened": lambda _: opened_s,
        "visible": lambda _: float(storage.queue(QUEUE).visible),
        "memory": lambda _: float(_resident_bytes()),
        "fill": lambda count: _timed(lambda: _fill(work, count)),
        "collect old objects": _collect_old,
        "batches": lambda count: _timed(_pairs(work, BATCH), count),
        "singles": lambda count: _timed(_pairs(work, 1), count),
    }
    # Whoever started this process holds the other end, and lets go of it even when it is killed.
    for line in sys.stdin:
        order, number = line.rsplit(maxsplit=1)
        print(orders[order](int(number)), flush=True)


def _collect_old(often: int) -> float:
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, often)
    return 0.0


def _fill(work: Work, count: int) -> None:
    for _ in range(count // BATCH):
        work.put(letters(SMALL_BYTES, BATCH))


def _pairs(work: Work, count: int) -> Callable[[], None]:
    messages = letters(SMALL_BYTES, count)

    def pair() -> None:
        work.put(messages)
        work.get(count)

    return pair


def _timed(action: Callable[[], None], times: int = 1) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        action()
    return time.perf_counter() - begin


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# --- What is found -------------------------------------------------------------------------------


def findings(scratch: Path, is_quick: bool, rounds: int) -> Iterator[Finding]:
    """What very many messages cost, one finding after the other."""
    depth = DEEP_QUICK if is_quick else DEEP
    with ExitStack() as running:
        shallow = running.enter_context(_worker(scratch / "shallow"))
        deep = running.enter_context(_worker(scratch / "deep"))
        shallow.ask("fill", SHALLOW)
        # Once before, so that the growth holds no code and no caches.
        deep.ask("fill", SHALLOW)
        before = deep.ask("memory")
        deep.ask("fill", depth)
        grown = (deep.ask("memory") - before) / depth - SMALL_BYTES
        yield Finding(
            f"memory for each of {depth:,} queued messages of {SMALL_BYTES} bytes, beyond these",
            grown,
            "bytes",
            MEMORY_BYTES_MAX,
            is_at_least=False,
        )
        yield _flatness(shallow, deep, "batches", BATCHES_PER_ROUND, depth, rounds)
        yield _flatness(shallow, deep, "singles", SINGLES_PER_ROUND, depth, rounds)
        # Last, since it lasts: what the storage itself costs, without the interpreter's collector.
        for worker in (shallow, deep):
            worker.ask("collect old objects", RARELY)
        unburdened = _flatness(shallow, deep, "batches", BATCHES_PER_ROUND, depth, rounds)
        what = f"{unburdened.what}, in processes that collect old objects rarely"
        yield replace(unburdened, what=what)
    yield _restart(scratch / "deep", depth)
    yield _shrinking(scratch / "large")


def _flatness(
    shallow: _Worker, deep: _Worker, order: str, count: int, depth: int, rounds: int
) -> Finding:
    for worker in (shallow, deep):
        worker.ask(order, count)
    times = [(shallow.ask(order, count), deep.ask(order, count)) for _ in range(rounds)]
    what = f"batches of {BATCH:,}" if order == "batches" else "single messages"
    return Finding(
        f"rate of {what}, put and got, with {depth:,} queued, against {SHALLOW:,}",
        sum(short for short, _ in times) / sum(long for _, long in times),
        "x the rate",
        FLAT_MIN,
        is_at_least=True,
        rounds=spread([short / long for short, long in times]),
    )


def _restart(folder: Path, depth: int) -> Finding:
    with _worker(folder) as worker:
        took_s = worker.ask("opened")
        visible = worker.ask("visible")
    assert visible == depth + SHALLOW, f"{visible:,.0f} messages are there after the restart"
    return Finding(
        f"restart with {depth:,} queued messages, after a crash",
        took_s,
        "s",
        RESTART_S_MAX,
        is_at_least=False,
    )


def _shrinking(folder: Path) -> Finding:
    storage = open_paged(folder)
    storage.create_queue(QUEUE, QueueSettings())
    work = Work(storage)
    for _ in range(LARGE_COUNT):
        work.put(letters(LARGE_BYTES))
    grown = (folder / "data").stat().st_size
    assert grown >= LARGE_COUNT * LARGE_BYTES, f"the data file has {grown:,} bytes"
    for _ in range(LARGE_COUNT):
        work.get(1)
    storage.checkpoint()
    storage.close()
    return Finding(
        f"data file after {LARGE_COUNT} x {LARGE_BYTES:,} bytes in and out, from {grown:,} bytes",
        float((folder / "data").stat().st_size),
        "bytes",
        SHRUNK_BYTES_MAX,
        is_at_least=False,
    )


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
