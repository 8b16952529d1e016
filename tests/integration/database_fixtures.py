"""What tests of databases in transactions begin with: PostgreSQL, MariaDB, SQLite, a node."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import oncemq
from tests import mariadb as mariadb_servers
from tests.integration.enlisting import File, Rows
from tests.integration.mariadb_rows import MariadbRows
from tests.postgres import Cluster, NoPostgres, cluster

SETTLED_S = 10.0


@pytest.fixture(scope="module")
def server(missing: Callable[[str], NoReturn]) -> Cluster:
    """A PostgreSQL that has prepared transactions."""
    try:
        return cluster()
    except NoPostgres as absent:
        missing(str(absent))


@pytest.fixture(scope="module")
def mariadb(missing: Callable[[str], NoReturn]) -> mariadb_servers.Server:
    """A MariaDB."""
    try:
        return mariadb_servers.server()
    except mariadb_servers.NoMariadb as absent:
        missing(str(absent))


@pytest.fixture
def mq() -> Iterator[oncemq.Connection]:
    """An embedded node with its coordinator."""
    with oncemq.connect("memory:") as made:
        yield made


@pytest.fixture
def file(mq: oncemq.Connection, tmp_path: Path) -> File:
    """An SQLite file that the coordinator knows."""
    made = File(tmp_path / "stock.db")
    made.register(mq)
    return made


@pytest.fixture
def rows(server: Cluster, mq: oncemq.Connection) -> Iterator[Rows]:
    """A table in PostgreSQL that the coordinator knows; nothing is left prepared there."""
    made = Rows(server)
    made.register(mq)
    yield made
    server.disconnect(made.schema)
    assert made.prepared() == 0


@pytest.fixture
def maria(mariadb: mariadb_servers.Server, mq: oncemq.Connection) -> Iterator[MariadbRows]:
    """A table in MariaDB that the coordinator knows; nothing is left prepared there."""
    made = MariadbRows(mariadb)
    made.register(mq)
    yield made
    made.close()
    # What a lost connection has left is the coordinator's, which settles a little later.
    deadline = time.monotonic() + SETTLED_S
    while made.prepared() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert made.prepared() == 0
