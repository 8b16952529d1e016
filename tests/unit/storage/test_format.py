"""Every byte on disk: tables equal structs, what is written is read, and no flipped bit passes.

It is long because each version of the format that was ever written has to be read for ever.
"""

from __future__ import annotations

import struct
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqserver.errors import Corruption
from mqserver.storage import format as disk_format
from mqserver.storage.contract import (
    EVERYTHING,
    BranchInfo,
    ConsumerInfo,
    Message,
    Outcome,
    QueueSettings,
)
from mqserver.storage.format import (
    BLOCK_BYTES,
    BLOCK_HEADER,
    CONTENT_BYTES,
    CONTROL_SLOT,
    FORMAT_VERSION,
    NOWHERE,
    PAGE_HEADER,
    RECORD_HEADER,
    Block,
    Control,
    Record,
    RecordKind,
    blank_blocks,
    check_content,
    check_undivided,
    decode_block,
    decode_control,
    decode_pages,
    decode_record,
    encode_blocks,
    encode_control,
    encode_pages,
    encode_record,
    encode_undivided,
    is_segment_name,
    is_undivided,
    pack_body,
    pages_needed,
    record_length,
    segment_name,
    unpack_body,
)
from mqserver.storage.log_manager import read_control
from mqserver.storage.paged import PagedStorage
from tests.byte_tables import check_table, tables_of
from tests.crash.recording_disk import RecordingDisk

SEED = zlib.crc32(b"a store")
PAGE_BYTES = 256
NUMBERS = st.integers(0, 2**63)
CONTROL = Control(1024, bytes(range(16)), 16, 5, 2, 976, 1464, 7, 2440, 1001)


def _flipped(data: bytes, bit: int) -> bytes:
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


# --- The tables


@pytest.mark.parametrize(
    ("position", "packed"),
    list(enumerate([BLOCK_HEADER, RECORD_HEADER, CONTROL_SLOT, PAGE_HEADER])),
    ids=["block", "record", "control", "page"],
)
def test_the_byte_table_is_that_of_the_struct(position: int, packed: struct.Struct) -> None:
    tables = tables_of(disk_format)
    assert len(tables) == 4
    assert packed.format.startswith("<")
    check_table(tables[position], packed)


def test_the_numbers_of_record_kinds_never_change() -> None:
    assert {kind.name: kind.value for kind in RecordKind} == {
        "QUEUE_SET": 1,
        "QUEUE_DELETED": 2,
        "COMMITTED": 3,
        "PREPARED": 4,
        "COMMIT": 5,
        "ROLLBACK": 6,
        "RESOLVED": 7,
        "FORGOTTEN": 8,
        "RESERVED": 9,
        "FINISHED": 10,
        "CONSUMER_DROPPED": 11,
        "CHECKPOINT": 12,
        "INCARNATION": 32,
        "DECISION": 33,
        "DONE": 34,
        "ENDED": 35,
        "HEURISTIC": 36,
        "DISMISSED": 37,
        "DECISIONS": 38,
    }


def test_the_content_of_a_block_is_as_long_as_the_text_says() -> None:
    assert f"x {CONTENT_BYTES} +" in (disk_format.__doc__ or "")


def test_a_segment_is_named_after_its_first_block() -> None:
    assert segment_name(0x1F0) == "log-00000000000001f0"
    assert is_segment_name(segment_name(0x1F0))
    assert not is_segment_name("log-new")


# --- Blocks


