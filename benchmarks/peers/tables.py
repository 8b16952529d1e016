"""Tables as queues: PostgreSQL, MariaDB and SQLite, as people use them when they have no broker.

The next message is the one with the lowest number that nobody has locked. See `Client` for what the
calls mean.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql

from benchmarks.peers.operations import NEXT, WORK, Missing

TRIES = 50
_TAKE = (
    "DELETE FROM {table} WHERE number IN (SELECT number FROM {table} ORDER BY number"
    " FOR UPDATE SKIP LOCKED LIMIT %s) RETURNING payload"
)
_TAKE_WORK = _TAKE.format(table=WORK)
_PUT = "INSERT INTO {table} (payload) VALUES (%s)"
_PUT_WORK, _PUT_NEXT = _PUT.format(table=WORK), _PUT.format(table=NEXT)
_PUT_ALL = f"INSERT INTO {WORK} (payload) SELECT unnest(%b::bytea[])"
_MOVE = f"WITH taken AS ({_TAKE_WORK}) INSERT INTO {NEXT} (payload) SELECT payload FROM taken"


class PostgreSQL:
    """One statement, one transaction, where that is possible."""

    def __init__(self, address: str) -> None:
        self._connection = psycopg.connect(address, autocommit=True)
        # Tables of its own, since others use the same server at the same time.
        self._schema = type(self).__name__.lower()
        self._connection.execute(f"SET search_path TO {self._schema}")

    def create(self) -> None:
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
        for table in (WORK, NEXT):
            self._connection.execute(f"DROP TABLE IF EXISTS {table}")
            self._connection.execute(
                f"CREATE TABLE {table} (number BIGSERIAL PRIMARY KEY, payload BYTEA NOT NULL)"
            )

    def put(self, payload: bytes) -> None:
        self._connection.execute(_PUT_WORK, (payload,))

    def put_many(self, payloads: Sequence[bytes]) -> None:
        # One statement with one array: several times as fast as a statement for each.
        self._connection.execute(_PUT_ALL, (list(payloads),))

    def get(self) -> None:
        self.get_many(1)

    def get_many(self, count: int) -> None:
        # A row that another has just deleted leaves the statement with fewer: it is asked again.
        for _ in range(TRIES):
            count -= len(self._connection.execute(_TAKE_WORK, (count,)).fetchall())
            if not count:
                return
        raise Missing

    def move(self) -> None:
        with self._connection.transaction():
            found = self._connection.execute(_TAKE_WORK, (1,)).fetchone()
            if found is None:
                raise Missing
            self._connection.execute(_PUT_NEXT, found)

    def move_at_once(self) -> None:
        """The same in one statement."""
        if self._connection.execute(_MOVE, (1,)).rowcount != 1:
            raise Missing

    def close(self) -> None:
        self._connection.close()


class InteractivePostgreSQL(PostgreSQL):
    """The same in transactions that are begun, worked in, and committed."""

    def put(self, payload: bytes) -> None:
        with self._connection.transaction():
            super().put(payload)

    def get_many(self, count: int) -> None:
        with self._connection.transaction():
            super().get_many(count)


class TwoPostgreSQL:
    """Two servers and two-phase commit by hand, with nobody who would finish it after a crash."""

    def __init__(self, address: str) -> None:
        self._connections = [psycopg.connect(dsn) for dsn in address.split()]
        self._numbers = itertools.count()

    def create(self) -> None:
        for connection in self._connections:
            connection.execute(f"DROP TABLE IF EXISTS {WORK}")
            connection.execute(f"CREATE TABLE {WORK} (number BIGSERIAL PRIMARY KEY, payload BYTEA)")
            connection.commit()

    def two_phase(self, payload: bytes) -> None:
        """A message in each of them, or in none."""
        name = f"peer {os.getpid()} {next(self._numbers)}"
        for connection in self._connections:
            connection.tpc_begin(name)
            connection.execute(_PUT_WORK, (payload,))
        for connection in self._connections:
            connection.tpc_prepare()
        for connection in self._connections:
            connection.tpc_commit()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


class MariaDB:
    """InnoDB, synced at every commit."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._connection = pymysql.connect(
            host=parts.hostname or "",
            port=parts.port or 0,
            user=parts.username or "",
            password=parts.password or "",
            database=parts.path.strip("/") or None,
            max_allowed_packet=64 << 20,
        )
        self._cursor = self._connection.cursor()

    def create(self) -> None:
        for table in (WORK, NEXT):
            self._cursor.execute(f"DROP TABLE IF EXISTS {table}")
            self._cursor.execute(
                f"CREATE TABLE {table} (number BIGINT AUTO_INCREMENT PRIMARY KEY,"
                " payload LONGBLOB NOT NULL) ENGINE=InnoDB"
            )
        self._connection.commit()

    def put(self, payload: bytes) -> None:
        self._cursor.execute(_PUT_WORK, (payload,))
        self._connection.commit()

    def put_many(self, payloads: Sequence[bytes]) -> None:
        self._cursor.executemany(_PUT_WORK, [(payload,) for payload in payloads])
        self._connection.commit()

    def get(self) -> None:
        self.get_many(1)

    def get_many(self, count: int) -> None:
        self._take(count)
        self._connection.commit()

    def move(self) -> None:
        self._cursor.execute(_PUT_NEXT, (self._take(1)[0],))
        self._connection.commit()

    def _take(self, count: int) -> list[bytes]:
        self._cursor.execute(
            f"SELECT number, payload FROM {WORK} ORDER BY number LIMIT %s FOR UPDATE SKIP LOCKED",
            (count,),
        )
        found = self._cursor.fetchall()
        if len(found) != count:
            self._connection.rollback()
            raise Missing
        marks = ", ".join(["%s"] * count)
        self._cursor.execute(
            f"DELETE FROM {WORK} WHERE number IN ({marks})", [row[0] for row in found]
        )
        return [row[1] for row in found]

    def close(self) -> None:
        self._connection.close()


class SQLite:
    """In the client's process: no network. Synced at every commit."""

    def __init__(self, address: str) -> None:
        self._connection = sqlite3.connect(
            Path(address) / "queues", isolation_level=None, timeout=60
        )
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()

    def create(self) -> None:
        for table in (WORK, NEXT):
            self._connection.execute(f"DROP TABLE IF EXISTS {table}")
            self._connection.execute(
                f"CREATE TABLE {table} (number INTEGER PRIMARY KEY AUTOINCREMENT, payload BLOB)"
            )

    def put(self, payload: bytes) -> None:
        self._connection.execute(_PUT_WORK.replace("%s", "?"), (payload,))

    def put_many(self, payloads: Sequence[bytes]) -> None:
        self._within(
            lambda: self._connection.executemany(
                _PUT_WORK.replace("%s", "?"), [(payload,) for payload in payloads]
            )
        )

    def get(self) -> None:
        self.get_many(1)

    def get_many(self, count: int) -> None:
        if len(self._take(count)) != count:
            raise Missing

    def move(self) -> None:
        def act() -> None:
            [found] = self._take(1)
            self._connection.execute(_PUT_NEXT.replace("%s", "?"), found)

        self._within(act)

    def _take(self, count: int) -> list[Any]:
        statement = _TAKE_WORK.replace(" FOR UPDATE SKIP LOCKED", "").replace("%s", "?")
        return self._connection.execute(statement, (count,)).fetchall()

    def _within(self, act: Any) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        act()
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()
