"""Connections and engines of SQLAlchemy in transactions, with a real PostgreSQL beneath them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy

import oncemq
from clients.psycopg_driver import PsycopgDriver
from clients.transaction import Outcome
from tests.integration.enlisting import Rows, eventually, payloads
from tests.postgres import Cluster

pytest_plugins = ["tests.integration.database_fixtures"]


@pytest.fixture
def engine(rows: Rows) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine("postgresql+psycopg://", creator=rows.connect)
    yield made
    made.dispose()


def test_an_engine_gives_a_connection_for_the_transaction(
    mq: oncemq.Connection, rows: Rows, engine: sqlalchemy.Engine
) -> None:
    for payload in ("x", "y"):
        with mq.transaction() as tx:
            db = tx.enlist(engine)
            db.execute(sqlalchemy.text("INSERT INTO rows VALUES (:p)"), {"p": payload})
            mq.queue("q").put(payload.encode())
            with pytest.raises(oncemq.OnceMQError, match=r"call tx.commit\(\)"):
                db.commit()
        assert db.closed
    assert rows.found() == payloads(mq) == ["x", "y"]
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_a_connection_of_sqlalchemy_takes_part_and_is_free_afterwards(
    mq: oncemq.Connection, rows: Rows, engine: sqlalchemy.Engine
) -> None:
    insert = sqlalchemy.text("INSERT INTO rows VALUES (:p)")
    with engine.connect() as conn:
        with mq.transaction() as tx:
            tx.enlist(conn).execute(insert, {"p": "x"})
            mq.queue("q").put(b"x")
        conn.commit()
        conn.execute(insert, {"p": "y"})
        conn.commit()
    assert rows.found() == ["x", "y"]


def test_a_second_enlistment_of_a_connection_of_sqlalchemy_spoils_nothing(
    mq: oncemq.Connection, rows: Rows, engine: sqlalchemy.Engine
) -> None:
    with engine.connect() as conn:
        with mq.transaction() as tx:
            tx.enlist(conn).execute(sqlalchemy.text("INSERT INTO rows VALUES ('x')"))
            with pytest.raises(oncemq.NotEnlisted, match="part of this transaction already"):
                tx.enlist(conn)
            with pytest.raises(oncemq.OnceMQError, match=r"call tx.commit\(\)"):
                conn.commit()
        # It is as free as before.
        with conn.begin():
            conn.execute(sqlalchemy.text("INSERT INTO rows VALUES ('y')"))
    assert rows.found() == ["x", "y"]


def test_an_engine_whose_connection_is_lost_after_the_decision_loses_nothing(
    mq: oncemq.Connection,
    rows: Rows,
    engine: sqlalchemy.Engine,
    server: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin_to_commit = PsycopgDriver.begin_to_commit

    def cut(driver: PsycopgDriver) -> None:
        server.disconnect(rows.schema)
        begin_to_commit(driver)

    monkeypatch.setattr(PsycopgDriver, "begin_to_commit", cut)
    with mq.transaction() as tx:
        tx.enlist(engine).execute(sqlalchemy.text("INSERT INTO rows VALUES ('x')"))
        mq.queue("q").put(b"x")
    assert tx.status is Outcome.COMMITTED
    eventually(lambda: rows.found() == ["x"], "the coordinator commits the row")
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    with engine.connect() as conn:
        assert conn.execute(sqlalchemy.text("SELECT 1")).scalar() == 1


def test_a_connection_that_a_pool_takes_back_too_early_is_a_rollback(
    mq: oncemq.Connection, rows: Rows, engine: sqlalchemy.Engine
) -> None:
    tx = mq.begin()
    mq.queue("q").put(b"x", tx=tx)
    conn = engine.connect()
    tx.enlist(conn).execute(sqlalchemy.text("INSERT INTO rows VALUES ('x')"))
    with pytest.raises(sqlalchemy.exc.ProgrammingError, match="during a two-phase transaction"):
        conn.close()
    with pytest.raises(oncemq.RolledBack, match="do not give it back to a pool"):
        tx.commit()
    assert rows.found() == payloads(mq) == []
    with engine.connect() as conn:
        assert conn.execute(sqlalchemy.text("SELECT 1")).scalar() == 1
