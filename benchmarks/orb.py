"""What a call costs: through our orb, through stock Pyro5, over a bare socket, and in one process.

Every way takes an argument of so many bytes to an object that does nothing, and brings back an
empty answer. Servers are processes of their own, on a port that the system chooses on the loopback
interface; all clients are threads of one process. A bare socket is the limit: a length, the bytes,
and a length of zero as the answer.

As a program, `python -m benchmarks.orb WAY [FOLDER]`, the module is one of those servers: it writes
where it listens to standard output and ends with its standard input. FOLDER has the TLS files.
"""

from __future__ import annotations

import importlib.util
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.measure import Bar, Comparison, Setting, Subject, Yardstick
from idl.access import Tls
from idl.call import Address
from idl.local import LocalOrb
from idl.mapping import interface, operation
from idl.orb import NetworkOrb

# After our orb, which keeps the environment from changing Pyro5's settings.
import Pyro5.api  # isort: skip

SIZES_BYTES = (0, 100, 10_000)
MANY_CLIENTS = 8
MANY_CLIENTS_SIZE_BYTES = 100
RATIO_MAX = 1.2

OURS = "OnceMQ orb"
PYRO = "stock Pyro5"
TCP = "bare socket"
IN_PROCESS = "OnceMQ in process"

HOST = "127.0.0.1"
OBJECT_NAME = "echo"
START_S_MAX = 30.0
STOP_S_MAX = 10.0

_LENGTH = struct.Struct("!I")
_ROOT_FOLDER = Path(__file__).resolve().parent.parent
_BAR = Bar(OURS, PYRO, RATIO_MAX)


def comparisons(setting: Setting) -> list[Comparison]:
    """What this benchmark compares."""
    found = [
        Comparison(
            title=f"one client, argument of {size:,} bytes",
            subjects=(*_remote(size), _InProcess(bytes(size))),
            baseline=TCP,
            bars=(_BAR,),
        )
        for size in SIZES_BYTES
    ]
    found.append(
        Comparison(
            title=f"{MANY_CLIENTS} client threads, argument of {MANY_CLIENTS_SIZE_BYTES:,} bytes",
            subjects=_remote(MANY_CLIENTS_SIZE_BYTES)[:2],
            baseline=PYRO,
            clients=MANY_CLIENTS,
            yardstick=Yardstick.THROUGHPUT,
        )
    )
    return [*found, *_comparisons_with_tls(setting)]


def _comparisons_with_tls(setting: Setting) -> list[Comparison]:
    if not setting.with_tls:
        return []
    if importlib.util.find_spec("trustme") is None:
        told = "trustme is not installed, and makes the certificates: pip install trustme"
        return [Comparison("TLS", (), TCP, skipped=told)]
    folder = _make_certificates(setting.scratch)
    return [
        Comparison(
            title=f"one client, TLS, argument of {size:,} bytes",
            subjects=_remote(size, folder),
            baseline=TCP,
            bars=(_BAR,),
        )
        for size in SIZES_BYTES
    ]


def _remote(size_bytes: int, folder: Path | None = None) -> tuple[Subject, ...]:
    data = bytes(size_bytes)
    framed = _LENGTH.pack(size_bytes) + data
    return (_OverOurs(data, folder), OverPyro(data, folder), _OverTcp(framed, folder))


# --- The object that is called -------------------------------------------------------------------


@interface()
class Echo(Protocol):
    """Takes bytes and gives nothing back."""

    @operation()
    def call(self, data: bytes) -> None:
        """Does nothing."""


class _Silent:
    """Serves `Echo`, and stock Pyro5 as well."""

    @Pyro5.api.expose  # type: ignore[untyped-decorator, unused-ignore]
    def call(self, data: bytes) -> None:
        """Does nothing."""


# --- The ways to call it -------------------------------------------------------------------------


