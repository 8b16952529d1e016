"""The client processes of one system: started, told to work, and ended, whatever the system does.

All that touches the system is done by processes of its own (worker.py), also what empties and fills
its queue. So one that fails or does not answer is `Broken`, with the reason, and never stops the
run. It knows neither how a system works nor what its figures mean.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from benchmarks.peers.systems import System
from benchmarks.peers.workloads import Workload

ROOT = Path(__file__).resolve().parents[2]
# A million messages are queued meanwhile, or those of an earlier workload removed one by one.
READY_S_MAX = 90.0
# Beyond its budget, a turn has so long to fill the queue and to end its last calls.
LATE_S_MAX = 20.0
END_S_MAX = 10.0


class Broken(Exception):
    """A system has failed; the text is its client's last word, or that there was none."""


class Team:
    """All clients of one system at one workload. `close` ends them, also if they do not answer."""

    def __init__(self, workload: Workload, system: System, address: str) -> None:
        self._workload = workload
        # What the queue needs to have before the next turn: at first, all that is got in it.
        self._due = workload.calls if workload.takes else 0
        self._open = ExitStack()
        self._words = self._open.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
        command = [sys.executable, "-m", "benchmarks.peers.worker", system.name, address]
        command += [workload.operation.value, str(workload.payload_bytes), str(workload.clients)]
        self._worker = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # No pipe: who says much would wait for somebody to read it.
            stderr=self._words,
            text=True,
            start_new_session=True,
        )
        assert self._worker.stdout is not None
        self._answers = self._open.enter_context(self._worker.stdout)

    def await_ready(self, limit_s: float = READY_S_MAX) -> None:
        """All clients are connected. Those of other teams start meanwhile."""
        self._heard(limit_s)

    def take_turn(self, budget_s: float) -> list[list[float]]:
        """For each client the moments between its calls, which all began at once.

        After the budget none begins another call. Filling the queue is no part of it.
        """
        workload = self._workload
        messages = self._due * workload.clients * workload.messages_per_call
        assert self._worker.stdin is not None
        with suppress(BrokenPipeError):
            self._worker.stdin.write(f"{messages} {workload.calls} {budget_s}\n")
            self._worker.stdin.flush()
        moments: list[list[float]] = json.loads(self._heard(budget_s + LATE_S_MAX))
        if workload.takes:
            # As if all had got as many as the busiest: where each has a share of its own, as with
            # partitions, nobody's may become too small.
            self._due = max(len(own) - 1 for own in moments)
        if all(len(own) < 2 for own in moments):
            raise Broken("it has done nothing in its time")
        return moments

    def dismiss(self) -> None:
        """The clients are told to end, which nobody waits for yet."""
        assert self._worker.stdin is not None
        # One that has failed does not read any more.
        with suppress(BrokenPipeError):
            self._worker.stdin.close()

    def close(self) -> None:
        """All processes have ended."""
        self.dismiss()
        try:
            self._worker.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._kill()
        self._open.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._worker.pid, signal.SIGKILL)
        self._worker.wait(END_S_MAX)

    def _heard(self, limit_s: float) -> str:
        """The worker's next line."""
        # There is never more than one line to be read, and it is written at once.
        if not select.select([self._answers], [], [], limit_s)[0]:
            self._kill()
            raise Broken(f"too slow: no answer in {limit_s:.0f} s")
        line = self._answers.readline()
        if not line:
            self._kill()
            self._words.seek(0)
            raise Broken(last_word(self._words.read().splitlines()))
        return line


def last_word(lines: list[str]) -> str:
    """What a client has failed of: its own exception, and not that nobody heard of it any more."""
    said = [line for line in lines if line[:1].strip() and ": " in line and "EOF" not in line]
    return said[-1] if said else "its client ended without a word"
