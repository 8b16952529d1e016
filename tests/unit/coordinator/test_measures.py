"""What a coordinator measures, after transactions of every kind."""

from __future__ import annotations

import pytest

from coordinator.measures import CoordinatorMeasures
from idl import system
from idl.cos import Vote
from idl.exposition import Exposition
from idl.measures import Durations, Measure
from tests.unit.clients.embedded_coordinator import EmbeddedCoordinator, joined, raising


def _measures(coordinator: EmbeddedCoordinator) -> dict[str, Measure]:
    found = CoordinatorMeasures(coordinator.service, lambda: (2, 0), Durations())
    return {measure.name: measure for measure in found()}


def test_transactions_are_counted_by_how_they_ended() -> None:
    coordinator = EmbeddedCoordinator()
    for _ in range(2):
        begun = coordinator.begin()
        joined(begun, Vote.COMMIT, Vote.COMMIT)
        begun.terminator.commit(True)
    coordinator.begin().terminator.rollback()
    begun = coordinator.begin()
    joined(begun, Vote.COMMIT, Vote.ROLLBACK)
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        begun.terminator.commit(True)
    coordinator.begin()
    coordinator.tasks.pass_time(1.0)
    found = _measures(coordinator)
    ends = found["oncemq_transactions_ended_total"].values
    assert ends == {("committed",): 2, ("rolled back",): 2}
    assert found["oncemq_transactions"].values[("active",)] == 1
    assert found["oncemq_log_bytes"].values[()] > 0
    assert found["oncemq_connections"].values[("logged in",)] == 2


def test_what_is_decided_and_not_carried_out_is_told_with_its_age() -> None:
    coordinator = EmbeddedCoordinator()
    begun = coordinator.begin()
    away, _ = joined(begun, Vote.COMMIT, Vote.COMMIT)
    away.during["commit"] = raising(system.COMM_FAILURE("away"))
    begun.terminator.commit(True)
    coordinator.tasks.pass_time(40.0)
    found = _measures(coordinator)
    assert found["oncemq_transactions"].values[("committing",)] == 1
    assert found["oncemq_undelivered_oldest_seconds"].values[()] >= 40.0
    assert found["oncemq_heuristics"].values == {(): 0}


def test_all_of_it_can_be_written_down() -> None:
    service = EmbeddedCoordinator().service
    text = Exposition(CoordinatorMeasures(service, lambda: (0, 0), Durations())).text().decode()
    assert 'oncemq_transactions{state="voting"} 0.0' in text
    assert "oncemq_sync_seconds_count 0.0" in text
