"""Overwriting a queue without Spark: what was there goes with the commit, or all of it stays."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import oncemq
from clients.spark import overwriting, sharing, sink
from clients.spark.errors import OptionError
from clients.spark.options import Options
from clients.spark.overwriting import check_overwriting, take_out
from clients.spark.sink import QueueWriter

ROWS = StructType([StructField("value", BinaryType())])
OLD = [b"a", b"b", b"c", b"d", b"e"]


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[oncemq.Connection]:
    """A node with a queue that holds something, from which two messages are locked at a time."""
    monkeypatch.setattr(overwriting, "LIST_MESSAGES_MAX", 2)
    with oncemq.connect("memory:") as made:
        monkeypatch.setattr(sink, "connection_of", lambda options: made)
        made.queue("q").put_many(OLD)
        yield made


def batches(*payloads: bytes) -> Iterator[Any]:
    yield pa.record_batch([pa.array(payloads, pa.binary())], names=["value"])


def planned(**options: Any) -> QueueWriter:
    writer = QueueWriter(ROWS, Options(queue="q", overwrite=True, **options))
    made = pickle.loads(pickle.dumps(writer))
    assert isinstance(made, QueueWriter)
    return made


def payloads(connection: oncemq.Connection) -> list[bytes]:
    return [message.payload for message in connection.queue("q").browse()]


def test_what_was_there_is_gone_when_the_new_rows_are_there(connection: oncemq.Connection) -> None:
    writer = planned()
    votes = [writer.write(batches(b"1", b"2")), writer.write(batches(b"3"))]
    assert payloads(connection) == OLD
    writer.commit(votes)
    assert sorted(payloads(connection)) == [b"1", b"2", b"3"]
    assert connection.admin().listBranches() == ()


def test_a_write_without_rows_empties_the_queue_and_an_empty_queue_is_overwritten(
    connection: oncemq.Connection,
) -> None:
    for rows in ((), (b"1",), ()):
        writer = planned()
        writer.commit([writer.write(batches(*rows))])
        assert payloads(connection) == list(rows)


def test_what_another_transaction_holds_is_not_touched(connection: oncemq.Connection) -> None:
    other = connection.begin(60.0)
    assert connection.queue("q").get(tx=other) is not None
    connection.queue("q").put(b"of another", tx=other)
    writer = planned()
    writer.commit([writer.write(batches(b"1"))])
    assert payloads(connection) == [b"1"]
    other.rollback()
    assert sorted(payloads(connection)) == [b"1", b"a"]


def test_a_commit_that_does_not_come_about_gives_everything_back(
    connection: oncemq.Connection,
) -> None:
    writer = planned()
    votes = [writer.write(batches(b"1"))]
    assert len(take_out(connection, writer._gtrid, "q")) == 3
    assert payloads(connection) == []
    # As when the committer died here: Spark has another one roll back.
    writer.abort(votes)
    assert sharing.outcome_of(connection, writer._gtrid) is oncemq.Outcome.ROLLED_BACK
    late = planned()
    late.abort([])
    with pytest.raises(oncemq.RolledBack):
        late.commit([late.write(batches(b"2"))])


def test_a_lock_that_cannot_be_prepared_is_given_back(
    connection: oncemq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise oncemq.ConnectionLost

    writer = planned()
    monkeypatch.setattr(overwriting, "_prepare", fail)
    with pytest.raises(oncemq.ConnectionLost):
        take_out(connection, writer._gtrid, "q")
    assert payloads(connection) == OLD
    assert connection.admin().listBranches() == ()
    writer.abort([])


def test_a_version_that_is_skipped_removes_nothing(connection: oncemq.Connection) -> None:
    for rows in ((b"1",), (b"2",)):
        writer = planned(txn_app_id="app", txn_version=1)
        writer.commit([writer.write(batches(*rows))])
    assert payloads(connection) == [b"1"]


def test_mode_and_option_say_the_same() -> None:
    check_overwriting(Options(), False)
    check_overwriting(Options(overwrite=True), True)
    with pytest.raises(OptionError, match="if that is meant"):
        check_overwriting(Options(), True)
    with pytest.raises(OptionError, match="beside it"):
        check_overwriting(Options(overwrite=True), False)
