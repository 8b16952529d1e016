"""A row and a message as one act, with a real PostgreSQL: what holds, and what a user is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import oncemq
from clients.branches import Branch
from clients.psycopg_driver import PsycopgDriver
from clients.transaction import Outcome
from idl.otids import parse_shown
from tests.integration.enlisting import (
    Gone,
    Rows,
    die,
    died_after,
    eventually,
    in_doubt,
    payloads,
)
from tests.postgres import Cluster

pytest_plugins = ["tests.integration.database_fixtures"]

ROW = "INSERT INTO rows VALUES (%s)"


@pytest.fixture(autouse=True)
def nothing_is_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends in the way of those of which a row cannot have all: here that is tried."""
    monkeypatch.setattr(Branch, "may_be_carried", False)


@pytest.fixture
def conn(rows: Rows) -> Iterator[psycopg.Connection[Any]]:
    made = rows.connect()
    yield made
    made.close()


def act(mq: oncemq.Connection, conn: Any, payload: str = "x", **how: Any) -> oncemq.Transaction:
    """A row and a message, in a transaction that is not ended yet."""
    tx = mq.begin()
    db = tx.enlist(conn, **how)
    db.execute(ROW, [payload])
    mq.queue("q").put(payload.encode(), tx=tx)
    return tx


# --- One act -------------------------------------------------------------------------------------


def test_a_row_and_a_message_are_there_together(
    mq: oncemq.Connection, rows: Rows, conn: psycopg.Connection[Any]
) -> None:
    with mq.transaction() as tx:
        db = tx.enlist(conn)
        assert db is conn
        db.execute(ROW, ["x"])
        mq.queue("q").put(b"x")
        assert rows.found() == payloads(mq) == []
    assert tx.status is Outcome.COMMITTED
    assert rows.found() == payloads(mq) == ["x"]
    assert rows.prepared() == 0


