"""What a node has decided is kept until the coordinator says that nobody waits for it any more."""

from __future__ import annotations

import itertools

from idl import system
from idl.cos import Status, otid_t
from idl.decider import SETTLEMENT, Mq_Settlement, mqDecidedList
from idl.local import HERE, LocalOrb
from idl.otids import GTRID_BYTES, split_otid
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.decisions import Decisions, Voter
from mqserver.transactions.settling import ASKED_AT_ONCE, Settling, SettlingTimes

TIMES = SettlingTimes(after_s=1.0, again_s=5.0)
VOTERS = (Voter("n2", "PYRO:settler@far:1"),)


class Relay:
    """The coordinator: some are over, or it fails."""

    def __init__(self) -> None:
        self.over: set[bytes] = set()
        self.trouble: Exception | None = None
        self.asked: list[list[bytes]] = []

    def isWithinReach(self, place: str) -> bool:
        raise AssertionError("that is for clients")

    def settle(self, decided: mqDecidedList) -> tuple[otid_t, ...]:
        self.asked.append([split_otid(each.otid)[0] for each in decided])
        assert all(each.voters[0].settler == VOTERS[0].settler for each in decided)
        if self.trouble is not None:
            raise self.trouble
        return tuple([each.otid for each in decided if each.otid.tid in self.over])


class World:
    """Decisions of a node, and the coordinator that it asks."""

    def __init__(self) -> None:
        self.time = 0.0
        self.relay = Relay()
        ids = itertools.count()
        orb = LocalOrb()
        orb.publish(self.relay, Mq_Settlement, SETTLEMENT)
        self.storage = MemoryStorage(lambda: self.time)
        self.decisions = Decisions(self.storage, lambda: self.time, lambda: next(ids).to_bytes(16))
        self.settling = Settling(orb, self.decisions, lambda: self.time, TIMES)

    def decide(self, number: int, coordinator: str = str(HERE)) -> bytes:
        gtrid = number.to_bytes(GTRID_BYTES)
        self.decisions.get_ready()
        commit = self.storage.commit_one_phase
        self.decisions.commit(gtrid + b"n1", coordinator, VOTERS, commit)
        return gtrid


def test_a_decision_is_asked_about_a_moment_later_and_forgotten_when_it_is_over() -> None:
    world = World()
    world.relay.over.add(world.decide(1))
    kept = world.decide(2)
    world.time = 0.5
    world.settling.settle()
    assert world.relay.asked == []
    world.time = 1.0
    assert world.settling.settle() == 2.0
    assert len(world.decisions) == 1
    assert world.decisions.find(kept) is Status.COMMITTED


def test_one_that_is_waited_for_is_asked_about_again_later() -> None:
    world = World()
    world.decide(1)
    for time in (1.0, 2.0, 6.9, 7.0):
        world.time = time
        world.settling.settle()
    assert len(world.relay.asked) == 2


def test_many_are_asked_about_in_portions() -> None:
    world = World()
    world.relay.over.update([world.decide(number) for number in range(ASKED_AT_ONCE + 1)])
    world.time = 1.0
    world.settling.settle()
    assert [len(asked) for asked in world.relay.asked] == [ASKED_AT_ONCE, 1]
    assert len(world.decisions) == 0


def test_a_coordinator_that_is_silent_is_waited_for_once() -> None:
    world = World()
    world.relay.trouble = system.TIMEOUT("silent")
    for number in range(2 * ASKED_AT_ONCE):
        world.decide(number)
    world.time = 1.0
    world.settling.settle()
    assert len(world.relay.asked) == 1
    assert len(world.decisions) == 2 * ASKED_AT_ONCE


def test_a_coordinator_that_is_silent_or_nowhere_keeps_only_its_own() -> None:
    world = World()
    world.relay.trouble = system.TRANSIENT("not now")
    mine, lost = world.decide(1), world.decide(2, "no address")
    world.time = 1.0
    world.settling.settle()
    assert len(world.decisions) == 2
    world.relay.trouble = None
    world.relay.over.update([mine, lost])
    world.time = 10.0
    world.settling.settle()
    assert world.decisions.find(mine) is Status.NO_TRANSACTION
    assert world.decisions.find(lost) is Status.COMMITTED
