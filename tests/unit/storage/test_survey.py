"""The reader that goes on behind damage: what it still reads, what it says, and when it is silent.

Segments have four blocks here. Records fill one block each unless a test says otherwise.
"""

from __future__ import annotations

import zlib

import pytest

from mqserver.storage.findings import Finding, Notes, Severity
from mqserver.storage.format import (
    BLOCK_BYTES,
    CONTENT_BYTES,
    NOWHERE,
    SLOT_DISTANCE,
    Control,
    RecordKind,
    blank_blocks,
    encode_blocks,
    encode_control,
    encode_record,
    segment_name,
)
from mqserver.storage.log_manager import CONTROL_NAME, LogManager, read_control
from mqserver.storage.survey import LogSurvey, survey_slots
from tests.crash.recording_disk import RecordingDisk

BLOCKS = 4
SEGMENT_BYTES = BLOCKS * BLOCK_BYTES
CONTROL = Control(1024, b"identity of log!", BLOCKS)
KIND = RecordKind.COMMITTED
Image = dict[str, bytes]


def _log(*bodies: bytes, is_closed: bool = True) -> Image:
    """A log with these records, each forced by itself."""
    disk = RecordingDisk()
    log = LogManager.create(disk, CONTROL)
    for body in bodies:
        log.force(log.append(KIND, body))
    log.close(clean=is_closed)
    return disk.image()


def _survey(image: Image) -> tuple[list[bytes], list[Finding], LogSurvey]:
    disk = RecordingDisk(image)
    notes = Notes()
    survey = LogSurvey(disk, read_control(disk), notes)
    return [record.body for record in survey.records()], notes.findings, survey


def _with_block(image: Image, number: int, block: bytes) -> Image:
    first = number - number % BLOCKS
    name, start = segment_name(first), (number - first) * BLOCK_BYTES
    data = image[name]
    return image | {name: data[:start] + block + data[start + BLOCK_BYTES :]}


def _blank(number: int) -> bytes:
    return blank_blocks(CONTROL.seed, number, 1)


def _forged(number: int, content: bytes, epoch: int = 1, starts: list[int] | None = None) -> bytes:
    return encode_blocks(CONTROL.seed, epoch, number, number, content, starts or [0])


BODIES = [b"record %d" % number for number in range(9)]


# --- What is read


def test_a_sound_log_is_read_as_by_the_log_manager() -> None:
    long = [b"long" * 300, b"short", b"longer" * 400, b""]
    image = _log(*long)
    bodies, findings, survey = _survey(image)
    assert (bodies, findings) == (long, [])
    log = LogManager.examine(RecordingDisk(image))
    assert survey.end_lsn == log.end_lsn
    assert [segment.name for segment in survey.segments] == sorted(set(image) - {CONTROL_NAME})


def test_records_that_share_blocks_are_read_from_a_restart_inside_one() -> None:
    disk = RecordingDisk()
    log = LogManager.create(disk, CONTROL)
    lsns = [log.append(KIND, body * 30) for body in BODIES]
    log.force_all()
    log.write_control(restart_lsn=lsns[1])
    log.close()
    bodies, findings, _ = _survey(disk.image())
    assert bodies == [body * 30 for body in BODIES[1:]]
    assert findings == []


def test_a_damaged_block_costs_the_records_in_it_and_no_others() -> None:
    image = _with_block(_log(*BODIES), 4, bytes(BLOCK_BYTES))
    bodies, [finding], _ = _survey(image)
    assert bodies == BODIES[:4] + BODIES[5:]
    assert (finding.file, finding.offset, finding.lsn) == (segment_name(4), 0, 4 * CONTENT_BYTES)
    assert finding.what == "the block is not whole, inside the log, and what it held is lost"


def test_reading_goes_on_with_the_next_record_that_begins_in_a_block() -> None:
    disk = RecordingDisk()
    log = LogManager.create(disk, CONTROL)
    for body in (b"a" * 700, b"b" * 700, b"c" * 700):
        log.append(KIND, body)
    log.close()
    bodies, [_], _ = _survey(_with_block(disk.image(), 0, bytes(BLOCK_BYTES)))
    assert bodies == [b"b" * 700, b"c" * 700]
    bodies, [_], _ = _survey(_with_block(disk.image(), 1, bytes(BLOCK_BYTES)))
    assert bodies == [b"c" * 700]