class ServerProcess:
    """A server in a process of its own, from its announcement to its end."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        pipe = subprocess.PIPE
        # In a session of its own, so that it hears of Ctrl-C from us alone.
        self._process = subprocess.Popen(
            command, cwd=_ROOT_FOLDER, stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )
        # A server that says nothing is ended, and the read below with it.
        watchdog = threading.Timer(START_S_MAX, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        self.announced = self._process.stdout.readline().strip()
        watchdog.cancel()
        if not self.announced:
            self.stop()
            raise RuntimeError(f"{' '.join(command)} did not start")

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def say(self, line: str) -> None:
        """Writes a line to the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def listen(self) -> str:
        """The next line that the process says."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def stop(self) -> None:
        """Ends the process."""
        self._process.terminate()
        try:
            self._process.communicate(timeout=STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate(timeout=STOP_S_MAX)


def _server(way: str, folder: Path | None) -> ServerProcess:
    return ServerProcess("benchmarks.orb", way, *([str(folder)] if folder else []))


@dataclass
class _OverOurs:
    data: bytes
    folder: Path | None
    name: str = OURS

    def start(self) -> None:
        self._orb = NetworkOrb(tls=None if self.folder is None else Tls(_authority(self.folder)))
        self._server = _server("ours", self.folder)
        self._echo = self._orb.proxy(self._server.announced, Echo)

    def stop(self) -> None:
        self._orb.close()
        self._server.stop()

    def one_call(self) -> None:
        self._echo.call(self.data)


@dataclass
class OverPyro:
    """Calls through stock Pyro5. See `Subject`."""

    data: bytes
    folder: Path | None
    name: str = PYRO

    def start(self) -> None:
        """See `Subject.start`."""
        self._server = _server("pyro", self.folder)
        _use_tls_in_pyro(self.folder)
        self._own = PyroProxy(self._server.announced)

    def stop(self) -> None:
        """See `Subject.stop`."""
        self._server.stop()
        _use_tls_in_pyro(None)

    def one_call(self) -> None:
        """See `Subject.one_call`."""
        self._own.proxy.call(self.data)


@dataclass
class _OverTcp:
    data: bytes
    folder: Path | None
    name: str = TCP

    def start(self) -> None:
        self._server = _server("tcp", self.folder)
        self._own = _TcpConnection(Address.parse(self._server.announced), self.folder)

    def stop(self) -> None:
        self._server.stop()

    def one_call(self) -> None:
        sock = self._own.sock
        sock.sendall(self.data)
        _receive(sock, _LENGTH.size)


@dataclass
class _InProcess:
    data: bytes
    name: str = IN_PROCESS

    def start(self) -> None:
        self._orb = LocalOrb()
        self._echo = self._orb.publish(_Silent(), Echo, OBJECT_NAME)

    def stop(self) -> None:
        self._orb.close()

    def one_call(self) -> None:
        self._echo.call(self.data)


class PyroProxy(threading.local):
    """A proxy for each thread, because one of Pyro5's belongs to the thread that made it."""

    def __init__(self, uri: str) -> None:
        self.proxy = Pyro5.api.Proxy(uri)
        self.proxy._pyroSerializer = "msgpack"


class _TcpConnection(threading.local):
    """A connection for each thread."""

    def __init__(self, address: Address, folder: Path | None) -> None:
        self.sock = socket.create_connection((address.host, address.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if folder is not None:
            context = Tls(_authority(folder)).client_context()
            self.sock = context.wrap_socket(self.sock, server_hostname=address.host)


def _receive(sock: socket.socket, size: int) -> bytes:
    data = sock.recv(size)
    while data and len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("the other side closed the connection")
        data += piece
    return data


# --- TLS -----------------------------------------------------------------------------------------


def _make_certificates(folder: Path) -> Path:
    import trustme

    authority = trustme.CA()
    server = authority.issue_cert(HOST)
    authority.cert_pem.write_to_path(str(_authority(folder)))
    _own(folder).touch(mode=0o600)
    server.private_key_and_cert_chain_pem.write_to_path(str(_own(folder)))
    return folder


def _authority(folder: Path) -> Path:
    return folder / "authority.pem"


def _own(folder: Path) -> Path:
    return folder / "server.pem"


def _server_tls(folder: Path | None) -> Tls | None:
    return None if folder is None else Tls(_authority(folder), _own(folder), _own(folder))


def _use_tls_in_pyro(folder: Path | None) -> None:
    """Pyro5 has one setting for the whole process; it counts while a connection is made."""
    Pyro5.config.SSL = folder is not None
    Pyro5.config.SSL_CACERTS = "" if folder is None else str(_authority(folder))


# --- The servers ---------------------------------------------------------------------------------


def _serve_ours(folder: Path | None) -> str:
    orb = NetworkOrb(Address(HOST, 0), tls=_server_tls(folder))
    return orb.reference_of(orb.publish(_Silent(), Echo, OBJECT_NAME))


def _serve_pyro(folder: Path | None) -> str:
    _use_tls_in_pyro(folder)
    if folder is not None:
        Pyro5.config.SSL_SERVERCERT = Pyro5.config.SSL_SERVERKEY = str(_own(folder))
    daemon = Pyro5.api.Daemon(HOST, 0)
    uri = str(daemon.register(_Silent(), OBJECT_NAME))
    threading.Thread(target=daemon.requestLoop, daemon=True).start()
    return uri


def _serve_tcp(folder: Path | None) -> str:
    tls = _server_tls(folder)
    context = None if tls is None else tls.server_context()

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            _answer_tcp(self.request, context)

    server = socketserver.ThreadingTCPServer((HOST, 0), Answer)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return str(Address(HOST, server.server_address[1]))


def _answer_tcp(sock: socket.socket, context: ssl.SSLContext | None) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is not None:
        sock = context.wrap_socket(sock, server_side=True)
    nothing = _LENGTH.pack(0)
    while head := _receive(sock, _LENGTH.size):
        (size,) = _LENGTH.unpack(head)
        if size:
            _receive(sock, size)
        sock.sendall(nothing)


_WAYS: dict[str, Callable[[Path | None], str]] = {
    "ours": _serve_ours,
    "pyro": _serve_pyro,
    "tcp": _serve_tcp,
}


def _main(way: str, folder: str = "") -> None:
    sys.stdout.write(_WAYS[way](Path(folder) if folder else None) + "\n")
    sys.stdout.flush()
    # Whoever started this server holds the other end, and lets go of it even when it is killed.
    sys.stdin.read()


if __name__ == "__main__":
    _main(*sys.argv[1:])
