"""Two-phase commit over stock Pyro5 with nothing in it: what a program on Pyro5 bears at least.

The same processes, messages and forced writes as in `benchmarks.bare`, each message a call of stock
Pyro5. Nobody checks, names, logs or remembers anything. Pyro5 waits for the answer of a call, so
who asks two at once asks one of them by a second thread.

As a program, `python -m benchmarks.stock`, the module is a participant or the coordinator, writes
where it is to standard output, and ends with its standard input.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import Pyro5.api

from benchmarks.bare import COMMIT, DECIDE, HOST, PARTICIPANTS, PREPARE, File
from benchmarks.orb import PyroProxy, ServerProcess

STOCK = "stock Pyro5, the same messages"


class _Both:
    """Two others, who are asked at the same time."""

    def __init__(self, uris: list[str]) -> None:
        self._first, self._second = map(PyroProxy, uris)
        self._beside = ThreadPoolExecutor(1)

    def ask(self, body: bytes) -> None:
        """Both have answered."""
        beside = self._beside.submit(_ask, self._second, body)
        _ask(self._first, body)
        beside.result()

    def close(self) -> None:
        """The second thread has ended."""
        self._beside.shutdown()


def _ask(other: PyroProxy, body: bytes) -> None:
    other.proxy.call(body)


class _Participant:
    @Pyro5.api.expose  # type: ignore[untyped-decorator, unused-ignore]
    def call(self, body: bytes) -> bytes:
        """Whatever it is asked: nothing is kept."""
        return b"done"


class _Coordinator:
    def __init__(self, path: str, *participants: str) -> None:
        self._file = File(path)
        self._participants = _Both(list(participants))

    @Pyro5.api.expose  # type: ignore[untyped-decorator, unused-ignore]
    def call(self, body: bytes) -> bytes:
        """The decision is forced, and everybody told."""
        self._file.force()
        self._participants.ask(COMMIT)
        return b"done"


def _serve(servant: object) -> None:
    daemon = Pyro5.api.Daemon(HOST, 0)
    sys.stdout.write(f"{daemon.register(servant, 'stock')}\n")
    sys.stdout.flush()
    threading.Thread(target=daemon.requestLoop, daemon=True).start()
    # Whoever started this server holds the other end, and lets go of it even when it is killed.
    sys.stdin.read()


@dataclass
class StockTwoPhase:
    """The messages of a two-phase commit as calls of stock Pyro5. See `Subject`."""

    folder: Path
    name: str = STOCK

    def start(self) -> None:
        """See `Subject.start`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._processes = [
            ServerProcess("benchmarks.stock", "participant") for _ in range(PARTICIPANTS)
        ]
        nodes = [process.announced for process in self._processes]
        log = str(self.folder / "coordinator")
        self._processes.append(ServerProcess("benchmarks.stock", "coordinator", log, *nodes))
        self._nodes = _Both(nodes)
        self._coordinator = PyroProxy(self._processes[-1].announced)

    def stop(self) -> None:
        """See `Subject.stop`."""
        self._nodes.close()
        for process in self._processes:
            process.stop()

    def one_call(self) -> None:
        """See `Subject.one_call`."""
        self._nodes.ask(PREPARE)
        _ask(self._coordinator, DECIDE)


if __name__ == "__main__":
    if sys.argv[1] == "participant":
        _serve(_Participant())
    else:
        _serve(_Coordinator(*sys.argv[2:]))
