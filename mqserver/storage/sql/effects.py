"""What the end of a branch does to messages and marks: statements over sets, by the old state.

They are built once for the branch that is bound to the parameter `by_branch`, and once for all
branches that a start undoes. The arrows are those of the drawing in `schema.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import (
    ColumnElement,
    Executable,
    Update,
    and_,
    delete,
    func,
    select,
    update,
)

from mqserver.storage.sql.schema import (
    COMMITTED,
    DEQUEUED,
    ENQUEUED,
    EVERYBODY,
    IS_HELD,
    branch_mark,
    mark,
    message,
    wait,
)
from mqserver.storage.sql.vendor import Vendor

Statements = tuple[Executable, ...]


class Effects(NamedTuple):
    """Statements, each group to be executed in order inside one transaction."""

    publish_stored: Statements
    remove_taken: Statements
    raise_marks: Statements
    undo: Statements


def effects_of(
    vendor: Vendor, meant: Callable[[ColumnElement[int]], ColumnElement[bool]]
) -> Effects:
    """The effects of the branches whose number, in a column, is `meant`."""
    held = and_(IS_HELD, meant(message.c.vsf))
    drop_marks = delete(branch_mark).where(meant(branch_mark.c.branch))
    return Effects(
        # (e, a) → (c, 0)
        publish_stored=(_free(held, ENQUEUED),),
        # (d, b) → gone
        remove_taken=vendor.removal(held, message.c.lsf == DEQUEUED),
        raise_marks=(_raise_marks(vendor, meant(branch_mark.c.branch)), drop_marks),
        undo=(
            # (e, a) and (d, a) → gone, first, so that what is dequeued then is others' messages.
            *vendor.removal(held, message.c.branch == message.c.vsf),
            # (d, b) → (c, 0)
            _free(held, DEQUEUED),
            drop_marks,
            delete(wait).where(meant(wait.c.branch)),
        ),
    )


def _free(held: ColumnElement[bool], state: str) -> Update:
    return update(message).where(held, message.c.lsf == state).values(lsf=COMMITTED, vsf=EVERYBODY)


def _raise_marks(vendor: Vendor, meant: ColumnElement[bool]) -> Executable:
    wanted = (
        select(branch_mark.c.application, func.max(branch_mark.c.version))
        .where(meant)
        .group_by(branch_mark.c.application)
        # In one order, so that two that raise the same marks do not wait for each other.
        .order_by(branch_mark.c.application)
    )
    raising = vendor.insert(mark).from_select(["application", "version"], wanted)
    return raising.on_conflict_do_update(
        index_elements=[mark.c.application],
        set_={"version": raising.excluded.version},
        where=mark.c.version < raising.excluded.version,
    )
