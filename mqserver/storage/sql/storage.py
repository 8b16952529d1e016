"""The storage on a database: composes queues, branches, messages and reservations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from mqserver.storage.sql.branches import Branches
from mqserver.storage.sql.by_key import ByKey
from mqserver.storage.sql.database import Database
from mqserver.storage.sql.messages import Messages
from mqserver.storage.sql.queues import Queues
from mqserver.storage.sql.reservations import Reservations
from mqserver.storage.sql.waiting import Pauses


class SqlStorage:
    """See `contract.Storage`.

    The node's name is its own among all that use the database, and the same after a restart. The
    clock is monotonic, in seconds; it is asked for timeouts only.
    """

    def __init__(self, url: str, node: str, clock: Callable[[], float]) -> None:
        self._database = Database(url, node)
        self._pauses = Pauses()
        self._queues = Queues(self._database)
        self._branches = Branches(self._database, node, self._pauses.wake)
        self._messages = Messages(self._database, self._branches)
        self._by_key = ByKey(self._database, self._branches, self._pauses, clock)
        self._reservations = Reservations(self._database)
        try:
            self._branches.undo_own()
        except BaseException:
            self._database.close()
            raise

    # --- Queues

    def create_queue(self, name: str, settings: QueueSettings) -> None:
        """See `Storage.create_queue`."""
        self._queues.create(name, settings)

    def change_queue(self, name: str, settings: QueueSettings) -> None:
        """See `Storage.change_queue`."""
        self._queues.change(name, settings)

    def delete_queue(self, name: str) -> None:
        """See `Storage.delete_queue`."""
        self._queues.delete(name)

    def queues(self) -> list[QueueInfo]:
        """See `Storage.queues`."""
        return self._queues.all()

    def queue(self, name: str) -> QueueInfo:
        """See `Storage.queue`."""
        return self._queues.one(name)

    # --- Actions of a branch

    def store(self, branch: bytes, queue: str, messages: Sequence[NewMessage]) -> range:
        """See `Storage.store`."""
        return self._messages.store(branch, queue, messages)

    def take(self, branch: bytes, queue: str, selection: Selection, limit: int) -> list[Message]:
        """See `Storage.take`."""
        return self._messages.take(branch, queue, selection, limit)

    def take_keys(
        self, branch: bytes, queue: str, keys: Sequence[int], timeout_s: float
    ) -> list[Message]:
        """See `Storage.take_keys`."""
        return self._by_key.take_keys(branch, queue, keys, timeout_s)

    def taken(self, branch: bytes, queue: str, keys: Sequence[int]) -> list[Message]:
        """See `Storage.taken`."""
        return self._messages.taken(branch, queue, keys)

    def raise_mark(self, branch: bytes, application: str, version: int) -> None:
        """See `Storage.raise_mark`."""
        self._messages.raise_mark(branch, application, version)

    # --- Ends of a branch

    def prepare(self, branch: bytes, recovery: bytes) -> Vote:
        """See `Storage.prepare`."""
        return self._branches.prepare(branch, recovery)

    def commit(self, branch: bytes, force: bool = True) -> Outcome:
        """See `Storage.commit`."""
        return self._branches.commit(branch, force)

    def commit_one_phase(self, branch: bytes, force: bool = True) -> None:
        """See `Storage.commit_one_phase`."""
        self._branches.commit_one_phase(branch, force)

    def rollback(self, branch: bytes) -> Outcome:
        """See `Storage.rollback`."""
        return self._branches.rollback(branch)

    def resolve(self, branch: bytes, commit: bool) -> None:
        """See `Storage.resolve`."""
        self._branches.resolve(branch, commit)

    def forget(self, branch: bytes) -> None:
        """See `Storage.forget`."""
        self._branches.forget(branch)

    def outcome(self, branch: bytes) -> Outcome:
        """See `Storage.outcome`."""
        return self._branches.outcome(branch)

    def branches(self) -> list[BranchInfo]:
        """See `Storage.branches`."""
        return self._branches.branches()

    # --- Reading without taking

    def read(self, queue: str, key: int) -> Message | None:
        """See `Storage.read`."""
        return self._messages.read(queue, key)

    def browse(self, queue: str, selection: Selection, after: int, limit: int) -> list[Message]:
        """See `Storage.browse`."""
        return self._messages.browse(queue, selection, after, limit)

    def mark(self, application: str) -> int:
        """See `Storage.mark`."""
        return self._messages.mark(application)

    # --- Reservations

    def reserve(
        self, consumer: str, queue: str, selection: Selection, after: int, limit: int
    ) -> int:
        """See `Storage.reserve`."""
        return self._reservations.reserve(consumer, queue, selection, after, limit)

    def reserved(self, consumer: str, number: int) -> int:
        """See `Storage.reserved`."""
        return self._reservations.reserved(consumer, number)

    def fetch(self, consumer: str, number: int, start: int, stop: int) -> list[Message]:
        """See `Storage.fetch`."""
        return self._reservations.fetch(consumer, number, start, stop)

    def finish(self, consumer: str, upto: int) -> None:
        """See `Storage.finish`."""
        self._reservations.finish(consumer, upto)

    def consumers(self) -> list[ConsumerInfo]:
        """See `Storage.consumers`."""
        return self._reservations.consumers()

    def drop_consumer(self, consumer: str) -> None:
        """See `Storage.drop_consumer`."""
        self._reservations.drop(consumer)

    # --- The storage itself

    def force(self) -> None:
        """See `Storage.force`."""
        self._database.force()

    def checkpoint(self) -> None:
        """See `Storage.checkpoint`."""
        self._database.force()
        self._database.rest()

    def close(self) -> None:
        """See `Storage.close`."""
        self._pauses.close()
        try:
            self._branches.undo_own()
            self._database.close_keys()
        finally:
            self._database.close()
