"""Nodes that decide: what was decided there, asked in the words in which marks are asked for.

A transaction may be decided by the commit of its last branch, at that branch's node (Mq_Decider).
Whoever else is prepared asks the coordinator, and the coordinator asks that node, as it asks the
database where a mark decides. It keeps nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator.database_drivers import Unreachable
from idl import system
from idl.call import Address, Orb, limited
from idl.cos import Status
from idl.databases import COMMITTED, ROLLED_BACK
from idl.decider import DECIDER, Mq_Decider
from idl.otids import otid_of

CALL_S = 5.0
# So long an owner may take between the first vote and the decision.
GRACE_S = 20.0

_MARKS = {
    Status.COMMITTED: COMMITTED,
    Status.ROLLED_BACK: ROLLED_BACK,
    Status.NO_TRANSACTION: None,
}


class DecidingNode:
    """A node, as somebody who keeps marks. See `Keeper`."""

    grace_s = GRACE_S

    def __init__(self, orb: Orb, address: Address, host: str) -> None:
        """The node was named by somebody who called from this host."""
        self._where = f"the node at {address}"
        try:
            self._decider = orb.named(f"PYRO:{DECIDER}@{address}", Mq_Decider, host)
        except system.NO_PERMISSION as stranger:
            raise Unreachable(
                f"{self._where} is not trusted: see `trusted` in the coordinator's settings"
            ) from stranger

    def mark(self, gtrid: bytes) -> str | None:
        """See `Keeper.mark`."""
        return _MARKS[self._ask(self._decider.getDecision, gtrid)]

    def fence(self, gtrid: bytes) -> str:
        """See `Keeper.fence`."""
        told = _MARKS[self._ask(self._decider.fence, gtrid)]
        if told is None:
            raise Unreachable(f"{self._where} has put up no fence")
        return told

    def _ask(self, question: Callable[..., Status], gtrid: bytes) -> Status:
        try:
            with limited(CALL_S):
                told = question(otid_of(gtrid))
        except system.SystemException as silent:
            raise Unreachable(f"{self._where} does not say: {silent.reason}") from silent
        if told not in _MARKS:
            raise Unreachable(f"{self._where} says {told.name}, which is no decision")
        return told
