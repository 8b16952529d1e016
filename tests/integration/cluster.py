"""Real processes that are killed and started again: a coordinator, nodes, and whoever uses them.

Each process keeps its directory and its port over all its lives, and is killed by its own id
alone. What it writes to standard error is kept beside its directory, for whoever wants to know
why.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from clients.stores import check_store
from coordinator.coordination import ADMIN as TRANSACTIONS
from idl import system
from idl.call import Address
from idl.coordination import Mq_TransactionAdmin
from idl.mq import Mq_Admin
from idl.orb import NetworkOrb
from idl.otids import show, split_otid

ROOT = Path(__file__).resolve().parent.parent.parent
START_S = 60.0
STOP_S = 30.0
SETTLE_S = 60.0
# Below those that the system gives to connections, and those of the databases: nobody takes the
# port of one that is down. Processes of pytest that run at once have ports of their own.
PORTS = range(20_000, 28_000)
WORKERS_MAX = 16
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS_MAX
_given: set[int] = set()


def free_port(chance: random.Random) -> int:
    """A port on which nobody listens, and that no other server of these tests has."""
    while True:
        port = chance.choice(PORTS[WORKER::WORKERS_MAX])
        if port in _given:
            continue
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            _given.add(port)
            return port


class Life:
    """A program that is run again and again, under one name."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name = name
        self.lives = 0
        self.folder = folder
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def errors(self) -> Path:
        """What it wrote to standard error, in all its lives."""
        return self.folder / f"{self.name}.err"

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """It runs; whether it is ready is another question."""
        assert not self.is_running, f"{self.name} runs already"
        self.lives += 1
        with self.errors.open("ab") as errors, self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self.command()],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )

    def command(self) -> Sequence[str]:
        """What is run in this life."""
        return self._command

    @property
    def output(self) -> Path:
        """What it wrote to standard output in this life."""
        return self.folder / f"{self.name}.{self.lives}.out"

    def kill(self) -> None:
        """The process is gone, without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def strike(self, may_be_done: bool = False) -> None:
        """It is killed at whatever it does; it had not ended by itself before, or not badly."""
        self.kill()
        assert self._process is not None
        code = self._process.returncode
        is_expected = code == -signal.SIGKILL or (code == 0 and may_be_done)
        assert is_expected, f"{self.name} ended with {code}: {self.last_words()}"

    def freeze(self) -> None:
        """The process stands still, as if the machine were busy, until it is woken or killed."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """It goes on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """It was asked to stop, and has; its exit code."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not stop: {self.last_words()}") from None

    def wait_until_ready(self) -> None:
        """It has said that it listens."""
        deadline = time.monotonic() + START_S
        while b"listens on" not in self.output.read_bytes():
            assert self.is_running, f"{self.name} ended: {self.last_words()}"
            assert time.monotonic() < deadline, f"{self.name} is not ready: {self.last_words()}"
            time.sleep(0.02)

    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        return self.errors.read_text(errors="replace")[-2000:]


class Server(Life):
    """A coordinator or a node, always at the same address."""

    def __init__(self, name: str, port: int, command: Sequence[str], folder: Path) -> None:
        self.address = Address("127.0.0.1", port)
        self.data = folder / name
        where = ["--data", str(self.data), "--listen", str(self.address), "--quiet"]
        super().__init__(name, [*command, *where], folder)


class Cluster:
    """A coordinator and two nodes. `paths` are the addresses by which others go to them.

    With the name of a bug (`planted.py`), all servers have it.
    """

    def __init__(self, folder: Path, chance: random.Random, bug: str | None = None) -> None:
        self.folder = folder
        self._before = [] if bug is None else ["tests.integration.planted", bug]
        ports = {name: free_port(chance) for name in ("coordinator", "n1", "n2")}
        self.paths = {name: Address("127.0.0.1", port) for name, port in ports.items()}
        self._ports = ports

    def route(self, name: str, through: Address) -> None:
        """Others go to this one by another address. Before `start`."""
        self.paths[name] = through

    def start(self) -> None:
        """All are ready."""
        session = ["--session-timeout", "3"]
        self.coordinator = Server(
            "coordinator",
            self._ports["coordinator"],
            [*self._before, "coordinator", *session, *self._advertised("coordinator")],
            self.folder,
        )
        asked = ["--coordinator", str(self.paths["coordinator"])]
        self.nodes = {
            name: Server(
                name,
                self._ports[name],
                [*self._before, "mqserver", "--name", name, *asked, *self._advertised(name)],
                self.folder,
            )
            for name in ("n1", "n2")
        }
        for server in self.servers:
            server.start()
        try:
            for server in self.servers:
                server.wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def _advertised(self, name: str) -> list[str]:
        own = Address("127.0.0.1", self._ports[name])
        return [] if self.paths[name] == own else ["--advertise", str(self.paths[name])]

    @property
    def servers(self) -> list[Server]:
        """All of them."""
        return [self.coordinator, *self.nodes.values()]

    def unsettled(self) -> tuple[list[str], list[str], dict[str, int]]:
        """Transactions the coordinator knows, branches that have not ended, locks by queue."""
        orb = NetworkOrb(timeout_s=10.0)
        try:
            where = f"PYRO:{TRANSACTIONS}@{self.coordinator.address}"
            known = orb.proxy(where, Mq_TransactionAdmin).listTransactions()
            undecided = [f"{show(split_otid(i.otid)[0])} {i.status.name}" for i in known]
            branches: list[str] = []
            locked: dict[str, int] = {}
            for name, node in self.nodes.items():
                admin = orb.proxy(f"PYRO:admin@{node.address}", Mq_Admin)
                branches += [f"{i.otid.tid.hex()} {i.state.name}" for i in admin.listBranches()]
                locked |= {f"{name}/{i.queue}": i.locked for i in admin.listQueues()}
        finally:
            orb.close()
        return undecided, branches, locked

    def settle(self) -> tuple[list[str], list[str], dict[str, int]]:
        """What has not come to rest in good time; empty, and no locks, as it should be."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            with contextlib.suppress(system.SystemException):
                undecided, branches, locked = self.unsettled()
                is_quiet = not (undecided or branches or any(locked.values()))
                if is_quiet or time.monotonic() > deadline:
                    return undecided, branches, locked
            assert time.monotonic() < deadline + START_S, "nobody answers"
            time.sleep(0.2)

    def stop(self) -> None:
        """All have stopped in good order, and their stores are sound."""
        for server in self.servers:
            code = server.stop()
            assert code == 0, f"{server.name} ended with {code}: {server.last_words()}"
        for node in self.nodes.values():
            report = check_store(str(node.data))
            assert report.is_sound, f"{node.name}: {report}"

    def kill(self) -> None:
        """All are gone."""
        for server in self.servers:
            server.kill()


@contextlib.contextmanager
def ended(*lives: Life) -> Iterator[None]:
    """Whatever happens, these do not outlive the test."""
    try:
        yield
    finally:
        for life in lives:
            life.kill()


def stop_all(lives: Sequence[Life]) -> None:
    """All have stopped in good order, having been asked at the same time."""
    codes: dict[str, int] = {}

    def stop(life: Life) -> None:
        codes[life.name] = life.stop()

    threads = [threading.Thread(target=stop, args=(life,)) for life in lives]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = {
        life.name: f"{codes.get(life.name)}, {life.last_words()}"
        for life in lives
        if codes.get(life.name) != 0
    }
    assert not failed, f"ended in another way than asked to: {failed}"
