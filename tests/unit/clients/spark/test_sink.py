"""The batch sink without Spark: planner, tasks and committer are objects here, at an embedded node.

Between them everything is pickled, as Spark does.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import oncemq
from clients.spark import sharing, sink
from clients.spark.errors import OptionError, SchemaError
from clients.spark.options import Options
from clients.spark.sink import QueueWriter
from idl import system

ROWS = StructType([StructField("value", BinaryType())])


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[oncemq.Connection]:
    with oncemq.connect("memory:") as made:
        monkeypatch.setattr(sink, "connection_of", lambda options: made)
        yield made


def batches(*payloads: bytes) -> Iterator[Any]:
    yield pa.record_batch([pa.array(payloads, pa.binary())], names=["value"])


def planned(version: int | None = None, **options: Any) -> QueueWriter:
    """The writer as it leaves the planner."""
    named: dict[str, Any] = {} if version is None else {"txn_app_id": "app", "txn_version": version}
    return again(QueueWriter(ROWS, Options(queue="q", **named, **options)))


def again(writer: QueueWriter) -> QueueWriter:
    """The writer in another process."""
    made = pickle.loads(pickle.dumps(writer))
    assert isinstance(made, QueueWriter)
    return made


def payloads(connection: oncemq.Connection) -> list[bytes]:
    return [message.payload for message in connection.queue("q").browse()]


def under_way(connection: oncemq.Connection, writer: QueueWriter) -> oncemq.Outcome:
    return sharing.outcome_of(connection, writer._gtrid)


def test_what_tasks_have_put_is_there_after_the_commit(connection: oncemq.Connection) -> None:
    writer = planned()
    votes = [again(writer).write(batches(b"1", b"2")), again(writer).write(batches(b"3"))]
    assert payloads(connection) == []
    again(writer).commit(pickle.loads(pickle.dumps(votes)))
    assert sorted(payloads(connection)) == [b"1", b"2", b"3"]
    assert [vote.rows for vote in votes] == [2, 1]


def test_a_vote_that_spark_did_not_accept_does_not_count(connection: oncemq.Connection) -> None:
    writer = planned()
    again(writer).write(batches(b"loser"))
    winner = again(writer).write(batches(b"winner"))
    again(writer).commit([winner])
    assert payloads(connection) == [b"winner"]


def test_a_rollback_is_by_name_and_needs_no_votes(connection: oncemq.Connection) -> None:
    writer = planned()
    again(writer).write(batches(b"1"))
    again(writer).abort([None, None])
    assert under_way(connection, writer) is oncemq.Outcome.ROLLED_BACK
    assert payloads(connection) == []


def test_a_task_that_comes_late_is_refused(connection: oncemq.Connection) -> None:
    writer = planned()
    again(writer).abort([None])
    late = again(writer).write(batches(b"late"))
    with pytest.raises(oncemq.RolledBack, match="nothing of it happened: transaction"):
        again(writer).commit([late])
    assert payloads(connection) == []


def test_a_rollback_after_the_commit_says_that_it_is_committed(
    connection: oncemq.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    writer = planned()
    votes = [again(writer).write(batches(b"1"))]
    again(writer).commit(votes)
    again(writer).abort(votes)
    assert "was committed, whatever the job says" in caplog.text
    assert payloads(connection) == [b"1"]


def test_a_task_that_fails_rolls_its_branch_back(connection: oncemq.Connection) -> None:
    def failing() -> Iterator[Any]:
        yield from batches(b"1")
        raise OSError("gone")

    writer = planned()
    with pytest.raises(OSError, match="gone"):
        again(writer).write(failing())
    assert connection.admin().listBranches() == ()
    again(writer).abort([None])


def test_a_version_that_was_committed_is_skipped_and_says_so(
    connection: oncemq.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    first = planned(version=3)
    first.commit([first.write(batches(b"1"))])

    for version in (3, 2):
        repeated = planned(version=version)
        vote = again(repeated).write(batches(b"2"))
        again(repeated).commit([vote])
        again(repeated).abort([vote])

    assert "version 3 of 'app', or a later one, was committed before" in caplog.text
    assert "is skipped, and nothing is put" in caplog.text
    assert payloads(connection) == [b"1"]


def test_of_two_runs_of_a_version_the_later_counts(connection: oncemq.Connection) -> None:
    first = planned(version=1)
    vote = first.write(batches(b"first"))
    second = planned(version=1)
    with pytest.raises(oncemq.RolledBack):
        first.commit([vote])
    second.commit([second.write(batches(b"second"))])
    assert payloads(connection) == [b"second"]


def test_a_commit_waits_until_the_outcome_is_known(
    connection: oncemq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = planned()
    votes = [writer.write(batches(b"1"))]
    deciding = connection.deciding()
    coordinator = deciding._coordinator
    asked: list[object] = []

    class Lossy:
        """A coordinator whose first two answers are lost."""

        def decide(self, *arguments: Any) -> Any:
            asked.append(arguments)
            outcome = coordinator.decide(*arguments)
            if len(asked) < 3:
                raise system.COMM_FAILURE("cut", system.Completion.MAYBE)
            return outcome

    monkeypatch.setattr(deciding, "_coordinator", Lossy())
    monkeypatch.setattr(deciding, "_sleep", lambda seconds: None)
    writer.commit(votes)
    assert len(asked) == 3
    assert payloads(connection) == [b"1"]


def test_an_outcome_that_nobody_knows_names_the_transaction(
    connection: oncemq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = planned()

    def unknown(gtrid: bytes, participants: Any, patience_s: float) -> Any:
        raise oncemq.OutcomeUnknown(gtrid)

    monkeypatch.setattr(connection.deciding(), "decide", unknown)
    with pytest.raises(oncemq.OutcomeUnknown, match=r"ask mq.outcome\('[0-9a-f]+-"):
        writer.commit([writer.write(batches(b"1"))])
    writer.abort([None])


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: planned(transaction="x"), "goes through it: tx.write"),
        (lambda: planned(version=0), "txnVersion counts from 1"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    connection: oncemq.Connection, make: Callable[[], object], told: str
) -> None:
    with pytest.raises(OptionError, match=told):
        make()


def test_a_schema_that_cannot_be_written_begins_no_transaction(
    connection: oncemq.Connection,
) -> None:
    with pytest.raises(SchemaError):
        QueueWriter(StructType([StructField("id", LongType())]), Options(queue="q"))
