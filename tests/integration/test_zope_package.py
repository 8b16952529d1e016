"""Queues in a transaction of zope's own `transaction` package, beside a data manager of others'."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import transaction

import oncemq
from tests.integration.enlisting import in_doubt, payloads


@pytest.fixture
def mq() -> Iterator[oncemq.Connection]:
    with oncemq.connect("memory:") as made:
        made.queue("in").put(b"x")
        yield made


class Other:
    """Another data manager of the same transaction."""

    transaction_manager: Any = None

    def __init__(self, key: str, refuses: str = "") -> None:
        self._key = key
        self._refuses = refuses
        self.steps: list[str] = []

    def sortKey(self) -> str:
        return self._key

    def __getattr__(self, step: str) -> Any:
        if step not in ("abort", "tpc_begin", "commit", "tpc_vote", "tpc_finish", "tpc_abort"):
            raise AttributeError(step)

        def taken(of: object) -> None:
            self.steps.append(step)
            if step == self._refuses:
                raise ZeroDivisionError

        return taken


def work(mq: oncemq.Connection, manager: transaction.TransactionManager, *others: Other) -> None:
    """A message is taken and another one put, and others have work too."""
    current = manager.begin()
    for other in others:
        current.join(other)
    session = oncemq.joined(mq, current)
    assert session.get("in") is not None
    session.put("q", b"x")
    assert payloads(mq) == []


def test_a_commit_of_the_package_commits_messages_and_others(mq: oncemq.Connection) -> None:
    manager, other = transaction.TransactionManager(), Other("a")
    work(mq, manager, other)
    manager.commit()
    assert other.steps == ["tpc_begin", "commit", "tpc_vote", "tpc_finish"]
    assert (payloads(mq), payloads(mq, "in"), in_doubt(mq)) == (["x"], [], False)


def test_an_abort_of_the_package_leaves_everything_as_it_was(mq: oncemq.Connection) -> None:
    manager, other = transaction.TransactionManager(), Other("a")
    work(mq, manager, other)
    manager.abort()
    assert other.steps == ["abort"]
    assert (payloads(mq), payloads(mq, "in"), in_doubt(mq)) == ([], ["x"], False)


@pytest.mark.parametrize("key", ["a", "~~"], ids=["before us", "behind us"])
@pytest.mark.parametrize("step", ["commit", "tpc_vote"])
def test_whoever_votes_against_it_nothing_is_left(
    mq: oncemq.Connection, key: str, step: str
) -> None:
    manager = transaction.TransactionManager()
    work(mq, manager, Other(key, step))
    with pytest.raises(ZeroDivisionError):
        manager.commit()
    manager.abort()
    assert (payloads(mq), payloads(mq, "in"), in_doubt(mq)) == ([], ["x"], False)
    assert oncemq.TwoPhase(mq).tpc_recover() == []


def test_a_transaction_that_was_refused_can_be_done_again(mq: oncemq.Connection) -> None:
    manager = transaction.TransactionManager()
    for refuses in ("tpc_vote", ""):
        work(mq, manager, Other("~~", refuses))
        if refuses:
            with pytest.raises(ZeroDivisionError):
                manager.commit()
            manager.abort()
        else:
            manager.commit()
    assert (payloads(mq), payloads(mq, "in")) == (["x"], [])


def test_what_fails_at_its_end_before_ours_rolls_ours_back(mq: oncemq.Connection) -> None:
    manager = transaction.TransactionManager()
    # The package tells all others to roll back, whatever the one that failed has done.
    work(mq, manager, Other("a", "tpc_finish"))
    with pytest.raises(ZeroDivisionError):
        manager.commit()
    assert (payloads(mq), payloads(mq, "in"), in_doubt(mq)) == ([], ["x"], False)
    assert oncemq.TwoPhase(mq).tpc_recover() == []
