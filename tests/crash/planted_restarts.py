"""Planted mistakes about restarts and branches: what is trusted, and what is not brought back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mqserver.storage.contract import Outcome
from mqserver.storage.entries import Entry
from mqserver.storage.file_manager import FileManager
from mqserver.storage.format import Control, RecordKind
from mqserver.storage.index import Branch
from mqserver.storage.log_manager import LogManager
from mqserver.storage.paged import PagedStorage
from mqserver.storage.payloads import Payloads, Stored
from mqserver.storage.recovery import Recovery
from mqserver.storage.segments import Segments
from tests.crash.planting import Patch, nothing
from tests.crash.recording_disk import RecordingDisk


def trust_what_the_kernel_shows(patch: Patch) -> None:
    """A restart trusts the log that the kernel shows."""
    patch.setattr(Segments, "write_again", nothing)


def sync_what_the_kernel_shows(patch: Patch) -> None:
    """A restart syncs what a failed sync has lost."""

    def write_again(self: Segments, start: int, end: int) -> None:
        for file in self._files.values():
            file.sync()

    patch.setattr(Segments, "write_again", write_again)


def trust_the_control_record_that_is_shown(patch: Patch) -> None:
    """A restart trusts the control record that the kernel shows."""
    right = LogManager.begin

    def begin(self: LogManager) -> None:
        with Patch.context() as inner:
            shown = self._control
            write = LogManager._write_slot

            def write_slot(self: LogManager, control: Control) -> None:
                if control is not shown:
                    write(self, control)

            inner.setattr(LogManager, "_write_slot", write_slot)
            right(self)

    patch.setattr(LogManager, "begin", begin)


def trust_the_names_that_are_shown(patch: Patch) -> None:
    """A restart trusts the names that the kernel shows."""
    right = LogManager.begin

    def begin(self: LogManager) -> None:
        with Patch.context() as inner:
            inner.setattr(RecordingDisk, "sync_directory", nothing)
            right(self)

    patch.setattr(LogManager, "begin", begin)


def tidy_up_before_all_is_safe(patch: Patch) -> None:
    """A restart tidies up before all is safe."""
    right = LogManager.begin

    def begin(self: LogManager) -> None:
        if self._doubtful is not None:
            self._segments.tidy(self._base)
        right(self)

    patch.setattr(LogManager, "begin", begin)


def trust_the_size_that_is_shown(patch: Patch) -> None:
    """A restart trusts the size that the kernel shows."""
    right = PagedStorage._open

    def open_files(self: PagedStorage, *arguments: Any) -> None:
        with Patch.context() as inner:
            inner.setattr(FileManager, "shrink", nothing)
            right(self, *arguments)

    patch.setattr(PagedStorage, "_open", open_files)


# --- Branches -------------------------------------------------------------------------------------


def prepared_branches_hold_nothing(patch: Patch) -> None:
    """Prepared branches hold nothing after a restart."""
    patch.setattr(Recovery, "_hold", lambda self, queue, keys, holder: [])


def reservations_hold_nothing(patch: Patch) -> None:
    """Consumers hold nothing after a restart."""
    patch.setattr(Recovery, "_hold_reserved", nothing)


def old_records_are_taken_for_new(patch: Patch) -> None:
    """Records before the checkpoint are taken for newer ones."""
    patch.setattr(Recovery, "_is_newer", property(lambda self: True, nothing), raising=False)


def rollback_leaves_no_record(patch: Patch) -> None:
    """A rollback leaves no record."""
    right = LogManager.append

    def append(self: LogManager, kind: RecordKind, *rest: Any, **named: Any) -> int:
        if kind is RecordKind.ROLLBACK:
            return self.end_lsn
        return right(self, kind, *rest, **named)

    patch.setattr(LogManager, "append", append)


def a_vote_before_its_record(patch: Patch) -> None:
    """A vote is given before its record is forced."""
    right = PagedStorage._force

    def force(self: PagedStorage, actor: Branch, lsn: int, then: Callable[[], None]) -> None:
        if actor.outcome is not Outcome.ACTIVE or not actor.recovery:
            right(self, actor, lsn, then)
        else:
            then()

    patch.setattr(PagedStorage, "_force", force)


def a_decision_before_its_record(patch: Patch) -> None:
    """A decision is acknowledged before its record is forced."""
    right = PagedStorage._force

    def force(self: PagedStorage, actor: Branch, lsn: int, then: Callable[[], None]) -> None:
        if actor.outcome is not Outcome.PREPARED:
            right(self, actor, lsn, then)
        else:
            then()

    patch.setattr(PagedStorage, "_force", force)


def a_repeated_commit_is_not_forced(patch: Patch) -> None:
    """A commit that is repeated is not forced."""
    right = PagedStorage.commit

    def commit(self: PagedStorage, branch: bytes, force: bool = True) -> Outcome:
        return right(self, branch, force and self.outcome(branch) is Outcome.PREPARED)

    patch.setattr(PagedStorage, "commit", commit)


def keys_taken_for_a_range(patch: Patch) -> None:
    """Keys with gaps are taken for a range."""

    def note_stored(self: Payloads, lsn: int, queue: str, entries: list[Entry]) -> None:
        if entries:
            keys = range(entries[0].key, entries[-1].key + 1)
            self.in_log.append(Stored(lsn, queue, keys))

    patch.setattr(Payloads, "note_stored", note_stored)
