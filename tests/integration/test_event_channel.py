"""The event channel over the network: push and pull, the slow, the hanging, the dead, strangers."""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from idl import system
from idl.access import Token, Tokens, token_entry
from idl.call import Address
from idl.cos import (
    Disconnected,
    EventChannel,
    ProxyPullSupplier,
    ProxyPushSupplier,
    PushConsumer,
)
from idl.orb import NetworkOrb
from mqserver.arrivals import WatchedStorage
from mqserver.events.settings import EventSettings
from mqserver.interfaces.events import Channels
from mqserver.queues import key_text
from mqserver.storage.contract import NewMessage, QueueSettings
from mqserver.storage.memory import MemoryStorage

ANYWHERE = Address("127.0.0.1", 0)
LONG_S = 20.0
SETTINGS = EventSettings(
    push_timeout_s=0.5,
    push_attempts=3,
    retry_first_s=0.05,
    retry_longest_s=0.1,
    slow_s=0.1,
    pull_wait_s=4.0,
    close_s=3.0,
)
TOKENS = {name: f"{name}.{'0123456789abcdef' * 2}" for name in ("alice", "mallory")}


class Node:
    """Channels, one queue, and an orb that listens."""

    def __init__(self, settings: EventSettings = SETTINGS) -> None:
        entries = dict(token_entry(token).split(":") for token in TOKENS.values())
        self.orb = NetworkOrb(ANYWHERE, authenticator=Tokens(entries))
        self.storage = WatchedStorage(MemoryStorage(time.monotonic))
        self.storage.create_queue("q", QueueSettings())
        self.channels = Channels(self.orb, self.storage, settings, time.monotonic)
        self.channels.publish()
        self.storage.listen(self.channels.arrived)
        self._branches = itertools.count()

    def put(self, count: int = 1) -> list[str]:
        branch = b"branch%d" % next(self._branches)
        keys = self.storage.store(branch, "q", [NewMessage(b"x", 0)] * count)
        self.storage.commit_one_phase(branch)
        return list(map(key_text, keys))

    def close(self) -> None:
        self.channels.close()
        self.orb.close()


class Client:
    """Somebody with an orb of their own, which can be called back."""

    def __init__(self, node: Node, name: str = "alice") -> None:
        self._node = node
        self.orb = NetworkOrb(ANYWHERE, token=Token(TOKENS[name]), timeout_s=10.0)

    def channel(self, name: str = "c") -> EventChannel:
        return self.orb.proxy(f"PYRO:channel/{name}@{self._node.orb.address}", EventChannel)

    def connect(self, consumer: PushConsumer) -> ProxyPushSupplier:
        supplier = self.channel().for_consumers().obtain_push_supplier()
        supplier.connect_push_consumer(consumer)
        return supplier

    def puller(self) -> ProxyPullSupplier:
        supplier = self.channel().for_consumers().obtain_pull_supplier()
        supplier.connect_pull_consumer(None)
        return supplier


