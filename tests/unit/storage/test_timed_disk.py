"""A disk whose syncs are timed is the same disk."""

from __future__ import annotations

import itertools

import pytest

from mqserver.errors import StorageFailed
from mqserver.storage.contract import QueueSettings
from mqserver.storage.paged import PagedStorage
from mqserver.storage.timed_disk import TimedDisk
from tests.conformance.paged_storages import SMALL
from tests.crash.faults import Fault, since
from tests.crash.recording_disk import RecordingDisk
from tests.unit.storage.small_stores import browsed, message, open_small, put


def _open(disk: TimedDisk) -> PagedStorage:
    return PagedStorage(disk, lambda: b"0123456789abcdef", lambda: 0.0, SMALL)


def test_each_sync_is_noted_with_its_duration_and_what_was_stored_is_there() -> None:
    recorded, noted = RecordingDisk(), list[float]()
    ticks = itertools.count()
    storage = _open(TimedDisk(recorded, lambda: float(next(ticks)), noted.append))
    storage.create_queue("q", QueueSettings())
    # The first has keys to be taken as well.
    put(storage, message(10, b"a"))
    noted.clear()
    put(storage, message(10, b"a"))
    put(storage, message(3000, b"b"))
    # One for the small message; pages and log for the large one.
    assert noted == [1.0, 1.0, 1.0]
    storage.close()
    assert [len(payload) for payload in browsed(open_small(recorded))] == [10, 10, 3000]


def test_a_sync_that_fails_is_told_and_not_noted() -> None:
    recorded, noted = RecordingDisk(), list[float]()
    storage = _open(TimedDisk(recorded, lambda: 0.0, noted.append))
    storage.create_queue("q", QueueSettings())
    noted.clear()
    recorded.faults = since(0, Fault.EIO, "sync")
    with pytest.raises(StorageFailed):
        put(storage, message(10))
    assert noted == []
