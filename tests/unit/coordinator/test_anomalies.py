"""The known anomalies of two-phase commit, A1 to A20, and the tests that show we have none of them.

The list is that of the design notes. A row without a test here would be a promise nobody checks, so
the table is checked for names that are gone. What no other file tests is tested below.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.coordination import COORDINATION
from coordinator.decision_log import DecisionLog
from coordinator.ledger import Decision, Note
from idl import system
from idl.coordination import Mq_Coordinator, Mq_Settler, mqParticipant
from idl.cos import Coordinator, HeuristicRollback, Status, Vote, otid_t
from idl.otids import RECOVERY, decode_gtrid, issue, member_name, otid_of
from mqserver.errors import BranchEnded, StorageError, StorageFailed, StorageFull
from mqserver.storage.contract import NewMessage, Outcome, QueueSettings
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.orphans import Orphans
from mqserver.transactions.resource import Resources, branch_id
from tests.crash.recording_disk import RecordingDisk
from tests.unit.clients.embedded_coordinator import (
    EmbeddedCoordinator,
    Participant,
    joined,
    published,
    raising,
    recovery_of,
    words,
)

ROOT = Path(__file__).parents[3]
COUNT = 20

TABLE: dict[str, tuple[str, ...]] = {
    "A1 lost prepare": (
        "tests/crash/test_mutants.py::test_a_planted_bug_is_found",
        "tests/crash/test_power_cuts.py::test_what_was_acknowledged_survives_every_power_cut",
    ),
    "A2 amnesic participant": (
        "tests/conformance/test_storage_restart.py::test_a_prepared_branch_survives_with_its_locks",
        "tests/unit/storage/test_paged.py::test_a_prepared_branch_does_not_hold_the_log",
        "tests/crash/test_paged_crashes.py::test_every_crash_leaves_what_was_promised",
    ),
    "A3 unilateral abort": (
        "tests/unit/transactions/test_orphans.py::test_time_never_ends_a_prepared_branch",
        "tests/unit/transactions/test_orphans.py::test_no_answer_leaves_the_branch_in_doubt",
    ),
    "A4 commit sent before the decision is forced": (
        "tests/unit/coordinator/test_anomalies.py::test_nobody_is_told_before_the_decision_is_on_disk",
        "tests/unit/coordinator/test_anomalies.py"
        "::test_a_decision_that_cannot_be_stored_is_a_rollback",
        "tests/unit/coordinator/test_anomalies.py"
        "::test_a_log_that_fails_leaves_everybody_in_doubt_and_decides_nothing_more",
    ),
    "A5 presumed abort while still voting": (
        "tests/unit/coordinator/test_interfaces.py::test_who_asks_during_the_vote_waits",
        "tests/unit/coordinator/test_anomalies.py::test_who_asks_while_the_decision_is_written_waits",
        "tests/unit/transactions/test_orphans.py::test_any_other_answer_leaves_the_branch_in_doubt",
    ),
    "A6 second voting round": (
        "tests/unit/coordinator/test_interfaces.py"
        "::test_a_second_commit_says_what_the_first_one_said",
        "tests/unit/coordinator/test_anomalies.py::test_no_name_is_issued_twice_across_restarts",
        "tests/unit/clients/test_deciding.py::test_asked_again_it_says_the_same_and_does_nothing",
    ),
    "A7 late work": (
        "tests/unit/coordinator/test_anomalies.py"
        "::test_work_that_arrives_after_its_rollback_is_refused",
        "tests/conformance/test_storage_outcomes.py"
        "::test_a_branch_that_is_prepared_or_over_takes_no_more_actions",
    ),
    "A8 duplicated prepare, commit or rollback": (
        "tests/unit/transactions/test_resource.py::test_a_repeated_request_gets_the_same_answer",
    ),
    "A9 commit for an unknown branch": (
        "tests/unit/transactions/test_resource.py"
        "::test_each_request_is_answered_by_what_the_branch_is",
        "tests/unit/coordinator/test_votes.py"
        "::test_a_heuristic_in_phase_two_is_told_and_forced_before_it_is_forgotten",
    ),
    "A10 decision forgotten too early": (
        "tests/unit/coordinator/test_anomalies.py"
        "::test_a_decision_is_kept_until_every_commit_is_durable",
        "tests/unit/coordinator/test_votes.py"
        "::test_a_participant_that_is_away_is_told_after_a_restart",
    ),
    "A11 log lost or restored from a backup": (
        "tests/unit/coordinator/test_anomalies.py"
        "::test_a_restored_log_does_not_answer_for_incarnations_after_the_backup",
        "tests/unit/coordinator/test_anomalies.py"
        "::test_a_log_restored_within_its_incarnation_rolls_nothing_back_if_it_is_told",
        "tests/unit/coordinator/test_anomalies.py"
        "::test_a_coordinator_with_a_new_log_answers_for_nobody_of_the_old_one",
    ),
    "A12 orphaned branch": (
        "tests/unit/transactions/test_orphans.py"
        "::test_a_silent_branch_that_is_not_prepared_is_rolled_back",
        "tests/unit/coordinator/test_timeouts.py"
        "::test_what_a_silent_session_had_not_decided_is_rolled_back",
    ),
    "A13 in doubt blocks others": (
        "tests/unit/transactions/test_administration.py"
        "::test_other_messages_flow_while_a_branch_is_in_doubt",
    ),
    "A14 heuristic mix or hazard": (
        "tests/unit/coordinator/test_transaction_admin.py"
        "::test_a_heuristic_outcome_is_shown_until_it_is_forgotten_across_restarts",
        "tests/unit/transactions/test_administration.py"
        "::test_the_coordinator_that_comes_back_hears_what_the_operator_did",
        "tests/unit/coordinator/test_anomalies.py"
        "::test_a_heuristic_that_cannot_be_stored_is_not_forgotten_at_its_participant",
    ),
    "A15 one-phase shortcut with an unknown outcome": (
        "tests/unit/coordinator/test_votes.py"
        "::test_a_lost_answer_of_the_only_participant_is_a_hazard_and_shown_until_forgotten",
        "tests/unit/coordinator/test_coordination.py"
        "::test_what_an_older_incarnation_left_to_the_only_participant_is_unknown",
    ),
    "A16 clock jump": (
        "tests/unit/coordinator/test_timeouts.py"
        "::test_setting_the_date_of_the_machine_ends_nothing",
        "tests/unit/coordinator/test_timeouts.py"
        "::test_no_program_that_ends_branches_reads_the_date",
    ),
    "A17 ambiguous SQL resource": (
        "tests/conformance/test_storage_outcomes.py::test_each_call_answers_by_what_the_branch_is",
        "tests/conformance/test_storage_restart.py::test_outcomes_survive_the_restart",
    ),
    "A18 misconfigured SQL resource": (
        "tests/conformance/test_sql_settings.py"
        "::test_a_server_that_loses_what_it_acknowledges_is_refused",
        "tests/unit/clients/test_extras.py"
        "::test_the_server_must_be_able_to_prepare_and_leave_nothing_prepared",
    ),
    "A19 two coordinators on one log": (
        "tests/integration/test_coordinator_command.py"
        "::test_a_second_one_on_the_same_directory_names_the_first",
        "tests/unit/coordinator/test_anomalies.py::test_no_name_is_issued_twice_across_restarts",
    ),
    "A20 partial registration": (
        "tests/unit/coordinator/test_interfaces.py"
        "::test_a_transaction_that_is_being_committed_takes_no_resource",
    ),
}


@pytest.fixture
def coordinator() -> EmbeddedCoordinator:
    return EmbeddedCoordinator()


def _lease_name(coordinator: EmbeddedCoordinator) -> otid_t:
    lease = coordinator.orb.member(COORDINATION, Mq_Coordinator).lease(0, 0)
    return otid_of(issue(lease.prefix, lease.secret, lease.first))


# --- The table


def test_every_anomaly_has_a_row_and_every_row_a_test() -> None:
    assert [row.split()[0] for row in TABLE] == [f"A{number}" for number in range(1, COUNT + 1)]
    assert all(TABLE.values())


@pytest.mark.parametrize("row", TABLE)
def test_the_tests_of_a_row_are_there(row: str) -> None:
    for place in TABLE[row]:
        path, _, name = place.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), place


# --- A4: the decision first


def test_nobody_is_told_before_the_decision_is_on_disk(coordinator: EmbeddedCoordinator) -> None:
    begun, on_disk = coordinator.begin(), []

    def look() -> None:
        copy = DecisionLog(RecordingDisk(coordinator.disk.image()), bytes, segment_blocks=8)
        on_disk.append(begun.gtrid in copy.ledger.decisions)

    for participant in joined(begun, Vote.COMMIT, Vote.COMMIT):
        participant.during = {"prepare": look, "commit": look}
    begun.terminator.commit(True)
    assert on_disk == [False, False, True, True]


def _failing(trouble: StorageError) -> Callable[[Decision], None]:
    def decide(decision: Decision) -> None:
        raise trouble

    return decide


def test_a_decision_that_cannot_be_stored_is_a_rollback(
    coordinator: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = coordinator.begin()
    participants = joined(begun, Vote.COMMIT, Vote.COMMIT)
    monkeypatch.setattr(coordinator.service.log, "decide", _failing(StorageFull()))
    with pytest.raises(system.TRANSACTION_ROLLEDBACK, match="was not stored"):
        begun.terminator.commit(True)
    assert words(participants) == ["prepare rollback"] * 2
    monkeypatch.undo()
    coordinator.begin().terminator.commit(True)


def test_a_log_that_fails_leaves_everybody_in_doubt_and_decides_nothing_more(
    coordinator: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = coordinator.begin()
    participants = joined(begun, Vote.COMMIT, Vote.COMMIT)
    monkeypatch.setattr(coordinator.service.log, "decide", _failing(StorageFailed()))
    with pytest.raises(system.INTERNAL) as caught:
        begun.terminator.commit(True)
    assert caught.value.completed is system.Completion.MAYBE
    assert words(participants) == ["prepare", "prepare"]
    with pytest.raises(system.INTERNAL):
        coordinator.begin()
    with pytest.raises(system.INTERNAL):
        recovery_of(coordinator, begun.gtrid, "r1").replay_completion(None)


def test_a_heuristic_that_cannot_be_stored_is_not_forgotten_at_its_participant(
    coordinator: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = coordinator.begin()
    alone, _ = joined(begun, Vote.COMMIT, Vote.COMMIT)
    alone.during["commit"] = raising(HeuristicRollback())

    def fail(gtrid: bytes, note: Note) -> None:
        raise StorageFailed()

    monkeypatch.setattr(coordinator.service.log, "note_heuristic", fail)
    with pytest.raises(system.INTERNAL):
        begun.terminator.commit(True)
    assert "forget" not in alone.told
    coordinator.restart()
    assert alone.told == ["prepare", "commit", "commit", "forget"]


# --- A5: not while it is undecided


def test_who_asks_while_the_decision_is_written_waits(
    coordinator: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = coordinator.begin(5)
    joined(begun, Vote.COMMIT, Vote.COMMIT)
    decide, answers = coordinator.service.log.decide, []

    def ask_meanwhile(decision: Decision) -> None:
        # It runs out of time besides, which comes too late.
        coordinator.tasks.pass_time(10.0)
        answers.append(recovery_of(coordinator, begun.gtrid, "r1").replay_completion(None))
        decide(decision)

    monkeypatch.setattr(coordinator.service.log, "decide", ask_meanwhile)
    begun.terminator.commit(True)
    assert answers == [Status.PREPARING]


# --- A6, A19: every name once


def test_no_name_is_issued_twice_across_restarts(coordinator: EmbeddedCoordinator) -> None:
    gtrids: list[bytes] = []
    for _ in range(3):
        gtrids += [coordinator.begin().gtrid for _ in range(3)]
        coordinator.restart()
    assert len(set(gtrids)) == len(gtrids)
    assert {decode_gtrid(gtrid).incarnation for gtrid in gtrids} == {1, 2, 3}


def test_a_name_of_an_older_incarnation_is_never_voted_on_again(
    coordinator: EmbeddedCoordinator,
) -> None:
    otid, participant = _lease_name(coordinator), Participant()
    named = (mqParticipant("b0", published(coordinator, participant), None),)
    coordinator.restart()
    asked = coordinator.orb.member(COORDINATION, Mq_Coordinator)
    assert asked.decide(otid, named).status is Status.ROLLED_BACK
    name = member_name("coordinator", otid.tid)
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        coordinator.orb.member(name, Coordinator).register_resource(named[0].resource)
    assert participant.told == []


# --- A7: late work


def test_work_that_arrives_after_its_rollback_is_refused(
    coordinator: EmbeddedCoordinator,
) -> None:
    storage = MemoryStorage(lambda: 0.0)
    storage.create_queue("q", QueueSettings())
    resources = Resources(coordinator.orb, storage)
    resources.publish()
    gtrid = coordinator.begin().gtrid
    resource = resources.resource_of(gtrid, "b0", is_lazy=False)
    resource.rollback()
    with pytest.raises(BranchEnded):
        storage.store(branch_id(gtrid, "b0"), "q", [NewMessage(b"late", 0)])
    assert resource.prepare() is Vote.ROLLBACK


# --- A10: kept until all are done


class _Settler:
    def __init__(self) -> None:
        self.settled: list[otid_t] = []

    def commitBranches(self, branches: tuple[otid_t, ...]) -> tuple[otid_t, ...]:
        return branches

    def getEnded(self, branches: tuple[otid_t, ...]) -> tuple[otid_t, ...]:
        return branches

    def settle(self, branches: tuple[otid_t, ...]) -> None:
        self.settled += branches


def test_a_decision_is_kept_until_every_commit_is_durable(
    coordinator: EmbeddedCoordinator,
) -> None:
    otid, participant, settler = _lease_name(coordinator), Participant(), _Settler()
    made = coordinator.orb.publish(settler, Mq_Settler, "settler-of-b0")
    named = (mqParticipant("b0", published(coordinator, participant), made),)
    coordinator.orb.member(COORDINATION, Mq_Coordinator).decide(otid, named)
    # It has answered, and is not on disk there: a crash of both must not lose it.
    coordinator.restart()
    coordinator.orb.publish(settler, Mq_Settler, "settler-of-b0")
    assert participant.told == ["commit", "commit"]
    recovery = recovery_of(coordinator, otid.tid, "b0")
    assert recovery.replay_completion(None) is Status.COMMITTED
    coordinator.tasks.pass_time(1.0)
    assert settler.settled == [otid_of(otid.tid, "b0")]
    assert coordinator.service.transactions.every() == []


# --- A11: a log that forgot


def _in_doubt(coordinator: EmbeddedCoordinator, gtrid: bytes) -> Outcome:
    """What a branch of the transaction is after it has asked there for long."""
    now = 0.0
    storage = MemoryStorage(lambda: now)
    storage.create_queue("q", QueueSettings())
    branch = branch_id(gtrid, "b0")
    storage.store(branch, "q", [NewMessage(b"x", 0)])
    storage.prepare(branch, f"PYRO:{member_name(RECOVERY, gtrid, 'b0')}@in-process:0".encode())
    orphans = Orphans(coordinator.orb, Resources(coordinator.orb, storage), lambda: now)
    orphans.ask_at_once()
    for _ in range(10):
        now += 100.0
        orphans.ask_those_due()
    return storage.outcome(branch)


def test_a_restored_log_does_not_answer_for_incarnations_after_the_backup(
    coordinator: EmbeddedCoordinator,
) -> None:
    backup = coordinator.disk.image()
    coordinator.restart()
    otid, away = _lease_name(coordinator), Participant()
    away.is_away = True
    named = (mqParticipant("b0", published(coordinator, away), None),)
    coordinator.orb.member(COORDINATION, Mq_Coordinator).decide(otid, named)
    assert _in_doubt(coordinator, otid.tid) is Outcome.COMMITTED
    coordinator.disk = RecordingDisk(backup)
    coordinator.restart()
    assert _in_doubt(coordinator, otid.tid) is Outcome.PREPARED


def test_a_log_restored_within_its_incarnation_rolls_nothing_back_if_it_is_told(
    coordinator: EmbeddedCoordinator,
) -> None:
    before, after = _lease_name(coordinator), _lease_name(coordinator)
    decisions = coordinator.orb.member(COORDINATION, Mq_Coordinator)
    away = Participant()
    away.is_away = True
    named = (mqParticipant("b0", published(coordinator, away), None),)
    decisions.decide(before, named)
    backup = coordinator.disk.image()
    decisions.decide(after, named)
    # Without being told, nothing distinguishes it from a log that never decided.
    coordinator.disk = RecordingDisk(backup)
    coordinator.restart()
    assert _in_doubt(coordinator, after.tid) is Outcome.ROLLED_BACK
    for is_restored in (True, False):
        coordinator.disk = RecordingDisk(backup) if is_restored else coordinator.disk
        coordinator.restart(is_restored)
        assert _in_doubt(coordinator, before.tid) is Outcome.COMMITTED
        assert _in_doubt(coordinator, after.tid) is Outcome.PREPARED


def test_a_coordinator_with_a_new_log_answers_for_nobody_of_the_old_one(
    coordinator: EmbeddedCoordinator,
) -> None:
    otid = _lease_name(coordinator)
    coordinator.disk = RecordingDisk()
    coordinator.restart()
    assert _in_doubt(coordinator, otid.tid) is Outcome.PREPARED
