"""Message brokers through their usual Python clients: RabbitMQ, NATS, ActiveMQ, Redis, beanstalkd.

See `Client` for what the calls mean. What a broker cannot do is not imitated: a batch that is not
one act is only measured where `systems.py` says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import socket
from collections.abc import Coroutine, Sequence
from typing import Any

import greenstalk
import nats
import nats.js.api
import pika
import redis
import stomp

from benchmarks.peers.operations import NEXT, WORK, Missing

WAIT_S = 10.0
DRAINED_S = 0.5
_PREFETCHED = 2000


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


class RabbitMQ:
    """Publisher confirms; a message is acknowledged when it has been got."""

    KIND = "quorum"

    def __init__(self, address: str) -> None:
        host, port = _place(address)
        # Nobody answers heartbeats while the others have their turn.
        where = pika.ConnectionParameters(
            host, port, heartbeat=0, blocked_connection_timeout=WAIT_S
        )
        self._connection = pika.BlockingConnection(where)
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        self._durable = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)
        self._batches: Any = None
        self._arriving: Any = None

    def create(self) -> None:
        for name in (WORK, NEXT):
            self._channel.queue_delete(self._named(name))
            self._channel.queue_declare(
                self._named(name), durable=True, arguments={"x-queue-type": self.KIND}
            )

    def _named(self, name: str) -> str:
        return f"{type(self).__name__}.{name}"

    def put(self, payload: bytes) -> None:
        self._channel.basic_publish("", self._named(WORK), payload, self._durable)

    def put_many(self, payloads: Sequence[bytes]) -> None:
        # The one transaction it has; its commit is answered when everything is on disk.
        channel = self._transactional()
        for payload in payloads:
            channel.basic_publish("", self._named(WORK), payload, self._durable)
        channel.tx_commit()

    def get(self) -> None:
        method, _, _ = self._channel.basic_get(self._named(WORK))
        if method is None:
            raise Missing
        self._channel.basic_ack(method.delivery_tag)

    def get_many(self, count: int) -> None:
        channel = self._transactional()
        if self._arriving is None:
            channel.basic_qos(prefetch_count=_PREFETCHED)
            self._arriving = channel.consume(self._named(WORK), inactivity_timeout=WAIT_S)
        last = None
        for method, _, _ in itertools.islice(self._arriving, count):
            if method is None:
                raise Missing
            last = method.delivery_tag
        channel.basic_ack(last, multiple=True)
        channel.tx_commit()

    def move(self) -> None:
        channel = self._transactional()
        method, _, payload = channel.basic_get(self._named(WORK))
        if method is None:
            raise Missing
        channel.basic_publish("", self._named(NEXT), payload, self._durable)
        channel.basic_ack(method.delivery_tag)
        channel.tx_commit()

    def _transactional(self) -> Any:
        if self._batches is None:
            self._batches = self._connection.channel()
            self._batches.tx_select()
        return self._batches

    def close(self) -> None:
        self._connection.close()


class ClassicRabbitMQ(RabbitMQ):
    """The same with a durable classic queue, which is kept by one node."""

    KIND = "classic"


class Nats:
    """JetStream, synced at every write; a message is acknowledged twice, so that it is known."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._run(self._connect(address))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    async def _connect(self, address: str) -> None:
        self._nats = await nats.connect(f"nats://{address}")
        self._stream = self._nats.jetstream()
        self._consumer: Any = None

    def create(self) -> None:
        self._run(self._create())

    async def _create(self) -> None:
        for name in (WORK, NEXT):
            if self._consumer is None:
                kept = nats.js.api.RetentionPolicy.WORK_QUEUE
                await self._stream.add_stream(name=name, subjects=[name], retention=kept)
        await self._stream.purge_stream(WORK)

    def put(self, payload: bytes) -> None:
        self._run(self._stream.publish(WORK, payload))

    def put_many(self, payloads: Sequence[bytes]) -> None:
        async def put_all() -> None:
            sent = [await self._stream.publish_async(WORK, payload) for payload in payloads]
            await asyncio.gather(*sent)

        self._run(put_all())

    def get(self) -> None:
        self.get_many(1)

    def get_many(self, count: int) -> None:
        self._run(self._get(count))

    async def _get(self, count: int) -> None:
        if self._consumer is None:
            self._consumer = await self._stream.pull_subscribe(WORK, durable=WORK)
        left = count
        while left:
            found = await self._consumer.fetch(left, timeout=WAIT_S)
            await asyncio.gather(*[message.ack_sync() for message in found])
            left -= len(found)

    def move(self) -> None:
        raise NotImplementedError("it has no transactions")

    def close(self) -> None:
        self._run(self._nats.close())
        self._loop.close()


