"""`make profile`: where the time of one transaction goes, by program and by part.

    python -m benchmarks.profiling [--work put|transaction|move|two] [--seconds N] [--page]

Coordinator, nodes and client run under the sampling profiler py-spy, which hardly slows them. For
each program there is its processor time: what the system counts, divided by the transactions, and
shared among the parts by their samples. Before that stands where the time goes that passes on the
clock: the processors, the disk, which is a bare sync of the same bytes right after the run, and the
rest, in which the programs wake each other up. Where programs work side by side, the parts are more
than the whole, and the rest is below zero. `--page` does all four works and makes the table of
docs/BENCHMARKS.md anew.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

import oncemq
from benchmarks.orb import ServerProcess
from benchmarks.peers.clients import Bare

HOST = "127.0.0.1"
PAYLOAD = b"x" * 100
# A program is stopped for each sample, which costs it a ten-thousandth of a second. Not to stop it
# is no way out: threads that wait would then be taken for busy ones.
RATE = 100
WARM_UP = 200
SHOWN = 12
BARE_CALLS = 1000
# A program with less has no part in the work, and only looks after itself.
BUSY_US_MIN = 20.0
PAUSE_S = 0.3
END_S_MAX = 60.0
_ROOT = Path(__file__).resolve().parent.parent
PAGE = _ROOT / "docs" / "BENCHMARKS.md"
BEGIN, END = "<!-- profile: begin -->", "<!-- profile: end -->"

# The first that matches is the part to which a line of a program belongs.
PARTS = (
    ("mqserver/storage/disk", "the disk's door: write and sync"),
    ("mqserver/storage", "storage"),
    ("mqserver/transactions", "branches and requests"),
    ("mqserver/interfaces", "the node's interfaces"),
    ("mqserver", "queues, waiting, arrivals"),
    ("coordinator", "protocol, decisions, delivery"),
    ("idl/orb", "connections and frames"),
    ("idl", "marshalling and dispatch"),
    ("clients", "the client's library"),
    ("benchmarks", "the benchmark itself"),
)
OTHER = "Python's own library"
# The main thread of a server has nothing to do but to start it; its others do the work.
STARTING = ("<module> (mqserver/", "<module> (coordinator/")
# A sync waits for the disk, which is counted as such.
WAITING = (
    "RealFile.sync",
    "Condition.wait",
    "socket.accept",
    "select",
    "_EpollSelector",
    "EpollSelector",
)


def put(near: oncemq.Connection, _: oncemq.Connection) -> None:
    """A message, a transaction of its own."""
    near.queue("orders").put(PAYLOAD)


def transaction(near: oncemq.Connection, _: oncemq.Connection) -> None:
    """A transaction of one put."""
    with near.transaction():
        near.queue("orders").put(PAYLOAD)


def move(near: oncemq.Connection, _: oncemq.Connection) -> None:
    """A message goes round: got and put in one transaction."""
    with near.transaction():
        found = near.queue("orders").get()
        near.queue("orders").put(PAYLOAD if found is None else found.payload)


def two(near: oncemq.Connection, far: oncemq.Connection) -> None:
    """A message to each of two nodes."""
    with near.transaction():
        near.queue("orders").put(PAYLOAD)
        far.queue("audit").put(PAYLOAD)


WORK: dict[str, Callable[[oncemq.Connection, oncemq.Connection], None]] = {
    "put": put,
    "transaction": transaction,
    "move": move,
    "two": two,
}


# How often the disk must have answered before the next step, and how often another program.
SYNCS_IN_A_ROW = {"put": 1, "transaction": 1, "move": 1, "two": 2}
TRIPS_IN_A_ROW = {"put": 1, "transaction": 1, "move": 2, "two": 3}


class Spied:
    """A program under the profiler, from its first line to what was found of it."""

    def __init__(
        self, started: ExitStack, name: str, folder: Path, module: str, *arguments: str
    ) -> None:
        self.name = name
        self._found = folder / f"{name}.txt"
        command = [_py_spy(), "record", "--format", "raw", "--function", "--rate", str(RATE)]
        command += ["--output", str(self._found), "--", sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(
            command,
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        # Before the first word is waited for: whoever gives up waiting leaves nothing behind.
        started.callback(self._clear_away)
        self.announced = self.listen()

    def listen(self) -> str:
        """What the program says next."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() and not line.startswith("py-spy>"):
                return line.strip()
        raise SystemExit(f"{self.name} ended before its time")

    def cpu_s(self) -> float:
        """The processor time that it has had so far."""
        [program] = psutil.Process(self._process.pid).children()
        times = program.cpu_times()
        return times.user + times.system

    def _clear_away(self) -> None:
        """Neither the program nor its profiler is there any more, whatever has happened."""
        if self._process.poll() is None:
            for program in psutil.Process(self._process.pid).children():
                program.kill()
            self._process.kill()
            self._process.communicate(timeout=END_S_MAX)

    def end(self) -> list[tuple[list[str], int]]:
        """It has ended; stacks, the outermost call first, and how often each was seen."""
        for program in psutil.Process(self._process.pid).children():
            program.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=END_S_MAX)
        lines = self._found.read_text().splitlines()
        split = [line.rpartition(" ") for line in lines]
        found = [(stack.split(";"), int(count)) for stack, _, count in split if stack]
        return [(stack, count) for stack, count in found if _is_work(stack)]