@given(content=st.binary(max_size=3 * CONTENT_BYTES), number=NUMBERS, data=st.data())
def test_blocks_are_read_as_they_were_written(
    content: bytes, number: int, data: st.DataObject
) -> None:
    synced = number - data.draw(st.integers(0, min(number, 1000)))
    encoded = encode_blocks(SEED, 7, number, synced, content, [0] if content else [])
    assert len(encoded) == -(-len(content) // CONTENT_BYTES) * BLOCK_BYTES
    blocks = [
        decode_block(SEED, encoded[offset : offset + BLOCK_BYTES])
        for offset in range(0, len(encoded), BLOCK_BYTES)
    ]
    assert b"".join(block.content for block in blocks if block) == content
    assert [block.number for block in blocks if block] == list(range(number, number + len(blocks)))
    assert all(block and (block.epoch, block.synced) == (7, synced) for block in blocks)


def test_a_block_says_where_its_first_record_begins() -> None:
    starts = [0, 300, CONTENT_BYTES * 2 + 5, CONTENT_BYTES * 2 + 90]
    encoded = encode_blocks(SEED, 1, 4, 4, bytes(CONTENT_BYTES * 3), starts)
    firsts = []
    for offset in range(0, len(encoded), BLOCK_BYTES):
        block = decode_block(SEED, encoded[offset : offset + BLOCK_BYTES])
        assert block is not None
        firsts.append(block.first)
    assert firsts == [0, NOWHERE, 5]


def test_blank_blocks_are_whole_and_empty() -> None:
    blank = blank_blocks(SEED, 30, 2)
    assert decode_block(SEED, blank[:BLOCK_BYTES]) == Block(0, 30, NOWHERE, 30, b"")
    assert decode_block(SEED, blank[BLOCK_BYTES:]) == Block(0, 31, NOWHERE, 31, b"")


def test_every_flipped_bit_of_a_block_is_noticed() -> None:
    block = encode_blocks(SEED, 1, 9, 8, b"content that ends early", [0])
    found = [bit for bit in range(len(block) * 8) if decode_block(SEED, _flipped(block, bit))]
    assert found == []


def test_a_block_of_another_store_or_a_part_of_one_is_not_whole() -> None:
    block = encode_blocks(SEED, 1, 9, 8, b"content", [0])
    assert decode_block(zlib.crc32(b"another store"), block) is None
    assert decode_block(SEED, block[:-1]) is None


def test_a_block_that_claims_more_content_than_it_has_room_for_is_not_whole() -> None:
    rest = struct.pack("<IQHHI", 1, 9, CONTENT_BYTES + 1, 0, 0) + bytes(CONTENT_BYTES)
    assert decode_block(SEED, struct.pack("<I", zlib.crc32(rest, SEED)) + rest) is None


# --- Records


@given(lsn=NUMBERS, kind=st.sampled_from(RecordKind), body=st.binary(max_size=2000))
def test_a_record_is_read_as_it_was_written(lsn: int, kind: RecordKind, body: bytes) -> None:
    encoded = encode_record(lsn, kind, body)
    assert record_length(encoded[: RECORD_HEADER.size]) == len(body)
    assert decode_record(lsn, encoded) == Record(lsn, kind, body)
    assert decode_record(lsn, encoded).body_lsn == lsn + RECORD_HEADER.size


def test_every_flipped_bit_of_a_record_is_noticed() -> None:
    encoded = encode_record(77, RecordKind.COMMIT, b"what it says")
    for bit in range(len(encoded) * 8):
        with pytest.raises(Corruption, match="LSN 77"):
            decode_record(77, _flipped(encoded, bit))


def test_a_record_at_another_place_than_its_own_is_refused() -> None:
    with pytest.raises(Corruption, match="LSN 78"):
        decode_record(78, encode_record(77, RecordKind.COMMIT, b""))


def test_a_record_that_is_cut_off_is_refused() -> None:
    with pytest.raises(Corruption, match="LSN 77"):
        decode_record(77, encode_record(77, RecordKind.COMMIT, b"body")[:-1])


def test_a_kind_of_the_future_is_refused_by_its_number() -> None:
    rest = struct.pack("<QB", 77, 200)
    data = struct.pack("<II", 0, zlib.crc32(rest)) + rest
    with pytest.raises(Corruption, match="unknown kind 200"):
        decode_record(77, data)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=10,
)


@given(meta=PLAIN, payloads=st.lists(st.binary(), max_size=3))
def test_a_body_gives_back_its_values_and_where_payloads_begin(
    meta: object, payloads: list[bytes]
) -> None:
    body = pack_body(meta, payloads)
    found, start = unpack_body(body, "here")
    assert found == meta
    assert body[start:] == b"".join(payloads)


