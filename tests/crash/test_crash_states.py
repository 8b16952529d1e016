"""The enumeration of crash states: that it keeps to what a disk may do, and leaves nothing out.

Whether it finds the mistakes that people make is shown in `test_tiny_journal.py`.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqserver import errors
from tests.crash.crash_states import crash_states
from tests.crash.faults import Fault, at
from tests.crash.recording_disk import RecordingDisk

# --- What a disk may do ---------------------------------------------------------------------------


def test_what_was_not_synced_may_be_there_in_every_combination() -> None:
    disk = RecordingDisk({"file": b"A" * 512 + b"B" * 512})
    disk.open("file").write(0, b"a" * 512 + b"b" * 512)
    assert _letters(disk) == {"AB", "Ab", "aB", "ab"}


def test_what_was_synced_is_there() -> None:
    disk = RecordingDisk({"file": b"A" * 512 + b"B" * 512})
    file = disk.open("file")
    file.write(0, b"a" * 512)
    file.sync()
    file.write(512, b"b" * 512)
    assert _letters(disk) == {"aB", "ab"}


def test_a_sector_arrives_with_all_that_was_written_into_it_before() -> None:
    disk = RecordingDisk({"file": b"A" * 512})
    file = disk.open("file")
    file.write(0, b"x" * 100)
    file.write(100, b"y" * 100)
    contents = {state.files()["file"][:200:100] for state in crash_states(disk.trace)}
    assert contents == {b"AA", b"xA", b"xy"}


def test_a_grown_file_may_have_its_size_without_its_data() -> None:
    disk = RecordingDisk({"file": b"A" * 512})
    disk.open("file").write(512, b"b" * 700)
    found = {state.choice: state.files()["file"] for state in crash_states(disk.trace)}
    assert found["metadata alone"] == b"A" * 512 + bytes(700)
    junk = found["metadata alone and junk"]
    assert len(junk) == 1212
    assert junk[:512] == b"A" * 512
    assert junk[512:].count(0) < 100
    torn = b"A" * 512 + bytes(512) + b"b" * 188
    assert torn in [state.files()["file"] for state in crash_states(disk.trace)]


def test_junk_is_only_where_nothing_was_before_and_something_was_written() -> None:
    disk = RecordingDisk({"file": b"A" * 512})
    file = disk.open("file")
    file.allocate(2048)
    file.sync()
    file.write(512, b"b" * 512)
    file.write(4096, b"c" * 512)
    junk = [state for state in crash_states(disk.trace) if "junk" in state.choice]
    assert junk
    for data in (state.files()["file"] for state in junk if state.point == 5):
        assert data[512:4096] == bytes(4096 - 512)
        assert any(data[4096:])


def test_a_truncation_may_be_lost_unless_a_later_size_is_there() -> None:
    disk = RecordingDisk({"file": b"A" * 1024})
    file = disk.open("file")
    file.truncate(0)
    file.write(0, b"b" * 512)
    assert _letters(disk) == {"AA", "bA", "", ".", "b"}


def test_what_a_truncation_took_does_not_come_back_when_the_file_grows() -> None:
    disk = RecordingDisk({"file": b""})
    file = disk.open("file")
    file.write(0, b"b" * 1024)
    file.truncate(512)
    file.truncate(1024)
    assert "bb" in _letters(disk), "the truncations may both be lost"
    assert disk.image() in _images_at_end(disk)
    file.sync()
    assert _letters(disk) == {"b."}


def test_names_and_contents_do_not_wait_for_each_other() -> None:
    disk = RecordingDisk({"file": b"old"})
    new = disk.open("new", create=True)
    new.write(0, b"new")
    disk.rename("new", "file")
    images = {tuple(state.files().items()) for state in crash_states(disk.trace)}
    assert (("file", b""),) in images
    assert (("file", b"new"),) in images
    assert (("file", b"old"),) in images
    assert (("file", b"old"), ("new", b"")) in images
    assert (("file", b"\0\0\0"),) in images


def test_syncing_a_file_does_not_make_its_name_safe() -> None:
    disk = RecordingDisk()
    file = disk.open("file", create=True)
    file.write(0, b"data")
    file.sync()
    assert _images_at_end(disk) == [{}, {"file": b"data"}]
    disk.sync_directory()
    assert _images_at_end(disk) == [{"file": b"data"}]


def test_a_removed_file_may_come_back_until_the_directory_is_synced() -> None:
    disk = RecordingDisk({"file": b"data"})
    file = disk.open("file")
    disk.remove("file")
    assert _images_at_end(disk) == [{}, {"file": b"data"}]
    disk.sync_directory()
    file.write(0, b"written to nowhere")
    assert _images_at_end(disk) == [{}]


def test_a_file_that_is_renamed_has_the_old_name_or_the_new_one() -> None:
    disk = RecordingDisk({"file": b"old"})
    disk.rename("file", "other")
    disk.rename("other", "third")
    disk.open("file", create=True)
    disk.remove("file")
    images = _images_at_end(disk)
    assert {name for image in images for name in image} == {"file", "other", "third"}
    assert all([*image.values()].count(b"old") == 1 for image in images)


def test_what_a_failed_sync_covered_is_not_saved_by_the_next_one() -> None:
    disk = RecordingDisk({"file": b"A" * 1024}, faults=at(2, Fault.EIO))
    file = disk.open("file")
    file.write(0, b"a" * 512)
    with pytest.raises(errors.StorageFailed):
        file.sync()
    again = disk.open("file")
    again.write(512, b"b" * 512)
    again.sync()
    assert _letters(disk) == {"Ab", "ab"}
    # Written once more it is safe.
    again.write(0, b"a" * 512)
    again.sync()
    assert _letters(disk) == {"ab"}


def test_what_is_written_during_a_sync_may_be_lost() -> None:
    disk = RecordingDisk({"file": b"A" * 512 + b"B" * 512})
    file = disk.open("file")
    file.write(0, b"a" * 512)
    disk.during_sync = lambda name: file.write(512, b"b" * 512)
    file.sync()
    assert _letters(disk) == {"aB", "ab"}


def test_stale_blocks_hold_what_was_written_before_elsewhere() -> None:
    disk = RecordingDisk()
    for name in ("one", "two"):
        disk.open(name, create=True).write(0, name.encode() * 170)
    states = crash_states(disk.trace, stale_blocks=True)
    stale = [state.files() for state in states if "stale" in state.choice]
    assert any(b"one" in files.get("two", b"") for files in stale)


def test_the_events_of_a_state_are_those_before_the_crash() -> None:
    disk = RecordingDisk({"file": b""})
    disk.note("begin")
    disk.open("file").write(0, b"data")
    disk.note("end")
    events = {state.point: state.events for state in crash_states(disk.trace)}
    assert events == {0: (), 1: ("begin",), 2: ("begin",), 3: ("begin", "end")}
    by_tag = list(crash_states(disk.trace, tag=lambda events: None))
    assert max(state.point for state in by_tag) == 2


def test_a_budget_is_spread_over_the_whole_trace() -> None:
    disk = _busy_disk()
    states = list(crash_states(disk.trace, seed=1, budget=300))
    assert len(states) == 300
    last = len(disk.trace.entries)
    for start in range(0, last, last // 10):
        assert any(start <= state.point <= start + last // 10 for state in states)


def test_the_same_seed_gives_the_same_states() -> None:
    disk = _busy_disk()
    first, second, other = (
        [state.files() for state in crash_states(disk.trace, seed, 500)] for seed in (7, 7, 8)
    )
    assert first == second
    assert first != other


def test_a_state_tells_what_arrived_and_what_did_not() -> None:
    disk = RecordingDisk({"file": b"A" * 512})
    disk.note("begin")
    disk.open("file").write(512, b"b" * 512)
    told = [str(state) for state in crash_states(disk.trace) if state.choice == "metadata alone"]
    assert "arrived Size(file=1, size=1024)" in told[0]
    assert "lost    Sector(file=1, index=1)" in told[0]
    assert "begin" in told[0]


# --- The same, for whatever a program does --------------------------------------------------------

_ACTIONS = st.one_of(
    st.tuples(
        st.just("write"), st.integers(0, 2), st.integers(0, 1200), st.binary(min_size=1, max_size=9)
    ),
    st.tuples(st.just("truncate"), st.integers(0, 2), st.integers(0, 1200), st.just(b"")),
    *(
        st.tuples(st.just(kind), st.integers(0, 2), st.integers(0, 2), st.just(b""))
        for kind in ("sync", "rename", "remove", "sync directory")
    ),
)


@given(st.lists(_ACTIONS, max_size=12), st.integers(0, 100))
def test_states_are_distinct_and_among_them_are_all_and_nothing(
    actions: list[tuple[str, int, int, bytes]], seed: int
) -> None:
    disk = RecordingDisk({"0": b"zero" * 200})
    _act(disk, actions)
    states = list(crash_states(disk.trace, seed))
    images = [(tuple(state.files().items()), len(state.events)) for state in states]
    assert len(images) == len(set(images))
    assert disk.image() in [state.files() for state in states]
    assert {"0": b"zero" * 200} in [state.files() for state in states]


@given(st.lists(_ACTIONS, max_size=12))
def test_after_everything_was_synced_there_is_one_state(
    actions: list[tuple[str, int, int, bytes]],
) -> None:
    disk = RecordingDisk({"0": b"zero" * 200})
    _act(disk, actions)
    for name in disk.names():
        disk.open(name).sync()
    disk.sync_directory()
    assert _images_at_end(disk) == [disk.image()]


def _act(disk: RecordingDisk, actions: list[tuple[str, int, int, bytes]]) -> None:
    for kind, number, place, data in actions:
        name = str(number)
        match kind:
            case "write":
                disk.open(name, create=True).write(place, data * 100)
            case "truncate":
                disk.open(name, create=True).truncate(place)
            case "sync":
                disk.open(name, create=True).sync()
            case "rename" if disk.exists(name) and place != number:
                disk.rename(name, str(place))
            case "remove" if disk.exists(name):
                disk.remove(name)
            case "sync directory":
                disk.sync_directory()


def _images_at_end(disk: RecordingDisk) -> list[dict[str, bytes]]:
    """What a crash may leave now, the smallest first."""
    disk.note("now")
    states = crash_states(disk.trace)
    images = [state.files() for state in states if state.point == len(disk.trace.entries)]
    return sorted(images, key=lambda image: (len(image), *image.items()))


def _letters(disk: RecordingDisk) -> set[str]:
    """The same for the file called `file`, told by the first byte of each of its sectors."""
    contents = [image["file"][::512] for image in _images_at_end(disk)]
    return {content.replace(b"\0", b".").decode("latin-1") for content in contents}


def _busy_disk() -> RecordingDisk:
    """A disk with two hundred entries in its trace, and often much that is pending."""
    chance = random.Random(0)
    disk = RecordingDisk()
    for number in range(100):
        file = disk.open(str(chance.randrange(3)), create=True)
        file.write(chance.randrange(5000), chance.randbytes(chance.randrange(1, 3000)))
        if number % 7 == 0:
            file.sync()
        if number % 20 == 0:
            disk.sync_directory()
        disk.note(number)
    return disk
