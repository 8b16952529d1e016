"""The tables of the comparison: every row can be carried out, and every goal can be judged."""

from __future__ import annotations

import pytest

from benchmarks.peers.clients import Operation
from benchmarks.peers.systems import BY_NAME, OURS, SYSTEMS, System
from benchmarks.peers.workloads import GOALS, TITLES, WORKLOADS, Goal, Workload

_METHODS = {Operation.MOVE_AT_ONCE: "move_at_once", Operation.TWO_PHASE: "two_phase"}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.title)
def test_ours_takes_part_in_every_workload(workload: Workload) -> None:
    assert workload.name in TITLES
    assert any(system.name.startswith(OURS) for system in workload.participants())


@pytest.mark.parametrize("goal", GOALS, ids=str)
def test_a_goal_names_systems_that_take_part(goal: Goal) -> None:
    meant = [
        workload
        for workload in WORKLOADS
        if (workload.name, workload.operation, workload.payload_bytes)
        == (goal.workload, goal.operation, goal.payload_bytes)
        and not workload.depth
    ]
    assert len(meant) == 1
    assert set(goal.peers) <= {system.name for system in meant[0].participants()}


@pytest.mark.parametrize(
    "system", [s for s in SYSTEMS if s.module != "brokers"], ids=lambda system: system.name
)
def test_a_system_has_a_method_for_all_that_it_can(system: System) -> None:
    module = __import__(f"benchmarks.peers.{system.module}", fromlist=[system.client])
    client = getattr(module, system.client)
    for operation in system.can:
        assert callable(getattr(client, _METHODS.get(operation, operation.replace(" ", "_"))))


def test_names_are_told_once() -> None:
    assert len(BY_NAME) == len(SYSTEMS)
    assert len({(w.title, w.payload_bytes, w.depth) for w in WORKLOADS}) == len(WORKLOADS)
