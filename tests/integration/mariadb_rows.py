"""A database of a MariaDB that takes part in transactions, for tests."""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import Any, TypeAlias

import pymysql

import oncemq
from tests.integration.enlisting import GRACE_S
from tests.mariadb import Server

PASSWORD = "ONCEMQ_TEST_MARIADB_PASSWORD"
ROW = "INSERT INTO noted VALUES (%s)"
_NUMBERS = itertools.count()

Conn: TypeAlias = "pymysql.Connection[Any]"


class MariadbRows:
    """A table of payloads in a database of its own."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.database = f"enlisted_{os.getpid()}_{next(_NUMBERS)}"
        server.execute(f"CREATE DATABASE {self.database}")
        server.execute(f"CREATE TABLE {self.database}.noted (payload varchar(64)) ENGINE=InnoDB")
        os.environ[PASSWORD] = server.password
        self.dsn = server.address(self.database)
        self._made: list[Conn] = []

    def connect(self, **options: Any) -> Conn:
        """A new connection of an application."""
        made = self.server.connect(self.database, **options)
        self._made.append(made)
        return made

    def close(self) -> None:
        """No application is connected any more."""
        for made in self._made:
            with contextlib.suppress(pymysql.MySQLError):
                made.close()

    def register(self, mq: oncemq.Connection, name: str = "orders") -> None:
        """The coordinator knows it; asked again, the coordinator looks at it at once."""
        mq.register_database(name, self.dsn, password_env=PASSWORD, grace=GRACE_S)

    def found(self) -> list[str]:
        """The rows that are committed."""
        rows = self.server.execute(f"SELECT payload FROM {self.database}.noted ORDER BY 1")
        return [str(row[0]) for row in rows]

    def prepared(self) -> int:
        """How much is prepared at the server, whoever did it."""
        return len(self.server.execute("XA RECOVER"))


def execute(connection: Any, statement: str, *parameters: object) -> list[Any]:
    """What the statement returns."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return list(cursor.fetchall())
