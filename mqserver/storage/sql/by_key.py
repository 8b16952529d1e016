"""Taking messages by their keys: all of them or none, and waiting for those that others hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, and_, bindparam, or_, select

from mqserver.errors import BranchEnded, LockTimeout, MessageNotFound
from mqserver.storage.contract import Message
from mqserver.storage.sql import queues
from mqserver.storage.sql.branches import Branches
from mqserver.storage.sql.database import Database
from mqserver.storage.sql.rows import to_message
from mqserver.storage.sql.schema import DEQUEUED, ENQUEUED, EVERYBODY, message
from mqserver.storage.sql.selection import QUEUE_ID
from mqserver.storage.sql.vendor import AnyRow
from mqserver.storage.sql.waiting import Pauses, Place, pauses_s


class ByKey:
    """The one action of a branch that may have to wait."""

    def __init__(
        self,
        database: Database,
        branches: Branches,
        pauses: Pauses,
        clock: Callable[[], float],
    ) -> None:
        self._database = database
        self._vendor = database.vendor
        self._branches = branches
        self._pauses = pauses
        self._clock = clock
        meant = self._vendor.one_of(message.c.key, "keys")
        wanted = message.c.queue == QUEUE_ID, meant
        own = and_(message.c.vsf == bindparam("by_branch"), message.c.lsf == ENQUEUED)
        free = select(message.c.key).where(*wanted, or_(message.c.vsf == EVERYBODY, own))
        self._locking = free.with_for_update(skip_locked=True)
        state = message.c.key, message.c.branch, message.c.lsf, message.c.vsf
        self._states = select(*state).where(*wanted)
        self._dequeuing = self._vendor.dequeuing(select(message.c.key).where(meant).cte("picked"))

    def take_keys(
        self, branch: bytes, queue: str, keys: Sequence[int], timeout_s: float
    ) -> list[Message]:
        """See `Storage.take_keys`."""
        deadline = self._clock() + timeout_s
        place = Place(self._database, self._clock)
        with self._pauses.waiting():
            try:
                return self._wait_for(branch, queue, keys, place, deadline)
            finally:
                place.leave()

    def _wait_for(
        self, branch: bytes, queue: str, keys: Sequence[int], place: Place, deadline: float
    ) -> list[Message]:
        # Whoever has time enters the line once, also if the time is up when it comes to that.
        has_time = self._clock() < deadline
        for pause_s in pauses_s():
            if self._pauses.is_closed:
                raise BranchEnded(branch.hex(), "the storage was closed")
            seen = self._pauses.changes
            found, blocked = self._try(branch, queue, keys, place)
            if not blocked:
                return found
            if not has_time:
                break
            if not place.is_good_for(blocked):
                self._enter(branch, blocked, place)
            left_s = deadline - self._clock()
            has_time = left_s > 0
            if has_time:
                self._pauses.pause(seen, min(pause_s, left_s))
        raise LockTimeout(f"queue {queue}, messages {', '.join(map(str, blocked))}")

    def _try(
        self, branch: bytes, queue: str, keys: Sequence[int], place: Place
    ) -> tuple[list[Message], list[int]]:
        """The messages, if the branch could have them all; else those that others have."""
        with self._branches.action(branch, "has_taken") as (transaction, row):
            connection = transaction.connection
            if not keys:
                queues.check(connection, queue)
            blocked = self._blocked(connection, queue, keys, row.number, place)
            if blocked or not keys:
                connection.rollback()
                return [], blocked
            values = {"keys": self._vendor.numbers(keys), "by_branch": row.number}
            rows = self._vendor.dequeue(connection, self._dequeuing, values)
            found = {row[0]: to_message(row) for row in rows}
            return [found[key] for key in keys], []

    def _blocked(
        self, connection: Connection, queue: str, keys: Sequence[int], branch: int, place: Place
    ) -> list[int]:
        """Those of the keys that others have or stand in line for; if there are none, all are ours.

        Nothing is locked by those who are not first in line, or the first would find it locked.
        """
        values = {"in_queue": queue, "keys": self._vendor.numbers(keys), "by_branch": branch}
        before = place.before(connection, branch, keys)
        locked = set() if before else set(connection.scalars(self._locking, values))
        if len(locked) == len(keys):
            return []
        found = {row.key: row for row in connection.execute(self._states, values)}
        self._check_keys(connection, queue, keys, branch, found)
        if not before:
            return [key for key in keys if key not in locked]
        return [key for key in keys if key in before or not _is_free(found[key], branch)]

    def _check_keys(
        self,
        connection: Connection,
        queue: str,
        keys: Sequence[int],
        branch: int,
        found: dict[int, AnyRow],
    ) -> None:
        """All of these messages can be had, now or when others let go of them."""
        queues.check(connection, queue)
        left = dict(found)
        for key in keys:
            # Popped, so that a key that is asked for twice is missing the second time.
            row = left.pop(key, None)
            if row is None or not _can_be_had(row, branch):
                raise MessageNotFound(queue, key)

    def _enter(self, branch: bytes, keys: Sequence[int], place: Place) -> None:
        with (
            self._branches.acting(branch) as live,
            self._database.write(force=False) as transaction,
        ):
            number = self._branches.begin(transaction.connection, branch, live)
            place.enter(transaction.connection, number, keys)


def _can_be_had(row: AnyRow, branch: int) -> bool:
    """Whether the branch may take the message, now or when its holder lets go of it.

    What another branch has stored, and taken again itself, was never there for anybody else.
    """
    is_taken = bool(row.lsf == DEQUEUED and row.vsf != branch and row.branch != row.vsf)
    return _is_free(row, branch) or is_taken


def _is_free(row: AnyRow, branch: int) -> bool:
    """Whether the branch may take the message now."""
    return bool(row.vsf == EVERYBODY or (row.vsf == branch and row.lsf == ENQUEUED))
