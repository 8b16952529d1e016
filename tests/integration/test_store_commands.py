"""`oncemq check` and `oncemq dump` as people run them, on the files of a real store."""

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.commands.terminal import ExitCode
from mqserver.storage.contract import EVERYTHING, NewMessage, QueueSettings
from mqserver.storage.disk import RealDisk
from mqserver.storage.format import BLOCK_BYTES, segment_name
from mqserver.storage.paged import PagedSettings, PagedStorage

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "clients.cli"]
# Beyond the first page of the data file, inside the first payload.
IN_PAYLOAD = 20_000

# Opens a store, says so, and keeps it until its input ends.
HOLDER = """
import sys, time
from mqserver.storage.disk import RealDisk
from mqserver.storage.paged import PagedStorage
storage = PagedStorage(RealDisk(sys.argv[1]), lambda: bytes(16), time.monotonic)
print("open", flush=True)
sys.stdin.read()
"""


def _environment() -> dict[str, str]:
    quiet = {"NO_COLOR", "FORCE_COLOR", "COLUMNS"}
    kept = {name: value for name, value in os.environ.items() if name not in quiet}
    return kept | {"PYTHONPATH": str(ROOT), "TERM": "xterm"}


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def _message(payload: bytes) -> NewMessage:
    return NewMessage(payload, zlib.crc32(payload))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with small and large messages and a branch in doubt."""
    settings = PagedSettings(segment_blocks=64)
    disk = RealDisk(tmp_path / "store", create=True)
    storage = PagedStorage(disk, lambda: bytes(16), time.monotonic, settings)
    storage.create_queue("orders", QueueSettings())
    storage.store(b"b", "orders", [_message(b"order %d" % number) for number in range(3)])
    storage.store(b"b", "orders", [_message(b"L" * 50_000)])
    storage.commit_one_phase(b"b")
    storage.take(b"in doubt", "orders", EVERYTHING, 1)
    storage.prepare(b"in doubt", b"whom to ask")
    storage.close()
    return tmp_path / "store"


def _flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@contextlib.contextmanager
def _held(store: Path) -> Iterator[subprocess.Popen[str]]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store)],
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "open\n"
    yield holder
    holder.communicate("", timeout=60)


# --- check


def test_a_sound_store_has_exit_code_zero_and_stays_as_it_is(store: Path) -> None:
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    answer = _run("check", str(store))
    assert (answer.returncode, answer.stderr) == (ExitCode.OK, "")
    assert answer.stdout.endswith("\nThe store is sound.\n")
    assert re.search(r"^ok +queue +orders: 3 messages, 1 more held, ", answer.stdout, re.MULTILINE)
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before


def test_a_damaged_store_has_an_exit_code_of_its_own(store: Path) -> None:
    _flip(store / "data", IN_PAYLOAD)
    _flip(store / segment_name(0), BLOCK_BYTES + 30)
    answer = _run("check", str(store))
    assert (answer.returncode, answer.stderr) == (ExitCode.DAMAGED, "")
    assert f"{segment_name(0)}, offset 512, LSN 488: the block is not whole" in answer.stdout
    assert "A server would refuse to start" in answer.stdout


def test_the_object_says_all_that_the_table_says(store: Path) -> None:
    sound = _run("check", str(store), "--json")
    assert sound.returncode == ExitCode.OK
    assert sound.stdout.isascii()
    found = json.loads(sound.stdout)
    assert (found["format"], found["sound"], found["starts"]) == (1, True, True)
    assert [queue["name"] for queue in found["queues"]] == ["orders"]
    _flip(store / "data", IN_PAYLOAD)
    damaged = _run("check", str(store), "--json")
    assert damaged.returncode == ExitCode.DAMAGED
    [finding] = json.loads(damaged.stdout)["findings"]
    # A payload in a run of its own is checked as a whole: told is where the run begins.
    assert (finding["file"], finding["offset"]) == ("data", 0)


@pytest.mark.parametrize("command", ["check", "dump"])
def test_a_store_that_is_open_names_its_process(command: str, store: Path) -> None:
    with _held(store) as holder:
        answer = _run(command, str(store))
        assert (answer.returncode, answer.stdout) == (ExitCode.IN_USE, "")
        expected = f"oncemq: {store} is open in process {holder.pid}. Stop that first, or"
        assert answer.stderr.startswith(expected)
    assert _run(command, str(store)).returncode == ExitCode.OK


def test_two_can_look_at_once(store: Path) -> None:
    looking = RealDisk(store, read_only=True)
    lock = looking.lock()
    assert _run("check", str(store)).returncode == ExitCode.OK
    lock.close()


@pytest.mark.parametrize("command", ["check", "dump"])
def test_what_is_no_store_has_an_exit_code_of_its_own(command: str, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere", Path(__file__)):
        answer = _run(command, str(path))
        assert (answer.returncode, answer.stdout) == (ExitCode.NOT_A_STORE, "")
        assert len(answer.stderr.splitlines()) == 1


def test_the_table_fits_a_terminal(store: Path) -> None:
    _flip(store / "data", IN_PAYLOAD)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, "check", str(store)],
        env=_environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    written = b""
    # Reading from a terminal that was closed at the other end is an error, and the end.
    with contextlib.suppress(OSError):
        while chunk := os.read(ours, 65536):
            written += chunk
    os.close(ours)
    assert process.wait(timeout=60) == ExitCode.DAMAGED
    assert b"\x1b[" in written
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode()).replace("\r\n", "\n")
    assert max(map(len, plain.splitlines())) <= 80
    assert "1 place is damaged. A server would start" in plain


# --- dump


def test_a_dump_shows_log_and_pages_a_line_each(store: Path) -> None:
    answer = _run("dump", str(store))
    assert (answer.returncode, answer.stderr) == (ExitCode.OK, "")
    words = [line.split()[0] for line in answer.stdout.splitlines()]
    assert {"control", "segment", "record", "end", "run"} == set(words)
    assert "4 messages into orders (keys 1-4, 50,021 bytes, 1 in pages)" in answer.stdout
    assert "order 1" not in answer.stdout


def test_payloads_are_shown_where_asked_for(store: Path) -> None:
    shown = _run("dump", str(store), "--log", "--payloads").stdout
    assert 'payload  message 2 of orders, 7 bytes: "order 1"\n' in shown
    assert "run " not in shown


def test_a_dump_for_scripts_has_an_object_on_each_line(store: Path) -> None:
    answer = _run("dump", str(store), "--pages", "--json")
    items = [json.loads(line) for line in answer.stdout.splitlines()]
    assert {item["item"] for item in items} == {"control", "run"}
    assert items[-1]["queue"] == "orders"


def test_a_dump_of_a_damaged_store_goes_on_and_says_so(store: Path) -> None:
    _flip(store / segment_name(0), BLOCK_BYTES + 30)
    answer = _run("dump", str(store))
    assert answer.returncode == ExitCode.DAMAGED
    assert f"damage   {segment_name(0)}, offset 512, LSN 488: " in answer.stdout
    assert "PREPARED branch" in answer.stdout
    assert "\nstop     only the runs that the checkpoint names are known" in answer.stdout


def test_a_reader_that_goes_away_ends_a_dump_quietly(store: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "dump", str(store)],
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (ExitCode.PIPE_CLOSED, b"")
