"""Who has run out of time: transactions past their deadline, and owners that fell silent.

Only what is not decided is rolled back by time; a decision stands, and a participant in doubt waits
for it however long that takes. The clock only goes forward, so that setting a machine's date ends
nothing.
"""

from __future__ import annotations

from coordinator.family import Family
from coordinator.live import Live, Settings
from coordinator.protocol import Event, Kind
from coordinator.tasks import Tasks
from coordinator.transactions import Transactions
from idl.cos import Status

UNDECIDED = (Status.ACTIVE, Status.MARKED_ROLLBACK, Status.PREPARING)


class Timeouts:
    """Looks, now and then, for what has run out of time."""

    def __init__(
        self, transactions: Transactions, family: Family, tasks: Tasks, settings: Settings
    ) -> None:
        self._transactions = transactions
        self._family = family
        self._tasks = tasks
        self._settings = settings
        self._is_closed = False

    def start(self) -> None:
        """It is looked for from now on."""
        self._tasks.after(self._settings.sweep_s, self._sweep)

    def close(self) -> None:
        """Nothing is rolled back by time any more."""
        self._is_closed = True

    def end_session(self, number: int, reason: str) -> None:
        """The session is over, and what it had not decided is rolled back."""
        with self._transactions.lock:
            # First, so that nothing of it can be decided from here on without being live.
            self._transactions.sessions.end(number)
            held = [live for live in self._transactions.every() if number in live.sessions]
            for live in held:
                live.sessions.discard(number)
            left = [live for live in held if not live.sessions]
        for live in left:
            self._roll_back(live, reason)

    def _sweep(self) -> None:
        if self._is_closed:
            return
        now = self._tasks.now()
        with self._transactions.lock:
            silent = self._transactions.sessions.silent(now)
        for number in silent:
            self.end_session(number, "its owner fell silent")
        for live in self._transactions.every():
            if live.deadline is not None and live.deadline <= now and live.parent is None:
                self._roll_back(live, "it ran out of time")
        self._tasks.after(self._settings.sweep_s, self._sweep)

    def _roll_back(self, live: Live, reason: str) -> None:
        if live.state.status in UNDECIDED:
            self._tasks.spawn(self._roll_back_now, live, reason)

    def _roll_back_now(self, live: Live, reason: str) -> None:
        for child in self._family.closed(live):
            self._roll_back_now(child, reason)
        self._transactions.feed(live, Event(Kind.ROLLBACK, reason=reason))
