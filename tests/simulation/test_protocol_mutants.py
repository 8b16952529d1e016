"""What could be wrong with the protocol would be found: planted bugs, and how soon each is seen.

Every bug of `mutants.py` is run in a world that suits it, seed after seed, until a run breaks the
promise, does not come to rest, or stumbles over an assertion of the product itself. How many seeds
that took stands in the last lines of a run of this file. The correct service survives all of the
same worlds. Where two defences stand behind each other, each of them can be missing without harm:
those bugs are planted in pairs, and alone they survive.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.simulation import mutants
from tests.simulation.commitment import Doings, run
from tests.simulation.conftest import Found
from tests.simulation.customers import Habits
from tests.simulation.mutants import Mutant
from tests.simulation.world import Faults

SEEDS_MAX = 400
SEEDS_OF_THE_CORRECT_ONE = 40

FAST = Habits(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1, roll_back=0.1, walk_away=0.0, be_absent=0.0)
STANDARD = FAST._replace(factory=1.0, join=1.0)


class Setting(NamedTuple):
    """A world in which some mistakes show soon; without anything in it, the seed decides."""

    faults: Faults | None = None
    doings: Doings | None = None


SWARM = Setting()
# Names are leased, branches vote at once, and anybody dies.
FAST_CRASHES = Setting(
    Faults(crash=0.03, loss=0.05, outage_s=2.0),
    Doings(participants=2, clients=2, transactions=3, habits=FAST),
)
# The only participant is asked to commit alone.
ALONE = Setting(
    Faults(crash=0.01, loss=0.2),
    Doings(participants=1, clients=2, transactions=3, habits=STANDARD),
)
# Votes take longer than anybody waits for them.
SLOW_VOTES = Setting(
    Faults(crash=0.01, spread_s=0.1, outage_s=2.0),
    Doings(participants=3, clients=2, transactions=3, slow_s=6.0, habits=STANDARD),
)
# The client takes so long that branches in doubt ask before it decides.
SLOW_CLIENTS = Setting(
    Faults(spread_s=0.1),
    Doings(participants=4, clients=1, transactions=3, slow_s=2.5, habits=FAST),
)
# Work is lost in crashes before the vote.
ABSENT_CLIENTS = Setting(
    Faults(crash=0.03, loss=0.02, spread_s=0.1, outage_s=2.0),
    Doings(participants=3, transactions=3, habits=STANDARD._replace(be_absent=0.5)),
)
# Several want to do the same, under one key, and the decision takes long to be written.
CROWD = Setting(
    Faults(crash=0.05, outage_s=2.0),
    Doings(1, clients=3, transactions=2, slow_s=5.0, habits=FAST._replace(key=1.0)),
)
# Clients decide what they have given up.
SECOND_THOUGHTS = Setting(
    Faults(loss=0.1, duplication=0.3),
    Doings(2, clients=2, transactions=3, habits=FAST._replace(roll_back=0.5, leave_out=0.3)),
)
OPERATORS = Setting(
    Faults(crash=0.02, outage_s=2.0),
    Doings(2, clients=2, transactions=3, slow_s=3.0, has_operators=True, habits=STANDARD),
)
# Participants are back so soon that they are settled before they have asked.
SHORT_OUTAGES = Setting(
    Faults(crash=0.02, loss=0.1, outage_s=0.2),
    Doings(2, clients=2, transactions=4, habits=FAST._replace(leave_out=0.0, pester=0.0)),
)
# Each node has several branches, which are told to commit with one call.
TOGETHER = Setting(
    Faults(crash=0.03, loss=0.1, outage_s=2.0),
    Doings(2, clients=2, transactions=3, habits=FAST._replace(several=1.0, leave_out=0.0)),
)
# The same, and operators end some of them before.
TOGETHER_BY_HAND = Setting(
    Faults(crash=0.02, loss=0.05, outage_s=2.0),
    Doings(
        2,
        clients=2,
        transactions=3,
        slow_s=3.0,
        has_operators=True,
        habits=FAST._replace(several=1.0),
    ),
)

CASES: list[tuple[Mutant, Setting]] = [
    (mutants.decision_not_forced, FAST_CRASHES),
    (mutants.commit_before_the_decision, FAST_CRASHES),
    (mutants.version_told_before_the_decision, CROWD),
    (mutants.decision_names_everybody, CROWD),
    (mutants.decision_not_resumed, SWARM),
    (mutants.outcome_forgotten, SWARM),
    (mutants.lone_commit_passes_for_rollback, ALONE),
    (mutants.heuristic_not_forced, OPERATORS),
    (mutants.over_names_are_voted_on, SWARM),
    (mutants.rolled_back_names_are_voted_on, SECOND_THOUGHTS),
    (mutants.names_issued_twice, FAST_CRASHES),
    (mutants.rollback_answered_while_voting, SLOW_VOTES),
    (mutants.rollback_answered_while_undecided, SLOW_CLIENTS),
    (mutants.lost_vote_is_yes, SLOW_VOTES),
    (mutants.vote_against_is_ignored, ABSENT_CLIENTS),
    (mutants.ended_before_all_acknowledged, SECOND_THOUGHTS),
    (mutants.lazy_commit_taken_for_durable, FAST_CRASHES),
    (mutants.lost_together_is_done, TOGETHER),
    (mutants.lazy_together_taken_for_durable, TOGETHER),
    (mutants.refused_together_is_done, TOGETHER_BY_HAND),
    (mutants.settle_only_forces, SHORT_OUTAGES),
    (mutants.unreachable_is_done, SHORT_OUTAGES),
    (mutants.lost_lone_commit_is_rollback, SLOW_VOTES),
    (mutants.session_end_forgets_decisions, CROWD),
    (mutants.vote_before_it_is_forced, FAST_CRASHES),
    (mutants.prepared_forgotten, CROWD),
    (mutants.unilateral_rollback, CROWD),
    (mutants.unknown_branch_votes_yes, ABSENT_CLIENTS),
    (mutants.late_work_accepted, SECOND_THOUGHTS),
]
# Each of these is redundant while names that are over are never voted on again.
PAIRS: list[tuple[Mutant, Setting]] = [
    (mutants.late_work_accepted_after_rollback, SECOND_THOUGHTS),
    (mutants.no_tombstone, SECOND_THOUGHTS),
    (mutants.rolled_back_branch_votes_again, SECOND_THOUGHTS),
]
SETTINGS = {id(setting): setting for _, setting in CASES}


def _name(mutant: Mutant) -> str:
    return mutant.__name__.replace("_", " ")


@pytest.mark.parametrize(("mutant", "setting"), CASES, ids=[_name(mutant) for mutant, _ in CASES])
def test_a_planted_bug_is_found(
    mutant: Mutant, setting: Setting, monkeypatch: pytest.MonkeyPatch, found: Found
) -> None:
    mutant(monkeypatch)
    seeds = _seeds_needed(setting, SEEDS_MAX)
    assert seeds is not None, f"{_name(mutant)} survives {SEEDS_MAX} seeds"
    found(_name(mutant), seeds)


@pytest.mark.parametrize(("mutant", "setting"), PAIRS, ids=[_name(mutant) for mutant, _ in PAIRS])
def test_a_redundant_defence_is_missed_only_together_with_the_other(
    mutant: Mutant, setting: Setting, monkeypatch: pytest.MonkeyPatch, found: Found
) -> None:
    mutant(monkeypatch)
    assert _seeds_needed(setting, SEEDS_OF_THE_CORRECT_ONE) is None
    mutants.rolled_back_names_are_voted_on(monkeypatch)
    seeds = _seeds_needed(setting, SEEDS_MAX)
    assert seeds is not None, f"{_name(mutant)}, in a pair, survives {SEEDS_MAX} seeds"
    found(f"{_name(mutant)}, in a pair", seeds)


@pytest.mark.parametrize("setting", SETTINGS.values())
def test_the_correct_service_survives_the_same_worlds(setting: Setting) -> None:
    assert _seeds_needed(setting, SEEDS_OF_THE_CORRECT_ONE) is None


def test_every_planted_bug_is_tried() -> None:
    defined = {
        name
        for name, each in vars(mutants).items()
        if getattr(each, "__module__", "") == mutants.__name__ and not name.startswith("_")
    }
    assert {mutant.__name__ for mutant, _ in (*CASES, *PAIRS)} == defined


def _seeds_needed(setting: Setting, most: int) -> int | None:
    """How many seeds it takes until something is wrong; None when nothing is."""
    for seed in range(most):
        try:
            run(seed, faults=setting.faults, doings=setting.doings)
        except AssertionError:
            return seed + 1
    return None
