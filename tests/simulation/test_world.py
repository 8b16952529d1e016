"""The world keeps its promises: one seed one run, virtual time, deaths that nobody survives."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from contextvars import ContextVar

import pytest

from tests.simulation.scheduler import Crash
from tests.simulation.watchdog import Stuck
from tests.simulation.world import CALM, Faults, Unsettled, World

_MARK: ContextVar[str] = ContextVar("mark", default="none")


def test_an_hour_passes_in_no_time() -> None:
    begun = time.monotonic()
    with World(1) as world:

        def wait() -> None:
            for _ in range(60):
                world.sleep(60.0)

        world.spawn("a", wait)
        world.run()
        assert world.now() == 3600.0
    assert time.monotonic() - begun < 1.0


def test_time_goes_on_to_where_it_is_asked_to_and_no_further() -> None:
    with World(1) as world:
        woken: list[float] = []
        for seconds in (1.0, 2.0, 3.0):
            world.spawn("a", lambda: woken.append(world.now()), after_s=seconds)
        world.run(until=2.5)
        assert (woken, world.now()) == ([1.0, 2.0], 2.5)
        world.sleep(10.0)
        assert (woken, world.now()) == ([1.0, 2.0, 3.0], 12.5)


def test_a_timer_that_was_called_off_does_not_move_the_clock() -> None:
    with World(1) as world:
        world.after(100.0, pytest.fail).cancel()
        world.run()
        assert world.now() == 0.0


def test_the_order_of_what_happens_at_one_time_is_the_seed_s() -> None:
    def order(seed: int) -> list[int]:
        with World(seed) as world:
            begun: list[int] = []
            for number in range(20):
                world.after(1.0, begun.append, number)
            world.run()
            return begun

    assert order(1) == order(1)
    assert sorted(order(1)) == sorted(order(2)) == list(range(20))
    assert order(1) != order(2)


def test_an_activity_waits_for_another_and_gets_what_it_returned() -> None:
    with World(1) as world:

        def slow() -> str:
            world.sleep(5.0)
            return "done"

        def wait() -> tuple[str, object, float]:
            other = world.spawn("b", slow)
            with pytest.raises(TimeoutError):
                other.join(1.0)
            return "waited", other.join(), world.now()

        assert world.spawn("a", wait).join() == ("waited", "done", 5.0)


def test_what_an_activity_raises_ends_the_run_and_names_the_seed() -> None:
    def fail() -> None:
        with World(17) as world:
            world.spawn("a", {"known": 1}.pop, "missing", after_s=2.0)
            world.run()

    with pytest.raises(KeyError) as raised:
        fail()
    assert "seed 17, at 2.000000 s" in raised.value.__notes__[0]


def test_an_activity_begins_with_no_context_of_another() -> None:
    with World(1) as world:
        world.spawn("a", _MARK.set, "first").join()
        assert world.spawn("a", _MARK.get).join() == "none"


def test_places_go_to_those_who_wait_in_their_order() -> None:
    with World(1) as world:
        places = world.places(2)
        taken: list[tuple[float, int]] = []

        def work(number: int) -> None:
            try:
                places.take(2.5)
            except TimeoutError:
                taken.append((world.now(), -number))
                return
            taken.append((world.now(), number))
            world.sleep(1.0)
            places.give_back()

        for number in range(8):
            world.spawn("a", work, number, after_s=number / 100)
        world.run()
        assert [number for _, number in taken] == [0, 1, 2, 3, 4, 5, -6, -7]


def test_an_event_cannot_wait() -> None:
    with World(1) as world:
        world.after(1.0, world.sleep, 1.0)
        with pytest.raises(AssertionError, match="start an activity"):
            world.run()


def test_nobody_but_the_maker_makes_the_world_go_on() -> None:
    with World(1) as world, pytest.raises(AssertionError, match="only who made the world"):
        world.spawn("a", world.run).join()


# --- Crashes -------------------------------------------------------------------------------------


def test_a_crash_ends_every_activity_of_the_host_where_it_waits() -> None:
    ended: list[str] = []

    def work(name: str) -> None:
        try:
            # A handler for ordinary failures does not stop a crash.
            with contextlib.suppress(Exception):
                world.sleep(10.0)
            ended.append(f"{name} went on")
        finally:
            ended.append(f"{name} ended")

    with World(1) as world:
        for name in ("x", "y"):
            world.spawn("a", work, name)
        world.spawn("b", work, "z")
        world.spawn("a", work, "never begun", after_s=7.0)
        world.run(until=5.0)
        world.crash("a")
        assert sorted(ended) == ["x ended", "y ended"]
        world.run()
        assert ended[2:] == ["z went on", "z ended"]


def test_what_a_dead_activity_still_tries_reaches_nobody() -> None:
    tried: list[str] = []

    def work() -> None:
        try:
            world.sleep(10.0)
        finally:
            for attempt in (
                lambda: world.sleep(1.0),
                lambda: world.spawn("b", lambda: tried.append("spawned")),
                lambda: world.crash("b"),
                world.step,
            ):
                try:
                    attempt()
                except Crash:
                    tried.append("dead")

    with World(1) as world:
        world.spawn("a", work)
        world.run(until=5.0)
        world.crash("a")
        world.run()
    assert tried == ["dead"] * 4


def test_an_activity_may_crash_its_own_host_and_another_one() -> None:
    reached: list[str] = []

    def work() -> None:
        world.crash("b")
        reached.append("after b")
        world.crash("a")
        reached.append("after a")

    with World(1) as world:
        world.spawn("b", world.sleep, 10.0)
        world.spawn("a", work, after_s=1.0)
        world.spawn("c", world.sleep, 2.0)
        world.run()
        assert reached == ["after b"]
        assert world.now() == 2.0


def test_a_host_boots_again_as_another_life() -> None:
    with World(1) as world:
        lives: list[int] = []

        def boot() -> None:
            life = world.living()
            assert life is not None
            lives.append(life.number)
            world.sleep(100.0)

        world.boot("a", boot)
        world.run(until=1.0)
        world.restart("a")
        world.run(until=2.0)
        world.crash("a")
        assert not world.host("a").is_up()
        world.restart("a", lambda: lives.append(-3))
        world.run()
        assert lives == [1, 2, -3]


def test_chance_crashes_hosts_at_their_steps_if_they_can_boot_again() -> None:
    with World(1, Faults(crash=0.1, outage_s=1.0)) as world:

        def work() -> None:
            while True:
                world.sleep(0.1)

        world.boot("server", work)
        world.spawn("client", work)
        world.run(until=500.0)
        crashes = world.count("crash")
        # A life has ten steps on average and takes a second, and so has each outage at most.
        assert 200 < crashes < 500
        assert world.count("restart") in (crashes, crashes - 1)
        assert world.host("client").life.number == 1


def test_after_the_calm_nothing_goes_wrong_and_everything_is_up() -> None:
    with World(1, Faults(crash=1.0, outage_s=1e6)) as world:
        world.boot("a", lambda: world.sleep(1.0))
        world.partition("a", "b")
        world.run(until=1.0)
        assert not world.host("a").is_up()
        world.calm()
        world.run(until=60.0)
        assert world.host("a").is_up()
        assert world.faults == CALM
        assert not world.is_parted("b", "a")


def test_what_does_not_come_about_is_told_with_the_seed() -> None:
    with World(17) as world:
        world.settle(lambda: world.now() == 0.0)
        world.spawn("a", world.sleep, 1e9)
        with pytest.raises(Unsettled, match="seed 17"):
            world.settle(lambda: world.now() > 1e6)


# --- The watchdog --------------------------------------------------------------------------------


def test_a_lock_that_is_held_over_a_wait_ends_the_run_with_its_seed() -> None:
    lock = threading.Lock()

    def work(world: World) -> None:
        with lock:
            world.sleep(1.0)

    def run() -> None:
        with World(17, real_limit_s=0.1) as world:
            world.spawn("a", work, world)
            world.spawn("b", work, world, after_s=0.5)
            world.run()

    with pytest.raises(Stuck, match=r"seed 17, at 0\.5\d* s, on b") as raised:
        run()
    assert raised.traceback[-2].name == "work"


def test_a_world_that_never_rests_is_ended_too() -> None:
    def work(world: World) -> None:
        while True:
            world.sleep(0.0)

    with World(1, real_limit_s=0.1) as world:
        world.spawn("a", work, world)
        with pytest.raises(Stuck):
            world.run()


def test_the_alarm_of_others_stays_as_it_was() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    before_s, _ = signal.getitimer(signal.ITIMER_REAL)
    with World(1) as world:
        world.spawn("a", world.sleep, 1.0)
        world.run()
    after_s, _ = signal.getitimer(signal.ITIMER_REAL)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert before_s - 10.0 < after_s <= before_s
