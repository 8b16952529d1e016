"""Votes and what follows: both phases, one phase, heuristics, and participants that are away."""

from __future__ import annotations

import pytest

from coordinator.decision_log import DecisionLog
from idl import system
from idl.coordination import TransactionNotFound
from idl.cos import (
    Coordinator,
    HeuristicCommit,
    HeuristicHazard,
    HeuristicMixed,
    HeuristicRollback,
    NotPrepared,
    Status,
    Terminator,
    Vote,
)
from idl.mapping import UserException
from idl.otids import member_name
from tests.crash.recording_disk import RecordingDisk
from tests.unit.clients.embedded_coordinator import (
    LOST_ANSWER,
    Begun,
    EmbeddedCoordinator,
    admin_of,
    joined,
    raising,
    recovery_of,
    words,
)


@pytest.fixture
def coordinator() -> EmbeddedCoordinator:
    return EmbeddedCoordinator()


@pytest.fixture
def begun(coordinator: EmbeddedCoordinator) -> Begun:
    return coordinator.begin()


# --- Votes


def test_everybody_who_votes_to_commit_is_committed(begun: Begun) -> None:
    participants = joined(begun, Vote.COMMIT, Vote.COMMIT, Vote.COMMIT)
    begun.terminator.commit(True)
    assert words(participants) == ["prepare commit"] * 3


def test_a_read_only_voter_hears_nothing_more(begun: Begun) -> None:
    participants = joined(begun, Vote.READ_ONLY, Vote.COMMIT)
    begun.terminator.commit(True)
    assert words(participants) == ["prepare", "prepare commit"]


