"""An attempt of a task against an embedded node: branches that vote, and what is left of others."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from zlib import crc32

import pytest

import oncemq
from clients.spark import attempts, sharing
from clients.spark.attempts import Attempt, Vote, branch_name
from clients.structs import batch, branch
from idl.mq import mqBatch


@pytest.fixture
def connection() -> Iterator[oncemq.Connection]:
    with oncemq.connect("memory:") as made:
        yield made


def some(*payloads: bytes) -> mqBatch:
    return batch(payloads, tuple(map(crc32, payloads)))


def begun(connection: oncemq.Connection) -> bytes:
    return sharing.begin(connection, 60.0).gtrid


def payloads(connection: oncemq.Connection, queue: str) -> list[bytes]:
    return [message.payload for message in connection.queue(queue).browse()]


def test_what_was_put_is_there_after_the_decision_and_not_before(
    connection: oncemq.Connection,
) -> None:
    gtrid = begun(connection)
    attempt = Attempt(connection, gtrid, branch_name(0, 0, 0))
    attempt.put("a", some(b"1", b"2"))
    attempt.put("b", some(b"3"))
    prepared = attempt.finish()

    assert attempt.rows == 3
    assert payloads(connection, "a") == []
    sharing.decide(connection, gtrid, prepared)
    assert payloads(connection, "a") == [b"1", b"2"]
    assert payloads(connection, "b") == [b"3"]


def test_branches_that_are_not_named_are_rolled_back(connection: oncemq.Connection) -> None:
    gtrid = begun(connection)
    accepted, other = (Attempt(connection, gtrid, branch_name(0, 0, 0)) for _ in range(2))
    accepted.put("q", some(b"accepted"))
    other.put("q", some(b"other"))
    votes = accepted.finish()
    other.finish()

    sharing.decide(connection, gtrid, votes)

    assert payloads(connection, "q") == [b"accepted"]


def test_an_attempt_that_comes_after_the_end_is_refused(connection: oncemq.Connection) -> None:
    gtrid = begun(connection)
    late = Attempt(connection, gtrid, branch_name(0, 0, 1))
    late.put("q", some(b"late"))
    sharing.decide(connection, gtrid, ())
    votes = late.finish()

    with pytest.raises((sharing.CommittedByAnother, oncemq.RolledBack)):
        sharing.decide(connection, gtrid, votes)
    assert payloads(connection, "q") == []


def test_a_branch_that_is_full_votes_and_the_next_begins(
    connection: oncemq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "BRANCH_MESSAGES_MAX", 3)
    gtrid = begun(connection)
    attempt = Attempt(connection, gtrid, "s0p0t0x00")
    for number in range(4):
        attempt.put("q", some(b"%d" % number, b"+"))
    votes = attempt.finish()

    assert [vote.name for vote in votes] == [f"s0p0t0x00.{part}" for part in (1, 2, 3, 4)]
    sharing.decide(connection, gtrid, votes)
    assert len(connection.queue("q")) == 8


def test_a_branch_is_full_by_its_bytes_too(
    connection: oncemq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "BRANCH_BYTES_MAX", 10)
    attempt = Attempt(connection, begun(connection), "s0p0t0x00")
    attempt.put("q", some(bytes(8)))
    attempt.put("q", some(bytes(8)))

    assert len(attempt.finish()) == 2


def test_an_attempt_that_put_nothing_has_no_branches(connection: oncemq.Connection) -> None:
    gtrid = begun(connection)
    assert Attempt(connection, gtrid, branch_name(0, 0, 0)).finish() == ()
    sharing.decide(connection, gtrid, ())
    assert sharing.outcome_of(connection, gtrid) is oncemq.Outcome.COMMITTED


def test_a_rollback_leaves_nothing(connection: oncemq.Connection) -> None:
    gtrid = begun(connection)
    attempt = Attempt(connection, gtrid, branch_name(0, 0, 0))
    attempt.put("q", some(b"1"))
    attempt.rollback()
    attempt.rollback()

    assert attempt.finish() == ()
    sharing.decide(connection, gtrid, ())
    assert payloads(connection, "q") == []


def test_what_the_node_refuses_is_raised(
    connection: oncemq.Connection,
) -> None:
    attempt = Attempt(connection, begun(connection), branch_name(0, 0, 0))
    damaged = batch((b"1",), (crc32(b"2"),))
    with pytest.raises(oncemq.Damaged):
        attempt.put("q", damaged)


def test_no_two_attempts_have_the_same_name() -> None:
    assert len({branch_name(1, 2, 3) for _ in range(20)}) == 20
    assert branch_name(1, 2, 3).startswith("s1p2t3x")


def test_a_vote_passes_from_process_to_process() -> None:
    vote = Vote(b"g" * 32, (sharing.PreparedBranch("127.0.0.1:1", "s0p0t0x1.1"),), 7)
    assert pickle.loads(pickle.dumps(vote)) == vote


def test_branches_can_be_left_for_whoever_decides_to_prepare(
    connection: oncemq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "BRANCH_MESSAGES_MAX", 2)
    gtrid, node = begun(connection), connection.node()
    attempt = Attempt(connection, gtrid, branch_name(0, 0, 0), is_prepared=False)
    attempt.put("q", some(b"1", b"2"))
    attempt.put("q", some(b"3"))
    left = attempt.finish()

    assert [each.messages for each in left] == [2, 1]
    assert {each.state.name for each in connection.admin().listBranches()} == {"ACTIVE"}
    for name, messages in [(each.name, each.messages) for each in left]:
        recovery = connection.deciding().recovery_of(gtrid, name)
        node.calls.prepareBranch(branch(gtrid, name, recovery), messages)
    sharing.decide(connection, gtrid, left)
    assert payloads(connection, "q") == [b"1", b"2", b"3"]
