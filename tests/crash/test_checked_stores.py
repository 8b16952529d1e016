"""`check` and `dump` on what crashes and damage leave: a crash is no damage, and damage is found.

A crash at any moment leaves a sound store, or none. Of damaged files a server says exactly what it
said before, or refuses, at the start or when it is asked for what is lost; `check` finds damage
wherever a server would refuse anything, and says whether it would start. Neither changes a byte,
nor ends in any way but with a report.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from mqserver.errors import Corruption, StorageError, WrongFormat
from mqserver.storage.check import Report, check
from mqserver.storage.dump import dump
from mqserver.storage.log_manager import CONTROL_NAME
from tests.crash.conftest import CrashOptions
from tests.crash.crash_states import crash_states
from tests.crash.damage import Damage, all_damages
from tests.crash.paged_oracle import View, view_of
from tests.crash.paged_scenarios import SCENARIOS, traced
from tests.crash.paged_work import open_storage
from tests.crash.recording_disk import RecordingDisk

CRASHED = [*SCENARIOS, "random 30", "random 31"]
CRASH_BUDGET = 120
DAMAGED = ["doubt_across_checkpoints", "reservations", "closing", "random 32"]
BYTE_STEP, CUT_STEP = 41, 192
DAMAGES_MIN = 500


@pytest.mark.parametrize("name", CRASHED)
def test_what_a_crash_leaves_is_sound(name: str, crash_options: CrashOptions) -> None:
    budget = crash_options.budget or CRASH_BUDGET
    trace = traced(name, crash_options.seed).disk.trace
    count = 0
    for state in crash_states(trace, crash_options.seed, budget):
        count += 1
        disk = state.disk()
        report = _checked(disk)
        if report is None:
            # The store had not come into being. A server would make one here.
            assert not disk.exists(CONTROL_NAME)
            open_storage(disk)
        else:
            assert not report.damage, state
            assert not report.refusal
    crash_options.count("checked crash states", count)


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_found_wherever_a_server_would_refuse(
    name: str, crash_options: CrashOptions
) -> None:
    image = traced(name, crash_options.seed).disk.image()
    storage = open_storage(RecordingDisk(image))
    known = list(storage._index.outcomes)
    whole = view_of(storage, known)
    count = 0
    for damage in _damages(image):
        count += 1
        served = _served(damage.disk(), whole, known)
        report = _checked(damage.disk())
        # Of files that are not even a store's any more nothing can be wrong.
        assert report is not None, damage.what
        assert bool(report.refusal) == (served == "refused"), (damage.what, report.refusal)
        assert report.damage or served == "as before", damage.what
    assert count >= DAMAGES_MIN
    crash_options.count("checked damages", count)


def test_a_dump_of_damaged_files_comes_to_its_end(crash_options: CrashOptions) -> None:
    image = traced("doubt_across_checkpoints", crash_options.seed).disk.image()
    for damage in itertools.islice(_damages(image), 0, None, 3):
        disk = damage.disk()
        items = list(dump(disk, has_payloads=True))
        assert items[0].what in ("control", "finding"), damage.what
        assert disk.operations == 0


def _damages(image: dict[str, bytes]) -> Iterator[Damage]:
    return all_damages(image, BYTE_STEP, CUT_STEP)


def _checked(disk: RecordingDisk) -> Report | None:
    """The report, None where there is no store; the disk is as it was."""
    before = disk.image()
    try:
        return check(disk)
    except WrongFormat:
        return None
    finally:
        assert disk.operations == 0
        assert disk.image() == before


def _served(disk: RecordingDisk, whole: View, known: list[bytes]) -> str:
    try:
        storage = open_storage(disk)
    except StorageError:
        return "refused"
    try:
        shown = view_of(storage, known)
    except Corruption:
        return "in part"
    assert shown == whole
    return "as before"