class ActiveMQ(stomp.ConnectionListener):  # type: ignore[misc]
    """STOMP, with a receipt for everything; several messages in its transactions."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection = stomp.Connection12([_place(address)])
        self._connection.set_listener("", self)
        self._receipts: queue.Queue[str] = queue.Queue()
        self._arrived: queue.Queue[Any] = queue.Queue()
        self._numbers = itertools.count(1)
        self._connection.connect(wait=True)
        # Without this, a transaction waits for the acknowledgements of the network layer.
        self._connection.transport.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_subscribed = False

    def on_receipt(self, frame: Any) -> None:
        """The broker has done what was asked."""
        self._receipts.put(frame.headers["receipt-id"])

    def on_message(self, frame: Any) -> None:
        """A message for us."""
        self._arrived.put(frame)

    def create(self) -> None:
        # Queues are made by their first use. What is taken out by a connection of its own is not
        # held back for this one.
        with contextlib.closing(ActiveMQ(self._address)) as other:
            with contextlib.suppress(Missing):
                while True:
                    found = other._next_message(DRAINED_S)
                    other._connection.ack(found.headers["ack"])
            other._confirmed(lambda receipt: other._connection.unsubscribe(1, receipt=receipt))

    def _confirmed(self, act: Any, **more: Any) -> None:
        number = f"r{next(self._numbers)}"
        act(receipt=number, **more)
        while self._receipts.get(timeout=WAIT_S) != number:
            continue

    def _within(self, act: Any) -> None:
        name = self._connection.begin()
        act(name)
        self._confirmed(self._connection.commit, transaction=name)

    def _send(self, payload: bytes, place: str = WORK, **more: Any) -> None:
        self._connection.send(f"/queue/{place}", payload, persistent="true", **more)

    def put(self, payload: bytes) -> None:
        self._confirmed(lambda receipt: self._send(payload, receipt=receipt))

    def put_many(self, payloads: Sequence[bytes]) -> None:
        def put_all(name: str) -> None:
            for payload in payloads:
                self._send(payload, transaction=name)

        self._within(put_all)

    def get(self) -> None:
        message = self._next_message()
        number = message.headers["ack"]
        self._confirmed(lambda receipt: self._connection.ack(number, receipt=receipt))

    def get_many(self, count: int) -> None:
        def take_all(name: str) -> None:
            for _ in range(count):
                self._connection.ack(self._next_message().headers["ack"], transaction=name)

        self._within(take_all)

    def move(self) -> None:
        def move_one(name: str) -> None:
            message = self._next_message()
            self._send(message.body, NEXT, transaction=name)
            self._connection.ack(message.headers["ack"], transaction=name)

        self._within(move_one)

    def _next_message(self, wait_s: float = WAIT_S) -> Any:
        if not self._is_subscribed:
            self._connection.subscribe(
                f"/queue/{WORK}",
                id=1,
                ack="client-individual",
                headers={"activemq.prefetchSize": str(_PREFETCHED)},
            )
            self._is_subscribed = True
        try:
            return self._arrived.get(timeout=wait_s)
        except queue.Empty:
            raise Missing from None

    def close(self) -> None:
        self._connection.disconnect()


class RedisStreams:
    """A consumer group; appended to a file that is synced at every write."""

    def __init__(self, address: str) -> None:
        host, port = _place(address)
        self._redis = redis.Redis(host, port)

    def create(self) -> None:
        self._redis.delete(WORK, NEXT)
        self._redis.xgroup_create(WORK, WORK, "0", mkstream=True)

    def put(self, payload: bytes) -> None:
        self._redis.xadd(WORK, {"p": payload})

    def put_many(self, payloads: Sequence[bytes]) -> None:
        pipeline = self._redis.pipeline(transaction=True)
        for payload in payloads:
            pipeline.xadd(WORK, {"p": payload})
        pipeline.execute()

    def get(self) -> None:
        self.get_many(1)

    def get_many(self, count: int) -> None:
        self._finish([number for number, _ in self._take(count)])

    def move(self) -> None:
        [(number, fields)] = self._take(1)
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.xadd(NEXT, fields)
        pipeline.xack(WORK, WORK, number)
        pipeline.xdel(WORK, number)
        pipeline.execute()

    def _take(self, count: int) -> list[Any]:
        found: Any = self._redis.xreadgroup(WORK, "me", {WORK: ">"}, count=count)
        if not found or len(found[0][1]) != count:
            raise Missing
        messages: list[Any] = found[0][1]
        return messages

    def _finish(self, numbers: list[bytes]) -> None:
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.xack(WORK, WORK, *numbers)
        pipeline.xdel(WORK, *numbers)
        pipeline.execute()

    def close(self) -> None:
        self._redis.close()


class Beanstalkd:
    """Synced at every write. It has no transactions."""

    def __init__(self, address: str) -> None:
        self._client = greenstalk.Client(_place(address), encoding=None, use=WORK, watch=WORK)

    def create(self) -> None:
        with contextlib.suppress(greenstalk.TimedOutError):
            while True:
                self._client.delete(self._client.reserve(timeout=0))

    def put(self, payload: bytes) -> None:
        self._client.put(payload)

    def put_many(self, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            self._client.put(payload)

    def get(self) -> None:
        self._client.delete(self._client.reserve(timeout=int(WAIT_S)))

    def get_many(self, count: int) -> None:
        for _ in range(count):
            self.get()

    def move(self) -> None:
        raise NotImplementedError("it has no transactions")

    def close(self) -> None:
        self._client.close()
