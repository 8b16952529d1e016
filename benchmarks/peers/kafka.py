"""Kafka through its usual Python client: a topic as a queue, got from by committing offsets.

Kafka deals messages out by partition and not one by one, so a topic has a partition for each client
process, and each client works on its own. See `Client` for what the calls mean.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.peers.operations import NEXT, WORK, Missing

WAIT_S = 10.0
PAUSE_S = 0.05
# Of messages and of requests; the broker has the same (servers.py).
LARGEST = 4 << 20


class Kafka:
    """An idempotent producer that waits for each message; a get commits the message's offset."""

    def __init__(self, address: str) -> None:
        self._where = {
            "bootstrap.servers": address,
            "socket.nagle.disable": True,
            "log_level": 0,
        }
        # Topics of its own, since others use the same broker at the same time.
        self._work, self._next = (f"{type(self).__name__}.{name}" for name in (WORK, NEXT))
        self._number, self._count = 0, 1
        self._known_producer: Any = None
        self._known_consumer: Any = None

    def be_one_of(self, number: int, count: int) -> None:
        """This is client `number` of `count`, and has that partition; the filler fills them all."""
        self._number, self._count = number, count

    def create(self) -> None:
        admin = AdminClient(self._where)
        ours = {self._work, self._next}
        there = [topic for topic in ours if topic in _topics(admin)]
        if there:
            for done in admin.delete_topics(there).values():
                done.result(WAIT_S)
            _until(lambda: not ours & _topics(admin))
        for done in admin.create_topics([NewTopic(t, self._count, 1) for t in ours]).values():
            done.result(WAIT_S)
        _until(lambda: ours <= _topics(admin))

    # --- Producing

    @property
    def _producer(self) -> Any:
        if self._known_producer is None:
            self._known_producer = self._make_producer()
        return self._known_producer

    def _make_producer(self) -> Any:
        return Producer(self._producing())

    def _producing(self) -> dict[str, Any]:
        return self._where | {
            "acks": "all",
            "enable.idempotence": True,
            # One message waits for no other; those of a batch that are there go together anyway.
            "linger.ms": 0,
            "message.max.bytes": LARGEST,
            # The client waits for so long when the broker is still ending the last transaction.
            "retry.backoff.ms": 1,
        }

    def _send(self, payload: bytes, topic: str = "", partition: int | None = None) -> None:
        where = self._number if partition is None else partition
        self._producer.produce(
            topic or self._work, payload, partition=where, on_delivery=_delivered
        )

    def put(self, payload: bytes) -> None:
        self._send(payload)
        self._flush()

    def put_many(self, payloads: Sequence[bytes]) -> None:
        for number, payload in enumerate(payloads):
            self._send(payload, partition=number % self._count)
        self._flush()

    def _flush(self) -> None:
        if self._producer.flush(WAIT_S):
            raise Missing

    # --- Consuming

    @property
    def _consumer(self) -> Any:
        if self._known_consumer is None:
            settings = {
                "group.id": self._work,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.message.max.bytes": LARGEST,
            }
            self._known_consumer = Consumer(self._where | settings)
            # The topic is new, so that its beginning is where the group has come to.
            mine = TopicPartition(self._work, self._number, OFFSET_BEGINNING)
            self._known_consumer.assign([mine])
        return self._known_consumer

    def _take(self, count: int) -> list[Any]:
        found: list[Any] = []
        until = time.monotonic() + WAIT_S
        while len(found) < count and time.monotonic() < until:
            found += self._consumer.consume(count - len(found), timeout=1.0)
        if len(found) != count or any(message.error() for message in found):
            raise Missing
        return found

    def get(self) -> None:
        self.get_many(1)

    def get_many(self, count: int) -> None:
        self._consumer.commit(self._take(count)[-1], asynchronous=False)

    def close(self) -> None:
        if self._known_consumer is not None:
            self._known_consumer.close()


class TransactionalKafka(Kafka):
    """The same in Kafka's transactions, which hold messages and offsets together."""

    def _make_producer(self) -> Any:
        name = f"{os.getpid()}-{uuid.uuid4()}"
        producer = Producer(self._producing() | {"transactional.id": name})
        producer.init_transactions(WAIT_S)
        return producer

    def put(self, payload: bytes) -> None:
        self.put_many([payload])

    def put_many(self, payloads: Sequence[bytes]) -> None:
        self._producer.begin_transaction()
        if len(payloads) == 1:
            self._send(payloads[0])
        else:
            for number, payload in enumerate(payloads):
                self._send(payload, partition=number % self._count)
        self._producer.commit_transaction(WAIT_S)

    def get_many(self, count: int) -> None:
        found = self._take(count)
        self._producer.begin_transaction()
        self._finish(found[-1])

    def move(self) -> None:
        """See `Client.move`."""
        [found] = self._take(1)
        self._producer.begin_transaction()
        self._send(found.value(), self._next)
        self._finish(found)

    def _finish(self, last: Any) -> None:
        position = TopicPartition(self._work, last.partition(), last.offset() + 1)
        group = self._consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction([position], group, WAIT_S)
        self._producer.commit_transaction(WAIT_S)


def _delivered(error: KafkaError | None, _: Any) -> None:
    if error is not None:
        raise Missing(str(error))


def _topics(admin: Any) -> set[str]:
    return set(admin.list_topics(timeout=WAIT_S).topics)


def _until(holds: Any) -> None:
    give_up = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > give_up:
            raise Missing
        time.sleep(PAUSE_S)
