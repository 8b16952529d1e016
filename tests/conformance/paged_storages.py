"""The paged storage for the one suite: on a disk in memory that loses what was not synced."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path

from mqserver.storage.contract import Storage
from mqserver.storage.paged import PagedSettings, PagedStorage
from tests.conformance.storage_factory import Capability, StorageFactory
from tests.crash.faults import Fault, since
from tests.crash.platter import Platter
from tests.crash.recording_disk import RecordingDisk
from tests.crash.trace import Trace

# Small enough that a few messages fill a segment, and a payload of a kilobyte goes into pages.
SMALL = PagedSettings(
    page_bytes=1024,
    segment_blocks=16,
    large_bytes=600,
    cache_bytes=2000,
    log_bytes_max=20_000,
    waiting_bytes_max=20_000,
    keys_per_block=1000,
    outcomes_kept=StorageFactory.outcomes_kept,
)
# The same, and four messages that one call stores are a parcel.
PARCELS = replace(SMALL, parcel_messages_min=4, parcel_bytes_min=40)
# The same, and those that have fewer bytes are one that rides in the log.
PARCELS_IN_LOG = replace(PARCELS, parcel_bytes_min_in_log=1)


class PagedFactory(StorageFactory):
    """A disk that keeps across a crash what was synced, and nothing else."""

    capabilities = frozenset(
        {Capability.DURABLE, Capability.FILLS, Capability.BREAKS, Capability.DAMAGES}
    )

    def __init__(self, folder: Path) -> None:
        self._disk = RecordingDisk()

    def open(self) -> Storage:
        identities = itertools.count(1)
        return PagedStorage(
            self._disk,
            lambda: next(identities).to_bytes(16, "big"),
            time.monotonic,
            PARCELS_IN_LOG,
        )

    def crash(self) -> None:
        self._disk = RecordingDisk(durable_image(self._disk.trace))

    def fill(self) -> None:
        self._disk.capacity_bytes = sum(map(len, self._disk.image().values()))

    def make_room(self) -> None:
        self._disk.capacity_bytes = RecordingDisk().capacity_bytes

    def break_writes(self) -> None:
        self._disk.faults = since(0, Fault.EIO)

    def damage(self) -> None:
        image = self._disk.image()
        data = bytearray(image["data"])
        # In the middle of one of the payloads, which fill the file.
        data[len(data) // 2] ^= 1
        self._disk = RecordingDisk({**image, "data": bytes(data)})


def durable_image(trace: Trace) -> dict[str, bytes]:
    """The files as a power cut leaves them when nothing arrives that was on its way."""
    platter = Platter(trace.initial)
    for position, entry in enumerate(trace.entries):
        platter.advance(position, entry)
    for change in platter.pending():
        change.is_kept = False
    return {name: left.content() for name, left in platter.image(None)[1].items()}
