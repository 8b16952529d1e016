"""PostgreSQL crashes while the node lives on: what it had not forced is lost, and nothing else.

The actions of a branch are not forced, so that a crash of the server may take the latest of them
from a branch whose owner knows nothing of it. Such a branch must not be committed in part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

import psycopg
import pytest

from mqserver.errors import BranchEnded, StorageError
from mqserver.storage.contract import Outcome
from mqserver.storage.sql import SqlStorage
from tests import postgres
from tests.conformance.storages import BILLS, ORDERS, furnish, letter, put, seen, take

Result = TypeVar("Result")


@pytest.fixture(scope="module")
def cluster(missing: Callable[[str], NoReturn]) -> Iterator[postgres.Cluster]:
    """A PostgreSQL that writes to its disk, for these tests, only what a commit waits for."""
    try:
        cluster = postgres.cluster()
    except postgres.NoPostgres as error:
        missing(f"postgres: {error}")
    cluster.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
    cluster.execute("SELECT pg_reload_conf()")
    _rouse_the_writer(cluster)
    yield cluster
    cluster.execute("ALTER SYSTEM RESET ALL")
    cluster.execute("SELECT pg_reload_conf()")


def _rouse_the_writer(cluster: postgres.Cluster) -> None:
    """The process that writes the log has just done so, and pauses."""
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute("CREATE TABLE IF NOT EXISTS roused (at timestamptz)")
        connection.execute("INSERT INTO roused VALUES (now())")
    time.sleep(0.3)


class Node:
    """A storage that lives through the crashes of its server."""

    def __init__(self, cluster: postgres.Cluster) -> None:
        self._cluster = cluster
        self.storage = SqlStorage(cluster.place(), "node", time.monotonic)
        furnish(self.storage)

    def crash(self) -> None:
        """The server has crashed and is back."""
        self._cluster.kill()
        self._cluster.restart()
        _rouse_the_writer(self._cluster)

    def again(self, call: Callable[..., Result], *arguments: object) -> Result:
        """What the call says once the lost connections are replaced."""
        for _ in range(20):
            try:
                return call(*arguments)
            except StorageError as error:
                lost = error
        raise lost


@pytest.fixture
def node(cluster: postgres.Cluster) -> Iterator[Node]:
    """A node on an empty place."""
    node = Node(cluster)
    yield node
    node.storage.close()


def test_a_branch_that_lost_all_its_actions_is_not_committed(node: Node) -> None:
    storage = node.storage
    put(storage, ORDERS, "kept")
    take(storage, b"a", ORDERS)
    storage.store(b"a", BILLS, [letter("lost")])
    node.crash()
    with pytest.raises(BranchEnded):
        node.again(storage.commit_one_phase, b"a")
    assert (seen(storage, ORDERS), seen(storage, BILLS)) == (["kept"], [])
    assert storage.outcome(b"a") is Outcome.ROLLED_BACK


@pytest.mark.parametrize("call", ["commit_one_phase", "prepare", "store"])
def test_a_branch_that_lost_its_last_action_does_not_go_on(node: Node, call: str) -> None:
    storage = node.storage
    storage.store(b"a", BILLS, [letter("first half")])
    # With this commit the first half is on disk too.
    put(storage, ORDERS, "order")
    storage.store(b"a", BILLS, [letter("second half")])
    node.crash()
    calls: dict[str, Callable[[], object]] = {
        "commit_one_phase": lambda: storage.commit_one_phase(b"a"),
        "prepare": lambda: storage.prepare(b"a", b""),
        "store": lambda: storage.store(b"a", BILLS, [letter("third half")]),
    }
    with pytest.raises(BranchEnded):
        node.again(calls[call])
    assert (seen(storage, ORDERS), seen(storage, BILLS)) == (["order"], [])
    assert (storage.branches(), storage.queue(BILLS).locked) == ([], 0)


def test_a_branch_that_lost_nothing_goes_on_and_keys_are_not_given_again(node: Node) -> None:
    storage = node.storage
    storage.store(b"a", BILLS, [letter("1")])
    storage.store(b"in doubt", BILLS, [letter("3")])
    storage.prepare(b"in doubt", b"who decides")
    [lost] = storage.store(b"lost", BILLS, [letter("never")])
    node.crash()
    [key] = node.again(storage.store, b"a", BILLS, [letter("2")])
    assert key > lost
    storage.commit_one_phase(b"a")
    assert storage.commit(b"in doubt") is Outcome.COMMITTED
    assert seen(storage, BILLS) == ["1", "3", "2"]


def test_what_was_forced_is_there_after_a_crash_and_what_was_not_is_lost(node: Node) -> None:
    storage = node.storage
    storage.rollback(b"forced")
    storage.force()
    storage.rollback(b"not forced")
    node.crash()
    assert node.again(storage.outcome, b"forced") is Outcome.ROLLED_BACK
    assert storage.outcome(b"not forced") is Outcome.UNKNOWN
