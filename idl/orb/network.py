"""The orb over the network: what a program publishes through, and calls through.

It puts the parts together: a server where an address to listen on is given, an endpoint for each
server that is called, and what references mean on the way in and out.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from idl import system, wire
from idl.access import AnyoneHere, Authenticator, Tls, Token, check_listening, is_loopback
from idl.call import Address, Reference, current_outgoing
from idl.cos import PropagationContext
from idl.dispatch import Answer, Authorize, Find, ObjectTable, allow_everything
from idl.mapping import InvalidValue, Structure, UserException
from idl.marshal import OperationCodec, codec_of, read_exception
from idl.orb import frames
from idl.orb.client import Connector
from idl.orb.endpoint import Endpoint, Heard, Request, Started
from idl.orb.guard import Limits
from idl.orb.server import Server, Serving
from idl.orb.vigil import Vigil
from idl.proxies import (
    Proxy,
    export_proxy,
    make_proxy,
    new_request_id,
    parse_reference,
    parts_of,
    proxy_at,
    proxy_of,
    reference_of,
    text_of,
    unguessable_name,
)

T = TypeVar("T")

CALL_TIMEOUT_S = 30.0
LINKS_PER_SERVER_MAX = 64
BACKLOG = 512
SERVERS_KNOWN_MAX = 100
OBJECTS_KNOWN_MAX = 100

_CONTEXT = codec_of(Structure(PropagationContext))
# Makes a request as its class would, without a function of Python's in between: for every call.
_new_tuple = tuple.__new__


class NetworkOrb:
    """An orb over Pyro5: a server where `listen` is given, a client always. See `Orb`.

    Shared by any number of threads, and usable in a forked child, where it is a client only.
    References that a caller names lead to the caller's own host, to here, or to `trusted` servers;
    only the last are shown this orb's token. With `takes_turns` prompt calls from all peers share
    one thread: see `idl.turns` for what that asks of the servants. So long as `awake_s` an answer
    is waited for awake: see `idl.orb.vigil`.
    """

    def __init__(
        self,
        listen: Address | None = None,
        *,
        advertise: Address | None = None,
        tls: Tls | None = None,
        authenticator: Authenticator | None = None,
        authorize: Authorize = allow_everything,
        token: Token | None = None,
        limits: Limits | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        trusted: frozenset[Address] = frozenset(),
        takes_turns: bool = False,
        awake_s: float = 0.0,
    ) -> None:
        self.address: Address | None = None
        self._limits = limits or Limits()
        self._objects = ObjectTable(authorize)
        client_tls = None if tls is None else tls.client_context()
        vigil = Vigil(awake_s, time.monotonic) if awake_s else None
        self._calls = _Calls(client_tls, token, self._limits, timeout_s, vigil)
        self._calls_to_strangers = _Calls(client_tls, None, self._limits, timeout_s, vigil)
        self._trusted = trusted
        self._server: Server | None = None
        self._takes_turns = takes_turns
        if listen is not None:
            check_listening(listen.host, tls, authenticator)
            self._serve(listen, advertise, tls, authenticator or AnyoneHere())

    def publish(self, servant: T, interface: type[T], name: str | None = None) -> T:
        """See `Orb.publish`."""
        chosen = name or unguessable_name()
        published = self.member(chosen, interface)
        self._objects.publish(chosen, servant, interface)
        return published

    def publish_family(self, prefix: str, find: Find, interface: type[T]) -> None:
        """See `Orb.publish_family`."""
        self._objects.publish_family(prefix, find, interface)

    def member(self, name: str, interface: type[T]) -> T:
        """See `Orb.member`."""
        if self.address is None:
            raise InvalidValue("this orb does not listen: nothing can be published here")
        return make_proxy(Reference(name, self.address), interface, self._calls)

    def withdraw(self, published: object) -> None:
        """See `Orb.withdraw`."""
        self._objects.withdraw(reference_of(cast(Proxy, published)).name)

    def proxy(self, reference: str, interface: type[T], timeout_s: float | None = None) -> T:
        """See `Orb.proxy`."""
        return proxy_of(reference, interface, self._calls, timeout_s)

    def named(self, reference: str, interface: type[T], host: str | None = None) -> T:
        """See `Orb.named`."""
        address = Reference.parse(reference).address
        if address == self.address or address in self._trusted:
            return self.proxy(reference, interface)
        if host is not None and not _is_near(address.host, host):
            raise system.NO_PERMISSION(f"{reference[:200]!r} is not an object that may be named")
        return proxy_of(reference, interface, self._calls_to_strangers, None)

    def reference_of(self, published: object) -> str:
        """See `Orb.reference_of`."""
        proxy: Any = published
        return text_of(proxy)

    def connections(self) -> tuple[int, int]:
        """How many peers have proven themselves to this server, and how many have not yet."""
        return (0, 0) if self._server is None else self._server.connections()

    def close(self) -> None:
        """See `Orb.close`."""
        if self._server is not None:
            self._server.close()
        self._calls.close()
        self._calls_to_strangers.close()

    def _serve(
        self,
        listen: Address,
        advertise: Address | None,
        tls: Tls | None,
        authenticator: Authenticator,
    ) -> None:
        context = None if tls is None else tls.server_context()
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        bound = (listen.host, listen.port)
        listener = socket.create_server(bound, family=family, backlog=BACKLOG)
        self.address = own = advertise or Address(listen.host, listener.getsockname()[1])
        serving = Serving(
            objects=self._objects,
            authenticator=authenticator,
            tls=context,
            limits=self._limits,
            references=lambda host: _PeerReferences(
                host, own, self._trusted, self._calls, self._calls_to_strangers
            ),
            life=_new_life(),
            takes_turns=self._takes_turns,
        )
        self._server = Server(listener, serving)


class _Calls:
    """Carries out calls, with one identity, to any number of servers. See `Caller`."""

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        token: Token | None,
        limits: Limits,
        timeout_s: float,
        vigil: Vigil | None,
    ) -> None:
        self._tls = tls
        self._token = token
        self._limits = limits
        self._timeout_s = timeout_s
        self._vigil = vigil
        self._body_bytes_max = limits.message_bytes_max - limits.annotation_bytes_max
        # By the address as it is written.
        self._endpoints: dict[str, Endpoint] = {}

    def invoke(self, proxy: Proxy, codec: OperationCodec, arguments: tuple[Any, ...]) -> Any:
        """See `Caller.invoke`."""
        request, timeout_s, endpoint = self._request(proxy, codec, arguments)
        return self.read(request, codec, endpoint.call(request, timeout_s))

    def start(
        self,
        proxy: Proxy,
        codec: OperationCodec,
        arguments: tuple[Any, ...],
        timeout_s: float | None = None,
    ) -> Callable[[], Any] | None:
        """See `Caller.start`."""
        request, usual_s, endpoint = self._request(proxy, codec, arguments)
        started = endpoint.start(request, timeout_s or usual_s)
        if started is None:
            return None
        return _UnderWay(self, codec, endpoint, started)

    def get_ready(
        self, proxy: Proxy, codec: OperationCodec, arguments: tuple[Any, ...]
    ) -> Callable[[], Any]:
        """See `Caller.get_ready`."""
        return partial(self._ask, codec, *self._request(proxy, codec, arguments))

    def _ask(
        self, codec: OperationCodec, request: Request, timeout_s: float, endpoint: Endpoint
    ) -> Any:
        return self.read(request, codec, endpoint.call(request, timeout_s))

    def _request(
        self, proxy: Proxy, codec: OperationCodec, arguments: tuple[Any, ...]
    ) -> tuple[Request, float, Endpoint]:
        transaction, limit_s, request_id = current_outgoing()
        name, address, server, timeout_s = parts_of(proxy)
        endpoint = self._endpoints.get(server) or self._new_endpoint(address, server)
        operation = codec.operation
        operation_name = operation.name
        try:
            plain = codec.write_arguments(arguments, self)
        except InvalidValue as wrong:
            raise system.BAD_PARAM(str(wrong)) from wrong
        body = wire.pack_call(name, operation_name, plain)
        request: Request = _new_tuple(
            Request,
            (
                body,
                request_id or new_request_id(),
                b"" if transaction is None else self._context(transaction),
                operation.idempotent,
                f"{name}.{operation_name}",
            ),
        )
        if len(body) > self._body_bytes_max or transaction is not None:
            self._check_size(request)
        return request, limit_s or timeout_s or self._timeout_s, endpoint

    def read(self, request: Request, codec: OperationCodec, answer: Answer) -> Any:
        """What the answer says, or raised: the result, or an exception."""
        plain, is_exception = answer
        try:
            if is_exception:
                raise read_exception(plain, codec.exceptions, self)
            return codec.read_result(plain, self)
        except InvalidValue as wrong:
            told = f"{request.what} answered with something else than its interface says: {wrong}"
            raise system.MARSHAL(told, system.Completion.MAYBE) from wrong

    # See `References.export`.
    export = staticmethod(export_proxy)

    def resolve(self, name: str, interface: type) -> object:
        """See `References.resolve`."""
        return proxy_of(name, interface, self)

    def close(self) -> None:
        """Lets go of all connections."""
        for endpoint in list(self._endpoints.values()):
            endpoint.close()

    def _new_endpoint(self, address: Address, server: str) -> Endpoint:
        connector = Connector(address, self._tls, self._token, self._limits, self._vigil)
        made = Endpoint(connector, time.monotonic, LINKS_PER_SERVER_MAX)
        # No lock, which a fork could leave held: one step decides which of two is kept.
        return self._endpoints.setdefault(server, made)

    def _check_size(self, request: Request) -> None:
        allowed = self._body_bytes_max
        if len(request.body) > allowed:
            raise system.IMP_LIMIT(
                f"{request.what}: {len(request.body)} bytes in one call, {allowed} are allowed: "
                "send less at a time"
            )
        if len(request.transaction) > self._limits.annotation_bytes_max // 2:
            raise system.IMP_LIMIT(
                f"{request.what}: its transaction is nested too deeply to travel"
            )

    def _context(self, context: PropagationContext) -> bytes:
        assert _CONTEXT.write is not None
        return wire.pack(_CONTEXT.write(context, self))


class _UnderWay:
    """A call that was sent. See `Caller.start`; `is_foretold` and `leave` in `idl.proxies`."""

    __slots__ = ("_answer", "_calls", "_codec", "_endpoint", "_started")

    def __init__(
        self, calls: _Calls, codec: OperationCodec, endpoint: Endpoint, started: Started
    ) -> None:
        self._calls = calls
        self._codec = codec
        self._endpoint = endpoint
        self._started = started
        self._answer: Answer | None = None

    def is_foretold(self) -> bool:
        self._answer = self._endpoint.hear(self._started)
        return self._answer is None

    def leave(self, note: Callable[[Exception], None]) -> None:
        self._endpoint.leave(self._started, partial(self._heard, note))

    def _heard(self, note: Callable[[Exception], None], told: Heard) -> None:
        if isinstance(told, system.SystemException):
            note(told)
            return
        try:
            self._calls.read(self._started.request, self._codec, told)
        except (system.SystemException, UserException) as refused:
            note(refused)

    def __call__(self) -> Any:
        answer = self._answer or self._endpoint.finish(self._started)
        return self._calls.read(self._started.request, self._codec, answer)


def _new_life() -> bytes:
    return new_request_id()[: frames.LIFE_BYTES]


def _is_near(named: str, host: str) -> bool:
    """Whether a caller from this host may name servers of that one, trusted or not."""
    return named == host or (is_loopback(named) and is_loopback(host))


class _PeerReferences:
    """What references mean that came from a peer.

    It may name objects of its own host, of ours, and of trusted servers; otherwise a stranger could
    make this server connect to wherever the stranger likes, and show its token there.
    """

    def __init__(
        self,
        host: str,
        own: Address,
        trusted: frozenset[Address],
        calls: _Calls,
        calls_to_strangers: _Calls,
    ) -> None:
        self._host = host
        self._own = own
        self._trusted = trusted
        self._calls = calls
        self._calls_to_strangers = calls_to_strangers
        # Servers that were named and may be, by their address as it is written; only so many.
        self._known: dict[str, _Calls] = {}
        self._lasting: dict[tuple[str, type], object] = {}

    export = staticmethod(export_proxy)

    def resolve(self, name: str, interface: type) -> object:
        lasting = self._lasting.get((name, interface))
        if lasting is not None:
            return lasting
        object_name, address, server = parse_reference(name)
        calls = self._known.get(server) or self._way_to(address, server)
        if calls is None:
            raise system.NO_PERMISSION(f"{name[:200]!r} is not an object that this caller may name")
        proxy: object = proxy_at(object_name, address, server, interface, calls)
        # Members of families come and go; the others are named again and again.
        if "/" not in object_name and len(self._lasting) < OBJECTS_KNOWN_MAX:
            self._lasting[name, interface] = proxy
        return proxy

    def _way_to(self, address: Address, server: str) -> _Calls | None:
        if address == self._own or address in self._trusted:
            calls = self._calls
        elif _is_near(address.host, self._host):
            calls = self._calls_to_strangers
        else:
            return None
        if len(self._known) < SERVERS_KNOWN_MAX:
            self._known[server] = calls
        return calls
