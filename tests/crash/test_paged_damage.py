"""The paged storage on damaged files: it says exactly what it said before, or refuses by name.

`paged_damage.py` says what the damages are, and judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tests.crash.conftest import CrashOptions
from tests.crash.damage import Damage, flipped_bytes
from tests.crash.paged_damage import (
    Patient,
    damages,
    judge_damage,
    judge_open_damage,
    lost_blocks,
    patient,
    stranger,
)

DAMAGED = ["reading", "segments", "moving", "doubt_across_checkpoints", "random 50"]
ENDS = ["closed", "cut off"]
BYTE_STEP, OPEN_STEP = 29, 61
FLOOR = 1_000


def test_at_least_ten_thousand_damages_are_tried() -> None:
    assert len(DAMAGED) * len(ENDS) * FLOOR >= 10_000


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", DAMAGED)
def test_no_damage_is_silent(name: str, end: str, crash_options: CrashOptions) -> None:
    sound = patient(name, crash_options.seed, is_closed=end == "closed")
    step = BYTE_STEP if crash_options.budget is None else 1
    tried = damages(sound.image, stranger(), step)
    assert _judge_all(tried, sound, judge_damage, crash_options) >= FLOOR


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", [*DAMAGED, "small_puts"])
def test_a_block_that_was_synced_and_is_lost_is_missed(
    name: str, end: str, crash_options: CrashOptions
) -> None:
    sound = patient(name, crash_options.seed, is_closed=end == "closed")
    _judge_all(lost_blocks(sound.image), sound, judge_damage, crash_options)


@pytest.mark.parametrize("name", ["reading", "moving", "shrinking"])
def test_a_byte_that_turns_while_the_store_is_open_is_never_served(
    name: str, crash_options: CrashOptions
) -> None:
    sound = patient(name, crash_options.seed, is_closed=False)
    step = OPEN_STEP if crash_options.budget is None else 1
    tried = flipped_bytes(sound.image, step, mask=0x10)
    _judge_all(tried, sound, judge_open_damage, crash_options)


def _judge_all(
    tried: Iterable[Damage],
    sound: Patient,
    judge: Callable[[Damage, Patient], None],
    options: CrashOptions,
) -> int:
    number = 0
    for number, damage in enumerate(tried, start=1):
        if options.state not in (None, number):
            continue
        try:
            judge(damage, sound)
        except BaseException as error:
            error.add_note(f"repeat it with: {options.replay(number, options.budget)}")
            raise
    options.count("damages", number)
    return number
