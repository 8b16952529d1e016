"""Servers as child processes: started, told where they listen, stopped in good order, or killed.

A child ends with this process, however that ends (`tethered.py`), and does not hear the terminal's
Ctrl-C: who started it decides the order in which servers stop. It knows no settings; what is wrong
with those the server says itself, on standard error.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

LISTENS = " listens on "
STOP_S = 30.0
START_S = 60.0


class NotStarted(Exception):
    """The server ended before it listened; it has said why. The code is its exit code."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"the {name} did not start: see above (exit code {code})")
        self.name = name
        self.code = code


class Server:
    """One server process. After a kill it can be started again, at the address it had."""

    def __init__(self, name: str, program: str, arguments: Sequence[str], listen: str) -> None:
        self.name = name
        self.address = listen
        self._program = program
        self._arguments = list(arguments)
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The process that runs it."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """It listens; raises `NotStarted`."""
        command = [sys.executable, "-m", "clients.tethered", self._program, *self._arguments]
        self._process = subprocess.Popen(
            [*command, "--listen", self.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        told = self._first_line(self._process)
        if LISTENS not in told:
            raise NotStarted(self.name, self._process.wait())
        self.address = told.rpartition(LISTENS)[2].strip()

    def _first_line(self, process: subprocess.Popen[str]) -> str:
        lines: list[str] = []
        assert process.stdout is not None
        output = process.stdout
        reading = threading.Thread(target=lambda: lines.append(output.readline()))
        reading.start()
        reading.join(START_S)
        if reading.is_alive():
            # It hangs, and nobody else would end it.
            process.kill()
        reading.join()
        return lines[0]

    def exit_code(self) -> int | None:
        """How it ended; None while it runs. Negative after a signal."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> int:
        """It has stopped in good order; its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        code = process.wait(STOP_S)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
        return code
