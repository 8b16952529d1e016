"""Decisions that nobody waits for any more are forgotten: the coordinator finds out which.

A node that has decided keeps the mark until every voter has ended, durably. It asks the coordinator
of the transaction, who can reach all of them: many at once, a moment after they were decided, and
again as long as somebody is missing. Voters that were never told ask by themselves, so that nobody
is told anything here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from idl import system
from idl.call import Orb, limited
from idl.decider import SETTLEMENT, Mq_Settlement, mqDecided, mqVoter
from idl.mapping import InvalidValue
from idl.otids import otid_of, split_otid
from mqserver.transactions.decisions import Decisions, Mark

log = logging.getLogger("oncemq.node")

ASKED_AT_ONCE = 500


@dataclass(frozen=True)
class SettlingTimes:
    """How old a decision is when its voters are asked about, when again, and for how long."""

    after_s: float = 1.0
    again_s: float = 5.0
    call_s: float = 10.0


class Settling:
    """Forgets what is over. One thread at a time calls it."""

    def __init__(
        self,
        orb: Orb,
        decisions: Decisions,
        clock: Callable[[], float],
        times: SettlingTimes | None = None,
    ) -> None:
        self._orb = orb
        self._decisions = decisions
        self._clock = clock
        self._times = times or SettlingTimes()

    def settle(self) -> float:
        """Asks about those that are old enough; when to call this again."""
        due_before = self._clock() - self._times.after_s
        silent: set[str] = set()
        while found := self._decisions.waiting(due_before, ASKED_AT_ONCE):
            by_coordinator: dict[str, list[tuple[bytes, Mark]]] = {}
            for gtrid, mark in found:
                by_coordinator.setdefault(mark.coordinator, []).append((gtrid, mark))
            for coordinator, marks in by_coordinator.items():
                # One wait for each that does not answer, however many decisions wait for it.
                over = None if coordinator in silent else self._over(coordinator, marks)
                if over is None:
                    silent.add(coordinator)
                    continue
                self._decisions.forget([gtrid for gtrid, _ in marks if gtrid in over])
            # Those that are left.
            self._decisions.put_off([gtrid for gtrid, _ in found], self._times.again_s)
        return self._clock() + self._times.after_s

    def _over(self, coordinator: str, marks: list[tuple[bytes, Mark]]) -> set[bytes] | None:
        """Those of these transactions that nobody will ask for any more; None: nobody says so."""
        decided = tuple([_told(gtrid, mark) for gtrid, mark in marks])
        try:
            relay = self._orb.named(f"PYRO:{SETTLEMENT}@{coordinator}", Mq_Settlement)
            with limited(self._times.call_s):
                return {split_otid(otid)[0] for otid in relay.settle(decided)}
        except (system.SystemException, InvalidValue) as unclear:
            log.info("%d decisions are kept: %s", len(marks), unclear)
            return None


def _told(gtrid: bytes, mark: Mark) -> mqDecided:
    voters = [mqVoter(voter.name, voter.settler) for voter in mark.voters]
    return mqDecided(otid_of(gtrid), tuple(voters))
