"""Transactions end once and as a whole, whoever dies, and whatever becomes of the messages.

Thousands of runs of the real coordinator and the real resources in a world of faults; see
`commitment.py` for what happens in one, and `verdicts.py` for what must hold after it. The seeds
are cut into parts, so that several processes can share them. `test_protocol_mutants.py` shows that
what could be wrong would be found.
"""

from __future__ import annotations

from collections import Counter

import pytest

from idl.cos import Status
from tests.simulation.commitment import Commitment, run
from tests.simulation.conftest import ForEachSeed, Simulated
from tests.simulation.verdicts import COMMIT, DAMAGE, ROLLBACK

PARTS = 50
SEEDS_PER_PART = 110
KINDS = ("crash", "lost", "duplicated", "overtaking", "partition", "broken", "cut", "operator")


def test_at_least_five_thousand_seeds_are_tried() -> None:
    assert PARTS * SEEDS_PER_PART >= 5_000


@pytest.mark.parametrize("part", range(PARTS))
def test_every_transaction_ends_once_and_as_a_whole(
    part: int, for_each_seed: ForEachSeed, simulated: Simulated
) -> None:
    total: Counter[str] = Counter()

    def scenario(seed: int) -> None:
        _count(total, run(seed))

    try:
        for_each_seed(scenario, SEEDS_PER_PART, part)
    finally:
        for what, number in total.items():
            simulated(what, number)


def _count(total: Counter[str], everything: Commitment) -> None:
    world = everything.world
    total["seeds"] += 1
    total["seconds"] += round(world.now())
    total["crashes"] += world.count("crash")
    total["transactions"] += len(everything.record.told)


@pytest.mark.parametrize("seed", [3, 57, 222, 706])
def test_the_same_seed_is_the_same_run(seed: int) -> None:
    first, second = run(seed).world, run(seed).world
    assert first.fingerprint() == second.fingerprint()
    assert len(first.log) > 50


def test_the_seeds_try_everything_that_can_go_wrong() -> None:
    runs = [run(seed) for seed in range(400)]
    seen = Counter(kind for each in runs for kind in KINDS if each.world.count(kind))
    assert all(seen[kind] >= 5 for kind in KINDS), seen
    answers = Counter(
        answer for each in runs for told in each.record.told.values() for answer in told.answers
    )
    assert min(answers[COMMIT], answers[ROLLBACK]) >= 100, answers
    assert answers[DAMAGE] >= 3, answers
    _check_ways(runs)


def _check_ways(runs: list[Commitment]) -> None:
    """Each way to begin and to end is taken by some of the runs."""
    told = [each for run in runs for each in run.record.told.values()]
    attempts = [attempt for each in told for attempt in each.attempts]
    assert sum(each.version > 0 for each in told) >= 50, "under a key"
    assert sum(len(each.attempts) > 1 for each in told) >= 3, "decided by several clients"
    assert sum(attempt.is_standard for attempt in attempts) >= 50, "the standard way"
    assert sum(len(attempt.participants) > 1 for attempt in attempts) >= 30, "the fast way"
    assert sum(len(attempt.branches) > len(attempt.participants) > 0 for attempt in attempts) >= 10
    assert sum(len(run.record.versions) > 0 for run in runs) >= 10, "told a version"
    assert sum(len(run.record.given_up) > 0 for run in runs) >= 2, "given up"
    calls = Counter(_operation(entry) for run in runs for entry in run.world.log)
    for operation in (
        *("commit_one_phase", "prepare", "commit", "rollback", "settle", "forget", "push", "join"),
        "commitBranches",
        *("decide", "giveUp", "getOutcome", "replay_completion", "create_subtransaction", "work"),
        *("beginOrJoin", "endSession", "renew", "rollbackTransaction", "forgetTransaction"),
    ):
        assert calls[operation] >= 2, f"{operation} is too rare"


def _operation(entry: tuple[object, ...]) -> str:
    is_request = entry[1] == "sent" and entry[2] == "request"
    return str(entry[5]).rpartition(".")[2] if is_request else ""


def test_of_what_is_over_nothing_is_left() -> None:
    for seed in range(30):
        everything = run(seed)
        assert everything.service is not None
        ledger = everything.service.log.ledger
        assert not ledger.decisions
        assert not everything.service.transactions.every()
        for note in [note for notes in ledger.heuristics.values() for note in notes.values()]:
            assert note.decided in (Status.COMMITTED, Status.ROLLED_BACK, Status.UNKNOWN)
