"""The commands as a new user runs them, from `oncemq up` to `oncemq admin shutdown`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from clients.commands.terminal import ExitCode
from tests.processes import has_ended

ROOT = Path(__file__).resolve().parents[2]
STOP_S = 40.0
COMMAND = [sys.executable, "-m", "clients.cli"]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


class Up:
    """`oncemq up`, and commands that talk to what it runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*COMMAND, "up", "--data", "data", "--port", "0", "--json"],
            cwd=folder,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        lines = []
        while "}\n" not in lines:
            line = self.process.stdout.readline()
            assert line, "it says where it is"
            lines.append(line)
        self.told: dict[str, Any] = json.loads("".join(lines))
        self.servers = psutil.Process(self.process.pid).children()

    def run(self, *arguments: str, coming_in: str = "") -> subprocess.CompletedProcess[str]:
        """One command, in a process of its own."""
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=_environment() | {"ONCEMQ_URL": self.told["url"]},
            input=coming_in,
            capture_output=True,
            text=True,
            timeout=60.0,
            check=False,
        )

    def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Sends the signal; its exit code, and what it said."""
        if number is not None:
            self.process.send_signal(number)
        _, complaint = self.process.communicate(timeout=STOP_S)
        return self.process.returncode, complaint

    def server(self, program: str) -> psutil.Process:
        """The process that runs this program."""
        return next(each for each in self.servers if program in each.cmdline())

    def are_gone(self) -> bool:
        """Whether both servers have ended."""
        deadline = time.monotonic() + STOP_S
        while time.monotonic() < deadline:
            if all(map(has_ended, self.servers)):
                return True
            time.sleep(0.05)
        return False


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path)
    yield made
    with contextlib.suppress(ProcessLookupError):
        made.process.kill()
    made.process.communicate()
    assert made.are_gone()


def test_the_first_message_and_all_that_an_operator_does(up: Up, tmp_path: Path) -> None:
    assert "There is a queue jobs." in up.run("queue", "create", "jobs", "--prioritized").stdout
    lines = "".join(f"order {number}\n" for number in range(2500))
    put = up.run("put", "orders", "--lines", coming_in=lines)
    assert (put.returncode, put.stdout) == (0, "2,500 messages put into orders.\n")
    first, *_ = up.run("browse", "orders", "--limit", "2").stdout.splitlines()
    assert first.split("\t")[-1] == "order 0"
    assert up.run("get", "orders", "--count", "2").stdout == "order 0\norder 1\n"
    listed = json.loads(up.run("queue", "list", "--json").stdout)["queues"]
    assert [(queue["name"], queue["messages"]) for queue in listed] == [
        ("jobs", 0),
        ("orders", 2498),
    ]
    handled = up.run("consume", "orders", "--count", "1", "--command", "cat; echo $MQ_QUEUE")
    assert (handled.returncode, handled.stdout) == (0, "order 2orders\n")
    failing = up.run("consume", "orders", "--failures-max", "2", "--command", "exit 3")
    assert failing.returncode == ExitCode.ROLLED_BACK
    assert "the command ended with 3" in failing.stderr
    assert up.run("get", "orders").stdout == "order 3"
    assert up.run("tx", "list").stdout == ""
    status = json.loads(up.run("admin", "status", "--json").stdout)
    assert (status["enabled"], status["coordinator"]) == (True, up.told["coordinator"])
    stopped = up.run("admin", "shutdown", "--yes")
    assert (stopped.returncode, stopped.stdout) == (0, "Node node has stopped.\n")
    code, complaint = up.end()
    assert (code, "the coordinator is stopped too" in complaint) == (ExitCode.OK, True)
    assert up.run("queue", "list").returncode == ExitCode.UNREACHABLE
    assert up.run("check", "data/node").returncode == ExitCode.OK
    kept = up.run("--url", f"file:{tmp_path}/data", "queue", "list")
    assert (kept.returncode, kept.stderr) == (0, "")
    assert "orders\t2496\t" in kept.stdout


def test_an_interrupt_stops_both_in_good_order(up: Up) -> None:
    up.run("put", "orders", "--text", "kept")
    in_use = up.run("check", "data/node")
    assert in_use.returncode == ExitCode.IN_USE
    code, complaint = up.end(signal.SIGINT)
    assert (code, complaint) == (ExitCode.OK, "Stopping ...\n")
    assert up.are_gone()
    assert up.run("check", "data/node").returncode == ExitCode.OK


@pytest.mark.parametrize("program", ["mqserver", "coordinator"])
def test_if_one_is_killed_the_other_is_stopped_and_the_code_says_so(up: Up, program: str) -> None:
    up.server(program).kill()
    code, complaint = up.end()
    assert (code, "was killed by SIGKILL" in complaint) == (ExitCode.SERVER_ENDED, True)
    assert up.are_gone()


def test_no_server_outlives_a_command_that_was_killed(up: Up) -> None:
    up.end(signal.SIGKILL)
    assert up.are_gone()


def test_a_second_one_on_the_same_directory_leaves_the_first_alone(up: Up) -> None:
    second = up.run("up", "--data", "data", "--port", "0")
    assert second.returncode == ExitCode.SERVER_ENDED
    assert f"process {up.server('coordinator').pid}" in second.stderr
    assert "did not start: see above" in second.stderr
    assert up.run("put", "orders", "--text", "one").returncode == ExitCode.OK
