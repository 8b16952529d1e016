"""A window for those who watch a server: `/metrics`, `/healthz` and `/readyz`, by HTTP.

It only looks. Whether the process answers, and whether it is ready for calls, anybody who reaches
it may know; the numbers are for operators wherever callers are told apart, who prove themselves as
they do for calls: by a certificate, or by a token (`Authorization: Bearer NAME.SECRET`). Beyond
this machine it needs TLS and an authenticator, or is not opened. A watcher that dawdles makes room
for the next, and never keeps the server from its work.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from idl.access import AnyoneHere, Authenticator, Denied, Presented, Tls, check_listening
from idl.call import Address
from idl.orb.guard import Gate, Limits

WATCHERS_MAX = 16
WATCHER_S = 5.0
BACKLOG = 128
PLAIN = "text/plain; charset=utf-8"

log = logging.getLogger("oncemq.monitor")


@dataclass(frozen=True)
class Watched:
    """What can be seen. `unready` says why no call is answered now, and nothing when one is.

    `text` are the numbers with their type; `may_look` says whether a principal may see them.
    """

    unready: Callable[[], str]
    text: Callable[[], bytes]
    content_type: str
    may_look: Callable[[str], bool]


class _Reply(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = PLAIN


class Monitor:
    """Answers watchers until it is closed. Raises `UnsafeSetting` or OSError if it cannot."""

    def __init__(
        self,
        listen: Address,
        watched: Watched,
        tls: Tls | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:
        check_listening(listen.host, tls, authenticator)
        self._watched = watched
        self._tls = None if tls is None else tls.server_context()
        self._authenticator = authenticator or AnyoneHere()
        # Nobody here is ever let further in, so that whoever came first makes room.
        limits = Limits(connections_before_login_max=WATCHERS_MAX)
        self._gate: Gate[socket.socket] = Gate(limits)
        self._is_closing = False
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        bound = (listen.host, listen.port)
        self._listener = socket.create_server(bound, family=family, backlog=BACKLOG)
        self.address = Address(listen.host, self._listener.getsockname()[1])
        self._acceptor = threading.Thread(target=self._accept, name="monitor", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Nobody is answered any more."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        for watcher in self._gate.everyone():
            _interrupt(watcher)

    def _accept(self) -> None:
        pause = threading.Event()
        while not self._is_closing:
            try:
                watcher, address = self._listener.accept()
            except OSError as failed:
                # Closed by us, or out of file descriptors until somebody leaves.
                log.debug("accepting failed: %s", failed)
                pause.wait(0.02)
                continue
            turned_away = self._gate.arrive(watcher)
            if turned_away is not None:
                _interrupt(turned_away)
            thread = threading.Thread(
                target=self._attend, args=(watcher, address[0]), name="watcher", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                self._leave(watcher)

    def _attend(self, watcher: socket.socket, host: str) -> None:
        """One request of one watcher, in a thread of its own."""
        try:
            watcher.settimeout(WATCHER_S)
            if self._tls is None:
                _Request(watcher, host, self)
            else:
                # Wrapped before the greeting, so that it is not the acceptor that waits for it.
                with self._tls.wrap_socket(watcher.dup(), server_side=True) as wrapped:
                    _Request(wrapped, host, self)
        except OSError as gone:
            log.debug("a watcher from %s left: %s", host, gone)
        # Whoever watches must not end what is watched, whatever goes wrong in here.
        except Exception:
            log.exception("a watcher from %s could not be answered", host)
        finally:
            self._leave(watcher)

    def _leave(self, watcher: socket.socket) -> None:
        self._gate.leave(watcher)
        _interrupt(watcher)
        watcher.close()

    def reply(self, path: str, presented: Presented) -> _Reply:
        """What the watcher gets that asks for this path."""
        if path == "/healthz":
            return _Reply(HTTPStatus.OK, b"ok\n")
        if path == "/readyz":
            unready = self._watched.unready()
            if unready:
                return _Reply(HTTPStatus.SERVICE_UNAVAILABLE, f"{unready}\n".encode())
            return _Reply(HTTPStatus.OK, b"ready\n")
        if path != "/metrics":
            return _Reply(HTTPStatus.NOT_FOUND, b"here are /metrics, /healthz and /readyz\n")
        try:
            principal = self._authenticator.authenticate(presented)
        except Denied as denied:
            log.info("a watcher from %s was denied: %s", presented.host, denied)
            return _Reply(HTTPStatus.UNAUTHORIZED, b"not allowed\n")
        if not self._watched.may_look(principal.name):
            log.info("a watcher from %s was denied: %s is no operator", presented.host, principal)
            return _Reply(HTTPStatus.FORBIDDEN, b"this is for operators\n")
        return _Reply(HTTPStatus.OK, self._watched.text(), self._watched.content_type)


class _Request(BaseHTTPRequestHandler):
    """Reads one request and answers it; who made it is told no version and no path of ours."""

    server_version = "OnceMQ"
    sys_version = ""
    timeout = WATCHER_S

    def __init__(self, watcher: socket.socket, host: str, monitor: Monitor) -> None:
        self._monitor = monitor
        self._host = host
        super().__init__(watcher, (host, 0), monitor)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """The one thing that can be asked for."""
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        certificate = None
        if isinstance(self.connection, ssl.SSLSocket):
            certificate = self.connection.getpeercert() or None
        presented = Presented(
            token.strip() if kind.lower() == "bearer" else None, certificate, self._host
        )
        reply = self._monitor.reply(self.path.partition("?")[0], presented)
        self.send_response(reply.status)
        if reply.status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """What a watcher asked for is of interest to nobody."""
        log.debug("watcher from %s: %.200a", self._host, format % arguments)


def _interrupt(watcher: socket.socket) -> None:
    with contextlib.suppress(OSError):
        watcher.shutdown(socket.SHUT_RDWR)
