"""The network of a simulated world: the orb of each host, and the connections between them.

A call takes the way it takes over Pyro5: through a real `Endpoint`, which pools connections and
holds the rule of repetition, packed by `idl.wire` with its digest, and served by a real
`ObjectTable`, in an activity of its own. Only the connection is simulated, and is worse than TCP:

1. Its messages have the fates that `messages.py` draws. A damaged one ends the connection, as it
   does on the real wire.
2. A request is for that life of the host to which the connection was made; any later life refuses
   it. Its duplicate is what a repetition over another connection is: it comes when it comes, is
   carried out under the same request id, and may be answered first. The wire names the life there,
   too, and so does this where the world `names_lives`; else whoever listens then carries it out.
3. What a dead caller has sent still arrives; what is sent to a dead caller reaches nobody.

It knows neither tokens nor TLS nor limits of size: everybody is who they say they are, and may name
any host in a reference.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn, TypeVar, cast

from idl import system, wire
from idl.call import REQUEST_ID_BYTES, Address, Call, Principal, Reference, current_outgoing
from idl.dispatch import Answer, Authorize, Find, ObjectTable, allow_everything
from idl.mapping import InvalidValue
from idl.marshal import OperationCodec, read_exception, write_exception
from idl.orb.client import CONNECT_TIMEOUT_S
from idl.orb.endpoint import Endpoint, Request
from idl.orb.network import CALL_TIMEOUT_S, LINKS_PER_SERVER_MAX
from idl.proxies import (
    UNGUESSABLE_BYTES,
    Proxy,
    export_proxy,
    make_proxy,
    reference_of,
    timeout_of,
    write_arguments,
)
from tests.simulation.messages import (
    Content,
    Damaged,
    Lane,
    pack_transaction,
    seal,
    unpack_transaction,
    unseal,
)
from tests.simulation.scheduler import Places, Promise
from tests.simulation.world import World

T = TypeVar("T")
# What comes back over a connection: a message, or None when the connection is no more.
Reply = Promise[bytes | None]

PORT = 7000
DRAIN_S = 10.0
POLL_S = 0.05


class SimulatedLink:
    """A connection of one orb to the life that listened on a port when it was made. See `Link`."""

    def __init__(self, orb: SimulatedOrb, address: Address) -> None:
        self.orb = orb
        self._world = orb.world
        self._server = orb.world.host(address.host)
        self._address = address
        self._there = Lane(orb.world, orb.host, self._server)
        self._back = Lane(orb.world, self._server, orb.host)
        self._peer: SimulatedOrb | None = None
        self._reply: Reply = orb.world.promise()
        self._is_usable = True

    # --- The client's side

    @classmethod
    def connect(cls, orb: SimulatedOrb, address: Address, deadline: float) -> SimulatedLink:
        """A connection to whoever listens there; raises with Completion.NO. See `Connect`."""
        link = cls(orb, address)
        link._there.send("knock", str(address), b"", link._knocked)
        left_s = max(deadline - orb.world.now(), 0.0)
        try:
            welcome = link._reply.wait(min(left_s, CONNECT_TIMEOUT_S))
        except TimeoutError as late:
            raise system.TIMEOUT(f"{address} did not answer in time") from late
        if welcome is None:
            raise system.TRANSIENT(f"cannot reach {address}: it refuses connections")
        return link

    def exchange(self, request: Request, deadline: float) -> Answer:
        """See `Link.exchange`."""
        self.send_request(request, deadline)
        return self.receive_answer(request, deadline)

    def send_request(self, request: Request, deadline: float) -> None:
        """See `Link.send_request`."""
        if deadline - self._world.now() <= 0:
            self._fail(request, system.TIMEOUT, system.Completion.NO)
        self._reply = self._world.promise()
        self._send(request)

    def receive_answer(self, request: Request, deadline: float) -> Answer:
        """See `Link.receive_answer`."""
        try:
            payload = self._reply.wait(max(deadline - self._world.now(), 0.0))
            content = unseal(payload or b"")
        except TimeoutError:
            self._fail(request, system.TIMEOUT, system.Completion.MAYBE)
        except Damaged:
            self._fail(request, system.COMM_FAILURE, system.Completion.MAYBE)
        if content.request_id != request.request_id:
            # The server could not read whose request it was.
            self._fail(request, system.COMM_FAILURE, system.Completion.MAYBE)
        return Answer(wire.unpack(content.body), content.is_exception)

    def hear(self, request: Request, deadline: float) -> Answer:
        """See `Link.hear`. In this world nothing is foretold."""
        return self.receive_answer(request, deadline)

    def is_usable(self) -> bool:
        """See `Link.is_usable`."""
        return self._is_usable

    def close(self) -> None:
        """See `Link.close`."""
        self._is_usable = False
        if self._peer is not None:
            self._peer.links.pop(self, None)

    def _send(self, request: Request) -> None:
        faults, chance = self._world.faults, self._world.random
        if faults.breaking and chance.random() < faults.breaking:
            moment = chance.choice(("before", "while", "after"))
            self._world.note("broken", moment, request.what)
            if moment == "before":
                self._fail(request, system.COMM_FAILURE, system.Completion.NO)
            self._world.after(chance.uniform(0.0, faults.latency_s), self._break_off)
            if moment == "while":
                return
        deliver = functools.partial(self._requested, request.what, self._reply)
        content = Content(request.request_id, request.body, request.transaction)
        self._there.send("request", request.what, seal(content), deliver)

    def _fail(
        self, request: Request, kind: type[system.SystemException], completed: system.Completion
    ) -> NoReturn:
        place = f"{request.what} at {self._address}, request {request.request_id.hex()}"
        reason = "no answer in time" if kind is system.TIMEOUT else "the connection was lost"
        raise kind(f"{place}: {reason}", completed)

    def _welcomed(self, payload: bytes, is_copy: bool) -> None:
        self._reply.keep(payload)

    def _answered(self, reply: Reply, payload: bytes, is_copy: bool) -> None:
        if self._is_usable and self.orb.is_alive() and not reply.is_kept():
            reply.keep(payload)
        else:
            self._world.note("in vain", self.orb.host.name)

    def _break_off(self, payload: bytes = b"", is_copy: bool = False) -> None:
        self._is_usable = False
        self._reply.keep(None)

    # --- The server's side

    def reset(self, subject: str) -> None:
        """Ends the connection; the client learns it if the network lets it."""
        self._back.send("reset", subject, b"", self._break_off)

    def answer(self, subject: str, request_id: bytes, answer: Answer, reply: Reply) -> None:
        """Sends the answer to one request."""
        deliver = functools.partial(self._answered, reply)
        content = Content(request_id, wire.pack(answer.plain), b"", answer.is_exception)
        self._back.send("reply", subject, seal(content), deliver)

    def _knocked(self, payload: bytes, is_copy: bool) -> None:
        self._peer = self._listener()
        if self._peer is None:
            self._refuse(str(self._address))
        else:
            self._peer.links[self] = None
            self._back.send("welcome", str(self._address), b"", self._welcomed)

    def _requested(self, subject: str, reply: Reply, payload: bytes, is_copy: bool) -> None:
        listener = self._listener()
        is_stray = is_copy and not self._world.names_lives
        if listener is not None and (is_stray or listener is self._peer):
            self._world.spawn(self._server.name, listener.serve, self, subject, payload, reply)
        elif not is_copy:
            self._refuse(subject)

    def _listener(self) -> SimulatedOrb | None:
        found = self._server.ports.get(self._address.port)
        return found if isinstance(found, SimulatedOrb) else None

    def _refuse(self, subject: str) -> None:
        if self._server.is_up() or not self._server.is_silent:
            self.reset(subject)
        else:
            self._world.note("unanswered", self._server.name, subject)


class SimulatedOrb:
    """The orb of one life of a simulated host. See `Orb`.

    Make one where the host boots: it ends with that life. Calls are made by activities of the host,
    or from outside of all activities, where waiting for the answer makes the world go on.
    """

    def __init__(
        self,
        world: World,
        host: str,
        *,
        port: int = PORT,
        principal: Principal | None = None,
        authorize: Authorize = allow_everything,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self.world = world
        self.host = world.host(host)
        self.address = Address(host, port)
        self.principal = principal or Principal(host)
        self.links: dict[SimulatedLink, None] = {}
        self._life = self.host.life
        self._objects = ObjectTable(authorize)
        self._timeout_s = timeout_s
        self._endpoints: dict[Address, tuple[Endpoint, Places]] = {}
        self._serving = 0
        if not self.host.is_up() or port in self.host.ports:
            raise InvalidValue(f"{self.address} cannot be listened on: it is down, or taken")
        self.host.ports[port] = self
        self.host.at_crash.append(self._crashed)

    def publish(self, servant: T, interface: type[T], name: str | None = None) -> T:
        """See `Orb.publish`."""
        chosen = name or f"object/{self.world.random.randbytes(UNGUESSABLE_BYTES).hex()}"
        self._objects.publish(chosen, servant, interface)
        return make_proxy(Reference(chosen, self.address), interface, self)

    def publish_family(self, prefix: str, find: Find, interface: type[T]) -> None:
        """See `Orb.publish_family`."""
        self._objects.publish_family(prefix, find, interface)

    def member(self, name: str, interface: type[T]) -> T:
        """See `Orb.member`."""
        return make_proxy(Reference(name, self.address), interface, self)

    def withdraw(self, published: object) -> None:
        """See `Orb.withdraw`."""
        self._objects.withdraw(reference_of(cast(Proxy, published)).name)

    def proxy(self, reference: str, interface: type[T], timeout_s: float | None = None) -> T:
        """See `Orb.proxy`."""
        return make_proxy(Reference.parse(reference), interface, self, timeout_s)

    def named(self, reference: str, interface: type[T], host: str | None = None) -> T:
        """See `Orb.named`. Nobody is a stranger here."""
        return self.proxy(reference, interface)

    def reference_of(self, published: object) -> str:
        """See `Orb.reference_of`."""
        return str(reference_of(cast(Proxy, published)))

    def close(self) -> None:
        """See `Orb.close`."""
        if self.host.ports.get(self.address.port) is self:
            del self.host.ports[self.address.port]
        for endpoint, _ in self._endpoints.values():
            endpoint.close()
        deadline = self.world.now() + DRAIN_S
        while self._serving and self.world.now() < deadline:
            self.world.sleep(POLL_S)
        self._reset_links()

    def invoke(self, proxy: Proxy, codec: OperationCodec, arguments: tuple[Any, ...]) -> Any:
        """See `Caller.invoke`."""
        self.world.step()
        assert self.world.living() in (None, self._life), "this is the orb of another life"
        outgoing = current_outgoing()
        reference = reference_of(proxy)
        name = codec.operation.name
        request = Request(
            body=wire.pack_call(reference.name, name, write_arguments(codec, arguments, self)),
            request_id=outgoing.request_id or self.world.random.randbytes(REQUEST_ID_BYTES),
            transaction=pack_transaction(outgoing.transaction, self),
            idempotent=codec.operation.idempotent,
            what=f"{reference.name}.{name}",
        )
        timeout_s = outgoing.timeout_s or timeout_of(proxy) or self._timeout_s
        answer = self._call(reference.address, request, timeout_s)
        try:
            if answer.is_exception:
                raise read_exception(answer.plain, codec.exceptions, self)
            return codec.read_result(answer.plain, self)
        except InvalidValue as wrong:
            raise system.MARSHAL(str(wrong), system.Completion.MAYBE) from wrong

    def serve(self, link: SimulatedLink, subject: str, payload: bytes, reply: Reply) -> None:
        """Carries out one request: an activity, in which the host may die before and after."""
        self.world.step()
        try:
            content = unseal(payload)
        except Damaged as damaged:
            if damaged.request_id is not None:
                answer = self._refusal("the request was damaged on the way")
                link.answer(subject, damaged.request_id, answer, reply)
            link.reset(subject)
            return
        self._serving += 1
        answer = self._carry_out(link.orb, content)
        self._serving -= 1
        self.world.step()
        link.answer(subject, content.request_id, answer, reply)

    def is_alive(self) -> bool:
        """Whether the life of the host to which this orb belongs goes on."""
        return not self._life.is_over

    def start(
        self,
        proxy: Proxy,
        codec: OperationCodec,
        arguments: tuple[Any, ...],
        timeout_s: float | None = None,
    ) -> None:
        """See `Caller.start`: here nothing is under way before it is waited for."""

    def get_ready(self, proxy: Proxy, codec: OperationCodec, arguments: tuple[Any, ...]) -> None:
        """See `Caller.get_ready`: a call is made whole, in one step."""

    def export(self, target: object, interface: type) -> str:
        """See `References.export`."""
        return export_proxy(target, interface)

    def resolve(self, name: str, interface: type) -> object:
        """See `References.resolve`."""
        return make_proxy(Reference.parse(name), interface, self)

    def _carry_out(self, caller: SimulatedOrb, content: Content) -> Answer:
        try:
            name, operation, arguments = wire.unpack_call(content.body)
            transaction = unpack_transaction(content.transaction, self)
        except (wire.Unreadable, InvalidValue) as unreadable:
            return self._refusal(str(unreadable))
        call = Call(content.request_id, caller.principal, caller.host.name, transaction)
        return self._objects.serve(call, name, operation, arguments, self)

    def _refusal(self, reason: str) -> Answer:
        return Answer(write_exception(system.MARSHAL(reason), self), is_exception=True)

    def _call(self, address: Address, request: Request, timeout_s: float) -> Answer:
        deadline = self.world.now() + timeout_s
        if address not in self._endpoints:
            connect = functools.partial(SimulatedLink.connect, self, address)
            endpoint = Endpoint(connect, self.world.now, LINKS_PER_SERVER_MAX)
            # The endpoint would wait for one of its places in real time, and nothing would move.
            self._endpoints[address] = endpoint, self.world.places(LINKS_PER_SERVER_MAX)
        endpoint, places = self._endpoints[address]
        try:
            places.take(timeout_s)
        except TimeoutError as busy:
            told = f"all {LINKS_PER_SERVER_MAX} connections stayed busy"
            raise system.TRANSIENT(told) from busy
        try:
            return endpoint.call(request, max(deadline - self.world.now(), 0.0))
        finally:
            places.give_back()

    def _crashed(self) -> None:
        if not self.host.is_silent:
            self._reset_links()

    def _reset_links(self) -> None:
        links, self.links = self.links, {}
        for link in links:
            link.reset(str(self.address))
