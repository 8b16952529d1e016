"""The fast way: one call decides, lost answers are asked for again, and a restart is noticed."""

from __future__ import annotations

import pytest

from clients.deciding import Deciding
from clients.errors import OutcomeUnknown
from idl import system
from idl.coordination import mqParticipant
from idl.cos import Status
from tests.unit.clients.embedded_coordinator import (
    ADDRESS,
    EmbeddedCoordinator,
    Participant,
    published,
)


@pytest.fixture
def coordinator() -> EmbeddedCoordinator:
    return EmbeddedCoordinator()


def _deciding(coordinator: EmbeddedCoordinator) -> Deciding:
    tasks = coordinator.tasks
    return Deciding(coordinator.orb, ADDRESS, tasks.now, tasks.pass_time)


def _prepared(
    coordinator: EmbeddedCoordinator, *participants: Participant
) -> tuple[mqParticipant, ...]:
    return tuple(
        mqParticipant(f"b{n}", published(coordinator, each), None)
        for n, each in enumerate(participants)
    )


def test_deciding_commits_what_is_named(coordinator: EmbeddedCoordinator) -> None:
    deciding, both = _deciding(coordinator), (Participant(), Participant())
    gtrid = deciding.begin()
    outcome = deciding.decide(gtrid, _prepared(coordinator, *both), 10.0)
    assert outcome.status is Status.COMMITTED
    assert [each.told for each in both] == [["commit"], ["commit"]]
    assert deciding.outcome(gtrid).status is Status.COMMITTED


def test_asked_again_it_says_the_same_and_does_nothing(coordinator: EmbeddedCoordinator) -> None:
    deciding, participant = _deciding(coordinator), Participant()
    gtrid, named = deciding.begin(), _prepared(coordinator, participant)
    answers = [deciding.decide(gtrid, named, 10.0).status for _ in range(3)]
    assert answers == [Status.COMMITTED] * 3
    assert participant.told == ["commit"]


def test_asked_again_with_other_names_it_is_refused(coordinator: EmbeddedCoordinator) -> None:
    deciding = _deciding(coordinator)
    gtrid = deciding.begin()
    named = _prepared(coordinator, Participant(), Participant())
    deciding.decide(gtrid, named, 10.0)
    with pytest.raises(system.INVALID_TRANSACTION, match="other participants"):
        deciding.decide(gtrid, named[:1], 10.0)


def test_what_was_given_up_can_never_be_committed(coordinator: EmbeddedCoordinator) -> None:
    deciding, participant = _deciding(coordinator), Participant()
    gtrid = deciding.begin()
    assert deciding.give_up(gtrid, 10.0).status is Status.ROLLED_BACK
    outcome = deciding.decide(gtrid, _prepared(coordinator, participant), 10.0)
    assert outcome.status is Status.ROLLED_BACK
    assert participant.told == []


def test_a_coordinator_that_is_away_for_too_long_leaves_the_outcome_unknown(
    coordinator: EmbeddedCoordinator,
) -> None:
    deciding = _deciding(coordinator)
    gtrid = deciding.begin()
    coordinator.orb.close()
    with pytest.raises(OutcomeUnknown) as told:
        deciding.decide(gtrid, (), 10.0)
    assert told.value.gtrid == gtrid
    assert 8.0 <= coordinator.tasks.now() <= 11.0


def test_names_of_before_a_restart_are_not_used_after_it(coordinator: EmbeddedCoordinator) -> None:
    deciding = _deciding(coordinator)
    before = deciding.begin()
    coordinator.restart()
    deciding._coordinator = _deciding(coordinator)._coordinator
    deciding.leases._coordinator = deciding._coordinator
    assert deciding.decide(before, (), 10.0).status is Status.ROLLED_BACK
    # One transaction was lost with the restart, and no more.
    assert deciding.decide(deciding.begin(), (), 10.0).status is Status.COMMITTED
