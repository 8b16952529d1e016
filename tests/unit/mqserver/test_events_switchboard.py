"""Who hears of what: subscriptions, existing and new messages, limits, silence, and no gap."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idl import system
from idl.call import repeating
from idl.cos import Disconnected
from mqserver.arrivals import Arrival
from mqserver.events.feed import is_wanted
from mqserver.events.settings import EventSettings
from mqserver.queues import key_text
from mqserver.storage.contract import EVERYTHING, NewMessage
from tests.unit.mqserver.events_world import Consumer, EventWorld, drain, is_gone, keys

LOOK = ("q", "", 0)


@pytest.fixture
def world() -> EventWorld:
    return EventWorld()


# --- What is heard --------------------------------------------------------------------------------


def test_a_consumer_hears_of_what_is_there_and_then_of_what_is_committed(world: EventWorld) -> None:
    (first,) = world.put(7)
    supplier = world.listening()
    (second,) = world.put(8)
    assert drain(supplier) == [("q", first, 7), ("q", second, 8)]
    (third,) = world.put(0)
    assert drain(supplier) == [("q", third, 0)]


def test_what_is_not_committed_is_not_heard_of(world: EventWorld) -> None:
    supplier = world.listening()
    branch = world.store(1)
    assert drain(supplier) == []
    world.storage.commit_one_phase(branch)
    assert len(drain(supplier)) == 1


def test_a_message_that_returns_is_heard_of_again(world: EventWorld) -> None:
    supplier = world.listening()
    world.put(0)
    heard = drain(supplier)
    world.storage.rollback(world.take())
    assert drain(supplier) == heard


def test_it_does_not_matter_whether_connecting_or_subscribing_comes_first(
    world: EventWorld,
) -> None:
    there = world.put(0)
    supplier = world.puller()
    assert drain(supplier) == []
    world.channels.start_notify("c", "q", 0)
    assert keys(drain(supplier)) == there


def test_a_late_consumer_hears_of_what_is_there_and_the_others_do_not_hear_again(
    world: EventWorld,
) -> None:
    early = world.listening()
    there = world.put(0, 0)
    assert keys(drain(early)) == there
    late = world.listening()
    assert drain(early) == []
    assert keys(drain(late)) == there
    new = world.put(0)
    assert keys(drain(early)) == keys(drain(late)) == new


def test_groups_are_kept_apart_by_channel(world: EventWorld) -> None:
    seven = world.listening(7, "sevens")
    every = world.listening(0, "all")
    put = world.put(7, 8, 0)
    assert keys(drain(seven)) == [put[0], put[2]]
    assert keys(drain(every)) == put


def test_a_channel_hears_of_several_queues(world: EventWorld) -> None:
    world.create("other")
    supplier = world.listening()
    world.channels.start_notify("c", "other", 0)
    world.put(0)
    world.put(0, queue="other")
    assert sorted(queue for queue, _, _ in drain(supplier)) == ["other", "q"]


def test_an_arrival_without_keys_tells_to_look(world: EventWorld) -> None:
    supplier = world.listening()
    drain(supplier)
    world.channels.arrived(Arrival("q", (), ()))
    world.channels.arrived(Arrival("q", (), ()))
    assert drain(supplier) == [LOOK]


def test_a_queue_that_is_still_to_be_made_is_heard_of_from_its_first_message(
    world: EventWorld,
) -> None:
    supplier = world.listening(queue="later")
    assert drain(supplier) == []
    world.create("later")
    world.put(0, queue="later")
    assert len(drain(supplier)) == 1


def test_a_storage_that_fails_makes_the_consumer_look(world: EventWorld) -> None:
    supplier = world.listening()
    world.memory.is_failing = True
    assert drain(supplier) == [LOOK]


def test_a_long_queue_is_read_in_pages_and_only_as_it_is_heard(world: EventWorld) -> None:
    there = world.put(*[0] * 500)
    supplier = world.listening()
    for _ in range(20):
        supplier.try_pull()
    assert world.memory.pages == [4, 8, 16]
    assert len(drain(supplier)) == len(there) - 20
    assert max(world.memory.pages) <= 256


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_is_committed_while_a_page_is_read_is_heard_of_once(
    world: EventWorld, moment: str
) -> None:
    there = world.put(0)
    supplier = world.listening()
    new = list[str]()
    setattr(world.memory, moment, lambda: new.extend(world.put(0, 0)))
    assert keys(drain(supplier)) == there + new


def test_large_messages_are_read_few_at_a_time() -> None:
    world = EventWorld(EventSettings(page_bytes=4))
    world.put(*[0] * 20)
    assert len(drain(world.listening())) == 20
    assert max(world.memory.pages) <= 4


def test_try_pull_passes_over_much_that_is_of_no_interest_without_taking_long() -> None:
    world = EventWorld(EventSettings(page_max=4))
    world.put(*[8] * 100)
    wanted = world.put(7)
    supplier = world.listening(7)
    assert supplier.try_pull() == (None, False)
    assert len(world.memory.pages) == 8
    while not (pulled := supplier.try_pull())[1]:
        assert len(world.memory.pages) < 50
    assert keys([pulled[0]]) == wanted


def test_pull_goes_on_reading_while_there_is_something_to_read() -> None:
    world = EventWorld(EventSettings(page_max=4))
    world.put(*[8] * 100)
    wanted = world.put(7)
    assert keys([world.listening(7).pull()]) == wanted
    assert world.waits == []


def test_who_does_not_keep_up_is_told_to_look() -> None:
    world = EventWorld(EventSettings(events_max=10))
    supplier = world.listening()
    quick = world.puller()
    assert drain(supplier) == drain(quick) == []
    for _ in range(4):
        world.put(0, 0, 0)
        assert len(drain(quick)) == 3
    assert drain(supplier) == [LOOK]


def test_much_that_arrives_at_once_becomes_a_look() -> None:
    world = EventWorld(EventSettings(inbox_max=10))
    supplier = world.listening()
    assert drain(supplier) == []
    for _ in range(4):
        world.put(0, 0, 0)
    assert drain(supplier) == [LOOK]


def test_commits_do_not_touch_the_consumers(world: EventWorld) -> None:
    consumer = Consumer()
    world.channels.start_notify("c", "q", 0)
    world.push_to(consumer)
    world.time.settle()
    with world.channels.board._lock:
        world.put(0)
    assert consumer.heard == []
    world.time.settle()
    assert len(consumer.heard) == 1


# --- Permission -----------------------------------------------------------------------------------


def test_only_those_who_may_browse_a_queue_hear_of_it() -> None:
    allowed = {("alice", "q")}
    world = EventWorld(may_browse=lambda *asked: asked in allowed)
    world.put(0)
    world.channels.start_notify("c", "q", 0)
    with world.called_by("alice"):
        hers = world.puller()
        assert len(drain(hers)) == 1
    with world.called_by("mallory"):
        his = world.puller()
        world.put(0)
        assert drain(his) == []
    with world.called_by("alice"):
        assert len(drain(hers)) == 1


def test_who_loses_the_permission_hears_no_more() -> None:
    allowed = {("alice", "q")}
    world = EventWorld(may_browse=lambda *asked: asked in allowed)
    with world.called_by("alice"):
        hers = world.listening()
        assert drain(hers) == []
        world.put(0)
        allowed.clear()
        assert drain(hers) == []


# --- Waiting --------------------------------------------------------------------------------------


def test_pull_waits_for_the_next_message(world: EventWorld) -> None:
    supplier = world.listening()
    world.while_waiting = lambda: world.put(7)
    event = supplier.pull()
    assert [event] == [("q", world.last_keys[0], 7)]
    assert world.waits == [20.0]


def test_pull_that_waited_long_enough_says_so_and_nothing_is_lost(world: EventWorld) -> None:
    supplier = world.listening()
    with pytest.raises(system.TIMEOUT, match="pull again") as told:
        supplier.pull()
    assert told.value.completed is system.Completion.NO
    world.put(0)
    assert len(drain(supplier)) == 1


def test_whoever_waits_is_told_when_the_channel_is_destroyed(world: EventWorld) -> None:
    supplier = world.listening()
    world.while_waiting = lambda: world.channels.board.destroy("c")
    with pytest.raises(Disconnected):
        supplier.pull()


def test_a_pull_that_is_repeated_gets_the_same_event(world: EventWorld) -> None:
    supplier = world.listening()
    put = world.put(0, 0)
    with repeating(bytes(16)):
        assert keys([supplier.pull()]) == keys([supplier.pull()]) == put[:1]
    assert keys(drain(supplier)) == put[1:]


# --- Silence --------------------------------------------------------------------------------------


def test_a_pull_consumer_that_pulls_no_more_is_dropped(world: EventWorld) -> None:
    silent, lively = world.listening(), world.puller()
    for _ in range(11):
        world.time.pass_time(30.0)
        assert lively.try_pull() == (None, False)
    assert is_gone(silent)
    assert not is_gone(lively)


def test_what_was_obtained_and_never_connected_is_dropped(world: EventWorld) -> None:
    supplier = world.channel().for_consumers().obtain_push_supplier()
    world.time.pass_time(330.0)
    with pytest.raises(system.OBJECT_NOT_EXIST):
        supplier.disconnect_push_supplier()


def test_a_channel_that_nobody_uses_is_forgotten_and_can_be_made_again(world: EventWorld) -> None:
    world.listening()
    world.time.pass_time(700.0)
    assert world.channels.board.creator_of("c") is None
    world.put(0)
    assert len(drain(world.listening())) == 1


def test_a_push_consumer_that_nothing_was_said_to_is_told_to_look(world: EventWorld) -> None:
    consumer = Consumer()
    world.push_to(consumer)
    world.time.pass_time(330.0)
    assert consumer.heard == [("", "", 0)]


def test_where_other_nodes_write_too_consumers_look_while_there_is_something() -> None:
    world = EventWorld(is_shared=True)
    supplier = world.listening()
    world.time.pass_time(10.0)
    assert drain(supplier) == []
    # Another node commits: nothing arrives here.
    world.memory.store(b"theirs", "q", [NewMessage(b"x", 0)])
    world.memory.commit_one_phase(b"theirs")
    world.time.pass_time(10.0)
    assert drain(supplier) == [LOOK]
    world.memory.take(b"ours", "q", EVERYTHING, 1)
    world.time.pass_time(10.0)
    assert drain(supplier) == []


# --- Limits ---------------------------------------------------------------------------------------


def test_there_are_so_many_channels_at_a_node() -> None:
    world = EventWorld(EventSettings(channels_max=2))
    world.puller("a")
    world.puller("b")
    with pytest.raises(system.IMP_LIMIT, match="2 channels; 2 are allowed"):
        world.puller("c")
    world.puller("b")


def test_a_principal_makes_so_many_channels_and_others_are_not_held_up() -> None:
    world = EventWorld(EventSettings(channels_per_principal_max=2))
    with world.called_by("mallory"):
        world.puller("a")
        world.puller("b")
        with pytest.raises(system.IMP_LIMIT, match="mallory has made 2 channels"):
            world.channel("c").for_suppliers()
    with world.called_by("alice"):
        world.puller("c")


def test_a_channel_has_so_many_consumers_and_a_place_is_free_again_when_one_leaves() -> None:
    world = EventWorld(EventSettings(ends_per_channel_max=2))
    first = world.puller()
    world.puller()
    with pytest.raises(system.IMP_LIMIT, match="'c' has 2 consumers"):
        world.puller()
    first.disconnect_pull_supplier()
    world.puller()


def test_a_principal_holds_so_many_ends_over_all_channels() -> None:
    world = EventWorld(EventSettings(ends_per_principal_max=2))
    with world.called_by("mallory"):
        world.puller("a")
        last = world.puller("b")
        with pytest.raises(system.IMP_LIMIT, match="mallory holds 2 ends"):
            world.puller("c")
        last.disconnect_pull_supplier()
        world.puller("c")
    with world.called_by("alice"):
        world.puller("a")


def test_a_channel_hears_of_so_many_queues_and_groups() -> None:
    world = EventWorld(EventSettings(subscriptions_per_channel_max=2))
    world.channels.start_notify("c", "q", 1)
    world.channels.start_notify("c", "q", 2)
    world.channels.start_notify("c", "q", 2)
    with pytest.raises(system.IMP_LIMIT, match="use another channel"):
        world.channels.start_notify("c", "q", 3)


# --- No gap, whatever the order -------------------------------------------------------------------

STEPS: st.SearchStrategy[tuple[str, int]] = st.tuples(
    st.sampled_from(["put", "put", "roll back", "pull", "pull", "notify", "join", "work"]),
    st.integers(0, 3),
)
MOMENT = st.sampled_from(["", "before", "after"])


@given(st.integers(2, 6), st.lists(st.tuples(MOMENT, STEPS), max_size=40))
def test_whoever_keeps_pulling_misses_nothing(
    events_max: int, drawn: list[tuple[str, tuple[str, int]]]
) -> None:
    world = EventWorld(EventSettings(events_max=events_max, page_max=4, inbox_max=12))
    run = Run(world)
    for moment, (what, number) in drawn:
        step = run.step(what, number)
        if moment:
            # It happens while a page is being read, or with the next step at the latest.
            setattr(world.memory, moment, step)
        else:
            step()
    world.memory.before = world.memory.after = None
    run.finish()


class Run:
    """Consumers come, pull and hear, while messages come and return; at the end nobody misses one.

    What a consumer hears counts when it was heard after the message could last be had.
    """

    def __init__(self, world: EventWorld) -> None:
        self.world = world
        self.time = 0
        self.since: dict[str, tuple[int, int]] = {}
        self.groups: set[int] = set()
        self.pullers = [world.puller()]
        self.heard: list[dict[str, int]] = [{}]

    def step(self, what: str, number: int) -> Callable[[], None]:
        actions: dict[str, Callable[[], None]] = {
            "put": lambda: self.put(number),
            "roll back": self.roll_back,
            "pull": lambda: self.pull(number % len(self.pullers)),
            "notify": lambda: self.notify(number),
            "join": self.join,
            "work": self.world.time.settle,
        }
        return actions[what]

    def put(self, group: int) -> None:
        self.time += 1
        branch = self.world.store(group, group)
        self.since |= {key: (group, self.time) for key in self.world.last_keys}
        self.world.storage.commit_one_phase(branch)

    def roll_back(self) -> None:
        self.time += 1
        taken = self.world.storage.take(b"taker%d" % self.time, "q", EVERYTHING, 1)
        for message in taken:
            self.since[key_text(message.key)] = (message.group, self.time)
        self.world.storage.rollback(b"taker%d" % self.time)

    def pull(self, number: int) -> None:
        event, has_event = self.pullers[number].try_pull()
        if has_event:
            assert isinstance(event, tuple)
            self.heard[number][event[1]] = self.time

    def notify(self, group: int) -> None:
        self.groups.add(group)
        self.world.channels.start_notify("c", "q", group)

    def join(self) -> None:
        self.pullers.append(self.world.puller())
        self.heard.append({})

    def finish(self) -> None:
        """Everybody hears all there is, and what each must have heard of is compared."""
        for number, supplier in enumerate(self.pullers):
            for event in drain(supplier):
                self.heard[number][event[1]] = self.time
            looked = self.heard[number].get("", -1)
            for key, (group, since) in self.since.items():
                if is_wanted(self.groups, group):
                    assert max(self.heard[number].get(key, -1), looked) >= since
