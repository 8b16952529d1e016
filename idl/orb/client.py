"""The client's side of the network: a connection that was let in, and one call at a time over it.

Every failure is told with what is known about the call: it cannot have been carried out while not
all of it had been handed to the network, and may have been afterwards.
"""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass
from typing import NoReturn

from idl import system, wire
from idl.access import Token, is_loopback
from idl.call import Address
from idl.dispatch import Answer
from idl.marshal import printable
from idl.orb import frames
from idl.orb.endpoint import Request
from idl.orb.guard import Limits, Policy
from idl.orb.vigil import Vigil

CONNECT_TIMEOUT_S = 5.0

_NO_REQUEST = bytes(16)
_INVOKE, _EXCEPTION, _FORETOLD = frames.INVOKE, frames.EXCEPTION, frames.FORETOLD
# Makes an answer as its class would, without a function of Python's in between: for every call.
_new_tuple = tuple.__new__


class NetworkLink(frames.Stream):
    """One connection of a client. See `Link`."""

    def __init__(
        self, sock: socket.socket, address: Address, limits: Limits, vigil: Vigil | None = None
    ) -> None:
        super().__init__(sock, vigil)
        self._address = address
        self._seq = 0
        # Names the life of the server that has let this client in, once it has.
        self._named = b""
        self._policy = _policy(
            limits, limits.message_bytes_max, frames.RESULT, more_flags=frames.FORETOLD
        )

    def exchange(self, request: Request, deadline: float) -> Answer:
        """See `Link.exchange`."""
        self.send_request(request, deadline)
        return self.hear(request, deadline) or self._after_word(request, deadline)

    def send_request(self, request: Request, deadline: float) -> None:
        """See `Link.send_request`."""
        body, request_id, transaction, _, _ = request
        self._seq = seq = (self._seq + 1) & 0xFFFF
        try:
            frame = frames.encode(_INVOKE, seq, request_id, body, transaction, 0, self._named)
            self.send(frame, deadline)
        except OSError as failed:
            # Not all of it was handed to the network, so the server cannot have acted on it.
            self._fail(request, failed, system.Completion.NO)

    def receive_answer(self, request: Request, deadline: float) -> Answer:
        """See `Link.receive_answer`."""
        return self.hear(request, deadline) or self._after_word(request, deadline)

    def _after_word(self, request: Request, deadline: float) -> Answer:
        answer = self.hear(request, deadline)
        if answer is None:
            told = frames.Refused("the answer was foretold twice")
            self._fail(request, told, system.Completion.MAYBE)
        return answer

    def hear(self, request: Request, deadline: float) -> Answer | None:
        """See `Link.hear`."""
        try:
            _, flags, seq, request_id, body, _ = self.receive(self._policy, deadline)
            if seq != self._seq or request_id != request.request_id:
                raise frames.Refused("the answer belongs to another call")
            if flags & _FORETOLD:
                if flags != _FORETOLD or body:
                    raise frames.Refused("what is foretold is no answer")
                return None
            answer: Answer = _new_tuple(Answer, (wire.unpack(body), bool(flags & _EXCEPTION)))
            return answer
        except (OSError, frames.Refused, wire.Unreadable) as failed:
            self._fail(request, failed, system.Completion.MAYBE)

    def is_usable(self) -> bool:
        """See `Link.is_usable`."""
        return not self._ahead and not self._poll.poll(0)

    def log_in(self, token: Token | None, limits: Limits, deadline: float) -> None:
        """Proves who this client is; raises NO_PERMISSION or TRANSIENT when it is not let in."""
        secret = None if token is None else token.reveal()
        login = {"handshake": {"oncemq": wire.VERSION, "token": secret}, "object": "oncemq"}
        self.send(frames.encode(frames.CONNECT, 0, _NO_REQUEST, wire.pack(login)), deadline)
        policy = _policy(limits, limits.handshake_bytes_max, frames.CONNECTED, frames.NOT_CONNECTED)
        reply = self.receive(policy, deadline)
        said = wire.unpack(reply.body)
        if reply.kind == frames.CONNECTED:
            self._named = _named(said)
            return
        if said == wire.NOT_ALLOWED:
            raise system.NO_PERMISSION(
                f"{self._address} does not let this client in: check its token or certificate"
            )
        if said == wire.DAMAGED:
            raise system.TRANSIENT(f"{self._address}: the login was damaged on the way")
        told = printable(said) if isinstance(said, str) else "no reason given"
        raise system.TRANSIENT(f"{self._address} is busy: {told}")

    def _fail(self, request: Request, failed: Exception, completed: system.Completion) -> NoReturn:
        place = f"{request.what} at {self._address}, request {request.request_id.hex()}"
        if isinstance(failed, TimeoutError):
            raise system.TIMEOUT(f"{place}: no answer in time", completed) from failed
        reason = "the connection was lost" if isinstance(failed, OSError) else str(failed)
        raise system.COMM_FAILURE(f"{place}: {reason}", completed) from failed