def test_where_all_are_read_only_nothing_is_logged(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    participants = joined(begun, Vote.READ_ONLY, Vote.READ_ONLY)
    before = coordinator.disk.image()
    begun.terminator.commit(True)
    assert words(participants) == ["prepare", "prepare"]
    assert coordinator.disk.image() == before


def test_a_vote_against_rolls_the_others_back_and_does_not_call_the_voter(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    participants = joined(begun, Vote.COMMIT, Vote.READ_ONLY, Vote.ROLLBACK)
    before = coordinator.disk.image()
    with pytest.raises(system.TRANSACTION_ROLLEDBACK, match="voted to roll back"):
        begun.terminator.commit(True)
    assert words(participants) == ["prepare rollback", "prepare", "prepare"]
    assert coordinator.disk.image() == before


@pytest.mark.parametrize(
    "trouble", [LOST_ANSWER, system.TRANSIENT("away"), system.TIMEOUT("slow"), system.INTERNAL("?")]
)
def test_no_vote_rolls_everybody_back_the_silent_one_too(begun: Begun, trouble: Exception) -> None:
    participants = joined(begun, Vote.COMMIT, Vote.COMMIT)
    participants[1].during["prepare"] = raising(trouble)
    with pytest.raises(system.TRANSACTION_ROLLEDBACK, match="did not vote"):
        begun.terminator.commit(True)
    assert words(participants) == ["prepare rollback"] * 2


def test_who_says_rolled_back_instead_of_voting_has_voted_against(begun: Begun) -> None:
    participants = joined(begun, Vote.COMMIT, Vote.COMMIT)
    participants[1].during["prepare"] = raising(system.TRANSACTION_ROLLEDBACK("full"))
    with pytest.raises(system.TRANSACTION_ROLLEDBACK, match="rolled back: full"):
        begun.terminator.commit(True)
    assert words(participants) == ["prepare rollback", "prepare"]


@pytest.mark.parametrize("trouble", [LOST_ANSWER, system.OBJECT_NOT_EXIST("gone")])
def test_who_cannot_be_told_of_the_rollback_is_told_once_and_will_ask(
    coordinator: EmbeddedCoordinator, begun: Begun, trouble: Exception
) -> None:
    participants = joined(begun, Vote.COMMIT, Vote.COMMIT)
    participants[0].during["rollback"] = raising(trouble)
    begun.terminator.rollback()
    coordinator.tasks.pass_time(100.0)
    assert words(participants) == ["rollback", "rollback"]
    assert recovery_of(coordinator, begun.gtrid, "r1").replay_completion(None) is (
        Status.ROLLED_BACK
    )


def test_a_heuristic_instead_of_a_vote_is_told_noted_and_forgotten(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    participants = joined(begun, Vote.COMMIT, Vote.COMMIT)
    participants[1].during["prepare"] = raising(HeuristicMixed())
    with pytest.raises(HeuristicMixed):
        begun.terminator.commit(True)
    assert words(participants) == ["prepare rollback", "prepare forget"]
    assert begun.coordinator.get_status() is Status.ROLLED_BACK
    assert admin_of(coordinator).getTransaction(begun.otid).status is Status.ROLLED_BACK


def test_a_heuristic_against_the_rollback_is_noted(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    participants = joined(begun, Vote.COMMIT)
    participants[0].during["rollback"] = raising(HeuristicCommit())
    begun.terminator.rollback()
    assert words(participants) == ["rollback forget"]
    (shown,) = admin_of(coordinator).getTransaction(begun.otid).participants
    assert shown.state == "heuristic, committed"


# --- One phase


def test_a_participant_that_is_alone_commits_in_one_phase(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    (participant,) = joined(begun, Vote.COMMIT)
    before = coordinator.disk.image()
    begun.terminator.commit(True)
    begun.terminator.commit(True)
    assert participant.told == ["commit_one_phase"]
    assert coordinator.disk.image() == before


@pytest.mark.parametrize("trouble", [system.TRANSACTION_ROLLEDBACK("full"), system.TRANSIENT("no")])
def test_a_participant_that_is_alone_and_did_not_commit_has_rolled_back(
    begun: Begun, trouble: Exception
) -> None:
    (participant,) = joined(begun, Vote.COMMIT)
    participant.during["commit_one_phase"] = raising(trouble)
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        begun.terminator.commit(True)
    assert begun.coordinator.get_status() is Status.ROLLED_BACK


@pytest.mark.parametrize("trouble", [LOST_ANSWER, HeuristicHazard()])
def test_a_lost_answer_of_the_only_participant_is_a_hazard_and_shown_until_forgotten(
    coordinator: EmbeddedCoordinator, begun: Begun, trouble: Exception
) -> None:
    (participant,) = joined(begun, Vote.COMMIT)
    participant.during["commit_one_phase"] = raising(trouble)
    with pytest.raises(HeuristicHazard):
        begun.terminator.commit(True)
    coordinator.restart()
    terminator = coordinator.orb.member(member_name("terminator", begun.gtrid), Terminator)
    with pytest.raises(HeuristicHazard):
        terminator.commit(True)
    with pytest.raises(system.INVALID_TRANSACTION) as caught:
        terminator.commit(False)
    assert caught.value.completed is system.Completion.MAYBE
    admin = admin_of(coordinator)
    assert admin.getTransaction(begun.otid).status is Status.UNKNOWN
    assert admin.forgetTransaction(begun.otid) == 0
    with pytest.raises(TransactionNotFound):
        admin.getTransaction(begun.otid)


# --- Phase two


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (HeuristicRollback(), HeuristicMixed),
        (HeuristicMixed(), HeuristicMixed),
        (HeuristicHazard(), HeuristicHazard),
        (NotPrepared(), HeuristicHazard),
    ],
)
def test_a_heuristic_in_phase_two_is_told_and_forced_before_it_is_forgotten(
    coordinator: EmbeddedCoordinator,
    begun: Begun,
    trouble: Exception,
    told: type[UserException],
) -> None:
    participants = joined(begun, Vote.COMMIT, Vote.COMMIT)
    on_disk: list[bool] = []

    def look() -> None:
        copy = DecisionLog(RecordingDisk(coordinator.disk.image()), bytes, segment_blocks=8)
        on_disk.append(begun.gtrid in copy.ledger.heuristics)

    participants[0].during = {"commit": raising(trouble), "forget": look}
    with pytest.raises(told):
        begun.terminator.commit(True)
    assert words(participants) == ["prepare commit forget", "prepare commit"]
    assert on_disk == [True]
    with pytest.raises(told):
        begun.terminator.commit(True)
    begun.terminator.commit(False)


def test_a_participant_that_cannot_be_told_to_forget_is_told_later(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    one, _ = joined(begun, Vote.COMMIT, Vote.COMMIT)
    one.during = {"commit": raising(HeuristicRollback()), "forget": raising(LOST_ANSWER)}
    with pytest.raises(HeuristicMixed):
        begun.terminator.commit(True)
    del one.during["forget"]
    coordinator.tasks.pass_time(1.0)
    assert one.told == ["prepare", "commit", "forget", "forget"]


def test_a_participant_that_is_gone_has_forgotten(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    one, _ = joined(begun, Vote.COMMIT, Vote.COMMIT)
    gone = raising(system.OBJECT_NOT_EXIST("gone"))
    one.during = {"commit": raising(HeuristicRollback()), "forget": gone}
    with pytest.raises(HeuristicMixed):
        begun.terminator.commit(True)
    coordinator.tasks.pass_time(100.0)
    assert one.told == ["prepare", "commit", "forget"]


def test_a_participant_that_is_not_published_yet_has_not_committed_and_is_told_again(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    one, _ = joined(begun, Vote.COMMIT, Vote.COMMIT)
    one.during["commit"] = raising(system.OBJECT_NOT_EXIST("starting"))
    begun.terminator.commit(True)
    assert begun.coordinator.get_status() is Status.COMMITTING
    del one.during["commit"]
    coordinator.tasks.pass_time(10.0)
    assert one.told[-1] == "commit"
    assert begun.coordinator.get_status() is Status.COMMITTED


def test_a_participant_that_is_away_is_told_later_and_the_pauses_grow(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    away, _ = joined(begun, Vote.COMMIT, Vote.COMMIT)
    away.is_away = True
    begun.terminator.commit(True)
    assert begun.coordinator.get_status() is Status.COMMITTING
    coordinator.tasks.pass_time(100.0)
    (shown,) = admin_of(coordinator).getTransaction(begun.otid).participants
    assert 8 <= shown.attempts <= 14
    away.is_away = False
    coordinator.tasks.pass_time(31.0)
    assert away.told == ["prepare", "commit"]
    assert begun.coordinator.get_status() is Status.COMMITTED


def test_a_participant_that_is_away_is_told_after_a_restart(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    away, other = joined(begun, Vote.COMMIT, Vote.COMMIT)
    away.is_away = True
    begun.terminator.commit(True)
    coordinator.restart()
    away.is_away = False
    coordinator.tasks.pass_time(1.0)
    assert away.told == ["prepare", "commit"]
    # That it was done already was not forced, so it may be told again.
    assert other.told[:2] == ["prepare", "commit"]
    recovered = coordinator.orb.member(member_name("coordinator", begun.gtrid), Coordinator)
    assert recovered.get_status() is Status.COMMITTED
