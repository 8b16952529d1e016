"""The recording disk: what it writes down, and that it fails as it is told.

That it behaves like a real disk while nothing fails is shown in `tests/unit/storage/test_disk.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqserver import errors
from tests.crash.faults import Crash, Fault, Operation, at, filling_up, since
from tests.crash.recording_disk import RecordingDisk, RecordingFile
from tests.crash.trace import Created, Noted, Removed, Renamed, Resized, Synced, Wrote


def _scenario(disk: RecordingDisk) -> None:
    """Eight operations: each kind once, and writes and syncs twice."""
    file = disk.open("file", create=True)
    file.write(0, b"first")
    file.sync()
    file.truncate(3)
    file.write(510, b"second")
    disk.rename("file", "other")
    disk.remove("other")
    disk.sync_directory()


def test_the_trace_holds_everything_in_its_order() -> None:
    disk = RecordingDisk({"old": b"old"})
    disk.note("begin")
    _scenario(disk)
    disk.note("end")
    second = bytes(510) + b"second" + bytes(508)
    assert disk.trace.initial == {"old": b"old"}
    assert disk.trace.entries == [
        Noted("begin"),
        Created("file", 2),
        Wrote(2, 0, b"first".ljust(512, b"\0"), 0, 5),
        Synced(2, 3, succeeded=True),
        Resized(2, 5, 3),
        Wrote(2, 0, b"fir" + second[3:], 3, 516),
        Renamed("file", "other", 2),
        Removed("other", 2),
        Synced(0, 8, succeeded=True),
        Noted("end"),
    ]


def test_a_crash_at_every_operation_leaves_the_trace_of_those_before() -> None:
    whole = RecordingDisk()
    _scenario(whole)
    assert whole.operations == 8
    for number in range(1, whole.operations + 1):
        disk = RecordingDisk(faults=at(number, Fault.CRASH))
        with pytest.raises(Crash):
            _scenario(disk)
        assert disk.trace.entries == whole.trace.entries[: number - 1]


def test_nothing_reaches_a_disk_after_the_crash() -> None:
    disk = RecordingDisk()
    file, lock = disk.open("file", create=True), disk.lock()
    disk.faults = at(2, Fault.CRASH)
    actions: list[Callable[[], object]] = [
        lambda: file.write(0, b"data"),
        lambda: file.write(0, b"data"),
        file.sync,
        file.size,
        disk.names,
        disk.sync_directory,
        lambda: disk.open("other", create=True),
        lambda: disk.note("event"),
    ]
    for action in actions:
        with pytest.raises(Crash):
            action()
    # What a program does while it is unwound must not raise in place of the crash.
    file.close()
    lock.close()
    disk.close()
    assert len(disk.trace.entries) == 1


def test_a_restarted_process_finds_what_was_never_synced() -> None:
    disk = RecordingDisk(faults=at(4, Fault.CRASH))
    before, _lock = disk.open("file", create=True), disk.lock()
    before.write(0, b"in the page cache")
    disk.restart()
    with pytest.raises(Crash):
        before.write(0, b"by a dead process")
    disk.lock()
    after = disk.open("file")
    after.sync()
    after.sync()
    assert after.read(0, 100) == b"in the page cache"


@pytest.mark.parametrize("number", range(1, 9))
def test_a_failed_operation_fails_its_file_or_disk_and_changes_nothing(number: int) -> None:
    disk, whole = RecordingDisk(faults=at(number, Fault.EIO)), RecordingDisk()
    _scenario(whole)
    with pytest.raises(errors.StorageFailed, match="Input/output error"):
        _scenario(disk)
    done = [entry for entry in disk.trace.entries if not _is_failed(entry)]
    assert done == whole.trace.entries[: number - 1]


def _is_failed(entry: object) -> bool:
    return isinstance(entry, Synced) and not entry.succeeded


def test_a_file_whose_sync_failed_refuses_everything_and_a_new_one_does_not() -> None:
    disk, file = _disk_and_file()
    disk.faults = at(disk.operations + 1, Fault.EIO)
    with pytest.raises(errors.StorageFailed):
        file.sync()
    for action in (file.sync, file.size, lambda: file.write(0, b"x"), lambda: file.read(0, 1)):
        with pytest.raises(errors.StorageFailed):
            action()
    # This is the trap: the kernel says yes to the second try.
    disk.open("file").sync()
    synced = [entry for entry in disk.trace.entries if isinstance(entry, Synced)]
    assert [entry.succeeded for entry in synced] == [False, True]


def test_a_failed_sync_of_the_directory_fails_the_disk() -> None:
    disk, _file = _disk_and_file()
    disk.faults = since(1, Fault.EIO, "sync")
    with pytest.raises(errors.StorageFailed):
        disk.sync_directory()
    with pytest.raises(errors.StorageFailed):
        disk.names()


def test_a_short_write_is_continued_and_leaves_two_entries() -> None:
    disk, file = _disk_and_file()
    disk.faults = at(disk.operations + 1, Fault.SHORT)
    file.write(0, b"0123456789")
    assert file.read(0, 100) == b"0123456789"
    sizes = [entry.size for entry in disk.trace.entries if isinstance(entry, Wrote)]
    assert sizes == [5, 10]


def test_who_does_not_look_loses_the_rest_of_a_short_write() -> None:
    disk, file = _disk_and_file()
    disk.faults = at(disk.operations + 1, Fault.SHORT)
    assert file.write_once(0, b"0123456789") == 5
    assert file.read(0, 100) == b"01234"


@pytest.mark.parametrize(("offset", "size", "written"), [(0, 2048, 1024), (100, 1500, 412)])
def test_a_short_write_over_what_is_there_ends_with_a_sector(
    offset: int, size: int, written: int
) -> None:
    disk = RecordingDisk({"file": bytes(4096)})
    disk.faults = at(1, Fault.SHORT)
    assert disk.open("file").write_once(offset, b"x" * size) == written


def test_a_write_within_a_sector_that_is_there_is_never_short() -> None:
    disk = RecordingDisk({"file": bytes(4096)})
    disk.faults = at(1, Fault.SHORT)
    assert disk.open("file").write_once(512, b"x" * 92) == 92


def test_a_disk_that_fills_up_keeps_a_part_and_goes_on_later() -> None:
    disk, file = _disk_and_file()
    disk.faults = filling_up(disk.operations + 1)
    with pytest.raises(errors.StorageFull, match="write at 5"):
        file.write(0, b"0123456789")
    with pytest.raises(errors.StorageFull):
        disk.open("other", create=True)
    file.sync()
    disk.faults = None
    file.write(5, b"56789")
    assert file.read(0, 100) == b"0123456789"


def test_a_disk_has_no_more_room_than_it_has() -> None:
    disk = RecordingDisk({"old": bytes(600)}, capacity_bytes=1000)
    file = disk.open("file", create=True)
    assert disk.free_bytes() == 400
    with pytest.raises(errors.StorageFull):
        file.write(0, bytes(500))
    assert file.size() == 400
    with pytest.raises(errors.StorageFull):
        file.allocate(401)
    file.write(0, b"over what is there")
    disk.remove("old")
    file.write(0, bytes(500))
    assert disk.free_bytes() == 500


def test_a_device_that_cannot_read_is_damage_of_that_place() -> None:
    disk, file = _disk_and_file()
    disk.faults = at(2, Fault.EIO, "read")
    assert file.read(0, 1) == b""
    with pytest.raises(errors.Corruption, match="file, offset 7"):
        file.read(7, 1)
    assert file.read(0, 1) == b""


def test_what_is_written_during_a_sync_is_not_covered_by_it() -> None:
    disk, file = _disk_and_file()
    file.write(0, b"before")
    disk.during_sync = lambda name: file.write(600, b"during")
    file.sync()
    synced = disk.trace.entries[-1]
    assert isinstance(synced, Synced)
    covered = disk.trace.entries[: synced.upto]
    assert [entry.start for entry in covered if isinstance(entry, Wrote)] == [0]


def test_faults_can_be_aimed_at_a_kind_or_a_name() -> None:
    operations: list[Operation] = []
    disk = RecordingDisk(faults=lambda operation: operations.append(operation))
    _scenario(disk)
    assert [(each.kind, each.name) for each in operations] == [
        ("create", "file"),
        ("write", "file"),
        ("sync", "file"),
        ("resize", "file"),
        ("write", "file"),
        ("rename", "file"),
        ("remove", "other"),
        ("sync", "."),
    ]
    assert [each.number for each in operations] == [*range(1, 9)]


def _disk_and_file() -> tuple[RecordingDisk, RecordingFile]:
    disk = RecordingDisk()
    return disk, disk.open("file", create=True)
