"""A directory in memory, for a coordinator whose decisions need not outlive its process.

It has no faults and no limits of its own; what was never written reads as zeros, as files have it.
It knows nothing of what the bytes mean. See `mqserver.storage.disk` for what holds.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

ROOM_BYTES = 2**40

Bytes = bytes | bytearray | memoryview


class MemoryFile:
    """See `File`."""

    def __init__(self, description: str) -> None:
        self.description = description
        self._data = bytearray()
        self._lock = threading.Lock()

    def size(self) -> int:
        """See `File.size`."""
        return len(self._data)

    def read(self, offset: int, size: int) -> bytes:
        """See `File.read`."""
        with self._lock:
            return bytes(self._data[offset : offset + size])

    def write(self, offset: int, data: Bytes) -> None:
        """See `File.write`."""
        with self._lock:
            self._grow(offset + len(data))
            self._data[offset : offset + len(data)] = data

    def write_many(self, offset: int, pieces: Sequence[Bytes]) -> None:
        """See `File.write_many`."""
        self.write(offset, b"".join(pieces))

    def sync(self) -> None:
        """See `File.sync`."""

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        with self._lock:
            del self._data[size:]
            self._grow(size)

    def allocate(self, size: int) -> None:
        """See `File.allocate`."""
        with self._lock:
            self._grow(size)

    def close(self) -> None:
        """See `File.close`."""

    def _grow(self, size: int) -> None:
        self._data.extend(bytes(max(0, size - len(self._data))))


class _NoLock:
    def close(self) -> None:
        """Nobody else can see the directory."""


class MemoryDisk:
    """See `Disk`."""

    description = "memory"

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}

    def names(self) -> list[str]:
        """See `Disk.names`."""
        return sorted(self._files)

    def exists(self, name: str) -> bool:
        """See `Disk.exists`."""
        return name in self._files

    def open(self, name: str, create: bool = False) -> MemoryFile:
        """See `Disk.open`."""
        if create:
            return self._files.setdefault(name, MemoryFile(f"{self.description}/{name}"))
        return self._files[name]

    def rename(self, old: str, new: str) -> None:
        """See `Disk.rename`."""
        self._files[new] = self._files.pop(old)

    def remove(self, name: str) -> None:
        """See `Disk.remove`."""
        del self._files[name]

    def sync_directory(self) -> None:
        """See `Disk.sync_directory`."""

    def free_bytes(self) -> int:
        """See `Disk.free_bytes`."""
        return ROOM_BYTES

    def lock(self) -> _NoLock:
        """See `Disk.lock`."""
        return _NoLock()

    def close(self) -> None:
        """See `Disk.close`."""
