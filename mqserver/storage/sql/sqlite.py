"""SQLite: one file, one writer at a time, in this process.

Every commit that has to be on disk is made with `journal_mode=WAL` and `synchronous=FULL`: of what
SQLite offers, this pair loses nothing in a power cut. The actions of a branch need not be on disk
before it ends. They are committed with `synchronous=NORMAL`, which leaves the sync to the next
forced commit; a power cut ends this process too, and with it the branch. Both settings are read
back, and a file system that does not grant them is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager

import portalocker
from sqlalchemy import (
    CTE,
    URL,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Table,
    bindparam,
    create_engine,
    delete,
    event,
    exists,
    func,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.exc import DBAPIError

from mqserver.errors import (
    Corruption,
    MqError,
    RetryableError,
    StorageError,
    StorageFailed,
    StorageFull,
    StorageLocked,
    WrongFormat,
)
from mqserver.storage.contract import NewMessage
from mqserver.storage.sql import schema
from mqserver.storage.sql.rows import COLUMNS, attributes_to_json, body_row, message_row
from mqserver.storage.sql.vendor import BUSY_S_MAX, KEYS_AHEAD, Admission, AnyRow, Claim

# The safety level as SQLite numbers it.
_LEVELS = {"NORMAL": 1, "FULL": 2}
_FAILURES: dict[int, type[MqError]] = {
    sqlite3.SQLITE_BUSY: RetryableError,
    sqlite3.SQLITE_LOCKED: RetryableError,
    sqlite3.SQLITE_FULL: StorageFull,
    sqlite3.SQLITE_IOERR: StorageFailed,
    sqlite3.SQLITE_CORRUPT: Corruption,
    sqlite3.SQLITE_NOTADB: WrongFormat,
}


class Sqlite:
    """See `Vendor`."""

    can_outlive_it = False
    errors: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, url: URL) -> None:
        if not url.database or ":memory:" in url.database or url.database.startswith("file:"):
            raise StorageError("SQLite needs a file, as in sqlite:////var/lib/oncemq/queues.db")
        self._url = url
        self._path = os.path.abspath(url.database)
        self._turn = threading.Lock()
        self._take = (
            update(schema.message)
            .where(self.one_of(schema.message.c.key, "keys"))
            .values(lsf=schema.DEQUEUED, vsf=bindparam("by_branch"))
        )

    def engine(self) -> Engine:
        """See `Vendor.engine`."""
        _create_private(self._path)
        engine = create_engine(
            self._url.set(drivername="sqlite+pysqlite"),
            hide_parameters=True,
            pool_size=8,
            max_overflow=56,
            connect_args={"timeout": BUSY_S_MAX},
        )
        event.listen(engine, "connect", self._check)
        return engine

    def describe(self) -> str:
        """See `Vendor.describe`."""
        return f"the SQLite file {self._path}"

    def failure(self, error: Exception) -> MqError:
        """See `Vendor.failure`."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        # The lower byte is the error, the others say more about it.
        kind = _FAILURES.get(code & 0xFF, StorageError)
        return kind(f"{self.describe()}: {cause}")

    def claim(self, engine: Engine, node: str) -> Claim:
        """See `Vendor.claim`."""
        return _FileClaim(self._path, node)

    def _check(self, connection: sqlite3.Connection, record: object) -> None:
        """The connection is as durable as we promise, or is refused."""
        # Transactions are begun by us and not by the driver, which would begin them too late.
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys=ON")
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise StorageError(
                f"{self.describe()} stays in journal mode {mode!r}, which can lose messages in a "
                "power cut: put the file on a local disk that allows WAL"
            )
        for level, number in _LEVELS.items():
            connection.execute(f"PRAGMA synchronous={level}")
            found = connection.execute("PRAGMA synchronous").fetchone()[0]
            if found != number:
                raise StorageError(
                    f"{self.describe()} does not take synchronous={level} but has {found}: use "
                    "a SQLite that is built without a fixed safety level"
                )

    # --- Transactions

    def turn(self) -> AbstractContextManager[object]:
        """See `Vendor.turn`: threads wait here in order, and not by polling inside SQLite."""
        return self._turn

    def begin(self, connection: Connection, force: bool) -> None:
        """See `Vendor.begin`."""
        connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if force else 'NORMAL'}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.info["is_forced"] = force

    def commit(self, connection: Connection, force: bool) -> None:
        """See `Vendor.commit`."""
        was_forced = connection.info["is_forced"]
        connection.commit()
        if force and not was_forced:
            # The next commit with FULL syncs the whole log, and with it what was just written; but
            # SQLite writes nothing where nothing has changed.
            self.begin(connection, force=True)
            connection.execute(update(_COUNTER).values(ceiling=_COUNTER.c.ceiling + 1))
            connection.commit()

    def rest(self, connection: Connection) -> None:
        """See `Vendor.rest`."""
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    # --- The tables

    def lock_tables(self, connection: Connection) -> None:
        """See `Vendor.lock_tables`: whoever writes is alone already."""

    lock_line = lock_messages = complete_tables = lock_tables

    # --- Words

    def insert(self, table: Table) -> Insert:
        """See `Vendor.insert`."""
        return insert(table)

    def now_s(self) -> ColumnElement[float]:
        """See `Vendor.now_s`."""
        return (func.julianday("now") - 2440587.5) * 86400.0

    def next_end(self) -> ColumnElement[int]:
        """See `Vendor.next_end`."""
        ended = schema.branch.alias("ended")
        return select(func.coalesce(func.max(ended.c.ended), 0) + 1).scalar_subquery()

    def one_of(self, column: ColumnElement[int], parameter: str) -> ColumnElement[bool]:
        """See `Vendor.one_of`."""
        # One parameter, because SQLite does not take more than some thousands of them.
        return column.in_(select(func.json_each(bindparam(parameter)).table_valued("value")))

    def numbers(self, numbers: Sequence[int]) -> object:
        """See `Vendor.numbers`."""
        return json.dumps(list(numbers))

    def has_attribute(self, parameter: str) -> ColumnElement[bool]:
        """See `Vendor.has_attribute`."""
        each = func.json_each(schema.body.c.attributes).table_valued("value")
        wanted: ColumnElement[str] = bindparam(parameter)
        return exists().where(
            func.json_extract(each.c.value, "$.name") == func.json_extract(wanted, "$.name"),
            func.json_extract(each.c.value, "$.value") == func.json_extract(wanted, "$.value"),
        )

    def attribute(self, name: str, value: str) -> object:
        """See `Vendor.attribute`."""
        return json.dumps({"name": name, "value": value})

    def removal(self, *condition: ColumnElement[bool]) -> tuple[Executable, ...]:
        """See `Vendor.removal`."""
        gone = select(schema.message.c.key).where(*condition)
        bodies = delete(schema.body).where(schema.body.c.message_key.in_(gone))
        return bodies, delete(schema.message).where(*condition)

    # --- Messages

    def open_keys(self, connection: Connection) -> None:
        """See `Vendor.open_keys`."""
        counter = _COUNTER.c
        connection.execute(
            update(_COUNTER).where(counter.last < counter.ceiling).values(last=counter.ceiling)
        )

    def admit(self, connection: Connection, queue: str, count: int) -> Admission | None:
        """See `Vendor.admit`."""
        goal = connection.execute(_GOAL, {"in_queue": queue}).one_or_none()
        if goal is None or not count:
            return goal and Admission(goal.id, goal.prioritized, range(0), needs_force=False)
        last, ceiling = connection.execute(_NEXT_KEYS, {"how_many": count}).one()
        if last > ceiling:
            connection.execute(_RAISE_CEILING, {"new": last + KEYS_AHEAD})
        keys = range(last - count + 1, last + 1)
        return Admission(goal.id, goal.prioritized, keys, last > ceiling)

    def close_keys(self, connection: Connection) -> None:
        """See `Vendor.close_keys`."""
        connection.execute(update(_COUNTER).values(ceiling=_COUNTER.c.last))

    def add(
        self,
        connection: Connection,
        admission: Admission,
        branch: int,
        messages: Sequence[NewMessage],
    ) -> None:
        """See `Vendor.add`."""
        pairs = list(zip(admission.keys, messages, strict=True))
        connection.exec_driver_sql(
            _ADD_MESSAGE, [message_row(key, new, admission, branch) for key, new in pairs]
        )
        connection.exec_driver_sql(
            _ADD_BODY,
            [
                body_row(key, new, json.dumps(attributes_to_json(new)) if new.attributes else None)
                for key, new in pairs
            ],
        )

    def dequeuing(self, picked: CTE) -> Executable:
        """See `Vendor.dequeuing`: only who writes looks, so nobody changes what is found here."""
        joined = schema.message.c.key == schema.body.c.message_key
        return select(*COLUMNS).where(joined, schema.message.c.key == picked.c.key)

    def dequeue(
        self, connection: Connection, dequeuing: Executable, values: dict[str, object]
    ) -> Sequence[AnyRow]:
        """See `Vendor.dequeue`."""
        rows = connection.execute(dequeuing, values).all()
        if rows:
            keys = self.numbers([row[0] for row in rows])
            connection.execute(self._take, {"keys": keys, "by_branch": values["by_branch"]})
        return rows


