"""The orb without a network: calls go directly to servants in the same process.

The embedded node is called this way. Arguments, results and exceptions take the same way through
`marshal.py` and `dispatch.py` as over the network, only the packing and the socket are missing, so
that what works here works there. The caller is always the principal `local`.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from idl import system
from idl.access import LOCAL
from idl.call import Address, Call, Reference, current_outgoing
from idl.dispatch import Authorize, Find, ObjectTable, allow_everything
from idl.marshal import OperationCodec, read_exception
from idl.proxies import (
    Proxy,
    export_proxy,
    make_proxy,
    new_request_id,
    parts_of,
    proxy_of,
    reference_of,
    text_of,
    unguessable_name,
    write_arguments,
)

T = TypeVar("T")

HERE = Address("in-process", 0)
HOST_HERE = "127.0.0.1"


class LocalOrb:
    """An orb whose servants and callers share one process. See `Orb`."""

    def __init__(self, authorize: Authorize = allow_everything) -> None:
        self._objects = ObjectTable(authorize)
        self._is_closed = False

    def publish(self, servant: T, interface: type[T], name: str | None = None) -> T:
        """See `Orb.publish`."""
        chosen = name or unguessable_name()
        self._objects.publish(chosen, servant, interface)
        return make_proxy(Reference(chosen, HERE), interface, self)

    def publish_family(self, prefix: str, find: Find, interface: type[T]) -> None:
        """See `Orb.publish_family`."""
        self._objects.publish_family(prefix, find, interface)

    def member(self, name: str, interface: type[T]) -> T:
        """See `Orb.member`."""
        return make_proxy(Reference(name, HERE), interface, self)

    def withdraw(self, published: object) -> None:
        """See `Orb.withdraw`."""
        self._objects.withdraw(reference_of(cast(Proxy, published)).name)

    def proxy(self, reference: str, interface: type[T], timeout_s: float | None = None) -> T:
        """See `Orb.proxy`. A direct call cannot be cut short: the timeout has no effect."""
        return proxy_of(reference, interface, self, timeout_s)

    def named(self, reference: str, interface: type[T], host: str | None = None) -> T:
        """See `Orb.named`. Nobody is a stranger here."""
        return self.proxy(reference, interface)

    def reference_of(self, published: object) -> str:
        """See `Orb.reference_of`."""
        return text_of(cast(Proxy, published))

    def close(self) -> None:
        """See `Orb.close`."""
        self._is_closed = True

    def invoke(self, proxy: Proxy, codec: OperationCodec, arguments: tuple[Any, ...]) -> Any:
        """See `Caller.invoke`."""
        if self._is_closed:
            raise system.TRANSIENT("the connection was closed by this client")
        outgoing = current_outgoing()
        call = Call(
            request_id=outgoing.request_id or new_request_id(),
            principal=LOCAL,
            peer_host=HOST_HERE,
            transaction=outgoing.transaction,
        )
        plain = write_arguments(codec, arguments, self)
        name = parts_of(proxy)[0]
        answer = self._objects.serve(call, name, codec.operation.name, plain, self)
        if answer.is_exception:
            raise read_exception(answer.plain, codec.exceptions, self)
        return codec.read_result(answer.plain, self)

    def start(
        self,
        proxy: Proxy,
        codec: OperationCodec,
        arguments: tuple[Any, ...],
        timeout_s: float | None = None,
    ) -> None:
        """See `Caller.start`: here nothing is under way before it is waited for."""

    def get_ready(self, proxy: Proxy, codec: OperationCodec, arguments: tuple[Any, ...]) -> None:
        """See `Caller.get_ready`: nobody is waited for meanwhile."""

    def export(self, target: object, interface: type) -> str:
        """See `References.export`."""
        return export_proxy(target, interface)

    def resolve(self, name: str, interface: type) -> object:
        """See `References.resolve`."""
        return proxy_of(name, interface, self)
