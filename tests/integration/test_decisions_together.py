"""Decisions that share a forced write are told to a node with one call, over a real network.

The disk is slow, so that whoever comes while the first decision is written shares the next write.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from clients.deciding import COORDINATION, Deciding
from coordinator import coordination, interfaces
from coordinator.decision_log import DecisionLog
from coordinator.live import Live, Settings
from coordinator.service import Service
from coordinator.tasks import ThreadTasks
from idl import system
from idl.call import Address
from idl.coordination import Mq_Settler, mqOutcome
from idl.cos import HeuristicMixed, Resource, Status, Synchronization, otid_t
from idl.orb import NetworkOrb
from idl.otids import BRANCH, SETTLER, split_otid
from idl.turns import give_way, prompt
from mqserver.storage.contract import Outcome
from mqserver.storage.disk import RealDisk
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.resource import (
    Resources,
    ResourceServant,
    SettlerServant,
    branch_id,
    prepare,
)

CLIENTS = 6
ROUNDS = 4
SYNC_S = 0.03
PATIENCE_S = 20.0
BRANCH_NAME = "n1"


class Settler(SettlerServant):
    """Remembers which branches each call named; and can be in trouble."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self.told: list[tuple[otid_t, ...]] = []
        self.trouble: system.SystemException | None = None

    @prompt
    def commitBranches(self, branches: tuple[otid_t, ...]) -> tuple[otid_t, ...]:
        self.told.append(branches)
        if self.trouble is not None:
            raise self.trouble
        return super().commitBranches(branches)


class Hanging:
    """A branch whose node has heard that it is to commit, and does not answer."""

    def __init__(self, world: World) -> None:
        self._world = world

    def commit(self) -> None:
        self._world.may_answer.wait(PATIENCE_S)


class World:
    """A coordinator and a node, each with a network of its own, and clients of both."""

    def __init__(self, folder: Path) -> None:
        here = Address("127.0.0.1", 0)
        self.failures: list[BaseException] = []
        self.node, self.orb = (NetworkOrb(here, takes_turns=True) for _ in range(2))
        self.client = NetworkOrb()
        self.may_answer = threading.Event()
        self.hanging = NetworkOrb(here)
        self.hanging.publish_family(BRANCH, lambda rest: Hanging(self), Resource)
        self.storage = MemoryStorage(time.monotonic)
        resources = Resources(self.node, self.storage)
        self.settler = Settler(resources)
        self.node.publish(self.settler, Mq_Settler, SETTLER)
        self.node.publish_family(BRANCH, self._resource_of(resources), Resource)
        self.tasks = ThreadTasks(time.monotonic, self.failures.append)
        decisions = DecisionLog(
            RealDisk(folder, create=True), secrets.token_bytes, give_way=give_way
        )
        self.service = Service(
            self.orb, decisions, self.tasks, secrets.token_bytes, None, self.failures.append
        )
        self.service.start()
        interfaces.publish(self.service)
        coordination.publish(self.service)
        assert self.orb.address is not None
        self.deciding = Deciding(self.client, self.orb.address, time.monotonic, time.sleep)

    def _resource_of(self, resources: Resources) -> Callable[[str], ResourceServant]:
        def find(rest: str) -> ResourceServant:
            gtrid, _, name = rest.partition("/")
            return ResourceServant(resources, branch_id(bytes.fromhex(gtrid), name), False)

        return find

    def prepared(self, *names: str) -> bytes:
        """A transaction whose branches at the node, or whose only one, have promised; its name."""
        gtrid = self.deciding.begin()
        for name in names or (BRANCH_NAME,):
            branch = branch_id(gtrid, name)
            self.storage.raise_mark(branch, "work", 1)
            prepare(self.storage, branch, b"whom to ask")
        return gtrid

    def decide(
        self,
        gtrid: bytes,
        *names: str,
        node: NetworkOrb | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> mqOutcome:
        address = (node or self.node).address
        assert address is not None
        participants = [
            self.deciding.participant(address, gtrid, name) for name in names or (BRANCH_NAME,)
        ]
        return self.deciding.decide(gtrid, tuple(participants), PATIENCE_S, meanwhile)

    def decide_all(self, count: int) -> list[bytes]:
        """So many transactions, by clients that come at once; their names."""
        names = [self.prepared() for _ in range(count)]
        with ThreadPoolExecutor(CLIENTS) as clients:
            outcomes = list(clients.map(self.decide, names))
        assert [outcome.status for outcome in outcomes] == [Status.COMMITTED] * count
        return names

    def outcome(self, gtrid: bytes) -> Outcome:
        return self.storage.outcome(branch_id(gtrid, BRANCH_NAME))

    def are_committed(self, names: list[bytes]) -> bool:
        return {self.outcome(gtrid) for gtrid in names} == {Outcome.COMMITTED}

    def close(self) -> None:
        self.may_answer.set()
        self.client.close()
        self.service.timeouts.close()
        self.orb.close()
        self.tasks.close(PATIENCE_S)
        self.service.close()
        self.node.close()
        self.hanging.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path / "coordinator")
    sync = os.fdatasync

    def slowly(descriptor: int) -> None:
        time.sleep(SYNC_S)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", slowly)
    yield made
    made.close()
    assert made.failures == []


