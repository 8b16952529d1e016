"""The vocabulary of one call: where an object is, who calls, in which transaction, for how long.

Shared by every way of calling: over the network, directly in one process, or through the simulated
network of the tests. It knows none of them. The two context variables are the only state: one says
what the calls made here shall carry, the other which call is being served here.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from idl.cos import PropagationContext
from idl.mapping import InvalidValue

T = TypeVar("T")

OBJECT_NAME_LENGTH_MAX = 200
REQUEST_ID_BYTES = 16

_is_object_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*", re.ASCII).fullmatch
_HOST = re.compile(r"[A-Za-z0-9._%:-]+", re.ASCII)


# --- Where an object is --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a server; an IPv6 address is written in brackets."""

    host: str
    port: int

    def __post_init__(self) -> None:
        if not _HOST.fullmatch(self.host) or len(self.host) > 255:
            raise InvalidValue(f"host {self.host[:60]!r} is not a host name or an IP address")
        if not 0 <= self.port <= 65535:
            raise InvalidValue(f"port {self.port} is not between 0 and 65535")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def parse(cls, text: str) -> Address:
        """The address written as `host:port` or `[host]:port`."""
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise InvalidValue(f"address {text[:60]!r}: write an IPv6 host in brackets")
        if not colon or not port.isascii() or not port.isdigit() or len(port) > 5:
            raise InvalidValue(f"address {text[:60]!r} is not of the form host:port")
        return cls(host, int(port))


@dataclass(frozen=True, slots=True)
class Reference:
    """Names one object of one server; its text is a Pyro URI."""

    name: str
    address: Address

    def __post_init__(self) -> None:
        check_object_name(self.name)

    def __str__(self) -> str:
        return f"PYRO:{self.name}@{self.address}"

    @classmethod
    def parse(cls, text: str) -> Reference:
        """The reference written as `PYRO:name@host:port`."""
        name, at, address = text.removeprefix("PYRO:").partition("@")
        if not text.startswith("PYRO:") or not at:
            raise InvalidValue(f"reference {text[:60]!r} is not of the form PYRO:name@host:port")
        return cls(name, Address.parse(address))


def check_object_name(name: str) -> str:
    """The name itself, when an object can be published under it."""
    if not _is_object_name(name) or len(name) > OBJECT_NAME_LENGTH_MAX:
        raise InvalidValue(
            f"object name {name[:60]!r}: use 1 to {OBJECT_NAME_LENGTH_MAX} letters, digits, "
            "dots, hyphens, underscores and slashes, beginning with a letter or a digit"
        )
    return name


# --- A call that is being served -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls, as it was proven when the connection was made."""

    name: str


class Call(NamedTuple):
    """What a servant may ask about the call that it is serving.

    The request id is the caller's idempotency key: a repeated call carries the same one.
    """

    request_id: bytes
    principal: Principal
    peer_host: str
    transaction: PropagationContext | None = None
    # Tells the caller something in advance, where it can be told: see `foretelling`.
    foretell: Callable[[bytes], None] | None = None


_SERVING: ContextVar[Call | None] = ContextVar("oncemq_serving", default=None)


# The call that this thread is serving, or None.
call_here: Callable[[], Call | None] = _SERVING.get


def current_call() -> Call:
    """The call that this thread is serving."""
    call = _SERVING.get()
    if call is None:
        raise LookupError("no call is being served here")
    return call


def foretelling() -> Callable[[], None]:
    """Has the caller of this call told that its answer will come, and be no refusal.

    For an operation whose callers are to know that, and only by the thread that serves the call,
    once. What is told is lost where the caller does not wait for it, or there is no network.
    """
    call = current_call()
    foretell, request_id = call.foretell, call.request_id
    return (lambda: None) if foretell is None else (lambda: foretell(request_id))


