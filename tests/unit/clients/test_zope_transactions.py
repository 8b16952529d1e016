"""The data manager, driven as zope's `transaction` drives one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import oncemq


class Commit:
    """A transaction of the package: its data managers in order, all votes before the first end."""

    def __init__(self) -> None:
        self._joined: list[Any] = []

    def join(self, resource: Any) -> None:
        self._joined.append(resource)

    def commit(self) -> None:
        managers = sorted(self._joined, key=lambda manager: manager.sortKey())
        try:
            for step in ("tpc_begin", "commit", "tpc_vote"):
                for manager in managers:
                    getattr(manager, step)(self)
        except ZeroDivisionError:
            for manager in managers:
                manager.tpc_abort(self)
            raise
        for manager in managers:
            manager.tpc_finish(self)

    def abort(self) -> None:
        for manager in self._joined:
            manager.abort(self)


class Refusing:
    """A data manager that votes against."""

    def sortKey(self) -> str:
        return "~~"

    def tpc_vote(self, transaction: Any) -> None:
        raise ZeroDivisionError

    def __getattr__(self, name: str) -> Any:
        return lambda transaction: None


@pytest.fixture
def mq() -> Iterator[oncemq.Connection]:
    with oncemq.connect("memory:") as made:
        made.queue("in").put(b"x")
        yield made


def worked(mq: oncemq.Connection) -> Commit:
    begun = Commit()
    session = oncemq.joined(mq, begun)
    assert session.get("in") is not None
    session.put("out", b"y")
    return begun


def state(mq: oncemq.Connection) -> tuple[int, int, int]:
    return len(mq.queue("in")), len(mq.queue("out")), len(oncemq.TwoPhase(mq).tpc_recover())


def test_a_commit_of_the_other_transaction_commits_the_messages(mq: oncemq.Connection) -> None:
    worked(mq).commit()
    assert state(mq) == (0, 1, 0)


def test_a_vote_against_brings_the_messages_back(mq: oncemq.Connection) -> None:
    begun = worked(mq)
    begun.join(Refusing())
    with pytest.raises(ZeroDivisionError):
        begun.commit()
    assert state(mq) == (1, 0, 0)


def test_a_transaction_that_is_given_up_leaves_nothing(mq: oncemq.Connection) -> None:
    worked(mq).abort()
    assert state(mq) == (1, 0, 0)
