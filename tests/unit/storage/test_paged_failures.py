"""The paged storage when writes, syncs and reads fail, and when calls meet or are repeated.

What holds for every operation at which a disk may fail is in `tests/crash`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from mqserver.errors import (
    Corruption,
    QueueExists,
    StorageFailed,
    StorageFull,
)
from mqserver.storage.contract import EVERYTHING, NewMessage, Outcome, QueueSettings
from mqserver.storage.file_manager import DATA_NAME
from mqserver.storage.format import BLOCK_BYTES, segment_name
from mqserver.storage.log_manager import CONTROL_NAME, read_control
from mqserver.storage.paged import PagedStorage
from tests.conformance.paged_storages import SMALL
from tests.crash.faults import Fault
from tests.crash.recording_disk import RecordingDisk
from tests.unit.storage.small_stores import (
    LARGE_BYTES,
    after_power_cut,
    browsed,
    data_bytes,
    message,
    on,
    open_small,
    put,
    put_many,
    take,
)


@pytest.fixture
def disk() -> RecordingDisk:
    return RecordingDisk()


@pytest.fixture
def storage(disk: RecordingDisk) -> PagedStorage:
    storage = open_small(disk)
    storage.create_queue("q", QueueSettings())
    return storage


# --- Failures


def test_a_failed_sync_of_the_data_file_is_never_taken_for_done(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    storage.store(b"b", "q", [message(LARGE_BYTES)])
    disk.faults = on("sync", DATA_NAME, Fault.EIO)
    for _ in range(2):
        with pytest.raises(StorageFailed):
            storage.commit_one_phase(b"b")
        disk.faults = None
    assert browsed(open_small(after_power_cut(disk))) == []


def test_a_key_that_is_not_reserved_on_disk_is_not_given(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    disk.faults = on("sync", CONTROL_NAME, Fault.EIO)
    with pytest.raises(StorageFailed):
        storage.store(b"b", "q", [message(1)])
    disk.faults = None
    with pytest.raises(StorageFailed):
        storage.store(b"b", "q", [message(1)])


def _with_a_control_record_that_meets(
    fault: Fault, disk: RecordingDisk, storage: PagedStorage
) -> None:
    """The messages of a checkpoint are gone, and the one that would say so cannot be named."""
    for _ in range(40):
        put(storage, message(300))
    storage.checkpoint()
    take(storage, 40)
    disk.faults = on("write", CONTROL_NAME, fault)
    with pytest.raises((StorageFailed, StorageFull)):
        storage.checkpoint()
    disk.faults = None


def test_a_checkpoint_whose_control_record_fails_overwrites_nothing(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    _with_a_control_record_that_meets(Fault.EIO, disk, storage)
    with pytest.raises(StorageFailed):
        put(storage, message(20_000))
    assert browsed(open_small(after_power_cut(disk))) == []


def test_a_control_record_that_finds_no_room_leaves_the_checkpoint_before(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    _with_a_control_record_that_meets(Fault.ENOSPC, disk, storage)
    put(storage, message(20_000, b"y"))
    assert browsed(open_small(after_power_cut(disk))) == [b"y" * 20_000]
    storage.checkpoint()
    assert browsed(open_small(after_power_cut(disk))) == [b"y" * 20_000]


def test_a_take_that_cannot_read_has_taken_nothing(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    storage.store(b"b", "q", [message(LARGE_BYTES)])
    disk.faults = lambda operation: Fault.EIO if operation.kind == "read" else None
    with pytest.raises(Corruption):
        storage.take(b"b", "q", EVERYTHING, 1)
    disk.faults = None
    assert storage.take(b"another", "q", EVERYTHING, 1) == []
    assert len(storage.take(b"b", "q", EVERYTHING, 1)) == 1


def test_a_storage_that_failed_lets_go_of_its_directory(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    storage.store(b"active", "q", [message(1)])
    storage.store(b"b", "q", [message(1)])
    disk.faults = lambda operation: Fault.EIO if operation.kind == "sync" else None
    with pytest.raises(StorageFailed):
        storage.commit_one_phase(b"b")
    disk.faults = None
    storage.close()
    assert browsed(open_small(RecordingDisk(disk.image()))) in ([], [b"x"])
    disk.lock()


def test_a_close_whose_sync_fails_says_so_and_lets_go_of_its_directory(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    storage.store(b"b", "q", [message(1)])
    storage.prepare(b"b", b"")
    storage.commit(b"b", force=False)
    disk.faults = lambda operation: Fault.EIO if operation.kind == "sync" else None
    with pytest.raises(StorageFailed):
        storage.close()
    disk.faults = None
    disk.lock()


def test_a_branch_whose_record_cannot_be_made_can_be_rolled_back(storage: PagedStorage) -> None:
    storage.store(b"b", "q", [NewMessage(b"", 0, sender="\ud800")])
    with pytest.raises(UnicodeEncodeError):
        storage.commit_one_phase(b"b")
    assert storage.rollback(b"b") is Outcome.ROLLED_BACK


def _damage_pages(disk: RecordingDisk, first: int) -> None:
    data = bytearray(disk._files[DATA_NAME].data)
    data[first * SMALL.page_bytes + 100] ^= 1
    disk._files[DATA_NAME].data = data


def test_a_damaged_run_stays_where_it_is_when_others_move(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    for number in range(60):
        put(storage, message(LARGE_BYTES, b"%d" % (number % 10)))
    take(storage, 58)
    last = storage._index.queue("q").entries[60]
    _damage_pages(disk, last.run)
    where = last.run
    storage.checkpoint()
    assert last.run == where
    assert len(storage.take(b"sound", "q", EVERYTHING, 1)) == 1
    with pytest.raises(Corruption, match=r"data, offset \d+: the page is not whole"):
        storage.take(b"damaged", "q", EVERYTHING, 1)


def test_damage_that_stops_a_checkpoint_nobody_asked_for_stops_the_storage(
    disk: RecordingDisk,
) -> None:
    storage = open_small(disk, replace(SMALL, cache_bytes=0))
    storage.create_queue("q", QueueSettings())
    put(storage, message(300))
    data = bytearray(disk._files[segment_name(0)].data)
    data[BLOCK_BYTES + 100] ^= 1
    disk._files[segment_name(0)].data = data
    with pytest.raises(Corruption, match=r"log-0000000000000000, offset 512: the block is not"):
        put_many(storage, 100)
    with pytest.raises(Corruption, match="offset 512"):
        storage.create_queue("more", QueueSettings())
    storage.close()


def test_room_that_nobody_uses_is_given_back_at_opening(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    put(storage, message(LARGE_BYTES))
    used = data_bytes(disk)
    storage.store(b"lost", "q", [message(LARGE_BYTES)])
    again = RecordingDisk(disk.image())
    assert browsed(open_small(again)) == [b"x" * LARGE_BYTES]
    assert data_bytes(again) == used


def test_after_a_failure_nothing_is_shown_of_which_nobody_knows_whether_it_is(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    disk.faults = lambda operation: Fault.EIO if operation.kind == "sync" else None
    with pytest.raises(StorageFailed):
        storage.create_queue("new", QueueSettings())
    disk.faults = None
    looks: list[Callable[[], object]] = [
        storage.queues,
        storage.branches,
        storage.consumers,
        lambda: storage.queue("new"),
        lambda: storage.browse("new", EVERYTHING, 0, 1),
        lambda: storage.read("new", 1),
        lambda: storage.mark("application"),
        lambda: storage.outcome(b"b"),
    ]
    for look in looks:
        with pytest.raises(StorageFailed):
            look()


# --- Calls at the same time, and calls that are repeated


def _created(storage: PagedStorage, name: str) -> None:
    with contextlib.suppress(QueueExists):
        storage.create_queue(name, QueueSettings())


@pytest.mark.parametrize("name", ["create_queue", "reserve", "finish", "drop_consumer"])
def test_a_call_that_is_repeated_waits_for_the_record_of_the_first(
    disk: RecordingDisk, storage: PagedStorage, name: str
) -> None:
    put(storage, message(1), message(1))
    call: Callable[[], object] = {
        "create_queue": lambda: _created(storage, "new"),
        "reserve": lambda: storage.reserve("c", "q", EVERYTHING, 0, 1),
        "finish": lambda: storage.finish("c", 1),
        "drop_consumer": lambda: storage.drop_consumer("c"),
    }[name]
    if name in ("finish", "drop_consumer"):
        storage.reserve("c", "q", EVERYTHING, 0, 1)
    again: list[threading.Thread] = []

    def repeat(file: str) -> None:
        if not again:
            again.append(threading.Thread(target=call))
            again[0].start()
            again[0].join(0.1)
            assert again[0].is_alive()

    disk.during_sync = repeat
    call()
    again[0].join()


def test_a_branch_that_was_committed_lazily_is_on_disk_when_that_is_said_again(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    for branch in (b"one phase", b"two phases"):
        storage.store(branch, "q", [message(1)])
        storage.prepare(branch, b"")
        storage.commit(branch, force=False)
    storage.commit_one_phase(b"one phase")
    assert open_small(after_power_cut(disk)).outcome(b"one phase") is Outcome.COMMITTED


def test_a_branch_that_has_appended_nothing_yet_does_not_hold_the_log(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    for _ in range(40):
        put(storage, message(300))
        take(storage, 1)
    storage.store(b"about to commit", "q", [message(1)])
    storage._index.branches[b"about to commit"].is_ending = True
    before = read_control(disk).restart_lsn
    storage.checkpoint()
    assert read_control(disk).restart_lsn > before
