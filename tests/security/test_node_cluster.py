"""A coordinator and two nodes as SECURITY.md says to set them up: TLS, certificates and a token.

The commands are those of the document, word for word but for names and addresses.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import oncemq
from idl.access import Tls, Token
from idl.mq import Mq_Admin
from idl.orb import NetworkOrb
from tests.security.watched import wait_until

ROOT = Path(__file__).resolve().parents[2]
STOP_S = 20.0
PERMISSIONS = """
[[allow]]
principal = "alice"
queues = ["*"]
rights = ["read", "write"]

[[allow]]
principal = "carol"
queues = ["orders"]
rights = ["browse"]

[roles]
coordinator = ["tx"]
operator = ["root"]
"""
AUTHORITY = (
    'openssl req -x509 -newkey ed25519 -nodes -days 3650 -subj "/CN=our queues" '
    "-keyout ca.key -out ca.pem"
)
REQUEST = (
    'openssl req -newkey ed25519 -nodes -subj "/CN={name}" -keyout {name}.key -out {name}.csr '
    '-addext "subjectAltName=DNS:localhost,IP:127.0.0.1,URI:mq:{name}"'
)
CERTIFICATE = (
    "openssl x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -days 365 -copy_extensions copy "
    "-out {name}.pem"
)
TOKEN = """python -c "import secrets; print('{name}.' + secrets.token_hex(16))" > {name}.token"""
ENTRY = (
    'python -c "from idl.access import token_entry; print(token_entry(input()))" '
    "< {name}.token >> tokens"
)


class Place(NamedTuple):
    """Where everything is."""

    folder: Path
    coordinator: int
    nodes: tuple[int, int]


def _run(command: str, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
    ran = subprocess.run(
        ["sh", "-c", f"umask 077; {command}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def _start(*words: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", *map(str, words), "--quiet"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert "listens on" in process.stdout.readline()
    return process


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The servers, running."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed here")
    folder = tmp_path_factory.mktemp("cluster")
    _run(AUTHORITY, folder)
    for name in ("tx", "node1", "node2", "alice", "root"):
        _run(REQUEST.format(name=name), folder)
        _run(CERTIFICATE.format(name=name), folder)
    _run(TOKEN.format(name="carol"), folder)
    _run(ENTRY.format(name="carol"), folder)
    (folder / "permissions.toml").write_text(PERMISSIONS)
    deciding, first, second = _free_ports(3)
    with contextlib.ExitStack() as stack:
        for name, port, words in (
            ("tx", deciding, ("coordinator", "--trust", f"127.0.0.1:{first}")),
            ("node1", first, ("mqserver", "--permissions", folder / "permissions.toml")),
            ("node2", second, ("mqserver", "--permissions", folder / "permissions.toml")),
        ):
            own = ("--data", folder / f"data-{name}", "--listen", f"127.0.0.1:{port}")
            tls = (
                "--tls-authority",
                folder / "ca.pem",
                "--tls-certificate",
                folder / f"{name}.pem",
            )
            key = ("--tls-key", folder / f"{name}.key", "--tokens", folder / "tokens")
            more = ("--trust", f"127.0.0.1:{second}") if name == "tx" else ("--name", name)
            at = () if name == "tx" else ("--coordinator", f"127.0.0.1:{deciding}")
            process = _start(*words, *own, *tls, *key, *more, *at)
            stack.callback(process.wait, STOP_S)
            stack.callback(process.terminate)
            assert process.stdout is not None
            stack.callback(process.stdout.close)
        yield Place(folder, deciding, (first, second))


def _tls(place: Place, name: str | None) -> Tls:
    if name is None:
        return Tls(place.folder / "ca.pem")
    certificate, key = place.folder / f"{name}.pem", place.folder / f"{name}.key"
    return Tls(place.folder / "ca.pem", certificate, key)


def _connect(place: Place, node: int, name: str) -> oncemq.Connection:
    return oncemq.connect(f"mq://127.0.0.1:{place.nodes[node]}", tls=_tls(place, name))


def test_a_transaction_over_two_nodes_is_decided_and_carried_out(place: Place) -> None:
    with _connect(place, 0, "alice") as first, _connect(place, 1, "alice") as second:
        first.queue("orders").put(b"one")
        with first.transaction() as tx:
            moved = first.queue("orders").get(timeout=5, tx=tx)
            assert moved is not None
            second.queue("done").put(moved.payload, tx=tx)
        done = second.queue("done").get(timeout=5)
        assert done is not None
        assert done.payload == b"one"
        assert first.queue("orders").get(timeout=0) is None
    for port in place.nodes:
        with contextlib.closing(NetworkOrb(tls=_tls(place, "root"), timeout_s=10.0)) as orb:
            admin = orb.proxy(f"PYRO:admin@127.0.0.1:{port}", Mq_Admin)
            # The client was told before every node was.
            assert wait_until(partial(_is_done, admin), 5.0)


def _is_done(admin: Mq_Admin) -> bool:
    return admin.listBranches() == ()


def test_who_has_a_token_may_do_what_the_file_says_and_no_more(place: Place) -> None:
    url = f"mq://127.0.0.1:{place.nodes[0]}"
    file = place.folder / "carol.token"
    with oncemq.connect(url, tls=_tls(place, None), token_file=file) as carol:
        assert list(carol.queue("orders").browse()) == []
        with pytest.raises(oncemq.OnceMQError, match="may not"):
            carol.queue("orders").put(b"mine")


def test_who_proves_nothing_is_not_let_in(place: Place) -> None:
    url = f"mq://127.0.0.1:{place.nodes[0]}"
    wrong = Token("carol." + "0" * 32).reveal()
    for token in (None, wrong):
        with oncemq.connect(url, tls=_tls(place, None), token=token, timeout=3.0) as nobody:
            with pytest.raises(oncemq.OnceMQError) as refused:
                nobody.queue("orders").put(b"mine")
            assert wrong not in str(refused.value)
    with oncemq.connect(url, timeout=3.0) as plain, pytest.raises(oncemq.OnceMQError):
        plain.queue("orders").put(b"mine")