_COUNTER = schema.key_counter
_GOAL = select(schema.queue.c.id, schema.queue.c.prioritized).where(
    schema.queue.c.name == bindparam("in_queue")
)
_NEXT_KEYS = (
    update(_COUNTER)
    .values(last=_COUNTER.c.last + bindparam("how_many"))
    .returning(_COUNTER.c.last, _COUNTER.c.ceiling)
)
_RAISE_CEILING = update(_COUNTER).values(ceiling=bindparam("new"))


def _insertion(table: Table) -> str:
    """An INSERT of whole rows in the words of the driver, which takes thousands at once."""
    return f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(table.columns))})"


_ADD_MESSAGE, _ADD_BODY = _insertion(schema.message), _insertion(schema.body)


def _create_private(path: str) -> None:
    """The file is there, and nobody else may read it; its log gets the same rights from SQLite.

    A file that exists is never opened here: closing it would drop the locks of every connection
    that this process has to it.
    """
    try:
        os.chmod(path, 0o600)
    except FileNotFoundError:
        _create(path)
    except OSError as error:
        raise StorageError(f"the SQLite file {path} cannot be used: {error.strerror}") from error


def _create(path: str) -> None:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StorageError(f"the SQLite file {path} cannot be made: {error.strerror}") from error


class _FileClaim:
    """A locked file beside the database for each node. The system unlocks it with the process."""

    def __init__(self, path: str, node: str) -> None:
        name = hashlib.sha256(schema.to_text(node).encode()).hexdigest()[:16]
        self._file = os.open(f"{path}-node-{name}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            portalocker.lock(self._file, portalocker.LOCK_EX | portalocker.LOCK_NB)
        except portalocker.LockException as error:
            os.close(self._file)
            raise StorageLocked(f"node {node!r} runs already on the file {path}") from error

    def is_held(self) -> bool:
        """See `Claim.is_held`."""
        return True

    def release(self) -> None:
        """See `Claim.release`."""
        os.close(self._file)
