"""The paged storage where the common suite cannot look: files, pages, cache, log, failures.

What every storage promises is in `tests/conformance`; what a crash leaves is in `tests/crash`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from mqserver.errors import (
    Corruption,
    StorageFull,
    StorageLocked,
)
from mqserver.storage.contract import EVERYTHING, Message, NewMessage, Outcome, QueueSettings
from mqserver.storage.disk import RealDisk
from mqserver.storage.file_manager import DATA_NAME
from mqserver.storage.format import BLOCK_BYTES, is_segment_name
from mqserver.storage.log_manager import read_control
from mqserver.storage.paged import PagedSettings, PagedStorage
from mqserver.storage.segments import SPARES_MAX
from tests.conformance.paged_storages import SMALL, durable_image
from tests.crash.recording_disk import RecordingDisk
from tests.unit.storage.small_stores import (
    LARGE_BYTES,
    after_power_cut,
    browsed,
    data_bytes,
    log_bytes,
    message,
    open_small,
    put,
    put_many,
    take,
)

ROOT_FOLDER = Path(__file__).resolve().parents[3]
SEGMENT_BYTES = SMALL.segment_blocks * BLOCK_BYTES

# Opens a store, says so, and keeps it until its input ends.
HOLDER = """
import sys, time
from mqserver.storage.disk import RealDisk
from mqserver.storage.paged import PagedStorage
storage = PagedStorage(RealDisk(sys.argv[1]), lambda: bytes(16), time.monotonic)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def disk() -> RecordingDisk:
    return RecordingDisk()


@pytest.fixture
def storage(disk: RecordingDisk) -> PagedStorage:
    storage = open_small(disk)
    storage.create_queue("q", QueueSettings())
    return storage


# --- What is forced


