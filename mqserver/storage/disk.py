"""The only module that touches files: one directory, and the files in it.

`Disk` and `File` say what the storage asks of the outside world; `RealDisk` is the world, and tests
put another in its place. Nothing here knows what the bytes mean. What holds:

1. What `write`, `truncate` and `allocate` have done is seen by `read` at once, and is safe from a
   power cut after `sync` has returned. A name is safe after `sync_directory` has returned: syncing
   a new file does not make it findable.
2. A failed sync is never repeated. The kernel has marked the pages clean, so that a second try
   would succeed without having written them. After it, and after a write that failed, a file
   raises `StorageFailed` whatever it is asked; it can be closed. So does a disk whose directory
   could not be synced.
3. A full disk is no such failure: `write`, `truncate` and `allocate` raise `StorageFull` and the
   file goes on. A part of what was to be written may be there. Where the disk turns out full only
   during a sync, that is the failure of rule 2.
4. `read` returns less than was asked for only where the file ends. What the device cannot read is
   `Corruption`, and other places of the file can still be read.
5. A name in the directory is a plain file that nobody else can write, or it is not opened.

Files may be used from any thread; whoever closes one makes sure that nobody is using it still.
A limit on file sizes reaches us as an error and not as a signal: Python ignores SIGXFSZ.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import portalocker

from mqserver import errors

Bytes = bytes | bytearray | memoryview

LOCK_NAME = "lock"

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_PIECES_MAX = 1024
# From so many bytes on a write goes to the disk at once, and is not left lying until the sync.
_HURRY_BYTES_MIN = 128 * 1024
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FILE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


def _length(data: Bytes) -> int:
    """How many bytes it is; a view may count in something else."""
    return data.nbytes if isinstance(data, memoryview) else len(data)


class File(Protocol):
    """An open file. See the module's text for what holds across the calls."""

    @property
    def description(self) -> str:
        """The file as an operator knows it."""

    def size(self) -> int:
        """How many bytes the file has."""

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from `offset` on: `size` of them, or fewer where the file ends."""

    def write(self, offset: int, data: Bytes) -> None:
        """The file has these bytes at `offset`, and zeros in a gap that came to be before them."""

    def write_many(self, offset: int, pieces: Sequence[Bytes]) -> None:
        """The same as `write` of all the pieces joined, without joining them."""

    def sync(self) -> None:
        """What was written, and the size, survive a power cut."""

    def truncate(self, size: int) -> None:
        """The file has this size; what lay behind is gone, what was not there is zeros."""

    def allocate(self, size: int) -> None:
        """The file has at least this size, and writing so far cannot find the disk full."""

    def close(self) -> None:
        """The file is not used any more. Does not sync; may be repeated."""


class DirectoryLock(Protocol):
    """The right to be the only process in a directory."""

    def close(self) -> None:
        """The directory is free for others."""


class Disk(Protocol):
    """One directory. See the module's text for what holds across the calls."""

    @property
    def description(self) -> str:
        """The directory as an operator knows it."""

    def names(self) -> list[str]:
        """The names of all files but the lock's, sorted."""

    def exists(self, name: str) -> bool:
        """There is something of this name."""

    def open(self, name: str, create: bool = False) -> File:
        """The file; with `create` it is there, and empty, where there was none."""

    def rename(self, old: str, new: str) -> None:
        """The file has the new name, in place of a file that had it."""

    def remove(self, name: str) -> None:
        """There is no file of this name. Those who have it open can go on using it."""

    def sync_directory(self) -> None:
        """What was created, renamed and removed is so after a power cut."""

    def free_bytes(self) -> int:
        """How much room there is."""

    def lock(self) -> DirectoryLock:
        """No other process has the directory. Raises `StorageLocked` at once if one has."""

    def close(self) -> None:
        """The directory is not used any more. Files stay open; may be repeated."""


