"""A row and a message as one act where the database has no two-phase commit: its commit decides.

With SQLite, and with a PostgreSQL that is asked to take part in this way or cannot in another.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pytest
import sqlalchemy

import oncemq
from clients.branches import Branch
from clients.database_drivers import Lost
from clients.deciding import Deciding
from clients.psycopg_driver import PsycopgDriver
from clients.sqlite_driver import SqliteDriver
from clients.two_phase import DatabaseBranch
from idl.otids import parse_shown
from tests.integration.enlisting import (
    File,
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


@pytest.fixture(autouse=True)
def nothing_is_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends in the way of those of which a row cannot have all: here that is tried."""
    monkeypatch.setattr(Branch, "may_be_carried", False)


@pytest.fixture
def conn(file: File) -> Iterator[sqlite3.Connection]:
    with closing(file.connect()) as made:
        yield made


def act(mq: oncemq.Connection, conn: Any, payload: str = "x", **how: Any) -> oncemq.Transaction:
    """A row and a message, in a transaction that is not ended yet."""
    tx = mq.begin()
    db = tx.enlist(conn, **how)
    place = "?" if isinstance(conn, sqlite3.Connection) else "%s"
    db.execute(f"INSERT INTO rows VALUES ({place})", [payload])
    mq.queue("q").put(payload.encode(), tx=tx)
    return tx


# --- SQLite --------------------------------------------------------------------------------------


def test_a_row_and_a_message_are_there_together(
    mq: oncemq.Connection, file: File, conn: sqlite3.Connection
) -> None:
    for payload in ("x", "y"):
        with mq.transaction() as tx:
            db = tx.enlist(conn)
            db.execute("INSERT INTO rows VALUES (?)", [payload])
            mq.queue("q").put(payload.encode())
            assert payload not in file.found() + payloads(mq)
    assert file.found() == payloads(mq) == ["x", "y"]


def test_a_rollback_leaves_neither_and_the_connection_is_free(
    mq: oncemq.Connection, file: File, conn: sqlite3.Connection
) -> None:
    act(mq, conn).rollback()
    assert file.found() == payloads(mq) == []
    conn.execute("INSERT INTO rows VALUES ('y')")
    conn.commit()
    act(mq, conn).commit()
    assert file.found() == ["x", "y"]
    assert payloads(mq) == ["x"]


@pytest.mark.parametrize("level", [None, "", "IMMEDIATE"])
def test_it_does_not_matter_how_the_connection_begins_transactions(
    mq: oncemq.Connection, file: File, level: str | None
) -> None:
    with closing(file.connect(isolation_level=level)) as conn:
        act(mq, conn).commit()
        act(mq, conn, "y").rollback()
    assert file.found() == payloads(mq) == ["x"]


def test_a_commit_that_a_power_cut_could_undo_is_made_durable(
    mq: oncemq.Connection, conn: sqlite3.Connection
) -> None:
    conn.execute("PRAGMA synchronous = OFF")
    tx = mq.begin()
    db = tx.enlist(conn)
    assert db.execute("PRAGMA synchronous").fetchone() == (3,)
    mq.queue("q").put(b"x", tx=tx)
    tx.commit()
    assert conn.execute("PRAGMA synchronous").fetchone() == (0,)


def test_a_direct_end_is_refused(mq: oncemq.Connection, file: File, conn: Any) -> None:
    tx = mq.begin()
    db = tx.enlist(conn)
    for end in (db.commit, db.rollback, db.close, db.__enter__):
        with pytest.raises(oncemq.OnceMQError, match=r"call tx\.commit\(\) or tx\.rollback\(\)"):
            end()
    with pytest.raises(oncemq.OnceMQError, match=r"call tx\.commit"):
        db.executescript("SELECT 1")
    tx.rollback()


def test_a_commit_behind_the_transactions_back_is_found_out(
    mq: oncemq.Connection, file: File, conn: sqlite3.Connection
) -> None:
    tx = act(mq, conn)
    conn.commit()
    conn.execute("INSERT INTO rows VALUES ('y')")
    with pytest.raises(oncemq.RolledBack, match="rows may be there without the messages") as told:
        tx.commit()
    assert not told.value.retryable
    assert payloads(mq) == []
    assert file.found() == ["x"]


