"""Parcels of the paged storage: messages that one call stores together, in pages or in the log."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from mqserver.storage.contract import EVERYTHING, NewMessage, QueueSettings
from mqserver.storage.paged import PagedStorage
from tests.conformance.paged_storages import PARCELS, PARCELS_IN_LOG
from tests.crash.recording_disk import RecordingDisk
from tests.unit.storage.small_stores import (
    LARGE_BYTES,
    after_power_cut,
    browsed,
    message,
    open_small,
    put,
    take,
)


@pytest.fixture
def disk() -> RecordingDisk:
    return RecordingDisk()


@pytest.fixture
def parcels(disk: RecordingDisk) -> PagedStorage:
    storage = open_small(disk, PARCELS)
    storage.create_queue("q", QueueSettings())
    return storage


@pytest.fixture
def in_log(disk: RecordingDisk) -> PagedStorage:
    storage = open_small(disk, PARCELS_IN_LOG)
    storage.create_queue("q", QueueSettings())
    return storage


def test_many_messages_of_one_call_are_not_written_to_the_log(
    disk: RecordingDisk, parcels: PagedStorage
) -> None:
    before = parcels._log.end_lsn
    put(parcels, *[message(100, b"%d" % (number % 10)) for number in range(200)])
    assert parcels._log.end_lsn - before < 200 * 100 // 5
    expected = [b"%d" % (number % 10) * 100 for number in range(200)]
    assert browsed(open_small(after_power_cut(disk), PARCELS)) == expected
    assert take(parcels, 200) == expected


def test_a_parcel_stays_one_until_somebody_wants_a_message_of_it(parcels: PagedStorage) -> None:
    keys = [put(parcels, *[message(100)] * 50) for _ in range(3)]
    queue = parcels._index.queue("q")
    assert (len(queue._entries), len(queue._parcels)) == (0, 3)
    found = parcels.read("q", keys[1][7])
    assert found is not None
    assert found.payload == b"x" * 100
    assert (len(queue._entries), len(queue._parcels)) == (50, 2)
    assert parcels.queue("q").visible == 150
    assert len(take(parcels, 120)) == 120
    assert parcels.queue("q").payload_bytes == 30 * 100


def test_a_branch_may_take_what_it_stored_as_a_parcel(
    disk: RecordingDisk, parcels: PagedStorage
) -> None:
    branch = b"its own"
    parcels.store(branch, "q", [message(50, b"a")])
    parcels.store(branch, "q", [message(100, b"%d" % number) for number in range(6)])
    taken = parcels.take(branch, "q", EVERYTHING, 3)
    assert [each.payload[:1] for each in taken] == [b"a", b"0", b"1"]
    parcels.prepare(branch, b"r")
    assert parcels.branches()[0].stored == 7
    again = open_small(after_power_cut(disk), PARCELS)
    for each in (parcels, again):
        each.commit(branch)
        assert [payload[:1] for payload in browsed(each)] == [b"2", b"3", b"4", b"5"]


def test_parcels_of_a_prioritized_queue_are_in_its_order(parcels: PagedStorage) -> None:
    parcels.change_queue("q", QueueSettings(prioritized=True))
    payloads = [b"%d" % number * 100 for number in range(5)]
    urgent = [NewMessage(p, zlib.crc32(p), priority=n) for n, p in enumerate(payloads)]
    put(parcels, *urgent)
    assert take(parcels, 5) == payloads[::-1]


def test_the_pages_of_a_parcel_are_free_when_its_branch_is_rolled_back(
    disk: RecordingDisk, parcels: PagedStorage
) -> None:
    parcels.store(b"b", "q", [message(100)] * 100)
    assert parcels._files.pages > 0
    parcels.rollback(b"b")
    assert (parcels._files.pages, parcels._payloads.runs) == (0, {})


def test_a_parcel_with_a_large_message_or_with_few_bytes_is_none(parcels: PagedStorage) -> None:
    put(parcels, *[message(1)] * 20)
    put(parcels, message(LARGE_BYTES), *[message(100)] * 20)
    assert parcels._index.queue("q")._parcels == []
    assert len(take(parcels, 100)) == 41


def test_few_bytes_of_many_messages_ride_in_the_log_as_one(
    disk: RecordingDisk, in_log: PagedStorage
) -> None:
    expected = [b"%d" % number * 5 for number in range(6)]
    put(in_log, *[message(5, b"%d" % number) for number in range(6)])
    queue = in_log._index.queue("q")
    assert (len(queue._entries), len(queue._parcels), in_log._files.pages) == (0, 1, 0)
    info = in_log.queue("q")
    assert (info.visible, info.payload_bytes) == (6, 30)
    for again in (open_small(after_power_cut(disk), PARCELS_IN_LOG), in_log):
        assert browsed(again) == expected
    assert take(in_log, 6) == expected
    assert in_log._payloads._cached == 0


def test_a_parcel_in_the_log_moves_into_pages_as_a_whole(
    disk: RecordingDisk, in_log: PagedStorage
) -> None:
    put(in_log, *[message(5, b"%d" % number) for number in range(6)])
    _fill_the_log(in_log)
    in_log.checkpoint()
    queue = in_log._index.queue("q")
    (run,) = in_log._payloads.runs.values()
    assert (len(queue._entries), len(queue._parcels), run.live) == (0, 1, 6)
    in_log.checkpoint()
    assert in_log._payloads.in_log == []
    expected = [b"%d" % number * 5 for number in range(6)]
    for each in (in_log, open_small(after_power_cut(disk), PARCELS_IN_LOG)):
        assert take(each, 6) == expected
        assert (each._payloads._cached, each._payloads.runs) == (0, {})


def test_a_parcel_in_the_log_is_read_there_when_there_is_no_room_in_memory(
    disk: RecordingDisk,
) -> None:
    storage = open_small(disk, replace(PARCELS_IN_LOG, cache_bytes=10))
    storage.create_queue("q", QueueSettings())
    put(storage, *[message(5, b"%d" % number) for number in range(6)])
    put(storage, *[message(6, b"%d" % number) for number in range(5)])
    _fill_the_log(storage)
    assert storage._payloads._cached == 0
    # One of them from the log, the other from pages.
    assert take(storage, 6) == [b"%d" % number * 5 for number in range(6)]
    storage.checkpoint()
    assert take(storage, 5) == [b"%d" % number * 6 for number in range(5)]


def test_what_follows_a_parcel_in_the_log_stands_behind_it(
    disk: RecordingDisk, in_log: PagedStorage
) -> None:
    in_log.store(b"b", "q", [message(5, b"%d" % number) for number in range(4)])
    in_log.store(b"b", "q", [message(5, b"x")])
    in_log.store(b"b", "q", [message(5, b"%d" % number) for number in range(4, 8)])
    in_log.commit_one_phase(b"b")
    expected = [letter * 5 for letter in (b"0", b"1", b"2", b"3", b"x", b"4", b"5", b"6", b"7")]
    for each in (in_log, open_small(after_power_cut(disk), PARCELS_IN_LOG)):
        assert browsed(each) == expected


@pytest.mark.parametrize("is_moved", [True, False])
def test_of_a_parcel_that_was_prepared_and_rolled_back_nothing_is_left(
    in_log: PagedStorage, is_moved: bool
) -> None:
    in_log.store(b"b", "q", [message(5)] * 6)
    in_log.prepare(b"b", b"r")
    assert in_log._payloads._cached == 30
    if is_moved:
        _fill_the_log(in_log)
        in_log.checkpoint()
    assert bool(in_log._payloads.runs) is is_moved
    in_log.rollback(b"b")
    assert (in_log._payloads._cached, in_log._payloads.runs) == (0, {})


def _fill_the_log(storage: PagedStorage) -> None:
    """So that a restart can come to lie behind what was there before."""
    for number in range(40):
        storage.rollback(b"%300d" % number)
    storage.force()