def test_decisions_that_share_a_write_are_told_to_a_node_with_one_call(world: World) -> None:
    names = world.decide_all(5 * CLIENTS)
    assert world.are_committed(names)
    together = [branches for branches in world.settler.told if len(branches) > 1]
    assert together, "six clients came while the disk was busy, and none of them went together"
    assert len({split_otid(otid)[0] for otid in together[0]}) == len(together[0])


def test_many_branches_of_one_transaction_are_a_call_of_their_own(world: World) -> None:
    names = [f"b{number}" for number in range(20)]
    many = world.prepared(*names)
    few = [world.prepared() for _ in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS + 2) as clients:
        # During the write of the first all others come, and share the next.
        clients.submit(world.decide, world.prepared())
        decided = clients.submit(world.decide, many, *names)
        assert {each.status for each in clients.map(world.decide, few)} == {Status.COMMITTED}
        assert decided.result().status is Status.COMMITTED
    named = [{split_otid(otid)[0] for otid in branches} for branches in world.settler.told]
    assert {many} in named
    assert [each for each in named if many in each and len(each) > 1] == []


def test_a_node_of_an_earlier_version_is_told_one_by_one(world: World) -> None:
    world.settler.trouble = system.BAD_OPERATION("no such operation")
    names = world.decide_all(3 * CLIENTS)
    assert world.settler.told != []
    assert world.are_committed(names)


def test_whom_a_call_did_not_reach_is_told_again(world: World) -> None:
    world.settler.trouble = system.TRANSIENT("away")
    names = world.decide_all(3 * CLIENTS)
    world.settler.trouble = None
    deadline = time.monotonic() + PATIENCE_S
    while not world.are_committed(names) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert world.are_committed(names)


def test_one_that_was_ended_by_hand_is_told_of_to_its_owner_alone(world: World) -> None:
    names = [world.prepared() for _ in range(CLIENTS)]
    world.storage.resolve(branch_id(names[2], BRANCH_NAME), commit=False)

    def decide(gtrid: bytes) -> Status | type[HeuristicMixed]:
        try:
            return world.decide(gtrid).status
        except HeuristicMixed as mixed:
            return type(mixed)

    # A first one, during whose write all others come.
    with ThreadPoolExecutor(CLIENTS + 1) as clients:
        first = clients.submit(world.decide, world.prepared())
        found = list(clients.map(decide, names))
        assert first.result().status is Status.COMMITTED
    assert found[2] is HeuristicMixed
    assert found[:2] + found[3:] == [Status.COMMITTED] * (CLIENTS - 1)


