"""Work whose owner may be gone: asked about after some silence, and given up when it is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clients.deciding import Deciding
from idl.coordination import mqOutcome, mqTransactionKey
from idl.cos import Status
from idl.local import HERE
from idl.mq import mqBranch
from idl.otids import otid_of, split_otid
from mqserver.transactions.abandoned import ASKED_AT_ONCE_MAX, Abandoned
from tests.unit.clients.embedded_coordinator import EmbeddedCoordinator
from tests.unit.mqserver.node_world import ANY, World, batch, work

AFTER_S = 10.0
NO_KEY = mqTransactionKey("", 0)


class Left:
    """A node and its coordinator, and a client that took a message and fell silent."""

    def __init__(self) -> None:
        self.coordinator = EmbeddedCoordinator()
        self.world = World(coordinator=self.coordinator)
        self.world.put("q", b"x")
        self.asking = Abandoned(
            self.world.orb,
            str(HERE),
            self.world.running.work,
            lambda: self.world.time,
            AFTER_S,
            call_s=1.0,
        )
        self.deciding = Deciding(
            self.world.orb, HERE, lambda: self.world.time, lambda seconds: None
        )
        self.branch = self.take(self.deciding.begin())

    def take(self, gtrid: bytes) -> mqBranch:
        """The message is held by a transaction of this name."""
        branch = mqBranch(otid_of(gtrid), "n1", None)
        assert self.world.node.getMany(branch, 1, "q", ANY, 1, 0).keys
        return branch

    def pass_time(self, seconds: float) -> None:
        """Time goes on for everybody, and what is due is asked for."""
        self.world.time += seconds
        self.coordinator.tasks.pass_time(seconds)
        self.asking.ask()

    @property
    def is_free(self) -> bool:
        """Whether the message is to be had again."""
        return self.world.seen("q") == (b"x",)


@pytest.fixture
def left() -> Iterator[Left]:
    made = Left()
    yield made
    made.world.close()


def test_the_work_of_a_client_that_is_gone_is_given_up_when_its_session_is_over(
    left: Left,
) -> None:
    left.pass_time(AFTER_S)
    assert not left.is_free
    left.pass_time(60.0)
    assert left.is_free
    assert left.world.node.getOutcome(left.branch.otid) is Status.ROLLED_BACK


def test_the_work_of_a_client_that_is_alive_is_left_alone(left: Left) -> None:
    for _ in range(10):
        left.deciding.leases.renew()
        left.pass_time(AFTER_S)
    assert not left.is_free


def test_who_works_is_not_asked_about(left: Left) -> None:
    left.coordinator.tasks.pass_time(60.0)
    left.world.time += AFTER_S - 1
    left.asking.ask()
    assert not left.is_free
    left.world.node.putMany(left.branch, 2, "q", batch(b"y"))
    left.world.time += AFTER_S - 1
    left.asking.ask()
    assert not left.is_free
    left.pass_time(AFTER_S)
    assert left.is_free


def test_a_transaction_of_another_coordinator_is_left_alone(left: Left) -> None:
    left.world.node.rollbackBranch(left.branch)
    left.take(bytes(range(32)))
    left.pass_time(60.0)
    assert not left.is_free


def test_the_work_of_a_transaction_that_the_coordinator_has_named_waits_for_its_end(
    left: Left,
) -> None:
    left.world.node.rollbackBranch(left.branch)
    begun = left.asking._coordinator.beginOrJoin(0, NO_KEY, 1000)  # type: ignore[union-attr]
    branch = left.take(split_otid(begun.otid)[0])
    for _ in range(98):
        left.pass_time(AFTER_S)
        left.world.running.orphans.ask_those_due()
        assert not left.is_free
    # It is alive, and works on.
    left.world.node.putMany(branch, 2, "p", batch(b"y"))
    left.pass_time(3 * AFTER_S)
    assert left.is_free


def test_many_branches_of_one_transaction_are_asked_about_once(left: Left) -> None:
    gtrid = split_otid(left.branch.otid)[0]
    for number in range(2 * ASKED_AT_ONCE_MAX):
        left.world.node.putMany(mqBranch(otid_of(gtrid), f"s{number}", None), 1, "p", batch(b"y"))
    counting = _Over()
    left.asking._coordinator = counting  # type: ignore[assignment]
    left.pass_time(AFTER_S)
    assert counting.asked == 1
    assert left.world.running.work.silent_since(left.world.time) == []


def test_what_a_known_coordinator_has_forgotten_is_over(left: Left) -> None:
    left.deciding.leases.renew()
    left.pass_time(AFTER_S)
    assert not left.is_free
    left.asking._coordinator = _Forgetful()  # type: ignore[assignment]
    left.pass_time(AFTER_S)
    assert left.is_free


def test_without_an_answer_nothing_is_given_up(left: Left) -> None:
    left.coordinator.orb._objects.withdraw("coordination")
    left.pass_time(60.0)
    assert not left.is_free


def test_what_has_voted_is_not_asked_about_here(left: Left) -> None:
    left.world.node.rollbackBranch(left.branch)
    left.world.prepare(left.world.branch(), work("p", b"x"))
    assert left.world.running.work.silent_since(left.world.time) == []


class _Over:
    """A coordinator for which everything is over."""

    def __init__(self) -> None:
        self.asked = 0

    def getOutcome(self, otid: object) -> object:
        """It was rolled back."""
        self.asked += 1
        return mqOutcome(Status.ROLLED_BACK, "")


class _Forgetful:
    """A coordinator that has lost its log."""

    def getOutcome(self, otid: object) -> object:
        """Nothing is known."""
        return mqOutcome(Status.UNKNOWN, "")
