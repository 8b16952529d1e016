"""The coordinator, put together: its log, its transactions, and where their objects are.

It starts by carrying out what was decided before, and only then can be called. It knows no process
and no command line: `__main__.py` runs it, and so does the embedded node.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from coordinator.decision_log import DecisionLog
from coordinator.family import Family, ancestors
from coordinator.ledger import Member
from coordinator.live import Enlisted, Live, Settings
from coordinator.sessions import Sessions
from coordinator.tasks import Tasks
from coordinator.timeouts import Timeouts
from coordinator.transactions import Transactions
from idl.call import Orb
from idl.coordination import Mq_Settler
from idl.cos import (
    Control,
    Coordinator,
    PropagationContext,
    RecoveryCoordinator,
    Resource,
    Status,
    Terminator,
    TransIdentity,
)
from idl.otids import RECOVERY, member_name, otid_of

CONTROL = "control"
TERMINATOR = "terminator"
COORDINATOR = "coordinator"


class Service:
    """One coordinator. Whoever makes it publishes its objects, then starts it."""

    def __init__(
        self,
        orb: Orb,
        log: DecisionLog,
        tasks: Tasks,
        randomness: Callable[[int], bytes],
        settings: Settings | None = None,
        on_failure: Callable[[BaseException], object] = lambda failed: None,
    ) -> None:
        self.orb = orb
        self.settings = settings or Settings()
        self.tasks = tasks
        self.log = log
        sessions = Sessions(
            log.identity,
            log.ledger.incarnations,
            randomness,
            self.settings.session_s,
            self.settings.sessions_per_owner_max,
        )
        self.transactions = Transactions(
            log, sessions, tasks, self.settings, on_failure, self._has_ended
        )
        self.family = Family(
            self.transactions, tasks, self.settings, self.context_of, self.coordinator_of
        )
        self.timeouts = Timeouts(self.transactions, self.family, tasks, self.settings)
        self._counting = threading.Lock()
        self._ends: Counter[Status] = Counter()
        # Participants that are called directly; set before the start by whoever has such.
        self.at_home: Callable[[Member], Enlisted | None] | None = None

    def start(self) -> None:
        """What was decided is being carried out, and what runs out of time is rolled back."""
        for decision in list(self.log.ledger.decisions.values()):
            self.transactions.resume(decision, self._enlist)
        self.transactions.forget_heuristics(self._enlist)
        self.timeouts.start()

    def close(self) -> None:
        """Nothing more is decided; what was decided is on disk."""
        self.timeouts.close()
        self.log.close()

    def ended(self) -> tuple[int, int]:
        """How many transactions were committed and rolled back here since the start."""
        with self._counting:
            return self._ends[Status.COMMITTED], self._ends[Status.ROLLED_BACK]

    def _has_ended(self, live: Live) -> None:
        with self._counting:
            self._ends[live.state.status] += 1
        self.family.ended(live)

    def _enlist(self, member: Member) -> Enlisted:
        here = None if self.at_home is None else self.at_home(member)
        if here is not None:
            return here
        settler = self.orb.proxy(member.settler, Mq_Settler) if member.settler else None
        return Enlisted(member, self.orb.proxy(member.resource, Resource), settler)

    # --- The objects of a transaction

    def control_of(self, live: Live) -> Control:
        """The control of the transaction."""
        return self.orb.member(member_name(CONTROL, live.gtrid), Control)

    def terminator_of(self, live: Live) -> Terminator:
        """The terminator of the transaction."""
        return self.orb.member(member_name(TERMINATOR, live.gtrid), Terminator)

    def coordinator_of(self, live: Live) -> Coordinator:
        """The coordinator of the transaction."""
        return self.orb.member(member_name(COORDINATOR, live.gtrid), Coordinator)

    def recovery_of(self, gtrid: bytes, branch: str) -> RecoveryCoordinator:
        """Whom the participant of this name asks for the outcome."""
        return self.orb.member(member_name(RECOVERY, gtrid, branch), RecoveryCoordinator)

    def context_of(self, live: Live) -> PropagationContext:
        """What travels with calls that are made inside the transaction."""
        left_s = 0
        if live.deadline is not None:
            left_s = max(1, int(live.deadline - self.tasks.now()))
        own, *parents = [self._identity(each) for each in ancestors(live)]
        return PropagationContext(left_s, own, tuple(parents), None)

    def _identity(self, live: Live) -> TransIdentity:
        return TransIdentity(
            self.coordinator_of(live), self.terminator_of(live), otid_of(live.gtrid)
        )
