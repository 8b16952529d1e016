"""Other processes, many and quickly: one that has imported everything forks whenever it is asked.

    with Forker("tests.crash.cut_work") as forker:
        for event in forker.run("tests.crash.cut_work:work", place, 7):
            …                   what the process says, until it ends or is killed

What is said comes through a pipe, one line each and at once, so that neither a killed process nor a
power cut takes it back. The function is called with a way to say something and with the arguments.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

Say = Callable[..., None]
Event = tuple[Any, ...]

_ROOT_FOLDER = Path(__file__).resolve().parents[2]
# A process that outlives its test would go on for ever.
_CHILD_S_MAX = 60


class Forker:
    """The process that forks. `pid` is that of the child that runs, or ran last."""

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self.pid = 0

    def __enter__(self) -> Forker:
        self._words = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.forked", *self._modules],
            cwd=_ROOT_FOLDER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and self.pid:
            self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(_CHILD_S_MAX)
        self._words.close()

    def run(self, function: str, *arguments: object) -> Iterator[Event]:
        """What the function says, called as `module:function` in a process of its own."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((function, arguments), self._process.stdin)
        self._process.stdin.flush()
        for line in self._process.stdout:
            what, *details = json.loads(line)
            if what == "pid":
                self.pid = details[0]
            elif what == "over":
                self._check(function, details[0])
                return
            else:
                yield (what, *details)
        raise AssertionError(f"{function} took the forking process with it:\n{self._complaint()}")

    def kill(self) -> None:
        """The child is gone, whatever it was doing. One that has ended already is gone too."""
        os.kill(self.pid, signal.SIGKILL)

    def _check(self, function: str, status: int) -> None:
        if status not in (0, signal.SIGKILL):
            raise AssertionError(f"{function} failed with {status}:\n{self._complaint()}")

    def _complaint(self) -> str:
        self._words.seek(0)
        return self._words.read().decode()


# --- The process that forks, and its children ----------------------------------------------------


def _main(*modules: str) -> None:
    for module in modules:
        importlib.import_module(module)
    pid = 0
    while (task := _next_task()) is not None:
        # Not before now, so that the number of a process is not another's while it may be killed.
        if pid:
            os.waitpid(pid, 0)
        pid = os.fork()
        if not pid:
            _be_a_child(*task)
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        _say("over", ended.si_status)


def _next_task() -> tuple[str, tuple[object, ...]] | None:
    try:
        function, arguments = pickle.load(sys.stdin.buffer)
    except EOFError:
        return None
    return function, arguments


def _be_a_child(function: str, arguments: tuple[object, ...]) -> NoReturn:
    signal.alarm(_CHILD_S_MAX)
    _say("pid", os.getpid())
    module, _, name = function.partition(":")
    getattr(importlib.import_module(module), name)(_say, *arguments)
    os._exit(0)


def _say(*event: object) -> None:
    # Straight to the pipe, in one piece: what is in a buffer of ours is lost with us.
    os.write(1, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
