"""A transaction as its client sees it: work at any number of nodes, and one end for all of it.

What is rolled back, by whomever, is rolled back from here; the ways to commit are in
`commitment.py`. Databases take part as nodes do: see `two_phase.py`.

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
from typing import Any, NoReturn

from clients.branches import Branch
from clients.commitment import Commitment, Outcome, Refused, commit_alone
from clients.deciding import Deciding
from clients.errors import (
    RAISED,
    OnceMQError,
    RolledBack,
    TransactionEnded,
    reason_of,
    translated,
)
from clients.home import Home
from clients.nodes import NETWORK, Node
from clients.two_phase import DatabaseBranch, Databases
from idl.call import limited
from idl.coordination import mqParticipant, mqParticipantList
from idl.cos import (
    Status,
)
from idl.otids import show
from idl.process import here

__all__ = [
    "AUTOCOMMIT",
    "Autocommit",
    "Outcome",
    "Transaction",
    "chosen",
    "current_transaction",
]

ROLLBACK_S = 5.0

log = logging.getLogger("oncemq.client")


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
            # Nor may a node, where others work for it.
            place = self._home.node().place
            if self._is_shared or not self._deciding.may_decide_at(place):
                place = ""
            try:
                return self._databases.enlist(connection, self._gtrid, database, markable, place)
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
            if self._databases is not None and self._databases.place:
                raise OnceMQError("share() comes before databases are enlisted")
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
        try:
            self._try_to_commit()
        except Refused as refused:
            self._roll_back(refused.reason)
            if self._databases is not None:
                self._databases.let_go()
            raise RolledBack(refused.reason, refused.is_retryable) from refused.__cause__

    def _try_to_commit(self) -> None:
        databases = self._databases
        if databases is not None:
            reason = databases.why_not()
            if reason:
                raise Refused(reason, is_retryable=False)
            if databases.carrier is not None and self._has_been_carried(databases.carrier):
                return
        elif len(self._branches) == 1 and not self._is_shared:
            # Most transactions; what follows below comes to the same for them, in more steps.
            (only,) = self._branches.values()
            if only.has_work:
                self._status = _UNKNOWN
                commit_alone(only, self._gtrid, self._home.doubt)
                self._status = _COMMITTED
                only.tell_keys()
                self._over()
                return
        decider = self._decider(databases)
        working: list[Branch] = []
        others: list[Branch] = []
        for branch in self._branches.values():
            (working if branch.has_work or branch is decider else others).append(branch)
        # Others have only looked: their nodes are told, and nobody waits for what they say.
        if others:
            self._tell_rollback(others)
        # From here on an interruption leaves it open how the transaction ends.
        self._status = _UNKNOWN
        if databases is not None and databases.branches:
            self._commit_with(databases, working, decider)
        elif len(working) == 1 and not self._is_shared:
            commit_alone(working[0], self._gtrid, self._home.doubt)
        elif working or self._is_shared:
            self._commit_together(working, decider, None)
        self._status = _COMMITTED
        for branch in working:
            branch.tell_keys()
        self._over()

    def _has_been_carried(self, carrier: DatabaseBranch) -> bool:
        """It is committed, where the row of a database can carry all that is put at one node."""
        working = [branch for branch in self._branches.values() if branch.has_work]
        if len(working) != 1 or self._is_shared or not working[0].may_be_carried:
            return False
        (only,) = working
        try:
            if not self._commitment().by_carrying(only, carrier):
                return False
        except Refused:
            # What can be rolled back is first.
            raise
        except BaseException:
            carrier.let_go()
            raise
        self._tell_rollback(branch for branch in self._branches.values() if branch is not only)
        self._status = _COMMITTED
        only.tell_keys()
        self._over()
        return True

    def _decider(self, databases: Databases | None) -> Branch | None:
        """The branch whose commit decides about all the others; None where something else does."""
        if self._is_shared:
            return None
        if databases is not None and databases.branches:
            # All know already where to ask, also where nothing else is to be done there.
            is_alone = len(databases.branches) == 1 and not self._has_work()
            return None if is_alone or not databases.place else self.branch_at(self._home.node())
        found, home, deciding = None, self._home.node(), self._deciding
        for branch in self._branches.values():
            if branch.has_work:
                if deciding is None or not deciding.may_decide_at(branch.node.place):
                    return None
                if found is None or branch.node is home:
                    found = branch
        return found

    def _has_work(self) -> bool:
        return any(branch.has_work for branch in self._branches.values())

    def _commit_with(
        self, databases: Databases, working: list[Branch], decider: Branch | None
    ) -> None:
        try:
            if working or self._is_shared or len(databases.branches) > 1:
                self._commit_together(working, decider, databases)
            else:
                self._commitment().by_database(databases.branches[0])
        except Refused:
            # What can be rolled back is first.
            raise
        except BaseException:
            databases.let_go()
            raise
        # What is prepared and not ended here is the coordinator's to end.
        databases.let_go()

    def _commit_together(
        self, working: list[Branch], decider: Branch | None, databases: Databases | None
    ) -> None:
        self._has_voted = True
        if decider is not None:
            self._commitment().by_node(working, decider, databases)
        else:
            self._commitment().together(working, databases, self._accepted, self._is_shared)

    def _commitment(self) -> Commitment:
        assert self._deciding is not None, "branches have names"
        home = self._home
        return Commitment(self._gtrid, self._deciding, home.timeout_s, self._stands, home.doubt)

    def _stands(self, status: Outcome) -> None:
        self._status = status

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
