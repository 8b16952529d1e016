"""What this coordinator has decided about a branch, wherever that stands: table, names or log.

Asking changes nothing: a transaction that is only asked about does not become live by that. It
knows no database.
"""

from __future__ import annotations

from coordinator.decision_log import DecisionLog
from coordinator.fates import Verdict, verdict_of
from coordinator.sessions import Standing
from coordinator.transactions import Transactions
from idl.databases import BranchId


class Verdicts:
    """Answers from what the coordinator knows. May be used from any thread."""

    def __init__(self, transactions: Transactions, log: DecisionLog) -> None:
        self._transactions = transactions
        self._log = log

    @property
    def identity(self) -> bytes:
        """What the names of our transactions begin with."""
        return self._log.identity

    def of(self, branch: BranchId) -> Verdict:
        """What is decided about the branch."""
        ledger = self._log.ledger
        with self._transactions.lock:
            live = self._transactions.at_work(branch.gtrid)
            if live is not None:
                return verdict_of(live.state, branch.branch in live.numbers)
            standing = self._transactions.sessions.standing(branch.gtrid)
            if standing is Standing.UNDECIDED or branch.gtrid in ledger.decisions:
                return Verdict.UNDECIDED
            if standing is Standing.FOREIGN:
                return Verdict.UNKNOWN
            if ledger.was_named(branch.gtrid, branch.branch):
                return Verdict.COMMITTED
            # It is prepared, so a decision that names it would still be live.
            return Verdict.ROLLED_BACK

    def is_over(self, gtrid: bytes) -> bool:
        """Whether nobody will be told anything about it any more."""
        with self._transactions.lock:
            if self._transactions.at_work(gtrid) is not None or gtrid in self._log.ledger.decisions:
                return False
            standing = self._transactions.sessions.standing(gtrid)
            return standing not in (Standing.UNDECIDED, Standing.FOREIGN)

    def is_known_committed(self, gtrid: bytes) -> bool:
        """Whether it was committed: by the log, or by what is known since the start.

        The second is all there is of one whose mark was its only part: nobody else will ask.
        """
        if self._log.ledger.is_committed(gtrid):
            return True
        with self._transactions.lock:
            standing = self._transactions.sessions.standing(gtrid)
        return standing is Standing.COMMITTED

    def force(self) -> None:
        """What the log says of ended transactions is on disk."""
        self._log.force_all()
