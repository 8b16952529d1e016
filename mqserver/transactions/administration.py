"""Branches as an operator sees them, and what an operator may do to them by hand.

A branch in doubt can be ended by hand when its coordinator is lost for good: a heuristic outcome,
which is recorded until it is forgotten and reported to the coordinator should that come back. All
of it is audited. Who may do so is for the orb's authorisation to say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from idl.cos import NotPrepared, Status, otid_t
from idl.mapping import InvalidValue
from idl.mq import BranchNotFound, mqBranchInfo, mqBranchInfoList
from idl.otids import GTRID_BYTES, otid_of, show, split_otid
from mqserver.storage.contract import BranchInfo, Outcome, Storage
from mqserver.transactions.branch import Request
from mqserver.transactions.resource import ask, branch_id

audit = logging.getLogger("oncemq.audit")

# A heuristic outcome is one that a coordinator would have to be asked about.
_STATUSES = {
    Outcome.ACTIVE: Status.ACTIVE,
    Outcome.PREPARED: Status.PREPARED,
    Outcome.HEURISTICALLY_COMMITTED: Status.COMMITTED,
    Outcome.HEURISTICALLY_ROLLED_BACK: Status.ROLLED_BACK,
}


class BranchAdministration:
    """The part of `Mq_Admin` that is about branches."""

    def __init__(
        self,
        storage: Storage,
        age_of: Callable[[bytes], float],
        owner_of: Callable[[bytes], str] = lambda branch: "",
    ) -> None:
        self._storage = storage
        self._age_of = age_of
        self._owner_of = owner_of

    def listBranches(self) -> mqBranchInfoList:
        """See `Mq_Admin.listBranches`."""
        ours = [info for info in self._storage.branches() if len(info.branch) >= GTRID_BYTES]
        return tuple(self._info(info) for info in ours)

    def decideBranch(self, otid: otid_t, commit: bool) -> None:
        """See `Mq_Admin.decideBranch`."""
        info = self._find(otid)
        if info.outcome is not Outcome.PREPARED:
            raise NotPrepared()
        word = "commits" if commit else "rolls back"
        audit.warning("an operator %s branch %s by hand", word, _shown(info.branch))
        request = Request.OPERATOR_COMMIT if commit else Request.OPERATOR_ROLLBACK
        ask(self._storage, info.branch, request)

    def forgetBranch(self, otid: otid_t) -> None:
        """See `Mq_Admin.forgetBranch`."""
        info = self._find(otid)
        audit.warning("an operator forgets branch %s", _shown(info.branch))
        ask(self._storage, info.branch, Request.FORGET)

    def _find(self, otid: otid_t) -> BranchInfo:
        try:
            wanted = branch_id(*split_otid(otid))
        except InvalidValue as wrong:
            raise BranchNotFound(otid) from wrong
        for info in self._storage.branches():
            if info.branch == wanted:
                return info
        raise BranchNotFound(otid)

    def _info(self, info: BranchInfo) -> mqBranchInfo:
        gtrid, name = info.branch[:GTRID_BYTES], info.branch[GTRID_BYTES:].decode("ascii")
        return mqBranchInfo(
            otid_of(gtrid, name),
            _STATUSES[info.outcome],
            self._owner_of(info.branch),
            max(0, int(self._age_of(info.branch))),
            info.stored,
            info.taken,
            info.recovery.decode("utf-8", "replace"),
        )


def _shown(branch: bytes) -> str:
    return f"{show(branch[:GTRID_BYTES])}/{branch[GTRID_BYTES:].decode('ascii')}"