class RealDisk:
    """A directory of this machine. It is made, for its owner alone, where `create` asks for it.

    With `read_only` nothing in it can be changed, not even a time of access where the kernel lets
    us leave it alone, and its lock is shared with others who only read.
    """

    def __init__(
        self, path: str | os.PathLike[str], create: bool = False, read_only: bool = False
    ) -> None:
        self.description = os.fspath(path)
        self._read_only = read_only
        self._failed = False
        try:
            if create:
                _make_directory(Path(self.description).absolute())
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            opened = _open_unnoticed if read_only else os.open
            self._fd = opened(self.description, flags)
        except OSError as error:
            raise _refused(error, self.description, "open") from error
        try:
            _refuse_strangers(self.description, os.fstat(self._fd))
        except errors.StorageError:
            self.close()
            raise

    def names(self) -> list[str]:
        """See `Disk.names`."""
        self._check()
        try:
            return sorted(name for name in os.listdir(self._fd) if name != LOCK_NAME)
        except OSError as error:
            raise _refused(error, self.description, "list") from error

    def exists(self, name: str) -> bool:
        """See `Disk.exists`."""
        self._check(name)
        return self._is_there(name)

    def open(self, name: str, create: bool = False) -> RealFile:
        """See `Disk.open`."""
        self._check(name)
        return RealFile(self._open(name, create), self._place(name))

    def rename(self, old: str, new: str) -> None:
        """See `Disk.rename`."""
        self._check(old, new)
        self._refuse_change(old)
        try:
            os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError as error:
            raise _trouble(error, self._place(old), f"rename to {new}") from error

    def remove(self, name: str) -> None:
        """See `Disk.remove`."""
        self._check(name)
        self._refuse_change(name)
        try:
            os.unlink(name, dir_fd=self._fd)
        except OSError as error:
            raise _trouble(error, self._place(name), "remove") from error

    def sync_directory(self) -> None:
        """See `Disk.sync_directory`."""
        self._check()
        try:
            os.fsync(self._fd)
        except OSError as error:
            self._failed = True
            raise _lost(error, self.description) from error

    def free_bytes(self) -> int:
        """See `Disk.free_bytes`."""
        self._check()
        try:
            room = os.fstatvfs(self._fd)
        except OSError as error:
            raise _refused(error, self.description, "ask for room") from error
        return room.f_bavail * room.f_frsize

    def lock(self) -> RealLock:
        """See `Disk.lock`. The process is named in the file, for the one that comes second."""
        self._check()
        if self._read_only and not self._is_there(LOCK_NAME):
            # Nobody ever had this directory open.
            return RealLock(-1)
        fd = self._open(LOCK_NAME, create=not self._read_only)
        kind = portalocker.LOCK_SH if self._read_only else portalocker.LOCK_EX
        try:
            portalocker.lock(fd, kind | portalocker.LOCK_NB)
        except portalocker.AlreadyLocked as error:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "not known"
            os.close(fd)
            raise errors.StorageLocked(self.description, f"process {holder}") from error
        except portalocker.LockException as error:
            os.close(fd)
            raise errors.StorageError(self._place(LOCK_NAME), f"lock: {error}") from error
        if self._read_only:
            return RealLock(fd)
        # On a full disk there may be no room for the number. The lock holds without it, and a
        # server that could not start there could not give out what would make room.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return RealLock(fd)

    def close(self) -> None:
        """See `Disk.close`."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _is_there(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _refused(error, self._place(name), "look up") from error
        return True

    def _refuse_change(self, name: str) -> None:
        if self._read_only:
            raise errors.StorageError(self._place(name), "is open for reading only")

    def _open(self, name: str, create: bool) -> int:
        place = self._place(name)
        if create:
            self._refuse_change(name)
        flags = os.O_RDWR | _FILE_FLAGS | (os.O_CREAT if create else 0)
        try:
            if self._read_only:
                fd = _open_unnoticed(name, os.O_RDONLY | _FILE_FLAGS, dir_fd=self._fd)
            else:
                fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise errors.StorageError(place, "is a symbolic link, which is refused") from error
            raise _refused(error, place, "open") from error
        try:
            _refuse_strangers(place, os.fstat(fd))
        except errors.StorageError:
            os.close(fd)
            raise
        return fd

    def _place(self, name: str) -> str:
        return os.path.join(self.description, name)

    def _check(self, *names: str) -> None:
        if self._failed:
            raise errors.StorageFailed(self.description, "a sync of the directory failed before")
        if self._fd < 0:
            raise errors.StorageFailed(self.description, "is closed")
        for name in names:
            assert name not in ("", ".", "..", LOCK_NAME), name
            assert "/" not in name, name
            assert "\0" not in name, name


class RealFile:
    """An open file of this machine."""

    def __init__(self, fd: int, description: str) -> None:
        self.description = description
        self._fd = fd
        self._failed = False

    def size(self) -> int:
        """See `File.size`."""
        self._check()
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            raise _refused(error, self.description, "ask for the size") from error

    def read(self, offset: int, size: int) -> bytes:
        """See `File.read`."""
        self._check()
        data = self._read_once(offset, size)
        if len(data) == size:
            return data
        parts = [data]
        missing = size - len(data)
        while missing and offset + size - missing < self.size():
            part = self._read_once(offset + size - missing, missing)
            if not part:
                place = offset + size - missing
                raise errors.Corruption(self.description, f"offset {place}", "the read ends early")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def write(self, offset: int, data: Bytes) -> None:
        """See `File.write`."""
        if self._failed or self._fd < 0:
            self._check()
        try:
            written = os.pwrite(self._fd, data, offset)
            if written != len(data) or isinstance(data, memoryview):
                self._write_all(offset + written, memoryview(data).cast("B")[written:])
        except OSError as error:
            raise self._failure(error, f"write at {offset}") from error

    def write_many(self, offset: int, pieces: Sequence[Bytes]) -> None:
        """See `File.write_many`."""
        self._check()
        start = offset
        try:
            for first in range(0, len(pieces), _PIECES_MAX):
                batch = pieces[first : first + _PIECES_MAX]
                written = os.pwritev(self._fd, batch, offset)
                wanted = sum(map(_length, batch))
                if written < wanted:
                    self._write_all(offset + written, memoryview(b"".join(batch))[written:])
                offset += wanted
        except OSError as error:
            raise self._failure(error, f"write at {offset}") from error
        if offset - start >= _HURRY_BYTES_MIN:
            self._hurry(start, offset - start)

    def sync(self) -> None:
        """See `File.sync`."""
        if self._failed or self._fd < 0:
            self._check()
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._failed = True
            raise _lost(error, self.description) from error

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        self._check()
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._failure(error, f"truncate to {size}") from error

    def allocate(self, size: int) -> None:
        """See `File.allocate`."""
        self._check()
        if not size:
            return
        try:
            os.posix_fallocate(self._fd, 0, size)
        except OSError as error:
            raise self._failure(error, f"allocate {size} bytes") from error

    def close(self) -> None:
        """See `File.close`."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _read_once(self, offset: int, size: int) -> bytes:
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            if error.errno == errno.EIO:
                raise errors.Corruption(
                    self.description, f"offset {offset}", error.strerror
                ) from error
            raise _refused(error, self.description, f"read at {offset}") from error

    def _write_all(self, offset: int, data: Bytes) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            written = os.pwrite(self._fd, rest, offset)
            if not written:
                raise OSError(errno.EIO, "nothing was written")
            offset += written
            rest = rest[written:]

    def _hurry(self, offset: int, size: int) -> None:
        """These bytes are on their way to the disk: the sync that follows finds it half done.

        Linux writes back what is said not to be needed, and keeps in memory what is not yet on
        disk. It promises nothing, and what goes wrong with it is told by the sync.
        """
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)

    def _failure(self, error: OSError, operation: str) -> errors.StorageError:
        trouble = _trouble(error, self.description, operation)
        self._failed = not isinstance(trouble, errors.StorageFull)
        return trouble

    def _check(self) -> None:
        if self._failed:
            raise errors.StorageFailed(self.description, "a write or a sync failed before")
        if self._fd < 0:
            raise errors.StorageFailed(self.description, "is closed")


