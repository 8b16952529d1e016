"""One attempt of one task, as a client of a node: branches of its own, each prepared when full.

What an attempt has put counts only if its vote comes back from whoever decides; what it leaves
behind otherwise is rolled back with the transaction, or is refused when it comes too late. What
holds:

1. No two attempts have a branch in common: a part of the name is random.
2. A branch holds so many messages at most, then it votes, and the next begins: the memory that an
   attempt takes here and at the node does not grow with the number of rows.
3. One call is under way while the next batch is made. A number belongs to one request until that
   has been answered.

It knows neither rows nor Spark's session, and never commits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from clients import structs
from clients.connection import Connection
from clients.errors import RAISED, OnceMQError, RolledBack, translated
from clients.nodes import LOST, Node
from clients.spark.sharing import PreparedBranch
from idl.call import limited
from idl.cos import RecoveryCoordinator
from idl.cos import Vote as NodeVote
from idl.mq import mqBatch
from idl.otids import check_branch, show
from idl.proxies import new_request_id, started

__all__ = ["Attempt", "PreparedBranch", "Vote", "branch_name"]

BRANCH_MESSAGES_MAX = 50_000
BRANCH_BYTES_MAX = 32 * 1024 * 1024
ROLLBACK_S = 5.0
RANDOM_DIGITS = 6


@dataclass(frozen=True)
class Vote(WriterCommitMessage):
    """What an attempt sends to whoever decides: its branches, all prepared, and how many rows."""

    gtrid: bytes
    branches: tuple[PreparedBranch, ...]
    rows: int


def branch_name(stage: int, partition: int, task_attempt: int) -> str:
    """The name under which an attempt works; no other has it, whatever the numbers say."""
    chance = new_request_id().hex()[:RANDOM_DIGITS]
    return f"s{stage}p{partition}t{task_attempt}x{chance}"


class Attempt:
    """The work of one attempt at one node. For one thread; ended by `finish` or `rollback`."""

    def __init__(
        self, connection: Connection, gtrid: bytes, name: str, is_prepared: bool = True
    ) -> None:
        # Otherwise whoever decides prepares the branches that count, when it is time for it.
        self._is_prepared = is_prepared
        self._node = connection.node()
        self._recovery_of = connection.deciding().recovery_of
        self._gtrid = gtrid
        self._name = check_branch(name)
        self._prepared: list[PreparedBranch] = []
        self._open: _OpenBranch | None = None
        self._count = 0
        self.rows = 0

    def put(self, queue: str, batch: mqBatch) -> None:
        """The messages are on their way into the queue; raises an `OnceMQError`."""
        count = len(batch.payloads)
        size = sum(map(len, batch.payloads))
        branch = self._open
        if branch is not None and not branch.has_room(count, size):
            self._prepare(branch)
            branch = None
        if branch is None:
            self._count += 1
            name = f"{self._name}.{self._count}"
            branch = self._open = _OpenBranch(self._node, self._gtrid, name)
        branch.put(queue, batch, size)
        self.rows += count

    def finish(self) -> tuple[PreparedBranch, ...]:
        """All branches, prepared; none where nothing was put."""
        if self._open is not None:
            self._prepare(self._open)
        return tuple(self._prepared)

    def rollback(self) -> None:
        """What is not prepared is rolled back; the rest will be with the transaction."""
        branch, self._open = self._open, None
        if branch is not None:
            branch.rollback()

    def _prepare(self, branch: _OpenBranch) -> None:
        if self._is_prepared:
            branch.prepare(self._recovery_of(self._gtrid, branch.name))
        else:
            branch.wait()
        self._open = None
        node, count = str(self._node.address), branch.messages
        self._prepared.append(PreparedBranch(node, branch.name, messages=count))


class _OpenBranch:
    """A branch that takes messages, one request at a time."""

    def __init__(self, node: Node, gtrid: bytes, name: str) -> None:
        self.name = name
        self._node = node
        self._gtrid = gtrid
        self._branch = structs.branch(gtrid, name, None)
        self._number = 0
        self.messages = 0
        self._bytes = 0
        self._waiting: Callable[[], object] | None = None

    def has_room(self, count: int, size: int) -> bool:
        """Whether so much more may be put."""
        return (
            self.messages + count <= BRANCH_MESSAGES_MAX and self._bytes + size <= BRANCH_BYTES_MAX
        )

    def put(self, queue: str, batch: mqBatch, size: int) -> None:
        """The request is under way; what became of the one before is known."""
        self.wait()
        self._number += 1
        self.messages += len(batch.payloads)
        self._bytes += size
        method: Callable[..., object] = self._node.calls.putBulk
        arguments = (self._branch, self._number, queue, batch)
        waiting = started(method, *arguments)
        if waiting is None:
            self._asked(lambda: self._node.call(method, *arguments))
            return
        begun = self._node.clock()
        self._waiting = lambda: self._finished(waiting, begun, method, arguments)

    def _finished(
        self,
        waiting: Callable[[], object],
        begun: float,
        method: Callable[..., object],
        arguments: tuple[Any, ...],
    ) -> object:
        try:
            return waiting()
        except LOST as lost:
            return self._node.insist(lost, begun + self._node.timeout_s, method, *arguments)

    def wait(self) -> None:
        """Everything that was put is there; raises an `OnceMQError`."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._asked(waiting)

    def prepare(self, recovery: RecoveryCoordinator) -> None:
        """The branch has voted to commit; raises an `OnceMQError`."""
        self.wait()
        branch = structs.branch(self._gtrid, self.name, recovery)
        node = self._node
        vote = self._asked(lambda: node.call(node.calls.prepareBranch, branch, self.messages))
        if vote is not NodeVote.COMMIT:
            raise RolledBack(f"{node.where} did not find all that branch {self.name} had put")

    def rollback(self) -> None:
        """The node was told; where that fails, it will notice."""
        node = self._node
        with contextlib.suppress(OnceMQError, *RAISED), limited(ROLLBACK_S):
            self.wait()
        with contextlib.suppress(OnceMQError, *RAISED), limited(ROLLBACK_S):
            node.calls.rollbackBranch(self._branch)

    def _asked(self, ask: Callable[[], object]) -> object:
        try:
            return ask()
        except RAISED as raised:
            told = translated(raised, self._node.where)
            if isinstance(told, RolledBack):
                name = show(self._gtrid)
                raise RolledBack(f"transaction {name}: {told.reason}", told.retryable) from raised
            raise told from raised
