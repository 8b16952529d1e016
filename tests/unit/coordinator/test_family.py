"""Subtransactions, synchronizations, and resources that follow the ends of subtransactions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator import interfaces
from coordinator.family import DEPTH_MAX
from coordinator.live import Settings
from idl import system
from idl.call import current_call
from idl.cos import (
    Coordinator,
    Inactive,
    PropagationContext,
    Status,
    SubtransactionAwareResource,
    Synchronization,
    SynchronizationUnavailable,
    Vote,
)
from tests.unit.clients.embedded_coordinator import (
    LOST_ANSWER,
    Begun,
    EmbeddedCoordinator,
    Participant,
    joined,
    raising,
    words,
)


@pytest.fixture
def coordinator() -> EmbeddedCoordinator:
    return EmbeddedCoordinator(Settings(answer_s=0.05))


@pytest.fixture
def parent(coordinator: EmbeddedCoordinator) -> Begun:
    return coordinator.begin()


class Watcher:
    """A synchronization that remembers; `during` is what it does before completion."""

    def __init__(self, during: Callable[[], object] = lambda: None) -> None:
        self.told: list[str] = []
        self.context: PropagationContext | None = None
        self._during = during

    def before_completion(self) -> None:
        self.told.append("before")
        self.context = current_call().transaction
        self._during()

    def after_completion(self, s: Status) -> None:
        self.told.append(s.name)


class Aware(Participant):
    """A resource that is told of the ends of its subtransactions."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: list[Coordinator] = []

    def commit_subtransaction(self, parent: Coordinator | None) -> None:
        assert parent is not None
        self.parents.append(parent)
        self._hear("commit_subtransaction")

    def rollback_subtransaction(self) -> None:
        self._hear("rollback_subtransaction")


def _watch(coordinator: EmbeddedCoordinator, begun: Begun, watcher: Watcher) -> Watcher:
    published = coordinator.orb.publish(watcher, Synchronization)
    begun.coordinator.register_synchronization(published)
    return watcher


def _follow(coordinator: EmbeddedCoordinator, begun: Begun) -> Aware:
    aware = Aware()
    published = coordinator.orb.publish(aware, SubtransactionAwareResource)
    begun.coordinator.register_subtran_aware(published)
    return aware


# --- Subtransactions


def test_the_parent_inherits_the_participants_of_a_committed_subtransaction(
    parent: Begun,
) -> None:
    first = joined(parent, Vote.COMMIT)
    child = parent.nest()
    inherited = joined(child, Vote.COMMIT, Vote.COMMIT)
    child.terminator.commit(True)
    assert child.coordinator.get_status() is Status.COMMITTED
    assert words(inherited) == ["", ""]
    parent.terminator.commit(True)
    assert words(first + inherited) == ["prepare commit"] * 3


def test_an_inherited_participant_asks_where_it_registered(parent: Begun) -> None:
    child, away = parent.nest(), Participant()
    away.is_away = True
    recovery = child.join(away)
    joined(parent, Vote.COMMIT)
    assert recovery.replay_completion(None) is Status.PREPARING
    child.terminator.commit(True)
    parent.terminator.commit(True)
    assert recovery.replay_completion(None) is Status.COMMITTED


def test_a_rolled_back_subtransaction_is_undone_and_the_parent_goes_on(parent: Begun) -> None:
    stays = joined(parent, Vote.COMMIT)
    child = parent.nest()
    undone = joined(child, Vote.COMMIT)
    child.terminator.rollback()
    assert words(undone) == ["rollback"]
    assert parent.coordinator.get_status() is Status.ACTIVE
    parent.terminator.commit(True)
    assert words(stays + undone) == ["commit_one_phase", "rollback"]


def test_a_marked_subtransaction_does_not_doom_its_parent(parent: Begun) -> None:
    child = parent.nest()
    child.coordinator.rollback_only()
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        child.terminator.commit(True)
    parent.terminator.commit(True)


def test_the_rollback_of_the_parent_undoes_what_its_subtransactions_committed(
    parent: Begun,
) -> None:
    child = parent.nest()
    participants = joined(child, Vote.COMMIT)
    child.terminator.commit(True)
    parent.terminator.rollback()
    assert words(participants) == ["rollback"]


@pytest.mark.parametrize("end", ["commit", "rollback", "commit of a marked one"])
def test_whoever_ends_a_parent_ends_all_below_it(parent: Begun, end: str) -> None:
    child = parent.nest()
    grandchild = child.nest()
    participants = joined(child, Vote.COMMIT) + joined(grandchild, Vote.COMMIT)
    if end == "commit":
        parent.terminator.commit(True)
    elif end == "rollback":
        parent.terminator.rollback()
    else:
        parent.coordinator.rollback_only()
        with pytest.raises(system.TRANSACTION_ROLLEDBACK):
            parent.terminator.commit(True)
    assert words(participants) == ["rollback", "rollback"]
    assert child.coordinator.get_status() is Status.ROLLED_BACK
    assert grandchild.coordinator.get_status() is Status.ROLLED_BACK


