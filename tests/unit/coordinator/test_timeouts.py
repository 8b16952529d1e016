"""What time ends and what it does not: only what is undecided, and only by a clock that goes on."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from coordinator.coordination import COORDINATION
from coordinator.live import Settings
from idl import system
from idl.coordination import Mq_Coordinator, SessionEnded, mqLease, mqParticipant, mqTransactionKey
from idl.cos import HeuristicHazard, Status, Vote, otid_t
from idl.otids import issue, otid_of
from tests.unit.clients.embedded_coordinator import (
    LOST_ANSWER,
    EmbeddedCoordinator,
    Participant,
    admin_of,
    calling_as,
    joined,
    published,
    raising,
    words,
)

KEY = mqTransactionKey("copy", 1)
NO_KEY = mqTransactionKey("", 0)


@pytest.fixture
def coordinator() -> EmbeddedCoordinator:
    return EmbeddedCoordinator(Settings(session_s=30.0, timeout_s_max=1000.0))


def _of(coordinator: EmbeddedCoordinator) -> Mq_Coordinator:
    return coordinator.orb.member(COORDINATION, Mq_Coordinator)


def _name(lease: mqLease, number: int = 0) -> otid_t:
    return otid_of(issue(lease.prefix, lease.secret, lease.first + number))


# --- Transactions


def test_an_active_transaction_that_ran_out_of_time_is_rolled_back(
    coordinator: EmbeddedCoordinator,
) -> None:
    begun = coordinator.begin(5)
    participants = joined(begun, Vote.COMMIT, Vote.COMMIT)
    coordinator.tasks.pass_time(4.5)
    assert words(participants) == ["", ""]
    coordinator.tasks.pass_time(1.0)
    assert words(participants) == ["rollback", "rollback"]
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        begun.terminator.commit(True)


def test_a_marked_transaction_that_ran_out_of_time_is_rolled_back(
    coordinator: EmbeddedCoordinator,
) -> None:
    begun = coordinator.begin(5)
    participants = joined(begun, Vote.COMMIT)
    begun.coordinator.rollback_only()
    coordinator.tasks.pass_time(6.0)
    assert words(participants) == ["rollback"]


@pytest.mark.parametrize("asked_s", [0, 5000])
def test_who_asks_for_no_limit_or_a_long_one_gets_the_longest_there_is(
    coordinator: EmbeddedCoordinator, asked_s: int
) -> None:
    begun = coordinator.begin(asked_s)
    coordinator.tasks.pass_time(999.0)
    assert begun.coordinator.get_status() is Status.ACTIVE
    coordinator.tasks.pass_time(2.0)
    assert begun.coordinator.get_status() is Status.ROLLED_BACK


def test_a_vote_that_comes_after_the_time_is_over_counts_for_nothing(
    coordinator: EmbeddedCoordinator,
) -> None:
    begun = coordinator.begin(5)
    slow, other = joined(begun, Vote.COMMIT, Vote.COMMIT)
    slow.during["prepare"] = lambda: coordinator.tasks.pass_time(10.0)
    with pytest.raises(system.TRANSACTION_ROLLEDBACK, match="ran out of time"):
        begun.terminator.commit(True)
    assert "commit" not in slow.told + other.told


def test_time_does_not_touch_what_was_left_to_the_only_participant(
    coordinator: EmbeddedCoordinator,
) -> None:
    begun = coordinator.begin(5)
    (slow,) = joined(begun, Vote.COMMIT)
    slow.during["commit_one_phase"] = lambda: coordinator.tasks.pass_time(10.0)
    begun.terminator.commit(True)
    assert slow.told == ["commit_one_phase"]


def test_a_decided_transaction_is_never_touched_by_time(coordinator: EmbeddedCoordinator) -> None:
    begun = coordinator.begin(5)
    away, _ = joined(begun, Vote.COMMIT, Vote.COMMIT)
    away.is_away = True
    begun.terminator.commit(True)
    coordinator.tasks.pass_time(5000.0)
    assert begun.coordinator.get_status() is Status.COMMITTING
    away.is_away = False
    coordinator.tasks.pass_time(60.0)
    assert away.told == ["prepare", "commit"]


def test_an_unknown_outcome_is_never_touched_by_time(coordinator: EmbeddedCoordinator) -> None:
    begun = coordinator.begin(5)
    joined(begun, Vote.COMMIT)[0].during["commit_one_phase"] = raising(LOST_ANSWER)
    with pytest.raises(HeuristicHazard):
        begun.terminator.commit(True)
    coordinator.tasks.pass_time(5000.0)
    assert begun.coordinator.get_status() is Status.UNKNOWN


# --- Sessions


def test_what_a_silent_session_had_not_decided_is_rolled_back(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked, participant = _of(coordinator), Participant()
    lease = asked.lease(0, 0)
    asked.decide(_name(lease), (mqParticipant("b0", published(coordinator, participant), None),))
    assert asked.getOutcome(_name(lease, 1)).status is Status.ACTIVE
    coordinator.tasks.pass_time(32.0)
    with pytest.raises(SessionEnded):
        asked.renew(lease.session, ())
    assert asked.getOutcome(_name(lease)).status is Status.COMMITTED
    assert asked.getOutcome(_name(lease, 1)).status is Status.ROLLED_BACK
    assert asked.decide(_name(lease, 2), ()).status is Status.ROLLED_BACK


def test_a_session_that_gives_signs_of_life_lives_on(coordinator: EmbeddedCoordinator) -> None:
    asked = _of(coordinator)
    lease = asked.lease(0, 0)
    for _ in range(4):
        coordinator.tasks.pass_time(20.0)
        asked.renew(lease.session, ())
    assert asked.decide(_name(lease), ()).status is Status.COMMITTED


def test_a_session_is_over_at_its_deadline_even_before_anybody_has_looked(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked = _of(coordinator)
    lease = asked.lease(0, 0)
    coordinator.tasks.time += 30.0
    with pytest.raises(SessionEnded):
        asked.renew(lease.session, ())


def test_a_key_that_two_sessions_share_ends_only_when_both_are_silent(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked = _of(coordinator)
    one, other = asked.lease(0, 0).session, asked.lease(0, 0).session
    otid = asked.beginOrJoin(one, KEY, 0).otid
    assert asked.beginOrJoin(other, KEY, 0).isJoined
    for _ in range(2):
        coordinator.tasks.pass_time(20.0)
        asked.renew(other, ())
    with pytest.raises(SessionEnded):
        asked.renew(one, ())
    assert asked.getOutcome(otid).status is Status.ACTIVE
    coordinator.tasks.pass_time(32.0)
    assert asked.getOutcome(otid).status is Status.ROLLED_BACK
    with pytest.raises(SessionEnded):
        asked.renew(other, ())


def test_without_a_key_every_beginning_is_another_transaction(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked = _of(coordinator)
    session = asked.lease(0, 0).session
    begun = [asked.beginOrJoin(bound, NO_KEY, 60) for bound in (session, session, 0, 0)]
    assert {(each.status, each.isJoined) for each in begun} == {(Status.ACTIVE, False)}
    assert len({each.otid.tid for each in begun}) == len(begun)
    shown = admin_of(coordinator).listTransactions()
    assert [each.key for each in shown] == [NO_KEY] * len(begun)
    participants = (mqParticipant("b0", published(coordinator, Participant()), None),)
    outcomes = [asked.decide(each.otid, participants).status for each in begun]
    assert outcomes == [Status.COMMITTED] * len(begun)


def test_a_transaction_without_session_is_its_owners_alone(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked = _of(coordinator)
    begun, keyed = (asked.beginOrJoin(0, key, 60) for key in (NO_KEY, KEY))
    with calling_as("mallory"):
        with pytest.raises(system.INVALID_TRANSACTION):
            asked.decide(begun.otid, ())
        with pytest.raises(system.INVALID_TRANSACTION):
            asked.beginOrJoin(0, KEY, 60)
    assert asked.decide(keyed.otid, ()).status is Status.COMMITTED
    assert asked.beginOrJoin(0, KEY, 60).status is Status.COMMITTED


def test_a_transaction_without_session_lives_until_its_time_is_over(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked = _of(coordinator)
    begun = [asked.beginOrJoin(0, key, 100).otid for key in (KEY, NO_KEY)]
    guest = asked.lease(0, 0).session
    assert asked.beginOrJoin(guest, KEY, 5).isJoined
    coordinator.tasks.pass_time(98.0)
    with pytest.raises(SessionEnded):
        asked.renew(guest, ())
    assert [asked.getOutcome(otid).status for otid in begun] == [Status.ACTIVE] * 2
    coordinator.tasks.pass_time(4.0)
    assert [asked.decide(otid, ()).status for otid in begun] == [Status.ROLLED_BACK] * 2


def test_a_transaction_under_no_key_ends_with_its_session(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked = _of(coordinator)
    otid = asked.beginOrJoin(asked.lease(0, 0).session, NO_KEY, 900).otid
    coordinator.tasks.pass_time(32.0)
    assert asked.decide(otid, ()).status is Status.ROLLED_BACK


def test_what_a_silent_session_had_decided_is_carried_out(
    coordinator: EmbeddedCoordinator,
) -> None:
    asked, away = _of(coordinator), Participant()
    away.is_away = True
    lease = asked.lease(0, 0)
    asked.decide(_name(lease), (mqParticipant("b0", published(coordinator, away), None),))
    coordinator.tasks.pass_time(100.0)
    away.is_away = False
    coordinator.tasks.pass_time(60.0)
    assert away.told == ["commit"]


# --- The clock


def test_setting_the_date_of_the_machine_ends_nothing(
    coordinator: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, lease = coordinator.begin(5), _of(coordinator).lease(0, 0)
    for date in (0.0, 4e9):
        monkeypatch.setattr(time, "time", lambda date=date: date)
        coordinator.tasks.pass_time(1.5)
    assert begun.coordinator.get_status() is Status.ACTIVE
    _of(coordinator).renew(lease.session, ())


def test_no_program_that_ends_branches_reads_the_date() -> None:
    root = Path(__file__).parents[3]
    sources = [*(root / "coordinator").glob("*.py"), *(root / "mqserver/transactions").glob("*.py")]
    assert len(sources) > 15
    wall = re.compile(r"\btime\.time\b|from time import|\bdatetime\b")
    assert [path.name for path in sources if wall.search(path.read_text())] == []
    assert "ThreadTasks(time.monotonic" in (root / "coordinator/__main__.py").read_text()


def test_a_closed_coordinator_rolls_nothing_back_by_time(coordinator: EmbeddedCoordinator) -> None:
    begun = coordinator.begin(5)
    participants = joined(begun, Vote.COMMIT)
    coordinator.service.close()
    coordinator.tasks.pass_time(100.0)
    assert words(participants) == [""]
