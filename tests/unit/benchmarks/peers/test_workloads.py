"""The tables of the comparison: every row can be carried out, and every goal can be judged."""

from __future__ import annotations

import pytest

from benchmarks.peers.figures import key
from benchmarks.peers.operations import Operation
from benchmarks.peers.study import QUICK_S, Plan
from benchmarks.peers.systems import BY_NAME, IN_SPARK, OURS, SYSTEMS, System
from benchmarks.peers.workloads import GOALS, MANY_CLIENTS, TITLES, WORKLOADS, Goal, Workload

_METHODS = {Operation.TWO_PHASE: "two_phase"}
# Modules whose packages the tests have; the brokers' come with `make bench`.
HERE = ("clients", "tables")


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
        and workload.clients == (MANY_CLIENTS if workload.name == "W3" else 1)
    ]
    assert len(meant) == 1
    assert {goal.ours, *goal.peers} <= {system.name for system in meant[0].participants()}


@pytest.mark.parametrize(
    "system", [s for s in SYSTEMS if s.module in HERE], ids=lambda system: system.name
)
def test_a_system_has_a_method_for_all_that_it_can(system: System) -> None:
    module = __import__(f"benchmarks.peers.{system.module}", fromlist=[system.client])
    client = getattr(module, system.client)
    for operation in system.can - IN_SPARK:
        assert callable(getattr(client, _METHODS.get(operation, operation.replace(" ", "_"))))


def test_names_are_told_once() -> None:
    assert len(BY_NAME) == len(SYSTEMS)
    assert len({key(workload) for workload in WORKLOADS}) == len(WORKLOADS)


def names(plan: Plan) -> set[str]:
    return {workload.name for workload in plan.workloads()}


def test_spark_is_measured_for_who_names_it_or_wants_everything() -> None:
    assert "W8" not in names(Plan())
    assert "W8" in names(Plan(is_thorough=True))
    assert names(Plan(only="W8")) == {"W8"}


def test_a_quick_plan_leaves_thorough_sizes_out_and_a_thorough_one_has_them() -> None:
    assert [w.payload_bytes for w in Plan(only="W6").workloads()] == [1_000_000]
    assert len(Plan(only="W6", is_thorough=True).workloads()) == 5


def test_who_only_watches_measures_nothing_but_needs_the_servers() -> None:
    plan = Plan(is_measured=False, is_watched=True)
    assert plan.workloads() == []
    assert {"OnceMQ", "PostgreSQL", "Kafka, transactions"} <= {s.name for s in plan.systems()}
    assert plan.steps() > 0
    assert Plan(is_measured=False).systems() == []


def test_a_quick_run_shares_its_time_among_the_workloads_that_are_left() -> None:
    plan = Plan()
    first, *_, last = plan.workloads()
    share = plan.limit_s(first, 0.0)
    assert share is not None
    assert 0 < share < QUICK_S / 5
    assert plan.limit_s(last, QUICK_S - 30) == 30.0


def test_who_asks_for_rounds_has_them_however_long_they_take() -> None:
    for plan in (Plan(rounds=2), Plan(is_thorough=True)):
        assert plan.limit_s(plan.workloads()[0], 0.0) is None
