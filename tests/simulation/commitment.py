"""A whole transaction service in one world: coordinator, participants, clients, operators, faults.

Everything but the outside world is the real thing: the coordinator with its log, the resources of
the participants, the orbs' rules. `run` is one run: faults, then calm; when everything has come to
rest, all is asked once more, also of a coordinator that was started anew, and `verdicts.py` judges.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from coordinator import coordination, interfaces
from coordinator.coordination import CoordinationServant
from coordinator.decision_log import DecisionLog
from coordinator.ledger import Decision
from coordinator.live import Settings
from coordinator.service import Service
from coordinator.tasks import Promise
from idl import system
from idl.call import Call, Principal, limited, serve_within
from idl.cos import Coordinator, HeuristicHazard, HeuristicMixed, Inactive, Status, Vote, otid_t
from idl.cos import RecoveryCoordinator as Recovery
from idl.otids import otid_of, split_otid
from mqserver.errors import BranchEnded, StorageFull
from mqserver.storage.contract import Outcome
from mqserver.transactions.orphans import AskingTimes, Orphans
from mqserver.transactions.resource import Resources, branch_id, prepare
from tests.simulation.branches import BranchDisk, BranchStorage
from tests.simulation.customers import (
    APPLICATION,
    CALL_S,
    OWNER,
    SERVICE,
    Client,
    Habits,
    Operator,
    Worker,
)
from tests.simulation.disk import SimulatedDisk
from tests.simulation.network import SimulatedOrb
from tests.simulation.verdicts import DAMAGE, ROLLBACK, Attempt, Branch, Record, Told, judge
from tests.simulation.world import Faults, Unsettled, World

SETTINGS = Settings(
    call_s=2.0,
    answer_s=20.0,
    session_s=8.0,
    settle_s=0.2,
    retry_s=0.3,
    retry_s_max=5.0,
    sweep_s=2.0,
)
TIMES = AskingTimes(first_s=3.0, longest_s=9.0, call_s=2.0, silent_s=15.0)
FAULTY_S = 30.0
CALM_S = 900.0
# What was sent long ago may still arrive.
LATE_S = 15.0
LOOK_S = 1.5


class WorldTasks:
    """The coordinator's tasks as activities of its host. See `Tasks`."""

    def __init__(self, world: World, host: str) -> None:
        self._world = world
        self._host = host
        self._life = world.host(host).life
        self.now = world.now

    def spawn(self, work: Callable[..., object], *arguments: object) -> None:
        """See `Tasks.spawn`."""
        self.after(0.0, work, *arguments)

    def after(self, delay_s: float, work: Callable[..., object], *arguments: object) -> None:
        """See `Tasks.after`."""
        if not self._life.is_over:
            self._world.spawn(self._host, work, *arguments, after_s=delay_s)

    def promise(self) -> Promise:
        """See `Tasks.promise`."""
        return self._world.promise()


class SlowDecisionLog(DecisionLog):
    """A decision log whose forced writes take time, in which others go on; and may be full."""

    def __init__(self, world: World, disk: SimulatedDisk, doings: Doings) -> None:
        self._world = world
        self._doings = doings
        super().__init__(disk, world.random.randbytes, segment_blocks=8, log_bytes_max=4096)

    def decide(self, decision: Decision) -> None:
        """See `DecisionLog.decide`."""
        if self._doings.is_full and self._world.random.random() < 0.3:
            raise StorageFull("simulated", "no room")
        super().decide(decision)

    def _force(self, lsn: int) -> None:
        if self._doings.slow_s:
            self._world.sleep(self._world.random.uniform(0.0, self._doings.slow_s))
        super()._force(lsn)


@dataclass
class Doings:
    """What happens in a run beside the faults, drawn with the seed."""

    participants: int = 2
    clients: int = 1
    transactions: int = 1
    slow_s: float = 0.0
    is_full: bool = False
    has_operators: bool = False
    is_asked_again: bool = False
    habits: Habits = field(default_factory=Habits)


def drawn(world: World) -> Doings:
    """What this seed does."""
    chance = world.random
    # All of them want to do the same thing, under one key.
    is_crowd = chance.random() < 0.15
    return Doings(
        participants=chance.choice((1, 2, 2, 3, 3, 5)),
        clients=chance.choice((2, 3) if is_crowd else (1, 1, 2, 3)),
        transactions=chance.choice((1, 1, 2)),
        slow_s=chance.choice((0.0, 0.0, 0.05, 2.0)),
        is_full=chance.random() < 0.1,
        has_operators=chance.random() < 0.2,
        is_asked_again=chance.random() < 0.25,
        habits=Habits(key=0.9) if is_crowd else Habits(),
    )


