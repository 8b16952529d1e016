"""Planted mistakes about checkpoints and pages: what is done too early, or forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mqserver.storage import checkpoint
from mqserver.storage.checkpoint import Checkpoint, Checkpoints
from mqserver.storage.entries import Entry, Parcel
from mqserver.storage.format import RecordKind
from mqserver.storage.index import Branch, Index
from mqserver.storage.log_manager import LogManager
from mqserver.storage.paged import PagedStorage
from mqserver.storage.payloads import Payloads, Stored
from tests.crash.planting import Patch, nothing


def forget_prepared_branches(patch: Patch) -> None:
    """A checkpoint forgets prepared branches."""
    patch.setattr(Checkpoint, "_carried", lambda *_: [])


def what_is_in_doubt_is_taken_for_committed(patch: Patch) -> None:
    """A checkpoint takes messages of a branch in doubt for such as are in their queue."""
    right = Checkpoint._bundle

    def bundle(
        self: Checkpoint, queue: str, entries: list[Entry], branch: Branch | None = None
    ) -> None:
        right(self, queue, entries, branch)
        self._moves[-1].account.is_in_doubt = False

    patch.setattr(Checkpoint, "_bundle", bundle)


def what_was_committed_stays_in_doubt(patch: Patch) -> None:
    """A checkpoint leaves out what a branch had stored that was in doubt at the one before."""
    patch.setattr(Payloads, "note_committed", nothing)


def free_what_a_carried_branch_refers_to(patch: Patch) -> None:
    """Pages are free that the last checkpoint names for a branch in doubt."""
    right = Checkpoint.take

    def take(self: Checkpoint, restart_lsn: int, next_key: int) -> int:
        size = right(self, restart_lsn, next_key)
        self._payloads.in_checkpoint = {run.first for run in self._runs()}
        return size

    patch.setattr(Checkpoint, "take", take)


def forget_the_end_of_a_carried_branch(patch: Patch) -> None:
    """A checkpoint forgets the end of a branch, in flight since the one before."""
    right = checkpoint._note_carried

    def note_carried(carried: list[Branch], lsn: int) -> None:
        right(carried, lsn)
        for branch in carried:
            branch.lsn = lsn

    patch.setattr(checkpoint, "_note_carried", note_carried)


def forget_branches_in_flight(patch: Patch) -> None:
    """A checkpoint forgets branches in flight."""
    right = Checkpoints.take

    def take(self: Checkpoints, next_key: int, keep_bytes: int = 0) -> None:
        ending = [branch for branch in self._index.branches.values() if branch.is_ending]
        for branch in ending:
            branch.is_ending = False
        try:
            right(self, next_key, keep_bytes)
        finally:
            for branch in ending:
                branch.is_ending = True

    patch.setattr(Checkpoints, "take", take)


def leave_messages_in_the_log(patch: Patch) -> None:
    """A checkpoint leaves messages in the log."""
    patch.setattr(Checkpoint, "_move_out_of_log", nothing)


def lose_sight_of_messages_in_the_log(patch: Patch) -> None:
    """A checkpoint loses sight of what stays in the log."""
    right = Payloads.split_log

    def split_log(self: Payloads, lsn: int, index: Index) -> tuple[Any, list[Stored]]:
        before, behind = right(self, lsn, index)
        return before, [stored for stored in behind if stored.lsn > lsn]

    patch.setattr(Payloads, "split_log", split_log)


def no_data_sync_in_a_checkpoint(patch: Patch) -> None:
    """A checkpoint does not sync the data file."""
    right = Checkpoint._move_to_front

    def move_to_front(self: Checkpoint) -> None:
        right(self)
        self._files._synced = self._files._written

    patch.setattr(Checkpoint, "_move_to_front", move_to_front)


def a_checkpoint_is_named_before_it_is_forced(patch: Patch) -> None:
    """A checkpoint is named before it is forced."""
    right = Checkpoint.take

    def take(self: Checkpoint, restart_lsn: int, next_key: int) -> int:
        with Patch.context() as inner:
            inner.setattr(LogManager, "force", nothing)
            return right(self, restart_lsn, next_key)

    patch.setattr(Checkpoint, "take", take)


def free_and_cut_before_the_control_record(patch: Patch) -> None:
    """The data file is cut before the control record says so."""
    right = Checkpoint._carried

    def carried(self: Checkpoint, restart_lsn: int) -> object:
        self._payloads.release_waiting()
        self._files.shrink()
        return right(self, restart_lsn)

    patch.setattr(Checkpoint, "_carried", carried)


def free_before_the_control_record(patch: Patch) -> None:
    """Pages are free before the control record, which finds no room."""
    right = Checkpoint._carried

    def carried(self: Checkpoint, restart_lsn: int) -> object:
        self._payloads.release_waiting()
        return right(self, restart_lsn)

    patch.setattr(Checkpoint, "_carried", carried)


# --- Pages ----------------------------------------------------------------------------------------


def _leave(patch: Patch, change: Callable[[Payloads, bool], tuple[set[int], bool]]) -> None:
    """What a message leaves is freed as if the checkpoint, or its end on disk, were otherwise."""
    right = Payloads._leave

    def leave(self: Payloads, entries: list[Entry], is_durable: bool) -> None:
        kept = self.in_checkpoint
        self.in_checkpoint, is_durable = change(self, is_durable)
        right(self, entries, is_durable)
        self.in_checkpoint = kept

    patch.setattr(Payloads, "_leave", leave)


def free_what_a_checkpoint_refers_to(patch: Patch) -> None:
    """Pages are free that the last checkpoint refers to."""
    _leave(patch, lambda payloads, is_durable: (set(), is_durable))


def free_before_the_end_is_on_disk(patch: Patch) -> None:
    """Pages are free before the end of their message is on disk."""
    _leave(patch, lambda payloads, is_durable: (payloads.in_checkpoint, True))


def a_record_before_its_pages(patch: Patch) -> None:
    """A record is forced before its pages."""

    def append_branch(self: PagedStorage, kind: RecordKind, actor: Branch) -> int:
        right_sync, self._files.sync = self._files.sync, nothing  # type: ignore[method-assign]
        lsn = right_append(self, kind, actor)
        self._log.force(lsn)
        self._files.sync = right_sync  # type: ignore[method-assign]
        self._files.sync()
        return lsn

    right_append = PagedStorage._append_branch
    patch.setattr(PagedStorage, "_append_branch", append_branch)


def a_record_before_its_parcels(patch: Patch) -> None:
    """A record is forced before its parcels."""
    right = PagedStorage._secure_pages

    def secure_pages(self: PagedStorage, added: list[Entry], has_parcels: bool) -> None:
        right(self, added, has_parcels=False)

    patch.setattr(PagedStorage, "_secure_pages", secure_pages)


def parcels_stay_in_the_log(patch: Patch) -> None:
    """A checkpoint leaves parcels in the log."""
    patch.setattr(Payloads, "parcels_before", lambda *_: [])


def _bundle_parcel(patch: Patch, change: Callable[[Checkpoint, str, Parcel, bool], object]) -> None:
    """Parcels are moved out of the log so, when their branch is in doubt."""
    right = Checkpoint._bundle_parcel

    def bundle(self: Checkpoint, queue: str, parcel: Parcel, is_in_doubt: bool = False) -> None:
        if is_in_doubt:
            change(self, queue, parcel, is_in_doubt)
        else:
            right(self, queue, parcel)

    patch.setattr(Checkpoint, "_bundle_parcel", bundle)


def parcels_in_doubt_stay_in_the_log(patch: Patch) -> None:
    """A checkpoint leaves parcels of a branch in doubt in the log."""
    _bundle_parcel(patch, nothing)


def parcels_in_doubt_are_taken_for_committed(patch: Patch) -> None:
    """A checkpoint takes parcels of a branch in doubt for such as are in their queue."""
    right = Checkpoint._bundle_parcel
    _bundle_parcel(patch, lambda self, queue, parcel, _: right(self, queue, parcel))


def free_parcels_before_the_rollback_is_on_disk(patch: Patch) -> None:
    """Pages of a parcel are free before the rollback of its branch is on disk."""
    right = Payloads.drop_parcels

    def drop_parcels(self: Payloads, parcels: Iterable[Parcel], is_durable: bool) -> None:
        right(self, parcels, is_durable=True)

    patch.setattr(Payloads, "drop_parcels", drop_parcels)