def main() -> None:
    """Profiles one kind of work, and shows where its time went."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiling", description=__doc__)
    parser.add_argument("--work", choices=WORK, default="transaction")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--page", action="store_true", help="all works, for docs/BENCHMARKS.md")
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.client:
        _be_client(*said.client)
        return
    taken = {}
    for work in WORK if said.page else [said.work]:
        with (
            tempfile.TemporaryDirectory(prefix="oncemq-profile-", dir="/var/tmp") as folder,
            ExitStack() as started,
        ):
            taken[work] = _profile(work, said.seconds, Path(folder), started)
    if said.page:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_table(text, told(taken)), encoding="utf-8")


def told(taken: dict[str, dict[str, float]]) -> str:
    """A table: the parts in their order, and a column for each work."""
    works = list(taken)
    lines = [
        f"| µs | {' | '.join(works)} |",
        "|---|" + "---:|" * len(works),
    ]
    for part in dict.fromkeys(part for parts in taken.values() for part in parts):
        cells = [f"{taken[work][part]:,.0f}" if part in taken[work] else "" for work in works]
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(text: str, table: str) -> str:
    """The page with this table between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"there are no marks {BEGIN} and {END}"
    return f"{before}{begin}\n{table}\n{end}{after}"


def _profile(work: str, seconds: float, folder: Path, started: ExitStack) -> dict[str, float]:
    quiet = ["--listen", f"{HOST}:0", "--log-level", "error"]
    data = str(folder / "coordinator")
    programs = [Spied(started, "coordinator", folder, "coordinator", "--data", data, *quiet)]
    coordinator = programs[0].announced.rpartition(" ")[2]
    urls = []
    for name in ("node", "second node"):
        place = ["--data", str(folder / name.replace(" ", "-")), "--coordinator", coordinator]
        programs.append(Spied(started, name, folder, "mqserver", *place, *quiet))
        urls.append(f"mq://{programs[-1].announced.rpartition(' ')[2]}")
    told_client = ["--client", work, str(seconds), *urls]
    client = Spied(started, "client", folder, "benchmarks.profiling", *told_client)
    programs.append(client)
    before = [program.cpu_s() for program in programs]
    count = int(client.listen())
    wall_us = seconds / count * 1e6
    used = [program.cpu_s() - was for program, was in zip(programs, before, strict=True)]
    console = Console()
    console.print(f"{WORK[work].__doc__} {count:,} of them, {wall_us:,.0f} µs each.")
    cpu_us = {
        program.name: cpu_s / count * 1e6 for program, cpu_s in zip(programs, used, strict=True)
    }
    bare = _bare_us(folder)
    busy: dict[str, float] = {}
    for program in reversed(programs):
        stacks = program.end()
        if cpu_us[program.name] >= BUSY_US_MIN:
            parts = _show(program.name, stacks, cpu_us[program.name], console)
            for part, spent in parts.items():
                where = place_of(program.name, part)
                busy[where] = busy.get(where, 0.0) + spent
    whole = _on_the_clock(work, wall_us, busy, *bare)
    _show_wall(whole, console)
    return whole


