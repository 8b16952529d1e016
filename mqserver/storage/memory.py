"""The storage in memory, and the readable version of the contract: dictionaries, the same rules.

Nothing here is fast on purpose, and nothing outlives the process: `force` and `checkpoint` have
nothing to do, and `prepare` promises no more than a process that does not die can keep. Everything
else is as `contract.py` says, for tests, for throw-away work, and for whoever wants to know what
another storage must do.

All that is kept is guarded by one condition variable, which the lock manager waits on too. A
message is in its queue from `store` until it is gone for good. It can be had by a branch when

1. it is committed, or the branch itself has stored it (`_stored_by`);
2. no consumer has reserved it (`_reserved`);
3. no branch holds its lock: not another that takes it, nor the branch itself, which then has it.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mqserver.errors import (
    BranchEnded,
    MessageNotFound,
    QueueExists,
    QueueInUse,
    QueueNotFound,
    ReservationError,
    ReservationNotFound,
    ReservationOutdated,
)
from mqserver.storage.contract import (
    OUTCOMES_KEPT,
    BranchInfo,
    ConsumerInfo,
    Message,
    NewMessage,
    Outcome,
    QueueInfo,
    QueueSettings,
    Selection,
    Vote,
)
from mqserver.storage.lock_manager import LockManager

_HEURISTIC = (Outcome.HEURISTICALLY_COMMITTED, Outcome.HEURISTICALLY_ROLLED_BACK)


@dataclass
class _Queue:
    settings: QueueSettings
    messages: dict[int, Message] = field(default_factory=dict)

    def in_order(self) -> Iterable[Message]:
        if self.settings.prioritized:
            return sorted(self.messages.values(), key=lambda message: -message.priority)
        return self.messages.values()


@dataclass
class _Branch:
    """A branch that has not ended, and of one that an operator ended, what is shown of it.

    The keys of what it has stored and taken stand there with their queues.
    """

    outcome: Outcome = Outcome.ACTIVE
    recovery: bytes = b""
    stored: dict[int, str] = field(default_factory=dict)
    taken: dict[int, str] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)


@dataclass
class _Consumer:
    queue: str
    finished: int = 0
    reservations: dict[int, list[Message]] = field(default_factory=dict)

    @property
    def reserved(self) -> int:
        return self.finished + len(self.reservations)


class MemoryStorage:
    """See `contract.Storage`. The clock is monotonic, in seconds; it is asked for timeouts only."""

    def __init__(self, clock: Callable[[], float], outcomes_kept: int = OUTCOMES_KEPT) -> None:
        self._clock = clock
        self._outcomes_kept = outcomes_kept
        self._monitor = threading.Condition()
        self._locks = LockManager(self._monitor, clock)
        self._next_key = 1
        self._queues: dict[str, _Queue] = {}
        self._stored_by: dict[int, bytes] = {}
        self._reserved: set[int] = set()
        self._branches: dict[bytes, _Branch] = {}
        self._ended: OrderedDict[bytes, Outcome] = OrderedDict()
        self._marks: dict[str, int] = {}
        self._consumers: dict[str, _Consumer] = {}

    # --- Queues

    def create_queue(self, name: str, settings: QueueSettings) -> None:
        """See `Storage.create_queue`."""
        with self._monitor:
            if name in self._queues:
                raise QueueExists(name)
            self._queues[name] = _Queue(settings)

    def change_queue(self, name: str, settings: QueueSettings) -> None:
        """See `Storage.change_queue`."""
        with self._monitor:
            self._queue(name).settings = settings

    def delete_queue(self, name: str) -> None:
        """See `Storage.delete_queue`."""
        with self._monitor:
            consumers = [who for who, consumer in self._consumers.items() if consumer.queue == name]
            if self._queue(name).messages or consumers:
                raise QueueInUse(name, *consumers)
            del self._queues[name]

    def queues(self) -> list[QueueInfo]:
        """See `Storage.queues`."""
        with self._monitor:
            return [self.queue(name) for name in sorted(self._queues)]

    def queue(self, name: str) -> QueueInfo:
        """See `Storage.queue`."""
        with self._monitor:
            messages = self._queue(name).messages
            visible = [message for message in messages.values() if self._is_free(message)]
            return QueueInfo(
                name=name,
                settings=self._queues[name].settings,
                visible=len(visible),
                locked=len(messages) - len(visible),
                payload_bytes=sum(len(message.payload) for message in messages.values()),
                oldest_us=visible[0].time_us if visible else 0,
            )

    def _queue(self, name: str) -> _Queue:
        if name not in self._queues:
            raise QueueNotFound(name)
        return self._queues[name]

    # --- Actions of a branch

    def store(self, branch: bytes, queue: str, messages: Sequence[NewMessage]) -> range:
        """See `Storage.store`."""
        with self._monitor:
            actor, goal = self._acting(branch), self._queue(queue)
            keys = range(self._next_key, self._next_key + len(messages))
            self._next_key = keys.stop
            for key, message in zip(keys, messages, strict=True):
                goal.messages[key] = Message(key, *message)
                actor.stored[key] = queue
                self._stored_by[key] = branch
            return keys

    def take(self, branch: bytes, queue: str, selection: Selection, limit: int) -> list[Message]:
        """See `Storage.take`."""
        with self._monitor:
            actor = self._acting(branch)
            found = self._select(queue, selection, limit, branch)
            for message in found:
                self._locks.try_lock(branch, message.key)
                actor.taken[message.key] = queue
            return found

    def take_keys(
        self, branch: bytes, queue: str, keys: Sequence[int], timeout_s: float
    ) -> list[Message]:
        """See `Storage.take_keys`."""
        with self._monitor:
            deadline = self._clock() + timeout_s
            try:
                # In the order of keys, so that two calls for the same messages form no circle.
                while wanted := self._not_yet_locked(branch, queue, sorted(keys)):
                    self._locks.lock(branch, wanted[0], deadline - self._clock())
            except BaseException:
                # Also when the wait was interrupted: what was not taken is not kept.
                self._locks.release(branch, self._locked_in_vain(branch, keys))
                raise
            self._branches[branch].taken.update(dict.fromkeys(keys, queue))
            return [self._queues[queue].messages[key] for key in keys]

    def _not_yet_locked(self, branch: bytes, queue: str, keys: Sequence[int]) -> list[int]:
        """Those of the keys that others hold; raises when the branch cannot have them all."""
        taken, messages = self._acting(branch).taken, self._queue(queue).messages
        for key, following in itertools.zip_longest(keys, keys[1:]):
            is_seen = key in messages and self._is_seen(messages[key], branch)
            if not is_seen or key in taken or key == following:
                raise MessageNotFound(queue, key)
        return [key for key in keys if self._locks.holder(key) != branch]

    def _locked_in_vain(self, branch: bytes, keys: Sequence[int]) -> list[int]:
        taken = self._branches.get(branch, _Branch()).taken
        return [key for key in keys if key not in taken]

    def taken(self, branch: bytes, queue: str, keys: Sequence[int]) -> list[Message]:
        """See `Storage.taken`."""
        with self._monitor:
            messages = self._queue(queue).messages
            is_active = self.outcome(branch) is Outcome.ACTIVE
            taken = self._branches[branch].taken if is_active else {}
            for key in keys:
                if taken.get(key) != queue:
                    raise MessageNotFound(queue, key)
            return [messages[key] for key in keys]

    def raise_mark(self, branch: bytes, application: str, version: int) -> None:
        """See `Storage.raise_mark`."""
        with self._monitor:
            marks = self._acting(branch).marks
            marks[application] = max(version, marks.get(application, version))

    def _acting(self, branch: bytes) -> _Branch:
        """The active branch with this id, which may begin here."""
        outcome = self.outcome(branch)
        if outcome is Outcome.UNKNOWN:
            return self._branches.setdefault(branch, _Branch())
        if outcome is not Outcome.ACTIVE:
            raise BranchEnded(branch.hex(), outcome.name)
        return self._branches[branch]

    # --- Ends of a branch

    def prepare(self, branch: bytes, recovery: bytes) -> Vote:
        """See `Storage.prepare`."""
        with self._monitor:
            if self.outcome(branch) is Outcome.PREPARED:
                return Vote.COMMIT
            actor = self._living(branch, Outcome.ACTIVE)
            if not (actor.stored or actor.taken or actor.marks):
                self._end(branch, Outcome.ROLLED_BACK)
                return Vote.READ_ONLY
            # Its other threads have come too late, also those that still wait for a message.
            self._locks.refuse(branch)
            actor.outcome, actor.recovery = Outcome.PREPARED, recovery
            return Vote.COMMIT

    def commit(self, branch: bytes, force: bool = True) -> Outcome:
        """See `Storage.commit`."""
        with self._monitor:
            outcome = self.outcome(branch)
            if outcome is Outcome.COMMITTED or outcome in _HEURISTIC:
                return outcome
            self._apply(self._living(branch, Outcome.PREPARED))
            return self._end(branch, Outcome.COMMITTED)

    def commit_one_phase(self, branch: bytes, force: bool = True) -> None:
        """See `Storage.commit_one_phase`."""
        with self._monitor:
            if self.outcome(branch) is not Outcome.COMMITTED:
                self._apply(self._living(branch, Outcome.ACTIVE))
                self._end(branch, Outcome.COMMITTED)

    def rollback(self, branch: bytes) -> Outcome:
        """See `Storage.rollback`."""
        with self._monitor:
            outcome = self.outcome(branch)
            if outcome is Outcome.COMMITTED:
                raise BranchEnded(branch.hex(), outcome.name)
            if outcome is Outcome.ROLLED_BACK or outcome in _HEURISTIC:
                return outcome
            self._undo(self._branches.get(branch, _Branch()))
            return self._end(branch, Outcome.ROLLED_BACK)

    def resolve(self, branch: bytes, commit: bool) -> None:
        """See `Storage.resolve`."""
        with self._monitor:
            actor = self._living(branch, Outcome.PREPARED)
            (self._apply if commit else self._undo)(actor)
            actor.outcome = _HEURISTIC[0] if commit else _HEURISTIC[1]
            self._locks.release_all(branch)

    def forget(self, branch: bytes) -> None:
        """See `Storage.forget`."""
        with self._monitor:
            if self.outcome(branch) in _HEURISTIC:
                del self._branches[branch]

    def outcome(self, branch: bytes) -> Outcome:
        """See `Storage.outcome`."""
        with self._monitor:
            if branch in self._branches:
                return self._branches[branch].outcome
            return self._ended.get(branch, Outcome.UNKNOWN)

    def branches(self) -> list[BranchInfo]:
        """See `Storage.branches`."""
        with self._monitor:
            return [
                BranchInfo(name, it.outcome, it.recovery, len(it.stored), len(it.taken))
                for name, it in sorted(self._branches.items())
            ]

    def _living(self, branch: bytes, expected: Outcome) -> _Branch:
        outcome = self.outcome(branch)
        if outcome is not expected:
            raise BranchEnded(branch.hex(), outcome.name)
        return self._branches[branch]

    def _apply(self, actor: _Branch) -> None:
        """What the branch has stored is everybody's, what it has taken is gone."""
        for key in actor.stored:
            del self._stored_by[key]
        for key, queue in actor.taken.items():
            del self._queues[queue].messages[key]
        for application, version in actor.marks.items():
            self._marks[application] = max(version, self.mark(application))

    def _undo(self, actor: _Branch) -> None:
        """What the branch has stored is gone; what it has taken is free with its locks."""
        for key, queue in actor.stored.items():
            del self._stored_by[key]
            del self._queues[queue].messages[key]

    def _end(self, branch: bytes, outcome: Outcome) -> Outcome:
        self._branches.pop(branch, None)
        self._ended[branch] = outcome
        if len(self._ended) > self._outcomes_kept:
            self._ended.popitem(last=False)
        self._locks.release_all(branch)
        return outcome

    # --- Reading without taking

    def read(self, queue: str, key: int) -> Message | None:
        """See `Storage.read`."""
        with self._monitor:
            message = self._queue(queue).messages.get(key)
            return message if message is not None and self._is_free(message) else None

    def browse(self, queue: str, selection: Selection, after: int, limit: int) -> list[Message]:
        """See `Storage.browse`."""
        with self._monitor:
            messages = self._queue(queue).messages.values()
            behind = (message for message in messages if message.key > after)
            return list(itertools.islice(self._free(behind, selection), limit))

    def mark(self, application: str) -> int:
        """See `Storage.mark`."""
        with self._monitor:
            return self._marks.get(application, 0)

    def _select(
        self, queue: str, selection: Selection, limit: int, branch: bytes | None = None
    ) -> list[Message]:
        """The next free messages, in the order of the queue."""
        messages = self._queue(queue).in_order()
        return list(itertools.islice(self._free(messages, selection, branch), limit))

    def _free(
        self, messages: Iterable[Message], selection: Selection, branch: bytes | None = None
    ) -> Iterator[Message]:
        return (
            message
            for message in messages
            if self._is_free(message, branch) and _is_selected(message, selection)
        )

    def _is_free(self, message: Message, branch: bytes | None = None) -> bool:
        return self._is_seen(message, branch) and self._locks.holder(message.key) is None

    def _is_seen(self, message: Message, branch: bytes | None) -> bool:
        is_stored = self._stored_by.get(message.key, branch) == branch
        return is_stored and message.key not in self._reserved

    # --- Reservations

    def reserve(
        self, consumer: str, queue: str, selection: Selection, after: int, limit: int
    ) -> int:
        """See `Storage.reserve`."""
        with self._monitor:
            self._queue(queue)
            known = self._consumer(consumer, queue)
            if known.queue != queue:
                raise ReservationError(consumer, known.queue)
            if after < known.finished:
                raise ReservationOutdated(consumer, known.finished)
            if after > known.reserved:
                raise ReservationNotFound(consumer, after)
            if after == known.reserved:
                found = self._select(queue, selection, limit)
                if not found:
                    return 0
                self._consumers[consumer] = known
                known.reservations[after + 1] = found
                self._reserved.update(message.key for message in found)
            return after + 1

    def reserved(self, consumer: str, number: int) -> int:
        """See `Storage.reserved`."""
        with self._monitor:
            return len(self._reservation(consumer, number))

    def fetch(self, consumer: str, number: int, start: int, stop: int) -> list[Message]:
        """See `Storage.fetch`."""
        with self._monitor:
            return self._reservation(consumer, number)[start:stop]

    def finish(self, consumer: str, upto: int) -> None:
        """See `Storage.finish`."""
        with self._monitor:
            known = self._consumer(consumer)
            if upto > known.reserved:
                raise ReservationNotFound(consumer, upto)
            while known.finished < upto:
                known.finished += 1
                for message in known.reservations.pop(known.finished):
                    self._reserved.remove(message.key)
                    del self._queues[known.queue].messages[message.key]

    def consumers(self) -> list[ConsumerInfo]:
        """See `Storage.consumers`."""
        with self._monitor:
            return [
                ConsumerInfo(
                    consumer=name,
                    queue=known.queue,
                    finished=known.finished,
                    reserved=known.reserved,
                    messages=sum(map(len, known.reservations.values())),
                )
                for name, known in sorted(self._consumers.items())
            ]

    def drop_consumer(self, consumer: str) -> None:
        """See `Storage.drop_consumer`."""
        with self._monitor:
            for held in self._consumer(consumer).reservations.values():
                self._reserved.difference_update(message.key for message in held)
            self._consumers.pop(consumer, None)

    def _consumer(self, name: str, queue: str = "") -> _Consumer:
        """The consumer; one that is unknown has reserved and finished nothing."""
        return self._consumers.get(name, _Consumer(queue))

    def _reservation(self, consumer: str, number: int) -> list[Message]:
        reservations = self._consumer(consumer).reservations
        if number not in reservations:
            raise ReservationNotFound(consumer, number)
        return reservations[number]

    # --- The storage itself

    def force(self) -> None:
        """See `Storage.force`: there is no disk."""

    def checkpoint(self) -> None:
        """See `Storage.checkpoint`: there is no log."""

    def close(self) -> None:
        """See `Storage.close`."""
        with self._monitor:
            for info in self.branches():
                if info.outcome is Outcome.ACTIVE:
                    self.rollback(info.branch)


def _is_selected(message: Message, selection: Selection) -> bool:
    return (
        selection.group in (0, message.group)
        and message.priority >= selection.priority_min
        and set(selection.attributes) <= set(message.attributes)
        and (selection.matches is None or selection.matches(message))
    )
