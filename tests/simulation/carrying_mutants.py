"""Planted bugs of puts that databases carry: each is a mistake that somebody could make.

None of them is in the product, and none has a switch there. A mutant is a patch that changes the
node, the owners or the database of `carrying.py`; `test_carrying.py` runs it and expects that it is
found. That those at work are left alone, and that they exclude each other, is no bug if it is not
so: whoever takes over rolls back first what was held, and that alone excludes the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.database_drivers import Unreachable
from idl.cos import Status
from idl.custody import NOBODY, Mq_Custody, mqCarried
from idl.otids import GTRID_BYTES, otid_of
from mqserver.interfaces import carried
from mqserver.storage.contract import Storage
from mqserver.transactions import custody as custody_module
from mqserver.transactions.custodian import Custodian
from mqserver.transactions.custody import OWN, Custody, Mark
from mqserver.transactions.requests import TAKEN_OVER
from mqserver.transactions.work import Work
from tests.simulation.carrying import NODE, WORKING, Holding
from tests.simulation.carrying_database import Row, SimulatedDatabase
from tests.simulation.carrying_owners import Holder

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]


# --- Marks ---------------------------------------------------------------------------------------


def row_removed_before_it_is_forced(patch: Patch) -> None:
    """What was delivered is not on disk when its row goes."""
    patch.setattr(Custody, "force", lambda self: None)


def mark_forgotten_before_the_row_is_gone(patch: Patch) -> None:
    """The mark goes first, then the row."""

    def remove(self: Custodian, relay: Mq_Custody, database: str, gtrids: list[bytes]) -> None:
        self._custody.force()
        self._custody.forget(gtrids)
        otids = tuple([otid_of(gtrid) for gtrid in gtrids])
        relay.forgetCarried(database, self._custody.secret, otids)

    patch.setattr(Custodian, "_remove_some", remove)


def mark_forgotten_while_rows_are_looked_at(patch: Patch) -> None:
    """Rows and marks are removed while an answer is looked at that still has the rows."""
    real = Custodian._look_into

    def look_into(self: Custodian, database: str, age_s: float) -> None:
        assert self._relay is not None
        relay, get = self._relay, self._relay.getCarried

        class Between:
            def getCarried(self, *arguments: Any) -> tuple[mqCarried, ...]:
                rows = get(*arguments)
                outer._tried(outer._remove)
                return rows

            def __getattr__(self, name: str) -> Any:
                return getattr(relay, name)

        outer, made = self, Between()
        self._relay = made
        try:
            real(self, database, age_s)
        finally:
            self._relay = relay

    patch.setattr(Custodian, "_look_into", look_into)


def mark_in_another_branch(patch: Patch) -> None:
    """The mark is stored, and committed, by itself."""

    def store_mark(self: Custody, branch: bytes, gtrid: bytes, database: str) -> int:
        own = OWN + self._new_id()
        key = real(self, own, gtrid, database)
        self._storage.commit_one_phase(own, False)
        return key

    real = Custody._store_mark
    patch.setattr(Custody, "_store_mark", store_mark)


def marks_not_looked_at(patch: Patch) -> None:
    """What is taken over is put, whether it has a mark or not."""
    real = Custody.take_over

    def take_over(self: Custody, branch: bytes, *rest: Any) -> bool:
        self._marks.pop(branch[:GTRID_BYTES], None)
        return real(self, branch, *rest)

    patch.setattr(Custody, "has", lambda self, gtrid: gtrid in self._at_work)
    patch.setattr(Custody, "take_over", take_over)


def marks_not_loaded(patch: Patch) -> None:
    """A node that starts does not look for its marks."""
    real = Custody.load

    def load(self: Custody) -> None:
        real(self)
        self._marks = NoMarks()

    patch.setattr(Custody, "load", load)


class NoMarks(dict[bytes, Mark]):
    """Those that were found at the start are not here."""


# --- Taking over ---------------------------------------------------------------------------------


def taken_over_without_rolling_back_first(patch: Patch) -> None:
    """What is held stays held while it is put in another branch."""
    real = carried._unpacked

    def unpacked(body: bytes) -> Any:
        return ("nobody", *real(body)[1:])

    patch.setattr(carried, "_unpacked", unpacked)


def one_branch_for_all_attempts(patch: Patch) -> None:
    """What is taken over is put in the same branch, also where that has failed."""

    def branch(storage: Storage, gtrid: bytes) -> bytes:
        return gtrid + TAKEN_OVER + b"1"

    patch.setattr(custody_module, "branch_taken_over", branch)


def taken_over_in_a_branch_of_owners(patch: Patch) -> None:
    """The branch for it may be the one that held it."""

    def branch(storage: Storage, gtrid: bytes) -> bytes:
        return gtrid + b"n2"

    patch.setattr(custody_module, "branch_taken_over", branch)


def taking_over_not_noted(patch: Patch) -> None:
    """Of what was held it is remembered that it was rolled back, and not why."""
    patch.setattr(Work, "was_taken_over", lambda self, branch: None)


def ticket_not_checked(patch: Patch) -> None:
    """Whoever writes a row has it put."""
    patch.setattr(Custody, "check", lambda self, gtrid, ticket, content: None)


def not_cleared_up(patch: Patch) -> None:
    """What the storage could not tell of a commit is never found out."""
    patch.setattr(Custody, "clear_up", lambda self, gtrid: None)


# --- Owners and coordinator ----------------------------------------------------------------------


def unknown_is_rolled_back(patch: Patch) -> None:
    """That a node knows nothing of the transaction is taken for a rollback."""
    real = Holder.ask_for_all

    def ask(self: Holder) -> Status:
        status = real(self)
        return Status.ROLLED_BACK if status is Status.NO_TRANSACTION else status

    patch.setattr(Holder, "ask_for_all", ask)


def only_the_branch_is_asked_for(patch: Patch) -> None:
    """The owner asks what became of its branch, not of all that was put for the transaction."""

    def ask(self: Holder) -> Status:
        outcome = self.owner.at(NODE, WORKING, Holding).outcome
        return self.owner.insist(outcome, otid_of(self.gtrid, self.branch.name))

    patch.setattr(Holder, "ask_for_all", ask)


def node_not_asked_behind_a_fence(patch: Patch) -> None:
    """That there is no row any more is taken for a rollback."""
    patch.setattr(Holder, "ask_for_all", lambda self: Status.ROLLED_BACK)


def fenced_after_looking(patch: Patch) -> None:
    """The row is looked for, and then the fence is put up, if there is room for it."""

    def fence(self: SimulatedDatabase, gtrid: bytes) -> bool:
        self._reach(_away())
        found = self.rows.get(gtrid.hex())
        if found is not None:
            return found.node != NOBODY
        self._world.sleep(self._world.random.uniform(0.0, 1.0))
        self.rows.setdefault(gtrid.hex(), Row(NOBODY, b"", self._world.now()))
        return False

    patch.setattr(SimulatedDatabase, "fence", fence)


def no_fence(patch: Patch) -> None:
    """That there is no row yet is told, and nothing keeps it from coming."""

    def fence(self: SimulatedDatabase, gtrid: bytes) -> bool:
        self._reach(_away())
        return gtrid.hex() in self.rows

    patch.setattr(SimulatedDatabase, "fence", fence)


def _away() -> Exception:
    return Unreachable("it is away")
