"""A row and a message as one act, with a real MariaDB: what holds, and what a user is told.

It is long because each trap has a test here, with the words that a user sees.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pymysql.cursors
import pytest

import oncemq
from clients.branches import Branch
from clients.deciding import Deciding
from clients.mariadb_driver import MariadbDriver
from clients.transaction import Outcome
from clients.two_phase import DatabaseBranch
from idl.coordination import Mq_TransactionAdmin
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
from tests.integration.mariadb_rows import ROW, Conn, MariadbRows, execute
from tests.mariadb import Server
from tests.postgres import Cluster

pytest_plugins = ["tests.integration.database_fixtures"]


@pytest.fixture
def conn(maria: MariadbRows) -> Conn:
    return maria.connect()


def act(mq: oncemq.Connection, conn: Any, payload: str = "x", **how: Any) -> oncemq.Transaction:
    """A row and a message, in a transaction that is not ended yet."""
    tx = mq.begin()
    execute(tx.enlist(conn, **how), ROW, payload)
    mq.queue("q").put(payload.encode(), tx=tx)
    return tx


both_ways = pytest.mark.parametrize("markable", [None, True], ids=["two-phase", "marked"])


# --- One act -------------------------------------------------------------------------------------


@both_ways
def test_a_row_and_a_message_are_there_together(
    mq: oncemq.Connection, maria: MariadbRows, conn: Conn, markable: bool | None
) -> None:
    for expected in (["x"], ["x", "y"]):
        with mq.transaction() as tx:
            db = tx.enlist(conn, markable=markable)
            execute(db, ROW, expected[-1])
            mq.queue("q").put(expected[-1].encode())
            assert len(maria.found()) == len(payloads(mq)) == len(expected) - 1
        assert tx.status is Outcome.COMMITTED
        assert maria.found() == payloads(mq) == expected


@both_ways
def test_a_rollback_leaves_neither_and_the_connection_is_free(
    mq: oncemq.Connection, maria: MariadbRows, conn: Conn, markable: bool | None
) -> None:
    act(mq, conn, markable=markable).rollback()
    assert maria.found() == payloads(mq) == []
    act(mq, conn, "y", markable=markable).commit()
    execute(conn, ROW, "z")
    conn.commit()
    assert maria.found() == ["y", "z"]


def test_a_message_that_was_got_and_two_databases_end_together(
    mq: oncemq.Connection, maria: MariadbRows, conn: Conn, mariadb: Server
) -> None:
    other = MariadbRows(mariadb)
    other.register(mq, "other")
    mq.queue("q").put(b"x")
    second = other.connect()
    for is_wanted in (False, True):
        tx = mq.begin()
        message = mq.queue("q").get(tx=tx)
        assert message is not None
        for each in (conn, second):
            execute(tx.enlist(each), ROW, message.payload.decode())
        tx.commit() if is_wanted else tx.rollback()
    second.close()
    assert maria.found() == other.found() == ["x"]
    assert payloads(mq) == []


def test_mariadb_postgresql_and_sqlite_are_one_act(
    mq: oncemq.Connection, maria: MariadbRows, conn: Conn, server: Cluster, file: File
) -> None:
    rows = Rows(server)
    rows.register(mq, "other")
    with rows.connect() as second, closing(file.connect()) as first:
        for payload, is_wanted in (("never", False), ("x", True)):
            tx = mq.begin()
            # The one that decides comes before the others.
            tx.enlist(first).execute("INSERT INTO rows VALUES (?)", [payload])
            execute(tx.enlist(conn), ROW, payload)
            tx.enlist(second).execute("INSERT INTO rows VALUES (%s)", [payload])
            mq.queue("q").put(payload.encode(), tx=tx)
            tx.commit() if is_wanted else tx.rollback()
    assert maria.found() == rows.found() == file.found() == payloads(mq) == ["x"]
    assert rows.prepared() == 0


def test_two_databases_that_decide_themselves_are_refused_with_the_reason(
    mq: oncemq.Connection, maria: MariadbRows, conn: Conn, mariadb: Server
) -> None:
    other = MariadbRows(mariadb)
    other.register(mq, "other")
    tx = mq.begin()
    tx.enlist(conn, markable=True)
    second = other.connect()
    with pytest.raises(oncemq.NotEnlisted, match="Use two transactions, and a queue between them"):
        tx.enlist(second, markable=True)
    second.close()
    tx.rollback()


def test_a_database_alone_is_committed_without_being_prepared(
    mq: oncemq.Connection, maria: MariadbRows, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MariadbDriver, "prepare", die)
    with mq.transaction() as tx:
        execute(tx.enlist(conn), ROW, "x")
    assert maria.found() == ["x"]


def test_a_database_alone_whose_commit_is_lost_is_unknown(
    mq: oncemq.Connection,
    maria: MariadbRows,
    conn: Conn,
    mariadb: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MariadbDriver, "_end", cut_after(MariadbDriver._end, mariadb))
    tx = mq.begin()
    execute(tx.enlist(conn), ROW, "x")
    told = "orders: its connection was lost in the commit"
    with pytest.raises(oncemq.OutcomeUnknown, match=told):
        tx.commit()
    assert maria.found() == []


def cut_after(step: Callable[..., Any], mariadb: Server) -> Callable[..., None]:
    """After this step the driver's connection is gone, and it does not know."""

    def cut(driver: MariadbDriver, *arguments: object) -> None:
        step(driver, *arguments)
        mariadb.disconnect(driver._connection)

    return cut


