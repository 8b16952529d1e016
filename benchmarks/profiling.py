"""`make profile`: where the time of one transaction goes, by program and by part.

    python -m benchmarks.profiling [--work put|transaction|move|two] [--seconds N] [--page]

Coordinator, nodes and client run twice. First alone: the system counts each program's processor
time, its own and the system's on its behalf, and the client how long each transaction takes. Then
under the sampling profiler py-spy, from where only shares come: a program's own time is divided
among its parts by the samples in which they had the interpreter. Who waits has not.

Before that stands where the time goes that passes on the clock: the processors, the disk, which is
a bare sync of the same bytes right after the run, and the rest, in which the programs wake each
other up. Where programs work side by side, the parts are more than the whole, and the rest is below
zero. `--page` does all four works and makes the table of docs/BENCHMARKS.md anew.
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
from typing import NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

import oncemq
from benchmarks.orb import ServerProcess
from benchmarks.peers.clients import Bare

HOST = "127.0.0.1"
PAYLOAD = b"x" * 100
RATE = 200
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
SYSTEM = "the system: network, files, waking others"


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


class Cpu(NamedTuple):
    """Processor time, of the program itself and of the system on its behalf."""

    user: float
    system: float

    @property
    def whole(self) -> float:
        """Both."""
        return self.user + self.system


class Program:
    """A server or the client, from its first line to its end; `profile` is where samples go."""

    def __init__(
        self, started: ExitStack, name: str, profile: Path | None, module: str, *arguments: str
    ) -> None:
        self.name = name
        self._profile = profile
        spied = [] if profile is None else [*_spying(), "--output", str(profile), "--"]
        self._process = subprocess.Popen(
            [*spied, sys.executable, "-m", module, *arguments],
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

    def _itself(self) -> list[psutil.Process]:
        """The program, and not its profiler."""
        first = psutil.Process(self._process.pid)
        return [first] if self._profile is None else first.children()

    def cpu_s(self) -> Cpu:
        """The processor time that it has had so far."""
        [program] = self._itself()
        times = program.cpu_times()
        return Cpu(times.user, times.system)

    def _clear_away(self) -> None:
        """Neither the program nor its profiler is there any more, whatever has happened."""
        if self._process.poll() is None:
            for program in self._itself():
                program.kill()
            self._process.kill()
            self._process.communicate(timeout=END_S_MAX)

    def end(self) -> list[tuple[list[str], int]]:
        """It has ended; stacks, the outermost call first, and how often each was seen."""
        # The profiler writes what it has and then ends its program. One whose program ends first
        # may wait for ever.
        self._process.send_signal(signal.SIGINT if self._profile else signal.SIGTERM)
        self._process.communicate(timeout=END_S_MAX)
        lines = [] if self._profile is None else self._profile.read_text().splitlines()
        split = [line.rpartition(" ") for line in lines]
        found = [(stack.split(";"), int(count)) for stack, _, count in split if stack]
        return [(stack, count) for stack, count in found if _is_work(stack)]


class Run(NamedTuple):
    """One run of a work: how often it was done, and the programs' time and samples.

    The time on the clock is that of the middle one, since a neighbour may stop all for seconds.
    """

    done: int
    wall_us: float
    cpu_us: dict[str, Cpu]
    stacks: dict[str, list[tuple[list[str], int]]]


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
        taken[work] = _profile(work, said.seconds)
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
    # The work that has most of the parts says in which order they stand.
    fullest = sorted(taken.values(), key=len, reverse=True)
    for part in dict.fromkeys(part for parts in fullest for part in parts):
        cells = [f"{taken[work][part]:,.0f}" if part in taken[work] else "" for work in works]
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(text: str, table: str) -> str:
    """The page with this table between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"there are no marks {BEGIN} and {END}"
    return f"{before}{begin}\n{table}\n{end}{after}"


def _profile(work: str, seconds: float) -> dict[str, float]:
    console = Console()
    with tempfile.TemporaryDirectory(prefix="oncemq-profile-", dir="/var/tmp") as name:
        folder = Path(name)
        alone = _run(work, seconds, folder / "alone", is_spied=False)
        bare = _bare_us(folder)
        spied = _run(work, seconds, folder / "spied", is_spied=True)
    wall_us = alone.wall_us
    slow = spied.wall_us / wall_us
    console.print(f"{WORK[work].__doc__} {alone.done:,} of them, {wall_us:,.0f} µs each.")
    console.print(
        f"Under the profiler, of which the shares are, each takes {slow:.1f} times as long."
    )
    busy: dict[str, float] = {}
    for program, used in alone.cpu_us.items():
        if used.whole >= BUSY_US_MIN:
            for part, spent in _show(program, spied.stacks[program], used, console).items():
                where = place_of(program, part)
                busy[where] = busy.get(where, 0.0) + spent
    whole = _on_the_clock(work, wall_us, busy, *bare)
    _show_wall(whole, console)
    return whole


