"""The databases of the row-and-message experiment: two tables, and what can be killed of them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pymysql

import oncemq
from idl.custody import CARRIED_TABLE
from tests import mariadb, postgres
from tests.integration.row_workers import CLIENT, SERVER, SQLITE
from tests.processes import has_ended

SECONDS = 12.0
SECONDS_MARIADB = 3.0
SECONDS_SQLITE = 6.0
GRACE_S = 0.5
START_S = 60.0
APPLICATION, NODE, COORDINATOR, DATABASE = "application", "node", "coordinator", "database"
# Rows whose messages the node has not put, or that nobody has removed.
CARRIED = f"SELECT otid FROM {CARRIED_TABLE} WHERE node <> ''"
TABLES = (
    (CLIENT, "CREATE TABLE sent (number BIGINT PRIMARY KEY, attempt TEXT)"),
    # Without any key: a row that is there twice is seen, and not prevented.
    (SERVER, "CREATE TABLE received (number BIGINT, attempt TEXT, taken TEXT)"),
)


class PostgresSides:
    """Two databases of one PostgreSQL, which is killed as a whole or in part."""

    seconds = SECONDS
    kills_min, messages_min = 3, 40
    kinds = (APPLICATION, NODE, COORDINATOR, DATABASE)

    def __init__(self, server: postgres.Cluster, folder: Path) -> None:
        self._server = server
        parts = urlsplit(server.dsn)
        self._password_file = folder / "password"
        self._password_file.write_text(parts.password or "")
        self._password_file.chmod(0o600)
        self._names = {side: f"{side}_{os.getpid()}_{time.time_ns()}" for side, _ in TABLES}
        self.dsns = {
            side: server.dsn.removesuffix(parts.path) + f"/{name}"
            for side, name in self._names.items()
        }
        for side, creation in TABLES:
            server.execute(f"CREATE DATABASE {self._names[side]}")
            self.ask(side, creation)

    def register(self, mq: oncemq.Connection) -> None:
        for side, dsn in self.dsns.items():
            parts = urlsplit(dsn)
            plain = f"postgresql://{parts.username}@127.0.0.1:{parts.port}{parts.path}"
            file = str(self._password_file)
            mq.register_database(side, plain, password_file=file, grace=GRACE_S)

    def ask(self, side: str, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsns[side], autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def prepared(self) -> list[str]:
        names = tuple(self._names.values())
        query = "SELECT gid FROM pg_prepared_xacts WHERE database IN (%s, %s)"
        return [str(row[0]) for row in self._server.execute(query, *names)]

    def carried(self) -> list[str]:
        return [str(row[0]) for side in self.dsns for row in self.ask(side, CARRIED)]

    def kill(self, chance: random.Random) -> None:
        """All its processes at once, or one of them, or it is told to end at once."""
        way = chance.choice(("all", "one", "quit"))
        if way == "all":
            self._server.kill()
            return
        lines = (self._server.folder / "data" / "postmaster.pid").read_text().splitlines()
        postmaster = psutil.Process(int(lines[0]))
        children = postmaster.children()
        if way == "quit":
            postmaster.send_signal(signal.SIGQUIT)
            psutil.wait_procs([postmaster, *children], timeout=START_S)
            return
        # The server notices, ends all others, and recovers by itself.
        with contextlib.suppress(psutil.NoSuchProcess):
            chance.choice(children).kill()

    def come_back(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                self._server.execute("SELECT 1")
                return
            except psycopg.Error:
                assert time.monotonic() < deadline, "PostgreSQL does not come back"
            if not self._has_postmaster():
                self._server.restart()
            time.sleep(0.05)

    def _has_postmaster(self) -> bool:
        try:
            lines = (self._server.folder / "data" / "postmaster.pid").read_text().splitlines()
            return not has_ended(psutil.Process(int(lines[0])))
        except (FileNotFoundError, IndexError, psutil.NoSuchProcess):
            return False


class SqliteSides:
    """Two files. Nobody can kill a file: who writes to it is killed."""

    seconds = SECONDS_SQLITE
    kills_min, messages_min = 3, 40
    kinds = (APPLICATION, NODE, COORDINATOR)

    def __init__(self, folder: Path) -> None:
        self._paths = {side: folder / f"{side}.db" for side, _ in TABLES}
        self.dsns = {side: f"{SQLITE}{path}" for side, path in self._paths.items()}
        for side, creation in TABLES:
            self.ask(side, creation)
        # One of each way in which SQLite keeps what is not yet committed.
        self.ask(SERVER, "PRAGMA journal_mode = WAL")

    def register(self, mq: oncemq.Connection) -> None:
        for side, dsn in self.dsns.items():
            mq.register_database(side, dsn, grace=GRACE_S)

    def ask(self, side: str, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._paths[side], timeout=START_S)) as connection:
            found = connection.execute(statement).fetchall()
            connection.commit()
            return found

    def prepared(self) -> list[str]:
        return []

    def carried(self) -> list[str]:
        return [str(row[0]) for side in self.dsns for row in self.ask(side, CARRIED)]

    def kill(self, chance: random.Random) -> None:
        raise AssertionError("a file is not killed")

    def come_back(self) -> None:
        raise AssertionError("a file does not go")


class MariadbSides:
    """Two databases of one MariaDB, which is killed, told to end, or loses a connection."""

    seconds = SECONDS_MARIADB
    # Short, since it is the same experiment again; `--kill-messages` makes it long.
    kills_min, messages_min = 1, 20
    kinds = (APPLICATION, NODE, COORDINATOR, DATABASE)

    def __init__(self, server: mariadb.Server, folder: Path) -> None:
        self._server = server
        self._password_file = folder / "password"
        self._password_file.write_text(server.password)
        self._password_file.chmod(0o600)
        self._names = {side: f"{side}_{os.getpid()}_{time.time_ns()}" for side, _ in TABLES}
        self.dsns = {
            side: f"mariadb://{mariadb.USER}:{server.password}@127.0.0.1:{server.port}/{name}"
            for side, name in self._names.items()
        }
        for side, creation in TABLES:
            server.execute(f"CREATE DATABASE {self._names[side]}")
            self.ask(side, creation)

    def register(self, mq: oncemq.Connection) -> None:
        for side, name in self._names.items():
            file = str(self._password_file)
            address = self._server.address(name)
            mq.register_database(side, address, password_file=file, grace=GRACE_S)

    def ask(self, side: str, statement: str) -> list[tuple[Any, ...]]:
        with (
            closing(self._server.connect(self._names[side], autocommit=True)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
            return list(cursor.fetchall())

    def prepared(self) -> list[str]:
        return [str(row) for row in self._server.execute("XA RECOVER FORMAT = 'SQL'")]

    def carried(self) -> list[str]:
        return []

    def kill(self, chance: random.Random) -> None:
        """All of it at once, or it is told to end, or one of its connections is."""
        way = chance.choice(("all", "one", "quit"))
        process = self._server.process
        assert process is not None
        if way == "all":
            self._server.kill()
        elif way == "quit":
            process.terminate()
            psutil.wait_procs([process], timeout=START_S)
        else:
            listed = "SELECT id FROM information_schema.processlist WHERE db IN (%s, %s)"
            numbers = self._server.execute(listed, *self._names.values())
            with contextlib.suppress(pymysql.MySQLError, IndexError):
                self._server.execute(f"KILL {chance.choice(numbers)[0]}")

    def come_back(self) -> None:
        if self._server.process is None:
            self._server.restart()


Sides = PostgresSides | MariadbSides | SqliteSides
