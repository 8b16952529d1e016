"""What the tests of databases in transactions begin with: a PostgreSQL, an SQLite file, a node."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import oncemq
from tests.integration.enlisting import File, Rows
from tests.postgres import Cluster, NoPostgres, cluster


@pytest.fixture(scope="module")
def server(missing: Callable[[str], NoReturn]) -> Cluster:
    """A PostgreSQL that has prepared transactions."""
    try:
        return cluster()
    except NoPostgres as absent:
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
