"""The servants of `Mq_Coordinator.idl`: transactions that cost few calls, and the operator's view.

Thin: they translate and pass on. A transaction may be decided by its owner alone, and another's
looks like one that never was. What an operator may do is for the orb's authorisation to say.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable

from coordinator.custody import CustodyServant
from coordinator.database_desk import DatabaseDesk
from coordinator.database_objects import DatabaseObjects
from coordinator.interfaces import caller, check_owner, is_of_registered, tell
from coordinator.ledger import Key, Member, Note, digest_of
from coordinator.live import Enlisted, Live
from coordinator.outcomes import Outcome
from coordinator.participants import Participant, Place
from coordinator.service import Service
from coordinator.sessions import Session, TooMany
from coordinator.settlement import SettlementServant
from coordinator.timeouts import UNDECIDED
from idl import system
from idl.call import foretelling
from idl.coordination import (
    Mq_Coordinator,
    Mq_TransactionAdmin,
    SessionEnded,
    TransactionNotFound,
    mqBegun,
    mqDatabaseInfo,
    mqDatabaseInfoList,
    mqDatabaseList,
    mqDatabaseSettings,
    mqLease,
    mqOtidList,
    mqOutcome,
    mqParticipantInfo,
    mqParticipantList,
    mqTransactionInfo,
    mqTransactionInfoList,
    mqTransactionKey,
)
from idl.cos import Status, otid_t
from idl.custody import CUSTODY, Mq_Custody
from idl.decider import SETTLEMENT, Mq_Settlement
from idl.mapping import InvalidValue
from idl.otids import BLOCK_NUMBERS, NULL_OTID, check_branch, otid_of, show, split_otid
from idl.turns import prompt, step_aside

COORDINATION = "coordination"
ADMIN = "transactions"
MEMBERS_SHOWN_MAX = 100

audit = logging.getLogger("oncemq.audit")

_COMMITTED = mqOutcome(Status.COMMITTED, "")
# Makes values without their own `__new__`, which is Python and only names the fields.
_new = tuple.__new__


def publish(service: Service, databases: DatabaseObjects | None = None) -> None:
    """Everything of Mq_Coordinator can be called."""
    desk = DatabaseDesk(service, databases)
    if databases is not None:
        databases.publish(service)
    service.orb.publish(CoordinationServant(service, desk), Mq_Coordinator, COORDINATION)
    service.orb.publish(AdminServant(service, desk), Mq_TransactionAdmin, ADMIN)
    settlement = SettlementServant(service.orb, databases, service.tasks.now)
    service.orb.publish(settlement, Mq_Settlement, SETTLEMENT)
    kept = None if databases is None else databases.databases
    service.orb.publish(CustodyServant(service.log.identity, kept), Mq_Custody, CUSTODY)


class CoordinationServant:
    """See `Mq_Coordinator`."""

    def __init__(self, service: Service, desk: DatabaseDesk | None = None) -> None:
        self._service = service
        self._desk = desk or DatabaseDesk(service, None)
        self._transactions = service.transactions
        self._sessions = service.transactions.sessions

    # --- Sessions

    @prompt
    def lease(self, session: int, oldest: int) -> mqLease:
        """See `Mq_Coordinator.lease`."""
        try:
            with self._transactions.lock:
                now = self._service.tasks.now()
                held = self._sessions.open(caller(), now) if not session else self._held(session)
                first, secret = self._sessions.lease(held, oldest)
        except TooMany as limit:
            raise system.IMP_LIMIT(str(limit)) from limit
        duration_s = int(self._sessions.duration_s)
        return mqLease(held.number, self._sessions.prefix, first, BLOCK_NUMBERS, secret, duration_s)

    @prompt
    def renew(self, session: int, transactions: mqOtidList) -> None:
        """See `Mq_Coordinator.renew`."""
        with self._transactions.lock:
            self._held(session)
        for otid in transactions:
            known = self._transactions.find(_gtrid(otid))
            if isinstance(known, Live):
                self._transactions.adopt(check_owner(known), session)

    def endSession(self, session: int) -> None:
        """See `Mq_Coordinator.endSession`."""
        with self._transactions.lock:
            held = self._sessions.renew(session, caller(), self._service.tasks.now())
        if held is not None:
            self._service.timeouts.end_session(session, "its owner has left")

    def _held(self, session: int) -> Session:
        held = self._sessions.renew(session, caller(), self._service.tasks.now())
        if held is None:
            raise SessionEnded()
        return held

    # --- Keys

    def beginOrJoin(self, session: int, key: mqTransactionKey, timeout: int) -> mqBegun:
        """See `Mq_Coordinator.beginOrJoin`."""
        if bool(key.version) is not bool(key.application):
            raise system.BAD_PARAM("a key needs an application and a version from 1 on")
        with self._transactions.lock:
            sessions = (self._held(session).number,) if session else ()
            if key.version:
                return self._begin_or_join(sessions, Key(key.application, key.version), timeout)
            begun = self._transactions.begin(caller(), timeout, sessions, is_shared=True)
            return mqBegun(Status.ACTIVE, otid_of(begun.gtrid), False)

    def _begin_or_join(self, sessions: tuple[int, ...], wanted: Key, timeout: int) -> mqBegun:
        found = self._transactions.under(wanted)
        if found is not None and found.state.status is Status.ACTIVE:
            check_owner(found)
            # One that time alone ends is shared by whoever asks: none of them may take it along.
            for session in sessions if found.sessions else ():
                self._transactions.adopt(found, session)
            return mqBegun(Status.ACTIVE, otid_of(found.gtrid), True)
        if wanted.version <= self._transactions.version_of(wanted.application):
            return mqBegun(Status.COMMITTED, NULL_OTID, False)
        if found is not None:
            # It is being ended, and which way is not known yet.
            raise system.TRANSIENT("a transaction with this key is being ended; ask again")
        begun = self._transactions.begin(caller(), timeout, sessions, wanted, is_shared=True)
        return mqBegun(Status.ACTIVE, otid_of(begun.gtrid), False)

    def getVersion(self, application: str) -> int:
        """See `Mq_Coordinator.getVersion`."""
        return self._transactions.version_of(application)

    # --- Ends

    @prompt
    def decide(self, otid: otid_t, participants: mqParticipantList) -> mqOutcome:
        """See `Mq_Coordinator.decide`."""
        return self._decide(otid, participants, None)

    @prompt
    def decideForetold(self, otid: otid_t, participants: mqParticipantList) -> mqOutcome:
        """See `Mq_Coordinator.decideForetold`."""
        return self._decide(otid, participants, foretelling())

    def _decide(
        self,
        otid: otid_t,
        participants: mqParticipantList,
        foretell: Callable[[], object] | None,
    ) -> mqOutcome:
        prepared, digest = self._enlisted(participants)
        gtrid = _gtrid(otid)
        known = self._transactions.find(gtrid)
        if isinstance(known, Live):
            if known.parent is not None and prepared:
                # They would ask for the subtransaction's outcome, and that is not theirs.
                raise system.BAD_PARAM("participants of a subtransaction register themselves")
            outcome = self._service.family.commit(check_owner(known), prepared, foretell)
            decided_with: int | None = known.digest
        elif known.status is Status.UNKNOWN and known.damage is None:
            raise system.INVALID_TRANSACTION(known.reason)
        else:
            outcome, decided_with = known, self._service.log.ledger.digest(gtrid)
        if outcome.is_committed and decided_with != digest and decided_with is not None:
            # Whoever asks would take branches for committed that were not named.
            raise system.INVALID_TRANSACTION("it was decided with other participants")
        return _told(tell(outcome))

    @prompt
    def decideMarked(
        self, otid: otid_t, place: str, isMarked: bool, participants: mqParticipantList
    ) -> mqOutcome:
        """See `Mq_Coordinator.decideMarked`."""
        prepared, _ = self._enlisted(participants)
        gtrid = _gtrid(otid)
        known = self._transactions.find(gtrid)
        if isinstance(known, Live):
            check_owner(known)
            if isMarked:
                known = self._desk.carry_out(known, prepared)
        elif known.status is Status.UNKNOWN and known.damage is None:
            raise system.INVALID_TRANSACTION(known.reason)
        if isinstance(known, Live) or known.status is Status.ROLLED_BACK:
            step_aside()
            # Perhaps only because its owner was silent for long: the mark knows better.
            known = self._desk.by_mark(place, gtrid, caller(), prepared)
        return _told(tell(known))

    def giveUp(self, otid: otid_t) -> mqOutcome:
        """See `Mq_Coordinator.giveUp`."""
        known = self._transactions.find(_gtrid(otid))
        if isinstance(known, Live):
            known = self._service.family.rollback(check_owner(known), "its owner gave it up")
        return _told(known)

    def getOutcome(self, otid: otid_t) -> mqOutcome:
        """See `Mq_Coordinator.getOutcome`."""
        known = self._transactions.find(_gtrid(otid))
        if isinstance(known, Live):
            return mqOutcome(known.state.status, known.state.reason)
        if known.status is Status.ROLLED_BACK and self._desk.is_marked(_gtrid(otid)):
            # By its owner, who did not live to say so, or of whom a crash left no word.
            return _COMMITTED
        return _told(known)

    def listDatabases(self) -> mqDatabaseList:
        """See `Mq_Coordinator.listDatabases`."""
        return self._desk.every()

    def _enlisted(self, participants: mqParticipantList) -> tuple[list[Enlisted], int]:
        """Those who have prepared, and the digest of their names."""
        service = self._service
        reference_of, at_home = service.orb.reference_of, service.at_home
        prepared: list[Enlisted] = []
        names: list[str] = []
        for each in participants:
            name, resource, settler = each.name, each.resource, each.settler
            if resource is None:
                raise system.BAD_PARAM("a participant needs a resource, and nil was given")
            _check_name(name)
            names.append(name)
            settled_by = "" if settler is None else reference_of(settler)
            member: Member = _new(Member, (name, reference_of(resource), settled_by))
            here = None if at_home is None else _at_home(at_home, member)
            prepared.append(here or _new(Enlisted, (member, resource, settler)))
        if len(set(names)) < len(names):
            raise system.BAD_PARAM("two participants have the same name")
        return prepared, digest_of(tuple(names))


def _at_home(find: Callable[[Member], Enlisted | None], member: Member) -> Enlisted | None:
    try:
        return find(member)
    except InvalidValue as wrong:
        raise system.BAD_PARAM(str(wrong)) from wrong


# The same few names come again and again.
@functools.lru_cache(maxsize=1024)
def _check_name(name: str) -> None:
    try:
        check_branch(name)
    except InvalidValue as wrong:
        raise system.BAD_PARAM(str(wrong)) from wrong
    if is_of_registered(name):
        # One of that name may have registered itself, and would be told the other's outcome.
        raise system.BAD_PARAM(f"participants named {name!r} are those that register themselves")


def _gtrid(otid: otid_t) -> bytes:
    try:
        return split_otid(otid)[0]
    except InvalidValue as wrong:
        raise system.INVALID_TRANSACTION(str(wrong)) from wrong


def _told(outcome: Outcome) -> mqOutcome:
    if outcome.is_committed:
        return mqOutcome(Status.COMMITTED, outcome.reason) if outcome.reason else _COMMITTED
    return mqOutcome(outcome.status, outcome.reason)


# --- For operators -------------------------------------------------------------------------------


class AdminServant:
    """See `Mq_TransactionAdmin`."""

    def __init__(self, service: Service, desk: DatabaseDesk | None = None) -> None:
        self._service = service
        self._desk = desk or DatabaseDesk(service, None)
        self._transactions = service.transactions

    def listTransactions(self) -> mqTransactionInfoList:
        """See `Mq_TransactionAdmin.listTransactions`."""
        live = self._transactions.every()
        known = {each.gtrid for each in live}
        over = [gtrid for gtrid in self._transactions.with_heuristics() if gtrid not in known]
        return (*map(self._of_live, live), *map(self._of_notes, over))

    def getTransaction(self, otid: otid_t) -> mqTransactionInfo:
        """See `Mq_TransactionAdmin.getTransaction`."""
        live = self._find(otid)
        return self._of_notes(_gtrid(otid)) if live is None else self._of_live(live)

    def rollbackTransaction(self, otid: otid_t) -> mqOutcome:
        """See `Mq_TransactionAdmin.rollbackTransaction`."""
        live = self._find(otid)
        if live is None:
            known = self._transactions.find(_gtrid(otid))
            assert isinstance(known, Outcome)
            return _told(known)
        audit.warning("%s asks to roll back transaction %s", caller(), show(live.gtrid))
        return _told(self._service.family.rollback(live, f"operator {caller()} rolled it back"))

    def forgetTransaction(self, otid: otid_t) -> int:
        """See `Mq_TransactionAdmin.forgetTransaction`."""
        live = self._find(otid)
        gtrid = _gtrid(otid)
        left: list[int] = []
        if live is not None:
            left = live.state.participants.numbers_at(Place.PREPARED)
            if live.state.status is not Status.COMMITTING:
                raise system.INVALID_TRANSACTION("it is not decided: roll it back instead")
        audit.warning("%s gives up %d participants of %s", caller(), len(left), show(gtrid))
        for number in left:
            assert live is not None
            self._transactions.give_up(live, number)
        if not left:
            self._transactions.dismiss(gtrid)
        return len(left)

    def listDatabaseInfos(self) -> mqDatabaseInfoList:
        """See `Mq_TransactionAdmin.listDatabaseInfos`."""
        return self._desk.infos()

    def addDatabase(self, settings: mqDatabaseSettings) -> mqDatabaseInfo:
        """See `Mq_TransactionAdmin.addDatabase`."""
        return self._desk.add(settings, caller())

    def removeDatabase(self, name: str) -> None:
        """See `Mq_TransactionAdmin.removeDatabase`."""
        self._desk.remove(name, caller())

    def prepareDatabase(self, name: str, role: str) -> mqDatabaseInfo:
        """See `Mq_TransactionAdmin.prepareDatabase`."""
        return self._desk.prepare(name, role, caller())

    def _find(self, otid: otid_t) -> Live | None:
        gtrid = _gtrid(otid)
        live = next((each for each in self._transactions.every() if each.gtrid == gtrid), None)
        if live is None and not self._transactions.notes_of(gtrid):
            raise TransactionNotFound(otid)
        return live

    def _of_live(self, live: Live) -> mqTransactionInfo:
        now = self._service.tasks.now()
        state = live.state
        is_timed = live.deadline is not None and state.status in UNDECIDED
        left_s = max(0, int(live.deadline - now)) if is_timed and live.deadline else 0
        shown = itertools.islice(state.participants, MEMBERS_SHOWN_MAX)
        return mqTransactionInfo(
            otid_of(live.gtrid),
            state.status,
            live.owner,
            mqTransactionKey(*live.key),
            max(0, int(now - live.begun_at)),
            left_s,
            _explained(live),
            tuple(_participant(live, participant, self._desk) for participant in shown),
        )

    def _of_notes(self, gtrid: bytes) -> mqTransactionInfo:
        notes = self._transactions.notes_of(gtrid)
        shown = tuple(_noted(note) for note in notes[:MEMBERS_SHOWN_MAX])
        owner = notes[0].owner if notes else ""
        status = notes[0].decided if notes else Status.UNKNOWN
        told = "a participant ended its part alone; `oncemq tx forget` when that is dealt with"
        no_key = mqTransactionKey("", 0)
        return mqTransactionInfo(otid_of(gtrid), status, owner, no_key, 0, 0, told, shown)


def _participant(live: Live, participant: Participant, desk: DatabaseDesk) -> mqParticipantInfo:
    number = participant.number
    member = live.members[number].member
    words = [participant.place.value]
    if participant.is_told:
        words.append("committed, not yet durable")
    if participant.heuristic is not None:
        words.append(participant.heuristic.name.lower().replace("_", " "))
    attempts = live.attempts.get(number, 0)
    trouble = live.troubles.get(number, "") or desk.trouble_of(member)
    return mqParticipantInfo(member.name, member.resource, ", ".join(words), attempts, trouble)


def _noted(note: Note) -> mqParticipantInfo:
    how = f"heuristic, {note.heuristic.name.lower().replace('_', ' ')}"
    return mqParticipantInfo(note.member.name, note.member.resource, how, 0, note.reason)


def _explained(live: Live) -> str:
    waiting = live.state.participants.numbers_at(Place.PENDING, Place.PREPARED)
    names = ", ".join([live.members[number].member.name for number in waiting[:5]])
    names += ", ..." if len(waiting) > 5 else ""
    match live.state.status:
        case Status.ACTIVE:
            return "at work: its owner has not ended it yet"
        case Status.MARKED_ROLLBACK:
            return f"can only be rolled back: {live.state.reason}"
        case Status.PREPARING:
            return f"waits for the votes of {names}"
        case Status.PREPARED:
            return "the decision is being written"
        case Status.COMMITTING:
            return f"committed; waits until {names} answered. It is tried again and again"
        case _:
            return f"is being rolled back: {live.state.reason}"
