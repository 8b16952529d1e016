"""Databases of a real PostgreSQL, each with a coordinator that looks after it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from coordinator.database_recovery import Seen
from coordinator.registry import Registered
from idl.databases import BranchId
from tests.integration.database_world import World, work
from tests.postgres import Cluster

SECRET = "ONCEMQ_TEST_PASSWORD"
GRACE_S = 0.2
_numbers = itertools.count()


@dataclass
class Place:
    """A database of PostgreSQL that is registered with a coordinator as `orders`."""

    server: Cluster
    world: World
    dsn: str
    registered: Registered

    def rows(self) -> list[str]:
        """What is committed there."""
        with psycopg.connect(self.dsn) as connection:
            found = connection.execute("SELECT value FROM work ORDER BY value").fetchall()
        return [value for (value,) in found]

    def outcomes(self) -> int:
        """How many rows of the outcome table are about transactions."""
        statement = f"SELECT count(*) FROM {self.registered.table} WHERE otid <> 'identity'"
        with psycopg.connect(self.dsn) as connection:
            [(number,)] = connection.execute(statement.encode()).fetchall()
        return int(number)

    def prepared(self) -> int:
        """How many transactions are prepared there, of whomever."""
        statement = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
        with psycopg.connect(self.dsn) as connection:
            [(number,)] = connection.execute(statement).fetchall()
        return int(number)

    def work(self, gtrid: bytes, value: str, mark: str = "") -> tuple[Any, BranchId]:
        """See `work`."""
        return work(self.dsn, self.registered, gtrid, value, mark=mark)

    def look(self) -> Seen:
        """What the coordinator finds there now."""
        return self.world.look("orders")

    def look_after_the_grace(self) -> Seen:
        """The same when all that is there is old enough."""
        time.sleep(GRACE_S)
        return self.look()


@contextlib.contextmanager
def new_place(server: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A new database with a table `work`, registered as `orders`; its password in `SECRET`."""
    name = f"orders_{next(_numbers)}"
    server.execute(f"CREATE DATABASE {name}")
    account, _, where = server.dsn.removesuffix("/postgres").rpartition("@")
    user, _, password = account.removeprefix("postgresql://").partition(":")
    monkeypatch.setenv(SECRET, password)
    dsn = f"postgresql://{user}@{where}/{name}"
    made = Place(
        server,
        World(),
        f"{account}@{where}/{name}",
        Registered("orders", dsn, password_env=SECRET, grace_s=GRACE_S),
    )
    with psycopg.connect(made.dsn) as connection:
        connection.execute("CREATE TABLE work (value text)")
    assert made.world.register(made.registered).trouble == ""
    try:
        yield made
    finally:
        made.world.close()