def test_a_rollback_leaves_neither_and_the_connection_is_free(
    mq: oncemq.Connection, rows: Rows, conn: psycopg.Connection[Any]
) -> None:
    def fail() -> None:
        with mq.transaction() as tx:
            tx.enlist(conn).execute(ROW, ["x"])
            mq.queue("q").put(b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    act(mq, conn).rollback()
    assert rows.found() == payloads(mq) == []
    act(mq, conn, "y").commit()
    conn.execute(ROW, ["z"])
    conn.commit()
    assert rows.found() == ["y", "z"]


def test_a_message_that_was_got_and_two_databases_end_together(
    mq: oncemq.Connection, rows: Rows, conn: psycopg.Connection[Any], server: Cluster
) -> None:
    other = Rows(server)
    other.register(mq, "other")
    mq.queue("q").put(b"x")
    with other.connect() as second:
        for is_wanted in (False, True):
            tx = mq.begin()
            message = mq.queue("q").get(tx=tx)
            assert message is not None
            for each in (conn, second):
                tx.enlist(each).execute(ROW, [message.payload.decode()])
            tx.commit() if is_wanted else tx.rollback()
    assert rows.found() == other.found() == ["x"]
    assert payloads(mq) == []


def test_the_kind_of_cursor_that_the_application_likes_makes_no_difference(
    mq: oncemq.Connection, rows: Rows, conn: psycopg.Connection[Any]
) -> None:
    conn.cursor_factory = psycopg.RawCursor
    conn.row_factory = psycopg.rows.dict_row
    with mq.transaction() as tx:
        tx.enlist(conn).execute("INSERT INTO rows VALUES ($1)", ["x"])
        mq.queue("q").put(b"x")
    assert rows.found() == payloads(mq) == ["x"]


def test_where_the_row_of_a_branch_is_refused_nothing_is_prepared(
    mq: oncemq.Connection, rows: Rows, conn: psycopg.Connection[Any]
) -> None:
    tx = act(mq, conn)
    otid, named = parse_shown(tx.otid).hex(), f"d1.{mq.node().place}"
    with rows.connect() as other:
        other.execute("INSERT INTO oncemq_outcome VALUES (%s, %s, 'branch')", [otid, named])
    with pytest.raises(oncemq.RolledBack, match="it took too long") as told:
        tx.commit()
    assert told.value.retryable
    assert rows.prepared() == 0
    assert rows.found() == payloads(mq) == []
    act(mq, conn, "y").commit()
    assert rows.found() == payloads(mq) == ["y"]


def test_a_database_alone_is_committed_without_being_prepared(
    mq: oncemq.Connection,
    rows: Rows,
    conn: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PsycopgDriver, "prepare", die)
    with mq.transaction() as tx:
        tx.enlist(conn).execute(ROW, ["x"])
    assert rows.found() == ["x"]


def test_a_database_alone_whose_commit_is_lost_is_unknown(
    mq: oncemq.Connection, rows: Rows, conn: psycopg.Connection[Any], server: Cluster
) -> None:
    tx = mq.begin()
    tx.enlist(conn).execute(ROW, ["x"])
    server.disconnect(rows.schema)
    with pytest.raises(
        oncemq.OutcomeUnknown, match="orders: its connection was lost in the commit"
    ):
        tx.commit()


def test_savepoints_inside_are_the_applications_own(
    mq: oncemq.Connection, rows: Rows, conn: psycopg.Connection[Any]
) -> None:
    with mq.transaction() as tx:
        db = tx.enlist(conn)
        mq.queue("q").put(b"x")
        with db.transaction():
            db.execute(ROW, ["x"])
        with pytest.raises(psycopg.Error), db.transaction():
            db.execute("SELECT 1 / 0")
    assert rows.found() == ["x"]


# --- What is refused -----------------------------------------------------------------------------


def test_a_direct_end_is_refused_and_the_transaction_goes_on(
    mq: oncemq.Connection, rows: Rows, conn: psycopg.Connection[Any]
) -> None:
    tx = act(mq, conn)
    with pytest.raises(psycopg.ProgrammingError, match="cannot be used during a two-phase"):
        conn.commit()
    with pytest.raises(psycopg.ProgrammingError, match="cannot be used during a two-phase"):
        conn.rollback()
    tx.commit()
    assert rows.found() == payloads(mq) == ["x"]


def test_a_connection_that_commits_by_itself_is_refused(mq: oncemq.Connection, rows: Rows) -> None:
    tx = mq.begin()
    with (
        rows.connect(autocommit=True) as conn,
        pytest.raises(oncemq.NotEnlisted, match=r"set conn\.autocommit = False before"),
    ):
        tx.enlist(conn)


def test_a_connection_that_is_at_work_is_refused(
    mq: oncemq.Connection, conn: psycopg.Connection[Any]
) -> None:
    conn.execute("SELECT 1")
    with pytest.raises(oncemq.NotEnlisted, match="commit it or roll it back, then enlist"):
        mq.begin().enlist(conn)
    conn.rollback()
    tx = mq.begin()
    tx.enlist(conn)
    with pytest.raises(oncemq.NotEnlisted, match="part of this transaction already"):
        tx.enlist(conn)
    with pytest.raises(oncemq.NotEnlisted, match="in a transaction of its own already"):
        mq.begin().enlist(conn)
    tx.rollback()


def test_a_transaction_that_is_over_takes_no_database(
    mq: oncemq.Connection, conn: psycopg.Connection[Any]
) -> None:
    tx = act(mq, conn)
    tx.commit()
    with pytest.raises(oncemq.TransactionEnded, match="over: committed"):
        tx.enlist(conn)


def test_a_database_that_nobody_registered_is_refused_with_what_to_type(
    server: Cluster,
) -> None:
    with oncemq.connect("memory:") as mq, psycopg.connect(server.dsn) as conn:
        with pytest.raises(oncemq.NotEnlisted) as told:
            mq.begin().enlist(conn)
        assert "oncemq database add NAME postgresql://oncemq@127.0.0.1:" in str(told.value)
        with pytest.raises(oncemq.NotEnlisted, match="oncemq database add billing postgresql"):
            mq.begin().enlist(conn, database="billing")


def test_a_connection_to_another_database_than_was_named_is_refused(
    mq: oncemq.Connection, rows: Rows, server: Cluster
) -> None:
    server.execute(f"CREATE DATABASE {rows.schema}")
    with psycopg.connect(server.dsn.replace("/postgres", f"/{rows.schema}")) as conn:
        with pytest.raises(oncemq.NotEnlisted, match="does not lead to database orders"):
            mq.begin().enlist(conn, database="orders")
        with pytest.raises(oncemq.NotEnlisted, match="is not registered"):
            mq.begin().enlist(conn)


def test_a_role_that_may_not_use_the_table_is_told_what_is_missing(
    mq: oncemq.Connection, rows: Rows, server: Cluster
) -> None:
    role = f"role_{rows.schema}"
    server.execute(f"CREATE ROLE {role} LOGIN")
    with rows.connect() as conn:
        conn.execute(f"SET SESSION AUTHORIZATION {role}".encode())
        conn.commit()
        for _ in range(2):
            with pytest.raises(oncemq.NotEnlisted, match="oncemq database prepare orders --grant"):
                mq.begin().enlist(conn)
            server.execute(f"GRANT USAGE ON SCHEMA {rows.schema} TO {role}")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (object(), "enlist a connection of psycopg 3, PyMySQL or sqlite3"),
        (Session(), "enlist session.connection"),
        (sqlalchemy.create_engine("sqlite://"), "in memory cannot take part"),
        (create_async_engine("postgresql+psycopg://"), "asyncio cannot take part"),
        (type("connection", (), {"__module__": "psycopg2.extensions"})(), "use psycopg 3"),
    ],
)
def test_what_is_no_connection_that_can_take_part_is_refused(
    mq: oncemq.Connection, given: Any, told: str
) -> None:
    with pytest.raises(oncemq.NotEnlisted, match=told):
        mq.begin().enlist(given)


