"""The files of the log, on a disk in memory: what is made, read, recycled, and refused."""

from __future__ import annotations

import pytest

from mqserver.errors import Corruption, StorageFailed, StorageFull
from mqserver.storage.format import (
    BLOCK_BYTES,
    CONTENT_BYTES,
    encode_blocks,
    segment_name,
)
from mqserver.storage.segments import NEW_NAME, SPARES, SPARES_MAX, Segments
from tests.conformance.paged_storages import durable_image
from tests.crash.crash_states import crash_states
from tests.crash.faults import Fault
from tests.crash.recording_disk import RecordingDisk
from tests.crash.trace import Wrote

SEED = 4711
BLOCKS = 4
SEGMENT_BYTES = BLOCKS * BLOCK_BYTES
NEW = [BLOCKS * n for n in range(1 + SPARES)]


def _created(disk: RecordingDisk) -> Segments:
    segments = Segments(disk, SEED, BLOCKS)
    segments.create()
    return segments


def _opened(image: dict[str, bytes], restart_block: int = 0) -> Segments:
    segments = Segments(RecordingDisk(image), SEED, BLOCKS)
    segments.open(restart_block)
    return segments


def _blocks(number: int, count: int = 1, epoch: int = 1, synced: int | None = None) -> bytes:
    """Blocks that are full of the last digit of their number."""
    content = b"".join(b"%d" % (n % 10) * CONTENT_BYTES for n in range(number, number + count))
    return encode_blocks(SEED, epoch, number, number if synced is None else synced, content, [])


def _names(disk: RecordingDisk) -> list[int]:
    return [int(name.removeprefix("log-"), 16) for name in disk.names()]


@pytest.fixture
def disk() -> RecordingDisk:
    return RecordingDisk()


# --- Making


def test_a_new_log_has_spares_and_all_blocks_are_whole_and_blank(disk: RecordingDisk) -> None:
    segments = _created(disk)
    assert _names(disk) == NEW
    assert segments.end == len(NEW) * BLOCKS
    blocks = list(segments.blocks(0, segments.end))
    assert [block.number for block in blocks] == list(range(segments.end))
    assert {(block.epoch, block.content) for block in blocks} == {(0, b"")}


def test_a_new_log_takes_the_place_of_an_unfinished_one() -> None:
    disk = RecordingDisk({segment_name(8): b"old", NEW_NAME: b"half"})
    _created(disk)
    assert _names(disk) == NEW


def test_a_segment_gets_its_name_when_all_of_it_is_synced(disk: RecordingDisk) -> None:
    names_at_sync = []
    disk.during_sync = lambda name: names_at_sync.append((name, disk.names()))
    _created(disk)
    named = [segment_name(first) for first in NEW]
    assert names_at_sync == [(NEW_NAME, [*named[:n], NEW_NAME]) for n in range(len(NEW))]


def test_a_full_disk_leaves_no_half_segment_behind(disk: RecordingDisk) -> None:
    segments = _created(disk)
    disk.capacity_bytes = len(NEW) * SEGMENT_BYTES + 100
    with pytest.raises(StorageFull):
        segments.make_room(BLOCKS, may_use_spare=False)
    assert _names(disk) == NEW
    disk.capacity_bytes = (len(NEW) + 1) * SEGMENT_BYTES
    segments.make_room(BLOCKS, may_use_spare=False)
    assert _names(disk) == [*NEW, len(NEW) * BLOCKS]


def test_there_are_always_spares_behind_the_segment_that_is_written(disk: RecordingDisk) -> None:
    segments = _created(disk)
    segments.make_room(BLOCKS - 1, may_use_spare=False)
    assert _names(disk) == NEW
    segments.make_room(2 * BLOCKS + 1, may_use_spare=False)
    assert _names(disk) == [BLOCKS * n for n in range(3 + SPARES)]


def test_a_full_disk_leaves_one_spare_to_those_who_give_room_back(disk: RecordingDisk) -> None:
    segments = _created(disk)
    disk.capacity_bytes = len(NEW) * SEGMENT_BYTES
    segments.make_room((len(NEW) - 1) * BLOCKS - 1, may_use_spare=True)
    with pytest.raises(StorageFull):
        segments.make_room((len(NEW) - 1) * BLOCKS - 1, may_use_spare=False)
    with pytest.raises(StorageFull):
        segments.make_room((len(NEW) - 1) * BLOCKS, may_use_spare=True)


def test_a_segment_complains_under_the_name_it_has_now(disk: RecordingDisk) -> None:
    segments = _created(disk)
    disk.faults = lambda operation: Fault.EIO if operation.kind == "sync" else None
    with pytest.raises(StorageFailed, match=f"{segment_name(BLOCKS)}, sync"):
        segments.write(BLOCKS, _blocks(BLOCKS))


# --- Writing and reading


def test_what_was_written_across_segments_is_read_again(disk: RecordingDisk) -> None:
    segments = _created(disk)
    segments.write(2, _blocks(2, count=4))
    assert segments.read_content(3, 3) == b"".join(b"%d" % n * CONTENT_BYTES for n in (3, 4, 5))


