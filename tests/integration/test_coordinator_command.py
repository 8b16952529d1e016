"""`oncemq coordinator` as a process, and `oncemq tx` against it, as an operator uses them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.admin import NODE_ADMIN
from clients.commands.terminal import ExitCode
from clients.deciding import Deciding
from idl import system
from idl.call import Address
from idl.coordination import mqParticipant
from idl.cos import Resource, Status, Vote
from idl.mq import Mq_Admin
from idl.orb import NetworkOrb
from mqserver.storage.contract import NewMessage, QueueSettings
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.administration import BranchAdministration
from mqserver.transactions.resource import branch_id

ROOT = Path(__file__).resolve().parent.parent.parent
STOP_S = 20.0


class Running:
    """A coordinator that was started by the command."""

    def __init__(self, data: Path, *more: str) -> None:
        command = [sys.executable, "-m", "clients.cli", "coordinator", "--data", str(data)]
        self.process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", *more],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.told = self.process.stdout.readline().strip()
        self.address = Address.parse(self.told.rpartition(" ")[2]) if self.told else None

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Sends the signal; the exit code, and what was said on standard error."""
        self.process.send_signal(number)
        _, complaint = self.process.communicate(timeout=STOP_S)
        return self.process.returncode, complaint


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path / "tx", "--quiet")
    yield made
    if made.process.poll() is None:
        made.end(signal.SIGKILL)


def _oncemq(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clients.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60.0,
    )


