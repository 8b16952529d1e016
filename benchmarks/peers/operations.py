"""What every system is asked to do. Nothing of any system is known here.

A client is one process's connection to one system. It works on the queues `work` and `next`, which
`create` makes empty. Whatever it has put or got is on disk when the call returns, as far as the
system can do that at all. Operations that a system does not have are missing from its `CAN`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

WORK, NEXT = "work", "next"


class Operation(enum.StrEnum):
    """What is measured."""

    PUT = "put"
    PUT_MANY = "put many"
    GET = "get"
    GET_MANY = "get many"
    MOVE = "move"
    MOVE_AT_ONCE = "move at once"
    TWO_PHASE = "two-phase"
    PUT_AND_GET = "put and get"
    SPARK_WRITE = "written by Spark"
    SPARK_READ = "read by Spark"


ONE_BY_ONE = frozenset({Operation.PUT, Operation.GET})
IN_BATCHES = ONE_BY_ONE | {Operation.PUT_MANY, Operation.GET_MANY}


class Client(Protocol):
    """A connection of one process."""

    def create(self) -> None:
        """Both queues are there, and empty."""

    def put(self, payload: bytes) -> None:
        """One message more in `work`."""

    def put_many(self, payloads: Sequence[bytes]) -> None:
        """Several, as one act where the system has such a thing."""

    def get(self) -> None:
        """One message less in `work`."""

    def get_many(self, count: int) -> None:
        """So many less, as one act."""

    def move(self) -> None:
        """The next of `work` is in `next`; the client has seen it on the way."""

    def close(self) -> None:
        """The connection is gone."""


class Missing(Exception):
    """There was nothing to get: the measurement is worth nothing."""
