"""Values of the contract, made without their checks, on the way of every message.

A struct checks each field when it is made, and that costs more than all else that a client does for
a message. Here they are made from parts that were checked one by one: by `Message`, by the queue's
name, by the node before it answered. A node checks again what comes over the network.
"""

from __future__ import annotations

from typing import Any

from idl.coordination import Mq_Settler, mqParticipant
from idl.cos import RecoveryCoordinator, Resource, otid_t
from idl.mq import mqAttribute, mqBatch, mqBranch, mqWork
from idl.otids import FORMAT_ID

_new = object.__new__

Attribs = tuple[tuple[mqAttribute, ...], ...]


def _setters(python: Any) -> Any:
    """What sets each field of a value that cannot be changed otherwise, in their order."""
    return [getattr(python, name).__set__ for name in python.__slots__]


_set_format, _set_length, _set_tid = _setters(otid_t)
_set_otid, _set_name, _set_recovery = _setters(mqBranch)
_set_queue, _set_puts, _set_removes = _setters(mqWork)
_set_participant, _set_resource, _set_settler = _setters(mqParticipant)
(
    _set_payloads,
    _set_digests,
    _set_priorities,
    _set_groups,
    _set_times,
    _set_senders,
    _set_attribs,
) = _setters(mqBatch)


def batch(
    payloads: tuple[bytes, ...],
    digests: tuple[int, ...],
    priorities: tuple[int, ...] = (),
    groups: tuple[int, ...] = (),
    senders: tuple[str, ...] = (),
    attribs: Attribs = (),
) -> mqBatch:
    """Messages in columns, whose times the node sets."""
    made: mqBatch = _new(mqBatch)
    _set_payloads(made, payloads)
    _set_digests(made, digests)
    _set_priorities(made, priorities)
    _set_groups(made, groups)
    _set_times(made, ())
    _set_senders(made, senders)
    _set_attribs(made, attribs)
    return made


def otid(gtrid: bytes) -> otid_t:
    """The name of a transaction, which was drawn here or came from the coordinator."""
    made: otid_t = _new(otid_t)
    _set_format(made, FORMAT_ID)
    _set_length(made, 0)
    _set_tid(made, gtrid)
    return made


def branch(gtrid: bytes, name: str, recovery: RecoveryCoordinator | None) -> mqBranch:
    """A branch of the transaction."""
    made: mqBranch = _new(mqBranch)
    _set_otid(made, otid(gtrid))
    _set_name(made, name)
    _set_recovery(made, recovery)
    return made


def work(queue: str, puts: mqBatch) -> mqWork:
    """All that is put into one queue."""
    made: mqWork = _new(mqWork)
    _set_queue(made, queue)
    _set_puts(made, puts)
    _set_removes(made, ())
    return made


def participant(name: str, resource: Resource, settler: Mq_Settler) -> mqParticipant:
    """A branch of the transaction, as the coordinator is told of it."""
    made: mqParticipant = _new(mqParticipant)
    _set_participant(made, name)
    _set_resource(made, resource)
    _set_settler(made, settler)
    return made