def test_a_write_across_segments_syncs_each_of_them() -> None:
    disk = RecordingDisk(_image())
    segments = Segments(disk, SEED, BLOCKS)
    segments.open(0)
    synced: list[str] = []
    disk.during_sync = synced.append
    segments.write(2, _blocks(2, count=4))
    assert synced == [segment_name(0), segment_name(BLOCKS)]


def test_content_of_a_block_that_ends_early_is_filled_up(disk: RecordingDisk) -> None:
    segments = _created(disk)
    segments.write(0, encode_blocks(SEED, 1, 0, 0, b"short", [0]) + _blocks(1))
    content = segments.read_content(0, 2)
    assert content[:10] == b"short\0\0\0\0\0"
    assert content[CONTENT_BYTES:] == b"1" * CONTENT_BYTES


def test_content_that_was_never_written_there_is_refused(disk: RecordingDisk) -> None:
    segments = _created(disk)
    segments.write(2, _blocks(3))
    with pytest.raises(Corruption, match=r"log-0000000000000000, offset 1024: the block is not"):
        segments.read_content(2, 1)
    with pytest.raises(Corruption, match=r"log-000000000000000c is missing"):
        segments.read_content(3 * BLOCKS, 1)


# --- Opening


def _image(*numbers: int, epoch: int = 1) -> dict[str, bytes]:
    """A log of three segments in which these blocks are written."""
    disk = RecordingDisk()
    segments = _created(disk)
    for number in numbers:
        segments.write(number, _blocks(number, epoch=epoch))
    return disk.image()


def test_the_log_ends_before_the_first_blank_block() -> None:
    assert _opened(_image()).find_end(0, 1) == 0
    assert _opened(_image(0, 1, 2, 3, 4)).find_end(0, 1) == 5


def test_older_segments_and_leftovers_stay_until_somebody_tidies_up() -> None:
    image = {**_image(*range(6)), NEW_NAME: b"half"}
    disk = RecordingDisk(image)
    segments = Segments(disk, SEED, BLOCKS)
    segments.open(restart_block=5)
    assert segments.find_end(5, 1) == 6
    assert disk.image() == image
    segments.tidy(6)
    assert _names(disk) == [4, 8]


def test_room_for_records_that_were_lost_is_given_back_from_the_end() -> None:
    disk = RecordingDisk()
    _created(disk).make_room(9 * BLOCKS, may_use_spare=False)
    again = RecordingDisk(disk.image())
    segments = Segments(again, SEED, BLOCKS)
    segments.open(0)
    segments.tidy(1)
    assert _names(again) == [BLOCKS * n for n in range(1 + SPARES_MAX)]
    for state in crash_states(again.trace):
        _opened(state.files())


def test_blocks_that_are_written_again_are_synced_and_stay_the_same() -> None:
    image = _image(*range(6))
    disk = RecordingDisk(image)
    segments = Segments(disk, SEED, BLOCKS)
    segments.open(0)
    synced: list[str] = []
    disk.during_sync = synced.append
    segments.write_again(2, 6)
    assert synced == [segment_name(0), segment_name(BLOCKS)]
    assert disk.image() == image
    assert sum(isinstance(entry, Wrote) for entry in disk.trace.entries) == 2


def test_a_block_vouches_for_what_was_synced_before_it() -> None:
    disk = RecordingDisk()
    segments = _created(disk)
    segments.write(0, _blocks(0))
    segments.write(1, _blocks(1, count=3, synced=1))
    assert [segments.vouched_for(end) for end in (1, 2, 4)] == [0, 1, 1]


def test_a_missing_segment_is_refused_by_name() -> None:
    image = _image(0)
    del image[segment_name(4)]
    with pytest.raises(Corruption, match="log-0000000000000004 is missing"):
        _opened(image)


def test_a_missing_first_segment_is_refused_by_name() -> None:
    image = _image(0)
    del image[segment_name(0)]
    with pytest.raises(Corruption, match="log-0000000000000000 is missing"):
        _opened(image)


def test_a_log_without_a_spare_is_refused_by_name() -> None:
    image = _image(*range(6))
    del image[segment_name(8)]
    with pytest.raises(Corruption, match="log-0000000000000008 is missing"):
        _opened(image).find_end(0, 1)


def test_a_lonely_segment_is_refused() -> None:
    image = _image(0)
    with pytest.raises(Corruption, match="log-0000000000000004 is missing"):
        _opened({segment_name(0): image[segment_name(0)]})


@pytest.mark.parametrize("size", [0, SEGMENT_BYTES - 1, SEGMENT_BYTES + 1])
def test_a_segment_of_another_size_is_refused(size: int) -> None:
    image = _image(0)
    image[segment_name(4)] = image[segment_name(4)][:size].ljust(size, b"\0")
    with pytest.raises(Corruption, match=f"log-0000000000000004 has {size} bytes, not 2048"):
        _opened(image)


