"""The objects of CosTransactions: every operation, in every situation that changes its answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator import interfaces
from idl import system
from idl.cos import (
    Control,
    Coordinator,
    Inactive,
    NotPrepared,
    NotSubtransaction,
    PropagationContext,
    Status,
    SubtransactionAwareResource,
    Terminator,
    TransIdentity,
    Unavailable,
    Vote,
    otid_t,
)
from idl.otids import member_name, show
from tests.unit.clients.embedded_coordinator import (
    Begun,
    EmbeddedCoordinator,
    Participant,
    admin_of,
    calling_as,
    joined,
    published,
    recovery_of,
    words,
)

FOREIGN_GTRID = b"\xff" * 32
LOST_ANSWER = system.COMM_FAILURE("cut", system.Completion.MAYBE)


@pytest.fixture
def coordinator() -> EmbeddedCoordinator:
    return EmbeddedCoordinator()


@pytest.fixture
def begun(coordinator: EmbeddedCoordinator) -> Begun:
    return coordinator.begin()


def _foreign(coordinator: EmbeddedCoordinator, has_terminator: bool) -> PropagationContext:
    orb = coordinator.orb
    coord = orb.member(member_name("coordinator", FOREIGN_GTRID), Coordinator)
    term = orb.member(member_name("terminator", FOREIGN_GTRID), Terminator)
    identity = TransIdentity(coord, term if has_terminator else None, otid_t(7, 0, b"theirs"))
    return PropagationContext(0, identity, (), None)


# --- TransactionFactory and Control


def test_a_created_transaction_is_active_and_top_level(begun: Begun) -> None:
    assert begun.coordinator.get_status() is Status.ACTIVE
    assert begun.coordinator.is_top_level_transaction()


def test_created_transactions_differ(coordinator: EmbeddedCoordinator) -> None:
    one, other = coordinator.begin(), coordinator.begin()
    assert not one.coordinator.is_same_transaction(other.coordinator)


def test_a_context_of_ours_is_recreated_as_the_same_transaction(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    control = coordinator.factory.recreate(begun.coordinator.get_txcontext())
    assert control.get_coordinator().is_same_transaction(begun.coordinator)
    control.get_terminator().rollback()
    assert begun.coordinator.get_status() is Status.ROLLED_BACK


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_context_of_a_transaction_that_is_over_is_not_recreated(
    coordinator: EmbeddedCoordinator, begun: Begun, end: str
) -> None:
    context = begun.coordinator.get_txcontext()
    begun.terminator.commit(True) if end == "commit" else begun.terminator.rollback()
    with pytest.raises(system.INVALID_TRANSACTION, match="is over"):
        coordinator.factory.recreate(context)


def test_a_foreign_context_is_recreated_with_the_objects_it_names(
    coordinator: EmbeddedCoordinator,
) -> None:
    context = _foreign(coordinator, has_terminator=True)
    control = coordinator.factory.recreate(context)
    reference_of = coordinator.orb.reference_of
    assert reference_of(control.get_coordinator()) == reference_of(context.current.coord)
    assert reference_of(control.get_terminator()) == reference_of(context.current.term)


def test_who_imports_a_transaction_may_lack_the_means_to_end_it(
    coordinator: EmbeddedCoordinator,
) -> None:
    control = coordinator.factory.recreate(_foreign(coordinator, has_terminator=False))
    with pytest.raises(Unavailable):
        control.get_terminator()


def test_a_foreign_context_without_a_coordinator_is_not_recreated(
    coordinator: EmbeddedCoordinator,
) -> None:
    nobody = PropagationContext(0, TransIdentity(None, None, otid_t(7, 0, b"theirs")), (), None)
    with pytest.raises(system.INVALID_TRANSACTION):
        coordinator.factory.recreate(nobody)


def test_the_oldest_imported_control_goes_when_there_are_many(
    coordinator: EmbeddedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interfaces, "CONTROLS_IMPORTED_MAX", 1)
    context = _foreign(coordinator, has_terminator=True)
    first, second = (coordinator.factory.recreate(context) for _ in range(2))
    second.get_coordinator()
    with pytest.raises(system.OBJECT_NOT_EXIST):
        first.get_coordinator()


def test_the_control_of_a_transaction_that_is_over_hands_out_nothing(begun: Begun) -> None:
    begun.terminator.commit(True)
    with pytest.raises(Unavailable):
        begun.control.get_terminator()
    with pytest.raises(Unavailable):
        begun.control.get_coordinator()


def test_an_object_whose_name_names_no_transaction_does_not_exist(
    coordinator: EmbeddedCoordinator,
) -> None:
    with pytest.raises(system.OBJECT_NOT_EXIST):
        coordinator.orb.member("control/no-name", Control).get_coordinator()


# --- Terminator


@pytest.mark.parametrize("report_heuristics", [True, False])
def test_a_second_commit_says_what_the_first_one_said(
    begun: Begun, report_heuristics: bool
) -> None:
    participants = joined(begun, Vote.COMMIT, Vote.COMMIT)
    begun.terminator.commit(report_heuristics)
    begun.terminator.commit(report_heuristics)
    assert words(participants) == ["prepare commit"] * 2
    assert begun.coordinator.get_status() is Status.COMMITTED


def test_a_transaction_without_participants_commits(begun: Begun) -> None:
    begun.terminator.commit(True)
    begun.terminator.commit(True)


def test_a_rollback_undoes_everybody_and_may_be_repeated(begun: Begun) -> None:
    participants = joined(begun, Vote.COMMIT, Vote.COMMIT)
    begun.terminator.rollback()
    begun.terminator.rollback()
    assert words(participants) == ["rollback", "rollback"]


def test_a_rollback_after_the_commit_is_refused(begun: Begun) -> None:
    begun.terminator.commit(True)
    with pytest.raises(system.INVALID_TRANSACTION, match="has been committed"):
        begun.terminator.rollback()


def test_a_commit_after_the_rollback_says_rolled_back(begun: Begun) -> None:
    begun.terminator.rollback()
    for _ in range(2):
        with pytest.raises(system.TRANSACTION_ROLLEDBACK):
            begun.terminator.commit(True)


def test_to_anybody_but_the_owner_a_transaction_looks_as_if_it_never_was(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    never = coordinator.orb.member(member_name("terminator", FOREIGN_GTRID), Terminator)
    with calling_as("mallory"):
        for terminator in (begun.terminator, never):
            with pytest.raises(system.INVALID_TRANSACTION):
                terminator.commit(True)
            with pytest.raises(system.INVALID_TRANSACTION):
                terminator.rollback()
        with pytest.raises(system.INVALID_TRANSACTION):
            begun.coordinator.create_subtransaction()
    assert begun.coordinator.get_status() is Status.ACTIVE
    begun.terminator.commit(True)


# --- Coordinator: statuses, comparing, names


def test_the_three_statuses_of_a_top_level_transaction_agree(begun: Begun) -> None:
    asked = begun.coordinator
    for status in (Status.ACTIVE, Status.MARKED_ROLLBACK):
        assert asked.get_status() is status
        assert asked.get_parent_status() is status
        assert asked.get_top_level_status() is status
        asked.rollback_only()
    begun.terminator.rollback()
    assert asked.get_parent_status() is asked.get_top_level_status() is Status.ROLLED_BACK


def test_a_subtransaction_knows_the_status_of_its_parent_and_of_the_top(begun: Begun) -> None:
    child = begun.nest()
    grandchild = child.nest()
    child.coordinator.rollback_only()
    assert grandchild.coordinator.get_status() is Status.ACTIVE
    assert grandchild.coordinator.get_parent_status() is Status.MARKED_ROLLBACK
    assert grandchild.coordinator.get_top_level_status() is Status.ACTIVE


def test_the_status_follows_the_two_phases(begun: Begun) -> None:
    seen: list[Status] = []
    one, _ = joined(begun, Vote.COMMIT, Vote.COMMIT)
    for word in ("prepare", "commit"):
        one.during[word] = lambda: seen.append(begun.coordinator.get_status())
    begun.terminator.commit(True)
    assert seen == [Status.PREPARING, Status.COMMITTING]


def test_a_foreign_transaction_has_an_unknown_status(coordinator: EmbeddedCoordinator) -> None:
    foreign = coordinator.orb.member(member_name("coordinator", FOREIGN_GTRID), Coordinator)
    assert foreign.get_status() is Status.UNKNOWN


def test_transactions_compare_by_family_and_descent(coordinator: EmbeddedCoordinator) -> None:
    top, stranger = coordinator.begin(), coordinator.begin().coordinator
    child, sibling = top.nest().coordinator, top.nest().coordinator
    parent = top.coordinator
    assert parent.is_same_transaction(parent)
    assert not parent.is_same_transaction(child)
    assert child.is_related_transaction(sibling)
    assert not child.is_related_transaction(stranger)
    assert parent.is_ancestor_transaction(child)
    assert parent.is_ancestor_transaction(parent)
    assert not child.is_ancestor_transaction(parent)
    assert child.is_descendant_transaction(parent)
    assert child.is_descendant_transaction(child)
    assert not parent.is_descendant_transaction(child)
    assert not child.is_descendant_transaction(sibling)
    assert not child.is_top_level_transaction()


def test_nil_and_objects_of_others_are_no_relatives(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    elsewhere = coordinator.orb.proxy("PYRO:coordinator/00@elsewhere:1", Coordinator)
    for other in (None, elsewhere):
        assert not begun.coordinator.is_same_transaction(other)
        assert not begun.coordinator.is_related_transaction(other)
        assert not begun.coordinator.is_ancestor_transaction(other)
        assert not begun.coordinator.is_descendant_transaction(other)


def test_hashes_stay_and_that_of_the_top_is_the_familys(begun: Begun) -> None:
    child = begun.nest().coordinator
    own = begun.coordinator.hash_transaction()
    assert begun.coordinator.hash_top_level_tran() == own == child.hash_top_level_tran()
    assert child.hash_transaction() != own
    begun.terminator.commit(True)
    assert begun.coordinator.hash_transaction() == own == begun.coordinator.hash_top_level_tran()


def test_a_transaction_is_called_as_operators_read_it(begun: Begun) -> None:
    assert begun.coordinator.get_transaction_name() == show(begun.gtrid)


def test_the_context_names_the_transaction_its_parents_and_the_time_left(
    coordinator: EmbeddedCoordinator,
) -> None:
    parent = coordinator.begin(10)
    child = parent.nest()
    coordinator.tasks.pass_time(3.5)
    context = child.coordinator.get_txcontext()
    assert context.timeout == 6
    assert context.current.otid == child.otid
    assert [each.otid for each in context.parents] == [parent.otid]


def test_a_transaction_that_is_over_has_no_context(begun: Begun) -> None:
    begun.terminator.rollback()
    with pytest.raises(Unavailable):
        begun.coordinator.get_txcontext()


# --- Coordinator: taking part

Registration = Callable[[Coordinator], object]
REGISTRATIONS: dict[str, Registration] = {
    "resource": lambda it: it.register_resource(None),
    "synchronization": lambda it: it.register_synchronization(None),
    "subtran_aware": lambda it: it.register_subtran_aware(None),
}


@pytest.mark.parametrize("kind", REGISTRATIONS)
def test_nil_cannot_be_registered(begun: Begun, kind: str) -> None:
    with pytest.raises(system.BAD_PARAM):
        REGISTRATIONS[kind](begun.coordinator)


def test_a_marked_transaction_takes_no_resource_and_says_that_it_is_rolled_back(
    begun: Begun,
) -> None:
    begun.coordinator.rollback_only()
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        begun.join(Participant())


@pytest.mark.parametrize("word", ["prepare", "commit"])
def test_a_transaction_that_is_being_committed_takes_no_resource(begun: Begun, word: str) -> None:
    refused: list[type] = []

    def join_late() -> None:
        with pytest.raises(Inactive) as caught:
            begun.join(Participant())
        refused.append(caught.type)
        with pytest.raises(Inactive):
            begun.coordinator.create_subtransaction()
        with pytest.raises(Inactive):
            begun.coordinator.rollback_only()

    joined(begun, Vote.COMMIT, Vote.COMMIT)[0].during[word] = join_late
    begun.terminator.commit(True)
    assert refused == [Inactive]


def test_a_transaction_that_is_over_takes_no_resource(coordinator: EmbeddedCoordinator) -> None:
    committed, rolled_back = coordinator.begin(), coordinator.begin()
    committed.terminator.commit(True)
    rolled_back.terminator.rollback()
    with pytest.raises(Inactive):
        committed.join(Participant())
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        rolled_back.join(Participant())
    with pytest.raises(Inactive):
        committed.coordinator.rollback_only()


def test_a_resource_that_registers_twice_takes_part_twice(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    participant = Participant()
    resource = published(coordinator, participant)
    recoveries = [begun.coordinator.register_resource(resource) for _ in range(2)]
    assert len({coordinator.orb.reference_of(each) for each in recoveries}) == 2
    begun.terminator.commit(True)
    assert sorted(participant.told) == ["commit", "commit", "prepare", "prepare"]


def test_only_a_subtransaction_takes_aware_resources(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    aware = coordinator.orb.proxy(
        coordinator.orb.reference_of(published(coordinator, Participant())),
        SubtransactionAwareResource,
    )
    with pytest.raises(NotSubtransaction):
        begun.coordinator.register_subtran_aware(aware)


def test_rollback_only_leaves_nothing_but_the_rollback(begun: Begun) -> None:
    participants = joined(begun, Vote.COMMIT)
    begun.coordinator.rollback_only()
    begun.coordinator.rollback_only()
    with pytest.raises(system.TRANSACTION_ROLLEDBACK, match="allows nothing but a rollback"):
        begun.terminator.commit(True)
    assert words(participants) == ["rollback"]


# --- RecoveryCoordinator


def test_who_asks_for_an_unknown_transaction_of_ours_is_told_rolled_back(begun: Begun) -> None:
    recovery = begun.join(Participant())
    begun.terminator.rollback()
    assert recovery.replay_completion(None) is Status.ROLLED_BACK


def test_who_asks_before_it_was_asked_has_lost_its_work_and_dooms_the_transaction(
    begun: Begun,
) -> None:
    recovery = begun.join(Participant())
    with pytest.raises(NotPrepared):
        recovery.replay_completion(None)
    assert begun.coordinator.get_status() is Status.MARKED_ROLLBACK
    assert recovery.replay_completion(None) is Status.ROLLED_BACK


def test_who_is_not_registered_and_asks_an_active_transaction_waits(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    recovery = recovery_of(coordinator, begun.gtrid, "b0")
    assert recovery.replay_completion(None) is Status.PREPARING
    assert begun.coordinator.get_status() is Status.ACTIVE


def test_who_asks_during_the_vote_waits(begun: Begun) -> None:
    answers: list[Status] = []
    asking, last = Participant(), Participant()
    recovery = begun.join(asking)
    begun.join(last)
    for participant in (asking, last):
        participant.during["prepare"] = lambda: answers.append(recovery.replay_completion(None))
    begun.terminator.commit(True)
    assert answers == [Status.PREPARING, Status.PREPARING]


def test_who_is_named_by_the_decision_is_told_committed_and_others_rolled_back(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    away = Participant()
    away.is_away = True
    recovery = begun.join(away)
    begun.join(Participant())
    begun.terminator.commit(True)
    for _ in range(2):
        assert recovery.replay_completion(None) is Status.COMMITTED
        assert recovery_of(coordinator, begun.gtrid, "b0").replay_completion(None) is (
            Status.ROLLED_BACK
        )
        coordinator.restart()
        recovery = recovery_of(coordinator, begun.gtrid, "r1")


def test_who_asks_for_an_undecided_transaction_of_an_older_incarnation_is_told_rolled_back(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    begun.join(Participant())
    coordinator.restart()
    recovery = recovery_of(coordinator, begun.gtrid, "r1")
    assert recovery.replay_completion(None) is Status.ROLLED_BACK


def test_who_asks_for_a_foreign_transaction_learns_nothing(
    coordinator: EmbeddedCoordinator,
) -> None:
    recovery = recovery_of(coordinator, FOREIGN_GTRID, "b0")
    assert recovery.replay_completion(None) is Status.UNKNOWN


def test_who_was_given_up_and_comes_back_is_told_committed(
    coordinator: EmbeddedCoordinator, begun: Begun
) -> None:
    away = Participant()
    away.is_away = True
    recovery = begun.join(away)
    begun.join(Participant())
    begun.terminator.commit(True)
    admin = admin_of(coordinator)
    assert admin.forgetTransaction(begun.otid) == 1
    assert recovery.replay_completion(None) is Status.COMMITTED
    assert admin.forgetTransaction(begun.otid) == 0
    assert recovery.replay_completion(None) is Status.COMMITTED
