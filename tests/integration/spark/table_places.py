"""Databases for tests of jobs: PostgreSQL and SQLite, known to a coordinator that runs already."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import oncemq
from tests.postgres import Cluster

# What a dead job has left is rolled back after so long.
GRACE_S = 0.5
COLUMNS = "(id bigint PRIMARY KEY, text text, at timestamp, amount numeric(10, 2), raw bytea)"


class PostgresTable:
    """A table in a schema of its own, and the file that has the password."""

    def __init__(self, cluster: Cluster, mq: oncemq.Connection, folder: Path) -> None:
        self._cluster = cluster
        self.database = f"pg{os.getpid()}-{folder.name[-8:]}".replace("_", "-")
        self.schema = self.database.replace("-", "_").lower()
        self.name = f"{self.schema}.rows"
        cluster.execute(f"CREATE SCHEMA {self.schema}")
        cluster.execute(f"CREATE TABLE {self.name} {COLUMNS}")
        parts = urlsplit(cluster.dsn)
        assert parts.password is not None
        self.password_file = str(folder / "password")
        with open(os.open(self.password_file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(parts.password)
        self.dsn = f"postgresql://{parts.username}@127.0.0.1:{parts.port}{parts.path}"
        mq.register_database(
            self.database,
            self.dsn,
            password_file=self.password_file,
            schema=self.schema,
            grace=GRACE_S,
        )

    def rows(self) -> list[tuple[object, ...]]:
        """The rows that are committed."""
        return self._cluster.execute(f"SELECT * FROM {self.name} ORDER BY id")

    def ids(self) -> list[object]:
        """The first column of them."""
        return [row[0] for row in self.rows()]

    def prepared(self) -> int:
        """How much is prepared in the database, whoever did it."""
        [(count,)] = self._cluster.execute("SELECT count(*) FROM pg_prepared_xacts")
        assert isinstance(count, int)
        return count


class SqliteTable:
    """A table in a file."""

    def __init__(self, mq: oncemq.Connection, folder: Path) -> None:
        self.path = folder / "table.db"
        self.database = f"lite{os.getpid()}-{folder.name[-8:]}".replace("_", "-")
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute(f"CREATE TABLE rows {COLUMNS}")
            connection.commit()
        mq.register_database(self.database, f"sqlite:///{self.path}", grace=GRACE_S)

    def ids(self) -> list[object]:
        """The first column of the rows that are committed."""
        with closing(sqlite3.connect(self.path)) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM rows ORDER BY id")]