def test_savepoints_and_cursors_of_any_kind_are_the_applications_own(
    mq: oncemq.Connection, maria: MariadbRows
) -> None:
    conn = maria.connect(cursorclass=pymysql.cursors.DictCursor)
    with mq.transaction() as tx:
        db = tx.enlist(conn)
        mq.queue("q").put(b"x")
        execute(db, ROW, "x")
        execute(db, "SAVEPOINT mine")
        execute(db, ROW, "y")
        execute(db, "ROLLBACK TO mine")
        assert execute(db, "SELECT payload FROM noted") == [{"payload": "x"}]
    assert maria.found() == ["x"]


# --- What is refused -----------------------------------------------------------------------------


@both_ways
def test_a_direct_end_is_refused_and_the_transaction_goes_on(
    mq: oncemq.Connection, maria: MariadbRows, conn: Conn, markable: bool | None
) -> None:
    tx = mq.begin()
    db = tx.enlist(conn, markable=markable)
    execute(db, ROW, "x")
    mq.queue("q").put(b"x", tx=tx)
    for end in (db.commit, db.rollback, db.begin, db.close, db.__enter__):
        with pytest.raises(oncemq.OnceMQError, match=r"call tx\.commit\(\) or tx\.rollback\(\)"):
            end()
    with pytest.raises(oncemq.OnceMQError, match=r"call tx\.commit\(\)"):
        db.autocommit(True)
    tx.commit()
    assert maria.found() == payloads(mq) == ["x"]


COMMITTING = (
    "COMMIT",
    "ROLLBACK",
    "BEGIN",
    "SET autocommit = 1",
    "CREATE TABLE another (x int)",
    "TRUNCATE TABLE noted",
    "LOCK TABLES noted WRITE",
    "CREATE USER somebody",
)


@both_ways
def test_what_would_commit_is_refused_also_on_the_bare_connection(
    mq: oncemq.Connection, maria: MariadbRows, conn: Conn, markable: bool | None
) -> None:
    tx = act(mq, conn, markable=markable)
    for statement in COMMITTING:
        with pytest.raises(pymysql.err.OperationalError, match="when global transaction is in the"):
            execute(conn, statement)
    tx.commit()
    assert maria.found() == payloads(mq) == ["x"]


def test_a_connection_that_commits_by_itself_is_refused(
    mq: oncemq.Connection, maria: MariadbRows
) -> None:
    conn = maria.connect(autocommit=True)
    with pytest.raises(oncemq.NotEnlisted, match=r"call conn\.autocommit\(False\) before"):
        mq.begin().enlist(conn)
    conn.autocommit(False)
    mq.begin().enlist(conn)