def test_blocks_side_by_side_are_told_together() -> None:
    image = _log(*BODIES)
    for number in (1, 2, 6):
        image = _with_block(image, number, bytes(BLOCK_BYTES))
    bodies, findings, _ = _survey(image)
    assert len(bodies) == 6
    assert [finding.offset for finding in findings] == [BLOCK_BYTES, 2 * BLOCK_BYTES]
    assert findings[0].what.startswith("2 blocks, one behind the other, are not whole")


def test_a_missing_segment_is_told_once_and_the_others_are_read() -> None:
    image = _log(*BODIES)
    del image[segment_name(4)]
    bodies, [finding], survey = _survey(image)
    assert bodies == BODIES[:4] + BODIES[8:]
    assert (finding.file, finding.what) == (segment_name(4), "is missing")
    assert survey.end_lsn == 9 * CONTENT_BYTES


def test_a_segment_from_far_away_does_not_take_for_ever() -> None:
    far = segment_name(2**62)
    image = _log(*BODIES)
    bodies, findings, _ = _survey(image | {far: bytes(SEGMENT_BYTES)})
    assert bodies == BODIES
    assert "more behind it" in findings[0].what


def test_a_segment_that_is_cut_is_read_as_far_as_it_goes() -> None:
    image = _log(*BODIES)
    cut = image | {segment_name(4): image[segment_name(4)][: 2 * BLOCK_BYTES + 10]}
    bodies, [finding], _ = _survey(cut)
    assert bodies == BODIES[:6] + BODIES[8:]
    assert finding.what == f"has {2 * BLOCK_BYTES + 10} bytes, not {SEGMENT_BYTES}"


def test_old_segments_are_left_aside() -> None:
    disk = RecordingDisk()
    log = LogManager.create(disk, CONTROL)
    lsns = [log.append(KIND, body * 50) for body in BODIES]
    log.force_all()
    log.write_control(restart_lsn=lsns[-1])
    log.close()
    bodies, findings, survey = _survey(disk.image())
    assert bodies == [BODIES[-1] * 50]
    assert survey.leftovers == [segment_name(0)]
    assert findings == []


# --- What a crash leaves is no damage


def test_a_write_that_was_torn_is_no_damage() -> None:
    image = _log(b"first", b"long" * 300, is_closed=False)
    bodies, findings, survey = _survey(_with_block(image, 2, _blank(2)))
    assert (bodies, findings) == ([b"first"], [])
    assert survey.end_lsn == 2 * CONTENT_BYTES


def test_what_was_written_after_a_crash_follows_what_was_torn() -> None:
    torn = _with_block(_log(b"first", b"long" * 300, is_closed=False), 2, _blank(2))
    disk = RecordingDisk(torn)
    log = LogManager.open(disk)
    log.append(KIND, b"second life")
    log.close()
    bodies, findings, _ = _survey(disk.image())
    assert (bodies, findings) == ([b"first", b"second life"], [])


# --- What is damage


def _only(image: Image) -> str:
    [finding] = _survey(image)[1]
    assert finding.severity is Severity.DAMAGE
    return f"{finding.place}: {finding.what}"


def test_a_block_that_a_later_one_says_was_synced_is_missed() -> None:
    image = _with_block(_log(*BODIES[:3], is_closed=False), 1, _blank(1))
    expected = f"{segment_name(0)}, offset 512, LSN 488: the block is missing"
    assert _only(image).startswith(expected)


def test_a_log_that_ends_before_it_was_closed_is_damage() -> None:
    image = _with_block(_log(*BODIES[:3]), 2, _blank(2))
    assert "closed at LSN 1464, and it ends at 976" in _only(image)


def test_a_log_that_was_closed_within_a_record_is_damage() -> None:
    image = _log(*BODIES[:2], b"long" * 200)
    image = _with_block(image, 3, _blank(3))
    control = read_control(RecordingDisk(image))
    closed = encode_control(control.next(end_lsn=3 * CONTENT_BYTES))
    at = (control.sequence + 1) % 2 * SLOT_DISTANCE
    data = image[CONTROL_NAME]
    image[CONTROL_NAME] = data[:at] + closed + data[at + len(closed) :]
    assert "within a record" in _only(image)


def test_a_block_from_the_future_is_damage() -> None:
    content = encode_record(2 * CONTENT_BYTES, KIND, b"later")
    image = _with_block(_log(*BODIES[:2], is_closed=False), 2, _forged(2, content, epoch=7))
    assert "epoch 7, of the future" in _only(image)


