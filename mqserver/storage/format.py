"""Every byte on disk of the paged storage, as tables that a test holds against the structs.

All numbers are little-endian. A data directory has the files `control`, `data`, `lock`, and the
segments `log-` with the number of their first block in sixteen hexadecimal digits.

**Log block**, 512 bytes, the unit that a disk writes whole or not at all. A segment is full of
blocks from its first day: those not yet used are blank, with `used` 0 and epoch 0. So a block is
what it was or what it should be; a block that is neither is damage, never a torn write.

    offset  code  size  field
    0x00    I     4     CRC-32 of the rest of the block, begun with that of the store's identity
    0x04    I     4     epoch: how often the store had been opened when this was written
    0x08    Q     8     number of the block, from 0 for the first one that the store ever wrote
    0x10    H     2     used: bytes of content
    0x12    H     2     first: where in the content the first record begins, 65535 for nowhere
    0x14    I     4     how many blocks there are between this one and all that was synced before

The content of all blocks, one after the other, is the stream of records. An LSN is a position in
it: number of the block x 488 + offset in its content. A forced write ends with its block, so that
no block that holds anything is ever written again.

**Log record**, in the stream:

    offset  code  size  field
    0x00    I     4     length of the body
    0x04    I     4     CRC-32 of the rest of the header and the body
    0x08    Q     8     LSN of this record, so that a stale one betrays itself
    0x10    B     1     kind (RecordKind)

**Control slot**, one at 0 and one at 4096 of the file `control`, written in turn. The valid one
with the higher sequence counts:

    offset  code  size  field
    0x00    8s    8     ONCEMQ and two zeros
    0x08    I     4     version of the format
    0x0c    I     4     size of a page of the data file
    0x10    16s   16    identity of the store
    0x20    Q     8     sequence: how often the control record was written
    0x28    I     4     epoch
    0x2c    I     4     blocks in a segment
    0x30    Q     8     restart: LSN from which the log is read
    0x38    Q     8     checkpoint: LSN of the checkpoint record
    0x40    Q     8     pages of the data file that hold what the checkpoint refers to
    0x48    Q     8     end of the log after an orderly close, otherwise 0
    0x50    Q     8     no key below this is given again
    0x58    I     4     CRC-32 of all before

**Page** of the data file; a run is pages one behind the other that hold one content:

    offset  code  size  field
    0x00    I     4     CRC-32 of the rest of the page, begun with that of the store's identity
    0x04    I     4     used: bytes of content in this page
    0x08    Q     8     number of the page
    0x10    Q     8     LSN that the log had reached when the page was written
    0x18    I     4     place of the page in its run, from 0
    0x1c    I     4     state: 1 for a page that was written, 2 for the first of an undivided run

An undivided run, since version 2, has a header in its first page only, and its content goes on
through the others. It holds one payload. `used` counts all of the content; the checksum is that of
the rest of the header, and the content's is the message's digest, which was found to be right
before any record named the run. What the content leaves of the last page is zeros.

Since version 3 a checkpoint speaks for the prepared branches whose record is before its restart;
before that, these were written to the log again. And a record may name a run that holds many small
payloads, one behind the other, whose columns it has; a column of one value stands for all.

Bodies of records are msgpack without classes, written and read here, then the payloads one behind
the other. Numbers of kinds and states are never used for something else.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgpack

from idl.checksums import crc32, crc32_of_little
from mqserver.errors import Corruption

FORMAT_VERSION = 3
# Those that can be read. The first had no undivided runs, the second no branches in checkpoints.
VERSIONS_READ = (1, 2, 3)
BLOCK_BYTES = 512
SLOT_DISTANCE = 4096
NOWHERE = 0xFFFF
PAGE_WRITTEN = 1
RUN_UNDIVIDED = 2
DISTANCE_MAX = 0xFFFFFFFF

BLOCK_HEADER = struct.Struct("<IIQHHI")
RECORD_HEADER = struct.Struct("<IIQB")
CONTROL_SLOT = struct.Struct("<8sII16sQIIQQQQQI")
PAGE_HEADER = struct.Struct("<IIQQII")
_META_LENGTH = struct.Struct("<I")
_CRC = struct.Struct("<I")
_BLOCK_REST = struct.Struct("<IQHHI488s")
_RECORD_START = struct.Struct("<II")
_RECORD_REST = struct.Struct("<QB")
_PAGE_REST = struct.Struct("<IQQII")
# Looked up once: each is used with every record that is written.
_pack_crc, _pack_block, _pack_length = _CRC.pack, _BLOCK_REST.pack, _META_LENGTH.pack
_pack_record_start, _pack_record_rest = _RECORD_START.pack, _RECORD_REST.pack
_LENGTH_BYTES = _META_LENGTH.size

CONTENT_BYTES = BLOCK_BYTES - BLOCK_HEADER.size
MAGIC = b"ONCEMQ\0\0"

# Packers that nobody uses now: to make one takes longer than to pack a record with it. Each keeps
# the memory of its longest record; after one that is longer than this it is not kept.
_PACKERS: list[msgpack.Packer] = []
_KEPT_BYTES_MAX = 64 * 1024

assert CONTENT_BYTES == 488
assert _BLOCK_REST.size == BLOCK_BYTES - 4
assert (BLOCK_HEADER.size, RECORD_HEADER.size) == (0x18, 0x11)
assert (CONTROL_SLOT.size, PAGE_HEADER.size) == (0x5C, 0x20)


def segment_name(first_block: int) -> str:
    """The file name of the segment that begins with this block."""
    return f"log-{first_block:016x}"


def is_segment_name(name: str) -> bool:
    """Whether a file is a segment of the log."""
    return name.startswith("log-") and len(name) == 20


# --- Blocks --------------------------------------------------------------------------------------


class Block(NamedTuple):
    """A block that was read and is whole; blank ones have no content and epoch 0."""

    epoch: int
    number: int
    first: int
    synced: int
    content: bytes


def encode_blocks(
    seed: int, epoch: int, number: int, synced: int, content: bytes | bytearray, starts: list[int]
) -> bytes:
    """Content as blocks from this number on. `starts` says where in it records begin, in order.

    `synced` is the number of the block up to which everything was synced before.
    """
    used = len(content)
    if 0 < used <= CONTENT_BYTES and number - synced <= DISTANCE_MAX:
        # The common case of one block: as below, with nothing to be looked for.
        rest = _pack_block(epoch, number, used, 0, number - synced, content)
        return _pack_crc(crc32_of_little(rest, seed)) + rest
    blocks = []
    position = 0
    for offset in range(0, len(content), CONTENT_BYTES):
        piece = content[offset : offset + CONTENT_BYTES]
        while position < len(starts) and starts[position] < offset:
            position += 1
        first = NOWHERE
        if position < len(starts) and starts[position] < offset + len(piece):
            first = starts[position] - offset
        blocks.append(_encode_block(seed, epoch, number, synced, piece, first))
        number += 1
    return b"".join(blocks)


def _encode_block(
    seed: int, epoch: int, number: int, synced: int, content: bytes | bytearray, first: int
) -> bytes:
    distance = min(number - synced, DISTANCE_MAX)
    # What the content does not fill is zeros.
    rest = _pack_block(epoch, number, len(content), first, distance, content)
    return _pack_crc(crc32_of_little(rest, seed)) + rest


def blank_blocks(seed: int, number: int, count: int) -> bytes:
    """Blocks that were never used."""
    blocks = []
    for position in range(number, number + count):
        rest = _BLOCK_REST.pack(0, position, 0, NOWHERE, 0, b"")
        blocks.append(_CRC.pack(crc32(rest, seed)))
        blocks.append(rest)
    return b"".join(blocks)


def decode_block(seed: int, data: bytes | memoryview) -> Block | None:
    """The block, or None when it is not whole."""
    if len(data) != BLOCK_BYTES:
        return None
    checksum, epoch, number, used, first, distance = BLOCK_HEADER.unpack_from(data)
    if crc32(data[4:], seed) != checksum or used > CONTENT_BYTES:
        return None
    content = bytes(data[BLOCK_HEADER.size : BLOCK_HEADER.size + used])
    return Block(epoch, number, first, max(0, number - distance), content)


# --- Records -------------------------------------------------------------------------------------


class RecordKind(enum.IntEnum):
    """What a record says. The numbers are on disk."""

    QUEUE_SET = 1
    QUEUE_DELETED = 2
    COMMITTED = 3
    PREPARED = 4
    COMMIT = 5
    ROLLBACK = 6
    RESOLVED = 7
    FORGOTTEN = 8
    RESERVED = 9
    FINISHED = 10
    CONSUMER_DROPPED = 11
    CHECKPOINT = 12
    # Those of a coordinator's log (coordinator/ledger.py).
    INCARNATION = 32
    DECISION = 33
    DONE = 34
    ENDED = 35
    HEURISTIC = 36
    DISMISSED = 37
    DECISIONS = 38


class Record(NamedTuple):
    """A record that was read and is whole."""

    lsn: int
    kind: RecordKind
    body: bytes

    @property
    def body_lsn(self) -> int:
        """Where in the stream the body begins."""
        return self.lsn + RECORD_HEADER.size


def encode_record(lsn: int, kind: RecordKind, body: bytes) -> bytes:
    """The bytes of a record that begins at this LSN."""
    rest = _pack_record_rest(lsn, kind) + body
    return _pack_record_start(len(body), crc32(rest)) + rest


def decode_record(lsn: int, data: bytes, where: str = "the log") -> Record:
    """The record at this LSN; raises `Corruption` with the place when it is not whole."""
    length, checksum, found, kind = RECORD_HEADER.unpack_from(data)
    body = data[RECORD_HEADER.size : RECORD_HEADER.size + length]
    whole = crc32(body, crc32(_RECORD_REST.pack(found, kind))) == checksum
    if not whole or found != lsn or len(body) != length:
        raise Corruption(f"{where}: the log record at LSN {lsn} is not whole")
    try:
        return Record(lsn, RecordKind(kind), body)
    except ValueError:
        raise Corruption(f"{where}: the log record at LSN {lsn} has unknown kind {kind}") from None


def record_length(header: bytes) -> int:
    """The length of the body that follows this header."""
    length: int = _META_LENGTH.unpack_from(header)[0]
    return length


def pack_body(meta: Any, payloads: list[bytes] | None = None) -> bytes:
    """The body of a record: plain values, then payloads one behind the other."""
    return pack_with_start(meta, payloads or ())[0]


def pack_with_start(meta: Any, payloads: Iterable[bytes]) -> tuple[bytes, int]:
    """The body of a record, and where in it the payloads begin."""
    try:
        packer = _PACKERS.pop()
    except IndexError:
        packer = msgpack.Packer(use_bin_type=True)
    packed: bytes = packer.pack(meta)
    if len(packed) <= _KEPT_BYTES_MAX:
        _PACKERS.append(packer)
    size = len(packed)
    return b"".join((_pack_length(size), packed, *payloads)), _LENGTH_BYTES + size


def unpack_body(body: bytes, where: str) -> tuple[Any, int]:
    """The plain values of a body, and where in it the payloads begin."""
    try:
        (length,) = _META_LENGTH.unpack_from(body)
        end = _META_LENGTH.size + length
        meta = msgpack.unpackb(
            body[_META_LENGTH.size : end], raw=False, use_list=False, strict_map_key=False
        )
    except (struct.error, ValueError, msgpack.UnpackException) as wrong:
        raise Corruption(f"{where} cannot be read") from wrong
    return meta, end


# --- Control record ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Control:
    """Where a restart begins, and what these files are."""

    page_bytes: int
    identity: bytes
    segment_blocks: int
    sequence: int = 0
    epoch: int = 0
    restart_lsn: int = 0
    checkpoint_lsn: int = 0
    pages: int = 0
    end_lsn: int = 0
    next_key: int = 1
    version: int = FORMAT_VERSION

    @property
    def seed(self) -> int:
        """What checksums begin with, so that files of two stores cannot be mixed up."""
        return crc32(self.identity)

    def next(self, **changes: Any) -> Control:
        """The control record that follows this one, of the version that is written now."""
        return replace(self, sequence=self.sequence + 1, version=FORMAT_VERSION, **changes)


def encode_control(control: Control) -> bytes:
    """The bytes of a control slot."""
    packed = CONTROL_SLOT.pack(
        MAGIC,
        control.version,
        control.page_bytes,
        control.identity,
        control.sequence,
        control.epoch,
        control.segment_blocks,
        control.restart_lsn,
        control.checkpoint_lsn,
        control.pages,
        control.end_lsn,
        control.next_key,
        0,
    )
    return packed[:-4] + _CRC.pack(crc32(packed[:-4]))


def decode_control(data: bytes) -> Control | int | None:
    """The control record; the version when it is another one; None when it is not whole."""
    if len(data) < CONTROL_SLOT.size or not data.startswith(MAGIC):
        return None
    fields = CONTROL_SLOT.unpack_from(data)
    if crc32(data[: CONTROL_SLOT.size - 4]) != fields[-1]:
        return None
    _, version, page_bytes, identity, sequence, epoch, segment_blocks, *lsns, _ = fields
    if version not in VERSIONS_READ:
        return int(version)
    restart, checkpoint, pages, end, next_key = lsns
    return Control(
        page_bytes,
        identity,
        segment_blocks,
        sequence,
        epoch,
        restart,
        checkpoint,
        pages,
        end,
        next_key,
        version,
    )


# --- Pages ---------------------------------------------------------------------------------------


def encode_pages(
    seed: int, page_bytes: int, first: int, lsn: int, content: bytes
) -> list[bytes | memoryview]:
    """Content as a run of pages from this number on, in pieces that follow each other."""
    room = page_bytes - PAGE_HEADER.size
    view = memoryview(content)
    pieces: list[bytes | memoryview] = []
    for place, offset in enumerate(range(0, len(content), room)):
        piece = view[offset : offset + room]
        used = len(piece)
        header = _PAGE_REST.pack(used, first + place, lsn, place, PAGE_WRITTEN)
        checksum = crc32(piece, crc32(header, seed))
        if used == room:
            pieces += (_CRC.pack(checksum) + header, piece)
        else:
            padding = bytes(room - used)
            checksum = crc32(padding, checksum)
            pieces += (_CRC.pack(checksum) + header, piece, padding)
    return pieces


def decode_pages(
    seed: int, page_bytes: int, first: int, place: int, data: bytes
) -> Iterator[memoryview]:
    """The content of pages of one run, page by page; raises `Corruption` for a damaged one."""
    view = memoryview(data)
    for position, offset in enumerate(range(0, len(data), page_bytes)):
        page = view[offset : offset + page_bytes]
        if len(page) < page_bytes:
            raise _damaged(first + position, page_bytes, "the page is cut off")
        checksum, used, number, _, found_place, state = PAGE_HEADER.unpack_from(page)
        if crc32(page[4:], seed) != checksum or state != PAGE_WRITTEN:
            raise _damaged(first + position, page_bytes, "the page is not whole")
        if number != first + position or found_place != place + position:
            what = f"page {number} stands where {first + position} belongs"
            raise _damaged(first + position, page_bytes, what)
        yield page[PAGE_HEADER.size : PAGE_HEADER.size + used]


def encode_undivided(
    seed: int, page_bytes: int, first: int, lsn: int, payload: bytes
) -> list[bytes]:
    """A payload as an undivided run from this page on, in pieces that follow each other."""
    size = len(payload)
    header = _PAGE_REST.pack(size, first, lsn, 0, RUN_UNDIVIDED)
    rest = pages_needed(page_bytes, size) * page_bytes - PAGE_HEADER.size - size
    return [_CRC.pack(crc32(header, seed)) + header, payload, bytes(rest)]


def is_undivided(page: bytes) -> bool:
    """Whether a run that begins with this page says that it is undivided."""
    return len(page) >= PAGE_HEADER.size and PAGE_HEADER.unpack_from(page)[5] == RUN_UNDIVIDED


def check_undivided(seed: int, page_bytes: int, first: int, size: int, header: bytes) -> None:
    """Raises `Corruption` where this is not how an undivided run of this size begins."""
    if len(header) < PAGE_HEADER.size:
        raise _damaged(first, page_bytes, "the page is cut off")
    checksum, found_size, number, _, place, state = PAGE_HEADER.unpack(header)
    if crc32(header[4:], seed) != checksum or state != RUN_UNDIVIDED or place:
        raise _damaged(first, page_bytes, "the page is not whole")
    if number != first:
        raise _damaged(first, page_bytes, f"page {number} stands where {first} belongs")
    if found_size != size:
        raise _damaged(first, page_bytes, f"the run has {found_size} bytes, not {size}")


def check_content(page_bytes: int, first: int, digest: int, payload: bytes, rest: bytes) -> None:
    """Raises `Corruption` where an undivided run does not hold what has this digest."""
    filled = PAGE_HEADER.size + len(payload) + len(rest)
    if filled != pages_needed(page_bytes, len(payload)) * page_bytes:
        raise _damaged(first, page_bytes, "the run is cut off")
    start = first * page_bytes + PAGE_HEADER.size
    end = start + len(payload)
    if crc32(payload) != digest:
        # One checksum is there for all of it: which byte it is nobody can tell.
        what = f"somewhere in the bytes {start} to {end - 1} the payload is not what was put"
        raise _damaged(first, page_bytes, what)
    if rest.strip(b"\0"):
        place = end + len(rest) - len(rest.lstrip(b"\0"))
        raise _damaged(
            first, page_bytes, f"byte {place}, behind the payload, is not the zero it was"
        )


def _damaged(page: int, page_bytes: int, what: str) -> Corruption:
    return Corruption(f"data, offset {page * page_bytes}: {what}")


def pages_needed(page_bytes: int, size: int) -> int:
    """How many pages hold this many bytes."""
    return max(1, -(-size // (page_bytes - PAGE_HEADER.size)))
