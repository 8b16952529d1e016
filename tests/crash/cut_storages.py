"""Real storages on a volume whose power is cut at an operation of a given number.

For the paged storage an operation is one of its disk that changes or syncs something, for SQLite a
statement or a commit. The power goes before the operation, or a moment after it has begun, which
may be in the middle of it or of a later one. Two of the storages have a flaw, to be found out.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

from sqlalchemy import Connection, Engine, event

from mqserver.storage.contract import Storage
from mqserver.storage.disk import Disk, RealDisk
from mqserver.storage.paged import PagedStorage
from mqserver.storage.sql import SqlStorage
from mqserver.storage.sql.sqlite import Sqlite
from tests.conformance.paged_storages import SMALL
from tests.crash.forked import Say

# _IOR('X', 125, __u32) in the kernel's fs/ext4/ext4.h, and the wish that its log be dropped too.
_EXT4_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2


def cut_power(folder: Path) -> None:
    """The volume of the folder has lost what is not on its device, and every call to it fails."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.ioctl(descriptor, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    os.close(descriptor)


@dataclass(frozen=True)
class Cut:
    """When the power goes: at which operation, and how long after it began; `None` is before it."""

    operation: int
    after_s: float | None


class Fuse:
    """Counts operations. At the one that is meant it cuts the power, and ends the process."""

    def __init__(self, folder: Path, cut: Cut | None, say: Say) -> None:
        self._folder = folder
        self._cut = cut
        self._say = say
        self._operations = 0
        self.is_lit = False

    def ring(self, *_: object) -> None:
        """An operation is about to begin."""
        self._operations += 1
        if self._cut is None or self._operations != self._cut.operation:
            return
        self.is_lit = True
        if self._cut.after_s is None:
            self._burn(0.0)
        threading.Thread(target=self._burn, args=(self._cut.after_s,), daemon=True).start()

    def _burn(self, after_s: float) -> None:
        time.sleep(after_s)
        # Said before, because a sync that runs into the cut may succeed without having written.
        self._say("cutting")
        cut_power(self._folder)
        self._say("cut")
        os._exit(0)

    def listen(self) -> None:
        """Statements and commits to databases are operations, from now on and for ever."""
        event.listen(Engine, "before_cursor_execute", self.ring)
        event.listen(Engine, "commit", self.ring)


# --- Storages with a fuse, and such with a flaw --------------------------------------------------

_COUNTED_OF_DISK = ("rename", "remove", "sync_directory")
_COUNTED_OF_FILE = ("write", "write_many", "sync", "truncate", "allocate")


class _FusedDisk:
    """A disk or a file that rings before each operation that changes or syncs something."""

    def __init__(self, target: object, ring: Callable[[], None], can_sync: bool) -> None:
        self._target = target
        self._ring = ring
        self._can_sync = can_sync

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)
        if name in _COUNTED_OF_DISK + _COUNTED_OF_FILE:
            return lambda *arguments: self._ring_and_call(name, method, arguments)
        return method

    def open(self, name: str, create: bool = False) -> _FusedDisk:
        if create:
            self._ring()
        file = cast(Disk, self._target).open(name, create)
        return _FusedDisk(file, self._ring, self._can_sync)

    def _ring_and_call(
        self, name: str, method: Callable[..., None], arguments: tuple[object, ...]
    ) -> None:
        self._ring()
        if self._can_sync or not name.startswith("sync"):
            method(*arguments)


def _open_paged(folder: Path, fuse: Fuse, can_sync: bool = True) -> Storage:
    disk = cast(Disk, _FusedDisk(RealDisk(folder / "store", create=True), fuse.ring, can_sync))
    return PagedStorage(disk, lambda: b"a store of tests", time.monotonic, SMALL)


def _open_sqlite(folder: Path, fuse: Fuse) -> Storage:
    return SqlStorage(f"sqlite:///{folder / 'queues.db'}", "node", time.monotonic)


def _open_lazy_sqlite(folder: Path, fuse: Fuse) -> Storage:
    def begin(self: Sqlite, connection: Connection, force: bool) -> None:
        connection.exec_driver_sql("PRAGMA synchronous=NORMAL")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.info["is_forced"] = force

    # For ever, because this process ends with the power.
    mock.patch.object(Sqlite, "begin", begin).start()
    return _open_sqlite(folder, fuse)


OPENING: dict[str, Callable[[Path, Fuse], Storage]] = {
    "paged": _open_paged,
    "sqlite": _open_sqlite,
    "paged without a sync": lambda folder, fuse: _open_paged(folder, fuse, can_sync=False),
    "sqlite with synchronous=NORMAL": _open_lazy_sqlite,
}
