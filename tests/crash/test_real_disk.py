"""The real disk where it meets other processes and the end of its room.

What one process alone can see is in `tests/unit/storage/test_disk.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from mqserver import errors
from mqserver.storage.disk import RealDisk

ROOT_FOLDER = Path(__file__).resolve().parents[2]
TMPFS_BYTES = 64 * 1024

# Takes the lock, says so, and holds it until it is killed.
HOLDER = """
import sys
from mqserver.storage.disk import RealDisk
lock = RealDisk(sys.argv[1]).lock()
print("locked", flush=True)
sys.stdin.read()
"""

# Writes past a limit on the size of files, then where there is room, and says what happened.
LIMITED = """
import resource, sys
from mqserver import errors
from mqserver.storage.disk import RealDisk
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
file = RealDisk(sys.argv[1]).open("file", create=True)
for action in (lambda: file.write(0, b"x" * 20_000), lambda: file.truncate(9000)):
    try:
        action()
    except errors.StorageFull as error:
        print("full:", error)
file.write(0, b"goes on")
file.sync()
print(file.size())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    RealDisk(path, create=True).close()
    return path


@pytest.fixture
def small(tmp_path: Path, missing: Callable[[str], NoReturn]) -> Iterator[RealDisk]:
    """A disk of 64 KiB that is really full when it is full."""
    path = tmp_path / "small"
    path.mkdir()
    options = f"size={TMPFS_BYTES},mode=0700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        missing("no tmpfs can be mounted here")
    disk = RealDisk(path)
    yield disk
    disk.close()
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_the_second_process_is_told_who_has_the_directory(path: Path) -> None:
    # Who had it before us had a longer number.
    (path / "lock").write_text("123456789\n", encoding="ascii")
    (path / "lock").chmod(0o600)
    with _holder(path) as holder:
        disk = RealDisk(path)
        with pytest.raises(errors.StorageLocked, match=rf"{path}, process {holder.pid}\)"):
            disk.lock()
        holder.kill()
        holder.wait()
        # The kernel gives the lock back, however its holder ended.
        disk.lock().close()
        disk.close()


def test_a_limit_on_file_sizes_is_a_full_disk_and_no_signal(path: Path) -> None:
    done = _python(LIMITED, path)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert [line.startswith("full:") for line in lines] == [True, True, False]
    assert lines[0].endswith("write at 0: File too large)")
    # A part was written before the limit was met, as the contract says it may be.
    assert lines[2] == "8192"


@pytest.mark.needs_root
def test_a_full_file_system_takes_writes_again_when_there_is_room(small: RealDisk) -> None:
    keeper, filler = small.open("keeper", create=True), small.open("filler", create=True)
    keeper.write(0, b"safe")
    keeper.sync()
    with pytest.raises(errors.StorageFull, match=r"filler, write at 0: No space left on device"):
        filler.write(0, os.urandom(2 * TMPFS_BYTES))
    with pytest.raises(errors.StorageFull):
        keeper.write(4096, os.urandom(4096))
    assert small.free_bytes() == 0
    assert keeper.read(0, 4) == b"safe"

    filler.close()
    small.remove("filler")
    keeper.write(4096, b"more")
    keeper.sync()
    assert keeper.read(4096, 4) == b"more"
    keeper.close()


@pytest.mark.needs_root
def test_room_that_was_allocated_is_there_when_the_disk_is_full(small: RealDisk) -> None:
    reserved, filler = small.open("reserved", create=True), small.open("filler", create=True)
    with pytest.raises(errors.StorageFull, match="allocate"):
        reserved.allocate(2 * TMPFS_BYTES)
    reserved.truncate(0)
    reserved.allocate(16 * 1024)
    with pytest.raises(errors.StorageFull):
        filler.write(0, os.urandom(2 * TMPFS_BYTES))
    reserved.write(0, os.urandom(16 * 1024))
    reserved.close()
    filler.close()


@pytest.mark.needs_root
def test_a_full_file_system_can_be_locked(small: RealDisk) -> None:
    filler = small.open("filler", create=True)
    with pytest.raises(errors.StorageFull):
        filler.write(0, os.urandom(2 * TMPFS_BYTES))
    filler.close()
    small.lock().close()


def _holder(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(path)]
    pipe = subprocess.PIPE
    holder = subprocess.Popen(command, cwd=ROOT_FOLDER, stdin=pipe, stdout=pipe, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    return holder


def _python(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, str(path)]
    return subprocess.run(command, cwd=ROOT_FOLDER, capture_output=True, text=True, check=False)
