"""The disk as the storage sees it: the real one, and the recording one that tests put in its place.

The first part holds for both, so that what is proved on the recording disk means something.
The second is about what only a real file system can do to us.
"""

from __future__ import annotations

import array
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mqserver import errors
from mqserver.storage.disk import Disk, File, RealDisk
from tests.crash.recording_disk import RecordingDisk


@pytest.fixture(params=["real", "recording"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    disk: Disk = RealDisk(tmp_path / "data", create=True)
    if request.param == "recording":
        disk.close()
        disk = RecordingDisk()
    yield disk
    disk.close()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealDisk]:
    disk = RealDisk(tmp_path / "data", create=True)
    yield disk
    disk.close()


@pytest.fixture
def file(disk: Disk) -> Iterator[File]:
    file = disk.open("file", create=True)
    yield file
    file.close()


# --- Every disk -----------------------------------------------------------------------------------


def test_what_was_written_is_read_back(file: File) -> None:
    file.write(0, b"once and as a whole")
    file.write(5, b"AND")
    file.sync()
    assert file.read(0, 19) == b"once AND as a whole"
    assert file.read(5, 3) == b"AND"


def test_a_gap_before_the_written_bytes_is_zeros(file: File) -> None:
    file.write(1000, b"x")
    assert file.size() == 1001
    assert file.read(0, 1001) == bytes(1000) + b"x"


def test_a_read_is_short_only_where_the_file_ends(file: File) -> None:
    file.write(0, b"abc")
    assert file.read(1, 100) == b"bc"
    assert file.read(3, 100) == b""
    assert file.read(1000, 1) == b""
    assert file.read(0, 0) == b""


@pytest.mark.parametrize(
    "data", [b"ABCD", bytearray(b"ABCD"), memoryview(b"xABCDx")[1:5]], ids=lambda data: type(data)
)
def test_bytes_of_every_kind_are_written(file: File, data: bytes | bytearray | memoryview) -> None:
    file.write(0, data)
    file.write_many(4, [data, data])
    assert file.read(0, 100) == b"ABCD" * 3


def test_a_view_of_wider_items_is_written_as_bytes(file: File) -> None:
    words = array.array("I", [1, 2, 3])
    file.write(0, memoryview(words))
    file.write_many(12, [memoryview(words), b"end"])
    assert file.read(0, 100) == words.tobytes() * 2 + b"end"


def test_an_empty_write_changes_nothing(file: File) -> None:
    file.write(100, b"")
    file.write_many(100, [])
    file.write_many(100, [b"", b""])
    assert file.size() == 0


def test_truncation_cuts_and_extends_with_zeros(file: File) -> None:
    file.write(0, b"abcdef")
    file.truncate(2)
    assert file.read(0, 100) == b"ab"
    file.truncate(4)
    assert file.read(0, 100) == b"ab\0\0"


def test_allocation_extends_with_zeros_and_never_shrinks(file: File) -> None:
    file.write(0, b"abc")
    file.allocate(10_000)
    file.allocate(5)
    file.allocate(0)
    assert file.read(0, 20_000) == b"abc" + bytes(9_997)


def test_a_closed_file_refuses_everything_but_closing(file: File) -> None:
    file.close()
    file.close()
    _assert_refuses_everything(file)


def test_names_are_sorted_and_leave_out_the_lock(disk: Disk) -> None:
    lock = disk.lock()
    for name in ("b", "c", "a"):
        disk.open(name, create=True).close()
    assert disk.names() == ["a", "b", "c"]
    assert disk.exists("a")
    assert not disk.exists("d")
    lock.close()


def test_creating_a_file_that_exists_leaves_its_content(disk: Disk, file: File) -> None:
    file.write(0, b"content")
    again = disk.open("file", create=True)
    assert again.read(0, 10) == b"content"
    again.close()


def test_a_missing_file_is_refused_and_named(disk: Disk) -> None:
    with pytest.raises(errors.StorageError, match="nothing-here"):
        disk.open("nothing-here")
    assert disk.names() == []
    for action in (disk.remove, lambda name: disk.rename(name, "other")):
        with pytest.raises(errors.StorageFailed, match="nothing-here"):
            action("nothing-here")


def test_a_renamed_file_takes_the_place_of_another(disk: Disk, file: File) -> None:
    file.write(0, b"new")
    other = disk.open("other", create=True)
    other.write(0, b"old")
    other.close()
    disk.rename("file", "other")
    disk.sync_directory()
    assert disk.names() == ["other"]
    opened = disk.open("other")
    assert opened.read(0, 10) == b"new"
    opened.close()


def test_a_removed_file_can_be_used_by_who_has_it_open(disk: Disk, file: File) -> None:
    disk.remove("file")
    file.write(0, b"still here")
    file.sync()
    assert file.read(0, 100) == b"still here"
    assert disk.names() == []


def test_a_second_lock_is_refused_until_the_first_is_closed(disk: Disk) -> None:
    lock = disk.lock()
    with pytest.raises(errors.StorageLocked, match=f"{disk.description}.*process {os.getpid()}"):
        disk.lock()
    lock.close()
    lock.close()
    disk.lock().close()


def test_a_closed_disk_refuses_to_open_files(disk: Disk, file: File) -> None:
    disk.close()
    disk.close()
    with pytest.raises(errors.StorageFailed):
        disk.open("file")
    file.write(0, b"open files go on")


def test_there_is_room_on_an_empty_disk(disk: Disk) -> None:
    assert disk.free_bytes() > 0


# --- The real disk: who may touch it --------------------------------------------------------------


def test_directory_and_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two"
    disk = RealDisk(path, create=True)
    disk.lock().close()
    disk.open("file", create=True).close()
    disk.close()
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path.parent, path)] == [0o700, 0o700]
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()} == {0o600}


