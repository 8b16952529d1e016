"""Exclusive locks on named things, held by branches: taken, waited for in order, never in a circle.

A name is any hashable value, an owner is the id of a branch. The lock manager knows neither
messages nor disks, and is lost in a crash: a storage locks again what its prepared branches hold.

**It lives inside its storage's monitor.** A storage has one condition variable that guards all it
keeps. It gives that to its lock manager, and calls every method here with it held; `lock` waits on
it, and so lets go of it while it waits. There is then one lock in the whole storage: what a storage
has looked up and what it locks cannot come apart, no order of locks has to be kept, and no wakeup
is lost. The price is one rule: after `lock` has returned the world may have moved, since others
worked while it waited, and also between the moment in which it was served and the one in which its
thread woke up. The message may be gone, the branch may be over, or another thread of the branch may
have let go of the name again. So look again, in a loop:

    with self._monitor:
        while not (the branch is active, the message is there, and `holder` says that it is ours):
            self._locks.lock(branch, name, what is left of the timeout)

What holds:

1. A name has at most one holder. An owner may lock what it holds; that changes nothing.
2. A name without a holder has nobody waiting: letting go hands it to the first who waits. Owners
   are served in the order of their first request; the threads of one owner are served together.
3. The graph of who waits for whom has no circle. An owner waits for the holder, and for those who
   stand before it, because each of them will be the holder first. Serving and giving up only take
   edges away, so a circle can only be closed by a new request, and that one is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from mqserver.errors import BranchEnded, Deadlock, LockTimeout

# A condition variable cannot be told to wait for ever, so the longest waits are cut into naps.
_NAP_S_MAX = 3600.0


class Monitor(Protocol):
    """As much of `threading.Condition` as is needed here."""

    def wait(self, timeout: float | None = None) -> bool:
        """Others have had their turn; false when only time has passed."""

    def notify_all(self) -> None:
        """Everybody who waits looks again, once the monitor is free."""


class _Answer(enum.Enum):
    """What a waiting thread is told."""

    NONE_YET = 0
    SERVED = 1
    REFUSED = 2


@dataclass(eq=False, slots=True)
class _Request:
    """One thread that waits."""

    answer: _Answer = _Answer.NONE_YET


class LockManager:
    """Who holds what, and who waits for it. Every call is made with the monitor held."""

    def __init__(self, monitor: Monitor, clock: Callable[[], float]) -> None:
        self._monitor = monitor
        self._clock = clock
        self._holders: dict[Hashable, bytes] = {}
        self._lines: dict[Hashable, dict[bytes, list[_Request]]] = {}
        # The same two seen from the owners. Dictionaries without values are sets that keep order.
        self._held: dict[bytes, dict[Hashable, None]] = {}
        self._wanted: dict[bytes, dict[Hashable, None]] = {}

    def holder(self, name: Hashable) -> bytes | None:
        """The owner that holds the name."""
        return self._holders.get(name)

    def held(self, owner: bytes) -> tuple[Hashable, ...]:
        """All that the owner holds, in the order in which it got it."""
        return tuple(self._held.get(owner, ()))

    def try_lock(self, owner: bytes, name: Hashable) -> bool:
        """The owner holds the name if that was possible at once; says whether it does."""
        if name not in self._holders:
            self._give(owner, name)
        return self._holders[name] == owner

    def lock(self, owner: bytes, name: Hashable, timeout_s: float) -> None:
        """The owner was given the name; see the module's text for what may have happened since.

        Raises `LockTimeout`, saying who holds it; `Deadlock`, saying who would have waited for
        whom; and `BranchEnded` when another thread ended the owner (`refuse`, `release_all`).
        """
        if self.try_lock(owner, name):
            return
        if timeout_s <= 0:
            raise self._timeout(name)
        circle = self._circle(owner, name)
        if circle:
            told = " waits for ".join(member.hex() for member in circle)
            raise Deadlock(f"branch {owner.hex()} gives way over {name!r}", told)
        self._wait(owner, name, self._clock() + timeout_s)

    def release(self, owner: bytes, names: Iterable[Hashable]) -> None:
        """The owner holds none of these names any more; the first who waits for one holds it."""
        for name in names:
            if self._holders.get(name) == owner:
                self._pass_on(owner, name)

    def refuse(self, owner: bytes) -> None:
        """The owner waits for nothing any more: its waiting threads raise `BranchEnded`."""
        if owner in self._wanted:
            for name in tuple(self._wanted[owner]):
                self._answer(owner, name, _Answer.REFUSED)

    def release_all(self, owner: bytes) -> None:
        """The owner holds nothing and waits for nothing."""
        self.refuse(owner)
        if owner in self._held:
            self.release(owner, self.held(owner))

    # --- Waiting

    def _wait(self, owner: bytes, name: Hashable, deadline: float) -> None:
        """The owner was served. Raises if it was refused, or if time is up."""
        request = _Request()
        # An owner that is in the line already keeps its place there: see 3.
        place = self._lines.setdefault(name, {}).setdefault(owner, [])
        place.append(request)
        self._wanted.setdefault(owner, {})[name] = None
        try:
            while request.answer is _Answer.NONE_YET and (left_s := deadline - self._clock()) > 0:
                self._monitor.wait(min(left_s, _NAP_S_MAX))
        finally:
            # Also when the wait itself was interrupted: nobody is served who has gone away.
            if request.answer is _Answer.NONE_YET:
                place.remove(request)
                if not place:
                    self._vacate(owner, name)
        if request.answer is _Answer.REFUSED:
            raise BranchEnded(owner.hex())
        if request.answer is _Answer.NONE_YET:
            raise self._timeout(name)

    def _timeout(self, name: Hashable) -> LockTimeout:
        return LockTimeout(f"{name!r} is held by {self._holders[name].hex()}")

    def _answer(self, owner: bytes, name: Hashable, answer: _Answer) -> None:
        for request in self._vacate(owner, name):
            request.answer = answer
        self._monitor.notify_all()

    def _vacate(self, owner: bytes, name: Hashable) -> list[_Request]:
        """The owner is not in this line any more; its requests that were."""
        requests = self._lines[name].pop(owner)
        if not self._lines[name]:
            del self._lines[name]
        _take_out(self._wanted, owner, name)
        return requests

    def _give(self, owner: bytes, name: Hashable) -> None:
        self._holders[name] = owner
        self._held.setdefault(owner, {})[name] = None

    def _pass_on(self, owner: bytes, name: Hashable) -> None:
        del self._holders[name]
        _take_out(self._held, owner, name)
        for heir in self._lines.get(name, ()):
            self._give(heir, name)
            self._answer(heir, name, _Answer.SERVED)
            return

    # --- Circles

    def _circle(self, owner: bytes, name: Hashable) -> list[bytes]:
        """The owners who would wait for each other, the asking one first and last; or nobody."""
        paths = [[owner, blocker] for blocker in self._blockers(owner, name)]
        seen = set()
        while paths:
            path = paths.pop()
            last = path[-1]
            if last == owner:
                return path
            if last not in seen:
                seen.add(last)
                paths += [[*path, blocker] for blocker in self._waits_for(last)]
        return []

    def _waits_for(self, owner: bytes) -> Iterator[bytes]:
        for name in self._wanted.get(owner, ()):
            yield from self._blockers(owner, name)

    def _blockers(self, owner: bytes, name: Hashable) -> Iterator[bytes]:
        """Who will have had the name before this owner gets it: the holder and those before it."""
        yield self._holders[name]
        for other in self._lines.get(name, ()):
            if other == owner:
                return
            yield other


def _take_out(names_of: dict[bytes, dict[Hashable, None]], owner: bytes, name: Hashable) -> None:
    """The owner has this name no more, and an owner without names is not kept."""
    del names_of[owner][name]
    if not names_of[owner]:
        del names_of[owner]
