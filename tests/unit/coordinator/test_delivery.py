"""Branches of one node are told to commit with few calls, and each of them is asked where it must.

The node is real but for its network: a settler that counts its calls, and branches in memory.
"""

from __future__ import annotations

import time

import pytest

from coordinator import delivery
from coordinator.coordination import COORDINATION
from idl import system
from idl.coordination import Mq_Coordinator, Mq_Settler, mqParticipant
from idl.cos import HeuristicMixed, Resource, Status, otid_t
from idl.otids import BRANCH, SETTLER, issue, member_name, otid_of, split_otid
from mqserver.storage.contract import Outcome
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.resource import (
    Resources,
    ResourceServant,
    SettlerServant,
    branch_id,
    prepare,
)
from tests.unit.clients.embedded_coordinator import (
    EmbeddedCoordinator,
    Participant,
    admin_of,
    published,
    recovery_of,
)

COUNT = 7


class Settler(SettlerServant):
    """Remembers how many branches each call named; and can be away, or of an earlier version."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self.told: list[int] = []
        self.settled: list[int] = []
        self.trouble: system.SystemException | None = None
        self.settle_trouble: system.SystemException | None = None

    def commitBranches(self, branches: tuple[otid_t, ...]) -> tuple[otid_t, ...]:
        self.told.append(len(branches))
        if self.trouble is not None:
            raise self.trouble
        return super().commitBranches(branches)

    def settle(self, branches: tuple[otid_t, ...]) -> None:
        self.settled.append(len(branches))
        if self.settle_trouble is not None:
            raise self.settle_trouble
        super().settle(branches)


class Node:
    """A node beside the coordinator, and what its branches are asked one by one."""

    def __init__(self) -> None:
        self.coordinator = EmbeddedCoordinator()
        self.storage = MemoryStorage(time.monotonic)
        self.resources = Resources(self.coordinator.orb, self.storage)
        self.settler = Settler(self.resources)
        self.asked_alone: list[str] = []
        self.publish()
        lease = self.asked.lease(0, 0)
        self.gtrid = issue(lease.prefix, lease.secret, lease.first)

    def publish(self) -> None:
        """The node can be called; again, after the coordinator was restarted."""
        orb = self.coordinator.orb
        orb.publish(self.settler, Mq_Settler, SETTLER)
        orb.publish_family(BRANCH, self._resource, Resource)

    def _resource(self, rest: str) -> ResourceServant:
        self.asked_alone.append(rest.partition("/")[2])
        gtrid, _, name = rest.partition("/")
        return ResourceServant(self.resources, branch_id(bytes.fromhex(gtrid), name), False)

    @property
    def asked(self) -> Mq_Coordinator:
        return self.coordinator.orb.member(COORDINATION, Mq_Coordinator)

    def prepared(self, count: int = COUNT) -> tuple[mqParticipant, ...]:
        """So many branches that have promised."""
        orb = self.coordinator.orb
        settler = orb.member(SETTLER, Mq_Settler)
        names = [f"n{number}" for number in range(count)]
        for name in names:
            self.storage.raise_mark(branch_id(self.gtrid, name), "work", 1)
            prepare(self.storage, branch_id(self.gtrid, name), b"whom to ask")
        return tuple(
            mqParticipant(
                name, orb.member(member_name(BRANCH, self.gtrid, name), Resource), settler
            )
            for name in names
        )

    def decide(self, participants: tuple[mqParticipant, ...]) -> Status:
        return self.asked.decide(otid_of(self.gtrid), participants).status

    def outcomes(self, count: int = COUNT) -> list[Outcome]:
        names = [f"n{number}" for number in range(count)]
        return [self.storage.outcome(branch_id(self.gtrid, name)) for name in names]

    def is_over(self) -> bool:
        return admin_of(self.coordinator).listTransactions() == ()


@pytest.fixture
def node() -> Node:
    return Node()


def test_branches_of_one_node_are_committed_with_one_call(node: Node) -> None:
    assert node.decide(node.prepared()) is Status.COMMITTED
    assert (node.settler.told, node.asked_alone) == ([COUNT], [])
    assert node.outcomes() == [Outcome.COMMITTED] * COUNT
    assert not node.is_over(), "it is kept until all of it is on disk there"
    node.coordinator.tasks.pass_time(1.0)
    assert node.settler.settled == [COUNT]
    assert node.is_over()


def test_a_call_names_no_more_than_so_many(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "COMMITTED_TOGETHER", 3)
    assert node.decide(node.prepared()) is Status.COMMITTED
    assert sorted(node.settler.told) == [3, 3]
    assert len(node.asked_alone) == 1
    assert node.outcomes() == [Outcome.COMMITTED] * COUNT


def test_one_branch_of_a_node_is_called_itself(node: Node) -> None:
    assert node.decide(node.prepared(1)) is Status.COMMITTED
    assert (node.settler.told, node.asked_alone) == ([], ["n0"])


def test_branches_that_cannot_be_committed_so_are_asked_what_is_the_matter(node: Node) -> None:
    participants = node.prepared()
    node.storage.resolve(branch_id(node.gtrid, "n2"), commit=False)
    with pytest.raises(HeuristicMixed):
        node.decide(participants)
    assert node.asked_alone[:1] == ["n2"]
    assert node.outcomes().count(Outcome.COMMITTED) == COUNT - 1
    node.coordinator.tasks.pass_time(1.0)
    (shown,) = admin_of(node.coordinator).listTransactions()
    assert [each.name for each in shown.participants] == ["n2"]


def test_a_branch_that_an_operator_has_committed_is_no_trouble(node: Node) -> None:
    participants = node.prepared()
    node.storage.resolve(branch_id(node.gtrid, "n2"), commit=True)
    assert node.decide(participants) is Status.COMMITTED
    node.coordinator.tasks.pass_time(1.0)
    assert node.is_over()


def test_a_node_of_an_earlier_version_is_told_one_by_one(node: Node) -> None:
    node.settler.trouble = system.BAD_OPERATION("no such operation")
    assert node.decide(node.prepared()) is Status.COMMITTED
    assert sorted(node.asked_alone) == sorted(f"n{number}" for number in range(COUNT))
    assert node.outcomes() == [Outcome.COMMITTED] * COUNT


def test_a_node_that_is_away_is_told_again_with_one_call(node: Node) -> None:
    node.settler.trouble = system.TRANSIENT("away")
    assert node.decide(node.prepared()) is Status.COMMITTED
    assert node.outcomes() == [Outcome.PREPARED] * COUNT
    node.settler.trouble = None
    node.coordinator.tasks.pass_time(5.0)
    assert (node.settler.told, node.asked_alone) == ([COUNT, COUNT], [])
    assert node.outcomes() == [Outcome.COMMITTED] * COUNT
    assert node.is_over()


@pytest.mark.parametrize("is_old", [False, True])
def test_a_node_that_was_away_and_refuses_some_then_is_asked_for_each_of_them(
    node: Node, is_old: bool
) -> None:
    node.settler.trouble = system.TRANSIENT("away")
    node.decide(node.prepared())
    for name in ("n2", "n3", "n5"):
        node.storage.resolve(branch_id(node.gtrid, name), commit=False)
    node.settler.trouble = system.BAD_OPERATION("of an earlier version") if is_old else None
    node.coordinator.tasks.pass_time(5.0)
    assert node.settler.told == [COUNT, COUNT]
    assert {"n2", "n3", "n5"} <= set(node.asked_alone)
    assert node.outcomes().count(Outcome.COMMITTED) == COUNT - 3
    (shown,) = admin_of(node.coordinator).listTransactions()
    assert [each.name for each in shown.participants] == ["n2", "n3", "n5"]
    assert {each.state for each in shown.participants} == {"heuristic, rolled back"}


def test_what_was_given_up_meanwhile_is_not_told_again(node: Node) -> None:
    node.settler.trouble = system.TRANSIENT("away")
    node.decide(node.prepared())
    (live,) = node.coordinator.service.transactions.every()
    node.coordinator.service.transactions.give_up(live, 1)
    node.settler.trouble = None
    node.coordinator.tasks.pass_time(5.0)
    assert node.settler.told == [COUNT, COUNT - 1]
    assert node.outcomes().count(Outcome.COMMITTED) == COUNT - 1


def test_after_a_restart_they_are_told_together(node: Node) -> None:
    node.settler.trouble = system.TRANSIENT("away")
    node.decide(node.prepared())
    node.settler.trouble = None
    node.coordinator.restart()
    node.publish()
    node.coordinator.tasks.pass_time(5.0)
    assert node.settler.told[-1] == COUNT
    assert node.outcomes() == [Outcome.COMMITTED] * COUNT
    assert node.is_over()


def test_who_is_not_the_settlers_is_called_itself(node: Node) -> None:
    stranger = Participant()
    first, *others = node.prepared()
    named = mqParticipant("n0", published(node.coordinator, stranger), first.settler)
    assert node.decide((named, *others)) is Status.COMMITTED
    assert stranger.told == ["commit"]
    assert node.settler.told == [COUNT - 1]


def test_of_those_with_whom_all_is_over_nothing_is_written_one_by_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[int] = []
    log = node.coordinator.service.log
    monkeypatch.setattr(log, "note_done", lambda gtrid, number: noted.append(number))
    node.decide(node.prepared())
    node.coordinator.tasks.pass_time(1.0)
    assert node.is_over()
    assert noted == []


@pytest.mark.parametrize("away", [(), ("first",), ("second",)])
def test_who_is_durable_is_written_down_only_where_another_is_away(
    node: Node, monkeypatch: pytest.MonkeyPatch, away: tuple[str, ...]
) -> None:
    noted: list[int] = []
    log = node.coordinator.service.log
    monkeypatch.setattr(log, "note_done", lambda gtrid, number: noted.append(number))
    second = Settler(node.resources)
    other = node.coordinator.orb.publish(second, Mq_Settler, "other")
    n0, n1 = node.prepared(2)
    assert node.decide((n0, mqParticipant("n1", n1.resource, other))) is Status.COMMITTED
    for name, settler in (("first", node.settler), ("second", second)):
        settler.settle_trouble = system.TRANSIENT("away") if name in away else None
    node.coordinator.tasks.pass_time(1.0)
    assert noted == {(): [], ("first",): [2], ("second",): [1]}[away]
    assert node.is_over() is not bool(away)
    node.settler.settle_trouble = second.settle_trouble = None
    node.coordinator.tasks.pass_time(60.0)
    assert node.is_over()
    assert noted == {(): [], ("first",): [2], ("second",): [1]}[away]


def test_where_a_settler_refuses_all_are_told_again_with_one_call(node: Node) -> None:
    node.decide(node.prepared())
    del node.storage._ended[branch_id(node.gtrid, "n3")]
    node.coordinator.tasks.pass_time(1.0)
    assert (node.settler.told, set(node.asked_alone)) == ([COUNT, COUNT], {"n3"})
    (shown,) = admin_of(node.coordinator).listTransactions()
    assert [(each.name, each.state) for each in shown.participants][:1] == [
        ("n3", "heuristic, hazard")
    ]


def test_whoever_asks_is_found_by_its_name_and_nobody_else_is(node: Node) -> None:
    node.settler.trouble = system.TRANSIENT("away")
    node.decide(node.prepared())
    for number in range(COUNT):
        asked = recovery_of(node.coordinator, node.gtrid, f"n{number}")
        assert asked.replay_completion(None) is Status.COMMITTED
    stranger = recovery_of(node.coordinator, node.gtrid, f"n{COUNT}")
    assert stranger.replay_completion(None) is Status.ROLLED_BACK


def test_the_names_are_those_of_the_transaction(node: Node) -> None:
    refused = node.settler.commitBranches((otid_of(node.gtrid, "n9"),))
    assert [split_otid(otid) for otid in refused] == [(node.gtrid, "n9")]
