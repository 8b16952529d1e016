"""Reservations: frozen lists of messages, held by named consumers until they are finished.

A consumer's row is locked by whoever reserves or finishes for it, so that its numbers have no gap
and none is given twice, whichever node is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from sqlalchemy import Connection, Executable, bindparam, delete, func, select, update

from mqserver.errors import ReservationError, ReservationNotFound, ReservationOutdated
from mqserver.storage.contract import ConsumerInfo, Message, Selection
from mqserver.storage.sql import queues
from mqserver.storage.sql.database import Database
from mqserver.storage.sql.rows import COLUMNS, to_message
from mqserver.storage.sql.schema import EVERYBODY, IS_HELD, consumer, message, queue, reservation
from mqserver.storage.sql.selection import (
    SHAPES_MAX,
    Shape,
    parameters,
    picked,
    shape_of,
    with_bodies,
)
from mqserver.storage.sql.vendor import AnyRow

_IS_MEANT = consumer.c.name == bindparam("of_consumer")
_HOLD = select(consumer).where(_IS_MEANT).with_for_update()
_FINISH = update(consumer).where(_IS_MEANT).values(finished=bindparam("upto"))
_DROP = delete(consumer).where(_IS_MEANT)
_CONSUMERS = (
    select(consumer, queue.c.name.label("queue_name"), func.sum(reservation.c.size))
    .join(queue, queue.c.id == consumer.c.queue)
    .outerjoin(reservation, reservation.c.consumer == consumer.c.name)
    .group_by(*consumer.c, queue.c.name)
)
_OF_CONSUMER = select(reservation).where(reservation.c.consumer == bindparam("of_consumer"))
_FIND = _OF_CONSUMER.where(reservation.c.number == bindparam("numbered"))
_FETCH = (
    with_bodies(*COLUMNS)
    .where(
        IS_HELD,
        message.c.vsf == bindparam("holder"),
        message.c.position >= bindparam("start"),
        message.c.position < bindparam("stop"),
    )
    .order_by(message.c.position)
)


class Reservations:
    """The tables of consumers and of what they hold."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._vendor = database.vendor
        self._holding = lru_cache(SHAPES_MAX)(self._build_holding)
        held = IS_HELD, self._vendor.one_of(message.c.vsf, "holders")
        self._remove = self._vendor.removal(*held)
        self._give_back = update(message).where(*held).values(vsf=EVERYBODY, position=None)
        self._delete = delete(reservation).where(
            self._vendor.one_of(reservation.c.id, "reservations")
        )

    def reserve(
        self, name: str, queue_name: str, selection: Selection, after: int, limit: int
    ) -> int:
        """See `Storage.reserve`."""
        with self._database.write() as transaction:
            connection = transaction.connection
            known = self._hold_or_make(connection, name, queues.hold(connection, queue_name))
            if after < known.finished:
                raise ReservationOutdated(name, known.finished)
            if after > known.reserved:
                raise ReservationNotFound(name, after)
            if after == known.reserved and not self._hold_next(
                connection, name, queue_name, selection, after + 1, limit
            ):
                # With nothing to hold, a consumer that is new here has not been.
                connection.rollback()
                return 0
            return after + 1

    def _hold_or_make(self, connection: Connection, name: str, goal: AnyRow) -> AnyRow:
        new = self._vendor.insert(consumer).values(name=name, queue=goal.id, finished=0, reserved=0)
        known = connection.execute(
            new.on_conflict_do_update(
                index_elements=[consumer.c.name], set_={"name": new.excluded.name}
            ).returning(*consumer.c)
        ).one()
        if known.queue != goal.id:
            raise ReservationError(name, "it has another queue")
        return known

    def _hold_next(
        self,
        connection: Connection,
        name: str,
        queue_name: str,
        selection: Selection,
        number: int,
        limit: int,
    ) -> int:
        """The next messages are the consumer's under this number; how many they are."""
        made = reservation.insert().values(consumer=name, number=number, size=0)
        holder = connection.scalars(made.returning(reservation.c.id)).one()
        values = parameters(self._vendor, selection)
        values |= {"in_queue": queue_name, "limit": limit, "holder": -holder}
        connection.execute(self._holding(shape_of(selection)), values)
        held = select(func.count()).where(IS_HELD, message.c.vsf == -holder)
        size = connection.scalars(held).one()
        connection.execute(update(reservation).where(reservation.c.id == holder).values(size=size))
        connection.execute(update(consumer).where(consumer.c.name == name).values(reserved=number))
        return size

    def _build_holding(self, shape: Shape) -> Executable:
        chosen = picked(self._vendor, shape)
        position = func.row_number().over(order_by=(chosen.c.rank.desc(), chosen.c.key)) - 1
        placed = select(chosen.c.key, position.label("position")).cte("placed")
        return (
            update(message)
            .where(message.c.key == placed.c.key)
            .values(vsf=bindparam("holder"), position=placed.c.position)
        )

    def reserved(self, name: str, number: int) -> int:
        """See `Storage.reserved`."""
        with self._database.read() as connection:
            size: int = _find(connection, name, number).size
            return size

    def fetch(self, name: str, number: int, start: int, stop: int) -> list[Message]:
        """See `Storage.fetch`."""
        with self._database.read() as connection:
            found = _find(connection, name, number)
            window = range(found.size)[start:stop]
            wanted = {"holder": -found.id, "start": window.start, "stop": window.stop}
            return [to_message(row) for row in connection.execute(_FETCH, wanted)]

    def finish(self, name: str, upto: int) -> None:
        """See `Storage.finish`."""
        with self._database.write() as transaction:
            connection = transaction.connection
            known = connection.execute(_HOLD, {"of_consumer": name}).one_or_none()
            if upto > (known.reserved if known else 0):
                raise ReservationNotFound(name, upto)
            if known is not None and upto > known.finished:
                held = connection.execute(_OF_CONSUMER, {"of_consumer": name})
                done = [row.id for row in held if row.number <= upto]
                self._end(connection, done, *self._remove)
                connection.execute(_FINISH, {"of_consumer": name, "upto": upto})

    def consumers(self) -> list[ConsumerInfo]:
        """See `Storage.consumers`."""
        with self._database.read() as connection:
            rows = connection.execute(_CONSUMERS).all()
        infos = (
            ConsumerInfo(row.name, row.queue_name, row.finished, row.reserved, int(row[-1] or 0))
            for row in rows
        )
        return sorted(infos, key=lambda info: info.consumer)

    def drop(self, name: str) -> None:
        """See `Storage.drop_consumer`."""
        with self._database.write() as transaction:
            connection = transaction.connection
            if connection.execute(_HOLD, {"of_consumer": name}).one_or_none() is None:
                return
            held = connection.execute(_OF_CONSUMER, {"of_consumer": name})
            self._end(connection, [row.id for row in held], self._give_back)
            connection.execute(_DROP, {"of_consumer": name})

    def _end(
        self, connection: Connection, reservations: Sequence[int], *statements: Executable
    ) -> None:
        """The statements have dealt with the messages, and the reservations are gone."""
        holders = self._vendor.numbers([-number for number in reservations])
        for statement in statements:
            connection.execute(statement, {"holders": holders})
        ended = {"reservations": self._vendor.numbers(reservations)}
        connection.execute(self._delete, ended)


def _find(connection: Connection, name: str, number: int) -> AnyRow:
    wanted = {"of_consumer": name, "numbered": number}
    row = connection.execute(_FIND, wanted).one_or_none()
    if row is None:
        raise ReservationNotFound(name, number)
    return row
