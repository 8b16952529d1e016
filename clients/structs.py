"""Values of the contract, made without their checks, on the way of every message.

A struct checks each field when it is made, and that costs more than all else that a client does for
a message. Here they are made from parts that were checked one by one: by `Message`, by the queue's
name, by the node before it answered. A node checks again what comes over the network.
"""

from __future__ import annotations

from idl.cos import RecoveryCoordinator, otid_t
from idl.mq import mqAttribute, mqBatch, mqBranch, mqWork
from idl.otids import FORMAT_ID

_new = object.__new__
_set = object.__setattr__

Attribs = tuple[tuple[mqAttribute, ...], ...]


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
    _set(made, "payloads", payloads)
    _set(made, "digests", digests)
    _set(made, "priorities", priorities)
    _set(made, "groups", groups)
    _set(made, "times", ())
    _set(made, "senders", senders)
    _set(made, "attribs", attribs)
    return made


def branch(gtrid: bytes, name: str, recovery: RecoveryCoordinator | None) -> mqBranch:
    """A branch of the transaction."""
    otid: otid_t = _new(otid_t)
    _set(otid, "formatID", FORMAT_ID)
    _set(otid, "bqual_length", 0)
    _set(otid, "tid", gtrid)
    made: mqBranch = _new(mqBranch)
    _set(made, "otid", otid)
    _set(made, "name", name)
    _set(made, "recovery", recovery)
    return made


def work(queue: str, puts: mqBatch) -> mqWork:
    """All that is put into one queue."""
    made: mqWork = _new(mqWork)
    _set(made, "queue", queue)
    _set(made, "puts", puts)
    _set(made, "removes", ())
    return made
