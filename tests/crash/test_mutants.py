"""The suite, tried: every planted bug is found, by the hunt that is named with it.

A hunt stops at the first violation, so that a planted bug costs little. Mistakes that are not found
because something else stands behind them are tried too: the list of them is true.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator

import pytest

from mqserver.errors import MqError
from tests.crash.conftest import CrashOptions
from tests.crash.faults import Fault, at
from tests.crash.paged_cases import (
    Case,
    crash_cases,
    failed_cases,
    faulty_cases,
    killed_cases,
)
from tests.crash.paged_damage import damages, judge_damage, lost_blocks, patient, stranger
from tests.crash.paged_mutants import MUTANTS, REDUNDANT, Mutant, Redundant
from tests.crash.paged_work import judge

Check = Callable[[], None]

# What a broken promise looks like: said by a judge, or by a storage that stumbles over its files.
FOUND = (AssertionError, MqError, LookupError, TypeError, ValueError, struct.error)

BUDGET = 500
BYTE_STEP = 67


def test_at_least_forty_bugs_are_planted() -> None:
    assert len({mutant.what for mutant in MUTANTS}) == len(MUTANTS) >= 40


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_planted_bug_is_found(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, crash_options: CrashOptions
) -> None:
    mutant.plant(monkeypatch)
    assert _is_found(mutant.hunt, mutant.scenario)
    crash_options.count("planted bugs found", 1)


@pytest.mark.parametrize("mutant", REDUNDANT, ids=lambda mutant: mutant.what)
def test_a_bug_that_something_stands_behind_does_no_harm(
    mutant: Redundant, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant.plant(monkeypatch)
    assert not _is_found(mutant.hunt, mutant.scenario)
    if mutant.partner is not None:
        mutant.partner(monkeypatch)
        assert _is_found(mutant.hunt, mutant.scenario)


def _is_found(hunt: str, scenario: str) -> bool:
    try:
        for check in HUNTS[hunt](scenario):
            check()
    except FOUND:
        return True
    return False


# --- Hunts


def _judged(cases: Iterator[Case]) -> Iterator[Check]:
    for number, case in enumerate(cases, start=1):
        yield functools.partial(judge, case.disk, case.history, case.events, number)


def _damaged(scenario: str) -> Iterator[Check]:
    sound = patient(scenario, 0, is_closed=False)
    for damage in damages(sound.image, stranger(), BYTE_STEP):
        yield functools.partial(judge_damage, damage, sound)


def _lost(scenario: str, is_closed: bool) -> Iterator[Check]:
    sound = patient(scenario, 0, is_closed)
    for damage in lost_blocks(sound.image):
        yield functools.partial(judge_damage, damage, sound)


def _faulty(fault: Fault) -> Callable[[str], Iterator[Check]]:
    return lambda name: _judged(faulty_cases(name, 0, lambda number: at(number, fault), 12))


HUNTS: dict[str, Callable[[str], Iterator[Check]]] = {
    "crash": lambda name: _judged(crash_cases(name, 0, BUDGET)),
    "kill": lambda name: _judged(killed_cases(name, 0, 12)),
    "failed sync": lambda name: _judged(failed_cases(name, 0, 12)),
    "EIO once": _faulty(Fault.EIO),
    "ENOSPC once": _faulty(Fault.ENOSPC),
    "a short write": _faulty(Fault.SHORT),
    "damage": _damaged,
    "lost blocks": lambda name: _lost(name, is_closed=False),
    "lost blocks of a closed store": lambda name: _lost(name, is_closed=True),
}