def test_a_subtransaction_of_a_marked_parent_cannot_be_committed(parent: Begun) -> None:
    child = parent.nest()
    participants = joined(child, Vote.COMMIT)
    parent.coordinator.rollback_only()
    with pytest.raises(system.TRANSACTION_ROLLEDBACK, match="its parent is being ended"):
        child.terminator.commit(True)
    assert words(participants) == ["rollback"]


def test_a_parent_that_is_marked_or_over_has_no_new_subtransactions(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    parent.coordinator.rollback_only()
    with pytest.raises(Inactive):
        parent.coordinator.create_subtransaction()
    over = coordinator.begin()
    over.terminator.commit(True)
    with pytest.raises(Inactive):
        over.coordinator.create_subtransaction()


def test_transactions_are_nested_only_so_deep(parent: Begun) -> None:
    deepest = parent
    for _ in range(DEPTH_MAX - 1):
        deepest = deepest.nest()
    with pytest.raises(system.IMP_LIMIT):
        deepest.nest()
    parent.terminator.commit(True)


def test_the_time_of_the_parent_ends_its_subtransactions(coordinator: EmbeddedCoordinator) -> None:
    parent = coordinator.begin(5)
    child = parent.nest()
    participants = joined(parent, Vote.COMMIT) + joined(child, Vote.COMMIT)
    coordinator.tasks.pass_time(4.0)
    assert child.coordinator.get_status() is Status.ACTIVE
    assert child.coordinator.get_txcontext().timeout == 1
    coordinator.tasks.pass_time(3.0)
    assert child.coordinator.get_status() is Status.ROLLED_BACK
    assert parent.coordinator.get_status() is Status.ROLLED_BACK
    assert words(participants) == ["rollback", "rollback"]


def test_a_parent_inherits_no_more_participants_than_it_may_have() -> None:
    parent = EmbeddedCoordinator(Settings(participants_max=2)).begin()
    joined(parent, Vote.COMMIT)
    child = parent.nest()
    participants = joined(child, Vote.COMMIT, Vote.COMMIT)
    with pytest.raises(system.TRANSACTION_ROLLEDBACK, match="more than 2 participants"):
        child.terminator.commit(True)
    assert words(participants) == ["rollback", "rollback"]
    parent.terminator.commit(True)


def test_a_restart_takes_a_family_that_was_not_decided(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    child = parent.nest()
    joined(child, Vote.COMMIT)
    child.terminator.commit(True)
    coordinator.restart()
    assert coordinator.service.transactions.every() == []


# --- Synchronizations


def test_a_synchronization_is_told_before_the_vote_and_after_the_end(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    participants = joined(parent, Vote.COMMIT, Vote.COMMIT)
    seen: list[list[str]] = []
    watcher = _watch(coordinator, parent, Watcher(lambda: seen.append(words(participants))))
    parent.terminator.commit(True)
    assert seen == [["", ""]]
    assert watcher.told == ["before", "COMMITTED"]


def test_a_synchronization_is_told_inside_the_transaction(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    watcher = _watch(coordinator, parent, Watcher())
    parent.terminator.commit(True)
    assert watcher.context is not None
    assert watcher.context.current.otid == parent.otid


def test_a_rollback_is_told_only_afterwards(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    watcher = _watch(coordinator, parent, Watcher())
    parent.terminator.rollback()
    assert watcher.told == ["ROLLED_BACK"]


def test_the_commit_of_a_marked_transaction_is_told_only_afterwards(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    watcher = _watch(coordinator, parent, Watcher())
    parent.coordinator.rollback_only()
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        parent.terminator.commit(True)
    assert watcher.told == ["ROLLED_BACK"]


def test_a_vote_against_is_told_afterwards_as_rolled_back(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    joined(parent, Vote.COMMIT, Vote.ROLLBACK)
    watcher = _watch(coordinator, parent, Watcher())
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        parent.terminator.commit(True)
    assert watcher.told == ["before", "ROLLED_BACK"]


def test_a_synchronization_may_register_resources_and_further_synchronizations(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    late, second = Participant(), Watcher()

    def work() -> None:
        parent.join(late)
        _watch(coordinator, parent, second)

    _watch(coordinator, parent, Watcher(work))
    parent.terminator.commit(True)
    assert late.told == ["commit_one_phase"]
    assert second.told == ["before", "COMMITTED"]


@pytest.mark.parametrize("trouble", [LOST_ANSWER, system.TRANSACTION_ROLLEDBACK("no")])
def test_a_synchronization_that_fails_rolls_back_and_stops_the_round(
    coordinator: EmbeddedCoordinator, parent: Begun, trouble: Exception
) -> None:
    participants = joined(parent, Vote.COMMIT, Vote.COMMIT)
    first = _watch(coordinator, parent, Watcher(raising(trouble)))
    second = _watch(coordinator, parent, Watcher())
    with pytest.raises(system.TRANSACTION_ROLLEDBACK, match="before completion"):
        parent.terminator.commit(True)
    assert words(participants) == ["rollback", "rollback"]
    assert first.told == ["before", "ROLLED_BACK"]
    assert second.told == ["ROLLED_BACK"]


@pytest.mark.parametrize("how", ["rollback_only", "rollback"])
def test_a_synchronization_may_have_the_transaction_rolled_back(
    coordinator: EmbeddedCoordinator, parent: Begun, how: str
) -> None:
    participants = joined(parent, Vote.COMMIT, Vote.COMMIT)
    ways = {
        "rollback_only": parent.coordinator.rollback_only,
        "rollback": parent.terminator.rollback,
    }
    _watch(coordinator, parent, Watcher(ways[how]))
    second = _watch(coordinator, parent, Watcher())
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        parent.terminator.commit(True)
    assert words(participants) == ["rollback", "rollback"]
    assert second.told == ["ROLLED_BACK"]


def test_a_second_commit_meanwhile_waits_for_the_first_and_tells_nobody_twice(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    def commit_again() -> None:
        with pytest.raises(system.TIMEOUT) as caught:
            parent.terminator.commit(True)
        assert caught.value.completed is system.Completion.MAYBE

    watcher = _watch(coordinator, parent, Watcher(commit_again))
    parent.terminator.commit(True)
    assert watcher.told == ["before", "COMMITTED"]


def test_a_synchronization_that_does_not_hear_of_the_end_changes_nothing(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    deaf = coordinator.orb.publish(Watcher(), Synchronization)
    parent.coordinator.register_synchronization(deaf)
    hears = _watch(coordinator, parent, Watcher(lambda: coordinator.orb.withdraw(deaf)))
    parent.terminator.commit(True)
    assert hears.told == ["before", "COMMITTED"]
    assert parent.coordinator.get_status() is Status.COMMITTED


def test_only_the_top_level_takes_synchronizations(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    with pytest.raises(SynchronizationUnavailable):
        _watch(coordinator, parent.nest(), Watcher())


def test_a_transaction_that_is_marked_or_over_takes_no_synchronization(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    parent.coordinator.rollback_only()
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        _watch(coordinator, parent, Watcher())
    over = coordinator.begin()
    over.terminator.commit(True)
    with pytest.raises(Inactive):
        _watch(coordinator, over, Watcher())


def test_there_are_only_so_many_synchronizations(
    coordinator: EmbeddedCoordinator, parent: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interfaces, "SYNCHRONIZATIONS_MAX", 1)
    _watch(coordinator, parent, Watcher())
    with pytest.raises(system.IMP_LIMIT):
        _watch(coordinator, parent, Watcher())


# --- Resources that follow subtransactions


def test_an_aware_resource_hears_of_the_commit_and_may_join_the_parent(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    child, late = parent.nest(), Participant()
    aware = _follow(coordinator, child)
    aware.during["commit_subtransaction"] = lambda: parent.join(late)
    child.terminator.commit(True)
    assert aware.told == ["commit_subtransaction"]
    assert aware.parents[0].is_same_transaction(parent.coordinator)
    parent.terminator.commit(True)
    assert late.told == ["commit_one_phase"]


def test_an_aware_resource_hears_of_the_rollback(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    child = parent.nest()
    aware = _follow(coordinator, child)
    child.terminator.rollback()
    assert aware.told == ["rollback_subtransaction"]


def test_a_parent_is_marked_when_an_aware_resource_did_not_hear_of_the_commit(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    child = parent.nest()
    _follow(coordinator, child).during["commit_subtransaction"] = raising(LOST_ANSWER)
    child.terminator.commit(True)
    with pytest.raises(system.TRANSACTION_ROLLEDBACK, match="did not hear"):
        parent.terminator.commit(True)


def test_a_parent_goes_on_when_an_aware_resource_did_not_hear_of_the_rollback(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    child = parent.nest()
    _follow(coordinator, child).during["rollback_subtransaction"] = raising(LOST_ANSWER)
    child.terminator.rollback()
    parent.terminator.commit(True)


def test_a_subtransaction_that_is_marked_or_over_takes_no_aware_resource(
    coordinator: EmbeddedCoordinator, parent: Begun
) -> None:
    marked, over = parent.nest(), parent.nest()
    marked.coordinator.rollback_only()
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        _follow(coordinator, marked)
    over.terminator.commit(True)
    with pytest.raises(Inactive):
        _follow(coordinator, over)