def test_sqlalchemy_takes_part_and_its_commit_is_refused(mq: oncemq.Connection, file: File) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{file.path}")
    with mq.transaction() as tx:
        db = tx.enlist(engine)
        db.execute(sqlalchemy.text("INSERT INTO rows VALUES ('x')"))
        mq.queue("q").put(b"x")
        with pytest.raises(oncemq.OnceMQError, match=r"call tx\.commit"):
            db.commit()
    assert file.found() == payloads(mq) == ["x"]
    engine.dispose()


def test_a_connection_that_is_at_work_or_closed_is_refused(
    mq: oncemq.Connection, conn: sqlite3.Connection
) -> None:
    conn.execute("INSERT INTO rows VALUES ('x')")
    with pytest.raises(oncemq.NotEnlisted, match="in a transaction of its own already"):
        mq.begin().enlist(conn)
    conn.close()
    with pytest.raises(oncemq.NotEnlisted, match="closed database"):
        mq.begin().enlist(conn)


def test_a_file_that_another_one_writes_is_refused_when_that_takes_long(
    mq: oncemq.Connection, file: File, conn: sqlite3.Connection
) -> None:
    tx = act(mq, conn)
    with closing(file.connect(timeout=0)) as other:
        with pytest.raises(oncemq.LockTimeout, match="database is locked"):
            mq.begin().enlist(other)
        tx.rollback()
        act(mq, other).commit()


# --- Several databases ---------------------------------------------------------------------------


def test_a_second_one_is_refused_with_the_reason(
    mq: oncemq.Connection, conn: sqlite3.Connection, tmp_path: Path
) -> None:
    second = File(tmp_path / "second.db")
    second.register(mq, "second")
    tx = act(mq, conn)
    with closing(second.connect()) as other, pytest.raises(oncemq.NotEnlisted) as told:
        tx.enlist(other)
    assert "second has no two-phase commit, and neither has stock" in str(told.value)
    assert "Use two transactions, and a queue between them" in str(told.value)
    tx.commit()
    assert payloads(mq) == ["x"]


def test_it_comes_first_and_others_follow_its_commit(
    mq: oncemq.Connection, file: File, conn: sqlite3.Connection, server: Cluster
) -> None:
    rows = Rows(server)
    rows.register(mq)
    with rows.connect() as other:
        tx = mq.begin()
        tx.enlist(other)
        with pytest.raises(oncemq.NotEnlisted, match=r"stock takes part .* enlist it before them"):
            tx.enlist(conn)
        tx.rollback()
        for is_wanted in (False, True):
            tx = act(mq, conn)
            tx.enlist(other).execute("INSERT INTO rows VALUES ('x')")
            tx.commit() if is_wanted else tx.rollback()
    assert rows.prepared() == 0
    assert rows.found() == file.found() == payloads(mq) == ["x"]


