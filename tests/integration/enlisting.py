"""A PostgreSQL and an SQLite file that take part in transactions, for tests."""

from __future__ import annotations

import itertools
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import psycopg

import oncemq
from idl.cos import Status
from tests.postgres import Cluster

PASSWORD = "ONCEMQ_TEST_DATABASE_PASSWORD"
GRACE_S = 0.2
WAIT_S = 20.0
_NUMBERS = itertools.count()


class Rows:
    """A table of payloads in a PostgreSQL of the tests, in a schema of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.schema = f"enlisted_{os.getpid()}_{next(_NUMBERS)}"
        cluster.execute(f"CREATE SCHEMA {self.schema}")
        cluster.execute(f"CREATE TABLE {self.schema}.rows (payload text)")
        parts = urlsplit(cluster.dsn)
        assert parts.password is not None
        os.environ[PASSWORD] = parts.password
        self.plain_dsn = f"postgresql://{parts.username}@127.0.0.1:{parts.port}{parts.path}"
        self.dsn = f"{cluster.dsn}?options=-csearch_path%3D{self.schema}"

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """A new connection of an application."""
        made: psycopg.Connection[Any] = psycopg.connect(
            self.dsn, application_name=self.schema, **options
        )
        return made

    def register(self, mq: oncemq.Connection, name: str = "orders") -> None:
        """The coordinator knows it; asked again, the coordinator looks at it at once."""
        mq.register_database(
            name, self.plain_dsn, password_env=PASSWORD, schema=self.schema, grace=GRACE_S
        )

    def found(self) -> list[str]:
        """The rows that are committed."""
        rows = self.cluster.execute(f"SELECT payload FROM {self.schema}.rows ORDER BY 1")
        return [str(row[0]) for row in rows]

    def prepared(self) -> int:
        """How much is prepared in the database, whoever did it."""
        [(count,)] = self.cluster.execute("SELECT count(*) FROM pg_prepared_xacts")
        assert isinstance(count, int)
        return count


class File:
    """The same in an SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(self.connect()) as connection:
            connection.execute("CREATE TABLE rows (payload text)")
            connection.commit()

    def connect(self, **options: Any) -> sqlite3.Connection:
        """A new connection of an application."""
        made: sqlite3.Connection = sqlite3.connect(self.path, **options)
        return made

    def register(self, mq: oncemq.Connection, name: str = "stock") -> None:
        """The coordinator knows it."""
        mq.register_database(name, f"sqlite:///{self.path}", grace=GRACE_S)

    def found(self) -> list[str]:
        """The rows that are committed."""
        with closing(self.connect()) as connection:
            return [row[0] for row in connection.execute("SELECT payload FROM rows ORDER BY 1")]


class Gone(BaseException):
    """The application has died: it does nothing after this."""


def die(*arguments: object, **named: object) -> NoReturn:
    """Instead of a step of the application."""
    raise Gone


def died_after(step: Callable[..., object]) -> Callable[..., NoReturn]:
    """The step is the last that the application does."""

    def last(*arguments: Any, **named: Any) -> NoReturn:
        step(*arguments, **named)
        raise Gone

    return last


def payloads(mq: oncemq.Connection, queue: str = "q") -> list[str]:
    """What could be got from the queue now."""
    return sorted(message.payload.decode() for message in mq.queue(queue).browse())


def in_doubt(mq: oncemq.Connection) -> bool:
    """Whether the node has anything that is prepared and not decided."""
    return any(branch.state is Status.PREPARED for branch in mq.admin().listBranches())


def eventually(check: Callable[[], bool], what: str, again: Callable[[], object] = int) -> None:
    """Waits until it is so; `again` is done between two looks."""
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, f"not in {WAIT_S:g} seconds: {what}"
        time.sleep(0.05)
        again()
