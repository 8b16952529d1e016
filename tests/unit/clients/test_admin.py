"""Transactions as an operator finds, reads and ends them."""

from __future__ import annotations

import pytest

from clients.admin import (
    NotOne,
    Transactions,
    TransactionView,
    merged,
    one_of,
    seconds,
    selected,
)
from clients.deciding import Deciding
from coordinator.interfaces import FACTORY
from idl.coordination import mqParticipant
from idl.cos import Status, TransactionFactory
from idl.mapping import InvalidValue
from tests.unit.clients.embedded_coordinator import (
    ADDRESS,
    EmbeddedCoordinator,
    Participant,
    published,
)


@pytest.fixture
def coordinator() -> EmbeddedCoordinator:
    return EmbeddedCoordinator()


def _begin(coordinator: EmbeddedCoordinator) -> None:
    coordinator.orb.member(FACTORY, TransactionFactory).create(60)


def _stuck(coordinator: EmbeddedCoordinator) -> Participant:
    """A transaction that is decided, with one participant that cannot be reached."""
    tasks, away = coordinator.tasks, Participant()
    away.is_away = True
    deciding = Deciding(coordinator.orb, ADDRESS, tasks.now, tasks.pass_time)
    named = [
        mqParticipant(name, published(coordinator, each), None)
        for name, each in (("here", Participant()), ("away", away))
    ]
    assert deciding.decide(deciding.begin(), tuple(named), 5.0).status is Status.COMMITTED
    return away


def test_what_is_under_way_is_listed_with_its_age(coordinator: EmbeddedCoordinator) -> None:
    _begin(coordinator)
    coordinator.tasks.pass_time(12.0)
    (view,) = Transactions(coordinator.orb, ADDRESS).every()
    assert (view.status, view.owner, view.age_s, view.time_left_s) == ("active", "local", 12, 48)


def test_a_transaction_is_found_by_any_beginning_that_fits_only_one(
    coordinator: EmbeddedCoordinator,
) -> None:
    _begin(coordinator)
    _begin(coordinator)
    transactions = Transactions(coordinator.orb, ADDRESS)
    one, other = (view.name for view in transactions.every())
    assert transactions.one(one).name == one
    shared = one[: next(n for n in range(99) if one[n] != other[n])]
    with pytest.raises(NotOne, match="fits 2"):
        transactions.one(shared)
    with pytest.raises(NotOne, match="nothing is called"):
        transactions.one("zzz")


def test_one_that_is_not_decided_can_be_rolled_back(coordinator: EmbeddedCoordinator) -> None:
    _begin(coordinator)
    transactions = Transactions(coordinator.orb, ADDRESS)
    (view,) = transactions.every()
    assert transactions.rollback(view.name).status is Status.ROLLED_BACK
    assert transactions.every() == []


def test_a_decided_one_says_whom_it_waits_for_and_is_not_rolled_back(
    coordinator: EmbeddedCoordinator,
) -> None:
    _stuck(coordinator)
    transactions = Transactions(coordinator.orb, ADDRESS)
    (view,) = transactions.every()
    assert view.status == "committing"
    assert "away" in view.explanation
    (participant,) = view.participants
    assert (participant.name, participant.state) == ("away", "prepared")
    assert participant.attempts >= 1
    assert "away" in participant.trouble
    assert transactions.rollback(view.name).status is Status.COMMITTED


def test_who_is_given_up_is_shown_as_a_hazard_until_forgotten_again(
    coordinator: EmbeddedCoordinator,
) -> None:
    _stuck(coordinator)
    transactions = Transactions(coordinator.orb, ADDRESS)
    (view,) = transactions.every()
    assert transactions.forget(view.name) == 1
    (left,) = transactions.every()
    assert "hazard" in left.participants[0].state
    coordinator.restart()
    transactions = Transactions(coordinator.orb, ADDRESS)
    assert [each.name for each in transactions.every()] == [view.name]
    assert transactions.forget(view.name) == 0
    assert transactions.every() == []


def test_a_participant_that_comes_back_is_told_and_the_transaction_ends(
    coordinator: EmbeddedCoordinator,
) -> None:
    away = _stuck(coordinator)
    away.is_away = False
    coordinator.tasks.pass_time(60.0)
    assert away.told == ["commit"]
    assert Transactions(coordinator.orb, ADDRESS).every() == []


def test_the_oldest_come_first_and_the_young_can_be_left_out(
    coordinator: EmbeddedCoordinator,
) -> None:
    _begin(coordinator)
    coordinator.tasks.pass_time(5.0)
    _begin(coordinator)
    views = Transactions(coordinator.orb, ADDRESS).every()
    assert [view.age_s for view in selected(reversed(views), None, 0)] == [5, 0]
    assert [view.age_s for view in selected(views, "active", 3)] == [5]
    assert selected(views, "committing", 0) == []


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200), ("1d", 86400)]
)
def test_times_are_written_with_a_unit(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "m", "five", "-3s", "inf", "3w"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="is not a time"):
        seconds(text)


def _seen(name: str, status: str = "active") -> TransactionView:
    return TransactionView(name, status, "local", 5, 0, "")


def test_a_transaction_is_shown_with_its_branches_and_others_branches_by_themselves() -> None:
    branches = [_seen("a1/n1", "prepared"), _seen("a1/n2"), _seen("b2/n1")]
    first, alone = merged([_seen("a1", "preparing")], branches)
    assert [branch.name for branch in first.branches] == ["a1/n1", "a1/n2"]
    assert (alone.name, alone.branches) == ("b2/n1", ())


def test_of_both_views_one_is_found_by_a_beginning_that_fits_only_one() -> None:
    views = [_seen("a1"), _seen("a12"), _seen("b2/n1")]
    assert one_of("b", views).name == "b2/n1"
    assert one_of("a1", views).name == "a1"
    with pytest.raises(NotOne, match="fits 2: a1, a12"):
        one_of("a", views)
    with pytest.raises(NotOne, match="nothing is called"):
        one_of("c", views)
