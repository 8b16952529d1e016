"""Planted mistakes about writes and syncs: what is on disk later than it should be, or never."""

from __future__ import annotations

from collections.abc import Callable

from mqserver.errors import StorageFailed
from mqserver.storage.file_manager import DATA_NAME
from mqserver.storage.format import BLOCK_BYTES, CONTENT_BYTES, is_segment_name, segment_name
from mqserver.storage.log_manager import CONTROL_NAME, CONTROL_NEW_NAME, LogManager
from mqserver.storage.segments import NEW_NAME, SPARES, Segments
from tests.crash.planting import Patch, nothing
from tests.crash.recording_disk import RecordingDisk, RecordingFile


def acknowledge_early(patch: Patch) -> None:
    """Acknowledged before anything is written."""
    patch.setattr(LogManager, "force", nothing)


def _no_sync_of(patch: Patch, is_meant: Callable[[str], bool]) -> None:
    right = RecordingFile.sync

    def sync(self: RecordingFile) -> None:
        if not is_meant(self._name):
            right(self)

    patch.setattr(RecordingFile, "sync", sync)


def no_sync_of_the_log(patch: Patch) -> None:
    """The log is not synced."""
    _no_sync_of(patch, is_segment_name)


def no_sync_of_the_data(patch: Patch) -> None:
    """The data file is not synced."""
    _no_sync_of(patch, lambda name: name == DATA_NAME)


def no_sync_of_the_control_record(patch: Patch) -> None:
    """The control record is not synced."""
    _no_sync_of(patch, lambda name: name == CONTROL_NAME)


def no_sync_of_the_first_control_record(patch: Patch) -> None:
    """The first control record has its name before it is synced."""
    _no_sync_of(patch, lambda name: name == CONTROL_NEW_NAME)


def no_sync_of_a_new_segment(patch: Patch) -> None:
    """A new segment has its name before it is synced."""
    _no_sync_of(patch, lambda name: name == NEW_NAME)


def sync_before_the_write(patch: Patch) -> None:
    """The log is synced before it is written."""

    def write(self: Segments, number: int, data: bytes) -> None:
        last = number + len(data) // BLOCK_BYTES - 1
        for first in range(self.first_of(number), self.first_of(last) + 1, self._blocks):
            self._files[first].sync()
        self._write(number, data)

    patch.setattr(Segments, "write", write)


def sync_of_the_last_segment_only(patch: Patch) -> None:
    """Of two segments one is synced."""

    def write(self: Segments, number: int, data: bytes) -> None:
        self._files[self._write(number, data)[-1]].sync()

    patch.setattr(Segments, "write", write)


def what_came_during_a_sync_is_taken_for_synced(patch: Patch) -> None:
    """What came during a sync is taken for synced."""
    right = LogManager._write_out

    def write_out(self: LogManager) -> None:
        right(self)
        with self._lock:
            self._synced = self._base + -(-len(self._content) // CONTENT_BYTES)

    patch.setattr(LogManager, "_write_out", write_out)


def no_sync_of_names(patch: Patch) -> None:
    """Names are not synced."""
    patch.setattr(RecordingDisk, "sync_directory", nothing)


def _no_sync_of_the_name_of(patch: Patch, is_new: bool) -> None:
    """Not so the segments of a new store, which share their syncs with the other files."""
    right = Segments._rename

    def rename(self: Segments, name: str, first: int) -> None:
        if (name == NEW_NAME) is not is_new or first <= SPARES * self._blocks:
            right(self, name, first)
            return
        self._disk.rename(name, segment_name(first))
        self._files[first] = self._disk.open(segment_name(first))

    patch.setattr(Segments, "_rename", rename)


def no_sync_of_a_new_name(patch: Patch) -> None:
    """A new segment is used before its name is synced."""
    _no_sync_of_the_name_of(patch, is_new=True)


def no_sync_of_a_recycled_name(patch: Patch) -> None:
    """A recycled segment is used before its name is synced."""
    _no_sync_of_the_name_of(patch, is_new=False)


def retry_a_failed_sync(patch: Patch) -> None:
    """A failed sync is tried again."""
    right = RecordingFile.sync

    def sync(self: RecordingFile) -> None:
        try:
            right(self)
        except StorageFailed:
            self._failed = False
            right(self)

    patch.setattr(RecordingFile, "sync", sync)


def ignore_a_short_write(patch: Patch) -> None:
    """A short write is taken for a whole one."""

    def write(self: RecordingFile, offset: int, data: bytes) -> None:
        try:
            self.write_once(offset, memoryview(data).cast("B"))
        except OSError as error:
            raise self._failure(error, f"write at {offset}") from error

    patch.setattr(RecordingFile, "write", write)


def go_on_after_a_failure(patch: Patch) -> None:
    """Work goes on after a failed write."""

    def fail(self: LogManager, failed: BaseException) -> StorageFailed:
        self._writing = None
        return StorageFailed(*failed.args)

    patch.setattr(LogManager, "fail", fail)
    patch.setattr(RecordingFile, "_failure", _failure_of_once)


def _failure_of_once(self: RecordingFile, error: OSError, operation: str) -> StorageFailed:
    return StorageFailed(self.description, f"{operation}: {error.strerror}")


def go_on_after_a_failed_sync_of_names(patch: Patch) -> None:
    """Work goes on after a failed sync of names."""

    def forget_before(self: LogManager, lsn: int) -> None:
        with self._lock:
            self._segments.forget_before(lsn // CONTENT_BYTES, self._base)

    patch.setattr(LogManager, "forget_before", forget_before)


def close_without_a_force(patch: Patch) -> None:
    """An orderly close forces nothing."""
    patch.setattr(LogManager, "force_all", nothing)
