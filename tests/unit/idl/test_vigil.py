"""How long a client waits awake, by a clock that goes on by itself whenever somebody looks."""

from __future__ import annotations

import pytest

from idl.orb.vigil import BOUT, REST_S_MAX, REST_S_MIN, VAIN_MAX, Vigil

AWAKE_S = 0.0003
LOOK_S = 0.000001
NEVER = 10**9


class World:
    """A vigil, its clock, and something that is waited for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.looks = 0
        # What is waited for is there after so many looks.
        self.ready_after = 1
        self.vigil = Vigil(AWAKE_S, lambda: self.now)

    def look(self, timeout: int) -> list[int]:
        """As `poll` of the system's: never waits, as it is told."""
        assert timeout == 0
        self.looks += 1
        self.now += LOOK_S
        return [1] if self.looks >= self.ready_after else []

    def wait(self, ready_after: int) -> int:
        """How often it was looked."""
        self.looks, self.ready_after = 0, ready_after
        self.vigil.wait(self.look)
        return self.looks

    def give_up(self) -> float:
        """It was in vain too often; for how long it is let be."""
        while self.wait(NEVER):
            pass
        begun = self.now
        while not self.wait(1):
            self.now += REST_S_MIN / 10
        return self.now - begun


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_there_is_seen_at_once(world: World) -> None:
    assert world.wait(1) == 1


def test_what_comes_soon_is_looked_for_until_it_is_there(world: World) -> None:
    assert world.wait(100) == 100


def test_what_does_not_come_soon_is_slept_for(world: World) -> None:
    begun = world.now
    assert world.wait(NEVER) == pytest.approx(AWAKE_S / LOOK_S, abs=2)
    assert world.now - begun == pytest.approx(AWAKE_S, abs=2 * LOOK_S)


def test_what_is_late_now_and_then_is_looked_for_the_next_time(world: World) -> None:
    for number in range(100 * BOUT):
        is_late = number % BOUT < VAIN_MAX - 1
        assert world.wait(NEVER if is_late else 10) >= 10


def test_whoever_looks_in_vain_too_often_sleeps_for_a_while(world: World) -> None:
    for _ in range(VAIN_MAX):
        assert world.wait(NEVER) > 1
    assert world.wait(1) == 0
    world.now += REST_S_MIN / 2
    assert world.wait(1) == 0
    world.now += REST_S_MIN
    assert world.wait(1) == 1


def test_whoever_looks_in_vain_for_long_sleeps_ever_longer_and_not_for_ever(world: World) -> None:
    rests = [world.give_up() for _ in range(12)]
    assert rests[0] == pytest.approx(REST_S_MIN, rel=0.2)
    assert rests[3] == pytest.approx(8 * REST_S_MIN, rel=0.2)
    assert rests[-1] == pytest.approx(REST_S_MAX, rel=0.01)
    # Of that time it was awake for a hundredth.
    assert VAIN_MAX * AWAKE_S < REST_S_MAX / 100


def test_whoever_is_lucky_again_sleeps_no_longer_than_before(world: World) -> None:
    for _ in range(12):
        world.give_up()
    for _ in range(2 * BOUT):
        assert world.wait(10) == 10
    assert world.give_up() == pytest.approx(REST_S_MIN, rel=0.2)


@pytest.mark.parametrize("is_same", [True, False], ids=["one connection", "two"])
def test_one_thread_at_a_time_is_awake(world: World, is_same: bool) -> None:
    others: list[int] = []
    another = world.vigil if is_same else World().vigil

    def look(timeout: int) -> bool:
        another.wait(lambda timeout: others.append(timeout))
        return True

    world.vigil.wait(look)
    assert others == []
    assert world.wait(1) == 1


def test_an_interrupt_ends_it_and_the_next_one_may_be_awake(world: World) -> None:
    def look(timeout: int) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.vigil.wait(look)
    assert world.wait(1) == 1