def test_a_connection_that_is_at_work_or_closed_is_refused(
    mq: oncemq.Connection, maria: MariadbRows, conn: Conn
) -> None:
    # The driver does not hear of what a select begins; once with, once without its database known.
    for _ in range(2):
        execute(conn, "SELECT * FROM noted")
        with pytest.raises(oncemq.NotEnlisted, match="commit it or roll it back, then enlist"):
            mq.begin().enlist(conn)
        conn.rollback()
        act(mq, conn).rollback()
    execute(conn, ROW, "x")
    with pytest.raises(oncemq.NotEnlisted, match="in a transaction of its own already"):
        mq.begin().enlist(conn)
    conn.rollback()
    tx = mq.begin()
    tx.enlist(conn)
    with pytest.raises(oncemq.NotEnlisted, match="part of this transaction already"):
        tx.enlist(conn)
    with pytest.raises(oncemq.NotEnlisted, match="in a transaction of its own already"):
        mq.begin().enlist(conn)
    tx.rollback()
    conn.close()
    with pytest.raises(oncemq.NotEnlisted, match="the connection is closed"):
        mq.begin().enlist(conn)


def test_a_connection_that_was_lost_before_is_to_be_made_anew(
    mq: oncemq.Connection, maria: MariadbRows, conn: Conn, mariadb: Server
) -> None:
    act(mq, conn).commit()
    mariadb.disconnect(conn)
    with pytest.raises(oncemq.ConnectionLost, match="Connect again"):
        mq.begin().enlist(conn)


def test_a_database_that_nobody_registered_is_refused_with_what_to_type(
    mq: oncemq.Connection, mariadb: Server
) -> None:
    stranger = MariadbRows(mariadb)
    conn = stranger.connect()
    expected = f"oncemq database add NAME mariadb://oncemq@127.0.0.1:{mariadb.port}/"
    with pytest.raises(oncemq.NotEnlisted, match=expected + stranger.database):
        mq.begin().enlist(conn)
    stranger.close()


def test_a_connection_to_another_database_than_was_named_is_refused(
    mq: oncemq.Connection, maria: MariadbRows, mariadb: Server
) -> None:
    other = MariadbRows(mariadb)
    other.register(mq, "other")
    act(mq, other.connect(), database="other").rollback()
    with pytest.raises(oncemq.NotEnlisted, match="no database is registered as 'third'"):
        mq.begin().enlist(other.connect(), database="third")
    other.close()


def test_an_account_that_may_not_use_the_table_is_told_what_is_missing(
    mq: oncemq.Connection, maria: MariadbRows, mariadb: Server
) -> None:
    account = f"app_{maria.database}"
    mariadb.execute(f"CREATE USER {account}@127.0.0.1 IDENTIFIED BY 'weak'")
    mariadb.execute(f"GRANT SELECT, INSERT ON {maria.database}.noted TO {account}@127.0.0.1")
    conn = maria.connect(user=account, password="weak")
    told = r"oncemq database prepare orders --grant USER@HOST"
    with pytest.raises(oncemq.NotEnlisted, match=told):
        mq.begin().enlist(conn)
    deciding = mq.deciding()
    reference = f"PYRO:transactions@{deciding.address}"
    admin = mq.node().orb.proxy(reference, Mq_TransactionAdmin)
    admin.prepareDatabase("orders", f"{account}@127.0.0.1")
    act(mq, conn).commit()
    assert maria.found() == payloads(mq) == ["x"]


# --- What goes wrong -----------------------------------------------------------------------------


