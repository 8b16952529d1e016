"""A node as a process: how it starts and refuses to, what signals do, and how it ends."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from idl import system
from idl.access import Token, token_entry
from idl.call import Address
from idl.mq import Mq_Admin, Mq_Node, mqBatch, mqBranch, mqSelection
from idl.orb import NetworkOrb
from idl.otids import NULL_OTID
from mqserver.__main__ import main
from tests.settings_rows import operation_rows, setting_rows

ROOT = Path(__file__).resolve().parent.parent.parent
STOP_S = 20.0
ALONE = mqBranch(NULL_OTID, "", None)
ALL = mqSelection(0, 0, ())
CANARY = "5ca1ab1ecanary0ddba11ca5cadedeed00"
# Runs a node whose disk fails as soon as a file called `broken` is there.
FAILING = """
import os, sys
from pathlib import Path
broken = Path(sys.argv.pop(1))
def breaking(function):
    def maybe(*arguments):
        if broken.exists():
            raise OSError(5, "Input/output error")
        return function(*arguments)
    return maybe
for name in ("fdatasync", "fsync", "pwrite", "pwritev"):
    setattr(os, name, breaking(getattr(os, name)))
from mqserver.__main__ import main
from tests.settings_rows import operation_rows, setting_rows
sys.exit(main(sys.argv[1:]))
"""

# Runs a node with a fault: where, says the first word.
FAULTY = """
import sys, threading
from mqserver import node
def fail(*arguments):
    assert False, "impossible"
if sys.argv.pop(1) == "start":
    node.Node.start = fail
else:
    node.Node._run = fail
from mqserver.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


