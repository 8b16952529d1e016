"""What the paged storage knows in memory: queues, where their messages are, branches, consumers.

Pure: no file, no thread, no clock. The same functions change it when an action is done and when its
record is read again at a restart. So all of them may be repeated, and none minds that a message is
gone already: a restart begins with what the checkpoint saw and repeats what happened before and
after it.

A message is in one of four states. Stored: it belongs to a branch that has not committed, and
stands in the branch only; that branch may hold it too. Free: anyone may take it, and it stands in
the queue's order. Taken: a branch holds it. Reserved: a consumer holds it. The holder is the lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from mqserver.errors import QueueNotFound
from mqserver.storage.contract import (
    OUTCOMES_KEPT,
    BranchInfo,
    Outcome,
    QueueInfo,
    Selection,
)
from mqserver.storage.entries import IN_LOG, Entry, Parcel
from mqserver.storage.queue_index import Queue

# To look one up in its class takes four times as long.
_ACTIVE, _COMMITTED = Outcome.ACTIVE, Outcome.COMMITTED


class Branch:
    """What a branch has done: messages stored and taken by queue, and marks to be raised.

    A message that it stored and took itself stands in both, with the branch as its holder. `lsn` is
    where its record in the log begins, or the first checkpoint that carried it; `is_ending` while
    the record of an end is on its way to the disk.
    """

    __slots__ = (
        "bundles",
        "cancelled",
        "has_cancelled",
        "has_pages",
        "has_waited",
        "id",
        "is_carried",
        "is_ending",
        "lsn",
        "marks",
        "outcome",
        "parcels",
        "recovery",
        "stored",
        "taken",
    )

    def __init__(self, branch: bytes) -> None:
        self.id = branch
        self.outcome = _ACTIVE
        self.recovery = b""
        self.lsn = -1
        self.stored: dict[str, list[Entry]] = {}
        # What it stored many at a time; these are not in `stored`.
        self.parcels: dict[str, list[Parcel]] = {}
        self.taken: dict[str, list[Entry]] = {}
        self.marks: dict[str, int] = {}
        self.is_ending = False
        # Whether the checkpoint on disk speaks for it, its own record being before the restart.
        self.is_carried = False
        # Runs that a checkpoint has filled with its messages, while it is in doubt.
        self.bundles: list[int] = []
        # Whether it wrote pages, which are to be synced before its record.
        self.has_pages = False
        # Whether it waited for a message, or another for one of its own: the lock manager knows it.
        self.has_waited = False
        # Whether it holds any that it stored itself.
        self.has_cancelled = False
        # After a restart: what it had stored and taken itself, by queue, how many and their bytes.
        self.cancelled: dict[str, tuple[int, int]] = {}

    @property
    def is_read_only(self) -> bool:
        """Whether there is nothing to commit."""
        for entries in self.stored.values():
            if entries:
                return False
        return not self.parcels and not any(self.taken.values()) and not self.marks

    def take(self, queue: str, entries: list[Entry]) -> None:
        """The branch holds these messages; some may be such as it stored itself."""
        if queue in self.taken:
            self.taken[queue] += entries
        else:
            self.taken[queue] = list(entries)
        if self.stored:
            own = {entry.key for entry in self.stored.get(queue, ())}
            self.has_cancelled |= any(entry.key in own for entry in entries)

    def to_add(self) -> dict[str, list[Entry]]:
        """What a commit adds: all it stored but for what it took again."""
        if not self.has_cancelled:
            return self.stored
        return {
            queue: [entry for entry in entries if entry.holder is None]
            for queue, entries in self.stored.items()
        }

    def added(self) -> list[Entry]:
        """The messages that a commit adds, of all queues."""
        if not self.has_cancelled:
            if not self.stored:
                return []
            if len(self.stored) == 1:
                return next(iter(self.stored.values()))
        return [entry for entries in self.to_add().values() for entry in entries]

    def only(self) -> tuple[str, Entry] | None:
        """The queue and the message, of a branch that stored one in the log and did nothing else.

        Most are such, and there is little to be asked of them.
        """
        if len(self.stored) != 1 or self.taken or self.parcels or self.marks or self.cancelled:
            return None
        ((queue, entries),) = self.stored.items()
        if len(entries) != 1 or entries[0].run != IN_LOG:
            return None
        return queue, entries[0]

    def all_parcels(self) -> list[Parcel]:
        """Its parcels, of all queues."""
        return [parcel for parcels in self.parcels.values() for parcel in parcels]

    def rides_in_log(self, queue: str) -> bool:
        """Whether a parcel for this queue is to be in the branch's record, and not in pages."""
        return any(parcel.run == IN_LOG for parcel in self.parcels.get(queue, ()))

    def count_added(self) -> int:
        """How many messages a commit adds."""
        return len(self.added()) + sum(map(len, self.all_parcels()))

    def info(self) -> BranchInfo:
        """What can be told of the branch."""
        cancelled = sum(count for count, _ in self.cancelled.values())
        blocked = sum(map(len, self.all_parcels()))
        return BranchInfo(
            branch=self.id,
            outcome=self.outcome,
            recovery=self.recovery,
            stored=sum(map(len, self.stored.values())) + blocked + cancelled,
            taken=sum(map(len, self.taken.values())) + cancelled,
        )

    def held(self, queue: str) -> tuple[int, int]:
        """How many messages it has stored in the queue, whether taken again or not; their bytes."""
        count, size = self.cancelled.get(queue, (0, 0))
        entries, parcels = self.stored.get(queue, ()), self.parcels.get(queue, ())
        count += len(entries) + sum(map(len, parcels))
        return count, size + sum(entry.size for entry in entries) + sum(b.size for b in parcels)


