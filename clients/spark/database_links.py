"""Connections that a job opens to databases by itself, and where their passwords come from.

Drivers are imported when somebody needs them. A password is looked up by who connects, from where
its owner has put it; it is part of no plan, no option and no log. It knows no transaction.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from clients.errors import OnceMQError
from idl.databases import Kind, parse_dsn

CONNECT_S = 10
APPLICATION = "oncemq-spark"


@dataclass(frozen=True)
class Password:
    """Where a password is: in a variable of the environment, or in a file. Never the password."""

    variable: str = ""
    file: str = ""

    def arguments(self) -> dict[str, str]:
        """The password as a driver takes it; empty where the driver is to look for it itself."""
        if self.variable:
            found = os.environ.get(self.variable)
            if found is None:
                raise OnceMQError(f"the password: ${self.variable} is not set in this process")
            return {"password": found}
        if not self.file:
            return {}
        try:
            return {"password": Path(self.file).read_text("utf-8").rstrip("\r\n")}
        except OSError as refused:
            told = f"the password in {self.file} cannot be read: {refused.strerror}"
            raise OnceMQError(told) from refused


def connected(kind: Kind, dsn: str, password: Password, wait_s: float) -> Any:
    """A new connection; raises what the driver raises. SQLite waits so long for another writer."""
    return _CONNECTING[kind](dsn, password, wait_s)


def _connect_postgresql(dsn: str, password: Password, wait_s: float) -> Any:
    import psycopg

    given: dict[str, Any] = dict(password.arguments())
    return psycopg.connect(
        dsn,
        connect_timeout=CONNECT_S,
        application_name=APPLICATION,
        client_encoding="utf8",
        **given,
    )


def _connect_mariadb(dsn: str, password: Password, wait_s: float) -> Any:
    import pymysql

    where = parse_dsn(dsn)
    options = dict(parse_qsl(urlsplit(dsn).query))
    given: dict[str, Any] = dict(password.arguments())
    if "unix_socket" in options:
        given["unix_socket"] = options["unix_socket"]
    return pymysql.connect(
        host=where.host or None,
        port=where.port or 3306,
        user=where.user or None,
        database=where.place,
        connect_timeout=CONNECT_S,
        charset="utf8mb4",
        program_name=APPLICATION,
        **given,
    )


def _connect_sqlite(dsn: str, password: Password, wait_s: float) -> Any:
    import sqlite3

    # A path that is wrong must not become a new, empty database.
    path = f"file:{quote(parse_dsn(dsn).place)}?mode=rw"
    return sqlite3.connect(path, uri=True, timeout=wait_s, check_same_thread=False)


_CONNECTING: dict[Kind, Callable[[str, Password, float], Any]] = {
    Kind.POSTGRESQL: _connect_postgresql,
    Kind.MARIADB: _connect_mariadb,
    Kind.SQLITE: _connect_sqlite,
}


def errors_of(kind: Kind) -> tuple[type[Exception], ...]:
    """What the driver of this kind raises; nothing where it is not installed."""
    with contextlib.suppress(ImportError):
        if kind is Kind.POSTGRESQL:
            import psycopg

            return (psycopg.Error,)
        if kind is Kind.MARIADB:
            import pymysql

            return (pymysql.MySQLError,)
        import sqlite3

        return (sqlite3.Error,)
    return ()
