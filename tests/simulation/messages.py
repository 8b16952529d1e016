"""A message on its way between two simulated hosts: how it is sealed, and what may become of it.

Each may be lost, come late, overtake others, come twice, or come damaged, as the faults of the
world say. The log has each of these, with the number of the message: the place in the log where it
was sent. A host's messages to itself always arrive. It knows nothing of connections, nor of what
is called.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from idl import wire
from idl.cos import PropagationContext
from idl.mapping import Structure
from idl.marshal import References, codec_of
from tests.simulation.world import Host, World

# What is done with a message where it arrives, which is told whether it is a duplicate.
Deliver = Callable[[bytes, bool], None]

LOOPBACK_S = 0.00005
# Two messages of one lane never arrive at the same time, for chance would order them.
LANE_GAP_S = 0.000001

_HEAD = struct.Struct("!I16s?II")
_DIGEST_BYTES = 4
_CONTEXT = codec_of(Structure(PropagationContext))


# --- What is sent --------------------------------------------------------------------------------


class Content(NamedTuple):
    """What a request or a reply carries."""

    request_id: bytes
    body: bytes
    transaction: bytes = b""
    is_exception: bool = False


class Damaged(Exception):
    """A message is not what was sent; whose it is can be told only if all of it is there."""

    def __init__(self, request_id: bytes | None) -> None:
        super().__init__("the digest does not fit the message")
        self.request_id = request_id


def seal(content: Content) -> bytes:
    """The bytes of a message, with the digest by which a damaged one is recognised."""
    request_id, body, transaction, is_exception = content
    head = _HEAD.pack(0, request_id, is_exception, len(transaction), len(body))
    sealed = b"".join((head[_DIGEST_BYTES:], transaction, body))
    return zlib.crc32(sealed).to_bytes(_DIGEST_BYTES) + sealed


def unseal(payload: bytes) -> Content:
    """What the message carries; raises `Damaged`."""
    if len(payload) < _HEAD.size:
        raise Damaged(None)
    digest, request_id, is_exception, size, body_size = _HEAD.unpack_from(payload)
    if zlib.crc32(payload[_DIGEST_BYTES:]) != digest:
        is_whole = len(payload) == _HEAD.size + size + body_size
        raise Damaged(request_id if is_whole else None)
    middle = _HEAD.size + size
    return Content(request_id, payload[middle:], payload[_HEAD.size : middle], is_exception)


def pack_transaction(context: PropagationContext | None, references: References) -> bytes:
    """The bytes that stand for the transaction of a call."""
    if context is None:
        return b""
    assert _CONTEXT.write is not None
    return wire.pack(_CONTEXT.write(context, references))


def unpack_transaction(packed: bytes, references: References) -> PropagationContext | None:
    """The transaction of a call."""
    if not packed:
        return None
    assert _CONTEXT.read is not None
    context: PropagationContext = _CONTEXT.read(wire.unpack(packed), references)
    return context


# --- On the way ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lane:
    """The way from one host to another."""

    world: World
    sender: Host
    receiver: Host

    def send(self, kind: str, subject: str, payload: bytes, deliver: Deliver) -> None:
        """Sends a message to whatever fate; only one with a payload can be cut or duplicated."""
        world = self.world
        number = world.note("sent", kind, self.sender.name, self.receiver.name, subject)
        if self.sender is self.receiver:
            world.after(LOOPBACK_S, self._arrive, number, deliver, payload, False)
        elif self._is_parted():
            world.note("parted", number)
        else:
            if payload:
                self._maybe_duplicate(number, payload, deliver)
            if self._happens(world.faults.loss):
                world.note("lost", number)
                return
            if payload and self._happens(world.faults.cut):
                world.note("cut", number)
                payload = self._damaged(payload)
            world.after(self._delay_s(number), self._arrive, number, deliver, payload, False)

    def _arrive(self, number: int, deliver: Deliver, payload: bytes, is_copy: bool) -> None:
        self.world.note("copy arrived" if is_copy else "arrived", number)
        deliver(payload, is_copy)

    def _happens(self, probability: float) -> bool:
        return probability > 0.0 and self.world.random.random() < probability

    def _is_parted(self) -> bool:
        world, one, other = self.world, self.sender.name, self.receiver.name
        if self._happens(world.faults.partition):
            world.partition(one, other, is_one_way=self._happens(0.5))
            world.after(world.random.uniform(0.0, world.faults.outage_s), world.heal, one, other)
        return world.is_parted(one, other)

    def _maybe_duplicate(self, number: int, payload: bytes, deliver: Deliver) -> None:
        # The duplicate has a fate of its own: it arrives also where the first one is lost.
        faults = self.world.faults
        if self._happens(faults.duplication):
            self.world.note("duplicated", number)
            late_s = faults.latency_s + self.world.random.uniform(0.0, faults.lateness_s)
            self.world.after(late_s, self._arrive, number, deliver, payload, True)

    def _delay_s(self, number: int) -> float:
        faults, now = self.world.faults, self.world.now()
        # Most are quick and few are very late, as it is with real ones.
        slowness = self.world.random.random() ** 3
        arrival = now + faults.latency_s + faults.spread_s * slowness
        earliest = self.sender.lanes.get(self.receiver.name, 0.0) + LANE_GAP_S
        if arrival < earliest:
            if self._happens(faults.overtaking):
                self.world.note("overtaking", number)
                return arrival - now
            arrival = earliest
        self.sender.lanes[self.receiver.name] = arrival
        return arrival - now

    def _damaged(self, payload: bytes) -> bytes:
        """The message cut short, or with one byte changed."""
        place = self.world.random.randrange(len(payload))
        if self._happens(0.5):
            return payload[:place]
        changed = payload[place] ^ self.world.random.randrange(1, 256)
        return payload[:place] + bytes((changed,)) + payload[place + 1 :]
