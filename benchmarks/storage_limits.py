"""What a bare file gives: the limits that the storages of `storage` are held against.

`Bare` is what any durable write takes: an append and an `fdatasync`, in a file that was written in
full before, so that an append changes nothing but bytes. The other two do no more either, and show
how far a bar can be reached at all in the run that they are part of: `BareTwice` has large payloads
on disk before the record that names them, `BareShared` lets threads share a write and a sync, with
nothing else to do or with some Python beside it, as whatever stores a message has.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

BARE = "bare append"
BARE_TWICE = "bare append, then a record in another file"
BARE_FILE_BYTES = 64 * 1024 * 1024
RECORD_BYTES = 512


def _written_file(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # Zeros and not only room: the first write into allocated room changes the file's map too.
    zeros = bytes(1024 * 1024)
    for offset in range(0, BARE_FILE_BYTES, len(zeros)):
        os.pwrite(fd, zeros, offset)
    os.fsync(fd)
    return fd


@dataclass
class Bare:
    """Writes the data behind that of the call before, from the front again at the end."""

    path: Path
    data: bytes
    name: str = BARE

    def start(self) -> None:
        """The file is there, and full of zeros."""
        self._position = 0
        self._fd = _written_file(self.path)

    def stop(self) -> None:
        """There is no such file."""
        os.close(self._fd)
        self.path.unlink()

    def one_call(self) -> None:
        """The data is on disk."""
        if self._position + len(self.data) > BARE_FILE_BYTES:
            self._position = 0
        os.pwrite(self._fd, self.data, self._position)
        os.fdatasync(self._fd)
        self._position += len(self.data)


class BareTwice:
    """The data is on disk, and then a record in another file."""

    def __init__(self, folder: Path, data: bytes) -> None:
        self.name = BARE_TWICE
        self._files = (
            Bare(folder / "bare-pages", data),
            Bare(folder / "bare-log", bytes(RECORD_BYTES)),
        )

    def start(self) -> None:
        """Both files are there."""
        for file in self._files:
            file.start()

    def stop(self) -> None:
        """Neither file is there."""
        for file in self._files:
            file.stop()

    def one_call(self) -> None:
        """Both are on disk, one after the other."""
        for file in self._files:
            file.one_call()


class _Group:
    """Records that go to the disk together: who came first leads, the others wait at the gate."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.gate = threading.Lock()
        self.gate.acquire()


class BareShared:
    """A record is on disk, written alone or together with those of other threads.

    The first of a group waits for its turn and writes for all who have come by then. The others do
    not compete for the turn: one that did would be overtaken by whoever has just had it.
    """

    def __init__(self, path: Path, python_us: float = 0.0) -> None:
        self._file = Bare(path, b"")
        # Half of it before the write, half behind it, and counted in steps: who looked at the
        # clock would count the time of others, too.
        self._steps = int(python_us / 2 * _steps_per_us()) if python_us else 0
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._group = _Group()

    def start(self) -> None:
        """The file is there."""
        self._file.start()

    def stop(self) -> None:
        """There is no such file."""
        self._file.stop()

    def one_call(self) -> None:
        """This thread's record is on disk."""
        _compute(self._steps)
        self._share()
        _compute(self._steps)

    def _share(self) -> None:
        with self._lock:
            group = self._group
            group.records.append(bytes(RECORD_BYTES))
            leads = len(group.records) == 1
        if not leads:
            # Who comes through lets the next one through.
            with group.gate:
                return
        with self._turn:
            with self._lock:
                self._group = _Group()
            self._file.data = b"".join(group.records)
            self._file.one_call()
        group.gate.release()


def _compute(steps: int) -> None:
    for _ in range(steps):
        pass


def _steps_per_us() -> float:
    """How many steps a microsecond has, in a loop that is not disturbed."""
    steps, best_s = 10_000, 1.0
    for _ in range(50):
        begun = time.perf_counter()
        _compute(steps)
        best_s = min(best_s, time.perf_counter() - begun)
    return steps / best_s / 1e6
