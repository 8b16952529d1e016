"""What watchers see of both servers as processes: numbers, health and readiness."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

from idl.mq import Mq_Admin, Mq_Node, mqBatch, mqBranch, mqSelection
from idl.orb import NetworkOrb
from idl.otids import NULL_OTID

ROOT = Path(__file__).resolve().parent.parent.parent
ALONE = mqBranch(NULL_OTID, "", None)
HERE = "127.0.0.1:0"


@contextlib.contextmanager
def _started(program: str, data: Path, watched: str) -> Iterator[subprocess.Popen[str]]:
    words = ("--data", str(data), "--listen", HERE, "--metrics-listen", watched)
    process = subprocess.Popen(
        [sys.executable, "-m", program, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _addresses(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Where it listens for calls, and for watchers."""
    assert process.stdout is not None
    assert process.stderr is not None
    watched = next(line for line in process.stderr if "readiness are told on" in line)
    return process.stdout.readline().split()[-1], f"http://{watched.split()[-1]}"


def _seen(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30.0) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_watchers_see_a_node_at_work_and_whether_it_is_switched_on(tmp_path: Path) -> None:
    with (
        _started("mqserver", tmp_path, HERE) as process,
        contextlib.closing(NetworkOrb(timeout_s=30.0)) as orb,
    ):
        address, watched = _addresses(process)
        node = orb.proxy(f"PYRO:node@{address}", Mq_Node)
        digests = tuple(map(zlib.crc32, (b"one", b"two")))
        node.putMany(ALONE, 0, "q", mqBatch((b"one", b"two"), digests, (), (), (), (), ()))
        node.getMany(ALONE, 0, "q", mqSelection(0, 0, ()), 1, 0)
        assert _seen(f"{watched}/readyz") == (200, "ready\n")
        lines = _seen(f"{watched}/metrics")[1].splitlines()
        numbers = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert numbers["oncemq_messages_put_total"] == "2.0"
        assert numbers["oncemq_messages_got_total"] == "1.0"
        assert numbers['oncemq_queue_messages{queue="q",state="ready"}'] == "1.0"
        assert numbers['oncemq_connections{state="logged in"}'] == "1.0"
        assert float(numbers["oncemq_sync_seconds_count"]) >= 2
        assert float(numbers["oncemq_log_bytes"]) > 0
        orb.proxy(f"PYRO:admin@{address}", Mq_Admin).setEnabled(False)
        assert _seen(f"{watched}/readyz") == (503, "switched off by an operator\n")
        assert _seen(f"{watched}/healthz") == (200, "ok\n")
        process.terminate()
        assert process.wait(30.0) == 0


def test_watchers_see_a_coordinator(tmp_path: Path) -> None:
    with _started("coordinator", tmp_path, HERE) as process:
        _, watched = _addresses(process)
        assert _seen(f"{watched}/readyz") == (200, "ready\n")
        _, text = _seen(f"{watched}/metrics")
        assert 'oncemq_transactions{state="active"} 0.0' in text
        # The log is new, and its incarnation was forced.
        assert "oncemq_sync_seconds_count 0.0" not in text
        process.terminate()
        assert process.wait(30.0) == 0


def test_watchers_that_cannot_be_let_in_keep_a_node_from_starting(tmp_path: Path) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        cases = (("0.0.0.0:0", 2, "lets other machines in"), (f"127.0.0.1:{port}", 71, "metrics"))
        for listen, code, complaint in cases:
            with _started("mqserver", tmp_path / "q", listen) as process:
                said = process.communicate(timeout=30.0)[1]
            assert process.returncode == code
            assert complaint in said
            assert not (tmp_path / "q").exists()
