"""Pyro5's frames on a socket, read and written whole, each by a deadline. The only user of Pyro5.

Both sides of the orb stand on this: it puts our digest and the transaction beside the body, and
has every header judged before anything else of the frame is looked at. The layout is that of
Pyro5's protocol, with our two annotations; a test compares it with what Pyro5 writes and reads:

    offset  code  size  field
    0x00    4s    4     PYRO
    0x04    H     2     version of Pyro5's protocol
    0x06    B     1     message type
    0x07    B     1     serializer, always msgpack
    0x08    H     2     flags
    0x0a    H     2     sequence number: place of the call in the connection
    0x0c    I     4     length of the body
    0x10    I     4     length of all annotations
    0x14    16s   16    correlation id: the request id, the caller's idempotency key
    0x24    H     2     reserved
    0x26    H     2     magic number
    0x28    4s    4     OMQD: annotation with the digest
    0x2c    I     4     its length, 4
    0x30    I     4     CRC-32 of the first 40 bytes, the transaction and the body

An annotation OMQT with the transaction may follow, then the body. Pyro5's own configuration,
environment variables included, has no say here. It knows neither objects nor principals.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import time
import zlib
from typing import NamedTuple

from idl.orb.guard import Header, Policy, judge

# Pyro5 reads PYRO_* variables when it is imported, and refuses to be imported for one that it does
# not know. They are put aside meanwhile: the environment must not change what a server lets in.
_put_aside = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PYRO_")}
try:
    from Pyro5 import protocol
    from Pyro5.serializers import MsgpackSerializer
finally:
    os.environ.update(_put_aside)

CONNECT: int = protocol.MSG_CONNECT
CONNECTED: int = protocol.MSG_CONNECTOK
NOT_CONNECTED: int = protocol.MSG_CONNECTFAIL
INVOKE: int = protocol.MSG_INVOKE
RESULT: int = protocol.MSG_RESULT
EXCEPTION: int = protocol.FLAGS_EXCEPTION
HAS_REQUEST_ID: int = protocol.FLAGS_CORR_ID
MSGPACK: int = MsgpackSerializer.serializer_id

READ_AHEAD_BYTES = 16 * 1024
READ_BYTES = 256 * 1024

_TAG = b"PYRO"
_VERSION: int = protocol.PROTOCOL_VERSION
_MAGIC = 0x4DC5
_DIGEST = b"OMQD"
_TRANSACTION = b"OMQT"
_HEADER = struct.Struct("!4sHBBHHII16sHH")
_ANNOTATION = struct.Struct("!4sI")
_DIGEST_ANNOTATION = struct.Struct("!4sII")
_ANNOTATIONS_AT = _HEADER.size
assert _HEADER.size + _DIGEST_ANNOTATION.size == 0x34

# What a socket that does not block says when it would have to.
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Refused(Exception):
    """The other side sent what is not let in."""


class Damaged(Refused):
    """A frame has changed on the way, or carries no digest; its owner is known if that is whole."""

    def __init__(self, seq: int, request_id: bytes) -> None:
        super().__init__("the digest does not fit the message")
        self.seq = seq
        self.request_id = request_id


class Frame(NamedTuple):
    """One message: what it is, which call it belongs to, and what it carries."""

    kind: int
    flags: int
    seq: int
    request_id: bytes
    body: memoryview
    transaction: bytes


def encode(
    kind: int, seq: int, request_id: bytes, body: bytes, transaction: bytes = b"", flags: int = 0
) -> bytes:
    """The bytes of a frame, with the digest over all that the two sides must agree on."""
    beside = _ANNOTATION.pack(_TRANSACTION, len(transaction)) + transaction if transaction else b""
    header = _HEADER.pack(
        _TAG,
        _VERSION,
        kind,
        MSGPACK,
        flags | HAS_REQUEST_ID,
        seq,
        len(body),
        _DIGEST_ANNOTATION.size + len(beside),
        request_id,
        0,
        _MAGIC,
    )
    checksum = zlib.crc32(body, zlib.crc32(transaction, zlib.crc32(header)))
    return b"".join((header, _DIGEST_ANNOTATION.pack(_DIGEST, 4, checksum), beside, body))


class Stream:
    """A connected socket. One thread reads and writes it; others may interrupt it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._ahead = b""
        self.start()

    def start(self) -> None:
        """The socket, which may have become another one, does not block from now on."""
        self.sock.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self.sock, select.POLLIN)
        # Decrypted bytes can wait inside a TLS socket, where the kernel does not see them.
        self._may_hide_bytes = isinstance(self.sock, ssl.SSLSocket)

    def receive(self, policy: Policy, deadline: float, message_s: float | None = None) -> Frame:
        """The next frame, by the deadline; with `message_s` it begins by then and ends so soon."""
        if not self._ahead:
            self._read_ahead(deadline)
        if message_s is not None:
            deadline = time.monotonic() + message_s
        while len(self._ahead) < _HEADER.size:
            self._read_ahead(deadline)
        header = self._ahead[: _HEADER.size]
        fields = _HEADER.unpack(header)
        tag, version, kind, serializer, flags, seq, body_size, beside_size, request_id, _, magic = (
            fields
        )
        if tag != _TAG or version != _VERSION or magic != _MAGIC:
            raise Refused("not a frame of our protocol")
        reason = judge(Header(kind, serializer, flags, body_size, beside_size), policy)
        if reason is not None:
            raise Refused(reason)
        rest = self._rest(beside_size + body_size, deadline)
        transaction, checksum = _annotations(rest, beside_size)
        body = memoryview(rest)[beside_size:]
        if checksum != zlib.crc32(body, zlib.crc32(transaction, zlib.crc32(header))):
            raise Damaged(seq, request_id)
        return Frame(kind, flags & ~HAS_REQUEST_ID, seq, request_id, body, transaction)

    def send(self, data: bytes, deadline: float) -> None:
        """Hands all of the data to the network by the deadline."""
        sent = 0
        while True:
            try:
                sent += self.sock.send(memoryview(data)[sent:] if sent else data)
                if sent == len(data):
                    return
            except _NOT_NOW as busy:
                self._wait_for_room(busy, deadline)

    def is_quiet(self) -> bool:
        """Whether nothing has arrived, neither bytes nor the end of the connection."""
        return not self._ahead and not self._poll.poll(0)

    def interrupt(self) -> None:
        """Makes the thread that waits on this socket wake up and find it closed."""
        # The plain socket's own method: that of an SSL socket would go on in clear text.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Lets go of the socket, in this process only."""
        with contextlib.suppress(OSError):
            self.sock.close()

    def reset(self) -> None:
        """Closes the connection at once, with nothing left behind in the kernel."""
        with contextlib.suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close()

    def _read_ahead(self, deadline: float) -> None:
        self._ahead += self._piece(READ_AHEAD_BYTES, deadline, wait=not self._may_hide_bytes)

    def _rest(self, size: int, deadline: float) -> bytes:
        """What follows the header, read in pieces: an announced size makes us hold nothing."""
        end = _HEADER.size + size
        if len(self._ahead) >= end:
            rest, self._ahead = self._ahead[_HEADER.size : end], self._ahead[end:]
            return rest
        pieces = [self._ahead[_HEADER.size :]]
        self._ahead = b""
        missing = size - len(pieces[0])
        while missing:
            pieces.append(self._piece(min(missing, READ_BYTES), deadline, wait=False))
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def _piece(self, size: int, deadline: float, wait: bool) -> bytes:
        while True:
            if wait and not self._poll.poll(time_left(deadline) * 1000):
                raise TimeoutError("nothing has arrived in time")
            try:
                piece = self.sock.recv(size)
            except _NOT_NOW:
                wait = True
                continue
            if not piece:
                raise ConnectionResetError("the other side closed the connection")
            return piece

    def _wait_for_room(self, busy: OSError, deadline: float) -> None:
        # A TLS socket may have to read before it can write.
        event = select.POLLIN if isinstance(busy, ssl.SSLWantReadError) else select.POLLOUT
        poll = select.poll()
        poll.register(self.sock, event)
        if not poll.poll(time_left(deadline) * 1000):
            raise TimeoutError("the other side does not read")


def time_left(deadline: float) -> float:
    """The seconds until the deadline; raises `TimeoutError` when there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return left


def _annotations(rest: bytes, size: int) -> tuple[bytes, int]:
    """The transaction, and the digest or -1: the two annotations, in this order and no others."""
    if size < _DIGEST_ANNOTATION.size:
        return b"", -1
    name, length, checksum = _DIGEST_ANNOTATION.unpack_from(rest)
    if name != _DIGEST or length != 4:
        return b"", -1
    if size == _DIGEST_ANNOTATION.size:
        return b"", checksum
    start = _DIGEST_ANNOTATION.size + _ANNOTATION.size
    if size < start:
        return b"", -1
    name, length = _ANNOTATION.unpack_from(rest, _DIGEST_ANNOTATION.size)
    if name != _TRANSACTION or start + length != size:
        return b"", -1
    return rest[start:size], checksum
