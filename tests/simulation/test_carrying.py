"""What a committed row carries is at the node once, whoever dies, and owners are told the truth.

Runs of the real parts in a world of faults; see `carrying.py` for what happens in one and what must
hold after it. Every bug of `carrying_mutants.py` is run in a world that suits it, seed after seed,
until a run breaks the promise or does not come to rest. The correct node survives the same worlds.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest

from idl.cos import Status
from tests.simulation import carrying_mutants as mutants
from tests.simulation.carrying import Carrying, Doings, run
from tests.simulation.carrying_database import Troubles
from tests.simulation.carrying_mutants import Mutant
from tests.simulation.carrying_owners import Ways, owning
from tests.simulation.conftest import ForEachSeed, Found, Simulated
from tests.simulation.world import Faults

PARTS = 3
SEEDS_PER_PART = 60
SEEDS_MAX = 100
SEEDS_OF_THE_CORRECT_ONE = 15
KINDS = ("crash", "lost", "duplicated", "overtaking", "partition", "broken", "cut")


class Setting(NamedTuple):
    """A world in which some mistakes show soon; without anything in it, the seed decides."""

    faults: Faults | None = None
    doings: Doings | None = None
    ways: Ways = Ways()


RESOLUTE = Ways(walk_away=0.0, roll_back=0.0)
SMOOTH = Troubles(refused=0.0, forged=0.0)
SWARM = Setting()
# Anybody dies, and messages are lost.
CRASHES = Setting(Faults(crash=0.02, loss=0.05, outage_s=2.0), Doings(troubles=SMOOTH), RESOLUTE)
# Owners take their time, and so does the disk, so that somebody always comes in between.
SLOW = Setting(
    Faults(loss=0.05, spread_s=0.1),
    Doings(slow_s=1.0, owners=3, troubles=SMOOTH),
    RESOLUTE._replace(linger=0.8, long_s=3.0),
)
# The storage soon forgets how branches ended, so that marks are all that is left.
FORGETFUL = Setting(
    Faults(crash=0.01, loss=0.05, outage_s=2.0),
    Doings(forgets_s=0.3, troubles=SMOOTH._replace(after=0.3)),
    RESOLUTE._replace(pester=0.0, wait_for_it=0.6),
)
# The storage has no room, or does not say what became of a commit.
UNSURE = Setting(
    Faults(crash=0.005, loss=0.02, outage_s=2.0),
    Doings(lost=0.2, full=0.2, troubles=SMOOTH),
    RESOLUTE,
)
# The same, and those who ask again have to be told something.
UNHEARD = Setting(
    Faults(loss=0.1), Doings(lost=0.4, troubles=SMOOTH), RESOLUTE._replace(keep_silent=0.0)
)
# Connections are lost in commits, which happen or not, or later.
DOUBTS = Setting(
    Faults(loss=0.02),
    Doings(troubles=SMOOTH._replace(before=0.1, after=0.4, late=0.3)),
    RESOLUTE._replace(wait_for_it=0.8),
)
# The same behind commits that have happened, and nodes die, so that others put what is carried.
DIFFERENT = Setting(
    Faults(crash=0.02, loss=0.02, outage_s=2.0),
    Doings(troubles=SMOOTH._replace(after=0.6)),
    RESOLUTE._replace(linger=0.8),
)
# Somebody writes rows that no node has signed.
FORGED = Setting(doings=Doings(troubles=Troubles(forged=0.6)))
SETTINGS = {
    "swarm": SWARM,
    "crashes": CRASHES,
    "slow": SLOW,
    "forgetful": FORGETFUL,
    "unsure": UNSURE,
    "unheard": UNHEARD,
    "doubts": DOUBTS,
    "different": DIFFERENT,
    "forged": FORGED,
}

CASES: list[tuple[Mutant, Setting]] = [
    (mutants.row_removed_before_it_is_forced, CRASHES),
    (mutants.mark_forgotten_before_the_row_is_gone, CRASHES),
    (mutants.mark_forgotten_while_rows_are_looked_at, FORGETFUL),
    (mutants.mark_in_another_branch, UNSURE),
    (mutants.marks_not_looked_at, FORGETFUL),
    (mutants.marks_not_loaded, CRASHES),
    (mutants.taken_over_without_rolling_back_first, DOUBTS),
    (mutants.one_branch_for_all_attempts, UNSURE),
    (mutants.taken_over_in_a_branch_of_owners, CRASHES),
    (mutants.taking_over_not_noted, FORGETFUL),
    (mutants.ticket_not_checked, FORGED),
    (mutants.not_cleared_up, UNHEARD),
    (mutants.unknown_is_rolled_back, FORGETFUL),
    (mutants.only_the_branch_is_asked_for, DIFFERENT),
    (mutants.node_not_asked_behind_a_fence, DOUBTS),
    (mutants.fenced_after_looking, DOUBTS),
    (mutants.no_fence, DOUBTS),
]


def _run(seed: int, setting: Setting = SWARM) -> Carrying:
    return run(seed, owning(setting.ways), setting.faults, setting.doings)


@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_committed_is_put_once_and_owners_are_told_the_truth(
    part: int, for_each_seed: ForEachSeed, simulated: Simulated
) -> None:
    total: Counter[str] = Counter()

    def scenario(seed: int) -> None:
        _count(total, _run(seed))

    try:
        for_each_seed(scenario, SEEDS_PER_PART, part)
    finally:
        for what, number in total.items():
            simulated(what, number)


def _count(total: Counter[str], everything: Carrying) -> None:
    world = everything.world
    total["seeds"] += 1
    total["seconds"] += round(world.now())
    total["crashes"] += world.count("crash")
    total["transactions"] += len(everything.told)


@pytest.mark.parametrize("seed", [1, 12, 40])
def test_the_same_seed_is_the_same_run(seed: int) -> None:
    first, second = _run(seed).world, _run(seed).world
    assert first.fingerprint() == second.fingerprint()
    assert len(first.log) > 50


def test_the_seeds_try_everything_that_can_go_wrong() -> None:
    runs = [_run(seed) for seed in range(120)]
    seen = Counter(kind for each in runs for kind in KINDS if each.world.count(kind))
    assert all(seen[kind] >= 5 for kind in KINDS), seen
    answers = Counter(answer for each in runs for told in each.told.values() for answer in told)
    assert min(answers[Status.COMMITTED], answers[Status.ROLLED_BACK], answers[None]) >= 10, answers
    died = sum(not told for each in runs for told in each.told.values())
    forged = sum(len(each.database.forged) for each in runs)
    assert min(died, forged) >= 5, (died, forged)
    calls = Counter(_operation(entry) for each in runs for entry in each.world.log)
    for operation in (
        *("hold", "deliver", "rollback", "outcome", "settle"),
        *("getCarriers", "getCarried", "forgetCarried"),
    ):
        assert calls[operation] >= 5, f"{operation} is too rare: {calls}"


def _operation(entry: tuple[object, ...]) -> str:
    is_request = entry[1] == "sent" and entry[2] == "request"
    return str(entry[5]).rpartition(".")[2] if is_request else ""


# --- What could be wrong -------------------------------------------------------------------------


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


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_the_correct_node_survives_the_same_worlds(setting: Setting) -> None:
    assert _seeds_needed(setting, SEEDS_OF_THE_CORRECT_ONE) is None


def test_every_planted_bug_of_a_carrying_node_is_tried() -> None:
    defined = {
        name
        for name, each in vars(mutants).items()
        if getattr(each, "__module__", "") == mutants.__name__
        and not name.startswith("_")
        and not isinstance(each, type)
    }
    assert {mutant.__name__ for mutant, _ in CASES} == defined


def _seeds_needed(setting: Setting, most: int) -> int | None:
    """How many seeds it takes until something is wrong; None when nothing is."""
    for seed in range(most):
        try:
            _run(seed, setting)
        except AssertionError:
            return seed + 1
    return None