@pytest.mark.parametrize("body", [b"", b"\1\0\0", b"\5\0\0\0\xc1", b"\2\0\0\0\1\1", b"\7\0\0\0"])
def test_a_body_that_is_no_msgpack_is_refused_with_its_place(body: bytes) -> None:
    with pytest.raises(Corruption, match="the place cannot be read"):
        unpack_body(body, "the place")


# --- Control records


@given(
    numbers=st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4),
    lsns=st.lists(st.integers(0, 2**64 - 1), min_size=6, max_size=6),
    identity=st.binary(min_size=16, max_size=16),
)
def test_a_control_record_is_read_as_it_was_written(
    numbers: list[int], lsns: list[int], identity: bytes
) -> None:
    page_bytes, blocks, epoch, _ = numbers
    control = Control(page_bytes, identity, blocks, lsns[0], epoch, *lsns[1:])
    assert decode_control(encode_control(control)) == control


def test_every_flipped_bit_of_a_control_record_is_noticed() -> None:
    encoded = encode_control(CONTROL)
    found = [b for b in range(len(encoded) * 8) if decode_control(_flipped(encoded, b)) is not None]
    assert found == []


def test_a_control_record_of_another_version_tells_which() -> None:
    encoded = bytearray(encode_control(CONTROL))
    struct.pack_into("<I", encoded, 8, 99)
    struct.pack_into("<I", encoded, len(encoded) - 4, zlib.crc32(encoded[:-4]))
    assert decode_control(bytes(encoded)) == 99


def test_a_control_record_that_is_short_or_foreign_is_none() -> None:
    encoded = encode_control(CONTROL)
    assert decode_control(encoded[:-1]) is None
    assert decode_control(b"SQLite 3".ljust(len(encoded), b"\0")) is None


def test_the_next_control_record_counts_on_and_keeps_the_rest() -> None:
    following = CONTROL.next(epoch=3)
    assert (following.sequence, following.epoch) == (6, 3)
    assert (following.identity, following.pages) == (CONTROL.identity, CONTROL.pages)
    assert following.seed == zlib.crc32(CONTROL.identity)


# --- Pages


def _pages(first: int, content: bytes) -> bytes:
    return b"".join(encode_pages(SEED, PAGE_BYTES, first, 99, content))


def _content(data: bytes, first: int, place: int = 0) -> bytes:
    return b"".join(decode_pages(SEED, PAGE_BYTES, first, place, data))


@given(content=st.binary(min_size=1, max_size=1000), first=st.integers(0, 2**40))
def test_a_run_is_read_as_it_was_written(content: bytes, first: int) -> None:
    data = _pages(first, content)
    assert len(data) == pages_needed(PAGE_BYTES, len(content)) * PAGE_BYTES
    assert _content(data, first) == content
    if len(data) > PAGE_BYTES:
        room = PAGE_BYTES - PAGE_HEADER.size
        assert _content(data[PAGE_BYTES:], first + 1, place=1) == content[room:]


def test_every_flipped_bit_of_a_page_is_noticed_with_its_offset() -> None:
    page = _pages(3, b"content")
    for bit in range(len(page) * 8):
        with pytest.raises(Corruption, match="data, offset 768"):
            _content(_flipped(page, bit), 3)


def test_a_page_at_another_place_is_refused() -> None:
    data = _pages(3, bytes(300))
    with pytest.raises(Corruption, match="page 3 stands where 4 belongs"):
        _content(data, 4)
    with pytest.raises(Corruption, match="stands where 4 belongs"):
        _content(data[PAGE_BYTES:], 4, place=0)


def test_a_page_that_is_cut_off_or_of_another_store_is_refused() -> None:
    data = _pages(3, b"content")
    with pytest.raises(Corruption, match="cut off"):
        _content(data[:-1], 3)
    with pytest.raises(Corruption, match="not whole"):
        list(decode_pages(SEED + 1, PAGE_BYTES, 3, 0, data))


def _undivided(first: int, payload: bytes) -> bytes:
    return b"".join(encode_undivided(SEED, PAGE_BYTES, first, 99, payload))


def _check_undivided(data: bytes, first: int, payload: bytes, seed: int = SEED) -> bytes:
    end = PAGE_HEADER.size + len(payload)
    check_undivided(seed, PAGE_BYTES, first, len(payload), data[: PAGE_HEADER.size])
    found = data[PAGE_HEADER.size : end]
    check_content(PAGE_BYTES, first, zlib.crc32(payload), found, data[end:])
    return found


