"""What the one suite needs of a backend: a factory, with what it can do declared.

A factory stands for one place where messages are kept, empty at first and its own. What only some
places can do is a capability; tests that ask for one run for the factories that declare it. To add
a backend, write a factory and name it in `FACTORIES` of `storages.py`:

    class PagedFactory(StorageFactory):
        capabilities = frozenset({Capability.DURABLE})

        def __init__(self, folder: Path) -> None:
            self._disk = FaultyDisk(folder)

        def open(self) -> Storage:
            return PagedStorage(self._disk, time.monotonic)

        def crash(self) -> None:
            self._disk.lose_what_was_not_forced()

A factory whose database is not there raises `Missing`, which skips its tests, or fails them in CI.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import ClassVar, Protocol

from mqserver.storage.contract import Storage


class Capability(enum.Enum):
    """What not every storage can do, or not every test can do to it."""

    DURABLE = "what was forced is there after `close` and `open`, and after `crash` and `open`"
    SHARED = "several storages may be open on the same place at once; `crash_one` ends one of them"
    FILLS = "`fill` takes all room away, and `make_room` brings it back"
    BREAKS = "`break_writes` makes every write and every sync fail until the next `crash`"
    DAMAGES = "`damage` changes bytes of committed messages while nothing is open"


class Missing(Exception):
    """What the backend needs is not on this machine; the text says what."""


class StorageFactory(Protocol):
    """One place where messages are kept, and ways to open, to close and to hurt it."""

    capabilities: ClassVar[frozenset[Capability]]

    # How many ends of branches are remembered: fewer than by default, which would take too long.
    outcomes_kept: ClassVar[int] = 1000

    # How many runs of the state machine the suite can afford, and after how many steps it looks at
    # everything there is. A failure is made smaller only where that does not take minutes.
    examples_max: ClassVar[int] = 60
    steps_per_look: ClassVar[int] = 1
    is_shrunk: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        """An empty place. The folder exists, is empty, and is this factory's alone."""

    def open(self) -> Storage:
        """A storage on this place. An orderly restart is `close` of the last one, and this."""
        raise NotImplementedError

    def crash(self) -> None:
        """The process died: what open storages had not forced is lost, and they are not used."""
        raise NotImplementedError

    def crash_one(self, storage: Storage) -> None:
        """The process of this storage died, and of no other; the next opened is in its place."""
        raise NotImplementedError

    def fill(self) -> None:
        """There is no room for another byte."""
        raise NotImplementedError

    def make_room(self) -> None:
        """There is room again."""
        raise NotImplementedError

    def break_writes(self) -> None:
        """Every write and every sync fails from now on."""
        raise NotImplementedError

    def damage(self) -> None:
        """Some bytes that hold committed messages are others than were written."""
        raise NotImplementedError

    def dispose(self) -> None:
        """Whatever is open or left over outside the folder is gone. Called once, at the end."""