class Running:
    """A node that was started as a process."""

    def __init__(self, *arguments: object, program: tuple[str, ...] = ("-m", "mqserver")) -> None:
        words = [str(each) for each in arguments]
        if "--listen" not in words:
            words += ["--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [sys.executable, *program, *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.told = self.process.stdout.readline().strip()
        self.address = Address.parse(self.told.rpartition(" ")[2]) if self.told else None

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Sends the signal; the exit code, and what was said on standard error."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Waits for its end; the exit code, and what was said on standard error."""
        _, complaint = self.process.communicate(timeout=STOP_S)
        return self.process.returncode, complaint

    def close(self) -> None:
        """Ends it at once, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def running(*arguments: object, **program: tuple[str, ...]) -> Iterator[Running]:
    """A node that ends with the block at the latest."""
    with contextlib.closing(Running(*arguments, **program)) as made:
        yield made


@pytest.fixture
def orb() -> Iterator[NetworkOrb]:
    """The orb of a client."""
    with contextlib.closing(NetworkOrb(timeout_s=10.0)) as made:
        yield made


def _node(orb: NetworkOrb, at: Running) -> Mq_Node:
    return orb.proxy(f"PYRO:node@{at.address}", Mq_Node)


def _put(node: Mq_Node, *payloads: bytes) -> None:
    digests = tuple(zlib.crc32(payload) for payload in payloads)
    node.putMany(ALONE, 0, "orders", mqBatch(payloads, digests, (), (), (), (), ()))


def _get(node: Mq_Node, count: int = 100) -> tuple[bytes, ...]:
    return tuple(node.getMany(ALONE, 0, "orders", ALL, count, 0).messages.payloads)


# --- Starting and ending -------------------------------------------------------------------------


def test_it_says_where_it_listens_and_keeps_what_it_was_given(
    tmp_path: Path, orb: NetworkOrb
) -> None:
    with running("--data", tmp_path / "q", "--quiet", "--name", "n7") as first:
        assert first.told.startswith("node n7 listens on 127.0.0.1:")
        _put(_node(orb, first), b"one", b"two")
        # Bad input 22, S32
        with running("--data", tmp_path / "q") as second:
            code, complaint = second.ended()
            assert (code, second.told) == (4, "")
            assert f"process {first.process.pid}" in complaint
            assert complaint.count("\n") == 1
        # Bad input 28: nothing is lost, however it ends.
        first.end(signal.SIGKILL)
    with running("--data", tmp_path / "q") as again:
        assert _get(_node(orb, again)) == (b"one", b"two")
        code, complaint = again.end()
        assert code == 0
        assert "the storage was opened in" in complaint
        assert "1 queues, 0 branches in doubt" in complaint
    with running("--data", tmp_path / "q", "--quiet") as quiet:
        assert quiet.end(signal.SIGINT) == (0, "")


# Bad input 62
def test_whoever_waits_does_not_keep_it_from_ending(tmp_path: Path, orb: NetworkOrb) -> None:
    with running("--data", tmp_path / "q", "--quiet") as node:
        told: list[object] = []

        def wait() -> None:
            try:
                told.append(_node(orb, node).getMany(ALONE, 0, "orders", ALL, 1, 8000))
            except system.SystemException as refused:
                told.append(refused)

        _put(_node(orb, node), b"one")
        _get(_node(orb, node))
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.3)
        begun = time.monotonic()
        assert node.end() == (0, "")
        assert time.monotonic() - begun < 5.0
        waiting.join()
        assert len(told) == 1


# Bad input 63
def test_a_second_signal_ends_it_at_once_and_harms_nothing(tmp_path: Path, orb: NetworkOrb) -> None:
    with running("--data", tmp_path / "q", "--quiet") as node:
        _put(_node(orb, node), b"one")
        node.process.send_signal(signal.SIGTERM)
        code, _ = node.end()
        assert code in (0, 128 + signal.SIGTERM)
    with running("--data", tmp_path / "q", "--quiet") as again:
        assert _get(_node(orb, again)) == (b"one",)


def test_memory_is_warned_of_and_an_operator_may_shut_it_down(orb: NetworkOrb) -> None:
    with running("--storage", "memory", "--quiet") as node:
        _put(_node(orb, node), b"one")
        assert _get(_node(orb, node)) == (b"one",)
        orb.proxy(f"PYRO:admin@{node.address}", Mq_Admin).mqShutdown()
        code, complaint = node.ended()
        assert code == 0
        assert "NOTHING SURVIVES" in complaint


def test_a_client_of_a_dead_server_fails_within_its_time(tmp_path: Path) -> None:
    with (
        running("--storage", "memory", "--quiet") as node,
        contextlib.closing(NetworkOrb(timeout_s=1.0)) as orb,
    ):
        _put(_node(orb, node), b"one")
        # Bad input 65: it is alive and says nothing.
        node.process.send_signal(signal.SIGSTOP)
        _wait_until_stopped(node.process.pid)
        begun = time.monotonic()
        with pytest.raises(system.SystemException):
            _put(_node(orb, node), b"two")
        assert time.monotonic() - begun < 4.0
        node.process.send_signal(signal.SIGCONT)
        node.end(signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(system.SystemException):
            _get(_node(orb, node))
        assert time.monotonic() - begun < 4.0


def _wait_until_stopped(pid: int) -> None:
    threads = Path(f"/proc/{pid}/task")
    while not all(
        (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
        for thread in threads.iterdir()
    ):
        time.sleep(0.01)


# --- The disk ------------------------------------------------------------------------------------


# Bad inputs 1 and 8
def test_a_full_disk_is_told_and_work_goes_on_when_there_is_room(
    tmp_path: Path, orb: NetworkOrb
) -> None:
    with running("--data", tmp_path / "q", "--quiet") as node:
        client = _node(orb, node)
        _put(client, b"first")
        _, hard = resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (1 << 20, hard))
        kept, reason = _fill(client)
        assert "full" in reason.lower()
        assert client.countMessages("orders") == 1 + kept
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        _put(client, b"last")
        taken = _get(client, 1000)
        assert len(taken) == kept + 2
        assert (taken[0], taken[-1]) == (b"first", b"last")
        assert node.end()[0] == 0


def _fill(client: Mq_Node) -> tuple[int, str]:
    """Puts until that is refused: how many were not, and in which words the next was."""
    for kept in range(100):
        try:
            _put(client, bytes(100_000))
        except system.SystemException as refused:
            return kept, refused.reason
    raise AssertionError("the disk was never full")


# Bad input 4
def test_a_disk_that_fails_ends_the_node_aloud_and_a_restart_finds_everything(
    tmp_path: Path, orb: NetworkOrb
) -> None:
    broken = tmp_path / "broken"
    arguments = (broken, "--data", tmp_path / "q", "--quiet")
    with running(*arguments, program=("-c", FAILING)) as node:
        _put(_node(orb, node), b"one")
        broken.touch()
        with pytest.raises(system.SystemException):
            _put(_node(orb, node), b"two")
        code, complaint = node.ended()
        assert code == 71
        assert "stopping: A write or a sync failed" in complaint
        assert "Traceback" not in complaint
    broken.unlink()
    with running("--data", tmp_path / "q", "--quiet") as again:
        assert _get(_node(orb, again))[0] == b"one"


# Bad inputs 11 to 18, S31
def test_a_store_that_is_not_what_was_written_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with running("--data", tmp_path / "q", "--quiet") as node:
        node.end()
    control = tmp_path / "q" / "control"
    original = control.read_bytes()
    for content, codes in (
        (b"\x80\x04\x95cos\nsystem\n(S'touch owned'\ntR." * 400, {3, 5}),
        (original[:8] + b"\xff" * (len(original) - 8), {3, 5}),
        (b"", {3, 5}),
    ):
        control.write_bytes(content)
        with running("--data", tmp_path / "q") as refused:
            code, complaint = refused.ended()
            assert (code in codes, refused.told) == (True, "")
            assert "Traceback" not in complaint
        assert control.read_bytes() == content
    control.unlink()
    # S32
    (tmp_path / "elsewhere").write_bytes(original)
    control.symlink_to(tmp_path / "elsewhere")
    with running("--data", tmp_path / "q") as refused:
        code, complaint = refused.ended()
        assert code == 71
        assert "symbolic link" in complaint


# S28
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    (tmp_path / "q").chmod(0o777)
    with running("--data", tmp_path / "q") as refused:
        code, complaint = refused.ended()
    assert code == 71
    assert "can be written by other users" in complaint
    assert list((tmp_path / "q").iterdir()) == []


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running("--storage", "memory", "--listen", f"127.0.0.1:{port}") as refused:
            code, complaint = refused.ended()
    assert code == 71
    assert f"cannot listen on 127.0.0.1:{port}: " in complaint


@pytest.mark.parametrize("where", ["start", "background"])
def test_a_fault_of_its_own_ends_it_aloud(where: str) -> None:
    with running(where, "--storage", "memory", "--quiet", program=("-c", FAULTY)) as node:
        code, complaint = node.ended()
    assert code == 70
    assert "impossible" in complaint


def test_a_database_may_hold_the_messages(tmp_path: Path, orb: NetworkOrb) -> None:
    storage = ("--storage", f"sql:sqlite:///{tmp_path / 'q.db'}", "--quiet")
    with running(*storage) as node:
        _put(_node(orb, node), b"one")
        with running(*storage) as second:
            code, complaint = second.ended()
        assert code == 4, complaint
        assert node.end() == (0, "")
    with running(*storage) as again:
        assert _get(_node(orb, again)) == (b"one",)


# --- Settings ------------------------------------------------------------------------------------


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A directory with tokens for two, and permissions for them."""
    entries = [token_entry(f"{name}.{CANARY}") for name in ("alice", "root")]
    (tmp_path / "tokens").write_text("\n".join(entries))
    (tmp_path / "tokens").chmod(0o600)
    (tmp_path / "permissions.toml").write_text('[roles]\noperator = ["root"]\n')
    return tmp_path


# S28, bad input 60
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--listen 0.0.0.0:0", "listening on 0.0.0.0 lets other machines in"),
        ("--listen [::]:0", "listening on :: lets other machines in"),
        ("--tokens {house}/tokens", "nothing says what each may do: set server.permissions"),
        ("--tokens {house}/open", "can be read or changed by others: chmod 600"),
        ("--tokens {house}/nosuch", "nosuch"),
        ("--permissions {house}/nosuch", "nosuch cannot be read: No such file"),
        ("--permissions {house}/open", "open can be changed by everybody: chmod o-w"),
        ("--tls-certificate {house}/x", "tls.certificate is set (flag --tls-certificate)"),
        ("--tls-authority {house}/x", "a server needs a certificate: set tls.certificate"),
        ("--tls-authority {house}/x --tls-certificate {house}/y", "{house}/x does not exist"),
        ("--listen 127.0.0.1:99999", "flag --listen: server.listen is an address HOST:PORT"),
        ("--max-message-bytes 100000000", "limits.message_bytes must be at least"),
        ("--config {house}/wrong.toml", "{house}/wrong.toml:3: there is no setting server.lisen"),
        ("--config {house}/nosuch.toml", "nosuch.toml cannot be read"),
        ("--config {house}/open", "open can be changed by everybody"),
        ("--storage paged", "server.data is not set: say with --data DIR"),
    ],
)
def test_what_is_wrong_or_unsafe_is_refused_before_anything_is_touched(
    house: Path, words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (house / "open").write_text("")
    (house / "open").chmod(0o666)
    (house / "wrong.toml").write_text('[server]\n\nlisen = "127.0.0.1:1"\n')
    arguments = words.format(house=house).split()
    if arguments != ["--storage", "paged"]:
        arguments += ["--data", str(house / "q")]
    code = main(arguments)
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    assert told.format(house=house) in printed.err
    assert CANARY not in printed.err
    assert printed.err.startswith("oncemq: ")
    assert printed.err.count("\n") == 1
    assert not (house / "q").exists()


def test_it_does_not_run_without_its_assertions() -> None:
    with running("--storage", "memory", program=("-O", "-m", "mqserver")) as refused:
        code, complaint = refused.ended()
    assert (code, "without -O" in complaint) == (2, True)


# Bad input 63, S22
def test_permissions_are_read_again_and_a_broken_file_changes_nothing(house: Path) -> None:
    permissions = house / "permissions.toml"
    allowed = '[[allow]]\nprincipal = "alice"\nqueues = ["orders"]\nrights = ["read", "write"]\n'
    arguments = ("--storage", "memory", "--tokens", house / "tokens", "--log-format", "json")
    with (
        running(*arguments, "--permissions", permissions) as node,
        contextlib.closing(NetworkOrb(token=Token(f"alice.{CANARY}"), timeout_s=10.0)) as orb,
    ):
        client = _node(orb, node)
        with pytest.raises(system.NO_PERMISSION):
            _put(client, b"one")
        permissions.write_text(allowed)
        node.process.send_signal(signal.SIGHUP)
        assert _wait_until_allowed(client)
        permissions.write_text("[[alow]]")
        node.process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        _put(client, b"two")
        words = Path(f"/proc/{node.process.pid}/cmdline").read_text()
        words += Path(f"/proc/{node.process.pid}/environ").read_text()
        code, complaint = node.end()
    lines = [json.loads(line) for line in complaint.splitlines()]
    assert code == 0
    assert any("nothing is changed" in line["text"] and ":1:" in line["text"] for line in lines)
    refused = [json.loads(line["text"]) for line in lines if '"refused"' in line["text"]]
    assert refused[0]["principal"] == "alice"
    assert CANARY not in complaint + words


def test_the_coordinator_has_its_settings_and_its_log_from_the_same_table(tmp_path: Path) -> None:
    config = tmp_path / "oncemq.toml"
    config.write_text('[coordinator]\ndata = "tx"\n\n[log]\nformat = "json"\n')
    with running("--config", config, program=("-m", "coordinator")) as coordinator:
        assert coordinator.told.startswith("coordinator ")
        code, complaint = coordinator.end()
    assert code == 0
    assert [json.loads(line)["level"] for line in complaint.splitlines()]
    assert (tmp_path / "tx").is_dir()


def _wait_until_allowed(client: Mq_Node) -> bool:
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        with contextlib.suppress(system.NO_PERMISSION):
            _put(client, b"one")
            return True
        time.sleep(0.02)
    return False


# --- The units -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["oncemq-node", "oncemq-coordinator"])
def test_the_units_are_what_systemd_understands(name: str, tmp_path: Path) -> None:
    unit = ROOT / "docs" / "systemd" / f"{name}.service"
    text = unit.read_text()
    for line in ("ProtectSystem=strict", "KillSignal=SIGTERM", "Restart=on-failure"):
        assert line in text.splitlines()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed here")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    ours = [line for line in checked.stderr.splitlines() if name in line]
    assert (checked.returncode, ours) == (0, [])


# --- The documents -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows"), [("OPERATIONS.md", setting_rows()), ("SECURITY.md", operation_rows())]
)
def test_the_tables_of_the_documents_are_those_of_the_code(name: str, rows: list[str]) -> None:
    text = (ROOT / "docs" / name).read_text()
    assert "\n".join(rows) in text
