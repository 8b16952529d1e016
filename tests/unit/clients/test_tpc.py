"""Queues as a participant of another coordinator: nothing is lost, doubled or seen too early."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import oncemq


@pytest.fixture
def mq() -> Iterator[oncemq.Connection]:
    with oncemq.connect("memory:") as made:
        yield made


def payloads(mq: oncemq.Connection, queue: str) -> list[bytes]:
    return [message.payload for message in mq.queue(queue).browse()]


def prepared(mq: oncemq.Connection) -> oncemq.TwoPhase:
    """A branch that has got "x" from `in`, put "y" into `out`, and voted."""
    mq.queue("in").put(b"x", priority=2, attributes=[("a", "1"), ("a", "2")])
    session = oncemq.TwoPhase(mq)
    session.tpc_begin(session.xid(1, "global", "branch"))
    message = session.get("in")
    assert message is not None
    session.put("out", oncemq.Message(b"y", priority=3, group=4, attributes=(("b", "1"),)))
    session.put("out", b"z")
    session.tpc_prepare()
    return session


def test_what_is_prepared_is_seen_by_nobody(mq: oncemq.Connection) -> None:
    session = prepared(mq)
    assert payloads(mq, "in") == payloads(mq, "out") == []
    assert session.tpc_recover() == [(1, "global", "branch")]


def test_a_commit_puts_what_was_put_as_it_was(mq: oncemq.Connection) -> None:
    session = prepared(mq)
    session.tpc_commit()
    assert payloads(mq, "in") == []
    first, second = mq.queue("out").browse()
    assert (first.payload, first.priority, first.group) == (b"y", 3, 4)
    assert first.attributes == (("b", "1"),)
    assert second.payload == b"z"
    assert session.tpc_recover() == []
    assert len(mq.queue("oncemq.prepared")) == 0


def test_a_rollback_brings_back_what_was_got(mq: oncemq.Connection) -> None:
    prepared(mq).tpc_rollback()
    assert payloads(mq, "out") == []
    [back] = mq.queue("in").browse()
    assert (back.payload, back.priority) == (b"x", 2)
    assert back.attributes == (("a", "1"), ("a", "2"))


@pytest.mark.parametrize("is_wanted", [True, False])
def test_another_client_ends_what_the_first_has_left(
    mq: oncemq.Connection, is_wanted: bool
) -> None:
    prepared(mq)
    other = oncemq.TwoPhase(mq)
    [xid] = other.tpc_recover()
    end = other.tpc_commit if is_wanted else other.tpc_rollback
    end(xid)
    assert (payloads(mq, "out") == [b"y", b"z"]) is is_wanted
    assert (payloads(mq, "in") == [b"x"]) is not is_wanted
    with pytest.raises(oncemq.NotFound, match="has ended, or never was"):
        other.tpc_commit(xid)
    assert len(mq.queue("out")) == (2 if is_wanted else 0)


def test_without_a_prepare_it_ends_in_one_phase(mq: oncemq.Connection) -> None:
    mq.queue("in").put(b"x")
    for is_wanted in (False, True):
        session = oncemq.TwoPhase(mq)
        session.tpc_begin(session.xid(1, "global", "branch"))
        assert session.get("in") is not None
        session.put("out", b"y")
        session.tpc_commit() if is_wanted else session.tpc_rollback()
    assert payloads(mq, "in") == []
    assert payloads(mq, "out") == [b"y"]


def test_a_branch_without_work_is_named_until_it_ends(mq: oncemq.Connection) -> None:
    session = oncemq.TwoPhase(mq)
    session.tpc_begin(session.xid(1, "global", "branch"))
    session.tpc_prepare()
    assert len(session.tpc_recover()) == 1
    session.tpc_commit()
    assert session.tpc_recover() == []


def test_calls_in_a_wrong_order_are_refused(mq: oncemq.Connection) -> None:
    session = oncemq.TwoPhase(mq)
    for call in (session.tpc_commit, session.tpc_rollback, session.tpc_prepare):
        with pytest.raises(oncemq.TransactionEnded):
            call()
    with pytest.raises(oncemq.TransactionEnded, match="call tpc_begin"):
        session.put("q", b"x")
    session = prepared(mq)
    with pytest.raises(oncemq.OnceMQError, match="has begun already"):
        session.tpc_begin(session.xid(1, "another", "branch"))
    with pytest.raises(oncemq.TransactionEnded):
        session.put("q", b"x")
    second = oncemq.TwoPhase(mq)
    second.tpc_begin(second.xid(1, "global", "branch"))
    with pytest.raises(oncemq.OnceMQError, match="is prepared already"):
        second.tpc_prepare()
    for parts in ((-1, "a", "b"), (1, "a" * 65, "b"), (1, "a", "b" * 65)):
        with pytest.raises(ValueError):  # noqa: PT011
            session.xid(*parts)


def test_a_branch_that_took_too_long_is_rolled_back(mq: oncemq.Connection) -> None:
    mq.queue("in").put(b"x")
    session = oncemq.TwoPhase(mq)
    session.tpc_begin(session.xid(1, "global", "branch"), timeout=1e-9)
    with pytest.raises(oncemq.RolledBack):
        session.tpc_prepare()
    assert not session.is_at_work
    assert session.tpc_recover() == []
    assert payloads(mq, "in") == [b"x"]