# --- What goes wrong -----------------------------------------------------------------------------


def test_a_failed_transaction_is_not_prepared_into_nothing(
    mq: oncemq.Connection, rows: Rows, conn: psycopg.Connection[Any]
) -> None:
    tx = act(mq, conn)
    with pytest.raises(psycopg.errors.DivisionByZero):
        conn.execute("SELECT 1 / 0")
    with pytest.raises(oncemq.RolledBack, match="orders: one of its statements has failed") as told:
        tx.commit()
    assert not told.value.retryable
    assert rows.found() == payloads(mq) == []
    act(mq, conn).commit()
    assert rows.found() == payloads(mq) == ["x"]


def test_a_transaction_that_a_statement_has_ended_takes_the_messages_with_it(
    mq: oncemq.Connection, conn: psycopg.Connection[Any]
) -> None:
    tx = act(mq, conn)
    conn.execute("ROLLBACK")
    with pytest.raises(oncemq.RolledBack, match="ended by a statement"):
        tx.commit()
    assert payloads(mq) == []


def test_what_the_database_refuses_at_the_vote_rolls_back_everything(
    mq: oncemq.Connection, rows: Rows, conn: psycopg.Connection[Any]
) -> None:
    conn.execute(
        "CREATE TABLE once (x int UNIQUE DEFERRABLE INITIALLY DEFERRED);INSERT INTO once VALUES (1)"
    )
    conn.commit()
    tx = act(mq, conn)
    conn.execute("INSERT INTO once VALUES (1)")
    with pytest.raises(oncemq.RolledBack, match="database orders: duplicate key value"):
        tx.commit()
    tx = act(mq, conn)
    conn.execute("CREATE TEMP TABLE short (x int)")
    with pytest.raises(oncemq.RolledBack, match="operated on temporary objects"):
        tx.commit()
    assert rows.found() == payloads(mq) == []
    act(mq, conn).commit()
    assert rows.found() == payloads(mq) == ["x"]


def test_a_connection_that_is_lost_before_the_vote_is_a_rollback(
    mq: oncemq.Connection, rows: Rows, conn: psycopg.Connection[Any], server: Cluster
) -> None:
    tx = act(mq, conn)
    server.disconnect(rows.schema)
    with pytest.raises(oncemq.RolledBack, match="database orders: ") as told:
        tx.commit()
    assert told.value.retryable
    assert rows.found() == payloads(mq) == []


