"""Calls that take turns on one thread: each runs until it ends, or gives way before a long wait.

A server that serves many callers by one thread spares them the way from thread to thread, which in
Python costs more than most calls. Two things are asked of whoever is called so:

    give_way      before a wait for the disk: all others who are ready go first, and so share it
    step_aside    before any other wait, and before work that takes long: the call is then begun
                  anew by a thread of its own, so nothing may have been done that cannot be repeated

On every other thread both do nothing. Which operations may be tried at all says `prompt`. Who calls
others meanwhile waits for their answers by `Turns.wait`, as frames do; no lock may be held then,
since the others are on the same thread. This module knows neither the network nor what is called.

The hub is the greenlet that listens, and has the others take their turns. To pass from one greenlet
to the next and back takes a microsecond or more, so the hub carries out by itself what comes alone.
Should that have to wait after all, another greenlet is the hub from then on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class SteppedAside(BaseException):
    """The call is to be carried out by a thread of its own. No failure: nobody may take it as one.

    Therefore it is no `Exception`.
    """


class _Here(threading.local):
    turns: Turns | None = None


_HERE = _Here()


# Whoever waits, for what of a descriptor, and how long: what `Turns.wait` was told, for the hub.
Watch = Callable[[greenlet, int, int, float], None]


class Turns:
    """The turns of one thread, which is the one that calls `begin` or `serve`."""

    def __init__(self, watch: Watch, listen: Callable[[], object] = bool) -> None:
        self._watch = watch
        self._listen = listen
        self._root = self._hub = getcurrent()
        # Those who gave way, in the order in which they did.
        self.gave_way: deque[greenlet] = deque()
        # Those who go on as soon as the round is over, and nobody is waited for.
        self.ready: deque[tuple[greenlet, tuple[Any, ...]]] = deque()
        # Nobody is there who could go first: to give way would be to go on at once.
        self.is_alone = False
        # Those without work. To make one costs more than many a call, so each is used again.
        self._idle: list[greenlet] = []
        # Those who were the hub, and can be it again.
        self._former: list[greenlet] = []

    def begin(self) -> None:
        """From now on what this thread runs by `run` takes turns, and whoever calls is the hub."""
        self._root = self._hub = getcurrent()
        _HERE.turns = self

    def serve(self) -> None:
        """`listen` has returned; it was called on this thread, by one greenlet after the other.

        It is the loop of the hub, and is begun anew by the next.
        """
        self.begin()
        self._hub = greenlet(self._listen, self._root)
        self._hub.switch()

    def run(self, work: Callable[..., object], *arguments: Any) -> None:
        """The work has ended, or has given way."""
        self._free().switch(work, arguments)

    def run_alone(self, work: Callable[[T], object], argument: T) -> None:
        """The same where nobody else is ready. Called by the hub, which does the work itself."""
        hub = self._hub
        self.is_alone = True
        work(argument)
        if self._hub is not hub:
            # The work had to wait, and another is the hub by now, until this one is needed again.
            self._former.append(hub)
            self._hub.switch()
        self.is_alone = False

    def _free(self) -> greenlet:
        return self._idle.pop() if self._idle else greenlet(self._work, self._root)

    def _work(self, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        """What each greenlet does: one work after the other."""
        own = getcurrent()
        while True:
            work(*arguments)
            self._idle.append(own)
            work, arguments = self._hub.switch()

    def _pass(self) -> Any:
        """The others have their turn. What is said to this one when it is its turn again."""
        hub = self._hub
        if getcurrent() is hub:
            self.is_alone = False
            hub = self._former.pop() if self._former else greenlet(self._listen, self._root)
            self._hub = hub
        return hub.switch()

    @property
    def waiting(self) -> int:
        """How many gave way and have not gone on."""
        return len(self.gave_way)

    def go_on(self) -> None:
        """Each who had given way has gone on; first come, first served."""
        for _ in range(len(self.gave_way)):
            self.gave_way.popleft().switch()

    def pause(self) -> None:
        """The others go first. Called within the turn that gives way."""
        self.gave_way.append(getcurrent())
        self._pass()

    def run_ready(self) -> None:
        """Those who were ready have gone on."""
        for _ in range(len(self.ready)):
            ready, told = self.ready.popleft()
            ready.switch(*told)

    def let_others_come(self) -> None:
        """All others of this round have had their turn."""
        self.ready.append((getcurrent(), ()))
        self._pass()

    def start(self, work: Callable[..., None], *arguments: Any) -> None:
        """The work begins when this turn is over, and takes turns like any other."""
        self.ready.append((self._free(), (work, arguments)))

    def park(self, place: list[greenlet]) -> None:
        """Waits there until somebody unparks those who do."""
        place.append(getcurrent())
        self._pass()

    def unpark(self, place: list[greenlet]) -> None:
        """Those who wait there go on when this turn is over."""
        self.ready.extend([(parked, ()) for parked in place])

    def wait(self, descriptor: int, events: int, deadline: float) -> bool:
        """Whether one of these events came by then; the others go on meanwhile."""
        self._watch(getcurrent(), descriptor, events, deadline)
        return bool(self._pass())


# The turns that calls take on this thread, if they do.
turns_here: Callable[[], Turns | None] = partial(getattr, _HERE, "turns")


def give_way() -> None:
    """All others on this thread that are ready have had their turn."""
    turns = _HERE.turns
    if turns is not None and not turns.is_alone:
        turns.pause()


def step_aside() -> None:
    """Raises `SteppedAside` where others would have to wait for what follows."""
    if _HERE.turns is not None:
        raise SteppedAside


def prompt(function: F) -> F:
    """Of an operation: it waits for nothing but the disk, or steps aside before it does."""
    function.is_prompt = True  # type: ignore[attr-defined]
    return function


def is_prompt(function: Callable[..., Any]) -> bool:
    """Whether the operation was marked so; one that was not is no call to be tried in turns."""
    return getattr(function, "is_prompt", False)


class Latch:
    """For `with`: holds a lock that is held while one waits for the disk.

    Who finds it taken steps aside. On a thread with turns, whoever holds it may be somebody who
    gave way: to wait for them there would be to wait for ever.
    """

    __slots__ = ("_lock",)

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(False):
            wait_for(self._lock)

    def __exit__(self, kind: object, raised: object, trace: object) -> None:
        self._lock.release()


def wait_for(lock: threading.Lock) -> None:
    """The lock, which was found taken, is held. As with `Latch`, for those who are in a hurry."""
    step_aside()
    lock.acquire()