def test_a_branch_that_changed_nothing_costs_no_sync(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    put(storage, message(10))
    operations = disk.operations
    for _ in range(3):
        assert take(storage, 0) == []
    assert disk.operations == operations
    storage.rollback(b"unknown")
    # That rollback is not on disk yet, and what was done before is promised.
    take(storage, 0)
    assert open_small(after_power_cut(disk)).outcome(b"unknown") is Outcome.ROLLED_BACK


def test_the_end_of_a_branch_that_changed_nothing_is_on_disk_with_the_next_forced_write(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    storage.take(b"empty", "q", EVERYTHING, 1)
    storage.commit_one_phase(b"empty")
    assert open_small(after_power_cut(disk)).outcome(b"empty") is Outcome.UNKNOWN
    put(storage, message(10))
    assert open_small(after_power_cut(disk)).outcome(b"empty") is Outcome.COMMITTED


# --- Where payloads are


def test_payloads_beyond_the_budget_are_read_back_from_the_log(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    payloads = [bytes([65 + number % 26]) * 200 for number in range(30)]
    for payload in payloads:
        put(storage, NewMessage(payload, zlib.crc32(payload)))
    reads = disk.reads
    assert browsed(storage) == payloads
    assert disk.reads > reads
    assert data_bytes(disk) == 0


def test_payloads_within_the_budget_are_not_read_at_all(disk: RecordingDisk) -> None:
    storage = open_small(disk, replace(SMALL, cache_bytes=100_000))
    storage.create_queue("q", QueueSettings())
    for _ in range(40):
        put(storage, message(200))
    reads = disk.reads
    assert len(browsed(storage)) == 40
    assert disk.reads == reads


def test_the_budget_is_given_back_with_the_messages(disk: RecordingDisk) -> None:
    storage = open_small(disk, replace(SMALL, cache_bytes=300))
    storage.create_queue("q", QueueSettings())
    for _ in range(10):
        put(storage, message(300))
        reads = disk.reads
        assert take(storage, 1) == [b"x" * 300]
        assert disk.reads == reads


def test_a_large_payload_is_in_pages_and_not_in_the_log(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    before = storage.queue("q")
    payload = os.urandom(20_000)
    put(storage, NewMessage(payload, zlib.crc32(payload)))
    assert before.visible == 0
    assert data_bytes(disk) >= len(payload)
    assert log_bytes(disk) <= 3 * SEGMENT_BYTES
    assert browsed(storage) == [payload]
    assert browsed(open_small(after_power_cut(disk))) == [payload]


def test_a_payload_of_exactly_the_limit_stays_in_the_log(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    put(storage, message(SMALL.large_bytes))
    assert data_bytes(disk) == 0
    put(storage, message(SMALL.large_bytes + 1))
    assert data_bytes(disk) == SMALL.page_bytes


def test_an_empty_payload_next_to_others_costs_nobody_anything(disk: RecordingDisk) -> None:
    storage = open_small(disk, replace(SMALL, cache_bytes=0))
    storage.create_queue("q", QueueSettings(prioritized=True))
    put(storage, NewMessage(b"", 0, priority=1), NewMessage(b"full", 0, priority=2))
    assert take(storage, 2) == [b"full", b""]


def test_pages_of_a_branch_that_is_rolled_back_are_used_again(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    for number in range(5):
        storage.store(b"%d" % number, "q", [message(LARGE_BYTES)])
        storage.rollback(b"%d" % number)
    put(storage, message(LARGE_BYTES))
    assert data_bytes(disk) < 2 * LARGE_BYTES


def test_a_full_disk_refuses_a_large_message_and_keeps_the_rest(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    put(storage, message(10))
    disk.capacity_bytes -= disk.room() - 1024
    with pytest.raises(StorageFull):
        storage.store(b"b", "q", [message(LARGE_BYTES), message(LARGE_BYTES)])
    disk.capacity_bytes += 100_000
    storage.store(b"b", "q", [message(LARGE_BYTES)])
    storage.commit_one_phase(b"b")
    assert [len(payload) for payload in browsed(storage)] == [10, LARGE_BYTES]


# --- Checkpoints


def test_a_checkpoint_moves_small_messages_into_pages(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    payloads = [b"%03d" % number * 100 for number in range(100)]
    for payload in payloads:
        put(storage, NewMessage(payload, zlib.crc32(payload)))
    storage.checkpoint()
    assert data_bytes(disk) > 20_000
    assert log_bytes(disk) <= (2 + SPARES_MAX) * SEGMENT_BYTES
    assert browsed(storage) == payloads
    assert browsed(open_small(after_power_cut(disk))) == payloads


def test_messages_of_a_bundle_go_one_by_one(disk: RecordingDisk, storage: PagedStorage) -> None:
    for number in range(100):
        put(storage, message(300, b"%d" % (number % 10)))
    storage.checkpoint()
    for _ in range(9):
        take(storage, 10)
        storage.checkpoint()
        disk = after_power_cut(disk)
        storage = open_small(disk)
    assert browsed(storage) == [b"%d" % number * 300 for number in range(10)]


def test_the_data_file_shrinks_when_large_messages_have_come_and_gone(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    for number in range(100):
        put(storage, message(LARGE_BYTES, b"%d" % (number % 10)))
    assert data_bytes(disk) >= 100 * LARGE_BYTES
    for _ in range(100):
        take(storage, 1)
    storage.checkpoint()
    assert data_bytes(disk) == 0
    storage.close()
    assert browsed(open_small(RecordingDisk(disk.image()))) == []


def test_the_last_message_does_not_hold_the_whole_file(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    for number in range(100):
        put(storage, message(LARGE_BYTES, b"%d" % (number % 10)))
    take(storage, 99)
    for _ in range(3):
        storage.checkpoint()
    assert data_bytes(disk) < 10 * LARGE_BYTES
    assert browsed(open_small(after_power_cut(disk))) == [b"9" * LARGE_BYTES]


@pytest.mark.parametrize("end", ["commit", "unforced", "one phase", "rollback", "resolve"])
def test_the_log_stays_short_over_thousands_of_branches(end: str) -> None:
    disk = RecordingDisk()
    storage = open_small(disk)
    storage.create_queue("q", QueueSettings())
    longest = 0
    for number in range(1000):
        branch = b"%d" % number
        storage.store(branch, "q", [message(50)])
        storage.take(branch, "q", EVERYTHING, 1)
        storage.raise_mark(branch, "application", number)
        if end == "one phase":
            storage.commit_one_phase(branch)
        elif end == "rollback":
            storage.rollback(branch)
        else:
            storage.prepare(branch, b"")
        if end == "resolve":
            storage.resolve(branch, commit=True)
            storage.forget(branch)
        elif end in ("commit", "unforced"):
            storage.commit(branch, force=end == "commit")
        longest = max(longest, log_bytes(disk))
    # The limit, what may be kept of it, what comes in between, and the spares.
    assert longest < 2 * SMALL.log_bytes_max + 5 * SEGMENT_BYTES


def test_a_prepared_branch_does_not_hold_the_log(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    storage.store(b"prepared", "q", [message(100, b"p"), message(LARGE_BYTES, b"P")])
    storage.prepare(b"prepared", b"recovery")
    for _ in range(300):
        put(storage, message(100))
        take(storage, 1)
    assert log_bytes(disk) < 2 * SMALL.log_bytes_max + 5 * SEGMENT_BYTES
    again = open_small(after_power_cut(disk))
    assert again.outcome(b"prepared") is Outcome.PREPARED
    again.commit(b"prepared")
    assert browsed(again) == [b"p" * 100, b"P" * LARGE_BYTES]


def test_checkpoints_move_the_messages_of_a_prepared_branch_once(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    storage.store(b"prepared", "q", [message(100)] * 80)
    storage.prepare(b"prepared", b"recovery")
    put_many(storage, 30)
    take(storage, 30)
    storage.checkpoint()
    before = storage._log.end_lsn
    pages = data_bytes(disk)
    for _ in range(5):
        storage.checkpoint()
    assert (storage._log.end_lsn - before) // 5 < 80 * 100 // 4
    assert data_bytes(disk) == pages


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_branch_that_a_checkpoint_carries_ends_as_any_other(
    disk: RecordingDisk, storage: PagedStorage, is_committed: bool
) -> None:
    storage.store(b"prepared", "q", [message(100, b"p"), message(LARGE_BYTES, b"P")])
    storage.prepare(b"prepared", b"recovery")
    put_many(storage, 30)
    take(storage, 30)
    storage.checkpoint()
    again = open_small(after_power_cut(disk))
    [info] = again.branches()
    assert (info.outcome, info.recovery, info.stored) == (Outcome.PREPARED, b"recovery", 2)
    for each in (storage, again):
        (each.commit if is_committed else each.rollback)(b"prepared")
        each.checkpoint()
        expected = [b"p" * 100, b"P" * LARGE_BYTES] if is_committed else []
        assert browsed(each) == expected
    assert browsed(open_small(after_power_cut(disk))) == expected


# --- Restarts


def test_a_restart_reads_only_from_the_restart_on(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    for _ in range(100):
        put(storage, message(300))
        take(storage, 1)
    storage.checkpoint()
    again = after_power_cut(disk)
    restart = read_control(again).restart_lsn
    assert restart > 0
    segments = [name for name in again.names() if is_segment_name(name)]
    assert len(segments) <= 2 + SPARES_MAX
    assert int(segments[0].removeprefix("log-"), 16) * BLOCK_BYTES <= restart // 488 * BLOCK_BYTES
    assert browsed(open_small(again)) == []


def test_a_checkpoint_that_finds_no_room_leaves_the_one_before(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    for number in range(40):
        put(storage, message(300, b"%d" % (number % 10)))
    disk.capacity_bytes -= disk.room() - 500
    with pytest.raises(StorageFull):
        storage.checkpoint()
    expected = [b"%d" % (number % 10) * 300 for number in range(40)]
    assert browsed(storage) == expected
    assert browsed(open_small(after_power_cut(disk))) == expected
    disk.capacity_bytes += 1_000_000
    storage.checkpoint()
    assert browsed(open_small(after_power_cut(disk))) == expected


# --- Settings and directories


def test_sizes_are_fixed_when_the_store_is_made(disk: RecordingDisk, storage: PagedStorage) -> None:
    put(storage, message(LARGE_BYTES))
    storage.close()
    again = RecordingDisk(disk.image())
    open_small(again, PagedSettings(page_bytes=8192, segment_blocks=64)).close()
    control = read_control(again)
    assert (control.page_bytes, control.segment_blocks) == (SMALL.page_bytes, SMALL.segment_blocks)
    assert control.identity == b"0123456789abcdef"


def test_a_store_has_the_sizes_it_was_given_or_those_of_the_house(disk: RecordingDisk) -> None:
    PagedStorage(disk, lambda: bytes(16), time.monotonic).close()
    control = read_control(disk)
    assert control.page_bytes == PagedSettings().page_bytes
    assert control.segment_blocks == PagedSettings().segment_blocks


def test_keys_go_on_behind_those_that_may_have_been_given(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    given = storage.store(b"lost", "q", [message(1)])
    again = open_small(after_power_cut(disk))
    assert again.store(b"new", "q", [message(1)]).start > given.stop
    assert again.store(b"new", "q", [message(1)]).start <= given.stop + SMALL.keys_per_block + 1


def test_a_store_cannot_be_opened_twice_and_the_holder_is_named(tmp_path: Path) -> None:
    storage = open_small(RealDisk(tmp_path))
    with pytest.raises(StorageLocked, match=f"process {os.getpid()}"):
        open_small(RealDisk(tmp_path))
    storage.close()
    open_small(RealDisk(tmp_path)).close()


def test_two_processes_cannot_open_one_store(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        cwd=ROOT_FOLDER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StorageLocked, match=f"process {holder.pid}"):
            open_small(RealDisk(tmp_path))
        holder.kill()
    # The kernel lets go of the lock of a process that is killed.
    open_small(RealDisk(tmp_path)).close()


def test_a_store_that_cannot_be_opened_does_not_stay_locked(
    disk: RecordingDisk, storage: PagedStorage
) -> None:
    storage.close()
    image = disk.image()
    del image[DATA_NAME]
    damaged = RecordingDisk(image)
    with pytest.raises(Corruption, match="data is missing"):
        open_small(damaged)
    damaged.lock()


def test_a_large_payload_with_a_wrong_digest_survives_a_power_cut(disk: RecordingDisk) -> None:
    storage = open_small(disk)
    storage.create_queue("q", QueueSettings())
    altered = NewMessage(b"altered".ljust(LARGE_BYTES), 77)
    [key] = put(storage, altered)
    again = open_small(RecordingDisk(durable_image(disk.trace)))
    assert again.read("q", key) == Message(key, *altered)
