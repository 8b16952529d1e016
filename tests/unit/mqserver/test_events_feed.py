"""What one consumer is still to hear: its order, how much of it, and that nothing is missed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqserver.events.feed import EVERYWHERE, Entry, Feed, Seen, is_wanted

QUEUE = "q"


def read_page(feed: Feed, *messages: Seen) -> bool:
    """One page is read from a queue that holds these; whether there was one to read."""
    page = feed.begin_page()
    if page is None:
        return False
    behind = [seen for seen in messages if seen.key > page.after]
    feed.end_page(behind[: page.limit], is_small=True)
    return True


def drain(feed: Feed, *messages: Seen) -> list[Entry]:
    """All that is to be heard, with the queue holding these messages."""
    heard = list[Entry]()
    while True:
        while (entry := feed.take()) is not None:
            heard.append(entry)
        if not read_page(feed, *messages):
            return heard


def keys(entries: list[Entry]) -> list[int]:
    return [entry.key for entry in entries]


def subscribed(events_max: int = 10, group: int = 0) -> Feed:
    """A feed of somebody who has read the empty queue."""
    feed = Feed(events_max, page_max=100)
    feed.subscribe(QUEUE, group)
    assert drain(feed) == []
    return feed


# --- Groups --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "group", "expected"),
    [
        ({0}, 7, True),
        ({7}, 7, True),
        ({7}, 8, False),
        ({7}, 0, True),
        ({0}, 0, True),
        (set[int](), 0, False),
        (set[int](), 7, False),
    ],
)
def test_group_nought_is_all_groups_both_ways(groups: set[int], group: int, expected: bool) -> None:
    assert is_wanted(groups, group) is expected


def test_only_the_wanted_groups_are_heard_of_in_what_was_there_and_in_what_comes() -> None:
    feed = Feed(10, page_max=100)
    feed.subscribe(QUEUE, 7)
    there = [Seen(1, 7), Seen(2, 8), Seen(3, 0)]
    assert keys(drain(feed, *there)) == [1, 3]
    feed.arrived(QUEUE, [Seen(4, 8), Seen(5, 7), Seen(6, 0)])
    assert keys(drain(feed, *there)) == [5, 6]


def test_a_second_group_brings_what_was_there_of_it_and_nothing_again() -> None:
    feed = Feed(10, page_max=100)
    there = [Seen(1, 7), Seen(2, 8), Seen(3, 0)]
    feed.subscribe(QUEUE, 7)
    assert keys(drain(feed, *there)) == [1, 3]
    feed.subscribe(QUEUE, 0)
    assert keys(drain(feed, *there)) == [2]
    feed.subscribe(QUEUE, 9)
    assert drain(feed, *there) == []


def test_a_queue_that_was_not_subscribed_to_is_not_heard_of() -> None:
    feed = subscribed()
    feed.arrived("other", [Seen(1, 0)])
    feed.look("other")
    assert drain(feed) == []


# --- What was there, and what comes ---------------------------------------------------------------


def test_what_was_there_is_heard_of_before_what_comes() -> None:
    feed = Feed(10, page_max=100)
    feed.subscribe("a", 0)
    feed.subscribe(QUEUE, 0)
    page = feed.begin_page()
    assert page is not None
    feed.end_page([], is_small=True)
    feed.arrived("a", [Seen(9, 0)])
    there = [Seen(number, 0) for number in range(1, 9)]
    assert keys(drain(feed, *there)) == [*range(1, 9), 9]


def test_what_arrives_in_front_of_the_reader_is_shown_by_a_page_and_not_told_twice() -> None:
    feed = Feed(10, page_max=100)
    feed.subscribe(QUEUE, 0)
    feed.arrived(QUEUE, [Seen(1, 0)])
    assert keys(drain(feed, Seen(1, 0))) == [1]


def test_what_arrives_behind_the_reader_is_told() -> None:
    feed = Feed(10, page_max=4)
    there = [Seen(number, 0) for number in (2, 3, 4, 5, 6)]
    feed.subscribe(QUEUE, 0)
    assert read_page(feed, *there)
    feed.arrived(QUEUE, [Seen(1, 0)])
    assert keys(drain(feed, Seen(1, 0), *there)) == [2, 3, 4, 5, 6, 1]


def test_what_arrives_while_a_page_is_read_is_neither_lost_nor_told_twice() -> None:
    feed = Feed(10, page_max=100)
    feed.subscribe(QUEUE, 0)
    page = feed.begin_page()
    assert page is not None
    feed.arrived(QUEUE, [Seen(1, 0), Seen(2, 0)])
    # The page was read before the second of them was there.
    feed.end_page([Seen(1, 0)], is_small=True)
    assert keys(drain(feed)) == [1, 2]


def test_what_arrives_behind_the_page_that_is_being_read_is_told() -> None:
    feed = Feed(10, page_max=2)
    feed.subscribe(QUEUE, 0)
    assert feed.begin_page() is not None
    feed.arrived(QUEUE, [Seen(1, 0), Seen(9, 0)])
    # The page was read before the first of them was there; the last is on one that follows.
    feed.end_page([Seen(2, 0), Seen(3, 0)], is_small=True)
    assert keys(drain(feed, *[Seen(number, 0) for number in (1, 2, 3, 9)])) == [2, 3, 9, 1]


def test_pages_grow_while_they_are_small_and_shrink_when_they_are_not() -> None:
    feed = Feed(10, page_max=8)
    feed.subscribe(QUEUE, 0)
    limits = list[int]()
    for first, is_small in enumerate((True, True, True, False, False, False, False)):
        page = feed.begin_page()
        assert page is not None
        limits.append(page.limit)
        shown = [Seen(100 * first + offset, 0) for offset in range(1, page.limit + 1)]
        feed.end_page(shown, is_small=is_small)
        while feed.take() is not None:
            assert feed.has_news()
    assert limits == [4, 8, 8, 8, 4, 2, 1]


def test_one_page_is_read_at_a_time() -> None:
    feed = Feed(10, page_max=8)
    feed.subscribe(QUEUE, 0)
    assert feed.begin_page() is not None
    assert feed.begin_page() is None
    assert not feed.has_news()
    feed.end_page([Seen(1, 0)], is_small=True)
    assert feed.has_news()
    assert feed.begin_page() is None


def test_a_queue_that_cannot_be_read_is_to_be_looked_at() -> None:
    feed = Feed(10, page_max=8)
    feed.subscribe(QUEUE, 0)
    assert feed.begin_page() is not None
    feed.arrived(QUEUE, [Seen(1, 0)])
    feed.give_up_backlog()
    assert drain(feed) == [Entry(QUEUE)]


def test_what_was_not_heard_after_all_is_the_next_again() -> None:
    feed = subscribed()
    feed.arrived(QUEUE, [Seen(1, 0), Seen(2, 0)])
    first = feed.take()
    assert first is not None
    feed.give_back(first)
    assert keys(drain(feed)) == [1, 2]


# --- Too much -------------------------------------------------------------------------------------


def test_who_falls_behind_is_told_to_look_once_for_each_queue() -> None:
    feed = subscribed(events_max=3)
    feed.subscribe("other", 0)
    assert drain(feed) == []
    feed.arrived("other", [Seen(1, 0)])
    feed.arrived(QUEUE, [Seen(number, 0) for number in range(2, 9)])
    assert len(feed) == 2
    assert drain(feed) == [Entry("other"), Entry(QUEUE)]
    feed.arrived(QUEUE, [Seen(9, 0)])
    assert keys(drain(feed)) == [9]


def test_a_look_that_was_waiting_is_not_lost_with_the_rest() -> None:
    feed = subscribed(events_max=3)
    feed.subscribe("other", 0)
    assert drain(feed) == []
    feed.look("other")
    feed.arrived(QUEUE, [Seen(number, 0) for number in range(1, 9)])
    assert drain(feed) == [Entry("other"), Entry(QUEUE)]


def test_lost_events_of_other_suppliers_are_told_without_a_queue() -> None:
    feed = subscribed(events_max=3)
    for number in range(4):
        feed.add(number)
    assert drain(feed) == [Entry(EVERYWHERE)]
    feed.add("again")
    assert [entry.own for entry in drain(feed)] == [("again",)]


def test_a_look_that_is_waiting_stands_for_all_that_comes_before_it_is_heard() -> None:
    feed = subscribed()
    feed.look(QUEUE)
    feed.look(QUEUE)
    feed.arrived(QUEUE, [Seen(1, 0)])
    assert drain(feed) == [Entry(QUEUE)]
    feed.arrived(QUEUE, [Seen(2, 0)])
    assert keys(drain(feed)) == [2]


def test_much_that_comes_while_a_page_is_read_becomes_a_look() -> None:
    feed = Feed(3, page_max=8)
    feed.subscribe(QUEUE, 0)
    assert feed.begin_page() is not None
    feed.arrived(QUEUE, [Seen(number, 0) for number in range(1, 9)])
    feed.end_page([], is_small=True)
    assert drain(feed) == [Entry(QUEUE)]


# --- Nothing is missed, whatever the order --------------------------------------------------------


class World:
    """A queue whose messages come and go, one feed, and when each was visible and heard of."""

    def __init__(self, events_max: int) -> None:
        self.feed = Feed(events_max, page_max=2)
        self.groups: set[int] = set()
        self.time = itertools.count()
        self.next_key = 1
        self.stored: dict[int, int] = {}
        self.visible: dict[int, int] = {}
        self.since: dict[int, int] = {}
        self.to_announce: list[Seen] = []
        self.snapshot: list[Seen] | None = None
        self.heard: list[tuple[int, Entry]] = []

    def store(self, group: int) -> None:
        self.stored[self.next_key] = group
        self.next_key += 1

    def commit(self, number: int) -> None:
        """One of those stored, in any order."""
        if self.stored:
            key = sorted(self.stored)[number % len(self.stored)]
            self._show(key, self.stored.pop(key))

    def get_and_roll_back(self, number: int) -> None:
        """Somebody takes a message; a page that is read now does not show it; then it is back."""
        if self.visible:
            key = sorted(self.visible)[number % len(self.visible)]
            group = self.visible.pop(key)
            self._snap()
            self._show(key, group)

    def announce(self) -> None:
        if self.to_announce:
            self.feed.arrived(QUEUE, [self.to_announce.pop(0)])

    def begin_page(self, is_read_at_once: bool) -> None:
        page = self.feed.begin_page()
        if page is not None:
            self.page = page
            self.snapshot = None
            if is_read_at_once:
                self._snap()

    def end_page(self) -> None:
        if not self.feed._is_being_read():
            return
        self._snap()
        assert self.snapshot is not None
        self.feed.end_page(self.snapshot, is_small=True)

    def take(self) -> None:
        entry = self.feed.take()
        if entry is not None:
            self.heard.append((next(self.time), entry))

    def subscribe(self, group: int) -> None:
        self.groups.add(group)
        self.feed.subscribe(QUEUE, group)

    def finish(self) -> None:
        """All is announced, and the consumer hears all there is."""
        self.end_page()
        while self.to_announce:
            self.announce()
        while self.feed.has_news():
            self.take()
            self.begin_page(True)
            self.end_page()

    def missed(self) -> list[int]:
        """What can be had, and was not heard of since it could be."""
        return [
            key
            for key, group in self.visible.items()
            if is_wanted(self.groups, group)
            and not any(
                time > self.since[key] and (entry.key == key or entry.is_look)
                for time, entry in self.heard
            )
        ]

    def _show(self, key: int, group: int) -> None:
        self.visible[key] = group
        self.since[key] = next(self.time)
        self.to_announce.append(Seen(key, group))

    def _snap(self) -> None:
        """The storage reads the page that was asked for; the consumer has it later."""
        if self.feed._is_being_read() and self.snapshot is None:
            shown = [Seen(k, g) for k, g in sorted(self.visible.items()) if k > self.page.after]
            self.snapshot = shown[: self.page.limit]


GROUP = st.integers(0, 2)
STEP: st.SearchStrategy[Callable[[World], object]] = st.one_of(
    GROUP.map(lambda group: lambda world: world.store(group)),
    st.integers(0, 5).map(lambda number: lambda world: world.commit(number)),
    st.integers(0, 5).map(lambda number: lambda world: world.get_and_roll_back(number)),
    st.just(World.announce),
    st.booleans().map(lambda at_once: lambda world: world.begin_page(at_once)),
    st.just(World.end_page),
    st.just(World.take),
    GROUP.map(lambda group: lambda world: world.subscribe(group)),
    st.just(lambda world: world.feed.look(QUEUE)),
)


@given(st.integers(1, 5), st.lists(STEP, max_size=60))
def test_whatever_can_be_had_is_heard_of_after_it_can_be_had(
    events_max: int, steps: list[Callable[[World], object]]
) -> None:
    world = World(events_max)
    for step in steps:
        step(world)
        assert len(world.feed._buffer) <= max(events_max, 2)
    world.finish()
    assert world.missed() == []


TOLD_AT_ONCE: st.SearchStrategy[Callable[[World], object]] = st.one_of(
    st.tuples(GROUP, st.integers(0, 5)).map(
        lambda drawn: (
            lambda world: (
                world.store(drawn[0]),
                world.store(drawn[0]),
                world.commit(drawn[1]),
                world.announce(),
            )
        )
    ),
    st.booleans().map(lambda at_once: lambda world: world.begin_page(at_once)),
    st.just(World.end_page),
    st.just(World.take),
    GROUP.map(lambda group: lambda world: world.subscribe(group)),
)


@given(st.lists(TOLD_AT_ONCE, max_size=60))
def test_nothing_is_heard_of_twice_where_commits_are_told_at_once(
    steps: list[Callable[[World], object]],
) -> None:
    world = World(events_max=1000)
    for step in steps:
        step(world)
    world.finish()
    heard = keys([entry for _, entry in world.heard])
    assert sorted(set(heard)) == sorted(heard)
    wanted = {key for key, group in world.visible.items() if is_wanted(world.groups, group)}
    assert set(heard) == wanted
