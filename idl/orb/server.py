"""The server's side of the network: peers are let in, and their requests answered.

One thread accepts and never reads; each peer has a thread of its own, from its TLS greeting to its
last request. Who a peer is says the authenticator, what it may do the object table; this module
sees to it that no peer can hold up another.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from idl import system, wire
from idl.access import Authenticator, Denied, Presented
from idl.call import Call, Principal
from idl.cos import PropagationContext
from idl.dispatch import Answer, ObjectTable
from idl.mapping import InvalidValue, Structure
from idl.marshal import References, codec_of, write_exception
from idl.orb import frames
from idl.orb.audit import Audit
from idl.orb.guard import Gate, Limits, Policy

DRAIN_POLL_S = 0.005
ACCEPT_PAUSE_S = 0.02

log = logging.getLogger("oncemq.orb")

_CONTEXT = codec_of(Structure(PropagationContext))
_NO_REQUEST = bytes(16)


class _NoReferences:
    """For answers that name no object."""

    def export(self, target: object, interface: type) -> str:
        raise InvalidValue("no reference is expected here")

    def resolve(self, name: str, interface: type) -> object:
        raise InvalidValue("no reference is expected here")


_NO_REFERENCES = _NoReferences()


class _Peer(frames.Stream):
    """One connection, as the server sees it."""

    def __init__(self, sock: socket.socket, host: str) -> None:
        super().__init__(sock)
        self.host = host
        self.principal = Principal("")
        self.references: References = _NO_REFERENCES
        self.seq = 0
        self.is_busy = False


@dataclass(frozen=True)
class Serving:
    """What a server serves, and to whom."""

    objects: ObjectTable
    authenticator: Authenticator
    tls: ssl.SSLContext | None
    limits: Limits
    # What references mean that come from this host.
    references: Callable[[str], References]


class Server:
    """Accepts on a listening socket until it is closed."""

    def __init__(self, listener: socket.socket, serving: Serving) -> None:
        self._listener = listener
        self._serving = serving
        self._limits = limits = serving.limits
        self._objects = serving.objects
        self._body_bytes_max = limits.message_bytes_max - limits.annotation_bytes_max
        self._audit = Audit(time.monotonic)
        self._gate: Gate[_Peer] = Gate(self._limits)
        self._is_closing = False
        self._login_policy = self._policy(frames.CONNECT, self._limits.handshake_bytes_max)
        self._call_policy = self._policy(frames.INVOKE, self._limits.message_bytes_max)
        self._acceptor = threading.Thread(target=self._accept, name="orb-accept", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Finishes what is being answered, for as long as the limits allow, then lets go."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        deadline = time.monotonic() + self._limits.drain_s
        while (peers := self._gate.everyone()) and time.monotonic() < deadline:
            for peer in peers:
                if not peer.is_busy:
                    peer.interrupt()
            time.sleep(DRAIN_POLL_S)
        for peer in self._gate.everyone():
            peer.interrupt()

    def _policy(self, kind: int, frame_bytes_max: int) -> Policy:
        return Policy(
            kinds=frozenset({kind}),
            serializer=frames.MSGPACK,
            flags_allowed=frames.HAS_REQUEST_ID,
            frame_bytes_max=frame_bytes_max,
            annotation_bytes_max=self._limits.annotation_bytes_max,
            start=frames.start_of(kind),
        )

    # --- Letting peers in

    def _accept(self) -> None:
        while not self._is_closing:
            try:
                sock, address = self._listener.accept()
            except OSError as failed:
                # Closed by us, or out of file descriptors until some peer leaves.
                log.debug("accepting failed: %s", failed)
                time.sleep(ACCEPT_PAUSE_S)
                continue
            self._admit(_Peer(sock, address[0]))

    def _admit(self, peer: _Peer) -> None:
        turned_away = self._gate.arrive(peer)
        if turned_away is not None:
            self._audit.record("connection shed", host=turned_away.host)
            turned_away.interrupt()
        if turned_away is peer:
            peer.reset()
            return
        thread = threading.Thread(target=self._attend, args=(peer,), name="orb-peer", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            log.warning("no thread can be started for a new connection")
            self._gate.leave(peer)
            peer.reset()

    def _attend(self, peer: _Peer) -> None:
        """Everything that happens on one connection, in a thread of its own."""
        try:
            peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._let_in(peer):
                while not self._is_closing:
                    self._answer_one(peer)
        except frames.Refused as refused:
            name = peer.principal.name
            self._audit.record("frame refused", host=peer.host, principal=name, reason=refused)
            peer.reset()
        except OSError as gone:
            log.debug("connection from %s ended: %s", peer.host, gone)
        # This is the loop that serves calls: its own failure ends one connection, not the server.
        except Exception:
            log.exception("connection from %s failed", peer.host)
        finally:
            self._gate.leave(peer)
            peer.close()

    def _let_in(self, peer: _Peer) -> bool:
        deadline = time.monotonic() + self._limits.handshake_s
        if self._serving.tls is not None:
            self._greet(peer, self._serving.tls)
        try:
            login = peer.receive(self._login_policy, deadline)
            peer.seq = login.seq
            peer.principal = self._prove(peer, login)
        except (Denied, frames.Damaged) as denied:
            self._audit.record("login denied", host=peer.host, reason=denied)
            self._say(peer, frames.NOT_CONNECTED, wire.NOT_ALLOWED, deadline)
            return False
        if not self._gate.enter(peer):
            self._say(peer, frames.NOT_CONNECTED, wire.FULL, deadline)
            return False
        peer.references = self._serving.references(peer.host)
        self._audit.record("login", host=peer.host, principal=peer.principal.name)
        # The form of the answer is Pyro5's; which operations there are says the contract.
        operations = {"methods": (), "oneway": (), "attrs": ()}
        answer = {"handshake": wire.VERSION, "meta": operations}
        self._say(peer, frames.CONNECTED, answer, deadline)
        return True

    def _greet(self, peer: _Peer, context: ssl.SSLContext) -> None:
        # Wrapped before the greeting, so that the peer can be turned away while it lasts.
        wrapped = context.wrap_socket(peer.sock, server_side=True, do_handshake_on_connect=False)
        peer.sock = wrapped
        wrapped.settimeout(self._limits.handshake_s)
        wrapped.do_handshake()
        peer.start()

    def _prove(self, peer: _Peer, login: frames.Frame) -> Principal:
        try:
            presented = wire.unpack(login.body)
        except wire.Unreadable as wrong:
            raise Denied(str(wrong)) from wrong
        match presented:
            case {"handshake": {"oncemq": int() as version, "token": token}}:
                if version != wire.VERSION:
                    raise Denied(f"wire version {version}")
            case _:
                raise Denied("not a login of ours")
        certificate = None
        if isinstance(peer.sock, ssl.SSLSocket):
            certificate = peer.sock.getpeercert() or None
        presented = Presented(token, certificate, peer.host)
        return self._serving.authenticator.authenticate(presented)

    def _say(self, peer: _Peer, kind: int, what: object, deadline: float) -> None:
        peer.send(frames.encode(kind, peer.seq, _NO_REQUEST, wire.pack(what)), deadline)

    # --- Answering requests

    def _answer_one(self, peer: _Peer) -> None:
        begin_by = time.monotonic() + self._limits.idle_s
        try:
            request = peer.receive(self._call_policy, begin_by, self._limits.message_s)
        except frames.Damaged as damaged:
            # The caller shall know that nothing was done; who can tell what comes after this frame?
            told = _refusal(system.MARSHAL("the request was damaged on the way"), _NO_REFERENCES)
            self._send(peer, damaged.seq, damaged.request_id, told)
            raise
        peer.is_busy = True
        try:
            peer.seq = (peer.seq + 1) & 0xFFFF
            if request.seq != peer.seq:
                raise frames.Refused("a frame that does not follow the one before")
            self._send(peer, request.seq, request.request_id, self._answer(peer, request))
        finally:
            peer.is_busy = False

    def _answer(self, peer: _Peer, request: frames.Frame) -> Answer:
        references = peer.references
        transaction = None
        try:
            name, operation, arguments = wire.unpack_call(request.body)
            if request.transaction:
                transaction = _read_transaction(request.transaction, references)
        except (wire.Unreadable, InvalidValue) as unreadable:
            return _refusal(system.MARSHAL(str(unreadable)), references)
        except system.SystemException as refused:
            return _refusal(refused, references)
        call = Call(request.request_id, peer.principal, peer.host, transaction)
        return self._objects.serve(call, name, operation, arguments, references)

    def _send(self, peer: _Peer, seq: int, request_id: bytes, answer: Answer) -> None:
        plain, is_exception = answer
        body = wire.pack(plain)
        if len(body) > self._body_bytes_max:
            text = (
                f"the answer has {len(body)} bytes, {self._body_bytes_max} are allowed: "
                "ask for less at a time"
            )
            told = system.IMP_LIMIT(text, system.Completion.YES)
            plain, is_exception = _refusal(told, _NO_REFERENCES)
            body = wire.pack(plain)
        flags = frames.EXCEPTION if is_exception else 0
        reply = frames.encode(frames.RESULT, seq, request_id, body, b"", flags)
        peer.send(reply, time.monotonic() + self._limits.message_s)


def _refusal(told: system.SystemException, references: References) -> Answer:
    return Answer(write_exception(told, references), is_exception=True)


def _read_transaction(packed: bytes, references: References) -> PropagationContext:
    assert _CONTEXT.read is not None
    context: PropagationContext = _CONTEXT.read(wire.unpack(packed), references)
    return context