@given(payload=st.binary(min_size=1, max_size=1000), first=st.integers(0, 2**40))
def test_an_undivided_run_is_read_as_it_was_written(payload: bytes, first: int) -> None:
    data = _undivided(first, payload)
    assert len(data) == pages_needed(PAGE_BYTES, len(payload)) * PAGE_BYTES
    assert is_undivided(data)
    assert _check_undivided(data, first, payload) == payload
    assert not is_undivided(_pages(first, payload))


def test_every_flipped_bit_of_an_undivided_run_is_noticed_with_its_offset() -> None:
    payload = bytes(300)
    data = _undivided(3, payload)
    for bit in range(len(data) * 8):
        with pytest.raises(Corruption, match="data, offset 768"):
            _check_undivided(_flipped(data, bit), 3, payload)


def test_damage_of_an_undivided_run_is_told_with_the_bytes_among_which_it_is() -> None:
    payload = bytes(300)
    data = _undivided(3, payload)
    with pytest.raises(Corruption, match="in the bytes 800 to 1099 the payload is not"):
        _check_undivided(_flipped(data, 8 * 200), 3, payload)
    with pytest.raises(Corruption, match="byte 1102, behind the payload"):
        _check_undivided(_flipped(data, 8 * (PAGE_HEADER.size + 302)), 3, payload)


def test_an_undivided_run_elsewhere_cut_off_or_of_another_store_is_refused() -> None:
    payload = bytes(300)
    data = _undivided(3, payload)
    with pytest.raises(Corruption, match="page 3 stands where 4 belongs"):
        _check_undivided(data, 4, payload)
    with pytest.raises(Corruption, match="the run has 300 bytes, not 299"):
        _check_undivided(data, 3, payload[:-1])
    with pytest.raises(Corruption, match="the run is cut off"):
        _check_undivided(data[:-1], 3, payload)
    with pytest.raises(Corruption, match="the page is cut off"):
        _check_undivided(data[:9], 3, payload)
    with pytest.raises(Corruption, match="not whole"):
        _check_undivided(data, 3, payload, SEED + 1)
    assert not is_undivided(data[:9])


@pytest.mark.parametrize(("size", "pages"), [(0, 1), (1, 1), (224, 1), (225, 2), (448, 2)])
def test_so_many_pages_are_needed(size: int, pages: int) -> None:
    assert pages_needed(PAGE_BYTES, size) == pages


# --- The golden file: a store that was written when the version was 1, and not closed

GOLDEN = Path(__file__).parent / "golden"


def golden_image(version: int) -> dict[str, bytes]:
    """The files of a store: a line with the name, then lines of hexadecimal digits."""
    image: dict[str, bytes] = {}
    name = ""
    for line in (GOLDEN / f"version_{version}.txt").read_text(encoding="ascii").splitlines():
        if line.startswith("file "):
            name = line.removeprefix("file ")
            image[name] = b""
        elif not line.startswith("#"):
            image[name] += bytes.fromhex(line)
    return image


@pytest.fixture
def golden() -> PagedStorage:
    disk = RecordingDisk(golden_image(1))
    return PagedStorage(disk, lambda: bytes(16), time.monotonic)


def _payload(key: int) -> bytes:
    return f"payload {key} ".encode() * (100 if key == 3 else key)


def test_the_golden_store_has_its_queues_and_consumers(golden: PagedStorage) -> None:
    settings = {info.name: info.settings for info in golden.queues()}
    assert settings == {
        "orders": QueueSettings(messages_max=500),
        "urgent": QueueSettings(enabled=False, prioritized=True, bytes_max=9000),
    }
    assert golden.consumers() == [ConsumerInfo("billing", "orders", 1, 2, 1)]
    assert golden.reserved("billing", 2) == 1
    assert golden.mark("ledger") == 8