def test_segments_that_have_each_others_names_are_told() -> None:
    image = _log(*BODIES)
    one, other = segment_name(4), segment_name(8)
    image |= {one: image[other], other: image[one]}
    bodies, findings, _ = _survey(image)
    assert bodies == BODIES[:4]
    assert {finding.file for finding in findings} == {one, other}


def _with_first(block: bytes, first: int) -> bytes:
    """The block with another place of its first record, and the right checksum."""
    rest = block[4:0x12] + first.to_bytes(2, "little") + block[0x14:]
    return zlib.crc32(rest, CONTROL.seed).to_bytes(4, "little") + rest


@pytest.mark.parametrize("first", [7, NOWHERE])
def test_a_block_that_does_not_begin_with_a_record_is_damage(first: int) -> None:
    content = encode_record(CONTENT_BYTES, KIND, b"a record")
    block = _with_first(_forged(1, content), first)
    image = _with_block(_log(b"first", is_closed=False), 1, block)
    assert "the block does not begin with a record" in _survey(image)[1][0].what


def test_a_block_must_say_where_its_first_record_begins() -> None:
    disk = RecordingDisk()
    log = LogManager.create(disk, CONTROL)
    log.append(KIND, b"a" * 700)
    log.append(KIND, b"b" * 10)
    log.close()
    image = disk.image()
    block = image[segment_name(0)][BLOCK_BYTES : 2 * BLOCK_BYTES]
    spoilt = _with_block(image, 1, _with_first(block, 300))
    assert "does not say where its first record begins" in _only(spoilt)


def test_a_record_whose_checksum_is_wrong_in_a_whole_block_is_damage() -> None:
    content = bytearray(encode_record(CONTENT_BYTES, KIND, b"a record"))
    content[-1] ^= 1
    image = _with_block(_log(b"first", is_closed=False), 1, _forged(1, bytes(content)))
    assert "log record at LSN 488 is not whole" in _only(image)


def test_a_record_that_is_longer_than_its_write_is_damage() -> None:
    content = encode_record(CONTENT_BYTES, KIND, b"a record")[:-2]
    image = _with_block(_log(b"first", is_closed=False), 1, _forged(1, content))
    assert "the record is cut off" in _only(image)


def test_the_segment_behind_the_last_block_is_missed() -> None:
    image = _log(*BODIES[:3])
    del image[segment_name(4)], image[segment_name(8)]
    assert _only(image) == f"{segment_name(4)}, LSN {4 * CONTENT_BYTES}: is missing"


@pytest.mark.parametrize(
    "name", ["log-xxxxxxxxxxxxxxxx", "log-000000000000000A", "log-+" + "0" * 15]
)
def test_a_name_that_no_segment_has_is_damage(name: str) -> None:
    assert _only(_log(b"first") | {name: bytes(SEGMENT_BYTES)}).startswith(f"{name}: is not the")


# --- The control record


def _slots(data: bytes) -> tuple[list[bool], list[str]]:
    notes = Notes()
    slots = survey_slots(RecordingDisk({CONTROL_NAME: data}), notes)
    return [slot is not None for slot in slots], [finding.what for finding in notes.findings]


def test_slots_are_judged_one_by_one() -> None:
    data = _log(b"first")[CONTROL_NAME]
    assert _slots(data) == ([True, True], [])
    whole, [told] = _slots(data[:30] + b"?" + data[31:])
    assert whole == [False, True]
    assert told.startswith("the slot is not whole")
    whole, [told] = _slots(data[:SLOT_DISTANCE])
    assert whole == [True, False]
    whole, [told] = _slots(data[:200] + b"?" + data[201:])
    assert whole == [True, True]
    assert "not the zeros" in told


def test_slots_of_two_stores_do_not_belong_together() -> None:
    one, other = CONTROL, Control(1024, b"another identity", BLOCKS, sequence=1)
    data = encode_control(one).ljust(SLOT_DISTANCE, b"\0") + encode_control(other)
    whole, told = _slots(data.ljust(SLOT_DISTANCE + BLOCK_BYTES, b"\0"))
    assert whole == [True, True]
    assert told == ["its two slots do not belong together"]


def test_sizes_that_cannot_be_are_damage() -> None:
    data = encode_control(Control(1024, bytes(16), 0)).ljust(SLOT_DISTANCE, b"\0")
    data += encode_control(Control(16, bytes(16), 8, sequence=1)).ljust(BLOCK_BYTES, b"\0")
    assert _slots(data)[0] == [False, False]
