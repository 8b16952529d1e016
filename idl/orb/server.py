"""The server's side of the network: peers are let in, and their requests answered.

One thread accepts and never reads; each peer has a thread of its own, from the first byte of its
TLS greeting or login (see `doorway.py`) to its last request, or, where calls take turns, until it
was let in: then the pump listens to it. Who a peer is says the authenticator, what it may do the
object table; this module sees to it that no peer can hold up another.
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
from functools import partial

from idl import system, wire
from idl.access import Authenticator, Denied, Presented
from idl.call import Call, Principal
from idl.cos import PropagationContext
from idl.dispatch import Answer, ObjectTable
from idl.mapping import InvalidValue, Structure
from idl.marshal import References, codec_of, write_exception
from idl.orb import frames
from idl.orb.audit import Audit
from idl.orb.doorway import Doorway
from idl.orb.guard import Gate, Limits, Policy, Refusals
from idl.orb.pump import Pump
from idl.turns import SteppedAside

DRAIN_POLL_S = 0.005
ACCEPT_PAUSE_S = 0.02
# A greeting that has come is not given up before it was looked at.
GREETING_S_MIN = 0.01

log = logging.getLogger("oncemq.orb")

_CONTEXT = codec_of(Structure(PropagationContext))
_NO_REQUEST = bytes(16)
# In half of the time that its own way to be made takes.
_new_tuple = tuple.__new__
# Looked up once: each is used with every request.
_pack, _unpack_call, _encode, _RESULT = wire.pack, wire.unpack_call, frames.encode, frames.RESULT


class _NoReferences:
    """For answers that name no object."""

    def export(self, target: object, interface: type) -> str:
        raise InvalidValue("no reference is expected here")

    def resolve(self, name: str, interface: type) -> object:
        raise InvalidValue("no reference is expected here")


_NO_REFERENCES = _NoReferences()
# Who hears these again and again may be guessing.
_REFUSED = frozenset(
    write_exception(kind(""), _NO_REFERENCES)[0]
    for kind in (system.NO_PERMISSION, system.OBJECT_NOT_EXIST)
)


class _Peer(frames.Stream):
    """One connection, as the server sees it."""

    def __init__(self, sock: socket.socket, host: str, let_in_by: float = 0.0) -> None:
        super().__init__(sock)
        self.host = host
        # When it must have proven itself.
        self.let_in_by = let_in_by
        self.principal = Principal("")
        self.references: References = _NO_REFERENCES
        self.seq = 0
        self.is_busy = False
        # The pump's.
        self.descriptor = sock.fileno()
        self.is_listened_to = False
        self.quiet_since = 0.0

    def has_left(self) -> bool | None:
        """See `Arriving.has_left`."""
        try:
            return not self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            return True

    def foretell(self, request_id: bytes) -> None:
        """The peer, which waits for the answer to this request, hears that it will come."""
        told = frames.encode(frames.RESULT, self.seq, request_id, b"", b"", frames.FORETOLD)
        try:
            is_told = self.send_at_once(told) == len(told)
        except OSError:
            is_told = False
        if not is_told:
            # It does not read, or is gone. Half of this may be on the way, so nothing can follow.
            self.interrupt()


@dataclass(frozen=True)
class Serving:
    """What a server serves, and to whom."""

    objects: ObjectTable
    authenticator: Authenticator
    tls: ssl.SSLContext | None
    limits: Limits
    # What references mean that come from this host.
    references: Callable[[str], References]
    # Tells this server from those that were here before it, for which calls may still come.
    life: bytes
    # Whether those that were let in share one thread, as long as their calls are prompt.
    takes_turns: bool = False


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
        self._refusals = Refusals(limits)
        self._is_closing = False
        self._login_policy = self._policy(frames.CONNECT, limits.handshake_bytes_max)
        named = frames.naming(serving.life)
        self._call_policy = self._policy(frames.INVOKE, limits.message_bytes_max, named)
        self._pump: Pump[_Peer] | None = None
        if serving.takes_turns:
            # The peer has sent something; it is answered, or left to a helper.
            attend = partial(self._do, self._answer_promptly)
            self._pump = Pump(attend, self._dismiss, limits.idle_s)
        self._doorway: Doorway[_Peer] = Doorway(listener, self._made, self._admit)
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
        if self._pump is not None:
            self._pump.close()

    def connections(self) -> tuple[int, int]:
        """How many peers have proven themselves, and how many have not yet."""
        return self._gate.counts()

    def _policy(self, kind: int, frame_bytes_max: int, named: bytes = b"") -> Policy:
        return Policy(
            kinds=frozenset({kind}),
            serializer=frames.MSGPACK,
            flags_allowed=frames.HAS_REQUEST_ID,
            frame_bytes_max=frame_bytes_max,
            annotation_bytes_max=self._limits.annotation_bytes_max,
            start=frames.start_of(kind),
            named=named,
        )

    # --- Letting peers in

    def _accept(self) -> None:
        while not self._is_closing:
            try:
                spoken, gone = self._doorway.wait()
            except OSError as failed:
                # Closed by us, or out of file descriptors until some peer leaves.
                log.debug("accepting failed: %s", failed)
                time.sleep(ACCEPT_PAUSE_S)
                continue
            self._let_go(gone)
            for peer in spoken:
                self._begin_to_attend(peer)
        self._let_go(self._doorway.close())

    def _made(self, sock: socket.socket, host: str) -> _Peer:
        return _Peer(sock, host, time.monotonic() + self._limits.handshake_s)

    def _admit(self, peer: _Peer) -> bool:
        """Whether there is a place for the newcomer; somebody else may have lost his for it."""
        turned_away = self._gate.arrive(peer)
        if turned_away is not None:
            self._audit.record("connection shed", host=turned_away.host)
            turned_away.interrupt()
        if turned_away is peer:
            peer.reset()
        return turned_away is not peer

    def _let_go(self, peers: list[_Peer]) -> None:
        for peer in peers:
            log.debug("connection from %s ended before it said anything", peer.host)
            self._gate.leave(peer)
            peer.close()

    def _begin_to_attend(self, peer: _Peer) -> None:
        thread = threading.Thread(target=self._attend, args=(peer,), name="orb-peer", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            log.warning("no thread can be started for a new connection")
            self._gate.leave(peer)
            peer.reset()

    def _attend(self, peer: _Peer) -> None:
        """Everything that happens on one connection until the pump has it, or else to its end."""
        if self._do(self._welcome, peer):
            self._listen(peer)

    def _welcome(self, peer: _Peer) -> bool:
        """Whether the peer was let in, and stays. See `_do`."""
        peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._let_in(peer):
            return False
        if self._pump is None:
            while not self._is_closing:
                self._answer_one(peer)
        return not self._is_closing

    def _do(self, work: Callable[[_Peer], bool], peer: _Peer) -> bool:
        """Does it, and says whether the peer stays; one that does not is gone, and its place free.

        Its own failure ends one connection, not the server.
        """
        stays = False
        try:
            stays = work(peer)
        except frames.Refused as refused:
            name = peer.principal.name
            self._audit.record("frame refused", host=peer.host, principal=name, reason=refused)
            self._leave(peer)
            peer.reset()
        except OSError as gone:
            log.debug("connection from %s ended: %s", peer.host, gone)
        # This is the loop that serves calls.
        except Exception:
            log.exception("connection from %s failed", peer.host)
        finally:
            if not stays:
                self._leave(peer)
                peer.close()
        return stays

    def _leave(self, peer: _Peer) -> None:
        # Before its socket is closed, whose number may then be another's.
        if self._pump is not None:
            self._pump.turn_from(peer)
        self._gate.leave(peer)

    def _let_in(self, peer: _Peer) -> bool:
        deadline = peer.let_in_by
        if self._serving.tls is not None:
            self._greet(peer, self._serving.tls)
        try:
            login = peer.receive(self._login_policy, deadline)
            peer.seq = login.seq
            peer.principal = self._prove(peer, login)
        except (Denied, frames.Damaged) as denied:
            self._audit.record("login denied", host=peer.host, reason=denied)
            # Who is honest, and was altered on the way, tries again.
            is_damaged = isinstance(denied, frames.Damaged)
            told = wire.DAMAGED if is_damaged else wire.NOT_ALLOWED
            self._say(peer, frames.NOT_CONNECTED, told, deadline)
            return False
        if not self._gate.enter(peer):
            self._say(peer, frames.NOT_CONNECTED, wire.FULL, deadline)
            return False
        peer.references = self._serving.references(peer.host)
        self._audit.record("login", host=peer.host, principal=peer.principal.name)
        # The form of the answer is Pyro5's; which operations there are says the contract.
        operations = {"methods": (), "oneway": (), "attrs": ()}
        answer = {"handshake": wire.VERSION, "meta": operations, "life": self._serving.life}
        self._say(peer, frames.CONNECTED, answer, deadline)
        return True

    def _greet(self, peer: _Peer, context: ssl.SSLContext) -> None:
        # Wrapped before the greeting, so that the peer can be turned away while it lasts.
        wrapped = context.wrap_socket(peer.sock, server_side=True, do_handshake_on_connect=False)
        peer.sock = wrapped
        wrapped.settimeout(max(peer.let_in_by - time.monotonic(), GREETING_S_MIN))
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
            self._send(peer, self._reply(damaged.seq, damaged.request_id, told))
            raise
        peer.is_busy = True
        try:
            self._check_order(peer, request)
            self._answer_request(peer, request)
        finally:
            peer.is_busy = False

    def _check_order(self, peer: _Peer, request: frames.Frame) -> None:
        peer.seq = (peer.seq + 1) & 0xFFFF
        if request.seq != peer.seq:
            raise frames.Refused("a frame that does not follow the one before")

    def _answer_request(self, peer: _Peer, request: frames.Frame) -> None:
        answer = self._answer(peer, request)
        self._tell_after(self._held_back_s(peer, answer), peer, request, answer)

    def _tell_after(
        self, wait_s: float, peer: _Peer, request: frames.Frame, answer: Answer
    ) -> None:
        if wait_s:
            time.sleep(wait_s)
        self._send(peer, self._reply(request.seq, request.request_id, answer))

    def _held_back_s(self, peer: _Peer, answer: Answer) -> float:
        """How long the answer waits: not at all, unless its caller was refused very often."""
        if not answer.is_exception or answer.plain[0] not in _REFUSED:
            return 0.0
        name = peer.principal.name
        wait_s = self._refusals.wait_s(name, time.monotonic())
        if wait_s:
            self._audit.record("refusal held back", host=peer.host, principal=name)
        # While the server closes nobody waits for it on account of this.
        return min(wait_s, self._limits.drain_s)

    def _answer(self, peer: _Peer, request: frames.Frame) -> Answer:
        _, _, _, request_id, body, packed = request
        references = peer.references
        transaction = None
        try:
            name, operation, arguments = _unpack_call(body)
            if packed:
                transaction = _read_transaction(packed, references)
        except wire.TooMany as too_many:
            # Not damage, and no better when it is sent again.
            return _refusal(system.IMP_LIMIT(str(too_many)), references)
        except (wire.Unreadable, InvalidValue) as unreadable:
            return _refusal(system.MARSHAL(str(unreadable)), references)
        except system.SystemException as refused:
            return _refusal(refused, references)
        call = _new_tuple(Call, (request_id, peer.principal, peer.host, transaction, peer.foretell))
        return self._objects.serve(call, name, operation, arguments, references)

    def _reply(self, seq: int, request_id: bytes, answer: Answer) -> bytes:
        plain, is_exception = answer
        body = _pack(plain)
        if len(body) > self._body_bytes_max:
            text = (
                f"the answer has {len(body)} bytes, {self._body_bytes_max} are allowed: "
                "ask for less at a time"
            )
            told = system.IMP_LIMIT(text, system.Completion.YES)
            plain, is_exception = _refusal(told, _NO_REFERENCES)
            body = wire.pack(plain)
        flags = frames.EXCEPTION if is_exception else 0
        return _encode(_RESULT, seq, request_id, body, b"", flags)

    def _send(self, peer: _Peer, reply: bytes, sent: int = 0) -> None:
        peer.send(reply, time.monotonic() + self._limits.message_s, sent)

    # --- In turns with others. See `idl.orb.pump`

    def _answer_promptly(self, peer: _Peer) -> bool:
        """Whether the peer stays. See `_do`."""
        assert self._pump is not None
        if peer.is_busy:
            # It does not wait for its answer, or is gone: that is looked at after its answer.
            self._pump.turn_from(peer)
            return True
        request = peer.receive_at_once(self._call_policy)
        if request is None:
            if peer.has_more:
                # Not all of it is here, or it is out of the ordinary.
                self._aside(peer, self._answer_one)
            return True
        peer.is_busy = True
        self._check_order(peer, request)
        try:
            answer = self._answer(peer, request)
        except SteppedAside:
            self._aside(peer, partial(self._answer_request, request=request))
            return True
        if answer.is_exception and (wait_s := self._held_back_s(peer, answer)):
            held = partial(self._tell_after, wait_s, request=request, answer=answer)
            self._aside(peer, held)
            return True
        reply = self._reply(request.seq, request.request_id, answer)
        sent = peer.send_at_once(reply)
        if sent < len(reply):
            self._aside(peer, partial(self._send, reply=reply, sent=sent))
            return True
        peer.is_busy = False
        if self._is_closing:
            return False
        peer.quiet_since = time.monotonic()
        if not peer.is_listened_to or peer.has_more:
            self._listen(peer)
        return True

    def _dismiss(self, peer: _Peer) -> None:
        """The peer has been quiet for too long; it hears of it as of the end of the connection."""
        if not peer.is_busy:
            peer.interrupt()

    def _aside(self, peer: _Peer, work: Callable[[_Peer], None]) -> None:
        """A helper does this for the peer; nobody else has to do with it until that is done."""
        assert self._pump is not None

        def helped(peer: _Peer) -> bool:
            work(peer)
            peer.is_busy = False
            return not self._is_closing

        def help_peer() -> None:
            if self._do(helped, peer):
                self._listen(peer)

        self._pump.turn_from(peer)
        try:
            self._pump.aside(help_peer)
        except RuntimeError as full:
            log.warning("no thread can be started for a call that takes long")
            raise ConnectionAbortedError("no thread can be started") from full

    def _listen(self, peer: _Peer) -> None:
        """What the peer sends next is attended to, also what it has sent already."""
        assert self._pump is not None
        if peer.has_more:
            self._aside(peer, self._answer_one)
        else:
            self._pump.listen_to(peer)


def _refusal(told: system.SystemException, references: References) -> Answer:
    return Answer(write_exception(told, references), is_exception=True)


def _read_transaction(packed: bytes, references: References) -> PropagationContext:
    assert _CONTEXT.read is not None
    context: PropagationContext = _CONTEXT.read(wire.unpack(packed), references)
    return context
