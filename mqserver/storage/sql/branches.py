"""Branches: what they have done, how they end, and what a restart undoes.

A branch is a row, made by the first action that changes something; its number stands in the VSF of
the messages it holds. Every action is a database transaction of its own, and none of them is
forced: the end of the branch is, and with it all that came before.

**The count.** The database may crash while this process lives, and then has lost the latest
actions of a branch; or a connection breaks, and nobody knows whether the last action was done. So
each action counts in the row, and the owner counts in memory what was acknowledged. Where the two
differ the branch is rolled back: it is never committed in part, and nothing is in it twice.

**Nodes.** Many nodes share a database. A branch belongs to the node that began it, which alone
acts in it and prepares it. Every node sees it, may undo it, and may commit it once it is prepared.
A node that starts undoes the branches under its own name that were not prepared, and no others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from mqserver.errors import BranchEnded
from mqserver.storage.contract import BranchInfo, Outcome, Vote
from mqserver.storage.sql.branch_table import HEURISTIC, BranchTable, has_changes
from mqserver.storage.sql.database import Database, Transaction
from mqserver.storage.sql.vendor import AnyRow

_PRUNED_EVERY = 500


class Live:
    """What this process knows of a branch that began here. Its calls come one after the other."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.actions = 0


class _Torn(Exception):
    """The row and the owner do not agree on what the branch has done."""


