"""PostgreSQL: a database of its own, which many nodes share and which may crash without us.

A commit that has to be on disk waits for it (`synchronous_commit` as the server has it, never less
than `on`). The actions of a branch are committed without waiting: the end of the branch waits for
them too, because the log of the database has one order. If the database crashes before, they may
be lost while we live on; `branches.py` notices, and does not commit what is left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from psycopg.types.json import Jsonb
from sqlalchemy import (
    ARRAY,
    CTE,
    URL,
    BigInteger,
    ColumnElement,
    Connection,
    Double,
    Engine,
    Executable,
    Table,
    any_,
    bindparam,
    cast,
    create_engine,
    delete,
    event,
    extract,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, Insert, insert
from sqlalchemy.exc import DBAPIError, TimeoutError
from sqlalchemy.schema import Sequence as NumberSequence
from sqlalchemy.sql.functions import next_value

from mqserver.errors import (
    Corruption,
    MqError,
    RetryableError,
    StorageError,
    StorageFull,
)
from mqserver.storage.contract import NewMessage
from mqserver.storage.sql import postgres_server as server
from mqserver.storage.sql import schema
from mqserver.storage.sql.postgres_server import LOCK_LINE, LOCK_TABLES, LOCKS
from mqserver.storage.sql.rows import COLUMNS, attributes_to_json, body_row, message_row
from mqserver.storage.sql.vendor import BUSY_S_MAX, KEYS_AHEAD, Admission, AnyRow, Claim

_END = NumberSequence("oncemq_end")
_CONNECTION_SETTINGS = {
    "application_name": "oncemq",
    "connect_timeout": "10",
    # A database whose machine is gone must not hold a call for ever.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}

# By the first characters of SQLSTATE; the longest that fits counts.
_FAILURES: dict[str, type[MqError]] = {
    "23505": RetryableError,
    "40": RetryableError,
    "53100": StorageFull,
    "55P03": RetryableError,
    "XX001": Corruption,
    "XX002": Corruption,
}
_LOST = ("08", "57P")


class Postgres:
    """See `Vendor`."""

    can_outlive_it = True
    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(self, url: URL) -> None:
        settings = {**_CONNECTION_SETTINGS, **url.query}
        self._url = url.set(drivername="postgresql+psycopg", query=settings)
        self._ceiling = 0

    def engine(self) -> Engine:
        """See `Vendor.engine`."""
        engine = create_engine(
            self._url,
            hide_parameters=True,
            isolation_level="READ COMMITTED",
            pool_size=16,
            max_overflow=0,
            pool_timeout=BUSY_S_MAX,
        )
        event.listen(engine, "connect", self._check)
        return engine

    def describe(self) -> str:
        """See `Vendor.describe`."""
        url = self._url
        return f"the PostgreSQL database {url.database!r} at {url.host or 'this machine'}" + (
            f":{url.port}" if url.port else ""
        )

    def failure(self, error: Exception) -> MqError:
        """See `Vendor.failure`."""
        if isinstance(error, TimeoutError):
            return RetryableError(f"{self.describe()}: all our connections to it are busy")
        cause = error.orig if isinstance(error, DBAPIError) else error
        if not isinstance(cause, psycopg.Error):
            return StorageError(f"{self.describe()}: {cause}")
        state = cause.sqlstate or "08"
        if state.startswith(_LOST):
            return StorageError(
                f"{self.describe()} cannot be reached, and whether this call has done its work is "
                f"not known; ask for the outcome when it is back: {_first_line(cause)}"
            )
        kinds = [_FAILURES[state[:n]] for n in (5, 2) if state[:n] in _FAILURES]
        return (kinds or [StorageError])[0](f"{self.describe()}: {_first_line(cause)}")

    def claim(self, engine: Engine, node: str) -> Claim:
        """See `Vendor.claim`."""
        return server.SessionClaim(engine, node)

    def _check(self, connection: psycopg.Connection[Any], record: object) -> None:
        server.check(connection, self.describe())

    # --- Transactions

    def turn(self) -> AbstractContextManager[object]:
        """See `Vendor.turn`: the database lets many write at once."""
        return contextlib.nullcontext()

    def begin(self, connection: Connection, force: bool) -> None:
        """See `Vendor.begin`: the first statement begins it."""

    def commit(self, connection: Connection, force: bool) -> None:
        """See `Vendor.commit`."""
        if not force:
            connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
        connection.commit()

    def rest(self, connection: Connection) -> None:
        """See `Vendor.rest`: the database sees to it."""

    # --- The tables

    def lock_tables(self, connection: Connection) -> None:
        """See `Vendor.lock_tables`."""
        connection.execute(func.pg_advisory_xact_lock(LOCKS, LOCK_TABLES).select())

    def complete_tables(self, connection: Connection) -> None:
        """See `Vendor.complete_tables`."""
        connection.exec_driver_sql(server.COMPLETION)

    def lock_line(self, connection: Connection) -> None:
        """See `Vendor.lock_line`."""
        connection.execute(func.pg_advisory_xact_lock(LOCKS, LOCK_LINE).select())

    def lock_messages(self, connection: Connection) -> None:
        """See `Vendor.lock_messages`."""
        connection.exec_driver_sql("LOCK TABLE oncemq_message IN SHARE ROW EXCLUSIVE MODE")

    # --- Words

    def insert(self, table: Table) -> Insert:
        """See `Vendor.insert`."""
        return insert(table)

    def now_s(self) -> ColumnElement[float]:
        """See `Vendor.now_s`."""
        return cast(extract("epoch", func.clock_timestamp()), Double)

    def next_end(self) -> ColumnElement[int]:
        """See `Vendor.next_end`."""
        return next_value(_END)

    def one_of(self, column: ColumnElement[int], parameter: str) -> ColumnElement[bool]:
        """See `Vendor.one_of`."""
        return column == any_(bindparam(parameter, type_=ARRAY(BigInteger)))

    def numbers(self, numbers: Sequence[int]) -> object:
        """See `Vendor.numbers`."""
        return list(numbers)

    def has_attribute(self, parameter: str) -> ColumnElement[bool]:
        """See `Vendor.has_attribute`."""
        return schema.body.c.attributes.bool_op("@>")(bindparam(parameter, type_=JSONB))

    def attribute(self, name: str, value: str) -> object:
        """See `Vendor.attribute`."""
        return [{"name": name, "value": value}]

    def removal(self, *condition: ColumnElement[bool]) -> tuple[Executable, ...]:
        """See `Vendor.removal`."""
        gone = delete(schema.message).where(*condition).returning(schema.message.c.key).cte("gone")
        return (delete(schema.body).where(schema.body.c.message_key == gone.c.key),)

    # --- Messages

    def open_keys(self, connection: Connection) -> None:
        """See `Vendor.open_keys`: every new connection does it, since any may be the first."""
        connection.execute(text("SELECT oncemq_open_keys()"))

    def admit(self, connection: Connection, queue: str, count: int) -> Admission | None:
        """See `Vendor.admit`."""
        found = connection.execute(_ADMIT, {"in_queue": queue, "how_many": count}).one_or_none()
        if found is None or not count:
            return found and Admission(found.id, found.prioritized, range(0), needs_force=False)
        keys = range(found.first, found.first + count)
        needs_force = keys[-1] > self._ceiling and self._raise_ceiling(connection, keys[-1])
        return Admission(found.id, found.prioritized, keys, needs_force)

    def _raise_ceiling(self, connection: Connection, last: int) -> bool:
        """The key is below the ceiling; says whether that is still to be forced."""
        values = {"last_key": last, "new": last + KEYS_AHEAD}
        if connection.execute(_RAISE_CEILING, values).rowcount:
            return True
        # Somebody else has raised it, and it is forced: else it could not be seen.
        self._ceiling = connection.scalars(select(schema.key_counter.c.ceiling)).one()
        return False

    def close_keys(self, connection: Connection) -> None:
        """See `Vendor.close_keys`: the database knows whether it ended in order."""

    def add(
        self,
        connection: Connection,
        admission: Admission,
        branch: int,
        messages: Sequence[NewMessage],
    ) -> None:
        """See `Vendor.add`."""
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        rows = [
            (message_row(key, new, admission, branch), body_row(key, new, _attributes(new)))
            for key, new in zip(admission.keys, messages, strict=True)
        ]
        if len(rows) == 1:
            # The most frequent case is worth a statement that goes there and back only once.
            driver.execute(_ADD_ONE, (*rows[0][1], *rows[0][0]))
            return
        for table, place in ((schema.message, 0), (schema.body, 1)):
            with driver.cursor().copy(f"COPY {table.name} FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(_types(table))
                for row in rows:
                    copy.write_row(row[place])

    def dequeuing(self, picked: CTE) -> Executable:
        """See `Vendor.dequeuing`."""
        message, body = schema.message, schema.body
        return (
            update(message)
            .where(message.c.key == picked.c.key, body.c.message_key == picked.c.key)
            .values(lsf=schema.DEQUEUED, vsf=bindparam("by_branch"))
            .returning(*COLUMNS)
        )

    def dequeue(
        self, connection: Connection, dequeuing: Executable, values: dict[str, object]
    ) -> Sequence[AnyRow]:
        """See `Vendor.dequeue`."""
        return connection.execute(dequeuing, values).all()


_ADMIT = (
    select(
        schema.queue.c.id,
        schema.queue.c.prioritized,
        func.oncemq_next_keys(bindparam("how_many")).label("first"),
    )
    .where(schema.queue.c.name == bindparam("in_queue"))
    .with_for_update(read=True, key_share=True)
)
_RAISE_CEILING = (
    update(schema.key_counter)
    .where(schema.key_counter.c.ceiling < bindparam("last_key"))
    .values(ceiling=bindparam("new"))
)


def _attributes(new: NewMessage) -> Jsonb | None:
    return Jsonb(attributes_to_json(new)) if new.attributes else None


def _types(table: Table) -> list[str]:
    """The types of the columns as the binary form of COPY wants to know them."""
    return [_TYPE_NAMES[column.type.__class__.__name__] for column in table.columns]


_TYPE_NAMES = {
    "BigInteger": "int8",
    "JSON": "jsonb",
    "LargeBinary": "bytea",
    "Name": "text",
    "Text": "text",
}


def _places(table: Table) -> str:
    return ", ".join(["%s"] * len(table.columns))


_ADD_ONE = (
    f"WITH added AS (INSERT INTO {schema.body.name} VALUES ({_places(schema.body)}))"
    f" INSERT INTO {schema.message.name} VALUES ({_places(schema.message)})"
).encode()


def _first_line(error: psycopg.Error) -> str:
    """What happened, without the rows that PostgreSQL shows in the lines that follow."""
    told = error.diag.message_primary or str(error)
    return told.strip().splitlines()[0] if told.strip() else type(error).__name__