@both_ways
def test_a_deadlock_takes_the_messages_with_it_and_can_be_tried_again(
    mq: oncemq.Connection, maria: MariadbRows, conn: Conn, markable: bool | None
) -> None:
    other = maria.connect()
    execute(conn, "CREATE TABLE counted (name char(1) PRIMARY KEY, number int)")
    execute(conn, "INSERT INTO counted VALUES ('a', 0), ('b', 0), ('c', 0), ('d', 0)")
    conn.commit()
    tx = act(mq, conn, markable=markable)
    raise_number = "UPDATE counted SET number = number + 1 WHERE name = %s"
    execute(conn, raise_number, "a")
    # It has more to lose, and so is not the one that is given up.
    for name in ("b", "c", "d"):
        execute(other, raise_number, name)
    waiting = threading.Thread(target=execute, args=(other, raise_number, "a"))
    waiting.start()
    waited = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    eventually(lambda: bool(maria.server.execute(waited)), "the other one waits")
    with pytest.raises(pymysql.err.OperationalError, match="Deadlock found"):
        execute(conn, raise_number, "b")
    waiting.join()
    other.rollback()
    # Caught by the application, and that must not pass for success.
    with pytest.raises(oncemq.RolledBack, match="ran into a deadlock, which has undone") as told:
        tx.commit()
    assert told.value.retryable
    assert maria.found() == payloads(mq) == []
    act(mq, conn, markable=markable).commit()
    assert maria.found() == payloads(mq) == ["x"]


def test_a_statement_that_failed_is_undone_alone(
    mq: oncemq.Connection, maria: MariadbRows, conn: Conn
) -> None:
    execute(conn, "CREATE TABLE once (x int PRIMARY KEY)")
    tx = act(mq, conn)
    execute(conn, "INSERT INTO once VALUES (1)")
    with pytest.raises(pymysql.err.IntegrityError, match="Duplicate entry"):
        execute(conn, "INSERT INTO once VALUES (2), (1)")
    tx.commit()
    assert maria.found() == payloads(mq) == ["x"]
    assert maria.server.execute(f"SELECT x FROM {maria.database}.once") == [(1,)]


@both_ways
def test_a_connection_that_is_lost_before_the_vote_is_a_rollback(
    mq: oncemq.Connection,
    maria: MariadbRows,
    conn: Conn,
    mariadb: Server,
    markable: bool | None,
) -> None:
    tx = act(mq, conn, markable=markable)
    mariadb.disconnect(conn)
    with pytest.raises(oncemq.RolledBack, match="database orders: ") as told:
        tx.commit()
    assert told.value.retryable
    assert maria.found() == payloads(mq) == []


def test_a_connection_that_is_lost_between_vote_and_commit_loses_nothing(
    mq: oncemq.Connection,
    maria: MariadbRows,
    conn: Conn,
    mariadb: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MariadbDriver, "prepare", cut_after(MariadbDriver.prepare, mariadb))
    act(mq, conn).commit()
    assert payloads(mq) == ["x"]
    eventually(lambda: maria.found() == ["x"], "the coordinator commits the row")


