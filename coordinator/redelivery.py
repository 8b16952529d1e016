"""Trying again what could not be delivered, as long as it takes, without holding anybody else up.

What is meant for one server waits in one line, and one attempt at a time is made there; between
failures the pause grows up to a limit. So a server that is down costs one attempt now and then,
however much is waiting for it. What failed goes to the end of its line: it may be the only thing
there that cannot be delivered. It does not know what is delivered.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from coordinator.tasks import Tasks
from idl.call import Reference
from idl.databases import DATABASE, DATABASE_SETTLER

# One attempt; says whether the server was reached. If not, it will be made again.
Attempt = Callable[[], bool]


def _line_of(reference: str) -> str:
    parsed = Reference.parse(reference)
    family, _, rest = parsed.name.partition("/")
    if family in (DATABASE, DATABASE_SETTLER):
        # A server of its own, though it is the coordinator that speaks for it.
        return f"{DATABASE}/{rest.partition('/')[0]}"
    return str(parsed.address)


class Redelivery:
    """The lines of all servers. May be used from any thread."""

    def __init__(self, tasks: Tasks, pause_s: float, pause_s_max: float) -> None:
        self._tasks = tasks
        self._pause_s = pause_s
        self._pause_s_max = pause_s_max
        self._lock = threading.Lock()
        self._lines: dict[str, deque[Attempt]] = {}

    def add(self, reference: str, attempt: Attempt) -> None:
        """The attempt is made after a while, and again until the server was reached."""
        server = _line_of(reference)
        with self._lock:
            line = self._lines.get(server)
            if line is not None:
                line.append(attempt)
                return
            self._lines[server] = deque((attempt,))
        self._tasks.after(self._pause_s, self._work_off, server, self._pause_s)

    def waiting(self) -> dict[str, int]:
        """How much waits for each server that could not be reached."""
        with self._lock:
            return {server: len(line) for server, line in self._lines.items()}

    def _work_off(self, server: str, pause_s: float) -> None:
        while (attempt := self._next(server)) is not None:
            if not attempt():
                with self._lock:
                    self._lines[server].append(attempt)
                longer_s = min(2 * pause_s, self._pause_s_max)
                self._tasks.after(longer_s, self._work_off, server, longer_s)
                return
            # It is reached again: what is left need not wait as long as before.
            pause_s = self._pause_s

    def _next(self, server: str) -> Attempt | None:
        with self._lock:
            line = self._lines[server]
            if line:
                return line.popleft()
            del self._lines[server]
            return None
