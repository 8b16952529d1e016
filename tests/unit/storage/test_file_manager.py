"""The data file on a disk in memory, and the map of free pages against a model of it."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mqserver.errors import Corruption, StorageFull
from mqserver.storage.file_manager import DATA_NAME, FileManager, FreeMap
from mqserver.storage.format import PAGE_HEADER
from tests.conformance.paged_storages import durable_image
from tests.crash.recording_disk import RecordingDisk

SEED = 99
PAGE_BYTES = 256
ROOM = PAGE_BYTES - PAGE_HEADER.size


@pytest.fixture
def disk() -> RecordingDisk:
    disk = RecordingDisk()
    FileManager.create(disk)
    return disk


@pytest.fixture
def files(disk: RecordingDisk) -> FileManager:
    return FileManager(disk, SEED, PAGE_BYTES, 0)


def _written(files: FileManager, content: bytes) -> int:
    first = files.allocate(len(content))
    files.write(first, content, lsn=5)
    return first


def _reopened(disk: RecordingDisk, pages: int = 0) -> FileManager:
    return FileManager(RecordingDisk(disk.image()), SEED, PAGE_BYTES, pages)


def test_a_run_is_read_as_a_whole_and_in_parts(files: FileManager) -> None:
    content = bytes(range(256)) * 4
    _written(files, b"another run")
    first = _written(files, content)
    address = first * files.room
    assert files.read(first, address, len(content)) == content
    assert files.read(first, address + 300, 500) == content[300:800]
    assert files.read(first, address + ROOM, 1) == content[ROOM : ROOM + 1]


def test_runs_stand_one_behind_the_other(files: FileManager) -> None:
    assert [_written(files, bytes(size)) for size in (1, ROOM, ROOM + 1, 5)] == [0, 1, 2, 4]
    assert (files.pages, files.free_pages) == (5, 0)


def test_a_read_behind_the_run_is_refused(files: FileManager) -> None:
    first = _written(files, b"short")
    with pytest.raises(Corruption, match="data, offset 0: the run is too short"):
        files.read(first, 0, 6)
    second = _written(files, b"another")
    with pytest.raises(Corruption, match="stands where 1 belongs"):
        files.read(first, second * files.room, 7)


def test_a_damaged_page_is_refused_with_its_offset(disk: RecordingDisk, files: FileManager) -> None:
    _written(files, b"first")
    first = _written(files, b"second")
    data = bytearray(disk.image()[DATA_NAME])
    data[PAGE_BYTES + 40] ^= 1
    damaged = FileManager(RecordingDisk({DATA_NAME: bytes(data)}), SEED, PAGE_BYTES, 2)
    assert damaged.read(0, 0, 5) == b"first"
    with pytest.raises(Corruption, match="data, offset 256"):
        damaged.read(first, first * ROOM, 6)


def test_what_was_synced_survives_a_power_cut(disk: RecordingDisk, files: FileManager) -> None:
    disk.sync_directory()
    first = _written(files, b"kept")
    files.sync()
    image = durable_image(disk.trace)
    assert FileManager(RecordingDisk(image), SEED, PAGE_BYTES, 1).read(first, 0, 4) == b"kept"


def test_nothing_is_synced_twice(disk: RecordingDisk, files: FileManager) -> None:
    synced: list[str] = []
    disk.during_sync = synced.append
    files.sync()
    _written(files, b"content")
    files.sync()
    files.sync()
    assert synced == [DATA_NAME]


def test_what_is_written_during_a_sync_wants_another_one(
    disk: RecordingDisk, files: FileManager
) -> None:
    synced: list[str] = []

    def write_more(name: str) -> None:
        synced.append(name)
        if len(synced) == 1:
            _written(files, b"more")

    disk.during_sync = write_more
    _written(files, b"content")
    files.sync()
    files.sync()
    assert synced == [DATA_NAME, DATA_NAME]


def test_freed_pages_are_used_again(files: FileManager) -> None:
    runs = [_written(files, bytes(2 * ROOM)) for _ in range(3)]
    files.free(runs[1], 2 * ROOM)
    assert (files.pages, files.free_pages) == (6, 2)
    assert _written(files, b"small") == runs[1]
    assert _written(files, bytes(2 * ROOM)) == 6
    assert files.free_pages == 1


def test_the_file_shrinks_to_its_last_used_page(disk: RecordingDisk, files: FileManager) -> None:
    runs = [_written(files, bytes(2 * ROOM)) for _ in range(3)]
    for run in runs[1:]:
        files.free(run, 2 * ROOM)
    files.shrink()
    assert len(disk.image()[DATA_NAME]) == 2 * PAGE_BYTES
    files.free(runs[0], 2 * ROOM)
    files.shrink()
    assert (disk.image()[DATA_NAME], files.pages) == (b"", 0)


def test_all_pages_that_no_run_uses_are_free(disk: RecordingDisk, files: FileManager) -> None:
    _written(files, bytes(10 * ROOM))
    again = _reopened(disk)
    again.use([(7, 2), (2, 3)])
    assert (again.pages, again.free_pages) == (9, 4)
    assert [again.allocate(1), again.allocate(2 * ROOM), again.allocate(1)] == [0, 5, 1]
    assert again.allocate(1) == 9


def test_a_page_that_is_in_use_twice_is_refused(disk: RecordingDisk, files: FileManager) -> None:
    _written(files, bytes(10 * ROOM))
    with pytest.raises(Corruption, match="page 4 is in use twice"):
        _reopened(disk).use([(2, 3), (4, 1)])


def test_a_file_that_is_too_short_is_refused(disk: RecordingDisk, files: FileManager) -> None:
    _written(files, bytes(2 * ROOM))
    with pytest.raises(Corruption, match="data has 512 bytes, and 768 are in use"):
        _reopened(disk, pages=3)
    with pytest.raises(Corruption, match="data has 512 bytes, and page 2 is in use"):
        _reopened(disk).use([(0, 3)])


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(Corruption, match="data is missing"):
        FileManager(RecordingDisk(), SEED, PAGE_BYTES, 0)


def test_a_full_disk_is_told(disk: RecordingDisk, files: FileManager) -> None:
    disk.capacity_bytes = PAGE_BYTES
    first = files.allocate(2 * ROOM)
    with pytest.raises(StorageFull):
        files.write(first, bytes(2 * ROOM), lsn=0)
    files.free(first, 2 * ROOM)
    assert _written(files, b"small") == 0
    assert files.read(0, 0, 5) == b"small"


class FreePages(RuleBasedStateMachine):
    """A free map, and the set of pages that are used."""

    def __init__(self) -> None:
        super().__init__()
        self.map = FreeMap()
        self.used: set[int] = set()
        self.runs: list[tuple[int, int]] = []

    def _end(self) -> int:
        return max(self.used, default=-1) + 1

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        """The lowest run that fits is found, and the file grows only where none does."""
        candidates = (
            first
            for first in range(self._end() + 1)
            if self.used.isdisjoint(range(first, first + count))
            and (first + count <= self._end() or first == self._end())
        )
        first = self.map.take(count)
        assert first == next(candidates)
        self.used.update(range(first, first + count))
        self.runs.append((first, count))

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        """A run is free, wherever it is."""
        run = data.draw(st.sampled_from(self.runs))
        self.runs.remove(run)
        self.map.give(*run)
        self.used.difference_update(range(run[0], sum(run)))

    @rule()
    def make_anew(self) -> None:
        """A restart knows the runs only, and comes to the same map."""
        self.map = FreeMap()
        for first, count in sorted(self.runs):
            self.map.extend(first)
            self.map.end = first + count

    @invariant()
    def counts_agree(self) -> None:
        """The end and the number of free pages before it are those of the model."""
        assert self.map.end == self._end()
        assert self.map.count == self._end() - len(self.used)


TestFreeMapAgainstItsModel = FreePages.TestCase


def test_giving_a_page_twice_is_a_fault_of_ours() -> None:
    free = FreeMap()
    free.take(5)
    free.give(1, 2)
    with pytest.raises(AssertionError, match="free twice"):
        free.give(2, 1)
