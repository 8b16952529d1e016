"""Calls to push consumers and pull suppliers: order, retries, the dead, the slow, and the end."""

from __future__ import annotations

import logging

import pytest

from idl import system
from idl.cos import Disconnected, PullSupplier
from mqserver.events.settings import EventSettings
from tests.unit.mqserver.events_world import Consumer, EventWorld, drain, keys

AWAY = system.COMM_FAILURE("gone", system.Completion.MAYBE)


@pytest.fixture
def world() -> EventWorld:
    world = EventWorld()
    world.channels.start_notify("c", "q", 0)
    return world


def raising(failure: Exception) -> None:
    raise failure


class Failing(Consumer):
    """A consumer whose first calls fail."""

    def __init__(self, world: EventWorld, failure: Exception, times: int = 10**6) -> None:
        super().__init__()
        self.world = world
        self.failure = failure
        self.times = times
        self.tried: list[float] = []
        self.answer = self._fail

    def _fail(self) -> None:
        self.tried.append(self.world.time.now - 1000.0)
        if len(self.tried) <= self.times:
            raise self.failure


def test_a_push_consumer_is_told_of_what_is_there_and_of_what_is_committed(
    world: EventWorld,
) -> None:
    there = world.put(7)
    consumer = Consumer()
    world.push_to(consumer)
    assert consumer.heard == []
    world.time.settle()
    new = world.put(8, 9)
    world.time.settle()
    assert consumer.heard == [("q", there[0], 7), ("q", new[0], 8), ("q", new[1], 9)]


def test_several_consumers_of_a_channel_hear_the_same(world: EventWorld) -> None:
    consumers = [Consumer() for _ in range(3)]
    for consumer in consumers:
        world.push_to(consumer)
    put = world.put(0, 0)
    world.time.settle()
    assert [keys(consumer.heard) for consumer in consumers] == [put] * 3


def test_a_long_queue_is_pushed_in_turns_with_others(world: EventWorld) -> None:
    there = world.put(*[0] * 300)
    consumers = [Consumer(), Consumer()]
    for consumer in consumers:
        world.push_to(consumer)
    world.time.settle()
    assert [keys(consumer.heard) for consumer in consumers] == [there] * 2
    assert world.time.done.count("push") + world.time.done.count("push-slow") >= 12


def test_messages_of_other_groups_do_not_stop_the_pushing() -> None:
    world = EventWorld(EventSettings(page_max=4))
    world.channels.start_notify("c", "q", 7)
    world.put(*[8] * 100)
    wanted = world.put(7)
    consumer = Consumer()
    world.push_to(consumer)
    world.time.settle()
    assert keys(consumer.heard) == wanted


def test_a_call_that_failed_is_repeated_after_pauses_that_grow(world: EventWorld) -> None:
    consumer = Failing(world, AWAY, times=3)
    world.push_to(consumer)
    put = world.put(0, 0)
    world.time.pass_time(60.0)
    assert consumer.tried[:4] == [0.0, 0.5, 1.5, 3.5]
    assert keys(consumer.heard) == put


def test_after_a_success_the_attempts_are_counted_anew(world: EventWorld) -> None:
    consumer = Failing(world, AWAY, times=4)
    world.push_to(consumer)
    world.put(0)
    world.time.pass_time(10.0)
    consumer.times += 5
    world.put(0)
    world.time.pass_time(10.0)
    assert len(consumer.heard) == 2


def test_a_consumer_that_stays_away_is_dropped_and_the_log_says_so(
    world: EventWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "oncemq.events")
    consumer, other = Failing(world, system.UNKNOWN("one\ntwo")), Consumer()
    supplier = world.push_to(consumer)
    world.push_to(other)
    put = world.put(0)
    world.time.pass_time(60.0)
    assert consumer.tried == [0.0, 0.5, 1.5, 3.5, 7.5]
    assert keys(other.heard) == put
    assert "push consumer of local at channel c was dropped after 5 failed calls" in caplog.text
    assert "one\ntwo" not in caplog.text
    with pytest.raises(system.OBJECT_NOT_EXIST):
        supplier.disconnect_push_supplier()
    world.put(0)
    world.time.pass_time(60.0)
    assert len(consumer.tried) == 5


def test_a_consumer_that_is_no_more_is_dropped_at_once(world: EventWorld) -> None:
    consumer = Failing(world, system.OBJECT_NOT_EXIST("no such object"))
    world.push_to(consumer)
    world.put(0)
    world.time.pass_time(60.0)
    assert consumer.tried == [0.0]


def test_a_consumer_that_says_it_is_disconnected_is_dropped_and_not_told(
    world: EventWorld,
) -> None:
    consumer = Consumer()
    consumer.answer = lambda: raising(Disconnected())
    world.push_to(consumer)
    world.put(0, 0)
    world.time.pass_time(60.0)
    assert consumer.heard == []
    assert consumer.is_told == 0
    assert not world.channels.board._channels["c"].ends


