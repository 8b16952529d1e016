"""Objects that stand for remote ones: a class per interface, made once from its operations.

A proxy is typed by its Protocol, can be shared by threads and costs nothing to make. It holds a
reference and whoever carries calls out for it; it knows no transport, and no secret, and refuses to
be pickled: what travels is the reference.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, ParamSpec, Protocol, TypeVar

from idl.call import REQUEST_ID_BYTES, Address, Reference, check_object_name
from idl.mapping import InvalidValue, Operation, idl_name
from idl.marshal import OperationCodec, operation_codecs
from idl.system import BAD_PARAM

T = TypeVar("T")
P = ParamSpec("P")

UNGUESSABLE_BYTES = 16
REQUEST_IDS_AT_ONCE = 256

_CODEC = "oncemq_codec"


class Caller(Protocol):
    """Carries out the calls of proxies."""

    def invoke(self, proxy: Proxy, codec: OperationCodec, arguments: tuple[Any, ...]) -> Any:
        """Makes the call and returns or raises what it did."""

    def start(
        self,
        proxy: Proxy,
        codec: OperationCodec,
        arguments: tuple[Any, ...],
        timeout_s: float | None = None,
    ) -> Callable[[], Any] | None:
        """Sends the call if that can be done at once; the function waits for what it did.

        None where it cannot, and then nothing was sent.
        """

    def get_ready(
        self, proxy: Proxy, codec: OperationCodec, arguments: tuple[Any, ...]
    ) -> Callable[[], Any] | None:
        """All of the call is made but for sending it; the function does that, once, and waits.

        None where there is nothing to be gained by it.
        """


class Proxy:
    """What all proxies have in common; two that stand for the same object are equal."""

    __slots__ = ("_caller", "_parts")

    def __init__(
        self, name: str, address: Address, server: str, caller: Caller, timeout_s: float | None
    ) -> None:
        # See `parts_of`. The address also as text: it is written, and looked up, with every call.
        self._parts = name, address, server, timeout_s
        self._caller = caller

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Proxy) and text_of(self) == text_of(other)

    def __hash__(self) -> int:
        return hash(self._parts[0])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {text_of(self)}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} cannot be pickled: pass its reference and connect on the other side"
        )


def reference_of(proxy: Proxy) -> Reference:
    """What the proxy stands for."""
    name, address, _, _ = proxy._parts
    return Reference(name, address)


def timeout_of(proxy: Proxy) -> float | None:
    """How long each of the proxy's calls may take, where that was said."""
    return proxy._parts[3]


def text_of(proxy: Proxy) -> str:
    """What the proxy stands for, as it is written."""
    name, _, server, _ = proxy._parts
    return f"PYRO:{name}@{server}"


# Name, address, the address as text, and how long a call may take, where that was said.
parts_of: Callable[[Proxy], tuple[str, Address, str, float | None]] = attrgetter("_parts")


def make_proxy(
    reference: Reference, interface: type[T], caller: Caller, timeout_s: float | None = None
) -> T:
    """An object with the interface's operations, each of which goes through the caller."""
    address = reference.address
    return proxy_at(reference.name, address, str(address), interface, caller, timeout_s)


def proxy_of(text: str, interface: type[T], caller: Caller, timeout_s: float | None = None) -> T:
    """The same for a reference that is written out; raises `InvalidValue` if it is none."""
    name, address, server = parse_reference(text)
    return proxy_at(name, address, server, interface, caller, timeout_s)


def neighbour_of(proxy: object, name: str, interface: type[T]) -> T:
    """An object with this name at the server of another, reached the same way."""
    assert isinstance(proxy, Proxy), "only what an orb has made has neighbours"
    kind: Any = interface
    _, address, server, _ = proxy._parts
    made: T = _proxy_class(kind)(check_object_name(name), address, server, proxy._caller, None)
    return made


def parse_reference(text: str) -> tuple[str, Address, str]:
    """Name and address of what `Reference.parse` reads, and the address as it is written."""
    if text[:5] == "PYRO:":
        name, at, written = text[5:].partition("@")
        if at:
            return (check_object_name(name), *_server(written))
    raise InvalidValue(f"reference {text[:60]!r} is not of the form PYRO:name@host:port")


@functools.lru_cache(maxsize=1024)
def _server(written: str) -> tuple[Address, str]:
    address = Address.parse(written)
    return address, str(address)


def proxy_at(
    name: str,
    address: Address,
    server: str,
    interface: type[T],
    caller: Caller,
    timeout_s: float | None = None,
) -> T:
    """The same for the parts of a reference, which were checked before."""
    if timeout_s is not None and not 0 < timeout_s < float("inf"):
        raise InvalidValue(f"timeout {timeout_s!r}: a call may take a positive, finite time")
    kind: Any = interface
    made: T = _proxy_class(kind)(name, address, server, caller, timeout_s)
    return made


