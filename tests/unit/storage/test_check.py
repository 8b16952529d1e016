"""The examination of a store: what it tells of a sound one, and that no damage hides another.

That damage anywhere is found, and that a crash is none, is shown in `tests/crash`.
"""

from __future__ import annotations

import os
import time
import zlib
from functools import partial
from pathlib import Path

import pytest

from mqserver.errors import Corruption, StorageLocked, WrongFormat
from mqserver.storage.check import Report, check
from mqserver.storage.contract import EVERYTHING, NewMessage, Outcome, QueueSettings
from mqserver.storage.disk import RealDisk
from mqserver.storage.dump import dump
from mqserver.storage.file_manager import DATA_NAME
from mqserver.storage.format import (
    BLOCK_BYTES,
    CONTENT_BYTES,
    SLOT_DISTANCE,
    VERSIONS_READ,
    Control,
    RecordKind,
    decode_control,
    encode_control,
    is_segment_name,
    pack_body,
    segment_name,
)
from mqserver.storage.log_manager import CONTROL_NAME, CONTROL_NEW_NAME, LogManager
from mqserver.storage.paged import PagedStorage
from mqserver.storage.segments import NEW_NAME
from tests.conformance.paged_storages import SMALL
from tests.crash.faults import Fault, Operation
from tests.crash.recording_disk import RecordingDisk, RecordingFile
from tests.unit.storage.test_format import golden_image

IDENTITY = b"0123456789abcdef"
LARGE_BYTES = 3000
Image = dict[str, bytes]


def _open(disk: RecordingDisk | RealDisk) -> PagedStorage:
    return PagedStorage(disk, lambda: IDENTITY, time.monotonic, SMALL)


def _message(text: bytes, size: int = 0) -> NewMessage:
    payload = text.ljust(size, b".")
    return NewMessage(payload, zlib.crc32(payload))


def _put(storage: PagedStorage, queue: str, *messages: NewMessage) -> None:
    branch = os.urandom(8)
    storage.store(branch, queue, messages)
    storage.commit_one_phase(branch)


def _fill(storage: PagedStorage) -> None:
    """Messages in bundles, in runs of their own and in the log; a branch in doubt; a consumer."""
    storage.create_queue("orders", QueueSettings())
    storage.create_queue("bills", QueueSettings(prioritized=True))
    _put(storage, "orders", *(_message(b"small %d" % number, 300) for number in range(60)))
    _put(storage, "orders", _message(b"large", LARGE_BYTES))
    storage.checkpoint()
    _put(storage, "orders", _message(b"late and large", LARGE_BYTES))
    storage.store(b"in doubt", "bills", [_message(b"stored")])
    storage.take(b"in doubt", "orders", EVERYTHING, 2)
    storage.prepare(b"in doubt", b"whom to ask")
    storage.reserve("etl", "orders", EVERYTHING, 0, 3)
    _put(storage, "bills", _message(b"a bill"))


@pytest.fixture(scope="module")
def sound() -> Image:
    """The files of a store that was closed in good order."""
    disk = RecordingDisk()
    storage = _open(disk)
    _fill(storage)
    storage.close()
    return disk.image()


def _check(image: Image) -> Report:
    disk = RecordingDisk(image)
    report = check(disk)
    assert disk.operations == 0
    return report


def _flipped(image: Image, name: str, offset: int) -> Image:
    data = image[name]
    return image | {name: data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]}


def _control(image: Image) -> Control:
    slots = [decode_control(image[CONTROL_NAME][at:]) for at in (0, SLOT_DISTANCE)]
    return max((slot for slot in slots if isinstance(slot, Control)), key=lambda s: s.sequence)


def _segments(image: Image) -> list[str]:
    return sorted(filter(is_segment_name, image))


def _block_behind_restart(image: Image) -> tuple[str, int]:
    """Where the second block is that a restart reads: segment and offset."""
    number = _control(image).restart_lsn // CONTENT_BYTES + 1
    position = number % SMALL.segment_blocks
    return segment_name(number - position), position * BLOCK_BYTES


def _current(image: Image) -> str:
    """The segment that was written last."""
    last = _control(image).end_lsn // CONTENT_BYTES - 1
    return segment_name(last - last % SMALL.segment_blocks)


def _told(report: Report) -> list[str]:
    return [f"{finding.place}: {finding.what}" for finding in report.damage]


