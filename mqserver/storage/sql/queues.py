"""Queues: made, changed, removed, and counted.

Whoever stores into a queue, or reserves from it, holds a share of its row. Whoever changes
or deletes it holds the row alone, and so sees all that others have put there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    delete,
    func,
    or_,
    select,
    update,
)

from mqserver.errors import QueueExists, QueueInUse, QueueNotFound
from mqserver.storage.contract import QueueInfo, QueueSettings
from mqserver.storage.sql.database import Database
from mqserver.storage.sql.schema import IS_FREE, IS_HELD, body, consumer, message, queue
from mqserver.storage.sql.selection import QUEUE_ID
from mqserver.storage.sql.vendor import AnyRow

_FIND = select(queue).where(queue.c.name == bindparam("in_queue"))
_HOLD = _FIND.with_for_update(key_share=True, read=True)
_HOLD_ALONE = _FIND.with_for_update()


def hold(connection: Connection, name: str) -> AnyRow:
    """The row of the queue, which nobody changes during this transaction. Or `QueueNotFound`."""
    return _one(connection, _HOLD, name)


def check(connection: Connection, name: str) -> None:
    """There is such a queue. Or `QueueNotFound`."""
    _one(connection, _FIND, name)


class Queues:
    """The table of queues."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._vendor = database.vendor

    def create(self, name: str, settings: QueueSettings) -> None:
        """See `Storage.create_queue`."""
        with self._database.write() as transaction:
            made = transaction.connection.execute(
                self._vendor.insert(queue)
                .values(name=name, **dataclasses.asdict(settings))
                .on_conflict_do_nothing()
                .returning(queue.c.id)
            )
            if made.one_or_none() is None:
                raise QueueExists(name)

    def change(self, name: str, settings: QueueSettings) -> None:
        """See `Storage.change_queue`."""
        with self._database.write() as transaction:
            connection = transaction.connection
            row = _one(connection, _HOLD_ALONE, name)
            changed = update(queue).where(queue.c.id == row.id)
            connection.execute(changed.values(dataclasses.asdict(settings)))
            if settings.prioritized != row.prioritized:
                self._vendor.lock_messages(connection)
                rank = message.c.priority if settings.prioritized else 0
                connection.execute(
                    update(message).where(message.c.queue == row.id).values(rank=rank)
                )

    def delete(self, name: str) -> None:
        """See `Storage.delete_queue`."""
        with self._database.write() as transaction:
            connection = transaction.connection
            row = _one(connection, _HOLD_ALONE, name)
            inside = select(message.c.key).where(message.c.queue == row.id).limit(1)
            has_messages = any(
                connection.scalar(inside.where(state)) for state in (IS_FREE, IS_HELD)
            )
            users = select(consumer.c.name).where(consumer.c.queue == row.id)
            consumers = connection.scalars(users).all()
            if has_messages or consumers:
                raise QueueInUse(name, *sorted(consumers))
            connection.execute(delete(queue).where(queue.c.id == row.id))

    def all(self) -> list[QueueInfo]:
        """See `Storage.queues`."""
        with self._database.read() as connection:
            rows = connection.execute(_ALL).all()
        return sorted(map(_info, rows), key=lambda info: info.name)

    def one(self, name: str) -> QueueInfo:
        """See `Storage.queue`."""
        with self._database.read() as connection:
            return _info(_one(connection, _ONE, name))


def _counted(*condition: ColumnElement[bool]) -> Select[Any]:
    """Queues and what they hold, in one statement so that no message is counted twice."""
    counts = (
        select(
            message.c.queue,
            func.count().filter(IS_FREE).label("visible"),
            func.count().filter(IS_HELD).label("locked"),
            func.sum(message.c.size).label("payload_bytes"),
            func.min(message.c.key).filter(IS_FREE).label("oldest"),
        )
        # Every message is one or the other; said so that the two indexes can be used.
        .where(or_(IS_FREE, IS_HELD), *condition)
        .group_by(message.c.queue)
        .subquery("counts")
    )
    return (
        select(queue, counts.c.visible, counts.c.locked, counts.c.payload_bytes, body.c.time_us)
        .select_from(queue)
        .outerjoin(counts, counts.c.queue == queue.c.id)
        .outerjoin(body, body.c.message_key == counts.c.oldest)
    )


_ALL = _counted()
_ONE = _counted(message.c.queue == QUEUE_ID).where(queue.c.name == bindparam("in_queue"))


def _info(row: AnyRow) -> QueueInfo:
    return QueueInfo(
        name=row.name,
        settings=QueueSettings(row.enabled, row.prioritized, row.messages_max, row.bytes_max),
        visible=row.visible or 0,
        locked=row.locked or 0,
        payload_bytes=int(row.payload_bytes or 0),
        oldest_us=row.time_us or 0,
    )


def _one(connection: Connection, found: Select[Any], name: str) -> AnyRow:
    row = connection.execute(found, {"in_queue": name}).one_or_none()
    if row is None:
        raise QueueNotFound(name)
    return row
