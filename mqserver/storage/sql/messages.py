"""Messages: stored and taken by branches, and read without being taken."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Executable, bindparam, select

from mqserver.errors import MessageNotFound, QueueNotFound
from mqserver.storage.contract import Message, NewMessage, Outcome, Selection
from mqserver.storage.sql import queues
from mqserver.storage.sql.branches import Branches
from mqserver.storage.sql.database import Database
from mqserver.storage.sql.rows import COLUMNS, in_order, to_message
from mqserver.storage.sql.schema import DEQUEUED, IS_FREE, branch_mark, mark, message
from mqserver.storage.sql.schema import branch as branch_table
from mqserver.storage.sql.selection import (
    QUEUE_ID,
    SHAPES_MAX,
    Shape,
    conditions,
    parameters,
    picked,
    shape_of,
    with_bodies,
)
from mqserver.storage.sql.vendor import AnyRow

_FREE = with_bodies(*COLUMNS).where(IS_FREE, message.c.queue == QUEUE_ID)
_READ = _FREE.where(message.c.key == bindparam("wanted"))
_MARK = select(mark.c.version).where(mark.c.application == bindparam("of_application"))


class Messages:
    """The actions of branches on messages, and looking at messages."""

    def __init__(self, database: Database, branches: Branches) -> None:
        self._database = database
        self._vendor = database.vendor
        self._branches = branches
        self._dequeuing = lru_cache(SHAPES_MAX)(self._build_dequeuing)
        self._taken = self._build_taken()
        self._raising = self._build_raising()
        self._browsing = lru_cache(SHAPES_MAX)(self._build_browsing)

    def store(self, branch: bytes, queue: str, messages: Sequence[NewMessage]) -> range:
        """See `Storage.store`."""
        with self._branches.action(branch, "has_stored") as (transaction, row):
            connection = transaction.connection
            admission = self._vendor.admit(connection, queue, len(messages))
            if admission is None:
                raise QueueNotFound(queue)
            if messages:
                self._vendor.add(connection, admission, row.number, messages)
                transaction.force |= admission.needs_force
            else:
                connection.rollback()
            return admission.keys

    def take(self, branch: bytes, queue: str, selection: Selection, limit: int) -> list[Message]:
        """See `Storage.take`."""
        values = parameters(self._vendor, selection)
        with self._branches.action(branch, "has_taken") as (transaction, row):
            connection = transaction.connection
            dequeuing = self._dequeuing(shape_of(selection), row.has_stored)
            values |= {"in_queue": queue, "limit": limit, "by_branch": row.number}
            found = self._vendor.dequeue(connection, dequeuing, values)
            if not found:
                queues.check(connection, queue)
                connection.rollback()
            return in_order(found)

    def _build_dequeuing(self, shape: Shape, with_own: bool) -> Executable:
        return self._vendor.dequeuing(picked(self._vendor, shape, with_own))

    def taken(self, branch: bytes, queue: str, keys: Sequence[int]) -> list[Message]:
        """See `Storage.taken`."""
        values = {"in_queue": queue, "keys": self._vendor.numbers(keys), "of_branch": branch}
        rows = self._look(self._taken, values)
        found = {row[0]: to_message(row) for row in rows}
        for key in keys:
            if key not in found:
                raise MessageNotFound(queue, key)
        return [found[key] for key in keys]

    def _build_taken(self) -> Executable:
        holder = branch_table.c.number == message.c.vsf
        is_active = branch_table.c.outcome == Outcome.ACTIVE.value
        return (
            with_bodies(*COLUMNS)
            .join(branch_table, holder)
            .where(branch_table.c.id == bindparam("of_branch"), is_active)
            .where(message.c.queue == QUEUE_ID, message.c.lsf == DEQUEUED)
            .where(self._vendor.one_of(message.c.key, "keys"))
        )

    # --- Marks

    def raise_mark(self, branch: bytes, application: str, version: int) -> None:
        """See `Storage.raise_mark`."""
        with self._branches.action(branch, "has_marks") as (transaction, row):
            wanted = {"of_application": application, "to_version": version}
            transaction.connection.execute(self._raising, {"by_branch": row.number, **wanted})

    def _build_raising(self) -> Executable:
        new = self._vendor.insert(branch_mark).values(
            branch=bindparam("by_branch"),
            application=bindparam("of_application"),
            version=bindparam("to_version"),
        )
        return new.on_conflict_do_update(
            index_elements=[branch_mark.c.branch, branch_mark.c.application],
            set_={"version": new.excluded.version},
            where=branch_mark.c.version < new.excluded.version,
        )

    # --- Looking

    def read(self, queue: str, key: int) -> Message | None:
        """See `Storage.read`."""
        rows = self._look(_READ, {"in_queue": queue, "wanted": key})
        return to_message(rows[0]) if rows else None

    def browse(self, queue: str, selection: Selection, after: int, limit: int) -> list[Message]:
        """See `Storage.browse`."""
        values = parameters(self._vendor, selection)
        values |= {"in_queue": queue, "behind": after, "limit": limit}
        rows = self._look(self._browsing(shape_of(selection)), values)
        return [to_message(row) for row in rows]

    def _build_browsing(self, shape: Shape) -> Executable:
        return (
            _FREE.where(message.c.key > bindparam("behind"), *conditions(self._vendor, shape))
            .order_by(message.c.key)
            .limit(bindparam("limit"))
        )

    def mark(self, application: str) -> int:
        """See `Storage.mark`."""
        with self._database.read() as connection:
            return connection.scalar(_MARK, {"of_application": application}) or 0

    def _look(self, looking: Executable, values: dict[str, Any]) -> Sequence[AnyRow]:
        with self._database.read() as connection:
            rows = connection.execute(looking, values).all()
            if not rows:
                queues.check(connection, values["in_queue"])
            return rows