def _tx(running: Running, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _oncemq("tx", *arguments, "--coordinator", str(running.address))


# --- The process ---------------------------------------------------------------------------------


def test_it_says_where_it_listens_and_ends_in_good_order(running: Running) -> None:
    assert "listens on 127.0.0.1:" in running.told
    code, complaint = running.end(signal.SIGTERM)
    assert (code, complaint) == (0, "")


def test_a_second_one_on_the_same_directory_names_the_first(
    running: Running, tmp_path: Path
) -> None:
    second = Running(tmp_path / "tx")
    _, complaint = second.process.communicate(timeout=STOP_S)
    assert second.process.returncode == 3
    assert f"process {running.process.pid}" in complaint


def test_it_does_not_listen_beyond_this_machine_without_tls(tmp_path: Path) -> None:
    answer = _oncemq("coordinator", "--data", str(tmp_path), "--listen", "0.0.0.0:0")
    assert answer.returncode == 2
    assert "TLS" in answer.stderr


def test_a_damaged_log_is_refused_and_left_as_it_is(running: Running, tmp_path: Path) -> None:
    running.end(signal.SIGTERM)
    segment = tmp_path / "tx" / "log-0000000000000000"
    damaged = bytearray(segment.read_bytes())
    damaged[100] ^= 0xFF
    segment.write_bytes(damaged)
    again = Running(tmp_path / "tx")
    _, complaint = again.process.communicate(timeout=STOP_S)
    assert again.process.returncode == 3
    assert "log-0000000000000000, offset 0" in complaint
    assert segment.read_bytes() == damaged


# --- The operator's view -------------------------------------------------------------------------


class Away:
    """A participant that has voted, and cannot be reached afterwards."""

    def prepare(self) -> Vote:
        return Vote.COMMIT

    def commit(self) -> None:
        raise system.TRANSIENT("away")

    def rollback(self) -> None:
        raise system.TRANSIENT("away")

    def commit_one_phase(self) -> None:
        raise system.TRANSIENT("away")

    def forget(self) -> None:
        raise system.TRANSIENT("away")


@pytest.fixture
def orb() -> Iterator[NetworkOrb]:
    made = NetworkOrb(Address("127.0.0.1", 0))
    yield made
    made.close()


def _stuck(running: Running, orb: NetworkOrb) -> None:
    assert running.address is not None
    deciding = Deciding(orb, running.address, time.monotonic, time.sleep)
    away = mqParticipant("away", orb.publish(Away(), Resource), None)
    outcome = deciding.decide(deciding.begin(), (away,), 10.0)
    assert outcome.status is Status.COMMITTED


def test_a_decided_transaction_is_listed_explained_and_given_up(
    running: Running, orb: NetworkOrb
) -> None:
    _stuck(running, orb)
    listed = _tx(running, "list", "--state", "committing", "--json")
    (view,) = json.loads(listed.stdout)["transactions"]
    assert view["participants"][0]["name"] == "away"
    name = view["name"]
    assert name in _tx(running, "list").stdout
    shown = _tx(running, "show", name[:12])
    assert (shown.returncode, "committing" in shown.stdout) == (ExitCode.OK, True)
    assert "waits until away answered" in _tx(running, "explain", name).stdout
    assert _tx(running, "rollback", name, "--yes").returncode == ExitCode.REFUSED
    given_up = _tx(running, "forget", name, "--yes")
    assert "1 participants given up" in given_up.stdout
    assert "hazard" in _tx(running, "show", name).stdout
    assert "forgotten" in _tx(running, "forget", name, "--yes").stdout
    assert _tx(running, "list").stdout == ""


def test_what_changes_an_outcome_is_not_done_unasked(running: Running, orb: NetworkOrb) -> None:
    _stuck(running, orb)
    (view,) = json.loads(_tx(running, "list", "--json").stdout)["transactions"]
    answer = _tx(running, "forget", view["name"])
    assert answer.returncode == ExitCode.USAGE
    assert "--yes" in answer.stderr
    assert view["name"] in _tx(running, "list").stdout


def test_errors_are_one_sentence_and_a_code(running: Running) -> None:
    missing = _tx(running, "show", "zzz")
    assert missing.returncode == ExitCode.NOT_FOUND
    assert missing.stderr == "oncemq: nothing is called 'zzz': it is over, or was never here\n"
    assert _tx(running, "list", "--older", "soon").returncode == ExitCode.USAGE
    assert _tx(running, "list", "--state", "happy").returncode == ExitCode.USAGE
    commit = _oncemq("tx", "commit", "abc")
    assert (commit.returncode, "--node" in commit.stderr) == (ExitCode.USAGE, True)
    running.end(signal.SIGKILL)
    down = _tx(running, "list")
    assert down.returncode == ExitCode.UNREACHABLE
    assert "Is the server running?" in down.stderr


# --- Branches of a node --------------------------------------------------------------------------


class Node(BranchAdministration):
    """As much of a node's administration as there is: its branches."""

    def __getattr__(self, name: str) -> object:
        def missing(*arguments: object) -> None:
            raise system.NO_IMPLEMENT(name)

        return missing


def test_a_branch_in_doubt_is_ended_by_hand_and_shown_until_it_is_forgotten(
    running: Running, orb: NetworkOrb
) -> None:
    assert running.address is not None
    storage = MemoryStorage(time.monotonic)
    storage.create_queue("orders", QueueSettings())
    orb.publish(Node(storage, lambda branch: 600.0), Mq_Admin, NODE_ADMIN)
    deciding = Deciding(orb, running.address, time.monotonic, time.sleep)
    gtrid = deciding.begin()
    branch = branch_id(gtrid, "b0")
    storage.store(branch, "orders", [NewMessage(b"one", zlib.crc32(b"one"))])
    recovery = orb.reference_of(deciding.recovery_of(gtrid, "b0"))
    storage.prepare(branch, recovery.encode())
    node = ("--node", str(orb.address))
    listed = _oncemq("tx", "list", *node, "--state", "prepared", "--older", "5m", "--json")
    (view,) = json.loads(listed.stdout)["transactions"]
    assert view["name"].endswith("/b0")
    assert "in doubt" in view["explanation"]
    done = _oncemq("tx", "commit", view["name"], *node, "--yes")
    assert (done.returncode, "by hand" in done.stdout) == (ExitCode.OK, True)
    assert storage.queue("orders").visible == 1
    assert "ended by hand" in _oncemq("tx", "list", *node).stdout
    again = _oncemq("tx", "rollback", view["name"], *node, "--yes")
    assert again.returncode == ExitCode.REFUSED
    assert _oncemq("tx", "forget", view["name"], *node, "--yes").returncode == ExitCode.OK
    assert _oncemq("tx", "list", *node).stdout == ""