def test_a_missing_directory_is_refused_unless_it_is_to_be_made(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageError, match=r"data.*No such file"):
        RealDisk(tmp_path / "data")
    (tmp_path / "file").touch()
    with pytest.raises(errors.StorageError, match=r"file.*Not a directory"):
        RealDisk(tmp_path / "file", create=True)


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(errors.StorageError, match=r"data, can be written by other users.*chmod"):
        RealDisk(path)


def test_a_file_that_others_can_write_is_refused(tmp_path: Path, real: RealDisk) -> None:
    real.open("file", create=True).close()
    (tmp_path / "data" / "file").chmod(0o620)
    with pytest.raises(errors.StorageError, match="can be written by other users"):
        real.open("file")


@pytest.mark.needs_root
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, -1)
    with pytest.raises(errors.StorageError, match=r"belongs to user 12345.*chown"):
        RealDisk(path)


@pytest.mark.parametrize("name", ["file", "lock"])
def test_a_symbolic_link_in_place_of_a_file_is_refused(
    tmp_path: Path, real: RealDisk, name: str
) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    (tmp_path / "data" / name).symlink_to(target)
    with pytest.raises(errors.StorageError, match="symbolic link"):
        real.lock() if name == "lock" else real.open(name, create=True)
    assert target.read_bytes() == b"precious"


def test_a_pipe_in_place_of_a_file_is_refused(tmp_path: Path, real: RealDisk) -> None:
    os.mkfifo(tmp_path / "data" / "file", 0o600)
    with pytest.raises(errors.StorageError, match="not a plain file"):
        real.open("file")


@pytest.mark.parametrize("name", ["", ".", "..", "../file", "a/b", "lock", "nul\0"])
def test_a_name_that_leads_elsewhere_is_a_mistake_of_ours(real: RealDisk, name: str) -> None:
    with pytest.raises(AssertionError):
        real.open(name, create=True)


def test_files_are_not_handed_to_child_processes(real: RealDisk) -> None:
    file, lock = real.open("file", create=True), real.lock()
    opened = [int(fd) for fd in os.listdir("/proc/self/fd") if _leads_into_data(fd)]
    assert len(opened) == 3
    assert not any(os.get_inheritable(fd) for fd in opened)
    file.close()
    lock.close()


# --- The real disk: what the kernel says ----------------------------------------------------------


def test_short_writes_are_continued(real: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_one, kernel_many = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: kernel_one(fd, data[:100], at))
    monkeypatch.setattr(
        os, "pwritev", lambda fd, pieces, at: kernel_many(fd, [b"".join(pieces)[:70]], at)
    )
    data = os.urandom(1050)
    file = real.open("file", create=True)
    file.write(3, data)
    file.write_many(2000, [data[:500], b"", data[500:]])
    assert file.read(3, 1050) == data
    assert file.read(2000, 1050) == data
    file.close()


def test_more_pieces_are_written_than_the_kernel_takes_at_once(real: RealDisk) -> None:
    file = real.open("file", create=True)
    pieces = [str(number).encode() for number in range(5000)]
    file.write_many(7, pieces)
    assert file.read(7, 100_000) == b"".join(pieces)
    file.close()


