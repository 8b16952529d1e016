"""Those who wait: who is told of an arrival, who tells the next, and who does not wait at all."""

from __future__ import annotations

import threading

import pytest

from mqserver.arrivals import Arrival
from mqserver.storage.contract import EVERYTHING, Selection
from mqserver.waiting import Waiting
from tests.unit.mqserver.node_world import Started


class Store:
    """What there is to be found, and those who look for it."""

    def __init__(self) -> None:
        self.waiting = Waiting(lambda: 0.0, recheck_s=60.0)
        self.there = 0
        self.looks: dict[str, int] = {}
        self._lock = threading.Lock()

    def take(self, who: str) -> int:
        """One of what is there, 0 when there is nothing."""
        with self._lock:
            self.looks[who] = self.looks.get(who, 0) + 1
            if not self.there:
                return 0
            self.there -= 1
            return 1

    def wait(self, who: str, selection: Selection = EVERYTHING, wait_s: float = 60.0) -> Started:
        """Somebody waits, and stands in line when this returns."""
        started = Started(
            lambda: self.waiting.wait("q", selection, lambda: self.take(who), _nothing, wait_s)
        )
        while self.looks.get(who, 0) < 2 and started.is_running:
            threading.Event().wait(0.001)
        return started

    def arrive(self, *groups: int) -> None:
        """Messages of these groups are there."""
        self.there += len(groups)
        self.waiting.arrived(Arrival("q", tuple(range(len(groups))), groups))


def _nothing() -> None:
    """Waiting goes on."""


@pytest.fixture
def store() -> Store:
    return Store()


def test_who_finds_something_does_not_wait(store: Store) -> None:
    store.there = 1
    assert store.waiting.wait("q", EVERYTHING, lambda: store.take("a"), _nothing, 60.0) == 1
    assert store.waiting._lines == {}


def test_who_may_not_wait_is_told_at_once(store: Store) -> None:
    assert store.waiting.wait("q", EVERYTHING, lambda: store.take("a"), _nothing, 0.0) == 0
    assert store.looks == {"a": 1}


def test_of_those_who_take_anything_only_as_many_are_told_as_there_are_messages(
    store: Store,
) -> None:
    first, second = store.wait("first"), store.wait("second")
    store.arrive(0)
    assert first.result() == 1
    assert second.is_running
    assert store.looks["second"] == 2
    store.arrive(0)
    assert second.result() == 1
    assert store.waiting._lines == {}


def test_who_waits_for_a_group_is_not_told_of_another(store: Store) -> None:
    other, same = store.wait("other", Selection(group=2)), store.wait("same", Selection(group=3))
    store.arrive(3)
    assert same.result() == 1
    assert other.is_running
    assert store.looks["other"] == 2
    store.arrive(2)
    assert other.result() == 1


def test_without_keys_everybody_looks(store: Store) -> None:
    first, second = store.wait("first"), store.wait("second")
    store.there = 2
    store.waiting.arrived(Arrival("q", (), ()))
    assert (first.result(), second.result()) == (1, 1)


def test_who_was_told_and_goes_away_with_nothing_tells_the_next(store: Store) -> None:
    class Gone(Exception):
        """The first one's caller is gone."""

    def check() -> None:
        raise Gone

    first = Started(
        lambda: store.waiting.wait("q", EVERYTHING, lambda: store.take("first"), check, 60.0)
    )
    while store.looks.get("first", 0) < 2:
        threading.Event().wait(0.001)
    second = store.wait("second")
    store.arrive(0)
    with pytest.raises(Gone):
        first.result()
    assert second.result() == 1


def test_when_all_is_closed_nobody_waits(store: Store) -> None:
    waiting = store.wait("a")
    store.waiting.close()
    assert waiting.result() == 0
    assert store.waiting.wait("q", EVERYTHING, lambda: store.take("b"), _nothing, 60.0) == 0


def test_now_and_then_everybody_looks_without_being_told() -> None:
    store = Store()
    store.waiting = Waiting(lambda: 0.0, recheck_s=0.001)
    waiting = store.wait("a")
    store.there = 1
    assert waiting.result() == 1
