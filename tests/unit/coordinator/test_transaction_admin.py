"""What an operator sees of transactions and may do to them, and the limits of a coordinator."""

from __future__ import annotations

import logging

import pytest

from coordinator import sessions
from coordinator.coordination import COORDINATION
from coordinator.ledger import Decision
from coordinator.live import Settings
from idl import system
from idl.coordination import (
    Mq_Coordinator,
    TransactionNotFound,
    mqLease,
    mqParticipant,
    mqTransactionKey,
)
from idl.cos import HeuristicMixed, HeuristicRollback, Status, Vote, otid_t
from idl.otids import issue, otid_of, show, split_otid
from tests.unit.clients.embedded_coordinator import (
    Begun,
    EmbeddedCoordinator,
    Participant,
    admin_of,
    calling_as,
    joined,
    published,
    raising,
    recovery_of,
    words,
)


@pytest.fixture
def coordinator() -> EmbeddedCoordinator:
    return EmbeddedCoordinator()


def _of(coordinator: EmbeddedCoordinator) -> Mq_Coordinator:
    return coordinator.orb.member(COORDINATION, Mq_Coordinator)


def _name(lease: mqLease, number: int = 0) -> otid_t:
    return otid_of(issue(lease.prefix, lease.secret, lease.first + number))


def _decided(coordinator: EmbeddedCoordinator, *participants: Participant) -> otid_t:
    otid = _name(_of(coordinator).lease(0, 0))
    named = tuple(
        mqParticipant(f"b{n}", published(coordinator, each), None)
        for n, each in enumerate(participants)
    )
    _of(coordinator).decide(otid, named)
    return otid


def _away() -> Participant:
    participant = Participant()
    participant.is_away = True
    return participant


def _with_heuristic(coordinator: EmbeddedCoordinator) -> Begun:
    begun = coordinator.begin()
    joined(begun, Vote.COMMIT, Vote.COMMIT)[0].during["commit"] = raising(HeuristicRollback())
    with pytest.raises(HeuristicMixed):
        begun.terminator.commit(True)
    return begun


# --- Seeing


def test_a_transaction_is_shown_with_its_owner_its_age_and_the_time_it_has_left(
    coordinator: EmbeddedCoordinator,
) -> None:
    with calling_as("alice"):
        begun = coordinator.begin(60)
        joined(begun, Vote.COMMIT)
    coordinator.tasks.pass_time(10.0)
    (shown,) = admin_of(coordinator).listTransactions()
    assert shown == admin_of(coordinator).getTransaction(begun.otid)
    assert (shown.otid, shown.status, shown.owner) == (begun.otid, Status.ACTIVE, "alice")
    assert (shown.age, shown.timeLeft) == (10, 50)
    assert [(each.name, each.state) for each in shown.participants] == [("r1", "pending")]


def test_a_transaction_is_shown_with_its_key(coordinator: EmbeddedCoordinator) -> None:
    key = mqTransactionKey("copy", 7)
    asked = _of(coordinator)
    asked.beginOrJoin(asked.lease(0, 0).session, key, 0)
    (shown,) = admin_of(coordinator).listTransactions()
    assert shown.key == key


def test_the_explanation_says_what_a_transaction_waits_for(
    coordinator: EmbeddedCoordinator,
) -> None:
    admin, seen = admin_of(coordinator), []
    begun = coordinator.begin()
    one, _ = joined(begun, Vote.COMMIT, Vote.COMMIT)

    def look() -> None:
        seen.append(admin.getTransaction(begun.otid).explanation)

    look()
    one.during = {"prepare": look, "commit": look}
    begun.terminator.commit(True)
    marked = coordinator.begin()
    joined(marked, Vote.COMMIT)[0].during["rollback"] = lambda: seen.append(
        admin.getTransaction(marked.otid).explanation
    )
    marked.coordinator.rollback_only()
    seen.append(admin.getTransaction(marked.otid).explanation)
    marked.terminator.rollback()
    starts = ("at work", "waits for the votes of r1", "committed; waits", "can only", "is being")
    assert [text.startswith(start) for text, start in zip(seen, starts, strict=True)] == [True] * 5


def test_a_participant_that_is_away_is_shown_with_attempts_and_trouble(
    coordinator: EmbeddedCoordinator,
) -> None:
    otid = _decided(coordinator, _away(), Participant())
    coordinator.tasks.pass_time(5.0)
    shown = admin_of(coordinator).getTransaction(otid)
    assert shown.status is Status.COMMITTING
    assert shown.timeLeft == 0
    (participant,) = shown.participants
    assert (participant.name, participant.state) == ("b0", "prepared")
    assert participant.attempts > 2
    assert "away" in participant.trouble


