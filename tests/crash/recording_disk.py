"""A disk in memory that remembers everything done to it, and fails when it is told to.

`RecordingDisk` is a `Disk` like any other to the storage under test. It shows what the page cache
would show, and keeps a `Trace`: what was changed, what was synced, and what the program said of
itself (`note`). What a power cut may leave is worked out from the trace in `crash_states.py`; this
module only records. It knows nothing of what is stored.

It fails as `faults.py` tells it to, and raises what `RealDisk` would raise then.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence

from mqserver import errors
from mqserver.storage.disk import Bytes
from tests.crash.faults import Crash, Fault, Faults, Operation
from tests.crash.trace import (
    DIRECTORY,
    SECTOR_BYTES,
    Created,
    Noted,
    Removed,
    Renamed,
    Resized,
    Synced,
    Trace,
    Wrote,
)

_UNLIMITED_BYTES = 1 << 40
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RecordingDisk:
    """A directory in memory, in place of `RealDisk`. Begins as an image: contents by name.

    `during_sync` is called with the name of a file while it is being synced: what is written then
    is not covered. `capacity_bytes` can be changed at any time.
    """

    def __init__(
        self,
        image: Mapping[str, bytes] | None = None,
        faults: Faults | None = None,
        capacity_bytes: int = _UNLIMITED_BYTES,
    ) -> None:
        self.description = "recording disk"
        self.faults = faults
        self.capacity_bytes = capacity_bytes
        self.during_sync: Callable[[str], None] | None = None
        self.trace = Trace(dict(image or {}))
        self.operations = 0
        self.reads = 0
        # How long the trace was when an operation came, by its number.
        self.entries_at: dict[int, int] = {}
        self.life = 1
        self.mutex = threading.RLock()
        self._files = {
            name: _Content(number, self.trace.initial[name])
            for number, name in enumerate(sorted(self.trace.initial), start=1)
        }
        self._file_count = len(self._files)
        self._is_dead = False
        self._is_locked = False
        self._failed = False
        self._closed = False

    # What tests ask for.

    def note(self, event: object) -> None:
        """The program has come this far."""
        with self.mutex:
            self.check_alive(self.life)
            self.trace.entries.append(Noted(event))

    def restart(self) -> None:
        """The process was killed and the machine was not: the page cache is still there."""
        with self.mutex:
            self.life += 1
            self.faults = self.during_sync = None
            self._is_dead = self._is_locked = self._failed = self._closed = False

    def image(self) -> dict[str, bytes]:
        """What is to be seen, synced or not."""
        with self.mutex:
            return {name: bytes(content.data) for name, content in sorted(self._files.items())}

    # What a `Disk` does.

    def names(self) -> list[str]:
        """See `Disk.names`."""
        with self.mutex:
            self._check_usable()
            return sorted(self._files)

    def exists(self, name: str) -> bool:
        """See `Disk.exists`."""
        with self.mutex:
            self._check_usable()
            return name in self._files

    def open(self, name: str, create: bool = False) -> RecordingFile:
        """See `Disk.open`."""
        with self.mutex:
            self._check_usable()
            if name not in self._files:
                if not create:
                    raise errors.StorageError(f"{self.description}/{name}", "open: no such file")
                self._change("create", name)
                self._file_count += 1
                self._files[name] = _Content(self._file_count, b"")
                self.trace.entries.append(Created(name, self._file_count))
            return RecordingFile(self, name, self._files[name])

    def rename(self, old: str, new: str) -> None:
        """See `Disk.rename`."""
        with self.mutex:
            self._check_usable()
            self._change("rename", old)
            self._require(old)
            content = self._files.pop(old)
            self._files[new] = content
            self.trace.entries.append(Renamed(old, new, content.number))

    def remove(self, name: str) -> None:
        """See `Disk.remove`."""
        with self.mutex:
            self._check_usable()
            self._change("remove", name)
            self._require(name)
            self.trace.entries.append(Removed(name, self._files.pop(name).number))

    def sync_directory(self) -> None:
        """See `Disk.sync_directory`."""
        with self.mutex:
            self._check_usable()
            upto = len(self.trace.entries)
            try:
                self.meet("sync", ".")
            except OSError as error:
                self._failed = True
                self.trace.entries.append(Synced(DIRECTORY, upto, succeeded=False))
                raise errors.StorageFailed(self.description, f"sync: {error}") from error
            self.trace.entries.append(Synced(DIRECTORY, upto, succeeded=True))

    def free_bytes(self) -> int:
        """See `Disk.free_bytes`."""
        with self.mutex:
            self._check_usable()
            return self.room()

    def lock(self) -> RecordingLock:
        """See `Disk.lock`."""
        with self.mutex:
            self._check_usable()
            if self._is_locked:
                raise errors.StorageLocked(self.description, f"process {os.getpid()}")
            self._is_locked = True
            return RecordingLock(self)

    def unlock(self) -> None:
        """The directory is free."""
        self._is_locked = False

    def close(self) -> None:
        """See `Disk.close`."""
        self._closed = True

    # What the disk and its files share.

    def meet(self, kind: str, name: str) -> Fault | None:
        """Counts an operation and lets its fault happen; a short write is for the caller to do."""
        if kind == "read":
            self.reads += 1
            number = self.reads
        else:
            self.operations += 1
            number = self.operations
            self.entries_at[number] = len(self.trace.entries)
        fault = self.faults(Operation(number, kind, name)) if self.faults else None
        if fault is Fault.CRASH:
            self._is_dead = True
            raise Crash(number)
        if fault in (Fault.EIO, Fault.ENOSPC):
            raise OSError(fault.value, os.strerror(fault.value))
        return fault

    def room(self) -> int:
        """How many bytes more there can be."""
        used = sum(len(content.data) for content in self._files.values())
        return max(0, self.capacity_bytes - used)

    def check_alive(self, life: int) -> None:
        """Stops whoever goes on after a crash, or on files from before a restart."""
        if self._is_dead or life != self.life:
            raise Crash("the machine is off, or the process was killed")

    def _check_usable(self) -> None:
        self.check_alive(self.life)
        if self._failed or self._closed:
            raise errors.StorageFailed(self.description, "failed before, or is closed")

    def _change(self, kind: str, name: str) -> None:
        try:
            self.meet(kind, name)
        except OSError as error:
            raise failure(error, f"{self.description}/{name}", kind) from error

    def _require(self, name: str) -> None:
        if name not in self._files:
            raise errors.StorageFailed(f"{self.description}/{name}", "no such file")


class RecordingFile:
    """An open file of a `RecordingDisk`."""

    def __init__(self, disk: RecordingDisk, name: str, content: _Content) -> None:
        self.description = f"{disk.description}/{name}"
        self._disk = disk
        self._life = disk.life
        self._name = name
        self._content = content
        self._failed = False
        self._closed = False

    def size(self) -> int:
        """See `File.size`."""
        with self._disk.mutex:
            self._check_usable()
            return len(self._content.data)

    def read(self, offset: int, size: int) -> bytes:
        """See `File.read`."""
        with self._disk.mutex:
            self._check_usable()
            try:
                self._disk.meet("read", self._name)
            except OSError as error:
                raise errors.Corruption(self.description, f"offset {offset}", error) from error
            return bytes(self._content.data[offset : offset + size])

    def write(self, offset: int, data: Bytes) -> None:
        """See `File.write`."""
        with self._disk.mutex:
            self._check_usable()
            rest = memoryview(data).cast("B")
            while rest:
                try:
                    written = self.write_once(offset, rest)
                except OSError as error:
                    raise self._failure(error, f"write at {offset}") from error
                offset += written
                rest = rest[written:]

    def write_many(self, offset: int, pieces: Sequence[Bytes]) -> None:
        """See `File.write_many`."""
        self.write(offset, b"".join(pieces))

    def write_once(self, offset: int, data: Bytes) -> int:
        """What the kernel does for `write`: maybe only a part. For programs that do not look."""
        with self._disk.mutex:
            self._check_usable()
            fault = self._disk.meet("write", self._name)
            size = memoryview(data).nbytes
            if fault is Fault.SHORT:
                size = self._short(offset, size)
            size = min(size, self._room(offset, size))
            self._disk.trace.entries.append(self._content.write(offset, bytes(data[:size])))
            return size

    def sync(self) -> None:
        """See `File.sync`."""
        entries = self._disk.trace.entries
        with self._disk.mutex:
            self._check_usable()
            upto = len(entries)
            try:
                self._disk.meet("sync", self._name)
            except OSError as error:
                self._failed = True
                entries.append(Synced(self._content.number, upto, succeeded=False))
                raise errors.StorageFailed(self.description, f"sync: {error}") from error
        if self._disk.during_sync is not None:
            self._disk.during_sync(self._name)
        with self._disk.mutex:
            self._check_usable()
            entries.append(Synced(self._content.number, upto, succeeded=True))

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        self._resize(size, f"truncate to {size}")

    def allocate(self, size: int) -> None:
        """See `File.allocate`."""
        if size > self.size():
            self._resize(size, f"allocate {size} bytes")

    def close(self) -> None:
        """See `File.close`."""
        self._closed = True

    def _resize(self, size: int, operation: str) -> None:
        with self._disk.mutex:
            self._check_usable()
            try:
                self._disk.meet("resize", self._name)
                if self._room(0, size) < size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                raise self._failure(error, operation) from error
            self._disk.trace.entries.append(self._content.resize(size))

    def _short(self, offset: int, size: int) -> int:
        """How much of a short write is written.

        Where a file grows, a limit may cut it anywhere. What is there already is written page by
        page, so that no sector is left half old and half new.
        """
        stop = offset + max(1, size // 2)
        if offset + size <= len(self._content.data):
            stop -= stop % SECTOR_BYTES
        return stop - offset if stop > offset else size

    def _room(self, offset: int, size: int) -> int:
        """How much of `size` bytes at `offset` fits on the disk; raises when nothing does."""
        room = len(self._content.data) + self._disk.room() - offset
        if size > 0 and room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return room

    def _failure(self, error: OSError, operation: str) -> errors.StorageError:
        trouble = failure(error, self.description, operation)
        self._failed = not isinstance(trouble, errors.StorageFull)
        return trouble

    def _check_usable(self) -> None:
        self._disk.check_alive(self._life)
        if self._failed or self._closed:
            raise errors.StorageFailed(self.description, "failed before, or is closed")


class RecordingLock:
    """The lock of a `RecordingDisk`."""

    def __init__(self, disk: RecordingDisk) -> None:
        self._disk = disk
        self._life = disk.life

    def close(self) -> None:
        """See `DirectoryLock.close`."""
        if self._life == self._disk.life:
            self._disk.unlock()


class _Content:
    """The bytes of a file. Those of an image are shared until somebody changes them."""

    def __init__(self, number: int, data: bytes) -> None:
        self.number = number
        self.data: bytes | bytearray = data

    def write(self, offset: int, new: bytes) -> Wrote:
        data = self._own()
        size = len(data)
        end = offset + len(new)
        if end > size:
            data.extend(bytes(end - size))
        data[offset:end] = new
        start = offset - offset % SECTOR_BYTES
        stop = -(-end // SECTOR_BYTES) * SECTOR_BYTES
        return Wrote(
            self.number, start, bytes(data[start:stop]).ljust(stop - start, b"\0"), size, len(data)
        )

    def resize(self, size: int) -> Resized:
        data = self._own()
        before = len(data)
        del data[size:]
        data.extend(bytes(size - len(data)))
        return Resized(self.number, before, size)

    def _own(self) -> bytearray:
        if not isinstance(self.data, bytearray):
            self.data = bytearray(self.data)
        return self.data


def failure(error: OSError, place: str, operation: str) -> errors.StorageError:
    """The error that `RealDisk` raises for what the kernel said."""
    kind = errors.StorageFull if error.errno in _FULL else errors.StorageFailed
    return kind(place, f"{operation}: {error.strerror}")