class Branches:
    """The branches as one node sees them. `released` is told when locks were let go."""

    def __init__(self, database: Database, node: str, released: Callable[[], None]) -> None:
        self._database = database
        self._table = BranchTable(database.vendor, node)
        self._node = node
        self._released = released
        # Of a database that can crash without us nobody would know what was lost in between.
        self._must_force = database.vendor.can_outlive_it
        self._guard = threading.Lock()
        self._live: dict[bytes, Live] = {}
        self._ended_since_pruning = 0

    # --- Actions

    @contextmanager
    def acting(self, branch: bytes) -> Iterator[Live]:
        """The branch has begun, and no other call for it runs in this process."""
        with self._guard:
            live = self._live.setdefault(branch, Live())
        with self._turn(branch, live):
            try:
                yield live
            except BranchEnded:
                self._forget(branch)
                raise

    @contextmanager
    def action(self, branch: bytes, flag: str) -> Iterator[tuple[Transaction, AnyRow]]:
        """A transaction that is one action of the branch, and the branch's row.

        It counts, and the flag is set, if the block neither raises nor rolls back.
        """
        with self.acting(branch) as live:
            with self._database.write(force=False) as transaction:
                row = self._count(transaction.connection, branch, live, flag)
                yield transaction, row
                is_done = transaction.connection.in_transaction()
            live.actions += is_done

    def begin(self, connection: Connection, branch: bytes, live: Live) -> int:
        """The number of the branch, which has a row now even if it has changed nothing."""
        number: int = self._count(connection, branch, live, "").number
        return number

    def _count(self, connection: Connection, branch: bytes, live: Live, flag: str) -> AnyRow:
        row = self._table.act(connection, branch, flag)
        if row is None:
            raise self._refusal(branch, self._table.find(connection, branch))
        if row.actions != live.actions + (flag != ""):
            raise _Torn
        return row

    # --- Ends

    def prepare(self, branch: bytes, recovery: bytes) -> Vote:
        """See `Storage.prepare`."""
        with self._ending(branch, force=self._may_have_changes(branch)) as transaction:
            connection = transaction.connection
            row = self._table.prepare(connection, branch, recovery)
            if row is None:
                found = self._table.find(connection, branch)
                if found is not None and found.outcome == Outcome.PREPARED.value:
                    return Vote.COMMIT
                self._end_empty(connection, branch, found, Outcome.ROLLED_BACK)
                return Vote.READ_ONLY
            self._check_owner(branch, row)
            if not has_changes(row):
                self._table.end(connection, branch, Outcome.PREPARED, Outcome.ROLLED_BACK)
                return Vote.READ_ONLY
            return Vote.COMMIT

    def commit(self, branch: bytes, force: bool) -> Outcome:
        """See `Storage.commit`."""
        with self._ending(branch, force=force or self._must_force) as transaction:
            connection = transaction.connection
            row = self._table.end(connection, branch, Outcome.PREPARED, Outcome.COMMITTED)
            if row is not None:
                self._table.apply(connection, row)
                return Outcome.COMMITTED
            if self._commit_again(connection, branch):
                return Outcome.COMMITTED
            row = self._table.find(connection, branch)
            if row is None or Outcome(row.outcome) not in HEURISTIC:
                raise self._refusal(branch, row)
            return Outcome(row.outcome)

    def commit_one_phase(self, branch: bytes, force: bool) -> None:
        """See `Storage.commit_one_phase`."""
        # Also of a branch that has changed nothing: all that was done before it is on disk with it.
        with self._ending(branch, force=force or self._must_force) as transaction:
            connection = transaction.connection
            row = self._table.end(connection, branch, Outcome.ACTIVE, Outcome.COMMITTED)
            if row is not None:
                self._check_owner(branch, row)
                self._table.apply(connection, row)
            elif not self._commit_again(connection, branch):
                found = self._table.find(connection, branch)
                self._end_empty(connection, branch, found, Outcome.COMMITTED)

    def rollback(self, branch: bytes) -> Outcome:
        """See `Storage.rollback`."""
        with self._ending(branch, force=False) as transaction:
            return self._roll_back(transaction, branch)

    def resolve(self, branch: bytes, commit: bool) -> None:
        """See `Storage.resolve`."""
        with self._ending(branch, force=True) as transaction:
            connection = transaction.connection
            row = self._table.find(connection, branch, alone=True)
            if row is None or row.outcome != Outcome.PREPARED.value:
                raise self._refusal(branch, row)
            self._table.decide(connection, row, HEURISTIC[0 if commit else 1])
            (self._table.apply if commit else self._table.undo)(connection, row)

    def forget(self, branch: bytes) -> None:
        """See `Storage.forget`."""
        with self._database.write(force=False) as transaction:
            self._table.forget(transaction.connection, branch)

    def _commit_again(self, connection: Connection, branch: bytes) -> bool:
        """Whether the branch is committed. If it was so without being forced, this makes up."""
        row = self._table.end(connection, branch, Outcome.COMMITTED, Outcome.COMMITTED)
        return row is not None

    def _roll_back(self, transaction: Transaction, branch: bytes) -> Outcome:
        connection = transaction.connection
        row = self._table.end_undone(connection, branch)
        if row is not None:
            # If this were lost while we live on, nobody would let go of the messages any more.
            transaction.force |= self._must_force and has_changes(row)
            self._table.undo(connection, row)
            return Outcome.ROLLED_BACK
        row = self._table.find(connection, branch)
        if row is None or row.outcome == Outcome.COMMITTED.value:
            raise self._refusal(branch, row)
        return Outcome(row.outcome)

    def _end_empty(
        self, connection: Connection, branch: bytes, row: AnyRow | None, outcome: Outcome
    ) -> None:
        """A branch that has changed nothing, and so has no row, has ended so."""
        live = self._live.get(branch)
        if row is not None or live is None:
            raise self._refusal(branch, row)
        if live.actions:
            raise _Torn
        self._table.add(connection, branch, outcome)

    @contextmanager
    def _ending(self, branch: bytes, force: bool) -> Iterator[Transaction]:
        with self._turn(branch, self._live.get(branch, Live())):
            with self._database.write(force) as transaction:
                yield transaction
            self._forget(branch)
        # Those who wait look again, and find the branch over or its messages free.
        self._released()
        self._prune_now_and_then()

    @contextmanager
    def _turn(self, branch: bytes, live: Live) -> Iterator[None]:
        with live.turn:
            try:
                yield
            except _Torn:
                with self._database.write() as transaction:
                    self._roll_back(transaction, branch)
                self._forget(branch)
                raise BranchEnded(
                    branch.hex(), "a part of it was lost with its database, so it was rolled back"
                ) from None

    def _may_have_changes(self, branch: bytes) -> bool:
        live = self._live.get(branch)
        return live is None or live.actions > 0

    def _check_owner(self, branch: bytes, row: AnyRow) -> None:
        """The branch is ours, and has done what we know of it."""
        if row.node != self._node:
            raise self._refusal(branch, row)
        if row.actions != self._live.get(branch, Live()).actions:
            raise _Torn

    def _refusal(self, branch: bytes, row: AnyRow | None) -> BranchEnded:
        if row is not None and row.node != self._node:
            return BranchEnded(branch.hex(), f"it belongs to node {row.node!r}")
        outcome = Outcome.UNKNOWN if row is None else Outcome(row.outcome)
        return BranchEnded(branch.hex(), outcome.name)

    def _forget(self, branch: bytes) -> None:
        with self._guard:
            self._live.pop(branch, None)

    # --- Looking

    def outcome(self, branch: bytes) -> Outcome:
        """See `Storage.outcome`."""
        with self._database.read() as connection:
            row = self._table.find(connection, branch)
        if row is not None:
            return Outcome(row.outcome)
        return Outcome.ACTIVE if branch in self._live else Outcome.UNKNOWN

    def branches(self) -> list[BranchInfo]:
        """See `Storage.branches`."""
        with self._guard:
            found = {name: BranchInfo(name, Outcome.ACTIVE, b"", 0, 0) for name in self._live}
        with self._database.read() as connection:
            found |= self._table.shown(connection)
        return [found[name] for name in sorted(found)]

    # --- Starting and stopping

    def undo_own(self) -> None:
        """No branch of this node is active."""
        for branch in tuple(self._live):
            self.rollback(branch)
        with self._database.write() as transaction:
            self._table.undo_own(transaction.connection)

    def _prune_now_and_then(self) -> None:
        with self._guard:
            self._ended_since_pruning += 1
            if self._ended_since_pruning < _PRUNED_EVERY:
                return
            self._ended_since_pruning = 0
        with self._database.write(force=False) as transaction:
            self._table.prune(transaction.connection)