# --- A sound store


def test_a_sound_store_is_described(sound: Image) -> None:
    report = _check(sound)
    assert report.is_sound
    assert not report.findings
    assert not report.unexamined
    assert report.refusal == ""
    assert report.control == _control(sound)
    assert report.log is not None
    assert report.log.segments == len(_segments(sound))
    assert report.log.end_lsn == report.control.end_lsn
    assert report.log.records["PREPARED"] == report.log.records["RESERVED"] == 1
    queues = {info.name: (info.visible, info.locked) for info in report.queues}
    assert queues == {"orders": (57, 5), "bills": (1, 1)}
    [branch] = report.branches
    assert (branch.branch, branch.outcome, branch.stored, branch.taken) == (
        b"in doubt",
        Outcome.PREPARED,
        1,
        2,
    )
    assert [(known.consumer, known.messages) for known in report.consumers] == [("etl", 3)]


def test_pages_in_use_and_free_pages_are_all_there_are(sound: Image) -> None:
    pages = _check(sound).pages
    assert pages is not None
    assert (pages.used, pages.free) == (pages.total, 0)
    assert pages.total * pages.page_bytes == len(sound[DATA_NAME])


def test_a_store_that_was_not_closed_is_sound() -> None:
    disk = RecordingDisk()
    _fill(_open(disk))
    report = _check(disk.image())
    assert report.is_sound
    assert report.control is not None
    assert report.control.end_lsn == 0


@pytest.mark.parametrize("version", VERSIONS_READ)
def test_the_golden_store_is_sound(version: int) -> None:
    report = _check(golden_image(version))
    assert report.is_sound
    assert report.format_version == version


def test_files_of_others_and_leftovers_are_noticed_and_harmless(sound: Image) -> None:
    old = "log-" + "0" * 16
    more = {NEW_NAME: b"half", CONTROL_NEW_NAME: b"", "notes.txt": b"milk", old: b"old"}
    report = _check(sound | more)
    assert report.is_sound
    assert {finding.file for finding in report.findings} == set(more)


def test_a_coordinators_log_is_examined_as_far_as_it_goes() -> None:
    disk = RecordingDisk()
    log = LogManager.create(disk, Control(4096, IDENTITY, 16))
    for _ in range(3):
        log.force(log.append(RecordKind.INCARNATION, pack_body((1, b"secret"))))
    log.close()
    report = _check(disk.image())
    assert report.is_sound
    assert report.has_decisions
    assert report.log is not None
    assert report.log.records == {"INCARNATION": 3}
    [name, *_] = _segments(disk.image())
    [told] = _told(_check(_flipped(disk.image(), name, BLOCK_BYTES + 40)))
    assert f"{name}, offset {BLOCK_BYTES}, LSN {CONTENT_BYTES}" in told


# --- Damage


def test_no_damage_hides_another(sound: Image) -> None:
    control = _control(sound)
    inside, offset = _block_behind_restart(sound)
    spare = _segments(sound)[-1]
    page = control.page_bytes
    image = _flipped(sound, inside, offset + 100)
    image = _flipped(image, spare, 100)
    image = _flipped(image, DATA_NAME, 100)
    image = _flipped(image, DATA_NAME, 4 * page + 100)
    image = _flipped(image, CONTROL_NAME, SLOT_DISTANCE * (1 - control.sequence % 2) + 40)
    report = _check(image)
    places = {(finding.file, finding.offset) for finding in report.damage}
    assert places >= {
        (CONTROL_NAME, SLOT_DISTANCE * (1 - control.sequence % 2)),
        (inside, offset),
        (spare, 0),
        (DATA_NAME, 0),
        (DATA_NAME, 4 * page),
    }
    assert report.refusal.startswith(CONTROL_NAME)
    assert report.unexamined


def test_a_damaged_payload_is_named_and_keeps_no_server_from_starting(sound: Image) -> None:
    report = _check(_flipped(sound, DATA_NAME, len(sound[DATA_NAME]) - 1))
    [finding] = report.damage
    assert finding.offset == len(sound[DATA_NAME]) - SMALL.page_bytes
    assert "message 62 of queue 'orders'" in finding.what
    assert "A server starts" in finding.advice
    assert report.refusal == ""
    assert {info.name for info in report.queues} == {"orders", "bills"}