def test_a_connection_that_is_lost_between_vote_and_commit_loses_nothing(
    mq: oncemq.Connection,
    rows: Rows,
    conn: psycopg.Connection[Any],
    server: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit_prepared = PsycopgDriver.commit_prepared

    def cut(driver: PsycopgDriver) -> None:
        server.disconnect(rows.schema)
        commit_prepared(driver)

    monkeypatch.setattr(PsycopgDriver, "commit_prepared", cut)
    act(mq, conn).commit()
    assert payloads(mq) == ["x"]
    eventually(lambda: rows.found() == ["x"], "the coordinator commits the row")


def test_a_coordinator_that_was_faster_is_no_trouble(
    mq: oncemq.Connection,
    rows: Rows,
    conn: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit_prepared = PsycopgDriver.commit_prepared

    def late(driver: PsycopgDriver) -> None:
        eventually(
            lambda: rows.found() == ["x"], "the coordinator commits", lambda: rows.register(mq)
        )
        commit_prepared(driver)

    monkeypatch.setattr(PsycopgDriver, "commit_prepared", late)
    act(mq, conn).commit()
    monkeypatch.undo()
    act(mq, conn, "y").commit()
    assert rows.found() == payloads(mq) == ["x", "y"]


def test_a_connection_that_was_closed_too_early_is_a_rollback(
    mq: oncemq.Connection, rows: Rows, conn: psycopg.Connection[Any]
) -> None:
    tx = act(mq, conn)
    conn.close()
    with pytest.raises(oncemq.RolledBack, match="was closed before the transaction ended"):
        tx.commit()
    assert rows.found() == payloads(mq) == []


def test_a_commit_in_a_pipeline_is_a_rollback(
    mq: oncemq.Connection, rows: Rows, conn: psycopg.Connection[Any]
) -> None:
    tx = act(mq, conn)
    with conn.pipeline(), pytest.raises(oncemq.RolledBack, match="in a pipeline"):
        tx.commit()
    assert rows.found() == payloads(mq) == []
    tx = mq.begin()
    with conn.pipeline():
        tx.enlist(conn).execute(ROW, ["y"])
    mq.queue("q").put(b"y", tx=tx)
    tx.commit()
    assert rows.found() == payloads(mq) == ["y"]


# --- The application is gone ---------------------------------------------------------------------


BEFORE_DECISION: list[tuple[Any, str, Callable[..., Any]]] = [
    (PsycopgDriver, "prepare", die),
    (PsycopgDriver, "prepare", died_after(PsycopgDriver.prepare)),
    (Branch, "decide", die),
]
AFTER_DECISION: list[tuple[Any, str, Callable[..., Any]]] = [
    (Branch, "decide", died_after(Branch.decide)),
    (PsycopgDriver, "commit_prepared", die),
    (PsycopgDriver, "commit_prepared", died_after(PsycopgDriver.commit_prepared)),
]


@pytest.mark.parametrize(
    ("owner", "step", "dying", "expected"),
    [(*each, []) for each in BEFORE_DECISION] + [(*each, ["x"]) for each in AFTER_DECISION],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whenever_the_application_dies_row_and_message_agree(
    server: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    owner: Any,
    step: str,
    dying: Callable[..., Any],
    expected: list[str],
) -> None:
    rows = Rows(server)
    with oncemq.connect(f"file:{tmp_path}") as mq:
        rows.register(mq)
        mq.queue("in").put(b"x")
        conn = rows.connect()
        tx = act(mq, conn)
        assert mq.queue("in").get(tx=tx) is not None
        monkeypatch.setattr(owner, step, dying)
        with pytest.raises(Gone):
            tx.commit()
        monkeypatch.undo()
        conn.close()
    # Whoever starts here again has only what is on disk, and asks at once.
    with oncemq.connect(f"file:{tmp_path}") as mq:
        eventually(lambda: rows.prepared() == 0, "no branch is left", lambda: rows.register(mq))
        eventually(lambda: not in_doubt(mq), "the node has heard")
        assert rows.found() == payloads(mq) == expected
        assert payloads(mq, "in") == ([] if expected else ["x"])
