"""What can be made to fail, and when: a function that a recording disk asks before every operation.

Operations that change or sync something are numbered from 1, and reads are numbered apart. `at`,
`since` and `filling_up` make the usual functions; a test may write its own.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Callable
from dataclasses import dataclass

_NEED_NO_ROOM = ("sync", "rename", "remove")


class Crash(BaseException):
    """The machine lost its power here. No handler for ordinary failures may stop that."""


class Fault(enum.Enum):
    """What can happen instead of an operation."""

    EIO = errno.EIO
    ENOSPC = errno.ENOSPC
    SHORT = -1
    CRASH = -2


@dataclass(frozen=True)
class Operation:
    """What is about to be done: `write`, `resize`, `sync`, `create`, `rename`, `remove`, …"""

    number: int
    kind: str
    name: str


Faults = Callable[[Operation], Fault | None]


def at(number: int, fault: Fault, kind: str = "") -> Faults:
    """The operation of this number has the fault, if it is of the kind, and no other has."""
    return lambda o: fault if o.number == number and _is_of(o, kind) else None


def since(number: int, fault: Fault, kind: str = "") -> Faults:
    """The operation of this number has the fault, and all of the kind that follow have it too."""
    return lambda o: fault if o.number >= number and _is_of(o, kind) else None


def filling_up(number: int) -> Faults:
    """The disk is full from this operation on, which may still write a part, as kernels do."""
    short, full = at(number, Fault.SHORT, "write"), since(number, Fault.ENOSPC)
    return lambda o: short(o) or (None if o.kind in _NEED_NO_ROOM else full(o))


def _is_of(operation: Operation, kind: str) -> bool:
    return operation.kind == kind if kind else operation.kind != "read"
