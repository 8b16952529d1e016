"""The bytes of a message body: msgpack without classes, and only so much of it.

The layout of a call is the one Pyro5 gives its msgpack serializer, (object, operation, arguments,
names), so that the frames are Pyro5's own. Pure: it knows neither sockets nor the values of the
image, which `marshal.py` has made plain before they come here.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgpack

# What the two sides say to each other when they connect.
VERSION = 1
NOT_ALLOWED = "not allowed"
DAMAGED = "not allowed: the login has no digest that fits it"
FULL = "too many connections"

# What one body may make us build: a unit for each element, and some more for whatever holds them.
UNITS_MAX = 2_000_000
UNITS_PER_CONTAINER = 8
ELEMENTS_MAX = 1_000_000
# What a body announces and does not hold cannot amount to much where it is no longer than this, or
# where no sequence is, as they nest 1024 deep at most.
TRUSTED_BYTES_MAX = 1024
TRUSTED_ELEMENTS_MAX = 256
# Every value takes a byte at least: a shorter body cannot use up what it may make us build.
COUNTED_BYTES_MIN = UNITS_MAX // (UNITS_PER_CONTAINER + 1)
# A packer begins with so much memory, and keeps what its longest message took: after a longer one
# it is not used again.
KEPT_BYTES_MAX = 256 * 1024


class Unreadable(ValueError):
    """A body is not what it should be: not msgpack, a foreign extension, or of the wrong form."""


class TooMany(Unreadable):
    """A body is whole, and holds more values than are built for one call."""


# Packers that nobody uses now: to make one takes longer than to pack a call with it.
_PACKERS: deque[msgpack.Packer] = deque()


def pack(plain: Any) -> bytes:
    """The bytes of plain values."""
    try:
        packer = _PACKERS.pop()
    except IndexError:
        packer = msgpack.Packer(use_bin_type=True)
    packed: bytes = packer.pack(plain)
    if len(packed) <= KEPT_BYTES_MAX:
        _PACKERS.append(packer)
    return packed


def unpack(body: bytes | memoryview) -> Any:
    """The plain values of a body, sequences as tuples; raises `Unreadable` for anything else."""
    size = len(body)
    try:
        if size <= TRUSTED_BYTES_MAX:
            # No sequence of it can have more elements than the body has bytes.
            return _unpackb(body, use_list=False, ext_hook=_refuse_extension)
        return _unpack_some(body) if size < COUNTED_BYTES_MIN else _unpack_much(body)
    except TooMany:
        raise
    except (ValueError, msgpack.UnpackException, RecursionError, TypeError) as wrong:
        # The text of the library may quote what was sent, and is of no use to the sender.
        raise Unreadable("the message body cannot be read") from wrong


_unpackb = msgpack.unpackb


# Arguments travel by their place.
_NO_NAMES: dict[str, Any] = {}


def pack_call(object_name: str, operation: str, arguments: tuple[Any, ...]) -> bytes:
    """The body of a request."""
    return pack((object_name, operation, arguments, _NO_NAMES))


def unpack_call(body: bytes | memoryview) -> tuple[str, str, tuple[Any, ...]]:
    """Object, operation and arguments of a request."""
    call = unpack(body)
    if type(call) is tuple and len(call) == 4:
        object_name, operation, arguments, named = call
        is_named = type(object_name) is str and type(operation) is str
        if is_named and type(arguments) is tuple and type(named) is dict and not named:
            return object_name, operation, arguments
    raise Unreadable("the request does not have the form of a call")


def _unpack_some(body: bytes | memoryview) -> Any:
    try:
        return _unpackb(
            body,
            use_list=False,
            ext_hook=_refuse_extension,
            max_array_len=TRUSTED_ELEMENTS_MAX,
            max_map_len=TRUSTED_ELEMENTS_MAX,
        )
    except (ValueError, msgpack.UnpackException, TypeError):
        # A sequence is longer, or something is wrong: the long way reads it, or does not.
        return _unpack_much(body)


def _unpack_much(body: bytes | memoryview) -> Any:
    _check_complete(body)
    size = len(body)
    count = None if size < COUNTED_BYTES_MIN else _Budget().count
    limit = min(ELEMENTS_MAX, size)
    return _unpackb(
        body,
        raw=False,
        use_list=False,
        list_hook=count,
        object_hook=count,
        ext_hook=_refuse_extension,
        max_array_len=limit,
        max_map_len=limit,
    )


def _check_complete(body: bytes | memoryview) -> None:
    """Walks through the body without building anything: all that is announced must be there.

    Memory for a sequence is taken when its length is read, long before its elements are missed.
    """
    walker = msgpack.Unpacker(max_buffer_size=len(body))
    walker.feed(body)
    walker.skip()
    if walker.tell() != len(body):
        raise Unreadable("the message body has another length than its content")


class _Budget:
    """Ends the unpacking of a body whose bytes are few and whose values are too many."""

    def __init__(self) -> None:
        self._left = UNITS_MAX

    def count(self, container: Any) -> Any:
        self._left -= len(container) + UNITS_PER_CONTAINER
        if self._left < 0:
            raise TooMany("too many values in one call: send less at a time")
        return container


def _refuse_extension(code: int, data: bytes) -> Any:
    raise Unreadable(f"extension {code} is not allowed")
