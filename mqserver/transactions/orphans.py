"""Branches that nobody speaks for: before prepare rolled back, after it asked about.

A branch that is not prepared, and of which nothing was heard for long, has lost its owner, and is
rolled back. A prepared branch that hears nothing asks. Only a clear answer ends it: "committed" or
"rolled back". Whatever else is said, or not said, it goes on waiting, and an operator can see it.
That nobody answers, that somebody else answers, or that the object is not there, is no answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from idl import system
from idl.call import Orb, limited
from idl.cos import NotPrepared, RecoveryCoordinator, Resource, Status
from idl.mapping import InvalidValue, UserException
from idl.otids import GTRID_BYTES
from mqserver.errors import BranchEnded
from mqserver.storage.contract import Outcome, Storage
from mqserver.transactions.branch import Request
from mqserver.transactions.requests import named
from mqserver.transactions.resource import Resources, ask

log = logging.getLogger("oncemq.node")

_NOT_REACHED = (system.COMM_FAILURE, system.TIMEOUT, system.TRANSIENT)


@dataclass(frozen=True)
class AskingTimes:
    """How long a branch waits before it asks, and between two questions; in seconds.

    One that is at work is given up when nothing was heard of it for `silent_s`.
    """

    first_s: float = 5.0
    longest_s: float = 60.0
    call_s: float = 5.0
    silent_s: float = 300.0


@dataclass
class _Doubt:
    next_at: float
    pause_s: float


class Orphans:
    """The branches of a node that may have lost their owner, and those that are in doubt.

    One thread at a time calls `ask_those_due`; any may say that a branch was `heard_of`.
    """

    def __init__(
        self,
        orb: Orb,
        resources: Resources,
        clock: Callable[[], float],
        times: AskingTimes | None = None,
    ) -> None:
        self._orb = orb
        self._resources = resources
        self._storage: Storage = resources.storage
        self._clock = clock
        self._times = times or AskingTimes()
        self._doubts: dict[bytes, _Doubt] = {}
        self._heard: dict[bytes, float] = {}
        # Coordinators that did not answer in this round: one wait for each, however many ask.
        self._silent: set[str] = set()

    def heard_of(self, branch: bytes) -> None:
        """The owner of the branch is at work."""
        self._heard[branch] = self._clock()

    def ask_at_once(self) -> None:
        """After a start: the outcome of everything in doubt may have been decided long ago."""
        now = self._clock()
        for branch in self._in_doubt():
            self._doubts[branch] = _Doubt(now, self._times.first_s)
        self.ask_those_due()

    def ask_those_due(self) -> float:
        """Asks for those that have waited long enough; when to call this again."""
        now = self._clock()
        self._silent.clear()
        self._roll_back_silent(now)
        found = self._in_doubt()
        self._doubts = {
            branch: self._doubts.get(branch)
            or _Doubt(now + self._times.first_s, self._times.first_s)
            for branch in found
        }
        impatient = self._resources.impatient()
        for branch, doubt in list(self._doubts.items()):
            if doubt.next_at > now and branch not in impatient:
                continue
            if self._ask(branch, found[branch]):
                del self._doubts[branch]
            else:
                doubt.next_at = self._clock() + doubt.pause_s
                doubt.pause_s = min(2 * doubt.pause_s, self._times.longest_s)
        waiting = [doubt.next_at for doubt in self._doubts.values()]
        return min([*waiting, self._clock() + self._times.first_s])

    def _roll_back_silent(self, now: float) -> None:
        infos = self._storage.branches()
        active = [info.branch for info in infos if info.outcome is Outcome.ACTIVE]
        self._heard = {branch: self._heard.get(branch, now) for branch in active}
        for branch, heard_at in list(self._heard.items()):
            if now - heard_at >= self._times.silent_s:
                log.info("a branch was silent for too long: rolled back", extra=named(branch))
                ask(self._storage, branch, Request.EXPIRE)
                self._resources.ended(branch)

    def _in_doubt(self) -> dict[bytes, bytes]:
        infos = self._storage.branches()
        return {i.branch: i.recovery for i in infos if i.outcome is Outcome.PREPARED}

    def _ask(self, branch: bytes, recovery: bytes) -> bool:
        """Asks for one; whether it is in doubt no longer."""
        if self._storage.outcome(branch) is not Outcome.PREPARED:
            return True
        # What is no text is no reference either, and must not keep the others from asking.
        text = recovery.decode("utf-8", "replace")
        server = text.rpartition("@")[2]
        if server in self._silent:
            return False
        try:
            whom = self._orb.named(text, RecoveryCoordinator)
            with limited(self._times.call_s):
                status = whom.replay_completion(self._own(branch))
        except (system.SystemException, NotPrepared, InvalidValue) as unclear:
            log.info("a branch is in doubt: %s", unclear, extra=named(branch))
            if isinstance(unclear, _NOT_REACHED):
                self._silent.add(server)
            return False
        return self._end(branch, status)

    def _end(self, branch: bytes, status: Status) -> bool:
        try:
            if status in (Status.COMMITTED, Status.COMMITTING):
                ask(self._storage, branch, Request.COMMIT, is_durable=False)
            elif status in (Status.ROLLED_BACK, Status.ROLLING_BACK):
                ask(self._storage, branch, Request.ROLLBACK)
            else:
                return False
        except (BranchEnded, UserException, system.SystemException) as raced:
            # It was ended while we asked. The coordinator forgets what is committed everywhere, so
            # an answer that took long may even contradict: the branch knows better, and stays.
            log.info("a branch was ended meanwhile: %s", raced, extra=named(branch))
        self._resources.ended(branch)
        return True

    def _own(self, branch: bytes) -> Resource:
        gtrid, name = branch[:GTRID_BYTES], branch[GTRID_BYTES:].decode("ascii")
        return self._resources.resource_of(gtrid, name, is_lazy=False)
