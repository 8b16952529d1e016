"""Small paged storages on a disk in memory, and short words for what is done to them."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable

from mqserver.storage.contract import EVERYTHING, NewMessage
from mqserver.storage.disk import RealDisk
from mqserver.storage.file_manager import DATA_NAME
from mqserver.storage.format import is_segment_name
from mqserver.storage.paged import PagedSettings, PagedStorage
from tests.conformance.paged_storages import SMALL, durable_image
from tests.crash.faults import Fault, Operation
from tests.crash.recording_disk import RecordingDisk

LARGE_BYTES = 3000


def open_small(disk: RecordingDisk | RealDisk, settings: PagedSettings = SMALL) -> PagedStorage:
    """The storage on this disk, small unless settings say otherwise."""
    return PagedStorage(disk, lambda: b"0123456789abcdef", time.monotonic, settings)


def message(size: int, letter: bytes = b"x") -> NewMessage:
    """A message that is one letter over and over."""
    return NewMessage(letter * size, zlib.crc32(letter * size))


def put(storage: PagedStorage, *messages: NewMessage) -> range:
    """The messages are in the queue, by a branch of their own."""
    branch = os.urandom(8)
    keys = storage.store(branch, "q", messages)
    storage.commit_one_phase(branch)
    return keys


def put_many(storage: PagedStorage, count: int) -> None:
    """So many messages are in the queue, one by one."""
    for _ in range(count):
        put(storage, message(300))


def take(storage: PagedStorage, count: int) -> list[bytes]:
    """The next messages are gone; their payloads."""
    branch = os.urandom(8)
    messages = storage.take(branch, "q", EVERYTHING, count)
    storage.commit_one_phase(branch)
    return [message.payload for message in messages]


def browsed(storage: PagedStorage) -> list[bytes]:
    """The payloads of all messages that are free."""
    return [message.payload for message in storage.browse("q", EVERYTHING, 0, 10_000)]


def after_power_cut(disk: RecordingDisk) -> RecordingDisk:
    """The disk as a power cut leaves it when nothing arrives that was not synced."""
    return RecordingDisk(durable_image(disk.trace))


def log_bytes(disk: RecordingDisk) -> int:
    """How many bytes the segments have."""
    return sum(len(data) for name, data in disk.image().items() if is_segment_name(name))


def data_bytes(disk: RecordingDisk) -> int:
    """How many bytes the data file has."""
    return len(disk.image()[DATA_NAME])


def on(kind: str, name: str, fault: Fault) -> Callable[[Operation], Fault | None]:
    """Such an operation on such a file has the fault."""
    return lambda o: fault if (o.kind, o.name) == (kind, name) else None
