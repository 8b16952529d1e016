"""Clients of a simulated transaction service, and its operator: what they do, and what they hear.

A client begins a transaction in one of three ways: at the factory, under a name it has leased, or
under a key that others use too. It has work done at some nodes, which register themselves, do so in
a subtransaction, or vote at once; and it ends the transaction, or lets it be. Afterwards it may
still pester: ask again, give up what is decided, send work for what is over. All of it may fail at
any step, and the client may die there; what it was told is in the `Record`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from coordinator.coordination import ADMIN, COORDINATION
from coordinator.interfaces import FACTORY
from coordinator.service import COORDINATOR, TERMINATOR
from idl import system
from idl.call import Principal, Reference, limited
from idl.coordination import (
    Mq_Coordinator,
    Mq_Settler,
    Mq_TransactionAdmin,
    SessionEnded,
    TransactionNotFound,
    mqLease,
    mqParticipant,
    mqTransactionKey,
)
from idl.cos import (
    Control,
    Coordinator,
    HeuristicHazard,
    HeuristicMixed,
    Inactive,
    RecoveryCoordinator,
    Resource,
    Status,
    Terminator,
    TransactionFactory,
    Unavailable,
    Vote,
    otid_t,
)
from idl.mapping import Boolean, String, UserException, interface, operation
from idl.otids import (
    BRANCH,
    RECOVERY,
    SETTLER,
    issue,
    member_name,
    otid_of,
    show,
    split_member,
    split_otid,
)
from mqserver.transactions.resource import branch_id
from tests.simulation.network import SimulatedOrb
from tests.simulation.verdicts import DAMAGE, ROLLBACK, Attempt, Branch, Record, Told
from tests.simulation.world import World

T = TypeVar("T")

SERVICE = "coordinator"
# Whoever shares a key must be the same in the coordinator's eyes.
OWNER = "customer"
APPLICATION = "application"
CALL_S = 3.0
END_S = 25.0
# Longer than a session lives without a sign of life.
ABSENCE_S = 12.0


@interface("Simulated")
class Worker(Protocol):
    """A participant, as a client sees it."""

    @operation(idempotent=True)
    def work(self, otid: otid_t, name: String) -> None:
        """The branch has done something."""

    @operation(idempotent=True)
    def join(
        self, otid: otid_t, name: String, coordinator: Coordinator | None, changes: Boolean
    ) -> None:
        """The branch has done something, and takes part in the transaction."""

    @operation(HeuristicHazard, idempotent=True)
    def push(
        self, otid: otid_t, name: String, recovery: RecoveryCoordinator | None, changes: Boolean
    ) -> Vote:
        """The branch has done something, and votes."""


class Habits(NamedTuple):
    """How often clients do what, as shares."""

    factory: float = 0.35
    key: float = 0.1
    join: float = 0.4
    child: float = 0.2
    read_only: float = 0.12
    several: float = 0.25
    leave_out: float = 0.15
    roll_back: float = 0.1
    walk_away: float = 0.05
    be_absent: float = 0.08
    pester: float = 0.4


class Failed(Exception):
    """Something was not done, or not known to be: the transaction is given up."""


FAILURES = (system.SystemException, UserException)


class Client:
    """Runs transactions, and writes down what it is told."""

    def __init__(
        self, world: World, name: str, nodes: list[str], record: Record, habits: Habits
    ) -> None:
        self._world = world
        self._chance: random.Random = world.random
        self._name = name
        self._record = record
        self._habits = habits
        self._orb = SimulatedOrb(world, name, principal=Principal(OWNER))
        self._lease: mqLease | None = None
        self._drawn = 0
        self._branches = 0
        self._goes = 0
        self._factory = self._at(SERVICE, FACTORY, TransactionFactory)
        self._service = self._at(SERVICE, COORDINATION, Mq_Coordinator)
        self._workers: Mapping[str, Worker] = {
            node: self._at(node, "worker", Worker) for node in nodes
        }

    def run_one(self) -> None:
        """One transaction, as far as it goes."""
        self._goes += 1
        try:
            with limited(CALL_S):
                told = self._begin()
                if told is not None:
                    self._work_and_end(told)
                    while self._happens(self._habits.pester):
                        self._pester(told)
        except FAILURES:
            # What it was told until then is written down; the rest is for recovery.
            return

    def _at(self, host: str, name: str, interface: type[T]) -> T:
        return self._orb.proxy(f"PYRO:{name}@{host}:7000", interface)

    def _of(self, family: str, gtrid: bytes, interface: type[T]) -> T:
        return self._at(SERVICE, member_name(family, gtrid), interface)

    def _happens(self, share: float) -> bool:
        return self._chance.random() < share

    # --- Beginning

    def _begin(self) -> Told | None:
        draw = self._chance.random()
        if draw < self._habits.key:
            return self._begin_under_key()
        if draw < self._habits.key + self._habits.factory:
            control = self._factory.create(self._chance.choice((4, 30)))
            return self._note(self._gtrid_of(control))
        return self._note(self._draw())

    def _begin_under_key(self) -> Told | None:
        version = self._chance.choice((1, 1, 2))
        key = mqTransactionKey(APPLICATION, version)
        begun = self._service.beginOrJoin(self._session(), key, self._chance.choice((5, 30)))
        if begun.status is Status.COMMITTED:
            self._record.versions.append(version)
            self._world.note("transaction", self._name, "is committed", version)
            return None
        return self._note(split_otid(begun.otid)[0], version)

    def _gtrid_of(self, control: Control) -> bytes:
        name = Reference.parse(self._orb.reference_of(control)).name
        return split_member(name.partition("/")[2])[0]

    def _draw(self) -> bytes:
        self._session()
        lease = self._lease
        assert lease is not None
        self._drawn += 1
        return issue(lease.prefix, lease.secret, lease.first + self._drawn)

    def _session(self) -> int:
        """A session that has just given a sign of life."""
        if self._lease is not None:
            try:
                self._service.renew(self._lease.session, ())
            except SessionEnded:
                self._lease = None
        if self._lease is None or self._happens(0.1):
            session = 0 if self._lease is None else self._lease.session
            self._lease = self._service.lease(session, 0)
            self._drawn = 0
        return self._lease.session

    def _note(self, gtrid: bytes, version: int = 0) -> Told:
        told = self._record.told.setdefault(gtrid, Told(gtrid, version))
        self._world.note("transaction", self._name, show(gtrid), version)
        return told

    # --- Working and ending

    def _work_and_end(self, told: Told) -> None:
        nodes = list(self._workers)
        chosen = self._chance.sample(nodes, self._chance.randint(1, len(nodes)))
        try:
            attempt = self._work(told, chosen)
        except (Failed, *FAILURES):
            self._roll_back(told)
            return
        if told.version:
            # Time for others to join in.
            self._world.sleep(self._chance.uniform(0.0, 2.0))
        if self._happens(self._habits.be_absent):
            self._world.sleep(ABSENCE_S)
        if self._happens(self._habits.walk_away):
            return
        if self._happens(self._habits.roll_back):
            self._roll_back(told)
            if self._happens(0.7):
                return
            # Another thread of the client does not know, and decides.
        told.attempts.append(attempt)
        self._commit(told, attempt)

    def _work(self, told: Told, nodes: list[str]) -> Attempt:
        counting: set[Branch] = set()
        participants: list[mqParticipant] = []
        for node in nodes:
            if self._happens(self._habits.join):
                counting |= self._join(told, node)
            else:
                # Several of one node are told to commit with one call.
                for _ in range(3 if self._happens(self._habits.several) else 1):
                    self._push(told, node, counting, participants)
        is_standard = not participants and self._happens(0.7)
        return Attempt(self._go(), frozenset(counting), tuple(participants), is_standard)

    def _join(self, told: Told, node: str) -> set[Branch]:
        """The branches that count from now on: this one, or none."""
        gtrid = told.gtrid
        changes = not self._happens(self._habits.read_only)
        if not self._happens(self._habits.child):
            branch = self._joined(told, node, gtrid, changes)
            return {branch} if changes else set()
        child = self._gtrid_of(self._of(COORDINATOR, gtrid, Coordinator).create_subtransaction())
        branch = self._joined(told, node, child, changes)
        terminator = self._of(TERMINATOR, child, Terminator)
        if self._happens(0.3):
            terminator.rollback()
            told.registered.pop(branch, None)
            return set()
        terminator.commit(True)
        return {branch} if changes else set()

    def _joined(self, told: Told, node: str, gtrid: bytes, changes: bool) -> Branch:
        name, branch = self._name_branch(told, node, gtrid, changes)
        if changes:
            told.registered[branch] = self._go()
        coordinator = self._of(COORDINATOR, gtrid, Coordinator)
        self._workers[node].join(otid_of(gtrid), name, coordinator, changes)
        return branch

    def _push(
        self, told: Told, node: str, counting: set[Branch], participants: list[mqParticipant]
    ) -> None:
        changes = not self._happens(self._habits.read_only)
        name, branch = self._name_branch(told, node, told.gtrid, changes)
        vote = self._pushed(told.gtrid, node, name, changes)
        if vote is Vote.READ_ONLY or self._happens(self._habits.leave_out):
            # One that was left out looks complete, and is not named: it must be rolled back.
            return
        if vote is not Vote.COMMIT:
            raise Failed
        counting.add(branch)
        participants.append(self._participant(told.gtrid, node, name))

    def _pushed(self, gtrid: bytes, node: str, name: str, changes: bool) -> Vote:
        recovery = self._at(SERVICE, member_name(RECOVERY, gtrid, name), RecoveryCoordinator)
        return self._workers[node].push(otid_of(gtrid), name, recovery, changes)

    def _participant(self, gtrid: bytes, node: str, name: str) -> mqParticipant:
        resource = self._at(node, member_name(BRANCH, gtrid, name), Resource)
        return mqParticipant(name, resource, self._at(node, SETTLER, Mq_Settler))

    def _name_branch(
        self, told: Told, node: str, gtrid: bytes, changes: bool
    ) -> tuple[str, Branch]:
        self._branches += 1
        # Another life of this client may be in the same transaction, under a key.
        name = f"{self._life()}.{self._branches}"
        branch = Branch(node, branch_id(gtrid, name))
        if changes:
            told.branches[branch] = None
        return name, branch

    def _life(self) -> str:
        return f"{self._name}.{self._world.host(self._name).life.number}"

    def _go(self) -> str:
        return f"{self._life()} {self._goes}"

    def _commit(self, told: Told, attempt: Attempt) -> None:
        if attempt.is_standard:
            self._hear(told, lambda: self._commit_standard(told))
            return
        for _ in range(self._chance.choice((1, 2, 20))):
            if self._hear(told, lambda: self._decide(told, attempt)):
                return
            # Lost, and asked again: the answer is the same, or there is none.
            self._world.sleep(1.0)

    def _hear(self, told: Told, ask: Callable[[], Status]) -> bool:
        """Asks, and writes down what is said; whether there was an answer."""
        try:
            with limited(END_S):
                told.hear(ask())
        except (HeuristicMixed, HeuristicHazard):
            told.answers.append(DAMAGE)
        except system.TRANSACTION_ROLLEDBACK:
            told.answers.append(ROLLBACK)
        except system.INVALID_TRANSACTION:
            return True
        except system.SystemException:
            return False
        return True

    def _commit_standard(self, told: Told) -> Status:
        self._of(TERMINATOR, told.gtrid, Terminator).commit(self._happens(0.8))
        return Status.COMMITTED

    def _decide(self, told: Told, attempt: Attempt) -> Status:
        return self._service.decide(otid_of(told.gtrid), attempt.participants).status

    def _roll_back(self, told: Told) -> None:
        if self._happens(0.5):
            self._hear(told, lambda: self._service.giveUp(otid_of(told.gtrid)).status)
        else:
            self._hear(told, lambda: self._roll_back_standard(told))

    def _roll_back_standard(self, told: Told) -> Status:
        self._of(TERMINATOR, told.gtrid, Terminator).rollback()
        return Status.ROLLED_BACK

    # --- Afterwards

    def _pester(self, told: Told) -> None:
        match self._chance.randrange(6):
            case 0:
                self._roll_back(told)
            case 1:
                self._hear(told, lambda: self._service.getOutcome(otid_of(told.gtrid)).status)
            case 2 if told.attempts:
                attempt = told.attempts[-1]
                self._hear(told, lambda: self._decide(told, attempt))
            case 3 if told.version:
                self._record.versions.append(self._service.getVersion(APPLICATION))
            case 4 if self._lease is not None:
                self._service.endSession(self._lease.session)
            case _:
                self._work_late(told)

    def _work_late(self, told: Told) -> None:
        """Work of a transaction that may be over comes late, at an old branch or at a new one."""
        own = [branch for branch in told.branches if branch.id.startswith(told.gtrid)]
        if own and self._happens(0.5):
            branch = self._chance.choice(own)
            name = branch.id.removeprefix(told.gtrid).decode()
            self._workers[branch.node].work(otid_of(told.gtrid), name)
        else:
            node = self._chance.choice(list(self._workers))
            name, _ = self._name_branch(told, node, told.gtrid, changes=True)
            self._pushed(told.gtrid, node, name, changes=True)


class Operator:
    """Ends transactions at the coordinator that take long, or gives up their participants."""

    def __init__(self, world: World, name: str, record: Record) -> None:
        self._world = world
        self._record = record
        orb = SimulatedOrb(world, name)
        self._admin = orb.proxy(f"PYRO:{ADMIN}@{SERVICE}:7000", Mq_TransactionAdmin)

    def work(self) -> None:
        """As long as something can go wrong."""
        while self._world.faults.described() != "none":
            self._world.sleep(self._world.random.uniform(0.5, 4.0))
            try:
                with limited(CALL_S):
                    self._look()
            except (system.SystemException, TransactionNotFound, Inactive, Unavailable):
                continue

    def _look(self) -> None:
        for info in self._admin.listTransactions():
            if self._world.random.random() < 0.6:
                continue
            gtrid = split_otid(info.otid)[0]
            if info.status is Status.COMMITTING:
                self._record.given_up[gtrid] = None
                self._admin.forgetTransaction(info.otid)
                continue
            outcome = self._admin.rollbackTransaction(info.otid)
            if gtrid in self._record.told:
                self._record.told[gtrid].hear(outcome.status)