class Commitment:
    """The hosts of one run, what is on their disks, and what was told."""

    def __init__(self, world: World, doings: Doings) -> None:
        self.world = world
        self.doings = doings
        self.record = Record()
        self.service: Service | None = None
        self.stores: dict[str, BranchStorage] = {}
        self.disks = {f"node{n}": BranchDisk() for n in range(doings.participants)}
        self._disk = SimulatedDisk(world)
        self._todo = {f"client{n}": doings.transactions for n in range(doings.clients)}

    def boot(self) -> None:
        """Everybody starts, now and after each crash."""
        self.world.boot(SERVICE, self._coordinate)
        for name in self.disks:
            self.world.boot(name, partial(self._participate, name))
        for name in self._todo:
            self.world.boot(name, partial(self._be_client, name))
        if self.doings.has_operators:
            self.world.boot("operator", self._operate)

    # --- The coordinator

    def _coordinate(self) -> None:
        world = self.world
        world.host(SERVICE).at_crash += [self._disk.crash, self._crashed]
        log = self.open_log(self._disk)
        orb = SimulatedOrb(world, SERVICE)
        service = self.make_service(orb, log, WorldTasks(world, SERVICE))
        service.start()
        interfaces.publish(service)
        coordination.publish(service)
        self.service = service

    def _crashed(self) -> None:
        self.service = None

    def open_log(self, disk: SimulatedDisk) -> DecisionLog:
        """The coordinator's log."""
        return SlowDecisionLog(self.world, disk, self.doings)

    def make_service(self, orb: SimulatedOrb, log: DecisionLog, tasks: WorldTasks) -> Service:
        """The coordinator."""
        return Service(orb, log, tasks, self.world.random.randbytes, SETTINGS)

    # --- Participants

    def _participate(self, name: str) -> None:
        world = self.world
        storage = self.open_storage(name)
        self.stores[name] = storage
        world.host(name).at_crash.append(storage.crash)
        orb = SimulatedOrb(world, name)
        resources = self.make_resources(orb, storage)
        resources.publish()
        orb.publish(WorkerServant(orb, resources, storage), Worker, "worker")
        orphans = Orphans(orb, resources, world.now, TIMES)
        orphans.ask_at_once()
        while True:
            due = orphans.ask_those_due()
            if self.doings.has_operators and world.random.random() < 0.3:
                self._decide_by_hand(storage)
            world.sleep(max(due - world.now(), 0.5))

    def open_storage(self, name: str) -> BranchStorage:
        """A participant's storage."""
        return BranchStorage(self.world, self.disks[name], self.doings.slow_s)

    def make_resources(self, orb: SimulatedOrb, storage: BranchStorage) -> Resources:
        """A participant's branches as resources."""
        return Resources(orb, storage)

    def _decide_by_hand(self, storage: BranchStorage) -> None:
        if self.world.faults.described() == "none":
            return
        for info in storage.branches():
            if info.outcome is Outcome.PREPARED:
                is_commit = self.world.random.random() < 0.5
                self.world.note("operator", info.branch, is_commit)
                storage.resolve(info.branch, is_commit)
                return

    # --- Clients

    def _be_client(self, name: str) -> None:
        client = Client(self.world, name, list(self.disks), self.record, self.doings.habits)
        while self._todo[name]:
            begun = self.world.count("transaction")
            client.run_one()
            self._todo[name] -= self.world.count("transaction") > begun
            self.world.sleep(self.world.random.uniform(0.0, 2.0))

    def _operate(self) -> None:
        Operator(self.world, "operator", self.record).work()

    # --- The end

    def is_done(self) -> bool:
        """The clients have done what they wanted."""
        return not any(self._todo.values())

    def is_settled(self) -> bool:
        """Nobody is at work or in doubt, and the coordinator has nothing left to do."""
        service = self.service
        if service is None or not self.is_done() or self._is_anybody_at_work():
            return False
        transactions = service.transactions
        return not (
            transactions.every()
            or service.log.ledger.decisions
            or transactions.sessions.next_deadline() is not None
        )

    def _is_anybody_at_work(self) -> bool:
        return any(store.is_at_work() for store in self.stores.values())

    def ask_again(self) -> None:
        """Everybody repeats their question, and hears what they hear."""
        for told in self.record.told.values():
            self._hear(told, lambda service, otid: service.getOutcome(otid).status)
            for attempt in told.attempts:
                if attempt.is_standard:
                    self._hear(told, self._commit_again)
                else:
                    self._hear(told, partial(_decide_again, attempt))

    def _commit_again(self, service: CoordinationServant, otid: otid_t) -> Status:
        assert self.service is not None
        interfaces.TerminatorServant(self.service, split_otid(otid)[0].hex()).commit(True)
        return Status.COMMITTED

    def _hear(self, told: Told, ask: Callable[[CoordinationServant, otid_t], Status]) -> None:
        assert self.service is not None
        arguments = [CoordinationServant(self.service), otid_of(told.gtrid)]
        try:
            told.hear(serve_within(Call(b"", Principal(OWNER), "here"), ask, arguments))
        except (HeuristicMixed, HeuristicHazard):
            told.answers.append(DAMAGE)
        except system.TRANSACTION_ROLLEDBACK:
            told.answers.append(ROLLBACK)
        except system.INVALID_TRANSACTION:
            # It is not known any more, and that is what is said.
            return

    def judge(self) -> None:
        """What was told is what happened, everywhere."""
        assert self.service is not None
        ledger = self.service.log.ledger
        notes = {gtrid: each.values() for gtrid, each in ledger.heuristics.items()}
        judge(self.record, self.disks, notes, ledger.marks.get(APPLICATION, 0), self._is_shown)

    def _is_shown(self, branch: Branch) -> bool:
        return any(info.branch == branch.id for info in self.stores[branch.node].branches())


