"""Trying again what could not be delivered: lines, pauses and order, in a time of its own."""

from __future__ import annotations

import pytest

from coordinator.redelivery import Redelivery
from idl.mapping import InvalidValue
from tests.unit.clients.embedded_coordinator import ManualTasks

PAUSE_S = 1.0
PAUSE_S_MAX = 8.0
SHOP = "PYRO:branch/1@shop:7001"
SHOP_TOO = "PYRO:branch/2@shop:7001"
BANK = "PYRO:branch/1@bank:7001"


class Server:
    """What is delivered to a server, and when; it can be away."""

    def __init__(self, tasks: ManualTasks) -> None:
        self.tried: list[tuple[float, str]] = []
        self.is_away = False
        self.refused: set[str] = set()
        # How long an attempt takes; other work goes on meanwhile.
        self.answers_after_s = 0.0
        self._tasks = tasks
        self._is_busy = False

    def attempt(self, what: str) -> bool:
        """One attempt; no other may be under way."""
        assert not self._is_busy, "two attempts at a time"
        self._is_busy = True
        self.tried.append((self._tasks.now(), what))
        self._tasks.pass_time(self.answers_after_s)
        self._is_busy = False
        return not self.is_away and what not in self.refused


class World:
    """The lines under test, and two servers."""

    def __init__(self) -> None:
        self.tasks = ManualTasks()
        self.lines = Redelivery(self.tasks, PAUSE_S, PAUSE_S_MAX)
        self.shop = Server(self.tasks)
        self.bank = Server(self.tasks)

    def to_shop(self, what: str, reference: str = SHOP) -> None:
        self.lines.add(reference, lambda: self.shop.attempt(what))

    def to_bank(self, what: str) -> None:
        self.lines.add(BANK, lambda: self.bank.attempt(what))


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_attempt_is_made_after_a_pause(world: World) -> None:
    world.to_shop("a")
    world.tasks.pass_time(PAUSE_S - 0.1)
    assert world.shop.tried == []
    world.tasks.pass_time(0.1)
    assert world.shop.tried == [(PAUSE_S, "a")]


def test_what_is_meant_for_one_server_waits_in_one_line_and_keeps_its_order(world: World) -> None:
    for what in "abc":
        world.to_shop(what)
    world.to_shop("d", SHOP_TOO)
    assert world.lines.waiting() == {"shop:7001": 4}
    world.tasks.pass_time(PAUSE_S)
    assert world.shop.tried == [(PAUSE_S, what) for what in "abcd"]


def test_a_line_is_gone_when_nothing_waits_in_it(world: World) -> None:
    assert world.lines.waiting() == {}
    world.to_shop("a")
    world.tasks.pass_time(PAUSE_S)
    assert world.lines.waiting() == {}
    world.to_shop("b")
    world.tasks.pass_time(PAUSE_S)
    assert world.shop.tried == [(PAUSE_S, "a"), (2 * PAUSE_S, "b")]
    assert world.lines.waiting() == {}


def test_a_server_that_is_away_costs_one_attempt_after_ever_longer_pauses(world: World) -> None:
    world.shop.is_away = True
    for what in "abc":
        world.to_shop(what)
    world.tasks.pass_time(40.0)
    times = [time for time, _ in world.shop.tried]
    assert times == [1.0, 3.0, 7.0, 15.0, 23.0, 31.0, 39.0]
    assert world.lines.waiting() == {"shop:7001": 3}


def test_what_failed_goes_to_the_end_of_its_line(world: World) -> None:
    world.shop.refused = {"a"}
    for what in "abc":
        world.to_shop(what)
    world.tasks.pass_time(PAUSE_S + 2 * PAUSE_S)
    assert [what for _, what in world.shop.tried] == ["a", "b", "c", "a"]
    assert world.lines.waiting() == {"shop:7001": 1}


def test_what_can_never_be_delivered_holds_up_nothing_that_can(world: World) -> None:
    world.shop.refused = {"a"}
    for what in "abc":
        world.to_shop(what)
    world.tasks.pass_time(100.0)
    assert {what for _, what in world.shop.tried} == {"a", "b", "c"}
    assert [what for _, what in world.shop.tried].count("b") == 1
    world.shop.refused = set()
    world.tasks.pass_time(PAUSE_S_MAX)
    assert world.lines.waiting() == {}


def test_a_server_that_is_back_gets_all_that_waited_at_once(world: World) -> None:
    world.shop.is_away = True
    for what in "abc":
        world.to_shop(what)
    world.tasks.pass_time(10.0)
    world.shop.is_away = False
    world.shop.tried.clear()
    world.tasks.pass_time(PAUSE_S_MAX)
    assert {time for time, _ in world.shop.tried} == {15.0}
    assert sorted(what for _, what in world.shop.tried) == ["a", "b", "c"]


def test_after_a_success_the_pauses_are_short_again(world: World) -> None:
    world.shop.is_away = True
    world.to_shop("a")
    world.tasks.pass_time(15.0)
    world.shop.is_away = False
    world.shop.refused = {"b"}
    world.to_shop("b")
    world.tasks.pass_time(11.0)
    assert world.shop.tried[4:] == [(23.0, "a"), (23.0, "b"), (25.0, "b")]


def test_a_server_that_is_away_holds_up_no_other(world: World) -> None:
    world.shop.is_away = True
    world.to_shop("a")
    world.tasks.pass_time(4.0)
    world.to_bank("b")
    world.tasks.pass_time(PAUSE_S)
    assert world.bank.tried == [(5.0, "b")]
    assert world.lines.waiting() == {"shop:7001": 1}


def test_a_slow_server_gets_one_attempt_at_a_time_and_holds_up_no_other(world: World) -> None:
    world.shop.answers_after_s = 20.0
    world.shop.is_away = True
    world.to_shop("a")
    world.to_shop("b", SHOP_TOO)
    world.to_bank("c")
    world.tasks.after(5.0, world.to_shop, "d")
    world.tasks.after(5.0, world.to_bank, "e")
    world.tasks.pass_time(PAUSE_S)
    assert world.shop.tried == [(1.0, "a")]
    assert world.bank.tried == [(1.0, "c"), (6.0, "e")]
    assert world.lines.waiting() == {"shop:7001": 3}


def test_what_is_added_while_the_line_is_worked_off_is_delivered_too(world: World) -> None:
    def attempt() -> bool:
        world.to_shop("later")
        return world.shop.attempt("first")

    world.lines.add(SHOP, attempt)
    world.tasks.pass_time(PAUSE_S)
    assert [what for _, what in world.shop.tried] == ["first", "later"]


def test_what_is_added_to_a_line_that_waits_does_not_hasten_it(world: World) -> None:
    world.shop.is_away = True
    world.to_shop("a")
    world.tasks.pass_time(3.5)
    world.to_shop("b")
    world.tasks.pass_time(3.4)
    assert [time for time, _ in world.shop.tried] == [1.0, 3.0]


def test_a_reference_that_names_no_server_is_refused(world: World) -> None:
    with pytest.raises(InvalidValue):
        world.to_shop("a", "the shop around the corner")
    assert world.lines.waiting() == {}