def test_a_damaged_spare_can_be_moved_away_as_is_advised(sound: Image) -> None:
    spare = _segments(sound)[-1]
    report = _check(_flipped(sound, spare, 100))
    [finding] = report.damage
    assert "move this file away" in finding.advice
    del (image := dict(sound))[spare]
    assert _check(image).is_sound
    _open(RecordingDisk(image)).close()


def test_the_only_spare_is_not_advised_to_be_moved_away(sound: Image) -> None:
    names = _segments(sound)
    spare, *rest = names[names.index(_current(sound)) + 1 :]
    only = {name: data for name, data in sound.items() if name not in rest}
    assert _check(only).is_sound
    [finding] = _check(_flipped(only, spare, 100)).damage
    assert "move this file away" not in finding.advice


@pytest.mark.parametrize("name", [CONTROL_NAME, DATA_NAME, "the first segment"])
def test_a_file_that_the_device_does_not_give_out_is_told_in_few_words(
    name: str, sound: Image
) -> None:
    name = name if name in sound else _segments(sound)[0]
    report = check(RecordingDisk(sound, partial(_unreadable, name)))
    assert report.refusal
    # One for a segment, one for each slot of the control record and each run of the data file.
    assert 1 <= len([finding for finding in report.damage if finding.file == name]) <= 4


def _unreadable(name: str, operation: Operation) -> Fault | None:
    return Fault.EIO if (operation.kind, operation.name) == ("read", name) else None


