"""Real power cuts: the tiny journal on a real ext4, and that this one really loses things."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from mqserver import errors
from mqserver.storage.disk import RealDisk
from tests.crash.ext4 import NoVolume, PowerCutVolume
from tests.crash.tiny_journal import Flaw, judge

pytestmark = [pytest.mark.needs_root, pytest.mark.needs("mkfs.ext4", "mount", "umount", "losetup")]

CUTS = 20
WORK = "tests.crash.tiny_journal:work_with"


@pytest.fixture
def volume(tmp_path: Path, missing: Callable[[str], NoReturn]) -> Iterator[PowerCutVolume]:
    volume = PowerCutVolume(tmp_path)
    try:
        volume.__enter__()
    except NoVolume as error:
        missing(f"no ext4 volume can be made here: {error}")
    yield volume
    volume.__exit__(None, None, None)


def test_a_cut_loses_what_was_not_synced_and_nothing_else(volume: PowerCutVolume) -> None:
    disk = RealDisk(volume.path / "data", create=True)
    safe, unsafe = disk.open("safe", create=True), disk.open("unsafe", create=True)
    disk.sync_directory()
    safe.write(0, b"safe")
    safe.sync()
    unsafe.write(0, b"unsafe")
    disk.open("nameless", create=True).close()
    volume.cut()
    with pytest.raises(errors.StorageFailed):
        unsafe.sync()
    for each in (safe, unsafe, disk):
        each.close()

    volume.remount()
    disk = RealDisk(volume.path / "data")
    contents = {name: _read(disk, name) for name in disk.names()}
    disk.close()
    assert contents == {"safe": b"safe", "unsafe": b""}


def test_a_directory_that_was_made_for_the_disk_survives_a_cut(volume: PowerCutVolume) -> None:
    RealDisk(volume.path / "one" / "two", create=True).close()
    volume.cut()
    volume.remount()
    RealDisk(volume.path / "one" / "two").close()


def test_a_right_journal_survives_real_power_cuts(volume: PowerCutVolume) -> None:
    assert _violations(volume, "", range(1, CUTS + 1)) == []


@pytest.mark.parametrize(
    "flaw", [Flaw.NO_SYNC, Flaw.EARLY_ACK, Flaw.EARLY_RENAME], ids=lambda flaw: flaw.name
)
def test_a_flaw_is_found_by_a_real_power_cut(volume: PowerCutVolume, flaw: Flaw) -> None:
    assert _violations(volume, flaw.name, range(4, CUTS + 1), is_one_enough=True)


def test_nothing_is_left_of_a_volume_whose_test_failed(
    tmp_path: Path, volume: PowerCutVolume
) -> None:
    folder = tmp_path / "second"
    folder.mkdir()
    with contextlib.suppress(AssertionError), PowerCutVolume(folder) as second:
        left_open = (second.path / "file").open("wb")
        raise AssertionError("the test failed")
    left_open.close()
    assert str(folder) not in Path("/proc/mounts").read_text(encoding="utf-8")
    # Some kernels let go of the device a moment later.
    deadline = time.monotonic() + 10
    while str(folder) in (loops := _loop_devices()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert str(folder) not in loops
    assert [each.name for each in folder.iterdir()] == ["mounted"]


def _violations(
    volume: PowerCutVolume, flaw: str, cuts: range, is_one_enough: bool = False
) -> list[str]:
    """What was wrong after power cuts before these operations, each in a folder of its own."""
    found = []
    for cut_at in cuts:
        folder = f"cut-{cut_at}"
        events = volume.run(WORK, folder, flaw, cut_at=cut_at)
        assert events is not None, f"the work has fewer than {cut_at} operations"
        volume.remount()
        disk = RealDisk(volume.path / folder)
        wrong = judge(disk, events, Flaw[flaw] if flaw else None)
        disk.close()
        found += [f"cut at {cut_at}: {wrong}"] if wrong else []
        if found and is_one_enough:
            break
    return found


def _loop_devices() -> str:
    listing = ["losetup", "--all"]
    return subprocess.run(listing, capture_output=True, text=True, check=True).stdout


def _read(disk: RealDisk, name: str) -> bytes:
    file = disk.open(name)
    content = file.read(0, file.size())
    file.close()
    return content