# Random keys that nobody has yet, made many at a time; a forked child makes its own.
_UNUSED_IDS: deque[bytes] = deque()
os.register_at_fork(after_in_child=_UNUSED_IDS.clear)


def new_request_id() -> bytes:
    """An idempotency key that no other call has, and that nobody can guess."""
    try:
        return _UNUSED_IDS.popleft()
    except IndexError:
        made = secrets.token_bytes(REQUEST_ID_BYTES * REQUEST_IDS_AT_ONCE)
        starts = range(REQUEST_ID_BYTES, len(made), REQUEST_ID_BYTES)
        _UNUSED_IDS.extend([made[start : start + REQUEST_ID_BYTES] for start in starts])
        return made[:REQUEST_ID_BYTES]


def unguessable_name() -> str:
    """A name for an object that only those know who were given its reference."""
    return f"object/{secrets.token_hex(UNGUESSABLE_BYTES)}"


@functools.cache
def _proxy_class(interface: Any) -> Any:
    methods = {name: _method(codec) for name, codec in operation_codecs(interface).items()}
    name = idl_name(interface).replace("::", ".")
    return type(name, (Proxy,), {"__slots__": (), "__doc__": interface.__doc__, **methods})


def _method(codec: OperationCodec) -> Callable[..., Any]:
    operation = codec.operation

    def call(self: Proxy, *arguments: Any, **named: Any) -> Any:
        if named:
            arguments = _ordered(operation, arguments, named)
        return self._caller.invoke(self, codec, arguments)

    call.__name__ = operation.name
    vars(call)[_CODEC] = codec
    return call


def started(
    method: Callable[P, T], *arguments: P.args, **named: P.kwargs
) -> Callable[[], T] | None:
    """The call is under way, and the function waits for its answer; None if it must be made anew.

    So one thread can have several calls under way: `[started(each.commit) for each in resources]`.
    Only proxies of a network can do so, and only where a connection stands ready; else nothing was
    sent. What was started must be waited for.
    """
    return None if named else started_with(method, arguments)


def started_with(
    method: Callable[..., T], arguments: tuple[Any, ...], timeout_s: float | None = None
) -> Callable[[], T] | None:
    """The same for arguments that are together already.

    The call may take `timeout_s`, where that is given, whatever else was said about its time.
    """
    proxy, codec = getattr(method, "__self__", None), getattr(method, _CODEC, None)
    if not isinstance(proxy, Proxy) or codec is None:
        return None
    waiting: Callable[[], T] | None = proxy._caller.start(proxy, codec, arguments, timeout_s)
    return waiting


def ready(method: Callable[..., T], arguments: tuple[Any, ...]) -> Callable[[], T]:
    """The call, which carries what it would carry now. To be made once, or not at all.

    For who knows what to ask next while another answer is waited for. What does not fit the
    interface is BAD_PARAM here already.
    """
    proxy, codec = getattr(method, "__self__", None), getattr(method, _CODEC, None)
    made: Callable[[], T] | None = None
    if isinstance(proxy, Proxy) and codec is not None:
        made = proxy._caller.get_ready(proxy, codec, arguments)
    return made or partial(method, *arguments)


def is_foretold(waiting: Callable[[], object]) -> bool:
    """Whether the call under way was foretold to succeed, and its answer is still to come.

    It waits for that, or else for the answer, which `waiting` then has.
    """
    hear: Callable[[], bool] | None = getattr(waiting, "is_foretold", None)
    return hear is not None and hear()


def leave(waiting: Callable[[], object], note: Callable[[Exception], None]) -> bool:
    """Nobody waits for the call under way; if it fails, that is noted, by whoever finds out.

    That is whoever calls that server next, with this identity, or lets go of it: what is asked then
    is asked after this. False where the call cannot be left, and is waited for like any other.
    """
    way: Callable[[Callable[[Exception], None]], None] | None = getattr(waiting, "leave", None)
    if way is not None:
        way(note)
    return way is not None


def _ordered(
    operation: Operation, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...]:
    rest = [name for name, _ in operation.parameters[len(arguments) :]]
    if sorted(named) != sorted(rest):
        raise BAD_PARAM(f"{operation.name} takes {[name for name, _ in operation.parameters]}")
    return (*arguments, *(named[name] for name in rest))


def write_arguments(
    codec: OperationCodec, arguments: tuple[Any, ...], references: Any
) -> tuple[Any, ...]:
    """The plain arguments of a call; what does not fit the interface is BAD_PARAM."""
    try:
        return codec.write_arguments(arguments, references)
    except InvalidValue as wrong:
        raise BAD_PARAM(str(wrong)) from wrong


def export_proxy(target: object, interface: type) -> str:
    """The reference of a proxy; only what was published, or came from elsewhere, can be passed."""
    if not isinstance(target, Proxy):
        raise InvalidValue(
            f"{type(target).__name__} is not a published {interface.__name__}: publish it, and "
            "pass what publish returned"
        )
    name, _, server, _ = target._parts
    return f"PYRO:{name}@{server}"
