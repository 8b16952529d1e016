"""The reference storage for generated tests: one table of messages, one thread, no waiting.

Written from the contract alone and on purpose unlike any backend: every question is answered by
looking through the whole table. It knows what a crash may do: the states a crash may leave behind
are those since the last forced write, each without its unprepared branches; `after_crash` lists
them, and a test goes on with the one that the storage shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from mqserver import errors
from mqserver.storage.contract import (
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

HEURISTIC = {Outcome.HEURISTICALLY_COMMITTED, Outcome.HEURISTICALLY_ROLLED_BACK}


@dataclass(frozen=True)
class Row:
    """A message and who has a hand on it: the branches that stored and took it, and a reservation.

    The columns say all there is to say about its state; a row that is free for all has none.
    """

    queue: str
    message: Message
    stored_by: bytes | None = None
    taken_by: bytes | None = None
    reserved_as: tuple[str, int, int] | None = None

    @property
    def is_free(self) -> bool:
        """Anybody may take, read or reserve it."""
        return self.stored_by is None and self.is_untaken

    @property
    def is_untaken(self) -> bool:
        """It is free for all who see it."""
        return self.taken_by is None and self.reserved_as is None


@dataclass
class State:
    """All that a storage keeps. Rows are in the order of keys."""

    next_key: int = 1
    queues: dict[str, QueueSettings] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    outcomes: dict[bytes, Outcome] = field(default_factory=dict)
    shown: dict[bytes, BranchInfo] = field(default_factory=dict)
    raised: dict[bytes, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    consumers: dict[str, ConsumerInfo] = field(default_factory=dict)

    def copied(self) -> State:
        """The same state; what is in the tables never changes, so the tables are copied alone."""
        return State(
            next_key=self.next_key,
            queues=self.queues.copy(),
            rows=self.rows.copy(),
            outcomes=self.outcomes.copy(),
            shown=self.shown.copy(),
            raised=self.raised.copy(),
            marks=self.marks.copy(),
            consumers=self.consumers.copy(),
        )


class StorageModel:
    """Does what a storage should do; `state` is what it should have kept."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state or State()
        self._since_forced = [self.state.copied()]

    # --- What a restart does

    def done(self, forced: bool) -> None:
        """A call has returned: with a forced write all before it is safe, else it may be lost."""
        if forced:
            self._since_forced.clear()
        self._since_forced.append(self.state.copied())

    def after_close(self) -> StorageModel:
        """What an orderly restart leaves."""
        closed = StorageModel(self.state.copied())
        for branch in closed._active():
            closed.rollback(branch)
        return StorageModel(closed.state)

    def after_crash(self) -> list[StorageModel]:
        """What a crash may leave, the latest first."""
        return [self._crashed(state) for state in reversed(self._since_forced)]

    def _crashed(self, state: State) -> StorageModel:
        left = StorageModel(state.copied())
        # Keys that were given and lost are not given again.
        left.state.next_key = self.state.next_key
        for branch in left._active():
            left.rollback(branch)
            del left.state.outcomes[branch]
        return StorageModel(left.state)

    def _active(self) -> list[bytes]:
        return [name for name, what in self.state.outcomes.items() if what is Outcome.ACTIVE]

    # --- Queues

    def create_queue(self, name: str, settings: QueueSettings) -> None:
        """See `Storage.create_queue`."""
        if name in self.state.queues:
            raise errors.QueueExists
        self.state.queues[name] = settings

    def change_queue(self, name: str, settings: QueueSettings) -> None:
        """See `Storage.change_queue`."""
        self._check_queue(name)
        self.state.queues[name] = settings

    def delete_queue(self, name: str) -> None:
        """See `Storage.delete_queue`."""
        self._check_queue(name)
        users = [known.queue for known in self.state.consumers.values()]
        if name in users or any(row.queue == name for row in self.state.rows):
            raise errors.QueueInUse
        del self.state.queues[name]

    def queues(self) -> list[QueueInfo]:
        """See `Storage.queues`."""
        return [self.queue(name) for name in sorted(self.state.queues)]

    def queue(self, name: str) -> QueueInfo:
        """See `Storage.queue`."""
        self._check_queue(name)
        rows = [row for row in self.state.rows if row.queue == name]
        free = [row.message.time_us for row in rows if row.is_free]
        size = sum(len(row.message.payload) for row in rows)
        return QueueInfo(
            name, self.state.queues[name], len(free), len(rows) - len(free), size, (*free, 0)[0]
        )

    def _check_queue(self, name: str) -> None:
        if name not in self.state.queues:
            raise errors.QueueNotFound

    # --- Actions of a branch

    def store(self, branch: bytes, queue: str, messages: Sequence[NewMessage]) -> range:
        """See `Storage.store`."""
        self._begin(branch)
        self._check_queue(queue)
        first = self.state.next_key
        for message in messages:
            stored = Message(self.state.next_key, *message)
            self.state.rows.append(Row(queue, stored, stored_by=branch))
            self.state.next_key += 1
        return range(first, self.state.next_key)

    def take(self, branch: bytes, queue: str, selection: Selection, limit: int) -> list[Message]:
        """See `Storage.take`."""
        self._begin(branch)
        self._check_queue(queue)
        rows = [row for row in self.state.rows if row.stored_by in (None, branch)]
        found = self._next(queue, [row for row in rows if row.is_untaken], selection, limit)
        self._change(found, lambda row: replace(row, taken_by=branch))
        return [row.message for row in found]

    def take_keys(
        self, branch: bytes, queue: str, keys: Sequence[int], timeout_s: float
    ) -> list[Message]:
        """See `Storage.take_keys`; nobody waits in a model, so the timeout is over at once."""
        self._begin(branch)
        self._check_queue(queue)
        rows = {
            row.message.key: row
            for row in self.state.rows
            if row.queue == queue and row.stored_by in (None, branch) and row.reserved_as is None
        }
        found = [rows.get(key) for key in keys]
        seen = [row for row in found if row is not None and row.taken_by != branch]
        if len(seen) < len(keys) or len(set(keys)) < len(keys):
            raise errors.MessageNotFound
        if any(row.taken_by for row in seen):
            raise errors.LockTimeout
        self._change(seen, lambda row: replace(row, taken_by=branch))
        return [row.message for row in seen]

    def taken(self, branch: bytes, queue: str, keys: Sequence[int]) -> list[Message]:
        """See `Storage.taken`."""
        self._check_queue(queue)
        is_active = self.outcome(branch) is Outcome.ACTIVE
        rows = self.state.rows if is_active else []
        held = [row for row in rows if row.queue == queue and row.taken_by == branch]
        found = {row.message.key: row.message for row in held}
        if not set(keys) <= set(found):
            raise errors.MessageNotFound
        return [found[key] for key in keys]

    def raise_mark(self, branch: bytes, application: str, version: int) -> None:
        """See `Storage.raise_mark`."""
        self._begin(branch)
        raised = self.state.raised.get(branch, ())
        self.state.raised[branch] = (*raised, (application, version))

    def _begin(self, branch: bytes) -> None:
        if self.outcome(branch) not in (Outcome.UNKNOWN, Outcome.ACTIVE):
            raise errors.BranchEnded
        self.state.outcomes[branch] = Outcome.ACTIVE

    def _change(self, rows: Sequence[Row], changed: Callable[[Row], Row]) -> None:
        keys = {row.message.key for row in rows}
        table = self.state.rows
        self.state.rows = [changed(row) if row.message.key in keys else row for row in table]

    # --- Ends of a branch

    def prepare(self, branch: bytes, recovery: bytes) -> Vote:
        """See `Storage.prepare`."""
        if self.outcome(branch) is Outcome.PREPARED:
            return Vote.COMMIT
        self._expect(branch, Outcome.ACTIVE)
        info = self._info(branch)
        if not info.stored and not info.taken and branch not in self.state.raised:
            self.state.outcomes[branch] = Outcome.ROLLED_BACK
            return Vote.READ_ONLY
        self.state.outcomes[branch] = Outcome.PREPARED
        self.state.shown[branch] = replace(info, outcome=Outcome.PREPARED, recovery=recovery)
        return Vote.COMMIT

    def commit(self, branch: bytes, force: bool = True) -> Outcome:
        """See `Storage.commit`."""
        if self.outcome(branch) not in {Outcome.COMMITTED, *HEURISTIC}:
            self._expect(branch, Outcome.PREPARED)
            self._apply(branch, Outcome.COMMITTED)
        return self.outcome(branch)

    def commit_one_phase(self, branch: bytes, force: bool = True) -> None:
        """See `Storage.commit_one_phase`."""
        if self.outcome(branch) is not Outcome.COMMITTED:
            self._expect(branch, Outcome.ACTIVE)
            self._apply(branch, Outcome.COMMITTED)

    def rollback(self, branch: bytes) -> Outcome:
        """See `Storage.rollback`."""
        if self.outcome(branch) is Outcome.COMMITTED:
            raise errors.BranchEnded
        if self.outcome(branch) not in HEURISTIC:
            self._undo(branch, Outcome.ROLLED_BACK)
        return self.outcome(branch)

    def resolve(self, branch: bytes, commit: bool) -> None:
        """See `Storage.resolve`."""
        self._expect(branch, Outcome.PREPARED)
        shown = self.state.shown[branch]
        if commit:
            self._apply(branch, Outcome.HEURISTICALLY_COMMITTED)
        else:
            self._undo(branch, Outcome.HEURISTICALLY_ROLLED_BACK)
        self.state.shown[branch] = replace(shown, outcome=self.outcome(branch))

    def forget(self, branch: bytes) -> None:
        """See `Storage.forget`."""
        if self.outcome(branch) in HEURISTIC:
            del self.state.outcomes[branch]
            del self.state.shown[branch]

    def outcome(self, branch: bytes) -> Outcome:
        """See `Storage.outcome`."""
        return self.state.outcomes.get(branch, Outcome.UNKNOWN)

    def branches(self) -> list[BranchInfo]:
        """See `Storage.branches`."""
        active = [self._info(branch) for branch in self._active()]
        return [*active, *self.state.shown.values()]

    def _expect(self, branch: bytes, outcome: Outcome) -> None:
        if self.outcome(branch) is not outcome:
            raise errors.BranchEnded

    def _info(self, branch: bytes) -> BranchInfo:
        stored = sum(row.stored_by == branch for row in self.state.rows)
        taken = sum(row.taken_by == branch for row in self.state.rows)
        return BranchInfo(branch, Outcome.ACTIVE, b"", stored, taken)

    def _apply(self, branch: bytes, outcome: Outcome) -> None:
        self.state.rows = [row for row in self.state.rows if row.taken_by != branch]
        self._let_go(branch)
        for application, version in self.state.raised.get(branch, ()):
            self.state.marks[application] = max(version, self.mark(application))
        self._end(branch, outcome)

    def _undo(self, branch: bytes, outcome: Outcome) -> None:
        self.state.rows = [row for row in self.state.rows if row.stored_by != branch]
        self._let_go(branch)
        self._end(branch, outcome)

    def _let_go(self, branch: bytes) -> None:
        stored = [row for row in self.state.rows if row.stored_by == branch]
        self._change(stored, lambda row: replace(row, stored_by=None))
        taken = [row for row in self.state.rows if row.taken_by == branch]
        self._change(taken, lambda row: replace(row, taken_by=None))

    def _end(self, branch: bytes, outcome: Outcome) -> None:
        self.state.raised.pop(branch, None)
        self.state.shown.pop(branch, None)
        self.state.outcomes[branch] = outcome

    # --- Reading without taking

    def read(self, queue: str, key: int) -> Message | None:
        """See `Storage.read`."""
        found = self.browse(queue, Selection(), key - 1, 1)
        return found[0] if found and found[0].key == key else None

    def browse(self, queue: str, selection: Selection, after: int, limit: int) -> list[Message]:
        """See `Storage.browse`."""
        self._check_queue(queue)
        rows = [row for row in self.state.rows if row.queue == queue and row.is_free]
        found = [row.message for row in rows if is_meant(row.message, selection)]
        return [message for message in found if message.key > after][:limit]

    def mark(self, application: str) -> int:
        """See `Storage.mark`."""
        return self.state.marks.get(application, 0)

    def _next(self, queue: str, rows: list[Row], selection: Selection, limit: int) -> Sequence[Row]:
        found = [row for row in rows if row.queue == queue and is_meant(row.message, selection)]
        if self.state.queues[queue].prioritized:
            found.sort(key=lambda row: (-row.message.priority, row.message.key))
        return found[:limit]

    # --- Reservations

    def reserve(
        self, consumer: str, queue: str, selection: Selection, after: int, limit: int
    ) -> int:
        """See `Storage.reserve`."""
        self._check_queue(queue)
        known = self._known(consumer, queue)
        if known.queue != queue:
            raise errors.ReservationError
        if known.finished > after:
            raise errors.ReservationOutdated
        if known.reserved < after:
            raise errors.ReservationNotFound
        if known.reserved > after:
            return after + 1
        free = [row for row in self.state.rows if row.is_free]
        found = self._next(queue, free, selection, limit)
        if not found:
            return 0
        places = {row: (consumer, after + 1, place) for place, row in enumerate(found)}
        self._change(found, lambda row: replace(row, reserved_as=places[row]))
        self.state.consumers[consumer] = replace(
            known, reserved=after + 1, messages=known.messages + len(found)
        )
        return after + 1

    def reserved(self, consumer: str, number: int) -> int:
        """See `Storage.reserved`."""
        return len(self._reservation(consumer, number))

    def fetch(self, consumer: str, number: int, start: int, stop: int) -> list[Message]:
        """See `Storage.fetch`."""
        return [row.message for row in self._reservation(consumer, number)[start:stop]]

    def finish(self, consumer: str, upto: int) -> None:
        """See `Storage.finish`."""
        known = self._known(consumer)
        if upto > known.reserved:
            raise errors.ReservationNotFound
        if upto > known.finished:
            gone = [row for row in self._reserved_by(consumer) if _number(row) <= upto]
            self.state.rows = [row for row in self.state.rows if row not in gone]
            self.state.consumers[consumer] = replace(
                known, finished=upto, messages=known.messages - len(gone)
            )

    def consumers(self) -> list[ConsumerInfo]:
        """See `Storage.consumers`."""
        return [known for _, known in sorted(self.state.consumers.items())]

    def drop_consumer(self, consumer: str) -> None:
        """See `Storage.drop_consumer`."""
        self.state.consumers.pop(consumer, None)
        held = self._reserved_by(consumer)
        self._change(held, lambda row: replace(row, reserved_as=None))

    def _known(self, consumer: str, queue: str = "") -> ConsumerInfo:
        return self.state.consumers.get(consumer, ConsumerInfo(consumer, queue, 0, 0, 0))

    def _reserved_by(self, consumer: str) -> list[Row]:
        return [
            row for row in self.state.rows if row.reserved_as and row.reserved_as[0] == consumer
        ]

    def _reservation(self, consumer: str, number: int) -> list[Row]:
        known = self._known(consumer)
        if not known.finished < number <= known.reserved:
            raise errors.ReservationNotFound
        rows = [row for row in self._reserved_by(consumer) if _number(row) == number]
        return sorted(rows, key=lambda row: row.reserved_as or ())


def is_meant(message: Message, selection: Selection) -> bool:
    """The selection speaks of this message."""
    if selection.group and message.group != selection.group:
        return False
    if message.priority < selection.priority_min:
        return False
    if any(pair not in message.attributes for pair in selection.attributes):
        return False
    return selection.matches is None or selection.matches(message)


def _number(row: Row) -> int:
    assert row.reserved_as is not None
    return row.reserved_as[1]
