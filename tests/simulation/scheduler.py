"""Virtual time, and activities that take turns in it: greenlets, of which one runs until it waits.

The core of the simulation. It knows no host, no message and no fault: what an activity lives and
dies with is a `Life`, and whoever made the scheduler is asked at each step whether that life goes
on. What holds:

1. Time passes only between events, so an hour in which nothing happens costs nothing.
2. Of what happens at the same time the given chance says which comes first; nothing else does.
3. Between two waits an activity is alone, so a lock that is free then is free. One that is held
   over a wait, and wanted by another activity, blocks for ever: the watchdog ends such a run.
4. A life that ends takes its activities with it where they wait, and what they try while they are
   unwound reaches nobody: every way out of a dead activity raises `Crash` again.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from greenlet import getcurrent, greenlet

from tests.simulation.watchdog import watched

T = TypeVar("T")


class Crash(BaseException):
    """The host died under this activity; no handler for ordinary failures may stop that."""


@dataclass(eq=False, slots=True)
class Life:
    """From one start of a host to its next crash; activities belong to it."""

    host: str
    number: int
    is_over: bool = False
    activities: dict[Activity, None] = field(default_factory=dict)


class Activity:
    """One line of work. Its `done` is kept with what the work returned."""

    __slots__ = ("_arguments", "_work", "done", "greenlet", "life", "turn")

    def __init__(
        self,
        scheduler: Scheduler,
        life: Life,
        work: Callable[..., object],
        arguments: tuple[object, ...],
    ) -> None:
        self.life = life
        self._work = work
        self._arguments = arguments
        self.done: Promise[object] = Promise(scheduler)
        self.turn = 0
        self.greenlet: greenlet | None = None

    def join(self, timeout_s: float | None = None) -> object:
        """What the work returned, once it is done; raises `TimeoutError`."""
        return self.done.wait(timeout_s)

    def perform(self) -> None:
        """Does the work, as the scheduler has it."""
        try:
            result = self._work(*self._arguments)
        except Crash:
            return
        except Exception:
            # What a dead process stumbles over while it is unwound happens to nobody.
            if self.life.is_over:
                return
            raise
        if not self.life.is_over:
            del self.life.activities[self]
            self.done.keep(result)


class Promise(Generic[T]):
    """A value that comes later. The first one that is given counts."""

    __slots__ = ("_scheduler", "_values", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._values: list[T] = []
        self._waiting: list[tuple[Activity, int]] = []

    def is_kept(self) -> bool:
        """Whether the value is there."""
        return bool(self._values)

    def keep(self, value: T) -> None:
        """Gives the value to all who wait for it, now or later."""
        if not self._values:
            self._values.append(value)
            for activity, turn in self._waiting:
                self._scheduler.wake(activity, turn)

    def wait(self, timeout_s: float | None = None) -> T:
        """The value; raises `TimeoutError` when it does not come in time.

        Outside of any activity, waiting is what makes the world go on.
        """
        scheduler = self._scheduler
        scheduler.step()
        if not self._values:
            activity = scheduler.running
            if activity is None:
                scheduler.advance(self.is_kept, timeout_s)
            else:
                self._waiting.append((activity, activity.turn))
                scheduler.park(timeout_s)
        if not self._values:
            raise TimeoutError
        return self._values[0]


class Places:
    """A semaphore in virtual time: so many at once, the others in the order in which they came."""

    def __init__(self, scheduler: Scheduler, free: int) -> None:
        self._scheduler = scheduler
        self._free = free
        self._queue: list[Promise[None]] = []

    def take(self, timeout_s: float | None = None) -> None:
        """Returns with a place; raises `TimeoutError` where none becomes free in time."""
        if self._free:
            self._free -= 1
            return
        turn: Promise[None] = Promise(self._scheduler)
        self._queue.append(turn)
        try:
            turn.wait(timeout_s)
        except TimeoutError:
            self._queue.remove(turn)
            raise

    def give_back(self) -> None:
        """The place is free, or belongs to whoever has waited longest."""
        if self._queue:
            self._queue.pop(0).keep(None)
        else:
            self._free += 1


class Event:
    """Something that will happen, unless it is called off."""

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self.function: Callable[..., object] | None = function
        self.arguments = arguments

    def cancel(self) -> None:
        """It will not happen, and time does not go on for it either."""
        self.function = None
        self.arguments = ()


class Scheduler:
    """The clock, the events to come, and whose turn it is."""

    def __init__(
        self, name: str, chance: random.Random, at_step: Callable[[Life], None], limit_s: float
    ) -> None:
        self.hub = getcurrent()
        self.running: Activity | None = None
        # Virtual, in seconds.
        self.time = 0.0
        self._order = 0
        self._events: list[tuple[float, float, int, Event]] = []
        # Starting a greenlet costs more than all else here, so that each is used again.
        self._idle: list[greenlet] = []
        self._is_going_on = False
        self._name = name
        self._chance = chance
        self._at_step = at_step
        self._limit_s = limit_s

    def after(self, delay_s: float, function: Callable[..., object], *arguments: object) -> Event:
        """Lets something happen that is not part of an activity."""
        assert delay_s >= 0.0, f"time does not go back by {-delay_s} s"
        event = Event(function, arguments)
        self._order += 1
        entry = (self.time + delay_s, self._chance.random(), self._order, event)
        heapq.heappush(self._events, entry)
        return event

    # --- For those outside, who make time go on

    def run(self, until: float | None) -> None:
        """Goes on to this time, or until nothing is left to happen."""
        self.advance(None, None if until is None else max(until - self.time, 0.0))

    def advance(self, is_over: Callable[[], bool] | None, within_s: float | None) -> bool:
        """Carries out events until it is over, the time is up or none are left; says if over.

        Where it is not over, all of the time has passed.
        """
        assert getcurrent() is self.hub, "only who made the world makes it go on"
        assert not self._is_going_on, "an event cannot wait: let it start an activity that does"
        end = float("inf") if within_s is None else self.time + within_s
        events = self._events
        with watched(self._limit_s, self._where):
            self._is_going_on = True
            try:
                while is_over is None or not is_over():
                    if not events or events[0][0] > end:
                        self.time = self.time if within_s is None else end
                        return False
                    time, _, _, event = heapq.heappop(events)
                    if event.function is not None:
                        self.time = time
                        event.function(*event.arguments)
            finally:
                self._is_going_on = False
        return True

    # --- For activities

    def spawn(
        self,
        life: Life,
        work: Callable[..., object],
        arguments: tuple[object, ...],
        after_s: float,
    ) -> Activity:
        """Starts an activity. What it raises and nobody catches ends the run."""
        activity = Activity(self, life, work, arguments)
        life.activities[activity] = None
        if after_s:
            self.after(after_s, self._resume, activity, 0)
        else:
            self.wake(activity, 0)
        return activity

    def check(self) -> None:
        """Raises `Crash` in an activity whose life is over."""
        if self.running is not None and self.running.life.is_over:
            raise Crash(self.running.life.host)

    def step(self) -> None:
        """A point at which the running activity's host may die, or turns out to be dead."""
        if self.running is not None:
            self.check()
            self._at_step(self.running.life)

    def sleep(self, seconds: float) -> None:
        """Returns when the time has passed; others run meanwhile."""
        self.step()
        if self.running is None:
            self.run(self.time + seconds)
        else:
            self.park(seconds)

    def park(self, timeout_s: float | None) -> None:
        """Stops the running activity until it is resumed or the time has passed."""
        activity = self.running
        assert activity is not None
        if timeout_s is None:
            self.hub.switch()
            return
        timer = self.after(timeout_s, self._resume, activity, activity.turn)
        try:
            self.hub.switch()
        finally:
            timer.cancel()

    def wake(self, activity: Activity, turn: int) -> None:
        """Lets the activity go on now, unless it has gone on since that turn, or died."""
        if self._is_going_on and self.running is None:
            self._resume(activity, turn)
        else:
            self.after(0.0, self._resume, activity, turn)

    def end(self, life: Life) -> None:
        """Ends the life and all its activities but the running one, which has to end itself."""
        life.is_over = True
        doomed, life.activities = life.activities, {}
        for activity in doomed:
            worker = activity.greenlet
            if worker is not None and not worker.dead and activity is not self.running:
                self._unwind(activity, worker)

    def close(self) -> None:
        """Lets go of the greenlets: one that waits is never collected by itself."""
        for worker in self._idle:
            worker.throw()
        self._idle.clear()

    def _resume(self, activity: Activity, turn: int) -> None:
        if activity.turn != turn or activity.life.is_over:
            return
        activity.turn += 1
        if activity.greenlet is None:
            activity.greenlet = self._idle.pop() if self._idle else greenlet(self._work, self.hub)
        self.running = activity
        try:
            activity.greenlet.switch()
        finally:
            self.running = None

    def _work(self) -> None:
        """What each greenlet does: one activity after the other, until one dies."""
        while (activity := self.running) is not None:
            activity.perform()
            if activity.life.is_over:
                return
            own = getcurrent()
            # The next one begins with no context of this one, as a new thread would.
            own.gr_context = None
            self._idle.append(own)
            self.hub.switch()

    def _unwind(self, activity: Activity, worker: greenlet) -> None:
        before, self.running = self.running, activity
        # Whoever ends it goes on afterwards, which need not be the hub.
        worker.parent = getcurrent()
        worker.throw(Crash(activity.life.host))
        self.running = before

    def _where(self) -> str:
        place = "between activities" if self.running is None else f"on {self.running.life.host}"
        return f"{self._name}, at {self.time:.6f} s, {place}"
