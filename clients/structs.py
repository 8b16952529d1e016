"""Values of the contract, made without their checks, on the way of every message.

A struct checks each field when it is made, and that costs more than all else that a client does for
a message. Here they are made from parts that were checked one by one: by `Message`, by the queue's
name, by the node before it answered. A node checks again what comes over the network.
"""

from __future__ import annotations

from typing import Any

from idl.coordination import Mq_Settler, mqParticipant
from idl.cos import RecoveryCoordinator, Resource, otid_t
from idl.mapping import draft_of
from idl.mq import mqAttribute, mqBatch, mqBranch, mqWork
from idl.otids import FORMAT_ID

Attribs = tuple[tuple[mqAttribute, ...], ...]

# What becomes a value of the contract when all its fields are set, which then stay as they are.
_Otid, _Branch, _Work = draft_of(otid_t), draft_of(mqBranch), draft_of(mqWork)
_Batch, _Participant = draft_of(mqBatch), draft_of(mqParticipant)


def batch(
    payloads: tuple[bytes, ...],
    digests: tuple[int, ...],
    priorities: tuple[int, ...] = (),
    groups: tuple[int, ...] = (),
    senders: tuple[str, ...] = (),
    attribs: Attribs = (),
) -> mqBatch:
    """Messages in columns, whose times the node sets."""
    made: Any = _Batch()
    made.payloads = payloads
    made.digests = digests
    made.priorities = priorities
    made.groups = groups
    made.times = ()
    made.senders = senders
    made.attribs = attribs
    made.__class__ = mqBatch
    whole: mqBatch = made
    return whole


def otid(gtrid: bytes) -> otid_t:
    """The name of a transaction, which was drawn here or came from the coordinator."""
    made: Any = _Otid()
    made.formatID = FORMAT_ID
    made.bqual_length = 0
    made.tid = gtrid
    made.__class__ = otid_t
    whole: otid_t = made
    return whole


def branch(gtrid: bytes, name: str, recovery: RecoveryCoordinator | None) -> mqBranch:
    """A branch of the transaction."""
    # As `otid` makes it, without a call: most transactions make one of each.
    named: Any = _Otid()
    named.formatID = FORMAT_ID
    named.bqual_length = 0
    named.tid = gtrid
    named.__class__ = otid_t
    made: Any = _Branch()
    made.otid = named
    made.name = name
    made.recovery = recovery
    made.__class__ = mqBranch
    whole: mqBranch = made
    return whole


def work(queue: str, puts: mqBatch) -> mqWork:
    """All that is put into one queue."""
    made: Any = _Work()
    made.queue = queue
    made.puts = puts
    made.removes = ()
    made.__class__ = mqWork
    whole: mqWork = made
    return whole


def participant(name: str, resource: Resource, settler: Mq_Settler) -> mqParticipant:
    """A branch of the transaction, as the coordinator is told of it."""
    made: Any = _Participant()
    made.name = name
    made.resource = resource
    made.settler = settler
    made.__class__ = mqParticipant
    whole: mqParticipant = made
    return whole
