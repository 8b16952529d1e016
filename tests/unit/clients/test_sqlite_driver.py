"""An sqlite3 connection as a transaction uses it, with a database in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from clients.database_drivers import DatabaseTrouble, Fenced
from clients.errors import LockTimeout, NotEnlisted, OnceMQError
from clients.sqlite_driver import EnlistedSqlite, SqliteDriver
from idl.databases import COMMITTED, IDENTITY, WHOLE, BranchId, Kind, creation, insertion

TABLE = '"main".oncemq_outcome'
BRANCH = BranchId(bytes(32), "d1")
MARK = (BRANCH.otid, WHOLE, COMMITTED)


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(":memory:")
    made.execute(creation(Kind.SQLITE, TABLE))
    made.execute(insertion(TABLE, "?"), (IDENTITY, WHOLE, "0123"))
    made.commit()
    yield made
    made.close()


def rows(connection: sqlite3.Connection) -> int:
    count: int = connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone()[0]
    return count - 1


def test_it_says_which_database_it_is(connection: sqlite3.Connection) -> None:
    connection.row_factory = sqlite3.Row
    driver = SqliteDriver(connection)
    assert driver.identity(TABLE) == "0123"
    assert driver.identity('"main".another') == ""
    assert driver.address() == ""
    assert not connection.in_transaction


def test_a_commit_keeps_the_row_and_a_rollback_does_not(connection: sqlite3.Connection) -> None:
    driver = SqliteDriver(connection)
    for is_wanted in (False, True):
        driver.check_idle()
        driver.begin(BRANCH)
        assert driver.why_not() == ""
        driver.write_row(TABLE, MARK)
        driver.commit() if is_wanted else driver.rollback()
        assert not connection.in_transaction
        assert rows(connection) == is_wanted
    driver.begin(BRANCH)
    with pytest.raises(Fenced) as told:
        driver.write_row(TABLE, MARK)
    assert told.value.retryable
    driver.let_go()
    assert not connection.in_transaction


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "RELEASE oncemq_enlisted"])
def test_who_ends_it_without_the_transaction_is_found_out(
    connection: sqlite3.Connection, end: str
) -> None:
    driver = SqliteDriver(connection)
    driver.begin(BRANCH)
    connection.execute(end)
    assert "rows may be there without the messages" in driver.why_not()
    driver.rollback()


def test_a_closed_connection_is_no_surprise(connection: sqlite3.Connection) -> None:
    driver = SqliteDriver(connection)
    driver.begin(BRANCH)
    connection.close()
    assert "cannot be used any more" in driver.why_not()
    driver.rollback()
    with pytest.raises(NotEnlisted, match="closed database"):
        driver.check_idle()
    with pytest.raises(NotEnlisted, match="no transaction could begin"):
        driver.begin(BRANCH)


def test_a_missing_table_is_said_with_what_to_type(connection: sqlite3.Connection) -> None:
    driver = SqliteDriver(connection)
    driver.begin(BRANCH)
    with pytest.raises(DatabaseTrouble, match="oncemq database prepare NAME"):
        driver.write_row('"main".another', MARK)
    driver.rollback()


def test_another_writer_is_waited_for_at_the_beginning() -> None:
    where = "file:shared_for_a_test?mode=memory&cache=shared"
    first, second = (sqlite3.connect(where, uri=True, timeout=0) for _ in range(2))
    one, other = SqliteDriver(first), SqliteDriver(second)
    one.begin(BRANCH)
    with pytest.raises(LockTimeout, match="is locked"):
        other.begin(BRANCH)
    one.rollback()
    other.begin(BRANCH)
    other.rollback()
    first.close()
    second.close()


def test_what_the_application_is_given_works_but_does_not_end(connection: Any) -> None:
    given: Any = EnlistedSqlite(connection)
    given.row_factory = sqlite3.Row
    assert connection.row_factory is sqlite3.Row
    assert given.execute("SELECT 1").fetchone()[0] == 1
    assert "enlisted" in repr(given)
    for name in ("commit", "rollback", "close"):
        with pytest.raises(OnceMQError, match="belongs to a transaction"):
            getattr(given, name)()
    with pytest.raises(OnceMQError, match="belongs to a transaction"):
        given.__enter__()
