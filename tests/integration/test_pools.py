"""Connections of pools in transactions: those that are kept, and those given back too early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import psycopg_pool
import pymysql
import pytest
import sqlalchemy

import oncemq
from tests.integration.enlisting import Rows, payloads
from tests.integration.mariadb_rows import ROW, MariadbRows

pytest_plugins = ["tests.integration.database_fixtures"]

Pool = psycopg_pool.ConnectionPool[psycopg.Connection[Any]]


# --- psycopg_pool --------------------------------------------------------------------------------


@pytest.fixture
def pool(rows: Rows) -> Iterator[Pool]:
    with psycopg_pool.ConnectionPool(
        rows.dsn,
        min_size=1,
        max_size=1,
        timeout=10.0,
        kwargs={"application_name": rows.schema},
        open=False,
    ) as made:
        yield made


def insert(db: Any, payload: str) -> None:
    db.execute("INSERT INTO rows VALUES (%s)", [payload])


def test_a_connection_that_the_pool_gets_back_after_the_end_can_be_used_again(
    mq: oncemq.Connection, rows: Rows, pool: Pool
) -> None:
    for payload in ("x", "y"):
        with pool.connection() as conn, mq.transaction() as tx:
            insert(tx.enlist(conn), payload)
            mq.queue("q").put(payload.encode())
    assert rows.found() == payloads(mq) == ["x", "y"]


@pytest.mark.parametrize("markable", [None, True], ids=["two-phase", "marked"])
def test_a_connection_that_the_pool_gets_back_too_early_is_a_rollback(
    mq: oncemq.Connection, rows: Rows, pool: Pool, markable: bool | None
) -> None:
    tx = mq.begin()
    mq.queue("q").put(b"x", tx=tx)
    with (
        pytest.raises(psycopg.ProgrammingError, match="cannot be used during a two-phase"),
        pool.connection() as conn,
    ):
        insert(tx.enlist(conn, markable=markable), "x")
    with pytest.raises(oncemq.RolledBack, match="do not give it back to a pool"):
        tx.commit()
    assert rows.found() == payloads(mq) == []
    # The pool has thrown it away, and has a sound one.
    with pool.connection() as conn:
        insert(conn, "y")
    assert rows.found() == ["y"]


def test_a_connection_that_is_put_back_by_hand_is_a_rollback(
    mq: oncemq.Connection, rows: Rows, pool: Pool
) -> None:
    tx = mq.begin()
    mq.queue("q").put(b"x", tx=tx)
    conn = pool.getconn()
    insert(tx.enlist(conn), "x")
    pool.putconn(conn)
    # A pool clears up in a thread of its own; whoever gets one now gets another.
    with pool.connection() as other:
        assert other is not conn
    with pytest.raises(oncemq.RolledBack, match="do not give it back to a pool"):
        tx.commit()
    assert rows.found() == payloads(mq) == []


# --- SQLAlchemy's, with MariaDB beneath ----------------------------------------------------------


@pytest.fixture
def engine(maria: MariadbRows) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(
        "mysql+pymysql://", creator=maria.connect, pool_size=1, max_overflow=0, pool_timeout=5
    )
    yield made
    made.dispose()


INSERT = sqlalchemy.text("INSERT INTO noted VALUES (:p)")


@pytest.mark.parametrize("markable", [None, True], ids=["two-phase", "marked"])
def test_in_mariadb_an_engine_gives_a_connection_for_the_transaction(
    mq: oncemq.Connection, maria: MariadbRows, engine: sqlalchemy.Engine, markable: bool | None
) -> None:
    for payload in ("x", "y"):
        with mq.transaction() as tx:
            db = tx.enlist(engine, markable=markable)
            db.execute(INSERT, {"p": payload})
            mq.queue("q").put(payload.encode())
            with pytest.raises(oncemq.OnceMQError, match=r"call tx.commit\(\)"):
                db.commit()
        assert db.closed
    assert maria.found() == payloads(mq) == ["x", "y"]
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_in_mariadb_a_connection_of_sqlalchemy_takes_part_and_is_free_afterwards(
    mq: oncemq.Connection, maria: MariadbRows, engine: sqlalchemy.Engine
) -> None:
    with engine.connect() as conn:
        with mq.transaction() as tx:
            tx.enlist(conn).execute(INSERT, {"p": "x"})
            mq.queue("q").put(b"x")
        tx = mq.begin()
        tx.enlist(conn).execute(INSERT, {"p": "never"})
        tx.rollback()
        conn.execute(INSERT, {"p": "y"})
        conn.commit()
    assert maria.found() == ["x", "y"]


def test_in_mariadb_a_connection_that_a_pool_takes_back_too_early_is_a_rollback(
    mq: oncemq.Connection, maria: MariadbRows, engine: sqlalchemy.Engine
) -> None:
    tx = mq.begin()
    mq.queue("q").put(b"x", tx=tx)
    conn = engine.connect()
    tx.enlist(conn).execute(INSERT, {"p": "x"})
    with pytest.raises(sqlalchemy.exc.OperationalError, match="when global transaction is in the"):
        conn.close()
    with pytest.raises(oncemq.RolledBack, match="do not give it back to a pool"):
        tx.commit()
    assert maria.found() == payloads(mq) == []
    with engine.connect() as conn:
        assert conn.execute(sqlalchemy.text("SELECT 1")).scalar() == 1


def test_in_mariadb_an_engine_whose_connection_is_lost_after_the_vote_loses_nothing(
    mq: oncemq.Connection,
    maria: MariadbRows,
    engine: sqlalchemy.Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from clients.mariadb_driver import MariadbDriver

    prepare = MariadbDriver.prepare

    def cut(driver: MariadbDriver, *arguments: Any) -> None:
        prepare(driver, *arguments)
        maria.server.disconnect(driver._connection)

    with monkeypatch.context() as patch, mq.transaction() as tx:
        patch.setattr(MariadbDriver, "prepare", cut)
        tx.enlist(engine).execute(INSERT, {"p": "x"})
        mq.queue("q").put(b"x")
        tx.commit()
    assert payloads(mq) == ["x"]
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    with mq.transaction() as tx:
        tx.enlist(engine).execute(INSERT, {"p": "y"})
    with mq.transaction() as tx:
        conn: pymysql.Connection[Any] = maria.connect()
        tx.enlist(conn).cursor().execute(ROW, ("z",))
    assert set(maria.found()) >= {"y", "z"}
