"""Two-phase commit with nothing in it: the same messages and forced writes, and the least Python.

    client         to both participants at once, waits for both; to the coordinator, waits
    coordinator    one forced write; to all participants at once, waits for all; answers
    participant    for `prepare` a forced write where it is asked for one; answers

A message is a length and some bytes on a plain socket. Nobody checks, names, logs or remembers
anything, so that no program in Python can be faster with processes that share these processors.

As a program, `python -m benchmarks.bare`, the module is a participant or the coordinator, writes
where it listens to standard output, and ends with its standard input.
"""

from __future__ import annotations

import os
import socket
import socketserver
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.orb import ServerProcess
from idl.call import Address

HOST = "127.0.0.1"
PARTICIPANTS = 2
BARE = "bare sockets, the same messages"

_LENGTH = struct.Struct("!I")
_BLOCK = bytes(512)
_BLOCKS = 8192
# About as long as what our own messages carry.
PREPARE, COMMIT, DECIDE = b"p" * 250, b"c" * 150, b"d" * 400
_ASK = b"g" * 250

Answer = Callable[[bytes], None]


def _send(sock: socket.socket, body: bytes) -> None:
    sock.sendall(_LENGTH.pack(len(body)) + body)


def _receive(sock: socket.socket) -> bytes:
    data = sock.recv(4096)
    while data and len(data) < _LENGTH.size + _LENGTH.unpack_from(data)[0]:
        data += sock.recv(4096)
    return data[_LENGTH.size :]


def _reach(where: str) -> socket.socket:
    address = Address.parse(where)
    sock = socket.create_connection((address.host, address.port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _ask_all(socks: list[socket.socket], body: bytes) -> None:
    for sock in socks:
        _send(sock, body)
    for sock in socks:
        _receive(sock)


class File:
    """A block of a file that was written in full before is written again, and forced."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._fd, _BLOCK * _BLOCKS, 0)
        os.fsync(self._fd)
        self._next = 0

    def force(self) -> None:
        """The next block is on disk."""
        self._next += 1
        os.pwrite(self._fd, _BLOCK, self._next % _BLOCKS * len(_BLOCK))
        os.fdatasync(self._fd)


def _serve(made: Callable[[], Answer]) -> None:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answer = made()
            while body := _receive(self.request):
                answer(body)
                _send(self.request, b"done")

    server = socketserver.ThreadingTCPServer((HOST, 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{Address(HOST, server.server_address[1])}\n")
    sys.stdout.flush()
    # Whoever started this server holds the other end, and lets go of it even when it is killed.
    sys.stdin.read()


def _be_participant(path: str = "") -> None:
    file = File(path) if path else None

    def answer(body: bytes) -> None:
        if file is not None and body == PREPARE:
            file.force()

    _serve(lambda: answer)


def _be_coordinator(path: str, *participants: str) -> None:
    file = File(path)

    def made() -> Answer:
        socks = [_reach(where) for where in participants]

        def answer(body: bytes) -> None:
            file.force()
            _ask_all(socks, COMMIT)

        return answer

    _serve(made)


@dataclass
class BareTwoPhase:
    """The messages of a two-phase commit. See `Subject`."""

    folder: Path
    name: str = BARE

    def start(self) -> None:
        """See `Subject.start`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._processes = [
            ServerProcess("benchmarks.bare", "participant") for _ in range(PARTICIPANTS)
        ]
        nodes = [process.announced for process in self._processes]
        log = str(self.folder / "coordinator")
        self._processes.append(ServerProcess("benchmarks.bare", "coordinator", log, *nodes))
        self._nodes = [_reach(where) for where in nodes]
        self._coordinator = _reach(self._processes[-1].announced)

    def stop(self) -> None:
        """See `Subject.stop`."""
        for sock in (*self._nodes, self._coordinator):
            sock.close()
        for process in self._processes:
            process.stop()

    def one_call(self) -> None:
        """See `Subject.one_call`."""
        _ask_all(self._nodes, PREPARE)
        _ask_all([self._coordinator], DECIDE)


class BareNode:
    """A node with nothing in it, for one who has a database beside it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._process = ServerProcess("benchmarks.bare", "participant", str(folder / "node"))
        self._node = _reach(self._process.announced)

    def stop(self) -> None:
        """It is gone."""
        self._node.close()
        self._process.stop()

    def ask(self) -> None:
        """The node has answered, and forced nothing."""
        _ask_all([self._node], _ASK)

    def prepare(self) -> None:
        """The node has forced what it promises."""
        _ask_all([self._node], PREPARE)


if __name__ == "__main__":
    if sys.argv[1] == "participant":
        _be_participant(*sys.argv[2:])
    else:
        _be_coordinator(*sys.argv[2:])
