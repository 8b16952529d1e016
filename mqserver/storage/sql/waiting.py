"""Waiting for messages that other branches hold: the line, its order, and circles.

Who waits does so by asking again, with pauses that grow, and at once when a branch of this node has
ended; between two questions nothing is locked and no connection is used. It stands in a line in the
database, so that what holds here holds across nodes:

1. Whoever asks for a message gets it only if nobody stood in line for it before. Threads of one
   branch do not stand in each other's way, and `take` passes over messages that are waited for.
2. A branch waits for those who hold what it wants, and for those before it in line. A request that
   would close a circle is refused. Requests enter the line one at a time, so of the branches in a
   circle exactly one is.
3. A place in line is good for some seconds and then has to be renewed, by the clock of the
   database. A process that died in line holds up the others no longer than that.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, delete, func, select

from mqserver.errors import Deadlock, StorageError
from mqserver.storage.sql.database import Database
from mqserver.storage.sql.schema import DEQUEUED, message, wait

_PLACE_S = 10.0
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.005, 0.1


class Pauses:
    """Wakes those who wait in this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._changes = 0
        self._waiting = 0
        self.is_closed = False

    @property
    def changes(self) -> int:
        """Grows with each `wake`; to be asked before looking at what may change."""
        return self._changes

    def wake(self) -> None:
        """Those who wait look again."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def pause(self, seen: int, timeout_s: float) -> None:
        """Some time has passed, or somebody was woken after the `changes` that were seen."""
        with self._changed:
            self._changed.wait_for(lambda: self._changes != seen, timeout_s)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A thread may wait; `close` does not return before it has gone away."""
        with self._changed:
            self._waiting += 1
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Nobody waits any more."""
        self.is_closed = True
        self.wake()
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)


def pauses_s() -> Iterator[float]:
    """How long to wait before asking again, each time."""
    pause_s = _PAUSE_S_MIN
    while True:
        yield pause_s
        pause_s = min(pause_s * 1.5, _PAUSE_S_MAX)


class Place:
    """The place of one request in the lines of all the messages that it waits for."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._vendor = database.vendor
        self._clock = clock
        self._ticket = 0
        self._keys: frozenset[int] = frozenset()
        self._renewed_s = 0.0

    @property
    def is_entered(self) -> bool:
        """Whether the request has stood in line."""
        return self._ticket > 0

    def is_good_for(self, keys: Collection[int]) -> bool:
        """Whether the request stands in line for all these keys, and for some time to come."""
        is_fresh = self._clock() < self._renewed_s + _PLACE_S / 2
        return is_fresh and self._keys.issuperset(keys)

    def before(self, connection: Connection, branch: int, keys: Sequence[int]) -> set[int]:
        """Those of the keys for which another branch stood in line before."""
        earlier = select(wait.c.key).where(
            self._vendor.one_of(wait.c.key, "keys"),
            wait.c.branch != branch,
            wait.c.until_s > self._vendor.now_s(),
        )
        if self.is_entered:
            earlier = earlier.where(wait.c.ticket < self._ticket)
        return set(connection.scalars(earlier, {"keys": self._vendor.numbers(keys)}))

    def enter(self, connection: Connection, branch: int, keys: Collection[int]) -> None:
        """The request stands in line for these keys, as far forward as before.

        Raises `Deadlock` if it would wait for itself. To be called again if the commit fails.
        """
        self._vendor.lock_line(connection)
        is_ours = wait.c.ticket == self._ticket, wait.c.branch == branch
        was_kept = connection.execute(delete(wait).where(*is_ours)).rowcount > 0
        last = connection.scalar(select(func.coalesce(func.max(wait.c.ticket), 0))) or 0
        # The database may have crashed and lost the place, and given the ticket to another.
        ticket = self._ticket if was_kept else last + 1
        until_s = self._vendor.now_s() + _PLACE_S
        for key in keys:
            row = {"ticket": ticket, "key": key, "branch": branch, "until_s": until_s}
            connection.execute(wait.insert().values(row))
        if _is_in_circle(branch, self._blockers(connection)):
            raise Deadlock(f"waiting for message {min(keys)} would close a circle of branches")
        self._ticket, self._keys, self._renewed_s = ticket, frozenset(keys), self._clock()

    def leave(self) -> None:
        """The request stands in no line."""
        if not self.is_entered:
            return
        try:
            with self._database.write(force=False) as transaction:
                transaction.connection.execute(delete(wait).where(wait.c.ticket == self._ticket))
        except StorageError:
            # What the request came to is already decided; the place runs out by itself.
            self._renewed_s = 0.0

    def _blockers(self, connection: Connection) -> dict[int, set[int]]:
        """Who waits for whom, by the numbers of branches."""
        holders = {
            key: branch
            for key, branch in connection.execute(
                select(message.c.key, message.c.vsf).where(
                    message.c.key.in_(select(wait.c.key)), message.c.lsf == DEQUEUED
                )
            )
        }
        lines: dict[int, list[int]] = defaultdict(list)
        line = select(wait.c.key, wait.c.branch).where(wait.c.until_s > self._vendor.now_s())
        blockers: dict[int, set[int]] = defaultdict(set)
        for key, branch in connection.execute(line.order_by(wait.c.ticket)):
            blockers[branch].update(lines[key])
            if key in holders:
                blockers[branch].add(holders[key])
            blockers[branch].discard(branch)
            lines[key].append(branch)
        return blockers


def _is_in_circle(start: int, blockers: Mapping[int, set[int]]) -> bool:
    """Whether a branch would wait, over others, for itself."""
    seen: set[int] = set()
    ahead = list(blockers.get(start, ()))
    while ahead:
        branch = ahead.pop()
        if branch == start:
            return True
        if branch not in seen:
            seen.add(branch)
            ahead += blockers.get(branch, ())
    return False