def _decide_again(attempt: Attempt, service: CoordinationServant, otid: otid_t) -> Status:
    return service.decide(otid, attempt.participants).status


class WorkerServant:
    """See `Worker`."""

    def __init__(self, orb: SimulatedOrb, resources: Resources, storage: BranchStorage) -> None:
        self._orb = orb
        self._resources = resources
        self._storage = storage

    def work(self, otid: otid_t, name: str) -> None:
        self._begin(otid, name, True)

    def join(self, otid: otid_t, name: str, coordinator: Coordinator | None, changes: bool) -> None:
        assert coordinator is not None
        branch = self._begin(otid, name, changes)
        gtrid, _ = split_otid(otid)
        own = self._resources.resource_of(gtrid, name, is_lazy=False)
        with limited(CALL_S):
            try:
                self._resources.registered(branch, coordinator.register_resource(own))
            except Inactive:
                raise system.TRANSACTION_ROLLEDBACK("it is being ended") from None

    def push(self, otid: otid_t, name: str, recovery: Recovery | None, changes: bool) -> Vote:
        assert recovery is not None
        try:
            branch = self._begin(otid, name, changes)
        except system.TRANSACTION_ROLLEDBACK:
            branch = branch_id(split_otid(otid)[0], name)
        return prepare(self._storage, branch, self._orb.reference_of(recovery).encode())

    def _begin(self, otid: otid_t, name: str, changes: bool) -> bytes:
        branch = branch_id(split_otid(otid)[0], name)
        try:
            self._storage.begin(branch, changes)
        except BranchEnded as ended:
            raise system.TRANSACTION_ROLLEDBACK("the branch is over") from ended
        return branch


# --- Running -------------------------------------------------------------------------------------


def run(
    seed: int,
    make: Callable[[World, Doings], Commitment] = Commitment,
    faults: Faults | None = None,
    doings: Doings | None = None,
) -> Commitment:
    """One run. What is not given is drawn with the seed."""
    with World.swarm(seed) if faults is None else World(seed, faults) as world:
        with servants_succeed(world):
            everything = make(world, drawn(world) if doings is None else doings)
            _live(world, everything)
        everything.judge()
    return everything


def _live(world: World, everything: Commitment) -> None:
    everything.boot()
    wait_until(world, everything.is_done, FAULTY_S)
    # Who recovers meets with the same faults, for a while.
    world.run(until=world.now() + world.random.choice((0.0, 4.0, 10.0)))
    world.calm()
    _settle(world, everything)
    world.run(until=world.now() + LATE_S)
    _settle(world, everything)
    if everything.doings.is_asked_again:
        _ask_again(world, everything)
        world.restart(SERVICE)
        _settle(world, everything)
        _ask_again(world, everything)


class _Failures(logging.Handler):
    """What servants have failed with, which their callers only know as UNKNOWN."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self.found: list[BaseException] = []
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        life = self._world.living()
        # What a dead process stumbles over while it is unwound happens to nobody.
        if record.exc_info and record.exc_info[1] and (life is None or not life.is_over):
            self.found.append(record.exc_info[1])


@contextlib.contextmanager
def servants_succeed(world: World) -> Iterator[None]:
    """Raises at the end what a servant has failed with, if one has."""
    log, failures = logging.getLogger("oncemq.orb"), _Failures(world)
    log.addHandler(failures)
    try:
        yield
    finally:
        log.removeHandler(failures)
        if failures.found:
            raise failures.found[0]


def _ask_again(world: World, everything: Commitment) -> None:
    world.spawn(SERVICE, everything.ask_again).join()


def _settle(world: World, everything: Commitment) -> None:
    if not wait_until(world, everything.is_settled, CALM_S):
        raise Unsettled(f"seed {world.seed}: it has not come to rest by {world.now():.3f} s")


def wait_until(world: World, condition: Callable[[], bool], within_s: float) -> bool:
    """Goes on until the condition holds, looking now and then; says whether it does."""
    end = world.now() + within_s
    while not condition():
        if world.now() >= end:
            return False
        world.run(until=world.now() + LOOK_S)
    return True
