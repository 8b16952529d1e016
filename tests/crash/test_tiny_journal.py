"""The crash tools against a tiny journal: every planted flaw is found, and where none is, none.

The numbers of states that it takes to find a flaw are part of the test: tools that need more than
they did have become worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import pytest

from mqserver import errors
from tests.crash import damage
from tests.crash.crash_states import crash_states
from tests.crash.faults import Crash, Fault, Faults, at, filling_up, since
from tests.crash.recording_disk import RecordingDisk
from tests.crash.tiny_journal import Event, Flaw, TinyJournal, judge, work

FOUND_WITHIN = {
    Flaw.NO_SYNC: 15,
    Flaw.EARLY_ACK: 15,
    Flaw.NO_DIRECTORY_SYNC: 15,
    Flaw.NO_DIRECTORY_SYNC_AFTER_RENAME: 50,
    Flaw.NO_CHECKSUM: 15,
    Flaw.EARLY_RENAME: 50,
    Flaw.KEPT_TAIL: 60,
}


def test_a_right_journal_survives_every_crash() -> None:
    for seed in range(5):
        assert not list(_violations(None, _traced(None), seed))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("flaw", FOUND_WITHIN)
def test_a_flaw_that_a_power_cut_shows_is_found_soon(flaw: Flaw, seed: int) -> None:
    number, _ = next(_violations(flaw, _traced(flaw), seed))
    assert number <= FOUND_WITHIN[flaw]


def test_a_right_journal_survives_every_crash_during_its_recovery() -> None:
    count = 0
    for state in crash_states(_traced(None).trace):
        recovering = state.disk()
        TinyJournal(recovering).close()
        for again in crash_states(recovering.trace):
            count += 1
            assert not judge(again.disk(), _events(state.events)), f"{state}\nthen {again}"
    assert count > 100


KINDS: dict[str, Callable[[int], Faults]] = {
    "EIO once": lambda number: at(number, Fault.EIO),
    "EIO for ever": lambda number: since(number, Fault.EIO),
    "ENOSPC once": lambda number: at(number, Fault.ENOSPC),
    "filling up": filling_up,
    "short once": lambda number: at(number, Fault.SHORT),
    "short for ever": lambda number: since(number, Fault.SHORT),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_journal_survives_every_failure_of_the_disk(kind: str) -> None:
    for number in range(1, _traced(None).operations + 1):
        disk = _traced(None, KINDS[kind](number))
        assert not list(_violations(None, disk, seed=number, budget=150)), number


@pytest.mark.parametrize(
    ("flaw", "kind", "states"),
    [(Flaw.RETRIED_SYNC, "EIO once", 50), (Flaw.SHORT_WRITE, "short once", 50)],
)
def test_a_flaw_that_a_failing_disk_shows_is_found_soon(flaw: Flaw, kind: str, states: int) -> None:
    assert not list(_violations(flaw, _traced(flaw), seed=0)), "it takes a fault to see this"
    operations = _traced(flaw).operations
    disks = [_traced(flaw, KINDS[kind](number)) for number in range(1, operations + 1)]
    found = [number for disk in disks for number, _ in _violations(flaw, disk, seed=0)]
    assert min(found) <= states
    assert len(found) >= 5


def test_a_right_journal_survives_being_killed_at_every_operation() -> None:
    for number in range(1, _traced(None).operations + 1):
        disk = RecordingDisk(faults=at(number, Fault.CRASH))
        with pytest.raises(Crash):
            work(disk, disk.note)
        # The process is gone and the page cache is not; then the power goes as well.
        disk.restart()
        TinyJournal(disk).close()
        assert not list(_violations(None, disk, seed=number)), number


def test_damage_is_seen_by_its_checksum_and_not_without_one() -> None:
    image = _traced(None).image()
    whole = TinyJournal(RecordingDisk(image)).payloads
    for flaw, is_silent in ((None, False), (Flaw.NO_CHECKSUM, True)):
        found = [TinyJournal(each.disk(), flaw).payloads for each in damage.flipped_bytes(image)]
        # The journal cannot tell damage from its end; but it must not give out what never was put.
        assert any(each not in whole for payloads in found for each in payloads) is is_silent
        assert len(found) == sum(map(len, image.values()))
        assert (whole in found) is is_silent


def _traced(flaw: Flaw | None, faults: Faults | None = None) -> RecordingDisk:
    """A disk on which a run has come to its end, or as far as its faults let it."""
    disk = RecordingDisk(faults=faults)
    try:
        work(disk, disk.note, flaw)
    except errors.StorageError:
        assert faults, "a run fails only on a disk that does"
    return disk


def _violations(
    flaw: Flaw | None, disk: RecordingDisk, seed: int, budget: int | None = None
) -> Iterator[tuple[int, str]]:
    """How many states it took to find each violation, and what it was."""
    for number, state in enumerate(crash_states(disk.trace, seed, budget), start=1):
        wrong = judge(state.disk(), _events(state.events), flaw)
        if wrong:
            yield number, f"{wrong} after {state}"


def _events(events: Sequence[object]) -> Sequence[Event]:
    return cast(Sequence[Event], events)
