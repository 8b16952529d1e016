"""Transactions that a mark decides: what their participants are told, and when a fence is put up.

The mark is the decision: a row in the database that has no two-phase commit, or what a node keeps
that has committed the last branch. It is written by the transaction's owner. Whoever asks while
there is none is told "not yet" as long as the owner lives and it was not asked for long. After that
the question is settled there, once and for all: a fence in the mark's place. Who keeps the mark and
cannot be reached says nothing, and so nothing is told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from coordinator.fates import Telling, Verdict, telling
from coordinator.verdicts import Verdicts
from idl.cos import Status
from idl.databases import COMMITTED, BranchId

ASKED_KEPT = 10_000

# The transaction can only be rolled back here too, unless it was decided before.
RollBack = Callable[[bytes], object]


class Keeper(Protocol):
    """Who keeps marks: a database or a node. Both questions raise `DatabaseTrouble`."""

    @property
    def grace_s(self) -> float:
        """So long an owner may take to decide."""

    def mark(self, gtrid: bytes) -> str | None:
        """Committed or rolled back, or nothing is decided."""

    def fence(self, gtrid: bytes) -> str:
        """The same; but what is not decided is rolled back from now on, for ever."""


class Marks:
    """Answers for marked transactions. May be used from any thread."""

    def __init__(
        self,
        find: Callable[[str], Keeper],
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
        """What the branch is told; the mark is in the database of this name, or at the node.

        Raises `DatabaseTrouble` when that says nothing.
        """
        keeper = self._find(name)
        verdict = self._verdicts.of(branch)
        if verdict is Verdict.COMMITTED:
            # Told by the owner; who keeps the mark may be away by now.
            return Status.COMMITTED
        mark = keeper.mark(branch.gtrid)
        is_patient = self._age_s(branch.gtrid) < keeper.grace_s
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
