"""`make demo`: what works so far, shown with real processes. Today: transactions that are whole.

A coordinator runs in a process of its own and is killed with `kill -9` at the worst moments. Two
participants keep what transactions gave them; what the coordinator's death does to that is put into
a table. Queues and Spark join the demo as they come to exist; nothing is shown that does not
happen.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clients.deciding import Deciding, OutcomeUnknown
from idl import system
from idl.call import Address, limited
from idl.coordination import mqParticipant
from idl.cos import NotPrepared, RecoveryCoordinator, Resource, Status, Vote
from idl.mapping import InvalidValue
from idl.orb import NetworkOrb
from idl.otids import split_member

LISTEN = "127.0.0.1:0"
PARTICIPANTS = ("orders", "billing")
MANY = 400
KILLS = 5
SILENT_PEERS = 200
PATIENCE_S = 30.0


class Ledger:
    """What one participant holds: branches that are prepared, and what was committed."""

    def __init__(self, orb: NetworkOrb, name: str) -> None:
        self.name = name
        self.committed: set[bytes] = set()
        self.is_away = False
        self._orb = orb
        self._prepared: dict[bytes, str] = {}
        orb.publish_family(name, self._branch, Resource)

    def vote(self, gtrid: bytes, recovery: str) -> None:
        """The branch is prepared: from here on only the coordinator's word ends it."""
        self._prepared[gtrid] = recovery

    def in_doubt(self) -> int:
        """How many branches wait for the coordinator's word."""
        return len(self._prepared)

    def ask(self) -> None:
        """Asks the coordinator about everything in doubt, as participants do now and then."""
        for gtrid, reference in list(self._prepared.items()):
            whom = self._orb.proxy(reference, RecoveryCoordinator)
            with contextlib.suppress(system.SystemException, NotPrepared):
                status = whom.replay_completion(None)
                if status is Status.COMMITTED:
                    self.end(gtrid, is_committed=True)
                elif status is Status.ROLLED_BACK:
                    self.end(gtrid, is_committed=False)

    def end(self, gtrid: bytes, is_committed: bool) -> None:
        """The branch is over."""
        if self._prepared.pop(gtrid, None) is not None and is_committed:
            self.committed.add(gtrid)

    def _branch(self, rest: str) -> Branch:
        return Branch(self, split_member(rest)[0])


class Branch:
    """One branch of a transaction, as the coordinator calls it. See `Resource`."""

    def __init__(self, ledger: Ledger, gtrid: bytes) -> None:
        self._ledger = ledger
        self._gtrid = gtrid

    def prepare(self) -> Vote:
        """See `Resource.prepare`: here the client has asked for the vote already."""
        return Vote.ROLLBACK

    def commit(self) -> None:
        """See `Resource.commit`."""
        if self._ledger.is_away:
            raise system.TRANSIENT("the participant is away")
        self._ledger.end(self._gtrid, is_committed=True)

    def rollback(self) -> None:
        """See `Resource.rollback`."""
        self._ledger.end(self._gtrid, is_committed=False)

    def commit_one_phase(self) -> None:
        """See `Resource.commit_one_phase`: nobody takes part alone here."""
        raise system.TRANSACTION_ROLLEDBACK()

    def forget(self) -> None:
        """See `Resource.forget`."""


@dataclass
class Demo:
    """The coordinator's process, the participants, and the client."""

    folder: Path
    coordinator: subprocess.Popen[str] | None = None
    address: Address = field(default_factory=lambda: Address.parse(LISTEN))
    orb: NetworkOrb = field(default_factory=lambda: NetworkOrb(Address.parse(LISTEN)))
    ledgers: list[Ledger] = field(default_factory=list)
    kills: int = 0

    def start(self) -> None:
        """The coordinator listens, where it listened before."""
        command = [sys.executable, "-m", "coordinator", "--quiet"]
        command += ["--data", str(self.folder), "--listen", str(self.address)]
        self.coordinator = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.coordinator.stdout is not None
        with self.coordinator.stdout as output:
            told = output.readline()
        self.address = Address.parse(told.rpartition(" ")[2].strip())

    def kill(self) -> None:
        """kill -9."""
        if self.coordinator is not None:
            self.coordinator.kill()
            self.coordinator.wait()
            self.kills += 1

    def client(self) -> Deciding:
        """A client with a session of its own."""
        return Deciding(self.orb, self.address, time.monotonic, time.sleep)

    def prepare(self, client: Deciding) -> tuple[bytes, tuple[mqParticipant, ...]]:
        """A transaction that is prepared at every participant."""
        gtrid = client.begin()
        participants = []
        for ledger in self.ledgers:
            recovery = client.recovery_of(gtrid, ledger.name)
            ledger.vote(gtrid, self.orb.reference_of(recovery))
            branch = self.orb.member(f"{ledger.name}/{gtrid.hex()}", Resource)
            participants.append(mqParticipant(ledger.name, branch, None))
        return gtrid, tuple(participants)

    def where(self, gtrid: bytes) -> str:
        """Who has committed the transaction."""
        names = [ledger.name for ledger in self.ledgers if gtrid in ledger.committed]
        return " and ".join(names) or "nobody"


# --- What is shown -------------------------------------------------------------------------------


