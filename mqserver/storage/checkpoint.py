"""The checkpoint: what the log must still tell, and what goes into pages so that it need not.

Small messages that outlive their part of the log are moved into bundles of the data file, those of
prepared branches too; runs at the end of a file that is mostly empty are moved to its front. In
this order, and no other:

1. Bundles and moved runs are written and synced. Nothing on disk refers to them yet.
2. The checkpoint record is forced: it refers to the new places, and carries the prepared branches
   whose own record is about to go. So each message is moved once, however long its branch waits.
3. The control record names it: from here on the old places are free, and the old segments too.

A crash before 3 finds the old checkpoint, whose pages and segments are all still there. A full disk
in 1 or 2 leaves it at that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from mqserver.errors import Corruption, StorageFull
from mqserver.storage.contract import Outcome
from mqserver.storage.entries import IN_LOG, Entry, Parcel
from mqserver.storage.file_manager import FileManager
from mqserver.storage.format import RecordKind
from mqserver.storage.index import Branch, Index
from mqserver.storage.log_manager import LogManager
from mqserver.storage.payloads import Payloads, Run, Stored
from mqserver.storage.records import (
    RunOnDisk,
    columns_of,
    pack_bundle,
    pack_checkpoint,
    pack_parcel,
)

BUNDLE_BYTES = 1024 * 1024
WASTE_PAGES_MIN = 64
CHECKPOINTS_APART = 4


@dataclass
class _Move:
    """Messages that get a new place, once all is on disk that they need there."""

    entries: list[Entry]
    places: list[int]
    run: int
    account: Run
    # Whose messages they are, while that branch is in doubt.
    branch: Branch | None = None
    # What is moved as a whole, instead of entries; its first place is then the only one.
    parcel: Parcel | None = None


class Checkpoints:
    """The checkpoints of a storage: when one is due, and where the restart is then."""

    def __init__(
        self,
        log: LogManager,
        files: FileManager,
        payloads: Payloads,
        index: Index,
        log_bytes_max: int,
        waiting_bytes_max: int,
    ) -> None:
        self._log = log
        self._files = files
        self._payloads = payloads
        self._index = index
        self._log_bytes_max = log_bytes_max
        self._waiting_bytes_max = waiting_bytes_max
        # Where the log is long. Every end of a branch asks, so it is no more than a comparison.
        self._due_lsn = log.control.restart_lsn + log_bytes_max

    @property
    def is_due(self) -> bool:
        """Whether, as of a moment ago, the log is long or much of the data file waits for it."""
        return (
            self._log.reached > self._due_lsn
            or self._payloads.waiting_bytes > self._waiting_bytes_max
        )

    def take_when_due(self, next_key: int) -> None:
        """One is taken if it is still due; nobody has asked for it, so nobody is told of trouble.

        It keeps half of the log, since most messages there will be gone soon. A full disk leaves
        the checkpoint before. Damage is the end: the log cannot be shortened any more.
        """
        if not self.is_due:
            return
        try:
            self.take(next_key, self._log_bytes_max // 2)
        except StorageFull:
            return
        except Corruption as damage:
            self._log.fail(damage)

    def take(self, next_key: int, keep_bytes: int = 0) -> None:
        """A checkpoint is on disk, and a restart reads about so much of the log before it."""
        # What is on its way to the disk will be applied later, and must be read again till then.
        branches = self._index.branches.values()
        in_flight = [branch.lsn for branch in branches if branch.is_ending and branch.lsn >= 0]
        wanted = min([self._log.end_lsn - keep_bytes, *in_flight])
        checkpoint = Checkpoint(self._log, self._files, self._payloads, self._index)
        size = checkpoint.take(self._log.restart_point(wanted), next_key)
        # A checkpoint that is long itself must not be what makes the next one due.
        due_bytes = self._log_bytes_max + CHECKPOINTS_APART * size
        self._due_lsn = self._log.control.restart_lsn + due_bytes


class Checkpoint:
    """One checkpoint of a storage. Made and used with the storage's monitor held."""

    def __init__(
        self, log: LogManager, files: FileManager, payloads: Payloads, index: Index
    ) -> None:
        self._log = log
        self._files = files
        self._payloads = payloads
        self._index = index
        self._moves: list[_Move] = []
        self._still_in_log: list[Stored] = []

    def take(self, restart_lsn: int, next_key: int) -> int:
        """The checkpoint is on disk, and the log can be read from `restart_lsn` on; its size."""
        try:
            self._move_out_of_log(restart_lsn)
            self._move_to_front()
            self._files.sync()
        except BaseException:
            for move in self._moves:
                self._files.free(move.run, move.account.size)
            raise
        for move in self._moves:
            self._settle(move)
        carried = self._carried(restart_lsn)
        runs = list(self._runs())
        body = pack_checkpoint(self._index, runs, carried)
        runs += [run for _, held in carried for run in held]
        lsn = self._log.append(RecordKind.CHECKPOINT, body, may_use_spare=True)
        self._log.force(lsn, by_itself=True)
        # After this line the new checkpoint counts, whatever happens.
        self._log.write_control(
            restart_lsn=restart_lsn,
            checkpoint_lsn=lsn,
            pages=max((run.first + self._files.pages_for(run.size) for run in runs), default=0),
            next_key=next_key,
        )
        _note_carried([branch for branch, _ in carried], lsn)
        self._payloads.in_log = self._still_in_log
        self._payloads.in_checkpoint = {run.first for run in runs}
        self._payloads.release_waiting()
        self._files.shrink()
        self._log.forget_before(restart_lsn)
        return len(body)

    # --- Moving

    def _move_out_of_log(self, restart_lsn: int) -> None:
        for queue, parcel in self._payloads.parcels_before(restart_lsn, self._index):
            self._bundle_parcel(queue, parcel)
        old, self._still_in_log = self._payloads.split_log(restart_lsn, self._index)
        for queue, entries in old.items():
            for bundle in _bundles(entries):
                self._bundle(queue, bundle)
        for branch in self._to_carry(restart_lsn):
            if branch.is_carried:
                # A checkpoint before this one has moved all of it.
                continue
            for queue, entries in branch.to_add().items():
                for bundle in _bundles([entry for entry in entries if entry.run == IN_LOG]):
                    self._bundle(queue, bundle, branch)
            for queue, parcels in branch.parcels.items():
                for parcel in parcels:
                    if parcel.run == IN_LOG:
                        self._bundle_parcel(queue, parcel, is_in_doubt=True)

    def _to_carry(self, restart_lsn: int) -> list[Branch]:
        """The prepared branches of which the log behind the restart does not tell."""
        return [
            branch
            for branch in self._index.branches.values()
            if branch.outcome is Outcome.PREPARED
            and (branch.is_carried or branch.lsn < restart_lsn)
        ]

    def _bundle(self, queue: str, entries: list[Entry], branch: Branch | None = None) -> None:
        missing = [entry for entry in entries if entry.payload is None]
        read = self._payloads.read(missing)
        payloads = [
            read[entry.key] if entry.payload is None else entry.payload for entry in entries
        ]
        content, start = pack_bundle(queue, entries, payloads)
        first = self._files.allocate(len(content))
        address = first * self._files.room + start
        places = list(accumulate([entry.size for entry in entries[:-1]], initial=address))
        account = Run(queue, len(content), len(entries), is_in_doubt=branch is not None)
        self._moves.append(_Move(entries, places, first, account, branch))
        self._files.write(first, content, self._log.end_lsn)

    def _bundle_parcel(self, queue: str, parcel: Parcel, is_in_doubt: bool = False) -> None:
        """It stays a parcel, and no message of it is looked at."""
        payloads = parcel.payloads
        if payloads is None:
            payloads = (self._log.read(parcel.place, parcel.size),)
        content, start = pack_parcel(queue, parcel.columns, payloads)
        first = self._files.allocate(len(content))
        places = [first * self._files.room + start]
        account = Run(queue, len(content), len(parcel), is_in_doubt=is_in_doubt)
        self._moves.append(_Move([], places, first, account, parcel=parcel))
        self._files.write(first, content, self._log.end_lsn)

    def _move_to_front(self) -> None:
        """Runs at the end go into gaps before them, when the file is mostly gaps."""
        gaps = self._files.free_pages + sum(
            self._files.pages_for(size) for _, size in self._payloads.waiting
        )
        if gaps < WASTE_PAGES_MIN or gaps * 2 < self._files.pages:
            return
        by_run = self._entries_by_run()
        whole = {p.run: p for queue in self._index.queues.values() for p in queue.parcels}
        for first in sorted({*by_run, *whole} - {IN_LOG}, reverse=True):
            run = self._payloads.runs[first]
            target = self._files.allocate(run.size)
            if target > first:
                self._files.free(target, run.size)
                break
            self._move_run(first, target, by_run.get(first, []), whole.get(first))

    def _move_run(
        self, first: int, target: int, entries: list[Entry], parcel: Parcel | None
    ) -> None:
        run = self._payloads.runs[first]
        shift = (target - first) * self._files.room
        places = [each.place + shift for each in (entries if parcel is None else [parcel])]
        account = Run(run.queue, run.size, run.live, run.entry, run.dead)
        try:
            if run.entry is None:
                content = self._files.read(first, first * self._files.room, run.size)
            else:
                content = self._files.read_whole(first, run.size, run.entry.digest)
        except Corruption:
            # Whoever wants its messages is told; for all others it may stay where it is.
            self._files.free(target, run.size)
            return
        self._moves.append(_Move(entries, places, target, account, parcel=parcel))
        self._files.write(target, content, self._log.end_lsn)

    def _settle(self, move: _Move) -> None:
        moved: Sequence[Entry | Parcel] = move.entries if move.parcel is None else [move.parcel]
        old = moved[0].run
        new_run = move.run
        for each, new_place in zip(moved, move.places, strict=True):
            each.place = new_place
            each.run = new_run
        if move.parcel is not None:
            move.parcel.run_bytes = move.account.size
        self._payloads.runs[move.run] = move.account
        if move.branch is not None:
            move.branch.bundles.append(move.run)
        if old != IN_LOG:
            run = self._payloads.runs.pop(old)
            self._payloads.wait_with(old, run.size)

    # --- What the record says

    def _carried(self, restart_lsn: int) -> list[tuple[Branch, list[RunOnDisk]]]:
        """The branches for which the checkpoint speaks, and where their messages are by now."""
        return [(each, list(self._runs_of(each))) for each in self._to_carry(restart_lsn)]

    def _runs_of(self, branch: Branch) -> Iterator[RunOnDisk]:
        bundled = 0
        for first in branch.bundles:
            run = self._payloads.runs[first]
            bundled += run.live
            yield RunOnDisk(first, run.size, run.queue, (), None)
        for queue, parcels in branch.parcels.items():
            for parcel in parcels:
                yield RunOnDisk(parcel.run, parcel.run_bytes, queue, (), None)
        if bundled == len(branch.added()):
            # None is large, as in most branches: there is no need to look at each message.
            return
        for queue, entries in branch.to_add().items():
            for entry in entries:
                if self._payloads.runs[entry.run].entry is not None:
                    yield RunOnDisk(entry.run, entry.size, queue, (), columns_of([entry]))

    def _runs(self) -> Iterator[RunOnDisk]:
        for first, run in self._payloads.runs.items():
            if run.entry is None:
                if not run.is_in_doubt:
                    yield RunOnDisk(first, run.size, run.queue, tuple(run.dead), None)
            elif self._is_committed(run):
                yield RunOnDisk(first, run.size, run.queue, (), columns_of([run.entry]))

    def _is_committed(self, run: Run) -> bool:
        """Whether the message is in its queue; until then its branch's record speaks of it."""
        queue = self._index.queues.get(run.queue)
        assert run.entry is not None
        return queue is not None and run.entry is queue.find(run.entry.key)

    def _entries_by_run(self) -> dict[int, list[Entry]]:
        found: dict[int, list[Entry]] = {}
        for queue in self._index.queues.values():
            for entry in queue.opened.values():
                if entry.run != IN_LOG:
                    found.setdefault(entry.run, []).append(entry)
        return found


def _note_carried(carried: list[Branch], lsn: int) -> None:
    for branch in carried:
        if not branch.is_carried:
            branch.is_carried = True
            # Once only. The record of its end may be on its way to the disk: that stands behind the
            # first checkpoint that carried the branch, and must be read again by a restart.
            branch.lsn = lsn


def _bundles(entries: list[Entry]) -> Iterator[list[Entry]]:
    ends = list(accumulate([entry.size for entry in entries]))
    start = begin = 0
    while start < len(entries):
        stop = max(start + 1, bisect_right(ends, begin + BUNDLE_BYTES))
        yield entries[start:stop]
        start, begin = stop, ends[stop - 1]
