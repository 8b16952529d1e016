"""Queues in a transaction of zope's `transaction` package: a data manager for it.

    session = oncemq.joined(mq, transaction.manager.get())
    session.put("billing", b"invoice")
    transaction.commit()

The package is not imported: its transaction is handed in, and what it expects of a data manager is
here. It keeps no log, so that nobody is told how a transaction ended whose process died between the
votes and the end: `TwoPhase.tpc_recover` names the branches that were left so. Their names are the
data manager's own.
"""

from __future__ import annotations

from typing import Any, Protocol

from clients.connection import Connection
from clients.tpc import TwoPhase
from idl.proxies import new_request_id

FORMAT_ID = 0x5A4F50
# Behind all others: after its vote there is least time in which a crash leaves a branch.
SORT_KEY = "~oncemq"


class ZopeTransaction(Protocol):
    """What is used of a transaction of the package."""

    def join(self, resource: Any) -> None:
        """The data manager takes part."""


class QueueDataManager:
    """See `transaction.interfaces.IDataManager`; one for each transaction."""

    transaction_manager: Any = None

    def __init__(self, session: TwoPhase) -> None:
        self.session = session

    def abort(self, transaction: Any) -> None:
        """Nothing of it has happened, before the commit was begun, or after it has failed."""
        if self.session.is_at_work:
            self.session.tpc_rollback()

    def tpc_begin(self, transaction: Any) -> None:
        """The commit begins. The branch has begun with the first work."""

    def commit(self, transaction: Any) -> None:
        """The work is done. It is the vote that makes it durable."""

    def tpc_vote(self, transaction: Any) -> None:
        """It can be committed; raises where it cannot."""
        self.session.tpc_prepare()

    def tpc_finish(self, transaction: Any) -> None:
        """It is committed."""
        self.session.tpc_commit()

    def tpc_abort(self, transaction: Any) -> None:
        """Nothing of it has happened, after the commit was begun."""
        if self.session.is_at_work:
            self.session.tpc_rollback()

    def sortKey(self) -> str:
        """Where it comes among the data managers of a transaction."""
        return SORT_KEY


def joined(mq: Connection, transaction: ZopeTransaction, timeout: float = 30.0) -> TwoPhase:
    """What is put and got in the session belongs to the transaction of zope's package."""
    session = TwoPhase(mq)
    session.tpc_begin(session.xid(FORMAT_ID, new_request_id().hex(), "oncemq"), timeout)
    transaction.join(QueueDataManager(session))
    return session