def test_a_heuristic_is_shown_beside_those_who_have_not_answered(
    coordinator: EmbeddedCoordinator,
) -> None:
    begun = coordinator.begin()
    alone, away = joined(begun, Vote.COMMIT, Vote.COMMIT)
    alone.during["commit"] = raising(HeuristicRollback())
    away.is_away = True
    with pytest.raises(HeuristicMixed):
        begun.terminator.commit(True)
    (shown,) = admin_of(coordinator).listTransactions()
    assert [each.state for each in shown.participants] == ["heuristic, rolled back", "prepared"]


def test_a_decision_that_is_being_written_is_shown_as_such(
    coordinator: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, seen = coordinator.begin(), []
    joined(begun, Vote.COMMIT, Vote.COMMIT)
    decide = coordinator.service.log.decide

    def look_meanwhile(decision: Decision) -> None:
        shown = admin_of(coordinator).getTransaction(begun.otid)
        seen.append((shown.status, shown.explanation))
        decide(decision)

    monkeypatch.setattr(coordinator.service.log, "decide", look_meanwhile)
    begun.terminator.commit(True)
    assert seen == [(Status.PREPARED, "the decision is being written")]


def test_a_heuristic_outcome_is_shown_until_it_is_forgotten_across_restarts(
    coordinator: EmbeddedCoordinator,
) -> None:
    begun = _with_heuristic(coordinator)
    for _ in range(2):
        (shown,) = admin_of(coordinator).listTransactions()
        assert (shown.otid, shown.status, shown.owner) == (begun.otid, Status.COMMITTED, "local")
        assert [each.state for each in shown.participants] == ["heuristic, rolled back"]
        coordinator.restart()
    assert admin_of(coordinator).forgetTransaction(begun.otid) == 0
    assert admin_of(coordinator).listTransactions() == ()


def test_what_is_over_or_was_never_begun_is_not_found(coordinator: EmbeddedCoordinator) -> None:
    admin, over = admin_of(coordinator), coordinator.begin()
    over.terminator.commit(True)
    for otid in (over.otid, otid_of(b"\xff" * 32)):
        with pytest.raises(TransactionNotFound):
            admin.getTransaction(otid)
        with pytest.raises(TransactionNotFound):
            admin.rollbackTransaction(otid)
        with pytest.raises(TransactionNotFound):
            admin.forgetTransaction(otid)


# --- Doing


def test_an_operator_rolls_back_the_transaction_of_another_and_it_is_audited(
    coordinator: EmbeddedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    begun = coordinator.begin()
    participants = joined(begun, Vote.COMMIT)
    with calling_as("operator"), caplog.at_level(logging.WARNING, "oncemq.audit"):
        outcome = admin_of(coordinator).rollbackTransaction(begun.otid)
    assert outcome.status is Status.ROLLED_BACK
    assert outcome.reason == "operator operator rolled it back"
    assert words(participants) == ["rollback"]
    assert caplog.messages == [f"operator asks to roll back transaction {show(begun.gtrid)}"]


def test_an_operator_cannot_roll_back_what_is_decided(coordinator: EmbeddedCoordinator) -> None:
    admin = admin_of(coordinator)
    otid = _decided(coordinator, _away())
    assert admin.rollbackTransaction(otid).status is Status.COMMITTED
    assert admin.getTransaction(otid).status is Status.COMMITTING
    noted = _with_heuristic(coordinator)
    assert admin.rollbackTransaction(noted.otid).status is Status.COMMITTED


def test_an_operator_gives_up_those_who_never_answer_and_it_is_audited(
    coordinator: EmbeddedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    lost = [_away(), _away()]
    otid = _decided(coordinator, *lost, Participant())
    admin, gtrid = admin_of(coordinator), split_otid(otid)[0]
    with calling_as("operator"), caplog.at_level(logging.WARNING, "oncemq.audit"):
        assert admin.forgetTransaction(otid) == 2
        assert len(admin.getTransaction(otid).participants) == 2
        assert admin.forgetTransaction(otid) == 0
    assert caplog.messages == [
        f"operator gives up {count} participants of {show(gtrid)}" for count in (2, 0)
    ]
    with pytest.raises(TransactionNotFound):
        admin.getTransaction(otid)
    coordinator.tasks.pass_time(100.0)
    coordinator.restart()
    assert _of(coordinator).getOutcome(otid).status is Status.COMMITTED


def test_those_given_up_who_come_back_are_told_committed_also_after_a_restart(
    coordinator: EmbeddedCoordinator,
) -> None:
    otid = _decided(coordinator, _away())
    gtrid = split_otid(otid)[0]
    admin_of(coordinator).forgetTransaction(otid)
    admin_of(coordinator).forgetTransaction(otid)
    # Something that is forced takes with it what was only written.
    _decided(coordinator, Participant())
    coordinator.restart()
    assert recovery_of(coordinator, gtrid, "b0").replay_completion(None) is Status.COMMITTED
    assert recovery_of(coordinator, gtrid, "b1").replay_completion(None) is Status.ROLLED_BACK


def test_what_is_not_decided_is_not_given_up(coordinator: EmbeddedCoordinator) -> None:
    begun = coordinator.begin()
    with pytest.raises(system.INVALID_TRANSACTION, match="roll it back instead"):
        admin_of(coordinator).forgetTransaction(begun.otid)
    assert begun.coordinator.get_status() is Status.ACTIVE


# --- Limits


def test_there_are_only_so_many_transactions() -> None:
    coordinator = EmbeddedCoordinator(Settings(transactions_max=2))
    asked = _of(coordinator)
    lease = asked.lease(0, 0)
    begun = coordinator.begin()
    asked.getOutcome(_name(lease))
    with pytest.raises(system.IMP_LIMIT, match="transactions are under way"):
        coordinator.begin()
    with pytest.raises(system.IMP_LIMIT):
        asked.decide(_name(lease, 1), ())
    begun.terminator.commit(True)
    assert asked.decide(_name(lease, 1), ()).status is Status.COMMITTED


def test_nobody_has_more_transactions_open_than_one_principal_may_have() -> None:
    coordinator = EmbeddedCoordinator(Settings(transactions_per_owner_max=2))
    with calling_as("alice"):
        asked = _of(coordinator)
        lease = asked.lease(0, 0)
        begun = coordinator.begin()
        asked.getOutcome(_name(lease))
        with pytest.raises(system.IMP_LIMIT, match="2 transactions of alice are under way"):
            coordinator.begin()
        with pytest.raises(system.IMP_LIMIT):
            asked.decide(_name(lease, 1), ())
    with calling_as("bob"):
        coordinator.begin()
    with calling_as("alice"):
        begun.terminator.rollback()
        assert asked.decide(_name(lease, 1), ()).status is Status.COMMITTED
        coordinator.begin()
        with pytest.raises(system.IMP_LIMIT):
            coordinator.begin()


def test_what_was_decided_is_carried_out_after_a_start_however_much_there_is() -> None:
    coordinator = EmbeddedCoordinator()
    for _ in range(3):
        _decided(coordinator, _away())
    coordinator.settings = Settings(transactions_per_owner_max=1, transactions_max=2)
    coordinator.restart()
    assert len(admin_of(coordinator).listTransactions()) == 3


def test_nobody_has_more_sessions_open_than_one_principal_may_have() -> None:
    coordinator = EmbeddedCoordinator(Settings(sessions_per_owner_max=1))
    asked = _of(coordinator)
    with calling_as("alice"):
        lease = asked.lease(0, 0)
        with pytest.raises(system.IMP_LIMIT, match="1 sessions of alice are open"):
            asked.lease(0, 0)
    with calling_as("bob"):
        asked.lease(0, 0)
    with calling_as("alice"):
        asked.lease(lease.session, 0)
        asked.endSession(lease.session)
        asked.lease(0, 0)


def test_a_transaction_has_only_so_many_participants() -> None:
    coordinator = EmbeddedCoordinator(Settings(participants_max=2))
    begun = coordinator.begin()
    participants = joined(begun, Vote.COMMIT, Vote.COMMIT)
    with pytest.raises(system.IMP_LIMIT):
        begun.join(Participant())
    begun.terminator.commit(True)
    assert words(participants) == ["prepare commit"] * 2


def test_a_decision_that_names_too_many_participants_is_a_rollback() -> None:
    coordinator = EmbeddedCoordinator(Settings(participants_max=2))
    participants = [Participant() for _ in range(3)]
    otid = _decided(coordinator, *participants)
    outcome = _of(coordinator).getOutcome(otid)
    assert outcome.status is Status.ROLLED_BACK
    assert words(participants) == ["", "", ""]


def test_there_are_only_so_many_sessions_and_names(
    coordinator: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 1)
    monkeypatch.setattr(sessions, "BLOCKS_MAX", 2)
    asked = _of(coordinator)
    lease = asked.lease(0, 0)
    with pytest.raises(system.IMP_LIMIT, match="sessions are open"):
        asked.lease(0, 0)
    asked.lease(lease.session, 0)
    with pytest.raises(system.IMP_LIMIT, match="blocks of names"):
        asked.lease(lease.session, 0)
    asked.endSession(lease.session)
    asked.lease(0, 0)
