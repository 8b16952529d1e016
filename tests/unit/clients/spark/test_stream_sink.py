"""The streaming sink without Spark: batches by number, replayed, committed again, given up."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

import oncemq
from clients.spark import sharing, sink, stream_sink
from clients.spark.attempts import Vote
from clients.spark.options import Options
from clients.spark.stream_sink import QueueStreamWriter
from tests.unit.clients.spark.test_sink import ROWS, batches, payloads


class Query:
    """A streaming query as its tasks and its committer see it; each has a writer of its own."""

    def __init__(self) -> None:
        self.batch = 0
        self.options = Options(queue="q")

    def writer(self) -> QueueStreamWriter:
        made = pickle.loads(pickle.dumps(QueueStreamWriter(ROWS, self.options)))
        assert isinstance(made, QueueStreamWriter)
        return made

    def write(self, *rows: bytes) -> Vote:
        return self.writer().write(batches(*rows))

    def commit(self, *votes: Vote | None) -> None:
        self.writer().commit(pickle.loads(pickle.dumps(votes)), self.batch)

    def abort(self, *votes: Vote | None) -> None:
        self.writer().abort(votes, self.batch)


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[oncemq.Connection]:
    with oncemq.connect("memory:") as made:
        monkeypatch.setattr(sink, "connection_of", lambda options: made)
        monkeypatch.setattr(stream_sink, "connection_of", lambda options: made)
        yield made


@pytest.fixture
def query(connection: oncemq.Connection, monkeypatch: pytest.MonkeyPatch) -> Query:
    made = Query()
    monkeypatch.setattr(stream_sink, "running_batch", lambda: ("query-1", made.batch))
    return made


def test_tasks_of_a_batch_work_in_one_transaction(
    connection: oncemq.Connection, query: Query
) -> None:
    votes = query.write(b"1"), query.write(b"2"), query.write()
    assert len({vote.gtrid for vote in votes}) == 1
    query.commit(*votes)
    assert sorted(payloads(connection)) == [b"1", b"2"]


def test_a_commit_may_be_called_again(connection: oncemq.Connection, query: Query) -> None:
    vote = query.write(b"1")
    query.commit(vote)
    query.commit(vote)
    assert payloads(connection) == [b"1"]


def test_a_batch_that_is_replayed_puts_nothing(
    connection: oncemq.Connection, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    query.commit(query.write(b"1"))
    replayed = query.write(b"1")
    assert replayed == sink.SKIPPED
    query.commit(replayed)
    query.batch = 1
    query.commit(query.write(b"2"))
    assert payloads(connection) == [b"1", b"2"]
    assert "batch 0 was committed before; it is skipped" in caplog.text


def test_a_batch_that_was_not_committed_is_joined_and_old_branches_are_left(
    connection: oncemq.Connection, query: Query
) -> None:
    dead = query.write(b"1")
    alive = query.write(b"1")
    assert alive.gtrid == dead.gtrid
    query.commit(alive)
    assert payloads(connection) == [b"1"]


def test_a_batch_that_another_run_commits_meanwhile_counts_once(
    connection: oncemq.Connection, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    dead, alive = query.write(b"1"), query.write(b"1")
    query.commit(dead)
    query.commit(alive)
    assert payloads(connection) == [b"1"]
    assert "committed with other branches than these, by another run" in caplog.text


def test_votes_in_several_transactions_are_refused(
    connection: oncemq.Connection, query: Query
) -> None:
    first = query.write(b"1")
    sharing.give_up(connection, first.gtrid)
    second = query.write(b"2")
    with pytest.raises(oncemq.RolledBack, match="they have voted in several"):
        query.commit(first, second)
    assert payloads(connection) == []
    query.commit(query.write(b"1"), query.write(b"2"))
    assert sorted(payloads(connection)) == [b"1", b"2"]


def test_what_was_voted_for_is_rolled_back(connection: oncemq.Connection, query: Query) -> None:
    vote = query.write(b"1")
    query.abort(vote, None)
    assert sharing.outcome_of(connection, vote.gtrid) is oncemq.Outcome.ROLLED_BACK


def test_a_rollback_without_votes_does_no_harm(connection: oncemq.Connection, query: Query) -> None:
    query.abort(None, None)
    query.abort()
    query.commit(query.write(b"1"))
    query.abort(None)
    assert payloads(connection) == [b"1"]


def test_a_name_of_its_own_outlives_the_query(
    connection: oncemq.Connection, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.options = Options(queue="q", txn_app_id="etl")
    query.commit(query.write(b"1"))
    monkeypatch.setattr(stream_sink, "running_batch", lambda: ("query-2", 0))
    query.commit(query.write(b"1"))
    assert payloads(connection) == [b"1"]


def test_a_task_of_no_query_is_told_so() -> None:
    with pytest.raises(oncemq.OnceMQError, match="belongs to no streaming query"):
        stream_sink.running_batch()
