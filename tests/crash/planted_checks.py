"""Planted mistakes about checksums, numbers and the control record: what is not looked at."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mqserver.storage import file_manager, format, log_manager, segments
from mqserver.storage.checkpoint import Checkpoint
from mqserver.storage.file_manager import FileManager
from mqserver.storage.format import (
    BLOCK_BYTES,
    BLOCK_HEADER,
    CONTENT_BYTES,
    CONTROL_SLOT,
    PAGE_HEADER,
    RECORD_HEADER,
    SLOT_DISTANCE,
    Block,
    Control,
    Record,
    RecordKind,
    encode_control,
)
from mqserver.storage.log_manager import LogManager
from mqserver.storage.paged import PagedStorage
from mqserver.storage.segments import Segments
from tests.crash.planting import Patch, nothing
from tests.crash.recording_disk import RecordingDisk


def no_checksum_of_blocks(patch: Patch) -> None:
    """Checksums of blocks are not looked at."""

    def decode(seed: int, data: bytes | memoryview) -> Block | None:
        _, epoch, number, used, first, distance = BLOCK_HEADER.unpack_from(data)
        content = bytes(data[BLOCK_HEADER.size : BLOCK_HEADER.size + used])
        return Block(epoch, number, first, max(0, number - distance), content)

    patch.setattr(segments, "decode_block", decode)


def no_checksum_of_records(patch: Patch) -> None:
    """Checksums of records are not looked at."""

    def decode(lsn: int, data: bytes, where: str) -> Record:
        length, _, _, kind = RECORD_HEADER.unpack_from(data)
        return Record(lsn, RecordKind(kind), data[RECORD_HEADER.size :][:length])

    patch.setattr(log_manager, "decode_record", decode)


def no_checksum_of_pages(patch: Patch) -> None:
    """Checksums of pages are not looked at."""

    def decode(seed: int, page_bytes: int, first: int, place: int, data: bytes) -> Iterator[bytes]:
        for offset in range(0, len(data), page_bytes):
            page = data[offset : offset + page_bytes]
            _, used, *_ = PAGE_HEADER.unpack_from(page)
            yield page[PAGE_HEADER.size : PAGE_HEADER.size + used]

    patch.setattr(file_manager, "decode_pages", decode)


def no_digests_of_undivided_runs(patch: Patch) -> None:
    """Whether a payload in a run of its own has its digest is not looked at."""
    patch.setattr(file_manager, "check_content", nothing)


def no_checksum_of_undivided_runs(patch: Patch) -> None:
    """Headers of undivided runs are not looked at."""
    patch.setattr(file_manager, "check_undivided", nothing)


def no_checksum_of_the_control_record(patch: Patch) -> None:
    """The checksum of the control record is not looked at."""
    right = format.decode_control

    def decode(data: bytes) -> Control | int | None:
        body = data[: CONTROL_SLOT.size - 4]
        return right(body + zlib.crc32(body).to_bytes(4, "little"))

    patch.setattr(log_manager, "decode_control", decode)


def no_identity_in_checksums(patch: Patch) -> None:
    """Checksums do not know whose files they are."""
    patch.setattr(Control, "seed", property(lambda self: 0))


def no_numbers_of_blocks(patch: Patch) -> None:
    """Numbers of blocks in recycled segments are not looked at."""
    right = Segments.blocks

    def blocks(self: Segments, start: int, end: int) -> Iterator[Block]:
        for number, block in enumerate(right(self, start, end), start=start):
            yield block._replace(number=number)

    patch.setattr(Segments, "blocks", blocks)


def no_look_behind_the_end(patch: Patch) -> None:
    """Nobody looks behind the end of the log."""
    patch.setattr(Segments, "_check_behind", nothing)


def no_look_at_the_end_of_an_orderly_close(patch: Patch) -> None:
    """Nobody looks where an orderly close saw the end."""
    right = log_manager._find_end
    patch.setattr(
        log_manager,
        "_find_end",
        lambda files, control: right(files, replace(control, end_lsn=0)),
    )


def no_new_epoch(patch: Patch) -> None:
    """An old tail is left: no new epoch begins."""
    right = LogManager.write_control

    def write_control(self: LogManager, **changes: Any) -> None:
        changes.pop("epoch", None)
        right(self, **changes)

    patch.setattr(LogManager, "write_control", write_control)


def no_epochs_of_blocks(patch: Patch) -> None:
    """Epochs of blocks are not looked at."""
    right = Segments.blocks

    def blocks(self: Segments, start: int, end: int) -> Iterator[Block]:
        return (block._replace(epoch=min(block.epoch, 1)) for block in right(self, start, end))

    patch.setattr(Segments, "blocks", blocks)


def no_look_at_the_size_of_the_data_file(patch: Patch) -> None:
    """The size of the data file is not looked at."""
    right = FileManager.use

    def use(self: FileManager, runs: Any) -> None:
        size, self._page_bytes = self._page_bytes, 0
        right(self, runs)
        self._page_bytes = size

    patch.setattr(FileManager, "use", use)
    patch.setattr(Control, "pages", property(lambda self: 0, nothing))


# --- The control record ---------------------------------------------------------------------------


def one_slot_and_no_other(patch: Patch) -> None:
    """The control record has one slot."""
    one_slot_only(patch)
    patch.setattr(log_manager, "read_control", _read_one_slot)


def _read_one_slot(disk: RecordingDisk) -> Control:
    file = disk.open(log_manager.CONTROL_NAME)
    slots = [format.decode_control(file.read(at, BLOCK_BYTES)) for at in (0, SLOT_DISTANCE)]
    controls = [slot for slot in slots if isinstance(slot, Control)]
    return max(controls, key=lambda control: control.sequence)


def one_slot_only(patch: Patch) -> None:
    """The control record has one slot and is read from two."""

    def write_slot(self: LogManager, control: Control) -> None:
        self._control_file.write(0, encode_control(control))
        self._control_file.sync()

    patch.setattr(LogManager, "_write_slot", write_slot)


def forget_the_log_first(patch: Patch) -> None:
    """The log is forgotten before the control record says so."""
    right = LogManager.write_control

    def write_control(self: LogManager, **changes: Any) -> None:
        if "checkpoint_lsn" in changes:
            restart_block = changes["restart_lsn"] // CONTENT_BYTES
            self._segments.forget_before(restart_block, self._base)
        right(self, **changes)

    patch.setattr(LogManager, "write_control", write_control)


def keys_are_not_reserved(patch: Patch) -> None:
    """Keys are given that no control record has reserved."""

    def take_keys(self: PagedStorage, count: int) -> range:
        self._next_key += count
        return range(self._next_key - count, self._next_key)

    patch.setattr(PagedStorage, "_take_keys", take_keys)
    patch.setattr(Control, "next_key", property(lambda self: 1, nothing))


def a_checkpoint_forgets_reserved_keys(patch: Patch) -> None:
    """A checkpoint forgets which keys were reserved."""
    right = Checkpoint.take

    def take(self: Checkpoint, restart_lsn: int, next_key: int) -> int:
        queues = self._index.queues.values()
        last = max((key for queue in queues for key in queue.entries), default=0)
        return right(self, restart_lsn, last + 1)

    patch.setattr(Checkpoint, "take", take)
