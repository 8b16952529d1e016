"""Coordinator and participants as real processes, killed at random under load: all or nothing.

Clients put the same message at two participants in one transaction and remember what they were
told. Meanwhile one of the three processes after the other is killed with SIGKILL and started again.
In the end each message is at both or at none, as was told, and nothing is in doubt or undecided.

    pytest tests/integration/test_commit_processes.py --kill-seconds 60
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clients.deciding import Deciding
from clients.errors import OutcomeUnknown
from coordinator.coordination import ADMIN
from idl import system
from idl.call import Address, limited
from idl.coordination import Mq_TransactionAdmin, SessionEnded
from idl.cos import Status, Vote
from idl.orb import NetworkOrb
from idl.otids import otid_of
from tests.integration.participant import Worker

ROOT = Path(__file__).resolve().parent.parent.parent
CLIENTS = 4
START_S = 20.0
SETTLE_S = 60.0


class Server:
    """A process that is killed and started again, always at the same address."""

    def __init__(self, *command: str) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self.address = Address("127.0.0.1", 0)
        self.start()

    def start(self) -> None:
        """The process listens, where it listened before."""
        where = [str(self.address) if part == "LISTEN" else part for part in self._command]
        where = [str(self.address.port) if part == "PORT" else part for part in where]
        self._process = subprocess.Popen(
            [sys.executable, "-m", *where],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        watchdog = threading.Timer(START_S, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        watchdog.cancel()
        assert "listens on" in told, f"{where} did not start"
        self.address = Address.parse(told.rpartition(" ")[2].strip())

    def kill(self) -> None:
        """The process is gone, without a word."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@dataclass
class Cluster:
    """The three processes."""

    coordinator: Server
    nodes: list[Server]

    @property
    def everybody(self) -> list[Server]:
        """All that can be killed."""
        return [self.coordinator, *self.nodes]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    data = str(tmp_path / "coordinator")
    coordinator = Server(
        "coordinator", "--data", data, "--listen", "LISTEN", "--session-timeout", "3"
    )
    nodes = [
        Server("tests.integration.participant", str(tmp_path / f"node{n}"), "PORT")
        for n in range(2)
    ]
    cluster = Cluster(coordinator, nodes)
    yield cluster
    for server in cluster.everybody:
        server.kill()


@dataclass
class Told:
    """What clients were told, by message."""

    answers: dict[bytes, str] = field(default_factory=dict)
    unknown: dict[bytes, bytes] = field(default_factory=dict)


class Client(threading.Thread):
    """Puts messages at both participants until it is told to stop."""

    def __init__(self, cluster: Cluster, name: str, told: Told, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._orb = NetworkOrb()
        self._deciding = Deciding(
            self._orb, cluster.coordinator.address, time.monotonic, time.sleep
        )
        self._nodes = [node.address for node in cluster.nodes]
        self._workers = [
            self._orb.proxy(f"PYRO:worker@{address}", Worker) for address in self._nodes
        ]
        self._told = told
        self._stop_asked = stop

    def run(self) -> None:
        number = 0
        while not self._stop_asked.is_set():
            number += 1
            message = f"{self.name}-{number}".encode()
            try:
                with limited(5.0):
                    self._put(message)
            except (system.SystemException, SessionEnded):
                time.sleep(0.05)
        self._orb.close()

    def _put(self, message: bytes) -> None:
        if self._deciding.leases.seconds_to_renewal() == 0.0:
            self._deciding.leases.renew()
        gtrid = self._deciding.begin()
        self._told.answers[message] = "unknown"
        self._told.unknown[message] = gtrid
        if all(self._push(number, gtrid, message) for number in range(2)):
            participants = tuple(
                self._deciding.participant(address, gtrid, f"b{number}")
                for number, address in enumerate(self._nodes)
            )
            try:
                outcome = self._deciding.decide(gtrid, participants, 8.0)
            except OutcomeUnknown:
                return
        else:
            try:
                outcome = self._deciding.give_up(gtrid, 8.0)
            except OutcomeUnknown:
                return
        self._told.answers[message] = outcome.status.name

    def _push(self, number: int, gtrid: bytes, message: bytes) -> bool:
        recovery = self._deciding.recovery_of(gtrid, f"b{number}")
        try:
            vote = self._workers[number].push(otid_of(gtrid), f"b{number}", message, recovery)
        except system.SystemException:
            return False
        return vote is Vote.COMMIT


@pytest.mark.thorough
def test_killed_processes_leave_every_transaction_whole(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    seconds = float(request.config.getoption("--kill-seconds", None) or 12.0)
    chance = random.Random(int(time.time()))
    told, stop = Told(), threading.Event()
    clients = [Client(cluster, f"client{n}", told, stop) for n in range(CLIENTS)]
    for client in clients:
        client.start()
    kills, enough = 0, seconds / 4
    deadline = time.monotonic() + seconds
    # A busy machine takes longer to start them again: the kills count, not the seconds.
    latest = deadline + 3 * seconds
    while time.monotonic() < (deadline if kills >= enough else latest):
        time.sleep(chance.uniform(0.2, 1.0))
        victim = chance.choice(cluster.everybody)
        victim.kill()
        kills += 1
        time.sleep(chance.uniform(0.0, 0.3))
        victim.start()
    stop.set()
    for client in clients:
        client.join(60.0)
        assert not client.is_alive()
    _settle(cluster)
    _judge(cluster, told)
    answers = list(told.answers.values())
    committed = answers.count("COMMITTED")
    request.node.user_properties.append(
        ("commit processes", f"{kills} kills, {committed} committed of {len(answers)}")
    )
    assert kills >= enough
    assert committed >= 20


def _settle(cluster: Cluster) -> None:
    """Nothing is in doubt at a participant, and nothing undecided at the coordinator."""
    orb = NetworkOrb()
    admin = orb.proxy(f"PYRO:{ADMIN}@{cluster.coordinator.address}", Mq_TransactionAdmin)
    workers = [orb.proxy(f"PYRO:worker@{node.address}", Worker) for node in cluster.nodes]
    deadline = time.monotonic() + SETTLE_S
    while True:
        left = [*admin.listTransactions(), *(u for w in workers for u in w.unfinished())]
        if not left:
            break
        assert time.monotonic() < deadline, f"not settled: {left}"
        time.sleep(0.2)
    orb.close()


def _judge(cluster: Cluster, told: Told) -> None:
    orb = NetworkOrb()
    workers = [orb.proxy(f"PYRO:worker@{node.address}", Worker) for node in cluster.nodes]
    here, there = (worker.messages() for worker in workers)
    assert len(set(here)) == len(here), "a message is there twice"
    assert set(here) == set(there), "half of a transaction happened"
    for message, answer in told.answers.items():
        if answer == Status.COMMITTED.name:
            assert message in set(here), f"{message!r} was committed and is lost"
        elif answer == Status.ROLLED_BACK.name:
            assert message not in set(here), f"{message!r} was rolled back and is there"
    deciding = Deciding(orb, cluster.coordinator.address, time.monotonic, time.sleep)
    for message, gtrid in told.unknown.items():
        if told.answers[message] == "unknown":
            is_committed = deciding.outcome(gtrid).status is Status.COMMITTED
            assert is_committed == (message in set(here)), f"{message!r}: the outcome is a lie"
    orb.close()
