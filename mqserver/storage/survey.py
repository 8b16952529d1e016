"""The files of a store as they are: control record, segments and records, read without trust.

The managers stop at the first damage, as they must. Whoever examines a store wants to know of all
of it, so this reader notes damage and goes on behind it. It judges by the rules of `segments.py`
and `log_manager.py`, knows no messages, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mqserver.errors import StorageError, WrongFormat
from mqserver.storage.disk import Disk, File
from mqserver.storage.findings import BACKUP, RESTORE, Notes, told
from mqserver.storage.format import (
    BLOCK_BYTES,
    CONTENT_BYTES,
    CONTROL_SLOT,
    PAGE_HEADER,
    SLOT_DISTANCE,
    Block,
    Control,
    Record,
    decode_block,
    decode_control,
    is_segment_name,
    segment_name,
)
from mqserver.storage.log_manager import CONTROL_NAME
from mqserver.storage.record_stream import Cell, RecordStream
from mqserver.storage.segments import SCAN_BLOCKS

NOT_WHOLE = "not whole"
NOT_READ = "not to be had from the device"
MOVE_AWAY = "Nothing is lost: move this file away, and a server will make another spare."

# --- The control record --------------------------------------------------------------------------


def survey_slots(disk: Disk, notes: Notes) -> list[Control | None]:
    """Both slots of the control record, None for one that is not whole.

    Raises `WrongFormat` for one that is whole and of another version.
    """
    if not disk.exists(CONTROL_NAME):
        notes.damage(CONTROL_NAME, "is missing", BACKUP)
        return [None, None]
    try:
        file = disk.open(CONTROL_NAME)
    except StorageError as refused:
        notes.damage(CONTROL_NAME, f"cannot be opened: {told(refused)}", BACKUP)
        return [None, None]
    try:
        slots = [_survey_slot(file, at, notes) for at in (0, SLOT_DISTANCE)]
    finally:
        file.close()
    first, second = slots
    if first and second and not _belong_together(first, second):
        notes.damage(CONTROL_NAME, "its two slots do not belong together")
    return slots


def _survey_slot(file: File, at: int, notes: Notes) -> Control | None:
    room = SLOT_DISTANCE if at == 0 else BLOCK_BYTES
    try:
        data = file.read(at, room)
    except StorageError as refused:
        notes.damage(CONTROL_NAME, f"the slot cannot be read: {told(refused)}", offset=at)
        return None
    match decode_control(data[: CONTROL_SLOT.size]):
        case Control() as control if _is_possible(control):
            if len(data) != room or any(data[CONTROL_SLOT.size :]):
                notes.notice(CONTROL_NAME, "what follows the slot is not the zeros it was", at)
            return control
        case int() as version:
            raise WrongFormat(f"{CONTROL_NAME}: version {version}")
    what = "the slot is not whole; all else is judged by the other one, which may be older"
    notes.damage(CONTROL_NAME, what, offset=at)
    return None


def _is_possible(control: Control) -> bool:
    return control.segment_blocks > 0 and control.page_bytes > PAGE_HEADER.size


def _belong_together(one: Control, other: Control) -> bool:
    return one.identity == other.identity and abs(one.sequence - other.sequence) == 1


# --- Segments ------------------------------------------------------------------------------------


class SegmentFile(NamedTuple):
    """A segment: its name, its first block, and how many bytes it has."""

    name: str
    first: int
    size: int


class LogSurvey:
    """The segments of a log, and through `records` all records that can still be read.

    Where the log ends, and what is wrong with its blocks, is known when `records` has been read.
    """

    def __init__(self, disk: Disk, control: Control, notes: Notes) -> None:
        self._disk = disk
        self._control = control
        self._notes = notes
        self._blocks = control.segment_blocks
        self._restart_block = control.restart_lsn // CONTENT_BYTES
        self._oldest = self._first_of(self._restart_block)
        self.leftovers: list[str] = []
        self.segments = self._list()
        self.end_block = self._restart_block
        self._has_ended = False
        self._epoch = 0
        # The segment that was last said to hold blocks of another, and whether a promise is broken.
        self._strange = ""
        self._is_broken = False
        self._bad: list[Cell] = []

    @property
    def end_lsn(self) -> int:
        """Where the log ends."""
        return self.end_block * CONTENT_BYTES

    def _first_of(self, block: int) -> int:
        return block - block % self._blocks

    # --- Files

    def _list(self) -> list[SegmentFile]:
        found = {}
        for name in filter(is_segment_name, self._disk.names()):
            segment = self._measure(name)
            if segment is not None:
                found[segment.first] = segment
        self._check_contiguous(sorted(found))
        return [found[first] for first in sorted(found)]

    def _measure(self, name: str) -> SegmentFile | None:
        try:
            first = int(name.removeprefix("log-"), 16)
        except ValueError:
            first = -1
        if first < 0 or segment_name(first) != name:
            self._notes.damage(name, "is not the name of a segment", "Move this file away.")
            return None
        if first < self._oldest:
            self.leftovers.append(name)
            return None
        try:
            file = self._disk.open(name)
        except StorageError as refused:
            self._notes.damage(name, f"cannot be opened: {told(refused)}")
            return None
        size = file.size()
        file.close()
        wanted = self._blocks * BLOCK_BYTES
        if size != wanted:
            self._notes.damage(name, f"has {size} bytes, not {wanted}", offset=min(size, wanted))
        return SegmentFile(name, first, size)

    def _check_contiguous(self, firsts: list[int]) -> None:
        expected = self._oldest
        for first in firsts or [self._oldest + self._blocks]:
            if first > expected:
                self._tell_missing(expected, first)
            elif first < expected:
                self._notes.damage(segment_name(first), "begins inside another segment")
            expected = first + self._blocks

    def _tell_missing(self, first: int, end: int) -> None:
        count = -(-(end - first) // self._blocks)
        others = f", and {count - 1} more behind it" if count > 1 else ""
        name = segment_name(first)
        self._notes.damage(name, f"is missing{others}", lsn=first * CONTENT_BYTES)

    # --- Blocks

    def _cells(self) -> Iterator[Cell]:
        """All places, segment by segment; one stands for all of a gap."""
        expected = self._oldest
        for segment in self.segments:
            if segment.first > expected:
                yield Cell(segment.name, 0, expected, None)
            file = self._disk.open(segment.name)
            try:
                yield from self._cells_of(segment, file)
            finally:
                file.close()
            expected = segment.first + self._blocks

    def _cells_of(self, segment: SegmentFile, file: File) -> Iterator[Cell]:
        for position in range(0, self._blocks, SCAN_BLOCKS):
            count = min(SCAN_BLOCKS, self._blocks - position)
            for place, data in self._read(file, position * BLOCK_BYTES, count):
                block = decode_block(self._control.seed, data) if data is not None else None
                fault = NOT_READ if data is None else NOT_WHOLE
                is_told = block is not None or (data is not None and len(data) < BLOCK_BYTES)
                number = segment.first + place // BLOCK_BYTES
                yield Cell(segment.name, place, number, block, "" if is_told else fault)

    def _read(self, file: File, offset: int, count: int) -> Iterator[tuple[int, bytes | None]]:
        """Offset and bytes of each block; None for what the device does not give out."""
        places = range(offset, offset + count * BLOCK_BYTES, BLOCK_BYTES)
        try:
            data = file.read(offset, count * BLOCK_BYTES)
        except StorageError:
            if count == 1:
                yield offset, None
            else:
                for place in places:
                    yield from self._read(file, place, 1)
            return
        for place in places:
            yield place, data[place - offset : place - offset + BLOCK_BYTES]

    # --- Records

    def records(self) -> Iterator[Record]:
        """All records that can be read, from the restart to the end of the log."""
        stream = RecordStream(self._control.restart_lsn, self._notes)
        for cell in self._cells():
            if cell.block is None:
                self._note_bad(cell)
                if cell.number >= self._restart_block or not cell.fault:
                    stream.skip()
            elif cell.number < self._restart_block:
                self._tell_bad("")
            elif not self._has_ended and self._is_later(cell, cell.block):
                self._tell_bad("inside the log, and what it held is lost")
                self._follow(cell, cell.block)
                yield from stream.feed(cell, cell.block)
            else:
                self._end()
                self._check_behind(cell, cell.block)
        self._end()
        self._check_end(stream)

    def _is_later(self, cell: Cell, block: Block) -> bool:
        return block.number == cell.number and block.epoch >= max(self._epoch, 1)

    def _follow(self, cell: Cell, block: Block) -> None:
        if block.epoch > max(self._epoch, self._control.epoch):
            what = f"the block was written in epoch {block.epoch}, of the future"
            self._tell_block(cell, what)
        self._epoch = block.epoch
        self.end_block = cell.number + 1

    def _end(self) -> None:
        where = "in a part of the log that holds nothing"
        if not self._has_ended:
            where = "at the end of the log, where the latest was written"
            self._has_ended = True
        self._tell_bad(where)

    def _check_behind(self, cell: Cell, block: Block) -> None:
        """What stands behind the end is old, or blank, or was never promised to anybody."""
        if block.number != cell.number and block.number >= self._oldest:
            if self._strange != cell.segment:
                self._strange = cell.segment
                self._tell_block(cell, f"this is block {block.number}, which belongs elsewhere")
        elif self._is_later(cell, block) and block.synced > self.end_block and not self._is_broken:
            self._is_broken = True
            first = self._first_of(self.end_block)
            self._notes.damage(
                segment_name(first),
                f"the block is missing: block {cell.number} says that it was synced",
                offset=(self.end_block - first) * BLOCK_BYTES,
                lsn=self.end_lsn,
            )

    def _check_end(self, stream: RecordStream) -> None:
        behind = self._first_of(max(self.end_block - 1, 0)) + self._blocks
        if self.segments and self.segments[-1].first < behind:
            self._tell_missing(behind, behind + self._blocks)
        closed = self._control.end_lsn
        # Where blocks are damaged, the log seems to end elsewhere, and that has been said.
        if closed and not self._notes.has_damage:
            if closed != self.end_lsn:
                what = f"says the log was closed at LSN {closed}, and it ends at {self.end_lsn}"
                self._notes.damage(CONTROL_NAME, what, lsn=self.end_lsn)
            elif stream.is_within_record:
                self._notes.damage(CONTROL_NAME, "the log was closed within a record", lsn=closed)

    # --- Bad blocks that stand side by side are told together

    def _note_bad(self, cell: Cell) -> None:
        """`cell` is told together with those before it, if they have the same fault."""
        if self._bad and not _is_next(self._bad[-1], cell):
            self._tell_bad("beside others")
        if cell.number == self._restart_block:
            self._tell_bad("")
        if cell.fault:
            self._bad.append(cell)

    def _tell_bad(self, where: str) -> None:
        if not self._bad:
            return
        first, count = self._bad[0], len(self._bad)
        self._bad = []
        what = "the block is" if count == 1 else f"{count} blocks, one behind the other, are"
        if first.number < self._restart_block:
            what = f"{what} {first.fault}, before the restart, where nothing is needed any more"
            self._notes.notice(first.segment, what, first.offset)
        else:
            self._tell_block(first, f"{what} {first.fault}, {where}")

    def _tell_block(self, cell: Cell, what: str) -> None:
        lsn = None if self._has_ended else cell.number * CONTENT_BYTES
        advice = MOVE_AWAY if self._is_needless(cell) else RESTORE
        self._notes.damage(cell.segment, what, advice, cell.offset, lsn)

    def _is_needless(self, cell: Cell) -> bool:
        """Whether the block is in the last of several spares."""
        last = self.segments[-1]
        current = self._first_of(max(self.end_block - 1, 0))
        is_behind_spare = last.first > current + self._blocks
        return self._has_ended and cell.segment == last.name and is_behind_spare


def _is_next(before: Cell, cell: Cell) -> bool:
    is_beside = before.segment == cell.segment and before.offset + BLOCK_BYTES == cell.offset
    return is_beside and before.fault == cell.fault
