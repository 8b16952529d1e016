"""Event channels from outside: CosEvent's rules, whose an object is, and who may destroy what."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from idl import system
from idl.cos import (
    AlreadyConnected,
    Disconnected,
    PullConsumer,
    PullSupplier,
    PushConsumer,
    PushSupplier,
)
from idl.cos import TypeError as WrongPeer
from idl.mapping import operations_of
from mqserver.events.settings import EventSettings
from mqserver.interfaces import events
from tests.unit.mqserver.events_world import Consumer, EventWorld, drain


@pytest.fixture
def world() -> EventWorld:
    return EventWorld(is_operator=lambda principal: principal == "olga")


class Peer:
    """Somebody who is told of the end."""

    def __init__(self) -> None:
        self.is_told = 0

    def disconnect_pull_consumer(self) -> None:
        self.is_told += 1

    def disconnect_push_supplier(self) -> None:
        self.is_told += 1


# --- The servants have what their interfaces say --------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "ConsumerAdmin",
        "SupplierAdmin",
        "ProxyPushSupplier",
        "ProxyPullSupplier",
        "ProxyPushConsumer",
        "ProxyPullConsumer",
    ],
)
def test_a_servant_has_all_operations_of_its_interface(name: str) -> None:
    servant = getattr(events, f"{name}Servant")
    assert all(callable(getattr(servant, each)) for each in operations_of(getattr(events, name)))


# --- Channels -------------------------------------------------------------------------------------


def test_a_channel_is_there_when_it_is_named(world: EventWorld) -> None:
    assert drain(world.puller("never-heard-of")) == []


@pytest.mark.parametrize("name", ["", "a/b", "..\n", "x" * 129, "a b", "\u202eabc", "a\0"])
def test_a_name_that_no_channel_can_have_is_refused(world: EventWorld, name: str) -> None:
    with pytest.raises(system.BAD_PARAM, match="channel name"):
        world.channels.start_notify(name, "q", 0)


def test_a_name_that_no_channel_can_have_leads_to_no_object(world: EventWorld) -> None:
    with pytest.raises(system.OBJECT_NOT_EXIST):
        world.channel("a/b").for_consumers()


def test_asking_for_a_side_of_the_channel_again_makes_no_new_object(world: EventWorld) -> None:
    assert world.channel().for_consumers() == world.channel().for_consumers()
    assert world.channel().for_suppliers() == world.channel().for_suppliers()


def test_a_channel_is_destroyed_by_whoever_made_it(world: EventWorld) -> None:
    consumer = Consumer()
    with world.called_by("alice"):
        supplier = world.puller()
        admin = world.channel().for_consumers()
    with world.called_by("bob"):
        world.push_to(consumer)
    with world.called_by("alice"):
        world.channel().destroy()
        world.time.settle()
        assert consumer.is_told == 1
        with pytest.raises(system.OBJECT_NOT_EXIST):
            supplier.try_pull()
        with pytest.raises(system.OBJECT_NOT_EXIST):
            admin.obtain_pull_supplier()
        assert drain(world.puller()) == []


def test_an_operator_destroys_any_channel_and_nobody_else_does(world: EventWorld) -> None:
    with world.called_by("alice"):
        world.puller("hers")
    with world.called_by("mallory"):
        told = set()
        for name in ("hers", "unknown"):
            with pytest.raises(system.NO_PERMISSION) as refused:
                world.channel(name).destroy()
            told.add(refused.value.reason)
        assert len(told) == 1
    with world.called_by("olga"):
        world.channel("hers").destroy()
        with pytest.raises(system.OBJECT_NOT_EXIST):
            world.channel("hers").destroy()


# --- The rules of CosEvent ------------------------------------------------------------------------


def test_what_is_not_connected_is_disconnected(world: EventWorld) -> None:
    pulled = world.channel().for_consumers().obtain_pull_supplier()
    pushed = world.channel().for_suppliers().obtain_push_consumer()
    for use in (pulled.pull, pulled.try_pull, lambda: pushed.push("x")):
        with pytest.raises(Disconnected):
            use()


def test_connecting_twice_is_already_connected(world: EventWorld) -> None:
    consumers, suppliers = world.channel().for_consumers(), world.channel().for_suppliers()
    somebody = world.orb.publish(Consumer(), PushConsumer)
    source = world.orb.member("somewhere", PullSupplier)
    connections: list[Callable[[], None]] = [
        partial(consumers.obtain_pull_supplier().connect_pull_consumer, None),
        partial(suppliers.obtain_push_consumer().connect_push_supplier, None),
        partial(consumers.obtain_push_supplier().connect_push_consumer, somebody),
        partial(suppliers.obtain_pull_consumer().connect_pull_supplier, source),
    ]
    for connect in connections:
        connect()
        with pytest.raises(AlreadyConnected):
            connect()


def test_nobody_to_call_is_refused_where_the_channel_must_call(world: EventWorld) -> None:
    with pytest.raises(system.BAD_PARAM, match="not nil"):
        world.channel().for_consumers().obtain_push_supplier().connect_push_consumer(None)
    with pytest.raises(system.BAD_PARAM, match="not nil"):
        world.channel().for_suppliers().obtain_pull_consumer().connect_pull_supplier(None)


def test_channels_are_not_tied_to_each_other(world: EventWorld) -> None:
    pushed = world.channel("a").for_suppliers().obtain_push_consumer()
    pulled = world.channel("a").for_consumers().obtain_pull_supplier()
    with pytest.raises(WrongPeer):
        world.channel("b").for_consumers().obtain_push_supplier().connect_push_consumer(pushed)
    with pytest.raises(WrongPeer):
        world.channel("b").for_suppliers().obtain_pull_consumer().connect_pull_supplier(pulled)


def test_a_disconnect_is_final_and_the_other_side_is_told_once(world: EventWorld) -> None:
    peers = [Peer(), Peer()]
    pulled = world.channel().for_consumers().obtain_pull_supplier()
    pulled.connect_pull_consumer(world.orb.publish(peers[0], PullConsumer))
    pushed = world.channel().for_suppliers().obtain_push_consumer()
    pushed.connect_push_supplier(world.orb.publish(peers[1], PushSupplier))
    for disconnect in (pulled.disconnect_pull_supplier, pushed.disconnect_push_consumer):
        disconnect()
        with pytest.raises(system.OBJECT_NOT_EXIST):
            disconnect()
    world.time.settle()
    assert [peer.is_told for peer in peers] == [1, 1]


def test_an_application_pushes_its_own_events_to_every_consumer(world: EventWorld) -> None:
    consumer, puller = Consumer(), world.puller()
    world.push_to(consumer)
    pushed = world.channel().for_suppliers().obtain_push_consumer()
    pushed.connect_push_supplier(None)
    told: list[Any] = ["text", 1, None, ("queue", "key", 0), {"a": (b"bytes", 1.5)}]
    for event in told:
        pushed.push(event)
    world.time.settle()
    assert consumer.heard == told
    assert drain(puller) == told


def test_an_event_that_is_too_large_is_refused(world: EventWorld) -> None:
    pushed = world.channel().for_suppliers().obtain_push_consumer()
    pushed.connect_push_supplier(None)
    for event in (bytes(20_000), ("x",) * 2000, {"a": "x" * 20_000}):
        with pytest.raises(system.IMP_LIMIT, match="push its key"):
            pushed.push(event)


def test_a_push_supplier_that_falls_silent_is_dropped() -> None:
    world = EventWorld(EventSettings(supplier_silent_s=3600.0))
    pushed = world.channel().for_suppliers().obtain_push_consumer()
    pushed.connect_push_supplier(None)
    world.time.pass_time(3000.0)
    pushed.push("still there")
    world.time.pass_time(3700.0)
    with pytest.raises(system.OBJECT_NOT_EXIST):
        pushed.push("too late")


# --- Whose an object is ---------------------------------------------------------------------------


def uses_of_alices_objects(world: EventWorld) -> list[Callable[[], object]]:
    """Every operation of every object that alice was given."""
    channel = world.channel()
    consumers, suppliers = channel.for_consumers(), channel.for_suppliers()
    pull_supplier, push_supplier = world.puller(), consumers.obtain_push_supplier()
    push_consumer, pull_consumer = (
        suppliers.obtain_push_consumer(),
        suppliers.obtain_pull_consumer(),
    )
    return [
        consumers.obtain_pull_supplier,
        consumers.obtain_push_supplier,
        suppliers.obtain_pull_consumer,
        suppliers.obtain_push_consumer,
        pull_supplier.pull,
        pull_supplier.try_pull,
        pull_supplier.disconnect_pull_supplier,
        lambda: pull_supplier.connect_pull_consumer(None),
        lambda: push_supplier.connect_push_consumer(None),
        push_supplier.disconnect_push_supplier,
        lambda: push_consumer.connect_push_supplier(None),
        lambda: push_consumer.push("x"),
        push_consumer.disconnect_push_consumer,
        lambda: pull_consumer.connect_pull_supplier(None),
        pull_consumer.disconnect_pull_consumer,
    ]


def test_anothers_object_is_refused_in_the_words_for_one_that_is_not_there(
    world: EventWorld,
) -> None:
    with world.called_by("alice"):
        uses = uses_of_alices_objects(world)
    with world.called_by("mallory"):
        told = [refusal(use) for use in uses]
    with world.called_by("alice"):
        world.channel().destroy()
        never = [refusal(use) for use in uses]
    assert told == never


def refusal(use: Callable[[], object]) -> str:
    with pytest.raises(system.OBJECT_NOT_EXIST) as refused:
        use()
    return refused.value.reason


def test_objects_are_named_so_that_nobody_guesses_them(world: EventWorld) -> None:
    references = {world.orb.reference_of(world.puller()) for _ in range(10)}
    assert len(references) == 10
    assert all(len(reference) > len("PYRO:object/@in-process:0") + 31 for reference in references)
