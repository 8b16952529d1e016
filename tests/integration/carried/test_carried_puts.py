"""A row and what is put at one node cost one commit: the row carries the puts, whoever dies."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest

import oncemq
from clients import commitment
from clients.branches import Branch
from clients.database_drivers import Lost
from clients.deciding import Deciding
from clients.two_phase import DatabaseBranch
from idl import system
from idl.custody import CARRIED_TABLE
from idl.otids import parse_shown
from tests.integration.carried.carried_work import (
    Side,
    act,
    carried_rows,
    check_got,
    moved,
    settled,
)
from tests.integration.enlisting import (
    Gone,
    Rows,
    die,
    eventually,
    in_doubt,
    payloads,
)
from tests.postgres import Cluster

pytest_plugins = ["tests.integration.database_fixtures"]

# --- One act -------------------------------------------------------------------------------------


def test_a_row_and_a_message_are_there_together(
    mq: oncemq.Connection, side: Side, conn: Any, carrying: list[str]
) -> None:
    for payload in ("x", "y"):
        tx = act(mq, conn, payload)
        assert payload not in side.found() + payloads(mq)
        tx.commit()
        assert payload in side.found()
        assert payload in payloads(mq)
        assert tx.status is oncemq.Outcome.COMMITTED
        assert mq.outcome(tx.otid) is oncemq.Outcome.COMMITTED
    assert len(carrying) == 2
    settled(mq, side)
    assert side.found() == payloads(mq) == ["x", "y"]


def test_the_first_transaction_with_a_database_is_carried_already(
    mq: oncemq.Connection, side: Side, conn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("prepare", "write_mark", "commit"):
        monkeypatch.setattr(DatabaseBranch, name, die)
    act(mq, conn).commit()
    assert side.found() == payloads(mq) == ["x"]


def test_nothing_is_prepared_and_nobody_votes(
    mq: oncemq.Connection,
    side: Side,
    conn: Any,
    carrying: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("vote", "prepare", "decide", "commit_alone", "end_voter"):
        monkeypatch.setattr(Branch, name, die)
    for name in ("prepare", "write_mark", "commit", "commit_prepared"):
        monkeypatch.setattr(DatabaseBranch, name, die)
    act(mq, conn).commit()
    assert side.found() == payloads(mq) == ["x"]


def test_all_of_a_message_is_there_and_its_key_is_told(
    mq: oncemq.Connection, side: Side, conn: Any, carrying: list[str]
) -> None:
    with mq.transaction() as tx:
        tx.enlist(conn)
        attributes = [("type", "a"), ("type", "b")]
        key = mq.queue("q").put(b"x" * 5000, priority=3, group=7, attributes=attributes)
        many = mq.queue("other").put_many([b"1", oncemq.Message(b"2", priority=9)])
    assert carrying
    message = mq.queue("q").get(key=key)
    assert message is not None
    assert (message.payload, message.priority, message.group) == (b"x" * 5000, 3, 7)
    assert list(message.attributes) == attributes
    read = [mq.queue("other").read(each) for each in many]
    assert [each and each.payload for each in read] == [b"1", b"2"]


def test_a_rollback_leaves_neither_and_the_connection_is_free(
    mq: oncemq.Connection, side: Side, conn: Any, carrying: list[str]
) -> None:
    act(mq, conn).rollback()
    assert side.found() == payloads(mq) == []
    act(mq, conn, "y").commit()
    assert side.found() == payloads(mq) == ["y"]


# --- What no row can hold ------------------------------------------------------------------------


def _with_a_get(mq: oncemq.Connection, conn: Any) -> oncemq.Transaction:
    tx = act(mq, conn)
    mq.queue("other").put(b"seen", tx=oncemq.AUTOCOMMIT)
    assert mq.queue("other").get(tx=tx) is not None
    return tx


def _large(mq: oncemq.Connection, conn: Any) -> oncemq.Transaction:
    tx = act(mq, conn)
    mq.queue("other").put(b"large" * 10_000, tx=tx)
    return tx


def _pushed(mq: oncemq.Connection, conn: Any) -> oncemq.Transaction:
    tx = act(mq, conn)
    assert mq.queue("q").get(tx=tx) is not None
    mq.queue("q").put(b"x", tx=tx)
    return tx


@pytest.mark.parametrize("work", [_with_a_get, _large, _pushed])
def test_what_a_row_cannot_hold_is_prepared_before_it_is_committed(
    mq: oncemq.Connection, side: Side, conn: Any, carrying: list[str], work: Any
) -> None:
    work(mq, conn).commit()
    assert len(carrying) == 1
    assert side.found() == payloads(mq) == ["x"]
    assert not in_doubt(mq)
    settled(mq, side)
    work(mq, conn).rollback()
    assert side.found() == payloads(mq) == ["x"]
    assert not in_doubt(mq)


# --- What is not carried -------------------------------------------------------------------------


def test_two_databases_are_committed_as_before(
    mq: oncemq.Connection, server: Cluster, carrying: list[str], side: Side, conn: Any
) -> None:
    rows = Rows(server)
    rows.register(mq, "other")
    with closing(rows.connect()) as second:
        tx = act(mq, conn)
        tx.enlist(second).execute("INSERT INTO rows VALUES ('x')")
        tx.commit()
    assert carrying == []
    assert rows.found() == side.found() == payloads(mq) == ["x"]


def test_who_wants_it_prepared_gets_it_so(
    mq: oncemq.Connection, server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows(server)
    rows.register(mq)
    monkeypatch.setattr(DatabaseBranch, "commit_carrying", die)
    with closing(rows.connect()) as conn:
        for _ in range(5):
            act(mq, conn, markable=False).commit()
            time.sleep(0.1)
    assert rows.found() == payloads(mq) == ["x"] * 5


def test_a_role_that_may_not_write_there_is_served_as_before(
    mq: oncemq.Connection, server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows(server)
    rows.register(mq)
    server.execute(f"DROP TABLE {rows.schema}.{CARRIED_TABLE}")
    monkeypatch.setattr(DatabaseBranch, "commit_carrying", die)
    with closing(rows.connect()) as conn:
        for _ in range(3):
            act(mq, conn).commit()
    assert rows.found() == payloads(mq) == ["x"] * 3


# --- What a node refuses -------------------------------------------------------------------------


def test_a_queue_that_is_full_or_switched_off_refuses_the_row_as_well(
    mq: oncemq.Connection, side: Side, conn: Any, carrying: list[str]
) -> None:
    admin = mq.admin()
    admin.createQueue("full", _settings(messages_max=1))
    admin.createQueue("off", _settings(enabled=False))
    for queue, most in (("full", 1), ("off", 0)):
        for number in range(2):
            tx = mq.begin()
            tx.enlist(conn).execute("INSERT INTO rows VALUES ('x')")
            mq.queue(queue).put(b"x", tx=tx)
            if number < most:
                tx.commit()
                continue
            with pytest.raises(oncemq.RolledBack):
                tx.commit()
    assert len(carrying) == 1
    assert side.found() == ["x"]


def _settings(**given: Any) -> Any:
    from idl.mq import mqQueueSettings

    known = {"enabled": True, "prioritized": False, "messagesMax": 0, "bytesMax": 0}
    names = {"messages_max": "messagesMax", "bytes_max": "bytesMax"}
    return mqQueueSettings(**{**known, **{names.get(k, k): v for k, v in given.items()}})


def test_what_the_database_refuses_is_not_put_either(
    mq: oncemq.Connection, server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commitment, "REFUSED_S", 0.02)
    rows = Rows(server)
    rows.register(mq)
    server.execute(
        f"ALTER TABLE {rows.schema}.rows ADD CONSTRAINT once UNIQUE (payload)"
        " DEFERRABLE INITIALLY DEFERRED"
    )
    with closing(rows.connect()) as conn:
        for number in range(5):
            act(mq, conn, str(number)).commit()
            time.sleep(0.1)
        monkeypatch.setattr(Branch, "vote", die)
        with pytest.raises(oncemq.RolledBack, match="duplicate key"):
            act(mq, conn, "1").commit()
        act(mq, conn, "5").commit()
    assert rows.found() == payloads(mq) == [str(number) for number in range(6)]


# --- Whoever dies --------------------------------------------------------------------------------


def test_an_owner_that_dies_before_the_commit_leaves_nothing(
    mq: oncemq.Connection,
    side: Side,
    carrying: list[str],
    monkeypatch: pytest.MonkeyPatch,
    is_getting: bool,
) -> None:
    conn = side.connect()
    with monkeypatch.context() as patch:
        patch.setattr(DatabaseBranch, "commit_carrying", die)
        with pytest.raises(Gone):
            moved(mq, conn, is_getting).commit()
    conn.close()
    assert side.found() == payloads(mq) == []
    check_got(mq, is_getting, is_committed=False)
    with closing(side.connect()) as other:
        act(mq, other, "y").commit()
    assert side.found() == payloads(mq) == ["y"]


def test_an_owner_that_dies_behind_the_commit_has_put_its_messages(
    mq: oncemq.Connection,
    side: Side,
    conn: Any,
    carrying: list[str],
    monkeypatch: pytest.MonkeyPatch,
    is_getting: bool,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Branch, "deliver", die)
        tx = moved(mq, conn, is_getting)
        with pytest.raises(Gone):
            tx.commit()
    assert side.found() == ["x"]
    # Its session lives, so that it may still be about to tell.
    assert mq.outcome(tx.otid) in (oncemq.Outcome.COMMITTED, oncemq.Outcome.IN_DOUBT)
    eventually(lambda: payloads(mq) == ["x"], "what the row carries is put")
    settled(mq, side)
    assert payloads(mq) == ["x"]
    check_got(mq, is_getting, is_committed=True)
    assert mq.outcome(tx.otid) is oncemq.Outcome.COMMITTED


@pytest.mark.parametrize("has_happened", [False, True])
def test_a_connection_that_is_lost_in_the_commit_leaves_no_doubt(
    mq: oncemq.Connection,
    side: Side,
    conn: Any,
    carrying: list[str],
    monkeypatch: pytest.MonkeyPatch,
    has_happened: bool,
    is_getting: bool,
) -> None:
    kept: list[tuple[Any, ...]] = []
    with monkeypatch.context() as patch:
        patch.setattr(DatabaseBranch, "commit_carrying", _lost(conn, has_happened, kept))
        tx = moved(mq, conn, is_getting)
        if has_happened:
            tx.commit()
        else:
            with pytest.raises(oncemq.RolledBack, match="connection was lost in the commit"):
                tx.commit()
    assert side.found() == payloads(mq) == (["x"] if has_happened else [])
    assert mq.outcome(tx.otid) is (
        oncemq.Outcome.COMMITTED if has_happened else oncemq.Outcome.ROLLED_BACK
    )
    check_got(mq, is_getting, has_happened)
    if not has_happened:
        _check_fenced(side, *kept[0])


def _lost(
    conn: Any, has_happened: bool, kept: list[tuple[Any, ...]]
) -> Callable[[DatabaseBranch, str, bytes], None]:
    step = DatabaseBranch.commit_carrying

    def commit_carrying(self: DatabaseBranch, node: str, content: bytes) -> None:
        kept.append((self.gtrid, node, content))
        if has_happened:
            step(self, node, content)
        conn.close()
        raise Lost("the server has closed the connection")

    return commit_carrying


def _check_fenced(side: Side, gtrid: bytes, node: str, content: bytes) -> None:
    """The owner is only late: what it wanted to commit is refused."""
    schema = f"{side.schema}." if isinstance(side, Rows) else ""
    place = "%s" if isinstance(side, Rows) else "?"
    with closing(side.connect()) as late:
        late.execute("INSERT INTO rows VALUES ('x')")
        with pytest.raises((psycopg.errors.UniqueViolation, sqlite3.IntegrityError)):
            late.execute(
                f"INSERT INTO {schema}{CARRIED_TABLE} (otid, node, content) "
                f"VALUES ({place}, {place}, {place})",
                (gtrid.hex(), node, content),
            )


def test_an_owner_that_asks_when_the_row_is_gone_is_told_the_truth(
    mq: oncemq.Connection,
    side: Side,
    conn: Any,
    carrying: list[str],
    monkeypatch: pytest.MonkeyPatch,
    is_getting: bool,
) -> None:
    ask = Deciding.decide_marked

    def late(self: Deciding, *arguments: Any) -> Any:
        # Somebody else's look has found the row meanwhile, and it was removed.
        settled(mq, side)
        return ask(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(DatabaseBranch, "commit_carrying", _lost(conn, True, []))
        patch.setattr(Deciding, "decide_marked", late)
        moved(mq, conn, is_getting).commit()
    assert side.found() == payloads(mq) == ["x"]


@pytest.mark.parametrize("is_node_silent", [False, True])
def test_who_cannot_find_out_is_told_so(
    mq: oncemq.Connection,
    side: Side,
    conn: Any,
    carrying: list[str],
    monkeypatch: pytest.MonkeyPatch,
    is_node_silent: bool,
    is_getting: bool,
) -> None:
    def silent(*arguments: object, **named: object) -> None:
        raise system.COMM_FAILURE("nobody there")

    with monkeypatch.context() as patch:
        patch.setattr(DatabaseBranch, "commit_carrying", _lost(conn, False, []))
        if is_node_silent:
            patch.setattr(Branch, "ask_for_all", silent)
        else:
            patch.setattr(Deciding, "decide_marked", silent)
        tx = moved(mq, conn, is_getting)
        with pytest.raises(oncemq.OutcomeUnknown) as told:
            tx.commit()
    assert parse_shown(told.value.otid) == parse_shown(tx.otid)
    assert side.found() == payloads(mq) == []


def test_one_that_could_not_tell_the_node_has_committed_all_the_same(
    mq: oncemq.Connection,
    side: Side,
    conn: Any,
    carrying: list[str],
    monkeypatch: pytest.MonkeyPatch,
    is_getting: bool,
) -> None:
    def silent(*arguments: object) -> None:
        raise system.COMM_FAILURE("nobody there")

    with monkeypatch.context() as patch:
        patch.setattr(Branch, "deliver", silent)
        moved(mq, conn, is_getting).commit()
    assert side.found() == ["x"]
    eventually(lambda: payloads(mq) == ["x"], "what the row carries is put")
    settled(mq, side)


def test_what_was_told_after_all_is_not_put_again(
    mq: oncemq.Connection,
    side: Side,
    conn: Any,
    carrying: list[str],
    monkeypatch: pytest.MonkeyPatch,
    is_getting: bool,
) -> None:
    late: list[Callable[[], None]] = []
    step = Branch.deliver

    def put_off(self: Branch, database: str, unheard: object = None) -> None:
        late.append(lambda: step(self, database))
        raise system.COMM_FAILURE("it will arrive later")

    with monkeypatch.context() as patch:
        patch.setattr(Branch, "deliver", put_off)
        moved(mq, conn, is_getting).commit()
    eventually(lambda: payloads(mq) == ["x"], "what the row carries is put")
    late[0]()
    settled(mq, side)
    late[0]()
    assert payloads(mq) == ["x"]


def test_a_forged_row_is_left_where_it_is(
    mq: oncemq.Connection, side: Side, conn: Any, carrying: list[str]
) -> None:
    kept: list[tuple[Any, ...]] = []
    with closing(side.connect()) as other, pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseBranch, "commit_carrying", _lost(other, False, kept))
        with pytest.raises(oncemq.RolledBack):
            act(mq, other).commit()
    _, node, content = kept[0]
    schema = f"{side.schema}." if isinstance(side, Rows) else ""
    place = "%s" if isinstance(side, Rows) else "?"
    # The content is a true one; the transaction is another.
    forged = parse_shown(mq.begin().otid)
    conn.execute(
        f"INSERT INTO {schema}{CARRIED_TABLE} (otid, node, content) "
        f"VALUES ({place}, {place}, {place})",
        (forged.hex(), node, content),
    )
    conn.commit()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Branch, "deliver", lambda *_: None)
        act(mq, conn, "y").commit()
    eventually(lambda: payloads(mq) == ["y"], "what the true row carries is put")
    assert carried_rows(side) >= 1
