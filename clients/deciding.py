"""The fast way to end a transaction: names drawn here, branches prepared here, one call to decide.

It knows the coordinator and how branches are reached, not what they do. A decision whose answer was
lost is asked for again until it is known; only when that takes too long is the caller told that it
is not known, with the name to ask by later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from clients import structs
from clients.errors import OutcomeUnknown
from clients.leases import Leases
from clients.two_phase import KnownDatabases
from idl import system
from idl.call import Address, Orb, current_outgoing, limited
from idl.coordination import (
    Mq_Coordinator,
    Mq_Settler,
    SessionEnded,
    mqOutcome,
    mqParticipant,
    mqTransactionKey,
)
from idl.cos import RecoveryCoordinator, Resource, Status, otid_t
from idl.databases import DATABASE, DATABASE_SETTLER
from idl.decider import SETTLEMENT, Mq_Settlement, mqVoter
from idl.otids import BRANCH, MARKED, RECOVERY, SETTLER, member_name, otid_of, split_otid
from idl.proxies import is_foretold, neighbour_of, started

COORDINATION = "coordination"
ATTEMPT_S = 10.0
PAUSE_S = 0.1
PAUSE_S_MAX = 2.0
VOTERS_KEPT = 1000
ASKED_AGAIN_S = 60.0

# Looked up once: that takes longer in an enumeration than most of what is done with it.
_ROLLED_BACK = Status.ROLLED_BACK
_OVER = (Status.COMMITTED, _ROLLED_BACK)


class Deciding:
    """Begins and ends transactions at one coordinator. May be used from any thread."""

    def __init__(
        self,
        orb: Orb,
        coordinator: Address,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._orb = orb
        self.address = coordinator
        self.where = f"the coordinator at {coordinator}"
        self._clock = clock
        self._sleep = sleep
        reference = f"PYRO:{COORDINATION}@{coordinator}"
        self._coordinator = orb.proxy(reference, Mq_Coordinator, ATTEMPT_S)
        # What nodes know it by that decide, or vote about what others decide.
        self.settlement = neighbour_of(self._coordinator, SETTLEMENT, Mq_Settlement)
        self._settlers: dict[tuple[str, int], Mq_Settler] = {}
        self._database_settlers: dict[str, Mq_Settler] = {}
        # Where transactions may be decided, or when to ask again whether they may.
        self._places: dict[str, float | bool] = {}
        # The same few come again and again.
        self._voters: dict[tuple[str, int, str], mqVoter] = {}
        self.leases = Leases(self._coordinator, clock)
        self.databases = KnownDatabases(self._coordinator.listDatabases, clock, sleep)

    def begin(self) -> bytes:
        """The name of a new transaction."""
        return self.leases.draw()

    def begin_shared(
        self, timeout_s: float, application: str, version: int, patience_s: float
    ) -> bytes:
        """The name of a new transaction for which others work too; empty if it was committed.

        Without an application it is under no key. It ends with this session, or with its time.
        One that is under way with the key is given up: it may be that of a client that died.
        """
        key = mqTransactionKey(application, version)
        deadline = self._clock() + patience_s
        while True:
            try:
                session = self.leases.session
                begun = self._coordinator.beginOrJoin(session, key, max(1, round(timeout_s)))
            except (SessionEnded, *_MAY_BE_REPEATED) as again:
                if self._clock() + PAUSE_S >= deadline:
                    raise
                if isinstance(again, SessionEnded):
                    self.leases.renew()
                self._sleep(PAUSE_S)
                continue
            if begun.status is Status.COMMITTED:
                return b""
            gtrid = split_otid(begun.otid)[0]
            if not begun.isJoined:
                return gtrid
            self.give_up(gtrid, patience_s)

    def recovery_of(self, gtrid: bytes, branch: str, mark: str = "") -> RecoveryCoordinator:
        """Whom the branch asks for the outcome; `mark` is the place where that is decided."""
        name = member_name(f"{MARKED}/{mark}" if mark else RECOVERY, gtrid, branch)
        return neighbour_of(self._coordinator, name, RecoveryCoordinator)

    def participant(self, node: Address, gtrid: bytes, branch: str) -> mqParticipant:
        """A branch at a node that has been prepared."""
        place = node.host, node.port
        settler = self._settlers.get(place)
        if settler is None:
            settler = self._orb.proxy(f"PYRO:{SETTLER}@{node}", Mq_Settler)
            self._settlers[place] = settler
        resource = neighbour_of(settler, member_name(BRANCH, gtrid, branch), Resource)
        return structs.participant(branch, resource, settler)

    def database_participant(self, database: str, gtrid: bytes, branch: str) -> mqParticipant:
        """A branch in a database that has been prepared."""
        name = member_name(f"{DATABASE}/{database}", gtrid, branch)
        resource = neighbour_of(self._coordinator, name, Resource)
        settler = self._database_settlers.get(database)
        if settler is None:
            name = f"{DATABASE_SETTLER}/{database}"
            settler = neighbour_of(self._coordinator, name, Mq_Settler)
            self._database_settlers[database] = settler
        return mqParticipant(branch, resource, settler)

    def may_decide_at(self, place: str) -> bool:
        """Whether what is decided at this node would be found by who asks the coordinator.

        Asked once, and again later where it could not be.
        """
        known = self._places.get(place)
        if known is True:
            return True
        if not place or (known is not None and self._clock() < known):
            return False
        try:
            is_within_reach = self.settlement.isWithinReach(place)
        except system.SystemException:
            # It is away, or of an earlier version.
            is_within_reach = False
        self._places[place] = is_within_reach or self._clock() + ASKED_AGAIN_S
        return is_within_reach

    def voter(self, node: Address, branch: str) -> mqVoter:
        """A branch at a node that does what is decided at another."""
        named = node.host, node.port, branch
        voter = self._voters.get(named)
        if voter is None:
            if len(self._voters) >= VOTERS_KEPT:
                self._voters.clear()
            voter = self._voters[named] = mqVoter(branch, f"PYRO:{SETTLER}@{node}")
        return voter

    def database_voter(self, database: str, branch: str) -> mqVoter:
        """The same for a branch in a database."""
        return mqVoter(branch, f"PYRO:{DATABASE_SETTLER}/{database}@{self.address}")

    def decide(
        self,
        gtrid: bytes,
        participants: tuple[mqParticipant, ...],
        patience_s: float,
        meanwhile: Callable[[], None] | None = None,
    ) -> mqOutcome:
        """How the transaction ended. Raises `OutcomeUnknown` when nobody says so for so long.

        `meanwhile` is done once it is committed, if that is known before all have been told.
        """
        otid = structs.otid(gtrid)
        if meanwhile is None:
            call: Callable[[], mqOutcome] = partial(self._coordinator.decide, otid, participants)
        else:
            call = partial(self._decide_foretold, meanwhile, otid, participants)
        outcome = self._insist(gtrid, call, patience_s)
        if outcome.status is _ROLLED_BACK:
            # Perhaps because the coordinator was restarted, and then our names are all over.
            with contextlib.suppress(system.SystemException):
                self.leases.renew()
        return outcome

    def _decide_foretold(
        self, meanwhile: Callable[[], None], otid: otid_t, participants: tuple[mqParticipant, ...]
    ) -> mqOutcome:
        waiting = started(self._coordinator.decideForetold, otid, participants)
        if waiting is None:
            return self._coordinator.decide(otid, participants)
        if is_foretold(waiting):
            meanwhile()
        try:
            return waiting()
        except system.BAD_OPERATION:
            # A coordinator of an earlier version.
            return self._coordinator.decide(otid, participants)

    def decide_marked(
        self,
        gtrid: bytes,
        mark: str,
        is_marked: bool,
        participants: tuple[mqParticipant, ...],
        patience_s: float,
    ) -> mqOutcome:
        """How the transaction ended, which the mark in this database or node says. See `decide`.

        `is_marked`: the mark is there. Otherwise it is looked for, and a fence put in its place.
        """
        arguments = (otid_of(gtrid), mark, is_marked, participants)
        return self._insist(gtrid, lambda: self._coordinator.decideMarked(*arguments), patience_s)

    def give_up(self, gtrid: bytes, patience_s: float) -> mqOutcome:
        """The transaction is rolled back, unless it was committed before."""
        return self._insist(gtrid, lambda: self._coordinator.giveUp(otid_of(gtrid)), patience_s)

    def outcome(self, gtrid: bytes) -> mqOutcome:
        """Where the transaction stands, or how it ended."""
        return self._coordinator.getOutcome(otid_of(gtrid))

    def _insist(self, gtrid: bytes, call: Callable[[], mqOutcome], patience_s: float) -> mqOutcome:
        now = self._clock()
        deadline = now + patience_s
        pause_s = PAUSE_S
        while True:
            try:
                left_s = deadline - now
                if left_s >= ATTEMPT_S and current_outgoing().timeout_s is None:
                    # The proxy has that limit by itself.
                    outcome = call()
                else:
                    with limited(min(ATTEMPT_S, max(left_s, PAUSE_S))):
                        outcome = call()
            except _MAY_BE_REPEATED as lost:
                if self._clock() + pause_s >= deadline:
                    raise OutcomeUnknown(gtrid) from lost
                self._sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
                now = self._clock()
                continue
            if outcome.status in _OVER:
                self.leases.ended(gtrid)
            return outcome


# The same answer comes however often it is asked for, so asking again does no harm.
_MAY_BE_REPEATED = (
    system.COMM_FAILURE,
    system.TIMEOUT,
    system.TRANSIENT,
    system.INTERNAL,
    system.UNKNOWN,
    system.MARSHAL,
)