def place_of(program: str, part: str) -> str:
    """Where the page counts a part of a program."""
    if program == "coordinator":
        return "coordinator"
    place = "client" if program == "client" else "node"
    if part in ("connections and frames", "marshalling and dispatch"):
        return f"{place}: frames and marshalling"
    if part in ("storage", "the disk's door: write and sync"):
        return f"{place}: storage"
    return f"{place}: all else"


def _on_the_clock(
    work: str, wall_us: float, busy: dict[str, float], sync_us: float, trip_us: float
) -> dict[str, float]:
    disk_us = SYNCS_IN_A_ROW[work] * sync_us
    rest_us = wall_us - disk_us - sum(busy.values())
    return {
        **busy,
        "disk: bare syncs": disk_us,
        "the rest: network, waking each other up": rest_us,
        "on the clock": wall_us,
        "(bare round trips)": TRIPS_IN_A_ROW[work] * trip_us,
    }


def _show_wall(whole: dict[str, float], console: Console) -> None:
    table = Table(title="all together", title_justify="left", title_style="bold")
    table.add_column("part")
    table.add_column("µs", justify="right")
    for part, spent in whole.items():
        table.add_row(part, f"{spent:,.0f}")
    console.print(table)


def _bare_us(folder: Path) -> tuple[float, float]:
    """What a sync of a small message takes, and a round trip of one; medians."""
    echo = ServerProcess("benchmarks.orb", "tcp")
    bare = Bare(f"{echo.announced} {folder}")
    try:
        return _median_us(lambda: bare.sync(PAYLOAD)), _median_us(lambda: bare.go(PAYLOAD))
    finally:
        bare.close()
        echo.stop()


def _median_us(act: Callable[[], None]) -> float:
    moments = [time.perf_counter()]
    for _ in range(BARE_CALLS):
        act()
        moments.append(time.perf_counter())
    return statistics.median(b - a for a, b in itertools.pairwise(moments)) * 1e6


def _show(
    name: str, stacks: list[tuple[list[str], int]], cpu_us: float, console: Console
) -> dict[str, float]:
    total = sum(count for _, count in stacks) or 1
    parts: collections.Counter[str] = collections.Counter()
    functions: collections.Counter[str] = collections.Counter()
    for stack, count in stacks:
        parts[_part_of(stack)] += count
        functions[stack[-1]] += count
    title = f"{name}: {cpu_us:,.0f} µs of processor time for each"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("part")
    table.add_column("µs", justify="right")
    for part, count in parts.most_common():
        table.add_row(part, f"{cpu_us * count / total:,.0f}")
    table.add_section()
    for function, count in functions.most_common(SHOWN):
        table.add_row(function, f"{cpu_us * count / total:,.0f}", style="dim")
    console.print(table)
    return {part: cpu_us * count / total for part, count in parts.items()}


def _is_work(stack: list[str]) -> bool:
    """Neither the start of the program, nor a thread that waits and is taken for a busy one."""
    is_start = any("importlib" in frame or frame.startswith(STARTING) for frame in stack)
    return not is_start and not stack[-1].startswith(WAITING)


def _part_of(stack: list[str]) -> str:
    """The part of the innermost line that is ours: what it calls of Python's is done for it."""
    for frame in reversed(stack):
        for place, part in PARTS:
            if f"({place}" in frame or f"/{place}" in frame:
                return part
    return OTHER


def _py_spy() -> str:
    found = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if found is None:
        raise SystemExit("py-spy is not installed: pip install py-spy, or `make profile`")
    return found


def _be_client(work: str, seconds: str, near_url: str, far_url: str) -> None:
    act = WORK[work]
    with oncemq.connect(near_url) as near, oncemq.connect(far_url) as far:
        for _ in range(WARM_UP):
            act(near, far)
        _say("ready")
        time.sleep(PAUSE_S)
        until = time.perf_counter() + float(seconds)
        count = 0
        while time.perf_counter() < until:
            act(near, far)
            count += 1
        _say(str(count))
        # It is ended from outside, once what it has used has been read.
        time.sleep(END_S_MAX)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main()
