"""What arrives in queues: a storage that tells listeners what can be had now, after it is so.

`WatchedStorage` stands before any storage and remembers what each branch stored and took. When the
branch has ended it tells what is there now that was not to be had before: what a commit added, and
what a rollback gave back. It also tells of the ends themselves, however they came about, and counts
them. It decides nothing, and knows neither clients nor events.

An arrival is a hint: it may come late, twice, or for what somebody has taken meanwhile. Whoever
works on a branch while another thread ends it may be told to look, without being told for what.
Listeners are called by the thread that ended the branch: they are quick, and do not raise.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from mqserver.errors import QueueNotFound
from mqserver.storage.contract import (
    RESERVED,
    BranchInfo,
    ConsumerInfo,
    Message,
    MessageColumns,
    NewMessage,
    Outcome,
    QueueInfo,
    QueueSettings,
    Selection,
    Storage,
    Vote,
)


class Arrival(NamedTuple):
    """Messages that can be had now, one group for each key. Without keys: look what is there."""

    queue: str
    keys: tuple[int, ...]
    groups: tuple[int, ...]


class Counts(NamedTuple):
    """What has happened since the start: messages that committed branches put and got, and ends.

    Branches that neither stored nor took anything are left out: whoever asks an empty queue ends
    one each time.
    """

    put: int
    got: int
    ends: dict[Outcome, int]


Listener = Callable[[Arrival], None]
EndListener = Callable[[bytes, Outcome], None]

_COMMITTED = (Outcome.COMMITTED, Outcome.HEURISTICALLY_COMMITTED)
# To look one up in its class, at each end of a branch, takes four times as long.
_AS_MOST, _PREPARED, _ROLLED_BACK = Outcome.COMMITTED, Outcome.PREPARED, Outcome.ROLLED_BACK
_READ_ONLY = Vote.READ_ONLY
# A queue, keys of messages in it, and the group of each.
_Keys = tuple[str, Sequence[int], Sequence[int]]


class _Changes:
    """What a branch has stored and taken: keys and groups by queue."""

    __slots__ = ("is_over", "is_prepared", "stored", "taken")

    def __init__(self) -> None:
        self.stored: list[_Keys] = []
        self.taken: list[_Keys] = []
        self.is_over = False
        self.is_prepared = False


def _size(changed: list[_Keys]) -> int:
    """How many messages these are."""
    return sum([len(keys) for _, keys, _ in changed])


def _groups(messages: Sequence[NewMessage]) -> list[int]:
    if type(messages) is MessageColumns:
        groups = list(messages.groups)
        return groups if len(groups) == len(messages) else groups * len(messages)
    return [message.group for message in messages]


class WatchedStorage:
    """A storage, and whoever wants to hear of it. See `Storage` for everything else."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        # Asked with most requests, and there is nothing to be told of it.
        self.outcome = storage.outcome
        self._listeners: list[tuple[Listener, Container[str] | None]] = []
        self._end_listeners: list[EndListener] = []
        self._changes: dict[bytes, _Changes] = {}
        # Prepared before this start: what they did is not known here, only how much it was.
        self._inherited = {
            info.branch: (info.stored, info.taken)
            for info in storage.branches()
            if info.outcome is Outcome.PREPARED
        }
        self._counting = threading.Lock()
        self._put = self._got = self._committed = 0
        self._ends: Counter[Outcome] = Counter()

    def listen(self, listener: Listener, queues: Container[str] | None = None) -> None:
        """The listener is told of every arrival from now on, or of those in these queues.

        Which these are is asked when something has arrived, so they may change.
        """
        self._listeners.append((listener, queues))

    def listen_to_ends(self, listener: EndListener) -> None:
        """The listener is told of every branch that is prepared or has ended from now on."""
        self._end_listeners.append(listener)

    def counts(self) -> Counts:
        """What has happened since the start."""
        with self._counting:
            ends = dict(self._ends)
            if self._committed:
                ends[Outcome.COMMITTED] = self._committed
            return Counts(self._put, self._got, ends)

    def _count(self, outcome: Outcome, put: int, got: int) -> None:
        if not put and not got:
            return
        with self._counting:
            if outcome is _AS_MOST:
                # To look up the others takes longer than all of this.
                self._committed += 1
            else:
                self._ends[outcome] += 1
            if outcome in _COMMITTED:
                self._put += put
                self._got += got

    # --- Telling

    def _drop_if_empty(self, branch: bytes, changes: _Changes) -> None:
        if not changes.stored and not changes.taken:
            changes.is_over = True
            self._changes.pop(branch, None)

    def _look(self, queue: str) -> None:
        self._tell(queue, (), ())

    def _tell(self, queue: str, keys: Sequence[int], groups: Sequence[int]) -> None:
        for listener, queues in self._listeners:
            # Mostly nobody wants to know.
            if queues is None or queue in queues:
                listener(Arrival(queue, tuple(keys), tuple(groups)))

    def _hearing(self, queue: str) -> list[Listener]:
        return [told for told, queues in self._listeners if queues is None or queue in queues]

    def _ended(self, branch: bytes, outcome: Outcome) -> None:
        """The branch is over, and what it changed is to be had."""
        changes = self._changes.pop(branch, None)
        if changes is not None:
            # Before the lists are read: whoever adds to them afterwards sees this, and tells.
            changes.is_over = True
            stored, taken = changes.stored, changes.taken
            if outcome is _AS_MOST and not taken and len(stored) == 1 and stored[0][1]:
                # The common case of one put: there is nothing to sum up, or to leave out.
                queue, keys, groups = stored[0]
                with self._counting:
                    self._committed += 1
                    self._put += len(keys)
                self._tell(queue, keys, groups)
            else:
                self._tell_all(outcome, stored, taken)
        elif branch in self._inherited:
            self._count(outcome, *self._inherited.pop(branch))
            for info in self._storage.queues():
                self._look(info.name)
        for listener in self._end_listeners:
            listener(branch, outcome)

    def _tell_all(self, outcome: Outcome, stored: list[_Keys], taken: list[_Keys]) -> None:
        """Counts all that the branch changed, and tells of what can be had now."""
        self._count(outcome, _size(stored), _size(taken))
        if outcome not in _COMMITTED:
            self._tell_but_for(taken, stored)
        elif taken:
            self._tell_but_for(stored, taken)
        else:
            for each in stored:
                self._tell(*each)

    def _tell_but_for(self, arrived: list[_Keys], own: list[_Keys]) -> None:
        """Tells of what the branch stored and did not take itself, or of what it gave back."""
        watched = [each for each in arrived if self._hearing(each[0])]
        if not watched:
            return
        left_out = {key for _, keys, _ in own for key in keys}
        for queue, keys, groups in watched:
            left = [(k, g) for k, g in zip(keys, groups, strict=True) if k not in left_out]
            if left:
                self._tell(queue, *zip(*left, strict=True))

    # --- Actions of a branch

    def store(self, branch: bytes, queue: str, messages: Sequence[NewMessage]) -> range:
        """See `Storage.store`."""
        changes = self._changes.get(branch) or self._changes.setdefault(branch, _Changes())
        try:
            keys = self._storage.store(branch, queue, messages)
        except BaseException:
            self._drop_if_empty(branch, changes)
            raise
        groups = [messages[0].group] if len(messages) == 1 else _groups(messages)
        changes.stored.append((queue, keys, groups))
        if changes.is_over:
            self._look(queue)
        return keys

    def take(self, branch: bytes, queue: str, selection: Selection, limit: int) -> list[Message]:
        """See `Storage.take`."""
        changes = self._changes.get(branch) or self._changes.setdefault(branch, _Changes())
        try:
            taken = self._storage.take(branch, queue, selection, limit)
        except BaseException:
            self._drop_if_empty(branch, changes)
            raise
        self._note_taken(changes, queue, taken)
        return taken

    def take_keys(
        self, branch: bytes, queue: str, keys: Sequence[int], timeout_s: float
    ) -> list[Message]:
        """See `Storage.take_keys`."""
        changes = self._changes.get(branch) or self._changes.setdefault(branch, _Changes())
        try:
            taken = self._storage.take_keys(branch, queue, keys, timeout_s)
        except BaseException:
            self._drop_if_empty(branch, changes)
            raise
        self._note_taken(changes, queue, taken)
        return taken

    def _note_taken(self, changes: _Changes, queue: str, taken: list[Message]) -> None:
        if len(taken) == 1:
            changes.taken.append((queue, (taken[0].key,), (taken[0].group,)))
        elif taken:
            keys = [message.key for message in taken]
            changes.taken.append((queue, keys, [message.group for message in taken]))
        if changes.is_over:
            self._look(queue)

    def taken(self, branch: bytes, queue: str, keys: Sequence[int]) -> list[Message]:
        """See `Storage.taken`."""
        return self._storage.taken(branch, queue, keys)

    def raise_mark(self, branch: bytes, application: str, version: int) -> None:
        """See `Storage.raise_mark`."""
        self._storage.raise_mark(branch, application, version)

    # --- Ends of a branch

    def prepare(self, branch: bytes, recovery: bytes) -> Vote:
        """See `Storage.prepare`."""
        vote = self._storage.prepare(branch, recovery)
        if vote is _READ_ONLY:
            self._ended(branch, _ROLLED_BACK)
        else:
            changes = self._changes.get(branch)
            if changes is not None and not changes.is_prepared:
                changes.is_prepared = True
                self._count(_PREPARED, _size(changes.stored), _size(changes.taken))
            for listener in self._end_listeners:
                listener(branch, _PREPARED)
        return vote

    def commit(self, branch: bytes, force: bool = True) -> Outcome:
        """See `Storage.commit`."""
        outcome = self._storage.commit(branch, force)
        if outcome is _AS_MOST:
            self._ended(branch, outcome)
        return outcome

    def commit_one_phase(self, branch: bytes, force: bool = True) -> None:
        """See `Storage.commit_one_phase`."""
        self._storage.commit_one_phase(branch, force)
        self._ended(branch, _AS_MOST)

    def rollback(self, branch: bytes) -> Outcome:
        """See `Storage.rollback`."""
        outcome = self._storage.rollback(branch)
        if outcome is _ROLLED_BACK:
            self._ended(branch, outcome)
        return outcome

    def resolve(self, branch: bytes, commit: bool) -> None:
        """See `Storage.resolve`."""
        self._storage.resolve(branch, commit)
        committed, rolled_back = (
            Outcome.HEURISTICALLY_COMMITTED,
            Outcome.HEURISTICALLY_ROLLED_BACK,
        )
        self._ended(branch, committed if commit else rolled_back)

    def forget(self, branch: bytes) -> None:
        """See `Storage.forget`."""
        self._storage.forget(branch)

    def branches(self) -> list[BranchInfo]:
        """See `Storage.branches`."""
        return self._storage.branches()

    # --- Queues, reading, reservations, the storage itself

    def create_queue(self, name: str, settings: QueueSettings) -> None:
        """See `Storage.create_queue`."""
        self._storage.create_queue(name, settings)

    def change_queue(self, name: str, settings: QueueSettings) -> None:
        """See `Storage.change_queue`."""
        self._storage.change_queue(name, settings)

    def delete_queue(self, name: str) -> None:
        """See `Storage.delete_queue`."""
        self._storage.delete_queue(name)

    def queues(self) -> list[QueueInfo]:
        """See `Storage.queues`. What the node keeps for itself is left out."""
        return [info for info in self._storage.queues() if not info.name.startswith(RESERVED)]

    def queue(self, name: str) -> QueueInfo:
        """See `Storage.queue`. What the node keeps for itself is not there."""
        if name.startswith(RESERVED):
            raise QueueNotFound(name)
        return self._storage.queue(name)

    def read(self, queue: str, key: int) -> Message | None:
        """See `Storage.read`."""
        return self._storage.read(queue, key)

    def browse(self, queue: str, selection: Selection, after: int, limit: int) -> list[Message]:
        """See `Storage.browse`."""
        return self._storage.browse(queue, selection, after, limit)

    def mark(self, application: str) -> int:
        """See `Storage.mark`."""
        return self._storage.mark(application)

    def reserve(
        self, consumer: str, queue: str, selection: Selection, after: int, limit: int
    ) -> int:
        """See `Storage.reserve`."""
        return self._storage.reserve(consumer, queue, selection, after, limit)

    def reserved(self, consumer: str, number: int) -> int:
        """See `Storage.reserved`."""
        return self._storage.reserved(consumer, number)

    def fetch(self, consumer: str, number: int, start: int, stop: int) -> list[Message]:
        """See `Storage.fetch`."""
        return self._storage.fetch(consumer, number, start, stop)

    def finish(self, consumer: str, upto: int) -> None:
        """See `Storage.finish`."""
        self._storage.finish(consumer, upto)

    def consumers(self) -> list[ConsumerInfo]:
        """See `Storage.consumers`."""
        return self._storage.consumers()

    def drop_consumer(self, consumer: str) -> None:
        """See `Storage.drop_consumer`; what it had reserved is announced."""
        queues = [known.queue for known in self._storage.consumers() if known.consumer == consumer]
        self._storage.drop_consumer(consumer)
        for queue in queues:
            self._look(queue)

    def force(self) -> None:
        """See `Storage.force`."""
        self._storage.force()

    def checkpoint(self) -> None:
        """See `Storage.checkpoint`."""
        self._storage.checkpoint()

    def close(self) -> None:
        """See `Storage.close`."""
        self._storage.close()