def test_the_golden_store_has_its_messages(golden: PagedStorage) -> None:
    found = {key: golden.read("orders", key) for key in range(1, 40)}
    there = [key for key, message in found.items() if message is not None]
    # 1 was finished, 2 is reserved, 5 and 27 were taken, 6 is held by the branch in doubt, and 7
    # was rolled back.
    assert there == [3, 4, *range(8, 27)]
    for key in there:
        message = found[key]
        assert message is not None
        assert message.payload == _payload(key)
        assert message.digest == zlib.crc32(message.payload)
    urgent = [golden.read("urgent", key) for key in (28, 29)]
    details = (2, 5, 1_700_000_000_000_000, "till 4", (("kind", "refund"), ("vip", "ja")))
    payloads = [_payload(28), _payload(29)]
    assert urgent == [
        Message(28, payloads[0], zlib.crc32(payloads[0]), *details),
        Message(29, payloads[1], zlib.crc32(payloads[1]), 9),
    ]


def test_the_golden_store_has_its_branches_and_outcomes(golden: PagedStorage) -> None:
    judged = Outcome.HEURISTICALLY_ROLLED_BACK
    assert golden.branches() == [
        BranchInfo(b"in doubt", Outcome.PREPARED, b"ask the coordinator", 1, 1),
        BranchInfo(b"judged", judged, b"nobody answered", 1, 0),
    ]
    assert golden.outcome(b"branch 1") is Outcome.COMMITTED
    assert golden.outcome(b"given up") is Outcome.ROLLED_BACK
    assert golden.outcome(b"given up late") is Outcome.ROLLED_BACK
    assert golden.outcome(b"forgotten") is Outcome.UNKNOWN
    golden.commit(b"in doubt")
    message = golden.read("orders", 31)
    assert message is not None
    assert message.payload == _payload(31)


def test_the_golden_store_gives_no_key_again(golden: PagedStorage) -> None:
    assert golden.store(b"new", "orders", []).start == 1002


def test_a_store_of_an_older_version_is_of_the_present_one_once_it_is_open() -> None:
    disk = RecordingDisk(golden_image(1))
    assert read_control(disk).version == 1
    PagedStorage(disk, lambda: bytes(16), time.monotonic)
    assert read_control(disk).version == FORMAT_VERSION


# --- The golden file of version 2: what the first one could not have


def test_the_golden_store_of_version_2_has_its_large_payloads() -> None:
    storage = PagedStorage(RecordingDisk(golden_image(2)), lambda: bytes(16), time.monotonic)
    found = storage.browse("orders", EVERYTHING, 0, 10)
    assert [message.payload for message in found] == [
        b"in a run that is undivided ".ljust(3000, b"."),
        b"small",
        b"large again ".ljust(3000, b"."),
    ]
    assert all(message.digest == zlib.crc32(message.payload) for message in found)
    [prepared] = storage.branches()
    storage.commit(prepared.branch)
    assert storage.take(b"t", "orders", EVERYTHING, 4)[3].payload == bytes(5000)


# --- The golden file of version 3: a checkpoint that carries branches in doubt, and parcels


def test_the_golden_store_of_version_3_has_its_branches_in_doubt() -> None:
    storage = PagedStorage(RecordingDisk(golden_image(3)), lambda: bytes(16), time.monotonic)
    found = storage.browse("orders", EVERYTHING, 0, 10)
    together = [b"together %d" % number for number in range(4)]
    assert [message.payload for message in found] == [b"decided 1", b"decided 2", *together]
    assert storage.outcome(b"given up") is Outcome.ROLLED_BACK
    block, prepared = storage.branches()
    assert block == BranchInfo(b"doubtful block", Outcome.PREPARED, b"ask", 5, 0)
    told = BranchInfo(b"in doubt", Outcome.PREPARED, b"ask the coordinator", 3, 1)
    assert prepared == told
    assert storage.mark("ledger") == 0
    storage.commit(prepared.branch)
    assert storage.mark("ledger") == 8
    payloads = [message.payload for message in storage.browse("orders", EVERYTHING, 0, 3)]
    assert payloads == [b"small", b"large ".ljust(1500, b"."), b"small too"]
    storage.commit(block.branch)
    last = storage.browse("orders", EVERYTHING, 0, 20)[-1]
    assert last == Message(
        last.key, b"in doubt together 4", last.digest, 0, 0, 1_700_000_000_000_000, "till 4"
    )
