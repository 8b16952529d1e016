"""All registered databases: which there are, and a loop for each that finishes what is prepared.

The registry is read again when its file changes. Each database has its own loop and its own pauses,
so that one that cannot be reached holds up no other, and nothing else. It knows no driver and
decides nothing: see `database_recovery.py` and `fates.py`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from coordinator.database import Database, Times
from coordinator.database_drivers import DatabaseTrouble, Open, Unreachable
from coordinator.database_recovery import ByMark, Recovery, Seen
from coordinator.registry import Registered, Registry
from coordinator.tasks import Tasks
from coordinator.verdicts import Verdicts
from idl.databases import IDENTITY_BYTES
from idl.toml_files import BadFile
from mqserver.errors import StorageError

log = logging.getLogger("oncemq.coordinator")


class NotRegistered(DatabaseTrouble):
    """No database is registered under this name: `oncemq database add NAME DSN` does it."""


@dataclass
class _Watched:
    database: Database
    recovery: Recovery
    seen: Seen
    pause_s: float
    # Held while somebody looks.
    looking: threading.Lock
    is_looked_at: bool = False


class Databases:
    """The databases of one coordinator. May be used from any thread."""

    def __init__(
        self,
        registry: Registry,
        opener: Open,
        verdicts: Verdicts,
        tasks: Tasks,
        randomness: Callable[[int], bytes],
        times: Times | None = None,
    ) -> None:
        self._registry = registry
        self._open = opener
        self._verdicts = verdicts
        self._tasks = tasks
        self._randomness = randomness
        self.times = times or Times()
        self._lock = threading.RLock()
        self._watched: dict[str, _Watched] = {}
        self._is_closed = False
        self._by_mark: ByMark = _nobody

    def start(self, by_mark: ByMark) -> None:
        """Each is looked at, now and again and again. `by_mark` settles marked transactions."""
        self._by_mark = by_mark
        self._watch()

    def close(self) -> None:
        """Nobody is looked at any more."""
        with self._lock:
            self._is_closed = True
            watched, self._watched = self._watched, {}
        for each in watched.values():
            each.database.close()

    # --- Which there are

    def find(self, name: str) -> Database:
        """The database of this name. Raises `NotRegistered`."""
        return self._found(name).database

    def every(self) -> list[tuple[Registered, Seen]]:
        """All, by name, with what was found when each was last looked at."""
        with self._lock:
            found = sorted(self._watched.items())
        return [(each.database.registered, each.seen) for _, each in found]

    def add(self, registered: Registered) -> Seen:
        """It is registered, on disk, in place of one with the same name; and looked at."""
        with self._lock:
            self._registry.load()
            self._registry.save({**self._registry.databases, registered.name: registered})
            self._follow()
            watched = self._watched[registered.name]
        # Its own loop has begun to look, or will in a moment: once is enough.
        with watched.looking:
            if not watched.is_looked_at:
                self._look(watched)
        return watched.seen

    def remove(self, name: str) -> None:
        """It is not registered any more. What is prepared there stays as it is."""
        with self._lock:
            self._registry.load()
            self._found(name)
            left = {key: each for key, each in self._registry.databases.items() if key != name}
            self._registry.save(left)
            self._follow()

    def prepare(self, name: str, role: str = "") -> Seen:
        """The outcome table is there, and `role` may use it. Raises `DatabaseTrouble`."""
        self.find(name).make_table(self._randomness(IDENTITY_BYTES).hex(), role)
        return self.look(name)

    def look(self, name: str) -> Seen:
        """Looks now; what was found."""
        watched = self._found(name)
        with watched.looking:
            self._look(watched)
        return watched.seen

    def _found(self, name: str) -> _Watched:
        with self._lock:
            found = self._watched.get(name)
        if self._is_closed:
            raise Unreachable("the coordinator is being stopped")
        if found is None:
            raise NotRegistered(
                f"no database is registered as {name!r}: type `oncemq database add {name} DSN`"
            )
        return found

    def _watch(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            try:
                if self._registry.load():
                    self._follow()
            except (BadFile, StorageError) as wrong:
                log.error("databases stay as they were: %s", wrong)
        self._tasks.after(self.times.watch_s, self._watch)

    def _follow(self) -> None:
        """What is watched is what is registered."""
        wanted = self._registry.databases
        before: dict[str, _Watched] = {}
        for name, watched in list(self._watched.items()):
            if wanted.get(name) != watched.database.registered:
                before[name] = self._watched.pop(name)
                watched.database.close()
        for name, registered in wanted.items():
            if name not in self._watched:
                self._watched[name] = self._made(registered)
                if name in before:
                    # Or what is prepared would never be old where it is registered ever again.
                    self._watched[name].recovery.inherit(before[name].recovery)
                self._tasks.spawn(self._look_on, self._watched[name])

    def _made(self, registered: Registered) -> _Watched:
        clock = self._tasks.now
        database = Database(registered, self._open, clock, self.times)
        recovery = Recovery(database, self._verdicts, self._settled, clock, self.times.rows_s)
        return _Watched(database, recovery, Seen(), self.times.retry_s, threading.Lock())

    def _settled(self, name: str, gtrid: bytes) -> bool:
        return self._by_mark(name, gtrid)

    # --- Looking

    def _look_on(self, watched: _Watched) -> None:
        with self._lock:
            if self._watched.get(watched.database.name) is not watched:
                return
        with watched.looking:
            self._look(watched)
        if watched.seen.is_reachable:
            pause_s, watched.pause_s = self.times.look_s, self.times.retry_s
            if watched.seen.ours:
                # It waits for its grace, and where that is short it need not wait for longer.
                grace_s = watched.database.registered.grace_s
                pause_s = min(pause_s, max(self.times.retry_s, grace_s))
        else:
            pause_s = watched.pause_s
            watched.pause_s = min(2 * pause_s, self.times.retry_s_max)
        self._tasks.after(pause_s, self._look_on, watched)

    def _look(self, watched: _Watched) -> None:
        watched.seen = self._seen(watched)
        watched.is_looked_at = True
        identity = watched.seen.facts.identity
        if watched.seen.is_reachable and identity and not watched.database.registered.identity:
            self._recognize(watched, identity)

    def _recognize(self, watched: _Watched, identity: str) -> None:
        """From now on it is this database, and no other in its place."""
        with self._lock:
            registered = watched.database.registered
            noted = replace(registered, identity=identity)
            try:
                if self._registry.load():
                    self._follow()
                known = self._registry.databases
                if known.get(registered.name) != registered:
                    return
                self._registry.save({**known, noted.name: noted})
            except (BadFile, StorageError) as refused:
                log.warning("database %s is not written down: %s", noted.name, refused)
                return
            watched.database.registered = noted

    def _seen(self, watched: _Watched) -> Seen:
        name, before = watched.database.name, watched.seen
        try:
            seen = watched.recovery.look()
        except DatabaseTrouble as trouble:
            if before.is_reachable or before.trouble != str(trouble):
                log.warning("database %s: %s", name, trouble)
            # What it is was found out when it could be reached, and does not change.
            return replace(before, is_reachable=False, trouble=str(trouble))
        if not before.is_reachable:
            log.info("database %s is reached", name)
        return seen


def _nobody(name: str, gtrid: bytes) -> bool:
    raise DatabaseTrouble("the coordinator is being started")
