"""The storage that keeps its messages itself: a log, a data file, and an index in memory.

Here is what branches do; `paged_queues` has the rest of `Storage`. Small messages ride in the log,
large ones in pages of the data file. A branch writes nothing but large payloads until it ends; then
one record says all it has done. So there is nothing to undo on disk, ever. What holds:

1. A forced end of a branch is seen by others when its record is on disk: append, force, and only
   then apply. Queues, reservations and ends that nobody forces are seen at once, since whatever
   builds on them stands behind them in the log. After a failure nothing is shown at all.
2. A page is on disk before the record that names it.
3. The index is changed with the monitor held, and records are appended with it, so that the log
   has the order of events. The monitor is free while a record is forced: that is group commit.
   What follows from a forced record is done, under the monitor, by whoever wrote it, also for
   others, before they wake up; so whoever forces with the monitor held does so by itself.

It is long because what branches do and how they end rely on the same three rules, step by step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter

from mqserver.errors import (
    BranchEnded,
    MessageNotFound,
    MqError,
    QueueNotFound,
    StorageFull,
)
from mqserver.storage.contract import (
    EVERYTHING,
    BranchInfo,
    Message,
    MessageColumns,
    NewMessage,
    Outcome,
    Selection,
    Vote,
)
from mqserver.storage.disk import Disk
from mqserver.storage.entries import IN_LOG, Entry, Parcel, place, place_parcels
from mqserver.storage.format import RECORD_HEADER, RecordKind
from mqserver.storage.index import Branch
from mqserver.storage.lock_manager import LockManager
from mqserver.storage.paged_queues import PagedQueues, PagedSettings, Turns
from mqserver.storage.records import (
    pack_branch,
    pack_judgement,
    pack_only,
    pack_parcel,
    pack_plain,
    parcel_columns,
)

__all__ = ["PagedSettings", "PagedStorage", "Turns"]

# To look one up in its class, at each end of a branch, takes four times as long.
_ACTIVE, _PREPARED, _COMMITTED = Outcome.ACTIVE, Outcome.PREPARED, Outcome.COMMITTED
_END, _VOTE, _DECISION = RecordKind.COMMITTED, RecordKind.PREPARED, RecordKind.COMMIT
_FOR = Vote.COMMIT
_HEADER_BYTES = RECORD_HEADER.size
_HEURISTIC = (Outcome.HEURISTICALLY_COMMITTED, Outcome.HEURISTICALLY_ROLLED_BACK)


class PagedStorage(PagedQueues):
    """See `Storage`, and the module's text for how."""

    def __init__(
        self,
        disk: Disk,
        identity: Callable[[], bytes],
        clock: Callable[[], float],
        settings: PagedSettings | None = None,
        turns: Turns | None = None,
    ) -> None:
        super().__init__(disk, identity, clock, settings, turns)
        # How many threads wait for others that are ending the same branch: most often nobody.
        self._awaiting = 0
        # Where the log ends if, since all of it was forced, only empty branches have ended.
        self._forced_but_for_empty = -1
        self._locks = LockManager(self._monitor, clock)

    # --- Actions of a branch

    def store(self, branch: bytes, queue: str, messages: Sequence[NewMessage]) -> range:
        """See `Storage.store`."""
        with self._lock:
            actor = self._acting(branch)
            if queue not in self._index.queues:
                raise QueueNotFound(queue)
            keys = self._take_keys(len(messages))
            if len(messages) >= self._settings.parcel_messages_min:
                parcel = self._make_parcel(actor, queue, keys, MessageColumns.of(messages))
                if parcel is not None:
                    actor.parcels.setdefault(queue, []).append(parcel)
                    return keys
            if actor.parcels and actor.rides_in_log(queue):
                # A record has the messages of a queue that ride in the log in one piece.
                self._open_parcels(actor, queue)
            if len(messages) == 1:
                self._store_one(actor, queue, keys.start, messages[0])
                return keys
            rows = messages.rows() if type(messages) is MessageColumns else messages
            entries = [
                Entry(key, len(m[0]), m[1], m[2], m[3], m[4], m[5], m[6], m[0])
                for key, m in zip(keys, rows, strict=True)
            ]
            if self._write_large(queue, entries):
                actor.has_pages = True
            if queue in actor.stored:
                actor.stored[queue] += entries
            else:
                actor.stored[queue] = entries
            return keys

    def _store_one(self, actor: Branch, queue: str, key: int, message: NewMessage) -> None:
        """As above, for the common case: there is nothing to go through."""
        payload, digest, priority, group, time_us, sender, attributes = message
        size = len(payload)
        entry = Entry(key, size, digest, priority, group, time_us, sender, attributes, payload)
        if size > self._settings.large_bytes:
            self._payloads.write_large(queue, entry, payload)
            actor.has_pages = True
        if queue in actor.stored:
            actor.stored[queue].append(entry)
        else:
            actor.stored[queue] = [entry]

    def _take_keys(self, count: int) -> range:
        first = self._next_key
        stop = first + count
        if stop > self._keys_end:
            # On disk before the keys are given out, so that none is ever given twice.
            end = stop + self._settings.keys_per_block
            self._log.write_control(next_key=end)
            self._keys_end = end
        self._next_key = stop
        return range(first, stop)

    def _make_parcel(
        self, actor: Branch, queue: str, keys: range, messages: MessageColumns
    ) -> Parcel | None:
        """Many small messages together, in pages or not; None where they are few bytes, or large.

        Those that are to ride in the log are placed when their record is appended.
        """
        sizes = tuple(map(len, messages.payloads))
        size = sum(sizes)
        if max(sizes) > self._settings.large_bytes:
            return None
        columns = parcel_columns(keys, sizes, messages)
        if size >= self._settings.parcel_bytes_min:
            content, start = pack_parcel(queue, columns, messages.payloads)
            first = self._payloads.write_parcel(queue, content, len(keys))
            actor.has_pages = True
            return Parcel(columns, size, first, len(content), first * self._files.room + start)
        is_first = queue not in actor.stored and queue not in actor.parcels
        if size < self._settings.parcel_bytes_min_in_log or not is_first:
            return None
        return Parcel(columns, size, IN_LOG, 0, 0, tuple(messages.payloads))

    def _open_parcels(self, actor: Branch, queue: str) -> None:
        """What the branch stored there as parcels is as if it had been stored one by one.

        It is about to take some of it, which no record could say of a parcel.
        """
        parcels = actor.parcels.get(queue, [])
        entries = [entry for parcel in parcels for entry in parcel.entries()]
        payloads = self._payloads.read([entry for entry in entries if entry.payload is None])
        for entry in entries:
            entry.run, entry.place = IN_LOG, 0
            entry.payload = payloads.get(entry.key, entry.payload)
        actor.stored[queue] = sorted(actor.stored.get(queue, []) + entries, key=attrgetter("key"))
        self._payloads.drop_parcels(actor.parcels.pop(queue, ()), is_durable=True)

    def _write_large(self, queue: str, entries: list[Entry]) -> bool:
        """Payloads that are too large for the log are in pages; whether there are any."""
        large_bytes = self._settings.large_bytes
        written: list[Entry] = []
        try:
            for entry in entries:
                if entry.size > large_bytes:
                    assert entry.payload is not None
                    self._payloads.write_large(queue, entry, entry.payload)
                    written.append(entry)
        except MqError:
            self._payloads.discard(written)
            raise
        return bool(written)

    def take(self, branch: bytes, queue: str, selection: Selection, limit: int) -> list[Message]:
        """See `Storage.take`."""
        with self._lock:
            actor = self._acting(branch)
            table = self._index.queue(queue)
            if queue in actor.parcels:
                self._open_parcels(actor, queue)
            own: list[Entry] = []
            if queue in actor.stored:
                own = [entry for entry in actor.stored[queue] if entry.holder is None]
            # Looked at first because to compare them field by field takes longer than the rest.
            is_next = selection is EVERYTHING or selection == EVERYTHING
            if is_next and not own:
                found = table.hold_next(branch, limit)
            else:
                found = list(islice(self._selected(table, own, selection), limit))
                for entry in found:
                    table.hold(entry, branch)
            try:
                messages = self._payloads.messages(found)
            except MqError:
                for entry in found:
                    # Of its own that are not in the queue yet the branch is the only holder.
                    entry.holder = None
                table.restore(found)
                raise
            actor.take(queue, found)
            return messages

    def take_keys(
        self, branch: bytes, queue: str, keys: Sequence[int], timeout_s: float
    ) -> list[Message]:
        """See `Storage.take_keys`."""
        deadline = self._clock() + timeout_s
        with self._lock:
            while True:
                actor = self._acting(branch)
                if queue in actor.parcels:
                    self._open_parcels(actor, queue)
                entries = [self._seen(actor, queue, key, keys) for key in keys]
                # In the order of keys, so that two calls for the same messages form no circle.
                blocked = min((e for e in entries if e.holder), key=attrgetter("key"), default=None)
                if blocked is None:
                    break
                self._wait_for(branch, blocked, deadline)
            messages = self._payloads.messages(entries)
            table = self._index.queue(queue)
            for entry in entries:
                table.hold(entry, branch)
            actor.take(queue, entries)
            return messages

    def taken(self, branch: bytes, queue: str, keys: Sequence[int]) -> list[Message]:
        """See `Storage.taken`."""
        with self._lock:
            table = self._shown.queue(queue)
            actor = self._index.branches.get(branch)
            is_active = actor is not None and actor.outcome is _ACTIVE
            own: dict[int, Entry] = {}
            if actor is not None and actor.has_cancelled:
                own = {entry.key: entry for entry in actor.stored.get(queue, ())}
            entries = []
            for key in keys:
                entry = own.get(key) or table.find(key)
                if not is_active or entry is None or entry.holder != branch:
                    raise MessageNotFound(queue, key)
                entries.append(entry)
            return self._payloads.messages(entries)

    def _seen(self, actor: Branch, queue: str, key: int, keys: Sequence[int]) -> Entry:
        entry = self._index.queue(queue).find(key)
        if entry is None:
            entry = next((e for e in actor.stored.get(queue, ()) if e.key == key), None)
        is_reserved = entry is not None and isinstance(entry.holder, tuple)
        if entry is None or is_reserved or entry.holder == actor.id or keys.count(key) > 1:
            raise MessageNotFound(queue, key)
        return entry

    def _wait_for(self, branch: bytes, entry: Entry, deadline: float) -> None:
        # The entry says who holds it; the lock manager learns of it when somebody waits.
        assert isinstance(entry.holder, bytes)
        for each in (branch, entry.holder):
            self._index.branches[each].has_waited = True
        self._locks.release(branch, [entry.key])
        self._locks.try_lock(entry.holder, entry.key)
        self._locks.lock(branch, entry.key, deadline - self._clock())

    def raise_mark(self, branch: bytes, application: str, version: int) -> None:
        """See `Storage.raise_mark`."""
        with self._lock:
            marks = self._acting(branch).marks
            marks[application] = max(version, marks.get(application, version))

    def _acting(self, branch: bytes) -> Branch:
        if self._log.failure is not None:
            raise self._log.failure
        index = self._index
        actor = index.branches.get(branch)
        if actor is None:
            if branch not in index.outcomes and branch not in index.heuristics:
                actor = index.branches[branch] = Branch(branch)
                return actor
        elif actor.outcome is _ACTIVE and not actor.is_ending:
            return actor
        raise BranchEnded(branch.hex(), index.outcome(branch).name)

    # --- Ends of a branch

    def prepare(self, branch: bytes, recovery: bytes) -> Vote:
        """See `Storage.prepare`."""
        with self._lock:
            actor = self._living(branch, _ACTIVE)
            if actor is None:
                self._refuse_unless(branch, _PREPARED)
                return Vote.COMMIT
            if actor.is_read_only:
                self._undo(actor)
                return Vote.READ_ONLY
            actor.recovery = recovery
            self._begin_end(actor)
        lsn = self._append_branch(_VOTE, actor)
        self._force(actor, lsn, partial(self._promise, actor))
        self._checkpoint_if_due()
        return _FOR

    def _promise(self, actor: Branch) -> None:
        with self._lock:
            actor.outcome = _PREPARED
            self._payloads.keep(actor.added())
            if actor.parcels:
                self._payloads.keep_parcels(actor.all_parcels())
            self._ended(actor)

    def commit(self, branch: bytes, force: bool = True) -> Outcome:
        """See `Storage.commit`."""
        with self._lock:
            actor = self._living(branch, _PREPARED)
            if actor is None:
                outcome = self._refuse_unless(branch, _COMMITTED, *_HEURISTIC)
            else:
                lsn = self._log.append(_DECISION, pack_plain(branch), may_use_spare=True)
                actor.is_ending = force
                if not force:
                    self._complete(actor, is_durable=False)
        if actor is None:
            # It may have been committed without force before.
            if force:
                self._log.force_all()
            return outcome
        if force:
            self._force(actor, lsn, partial(self._happen, actor))
        self._checkpoint_if_due()
        return _COMMITTED

    def commit_one_phase(self, branch: bytes, force: bool = True) -> None:
        """See `Storage.commit_one_phase`."""
        with self._lock:
            actor = self._living(branch, _ACTIVE)
            if actor is None:
                self._refuse_unless(branch, _COMMITTED)
            else:
                is_empty = actor.is_read_only and self._is_all_forced
                if is_empty:
                    self._end_empty(actor)
                else:
                    self._begin_end(actor)
        if actor is None:
            # It may have been committed without force.
            if force:
                self._log.force_all()
            return
        if not is_empty:
            lsn = self._append_branch(_END, actor)
            if force:
                self._force(actor, lsn, partial(self._happen, actor))
            else:
                self._happen(actor, is_durable=False)
        self._checkpoint_if_due()

    @property
    def _is_all_forced(self) -> bool:
        """Whether nothing is left to be forced but ends of branches that changed nothing."""
        end = self._log.end_lsn
        return end == self._forced_but_for_empty or self._log.is_on_disk(end - 1)

    def _end_empty(self, actor: Branch) -> None:
        """A branch that changed nothing is over; a record says so, and nobody waits for it."""
        self._log.append(RecordKind.COMMITTED, pack_branch(actor)[0], may_use_spare=True)
        self._forced_but_for_empty = self._log.end_lsn
        self._complete(actor, is_durable=False)

    def _begin_end(self, actor: Branch) -> None:
        """From here on nobody else works on the branch, until its record is on disk."""
        actor.is_ending = True
        if actor.has_waited:
            self._locks.refuse(actor.id)

    def _append_branch(self, kind: RecordKind, actor: Branch) -> int:
        """The branch's record is appended, and everything it refers to is on disk."""
        only = actor.only()
        try:
            if only is not None:
                # There are no pages to be secured, and there is one place.
                body, start = pack_only(actor, *only)
                with self._lock:
                    lsn = actor.lsn = self._log.append(kind, body)
                    only[1].place = lsn + _HEADER_BYTES + start
                    return lsn
            added = actor.added()
            if actor.has_pages:
                self._secure_pages(added, bool(actor.parcels))
            body, start = pack_branch(actor)
            with self._lock:
                is_small = not added and not actor.parcels
                lsn = actor.lsn = self._log.append(kind, body, is_small)
                end = place(added, lsn + _HEADER_BYTES + start, self._files.room)
                if actor.parcels:
                    place_parcels(actor.all_parcels(), end)
                return lsn
        except BaseException:
            # Nothing was promised: the branch goes on as it was before, or the storage has failed.
            with self._lock:
                self._ended(actor)
            raise

    def _secure_pages(self, added: list[Entry], has_parcels: bool) -> None:
        """The pages are on disk, before the record that names them; others are not held up."""
        if not has_parcels and not any(entry.run != IN_LOG for entry in added):
            return
        self._files.sync()
        if not self._payloads.have_digests(added):
            with self._lock:
                self._payloads.divide(added)
            self._files.sync()

    def _force(self, actor: Branch, lsn: int, then: Callable[[], None]) -> None:
        """The record is on disk, and what follows from it has been done."""
        try:
            self._log.force(lsn, then)
        except BaseException:
            # Whether it is on disk is not known. The branch stays as it is: nothing can be done
            # with this storage any more, and a restart will find out.
            with self._lock:
                self._monitor.notify_all()
            raise

    def _await_end(self, branch: bytes) -> None:
        """Another thread may be ending the branch; then it will be over soon."""
        while (actor := self._index.branches.get(branch)) is not None and actor.is_ending:
            self._log.check_usable()
            self._turns.step_aside()
            self._awaiting += 1
            try:
                self._monitor.wait()
            finally:
                self._awaiting -= 1

    def _happen(self, actor: Branch, is_durable: bool = True) -> None:
        with self._lock:
            self._complete(actor, is_durable)

    def _complete(self, actor: Branch, is_durable: bool) -> None:
        payloads = self._payloads
        cancelled: list[Entry] = []
        added = actor.stored
        if actor.has_cancelled:
            cancelled = [e for entries in actor.stored.values() for e in entries if e.holder]
            added = actor.to_add()
        for queue, entries in added.items():
            if actor.outcome is _ACTIVE:
                # Of one that was prepared they are kept already.
                payloads.keep(entries)
            payloads.note_stored(actor.lsn, queue, entries)
        if actor.bundles:
            payloads.note_committed(actor.bundles)
        if actor.parcels:
            for queue, parcels in actor.parcels.items():
                payloads.keep_parcels(parcels)
                payloads.note_parcels(actor.lsn, queue, parcels)
        gone = self._index.complete(actor)
        if gone:
            payloads.drop(gone, is_durable)
        if cancelled:
            payloads.discard(cancelled)
        self._ended(actor)

    def _undo(self, actor: Branch) -> None:
        was_prepared = actor.outcome is _PREPARED
        try:
            self._log.append(RecordKind.ROLLBACK, pack_plain(actor.id), may_use_spare=True)
        except StorageFull:
            # Of one that was never on disk nothing need be said there.
            if was_prepared:
                raise
        self._give_back(actor, is_durable=False if was_prepared else None)

    def _give_back(self, actor: Branch, is_durable: bool | None) -> None:
        """The branch has not happened; None for one of which nothing was on disk."""
        stored = self._index.undo(actor)
        # Of what was never on disk the pages are free at once.
        self._payloads.drop_parcels(actor.all_parcels(), is_durable is not False)
        kept = [entry for entry in stored if entry.holder is None]
        if is_durable is None:
            self._payloads.discard(stored)
        else:
            self._payloads.drop(kept, is_durable)
            self._payloads.discard(entry for entry in stored if entry.holder is not None)
        self._ended(actor)

    def _ended(self, actor: Branch) -> None:
        """What was to be done with the branch is done; if it is over, it holds nothing."""
        actor.is_ending = False
        if self._awaiting:
            self._monitor.notify_all()
        if actor.has_waited and actor.id not in self._index.branches:
            self._locks.release_all(actor.id)

    def rollback(self, branch: bytes) -> Outcome:
        """See `Storage.rollback`."""
        with self._lock:
            self._await_end(branch)
            outcome = self._index.outcome(branch)
            if outcome is _COMMITTED:
                raise BranchEnded(branch.hex(), outcome.name)
            if outcome is not Outcome.ROLLED_BACK and outcome not in _HEURISTIC:
                self._undo(self._index.branches.get(branch, Branch(branch)))
            outcome = self._index.outcome(branch)
        self._checkpoint_if_due()
        return outcome

    def resolve(self, branch: bytes, commit: bool) -> None:
        """See `Storage.resolve`."""
        with self._lock:
            actor = self._living(branch, _PREPARED)
            if actor is None:
                raise BranchEnded(branch.hex(), self._index.outcome(branch).name)
            info = actor.info()
            outcome = _HEURISTIC[0] if commit else _HEURISTIC[1]
            judged = BranchInfo(branch, outcome, info.recovery, info.stored, info.taken)
            lsn = self._log.append(RecordKind.RESOLVED, pack_judgement(judged), may_use_spare=True)
            actor.is_ending = True
        self._force(actor, lsn, partial(self._judge, actor, judged))
        self._checkpoint_if_due()

    def _judge(self, actor: Branch, judged: BranchInfo) -> None:
        with self._lock:
            if judged.outcome is Outcome.HEURISTICALLY_COMMITTED:
                self._complete(actor, is_durable=True)
            else:
                self._give_back(actor, is_durable=True)
            self._index.judge(judged)

    def forget(self, branch: bytes) -> None:
        """See `Storage.forget`."""
        with self._lock:
            if branch in self._index.heuristics:
                self._log.append(RecordKind.FORGOTTEN, pack_plain(branch), may_use_spare=True)
                del self._index.heuristics[branch]

    def outcome(self, branch: bytes) -> Outcome:
        """See `Storage.outcome`."""
        with self._lock:
            # As `_shown` does, for a question that comes with every transaction.
            if self._log.failure is not None:
                raise self._log.failure
            return self._index.outcome(branch)

    def branches(self) -> list[BranchInfo]:
        """See `Storage.branches`."""
        with self._lock:
            living = [actor.info() for actor in self._shown.branches.values()]
            return sorted([*living, *self._index.heuristics.values()], key=lambda i: i.branch)

    def _living(self, branch: bytes, expected: Outcome) -> Branch | None:
        """The branch, if that is what it is once nobody else is ending it."""
        actor = self._index.branches.get(branch)
        if actor is not None and actor.is_ending:
            self._await_end(branch)
            actor = self._index.branches.get(branch)
        return actor if actor is not None and actor.outcome is expected else None

    def _refuse_unless(self, branch: bytes, *allowed: Outcome) -> Outcome:
        """What became of the branch, if that is one of these."""
        outcome = self._index.outcome(branch)
        if outcome not in allowed:
            raise BranchEnded(branch.hex(), outcome.name)
        return outcome

    # --- The storage itself

    def close(self) -> None:
        """See `Storage.close`."""
        try:
            # Where it has failed, that was said when it came to that.
            if self._log.is_usable:
                with self._lock:
                    for actor in list(self._index.branches.values()):
                        if actor.outcome is _ACTIVE and not actor.is_ending:
                            self._undo(actor)
                # On a full disk the note of the end is left out: a restart finds the end itself.
                with contextlib.suppress(StorageFull):
                    self._log.close()
        finally:
            self._log.close(clean=False)
            self._files.close()
            self._directory_lock.close()
