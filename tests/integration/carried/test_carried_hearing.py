"""A commit of puts returns before the node has heard of it; whoever asks it next cannot tell."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import oncemq
from idl import system
from mqserver.transactions.custody import Custody
from tests.integration.carried.carried_work import Side, act, moved, settled
from tests.integration.enlisting import eventually, payloads

pytest_plugins = ["tests.integration.database_fixtures"]


def test_a_commit_of_puts_waits_for_the_database_and_whoever_asks_next_for_the_node(
    mq: oncemq.Connection,
    side: Side,
    conn: Any,
    carrying: list[str],
    monkeypatch: pytest.MonkeyPatch,
    is_getting: bool,
) -> None:
    may_go_on = threading.Event()
    step = Custody.end

    def slow(*arguments: Any) -> bool:
        assert may_go_on.wait(20.0)
        return step(*arguments)

    tx = moved(mq, conn, is_getting)
    monkeypatch.setattr(Custody, "end", slow)
    later = threading.Timer(0.5, may_go_on.set)
    later.start()
    tx.commit()
    # What was prepared may have been ended by an operator, which the caller is to hear.
    assert may_go_on.is_set() == is_getting
    assert tx.status is oncemq.Outcome.COMMITTED
    assert side.found() == payloads(mq) == ["x"]
    assert may_go_on.is_set()
    later.join()


def test_whoever_asks_over_the_same_connection_finds_what_was_committed(
    mq: oncemq.Connection, side: Side, conn: Any, carrying: list[str]
) -> None:
    queue = mq.queue("q")
    for number in range(50):
        act(mq, conn, str(number)).commit()
        assert len(queue) == number + 1
    assert len(carrying) == 50
    settled(mq, side)


def test_closing_the_connection_waits_for_the_node(
    mq: oncemq.Connection, side: Side, conn: Any, carrying: list[str]
) -> None:
    for number in range(10):
        with oncemq.connect(f"mq://{mq.node().address}") as other:
            act(other, conn, str(number)).commit()
        assert len(mq.queue("q")) == number + 1


def test_what_goes_wrong_with_it_is_noted_and_fails_nobody(
    mq: oncemq.Connection,
    side: Side,
    conn: Any,
    carrying: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*arguments: object) -> bool:
        raise system.TRANSIENT("not now")

    with monkeypatch.context() as patch:
        patch.setattr(Custody, "end", refuse)
        tx = act(mq, conn)
        tx.commit()
        assert tx.status is oncemq.Outcome.COMMITTED
        assert len(mq.queue("another")) == 0
    assert "will hear of it later" in caplog.text
    eventually(lambda: payloads(mq) == ["x"], "what the row carries is put")
    settled(mq, side)
