"""It is foretold that a transaction is committed: what holds when something happens then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import oncemq
from clients.deciding import Deciding
from clients.transaction import Outcome
from idl import system
from idl.cos import HeuristicMixed
from tests.integration.enlisting import Rows, eventually, payloads
from tests.postgres import Cluster

pytest_plugins = ["tests.integration.database_fixtures"]


@pytest.fixture
def conn(rows: Rows) -> Iterator[psycopg.Connection[Any]]:
    made = rows.connect()
    yield made
    made.close()


def act(mq: oncemq.Connection, conn: Any, payload: str = "x") -> oncemq.Transaction:
    """A row and a message, in a transaction that the coordinator decides, and is not ended yet."""
    tx = mq.begin()
    assert tx.share()
    tx.enlist(conn).execute("INSERT INTO rows VALUES (%s)", [payload])
    mq.queue("q").put(payload.encode(), tx=tx)
    return tx


def foretold(after: Callable[[], None], before: Callable[[], None] = lambda: None) -> Any:
    """Instead of `decide`: its answer was foretold, with something before, and after it."""
    decide = Deciding.decide

    def play(deciding: Deciding, gtrid: bytes, *arguments: Any) -> Any:
        *others, meanwhile = arguments
        outcome = decide(deciding, gtrid, *others)
        before()
        meanwhile()
        after()
        return outcome

    return play


def fail(raised: BaseException) -> Callable[[], None]:
    def now() -> None:
        raise raised

    return now


@pytest.mark.parametrize(
    "raised", [oncemq.OutcomeUnknown(bytes(32)), system.NO_PERMISSION("not let in any more")]
)
def test_what_was_foretold_is_known_though_the_answer_is_lost(
    mq: oncemq.Connection,
    rows: Rows,
    conn: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    raised: Exception,
) -> None:
    monkeypatch.setattr(Deciding, "decide", foretold(fail(raised)))
    # Nor can anybody be asked.
    monkeypatch.setattr(Deciding, "give_up", lambda *arguments: fail(raised)())
    tx = act(mq, conn)
    tx.commit()
    assert tx.status is Outcome.COMMITTED
    assert rows.found() == payloads(mq) == ["x"]


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), HeuristicMixed()])
def test_whoever_is_interrupted_then_leaves_a_free_connection_and_the_row(
    mq: oncemq.Connection,
    rows: Rows,
    conn: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
) -> None:
    tx = act(mq, conn)
    monkeypatch.setattr(Deciding, "decide", foretold(fail(raised)))
    with pytest.raises(type(raised)):
        tx.commit()
    monkeypatch.undo()
    assert rows.found() == ["x"]
    act(mq, conn, "y").commit()
    assert rows.found() == payloads(mq) == ["x", "y"]
    assert rows.prepared() == 0


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_connection_that_is_lost_then_loses_nothing(
    mq: oncemq.Connection,
    rows: Rows,
    conn: psycopg.Connection[Any],
    server: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    is_sent: bool,
) -> None:
    def cut() -> None:
        server.disconnect(rows.schema)

    played = foretold(cut) if is_sent else foretold(lambda: None, cut)
    monkeypatch.setattr(Deciding, "decide", played)
    act(mq, conn).commit()
    assert payloads(mq) == ["x"]
    eventually(lambda: rows.found() == ["x"], "the row is committed, by whomever")
