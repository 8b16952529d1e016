"""The database of the demo: an SQLite file, or with DEMO_POSTGRES a PostgreSQL.

The table has no key, so that an invoice that is written twice is there twice.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from clients.demo.verdict import Invoice

TABLE = "invoices"
CREATION = f"CREATE TABLE {TABLE} (id bigint, total bigint)"
COUNT = f"SELECT count(*) FROM {TABLE}"
ALL = f"SELECT id, total FROM {TABLE}"
POSTGRES = "DEMO_POSTGRES"
_SCRIPT = Path(__file__).parent.parent.parent / "tests" / "setup" / "postgres.sh"


class NoDatabase(Exception):
    """There is no PostgreSQL to be had; the message says why."""


class Books(Protocol):
    """A database with a table of invoices."""

    title: str
    # Without a password: that is in the environment.
    dsn: str

    def count(self) -> int:
        """How many invoices can be seen now."""

    def invoices(self) -> list[Invoice]:
        """All of them."""


class SqliteBooks:
    """See `Books`. Takes part by its own commit, with the mark of the transaction in it."""

    title = "SQLite"

    def __init__(self, folder: Path) -> None:
        self._file = folder / "books.db"
        self.dsn = f"sqlite:///{self._file}"
        with self._connected() as connection:
            # Whoever counts does not hold up whoever writes.
            connection.execute("PRAGMA journal_mode = wal")
            connection.execute(CREATION)

    def count(self) -> int:
        """See `Books.count`."""
        with self._connected() as connection:
            return int(connection.execute(COUNT).fetchone()[0])

    def invoices(self) -> list[Invoice]:
        """See `Books.invoices`."""
        with self._connected() as connection:
            return [Invoice(*row) for row in connection.execute(ALL)]

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._file, timeout=30)
        try:
            with connection:
                yield connection
        finally:
            connection.close()


class PostgresBooks:
    """See `Books`. Takes part by two-phase commit."""

    title = "PostgreSQL"

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        if parts.password:
            # For the coordinator and for Spark's workers, which inherit it.
            os.environ["PGPASSWORD"] = parts.password
        place = f"{parts.username}@{parts.netloc.rpartition('@')[2]}"
        self.dsn = parts._replace(netloc=place).geturl()
        self._run(f"DROP TABLE IF EXISTS {TABLE}")
        self._run(CREATION)

    def count(self) -> int:
        """See `Books.count`."""
        return int(str(self._run(COUNT)[0][0]))

    def invoices(self) -> list[Invoice]:
        """See `Books.invoices`."""
        return [Invoice(int(str(order)), int(str(total))) for order, total in self._run(ALL)]

    def _run(self, statement: str) -> list[tuple[object, ...]]:
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Books]:
    """The database that was asked for. Raises `NoDatabase`."""
    said = os.environ.get(POSTGRES, "")
    if said in ("", "0"):
        yield SqliteBooks(folder)
    elif said.startswith("postgres"):
        yield PostgresBooks(said)
    else:
        with _private_postgres(folder) as address:
            yield PostgresBooks(address)


@contextlib.contextmanager
def _private_postgres(folder: Path) -> Iterator[str]:
    """A server of the demo's own, for as long as this process lives."""
    if not _SCRIPT.exists():
        raise NoDatabase(f"name a server: {POSTGRES}=postgresql://USER:PASSWORD@HOST/DATABASE")
    # Not in the demo's own folder, into which PostgreSQL's user may not look.
    place = folder.parent / f"{folder.name}-postgres"
    keeper = subprocess.Popen(
        [_SCRIPT, "serve", place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        address = keeper.stdout.readline().strip()
        if not address:
            raise NoDatabase("there is no PostgreSQL here: apt-get install postgresql")
        yield address
    finally:
        keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()
