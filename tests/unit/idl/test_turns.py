"""Calls that take turns on one thread, and what they are asked to do before they wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from greenlet import greenlet

from idl.turns import (
    Latch,
    SteppedAside,
    Turns,
    Watch,
    give_way,
    is_prompt,
    prompt,
    step_aside,
    turns_here,
)


def watch_nothing(waiting: greenlet, descriptor: int, events: int, deadline: float) -> None:
    raise AssertionError("nobody waits for anything here")


def in_turns(work: Callable[[Turns], None], watch: Watch = watch_nothing) -> None:
    """Does it on a thread with turns, and raises here what was raised there."""

    def run() -> None:
        turns = Turns(watch)
        turns.begin()
        work(turns)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


def test_on_an_ordinary_thread_nobody_gives_way_or_steps_aside() -> None:
    give_way()
    step_aside()
    with Latch(threading.Lock()):
        give_way()


def test_calls_that_give_way_go_on_in_the_order_of_their_coming() -> None:
    seen: list[str] = []

    def call(name: str) -> None:
        seen.append(f"{name} begins")
        give_way()
        seen.append(f"{name} goes on")

    def work(turns: Turns) -> None:
        turns.run(call, "a")
        turns.run(call, "b")
        assert turns.waiting == 2
        seen.append("both wait")
        turns.go_on()
        assert turns.waiting == 0

    in_turns(work)
    assert seen == ["a begins", "b begins", "both wait", "a goes on", "b goes on"]


def test_who_waits_goes_on_with_what_the_hub_says_and_others_go_first() -> None:
    watched: list[tuple[greenlet, int, int, float]] = []
    seen: list[object] = []

    def call() -> None:
        turns = turns_here()
        assert turns is not None
        seen.append(turns.wait(7, 1, 2.5))

    def work(turns: Turns) -> None:
        turns.run(call)
        turns.run(seen.append, "another")
        (waiting, *told) = watched.pop()
        assert told == [7, 1, 2.5]
        waiting.switch(False)

    in_turns(work, lambda *told: watched.append(told))
    assert seen == ["another", False]


def test_who_lets_others_come_goes_on_when_the_round_is_over() -> None:
    seen: list[str] = []

    def call(name: str) -> None:
        turns = turns_here()
        assert turns is not None
        give_way()
        seen.append(f"{name} goes on")
        if name == "a":
            turns.let_others_come()
            seen.append("all have come")

    def work(turns: Turns) -> None:
        turns.run(call, "a")
        turns.run(call, "b")
        turns.go_on()
        assert turns.ready
        turns.run_ready()
        assert not turns.ready

    in_turns(work)
    assert seen == ["a goes on", "b goes on", "all have come"]


def test_who_was_parked_goes_on_when_somebody_says_so_and_nobody_else_does() -> None:
    seen: list[str] = []
    here: list[greenlet] = []
    elsewhere: list[greenlet] = []

    def call(name: str, place: list[greenlet]) -> None:
        turns = turns_here()
        assert turns is not None
        turns.park(place)
        seen.append(name)

    def work(turns: Turns) -> None:
        turns.run(call, "a", here)
        turns.run(call, "b", elsewhere)
        turns.run(turns.unpark, here)
        turns.run_ready()
        assert seen == ["a"]
        turns.run(turns.unpark, elsewhere)
        turns.run_ready()

    in_turns(work)
    assert seen == ["a", "b"]


def test_work_that_is_started_begins_when_the_turn_is_over_and_may_wait_itself() -> None:
    seen: list[str] = []
    here: list[greenlet] = []

    def started(name: str) -> None:
        turns = turns_here()
        assert turns is not None
        turns.park(here)
        seen.append(name)

    def call() -> None:
        turns = turns_here()
        assert turns is not None
        turns.start(started, "started")
        seen.append("call")

    def work(turns: Turns) -> None:
        turns.run(call)
        turns.run_ready()
        assert seen == ["call"]
        turns.unpark(here)
        turns.run_ready()

    in_turns(work)
    assert seen == ["call", "started"]


def test_an_ordinary_thread_has_no_turns() -> None:
    assert turns_here() is None


def test_who_gives_way_again_waits_for_the_next_round() -> None:
    seen: list[int] = []

    def call() -> None:
        for number in range(3):
            seen.append(number)
            give_way()

    def work(turns: Turns) -> None:
        turns.run(call)
        for rounds in range(1, 3):
            assert seen == list(range(rounds))
            turns.go_on()

    in_turns(work)
    assert seen == [0, 1, 2]


def test_what_others_would_wait_for_is_left_to_a_thread() -> None:
    def work(turns: Turns) -> None:
        with pytest.raises(SteppedAside):
            step_aside()

    in_turns(work)


def test_an_operation_is_prompt_if_it_says_so() -> None:
    class Servant:
        @prompt
        def quick(self) -> None:
            """Waits for nothing."""

        def slow(self) -> None:
            """May wait."""

    assert is_prompt(Servant().quick)
    assert not is_prompt(Servant().slow)
    assert not is_prompt(len)


def test_to_step_aside_is_no_failure_that_a_servant_could_swallow() -> None:
    assert not issubclass(SteppedAside, Exception)


def test_a_latch_that_somebody_holds_who_gave_way_is_not_waited_for() -> None:
    lock = threading.Lock()
    seen: list[str] = []

    def holder() -> None:
        with Latch(lock):
            give_way()
        seen.append("let go")

    def other() -> None:
        try:
            with Latch(lock):
                seen.append("taken")
        except SteppedAside:
            seen.append("stepped aside")

    def work(turns: Turns) -> None:
        turns.run(holder)
        turns.run(other)
        turns.go_on()
        turns.run(other)

    in_turns(work)
    assert seen == ["stepped aside", "let go", "taken"]


def test_a_latch_is_waited_for_on_an_ordinary_thread() -> None:
    lock = threading.Lock()
    has_it = threading.Event()
    let_go = threading.Event()
    seen: list[str] = []

    def hold() -> None:
        with Latch(lock):
            has_it.set()
            let_go.wait()
            seen.append("first")

    holder = threading.Thread(target=hold)
    holder.start()
    has_it.wait()
    assert lock.locked()
    let_go.set()
    with Latch(lock):
        seen.append("second")
    holder.join()
    assert seen == ["first", "second"]
    assert not lock.locked()
