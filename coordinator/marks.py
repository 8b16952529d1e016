"""Transactions that a mark decides: what their participants are told, and when a fence is put up.

The mark, a row in the database that has no two-phase commit, is the decision; it is written by the
transaction's owner, in its own commit. Whoever asks while there is none is told "not yet" as long
as the owner lives and it was not asked for long. After that the question is settled there, once and
for all: a fence in the mark's place. A database that cannot be reached says nothing, and so nothing
is told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from coordinator.database import Database
from coordinator.fates import Telling, Verdict, telling
from coordinator.verdicts import Verdicts
from idl.cos import Status
from idl.databases import COMMITTED, BranchId

ASKED_KEPT = 10_000

# The transaction can only be rolled back here too, unless it was decided before.
RollBack = Callable[[bytes], object]


class Marks:
    """Answers for marked transactions. May be used from any thread."""

    def __init__(
        self,
        find: Callable[[str], Database],
        verdicts: Verdicts,
        clock: Callable[[], float],
        roll_back: RollBack,
    ) -> None:
        self._find = find
        self._verdicts = verdicts
        self._clock = clock
        self._roll_back = roll_back
        self._lock = threading.Lock()
        # When each transaction was first asked about, the oldest first.
        self._asked: dict[bytes, float] = {}

    def answer(self, name: str, branch: BranchId) -> Status:
        """What the branch is told; the mark is in the database of this name.

        Raises `DatabaseTrouble` when the database says nothing.
        """
        database = self._find(name)
        verdict = self._verdicts.of(branch)
        if verdict is Verdict.COMMITTED:
            # Told by the owner; the database may be away by now.
            return Status.COMMITTED
        mark = database.mark(branch.gtrid)
        is_patient = self._age_s(branch.gtrid) < database.registered.grace_s
        told = telling(verdict, mark, is_patient)
        if told is Telling.FENCE:
            return Status.COMMITTED if self.settle(name, branch.gtrid) else Status.ROLLED_BACK
        said: Status = told.value
        return said

    def settle(self, name: str, gtrid: bytes) -> bool:
        """Whether it is committed; if nobody had decided so, it is now rolled back for ever."""
        # The fence comes first: what is rolled back here before it could be committed there.
        if self._find(name).fence(gtrid) == COMMITTED:
            return True
        self._roll_back(gtrid)
        return False

    def _age_s(self, gtrid: bytes) -> float:
        now = self._clock()
        with self._lock:
            since = self._asked.setdefault(gtrid, now)
            while len(self._asked) > ASKED_KEPT:
                del self._asked[next(iter(self._asked))]
        return now - since