def test_what_waits_for_a_consumer_that_is_away_is_bounded() -> None:
    world = EventWorld(EventSettings(events_max=5))
    world.channels.start_notify("c", "q", 0)
    consumer = Failing(world, AWAY, times=1)
    world.push_to(consumer)
    first = world.put(0)
    world.time.settle()
    for _ in range(10):
        world.put(0)
    world.time.pass_time(10.0)
    assert keys(consumer.heard) == [*first, ""]


def test_the_quick_and_the_slow_have_threads_of_their_own(world: EventWorld) -> None:
    quick, slow = Consumer(), Consumer()

    def take_long() -> None:
        world.time.now += 1.0

    slow.answer = take_long
    world.push_to(quick)
    world.push_to(slow)
    # A newcomer has to show first that it is quick.
    world.put(0)
    world.time.settle()
    world.time.done.clear()
    world.put(0)
    world.time.settle()
    assert sorted(world.time.done) == ["events", "push", "push-slow"]
    assert len(quick.heard) == len(slow.heard) == 2


def test_a_consumer_that_becomes_slow_leaves_the_threads_of_the_quick(world: EventWorld) -> None:
    consumer = Consumer()
    world.push_to(consumer)
    world.put(0)
    world.time.settle()
    world.time.done.clear()

    def take_long() -> None:
        world.time.now += 1.0

    consumer.answer = take_long
    world.put(*[0] * 5)
    world.time.pass_time(10.0)
    assert world.time.done == ["events", "push", "push-slow"]


# --- Telling the end ------------------------------------------------------------------------------


def test_a_consumer_that_disconnects_is_told_once_and_hears_no_more(world: EventWorld) -> None:
    consumer = Consumer()
    supplier = world.push_to(consumer)
    world.put(0)
    supplier.disconnect_push_supplier()
    world.time.pass_time(60.0)
    assert (consumer.heard, consumer.is_told) == ([], 1)


def test_closing_tells_everybody_and_nothing_goes_on(world: EventWorld) -> None:
    consumer = Consumer()
    world.push_to(consumer)
    supplier = world.puller()
    world.channels.close()
    assert consumer.is_told == 1
    with pytest.raises(system.OBJECT_NOT_EXIST):
        supplier.try_pull()
    with pytest.raises(system.TRANSIENT, match="shut down"):
        world.channel().for_consumers()
    world.put(0)
    world.time.pass_time(600.0)
    assert consumer.heard == []


def test_a_consumer_that_cannot_be_told_does_not_matter(world: EventWorld) -> None:
    consumer = Consumer()
    consumer.disconnect_push_consumer = lambda: raising(AWAY)  # type: ignore[method-assign]
    world.push_to(consumer)
    world.channels.close()


# --- Pull suppliers -------------------------------------------------------------------------------


class Supplier:
    """A pull supplier with a list of events."""

    def __init__(self, world: EventWorld) -> None:
        self.world = world
        self.events: list[object] = []
        self.asked: list[float] = []
        self.failure: Exception | None = None
        self.is_told = 0

    def pull(self) -> object:
        raise AssertionError("the channel asks without waiting")

    def try_pull(self) -> tuple[object, bool]:
        self.asked.append(self.world.time.now - 1000.0)
        if self.failure is not None:
            raise self.failure
        return (self.events.pop(0), True) if self.events else (None, False)

    def disconnect_pull_supplier(self) -> None:
        self.is_told += 1

    def connect(self) -> None:
        published = self.world.orb.publish(self, PullSupplier)
        consumer = self.world.channel().for_suppliers().obtain_pull_consumer()
        consumer.connect_pull_supplier(published)


def test_a_pull_supplier_is_asked_at_once_and_then_less_and_less_often(world: EventWorld) -> None:
    supplier = Supplier(world)
    supplier.events = ["one", "two"]
    consumer = world.puller()
    supplier.connect()
    world.time.pass_time(20.0)
    assert drain(consumer) == ["one", "two"]
    assert supplier.asked == [0.0, 0.0, 0.0, 0.5, 1.5, 3.5, 7.5, 12.5, 17.5]


def test_a_pull_supplier_that_stays_away_is_dropped(world: EventWorld) -> None:
    supplier = Supplier(world)
    supplier.failure = AWAY
    supplier.connect()
    world.time.pass_time(60.0)
    assert len(supplier.asked) == 5


def test_a_pull_supplier_that_has_disconnected_is_asked_no_more(world: EventWorld) -> None:
    supplier = Supplier(world)
    supplier.failure = Disconnected()
    supplier.connect()
    world.time.pass_time(60.0)
    assert (len(supplier.asked), supplier.is_told) == (1, 0)


def test_an_event_that_is_too_large_is_left_out_and_the_next_is_not(
    world: EventWorld, caplog: pytest.LogCaptureFixture
) -> None:
    supplier = Supplier(world)
    supplier.events = [bytes(100_000), "small"]
    consumer = world.puller()
    supplier.connect()
    world.time.settle()
    assert drain(consumer) == ["small"]
    assert "was left out" in caplog.text
