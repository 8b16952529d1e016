"""Transactions whose owner may be gone: the coordinator is asked, so that locks are not kept long.

A client that has died leaves branches behind that hold messages. The coordinator learns of it soon,
because the client's session falls silent, and rolls its transactions back; but it does not know of
branches that were never prepared. So a node asks for those of which it has heard nothing for a
while. Rolling back is always allowed before the vote: what is decided here is only when.

Where the coordinator is not there, or the transaction is under way, `Orphans` rolls it back later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from idl import system
from idl.call import Orb, limited
from idl.coordination import Mq_Coordinator
from idl.cos import Status
from idl.mapping import InvalidValue
from idl.otids import GTRID_BYTES, IDENTITY_BYTES, otid_of
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
        for branch in due[:ASKED_AT_ONCE_MAX]:
            self._asked[branch] = now
            try:
                is_over = self._is_over(self._coordinator, branch)
            except (system.SystemException, InvalidValue) as unclear:
                log.info("the coordinator does not say what became of silent work: %s", unclear)
                return
            if is_over:
                log.info(
                    "silent work of a transaction that is over is given up", extra=named(branch)
                )
                self._work.give_up(branch)

    def _is_over(self, coordinator: Mq_Coordinator, branch: bytes) -> bool:
        gtrid = branch[:GTRID_BYTES]
        with limited(self._call_s):
            status = coordinator.getOutcome(otid_of(gtrid)).status
        identity = gtrid[:IDENTITY_BYTES]
        if status is Status.UNKNOWN:
            # Perhaps another coordinator's, where it is well known.
            return identity in self._identities
        self._identities.add(identity)
        return status not in _UNDER_WAY