def commit_one(demo: Demo) -> str:
    """All vote, the coordinator decides, all commit."""
    client = demo.client()
    gtrid, participants = demo.prepare(client)
    begun = time.perf_counter()
    outcome = client.decide(gtrid, participants, PATIENCE_S)
    milliseconds = (time.perf_counter() - begun) * 1000
    return f"{outcome.status.name}, forced to disk, in {milliseconds:.1f} ms: {demo.where(gtrid)}"


def die_before_the_decision(demo: Demo) -> str:
    """The coordinator dies while everybody is prepared and nothing is decided."""
    client = demo.client()
    gtrid, participants = demo.prepare(client)
    demo.kill()
    doubt = sum(ledger.in_doubt() for ledger in demo.ledgers)
    demo.start()
    for ledger in demo.ledgers:
        ledger.ask()
    late = client.decide(gtrid, participants, PATIENCE_S)
    return (
        f"{doubt} branches in doubt; restarted, they ask and roll back; the late decide hears "
        f"{late.status.name}: {demo.where(gtrid)}"
    )


def die_after_the_decision(demo: Demo) -> str:
    """The decision is forced, no participant can be reached, and the coordinator dies."""
    client = demo.client()
    gtrid, participants = demo.prepare(client)
    for ledger in demo.ledgers:
        ledger.is_away = True
    outcome = client.decide(gtrid, participants, PATIENCE_S)
    before = demo.where(gtrid)
    demo.kill()
    for ledger in demo.ledgers:
        ledger.is_away = False
    demo.start()
    deadline = time.monotonic() + PATIENCE_S
    while any(gtrid not in each.committed for each in demo.ledgers):
        assert time.monotonic() < deadline, "the decision was lost"
        time.sleep(0.01)
    return f"{outcome.status.name}, but at {before}; after the restart: {demo.where(gtrid)}"


def commit_many(demo: Demo) -> str:
    """Transactions, one after the other, while the coordinator is killed again and again."""
    client = demo.client()
    told = {Status.COMMITTED: 0, Status.ROLLED_BACK: 0}
    done = threading.Event()
    killer = threading.Thread(target=_kill_now_and_then, args=(demo, done))
    killer.start()
    names: list[bytes] = []
    while len(names) < MANY or not done.is_set():
        try:
            with limited(5.0):
                gtrid, participants = demo.prepare(client)
                names.append(gtrid)
                told[client.decide(gtrid, participants, PATIENCE_S).status] += 1
        except (system.SystemException, OutcomeUnknown, InvalidValue):
            time.sleep(0.02)
    killer.join()
    for ledger in demo.ledgers:
        ledger.ask()
    held = [ledger.committed & set(names) for ledger in demo.ledgers]
    lost = told[Status.COMMITTED] - len(held[0])
    assert held[0] == held[1], "half of a transaction happened"
    assert lost == 0, f"{lost} committed transactions are lost"
    return (
        f"{len(names)} transactions, {KILLS} kills: {told[Status.COMMITTED]} committed at both, "
        f"{told[Status.ROLLED_BACK]} rolled back at both, 0 lost, 0 halves"
    )


def _kill_now_and_then(demo: Demo, done: threading.Event) -> None:
    for _ in range(KILLS):
        time.sleep(0.3)
        demo.kill()
        demo.start()
    done.set()


def besiege(demo: Demo) -> str:
    """Silent connections, more than stock Pyro5 has places for."""
    with contextlib.ExitStack() as silent:
        for _ in range(SILENT_PEERS):
            peer = socket.create_connection((demo.address.host, demo.address.port), 5.0)
            silent.enter_context(peer)
        begun = time.perf_counter()
        newcomer = demo.client()
        newcomer.outcome(newcomer.begin())
        milliseconds = (time.perf_counter() - begun) * 1000
    return f"a new client is let in and answered after {milliseconds:.0f} ms"


STEPS: list[tuple[str, Callable[[Demo], str]]] = [
    ("one transaction over two participants", commit_one),
    ("kill -9 before the decision", die_before_the_decision),
    ("kill -9 after the decision, with nobody told", die_after_the_decision),
    (f"kill -9, {KILLS} times, under load", commit_many),
    (f"{SILENT_PEERS} connections that never say a word", besiege),
]


@contextlib.contextmanager
def _running() -> Iterator[Demo]:
    with tempfile.TemporaryDirectory(prefix="oncemq-demo-") as folder:
        demo = Demo(Path(folder) / "coordinator")
        demo.ledgers = [Ledger(demo.orb, name) for name in PARTICIPANTS]
        demo.start()
        try:
            yield demo
        finally:
            demo.kill()
            demo.orb.close()


def main() -> None:
    """Runs every step and prints the table."""
    console = Console()
    table = Table(title="OnceMQ so far: a transaction happens once and as a whole, or not at all")
    table.add_column("what happens", max_width=32)
    table.add_column("what comes of it")
    with _running() as demo, console.status("deciding, killing, restarting ..."):
        for what, step in STEPS:
            # Escaped: an answer may have brackets, which Rich would take for markup.
            table.add_row(what, escape(step(demo)), end_section=True)
    console.print(table)
    console.print("Queues and Spark are not here yet: see README.md, 'What exists'.")


if __name__ == "__main__":
    main()