def test_a_statement_that_failed_is_undone_alone(
    mq: oncemq.Connection, file: File, conn: sqlite3.Connection
) -> None:
    conn.execute("CREATE TABLE once (x PRIMARY KEY)")
    tx = act(mq, conn)
    conn.execute("INSERT INTO once VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError):
        conn.execute("INSERT INTO once VALUES (2), (1)")
    tx.commit()
    assert file.found() == payloads(mq) == ["x"]
    assert conn.execute("SELECT x FROM once").fetchall() == [(1,)]


# --- PostgreSQL ----------------------------------------------------------------------------------


@pytest.fixture
def rows(server: Cluster, mq: oncemq.Connection) -> Rows:
    made = Rows(server)
    made.register(mq)
    return made


def test_postgresql_can_be_asked_to_take_part_so(
    mq: oncemq.Connection, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PsycopgDriver, "prepare", die)
    with rows.connect() as conn:
        conn.execute("SET synchronous_commit = off")
        conn.commit()
        tx = act(mq, conn, markable=True)
        with pytest.raises(psycopg.ProgrammingError, match="during a two-phase transaction"):
            conn.commit()
        tx.commit()
        assert conn.execute("SHOW synchronous_commit").fetchone() == ("off",)
    assert rows.found() == payloads(mq) == ["x"]


def test_postgresql_that_does_so_refuses_the_same(mq: oncemq.Connection, rows: Rows) -> None:
    with (
        rows.connect(autocommit=True) as conn,
        pytest.raises(oncemq.NotEnlisted, match=r"set conn\.autocommit = False before"),
    ):
        mq.begin().enlist(conn, markable=True)
    with rows.connect() as conn:
        tx = act(mq, conn, markable=True)
        with pytest.raises(psycopg.errors.DivisionByZero):
            conn.execute("SELECT 1 / 0")
        with pytest.raises(oncemq.RolledBack, match="one of its statements has failed"):
            tx.commit()
    assert rows.found() == payloads(mq) == []


def test_postgresql_does_so_beneath_sqlalchemy_and_beside_others(
    mq: oncemq.Connection, rows: Rows, server: Cluster
) -> None:
    other = Rows(server)
    other.register(mq, "other")
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=rows.connect)
    with other.connect() as second, mq.transaction() as tx:
        db = tx.enlist(engine, markable=True)
        db.execute(sqlalchemy.text("INSERT INTO rows VALUES ('x')"))
        tx.enlist(second).execute("INSERT INTO rows VALUES ('x')")
        mq.queue("q").put(b"x")
        with pytest.raises(oncemq.OnceMQError, match=r"call tx\.commit"):
            db.commit()
        tx.commit()
    engine.dispose()
    assert rows.found() == other.found() == payloads(mq) == ["x"]
    assert rows.prepared() == 0


@contextlib.contextmanager
def prepared_off(server: Cluster) -> Iterator[None]:
    """A server as it comes, where nothing can be prepared."""
    server.execute("ALTER SYSTEM SET max_prepared_transactions = 0")
    # What was prepared since the last checkpoint would have to be prepared again.
    server.execute("CHECKPOINT")
    server.kill()
    server.restart()
    try:
        yield
    finally:
        server.execute("ALTER SYSTEM RESET max_prepared_transactions")
        server.kill()
        server.restart()


def test_postgresql_with_prepared_transactions_off_takes_part_so(
    mq: oncemq.Connection, rows: Rows, server: Cluster
) -> None:
    with rows.connect() as conn:
        act(mq, conn).commit()
    with prepared_off(server), rows.connect() as conn:
        # The coordinator has not noticed yet.
        tx = act(mq, conn, "y", markable=False)
        with pytest.raises(oncemq.RolledBack, match="set max_prepared_transactions in"):
            tx.commit()
        assert rows.found() == payloads(mq) == ["x"]
        with oncemq.connect("memory:") as later:
            rows.register(later)
            with pytest.raises(oncemq.NotEnlisted, match="max_prepared_transactions is 0"):
                later.begin().enlist(conn, markable=False)
            act(later, conn, "z").commit()
            assert payloads(later) == ["z"]
        assert rows.found() == ["x", "z"]


def test_a_commit_that_comes_after_the_fence_is_a_rollback(
    mq: oncemq.Connection, rows: Rows
) -> None:
    with rows.connect() as conn:
        tx = act(mq, conn, markable=True)
        mq.deciding().decide_marked(parse_shown(tx.otid), "orders", False, (), 5.0)
        with pytest.raises(oncemq.RolledBack, match="rolled back in the meantime") as told:
            tx.commit()
    assert told.value.retryable
    assert rows.found() == payloads(mq) == []


