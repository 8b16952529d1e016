"""The processes of a Spark job, found by their parents, so that the demo can kill one of them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

PYTHON_WORKER = "Python worker"
EXECUTOR = "executor"
_PROCESSES = Path("/proc")


def offspring(pid: int) -> dict[str, list[int]]:
    """What of a Spark job's processes may be killed, by kind."""
    parents, commands = _table()
    family, grown = {pid}, True
    while grown:
        found = {each for each, parent in parents.items() if parent in family} - family
        family |= found
        grown = bool(found)
    kinds: dict[str, list[int]] = {PYTHON_WORKER: [], EXECUTOR: []}
    for each in sorted(family):
        kind = _kind(commands[each], commands.get(parents[each], "")) if each in parents else ""
        if kind:
            kinds[kind].append(each)
    return kinds


def _kind(command: str, parents_command: str) -> str:
    if "CoarseGrainedExecutorBackend" in command:
        return EXECUTOR
    # Workers are forked by a daemon, and called as it is.
    if "pyspark.daemon" in command and "pyspark.daemon" in parents_command:
        return PYTHON_WORKER
    return ""


def _table() -> tuple[dict[int, int], dict[int, str]]:
    parents, commands = {}, {}
    for folder in _PROCESSES.iterdir():
        # Whoever ends while we look is not there.
        with contextlib.suppress(OSError, ValueError):
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            commands[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return parents, commands


def kill(pid: int) -> bool:
    """kill -9; whether it was still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_group(leader: int) -> None:
    """kill -9 of a process and of all that belong to its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
