"""A log that is opened again: what is read and what is refused, what was forgotten, and control.

Everything happens on a disk in memory. What is written when is in `test_log_manager.py`.
"""

from __future__ import annotations

import pytest

from mqserver.errors import Corruption, StorageFailed, WrongFormat
from mqserver.storage.format import (
    BLOCK_BYTES,
    CONTENT_BYTES,
    SLOT_DISTANCE,
    Control,
    decode_control,
    encode_control,
    segment_name,
)
from mqserver.storage.log_manager import CONTROL_NAME, CONTROL_NEW_NAME, LogManager, read_control
from tests.crash.faults import Crash, Fault, at, since
from tests.crash.recording_disk import RecordingDisk
from tests.crash.trace import Wrote
from tests.unit.storage.small_logs import BLOCKS, CONTROL, KIND, after_power_cut, bodies_of, filled


@pytest.fixture
def disk() -> RecordingDisk:
    return RecordingDisk()


@pytest.fixture
def log(disk: RecordingDisk) -> LogManager:
    return LogManager.create(disk, CONTROL)


# --- Opening


def test_opening_begins_a_new_epoch_and_changes_no_other_file(
    disk: RecordingDisk, log: LogManager
) -> None:
    log.force(log.append(KIND, b"x"))
    before = disk.image()
    again = RecordingDisk(before)
    assert LogManager.open(again).control.epoch == log.control.epoch + 1
    changed = {name for name, content in again.image().items() if before.get(name) != content}
    assert changed == {CONTROL_NAME}


def test_an_examined_log_is_not_changed_and_takes_no_record(
    disk: RecordingDisk, log: LogManager
) -> None:
    log.force(log.append(KIND, b"x"))
    again = RecordingDisk(disk.image())
    examined = LogManager.examine(again)
    assert bodies_of(examined) == [b"x"]
    with pytest.raises(AssertionError, match="not begun"):
        examined.append(KIND, b"y")
    assert again.trace.entries == []
    examined.begin()
    examined.begin()
    examined.force(examined.append(KIND, b"y"))
    assert bodies_of(LogManager.open(after_power_cut(again))) == [b"x", b"y"]


