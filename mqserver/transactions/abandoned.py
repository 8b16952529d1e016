"""Transactions whose owner may be gone: the coordinator is asked, so that locks are not kept long.

A client that has died leaves branches behind that hold messages. The coordinator learns of it soon,
because the client's session falls silent, and rolls its transactions back; but it does not know of
branches that were never prepared. So a node asks for those of which it has heard nothing for a
while. Rolling back is always allowed before the vote: what is decided here is only when.

A transaction that the coordinator itself has named is shared: many work for it, at different times,
and the coordinator ends it when its time is over. As long as it is under way there, its branches
count as heard of. Others that are under way, and those of which nobody says anything, are rolled
back later by `Orphans`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from idl import system
from idl.call import Orb, limited
from idl.coordination import Mq_Coordinator
from idl.cos import Status
from idl.mapping import InvalidValue
from idl.otids import GTRID_BYTES, IDENTITY_BYTES, is_of_coordinator, otid_of
from mqserver.errors import BranchEnded
from mqserver.transactions.requests import named
from mqserver.transactions.work import Work

log = logging.getLogger("oncemq.node")

COORDINATION = "coordination"
ASKED_AT_ONCE_MAX = 100

_UNDER_WAY = (
    Status.ACTIVE,
    Status.MARKED_ROLLBACK,
    Status.PREPARING,
    Status.PREPARED,
    Status.COMMITTING,
)


class Abandoned:
    """Asks for silent branches, and gives up those that are over. One thread at a time calls it."""

    def __init__(
        self,
        orb: Orb,
        coordinator: str,
        work: Work,
        clock: Callable[[], float],
        after_s: float,
        call_s: float,
    ) -> None:
        self._work = work
        self._clock = clock
        self._after_s = after_s
        self._call_s = call_s
        self._asked: dict[bytes, float] = {}
        # Coordinators that have known a transaction: what they do not know any more is over.
        self._identities: set[bytes] = set()
        self._coordinator = (
            orb.proxy(f"PYRO:{COORDINATION}@{coordinator}", Mq_Coordinator) if coordinator else None
        )

    def ask(self) -> None:
        """Branches that were silent for long, and whose transaction is over, are rolled back."""
        if self._coordinator is None:
            return
        now = self._clock()
        silent = self._work.silent_since(now - self._after_s)
        self._asked = {branch: self._asked.get(branch, 0.0) for branch in silent}
        due = [b for b in silent if not self._asked[b] or now - self._asked[b] >= self._after_s]
        found: dict[bytes, Status] = {}
        for branch in due:
            gtrid = branch[:GTRID_BYTES]
            if gtrid not in found:
                if len(found) >= ASKED_AT_ONCE_MAX:
                    continue
                try:
                    found[gtrid] = self._ask_for(self._coordinator, gtrid)
                except (system.SystemException, InvalidValue) as unclear:
                    log.info("the coordinator does not say what became of silent work: %s", unclear)
                    return
            self._asked[branch] = now
            self._conclude(branch, found[gtrid])

    def _conclude(self, branch: bytes, status: Status) -> None:
        gtrid = branch[:GTRID_BYTES]
        if status in _UNDER_WAY:
            if is_of_coordinator(gtrid):
                self._keep(branch)
        elif status is not Status.UNKNOWN or gtrid[:IDENTITY_BYTES] in self._identities:
            # What is unknown may be another coordinator's, where it is well known.
            log.info("silent work of a transaction that is over is given up", extra=named(branch))
            self._work.give_up(branch)

    def _keep(self, branch: bytes) -> None:
        with contextlib.suppress(BranchEnded):
            self._work.find(branch, self._work.owner_of(branch))

    def _ask_for(self, coordinator: Mq_Coordinator, gtrid: bytes) -> Status:
        with limited(self._call_s):
            status = coordinator.getOutcome(otid_of(gtrid)).status
        if status is not Status.UNKNOWN:
            self._identities.add(gtrid[:IDENTITY_BYTES])
        return status
