"""A client's turn: so many calls, or as many as its budget of time allows."""

from __future__ import annotations

import pytest

from benchmarks.peers.operations import Missing
from benchmarks.peers.worker import moments


class Clock:
    """Every call takes a second of it. From the `empty`-th on there is nothing to get."""

    def __init__(self, empty: int = 100) -> None:
        self.now = 0.0
        self._empty = empty

    def call(self) -> None:
        self.now += 1.0
        if self.now >= self._empty:
            raise Missing

    def read(self) -> float:
        return self.now


def test_a_turn_ends_with_its_calls() -> None:
    clock = Clock()
    assert moments(clock.call, 3, 10.0, clock.read) == [0.0, 1.0, 2.0, 3.0]


def test_a_slow_client_makes_as_many_calls_as_it_has_time_for() -> None:
    clock = Clock()
    assert moments(clock.call, 100, 1.5, clock.read) == [0.0, 1.0, 2.0]


def test_a_call_that_found_nothing_after_the_budget_does_not_count() -> None:
    clock = Clock(empty=3)
    assert moments(clock.call, 100, 2.5, clock.read) == [0.0, 1.0, 2.0]


def test_a_call_that_found_nothing_before_that_is_a_failure() -> None:
    clock = Clock(empty=3)
    with pytest.raises(Missing):
        moments(clock.call, 100, 3.5, clock.read)
