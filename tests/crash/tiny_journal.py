"""The smallest storage worth crashing: a journal of payloads, and nine ways to get it wrong.

It is what the crash tools are tried on: right as it stands, it must survive every state that they
find, and with a flaw it must not. `work` is a run that says what it does, and `judge` says whether
what a restart finds is what the run was promised. It is not the log of the product.

    record: length (4), CRC-32 of place, length and payload (4), payload

The record's place is part of its checksum, so that an old record in a new place is none. A journal
ends where no record is. `rewrite` replaces the file by a shorter one, through a second file.
"""

from __future__ import annotations

import enum
import functools
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import cast

from mqserver import errors
from mqserver.storage.disk import Disk, File
from tests.crash.recording_disk import RecordingFile

NAME = "journal"
NEW_NAME = "journal.new"

_HEAD = struct.Struct("<II")

Event = tuple[str, int]
Note = Callable[[Event], None]

REWRITE_AT = 2


class Flaw(enum.Enum):
    """A mistake that people make."""

    NO_SYNC = "nothing is ever synced"
    EARLY_ACK = "acknowledged before it is synced"
    NO_DIRECTORY_SYNC = "the directory is not synced after a file was created"
    NO_DIRECTORY_SYNC_AFTER_RENAME = "the directory is not synced after a file was renamed"
    NO_CHECKSUM = "a record is taken for whole if its length fits"
    EARLY_RENAME = "the new file is renamed before it is synced"
    KEPT_TAIL = "what lies behind the end is left there"
    RETRIED_SYNC = "a sync that failed is tried again"
    SHORT_WRITE = "nobody looks how much was written"


class TinyJournal:
    """Payloads, in order."""

    def __init__(self, disk: Disk, flaw: Flaw | None = None) -> None:
        self._disk = disk
        self._flaw = flaw
        if disk.exists(NEW_NAME):
            disk.remove(NEW_NAME)
        self._name = NAME
        self._file = disk.open(NAME, create=True)
        if flaw is not Flaw.NO_DIRECTORY_SYNC:
            disk.sync_directory()
        self.payloads, self._end = _read(self._file, flaw)
        if self._file.size() > self._end and flaw is not Flaw.KEPT_TAIL:
            self._file.truncate(self._end)
        # What was read may be in the page cache alone, since a process before us was killed.
        self._sync()

    def put(self, payloads: Sequence[bytes], acknowledge: Callable[[], None]) -> None:
        """The payloads are the last ones, and safe; then they are acknowledged."""
        data = _records(self._end, payloads)
        if self._flaw is Flaw.SHORT_WRITE:
            cast(RecordingFile, self._file).write_once(self._end, data)
        else:
            self._file.write(self._end, data)
        if self._flaw is Flaw.EARLY_ACK:
            acknowledge()
        self._sync()
        self._end += len(data)
        self.payloads += payloads
        if self._flaw is not Flaw.EARLY_ACK:
            acknowledge()

    def rewrite(self, payloads: Sequence[bytes]) -> None:
        """These are the payloads, and no others."""
        data = _records(0, payloads)
        self.close()
        self._name = NEW_NAME
        self._file = self._disk.open(NEW_NAME, create=True)
        self._file.write(0, data)
        if self._flaw is not Flaw.EARLY_RENAME:
            self._sync()
        self._disk.rename(NEW_NAME, NAME)
        self._name = NAME
        if self._flaw is not Flaw.NO_DIRECTORY_SYNC_AFTER_RENAME:
            self._disk.sync_directory()
        self._sync()
        self.payloads, self._end = list(payloads), len(data)

    def close(self) -> None:
        """The journal is not used any more."""
        self._file.close()

    def _sync(self) -> None:
        if self._flaw is Flaw.NO_SYNC:
            return
        try:
            self._file.sync()
        except errors.StorageFailed:
            if self._flaw is not Flaw.RETRIED_SYNC:
                raise
            self._file = self._disk.open(self._name)
            self._file.sync()


def payload(number: int) -> bytes:
    """The payload of this number: no two are the same, and some are longer than a sector."""
    size = (30, 700, 5, 1500, 600, 200, 511)[number % 7]
    return struct.pack("<I", number) + bytes((number * 7 + n) % 255 + 1 for n in range(size))


def work(disk: Disk, note: Note, flaw: Flaw | None = None, count: int = 8) -> None:
    """Puts payloads by twos and rewrites the journal halfway; says what is begun and promised."""
    journal = TinyJournal(disk, flaw)
    for number in range(0, count, 2):
        note(("begin", number + 2))
        journal.put(
            [payload(number), payload(number + 1)], functools.partial(note, ("ack", number + 2))
        )
        if number == REWRITE_AT:
            note(("begin rewrite", number))
            journal.rewrite(journal.payloads[number:])
            note(("ack rewrite", number))
    journal.close()


def work_with(disk: Disk, note: Note, flaw: str = "") -> None:
    """A longer `work` whose flaw goes by its name, for those who start it as a program."""
    work(disk, note, Flaw[flaw] if flaw else None, count=14)


def judge(disk: Disk, events: Sequence[Event], flaw: Flaw | None = None) -> str:
    """What is wrong with what a restart finds after these events; empty when nothing is.

    Then a payload takes the place of the first that was not found, and there is a second restart.
    """
    journal = TinyJournal(disk, flaw)
    found = list(journal.payloads)
    said = dict(events)
    firsts = {REWRITE_AT} if "ack rewrite" in said else {0}
    firsts |= {REWRITE_AT} if "begin rewrite" in said else set()
    lasts = range(said.get("ack", 0), said.get("begin", 0) + 1)
    if not any(found == [*map(payload, range(first, last))] for first in firsts for last in lasts):
        journal.close()
        numbers = [int.from_bytes(each[:4], "little") for each in found]
        return f"found {numbers}, promised were {firsts} to {lasts}"
    same_size = bytes(len(payload(max(0, said.get("ack", 0)))))
    journal.put([same_size], lambda: None)
    journal.close()
    journal = TinyJournal(disk, flaw)
    journal.close()
    if journal.payloads != [*found, same_size]:
        return f"{len(journal.payloads)} payloads after one more than {len(found)}"
    return ""


def _records(place: int, payloads: Sequence[bytes]) -> bytes:
    data = b""
    for each in payloads:
        data += _HEAD.pack(len(each), _checksum(place + len(data), each)) + each
    return data


def _checksum(place: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack("<QI", place, len(payload))))


def _read(file: File, flaw: Flaw | None) -> tuple[list[bytes], int]:
    """The payloads up to the first place where there is no record, and that place."""
    data = file.read(0, file.size())
    payloads, place = [], 0
    while place + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, place)
        begin, end = place + _HEAD.size, place + _HEAD.size + length
        payload = data[begin:end]
        is_whole = end <= len(data) and length > 0
        if not is_whole or (flaw is not Flaw.NO_CHECKSUM and checksum != _checksum(place, payload)):
            break
        payloads.append(payload)
        place = end
    return payloads, place