class Consumer:
    """A push consumer, and how long it takes for each event."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.heard: list[Any] = []
        self.is_told = threading.Event()
        self._takes_s = takes_s

    def push(self, data: object) -> None:
        time.sleep(self._takes_s)
        self.heard.append(data)

    def disconnect_push_consumer(self) -> None:
        self.is_told.set()

    def keys(self) -> list[str]:
        return [key for _, key, _ in self.heard]


@pytest.fixture
def node() -> Iterator[Node]:
    with contextlib.closing(Node()) as node:
        node.channels.start_notify("c", "q", 0)
        yield node


@pytest.fixture
def alice(node: Node) -> Iterator[Client]:
    client = Client(node)
    with contextlib.closing(client.orb):
        yield client


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.005)


def ends_of(node: Node) -> int:
    channel = node.channels.board._channels.get("c")
    return 0 if channel is None else len(channel.ends)


def run_consumer() -> None:
    """In a process of its own: a consumer that says where it is, and hears until it is killed."""
    orb = NetworkOrb(ANYWHERE)
    sys.stdout.write(orb.reference_of(orb.publish(Consumer(), PushConsumer)) + "\n")
    sys.stdout.flush()
    threading.Event().wait()


@contextlib.contextmanager
def consumer_process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    run = "from tests.integration.test_event_channel import run_consumer; run_consumer()"
    process = subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


# --- Push and pull --------------------------------------------------------------------------------


def test_push_and_pull_consumers_hear_of_what_is_there_and_of_every_commit(
    node: Node, alice: Client
) -> None:
    there = node.put(300)
    consumer = Consumer()
    alice.connect(alice.orb.publish(consumer, PushConsumer))
    supplier = alice.puller()
    new = [node.put()[0] for _ in range(20)]
    pulled: list[Any] = [supplier.pull() for _ in range(320)]
    assert sorted(key for _, key, _ in pulled) == there + new
    # A commit that meets the reading of what is there may be told twice.
    wait_until(lambda: set(consumer.keys()) == {*there, *new})


def test_a_waiting_pull_is_answered_by_a_commit(node: Node, alice: Client) -> None:
    supplier = alice.puller()
    timer = threading.Timer(0.1, node.put)
    timer.start()
    began = time.monotonic()
    event = supplier.pull()
    timer.join()
    assert [event] == [("q", key_text(1), 0)]
    assert time.monotonic() - began < SETTINGS.pull_wait_s


def test_consumers_that_come_and_go_while_messages_are_committed_miss_none(
    node: Node, alice: Client
) -> None:
    done = threading.Event()

    def write() -> None:
        for _ in range(150):
            node.put(2)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    heard: list[set[str]] = []
    for _ in range(4):
        keys, supplier = set[str](), alice.puller()
        is_over = False
        while not is_over:
            is_over = done.is_set()
            pulled: Any = supplier.try_pull()
            while pulled[1]:
                keys.add(pulled[0][1])
                pulled = supplier.try_pull()
        heard.append(keys)
    writer.join()
    assert all(len(keys) == 300 or "" in keys for keys in heard)


# --- The slow, the hanging and the killed ---------------------------------------------------------


def test_neither_slow_nor_hanging_nor_dead_consumers_hold_up_the_others(
    node: Node, alice: Client, caplog: pytest.LogCaptureFixture
) -> None:
    quick, slow = Consumer(), Consumer(takes_s=0.15)
    alice.connect(alice.orb.publish(quick, PushConsumer))
    alice.connect(alice.orb.publish(slow, PushConsumer))
    with socket.create_server(("127.0.0.1", 0)) as mute, consumer_process() as (process, where):
        port = mute.getsockname()[1]
        alice.connect(alice.orb.proxy(f"PYRO:mute@127.0.0.1:{port}", PushConsumer))
        dead = alice.orb.proxy(where, PushConsumer)
        alice.connect(dead)
        first = node.put()
        wait_until(lambda: quick.keys() == first and slow.keys() == first)
        process.kill()
        process.wait()
        began = time.monotonic()
        later = node.put(200)
        assert time.monotonic() - began < LONG_S / 4, "a commit waited for consumers"
        wait_until(lambda: quick.keys() == first + later)
        assert len(slow.heard) < len(quick.heard)
        wait_until(lambda: ends_of(node) == 2)
    assert caplog.text.count("was dropped after 3 failed calls") == 2
    wait_until(lambda: len(slow.heard) > 5)
    assert slow.keys() == (first + later)[: len(slow.heard)]


def test_one_dead_among_a_hundred_is_dropped_and_ninety_nine_hear_all(
    node: Node, alice: Client
) -> None:
    gone = NetworkOrb(ANYWHERE)
    alice.connect(gone.publish(Consumer(), PushConsumer))
    gone.close()
    consumers = [Consumer() for _ in range(99)]
    for consumer in consumers:
        alice.connect(alice.orb.publish(consumer, PushConsumer))
    keys = node.put(5)
    wait_until(lambda: all(consumer.keys() == keys for consumer in consumers))
    wait_until(lambda: ends_of(node) == 99)


def test_closing_tells_those_who_listen_and_does_not_wait_for_those_who_do_not() -> None:
    node = Node()
    client = Client(node)
    told = list[type[BaseException]]()
    with contextlib.closing(client.orb), socket.create_server(("127.0.0.1", 0)) as mute:
        consumer = Consumer()
        client.connect(client.orb.publish(consumer, PushConsumer))
        for _ in range(5):
            port = mute.getsockname()[1]
            client.connect(client.orb.proxy(f"PYRO:mute@127.0.0.1:{port}", PushConsumer))
        supplier = client.puller()

        def wait() -> None:
            try:
                supplier.pull()
            except (Disconnected, system.SystemException) as ended:
                told.append(type(ended))

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: any(end.waiting for end in node.channels.board._channels["c"].ends))
        began = time.monotonic()
        node.channels.close()
        assert time.monotonic() - began < SETTINGS.close_s + 1.0
        assert consumer.is_told.wait(LONG_S)
        waiting.join(LONG_S)
        assert told == [Disconnected]
        node.orb.close()


# --- Strangers ------------------------------------------------------------------------------------


def test_a_consumer_at_a_foreign_host_is_refused_and_nothing_goes_there(
    node: Node, alice: Client
) -> None:
    supplier = alice.channel().for_consumers().obtain_push_supplier()
    for place in ("192.0.2.1:7411", "example.invalid:80", "[2001:db8::1]:7411"):
        foreign = alice.orb.proxy(f"PYRO:consumer@{place}", PushConsumer)
        with pytest.raises(system.NO_PERMISSION, match="may name"):
            supplier.connect_push_consumer(foreign)
    # It is still to be connected, by somebody who can be.
    consumer = Consumer()
    supplier.connect_push_consumer(alice.orb.publish(consumer, PushConsumer))
    keys = node.put()
    wait_until(lambda: consumer.keys() == keys)


def test_what_alice_was_given_is_of_no_use_to_mallory(node: Node, alice: Client) -> None:
    supplier = alice.puller()
    reference = alice.orb.reference_of(supplier)
    with contextlib.closing(Client(node, "mallory").orb) as orb:
        with pytest.raises(system.OBJECT_NOT_EXIST) as foreign:
            orb.proxy(reference, ProxyPullSupplier).try_pull()
        unknown = f"PYRO:object/{'0' * 32}@{node.orb.address}"
        with pytest.raises(system.OBJECT_NOT_EXIST) as never:
            orb.proxy(unknown, ProxyPullSupplier).try_pull()
    named = reference.removeprefix("PYRO:").partition("@")[0]
    assert foreign.value.reason == never.value.reason.replace(f"object/{'0' * 32}", named)
    node.put()
    assert supplier.try_pull()[1]
