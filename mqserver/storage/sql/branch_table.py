"""The table of branches: the statements on it, built once, and what their rows mean.

Every step from one state to another is one statement that names the state before; it returns no row
where the branch was in another. Nothing here decides; see `branches.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    bindparam,
    delete,
    func,
    select,
    update,
)

from mqserver.storage.contract import OUTCOMES_KEPT, BranchInfo, Outcome
from mqserver.storage.sql.effects import Statements, effects_of
from mqserver.storage.sql.schema import DEQUEUED, EVERYBODY, branch, message
from mqserver.storage.sql.vendor import AnyRow, Vendor

HEURISTIC = (Outcome.HEURISTICALLY_COMMITTED, Outcome.HEURISTICALLY_ROLLED_BACK)

# What an action may do; an empty text is one that changes nothing.
FLAGS = ("has_stored", "has_taken", "has_marks", "")

_COLUMNS = (
    branch.c.number,
    branch.c.node,
    branch.c.outcome,
    branch.c.actions,
    branch.c.has_stored,
    branch.c.has_taken,
    branch.c.has_marks,
)
_MEANT = branch.c.id == bindparam("branch_id")
_FIND = select(*_COLUMNS).where(_MEANT)
_SHOWN = select(branch).where(branch.c.ended.is_(None))
_FORGET = delete(branch).where(_MEANT, branch.c.outcome.in_([it.value for it in HEURISTIC]))
_DECIDE = (
    update(branch)
    .where(branch.c.number == bindparam("by_branch"))
    .values(
        outcome=bindparam("new"),
        stored=bindparam("how_many_stored"),
        taken=bindparam("how_many_taken"),
    )
)
_PREPARE = (
    update(branch)
    .where(_MEANT, branch.c.outcome == Outcome.ACTIVE.value)
    .values(outcome=Outcome.PREPARED.value, recovery=bindparam("told"))
    .returning(*_COLUMNS)
)
# How many messages the branches hold that they have stored, and that they have taken.
_CHANGES = (
    select(
        message.c.vsf,
        func.count().filter(message.c.branch == message.c.vsf).label("stored"),
        func.count().filter(message.c.lsf == DEQUEUED).label("taken"),
    )
    .where(message.c.vsf > EVERYBODY)
    .group_by(message.c.vsf)
)
_CHANGES_OF_ONE = _CHANGES.where(message.c.vsf == bindparam("by_branch"))


def has_changes(row: AnyRow) -> bool:
    """Whether the branch has done anything that its end makes happen."""
    return bool(row.has_stored or row.has_taken or row.has_marks)


class BranchTable:
    """What one node says to the table."""

    def __init__(self, vendor: Vendor, node: str) -> None:
        self._vendor = vendor
        self._node = node
        self._act = {flag: self._acting(flag) for flag in FLAGS}
        self._end = self._ending()
        self._undo = self._undoing()
        self._add = vendor.insert(branch).values(
            {**self._new(Outcome.UNKNOWN), "outcome": bindparam("new"), "ended": vendor.next_end()}
        )
        self._effects = effects_of(vendor, lambda column: column == bindparam("by_branch"))
        self._prune = self._pruning()

    # --- Steps

    def act(self, connection: Connection, name: bytes, flag: str) -> AnyRow | None:
        """The row of the branch, which is active and ours, and has done one more action."""
        return connection.execute(self._act[flag], {"branch_id": name}).one_or_none()

    def prepare(self, connection: Connection, name: bytes, recovery: bytes) -> AnyRow | None:
        """The row of the branch, which was active and is prepared."""
        values = {"branch_id": name, "told": recovery}
        return connection.execute(_PREPARE, values).one_or_none()

    def end(self, connection: Connection, name: bytes, old: Outcome, new: Outcome) -> AnyRow | None:
        """The row of the branch, which was the one and has ended as the other."""
        values = {"branch_id": name, "old": old.value, "new": new.value}
        return connection.execute(self._end, values).one_or_none()

    def end_undone(self, connection: Connection, name: bytes) -> AnyRow | None:
        """The row of the branch, which was unknown, active or prepared, and is rolled back."""
        return connection.execute(self._undo, {"branch_id": name}).one_or_none()

    def add(self, connection: Connection, name: bytes, outcome: Outcome) -> None:
        """A branch without a row has ended so."""
        connection.execute(self._add, {"branch_id": name, "new": outcome.value})

    def decide(self, connection: Connection, row: AnyRow, outcome: Outcome) -> None:
        """An operator has ended the branch; what it held is not yet changed."""
        values = {"by_branch": row.number, "new": outcome.value}
        counted = connection.execute(_CHANGES_OF_ONE, values).one_or_none()
        stored, taken = (counted.stored, counted.taken) if counted is not None else (0, 0)
        values |= {"how_many_stored": stored, "how_many_taken": taken}
        connection.execute(_DECIDE, values)

    def forget(self, connection: Connection, name: bytes) -> None:
        """A branch that an operator has ended has no row."""
        connection.execute(_FORGET, {"branch_id": name})

    # --- Effects

    def apply(self, connection: Connection, row: AnyRow) -> None:
        """All that the branch did has happened."""
        if row.has_stored:
            _execute(connection, self._effects.publish_stored, row)
        if row.has_taken:
            _execute(connection, self._effects.remove_taken, row)
        if row.has_marks:
            _execute(connection, self._effects.raise_marks, row)

    def undo(self, connection: Connection, row: AnyRow) -> None:
        """Nothing that the branch did has happened."""
        if has_changes(row):
            _execute(connection, self._effects.undo, row)

    def undo_own(self, connection: Connection) -> None:
        """No branch of this node is active."""
        is_active = (
            branch.c.ended.is_(None),
            branch.c.node == self._node,
            branch.c.outcome == Outcome.ACTIVE.value,
        )
        numbers = select(branch.c.number).where(*is_active)
        if connection.scalars(numbers.limit(1)).first() is None:
            return
        for statement in effects_of(self._vendor, lambda column: column.in_(numbers)).undo:
            connection.execute(statement)
        ended = {"outcome": Outcome.ROLLED_BACK.value, "ended": self._vendor.next_end()}
        connection.execute(update(branch).where(*is_active).values(ended))

    def prune(self, connection: Connection) -> None:
        """Of the branches of this node that have ended, the last are remembered."""
        connection.execute(self._prune)

    # --- Looking

    def find(self, connection: Connection, name: bytes, alone: bool = False) -> AnyRow | None:
        """The row of the branch; alone, nobody changes it during this transaction."""
        found = _FIND.with_for_update() if alone else _FIND
        return connection.execute(found, {"branch_id": name}).one_or_none()

    def shown(self, connection: Connection) -> dict[bytes, BranchInfo]:
        """The branches that have not ended, or that an operator has ended."""
        rows: Sequence[AnyRow] = connection.execute(_SHOWN).all()
        changes = {
            number: (stored, taken) for number, stored, taken in connection.execute(_CHANGES)
        }
        found = {}
        for row in rows:
            stored, taken = changes.get(row.number, (row.stored, row.taken))
            found[row.id] = BranchInfo(row.id, Outcome(row.outcome), row.recovery, stored, taken)
        return found

    # --- Statements

    def _new(self, outcome: Outcome) -> dict[str, object]:
        return {
            "id": bindparam("branch_id"),
            "node": self._node,
            "outcome": outcome.value,
            "actions": 0,
            "has_stored": False,
            "has_taken": False,
            "has_marks": False,
            "recovery": b"",
            "stored": 0,
            "taken": 0,
        }

    def _acting(self, flag: str) -> Executable:
        actions = 1 if flag else 0
        flags: dict[str, object] = {flag: True} if flag else {}
        new = {**self._new(Outcome.ACTIVE), "actions": actions, **flags}
        is_ours = (branch.c.outcome == Outcome.ACTIVE.value) & (branch.c.node == self._node)
        return (
            self._vendor.insert(branch)
            .values(new)
            .on_conflict_do_update(
                index_elements=[branch.c.id],
                set_={"actions": branch.c.actions + actions, **flags},
                where=is_ours,
            )
            .returning(*_COLUMNS)
        )

    def _ending(self) -> Executable:
        return (
            update(branch)
            .where(_MEANT, branch.c.outcome == bindparam("old"))
            .values(outcome=bindparam("new"), ended=self._vendor.next_end())
            .returning(*_COLUMNS)
        )

    def _undoing(self) -> Executable:
        ended: dict[str, object] = {"ended": self._vendor.next_end()}
        undone = {"outcome": Outcome.ROLLED_BACK.value, **ended}
        living: ColumnElement[bool] = branch.c.outcome.in_(
            [Outcome.ACTIVE.value, Outcome.PREPARED.value]
        )
        return (
            self._vendor.insert(branch)
            .values({**self._new(Outcome.ROLLED_BACK), **ended})
            .on_conflict_do_update(index_elements=[branch.c.id], set_=undone, where=living)
            .returning(*_COLUMNS)
        )

    def _pruning(self) -> Executable:
        own = branch.c.node == self._node
        oldest = (
            select(branch.c.ended)
            .where(own, branch.c.ended.is_not(None))
            .order_by(branch.c.ended.desc())
            .limit(1)
            .offset(OUTCOMES_KEPT)
            .scalar_subquery()
        )
        return delete(branch).where(own, branch.c.ended <= oldest)


def _execute(connection: Connection, statements: Statements, row: AnyRow) -> None:
    for statement in statements:
        connection.execute(statement, {"by_branch": row.number})
