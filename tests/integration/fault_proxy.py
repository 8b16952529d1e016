"""A network that fails: stands before a server and knows where a frame begins and ends.

Each frame that passes may meet a fault, drawn from a table of weights:

    cut         some of its bytes go on, then the connection is gone, reset or closed
    delayed     it comes later, but whole
    stalled     it comes much later, and nothing else of its connection before it
    repeated    it comes twice on the same connection
    duplicate   a request comes once more on a connection of its own, at once or later: the same
                request id, as from a client that had not heard the answer
    half open   from now on nothing of this direction arrives, while the connection stays open
    flipped     one bit of it is another

It knows of the protocol no more than the lengths in a frame's header and what its digest covers
(`idl/orb/frames.py`), and nothing of what is said.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from idl.call import Address
from tests.integration.cluster import Cluster, free_port

HEADER_BYTES = 40
SEQ_AT, LENGTHS_AT, DIGEST_AT, BESIDE_AT = 0x0A, 0x0C, 0x30, 0x34
ANNOTATION_BYTES = 8
# Says for which life of the server a request is.
NAMED_BYTES = 16

WEIGHTS = {
    "cut": 4.0,
    "delayed": 2.0,
    "repeated": 2.0,
    "duplicate": 3.0,
    "flipped": 4.0,
    "stalled": 0.3,
    "half open": 0.2,
}
FAULTY_SHARE = 0.1
DELAY_S = 0.1
STALL_S = 1.5
LATE_S = 2.0
SWALLOW_S = 6.0
CONNECT_S = 5.0
SEED_STEP = 1000


@dataclass(eq=False)
class Pair:
    """A connection and its continuation. `login` is the client's first frame."""

    client: socket.socket
    server: socket.socket
    login: bytes = b""
    swallowed: set[socket.socket] = field(default_factory=set)

    def end(self, is_reset: bool = False) -> None:
        for sock in (self.client, self.server):
            with contextlib.suppress(OSError):
                if is_reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


