"""After a crash, or an orderly stop: what the files say happened.

The checkpoint gives what the log does not tell any more; then every record from the restart on is
done again. All of it may be done twice without harm, so a crash during the restart is nothing
special. Nothing is written here.

The log is read from before the checkpoint, for the messages that are in it. What the checkpoint
itself says of queues and consumers is newer than such records, so these change messages only.

    record             what is done again
    QUEUE_SET          the queue is there, with these settings
    QUEUE_DELETED      the queue is not there
    COMMITTED          the branch is made anew and happens
    PREPARED           the branch is made anew, and holds what it took
    COMMIT, ROLLBACK   the prepared branch happens, or has not happened; an unknown one is done
    RESOLVED           as an operator decided; FORGOTTEN: nothing is known of that any more
    RESERVED, CONSUMER_DROPPED   as they say
    FINISHED           the messages are gone, and the consumer has finished so much
    CHECKPOINT         nothing: the one that counts was read first, with the branches it carries
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from operator import attrgetter

from mqserver.errors import Corruption, WrongFormat
from mqserver.storage.contract import OUTCOMES_KEPT, Outcome
from mqserver.storage.entries import IN_LOG, Entry, Parcel, entries_of, place
from mqserver.storage.file_manager import FileManager
from mqserver.storage.format import Record, RecordKind
from mqserver.storage.index import Branch, Index
from mqserver.storage.log_manager import LogManager
from mqserver.storage.payloads import Payloads, Run
from mqserver.storage.queue_index import Queue
from mqserver.storage.records import (
    CarriedBranch,
    RunOnDisk,
    read_branch,
    read_bundle,
    read_checkpoint,
    read_judgement,
    read_plain,
    read_queue,
)

NOTED_TOGETHER = 1000


class Recovery:
    """Reads a log and a data file into an index."""

    def __init__(
        self,
        log: LogManager,
        files: FileManager,
        payloads: Payloads,
        outcomes_kept: int = OUTCOMES_KEPT,
    ) -> None:
        self._log = log
        self._files = files
        self._payloads = payloads
        self._base: list[RunOnDisk] = []
        self._bundled: dict[int, list[int]] = {}
        # The last parcel that a record has put into a run, and its queue.
        self._parcels: dict[int, tuple[str, Parcel]] = {}
        self.index = Index(outcomes_kept)
        self.last_key = 0
        # Whether the record that is being done again came after the checkpoint.
        self._is_newer = True
        self._again: dict[RecordKind, Callable[[Record], None]] = {
            RecordKind.QUEUE_SET: self._queue_set,
            RecordKind.QUEUE_DELETED: self._queue_deleted,
            RecordKind.COMMITTED: self._committed,
            RecordKind.PREPARED: self._prepared,
            RecordKind.COMMIT: self._commit,
            RecordKind.ROLLBACK: self._rollback,
            RecordKind.RESOLVED: self._resolved,
            RecordKind.FORGOTTEN: self._forgotten,
            RecordKind.RESERVED: self._reserved,
            RecordKind.FINISHED: self._finished,
            RecordKind.CONSUMER_DROPPED: self._consumer_dropped,
            RecordKind.CHECKPOINT: lambda record: None,
        }

    def run(self) -> None:
        """The index is what the files say, and the runs in use are known."""
        # Millions of new objects and no garbage among them: looking for it would take longer.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            self._read_all()
        finally:
            if was_enabled:
                gc.enable()

    def _read_all(self) -> None:
        control = self._log.control
        if control.checkpoint_lsn:
            self._read_checkpoint(self._log.record(control.checkpoint_lsn))
        self._is_newer = not control.checkpoint_lsn
        for record in self._log.records(control.restart_lsn):
            if record.kind not in self._again:
                where = self._log.where(record.lsn)
                raise WrongFormat(f"{where}: the record is a {record.kind.name}")
            self._again[record.kind](record)
            self._is_newer = self._is_newer or record.lsn == control.checkpoint_lsn
        if not self._is_newer:
            where = self._log.where(control.checkpoint_lsn)
            raise Corruption(f"{where}: the log ends before its checkpoint")
        self._hold_reserved()
        self._account()
        self._note_stored()

    # --- The checkpoint

    def _read_checkpoint(self, record: Record) -> None:
        if record.kind is not RecordKind.CHECKPOINT:
            raise Corruption(f"{self._log.where(record.lsn)}: the record is not a checkpoint")
        outcomes_kept = self.index.outcomes_kept
        said = read_checkpoint(record)
        self.index, self._base = said.index, said.runs
        self.index.outcomes_kept = outcomes_kept
        for run in self._base:
            self.index.queue(run.queue).add(self._live(run))
        for carried in said.carried:
            self._carry(carried, record.lsn)

    def _carry(self, carried: CarriedBranch, lsn: int) -> None:
        """The branch is in doubt, as the checkpoint says; how it ended may be told behind it."""
        branch = Branch(carried.branch)
        branch.outcome, branch.recovery = Outcome.PREPARED, carried.recovery
        branch.is_carried, branch.lsn = True, lsn
        branch.bundles = [run.first for run in carried.runs if run.columns is None]
        for run in carried.runs:
            branch.stored.setdefault(run.queue, []).extend(self._live(run))
        for entries in branch.stored.values():
            entries.sort(key=attrgetter("key"))
            self.last_key = max(self.last_key, entries[-1].key)
        if len(branch.added()) != carried.count:
            raise Corruption(f"{self._log.where(lsn)}: a branch in doubt lacks messages")
        for queue, keys in carried.taken:
            branch.taken[queue] = self._hold(queue, keys, branch.id)
        branch.marks.update(carried.marks)
        branch.cancelled = carried.cancelled
        self.index.branches[branch.id] = branch
        self._base += carried.runs

    def _live(self, run: RunOnDisk) -> list[Entry]:
        if run.columns is not None:
            entries = entries_of(run.columns)
            place(entries, 0, self._files.room)
            return entries
        content = self._files.read(run.first, run.first * self._files.room, run.size)
        entries = read_bundle(run, content, self._files.room)
        self._bundled[run.first] = [entry.key for entry in entries]
        return entries

    # --- Records

    def _queue_set(self, record: Record) -> None:
        name, settings = read_queue(record)
        if not self._is_newer:
            return
        if name in self.index.queues:
            self.index.queues[name].change(settings)
        else:
            self.index.queues[name] = Queue(name, settings)

    def _queue_deleted(self, record: Record) -> None:
        if self._is_newer:
            self.index.queues.pop(read_plain(record)[0], None)

    def _committed(self, record: Record) -> None:
        self.index.complete(self._branch(record))

    def _prepared(self, record: Record) -> None:
        branch = self._branch(record)
        branch.outcome = Outcome.PREPARED
        branch.lsn = record.lsn
        self.index.outcomes.pop(branch.id, None)
        self.index.branches[branch.id] = branch

    def _branch(self, record: Record) -> Branch:
        said = read_branch(record, self._files.room)
        branch = Branch(said.branch)
        branch.recovery = said.recovery
        branch.cancelled = said.cancelled
        for queue, entries in said.stored:
            branch.stored[queue] = entries
            self.last_key = max(self.last_key, entries[-1].key)
        for queue, parcel in said.parcels:
            branch.stored.setdefault(queue, []).extend(parcel.entries())
            branch.bundles.append(parcel.run)
            self._parcels[parcel.run] = queue, parcel
            self.last_key = max(self.last_key, parcel.keys[-1])
        for queue, keys in said.taken:
            branch.taken[queue] = self._hold(queue, keys, branch.id)
        branch.marks.update(said.marks)
        return branch

    def _hold(self, queue: str, keys: list[int], holder: bytes) -> list[Entry]:
        """Those of the messages that are still there; the others were gone at the checkpoint."""
        table = self.index.queues.get(queue)
        if table is None:
            return []
        held = [table.entries[key] for key in keys if key in table.entries]
        for entry in held:
            table.hold(entry, holder)
        return held

    def _commit(self, record: Record) -> None:
        (name,) = read_plain(record)
        branch = self.index.branches.get(name)
        if branch is not None:
            self.index.complete(branch)
        self.index.remember(name, Outcome.COMMITTED)

    def _rollback(self, record: Record) -> None:
        (name,) = read_plain(record)
        branch = self.index.branches.get(name)
        if branch is not None:
            self.index.undo(branch)
        self.index.remember(name, Outcome.ROLLED_BACK)

    def _resolved(self, record: Record) -> None:
        info = read_judgement(record)
        branch = self.index.branches.get(info.branch)
        if branch is not None:
            is_commit = info.outcome is Outcome.HEURISTICALLY_COMMITTED
            (self.index.complete if is_commit else self.index.undo)(branch)
        self.index.judge(info)

    def _forgotten(self, record: Record) -> None:
        self.index.heuristics.pop(read_plain(record)[0], None)

    def _reserved(self, record: Record) -> None:
        consumer, queue, number, keys = read_plain(record)
        if self._is_newer and queue in self.index.queues:
            self.index.reserve(consumer, queue, number, keys)

    def _finished(self, record: Record) -> None:
        consumer, queue, upto, keys = read_plain(record)
        table = self.index.queues.get(queue)
        for key in keys if table is not None else ():
            assert table is not None
            table.remove(key)
        if self._is_newer:
            self.index.finish(consumer, upto)

    def _consumer_dropped(self, record: Record) -> None:
        if self._is_newer:
            self.index.drop_consumer(read_plain(record)[0])

    # --- The end

    def _hold_reserved(self) -> None:
        """What consumers hold is held: the checkpoint says so before its messages are there."""
        for consumer in self.index.consumers.values():
            for number, keys in consumer.reservations.items():
                self.index.reserve(consumer.name, consumer.queue, number, keys)

    def _account(self) -> None:
        """Which runs are in use, and by how many messages; those of the checkpoint are, anyhow."""
        runs: dict[int, Run] = {}
        for queue, entry in self._all_entries():
            if entry.run != IN_LOG:
                run = runs.setdefault(entry.run, Run(queue, entry.size, 0, entry))
                run.live += 1
        in_doubt = {first for branch in self.index.branches.values() for first in branch.bundles}
        for base in self._base:
            known = runs.get(base.first)
            if known is None:
                self._payloads.wait_with(base.first, base.size)
            elif base.columns is None:
                known.size, known.entry = base.size, None
                known.is_in_doubt = base.first in in_doubt
                known.dead = set() if known.is_in_doubt else self._dead(base)
        for first, (queue, parcel) in self._parcels.items():
            known = runs.get(first)
            # Another may be in its place by now, once all of its messages were gone.
            if known is not None and known.entry is not None and known.entry.key in parcel.keys:
                known.size, known.entry = parcel.run_bytes, None
                known.is_in_doubt = first in in_doubt
                known.dead = set() if known.is_in_doubt else self._gone(queue, parcel.keys)
        self._payloads.runs = runs
        self._payloads.in_checkpoint = {base.first for base in self._base}
        used = [(first, run.size) for first, run in runs.items()] + self._payloads.waiting
        self._files.use((first, self._files.pages_for(size)) for first, size in used)

    def _dead(self, base: RunOnDisk) -> set[int]:
        """The messages of a bundle that are gone: at the checkpoint, or since."""
        return self._gone(base.queue, self._bundled[base.first]).union(base.dead)

    def _gone(self, queue: str, keys: Iterable[int]) -> set[int]:
        live = self.index.queue(queue).entries
        return {key for key in keys if key not in live}

    def _note_stored(self) -> None:
        """What is in the log, in the order in which it is there."""
        for queue in self.index.queues.values():
            inside = [entry for entry in queue.entries.values() if entry.run == IN_LOG]
            inside.sort(key=lambda entry: entry.place)
            for start in range(0, len(inside), NOTED_TOGETHER):
                together = inside[start : start + NOTED_TOGETHER]
                self._payloads.note_stored(together[0].place, queue.name, together)

    def _all_entries(self) -> list[tuple[str, Entry]]:
        found = [
            (q.name, entry) for q in self.index.queues.values() for entry in q.entries.values()
        ]
        for branch in self.index.branches.values():
            for queue, entries in branch.stored.items():
                found += [(queue, entry) for entry in entries]
        return found
