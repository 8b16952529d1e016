"""The log on a disk in memory: what is on disk when, and what holds when the disk fails or is full.

Threads that force together are made to meet by the disk, which calls back during a sync; nothing
here depends on how fast anything is. What is read when a log is opened is in `test_log_opening.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from mqserver.errors import Corruption, StorageFailed, StorageFull
from mqserver.storage.format import BLOCK_BYTES, CONTENT_BYTES, RECORD_HEADER, Record
from mqserver.storage.log_manager import CONTROL_NAME, LogManager, read_control
from mqserver.storage.segments import NEW_NAME
from tests.crash.faults import Fault
from tests.crash.recording_disk import RecordingDisk
from tests.unit.storage.small_logs import BLOCKS, CONTROL, KIND, after_power_cut, bodies_of, filled

SEGMENT_BYTES = BLOCKS * BLOCK_BYTES


@pytest.fixture
def disk() -> RecordingDisk:
    return RecordingDisk()


@pytest.fixture
def log(disk: RecordingDisk) -> LogManager:
    return LogManager.create(disk, CONTROL)


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
    assert bodies_of(LogManager.open(after_power_cut(disk))) == [b"goes along", b"forced"]


def test_force_all_forces_the_last_record(disk: RecordingDisk, log: LogManager) -> None:
    log.append(KIND, b"last")
    log.force_all()
    operations = disk.operations
    log.force_all()
    assert disk.operations == operations
    assert bodies_of(LogManager.open(after_power_cut(disk))) == [b"last"]


@pytest.mark.parametrize("size", [CONTENT_BYTES - RECORD_HEADER.size, 480, 1000, 3000, 9000])
def test_a_record_may_span_blocks_and_segments(
    disk: RecordingDisk, log: LogManager, size: int
) -> None:
    bodies = [b"before", bytes(range(256)) * (size // 256) + b"." * (size % 256), b"behind"]
    lsns = [log.append(KIND, body) for body in bodies]
    log.force(lsns[-1])
    again = LogManager.open(after_power_cut(disk))
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
    assert len(bodies_of(LogManager.open(after_power_cut(disk)))) == 9


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


class _Meeting:
    """Threads that force one record each with the same write: the first leads, the others wait."""

    def __init__(self, disk: RecordingDisk, log: LogManager) -> None:
        self._disk = disk
        self._log = log
        self.done: dict[int, int] = {}
        self.raised: dict[int, BaseException] = {}
        self.threads: list[threading.Thread] = []
        # What happens to those whose record follows, by their number.
        self.accidents: dict[int, BaseException] = {}

    def hold(self, count: int, leads_by_itself: bool = False) -> None:
        """They have met, and each has ended as it should or as it must."""
        self._disk.during_sync = lambda name: self._gather(count, leads_by_itself)
        self._log.force(self._log.append(KIND, b"before"))
        for thread in self.threads:
            thread.join()

    def _gather(self, count: int, leads_by_itself: bool) -> None:
        self._disk.during_sync = None
        for number in range(count):
            lsn = self._log.append(KIND, b"%d" % number)
            by_itself = leads_by_itself and number == 0
            thread = threading.Thread(target=self._force, args=(number, lsn, by_itself))
            self.threads.append(thread)
            thread.start()
            while not self._log._group.has_leader or len(self._log._group.waiters) < number:
                time.sleep(0)

    def _force(self, number: int, lsn: int, by_itself: bool) -> None:
        try:
            self._log.force(lsn, partial(self._then, number), by_itself)
        except (ValueError, KeyboardInterrupt) as raised:
            self.raised[number] = raised

    def _then(self, number: int) -> None:
        assert number not in self.done
        self.done[number] = threading.get_ident()
        if number in self.accidents:
            raise self.accidents[number]

    def by_whom(self) -> list[int]:
        """For each, the number of the thread that did what followed from its record."""
        numbers = {thread.ident: number for number, thread in enumerate(self.threads)}
        return [numbers[self.done[number]] for number in sorted(self.done)]


@pytest.fixture
def meeting(disk: RecordingDisk, log: LogManager) -> _Meeting:
    return _Meeting(disk, log)


def test_who_writes_for_others_does_what_follows_for_them(meeting: _Meeting) -> None:
    meeting.hold(5)
    assert (meeting.by_whom(), meeting.raised) == ([0] * 5, {})


def test_what_goes_wrong_behind_the_record_of_one_is_told_to_that_one(meeting: _Meeting) -> None:
    meeting.accidents = {2: ValueError("two")}
    meeting.hold(5)
    assert (meeting.by_whom(), meeting.raised) == ([0] * 5, meeting.accidents)


def test_when_it_goes_wrong_for_the_leader_the_others_see_to_themselves(meeting: _Meeting) -> None:
    meeting.accidents = {0: ValueError("zero")}
    meeting.hold(4)
    assert (meeting.by_whom(), meeting.raised) == ([0, 1, 2, 3], meeting.accidents)


def test_a_leader_that_is_interrupted_leaves_the_rest_to_themselves(meeting: _Meeting) -> None:
    interrupt = KeyboardInterrupt()
    meeting.accidents = {2: interrupt}
    meeting.hold(5)
    assert meeting.by_whom() == [0, 0, 0, 3, 4]
    # Both: who was interrupted, and whose work may be half done.
    assert meeting.raised == {0: interrupt, 2: interrupt}


def test_a_leader_by_itself_does_nothing_for_others(meeting: _Meeting) -> None:
    meeting.hold(4, leads_by_itself=True)
    assert (meeting.by_whom(), meeting.raised) == ([0, 1, 2, 3], {})


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
        assert len(bodies_of(LogManager.open(after_power_cut(disk)))) == 3
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
    assert bodies_of(LogManager.open(after_power_cut(disk))) == [b"early"]
    log.force(late[0])
    assert bodies_of(LogManager.open(after_power_cut(disk))) == [b"early", b"late"]


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
    lsns = filled(log)
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
    assert bodies_of(LogManager.open(after_power_cut(disk))) == [b"x" * 1000, b"y"]


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
    assert read_control(after_power_cut(disk)).next_key == 8


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


def test_a_restart_can_begin_in_a_segment_whose_first_records_are_forgotten(
    log: LogManager,
) -> None:
    log.append(KIND, b"first")
    middle = log.append(KIND, b"middle")
    log.force_all()
    log.write_control(restart_lsn=middle)
    log.forget_before(middle)
    following = log.append(KIND, b"following")
    assert log.restart_point(following) == following
