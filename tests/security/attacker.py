"""A peer that keeps to no rule: Pyro5 frames made byte by byte, on a bare socket.

Nothing of the orb is used here, nor Pyro5's own writer, so that a frame can be wrong in any one
place while all the rest of it is right. Every wait is bounded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import ssl
import struct
import time
import zlib
from dataclasses import dataclass
from typing import Any, Self

import msgpack

from idl.call import Address

CONNECT, CONNECTED, NOT_CONNECTED, INVOKE, RESULT, PING = range(1, 7)
EXCEPTION, COMPRESSED, ONEWAY, BATCH, ITEMSTREAM, KEEPSERIALIZED, HAS_REQUEST_ID = (
    1 << bit for bit in range(7)
)
SERPENT, MARSHAL, JSON, MSGPACK = range(1, 5)

PATIENCE_S = 5.0
# Sooner than any deadline of a victim is over: what is cut by then was not waited for.
AT_ONCE_S = 0.8
REQUEST_ID = bytes(range(16))

_HEADER = struct.Struct("!4sHBBHHII16sHH")
_CHUNK = struct.Struct("!4sI")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True)
class Forged:
    """A frame as the attacker wants it; what is not said is what an honest client would send."""

    kind: int
    body: bytes = b""
    seq: int = 0
    flags: int = HAS_REQUEST_ID
    serializer: int = MSGPACK
    request_id: bytes = REQUEST_ID
    transaction: bytes = b""
    # For which life of the server it says that it is, if any.
    life: bytes = b""
    annotations: tuple[tuple[bytes, bytes], ...] = ()
    has_digest: bool = True
    tag: bytes = b"PYRO"
    version: int = 502
    magic: int = 0x4DC5
    announced_bytes: int | None = None
    announced_annotation_bytes: int | None = None

    def encode(self) -> bytes:
        """The bytes of the frame, with a digest that fits whatever the frame says."""
        chunks = list(self.annotations)
        if self.transaction:
            chunks.insert(0, (b"OMQT", self.transaction))
        named = b""
        if self.life:
            named = _CHUNK.pack(b"OMQL", len(self.life)) + self.life
            chunks.insert(0, (b"OMQL", self.life))
        digest_bytes = _CHUNK.size + 4 if self.has_digest else 0
        annotation_bytes = digest_bytes + sum(_CHUNK.size + len(data) for _, data in chunks)
        head = self._head(annotation_bytes)
        if self.has_digest:
            checksum = zlib.crc32(self.transaction, zlib.crc32(head + named))
            checksum = zlib.crc32(self.body, checksum)
            chunks.insert(0, (b"OMQD", checksum.to_bytes(4, "big")))
        packed = [_CHUNK.pack(name, len(data)) + data for name, data in chunks]
        return b"".join((head, *packed, self.body))

    def _head(self, annotation_bytes: int) -> bytes:
        said, said_beside = self.announced_bytes, self.announced_annotation_bytes
        return _HEADER.pack(
            self.tag,
            self.version,
            self.kind,
            self.serializer,
            self.flags,
            self.seq,
            len(self.body) if said is None else said,
            annotation_bytes if said_beside is None else said_beside,
            self.request_id,
            0,
            self.magic,
        )


@dataclass(frozen=True)
class Reply:
    """A frame that came back."""

    kind: int
    flags: int
    seq: int
    request_id: bytes
    body: bytes
    raw: bytes

    @property
    def plain(self) -> Any:
        """What the body says."""
        return msgpack.unpackb(self.body)

    @property
    def exception(self) -> str:
        """The name of the exception that it carries, such as BAD_PARAM; empty when it has none."""
        if not self.flags & EXCEPTION:
            return ""
        name: str = self.plain[0]
        return name.rpartition("/")[2].removesuffix(":1.0")


def login(token: object = None, **changes: Any) -> Forged:
    """The login of an honest client, but for the changes."""
    said = {"handshake": {"oncemq": 1, "token": token}, "object": "oncemq"}
    return dataclasses.replace(Forged(CONNECT, msgpack.packb(said)), **changes)


def call(seq: int, name: str, operation: str, *arguments: object, **changes: Any) -> Forged:
    """The call of an honest client, but for the changes."""
    body = msgpack.packb((name, operation, arguments, {}))
    return dataclasses.replace(Forged(INVOKE, body, seq), **changes)


def describe(forged: Forged) -> str:
    """What a forged frame has of its own, short enough to name a test."""
    own = [
        f"{each.name}={getattr(forged, each.name)!r:.24}"
        for each in dataclasses.fields(forged)
        if each.name not in ("kind", "body", "seq") and getattr(forged, each.name) != each.default
    ]
    return f"kind={forged.kind} {' '.join(own)}"


class Wire:
    """One end of a connection, without any manners."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.heard = bytearray()

    @classmethod
    def to(cls, address: Address, tls: ssl.SSLContext | None = None) -> Self:
        """A connection to the address, through TLS where a context is given."""
        sock = socket.create_connection((address.host, address.port), PATIENCE_S)
        if tls is not None:
            try:
                sock = tls.wrap_socket(sock, server_hostname=address.host)
            except BaseException:
                sock.close()
                raise
        return cls(sock)

    def send(self, *data: bytes | Forged) -> None:
        """Sends it all, unless the other side has cut the connection before."""
        whole = b"".join(part.encode() if isinstance(part, Forged) else part for part in data)
        self.sock.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            self.sock.sendall(whole)

    def say_no_more(self) -> None:
        """Ends this side, so that the other need not wait for what a frame announced."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def drip(self, data: bytes, pause_s: float, within_s: float) -> float:
        """Sends a byte at a time until cut; returns after how many seconds it was."""
        begun = time.monotonic()
        for position in range(len(data)):
            with contextlib.suppress(OSError):
                self.sock.sendall(data[position : position + 1])
            if self.is_cut(pause_s):
                return time.monotonic() - begun
            assert time.monotonic() - begun < within_s, "a dawdling peer is not cut"
        raise AssertionError("all of it was sent, and the peer was never cut")

    def is_cut(self, within_s: float = PATIENCE_S) -> bool:
        """Whether the other side closes or resets the connection in time, saying nothing."""
        try:
            return self._read(1, time.monotonic() + within_s) == b""
        except TimeoutError:
            return False

    def reply(self, within_s: float = PATIENCE_S) -> Reply | None:
        """The next frame of the other side; None when it has cut the connection instead."""
        deadline = time.monotonic() + within_s
        head = self._read(HEADER_BYTES, deadline)
        if len(head) < HEADER_BYTES:
            return None
        _, _, kind, _, flags, seq, data_bytes, annotation_bytes, request_id, _, _ = _HEADER.unpack(
            head
        )
        rest = self._read(data_bytes + annotation_bytes, deadline)
        return Reply(kind, flags, seq, request_id, rest[annotation_bytes:], head + rest)

    def is_cut_at_once(self) -> bool:
        """Whether the other side refuses by itself what it was sent, and says nothing."""
        try:
            return self.reply(AT_ONCE_S) is None
        except TimeoutError:
            return False

    def answer(self, forged: Forged) -> Reply:
        """What the other side answers to the frame; it must not cut the connection."""
        self.send(forged)
        reply = self.reply()
        assert reply is not None, "the connection was cut in place of an answer"
        return reply

    def close(self) -> None:
        """Lets go of the connection."""
        self.sock.close()

    def reset(self) -> None:
        """Closes the connection so that neither side remembers it."""
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reset()

    def _read(self, size: int, deadline: float) -> bytes:
        """As much of it as comes before the end of the connection."""
        data = bytearray()
        while len(data) < size:
            self.sock.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                piece = self.sock.recv(min(size - len(data), 1 << 18))
            except TimeoutError:
                raise
            except OSError:
                break
            if not piece:
                break
            data += piece
            self.heard += piece
        return bytes(data)