class RealLock:
    """A locked file. The kernel lets go of it when its process ends, however it ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        """See `DirectoryLock.close`. The file stays: another may wait at it already."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _open_unnoticed(path: str, flags: int, dir_fd: int | None = None) -> int:
    """Opens what is only read. Leaving the time of access alone is for owners, and for root."""
    # A pipe in place of a file is refused, and must not be waited for until then.
    flags |= os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_NOATIME, dir_fd=dir_fd)
    except PermissionError:
        return os.open(path, flags, dir_fd=dir_fd)


def _make_directory(path: Path) -> None:
    """Makes the directory and those above it, and makes sure that a power cut leaves them."""
    if not path.parent.is_dir():
        _make_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    # Also where it was there already: who made it may have died before syncing.
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _refuse_strangers(place: str, status: os.stat_result) -> None:
    """Refuses what is neither directory nor plain file, and what other users can change."""
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise errors.StorageError(place, "is not a plain file, which is refused")
    if status.st_uid not in (0, os.geteuid()):
        raise errors.StorageError(
            place, f"belongs to user {status.st_uid}, which is refused; chown it to this server's"
        )
    if status.st_mode & _OTHERS_MAY_WRITE:
        raise errors.StorageError(
            place, "can be written by other users, which is refused; chmod go-w helps"
        )


def _refused(error: OSError, place: str, operation: str) -> errors.StorageError:
    """Nothing was changed that is of importance."""
    kind = errors.StorageFull if error.errno in _FULL else errors.StorageError
    return kind(place, f"{operation}: {error.strerror}")


def _trouble(error: OSError, place: str, operation: str) -> errors.StorageError:
    """A change was asked for, and did not happen or not as a whole."""
    kind = errors.StorageFull if error.errno in _FULL else errors.StorageFailed
    return kind(place, f"{operation}: {error.strerror}")


def _lost(error: OSError, place: str) -> errors.StorageFailed:
    """After a failed sync what was stored is not safe, also when the reason is a full disk."""
    return errors.StorageFailed(place, f"sync: {error.strerror}")
