"""The storage on SQLite and on PostgreSQL for the one suite."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import psycopg
from sqlalchemy import event

from mqserver.errors import MqError
from mqserver.storage.contract import Storage
from mqserver.storage.sql import SqlStorage, branch_table, schema
from tests import postgres
from tests.conformance.storage_factory import Capability, Missing, StorageFactory

_OUTCOMES_KEPT = 1000


class _Node(SqlStorage):
    """A storage that knows whether it was closed."""

    def __init__(self, url: str, name: str) -> None:
        with mock.patch.object(branch_table, "OUTCOMES_KEPT", _OUTCOMES_KEPT):
            super().__init__(url, name, time.monotonic)
        self.name = name
        self.is_open = True

    def close(self) -> None:
        self.is_open = False
        super().close()

    def die(self) -> None:
        """Its process has died: all its connections are closed, and nothing was undone."""
        self.is_open = False
        self._database.close()

    def limit_pages(self, limit: int) -> None:
        """The file of SQLite has at most so many pages, or as many as it has if they are more."""

        def tell(connection: sqlite3.Connection, *_: object) -> None:
            connection.execute(f"PRAGMA max_page_count={limit}")

        event.listen(self._database._engine, "checkout", tell)


class _Nodes:
    """The nodes on one place: the first is called 1, also after it was closed or has crashed."""

    def __init__(self) -> None:
        self._running: list[_Node] = []
        self._crashed: list[_Node] = []

    def open(self, url: str) -> Storage:
        used = {node.name for node in self.running()}
        names = (str(number) for number in itertools.count(1))
        self._running.append(_Node(url, next(name for name in names if name not in used)))
        return self._running[-1]

    def crash(self) -> None:
        self._crashed += self._running
        self._running = []

    def running(self) -> Iterable[_Node]:
        return (node for node in self._running if node.is_open)

    def dispose(self) -> None:
        """All connections are closed."""
        for node in (*self._crashed, *self._running):
            if node.is_open:
                # It cannot do its last work if its connections are cut or its name is another's.
                with contextlib.suppress(MqError):
                    node.close()


class SqliteFactory(StorageFactory):
    """A file. A crash is a copy of what is in it at that moment; the old one is let alone.

    What a power cut does is not seen here but in `tests/crash/test_power_cuts.py`.
    """

    capabilities = frozenset({Capability.DURABLE, Capability.SHARED, Capability.FILLS})
    outcomes_kept = _OUTCOMES_KEPT
    examples_max = 20
    steps_per_look = 4
    is_shrunk = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._crashes = 0
        self._nodes = _Nodes()
        self._place.mkdir()

    @property
    def _place(self) -> Path:
        return self._folder / str(self._crashes)

    def open(self) -> Storage:
        return self._nodes.open(f"sqlite:///{self._place / 'queues.db'}")

    def crash(self) -> None:
        self._nodes.crash()
        old = self._place
        self._crashes += 1
        self._place.mkdir()
        for name in ("queues.db", "queues.db-wal"):
            if (old / name).exists():
                shutil.copy(old / name, self._place / name)

    def crash_one(self, storage: Storage) -> None:
        _die(storage)

    def fill(self) -> None:
        for node in self._nodes.running():
            node.limit_pages(1)

    def make_room(self) -> None:
        for node in self._nodes.running():
            node.limit_pages(1 << 30)

    def dispose(self) -> None:
        self._nodes.dispose()


class PostgresFactory(StorageFactory):
    """A schema of its own. In a crash the server sees all connections to it break.

    To make the tables takes longer than most tests, so a schema is emptied and used again.
    """

    capabilities = frozenset({Capability.DURABLE, Capability.SHARED})
    outcomes_kept = _OUTCOMES_KEPT
    examples_max = 10
    steps_per_look = 8
    is_shrunk = False

    def __init__(self, folder: Path) -> None:
        try:
            self._cluster = postgres.cluster()
        except postgres.NoPostgres as error:
            raise Missing(str(error)) from None
        self._nodes = _Nodes()
        self._place = _emptied.pop() if _emptied else self._cluster.place()
        self._application = f"conformance in {folder.name}"
        self._url = f"{self._place}&application_name={self._application}"

    def open(self) -> Storage:
        return self._nodes.open(self._url)

    def crash(self) -> None:
        self._nodes.crash()
        self._cluster.disconnect(self._application)

    def crash_one(self, storage: Storage) -> None:
        _die(storage)

    def dispose(self) -> None:
        self._nodes.dispose()
        # A test that failed may have left something behind that keeps others waiting.
        with contextlib.suppress(psycopg.Error), psycopg.connect(self._place) as connection:
            connection.execute("SET lock_timeout = '1s'")
            connection.execute(_EMPTY.encode())
            connection.commit()
            _emptied.append(self._place)


def _die(storage: Storage) -> None:
    assert isinstance(storage, _Node)
    storage.die()


# Places of this process that hold our tables as they were made.
_emptied: list[str] = []
_EMPTY = ";".join(
    (
        *(f"DELETE FROM {table.name}" for table in reversed(schema.metadata.sorted_tables)),
        f"INSERT INTO {schema.version.name} VALUES ({schema.VERSION})",
        f"INSERT INTO {schema.key_counter.name} VALUES (0, 0)",
        "SELECT setval('oncemq_key', 1, false), setval('oncemq_end', 1, false)",
    )
)
