"""The row that carries is written by a prepared statement, as long as PostgreSQL has that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

import oncemq
from clients.branches import Branch
from clients.two_phase import DatabaseBranch
from idl.otids import parse_shown
from tests.integration.carried.carried_work import act
from tests.integration.enlisting import Rows, die, payloads
from tests.postgres import Cluster

pytest_plugins = ["tests.integration.database_fixtures"]

Conn = psycopg.Connection[Any]


@pytest.fixture
def rows(mq: oncemq.Connection, server: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rows]:
    made = Rows(server)
    made.register(mq)
    for name in ("prepare", "write_mark", "commit"):
        monkeypatch.setattr(DatabaseBranch, name, die)
    monkeypatch.setattr(Branch, "vote", die)
    yield made
    made.cluster.disconnect(made.schema)


@pytest.fixture
def conn(rows: Rows) -> Iterator[Conn]:
    with closing(rows.connect()) as made:
        yield made


def statements(conn: Conn) -> list[str]:
    """Those of ours that PostgreSQL has prepared on this connection."""
    found = conn.execute("SELECT name FROM pg_prepared_statements WHERE name LIKE 'oncemq%'")
    names = [name for (name,) in found.fetchall()]
    # Not a rollback, with which psycopg forgets them.
    conn.commit()
    return names


def commit(mq: oncemq.Connection, conn: Conn, count: int = 3) -> None:
    for number in range(count):
        act(mq, conn, str(number)).commit()


def test_it_is_prepared_once_and_used_again(mq: oncemq.Connection, rows: Rows, conn: Conn) -> None:
    commit(mq, conn)
    first = statements(conn)
    assert len(first) == 1
    commit(mq, conn)
    assert statements(conn) == first
    assert rows.found() == sorted(payloads(mq)) == ["0", "0", "1", "1", "2", "2"]


@pytest.mark.parametrize("forgetting", ["ROLLBACK", "DROP TABLE passing", "DISCARD ALL"])
def test_where_it_was_forgotten_with_all_others_it_is_prepared_again(
    mq: oncemq.Connection, rows: Rows, conn: Conn, forgetting: str
) -> None:
    commit(mq, conn)
    before = statements(conn)
    conn.autocommit = forgetting.startswith("DISCARD")
    if forgetting.startswith("DROP"):
        conn.execute("CREATE TEMPORARY TABLE passing ()")
    if forgetting == "ROLLBACK":
        conn.execute("SELECT 1")
        conn.rollback()
    else:
        conn.execute(forgetting.encode())
    conn.commit()
    conn.autocommit = False
    assert statements(conn) == []
    commit(mq, conn)
    after = statements(conn)
    assert len(after) == 1
    assert after != before
    assert rows.found() == sorted(payloads(mq))
    assert len(rows.found()) == 6


def test_where_nobody_has_said_that_it_is_gone_one_transaction_is_rolled_back_and_told_why(
    mq: oncemq.Connection, rows: Rows, conn: Conn
) -> None:
    commit(mq, conn)
    # A pooler that gives each transaction another session looks like this.
    conn.pgconn.exec_(b"DEALLOCATE ALL")
    with pytest.raises(oncemq.RolledBack, match="prepare_threshold=None") as told:
        act(mq, conn, "never").commit()
    assert told.value.retryable
    assert not conn.closed
    commit(mq, conn)
    assert rows.found() == sorted(payloads(mq)) == ["0", "0", "1", "1", "2", "2"]


def test_who_wants_nothing_prepared_has_nothing_prepared(
    mq: oncemq.Connection, rows: Rows, conn: Conn
) -> None:
    conn.prepare_threshold = None
    commit(mq, conn)
    assert statements(conn) == []
    assert rows.found() == payloads(mq) == ["0", "1", "2"]


def test_a_row_that_is_refused_rolls_back_and_the_connection_goes_on(
    mq: oncemq.Connection, rows: Rows, conn: Conn
) -> None:
    commit(mq, conn)
    with closing(rows.connect()) as other:
        tx = act(mq, conn, "late")
        fence = (
            f"INSERT INTO {rows.schema}.oncemq_carried (otid, node, content) VALUES (%s, '', '')"
        )
        other.execute(fence.encode(), [parse_shown(tx.otid).hex()])
        other.commit()
    with pytest.raises(oncemq.RolledBack, match="took too long") as told:
        tx.commit()
    assert told.value.retryable
    assert not conn.closed
    commit(mq, conn)
    assert rows.found() == sorted(payloads(mq)) == ["0", "0", "1", "1", "2", "2"]


@pytest.mark.parametrize("is_prepared", [True, False])
@pytest.mark.parametrize(("wanted", "used"), [("off", "on"), ("local", "on"), ("on", "on")])
def test_the_commit_is_on_disk_whatever_the_application_has_set(
    mq: oncemq.Connection, rows: Rows, conn: Conn, is_prepared: bool, wanted: str, used: str
) -> None:
    with closing(rows.connect()) as other:
        other.execute("CREATE TABLE seen (setting text)")
        other.execute(
            "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$"
        )
        table = f"{rows.schema}.oncemq_carried"
        other.execute(
            f"CREATE TRIGGER seeing AFTER INSERT ON {table} EXECUTE FUNCTION see()".encode()
        )
        other.commit()
        if not is_prepared:
            conn.prepare_threshold = None
        conn.execute(f"SET synchronous_commit = {wanted}".encode())
        conn.commit()
        commit(mq, conn)
        assert other.execute("SELECT setting FROM seen").fetchall() == [(used,)] * 3
        assert conn.execute("SHOW synchronous_commit").fetchone() == (wanted,)
        conn.commit()
