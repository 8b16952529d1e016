"""Reading a queue as a stream, as Spark calls it: offsets, restarts, and who may go on."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import oncemq
from clients.spark import source
from clients.spark.errors import OptionError
from clients.spark.rows import BINARY_SCHEMA
from clients.spark.stream_source import ConsumerError, ReservationReader, stream_reader_for

streaming = pytest.importorskip("pyspark.sql.streaming.datasource")


@pytest.fixture
def mq(monkeypatch: pytest.MonkeyPatch) -> Iterator[oncemq.Connection]:
    """A node in this process, to which all options lead; nobody waits for messages."""
    monkeypatch.setattr("clients.spark.stream_source.WAIT_S", 0)
    with oncemq.connect("memory:") as connection:
        monkeypatch.setattr(source, "connection_of", lambda *_: connection)
        yield connection


class Query:
    """As much of Spark's streaming as concerns a source: one run of a query over a checkpoint.

    The checkpoint is the list of offsets that were logged, and how many batches were committed.
    """

    def __init__(self, checkpoint: list[str], **options: str) -> None:
        given = {"queue": "q", "consumer": "etl", **options}
        self.reader: Any = pickle.loads(pickle.dumps(stream_reader_for(given, BINARY_SCHEMA)))
        self.checkpoint = checkpoint
        self.limit: Any = self.reader.getDefaultReadLimit()

    @property
    def start(self) -> str:
        initial = json.dumps(self.reader.initialOffset())
        assert initial == json.dumps(self.reader.initialOffset())
        return self.checkpoint[-1] if self.checkpoint else initial

    def latest(self) -> str:
        return json.dumps(self.reader.latestOffset(json.loads(self.start), self.limit))

    def rows(self, start: str, end: str) -> list[list[bytes]]:
        found = self.reader.partitions(json.loads(start), json.loads(end))
        return [
            [value.as_py() for batch in self.reader.read(each) for value in batch["value"]]
            for each in pickle.loads(pickle.dumps(found))
        ]

    def batch(self) -> list[list[bytes]] | None:
        """The partitions of the next batch, which is committed then; None: there is none."""
        start, end = self.start, self.latest()
        if end == start:
            return None
        found = self.rows(start, end)
        assert self.rows(start, end) == found
        self.checkpoint.append(end)
        return found


def held(mq: oncemq.Connection) -> list[tuple[str, int]]:
    return [(each.consumer.partition("@")[0], each.reserved) for each in mq.admin().listConsumers()]


def test_a_stream_reads_every_message_once(mq: oncemq.Connection) -> None:
    mq.queue("q").put_many([b"1", b"2", b"3"])
    query = Query([], maxMessagesPerTrigger="2")
    # The query has its name in the checkpoint before anything is reserved for it.
    assert query.batch() == []
    assert held(mq) == []
    assert query.batch() == [[b"1", b"2"]]
    assert held(mq) == [("etl", 2)]
    assert query.batch() == [[b"3"]]
    assert query.batch() is None
    assert held(mq) == [("etl", 0)]
    mq.queue("q").put(b"4")
    assert query.batch() == [[b"4"]]


def test_a_batch_comes_in_partitions_of_the_same_size(mq: oncemq.Connection) -> None:
    mq.queue("q").put_many([b"%d" % n for n in range(5)])
    query = Query([], partitions="2")
    query.batch()
    assert query.batch() == [[b"0", b"1"], [b"2", b"3", b"4"]]


def test_a_restart_goes_on_from_the_checkpoint(mq: oncemq.Connection) -> None:
    mq.queue("q").put_many([b"1", b"2", b"3"])
    checkpoint: list[str] = []
    Query(checkpoint, maxMessagesPerTrigger="1").batch()
    assert Query(checkpoint, maxMessagesPerTrigger="1").batch() == [[b"1"]]
    # Reserved, and not in the checkpoint: the same again, whatever the limit is then.
    first = Query(checkpoint, maxMessagesPerTrigger="1").latest()
    again = Query(checkpoint, maxMessagesPerTrigger="9")
    assert again.latest() == first
    assert again.batch() == [[b"2"]]
    # In the checkpoint, and not committed: read again.
    assert Query(checkpoint).rows(checkpoint[-2], checkpoint[-1]) == [[b"2"]]
    assert Query(checkpoint).batch() == [[b"3"]]


def test_the_first_batch_can_be_replayed_before_it_was_committed(mq: oncemq.Connection) -> None:
    checkpoint: list[str] = []
    query = Query(checkpoint)
    query.batch()
    again = Query(checkpoint)
    assert again.rows(json.dumps(again.reader.initialOffset()), checkpoint[0]) == []


def test_a_restart_before_the_first_batch_was_logged_is_a_new_query(mq: oncemq.Connection) -> None:
    mq.queue("q").put(b"1")
    lost = Query([])
    lost.latest()
    query = Query([])
    query.batch()
    assert query.batch() == [[b"1"]]


def test_a_second_query_under_the_same_name_is_refused(mq: oncemq.Connection) -> None:
    mq.queue("q").put_many([b"1", b"2"])
    first = Query([], maxMessagesPerTrigger="1")
    first.batch()
    first.batch()
    second = Query([])
    second.batch()
    with pytest.raises(ConsumerError, match="consumer 'etl' is in use by another query"):
        second.batch()
    assert first.batch() == [[b"2"]]
    Query([], consumer="other").batch()


def test_an_old_checkpoint_is_an_error(mq: oncemq.Connection) -> None:
    mq.queue("q").put_many([b"1", b"2", b"3"])
    query = Query([], maxMessagesPerTrigger="1")
    for _ in range(4):
        query.batch()
    old = Query(query.checkpoint[:2])
    with pytest.raises(ConsumerError, match="the checkpoint is old: it ends with number 1 of"):
        old.batch()
    with pytest.raises(ConsumerError, match="no reservation 1 of consumer"):
        old.rows(query.checkpoint[0], query.checkpoint[1])


def test_a_consumer_that_was_dropped_is_an_error(mq: oncemq.Connection) -> None:
    mq.queue("q").put_many([b"1", b"2"])
    query = Query([], maxMessagesPerTrigger="1")
    query.batch()
    query.batch()
    (known,) = mq.admin().listConsumers()
    mq.admin().dropConsumer(known.consumer)
    with pytest.raises(ConsumerError, match="no reservation 1 of consumer"):
        query.batch()
    anew = Query([])
    anew.batch()
    assert anew.batch() == [[b"1", b"2"]]


def test_the_checkpoint_of_another_query_is_refused(mq: oncemq.Connection) -> None:
    query = Query([])
    query.batch()
    with pytest.raises(ConsumerError, match='the checkpoint is that of consumer "etl", and'):
        Query(query.checkpoint, consumer="other").batch()
    with pytest.raises(ConsumerError, match="which is none of OnceMQ's"):
        Query([json.dumps({"partition": 7})]).batch()


def test_another_queue_is_refused(mq: oncemq.Connection) -> None:
    mq.queue("q").put(b"1")
    mq.queue("p").put(b"1")
    query = Query([])
    query.batch()
    query.batch()
    with pytest.raises(ConsumerError, match=r"reservation cannot be used so.*q"):
        Query(query.checkpoint, queue="p").batch()


# --- What is available now


def test_what_is_available_now_ends_with_what_was_there(mq: oncemq.Connection) -> None:
    mq.queue("q").put_many([b"1", b"2", b"3"])
    query = Query([], maxMessagesPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    query.batch()
    assert query.batch() == [[b"1", b"2"]]
    mq.queue("q").put_many([b"4", b"5"])
    assert query.batch() == [[b"3"]]
    assert query.batch() is None
    assert held(mq) == [("etl", 0)]


def test_what_is_available_now_includes_what_was_reserved_before(mq: oncemq.Connection) -> None:
    mq.queue("q").put_many([b"1", b"2", b"3"])
    checkpoint: list[str] = []
    killed = Query(checkpoint, maxMessagesPerTrigger="2")
    killed.batch()
    killed.latest()
    query = Query(checkpoint, maxMessagesPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    assert query.batch() == [[b"1", b"2"]]
    assert query.batch() == [[b"3"]]
    assert query.batch() is None


def test_a_trigger_that_asks_for_everything_gets_it(mq: oncemq.Connection) -> None:
    mq.queue("q").put_many([b"1", b"2", b"3"])
    query = Query([], maxMessagesPerTrigger="1")
    query.batch()
    query.limit = streaming.ReadAllAvailable()
    assert query.batch() == [[b"1", b"2", b"3"]]


def test_a_consumer_has_a_name_of_reasonable_length() -> None:
    with pytest.raises(OptionError, match='"consumer" is missing'):
        stream_reader_for({"queue": "q"}, BINARY_SCHEMA)
    with pytest.raises(OptionError, match="100 characters at most"):
        stream_reader_for({"queue": "q", "consumer": "x" * 101}, BINARY_SCHEMA)
    assert isinstance(
        stream_reader_for({"queue": "q", "consumer": "x" * 100}, BINARY_SCHEMA), ReservationReader
    )