def test_a_block_that_the_device_does_not_give_out_is_found(
    sound: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, offset = _block_behind_restart(sound)
    read = RecordingFile.read

    def read_elsewhere(file: RecordingFile, at: int, size: int) -> bytes:
        if file.description.endswith(name) and at <= offset < at + size:
            raise Corruption(file.description, f"offset {offset}", "broken")
        return read(file, at, size)

    monkeypatch.setattr(RecordingFile, "read", read_elsewhere)
    [finding] = _check(sound).damage
    assert (finding.file, finding.offset) == (name, offset)
    assert "not to be had from the device, inside the log" in finding.what


def test_what_stands_before_the_restart_is_not_needed(sound: Image) -> None:
    name, offset = _block_behind_restart(sound)
    assert offset > BLOCK_BYTES
    image = _flipped(sound, name, 100)
    report = _check(image)
    assert report.is_sound
    [notice] = report.findings
    assert (notice.file, notice.offset) == (name, 0)
    _open(RecordingDisk(image)).close()


@pytest.mark.parametrize("slot", [0, 1])
def test_a_store_of_another_version_is_not_touched(slot: int, sound: Image) -> None:
    data = bytearray(sound[CONTROL_NAME])
    at = slot * SLOT_DISTANCE
    decoded = decode_control(bytes(data[at:]))
    assert isinstance(decoded, Control)
    encoded = bytearray(encode_control(decoded))
    encoded[8] = 9
    encoded[-4:] = zlib.crc32(encoded[:-4]).to_bytes(4, "little")
    data[at : at + len(encoded)] = encoded
    with pytest.raises(WrongFormat, match="version 9"):
        check(RecordingDisk(sound | {CONTROL_NAME: bytes(data)}))


def test_nothing_more_is_said_where_no_slot_is_whole(sound: Image) -> None:
    report = _check(sound | {CONTROL_NAME: bytes(4608)})
    assert [finding.offset for finding in report.damage] == [0, SLOT_DISTANCE]
    assert report.control is None
    assert report.refusal
    assert report.unexamined == ["the log and the data file"]


def test_a_lost_control_record_is_damage(sound: Image) -> None:
    del (image := dict(sound))[CONTROL_NAME]
    assert _told(_check(image)) == ["control: is missing"]


@pytest.mark.parametrize("image", [{}, {"notes.txt": b"milk"}, {DATA_NAME: b""}])
def test_where_no_store_is_none_is_examined(image: Image) -> None:
    with pytest.raises(WrongFormat):
        check(RecordingDisk(image))


# --- Files that are whole and were written by nobody we know


def _forged(kind: RecordKind, body: bytes) -> Image:
    """A store whose last record has this body, and all checksums are right."""
    disk = RecordingDisk()
    storage = _open(disk)
    storage.create_queue("orders", QueueSettings())
    storage.close()
    log = LogManager.open(disk)
    log.append(kind, body)
    log.close()
    return disk.image()


FORGERIES = {
    "a body that ends early": (RecordKind.COMMITTED, b"\xff\xff"),
    "a branch of nothing": (RecordKind.COMMITTED, pack_body(())),
    "columns of unequal length": (
        RecordKind.COMMITTED,
        pack_body((b"b", b"", [("orders", ([1], [2, 3], [4], *[None] * 6))], [], [], 0)),
    ),
    "a payload that is missing": (
        RecordKind.COMMITTED,
        pack_body((b"b", b"", [("orders", ([1], [2], [4], *[None] * 6))], [], [], 0)),
    ),
    "a key that is a text": (
        RecordKind.COMMITTED,
        pack_body((b"b", b"", [("orders", (["x"], [0], [0], *[None] * 6))], [], [], 0)),
    ),
    "a run that does not exist": (
        RecordKind.COMMITTED,
        pack_body((b"b", b"", [("orders", ([1], [9000], [0], *[None] * 5, [2**40]))], [], [], 0)),
    ),
    "a key beyond all that were given": (
        RecordKind.COMMITTED,
        pack_body((b"b", b"", [("orders", ([2**50], [0], [0], *[None] * 6))], [], [], 0)),
    ),
    "a queue without settings": (RecordKind.QUEUE_SET, pack_body(("q",))),
    "a reservation of what is not there": (
        RecordKind.RESERVED,
        pack_body(("etl", "orders", 1, [5])),
    ),
    "a number where a list belongs": (RecordKind.FINISHED, pack_body(("etl", "orders", 1, 5))),
    "an outcome that is none": (RecordKind.RESOLVED, pack_body((b"b", 99, b"", 0, 0))),
    "a decision among messages": (RecordKind.DECISION, pack_body((b"gtrid",))),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_nonsense_with_right_checksums_is_damage(forgery: str) -> None:
    assert _check(_forged(*FORGERIES[forgery])).damage


# --- On a real disk


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store in a directory."""
    storage = _open(RealDisk(tmp_path / "store", create=True))
    _fill(storage)
    storage.close()
    return tmp_path / "store"


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def _statuses(directory: Path) -> dict[str, tuple[int, ...]]:
    """All that the kernel says of the files and the directory, times of access among it."""
    statuses = {path.name: path.stat() for path in [directory, *directory.iterdir()]}
    return {
        name: (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_mode, s.st_ino)
        for name, s in statuses.items()
    }


def _age(directory: Path) -> None:
    """The files have times that reading them would change."""
    for path in [*directory.iterdir(), directory]:
        os.utime(path, (946_684_800, 946_684_801))


def test_nothing_of_a_store_is_changed_not_even_a_time(directory: Path) -> None:
    contents = _contents(directory)
    _age(directory)
    statuses = _statuses(directory)
    disk = RealDisk(directory, read_only=True)
    assert check(disk).is_sound
    assert list(dump(disk, has_payloads=True))
    disk.close()
    assert _statuses(directory) == statuses
    assert _contents(directory) == contents


def test_a_directory_that_cannot_be_written_is_examined(directory: Path) -> None:
    (directory / "lock").unlink()
    directory.chmod(0o500)
    assert check(RealDisk(directory, read_only=True)).is_sound
    assert not (directory / "lock").exists()
    directory.chmod(0o700)


@pytest.mark.parametrize("name", ["data", "control", "log-0000000000000020"])
def test_a_pipe_or_a_link_in_place_of_a_file_is_damage(name: str, directory: Path) -> None:
    path = directory / name
    path.rename(directory.parent / "moved")
    os.mkfifo(path, 0o600)
    report = check(RealDisk(directory, read_only=True))
    assert "is not a plain file" in " ".join(_told(report))
    assert report.refusal
    path.unlink()
    path.symlink_to(directory.parent / "moved")
    assert "is a symbolic link" in " ".join(_told(check(RealDisk(directory, read_only=True))))


def test_a_store_that_is_open_is_not_examined(directory: Path) -> None:
    storage = _open(RealDisk(directory))
    with pytest.raises(StorageLocked, match=str(os.getpid())):
        check(RealDisk(directory, read_only=True))
    storage.close()
    assert check(RealDisk(directory, read_only=True)).is_sound
