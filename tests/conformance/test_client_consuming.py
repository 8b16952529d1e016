"""Consuming: every message handled in a transaction, none lost, none twice, whatever happens."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

import oncemq
from clients import consumer
from oncemq import Connection, Message, Queue
from tests.conformance.client_places import place


@pytest.fixture(scope="module", params=["memory", "mq"])
def mq(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Connection]:
    with (
        place(request.param, tmp_path_factory.mktemp("data")) as here,
        oncemq.connect(here.url, timeout=10.0) as connection,
    ):
        yield connection


_numbers = itertools.count(1)


@pytest.fixture
def orders(mq: Connection) -> Queue:
    return mq.queue(f"orders-{next(_numbers)}")


@pytest.fixture
def done(mq: Connection) -> Queue:
    return mq.queue(f"done-{next(_numbers)}")


@pytest.fixture(autouse=True)
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "PAUSE_S", 0.01)


def payloads(queue: Queue) -> list[bytes]:
    return [message.payload for message in queue.browse()]


# --- The iterator


def test_each_message_is_moved_in_a_transaction_of_its_own(orders: Queue, done: Queue) -> None:
    orders.put_many([b"1", b"2", b"3"])
    names = set()
    for message in orders.consume(timeout=0.05):
        done.put(message.payload)
        tx = oncemq.current_transaction()
        assert tx is not None
        names.add(tx.otid)
        # What was handled before is committed, and what is being handled is not.
        assert len(done) == len(names) - 1
    assert payloads(done) == [b"1", b"2", b"3"]
    assert len(names) == 3
    assert len(orders) == 0
    assert oncemq.current_transaction() is None


def test_a_body_that_raises_gives_the_message_back(orders: Queue, done: Queue) -> None:
    orders.put_many([b"1", b"2"])

    def handle() -> None:
        for message in orders.consume(timeout=0.05):
            done.put(message.payload)
            if message.payload == b"2":
                raise ValueError("cannot")

    with pytest.raises(ValueError, match="cannot"):
        handle()
    assert payloads(orders) == [b"2"]
    assert payloads(done) == [b"1"]
    assert oncemq.current_transaction() is None


def test_a_loop_that_is_left_gives_the_message_back(orders: Queue) -> None:
    orders.put_many([b"1", b"2"])
    for _ in orders.consume(timeout=0.05):
        break
    assert payloads(orders) == [b"1", b"2"]
    with orders.consume(timeout=0.05) as messages:
        next(messages)
        next(messages)
    assert payloads(orders) == [b"2"]


def test_a_second_loop_over_the_same_consumption_does_not_commit_the_first(orders: Queue) -> None:
    orders.put_many([b"1", b"2"])
    messages = orders.consume(timeout=0.05)
    seen = []
    for message in messages:
        seen.append(message.payload)
        break
    seen += [message.payload for message in messages]
    assert seen == [b"1", b"1", b"2"]
    assert len(orders) == 0


def test_what_the_body_commits_itself_is_committed(orders: Queue) -> None:
    orders.put_many([b"1", b"2"])
    for _ in orders.consume(timeout=0.05):
        tx = oncemq.current_transaction()
        assert tx is not None
        tx.commit()
        break
    assert payloads(orders) == [b"2"]


def test_a_batch_shares_a_transaction(orders: Queue) -> None:
    orders.put_many([b"%d" % number for number in range(5)])
    names = [oncemq.current_transaction() for _ in orders.consume(batch=3, timeout=0.05)]
    assert len(names) == 5
    assert len({id(name) for name in names}) == 2
    with pytest.raises(ValueError, match="one message at a time"):
        orders.consume(batch=0)


def test_a_consumer_waits_for_what_is_put_later(orders: Queue) -> None:
    later = threading.Timer(0.1, orders.put, [b"late"])
    later.start()
    seen = []
    for message in orders.consume(timeout=5):
        seen.append(message.payload)
        break
    later.join()
    assert seen == [b"late"]


def test_a_consumer_stops_when_it_is_told_to(orders: Queue) -> None:
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    begun = time.monotonic()
    assert list(orders.consume(stop=stop)) == []
    assert list(orders.consume(stop=lambda: True)) == []
    assert time.monotonic() - begun < 5


def test_a_consumer_has_transactions_of_its_own(mq: Connection, orders: Queue) -> None:
    with mq.transaction(), pytest.raises(oncemq.OnceMQError, match="outside"):
        orders.consume()


# --- Handlers


def test_a_handler_is_called_until_nothing_comes(orders: Queue, done: Queue) -> None:
    orders.put_many([b"1", b"2", b"3"])

    @orders.consumer
    def move(message: Message) -> None:
        """Moves a message."""
        done.put(message.payload)

    counts = move.run(timeout=0.05)
    assert (counts.committed, counts.rolled_back, counts.unknown) == (3, 0, 0)
    assert payloads(done) == [b"1", b"2", b"3"]
    assert move.__doc__ == "Moves a message."
    move(Message(b"by hand"))
    assert len(done) == 4


def test_a_message_comes_again_until_its_handler_succeeds(orders: Queue, done: Queue) -> None:
    orders.put_many([b"1", b"2"])
    attempts: list[bytes] = []

    def stumble(message: Message) -> None:
        attempts.append(message.payload)
        done.put(message.payload)
        if attempts.count(b"1") < 3:
            raise ValueError("not yet")

    counts = orders.consume(stumble, timeout=0.05)
    assert attempts == [b"1", b"1", b"1", b"2"]
    assert (counts.committed, counts.rolled_back) == (2, 2)
    assert payloads(done) == [b"1", b"2"]


def test_too_many_failures_in_a_row_are_raised(orders: Queue) -> None:
    orders.put(b"poison")

    def fail(message: Message) -> None:
        raise ValueError("never")

    with pytest.raises(ValueError, match="never"):
        orders.consume(fail, timeout=0.05, failures_max=3)
    assert payloads(orders) == [b"poison"]


def test_signals_stop_a_consumer_between_messages(orders: Queue, done: Queue) -> None:
    orders.put_many([b"1", b"2", b"3"])
    before = signal.getsignal(signal.SIGTERM)

    def move(message: Message) -> None:
        done.put(message.payload)
        if message.payload == b"2":
            os.kill(os.getpid(), signal.SIGTERM)

    counts = orders.consume(move, stop_on_signals=True)
    assert counts.committed == 2
    assert payloads(orders) == [b"3"]
    assert payloads(done) == [b"1", b"2"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_several_consumers_share_the_work_without_sharing_a_message(
    orders: Queue, done: Queue
) -> None:
    orders.put_many([b"%d" % number for number in range(60)])
    found: list[int] = []

    def work() -> None:
        counts = orders.consume(lambda message: done.put(message.payload), timeout=0.2)
        found.append(counts.committed)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(found) == 60
    assert sorted(map(int, payloads(done))) == list(range(60))
