"""Pyro5's frames on a socket, read and written whole, each by a deadline. The only user of Pyro5.

Both sides of the orb stand on this: it puts our digest and the transaction beside the body, and
has every header judged before anything else of the frame is looked at. The layout is that of
Pyro5's protocol, with our three annotations; a test compares it with what Pyro5 writes and reads:

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
    0x30    I     4     CRC-32 of the first 40 bytes, all of OMQL, the transaction and the body

An annotation OMQL may follow, which says for which life of the server a request is: 8 bytes, drawn
at each start and told with the login. A request of a former life, which somebody has kept and sends
on, is refused. Then an annotation OMQT with the transaction may follow, then the body. Pyro5's own
configuration, environment variables included, has no say here. It knows neither objects nor
principals.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import time
from typing import NamedTuple

from idl.checksums import MUCH_BYTES, crc32, crc32_of_little
from idl.orb.guard import Policy, judge
from idl.orb.vigil import Vigil
from idl.turns import turns_here

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
# Ours, above those of Pyro5: this is no answer yet, but says that one will come.
FORETOLD = 1 << 8
MSGPACK: int = MsgpackSerializer.serializer_id

LIFE_BYTES = 8
READ_AHEAD_BYTES = 16 * 1024
READ_BYTES = 256 * 1024
# A wait may be longer by this, and no wait is told to the kernel as none, which would be for ever.
WAIT_TOLERANCE_S = 0.02
WAIT_S_MIN = 0.001

_TAG = b"PYRO"
_VERSION: int = protocol.PROTOCOL_VERSION
_MAGIC = 0x4DC5
_DIGEST = b"OMQD"
_LIFE = b"OMQL"
_TRANSACTION = b"OMQT"
_HEADER = struct.Struct("!4sHBBHHII16sHH")
_ANNOTATION = struct.Struct("!4sI")
_DIGEST_ANNOTATION = struct.Struct("!4sII")
# All of that as most frames have it: what all of a kind begin with, flags included, and what stands
# between the request id and the digest.
_START = struct.Struct("!4sHBBH")
_USUAL_HEADER = struct.Struct("!10sHII16s4s")
_USUAL = struct.Struct("!10sHII16s12sI")
_HEADER_END = struct.pack("!HH", 0, _MAGIC)
_DIGEST_START = _ANNOTATION.pack(_DIGEST, 4)
_MIDDLE = _HEADER_END + _DIGEST_START
_HEADER_BYTES = _HEADER.size
_DIGEST_BYTES = _DIGEST_ANNOTATION.size
_USUAL_BYTES = _USUAL.size
_LIFE_START = _ANNOTATION.pack(_LIFE, LIFE_BYTES)
_NAMED_BYTES = len(_LIFE_START) + LIFE_BYTES
_LITTLE_BYTES = MUCH_BYTES - _HEADER_BYTES - _NAMED_BYTES
# Looked up once: each is used with every frame.
_pack_header, _unpack_header = _HEADER.pack, _HEADER.unpack_from
_pack_usual, _unpack_usual = _USUAL_HEADER.pack, _USUAL.unpack_from
_pack_end = struct.Struct("!8sI").pack
_pack_digest, _unpack_digest = _DIGEST_ANNOTATION.pack, _DIGEST_ANNOTATION.unpack_from
_crc32, _crc32_of_little = crc32, crc32_of_little
_AT_ONCE = socket.MSG_DONTWAIT
_new_tuple = tuple.__new__
assert _HEADER.size + _DIGEST_ANNOTATION.size == _USUAL.size == 0x34

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
    body: bytes | memoryview
    transaction: bytes


def start_of(kind: int) -> bytes:
    """What a usual frame of a kind begins with: it has a request id, and no other flag."""
    return _START.pack(_TAG, _VERSION, kind, MSGPACK, HAS_REQUEST_ID)


_STARTS = {kind: start_of(kind) for kind in (CONNECT, CONNECTED, NOT_CONNECTED, INVOKE, RESULT)}


def naming(life: bytes) -> bytes:
    """What a frame that is for this life of a server carries beside its digest."""
    return _LIFE_START + life


def encode(
    kind: int,
    seq: int,
    request_id: bytes,
    body: bytes,
    transaction: bytes = b"",
    flags: int = 0,
    named: bytes = b"",
) -> bytes:
    """The bytes of a frame, with the digest over all that the two sides must agree on.

    `named` is what `naming` makes of a life, or nothing.
    """
    size = len(body)
    if transaction or flags or size >= _LITTLE_BYTES:
        return _encode(kind, seq, request_id, body, transaction, flags, named)
    beside_size = _DIGEST_BYTES + len(named)
    header = _pack_usual(_STARTS[kind], seq, size, beside_size, request_id, _HEADER_END)
    rest = named + body
    # One sum of both takes less time than two, although what is little is copied for it.
    return header + _pack_end(_DIGEST_START, _crc32_of_little(header + rest)) + rest


def _encode(
    kind: int,
    seq: int,
    request_id: bytes,
    body: bytes,
    transaction: bytes,
    flags: int,
    named: bytes,
) -> bytes:
    """The same for a frame out of the ordinary, or a large one."""
    beside = named
    if transaction:
        beside += _ANNOTATION.pack(_TRANSACTION, len(transaction)) + transaction
    header = _pack_header(
        _TAG,
        _VERSION,
        kind,
        MSGPACK,
        flags | HAS_REQUEST_ID,
        seq,
        len(body),
        _DIGEST_BYTES + len(beside),
        request_id,
        0,
        _MAGIC,
    )
    checksum = _crc32_of_little(header + named)
    if transaction:
        checksum = _crc32(transaction, checksum)
    return b"".join((header, _pack_digest(_DIGEST, 4, _crc32(body, checksum)), beside, body))


class Stream:
    """A connected socket. One thread reads and writes it; others may interrupt it.

    A plain socket blocks, and the kernel ends a read that takes too long; a TLS socket does not
    block, and is waited for: the kernel does not see what waits decrypted inside it. Where calls
    take turns, neither blocks, and others have theirs while one is waited for. With a vigil one is
    waited for awake at first.
    """

    def __init__(self, sock: socket.socket, vigil: Vigil | None = None) -> None:
        self.sock = sock
        self._ahead = b""
        self._vigil = vigil
        self.start()

    def start(self) -> None:
        """The socket, which may have become another one, is read and written here from now on."""
        self._is_plain = not isinstance(self.sock, ssl.SSLSocket)
        self.sock.setblocking(self._is_plain)
        # The flag is for the plain socket, which would block; TLS knows no flags.
        self._at_once = _AT_ONCE if self._is_plain else 0
        # How long the kernel waits for bytes; none yet.
        self._wait_s = 0.0
        self._poll = select.poll()
        self._poll.register(self.sock, select.POLLIN)

    def receive(self, policy: Policy, deadline: float, message_s: float | None = None) -> Frame:
        """The next frame, by the deadline; with `message_s` it begins by then and ends so soon."""
        data = self._ahead or self._piece(READ_AHEAD_BYTES, deadline)
        return self._usual(data, policy) or self._received(data, policy, deadline, message_s)

    def receive_at_once(self, policy: Policy) -> Frame | None:
        """The next frame, if all of it is here and it is a usual one; what is here is kept."""
        if not self._ahead:
            try:
                self._ahead = self.sock.recv(READ_AHEAD_BYTES, self._at_once)
            except _NOT_NOW:
                return None
            if not self._ahead:
                raise ConnectionResetError("the other side closed the connection")
        return self._usual(self._ahead, policy)

    @property
    def has_more(self) -> bool:
        """Whether something has arrived here that the kernel does not know of any more."""
        if self._is_plain or self._ahead:
            return bool(self._ahead)
        return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

    def _usual(self, data: bytes, policy: Policy) -> Frame | None:
        size = len(data) - _USUAL_BYTES
        if size >= 0:
            start, seq, body_size, beside_size, request_id, middle, digest = _unpack_usual(data)
            named = policy.named
            named_size = len(named)
            # Whole, of the kind that is waited for, and with the life alone beside its digest.
            if (
                body_size + named_size == size
                and start == policy.start
                and beside_size == _DIGEST_BYTES + named_size
                and middle == _MIDDLE
                and size + _DIGEST_BYTES <= policy.frame_bytes_max
            ):
                rest = data[_USUAL_BYTES:]
                sum_up = _crc32_of_little if size < _LITTLE_BYTES else _crc32
                if sum_up(data[:_HEADER_BYTES] + rest) == digest and rest.startswith(named):
                    self._ahead = b""
                    body = rest[named_size:]
                    return _new_tuple(Frame, (start[6], 0, seq, request_id, body, b""))
        return None

    def _received(
        self, data: bytes, policy: Policy, deadline: float, message_s: float | None
    ) -> Frame:
        """The same for a frame of which so much is here, whatever it looks like."""
        if len(data) < _HEADER_BYTES:
            if message_s is not None:
                deadline = time.monotonic() + message_s
                message_s = None
            while len(data) < _HEADER_BYTES:
                data += self._piece(READ_AHEAD_BYTES, deadline)
        tag, version, kind, serializer, flags, seq, body_size, beside_size, request_id, _, magic = (
            _unpack_header(data)
        )
        if tag != _TAG or version != _VERSION or magic != _MAGIC:
            raise Refused("not a frame of our protocol")
        reason = judge((kind, serializer, flags, body_size, beside_size), policy)
        if reason is not None:
            raise Refused(reason)
        body_at = _HEADER_BYTES + beside_size
        size = body_at + body_size
        if len(data) == size:
            self._ahead = b""
        elif len(data) > size:
            data, self._ahead = data[:size], data[size:]
        else:
            self._ahead = b""
            late = deadline if message_s is None else time.monotonic() + message_s
            data = self._whole(data, size, late)
        body = memoryview(data)[body_at:]
        named, transaction = _beside(data, body_at)
        checksum = _crc32_of_little(data[:_HEADER_BYTES] + named)
        if transaction:
            checksum = _crc32(transaction, checksum)
        expected = (_DIGEST, 4, _crc32(body, checksum))
        if transaction is None or _unpack_digest(data, _HEADER_BYTES) != expected:
            raise Damaged(seq, request_id)
        # One that names no life is a client's of an earlier version.
        if named and named != policy.named:
            expected_none = "a life is named where there is none"
            former = "a call for this server as it was before a restart"
            raise Refused(former if policy.named else expected_none)
        return Frame(kind, flags & ~HAS_REQUEST_ID, seq, request_id, body, transaction)

    def send_at_once(self, data: bytes) -> int:
        """Hands as much of the data to the network as it takes without waiting; how much."""
        try:
            return self.sock.send(data, self._at_once)
        except _NOT_NOW:
            return 0

    def send(self, data: bytes, deadline: float, sent: int = 0) -> None:
        """Hands all of the data to the network by the deadline, or all that is not `sent`."""
        while True:
            try:
                rest = memoryview(data)[sent:] if sent else data
                sent += self.sock.send(rest, self._at_once)
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

    def _whole(self, begun: bytes, size: int, deadline: float) -> bytes:
        """A frame of this size, read in pieces: an announced size makes us hold nothing."""
        pieces = [begun]
        missing = size - len(begun)
        while missing:
            pieces.append(self._piece(min(missing, READ_BYTES), deadline))
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def _piece(self, size: int, deadline: float) -> bytes:
        if self._is_plain and turns_here() is None:
            left_s = deadline - time.monotonic()
            # Told to the kernel only where it would wait too long: mostly it does not.
            if left_s <= 0 or not 0 < self._wait_s <= left_s + WAIT_TOLERANCE_S:
                self._wait_at_most(left_s)
            if self._vigil is not None:
                self._vigil.wait(self._poll.poll)
            try:
                piece = self.sock.recv(size)
            except BlockingIOError:
                piece = self._awaited_piece(size, deadline)
        else:
            piece = self._piece_when_ready(size, deadline)
        if not piece:
            raise ConnectionResetError("the other side closed the connection")
        return piece

    def _awaited_piece(self, size: int, deadline: float) -> bytes:
        """The same after the kernel has waited: for as long as there was, or for a shorter time."""
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("nothing has arrived in time")
            self._wait_at_most(left_s)
            with contextlib.suppress(BlockingIOError):
                return self.sock.recv(size)

    def _wait_at_most(self, left_s: float) -> None:
        if left_s <= 0:
            raise TimeoutError("the deadline has passed")
        seconds, part = divmod(max(left_s, WAIT_S_MIN), 1)
        timeval = struct.pack("ll", int(seconds), int(part * 1_000_000))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._wait_s = left_s

    def _piece_when_ready(self, size: int, deadline: float) -> bytes:
        while True:
            try:
                return self.sock.recv(size, self._at_once)
            except _NOT_NOW:
                if self._vigil is not None:
                    self._vigil.wait(self._poll.poll)
                if not self._is_ready(select.POLLIN, deadline):
                    raise TimeoutError("nothing has arrived in time") from None

    def _wait_for_room(self, busy: OSError, deadline: float) -> None:
        # A TLS socket may have to read before it can write.
        event = select.POLLIN if isinstance(busy, ssl.SSLWantReadError) else select.POLLOUT
        if not self._is_ready(event, deadline):
            raise TimeoutError("the other side does not read")

    def _is_ready(self, event: int, deadline: float) -> bool:
        turns = turns_here()
        if turns is not None:
            return turns.wait(self.sock.fileno(), event, deadline)
        poll = self._poll
        if event != select.POLLIN:
            poll = select.poll()
            poll.register(self.sock, event)
        return bool(poll.poll(time_left(deadline) * 1000))


def time_left(deadline: float) -> float:
    """The seconds until the deadline; raises `TimeoutError` when there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return left


def _beside(data: bytes, end: int) -> tuple[bytes, bytes | None]:
    """The life, named or not, and the transaction; None for that where anything else is there."""
    named, at = b"", _USUAL_BYTES
    if data.startswith(_LIFE_START, at) and at + _NAMED_BYTES <= end:
        named = data[at : at + _NAMED_BYTES]
        at += _NAMED_BYTES
    if at == end:
        return named, b""
    start = at + _ANNOTATION.size
    if end < start:
        return named, None
    name, length = _ANNOTATION.unpack_from(data, at)
    is_all = name == _TRANSACTION and start + length == end
    return named, data[start:end] if is_all else None