def test_only_what_is_large_is_sent_to_the_disk_at_once(
    real: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, at, size, how: asked.append((at, size)))
    file = real.open("file", create=True)
    file.write_many(7, [b"small"])
    file.write_many(4096, [b"large" * 100_000, b"and more"])
    assert asked == [(4096, 500_008)]
    file.close()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_system_that_does_not_hurry_is_no_failure(
    real: RealDisk, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    if is_known:
        monkeypatch.setattr(os, "posix_fadvise", _raising(errno.EINVAL))
    else:
        monkeypatch.delattr(os, "posix_fadvise")
    file = real.open("file", create=True)
    file.write_many(0, [b"large" * 100_000])
    file.sync()
    assert file.read(499_995, 5) == b"large"
    file.close()


def test_short_reads_inside_the_file_are_continued(
    real: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = real.open("file", create=True)
    file.write(0, b"0123456789")
    kernel = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: kernel(fd, min(size, 3), at))
    assert file.read(0, 8) == b"01234567"
    assert file.read(4, 100) == b"456789"
    file.close()


def test_a_read_that_ends_inside_the_file_is_damage(
    real: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = real.open("file", create=True)
    file.write(0, b"0123456789")
    monkeypatch.setattr(os, "pread", lambda fd, size, at: b"")
    with pytest.raises(errors.Corruption, match="file, offset 4"):
        file.read(4, 2)
    file.close()


def test_what_the_device_cannot_read_is_damage_of_that_place(
    real: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = real.open("file", create=True)
    file.write(0, b"0123456789")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", _raising(errno.EIO))
        with pytest.raises(errors.Corruption, match="file, offset 4"):
            file.read(4, 2)
    assert file.read(0, 2) == b"01"
    file.close()


FAILING: dict[str, Callable[[File], None]] = {
    "pwrite": lambda file: file.write(0, b"data"),
    "pwritev": lambda file: file.write_many(0, [b"data"]),
    "fdatasync": lambda file: file.sync(),
    "ftruncate": lambda file: file.truncate(1),
    "posix_fallocate": lambda file: file.allocate(100),
}


@pytest.mark.parametrize("call", FAILING)
def test_a_failure_is_final_for_the_file(
    real: RealDisk, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    file = real.open("file", create=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, _raising(errno.EIO))
        with pytest.raises(errors.StorageFailed, match=r"file.*Input/output error"):
            FAILING[call](file)
    _assert_refuses_everything(file)
    file.close()


@pytest.mark.parametrize("call", [call for call in FAILING if call != "fdatasync"])
@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_file_goes_on_after_the_disk_was_full(
    real: RealDisk, monkeypatch: pytest.MonkeyPatch, call: str, reason: int
) -> None:
    file = real.open("file", create=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, _raising(reason))
        with pytest.raises(errors.StorageFull, match=f"file.*{os.strerror(reason)}"):
            FAILING[call](file)
    file.write(0, b"there is room again")
    file.sync()
    file.close()


def test_a_disk_that_is_full_during_a_sync_has_failed(
    real: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = real.open("file", create=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", _raising(errno.ENOSPC))
        with pytest.raises(errors.StorageFailed, match="No space left"):
            file.sync()
    _assert_refuses_everything(file)
    file.close()


def test_a_failed_sync_of_the_directory_is_final_for_the_disk(
    real: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _raising(errno.EIO))
        with pytest.raises(errors.StorageFailed, match="Input/output error"):
            real.sync_directory()
    for action in (real.sync_directory, real.names, lambda: real.open("file", create=True)):
        with pytest.raises(errors.StorageFailed, match="failed before"):
            action()


def test_a_file_that_cannot_be_created_on_a_full_disk_says_so(
    real: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", _raising(errno.ENOSPC))
    with pytest.raises(errors.StorageFull, match="file"):
        real.open("file", create=True)


def test_a_full_disk_can_be_locked(real: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", _raising(errno.ENOSPC))
        lock = real.lock()
    with pytest.raises(errors.StorageLocked, match="process not known"):
        real.lock()
    lock.close()


def _raising(reason: int) -> Callable[..., None]:
    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(reason, os.strerror(reason))

    return fail


def _assert_refuses_everything(file: File) -> None:
    actions: list[Callable[[], object]] = [
        file.size,
        file.sync,
        lambda: file.read(0, 1),
        lambda: file.write(0, b"x"),
        lambda: file.write_many(0, [b"x"]),
        lambda: file.truncate(0),
        lambda: file.allocate(10),
    ]
    for action in actions:
        with pytest.raises(errors.StorageFailed):
            action()


def _leads_into_data(fd: str) -> bool:
    try:
        return "/data" in os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return False


# --- Reading only ---------------------------------------------------------------------------------


def test_a_disk_for_reading_shows_everything_and_changes_nothing(tmp_path: Path) -> None:
    writer = RealDisk(tmp_path / "store", create=True)
    file = writer.open("log", create=True)
    file.write(0, b"content")
    reader = RealDisk(tmp_path / "store", read_only=True)
    seen = reader.open("log")
    assert (reader.names(), seen.read(0, 100)) == (["log"], b"content")
    for refused in (
        lambda: seen.write(0, b"x"),
        lambda: seen.truncate(0),
        lambda: reader.open("new", create=True),
        lambda: reader.rename("log", "other"),
        lambda: reader.remove("log"),
    ):
        with pytest.raises(errors.StorageError):
            refused()
    assert (writer.names(), file.read(0, 100)) == (["log"], b"content")


def test_a_reader_s_lock_is_shared_and_leaves_no_trace(tmp_path: Path) -> None:
    RealDisk(tmp_path / "store", create=True).close()
    reader = RealDisk(tmp_path / "store", read_only=True)
    reader.lock().close()
    assert list((tmp_path / "store").iterdir()) == []
    with closing(RealDisk(tmp_path / "store").lock()), pytest.raises(errors.StorageLocked):
        reader.lock()
    first, second = reader.lock(), RealDisk(tmp_path / "store", read_only=True).lock()
    with pytest.raises(errors.StorageLocked):
        RealDisk(tmp_path / "store").lock()
    first.close()
    second.close()
    RealDisk(tmp_path / "store").lock().close()
