"""A transaction as its client sees it: work at any number of nodes, and one end for all of it.

    nodes with work    how it ends                                    calls
    none               nothing happens, nobody is asked               0
    one                its last request commits it in one phase       1
    several            all vote at once, then the coordinator decides 2 behind each other

Databases vote as nodes do, and their own commits follow the decision; one that cannot vote decides
by its commit, when all others have voted. See `two_phase.py`. It is long because every way to end
is in it.

Whatever the end, it is told: by returning, or by an exception that says what is known. A
transaction belongs to one process; its threads take turns. It knows nodes and the coordinator,
neither queues nor how a connection is made.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, NoReturn, Protocol

from clients.branches import Branch, vote_of
from clients.database_drivers import DatabaseTrouble, Lost
from clients.deciding import Deciding
from clients.errors import (
    RAISED,
    OnceMQError,
    OutcomeUnknown,
    RolledBack,
    TransactionEnded,
    reason_of,
    translated,
)
from clients.nodes import NETWORK, Node, is_harmless
from clients.two_phase import DatabaseBranch, Databases
from idl import system
from idl.call import limited
from idl.coordination import mqParticipant, mqParticipantList
from idl.cos import HeuristicHazard, HeuristicMixed, Status
from idl.mapping import UserException
from idl.mq import BranchEnded
from idl.otids import show
from idl.process import here

ROLLBACK_S = 5.0

log = logging.getLogger("oncemq.client")


class Outcome(enum.StrEnum):
    """Where a transaction stands, or how it ended."""

    ACTIVE = "active"
    ROLLBACK_ONLY = "rollback only"
    IN_DOUBT = "in doubt"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


# Looked up once: that takes longer in an enumeration than most of what is done with it.
_ACTIVE, _UNKNOWN, _COMMITTED = Outcome.ACTIVE, Outcome.UNKNOWN, Outcome.COMMITTED
_OVER = (_COMMITTED, Outcome.ROLLED_BACK)
_STATUS_COMMITTED = Status.COMMITTED
# What `RLock` makes, without a function of Python's in between: for every transaction.
_new_lock = type(threading.RLock())


class Autocommit(enum.Enum):
    """Says that a call is no part of the transaction in which it is written."""

    AUTOCOMMIT = "autocommit"


AUTOCOMMIT = Autocommit.AUTOCOMMIT


class Home(Protocol):
    """Where a transaction is begun: a connection."""

    @property
    def realm(self) -> object:
        """What can take part in its transactions."""

    @property
    def sender(self) -> str:
        """Who puts."""

    @property
    def timeout_s(self) -> float:
        """How long an answer may take."""

    def deciding(self) -> Deciding:
        """The way to the coordinator; raises an `OnceMQError`."""

    def doubt(self, gtrid: bytes, mark: str = "") -> None:
        """The outcome is the coordinator's to tell, by this database's mark, and was not told."""


_CURRENT: ContextVar[Transaction | None] = ContextVar("oncemq_transaction", default=None)


def current_transaction() -> Transaction | None:
    """The transaction of the `with` block, or of the consumer, that is being run here."""
    return _CURRENT.get()


def chosen(tx: Transaction | Autocommit | None) -> Transaction | None:
    """The transaction of a call: the one that is named, or else the current one, or none."""
    if tx is None:
        return _CURRENT.get()
    return None if tx is AUTOCOMMIT else tx


class Transaction:
    """Commits at the end of its `with` block, or by `commit`; rolls back on an exception.

    `timeout` counts from the beginning: once it is over, everything is rolled back.
    """

    def __init__(self, home: Home, timeout_s: float, clock: Callable[[], float]) -> None:
        self._home = home
        self._clock = clock
        self._timeout_s = timeout_s
        self._deadline = clock() + timeout_s
        self._process = here.pid
        # Held while the transaction works: its threads take turns.
        self.lock = _new_lock()
        self._status = _ACTIVE
        self._reason = ""
        self._is_retryable = True
        self._gtrid = b""
        self._deciding: Deciding | None = None
        self._branches: dict[object, Branch] = {}
        self._databases: Databases | None = None
        self._has_voted = False
        self._is_shared = False
        self._accepted: mqParticipantList = ()

    # --- What people see

    @property
    def otid(self) -> str:
        """Its name, by which its outcome can be asked for."""
        with self.lock:
            return show(self._name())

    @property
    def status(self) -> Outcome:
        """Where it stands, or how it ended."""
        if self._status is Outcome.ACTIVE and self._reason:
            return Outcome.ROLLBACK_ONLY
        return self._status

    def commit(self) -> None:
        """All of it has happened. Raises `RolledBack`, `OutcomeUnknown`, or a heuristic outcome."""
        with self.lock:
            self._check_ready()
            self._commit()

    def rollback(self) -> None:
        """Nothing of it has happened."""
        with self.lock:
            if self._status is Outcome.ROLLED_BACK:
                return
            self._check_open()
            self._roll_back("its owner rolled it back")

    def enlist(self, connection: Any, *, database: str = "", markable: bool | None = None) -> Any:
        """The connection's work belongs to the transaction; what is returned is to be used for it.

        `connection` is one of psycopg 3 or sqlite3, or a Connection or an Engine of SQLAlchemy, in
        no transaction of its own. `database` is the name under which the coordinator knows the
        database; without it, that is found out. A database without two-phase commit takes part by
        its own commit, one in each transaction and before all others; `markable=True` asks for
        that. Raises `NotEnlisted`, which says what to do.
        """
        with self.lock:
            self._check_ready()
            # Without the coordinator nobody could finish it after a crash.
            self._name()
            assert self._deciding is not None
            if self._databases is None:
                self._databases = Databases(self._deciding.databases)
            # What others have prepared asks the coordinator: no mark may decide any more.
            markable = False if self._accepted else markable
            try:
                return self._databases.enlist(connection, self._gtrid, database, markable)
            except RAISED as failed:
                raise translated(failed, self._deciding.where) from failed

    @property
    def mark(self) -> str:
        """The database whose own commit decides; empty where the coordinator does."""
        marked = None if self._databases is None else self._databases.marked
        return "" if marked is None else marked.database

    def set_rollback_only(self, reason: str = "its owner marked it to be rolled back") -> None:
        """It can only be rolled back; the end of the `with` block does so without a word."""
        with self.lock:
            self._check_open()
            self._mark(reason, is_retryable=False)

    def __enter__(self) -> Transaction:
        if _CURRENT.get() is not None:
            raise OnceMQError(
                "a transaction is under way in this block already: work in that one, or begin an "
                "independent one with begin() and pass it as tx="
            )
        if self._status is not _ACTIVE or self._process != here.pid:
            self._check_open()
        _CURRENT.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if _CURRENT.get() is self:
            _CURRENT.set(None)
        if self._process != here.pid:
            if kind is None:
                self._check_open()
            return
        with self.lock:
            if self._status is not _ACTIVE:
                return
            if kind is not None:
                self._roll_back(f"{kind.__name__} was raised")
            elif self._reason and not self._is_retryable:
                self._roll_back(self._reason)
            else:
                self.commit()

    def __repr__(self) -> str:
        name = f" {show(self._gtrid)}" if self._gtrid else ""
        return f"<Transaction{name}: {self.status.value}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a transaction cannot be pickled: it belongs to the process that began it")

    def __del__(self) -> None:
        # Nobody can end it any more; its nodes will notice the silence, or ask.
        if self._status not in _OVER and self._deciding is not None and self._gtrid:
            self._deciding.leases.ended(self._gtrid)

    # --- What queues and consumers use

    def enter(self) -> None:
        """The calls made here belong to this transaction, until `leave`."""
        _CURRENT.set(self)

    def leave(self) -> None:
        """The calls made here belong to it no longer."""
        if _CURRENT.get() is self:
            _CURRENT.set(None)

    def begin_anew(self) -> None:
        """Its time counts from now: it had only waited so far."""
        self._deadline = self._clock() + self._timeout_s

    def seconds_left(self) -> float:
        """How long it may still work."""
        return self._deadline - self._clock()

    def branch_at(self, node: Node) -> Branch:
        """Its part at this node, ready for work. Call with the lock held."""
        self._check_ready()
        key = node if node.realm is NETWORK else node.realm
        return self._branches.get(key) or self._join(node, key)

    def failed(self, branch: Branch, raised: OnceMQError) -> None:
        """A request has failed; where that cannot be mended, only a rollback is left."""
        if branch.is_broken or isinstance(raised, RolledBack):
            self._mark(reason_of(raised), is_retryable=True)

    def abandon(self) -> None:
        """It is rolled back unless it is over; nothing is raised."""
        with self.lock:
            if self._status is Outcome.ACTIVE and self._process == here.pid:
                self._roll_back("its owner gave it up")

    # --- What others do for it

    def share(self, application: str = "", version: int = 0) -> bool:
        """Others can work for it by its name. False: this version was committed before.

        Before its first use. One that is under way with the same key cannot commit any more.
        """
        with self.lock:
            assert not self._gtrid, "it has another name already"
            patience_s = self._home.timeout_s
            gtrid = self._name(
                lambda asked: asked.begin_shared(self._timeout_s, application, version, patience_s)
            )
            self._is_shared = self._has_voted = bool(gtrid)
            return self._is_shared

    def accept(self, participants: Iterable[mqParticipant]) -> None:
        """These branches, which others have prepared for it, count. All others never will."""
        with self.lock:
            self._check_ready()
            self._name()
            self._is_shared = self._has_voted = True
            self._accepted += tuple(participants)

    # --- Joining

    def _join(self, node: Node, key: object) -> Branch:
        if node.realm is not self._home.realm:
            here = "the network" if self._home.realm is NETWORK else "an embedded node"
            there = "the network" if node.realm is NETWORK else "another embedded node"
            raise OnceMQError(
                f"a transaction of {here} cannot reach {there}, so that they cannot end together: "
                "connect to both by mq://, or write the call outside (tx=oncemq.AUTOCOMMIT)"
            )
        gtrid, name = self._gtrid or self._name(), f"n{len(self._branches) + 1}"
        self._branches[key] = branch = Branch(node, gtrid, name, self._home.sender)
        return branch

    def _name(self, begin: Callable[[Deciding], bytes] | None = None) -> bytes:
        if not self._gtrid:
            self._deciding = deciding = self._home.deciding()
            try:
                self._gtrid = deciding.leases.draw() if begin is None else begin(deciding)
            except RAISED as failed:
                raise translated(failed, deciding.where) from failed
        return self._gtrid

    # --- Checks

    def _check_open(self) -> None:
        if self._process != here.pid:
            raise TransactionEnded(
                f"the transaction belongs to process {self._process}, from which this one was "
                "forked: begin another here"
            )
        if self._status is not _ACTIVE:
            raise TransactionEnded(f"the transaction is over: {self._status.value}. Begin another")

    def _check_ready(self) -> None:
        """It can go on; raises where it cannot, and what only can be rolled back is so then."""
        if self._status is not _ACTIVE or self._process != here.pid:
            self._check_open()
        if self._clock() >= self._deadline:
            self._mark(f"its {self._timeout_s:g} seconds were over", is_retryable=True)
        for branch in self._branches.values():
            if branch.is_broken:
                self._mark("one of its requests was interrupted", is_retryable=True)
        if self._reason:
            self._roll_back(self._reason)
            raise RolledBack(self._reason, self._is_retryable)

    def _mark(self, reason: str, is_retryable: bool) -> None:
        if not self._reason:
            self._reason = reason
            self._is_retryable = is_retryable

    # --- Ends

    def _commit(self) -> None:
        databases = self._databases
        if databases is not None:
            self._refuse_if_unfit(databases)
        elif len(self._branches) == 1 and not self._is_shared:
            # Most transactions; what follows below comes to the same for them, in more steps.
            (only,) = self._branches.values()
            if only.has_work:
                self._status = _UNKNOWN
                self._commit_alone(only)
                self._status = _COMMITTED
                only.tell_keys()
                self._over()
                return
        working: list[Branch] = []
        others: list[Branch] = []
        for branch in self._branches.values():
            (working if branch.has_work else others).append(branch)
        # Others have only looked: their nodes are told, and nobody waits for what they say.
        if others:
            self._tell_rollback(others)
        # From here on an interruption leaves it open how the transaction ends.
        self._status = _UNKNOWN
        if databases is not None and databases.branches:
            self._commit_with(databases, working)
        elif len(working) == 1 and not self._is_shared:
            self._commit_alone(working[0])
        elif working or self._is_shared:
            self._commit_together(working)
        self._status = _COMMITTED
        for branch in working:
            branch.tell_keys()
        self._over()

    def _refuse_if_unfit(self, databases: Databases) -> None:
        reason = databases.why_not()
        if reason:
            self._roll_back(reason)
            raise RolledBack(reason, retryable=False)

    def _commit_alone(self, branch: Branch) -> None:
        try:
            status = branch.commit_alone()
        except BranchEnded as ended:
            status = ended.outcome
        except UserException as refused:
            self._refused(refused, branch)
        except system.SystemException as failed:
            if is_harmless(failed):
                self._refused(failed, branch)
            status = self._ask_for_end(branch, failed)
        if status is not _STATUS_COMMITTED:
            self._roll_back(f"{branch.node.where} has given it up, or was restarted")
            raise RolledBack(self._reason)

    def _ask_for_end(self, branch: Branch, failed: Exception) -> Status:
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
            raise OutcomeUnknown(self._gtrid) from unreachable
        if status not in (Status.COMMITTED, Status.ROLLED_BACK):
            raise OutcomeUnknown(self._gtrid) from failed
        return status

    def _commit_with(self, databases: Databases, working: list[Branch]) -> None:
        try:
            if working or self._is_shared or len(databases.branches) > 1:
                self._commit_together(working, databases)
            else:
                self._commit_database(databases.branches[0])
        finally:
            # What is prepared and not ended here is the coordinator's to end.
            databases.let_go()

    def _commit_database(self, branch: DatabaseBranch) -> None:
        """Nobody else has work: its commit is all there is."""
        try:
            branch.commit()
        except Lost as lost:
            told = f"database {branch.database}: its connection was lost in the commit: {lost}"
            raise OutcomeUnknown(self._gtrid, told) from lost
        except DatabaseTrouble as refused:
            self._refused_by_database(branch, refused)

    def _commit_together(self, working: list[Branch], databases: Databases | None = None) -> None:
        deciding = self._deciding
        assert deciding is not None, "branches have names"
        self._has_voted = True
        marked = None if databases is None else databases.marked
        mark = "" if marked is None else marked.database
        gtrid = self._gtrid
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
                self._refused(vote, branch)
            _, is_read_only, _ = vote
            if not is_read_only:
                prepared.append(participant)
        if trouble is not None:
            self._refused_by_database(*trouble)
        participants = (*prepared, *self._accepted)
        if databases is not None:
            participants += databases.participants(deciding.database_participant)
        if marked is not None:
            self._commit_by_mark(marked, participants, deciding)
        elif participants or self._is_shared:
            self._have_decided(participants, deciding, databases)
        if databases is not None:
            databases.commit_prepared()

    def _commit_by_mark(
        self, marked: DatabaseBranch, participants: mqParticipantList, deciding: Deciding
    ) -> None:
        self._status = Outcome.IN_DOUBT
        is_marked = False
        try:
            # After this line it is committed, whatever happens: the mark was written before.
            marked.commit()
            is_marked = True
        except Lost as lost:
            # Whether the mark is there, the coordinator will find out; or it puts up a fence.
            log.info("database %s: %s", marked.database, lost)
        except DatabaseTrouble as refused:
            self._refused_by_database(marked, refused)
        try:
            outcome = deciding.decide_marked(
                self._gtrid, marked.database, is_marked, participants, self._home.timeout_s
            )
        except (OutcomeUnknown, *RAISED) as failed:
            if is_marked:
                # The nodes will ask, and the mark be found.
                log.warning("committed; the nodes will hear of it later: %s", failed)
                return
            self._home.doubt(self._gtrid, marked.database)
            raise OutcomeUnknown(self._gtrid) from failed
        if outcome.status is not Status.COMMITTED and not is_marked:
            self._roll_back(f"database {marked.database}: its connection was lost in the commit")
            raise RolledBack(self._reason)

    def _have_decided(
        self, participants: mqParticipantList, deciding: Deciding, databases: Databases | None
    ) -> None:
        self._status = Outcome.IN_DOUBT
        # What is prepared in databases need not wait until the nodes have been told.
        meanwhile = None if databases is None else databases.begin_to_commit
        try:
            outcome = deciding.decide(self._gtrid, participants, self._home.timeout_s, meanwhile)
        except OutcomeUnknown as silent:
            if databases is not None and databases.is_decided:
                log.warning("committed; the nodes will hear of it later: %s", silent)
                return
            self._home.doubt(self._gtrid)
            raise
        except (HeuristicMixed, HeuristicHazard):
            self._status = Outcome.UNKNOWN
            raise
        except RAISED as failed:
            self._undecided(failed, deciding)
            return
        if outcome.status is not _STATUS_COMMITTED:
            self._roll_back(outcome.reason or "the coordinator rolled it back")
            raise RolledBack(self._reason)

    def _undecided(self, failed: Exception, deciding: Deciding) -> None:
        """The coordinator refused to decide: then it is rolled back, unless it says otherwise."""
        outcome = deciding.give_up(self._gtrid, self._home.timeout_s)
        if outcome.status is Status.COMMITTED:
            return
        told = translated(failed, deciding.where)
        self._roll_back(reason_of(told))
        raise RolledBack(self._reason, told.retryable) from told

    def _refused(self, refused: Exception, branch: Branch) -> NoReturn:
        told = translated(refused, branch.node.where)
        self._roll_back(reason_of(told))
        raise RolledBack(self._reason, told.retryable) from told

    def _refused_by_database(self, branch: DatabaseBranch, refused: DatabaseTrouble) -> NoReturn:
        reason = f"database {branch.database}: {refused}".replace(" NAME", f" {branch.database}")
        self._roll_back(reason)
        raise RolledBack(reason, refused.retryable) from refused

    def _roll_back(self, reason: str) -> None:
        """Nothing of it has happened, whether or not everybody can be told so now."""
        self._status = Outcome.ROLLED_BACK
        self._reason = reason
        if self._databases is not None:
            # First, since others may wait for the rows; whoever asks is told the same later.
            self._databases.rollback()
        if self._has_voted and self._deciding is not None:
            # Those that have voted ask there, and nowhere else.
            with contextlib.suppress(OnceMQError, *RAISED):
                self._deciding.give_up(self._gtrid, ROLLBACK_S)
        self._tell_rollback(self._branches.values())
        for branch in self._branches.values():
            branch.lose_keys()
        self._over()

    def _tell_rollback(self, branches: Iterable[Branch]) -> None:
        telling = [branch for branch in branches if branch.is_called]
        if not telling:
            return
        with limited(ROLLBACK_S):
            told = [branch.rollback() for branch in telling]
            for answer in told:
                # A node that cannot be told notices the silence, or asks the coordinator.
                with contextlib.suppress(*RAISED):
                    answer()

    def _over(self) -> None:
        if _CURRENT.get() is self:
            _CURRENT.set(None)
        if self._deciding is not None and self._gtrid:
            self._deciding.leases.ended(self._gtrid)
