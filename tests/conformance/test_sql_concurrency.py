"""What PostgreSQL does for many nodes at once: nobody waits for a message that another looks at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import psycopg
import pytest

from mqserver.errors import StorageError
from mqserver.storage.contract import EVERYTHING
from mqserver.storage.sql import SqlStorage
from tests import postgres
from tests.conformance.storages import ORDERS, furnish, letter, put, take, texts

APPLICATION = "concurrency"
LONG_S = 60.0


@pytest.fixture
def cluster(missing: Callable[[str], NoReturn]) -> postgres.Cluster:
    """The PostgreSQL of this process."""
    try:
        return postgres.cluster()
    except postgres.NoPostgres as error:
        missing(f"postgres: {error}")


@pytest.fixture
def place(cluster: postgres.Cluster) -> str:
    """The address of an empty place."""
    return cluster.place()


@pytest.fixture
def storage(place: str) -> Iterator[SqlStorage]:
    """A storage on that place."""
    storage = SqlStorage(f"{place}&application_name={APPLICATION}", "node", time.monotonic)
    furnish(storage)
    yield storage
    storage.close()


@pytest.fixture
def stranger(place: str) -> Iterator[psycopg.Connection]:
    """A transaction of somebody else on that place, which goes on as long as the test."""
    with psycopg.connect(place) as connection:
        yield connection
        connection.rollback()


def test_taking_passes_over_what_another_transaction_has_locked(
    storage: SqlStorage, stranger: psycopg.Connection
) -> None:
    keys = put(storage, ORDERS, "1", "2", "3")
    stranger.execute("SELECT 1 FROM oncemq_message WHERE key = %s FOR UPDATE", keys[:1])
    assert take(storage, b"a", ORDERS, 1) == ["2"]
    assert storage.reserve("etl", ORDERS, EVERYTHING, 0, 9) == 1
    assert texts(storage.fetch("etl", 1, 0, 9)) == ["3"]
    stranger.rollback()
    assert take(storage, b"a", ORDERS) == ["1"]


def test_storing_does_not_wait_for_another_that_stores(
    storage: SqlStorage, stranger: psycopg.Connection
) -> None:
    # As far as a store of another node that has its keys, and is not yet committed.
    stranger.execute("SELECT 1 FROM oncemq_queue FOR KEY SHARE")
    stranger.execute("SELECT oncemq_next_keys(10)")
    put(storage, ORDERS, "1")
    assert take(storage, b"a", ORDERS) == ["1"]


def test_a_connection_in_which_something_failed_is_not_used_again(
    cluster: postgres.Cluster, storage: SqlStorage, stranger: psycopg.Connection
) -> None:
    stranger.execute("LOCK TABLE oncemq_message IN ACCESS EXCLUSIVE MODE")
    waiting = "FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(storage.store, b"a", ORDERS, [letter("x")])
        while not (pids := cluster.execute(f"SELECT pid {waiting}", APPLICATION)):
            time.sleep(0.005)
        cluster.execute(f"SELECT pg_cancel_backend(pid) {waiting}", APPLICATION)
        with pytest.raises(StorageError):
            future.result(LONG_S)
    # It may hold what only its end lets go of, as a lock that is not a transaction's.
    deadline = time.monotonic() + LONG_S
    while cluster.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", *pids[0]):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    stranger.rollback()
    storage.store(b"a", ORDERS, [letter("x")])
    storage.commit_one_phase(b"a")
    assert take(storage, b"b", ORDERS) == ["x"]
