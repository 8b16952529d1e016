"""A server of the attacker's: it listens on this machine, and says what a test wants it to say."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Self

import msgpack

from idl.call import Address
from tests.security.attacker import CONNECT, CONNECTED, PATIENCE_S, RESULT, Forged, Reply, Wire

# Given the connection and a request, says something or nothing, and whether to go on.
Converse = Callable[[Wire, Reply], None]


class Impostor:
    """Accepts connections until it is closed, and remembers every byte that it was told."""

    def __init__(self, converse: Converse, tls: ssl.SSLContext | None = None) -> None:
        self._converse = converse
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._heard: list[bytearray] = []
        self._wires: list[Wire] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])

    @property
    def heard(self) -> bytes:
        """Everything that has arrived, decrypted where TLS was agreed on."""
        return b"".join(self._heard)

    @property
    def visits(self) -> int:
        """How many connections have been made to it."""
        return len(self._heard)

    def reference(self, name: str = "object") -> str:
        """The reference of an object that it pretends to have."""
        return f"PYRO:{name}@{self.address}"

    def close(self) -> None:
        """Accepts nobody any more, and waits for the conversations to end."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for wire in self._wires:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(wire.sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            heard = bytearray()
            self._heard.append(heard)
            thread = threading.Thread(target=self._attend, args=(sock, heard))
            self._threads.append(thread)
            thread.start()

    def _attend(self, sock: socket.socket, heard: bytearray) -> None:
        sock.settimeout(PATIENCE_S)
        with contextlib.ExitStack() as stack:
            stack.callback(sock.close)
            stack.enter_context(contextlib.suppress(OSError))
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
                stack.callback(sock.close)
            wire = Wire(sock)
            wire.heard = heard
            self._wires.append(wire)
            while (request := wire.reply()) is not None:
                self._converse(wire, request)


def let_in(wire: Wire, login: Reply, **more: object) -> None:
    """Answers a login as an honest server does, of an earlier version that tells no life."""
    operations = {"methods": (), "oneway": (), "attrs": ()}
    body = msgpack.packb({"handshake": 1, "meta": operations, **more})
    wire.send(Forged(CONNECTED, body, login.seq, request_id=bytes(16)))


def result(request: Reply, value: object) -> Forged:
    """The frame by which an honest server returns a single value."""
    return Forged(RESULT, msgpack.packb((value,)), request.seq, request_id=request.request_id)


def letting_in(answer: Converse) -> Converse:
    """Lets everybody in, and answers their requests in its own way."""

    def converse(wire: Wire, request: Reply) -> None:
        if request.kind == CONNECT:
            let_in(wire, request)
        else:
            answer(wire, request)

    return converse


def saying_nothing(wire: Wire, request: Reply) -> None:
    """Listens."""
