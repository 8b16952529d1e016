"""Watches with strace whether what was acknowledged had been synced: no system is believed.

A client process makes its calls slowly, one after the other, and notes when each began and was
answered. A call is *synced* if a sync of the system's own processes ended between the two. That is
less than a proof, since it does not say what was synced; but who syncs later, or now and then, is
found out. It measures no speed: being watched is slow.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.peers.operations import Operation
from benchmarks.peers.running import Addresses
from benchmarks.peers.servers import Absent
from benchmarks.peers.systems import SYSTEMS, System
from benchmarks.peers.team import Broken, Team
from benchmarks.peers.workloads import Workload

CALLS = 10
BUDGET_S = 5.0
ATTACH_S_MAX = 20.0
SETTLE_S = 0.3
END_S = 30.0
WATCHED = (Operation.PUT, Operation.GET, Operation.MOVE, Operation.TWO_PHASE)
# What may bring bytes to the disk; `msync` is a database that maps its files.
SYNCS = "fsync,fdatasync,msync,sync_file_range"
_LINE = re.compile(
    r"^(?P<pid>\d+) +(?P<at>\d+\.\d+) (?:<\.\.\. )?(?P<call>f(?:data)?sync|msync|sync_file_range)"
    r".*= 0 <(?P<took>\d+\.\d+)>$"
)


@dataclass(frozen=True)
class Seen:
    """Of so many calls of one system, how many were synced, and with how many syncs for each."""

    system: str
    operation: Operation
    calls: int
    synced: int
    syncs_per_call: float


def watched(folder: Path, addresses: Addresses, step: Callable[[str], None]) -> list[Seen]:
    """Every system that is there, in each of its operations; nothing where strace is missing."""
    if shutil.which("strace") is None:
        return []
    found = []
    for system in SYSTEMS:
        for operation in (one for one in WATCHED if one in system.can):
            step(system.name)
            # Who fails here is told as not watched.
            with suppress(Absent, Broken):
                found.append(_watch(system, operation, addresses.of(system), folder))
    return found


def _watch(system: System, operation: Operation, address: str, folder: Path) -> Seen:
    with closing(Team(Workload("W1", operation, CALLS), system, address)) as team:
        team.await_ready()
        # The first calls open connections, of which servers make processes.
        team.take_turn(BUDGET_S)
        trace = folder / "trace"
        strace = _attach(_processes_of(system, folder), trace)
        try:
            [moments] = team.take_turn(BUDGET_S)
        finally:
            strace.terminate()
            strace.wait(END_S)
    # One clock for both: the client's has another beginning than strace's.
    ahead = time.time() - time.perf_counter()
    begins = [moment + ahead for moment in moments]
    return judged(system.name, operation, begins, trace.read_text().splitlines())


def judged(system: str, operation: Operation, moments: list[float], trace: list[str]) -> Seen:
    """What the lines of strace say about calls between these moments."""
    ends = sorted(sync_ends(trace))
    calls = list(itertools.pairwise(moments))
    counts = [sum(begin <= end <= answered for end in ends) for begin, answered in calls]
    return Seen(system, operation, len(calls), sum(map(bool, counts)), sum(counts) / len(calls))


def sync_ends(trace: Iterable[str]) -> list[float]:
    """When each sync that went well ended.

    A call that others interrupt has two lines, of which the second has its own moment, and the
    duration of the whole: its end is where the line is written.
    """
    ends = []
    for line in trace:
        found = _LINE.match(line)
        if found is not None:
            took = 0.0 if "resumed>" in line else float(found["took"])
            ends.append(float(found["at"]) + took)
    return ends


def _processes_of(system: System, folder: Path) -> list[int]:
    """Those that work in the folders of the system's servers, or were told to.

    Those of other systems are left out: a sync of theirs could come at the right moment by chance.
    """
    places = [str(folder / f"{kind}-") for kind in system.servers]
    found = []
    for process in psutil.process_iter():
        try:
            words = [process.cwd(), *process.cmdline()]
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if any(place in word for place in places for word in words):
            found.append(process.pid)
    return found


def _attach(pids: list[int], trace: Path) -> subprocess.Popen[str]:
    command = ["strace", "--follow-forks", "-ttt", "-T", "--trace", SYNCS, "--output", str(trace)]
    for pid in pids:
        command += ["--attach", str(pid)]
    strace = subprocess.Popen(command, stderr=subprocess.DEVNULL, text=True)
    # It says nothing that could be waited for; each process knows who watches it.
    give_up = time.monotonic() + ATTACH_S_MAX
    while time.monotonic() < give_up and not all(map(_is_watched, pids)):
        time.sleep(SETTLE_S / 10)
    time.sleep(SETTLE_S)
    return strace


def _is_watched(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True
    return "TracerPid:\t0\n" not in status