class Consumer:
    """A named consumer: one queue, and its reservations by number."""

    def __init__(self, name: str, queue: str) -> None:
        self.name = name
        self.queue = queue
        self.finished = 0
        self.reservations: OrderedDict[int, list[int]] = OrderedDict()

    @property
    def last(self) -> int:
        """The highest number given so far."""
        return next(reversed(self.reservations), self.finished)


class Index:
    """Everything that a storage knows of its queues."""

    def __init__(self, outcomes_kept: int = OUTCOMES_KEPT) -> None:
        self.outcomes_kept = outcomes_kept
        self.queues: dict[str, Queue] = {}
        self.branches: dict[bytes, Branch] = {}
        self.consumers: dict[str, Consumer] = {}
        self.marks: dict[str, int] = {}
        self.outcomes: OrderedDict[bytes, Outcome] = OrderedDict()
        # What operators decided, kept until it is forgotten by order.
        self.heuristics: dict[bytes, BranchInfo] = {}

    def queue(self, name: str) -> Queue:
        """The queue; raises `QueueNotFound`."""
        queue = self.queues.get(name)
        if queue is None:
            raise QueueNotFound(name)
        return queue

    def queue_info(self, name: str) -> QueueInfo:
        """What the queue holds, with what branches have stored in it so far."""
        info = self.queue(name).info()
        held = [branch.held(name) for branch in self.branches.values()]
        return replace(
            info,
            locked=info.locked + sum(count for count, _ in held),
            payload_bytes=info.payload_bytes + sum(size for _, size in held),
        )

    # --- Ends of branches

    def complete(self, branch: Branch) -> list[Entry]:
        """The branch has happened; the messages that are gone now."""
        gone: list[Entry] = []
        # Most branches have little of all this, and nothing is made for what they lack.
        if branch.taken:
            for name, entries in branch.taken.items():
                queue = self.queues.get(name)
                if queue is not None:
                    gone += queue.remove_all(entries)
        if branch.stored:
            added = branch.to_add() if branch.has_cancelled else branch.stored
            for name, entries in added.items():
                queue = self.queues.get(name)
                if queue is not None:
                    queue.add(entries)
        if branch.parcels:
            for name, parcels in branch.parcels.items():
                queue = self.queues.get(name)
                for parcel in parcels if queue is not None else ():
                    assert queue is not None
                    queue.add_parcel(parcel)
        if branch.marks:
            for application, version in branch.marks.items():
                self.raise_mark(application, version)
        self._end(branch, _COMMITTED)
        return gone

    def undo(self, branch: Branch) -> list[Entry]:
        """The branch has not happened; the messages that it had stored."""
        for name, entries in branch.taken.items():
            queue = self.queues.get(name)
            for entry in entries:
                if queue is not None and queue.find(entry.key) is not None:
                    queue.release(entry)
        self._end(branch, Outcome.ROLLED_BACK)
        return [entry for entries in branch.stored.values() for entry in entries]

    def _end(self, branch: Branch, outcome: Outcome) -> None:
        self.branches.pop(branch.id, None)
        branch.outcome = outcome
        self.remember(branch.id, outcome)

    def remember(self, branch: bytes, outcome: Outcome) -> None:
        """The branch ended so; the oldest outcomes are forgotten."""
        outcomes = self.outcomes
        if branch in outcomes:
            # Written anew, it would stay at its old place.
            del outcomes[branch]
        outcomes[branch] = outcome
        while len(outcomes) > self.outcomes_kept:
            outcomes.popitem(last=False)

    def outcome(self, branch: bytes) -> Outcome:
        """What is known of the branch."""
        known = self.branches.get(branch) or self.heuristics.get(branch)
        return self.outcomes.get(branch, Outcome.UNKNOWN) if known is None else known.outcome

    def judge(self, info: BranchInfo) -> None:
        """An operator has ended the branch so; its plain outcome is not remembered beside it."""
        self.outcomes.pop(info.branch, None)
        self.heuristics[info.branch] = info

    def raise_mark(self, application: str, version: int) -> None:
        """The mark is at least this version."""
        self.marks[application] = max(version, self.marks.get(application, 0))

    # --- Consumers

    def consumer(self, name: str, queue: str) -> Consumer:
        """The consumer, which may be a new one."""
        return self.consumers.setdefault(name, Consumer(name, queue))

    def reserve(self, name: str, queue: str, number: int, keys: Iterable[int]) -> None:
        """The consumer holds these messages under this number."""
        consumer = self.consumer(name, queue)
        if number <= consumer.finished:
            return
        held = list(keys)
        consumer.reservations[number] = held
        table = self.queue(queue)
        for key in held:
            entry = table.find(key)
            if entry is not None:
                table.hold(entry, (name, number))

    def finish(self, name: str, upto: int) -> list[Entry]:
        """The consumer's reservations up to this number are done; the messages that are gone."""
        consumer = self.consumers.get(name)
        if consumer is None:
            return []
        gone = []
        queue = self.queues.get(consumer.queue)
        for number in [n for n in consumer.reservations if n <= upto]:
            for key in consumer.reservations.pop(number):
                entry = None if queue is None else queue.remove(key)
                if entry is not None:
                    gone.append(entry)
        consumer.finished = max(consumer.finished, upto)
        return gone

    def drop_consumer(self, name: str) -> None:
        """The consumer is unknown; what it held is free."""
        consumer = self.consumers.pop(name, None)
        queue = None if consumer is None else self.queues.get(consumer.queue)
        if consumer is None or queue is None:
            return
        for keys in consumer.reservations.values():
            for key in keys:
                entry = queue.find(key)
                if entry is not None:
                    queue.release(entry)


def is_selected(entry: Entry, selection: Selection) -> bool:
    """Whether the message is one of those meant, as far as its header says; see `Selection`."""
    if selection.group and entry.group != selection.group:
        return False
    if entry.priority < selection.priority_min:
        return False
    return all(pair in entry.attributes for pair in selection.attributes)