class FaultProxy:
    """Listens on a port and passes everything on to a server, with faults while it `is_faulty`."""

    def __init__(
        self,
        port: int,
        target: Address,
        seed: int,
        share: float = FAULTY_SHARE,
        weights: Mapping[str, float] = WEIGHTS,
    ) -> None:
        self.is_faulty = False
        self.frames = 0
        self.faults: Counter[str] = Counter()
        self._target = (target.host, target.port)
        self._chance = random.Random(seed)
        self._share = share
        self._kinds, self._weights = list(weights), list(weights.values())
        self._lock = threading.Lock()
        self._pairs: set[Pair] = set()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=128)
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._late: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def heal(self) -> None:
        """No more faults; connections that have had one are gone, and nothing is still to come."""
        self.is_faulty = False
        for thread in self._late:
            thread.join()
        for pair in list(self._pairs):
            if pair.swallowed:
                pair.end()

    def close(self) -> None:
        """Nothing passes any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for pair in list(self._pairs):
            pair.end()

    # --- Connections

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, CONNECT_S)
            except OSError:
                client.close()
                continue
            for sock in (client, server):
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = Pair(client, server)
            self._pairs.add(pair)
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pump, args=(pair, source, sink), daemon=True)
                thread.start()

    def _pump(self, pair: Pair, source: socket.socket, sink: socket.socket) -> None:
        try:
            while frame := _read_frame(source):
                self.frames += 1
                if source is pair.client and not pair.login:
                    pair.login = frame
                self.pass_on(pair, source, sink, frame)
        except OSError:
            pass
        finally:
            pair.end()
            self._pairs.discard(pair)

    def pass_on(self, pair: Pair, source: socket.socket, sink: socket.socket, frame: bytes) -> None:
        """One frame has come, and goes on, or not."""
        if source in pair.swallowed:
            return
        fault = self._draw()
        self.faults[fault] += bool(fault)
        match fault:
            case "cut":
                with self._lock:
                    length, is_reset = self._chance.randrange(len(frame)), self._chance.random()
                sink.sendall(frame[:length])
                pair.end(is_reset < 0.5)
            case "half open":
                pair.swallowed.add(source)
                timer = threading.Timer(SWALLOW_S, pair.end)
                timer.daemon = True
                timer.start()
            case "flipped":
                sink.sendall(self._flipped(frame))
            case "repeated":
                sink.sendall(frame + frame)
            case _:
                if fault in ("delayed", "stalled"):
                    time.sleep(self._uniform(DELAY_S if fault == "delayed" else STALL_S))
                if fault == "duplicate" and source is pair.client and frame is not pair.login:
                    self._send_once_more(pair.login, frame)
                sink.sendall(frame)

    # --- Faults

    def _draw(self) -> str:
        with self._lock:
            if not self.is_faulty or self._chance.random() >= self._share:
                return ""
            return self._chance.choices(self._kinds, self._weights)[0]

    def _uniform(self, most: float) -> float:
        with self._lock:
            return self._chance.uniform(0.0, most)

    def _flipped(self, frame: bytes) -> bytes:
        with self._lock:
            bit = self._chance.randrange(8 * len(frame))
        changed = bytearray(frame)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    def _send_once_more(self, login: bytes, frame: bytes) -> None:
        # Half of them at the same time, the others when all may be over.
        pause_s = max(self._uniform(2 * LATE_S) - LATE_S, 0.0)
        thread = threading.Thread(target=self._send_late, args=(login, frame, pause_s), daemon=True)
        self._late.append(thread)
        thread.start()

    def _send_late(self, login: bytes, frame: bytes, pause_s: float) -> None:
        time.sleep(pause_s)
        self.send_copy(login, frame)

    def send_copy(self, login: bytes, frame: bytes) -> None:
        """The request comes once more, on a connection of its own; whatever is answered."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(self._target, CONNECT_S) as sock,
        ):
            sock.sendall(login)
            if _read_frame(sock):
                seq = struct.unpack_from("!H", login, SEQ_AT)[0] + 1
                sock.sendall(renumbered(frame, seq))
                _read_frame(sock)


def proxies_before(cluster: Cluster, chance: random.Random, seed: int) -> list[FaultProxy]:
    """One before each server of a cluster that has not been started; nobody goes another way."""
    made = []
    for number, (name, address) in enumerate(list(cluster.paths.items())):
        made.append(FaultProxy(free_port(chance), address, seed * SEED_STEP + number))
        cluster.route(name, made[-1].address)
    return made


def renumbered(frame: bytes, seq: int) -> bytes:
    """The frame with another place in its connection, and a digest that fits."""
    changed = bytearray(frame)
    struct.pack_into("!H", changed, SEQ_AT, seq & 0xFFFF)
    beside = struct.unpack_from("!II", frame, LENGTHS_AT)[1]
    end = HEADER_BYTES + beside
    named_end = BESIDE_AT + (NAMED_BYTES if frame.startswith(b"OMQL", BESIDE_AT) else 0)
    digest = zlib.crc32(frame[BESIDE_AT:named_end], zlib.crc32(changed[:HEADER_BYTES]))
    digest = zlib.crc32(frame[named_end + ANNOTATION_BYTES : end], digest)
    struct.pack_into("!I", changed, DIGEST_AT, zlib.crc32(frame[end:], digest))
    return bytes(changed)


def _read_frame(sock: socket.socket) -> bytes:
    """The next frame; nothing at the end."""
    header = _read(sock, HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return b""
    rest = sum(struct.unpack_from("!II", header, LENGTHS_AT))
    body = _read(sock, rest)
    return header + body if len(body) == rest else b""


def _read(sock: socket.socket, size: int) -> bytes:
    pieces = []
    while size:
        piece = sock.recv(min(size, 1 << 20))
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
