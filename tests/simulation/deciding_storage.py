"""A storage of branches and of the few messages that a deciding node keeps: marks and fences.

It adds to `branches.py` what `Decisions` needs of `mqserver/storage/contract.py`. What a branch has
stored and taken happens with the record that says that it has committed, and is lost with it. So is
what it has got from a queue that never ends: its items are numbers, the first that nobody has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mqserver.errors import MessageNotFound, QueueExists, QueueNotFound, StorageError
from mqserver.storage.contract import (
    Message,
    NewMessage,
    Outcome,
    QueueSettings,
    Selection,
)
from tests.simulation.branches import BranchDisk, BranchStorage, Record
from tests.simulation.world import World


@dataclass
class Changes:
    """What a branch has stored and taken, and got."""

    stored: list[Message] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    got: list[int] = field(default_factory=list)


@dataclass
class MarkDisk(BranchDisk):
    """What survives a crash: also queues, and the changes of branches that have committed."""

    queues: dict[str, None] = field(default_factory=dict)
    changes: dict[bytes, Changes] = field(default_factory=dict)
    last_key: int = 0

    def got(self, branch: bytes) -> list[int]:
        """For the checker: the items that are gone with this branch, if it was committed."""
        return self.changes.get(branch, Changes()).got


class MarkStorage(BranchStorage):
    """The branches and the messages of one life of a node. See `Storage`."""

    def __init__(
        self, world: World, disk: MarkDisk, slow_s: float, lost_commits: float = 0.0
    ) -> None:
        self._contents = disk
        self._lost_commits = lost_commits
        self._messages: dict[int, Message] = {}
        self._changes: dict[bytes, Changes] = {}
        # Items that are gone or locked, and by which branch.
        self._held: dict[int, bytes] = {}
        # Told of every branch that has ended, or was prepared.
        self.at_end: Callable[[bytes, Outcome], object] = lambda branch, outcome: None
        super().__init__(world, disk, slow_s)

    def create_queue(self, name: str, settings: QueueSettings) -> None:
        """See `Storage.create_queue`."""
        self._wait()
        if name in self._contents.queues:
            raise QueueExists(name)
        self._world.step()
        self._contents.queues[name] = None
        self._world.step()

    def store(self, branch: bytes, queue: str, messages: Sequence[NewMessage]) -> range:
        """See `Storage.store`."""
        self._check_queue(queue)
        self.begin(branch)
        first = self._contents.last_key + 1
        self._contents.last_key += len(messages)
        keys = range(first, first + len(messages))
        stored = [Message(key, *message) for key, message in zip(keys, messages, strict=True)]
        self._changes.setdefault(branch, Changes()).stored += stored
        return keys

    def take_keys(
        self, branch: bytes, queue: str, keys: Sequence[int], timeout_s: float
    ) -> list[Message]:
        """See `Storage.take_keys`. Nobody takes the same message at the same time."""
        self._check_queue(queue)
        for key in keys:
            if key not in self._messages:
                raise MessageNotFound(queue, key)
        self.begin(branch)
        self._changes.setdefault(branch, Changes()).taken += keys
        return [self._messages[key] for key in keys]

    def get(self, branch: bytes) -> int:
        """The next item is the branch's, until it is rolled back."""
        self.begin(branch)
        item = next(item for item in itertools.count(1) if item not in self._held)
        self._held[item] = branch
        self._changes.setdefault(branch, Changes()).got.append(item)
        return item

    def browse(self, queue: str, selection: Selection, after: int, limit: int) -> list[Message]:
        """See `Storage.browse`; all that is here is selected."""
        self._check_queue(queue)
        found = [message for key, message in sorted(self._messages.items()) if key > after]
        return found[:limit]

    def commit_one_phase(self, branch: bytes, force: bool = True) -> None:
        """See `Storage.commit_one_phase`. As with a database, its answer may be lost."""
        chance = self._world.random
        is_lost = self._lost_commits > 0 and chance.random() < self._lost_commits
        if not is_lost or chance.random() < 0.5:
            super().commit_one_phase(branch, force)
        if is_lost:
            raise StorageError("simulated", "the connection was lost")

    def crash(self) -> None:
        """See `BranchStorage.crash`. A rollback that was lost and not voted on never happened."""
        lazy, before = self._lazy, len(self.disk.forced)
        super().crash()
        voted = {r.branch for r in self.disk.forced if r.outcome is Outcome.PREPARED}
        for record in lazy[len(self.disk.forced) - before :]:
            if record.outcome is Outcome.ROLLED_BACK and record.branch not in voted:
                # It may begin anew. Who was told that it is rolled back has that in the `Record`.
                self.disk.ends.pop(record.branch, None)

    def commit_lazily(self, branch: bytes) -> None:
        """For planted bugs: as `commit_one_phase`, and it is on disk with the next forced write."""
        self._write(Record(branch, Outcome.COMMITTED), is_forced=False)

    def kept(self, group: int) -> list[Message]:
        """For the checker: the messages of a group."""
        return [message for message in self._messages.values() if message.group == group]

    def _check_queue(self, queue: str) -> None:
        if queue not in self._contents.queues:
            raise QueueNotFound(queue)

    def _write(self, record: Record, is_forced: bool) -> None:
        # What a dead process does while it is unwound reaches no disk.
        self._world.step()
        changes = self._changes.pop(record.branch, None)
        # What has prepared has them on disk as well, and nobody sees them.
        if record.outcome in (Outcome.PREPARED, Outcome.COMMITTED) and changes is not None:
            self._contents.changes[record.branch] = changes
        super()._write(record, is_forced)
        self.at_end(record.branch, record.outcome)

    def _apply(self, record: Record) -> None:
        super()._apply(record)
        changes = self._contents.changes.get(record.branch, Changes())
        if record.outcome in (Outcome.PREPARED, Outcome.COMMITTED):
            self._held |= dict.fromkeys(changes.got, record.branch)
        if record.outcome is Outcome.ROLLED_BACK:
            self._held = {i: branch for i, branch in self._held.items() if branch != record.branch}
        if record.outcome is Outcome.COMMITTED:
            self._messages |= {message.key: message for message in changes.stored}
            for key in changes.taken:
                self._messages.pop(key, None)
