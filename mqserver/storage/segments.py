"""The files of the log: segments full of blocks, one behind the other, and spares ahead.

Knows blocks and files, no records. What holds:

1. Every block of every segment is whole, from the moment the segment has its name: blank, old, or
   part of the log. One that is not whole is damage, and is refused with file and offset.
2. Behind the segment that is being written there is another one, ready. So a missing segment is
   damage too. There are two, as long as the disk is not full; the first of them is then room to
   take messages out.
3. A segment that is not needed any more becomes a spare under a new name, with its old blocks.
   Their numbers tell that they are old: they come before every block that is needed.
4. Opening changes nothing. What a killed process left behind is removed by `tidy`.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqserver.errors import Corruption, StorageFull
from mqserver.storage.disk import Disk, File
from mqserver.storage.format import (
    BLOCK_BYTES,
    CONTENT_BYTES,
    Block,
    blank_blocks,
    decode_block,
    is_segment_name,
    segment_name,
)

NEW_NAME = "log-new"
SPARES = 2
SPARES_MAX = 4
SCAN_BLOCKS = 512


class Segments:
    """The segments from the oldest that is needed to the spare. Not for several threads at once."""

    def __init__(self, disk: Disk, seed: int, blocks: int) -> None:
        self._disk = disk
        self._seed = seed
        self._blocks = blocks
        self._files: dict[int, File] = {}
        self._leftovers: list[str] = []

    # --- Opening

    def create(self) -> None:
        """The first segments of a new log."""
        for name in self._disk.names():
            if is_segment_name(name) or name == NEW_NAME:
                self._disk.remove(name)
        for position in range(1 + SPARES):
            self._make(position * self._blocks)

    def open(self, restart_block: int) -> None:
        """The segments from the one with this block on; older ones and leftovers stay as yet."""
        oldest = self.first_of(restart_block)
        for name in self._disk.names():
            if name == NEW_NAME:
                self._leftovers.append(name)
            elif is_segment_name(name):
                self._open_one(name, oldest)
        self._check_contiguous(oldest)

    def tidy(self, current: int) -> None:
        """What the opening found and nobody needs is gone. `current` will be written next."""
        while self._leftovers:
            self._disk.remove(self._leftovers.pop())
        # Room that was made for records of which the crash has left nothing.
        while self._last_of(current) < max(self._files):
            last = max(self._files)
            self._files.pop(last).close()
            self._disk.remove(segment_name(last))
            # One at a time: none must be missing before the last.
            self._disk.sync_directory()

    def _open_one(self, name: str, oldest: int) -> None:
        try:
            first = int(name.removeprefix("log-"), 16)
        except ValueError:
            raise Corruption(f"{name} is not the name of a segment") from None
        if first < oldest:
            # Not needed for the restart: the program stopped before it could remove it.
            self._leftovers.append(name)
            return
        file = self._disk.open(name)
        if file.size() != self._blocks * BLOCK_BYTES:
            raise Corruption(f"{name} has {file.size()} bytes, not {self._blocks * BLOCK_BYTES}")
        self._files[first] = file

    def _check_contiguous(self, oldest: int) -> None:
        expected = oldest
        for first in sorted(self._files):
            if first != expected:
                raise Corruption(f"{segment_name(expected)} is missing")
            expected += self._blocks
        if len(self._files) < 2:
            raise Corruption(f"{segment_name(expected)} is missing")

    def first_of(self, block: int) -> int:
        """The first block of the segment that has this block."""
        return block - block % self._blocks

    def _last_of(self, current: int) -> int:
        """Where the last spare begins that is worth keeping."""
        return self.first_of(current) + SPARES_MAX * self._blocks

    @property
    def end(self) -> int:
        """The number of the first block that no segment has."""
        return max(self._files) + self._blocks

    # --- Reading

    def find_end(self, restart_block: int, epoch_max: int) -> int:
        """The number of the first block that is not part of the log.

        Raises `Corruption` for a block that is neither old nor new, and for one that a later block
        says was synced.
        """
        number = restart_block
        epoch = 0
        for block in self.blocks(restart_block, self.end):
            if block.number != number or block.epoch < max(epoch, 1):
                break
            if block.epoch > epoch_max:
                raise self._damage(number, f"was written in epoch {block.epoch}, of the future")
            epoch = block.epoch
            number += 1
        self._check_behind(number, epoch, self.first_of(restart_block))
        return number

    def _check_behind(self, end: int, epoch: int, oldest: int) -> None:
        last = self.first_of(max(end - 1, 0))
        if last + self._blocks not in self._files:
            raise Corruption(f"{segment_name(last + self._blocks)} is missing")
        for number, block in enumerate(self.blocks(end, self.end), start=end):
            if block.number != number and block.number >= oldest:
                raise self._damage(number, f"is block {block.number}, which belongs elsewhere")
            is_later = block.number == number and block.epoch >= max(epoch, 1)
            if is_later and block.synced > end:
                raise self._damage(end, f"is missing: block {number} says that it was synced")

    def vouched_for(self, end: int) -> int:
        """The first block that the last one before `end` does not declare to be synced."""
        return next(self.blocks(end - 1, end)).synced

    def blocks(self, start: int, end: int) -> Iterator[Block]:
        """The blocks from one number up to another, each whole; they may be old ones."""
        while start < end:
            step = min(end - start, self.first_of(start) + self._blocks - start, SCAN_BLOCKS)
            data = memoryview(self._read(start, step))
            for position in range(step):
                offset = position * BLOCK_BYTES
                block = decode_block(self._seed, data[offset : offset + BLOCK_BYTES])
                if block is None:
                    raise self._damage(start + position, "is neither old nor new")
                yield block
            start += step

    def read_content(self, number: int, count: int) -> bytes:
        """The content of blocks that are part of the log."""
        contents = []
        while count:
            step = min(count, self.first_of(number) + self._blocks - number)
            data = memoryview(self._read(number, step))
            for position in range(step):
                offset = position * BLOCK_BYTES
                block = decode_block(self._seed, data[offset : offset + BLOCK_BYTES])
                if block is None or block.number != number + position:
                    raise self._damage(number + position, "is not what was written there")
                # A forced write may end early in its block; positions behind it do not move.
                contents.append(block.content.ljust(CONTENT_BYTES, b"\0"))
            number += step
            count -= step
        return b"".join(contents)

    def _read(self, number: int, count: int) -> bytes:
        first = self.first_of(number)
        if first not in self._files:
            raise Corruption(f"{segment_name(first)} is missing")
        return self._files[first].read((number - first) * BLOCK_BYTES, count * BLOCK_BYTES)

    def where(self, number: int) -> str:
        """The place of a block, as an operator finds it."""
        first = self.first_of(number)
        return f"{segment_name(first)}, offset {(number - first) * BLOCK_BYTES}"

    def _damage(self, number: int, what: str) -> Corruption:
        return Corruption(f"{self.where(number)}: the block {what} (LSN {number * CONTENT_BYTES})")

    # --- Writing

    def write(self, number: int, data: bytes) -> None:
        """The blocks from this number on are these, and are synced."""
        first = number - number % self._blocks
        if number - first + len(data) // BLOCK_BYTES <= self._blocks:
            # The common case of a write that stays in its segment.
            file = self._files[first]
            file.write((number - first) * BLOCK_BYTES, data)
            file.sync()
            return
        for first in self._write(number, data):
            self._files[first].sync()

    def write_again(self, start: int, end: int) -> None:
        """The blocks from one number up to another are synced, as they were read."""
        written: dict[int, None] = {}
        while start < end:
            step = min(end - start, self.first_of(start) + self._blocks - start, SCAN_BLOCKS)
            written.update(dict.fromkeys(self._write(start, self._read(start, step))))
            start += step
        for first in written:
            self._files[first].sync()

    def _write(self, number: int, data: bytes) -> list[int]:
        """The blocks from this number on are these; the segments that are yet to be synced."""
        written = []
        offset = 0
        while offset < len(data):
            first = self.first_of(number)
            room = (first + self._blocks - number) * BLOCK_BYTES
            piece = memoryview(data)[offset : offset + room]
            self._files[first].write((number - first) * BLOCK_BYTES, piece)
            written.append(first)
            offset += len(piece)
            number += len(piece) // BLOCK_BYTES
        return written

    def make_room(self, block: int, may_use_spare: bool) -> int:
        """There are segments for all blocks up to this one, and spares behind them.

        Where the disk is full, `may_use_spare` goes on with one; otherwise it is `StorageFull`. The
        last block for which all of it holds, so that it need not be asked for.
        """
        first = self.first_of(block)
        while first + SPARES * self._blocks not in self._files:
            try:
                self._make(self.end)
            except StorageFull:
                if not may_use_spare or first + self._blocks not in self._files:
                    raise
                return -1
        return first + self._blocks - 1

    def forget_before(self, block: int, current: int) -> None:
        """Segments wholly before this block are not needed: they become spares, or are removed.

        `current` is the block that will be written next.
        """
        oldest = self.first_of(block)
        for first in sorted(self._files):
            if first >= oldest:
                break
            self._files.pop(first).close()
            spare = self.end
            if spare > self._last_of(current):
                self._disk.remove(segment_name(first))
                self._disk.sync_directory()
            else:
                # One at a time: a later one must not be found without those before it.
                self._rename(segment_name(first), spare)

    def _make(self, first: int) -> None:
        """A segment of blank blocks. It gets its name only when all of it is on disk."""
        if self._disk.exists(NEW_NAME):
            self._disk.remove(NEW_NAME)
        file = self._disk.open(NEW_NAME, create=True)
        try:
            for number in range(first, first + self._blocks, SCAN_BLOCKS):
                count = min(SCAN_BLOCKS, first + self._blocks - number)
                blank = blank_blocks(self._seed, number, count)
                file.write((number - first) * BLOCK_BYTES, blank)
            file.sync()
        except StorageFull:
            self._disk.remove(NEW_NAME)
            raise
        finally:
            file.close()
        self._rename(NEW_NAME, first)

    def _rename(self, name: str, first: int) -> None:
        """The file is the segment with this first block, and a power cut leaves it so."""
        self._disk.rename(name, segment_name(first))
        # Before anything is written into it: what nobody finds under its name is lost.
        self._disk.sync_directory()
        self._files[first] = self._disk.open(segment_name(first))

    def close(self) -> None:
        """Lets go of the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