def test_a_file_with_almost_the_name_of_a_segment_is_refused() -> None:
    with pytest.raises(Corruption, match="log-this-is-no-hex-a is not the name of a segment"):
        _opened({**_image(0), "log-this-is-no-hex-a": b""})


# --- The end of the log


def _damaged(image: dict[str, bytes], number: int) -> dict[str, bytes]:
    first = number - number % BLOCKS
    data = bytearray(image[segment_name(first)])
    data[(number - first) * BLOCK_BYTES + 50] ^= 1
    return {**image, segment_name(first): bytes(data)}


@pytest.mark.parametrize("number", [0, 2, 5, 9])
def test_a_block_that_is_not_whole_is_refused_wherever_it_is(number: int) -> None:
    place = rf"{segment_name(number - number % BLOCKS)}, offset {number % BLOCKS * BLOCK_BYTES}:"
    with pytest.raises(Corruption, match=f"{place} the block is neither old nor new"):
        _opened(_damaged(_image(0, 1, 2), number)).find_end(0, 1)


def test_a_segment_of_another_store_is_refused() -> None:
    foreign = RecordingDisk()
    Segments(foreign, SEED + 1, BLOCKS).create()
    image = {**_image(0), segment_name(4): foreign.image()[segment_name(4)]}
    with pytest.raises(Corruption, match="log-0000000000000004, offset 0"):
        _opened(image).find_end(0, 1)


def test_a_follower_that_was_not_synced_is_not_part_of_the_log() -> None:
    # One write of the blocks 1 to 3, of which the power cut left the last one only.
    image = _image(0)
    disk = RecordingDisk(image)
    segments = Segments(disk, SEED, BLOCKS)
    segments.open(0)
    segments.write(3, _blocks(3, synced=1))
    assert segments.find_end(0, 1) == 1


def test_a_stale_follower_of_an_older_epoch_is_not_part_of_the_log() -> None:
    disk = RecordingDisk(_image(0, 1, 2))
    segments = Segments(disk, SEED, BLOCKS)
    segments.open(0)
    segments.write(1, _blocks(1, epoch=2))
    assert segments.find_end(0, 2) == 2


def test_a_block_that_a_later_one_calls_synced_is_missed() -> None:
    with pytest.raises(Corruption, match=r"offset 512: the block is missing: block 2 says"):
        _opened(_image(0, 2)).find_end(0, 1)


def test_a_block_from_the_future_is_refused() -> None:
    with pytest.raises(Corruption, match="written in epoch 2, of the future"):
        _opened(_image(0, epoch=2)).find_end(0, 1)


# --- Recycling


def test_an_old_segment_becomes_the_spare_and_its_blocks_betray_their_age() -> None:
    disk = RecordingDisk(_image(*range(6)))
    segments = Segments(disk, SEED, BLOCKS)
    segments.open(0)
    segments.forget_before(5, current=6)
    assert _names(disk) == [4, 8, 12]
    assert [block.number for block in segments.blocks(12, 16)] == [0, 1, 2, 3]
    assert segments.find_end(5, 1) == 6


def test_a_recycled_segment_has_its_name_on_disk_before_it_is_used() -> None:
    disk = RecordingDisk(_image(*range(6)))
    segments = Segments(disk, SEED, BLOCKS)
    segments.open(0)
    segments.forget_before(5, current=6)
    assert segment_name(12) in durable_image(disk.trace)


def test_a_block_that_is_needed_and_stands_elsewhere_is_refused() -> None:
    image = _image(*range(6))
    image[segment_name(4)], image[segment_name(8)] = (
        image[segment_name(8)],
        image[segment_name(4)],
    )
    with pytest.raises(Corruption, match="is block 8, which belongs elsewhere"):
        _opened(image).find_end(0, 1)
    # An old segment in its place, as if it were a spare; the right one behind it.
    disk = RecordingDisk(_image(*range(6)))
    segments = Segments(disk, SEED, BLOCKS)
    segments.open(0)
    segments.forget_before(4, current=6)
    image = disk.image()
    image[segment_name(4)], image[segment_name(12)] = (
        image[segment_name(12)],
        image[segment_name(4)],
    )
    with pytest.raises(Corruption, match=r"log-000000000000000c, offset 0: .* is block 4"):
        _opened(image, restart_block=4).find_end(4, 1)


def test_no_more_spares_are_kept_than_are_of_use(disk: RecordingDisk) -> None:
    segments = _created(disk)
    segments.make_room(9 * BLOCKS, may_use_spare=False)
    segments.forget_before(9 * BLOCKS, current=9 * BLOCKS)
    assert _names(disk) == [BLOCKS * n for n in range(9, 10 + SPARES_MAX)]


def test_forgetting_within_the_oldest_segment_changes_nothing(disk: RecordingDisk) -> None:
    segments = _created(disk)
    segments.forget_before(BLOCKS - 1, current=BLOCKS)
    assert _names(disk) == NEW
