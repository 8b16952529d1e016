"""Small logs on a disk in memory, and short words for what is done to them."""

from __future__ import annotations

from mqserver.storage.format import Control, RecordKind
from mqserver.storage.log_manager import LogManager
from tests.conformance.paged_storages import durable_image
from tests.crash.recording_disk import RecordingDisk

BLOCKS = 4
CONTROL = Control(1024, b"identity of log!", BLOCKS)
KIND = RecordKind.COMMITTED


def after_power_cut(disk: RecordingDisk) -> RecordingDisk:
    """The disk with what was on it for good."""
    return RecordingDisk(durable_image(disk.trace))


def bodies_of(log: LogManager, lsn: int = 0) -> list[bytes]:
    """What the records from this place on say."""
    return [record.body for record in log.records(lsn)]


def filled(log: LogManager) -> list[int]:
    """Records of a block each, two segments full of them and some more."""
    lsns = []
    for number in range(2 * BLOCKS + 2):
        lsns.append(log.append(KIND, b"%d" % number))
        log.force(lsns[-1])
    return lsns
