"""The paged storage after a crash at every moment: all that was promised is there, and no more.

Each test records a scenario and judges the states that a power cut may leave, every state once;
those of the random scenarios are so many that a budget is spread over them. The nested ones cut the
power a second time, while the restart is at work.
"""

from __future__ import annotations

import pytest

from tests.crash.conftest import CrashOptions
from tests.crash.paged_cases import crash_cases, judge_all, nested_cases
from tests.crash.paged_scenarios import SCENARIOS

# How many states there are at least, so that nobody makes a scenario shorter without noticing.
FLOORS = {
    "creation": 90,
    "small_puts": 170,
    "large_puts": 500,
    "parcels": 500,
    "parcels_in_the_log": 1500,
    "mixed_branches": 260,
    "lazy_ends": 160,
    "prepare_and_decide": 180,
    "doubt_across_checkpoints": 420,
    "carried": 800,
    "in_flight": 600,
    "segments": 580,
    "moving": 230,
    "reading": 270,
    "shrinking": 1450,
    "renewed_queue": 1100,
    "interleaved": 160,
    "reused_pages": 510,
    "reservations": 165,
    "queues": 180,
    "closing": 380,
}
# Of these there are too many for every run.
BUDGETS = {"carried": 900, "in_flight": 700}
RANDOM_BUDGET, RANDOM_FLOOR = 1100, 830
RANDOM = [f"random {number}" for number in range(8)]
NESTED = ["doubt_across_checkpoints", "segments", "moving", "closing", "random 20", "random 21"]
NESTED_OUTER, NESTED_FLOOR = 80, 1000


def test_at_least_twenty_thousand_states_are_judged() -> None:
    assert FLOORS.keys() == SCENARIOS.keys()
    nested = len(NESTED) * NESTED_FLOOR
    assert nested >= 2_000
    assert sum(FLOORS.values()) + len(RANDOM) * RANDOM_FLOOR + nested >= 20_000


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_crash_leaves_what_was_promised(name: str, crash_options: CrashOptions) -> None:
    budget = crash_options.budget or BUDGETS.get(name)
    count = judge_all(crash_cases(name, crash_options.seed, budget), crash_options, budget)
    assert count >= FLOORS[name] or crash_options.budget is not None


@pytest.mark.parametrize("name", RANDOM)
def test_every_crash_of_random_work_leaves_what_was_promised(
    name: str, crash_options: CrashOptions
) -> None:
    budget = crash_options.budget or RANDOM_BUDGET
    count = judge_all(crash_cases(name, crash_options.seed, budget), crash_options, budget)
    assert count >= RANDOM_FLOOR or budget != RANDOM_BUDGET


@pytest.mark.parametrize("name", NESTED)
def test_a_crash_during_the_restart_changes_nothing(name: str, crash_options: CrashOptions) -> None:
    budget = crash_options.budget or NESTED_OUTER
    cases = nested_cases(name, crash_options.seed, budget)
    count = judge_all(cases, crash_options, budget, what="nested states")
    assert count >= NESTED_FLOOR or budget != NESTED_OUTER
