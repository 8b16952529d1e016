"""Damaged files of a paged storage, and the judge of what it makes of them.

A storage on damaged files says exactly what it said before, or refuses: with `Corruption` or
`WrongFormat`, with the name of the file, and with an offset where there is one. When it refuses to
open, not a byte was changed. Silent damage is none of these: something else is shown.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from mqserver.errors import Corruption, StorageError, WrongFormat
from mqserver.storage.file_manager import DATA_NAME
from mqserver.storage.format import (
    BLOCK_BYTES,
    BLOCK_HEADER,
    CONTENT_BYTES,
    PAGE_HEADER,
    blank_blocks,
    segment_name,
)
from mqserver.storage.log_manager import CONTROL_NAME, LogManager
from mqserver.storage.paged import PagedStorage
from tests.crash import paged_work
from tests.crash.damage import (
    Damage,
    Image,
    cut_files,
    flipped_bytes,
    removed_files,
    replaced_files,
    swapped_files,
    zeroed_sectors,
)
from tests.crash.paged_oracle import View, Violation, difference, view_of
from tests.crash.paged_scenarios import traced
from tests.crash.paged_work import open_storage
from tests.crash.recording_disk import RecordingDisk
from tests.crash.trace import SECTOR_BYTES

CUT_STEP = 192

_FILE = r"\b(control|data|log-[0-9a-f]{16})\b"


class Patient(NamedTuple):
    """The files of a store, the branches it knows, all that it shows, and the key it gives next."""

    image: Image
    known: list[bytes]
    view: View
    next_key: int


def patient(name: str, seed: int, is_closed: bool) -> Patient:
    """A store after a scenario: closed in good order, or as a power cut leaves it."""
    work = traced(name, seed)
    if is_closed:
        work.close()
    image = work.disk.image()
    storage = open_storage(RecordingDisk(image))
    known = list(storage._index.outcomes)
    return Patient(image, known, view_of(storage, known), storage._next_key)


def stranger() -> Image:
    """The files of another store."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(paged_work, "IDENTITY", b"another of tests")
        return traced("moving").disk.image()


# --- Damages -------------------------------------------------------------------------------------


def damages(image: Image, foreign: Image, byte_step: int) -> Iterator[Damage]:
    """Every kind of damage, one at a time."""
    control = {CONTROL_NAME: image[CONTROL_NAME]}
    for each in itertools.chain(
        flipped_bytes(control, step=5, mask=0x01), flipped_bytes(image, byte_step, mask=0xFF)
    ):
        yield Damage(each.what, {**image, **each.files})
    yield from flipped_headers(image)
    yield from zeroed_sectors(image)
    yield from cut_files(image, CUT_STEP)
    yield from removed_files(image)
    yield from swapped_files(image)
    yield from replaced_files(image, foreign)


def flipped_headers(image: Image) -> Iterator[Damage]:
    """A byte of the header of a block or page is another: what is read next depends on these."""
    for name, data in image.items():
        size = PAGE_HEADER.size if name == DATA_NAME else BLOCK_HEADER.size
        for start in range(0, 0 if name == CONTROL_NAME else len(data), SECTOR_BYTES):
            for place in range(start, start + size, 4):
                changed = data[:place] + bytes([data[place] ^ 0x01]) + data[place + 1 :]
                yield Damage(f"byte {place} of {name} flipped", {**image, name: changed})


def lost_blocks(image: Image) -> Iterator[Damage]:
    """A block of the log is blank, as if it had never been written.

    Only those that something else declares to be synced: all of them, after an orderly close. Of
    the last ones otherwise nobody can tell whether they ever were.
    """
    log = LogManager.examine(RecordingDisk(image))
    seed = log.control.seed
    vouched = log._synced if log.control.end_lsn else log._doubtful
    assert vouched is not None
    for number in range(log.control.restart_lsn // CONTENT_BYTES, vouched):
        first = log._segments.first_of(number)
        name, start = segment_name(first), (number - first) * BLOCK_BYTES
        data = image[name]
        changed = data[:start] + blank_blocks(seed, number, 1) + data[start + BLOCK_BYTES :]
        yield Damage(f"block {number} of the log lost", {**image, name: changed})


# --- The judge -----------------------------------------------------------------------------------


def judge_damage(damage: Damage, sound: Patient) -> None:
    """Raises `Violation` if the damage is silent, or badly told."""
    disk = damage.disk()
    try:
        storage = open_storage(disk)
    except StorageError as refusal:
        _judge_refusal(refusal, damage)
        if disk.trace.entries:
            raise Violation(f"files that were refused were changed: {damage.what}") from refusal
    else:
        _judge_shown(storage, damage, sound)


def judge_open_damage(damage: Damage, sound: Patient) -> None:
    """The same for a byte that turns while the store is open."""
    disk = RecordingDisk(sound.image)
    storage = open_storage(disk)
    _turn(disk, damage)
    _judge_shown(storage, damage, sound)
    try:
        storage.checkpoint()
    except Corruption as refusal:
        _judge_refusal(refusal, damage)
    # No payload was moved to where its damage has a right checksum.
    again = RecordingDisk(disk.image())
    try:
        _judge_shown(open_storage(again), damage, sound)
    except StorageError as refusal:
        _judge_refusal(refusal, damage)


def _judge_shown(storage: PagedStorage, damage: Damage, sound: Patient) -> None:
    try:
        found = view_of(storage, sound.known)
    except Corruption as refusal:
        _judge_refusal(refusal, damage)
        return
    if found != sound.view:
        raise Violation(f"{damage.what} is silent: {difference(found, sound.view)}")
    if storage._next_key < sound.next_key:
        raise Violation(f"{damage.what} is silent: keys may be given again")


def _judge_refusal(refusal: StorageError, damage: Damage) -> None:
    # Where a file is cut off, is gone or is another one there may be no offset.
    has_offset = damage.what.endswith(("flipped", "zeroed", "lost"))
    pattern = f"{_FILE}, offset [0-9]+" if has_offset else _FILE
    is_kind = isinstance(refusal, Corruption | WrongFormat)
    if not is_kind or not re.search(pattern, str(refusal)):
        raise Violation(f"{damage.what} is told so: {refusal!r}") from refusal


def _turn(disk: RecordingDisk, damage: Damage) -> None:
    """The byte turns on the disk, below all that the storage knows."""
    found = re.fullmatch(r"byte (\d+) of (.*) flipped", damage.what)
    assert found is not None
    place, name = int(found[1]), found[2]
    data = bytearray(disk._files[name].data)
    data[place] = damage.files[name][place]
    disk._files[name].data = data