def test_a_server_that_is_restarted_between_vote_and_commit_loses_nothing(
    mq: oncemq.Connection,
    maria: MariadbRows,
    conn: Conn,
    mariadb: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit_prepared = MariadbDriver.commit_prepared

    def restarted(driver: MariadbDriver) -> None:
        mariadb.kill()
        mariadb.restart()
        commit_prepared(driver)

    monkeypatch.setattr(MariadbDriver, "commit_prepared", restarted)
    act(mq, conn).commit()
    assert payloads(mq) == ["x"]
    eventually(
        lambda: maria.found() == ["x"],
        "the coordinator commits the row",
        lambda: maria.register(mq),
    )


def test_a_connection_that_is_lost_in_the_commit_that_decides_is_cleared_up(
    mq: oncemq.Connection,
    maria: MariadbRows,
    mariadb: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = MariadbDriver.commit

    def lost_after(driver: MariadbDriver) -> None:
        commit(driver)
        mariadb.disconnect(driver._connection)
        driver._do("SELECT 1")

    with monkeypatch.context() as patch:
        patch.setattr(MariadbDriver, "_end", cut_after(MariadbDriver._end, mariadb))
        tx = act(mq, maria.connect(), markable=True)
        with pytest.raises(oncemq.RolledBack, match="its connection was lost in the commit"):
            tx.commit()
    assert maria.found() == payloads(mq) == []
    monkeypatch.setattr(MariadbDriver, "commit", lost_after)
    act(mq, maria.connect(), markable=True).commit()
    assert maria.found() == payloads(mq) == ["x"]


def test_a_commit_that_comes_after_the_fence_is_a_rollback(
    mq: oncemq.Connection, maria: MariadbRows, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mark = DatabaseBranch.write_mark

    def late(branch: DatabaseBranch) -> None:
        fence = f"INSERT INTO {maria.database}.oncemq_outcome VALUES (%s, '', 'rolled back', now())"
        maria.server.execute(fence, branch.gtrid.hex())
        write_mark(branch)

    monkeypatch.setattr(DatabaseBranch, "write_mark", late)
    with pytest.raises(oncemq.RolledBack, match="it took too long, and was rolled back") as told:
        act(mq, conn, markable=True).commit()
    assert told.value.retryable
    assert maria.found() == payloads(mq) == []


def test_a_connection_that_was_closed_or_made_anew_too_early_is_a_rollback(
    mq: oncemq.Connection, maria: MariadbRows, conn: Conn
) -> None:
    tx = act(mq, conn)
    conn.close()
    with pytest.raises(oncemq.RolledBack, match="was closed before the transaction ended"):
        tx.commit()
    again = maria.connect()
    tx = act(mq, again)
    again.close()
    again.connect()
    with pytest.raises(oncemq.RolledBack, match="its connection was made anew"):
        tx.commit()
    assert maria.found() == payloads(mq) == []


# --- The application is gone ---------------------------------------------------------------------


BEFORE_DECISION: list[tuple[Any, str, Callable[..., Any]]] = [
    (MariadbDriver, "write_row", died_after(MariadbDriver.write_row)),
    (MariadbDriver, "prepare", died_after(MariadbDriver.prepare)),
    (Branch, "decide", die),
]
AFTER_DECISION: list[tuple[Any, str, Callable[..., Any]]] = [
    (Branch, "decide", died_after(Branch.decide)),
    (MariadbDriver, "commit_prepared", died_after(MariadbDriver.commit_prepared)),
]
BEFORE_MARK: list[tuple[Any, str, Callable[..., Any]]] = [
    (DatabaseBranch, "write_mark", died_after(DatabaseBranch.write_mark)),
    (MariadbDriver, "commit", die),
]
AFTER_MARK: list[tuple[Any, str, Callable[..., Any]]] = [
    (MariadbDriver, "commit", died_after(MariadbDriver.commit)),
    (Deciding, "decide_marked", died_after(Deciding.decide_marked)),
]


@pytest.mark.parametrize(
    ("owner", "step", "dying", "markable", "expected"),
    [(*each, None, []) for each in BEFORE_DECISION]
    + [(*each, None, ["x"]) for each in AFTER_DECISION]
    + [(*each, True, []) for each in BEFORE_MARK]
    + [(*each, True, ["x"]) for each in AFTER_MARK],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whenever_the_application_dies_row_and_message_agree(
    mariadb: Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    owner: Any,
    step: str,
    dying: Callable[..., Any],
    markable: bool | None,
    expected: list[str],
) -> None:
    maria = MariadbRows(mariadb)
    with oncemq.connect(f"file:{tmp_path}") as mq:
        maria.register(mq)
        mq.queue("in").put(b"x")
        tx = act(mq, maria.connect(), markable=markable)
        assert mq.queue("in").get(tx=tx) is not None
        monkeypatch.setattr(owner, step, dying)
        with pytest.raises(Gone):
            tx.commit()
        monkeypatch.undo()
        maria.close()
    # Whoever starts here again has only what is on disk, and asks at once.
    with oncemq.connect(f"file:{tmp_path}") as mq:
        eventually(lambda: maria.prepared() == 0, "no branch is left", lambda: maria.register(mq))
        eventually(lambda: not in_doubt(mq), "the node has heard")
        assert maria.found() == payloads(mq) == expected
        assert payloads(mq, "in") == ([] if expected else ["x"])
