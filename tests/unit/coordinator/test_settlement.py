"""For nodes that have decided: who still waits, who cannot be asked, and what a caller may say."""

from __future__ import annotations

import pytest

from coordinator.settlement import DECIDED_MAX, SettlementServant
from idl import system
from idl.coordination import Mq_Settler
from idl.cos import Status, otid_t
from idl.decider import (
    DECIDER,
    SETTLEMENT,
    Mq_Decider,
    Mq_Settlement,
    mqDecided,
    mqVoter,
)
from idl.local import HERE, LocalOrb
from idl.otids import GTRID_BYTES, SETTLER, otid_of, split_otid
from idl.places import place_of

ONE, TWO = bytes(GTRID_BYTES), bytes(range(GTRID_BYTES))


class Settler:
    """Says that these branches have ended, and was asked for those."""

    def __init__(self, *ended: tuple[bytes, str]) -> None:
        self.ended = set(ended)
        self.asked: list[int] = []

    def commitBranches(self, branches: tuple[otid_t, ...]) -> tuple[otid_t, ...]:
        raise AssertionError("nobody is told anything")

    def settle(self, branches: tuple[otid_t, ...]) -> None:
        raise AssertionError("nobody is told anything")

    def getEnded(self, branches: tuple[otid_t, ...]) -> tuple[otid_t, ...]:
        self.asked.append(len(branches))
        return tuple([otid for otid in branches if split_otid(otid) in self.ended])


def decided(gtrid: bytes, *names: str, settler: str = f"PYRO:{SETTLER}@{HERE}") -> mqDecided:
    return mqDecided(otid_of(gtrid), tuple([mqVoter(name, settler) for name in names]))


def servant(settler: Settler) -> Mq_Settlement:
    orb = LocalOrb()
    orb.publish(settler, Mq_Settler, SETTLER)
    return orb.publish(SettlementServant(orb, None, lambda: 0.0), Mq_Settlement, SETTLEMENT)


def test_what_all_voters_have_ended_is_over_and_they_are_asked_at_once() -> None:
    settler = Settler((ONE, "n1"), (ONE, "n2"), (TWO, "n1"))
    over = servant(settler).settle((decided(ONE, "n1", "n2"), decided(TWO, "n1", "n2")))
    assert over == (otid_of(ONE),)
    assert settler.asked == [4]


def test_who_has_no_voters_waits_for_nobody() -> None:
    assert servant(Settler()).settle((decided(ONE),)) == (otid_of(ONE),)


@pytest.mark.parametrize(
    "reference",
    [
        "PYRO:settler@127.0.0.1:1",
        f"PYRO:node@{HERE}",
        f"PYRO:database-settler/orders@{HERE}",
        "nonsense",
    ],
)
def test_a_settler_that_does_not_answer_keeps_only_its_own_waiting(reference: str) -> None:
    settler = Settler((ONE, "n1"))
    asked = (decided(TWO, "n1", settler=reference), decided(ONE, "n1"))
    assert servant(settler).settle(asked) == (otid_of(ONE),)


def test_too_many_at_once_and_what_is_no_name_are_refused() -> None:
    asked = servant(Settler())
    with pytest.raises(system.IMP_LIMIT):
        asked.settle((decided(ONE),) * (DECIDED_MAX + 1))
    with pytest.raises(system.BAD_PARAM):
        asked.settle((mqDecided(otid_t(1, 0, b"other"), ()),))


class Decider:
    """A node that has decided nothing."""

    def vote(self, *arguments: object) -> tuple[Status, bool, tuple[tuple[str, ...], ...]]:
        raise AssertionError("that is for owners")

    def decide(self, *arguments: object) -> tuple[Status, tuple[tuple[str, ...], ...]]:
        raise AssertionError("that is for owners")

    def endVoter(self, *arguments: object) -> None:
        raise AssertionError("that is for owners")

    def getDecision(self, otid: otid_t) -> Status:
        return Status.NO_TRANSACTION

    def fence(self, otid: otid_t) -> Status:
        raise AssertionError("nothing was to be decided")


def test_a_node_is_within_reach_that_can_be_asked() -> None:
    orb = LocalOrb()
    made = SettlementServant(orb, None, lambda: 0.0)
    asked = orb.publish(made, Mq_Settlement, SETTLEMENT)
    place = place_of(HERE.host, HERE.port)
    # A node of an earlier version has no such object.
    assert not asked.isWithinReach(place)
    orb.publish(Decider(), Mq_Decider, DECIDER)
    assert asked.isWithinReach(place)
    with pytest.raises(system.BAD_PARAM):
        asked.isWithinReach("orders")
