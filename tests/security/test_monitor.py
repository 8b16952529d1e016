"""The window for watchers: what each may see, and that none of them harms what is watched."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from idl.access import Authenticator, Certificates, FirstOf, Tls, Tokens, UnsafeSetting, token_entry
from idl.call import Address
from idl.exposition import CONTENT_TYPE, Exposition
from idl.measures import Measure, gauge
from idl.orb.monitor import WATCHERS_MAX, Monitor, Watched
from tests.security.authority import Authority

SECRETS = {name: f"{name}.{name[0] * 32}" for name in ("root", "alice")}
LOOPBACK = Address("127.0.0.1", 0)


class Scene:
    """A monitor, and what it shows."""

    def __init__(self, tls: Tls | None = None, authenticator: Authenticator | None = None) -> None:
        self.unready = ""
        self.failure: Exception | None = None
        watched = Watched(
            lambda: self.unready,
            Exposition(self._measures).text,
            CONTENT_TYPE,
            lambda name: name in ("root", "local"),
        )
        self.monitor = Monitor(LOOPBACK, watched, tls, authenticator)

    def _measures(self) -> list[Measure]:
        if self.failure is not None:
            raise self.failure
        return [gauge("oncemq_queues", "Queues.", 4)]

    def ask(
        self, path: str, token: str = "", tls: ssl.SSLContext | None = None, method: str = "GET"
    ) -> tuple[int, str]:
        """Status and body."""
        host, port = self.monitor.address.host, self.monitor.address.port
        asked = http.client.HTTPConnection(host, port, timeout=5.0)
        if tls is not None:
            asked = http.client.HTTPSConnection(host, port, timeout=5.0, context=tls)
        with contextlib.closing(asked):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            asked.request(method, path, headers=headers)
            answer = asked.getresponse()
            return answer.status, answer.read().decode()


def _tokens() -> Tokens:
    return Tokens(dict(token_entry(secret).split(":") for secret in SECRETS.values()))


@pytest.fixture
def open_scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.monitor.close()


@pytest.fixture
def guarded_scene() -> Iterator[Scene]:
    scene = Scene(authenticator=_tokens())
    yield scene
    scene.monitor.close()


def test_on_this_machine_everybody_sees_everything(open_scene: Scene) -> None:
    assert open_scene.ask("/healthz") == (200, "ok\n")
    assert open_scene.ask("/readyz") == (200, "ready\n")
    status, body = open_scene.ask("/metrics?name=x")
    assert status == 200
    assert "oncemq_queues 4.0" in body


def test_a_server_that_answers_no_calls_is_alive_and_says_why_it_is_not_ready(
    open_scene: Scene,
) -> None:
    open_scene.unready = "starting"
    assert open_scene.ask("/readyz") == (503, "starting\n")
    assert open_scene.ask("/healthz") == (200, "ok\n")


def test_where_callers_are_told_apart_numbers_are_for_operators(guarded_scene: Scene) -> None:
    assert guarded_scene.ask("/metrics") == (401, "not allowed\n")
    assert guarded_scene.ask("/metrics", SECRETS["alice"])[0] == 403
    assert guarded_scene.ask("/metrics", "root." + "0" * 32) == (401, "not allowed\n")
    assert guarded_scene.ask("/metrics", SECRETS["root"])[0] == 200
    # Whoever starts and stops servers need not be told a secret for that.
    assert guarded_scene.ask("/readyz")[0] == 200
    assert guarded_scene.ask("/healthz")[0] == 200


def test_a_token_is_in_no_log(guarded_scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        guarded_scene.ask("/metrics", SECRETS["root"])
        guarded_scene.ask("/metrics", SECRETS["alice"])
        guarded_scene.ask("/metrics", "nobody.5ca1ab1ecanary")
    assert "5ca1ab1ecanary" not in caplog.text
    assert not any(secret.partition(".")[2] in caplog.text for secret in SECRETS.values())


def test_beyond_this_machine_it_is_not_opened_without_tls_and_authenticator(
    tmp_path: Path,
) -> None:
    watched = Watched(lambda: "", lambda: b"", CONTENT_TYPE, lambda name: True)
    for authenticator in (None, _tokens()):
        with pytest.raises(UnsafeSetting, match="lets other machines in"):
            Monitor(Address("0.0.0.0", 0), watched, None, authenticator)


def test_by_tls_an_operator_proves_itself_by_certificate_or_token(authority: Authority) -> None:
    both = FirstOf([_tokens(), Certificates()])
    scene = Scene(authority.tls(authority.server()), both)
    root = authority.tls(authority.client("root")).client_context()
    alice = authority.tls(authority.client("alice")).client_context()
    anyone = Tls(authority.certificate).client_context()
    with contextlib.closing(scene.monitor):
        assert scene.ask("/metrics", tls=root)[0] == 200
        assert scene.ask("/metrics", tls=alice)[0] == 403
        assert scene.ask("/metrics", tls=anyone)[0] == 401
        assert scene.ask("/metrics", SECRETS["root"], anyone)[0] == 200
        assert scene.ask("/healthz", tls=anyone)[0] == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            scene.ask("/healthz")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/../../etc/passwd", "/healthz\x00", "*"])
def test_there_is_nothing_else_to_be_had(open_scene: Scene, path: str) -> None:
    with contextlib.closing(_connected(open_scene)) as sock:
        sock.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = _all(sock)
    assert answer.split(b" ", 2)[1] in (b"404", b"400")
    assert b"Python" not in answer


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(5000)) + b"\r\n",
        b"\x00\xff" * 1000 + b"\r\n\r\n",
        b"PYRO" + bytes(60),
    ],
)
def test_what_is_no_request_of_a_watcher_is_refused_and_harms_nobody(
    open_scene: Scene, sent: bytes
) -> None:
    with contextlib.closing(_connected(open_scene)) as sock, contextlib.suppress(OSError):
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        assert b" 200 " not in _all(sock)
    assert open_scene.ask("/healthz")[0] == 200


def test_silent_watchers_make_room_for_others(open_scene: Scene) -> None:
    with contextlib.ExitStack() as silent:
        first, *_ = [
            silent.enter_context(contextlib.closing(_connected(open_scene)))
            for _ in range(3 * WATCHERS_MAX)
        ]
        assert open_scene.ask("/metrics")[0] == 200
        assert first.recv(1) == b""


def test_numbers_that_cannot_be_had_end_one_answer_and_nothing_else(
    open_scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    open_scene.failure = ValueError("broken")
    with pytest.raises((OSError, http.client.HTTPException)):
        open_scene.ask("/metrics")
    assert "could not be answered" in caplog.text
    open_scene.failure = None
    assert open_scene.ask("/metrics")[0] == 200


def test_after_the_end_nobody_is_answered() -> None:
    scene = Scene()
    scene.monitor.close()
    scene.monitor.close()
    with pytest.raises(ConnectionRefusedError):
        scene.ask("/healthz")


def _connected(scene: Scene) -> socket.socket:
    address = (scene.monitor.address.host, scene.monitor.address.port)
    return socket.create_connection(address, timeout=5.0)


def _all(sock: socket.socket) -> bytes:
    found = b""
    while piece := sock.recv(65536):
        found += piece
    return found