def test_a_node_that_does_not_answer_holds_up_only_those_who_need_it(world: World) -> None:
    # Connections to both stand ready, so that all is sent in turns.
    world.may_answer.set()
    world.decide(world.prepared(), node=world.hanging)
    world.decide_all(CLIENTS)
    # Who shares a write with whom is the threads' luck, hence more than one round.
    for _ in range(ROUNDS):
        world.may_answer.clear()
        names = [world.prepared() for _ in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS + 2) as clients:
            # During the write of the first all others come, and share the next.
            first = clients.submit(world.decide, world.prepared())
            stuck = clients.submit(world.decide, world.prepared(), node=world.hanging)
            begun = time.monotonic()
            others = list(clients.map(world.decide, names))
            took_s = time.monotonic() - begun
            assert not stuck.done()
            world.may_answer.set()
            assert stuck.result().status is Status.COMMITTED
            assert first.result().status is Status.COMMITTED
        assert {outcome.status for outcome in others} == {Status.COMMITTED}
        assert took_s < Settings.call_s / 2


# --- Who is told in advance ----------------------------------------------------------------------


def test_the_owner_hears_of_the_decision_before_a_node_that_does_not_answer(world: World) -> None:
    def know(gtrid: bytes) -> None:
        assert world.service.log.ledger.is_committed(gtrid), "it is foretold when it is on disk"
        assert not world.may_answer.is_set()
        world.may_answer.set()

    # With connections that have to be made, and with such as stand ready.
    for _ in range(ROUNDS):
        world.may_answer.clear()
        gtrid = world.prepared()
        outcome = world.decide(gtrid, node=world.hanging, meanwhile=partial(know, gtrid))
        assert outcome.status is Status.COMMITTED
        assert world.may_answer.is_set()


def test_those_who_share_a_write_are_each_told_in_advance_and_once(world: World) -> None:
    names = [world.prepared() for _ in range(5 * CLIENTS)]
    told: list[bytes] = []

    def decide(gtrid: bytes) -> Status:
        return world.decide(gtrid, meanwhile=lambda: told.append(gtrid)).status

    with ThreadPoolExecutor(CLIENTS) as clients:
        assert set(clients.map(decide, names)) == {Status.COMMITTED}
    assert len(told) == len(set(told))
    # All but those for whom a connection had to be made.
    assert len(told) >= len(names) - CLIENTS
    assert world.are_committed(names)


def test_nothing_is_foretold_of_what_is_rolled_back_or_was_decided_before(world: World) -> None:
    told: list[str] = []
    given_up, decided = world.prepared(), world.prepared()
    world.deciding.give_up(given_up, PATIENCE_S)
    world.decide(decided)
    for gtrid, status in ((given_up, Status.ROLLED_BACK), (decided, Status.COMMITTED)):
        assert world.decide(gtrid, meanwhile=lambda: told.append("told")).status is status
    assert told == []


def test_a_coordinator_of_an_earlier_version_foretells_nothing(world: World) -> None:
    del world.orb._objects._objects[COORDINATION].operations["decideForetold"]
    told: list[str] = []
    for _ in range(2):
        outcome = world.decide(world.prepared(), meanwhile=lambda: told.append("told"))
        assert outcome.status is Status.COMMITTED
    assert told == []


class Told:
    """A synchronization, and what it was told."""

    def __init__(self) -> None:
        self.before = 0
        self.after = threading.Event()

    def before_completion(self) -> None:
        self.before += 1

    def after_completion(self, status: Status) -> None:
        assert status is Status.COMMITTED
        self.after.set()


def test_who_must_be_told_before_is_told_once_though_that_needs_a_connection(world: World) -> None:
    told = Told()
    # At a server to which the coordinator has none yet.
    reference = world.hanging.reference_of(world.hanging.publish(told, Synchronization, "told"))
    gtrid = world.prepared()
    live = world.service.transactions.find(gtrid)
    assert isinstance(live, Live)
    live.synchronizations.append(world.orb.proxy(reference, Synchronization))
    assert world.decide(gtrid).status is Status.COMMITTED
    assert told.before == 1
    assert told.after.wait(PATIENCE_S)
