"""What two-phase commit costs: two participants under our coordinator, against the bare limit.

A transaction prepares both participants at once, has the coordinator decide, and is over when both
have committed: three round trips one behind the other, and one forced write. The limit is just
that: three calls through stock Pyro5 and one `fdatasync` of a block in a file that was written in
full before. The participants keep their branches in memory, so that nothing else is measured. All
of them are processes of their own on the loopback interface.

As a program, `python -m benchmarks.coordinator`, the module is a participant, which writes where it
listens to standard output, or a client, which runs its share for each line of its input; both end
with their standard input.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.bare import BareTwoPhase
from benchmarks.measure import Bar, Comparison, Setting
from benchmarks.orb import PYRO, OverPyro, ServerProcess
from benchmarks.stock import StockTwoPhase
from clients.deciding import Deciding
from idl import memory
from idl.call import Address
from idl.cos import RecoveryCoordinator, Status, Vote, otid_t
from idl.mapping import String, interface, operation
from idl.orb import NetworkOrb
from idl.otids import otid_of, split_otid
from idl.proxies import started
from idl.turns import prompt
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.resource import Resources, branch_id, prepare

HOST = "127.0.0.1"
PARTICIPANTS = 2
ROUND_TRIPS = 3
MANY_CLIENTS = 8
RATIO_MAX = 1.6
SCALING_MIN = 1.8
MANY_BRANCHES, FEW_BRANCHES = 6_000, 600
LINEAR_MAX = 1.2
SHARE = 20
PATIENCE_S = 30.0
BLOCK = bytes(512)
BLOCKS = 8192

OURS = "OnceMQ, two participants"
LIMIT = f"{ROUND_TRIPS} {PYRO} round trips + 1 fdatasync"


def comparisons(setting: Setting) -> list[Comparison]:
    """What this benchmark compares."""
    return [
        Comparison(
            title="two-phase commit, two participants, one client",
            subjects=(
                TwoPhase(setting.scratch / "one"),
                BareTwoPhase(setting.scratch / "bare"),
                StockTwoPhase(setting.scratch / "stock"),
                _Limit(setting.scratch),
            ),
            baseline=LIMIT,
            bars=(Bar(OURS, LIMIT, RATIO_MAX),),
        ),
        Comparison(
            title=f"{SHARE} transactions for each client process",
            subjects=(
                ClientProcesses(setting.scratch / "several", MANY_CLIENTS),
                ClientProcesses(setting.scratch / "single", 1),
            ),
            baseline=_clients(1),
            # So many times the work in so many times the time: the rest is the gain.
            bars=(Bar(_clients(MANY_CLIENTS), _clients(1), MANY_CLIENTS / SCALING_MIN),),
            calls=5,
        ),
        Comparison(
            title="a transaction with many branches at one node",
            subjects=(
                ManyBranches(setting.scratch / "many", MANY_BRANCHES),
                ManyBranches(setting.scratch / "few", FEW_BRANCHES),
            ),
            baseline=_branches(FEW_BRANCHES),
            # The same for each branch, however many there are.
            bars=(
                Bar(
                    _branches(MANY_BRANCHES),
                    _branches(FEW_BRANCHES),
                    LINEAR_MAX * MANY_BRANCHES / FEW_BRANCHES,
                ),
            ),
            calls=2,
        ),
    ]


# --- A participant -------------------------------------------------------------------------------


@interface("Benchmarks")
class Worker(Protocol):
    """Does something in a branch, and votes: one push-down."""

    @operation(idempotent=True)
    def push(self, otid: otid_t, name: String, recovery: RecoveryCoordinator | None) -> Vote:
        """The branch has put a message, and is prepared."""

    @operation(idempotent=True)
    def pushMany(
        self, otid: otid_t, names: tuple[String, ...], recovery: RecoveryCoordinator | None
    ) -> None:
        """So have all of these."""


class _WorkerServant:
    def __init__(self, orb: NetworkOrb, storage: MemoryStorage) -> None:
        self._orb = orb
        self._storage = storage

    @prompt
    def push(self, otid: otid_t, name: str, recovery: RecoveryCoordinator | None) -> Vote:
        branch = branch_id(split_otid(otid)[0], name)
        self._storage.raise_mark(branch, "benchmark", 1)
        assert recovery is not None
        return prepare(self._storage, branch, self._orb.reference_of(recovery).encode())

    def pushMany(
        self, otid: otid_t, names: tuple[str, ...], recovery: RecoveryCoordinator | None
    ) -> None:
        for name in names:
            assert self.push(otid, name, recovery) is Vote.COMMIT


def _serve_participant() -> None:
    # As a node does.
    memory.look_for_rings_seldom()
    memory.keep_what_is_free()
    orb = NetworkOrb(Address(HOST, 0), takes_turns=True)
    storage = MemoryStorage(time.monotonic)
    Resources(orb, storage).publish()
    orb.publish(_WorkerServant(orb, storage), Worker, "worker")
    sys.stdout.write(f"{orb.address}\n")
    sys.stdout.flush()
    # Whoever started this participant holds the other end, and lets go of it even when killed.
    sys.stdin.read()


# --- The ways ------------------------------------------------------------------------------------


class _Client:
    """Runs transactions over the participants, in the fast way."""

    def __init__(self, coordinator: Address, nodes: list[Address]) -> None:
        self._orb = NetworkOrb()
        self._nodes = nodes
        self._deciding = Deciding(self._orb, coordinator, time.monotonic, time.sleep)
        self._workers = [self._orb.proxy(f"PYRO:worker@{node}", Worker) for node in nodes]

    def close(self) -> None:
        self._orb.close()

    def keep_alive(self) -> None:
        """A sign of life when one is due: a session that is silent for long is over."""
        leases = self._deciding.leases
        if not leases.seconds_to_renewal():
            leases.renew()

    def transact(self) -> None:
        """One transaction, committed."""
        gtrid = self._deciding.begin()
        names = [f"b{number}" for number in range(PARTICIPANTS)]
        # Both are asked before either answer is waited for.
        votes = [self._push(number, gtrid, name) for number, name in enumerate(names)]
        participants = tuple(
            self._deciding.participant(node, gtrid, name)
            for node, name in zip(self._nodes, names, strict=True)
        )
        assert all(vote() is Vote.COMMIT for vote in votes)
        outcome = self._deciding.decide(gtrid, participants, PATIENCE_S)
        assert outcome.status is Status.COMMITTED, outcome

    def transact_many(self, count: int) -> None:
        """One transaction with so many branches at the first participant, committed."""
        gtrid = self._deciding.begin()
        names = tuple(f"b{number}" for number in range(count))
        recovery = self._deciding.recovery_of(gtrid, names[0])
        self._workers[0].pushMany(otid_of(gtrid), names, recovery)
        node = self._nodes[0]
        participants = tuple(self._deciding.participant(node, gtrid, name) for name in names)
        outcome = self._deciding.decide(gtrid, participants, PATIENCE_S)
        assert outcome.status is Status.COMMITTED, outcome

    def _push(self, number: int, gtrid: bytes, name: str) -> Callable[[], Vote]:
        worker, recovery = self._workers[number], self._deciding.recovery_of(gtrid, name)
        arguments = (otid_of(gtrid), name, recovery)
        return started(worker.push, *arguments) or partial(worker.push, *arguments)


class _Servers:
    """A coordinator and its participants, in processes of their own."""

    def __init__(self, folder: Path) -> None:
        participant = ("benchmarks.coordinator", "participant")
        self._processes = [ServerProcess(*participant) for _ in range(PARTICIPANTS)]
        self.nodes = [Address.parse(each.announced) for each in self._processes]
        data = ["--quiet", "--data", str(folder), "--listen", f"{HOST}:0"]
        self._processes.append(ServerProcess("coordinator", *data))
        self.coordinator = Address.parse(self._processes[-1].announced.rpartition(" ")[2])
        self.coordinator_pid = self._processes[-1].pid

    def stop(self) -> None:
        for process in self._processes:
            process.stop()


class TwoPhase:
    """A transaction over two participants. See `Subject`."""

    name = OURS

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self) -> None:
        """See `Subject.start`."""
        self._servers = _Servers(self._folder)
        self._client = _Client(self._servers.coordinator, self._servers.nodes)

    def stop(self) -> None:
        """See `Subject.stop`."""
        self._client.close()
        self._servers.stop()

    def one_call(self) -> None:
        """See `Subject.one_call`."""
        self._client.transact()


class ManyBranches:
    """A transaction with so many branches at one participant. See `Subject`."""

    def __init__(self, folder: Path, count: int) -> None:
        self.name = _branches(count)
        self._folder = folder
        self._count = count

    def start(self) -> None:
        """See `Subject.start`."""
        self._servers = _Servers(self._folder)
        self._client = _Client(self._servers.coordinator, self._servers.nodes)

    def stop(self) -> None:
        """See `Subject.stop`."""
        self._client.close()
        self._servers.stop()

    def one_call(self) -> None:
        """See `Subject.one_call`."""
        self._client.transact_many(self._count)


class ClientProcesses:
    """So many client processes, each of which runs its share of transactions. See `Subject`."""

    def __init__(self, folder: Path, count: int) -> None:
        self.name = _clients(count)
        self._folder = folder
        self._count = count

    def start(self) -> None:
        """See `Subject.start`."""
        self._servers = _Servers(self._folder)
        self.coordinator_pid = self._servers.coordinator_pid
        where = [str(a) for a in (self._servers.coordinator, *self._servers.nodes)]
        self._processes = [
            ServerProcess("benchmarks.coordinator", "client", *where) for _ in range(self._count)
        ]

    def stop(self) -> None:
        """See `Subject.stop`."""
        for process in self._processes:
            process.stop()
        self._servers.stop()

    def one_call(self) -> None:
        """See `Subject.one_call`: all of them at once, and until the last has finished."""
        for process in self._processes:
            process.say("go")
        for process in self._processes:
            process.listen()


def _clients(count: int) -> str:
    return f"{count} client process{'es' if count > 1 else ''}"


def _branches(count: int) -> str:
    return f"{count:,} branches"


def _be_client(coordinator: str, *nodes: str) -> None:
    client = _Client(Address.parse(coordinator), [Address.parse(node) for node in nodes])
    client.transact()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while sys.stdin.readline():
        client.keep_alive()
        for _ in range(SHARE):
            client.transact()
        sys.stdout.write("done\n")
        sys.stdout.flush()
    client.close()


class _Limit:
    name = LIMIT

    def __init__(self, folder: Path) -> None:
        self._path = folder / "limit"
        self._calls = OverPyro(b"", None)

    def start(self) -> None:
        self._calls.start()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._fd, BLOCK * BLOCKS, 0)
        os.fsync(self._fd)
        self._next = 0

    def stop(self) -> None:
        self._calls.stop()
        os.close(self._fd)

    def one_call(self) -> None:
        for _ in range(ROUND_TRIPS):
            self._calls.one_call()
        os.pwrite(self._fd, BLOCK, self._next % BLOCKS * len(BLOCK))
        os.fdatasync(self._fd)
        self._next += 1


if __name__ == "__main__":
    if sys.argv[1] == "client":
        _be_client(*sys.argv[2:])
    else:
        _serve_participant()