@dataclass(frozen=True)
class Connector:
    """Makes connections to one server."""

    address: Address
    tls: ssl.SSLContext | None
    token: Token | None
    limits: Limits
    vigil: Vigil | None = None

    def __call__(self, deadline: float) -> NetworkLink:
        """A connection that the server has let in; raises with Completion.NO."""
        if self.token is not None and self.tls is None and not is_loopback(self.address.host):
            raise system.NO_PERMISSION(
                f"{self.address} is another machine, and a token goes there by TLS only: set up TLS"
            )
        deadline = min(deadline, time.monotonic() + CONNECT_TIMEOUT_S)
        sock = self._reach(deadline)
        try:
            return self._introduce(sock, deadline)
        except ssl.SSLCertVerificationError as wrong:
            sock.close()
            told = f"{self.address} is not who it should be: {wrong.verify_message}"
            raise system.NO_PERMISSION(told) from wrong
        except (OSError, frames.Refused, wire.Unreadable) as failed:
            sock.close()
            kind = system.TIMEOUT if isinstance(failed, TimeoutError) else system.TRANSIENT
            raise kind(
                f"{self.address} broke off the login: it is too busy, refuses this client's "
                "certificate, or is no OnceMQ server of this version"
            ) from failed
        except BaseException:
            sock.close()
            raise

    def _reach(self, deadline: float) -> socket.socket:
        host, port = self.address.host, self.address.port
        try:
            return socket.create_connection((host, port), frames.time_left(deadline))
        except TimeoutError as late:
            told = f"{self.address} did not answer in time. Is the server running?"
            raise system.TIMEOUT(told) from late
        except OSError as failed:
            reason = failed.strerror or failed
            told = f"cannot reach {self.address}: {reason}. Is the server running?"
            raise system.TRANSIENT(told) from failed

    def _introduce(self, sock: socket.socket, deadline: float) -> NetworkLink:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.tls is not None:
            sock.settimeout(frames.time_left(deadline))
            sock = self.tls.wrap_socket(sock, server_hostname=self.address.host)
        link = NetworkLink(sock, self.address, self.limits, self.vigil)
        try:
            link.log_in(self.token, self.limits, deadline)
        except BaseException:
            link.close()
            raise
        return link


def _named(welcome: object) -> bytes:
    """What calls carry for the life that the welcome tells; nothing where it tells none."""
    life = welcome.get("life", b"") if isinstance(welcome, dict) else b""
    if life == b"":
        return b""
    if not isinstance(life, bytes) or len(life) != frames.LIFE_BYTES:
        raise frames.Refused("the server does not say which life of it this is")
    return frames.naming(life)


def _policy(limits: Limits, frame_bytes_max: int, *kinds: int, more_flags: int = 0) -> Policy:
    return Policy(
        kinds=frozenset(kinds),
        serializer=frames.MSGPACK,
        flags_allowed=frames.HAS_REQUEST_ID | frames.EXCEPTION | more_flags,
        frame_bytes_max=frame_bytes_max,
        annotation_bytes_max=limits.annotation_bytes_max,
        start=frames.start_of(kinds[0]),
    )
