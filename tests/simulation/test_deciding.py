"""Where a node decides, everybody does what it has decided, whoever dies, and is told the truth.

Runs of the real nodes' and the coordinator's parts in a world of faults; see `deciding.py` for what
happens in one, and `verdicts.py` for what must hold after it. Every bug of `deciding_mutants.py` is
run in a world that suits it, seed after seed, until a run breaks the promise or does not come to
rest. The correct nodes survive all of the same worlds.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest

from mqserver.transactions.decisions import Decisions
from tests.simulation import deciding_mutants as mutants
from tests.simulation.commitment import Doings
from tests.simulation.conftest import ForEachSeed, Found, Simulated
from tests.simulation.deciding import Deciding, run
from tests.simulation.deciding_mutants import Mutant
from tests.simulation.owners import Ways
from tests.simulation.verdicts import COMMIT, ROLLBACK
from tests.simulation.world import Faults

PARTS = 10
SEEDS_PER_PART = 100
SEEDS_MAX = 300
SEEDS_OF_THE_CORRECT_ONE = 40
KINDS = ("crash", "lost", "duplicated", "overtaking", "partition", "broken", "cut")


class Setting(NamedTuple):
    """A world in which some mistakes show soon; without anything in it, the seed decides."""

    faults: Faults | None = None
    doings: Doings | None = None
    ways: Ways | None = None


SWARM = Setting()
PLAIN = Ways(work_first=0.0, read_only=0.0, be_late=0.0, be_silent=0.0, pester=0.0)
# Anybody dies, and messages are lost.
CRASHES = Setting(
    Faults(crash=0.03, loss=0.05, outage_s=2.0),
    Doings(participants=2, clients=2, transactions=3, is_asked_again=True),
    PLAIN,
)
# Owners say nothing to the voters, who must ask.
SILENT_OWNERS = Setting(
    Faults(crash=0.02, loss=0.1, outage_s=2.0),
    Doings(participants=3, clients=2, transactions=3, is_asked_again=True),
    PLAIN._replace(keep_silent=0.7, be_silent=0.5),
)
# Owners decide when nobody waits for them any more, and nodes were restarted meanwhile.
LATE_OWNERS = Setting(
    Faults(crash=0.03, spread_s=0.1, outage_s=2.0),
    Doings(participants=2, clients=2, transactions=3),
    PLAIN._replace(be_late=1.0, linger=0.0, walk_away=0.0, roll_back=0.0),
)
# The same with disks so slow that somebody always comes in between.
LATE_AND_SLOW = Setting(
    Faults(spread_s=0.1),
    Doings(participants=2, clients=2, transactions=3, slow_s=4.0),
    PLAIN._replace(be_late=1.0, linger=0.0, walk_away=0.0, roll_back=0.0),
)
# Copies of calls come late, to nodes that were restarted since.
COPIES = Setting(
    Faults(crash=0.03, duplication=0.5, lateness_s=4.0, outage_s=1.0),
    Doings(participants=2, clients=2, transactions=3),
    PLAIN._replace(work_first=1.0, gets=True, linger=1.0, walk_away=0.0, roll_back=0.0),
)
SETTINGS = {
    "swarm": SWARM,
    "crashes": CRASHES,
    "silent owners": SILENT_OWNERS,
    "late owners": LATE_OWNERS,
    "late and slow": LATE_AND_SLOW,
    "copies": COPIES,
}

CASES: list[tuple[Mutant, Setting]] = [
    (mutants.mark_not_stored, CRASHES),
    (mutants.mark_stored_after_the_commit, CRASHES),
    (mutants.marks_not_loaded, CRASHES),
    (mutants.silent_settler_has_ended, SILENT_OWNERS),
    (mutants.ended_without_force, CRASHES),
    (mutants.prepared_counts_as_ended, SILENT_OWNERS),
    (mutants.fence_told_before_it_is_forced, LATE_OWNERS),
    (mutants.fences_not_loaded, LATE_OWNERS),
    (mutants.decided_behind_a_fence, LATE_OWNERS),
    (mutants.decided_while_it_is_fenced, LATE_AND_SLOW),
    (mutants.fenced_while_it_is_decided, LATE_AND_SLOW),
    (mutants.nothing_decided_is_rolled_back, LATE_OWNERS),
    (mutants.impatience_without_a_fence, LATE_OWNERS),
    (mutants.node_not_asked, SILENT_OWNERS),
    (mutants.voters_told_before_the_answer, LATE_OWNERS),
    (mutants.lost_answer_is_rollback, CRASHES),
    (mutants.calls_for_any_life, COPIES),
]


@pytest.mark.parametrize("part", range(PARTS))
def test_everybody_does_what_a_node_has_decided_and_is_told_the_truth(
    part: int, for_each_seed: ForEachSeed, simulated: Simulated
) -> None:
    total: Counter[str] = Counter()

    def scenario(seed: int) -> None:
        _count(total, run(seed))
        _count(total, run(seed, ways=Ways(gets=True)))

    try:
        for_each_seed(scenario, SEEDS_PER_PART, part)
    finally:
        for what, number in total.items():
            simulated(what, number)


def _count(total: Counter[str], everything: Deciding) -> None:
    world = everything.world
    total["seeds"] += 1
    total["seconds"] += round(world.now())
    total["crashes"] += world.count("crash")
    total["transactions"] += len(everything.record.told)


@pytest.mark.parametrize("seed", [1, 430, 622])
def test_the_same_seed_is_the_same_run(seed: int) -> None:
    first, second = run(seed).world, run(seed).world
    assert first.fingerprint() == second.fingerprint()
    assert len(first.log) > 50


def test_the_seeds_try_everything_that_can_go_wrong() -> None:
    runs = [run(seed) for seed in range(300)]
    seen = Counter(kind for each in runs for kind in KINDS if each.world.count(kind))
    assert all(seen[kind] >= 5 for kind in KINDS), seen
    told = [each for run in runs for each in run.record.told.values()]
    answers = Counter(answer for each in told for answer in each.answers)
    assert min(answers[COMMIT], answers[ROLLBACK]) >= 100, answers
    assert sum(len(each.attempts) > 0 and not each.answers for each in told) >= 20, "unknown"
    calls = Counter(_operation(entry) for run in runs for entry in run.world.log)
    getting = [run(seed, ways=Ways(gets=True)) for seed in range(30)]
    assert sum(len(each.record.given) for each in getting) >= 10, "nothing was got"
    for operation in (
        *("work", "vote", "decide", "endVoter", "getDecision", "fence", "settle", "getEnded"),
        *("replay_completion", "decideMarked", "commit", "renew", "lease"),
    ):
        assert calls[operation] >= 10, f"{operation} is too rare"


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
    # What a forgotten mark leaves behind would hide that it was forgotten too early.
    monkeypatch.setattr(Decisions, "_was_committed", lambda self, gtrid: False)
    seeds = _seeds_needed(setting, SEEDS_MAX)
    assert seeds is not None, f"{_name(mutant)} survives {SEEDS_MAX} seeds"
    found(_name(mutant), seeds)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_correct_nodes_survive_the_same_worlds(setting: Setting) -> None:
    assert _seeds_needed(setting, SEEDS_OF_THE_CORRECT_ONE) is None


def test_every_planted_bug_of_a_deciding_node_is_tried() -> None:
    defined = {
        name
        for name, each in vars(mutants).items()
        if getattr(each, "__module__", "") == mutants.__name__ and not name.startswith("_")
    }
    assert {mutant.__name__ for mutant, _ in CASES} == defined


def _seeds_needed(setting: Setting, most: int) -> int | None:
    """How many seeds it takes until something is wrong; None when nothing is."""
    for seed in range(most):
        try:
            run(seed, *setting)
        except AssertionError:
            return seed + 1
    return None


# --- What was wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [430, 622, 1009, 1508])
def test_an_owner_that_asks_when_the_mark_is_forgotten_is_told_the_truth(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("seed", range(40))
def test_a_commit_whose_answer_the_storage_has_lost_still_decides(seed: int) -> None:
    run(seed, faults=Faults(), lost_commits=0.15)
