"""Records put together from blocks, some of which may be missing: what can be read is read.

The reader of the log manager stops where something is wrong. This one judges by the same rules, but
notes it, leaves the record out, and goes on with the next that begins in a block that is whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mqserver.errors import Corruption
from mqserver.storage.findings import Notes, told
from mqserver.storage.format import (
    CONTENT_BYTES,
    NOWHERE,
    RECORD_HEADER,
    Block,
    Record,
    decode_record,
    record_length,
)


class Cell(NamedTuple):
    """A place for a block, and the block if it is whole.

    `fault` is what is wrong, unless that has been said: that the file is missing, or too short.
    """

    segment: str
    offset: int
    number: int
    block: Block | None
    fault: str = ""


class RecordStream:
    """Puts records together from blocks, and finds the next record behind what is missing."""

    def __init__(self, restart_lsn: int, notes: Notes) -> None:
        self._notes = notes
        self._pending = bytearray()
        self._at = restart_lsn
        self._epoch = 0
        # Where in its first block the restart is; what stands before it is not of interest.
        self._restart = restart_lsn % CONTENT_BYTES
        self._is_lost = False

    @property
    def is_within_record(self) -> bool:
        """Whether a record has begun that has not ended."""
        return bool(self._pending)

    def skip(self) -> None:
        """Something is missing, and the record that was begun is lost."""
        self._pending.clear()
        self._restart = 0
        self._is_lost = True

    def feed(self, cell: Cell, block: Block) -> Iterator[Record]:
        """The records that end in this block."""
        if block.epoch != self._epoch:
            # What a crash left of a record: the next run began with a block of its own.
            self._pending.clear()
        self._epoch = block.epoch
        start = cell.number * CONTENT_BYTES
        entry = 0
        if not self._pending:
            entry = self._entry(cell, block)
            self._at = start + entry
        if entry == NOWHERE:
            return
        self._pending += block.content[entry:]
        first = self._at if self._at >= start else None
        for record in self._whole_records(cell):
            yield record
            first = self._at if first is None else first
        if self._is_lost:
            return
        is_inside = first is not None and first < start + len(block.content)
        expected = first - start if first is not None and is_inside else NOWHERE
        if entry == 0 and expected != block.first:
            self._tell(cell, "the block does not say where its first record begins", start)
        if len(block.content) < CONTENT_BYTES and self._pending:
            self._tell(cell, "the record is cut off", self._at)
            self.skip()

    def _entry(self, cell: Cell, block: Block) -> int:
        """Where in the block to begin, when no record is under way."""
        entry, self._restart = self._restart, 0
        if entry or block.first == 0:
            self._is_lost = False
            return entry
        if not self._is_lost:
            lsn = cell.number * CONTENT_BYTES
            self._tell(cell, "the block does not begin with a record", lsn)
        self._is_lost = block.first == NOWHERE
        return block.first

    def _whole_records(self, cell: Cell) -> Iterator[Record]:
        while len(self._pending) >= RECORD_HEADER.size:
            size = RECORD_HEADER.size + record_length(bytes(self._pending[:4]))
            if len(self._pending) < size:
                break
            try:
                record = decode_record(self._at, bytes(self._pending[:size]))
            except Corruption as broken:
                self._tell(cell, told(broken), self._at)
                self.skip()
                break
            del self._pending[:size]
            self._at += size
            yield record

    def _tell(self, cell: Cell, what: str, lsn: int) -> None:
        self._notes.damage(cell.segment, what, offset=cell.offset, lsn=lsn)