@pytest.mark.parametrize("is_done", [False, True])
def test_a_connection_that_is_lost_in_the_commit_is_cleared_up(
    mq: oncemq.Connection, rows: Rows, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    commit = PsycopgDriver.commit

    def cut(driver: PsycopgDriver) -> None:
        if is_done:
            commit(driver)
        rows.cluster.disconnect(rows.schema)
        raise Lost("cut")

    monkeypatch.setattr(PsycopgDriver, "commit", cut)
    conn = rows.connect()
    tx = act(mq, conn, markable=True)
    with contextlib.nullcontext() if is_done else pytest.raises(oncemq.RolledBack, match="lost in"):
        tx.commit()
    conn.close()
    assert rows.found() == payloads(mq) == (["x"] if is_done else [])


@pytest.mark.parametrize("is_done", [False, True])
def test_what_nobody_could_say_in_time_can_be_asked_for(
    mq: oncemq.Connection, rows: Rows, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    commit = PsycopgDriver.commit

    def lose(driver: PsycopgDriver) -> None:
        if is_done:
            commit(driver)
        raise Lost("cut")

    def unreachable(deciding: Deciding, gtrid: bytes, *arguments: object) -> NoReturn:
        raise oncemq.OutcomeUnknown(gtrid)

    monkeypatch.setattr(PsycopgDriver, "commit", lose)
    monkeypatch.setattr(Deciding, "decide_marked", unreachable)
    with rows.connect() as conn:
        tx = act(mq, conn, markable=True)
        with pytest.raises(oncemq.OutcomeUnknown) as told:
            tx.commit()
        monkeypatch.undo()
        wanted = oncemq.Outcome.COMMITTED if is_done else oncemq.Outcome.ROLLED_BACK
        assert mq.outcome(told.value.otid) is wanted


def test_where_the_node_has_nothing_to_do_after_all_the_row_is_there(
    mq: oncemq.Connection, file: File, conn: sqlite3.Connection
) -> None:
    with mq.transaction() as tx:
        tx.enlist(conn).execute("INSERT INTO rows VALUES (?)", ["x"])
        mq.queue("q").put(b"passing")
        message = mq.queue("q").get()
        assert message is not None
    assert (file.found(), payloads(mq)) == (["x"], [])
    assert mq.outcome(tx.otid) is oncemq.Outcome.COMMITTED


# --- The application is gone ---------------------------------------------------------------------

MOMENTS: list[tuple[Any, str, Any, list[str]]] = [
    (DatabaseBranch, "write_mark", die, []),
    (DatabaseBranch, "write_mark", died_after(DatabaseBranch.write_mark), []),
    # The mark is written, and not committed, while the node votes.
    (Branch, "_finished", die, []),
    (Branch, "_finished", died_after(Branch._finished), []),
    (DatabaseBranch, "commit", died_after(DatabaseBranch.commit), ["x"]),
    (Deciding, "decide_marked", die, ["x"]),
    (Deciding, "decide_marked", died_after(Deciding.decide_marked), ["x"]),
]


@pytest.mark.parametrize("is_sqlite", [True, False], ids=["sqlite", "postgresql"])
@pytest.mark.parametrize(
    ("owner", "step", "dying", "expected"),
    MOMENTS,
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
    is_sqlite: bool,
) -> None:
    base: Rows | File = File(tmp_path / "stock.db") if is_sqlite else Rows(server)
    with oncemq.connect(f"file:{tmp_path}/mq") as mq:
        base.register(mq)
        mq.queue("in").put(b"x")
        conn = base.connect()
        tx = act(mq, conn, markable=True)
        assert mq.queue("in").get(tx=tx) is not None
        monkeypatch.setattr(owner, step, dying)
        with pytest.raises(Gone):
            tx.commit()
        monkeypatch.undo()
        conn.close()
    # Whoever starts here again has only what is on disk, and asks at once.
    with oncemq.connect(f"file:{tmp_path}/mq") as mq:
        eventually(lambda: not in_doubt(mq), "the node has heard")
        assert base.found() == payloads(mq) == expected
        assert payloads(mq, "in") == ([] if expected else ["x"])


def test_the_driver_of_sqlite_never_prepares(conn: sqlite3.Connection) -> None:
    driver = SqliteDriver(conn)
    assert not driver.can_prepare
    with pytest.raises(AssertionError):
        driver.prepare("main.t", ("otid", "branch", "outcome"))
    with pytest.raises(AssertionError):
        driver.commit_prepared()
