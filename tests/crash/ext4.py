"""Real power cuts on a real file system: an ext4 volume in a file, shut down without a warning.

    with PowerCutVolume(tmp_path) as volume:
        events = volume.run("tests.crash.tiny_journal:work_with", "data", cut_at=7)
        volume.remount()
        …                       look at what is left in `volume.path / "data"`

The kernel drops what it has not written, its journal included, and answers every further call with
an error, as if the cable had been pulled; the next mount finds what was on the device. The program
is another process, so that nothing of it is left, and what it says comes through a pipe, which no
power cut takes back. This needs root and a kernel with loop devices.

Such a cut shows one state of those that `crash_states.py` works out, and mostly the one in which
all is lost that was not synced. It is here to show that those who wrote the kernel agree with us.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from mqserver.storage.disk import Disk, RealDisk

Event = tuple[str, int]

# _IOR('X', 125, __u32) in the kernel's fs/ext4/ext4.h, and the wish that its log be dropped too.
_EXT4_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2

_ROOT_FOLDER = Path(__file__).resolve().parents[2]
_VOLUME_BYTES = 16 << 20
_CHILD_S_MAX = 60
_BUSY_S_MAX = 10.0
_BUSY_PAUSE_S = 0.01
_COUNTED_OF_DISK = ("open", "rename", "remove", "sync_directory")
_COUNTED_OF_FILE = ("write", "write_many", "sync", "truncate", "allocate")


class NoVolume(Exception):
    """Here no ext4 volume can be made: root is needed, loop devices, and mkfs.ext4."""


class PowerCutVolume:
    """An ext4 volume, mounted at `path` while the context lasts; nothing is left of it afterwards.

    The loop device is the mount's own: the kernel lets go of it with the last use of the volume.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "mounted"
        self._image = folder / "volume.img"

    def __enter__(self) -> PowerCutVolume:
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(_VOLUME_BYTES)
        try:
            _run("mkfs.ext4", "-q", "-F", str(self._image))
            self._mount()
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", "") or str(error)
            raise NoVolume(reason.strip()) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Lazily, so that a file that a failed test left open does not keep the volume mounted.
        if os.path.ismount(self.path):
            _run("umount", "--lazy", str(self.path))
        self._image.unlink()

    def run(self, scenario: str, folder: str, *arguments: str, cut_at: int) -> list[Event] | None:
        """What a program said until the power went before its operation `cut_at`.

        `scenario` is `module:function`, called with a disk, a function to say something, and the
        arguments. Nothing comes back when it ended before that operation.
        """
        place = str(self.path / folder)
        command = [sys.executable, "-m", "tests.crash.ext4", place, str(cut_at), scenario]
        child = subprocess.run(
            [*command, *arguments],
            cwd=_ROOT_FOLDER,
            capture_output=True,
            text=True,
            timeout=_CHILD_S_MAX,
            check=False,
        )
        if child.returncode:
            raise AssertionError(f"{scenario} failed:\n{child.stderr}")
        *events, last = map(json.loads, child.stdout.splitlines())
        return [(what, number) for what, number in events] if last == "cut" else None

    def cut(self) -> None:
        """The power is gone: what is not on the device is lost, and nothing works any more."""
        _cut_power(self.path)

    def remount(self) -> None:
        """The power is back."""
        self._unmount()
        self._mount()

    def _unmount(self) -> None:
        # The program has ended, yet whoever looks at all mounts or all processes of the machine
        # (a monitor, `ps`, `df`) may hold the volume for a moment longer.
        give_up = time.monotonic() + _BUSY_S_MAX
        while True:
            try:
                return _run("umount", str(self.path))
            except subprocess.CalledProcessError as error:
                if "busy" not in error.stderr or time.monotonic() > give_up:
                    raise AssertionError(f"umount: {error.stderr}{_users_of(self.path)}") from error
            time.sleep(_BUSY_PAUSE_S)

    def _mount(self) -> None:
        # By itself ext4 writes the data of a file that is renamed over another before the name.
        # Others do not, and a program that counts on it must be found here.
        options = "loop,noauto_da_alloc"
        _run("mount", "-t", "ext4", "-o", options, str(self._image), str(self.path))


def _cut_power(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    finally:
        os.close(fd)


def _users_of(path: Path) -> str:
    """The processes that have something of the volume open or mapped, or stand in it."""
    users = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            links = [process / "cwd", process / "root", *(process / "fd").iterdir()]
            used = [os.readlink(link) for link in links] + [(process / "maps").read_text()]
            if any(str(path) in text for text in used):
                users.append(f"{process.name} {(process / 'comm').read_text().strip()}")
    return f"used by: {', '.join(users) or 'nobody who can be seen'}"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


# --- The other process ----------------------------------------------------------------------------


class _Counted:
    """A disk or a file with a bell that is rung before each operation that is worth a cut."""

    def __init__(self, target: object, ring: Callable[[], None]) -> None:
        self._target = target
        self._ring = ring

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)
        if name not in _COUNTED_OF_DISK + _COUNTED_OF_FILE:
            return method

        def ring_and_call(*arguments: object, **options: object) -> object:
            self._ring()
            result = method(*arguments, **options)
            return _Counted(result, self._ring) if name == "open" else result

        return ring_and_call


class _Fuse:
    """Cuts the power at the call of this number, and ends the process on the spot."""

    def __init__(self, path: Path, cut_at: int) -> None:
        self._path = path
        self._calls_left = cut_at

    def __call__(self) -> None:
        self._calls_left -= 1
        if not self._calls_left:
            _cut_power(self._path)
            _say("cut")
            os._exit(0)


def _say(event: object) -> None:
    # Straight to the pipe: what is in a buffer of ours is lost with us.
    os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


def _main(place: str, cut_at: str, scenario: str, *arguments: str) -> None:
    module, _, function = scenario.partition(":")
    run = getattr(importlib.import_module(module), function)
    disk = RealDisk(place, create=True)
    run(cast(Disk, _Counted(disk, _Fuse(Path(place), int(cut_at)))), _say, *arguments)
    _say("end")


if __name__ == "__main__":
    _main(*sys.argv[1:])