def serve_within(call: Call, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Runs the function. Inside, `current_call` is this call; calls carry nothing of another."""
    # Where calls are made in the same process; each change takes as long as a short function.
    outgoing = None if _OUTGOING.get() is _NOTHING else _OUTGOING.set(_NOTHING)
    current = _SERVING.set(call)
    try:
        return function(*arguments)
    finally:
        _SERVING.reset(current)
        if outgoing is not None:
            _OUTGOING.reset(outgoing)


# --- Calls that are made -------------------------------------------------------------------------


class Outgoing(NamedTuple):
    """What the calls made here carry, and how long they may take; None leaves it to the orb."""

    transaction: PropagationContext | None = None
    timeout_s: float | None = None
    request_id: bytes | None = None


# Makes one as its class would, without a function of Python's in between: with every call.
_new_tuple = tuple.__new__
_NOTHING = Outgoing()
_OUTGOING: ContextVar[Outgoing] = ContextVar("oncemq_outgoing", default=_NOTHING)


# What a call made now carries.
current_outgoing: Callable[[], Outgoing] = _OUTGOING.get


class Carrying:
    """For `with`: what the calls made inside carry."""

    __slots__ = ("_outgoing", "_token")

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing

    def __enter__(self) -> None:
        self._token: Token[Outgoing] = _OUTGOING.set(self._outgoing)

    def __exit__(self, kind: object, raised: object, trace: object) -> None:
        _OUTGOING.reset(self._token)


def within(transaction: PropagationContext | None) -> Carrying:
    """Calls made inside belong to this transaction."""
    _, timeout_s, request_id = _OUTGOING.get()
    return Carrying(Outgoing(transaction, timeout_s, request_id))


def limited(timeout_s: float) -> Carrying:
    """Each call made inside may take this long, connecting included."""
    if not 0 < timeout_s < math.inf:
        raise InvalidValue(f"timeout {timeout_s!r}: a call may take a positive, finite time")
    transaction, _, request_id = _OUTGOING.get()
    return Carrying(Outgoing(transaction, timeout_s, request_id))


def repeating(request_id: bytes) -> Carrying:
    """Calls made inside carry this idempotency key: they repeat one whose answer was lost."""
    return Carrying(_under(request_id))


def begin_repeating(request_id: bytes) -> Token[Outgoing]:
    """The same without an object for `with`, which many calls can do without; see `repeated`."""
    return _OUTGOING.set(_under(request_id))


def repeated(begun: Token[Outgoing]) -> None:
    """Calls carry again what they did before `begin_repeating`."""
    _OUTGOING.reset(begun)


def _under(request_id: bytes) -> Outgoing:
    if len(request_id) != REQUEST_ID_BYTES:
        raise InvalidValue(f"a request id has {REQUEST_ID_BYTES} bytes, not {len(request_id)}")
    transaction, timeout_s, _ = _OUTGOING.get()
    outgoing: Outgoing = _new_tuple(Outgoing, (transaction, timeout_s, request_id))
    return outgoing


# --- The way to call -----------------------------------------------------------------------------


class Orb(Protocol):
    """Publishes servants and reaches those of others: over the network, directly, or simulated."""

    def publish(self, servant: T, interface: type[T], name: str | None = None) -> T:
        """Makes the servant's operations callable, and returns an object that stands for it.

        Without a name the object gets one that nobody can guess.
        """

    def publish_family(
        self, prefix: str, find: Callable[[str], object], interface: type[T]
    ) -> None:
        """Makes callable the objects `prefix/...`, which `find` makes or finds for each call.

        They need not be kept, outlive a restart, and are reached by whoever knows their name.
        """

    def member(self, name: str, interface: type[T]) -> T:
        """An object that stands for the one with this name here, published or of a family."""

    def withdraw(self, published: object) -> None:
        """From now on the object does not exist; calls that are running finish."""

    def proxy(self, reference: str, interface: type[T], timeout_s: float | None = None) -> T:
        """An object with this interface that stands for the referenced one. Nothing is sent yet."""

    def named(self, reference: str, interface: type[T], host: str | None = None) -> T:
        """The same for an object that somebody has named who called from this host.

        None: it was checked when it came. Raises NO_PERMISSION for one that this caller may not
        name; only trusted servers are shown who we are.
        """

    def reference_of(self, published: object) -> str:
        """The text by which others reach a published object or a proxy's target."""

    def close(self) -> None:
        """Finishes the calls that are running, refuses new ones and lets go of everything."""