def _run(work: str, seconds: float, folder: Path, is_spied: bool) -> Run:
    """The work is done for so long, by programs that are ended afterwards."""
    folder.mkdir()
    quiet = ["--listen", f"{HOST}:0", "--log-level", "error"]

    def profile(name: str) -> Path | None:
        return folder / f"{name}.txt" if is_spied else None

    with ExitStack() as started:
        data = str(folder / "coordinator")
        name = "coordinator"
        programs = [Program(started, name, profile(name), name, "--data", data, *quiet)]
        coordinator = programs[0].announced.rpartition(" ")[2]
        urls = []
        for name in ("node", "second node"):
            place = ["--data", str(folder / name.replace(" ", "-")), "--coordinator", coordinator]
            programs.append(Program(started, name, profile(name), "mqserver", *place, *quiet))
            urls.append(f"mq://{programs[-1].announced.rpartition(' ')[2]}")
        told_client = ["--client", work, str(seconds), *urls]
        module = "benchmarks.profiling"
        client = Program(started, "client", profile("client"), module, *told_client)
        programs.append(client)
        before = [program.cpu_s() for program in programs]
        count, wall_us = map(float, client.listen().split())
        cpu_us = {
            program.name: Cpu(
                *(1e6 * (b - a) / count for a, b in zip(was, program.cpu_s(), strict=True))
            )
            for program, was in zip(programs, before, strict=True)
        }
        # The client first, which would miss its servers.
        stacks = {program.name: program.end() for program in reversed(programs)}
    return Run(int(count), wall_us, {name: cpu_us[name] for name in stacks}, stacks)


def place_of(program: str, part: str) -> str:
    """Where the page counts a part of a program."""
    if program == "coordinator":
        return "coordinator"
    place = "client" if program == "client" else "node"
    if part == SYSTEM:
        return f"{place}: the system's calls"
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
    return _middle_us(moments)


def _middle_us(moments: list[float]) -> float:
    return statistics.median(b - a for a, b in itertools.pairwise(moments)) * 1e6


def _show(
    name: str, stacks: list[tuple[list[str], int]], used: Cpu, console: Console
) -> dict[str, float]:
    each_us = used.user / (sum(count for _, count in stacks) or 1)
    parts: collections.Counter[str] = collections.Counter()
    functions: collections.Counter[str] = collections.Counter()
    for stack, count in stacks:
        parts[_part_of(stack)] += count
        functions[stack[-1]] += count
    spent = {part: count * each_us for part, count in parts.most_common()}
    spent[SYSTEM] = used.system
    title = f"{name}: {used.whole:,.0f} µs of processor time for each"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("part")
    table.add_column("µs", justify="right")
    for part, part_us in spent.items():
        table.add_row(part, f"{part_us:,.0f}")
    table.add_section()
    for function, count in functions.most_common(SHOWN):
        table.add_row(function, f"{count * each_us:,.0f}", style="dim")
    console.print(table)
    return spent


def _is_work(stack: list[str]) -> bool:
    """Not the start of the program."""
    return not any("importlib" in frame or frame.startswith(STARTING) for frame in stack)


def _part_of(stack: list[str]) -> str:
    """The part of the innermost line that is ours: what it calls of Python's is done for it."""
    for frame in reversed(stack):
        for place, part in PARTS:
            if f"({place}" in frame or f"/{place}" in frame:
                return part
    return OTHER


def _spying() -> list[str]:
    # Only who has the interpreter: all others would be stopped for each sample, and many of those
    # that wait taken for busy, which made everything take three times as long.
    return [_py_spy(), "record", "--gil", "--format", "raw", "--function", "--rate", str(RATE)]


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
        moments = [time.perf_counter()]
        while moments[-1] < moments[0] + float(seconds):
            act(near, far)
            moments.append(time.perf_counter())
        _say(f"{len(moments) - 1} {_middle_us(moments)}")
        # It is ended from outside, once what it has used has been read. A signal that comes just
        # before a sleep is heard after it.
        for _ in range(int(END_S_MAX / PAUSE_S)):
            time.sleep(PAUSE_S)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main()
