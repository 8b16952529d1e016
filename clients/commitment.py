"""The ways in which a transaction ends: one for each way in which its work is spread.

    who has work          what decides                           what is behind each other
    one node              that node's commit                     1 call
    several               the last one's commit, for all others  votes, decision, they are told
    several, and shared   the coordinator                        votes, decision
    a database with mark  that database's commit                 votes, decision, they are told
    a database, and one   that database's commit, whose row      asked, decision, it is told
    node                  carries what is put

Nothing is rolled back here: where that is all that is left, `Refused` says so, and the transaction
sees to it. Everything else that is raised tells what is known of the outcome. It knows branches at
nodes and in databases, and the coordinator, but not the people who wait.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from clients.branches import Branch, vote_of
from clients.database_drivers import DatabaseTrouble, Lost
from clients.deciding import Deciding
from clients.errors import RAISED, OnceMQError, OutcomeUnknown, reason_of, translated
from clients.nodes import Node, is_harmless
from clients.two_phase import DatabaseBranch, Databases
from idl import system
from idl.coordination import mqParticipantList
from idl.cos import (
    HeuristicCommit,
    HeuristicHazard,
    HeuristicMixed,
    HeuristicRollback,
    NotPrepared,
    Status,
)
from idl.custody import NotCarried, holds_all
from idl.decider import mqVoter
from idl.mapping import UserException
from idl.mq import BranchEnded

log = logging.getLogger("oncemq.client")

# So long a node that has refused to hold anything is not asked again; and one that cannot.
REFUSED_S = 1.0
UNKNOWN_S = 60.0
_OF_EARLIER_VERSIONS = (system.BAD_OPERATION, system.NO_IMPLEMENT, system.OBJECT_NOT_EXIST)

# Looked up once: that takes longer in an enumeration than most of what is done with it.
_COMMITTED = Status.COMMITTED


class Outcome(enum.StrEnum):
    """Where a transaction stands, or how it ended."""

    ACTIVE = "active"
    ROLLBACK_ONLY = "rollback only"
    IN_DOUBT = "in doubt"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


class Refused(Exception):
    """It can only be rolled back, for this reason."""

    def __init__(self, reason: str, is_retryable: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_retryable = is_retryable


def refused(raised: Exception, branch: Branch) -> NoReturn:
    """The branch cannot be committed, because of this."""
    told = translated(raised, branch.node.where)
    raise Refused(reason_of(told), told.retryable) from told


def commit_alone(branch: Branch, gtrid: bytes, doubt: Callable[[bytes, str, Node], None]) -> None:
    """The only branch with work is committed, and so is the transaction. Raises `Refused`.

    `doubt` hears of an outcome that could not be found out, and which node has it.
    """
    try:
        status = branch.commit_alone()
    except BranchEnded as ended:
        status = ended.outcome
    except UserException as raised:
        refused(raised, branch)
    except system.SystemException as failed:
        if is_harmless(failed):
            refused(failed, branch)
        try:
            status = _found_out_at(branch, gtrid, failed)
        except OutcomeUnknown:
            doubt(gtrid, "", branch.node)
            raise
    if status is not _COMMITTED:
        raise Refused(f"{branch.node.where} has given it up, or was restarted")


def _found_out_at(branch: Branch, gtrid: bytes, failed: Exception) -> Status:
    """How the node says that it ended. Only asked: the node may have forgotten the branch."""
    try:
        status = branch.ask_outcome()
        if status is Status.ACTIVE:
            # The node knows it, so that this is decisive: whatever comes later is refused.
            branch.node.call(branch.node.calls.rollbackBranch, branch.reference)
            status = Status.ROLLED_BACK
    except BranchEnded as ended:
        status = ended.outcome
    except RAISED as unreachable:
        raise OutcomeUnknown(gtrid) from unreachable
    if status not in (Status.COMMITTED, Status.ROLLED_BACK):
        raise OutcomeUnknown(gtrid) from failed
    return status


class Commitment:
    """One transaction that has work in several places, at its end. Used once.

    `note` hears where it stands, `doubt` of an outcome that could not be found out, and the place
    where that was decided, if not at the coordinator.
    """

    def __init__(
        self,
        gtrid: bytes,
        deciding: Deciding,
        timeout_s: float,
        note: Callable[[Outcome], None],
        doubt: Callable[[bytes, str], None],
    ) -> None:
        self._gtrid = gtrid
        self._deciding = deciding
        self._timeout_s = timeout_s
        self._note = note
        self._doubt = doubt

    # --- A node decides

    def by_node(
        self, working: list[Branch], decider: Branch, databases: Databases | None = None
    ) -> None:
        """All others vote, then the decider commits, and that is the decision for them."""
        place, coordinator = decider.node.place, self._deciding.settlement
        others = [branch for branch in working if branch is not decider]
        asked = [branch.vote(place, coordinator) for branch in others]
        # Beside the nodes, which are at work on theirs already.
        trouble = None if databases is None else databases.vote()
        decider.get_ready(coordinator, self._voters(others, databases))
        prepared: list[Branch] = []
        against: list[tuple[Exception, Branch]] = []
        for branch, answer in zip(others, asked, strict=True):
            vote = vote_of(answer)
            if isinstance(vote, Exception):
                against.append((vote, branch))
            elif not vote[1]:
                prepared.append(branch)
        if against or trouble is not None:
            _tell(prepared, is_committed=False)
            if against:
                refused(*against[0])
            assert trouble is not None
            _refused_by_database(*trouble)
        self._have_decided_at(decider, prepared, databases)
        if databases is not None:
            databases.begin_to_commit()
        is_whole = _tell(prepared, is_committed=True)
        if databases is not None:
            databases.commit_prepared()
        if not is_whole:
            self._note(Outcome.UNKNOWN)
            raise HeuristicMixed()

    def _voters(self, branches: list[Branch], databases: Databases | None) -> tuple[mqVoter, ...]:
        deciding = self._deciding
        voters = tuple([deciding.voter(each.node.address, each.name) for each in branches])
        return voters if databases is None else voters + databases.voters(deciding.database_voter)

    def _have_decided_at(
        self, decider: Branch, prepared: list[Branch], databases: Databases | None
    ) -> None:
        deciding = self._deciding
        voters = self._voters(prepared, databases)
        self._note(Outcome.IN_DOUBT)
        why: Exception | None = None
        try:
            # After this line it is committed, whatever happens: the node has it on disk.
            status = decider.decide(deciding.settlement, voters)
        except BranchEnded as ended:
            status = ended.outcome
        except UserException as raised:
            status, why = Status.ROLLED_BACK, raised
        except system.SystemException as failed:
            if is_harmless(failed):
                status, why = Status.ROLLED_BACK, failed
            else:
                status = self._found_out(decider.node.place, prepared, databases, failed)
        if status is _COMMITTED:
            return
        _tell(prepared, is_committed=False)
        if why is not None:
            refused(why, decider)
        raise Refused(f"{decider.node.where} has given it up, or was restarted")

    def _found_out(
        self,
        place: str,
        prepared: list[Branch],
        databases: Databases | None,
        failed: system.SystemException,
    ) -> Status:
        """How it was decided there, as the coordinator hears; if it was not, it is rolled back."""
        deciding, gtrid = self._deciding, self._gtrid
        participants = [
            deciding.participant(each.node.address, gtrid, each.name) for each in prepared
        ]
        if databases is not None:
            participants += databases.participants(deciding.database_participant)
        log.info("whether it was committed is being found out: %s", failed)
        try:
            told = deciding.decide_marked(gtrid, place, False, tuple(participants), self._timeout_s)
        except (HeuristicMixed, HeuristicHazard):
            self._note(Outcome.UNKNOWN)
            raise
        except (OutcomeUnknown, *RAISED) as silent:
            self._doubt(gtrid, place)
            raise OutcomeUnknown(gtrid) from silent
        return told.status

    # --- The coordinator or a mark decides

    def together(
        self,
        working: list[Branch],
        databases: Databases | None,
        accepted: mqParticipantList,
        is_shared: bool,
    ) -> None:
        """All vote, then the coordinator decides, or the database does that has a mark."""
        deciding, gtrid = self._deciding, self._gtrid
        marked = None if databases is None else databases.marked
        mark = "" if marked is None else marked.database
        asked, offered = [], []
        for branch in working:
            asked.append(branch.prepare(deciding.recovery_of(gtrid, branch.name, mark)))
        # Beside the nodes, which are at work on theirs already.
        for branch in working:
            offered.append(deciding.participant(branch.node.address, gtrid, branch.name))
        # The mark decides nothing yet.
        trouble = None if databases is None else databases.vote()
        votes = [vote_of(answer) for answer in asked]
        prepared = []
        for branch, participant, vote in zip(working, offered, votes, strict=True):
            if isinstance(vote, Exception):
                refused(vote, branch)
            _, is_read_only, _ = vote
            if not is_read_only:
                prepared.append(participant)
        if trouble is not None:
            _refused_by_database(*trouble)
        participants = (*prepared, *accepted)
        if databases is not None:
            participants += databases.participants(deciding.database_participant)
        if marked is not None:
            self._by_mark(marked, participants)
        elif participants or is_shared:
            self._by_coordinator(participants, databases)
        if databases is not None:
            databases.commit_prepared()

    def _by_mark(self, marked: DatabaseBranch, participants: mqParticipantList) -> None:
        self._note(Outcome.IN_DOUBT)
        is_marked = False
        try:
            # After this line it is committed, whatever happens: the mark was written before.
            marked.commit()
            is_marked = True
        except Lost as lost:
            # Whether the mark is there, the coordinator will find out; or it puts up a fence.
            log.info("database %s: %s", marked.database, lost)
        except DatabaseTrouble as trouble:
            _refused_by_database(marked, trouble)
        try:
            outcome = self._deciding.decide_marked(
                self._gtrid, marked.database, is_marked, participants, self._timeout_s
            )
        except (OutcomeUnknown, *RAISED) as failed:
            if is_marked:
                # The nodes will ask, and the mark be found.
                log.warning("committed; the nodes will hear of it later: %s", failed)
                return
            self._doubt(self._gtrid, marked.database)
            raise OutcomeUnknown(self._gtrid) from failed
        if outcome.status is not _COMMITTED and not is_marked:
            raise Refused(f"database {marked.database}: its connection was lost in the commit")

    def _by_coordinator(self, participants: mqParticipantList, databases: Databases | None) -> None:
        self._note(Outcome.IN_DOUBT)
        # What is prepared in databases need not wait until the nodes have been told.
        meanwhile = None if databases is None else databases.begin_to_commit
        try:
            outcome = self._deciding.decide(self._gtrid, participants, self._timeout_s, meanwhile)
        except (HeuristicMixed, HeuristicHazard):
            self._note(Outcome.UNKNOWN)
            raise
        except (OutcomeUnknown, *RAISED) as failed:
            if databases is not None and databases.is_decided:
                log.warning("committed; the nodes will hear of it later: %s", failed)
                return
            if isinstance(failed, OutcomeUnknown):
                self._doubt(self._gtrid, "")
                raise
            self._undecided(failed)
            return
        if outcome.status is not _COMMITTED:
            raise Refused(outcome.reason or "the coordinator rolled it back")

    def _undecided(self, failed: Exception) -> None:
        """The coordinator refused to decide: then it is rolled back, unless it says otherwise."""
        try:
            outcome = self._deciding.give_up(self._gtrid, self._timeout_s)
        except (OutcomeUnknown, *RAISED) as silent:
            self._doubt(self._gtrid, "")
            raise OutcomeUnknown(self._gtrid) from silent
        if outcome.status is Status.COMMITTED:
            return
        told = translated(failed, self._deciding.where)
        raise Refused(reason_of(told), told.retryable) from told

    # --- A database carries what is put

    def by_carrying(self, branch: Branch, carrier: DatabaseBranch) -> bool:
        """The node is asked, then the database commits, with all that is put in a row of it.

        False where the node cannot have it so, and nothing has happened.
        """
        database = carrier.database
        try:
            content, node = branch.hold(database)
        except NotCarried as otherwise:
            log.info("%s: %s", branch.node.where, otherwise.reason)
            branch.carry_no_more(REFUSED_S)
            return False
        except UserException as raised:
            refused(raised, branch)
        except system.SystemException as failed:
            if isinstance(failed, _OF_EARLIER_VERSIONS):
                branch.carry_no_more(UNKNOWN_S)
                return False
            refused(failed, branch)
        self._note(Outcome.IN_DOUBT)
        try:
            # After this line it is committed, whatever happens.
            carrier.commit_carrying(node, content)
        except Lost as lost:
            self._was_carried(branch, database, lost)
        except DatabaseTrouble as trouble:
            _refused_by_database(carrier, trouble)
        unheard = partial(_unheard, branch.node.where)
        try:
            # Of puts alone the node can say nothing that would change how it has ended.
            branch.deliver(database, unheard if holds_all(content) else None)
        except HeuristicRollback as by_hand:
            self._note(Outcome.UNKNOWN)
            raise HeuristicMixed() from by_hand
        except (OnceMQError, *RAISED) as later:
            unheard(later)
        return True

    def _was_carried(self, branch: Branch, database: str, lost: Lost) -> None:
        """Whether the row is committed is found out; if it is not, it never will be."""
        gtrid = self._gtrid
        log.info("database %s: %s", database, lost)
        try:
            told = self._deciding.decide_marked(gtrid, database, False, (), self._timeout_s)
            if told.status is _COMMITTED:
                return
            # It may have been there, and have been removed when the node had what it carried: under
            # whatever name, and so long ago that the node has forgotten it.
            status = branch.ask_for_all()
            if status is Status.NO_TRANSACTION:
                status = branch.ask_outcome()
        except (OutcomeUnknown, BranchEnded, *RAISED) as silent:
            self._doubt(gtrid, database)
            raise OutcomeUnknown(gtrid) from silent
        if status in (Status.ACTIVE, Status.PREPARED, Status.ROLLED_BACK):
            raise Refused(f"database {database}: its connection was lost in the commit")
        if status is not _COMMITTED:
            self._doubt(gtrid, database)
            raise OutcomeUnknown(gtrid) from lost

    # --- A database alone

    def by_database(self, branch: DatabaseBranch) -> None:
        """Nobody else has work: its commit is all there is."""
        try:
            branch.commit()
        except Lost as lost:
            told = f"database {branch.database}: its connection was lost in the commit: {lost}"
            raise OutcomeUnknown(self._gtrid, told) from lost
        except DatabaseTrouble as trouble:
            _refused_by_database(branch, trouble)


def _unheard(where: str, later: Exception) -> None:
    log.warning("committed; %s will hear of it later: %s", where, later)


def _tell(prepared: list[Branch], is_committed: bool) -> bool:
    """They are told what a node has decided; whether none had been ended otherwise, by hand."""
    is_whole, is_alone = True, len(prepared) == 1
    answers = [branch.end_voter(is_committed, is_alone) for branch in prepared]
    for branch, answer in zip(prepared, answers, strict=True):
        try:
            answer()
        except (HeuristicRollback, HeuristicCommit, NotPrepared):
            is_whole = False
        except (OnceMQError, *RAISED) as later:
            log.warning("%s will ask what was decided: %s", branch.node.where, later)
    return is_whole


def _refused_by_database(branch: DatabaseBranch, trouble: DatabaseTrouble) -> NoReturn:
    reason = f"database {branch.database}: {trouble}".replace(" NAME", f" {branch.database}")
    raise Refused(reason, trouble.retryable) from trouble
