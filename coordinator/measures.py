"""What a coordinator measures: its transactions, its log and disk, and who is connected.

It only reads, when somebody asks. What a client and one node settle between them never comes here,
and is counted by the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from coordinator.service import Service
from idl.cos import Status
from idl.measures import Durations, Measure, counters, durations, gauge, gauges

# What CosTransactions calls them, in words; all others are on their way to one of these.
_STATES = {
    Status.ACTIVE: "active",
    Status.MARKED_ROLLBACK: "active",
    Status.COMMITTING: "committing",
    Status.ROLLING_BACK: "rolling back",
}
_VOTING = "voting"


class CoordinatorMeasures:
    """The measures of a coordinator."""

    def __init__(
        self, service: Service, connections: Callable[[], tuple[int, int]], syncs: Durations
    ) -> None:
        self._service = service
        self._connections = connections
        self._syncs = syncs

    def __call__(self) -> Iterator[Measure]:
        """All of them, at this moment."""
        yield from self._of_transactions()
        inside, waiting = self._connections()
        yield gauges(
            "oncemq_connections",
            "Connections, by whether they have proven who they are.",
            "state",
            {"logged in": inside, "before login": waiting},
        )
        sessions = self._service.transactions.sessions.count
        yield gauge("oncemq_sessions", "Clients that have given a sign of life.", sessions)
        log_bytes = self._service.log.log_bytes
        yield gauge("oncemq_log_bytes", "How much of the log a start would read.", log_bytes)
        yield durations(
            "oncemq_sync_seconds",
            "How long the disk takes to make safe what was written.",
            self._syncs.spread(),
        )

    def _of_transactions(self) -> Iterator[Measure]:
        transactions = self._service.transactions
        committed, rolled_back = self._service.ended()
        yield counters(
            "oncemq_transactions_ended_total",
            "Transactions that were ended here, by how they ended.",
            "outcome",
            {"committed": committed, "rolled back": rolled_back},
        )
        live = transactions.every()
        found = Counter(_STATES.get(each.state.status, _VOTING) for each in live)
        states = {state: float(found[state]) for state in (*_STATES.values(), _VOTING)}
        yield gauges("oncemq_transactions", "Transactions that are not over.", "state", states)
        now = transactions.tasks.now()
        undelivered = [each for each in live if each.state.status is Status.COMMITTING]
        yield gauge(
            "oncemq_undelivered_oldest_seconds",
            "Age of the oldest transaction that is decided and that some participant has not "
            "carried out; since the start at most.",
            max((now - each.begun_at for each in undelivered), default=0.0),
        )
        yield gauge(
            "oncemq_heuristics",
            "Transactions with heuristic outcomes that nobody has dismissed.",
            len(transactions.with_heuristics()),
        )
