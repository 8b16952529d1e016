"""A disk whose syncs are timed: whoever runs a server sees whether its disk is slow.

It stands before any disk, changes nothing, and knows neither what is written nor who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mqserver.storage.disk import Bytes, DirectoryLock, Disk, File


class TimedDisk:
    """See `Disk`. `note` is told how long each sync took, by the thread that synced."""

    def __init__(
        self, disk: Disk, clock: Callable[[], float], note: Callable[[float], None]
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._note = note

    @property
    def description(self) -> str:
        """See `Disk.description`."""
        return self._disk.description

    def names(self) -> list[str]:
        """See `Disk.names`."""
        return self._disk.names()

    def exists(self, name: str) -> bool:
        """See `Disk.exists`."""
        return self._disk.exists(name)

    def open(self, name: str, create: bool = False) -> File:
        """See `Disk.open`."""
        return _TimedFile(self._disk.open(name, create), self._clock, self._note)

    def rename(self, old: str, new: str) -> None:
        """See `Disk.rename`."""
        self._disk.rename(old, new)

    def remove(self, name: str) -> None:
        """See `Disk.remove`."""
        self._disk.remove(name)

    def sync_directory(self) -> None:
        """See `Disk.sync_directory`."""
        self._disk.sync_directory()

    def free_bytes(self) -> int:
        """See `Disk.free_bytes`."""
        return self._disk.free_bytes()

    def lock(self) -> DirectoryLock:
        """See `Disk.lock`."""
        return self._disk.lock()

    def close(self) -> None:
        """See `Disk.close`."""
        self._disk.close()


class _TimedFile:
    """See `File`."""

    def __init__(
        self, file: File, clock: Callable[[], float], note: Callable[[float], None]
    ) -> None:
        self._file = file
        self._clock = clock
        self._note = note

    @property
    def description(self) -> str:
        return self._file.description

    def size(self) -> int:
        return self._file.size()

    def read(self, offset: int, size: int) -> bytes:
        return self._file.read(offset, size)

    def write(self, offset: int, data: Bytes) -> None:
        self._file.write(offset, data)

    def write_many(self, offset: int, pieces: Sequence[Bytes]) -> None:
        self._file.write_many(offset, pieces)

    def sync(self) -> None:
        begun = self._clock()
        # One that fails is not noted: after it there is nothing left to measure.
        self._file.sync()
        self._note(self._clock() - begun)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def allocate(self, size: int) -> None:
        self._file.allocate(size)

    def close(self) -> None:
        self._file.close()
