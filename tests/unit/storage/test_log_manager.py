"""The log on a disk in memory: what is on disk when, what is read again, and what is refused.

Threads that force together are made to meet by the disk, which calls back during a sync; nothing
here depends on how fast anything is. It is long because the log makes many small promises.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from mqserver.errors import Corruption, StorageFailed, StorageFull, WrongFormat
from mqserver.storage.format import (
    BLOCK_BYTES,
    CONTENT_BYTES,
    RECORD_HEADER,
    SLOT_DISTANCE,
    Control,
    Record,
    RecordKind,
    decode_control,
    encode_control,
    segment_name,
)
from mqserver.storage.log_manager import CONTROL_NAME, CONTROL_NEW_NAME, LogManager, read_control
from mqserver.storage.segments import NEW_NAME
from tests.conformance.paged_storages import durable_image
from tests.crash.faults import Crash, Fault, at, since
from tests.crash.recording_disk import RecordingDisk
from tests.crash.trace import Wrote

BLOCKS = 4
SEGMENT_BYTES = BLOCKS * BLOCK_BYTES
CONTROL = Control(1024, b"identity of log!", BLOCKS)
KIND = RecordKind.COMMITTED


@pytest.fixture
def disk() -> RecordingDisk:
    return RecordingDisk()


@pytest.fixture
def log(disk: RecordingDisk) -> LogManager:
    return LogManager.create(disk, CONTROL)


def _after_power_cut(disk: RecordingDisk) -> RecordingDisk:
    return RecordingDisk(durable_image(disk.trace))


def _bodies(log: LogManager, lsn: int = 0) -> list[bytes]:
    return [record.body for record in log.records(lsn)]


# --- Appending, forcing, reading


def test_a_record_is_read_before_and_after_it_is_forced(log: LogManager) -> None:
    lsn = log.append(KIND, b"what happened")
    expected = Record(lsn, KIND, b"what happened")
    assert log.record(lsn) == expected
    log.force(lsn)
    assert log.record(lsn) == expected
    assert log.read(expected.body_lsn + 5, 4) == b"happ"


def test_a_record_is_read_while_it_is_being_written(disk: RecordingDisk, log: LogManager) -> None:
    first = log.append(KIND, b"first")
    seen = []

    def look(name: str) -> None:
        seen.append((log.record(first).body, log.record(log.append(KIND, b"second")).body))

    disk.during_sync = look
    log.force(first)
    assert seen == [(b"first", b"second")]


def test_records_stand_one_behind_the_other(log: LogManager) -> None:
    lsns = [log.append(KIND, b"x" * size) for size in (3, 0, 700)]
    assert lsns == [0, RECORD_HEADER.size + 3, 2 * RECORD_HEADER.size + 3]
    assert log.end_lsn == lsns[-1] + RECORD_HEADER.size + 700


def test_a_forced_write_begins_with_a_block_of_its_own(log: LogManager) -> None:
    log.force(log.append(KIND, b"one"))
    assert log.append(KIND, b"two") == CONTENT_BYTES


def test_only_what_was_forced_survives_a_power_cut(disk: RecordingDisk, log: LogManager) -> None:
    log.append(KIND, b"goes along")
    log.force(log.append(KIND, b"forced"))
    log.append(KIND, b"lost")
    assert _bodies(LogManager.open(_after_power_cut(disk))) == [b"goes along", b"forced"]


def test_force_all_forces_the_last_record(disk: RecordingDisk, log: LogManager) -> None:
    log.append(KIND, b"last")
    log.force_all()
    operations = disk.operations
    log.force_all()
    assert disk.operations == operations
    assert _bodies(LogManager.open(_after_power_cut(disk))) == [b"last"]


@pytest.mark.parametrize("size", [CONTENT_BYTES - RECORD_HEADER.size, 480, 1000, 3000, 9000])
def test_a_record_may_span_blocks_and_segments(
    disk: RecordingDisk, log: LogManager, size: int
) -> None:
    bodies = [b"before", bytes(range(256)) * (size // 256) + b"." * (size % 256), b"behind"]
    lsns = [log.append(KIND, body) for body in bodies]
    log.force(lsns[-1])
    again = LogManager.open(_after_power_cut(disk))
    assert [(record.lsn, record.body) for record in again.records(0)] == list(
        zip(lsns, bodies, strict=True)
    )
    assert again.record(lsns[1]).body == bodies[1]


def test_the_records_from_a_place_in_the_middle_on_are_read(log: LogManager) -> None:
    lsns = [log.append(KIND, b"%d" % number * 300) for number in range(6)]
    log.force_all()
    for position, lsn in enumerate(lsns):
        assert [record.lsn for record in log.records(lsn)] == lsns[position:]


def test_there_is_no_record_behind_the_end(log: LogManager) -> None:
    with pytest.raises(Corruption, match=r"log-0000000000000000, offset 0 \(LSN 0\): there is no"):
        log.record(0)


# --- Group commit


def test_threads_that_force_together_share_one_sync(disk: RecordingDisk, log: LogManager) -> None:
    syncs: list[str] = []
    threads: list[threading.Thread] = []

    def others_arrive_during_the_first_sync(name: str) -> None:
        syncs.append(name)
        if len(syncs) > 1:
            return
        for number in range(8):
            lsn = log.append(KIND, b"%d" % number)
            threads.append(threading.Thread(target=log.force, args=(lsn,)))
            threads[-1].start()

    disk.during_sync = others_arrive_during_the_first_sync
    log.force(log.append(KIND, b"first"))
    for thread in threads:
        thread.join()
    assert len(syncs) == 2
    assert len(_bodies(LogManager.open(_after_power_cut(disk)))) == 9


def test_what_follows_a_force_is_done_by_one_thread_at_a_time(
    disk: RecordingDisk, log: LogManager
) -> None:
    busy = threading.Lock()
    done: list[int] = []
    threads: list[threading.Thread] = []

    def then(number: int) -> None:
        assert busy.acquire(blocking=False)
        done.append(number)
        busy.release()

    def others_arrive(name: str) -> None:
        disk.during_sync = None
        for number in range(8):
            lsn = log.append(KIND, b"%d" % number)
            arguments = (lsn, partial(then, number))
            threads.append(threading.Thread(target=log.force, args=arguments))
            threads[-1].start()

    disk.during_sync = others_arrive
    log.force(log.append(KIND, b"first"))
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(8))


def test_who_forces_by_itself_waits_for_nobody_who_needs_what_it_holds(
    disk: RecordingDisk, log: LogManager
) -> None:
    held = threading.Lock()
    threads: list[threading.Thread] = []

    def needs_it() -> None:
        with held:
            return

    def another_leads_the_next_group(name: str) -> None:
        disk.during_sync = None
        lsn = log.append(KIND, b"other")
        threads.append(threading.Thread(target=log.force, args=(lsn, needs_it)))
        threads[-1].start()
        while not log._group.has_leader:
            time.sleep(0)

    disk.during_sync = another_leads_the_next_group
    log.force(log.append(KIND, b"first"))
    with held:
        log.force(log.append(KIND, b"checkpoint"), by_itself=True)
        assert len(_bodies(LogManager.open(_after_power_cut(disk)))) == 3
    threads[0].join()


def test_when_the_leader_of_a_group_is_interrupted_another_leads(
    log: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = log._write_group
    interrupted = iter((True, False, False))

    def write_group(group: object) -> None:
        if next(interrupted):
            raise KeyboardInterrupt
        right(group)  # type: ignore[arg-type]

    monkeypatch.setattr(log, "_write_group", write_group)
    lsn = log.append(KIND, b"one")
    with pytest.raises(KeyboardInterrupt):
        log.force(lsn)
    log.force(lsn)
    assert log.is_on_disk(lsn)


def test_what_was_appended_during_a_sync_is_not_taken_for_synced(
    disk: RecordingDisk, log: LogManager
) -> None:
    late: list[int] = []
    disk.during_sync = lambda name: late.append(log.append(KIND, b"late"))
    log.force(log.append(KIND, b"early"))
    disk.during_sync = None
    assert _bodies(LogManager.open(_after_power_cut(disk))) == [b"early"]
    log.force(late[0])
    assert _bodies(LogManager.open(_after_power_cut(disk))) == [b"early", b"late"]


def test_a_record_that_is_on_disk_is_not_synced_again(disk: RecordingDisk, log: LogManager) -> None:
    lsns = [log.append(KIND, b"one"), log.append(KIND, b"two")]
    log.force(lsns[1])
    operations = disk.operations
    log.force(lsns[0])
    assert disk.operations == operations


# --- Failure


def _failing_sync(disk: RecordingDisk) -> None:
    disk.faults = lambda operation: Fault.EIO if operation.kind == "sync" else None


def test_a_failed_sync_is_the_end_of_the_log(disk: RecordingDisk, log: LogManager) -> None:
    lsn = log.append(KIND, b"lost")
    _failing_sync(disk)
    with pytest.raises(StorageFailed):
        log.force(lsn)
    disk.faults = None
    again: list[Callable[[], object]] = [
        lambda: log.force(lsn),
        lambda: log.append(KIND, b"more"),
        log.check_usable,
        log.force_all,
    ]
    for action in again:
        with pytest.raises(StorageFailed, match="log-0000000000000000, sync: "):
            action()


def test_a_failed_write_is_the_end_of_the_log(disk: RecordingDisk, log: LogManager) -> None:
    lsn = log.append(KIND, b"lost")
    disk.faults = lambda operation: Fault.ENOSPC if operation.kind == "write" else None
    with pytest.raises(StorageFailed):
        log.force(lsn)
    disk.faults = None
    with pytest.raises(StorageFailed):
        log.append(KIND, b"more")


def test_a_failed_sync_fails_everyone_who_waits(disk: RecordingDisk, log: LogManager) -> None:
    told: list[str] = []
    threads: list[threading.Thread] = []

    def force(lsn: int) -> None:
        try:
            log.force(lsn)
        except StorageFailed:
            told.append("failed")

    def others_wait_and_then_it_fails(name: str) -> None:
        for number in range(4):
            lsn = log.append(KIND, b"%d" % number)
            threads.append(threading.Thread(target=force, args=(lsn,)))
            threads[-1].start()
        raise StorageFailed("sync")

    first = log.append(KIND, b"first")
    disk.during_sync = others_wait_and_then_it_fails
    force(first)
    for thread in threads:
        thread.join()
    assert told == ["failed"] * 5


def test_a_new_segment_that_fails_is_the_end_of_the_log(
    disk: RecordingDisk, log: LogManager
) -> None:
    disk.faults = lambda operation: Fault.EIO if operation.name == NEW_NAME else None
    with pytest.raises(StorageFailed, match=NEW_NAME):
        log.append(KIND, b"x" * 3000)
    disk.faults = None
    with pytest.raises(StorageFailed, match=NEW_NAME):
        log.append(KIND, b"x")
    assert not log.is_usable


def test_a_name_that_may_not_be_on_disk_is_the_end_of_the_log(
    disk: RecordingDisk, log: LogManager
) -> None:
    lsns = _filled(log)
    restart = log.restart_point(lsns[-1])
    log.write_control(restart_lsn=restart)
    disk.faults = lambda operation: Fault.EIO if operation.name == "." else None
    with pytest.raises(StorageFailed):
        log.forget_before(restart)
    with pytest.raises(StorageFailed):
        log.append(KIND, b"more")


def test_damage_that_ends_the_log_is_told_as_damage(log: LogManager) -> None:
    log.fail(Corruption("log-0000000000000000, offset 0"))
    with pytest.raises(Corruption, match="offset 0"):
        log.append(KIND, b"more")
    with pytest.raises(Corruption, match="offset 0"):
        log.force_all()


def test_a_log_that_failed_is_not_closed_as_a_clean_one(
    disk: RecordingDisk, log: LogManager
) -> None:
    log.append(KIND, b"lost")
    _failing_sync(disk)
    with pytest.raises(StorageFailed):
        log.force_all()
    disk.faults = None
    log.close()
    assert read_control(disk).end_lsn == 0


# --- A full disk


def test_a_full_disk_is_found_at_appending_and_room_helps(disk: RecordingDisk) -> None:
    log = LogManager.create(disk, CONTROL)
    disk.capacity_bytes = disk.capacity_bytes - disk.room()
    log.force(log.append(KIND, b"x" * 1000))
    before = log.end_lsn
    with pytest.raises(StorageFull):
        log.append(KIND, b"x" * 1000)
    assert log.end_lsn == before
    disk.capacity_bytes += SEGMENT_BYTES
    log.force(log.append(KIND, b"y"))
    assert _bodies(LogManager.open(_after_power_cut(disk))) == [b"x" * 1000, b"y"]


def test_a_control_record_that_finds_no_room_is_as_before(
    disk: RecordingDisk, log: LogManager
) -> None:
    before = log.control
    disk.faults = lambda operation: Fault.ENOSPC if operation.name == CONTROL_NAME else None
    with pytest.raises(StorageFull):
        log.write_control(next_key=7)
    disk.faults = None
    assert log.control == before == read_control(disk)
    log.write_control(next_key=8)
    assert read_control(_after_power_cut(disk)).next_key == 8


def test_records_that_give_room_back_may_use_the_spare(disk: RecordingDisk) -> None:
    log = LogManager.create(disk, CONTROL)
    disk.capacity_bytes = disk.capacity_bytes - disk.room()
    log.force(log.append(KIND, b"x" * 1500))
    with pytest.raises(StorageFull):
        log.append(KIND, b"more" * 100)
    for _ in range(BLOCKS):
        log.force(log.append(KIND, b"less" * 100, may_use_spare=True))
    with pytest.raises(StorageFull):
        log.append(KIND, b"less" * 100, may_use_spare=True)


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
    assert _bodies(examined) == [b"x"]
    with pytest.raises(AssertionError, match="not begun"):
        examined.append(KIND, b"y")
    assert again.trace.entries == []
    examined.begin()
    examined.begin()
    examined.force(examined.append(KIND, b"y"))
    assert _bodies(LogManager.open(_after_power_cut(again))) == [b"x", b"y"]


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
    assert _bodies(LogManager.open(disk)) == [b"in the page cache alone"]
    assert _bodies(LogManager.open(_after_power_cut(disk))) == [b"in the page cache alone"]


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
    assert _bodies(again) == [b"whole"]
    again.force(again.append(KIND, b"new"))
    assert _bodies(LogManager.open(_after_power_cut(torn))) == [b"whole", b"new"]


def test_a_stale_follower_of_an_older_epoch_is_ignored(
    disk: RecordingDisk, log: LogManager
) -> None:
    log.force(log.append(KIND, b"whole"))
    log.force(log.append(KIND, b"t" * 1000))
    torn = RecordingDisk(_without_last_block(disk.image(), 1))
    again = LogManager.open(torn)
    assert _bodies(again) == [b"whole"]
    again.force(again.append(KIND, b"new"))
    assert _bodies(LogManager.open(_after_power_cut(torn))) == [b"whole", b"new"]


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
    assert _bodies(LogManager.open(RecordingDisk(image))) == [b"x"]
    # Without the record of the close nobody could tell that the last block was ever written.
    with pytest.raises(Corruption, match=f"closed at LSN {CONTENT_BYTES} and ends at LSN 0"):
        LogManager.open(RecordingDisk(_without_last_block(image, 0)))


def test_a_close_that_is_not_clean_is_not_recorded(disk: RecordingDisk, log: LogManager) -> None:
    log.force(log.append(KIND, b"x"))
    log.close(clean=False)
    assert read_control(disk).end_lsn == 0


# --- Forgetting


def _filled(log: LogManager) -> list[int]:
    """Records of a block each, two segments full of them and some more."""
    lsns = []
    for number in range(2 * BLOCKS + 2):
        lsns.append(log.append(KIND, b"%d" % number))
        log.force(lsns[-1])
    return lsns


def test_a_restart_can_begin_with_the_first_record_of_a_segment(log: LogManager) -> None:
    lsns = _filled(log)
    assert log.restart_point(0) == 0
    assert log.restart_point(lsns[BLOCKS] - 1) == 0
    assert log.restart_point(lsns[BLOCKS]) == lsns[BLOCKS]
    assert log.restart_point(lsns[-1]) == lsns[2 * BLOCKS]


def test_restart_points_are_known_after_reading_the_log(
    disk: RecordingDisk, log: LogManager
) -> None:
    lsns = _filled(log)
    again = LogManager.open(_after_power_cut(disk))
    assert len(_bodies(again)) == len(lsns)
    assert again.restart_point(lsns[-1]) == lsns[2 * BLOCKS]


def test_what_is_forgotten_is_not_read_and_its_room_is_used_again(
    disk: RecordingDisk, log: LogManager
) -> None:
    lsns = _filled(log)
    restart = log.restart_point(lsns[-1])
    log.write_control(restart_lsn=restart)
    log.forget_before(restart)
    names = [name for name in disk.names() if name.startswith("log-")]
    assert segment_name(0) not in names
    log.force(log.append(KIND, b"behind"))
    again = LogManager.open(_after_power_cut(disk))
    assert _bodies(again, again.control.restart_lsn) == [b"8", b"9", b"behind"]


def test_nothing_is_forgotten_that_the_control_record_does_not_name(log: LogManager) -> None:
    lsns = _filled(log)
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
    monkeypatch.setattr("mqserver.storage.format.FORMAT_VERSION", 2)
    LogManager.create(disk, CONTROL)
    monkeypatch.undo()
    with pytest.raises(WrongFormat, match="version 2"):
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
    assert _bodies(LogManager.open(RecordingDisk(again.image()))) == []
