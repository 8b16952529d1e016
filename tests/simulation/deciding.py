"""Transactions that a node decides, in one world: coordinator, nodes, owners, faults.

Everything but the outside world is the real thing: what a node has decided and forgets, its
branches at work and in doubt, the servants through which it is asked, the coordinator that asks it
for others. Where branches begin with gets, what the owner was given must be gone with its branch.
`run` is one run: faults, then calm. When everything has come to rest no branch is in doubt and no
mark is left, and `verdicts.py` judges; then everybody is started anew, and it judges again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast
from unittest import mock

from coordinator import coordination, interfaces
from coordinator.database_objects import open_databases
from coordinator.service import Service
from idl import turns
from idl.call import Call, current_call
from idl.cos import Status
from idl.decider import DECIDER, Mq_Decider
from idl.mq import mqBranch, mqCompletion, mqWorkList
from idl.otids import split_otid
from mqserver.errors import StorageError
from mqserver.interfaces.decider import DeciderServant
from mqserver.interfaces.node import NodeServant
from mqserver.interfaces.parts import Parts
from mqserver.interfaces.translation import translating
from mqserver.transactions import work
from mqserver.transactions.decisions import MARK, Decisions
from mqserver.transactions.orphans import Orphans
from mqserver.transactions.requests import Branch, Done
from mqserver.transactions.resource import Resources, branch_id
from mqserver.transactions.settling import Settling, SettlingTimes
from mqserver.transactions.work import Work
from tests.simulation.branches import COMMITTED
from tests.simulation.commitment import (
    CALM_S,
    LATE_S,
    SETTINGS,
    TIMES,
    Doings,
    SlowDecisionLog,
    WorldTasks,
    servants_succeed,
    wait_until,
)
from tests.simulation.customers import SERVICE
from tests.simulation.deciding_storage import MarkDisk, MarkStorage
from tests.simulation.disk import SimulatedDisk
from tests.simulation.network import SimulatedOrb
from tests.simulation.owners import WORKING, Owner, Ways, Working
from tests.simulation.verdicts import Record, Violation, judge
from tests.simulation.world import Faults, Unsettled, World

SETTLING = SettlingTimes(after_s=1.0, again_s=3.0, call_s=5.0)
FAULTY_S = 60.0
PAUSE_S = 0.5
# How long somebody waits for a lock before looking again: nobody may wait in real time here.
LOOK_S = 0.05


def drawn(world: World) -> Doings:
    """What this seed does."""
    chance = world.random
    return Doings(
        participants=chance.choice((2, 2, 3, 4)),
        clients=chance.choice((1, 1, 2)),
        transactions=chance.choice((1, 2)),
        slow_s=chance.choice((0.0, 0.0, 0.05, 2.0)),
        is_asked_again=chance.random() < 0.5,
    )


class LivingNode(NamedTuple):
    """What a node has in memory and on its disk."""

    storage: MarkStorage
    decisions: Decisions

    def is_at_rest(self) -> bool:
        """No branch is at work or in doubt, and no mark is left."""
        is_marked = len(self.decisions) or self.storage.kept(MARK)
        return not (is_marked or self.storage.is_at_work())


class Deciding:
    """The hosts of one run, what is on their disks, and what was told."""

    def __init__(self, world: World, doings: Doings, ways: Ways, lost_commits: float = 0.0) -> None:
        self.world = world
        self.doings = doings
        self.ways = ways
        # The share of commits of which a node's storage does not say whether they happened.
        self.lost_commits = lost_commits
        self.record = Record()
        self.service: Service | None = None
        self.nodes: dict[str, LivingNode] = {}
        self.disks = {f"node{n}": MarkDisk() for n in range(doings.participants)}
        self._disk = SimulatedDisk(world)
        self._todo = {f"owner{n}": doings.transactions for n in range(doings.clients)}

    def boot(self) -> None:
        """Everybody starts, now and after each crash."""
        self.world.boot(SERVICE, self._coordinate)
        for name in self.disks:
            self.world.boot(name, partial(self._serve, name))
        for name in self._todo:
            self.world.boot(name, partial(self._own, name))

    def _coordinate(self) -> None:
        world = self.world
        world.host(SERVICE).at_crash += [self._disk.crash, self._crashed]
        log = SlowDecisionLog(world, self._disk, self.doings)
        orb = SimulatedOrb(world, SERVICE)
        chance = world.random.randbytes
        service = Service(orb, log, WorldTasks(world, SERVICE), chance, SETTINGS)
        databases = open_databases(service, self._disk, chance)
        service.start()
        interfaces.publish(service)
        coordination.publish(service, databases)
        self.service = service

    def _crashed(self) -> None:
        self.service = None

    def _serve(self, name: str) -> None:
        """A node, composed and looked after as `mqserver/node.py` does it."""
        world = self.world
        storage = MarkStorage(world, self.disks[name], self.doings.slow_s, self.lost_commits)
        world.host(name).at_crash.append(storage.crash)
        orb = SimulatedOrb(world, name)
        resources = Resources(orb, cast(Any, storage))
        orphans = Orphans(orb, resources, world.now, TIMES)
        node_work = Work(cast(Any, storage), world.now, orphans.heard_of)
        storage.at_end = node_work.has_ended
        decisions = Decisions(cast(Any, storage), world.now, partial(world.random.randbytes, 16))
        decisions.load()
        settling = Settling(orb, decisions, world.now, SETTLING)
        resources.publish()
        _publish(orb, storage, node_work, decisions)
        self.nodes[name] = LivingNode(storage, decisions)
        orphans.ask_at_once()
        while True:
            due = orphans.ask_those_due()
            if decisions:
                with contextlib.suppress(StorageError):
                    settling.settle()
            world.sleep(max(min(due - world.now(), SETTLING.after_s), PAUSE_S))

    def _own(self, name: str) -> None:
        owner = Owner(self.world, name, list(self.disks), self.record, self.ways)
        self.world.spawn(name, owner.live, lambda: not self._todo[name])
        while self._todo[name]:
            begun = self.world.count("transaction")
            owner.run_one()
            self._todo[name] -= self.world.count("transaction") > begun and self._todo[name] > 0
            self.world.sleep(self.world.random.uniform(0.0, 2.0))

    # --- The end

    def is_done(self) -> bool:
        """The owners have done what they wanted."""
        return not any(self._todo.values())

    def is_settled(self) -> bool:
        """Nobody is at work or in doubt, no mark is left, and the coordinator has nothing to do."""
        service = self.service
        if service is None or not self.is_done():
            return False
        is_busy = service.transactions.every() or service.log.ledger.decisions
        is_watching = service.transactions.sessions.next_deadline() is not None
        return not (is_busy or is_watching) and all(
            node.is_at_rest() for node in self.nodes.values()
        )

    def judge(self) -> None:
        """What was told is what happened, everywhere."""
        assert self.service is not None
        ledger = self.service.log.ledger
        notes = {gtrid: each.values() for gtrid, each in ledger.heuristics.items()}
        judge(self.record, self.disks, notes, 0, lambda branch: False)
        for branch, item in self.record.given.items():
            disk = self.disks[branch.node]
            if disk.end_of(branch.id) in COMMITTED and disk.got(branch.id) != [item]:
                told = f"{item} was given to {branch.node}/{branch.id.hex()}, which has committed"
                raise Violation(f"{told} {disk.got(branch.id)}")


class NodeParts:
    """What the servants of a node share. See `Parts`."""

    def __init__(self, orb: SimulatedOrb, storage: MarkStorage, node_work: Work) -> None:
        self.orb = orb
        self.storage = storage
        self.work = node_work
        self.running: list[int] = []

    def entered(self) -> Call:
        """See `Parts.entered`."""
        return current_call()


class WorkingServant:
    """See `Working`, and of `NodeServant` what the decider needs."""

    _translated = translating(Working)

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts

    def branch_id(self, branch: mqBranch) -> bytes:
        """See `NodeServant.branch_id`."""
        return branch_id(split_otid(branch.otid)[0], branch.name)

    @_translated
    def work(self, branch: mqBranch) -> None:
        owner = self._parts.entered().principal.name
        self._parts.work.request(self.branch_id(branch), owner, 1, "work", self._do)

    @_translated
    def get(self, branch: mqBranch) -> int:
        owner = self._parts.entered().principal.name
        item = self._parts.work.request(self.branch_id(branch), owner, 1, "get", self._get)
        return int(item)

    @_translated
    def vote(self, branch: mqBranch, request: int, changes: bool) -> Status:
        assert branch.recovery is not None
        recovery = self._parts.orb.reference_of(branch.recovery).encode()
        act = self._do if changes else self._look
        return self._push(branch, request, act, mqCompletion.PREPARE, recovery)[0]

    def push(
        self,
        branch: mqBranch,
        request: int,
        items: mqWorkList,
        completion: mqCompletion,
        recovery: bytes,
        commit: Callable[[bytes], None] | None,
    ) -> tuple[Status, bool, tuple[()]]:
        """See `NodeServant.push`."""
        return (*self._push(branch, request, self._do, completion, recovery, commit), ())

    def _push(
        self,
        branch: mqBranch,
        request: int,
        act: Callable[[Branch], Done],
        completion: mqCompletion,
        recovery: bytes,
        commit: Callable[[bytes], None] | None = None,
    ) -> tuple[Status, bool]:
        owner = self._parts.entered().principal.name
        own = self.branch_id(branch)
        push_down = self._parts.work.push_down
        return push_down(own, owner, request, act, completion, recovery, commit)[:2]

    def _get(self, found: Branch) -> Done:
        item = self._parts.storage.get(found.id)
        found.taken += 1
        return Done(item)

    def _do(self, found: Branch) -> Done:
        self._parts.storage.begin(found.id)
        found.stored += 1
        return Done(None)

    def _look(self, found: Branch) -> Done:
        self._parts.storage.begin(found.id, changes=False)
        return Done(None, is_changed=False)


def _publish(
    orb: SimulatedOrb, storage: MarkStorage, node_work: Work, decisions: Decisions
) -> None:
    parts = NodeParts(orb, storage, node_work)
    working = WorkingServant(parts)
    orb.publish(working, Working, WORKING)
    decider = DeciderServant(cast(Parts, parts), cast(NodeServant, working), decisions)
    orb.publish(decider, Mq_Decider, DECIDER)


# --- Running -------------------------------------------------------------------------------------


def run(
    seed: int,
    faults: Faults | None = None,
    doings: Doings | None = None,
    ways: Ways | None = None,
    lost_commits: float = 0.0,
) -> Deciding:
    """One run. What is not given is drawn with the seed."""
    chosen = World.swarm(seed) if faults is None else World(seed, faults)
    with chosen as world, servants_succeed(world), waiting_in(world):
        ways = ways or Ways()
        world.names_lives = ways.gets
        everything = Deciding(world, doings or drawn(world), ways, lost_commits)
        _live(world, everything)
    return everything


def _live(world: World, everything: Deciding) -> None:
    everything.boot()
    wait_until(world, everything.is_done, FAULTY_S)
    # Who recovers meets with the same faults, for a while.
    world.run(until=world.now() + world.random.choice((0.0, 4.0, 10.0)))
    world.calm()
    _settle(world, everything)
    world.run(until=world.now() + LATE_S)
    _settle(world, everything)
    everything.judge()
    if everything.doings.is_asked_again:
        for name in (*everything.disks, SERVICE):
            world.restart(name)
        _settle(world, everything)
        everything.judge()


def _settle(world: World, everything: Deciding) -> None:
    if not wait_until(world, everything.is_settled, CALM_S):
        # A promise that was broken says more.
        everything.judge()
        raise Unsettled(f"seed {world.seed}: it has not come to rest by {world.now():.3f} s")


@contextlib.contextmanager
def waiting_in(world: World) -> Iterator[None]:
    """Whoever waits for a lock that is held over a wait does so in the world's time."""

    def wait_for(lock: threading.Lock) -> None:
        while not lock.acquire(False):
            world.sleep(LOOK_S)

    with (
        mock.patch.object(turns, "wait_for", wait_for),
        mock.patch.object(work, "wait_for", wait_for),
    ):
        yield