def _written_at_opening(disk: RecordingDisk) -> list[tuple[int, int]]:
    """Blocks of the log that are written when it is opened: place and count."""
    again = RecordingDisk(disk.image())
    LogManager.open(again)
    numbers = {name: number for number, name in enumerate(sorted(disk.image()), start=1)}
    return [
        (entry.start // BLOCK_BYTES, len(entry.data) // BLOCK_BYTES)
        for entry in again.trace.entries
        if isinstance(entry, Wrote) and entry.file == numbers[segment_name(0)]
    ]


def test_what_nothing_vouches_for_is_written_again_at_opening(
    disk: RecordingDisk, log: LogManager
) -> None:
    log.force(log.append(KIND, b"synced before the next"))
    log.force(log.append(KIND, b"t" * 800))
    assert _written_at_opening(disk) == [(1, 2)]


def test_an_orderly_close_vouches_for_all(disk: RecordingDisk, log: LogManager) -> None:
    log.force(log.append(KIND, b"x"))
    log.close()
    assert _written_at_opening(disk) == []


def test_what_was_never_synced_is_safe_once_it_was_read(
    disk: RecordingDisk, log: LogManager
) -> None:
    lsn = log.append(KIND, b"in the page cache alone")
    disk.faults = at(disk.operations + 2, Fault.CRASH)
    with pytest.raises(Crash):
        log.force(lsn)
    disk.restart()
    assert bodies_of(LogManager.open(disk)) == [b"in the page cache alone"]
    assert bodies_of(LogManager.open(after_power_cut(disk))) == [b"in the page cache alone"]


def test_a_log_that_cannot_be_made_safe_is_not_opened(disk: RecordingDisk, log: LogManager) -> None:
    log.force(log.append(KIND, b"x"))
    again = RecordingDisk(disk.image(), since(1, Fault.EIO, "sync"))
    with pytest.raises(StorageFailed):
        LogManager.open(again)


def _without_last_block(image: dict[str, bytes], number: int) -> dict[str, bytes]:
    """The image as it is when this block never arrived."""
    blank = RecordingDisk()
    LogManager.create(blank, CONTROL)
    first = number - number % BLOCKS
    start = (number - first) * BLOCK_BYTES
    data = bytearray(image[segment_name(first)])
    data[start : start + BLOCK_BYTES] = blank.image()[segment_name(first)][
        start : start + BLOCK_BYTES
    ]
    return {**image, segment_name(first): bytes(data)}


def test_a_torn_tail_is_dropped_and_written_over(disk: RecordingDisk, log: LogManager) -> None:
    log.force(log.append(KIND, b"whole"))
    log.force(log.append(KIND, b"t" * 1000))
    torn = RecordingDisk(_without_last_block(disk.image(), 3))
    again = LogManager.open(torn)
    assert bodies_of(again) == [b"whole"]
    again.force(again.append(KIND, b"new"))
    assert bodies_of(LogManager.open(after_power_cut(torn))) == [b"whole", b"new"]


def test_a_stale_follower_of_an_older_epoch_is_ignored(
    disk: RecordingDisk, log: LogManager
) -> None:
    log.force(log.append(KIND, b"whole"))
    log.force(log.append(KIND, b"t" * 1000))
    torn = RecordingDisk(_without_last_block(disk.image(), 1))
    again = LogManager.open(torn)
    assert bodies_of(again) == [b"whole"]
    again.force(again.append(KIND, b"new"))
    assert bodies_of(LogManager.open(after_power_cut(torn))) == [b"whole", b"new"]


def test_a_lost_block_that_was_synced_is_refused(disk: RecordingDisk, log: LogManager) -> None:
    for body in (b"one", b"two", b"three"):
        log.force(log.append(KIND, body))
    with pytest.raises(Corruption, match="offset 512: the block is missing"):
        LogManager.open(RecordingDisk(_without_last_block(disk.image(), 1)))


def test_an_orderly_close_is_recorded_and_checked(disk: RecordingDisk, log: LogManager) -> None:
    log.append(KIND, b"x")
    log.close()
    image = disk.image()
    assert read_control(RecordingDisk(image)).end_lsn == CONTENT_BYTES
    assert bodies_of(LogManager.open(RecordingDisk(image))) == [b"x"]
    # Without the record of the close nobody could tell that the last block was ever written.
    with pytest.raises(Corruption, match=f"closed at LSN {CONTENT_BYTES} and ends at LSN 0"):
        LogManager.open(RecordingDisk(_without_last_block(image, 0)))


def test_a_close_that_is_not_clean_is_not_recorded(disk: RecordingDisk, log: LogManager) -> None:
    log.force(log.append(KIND, b"x"))
    log.close(clean=False)
    assert read_control(disk).end_lsn == 0


# --- Forgetting


def test_a_restart_can_begin_with_the_first_record_of_a_segment(log: LogManager) -> None:
    lsns = filled(log)
    assert log.restart_point(0) == 0
    assert log.restart_point(lsns[BLOCKS] - 1) == 0
    assert log.restart_point(lsns[BLOCKS]) == lsns[BLOCKS]
    assert log.restart_point(lsns[-1]) == lsns[2 * BLOCKS]


def test_restart_points_are_known_after_reading_the_log(
    disk: RecordingDisk, log: LogManager
) -> None:
    lsns = filled(log)
    again = LogManager.open(after_power_cut(disk))
    assert len(bodies_of(again)) == len(lsns)
    assert again.restart_point(lsns[-1]) == lsns[2 * BLOCKS]


def test_what_is_forgotten_is_not_read_and_its_room_is_used_again(
    disk: RecordingDisk, log: LogManager
) -> None:
    lsns = filled(log)
    restart = log.restart_point(lsns[-1])
    log.write_control(restart_lsn=restart)
    log.forget_before(restart)
    names = [name for name in disk.names() if name.startswith("log-")]
    assert segment_name(0) not in names
    log.force(log.append(KIND, b"behind"))
    again = LogManager.open(after_power_cut(disk))
    assert bodies_of(again, again.control.restart_lsn) == [b"8", b"9", b"behind"]


def test_nothing_is_forgotten_that_the_control_record_does_not_name(log: LogManager) -> None:
    lsns = filled(log)
    with pytest.raises(AssertionError):
        log.forget_before(lsns[-1])


# --- The control record


def _slots(disk: RecordingDisk) -> list[Control]:
    data = disk.image()[CONTROL_NAME]
    slots = [decode_control(data[at:]) for at in (0, SLOT_DISTANCE)]
    return [slot for slot in slots if isinstance(slot, Control)]


def test_control_slots_are_written_in_turn(disk: RecordingDisk, log: LogManager) -> None:
    assert [slot.sequence for slot in _slots(disk)] == [0, 1]
    log.write_control(next_key=7)
    assert [slot.sequence for slot in _slots(disk)] == [2, 1]
    log.write_control(pages=3)
    assert [slot.sequence for slot in _slots(disk)] == [2, 3]
    assert (read_control(disk).next_key, read_control(disk).pages) == (7, 3)


def test_a_store_exists_once_its_control_record_has_its_name(disk: RecordingDisk) -> None:
    synced: list[str] = []
    disk.during_sync = synced.append
    LogManager.create(disk, CONTROL)
    assert synced[-1] == CONTROL_NEW_NAME
    assert CONTROL_NEW_NAME not in disk.names()


@pytest.mark.parametrize("at", [0, SLOT_DISTANCE])
def test_a_damaged_slot_is_refused_with_its_offset(disk: RecordingDisk, at: int) -> None:
    LogManager.create(disk, CONTROL)
    data = bytearray(disk.image()[CONTROL_NAME])
    data[at + 20] ^= 1
    with pytest.raises(Corruption, match=f"control, offset {at}: the slot is not whole"):
        LogManager.open(RecordingDisk({**disk.image(), CONTROL_NAME: bytes(data)}))


def test_slots_that_do_not_belong_together_are_refused(disk: RecordingDisk) -> None:
    LogManager.create(disk, CONTROL)
    data = bytearray(disk.image()[CONTROL_NAME])
    foreign = encode_control(Control(1024, b"another identity", BLOCKS))
    data[: len(foreign)] = foreign
    with pytest.raises(Corruption, match="do not belong together"):
        LogManager.open(RecordingDisk({**disk.image(), CONTROL_NAME: bytes(data)}))


def test_another_version_is_refused_as_such(
    disk: RecordingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqserver.storage.format.FORMAT_VERSION", 99)
    LogManager.create(disk, CONTROL)
    monkeypatch.undo()
    with pytest.raises(WrongFormat, match="version 99"):
        LogManager.open(RecordingDisk(disk.image()))


def test_a_lost_control_record_is_not_taken_for_a_new_store(
    disk: RecordingDisk, log: LogManager
) -> None:
    log.force(log.append(KIND, b"precious"))
    image = disk.image()
    del image[CONTROL_NAME]
    with pytest.raises(Corruption, match="control is missing, and log-0000000000000000 holds"):
        LogManager.create(RecordingDisk(image), CONTROL)


def test_an_unfinished_creation_is_begun_again(disk: RecordingDisk) -> None:
    LogManager.create(disk, CONTROL)
    image = disk.image()
    image[CONTROL_NEW_NAME] = image.pop(CONTROL_NAME)[:100]
    again = RecordingDisk(image)
    LogManager.create(again, CONTROL)
    assert bodies_of(LogManager.open(RecordingDisk(again.image()))) == []
