"""What becomes of prepared branches in databases, and what is told to who asks about a mark. Pure.

A prepared branch is ended by whoever decided about it, and by nobody else: one of another program,
of another coordinator, or of a name that this coordinator's log does not know is never touched. A
branch that nobody decided about is presumed rolled back, but only after a while, and where a mark
decides, only when the mark says so.
"""

from __future__ import annotations

import enum

from coordinator.protocol import Transaction, answer_to
from idl.cos import Status
from idl.databases import BRANCH, COMMITTED, ROLLED_BACK, BranchId, mark_of
from idl.otids import decode_gtrid
from idl.places import is_node


class Verdict(enum.Enum):
    """What the coordinator has decided about a branch."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNDECIDED = "undecided"
    # A name of this coordinator's that it did not issue, as far as its log knows.
    UNKNOWN = "unknown"


class Fate(enum.Enum):
    """What is done with a prepared branch that was found in a database."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    ASK_MARK = "ask the mark"
    WAIT = "wait"
    LEAVE = "leave"


class Telling(enum.Enum):
    """What is done for a participant that asks about a transaction which a mark decides."""

    SAY_COMMITTED = Status.COMMITTED
    SAY_ROLLED_BACK = Status.ROLLED_BACK
    SAY_NOT_YET = Status.PREPARING
    SAY_UNKNOWN = Status.UNKNOWN
    # Nobody has decided: a fence is put up, and what stands there then is the answer.
    FENCE = None


def verdict_of(state: Transaction, is_named: bool) -> Verdict:
    """What is decided about a branch of a transaction that is not over."""
    answer = answer_to(state, is_named, None)
    return _VERDICTS[Status.PREPARING if answer is None else answer]


_VERDICTS = {
    Status.COMMITTED: Verdict.COMMITTED,
    Status.ROLLED_BACK: Verdict.ROLLED_BACK,
    Status.PREPARING: Verdict.UNDECIDED,
}


def is_ours(branch: BranchId | None, identity: bytes) -> bool:
    """Whether the branch belongs to a transaction of the coordinator with this identity."""
    return branch is not None and decode_gtrid(branch.gtrid).identity == identity


def fate_of(branch: BranchId, verdict: Verdict, age_s: float, grace_s: float) -> Fate:
    """What is done with a prepared branch of ours that is so old."""
    match verdict:
        case Verdict.COMMITTED:
            return Fate.COMMIT
        case Verdict.UNKNOWN:
            return Fate.LEAVE
        case Verdict.UNDECIDED if not is_node(mark_of(branch.branch)):
            return Fate.WAIT
    # What a node has decided nobody need have told us.
    if age_s < grace_s:
        # Its owner may be about to roll it back by itself.
        return Fate.WAIT
    return Fate.ASK_MARK if mark_of(branch.branch) else Fate.ROLL_BACK


def telling(verdict: Verdict, mark: str | None, is_patient: bool) -> Telling:
    """What is done for who asks, by what the table of the marked database says.

    `is_patient`: it has not been asked for long, so that a slow owner may still decide.
    """
    if verdict is Verdict.COMMITTED or mark == COMMITTED:
        return Telling.SAY_COMMITTED
    if mark == ROLLED_BACK:
        return Telling.SAY_ROLLED_BACK
    if verdict is Verdict.UNKNOWN:
        return Telling.SAY_UNKNOWN
    if verdict is Verdict.UNDECIDED and is_patient:
        return Telling.SAY_NOT_YET
    return Telling.FENCE


def may_forget(outcome: str, is_over: bool, is_known_committed: bool) -> bool:
    """Whether nobody needs a row any more, by what the log says of its transaction.

    A mark that the coordinator was never told of is the only decision there is, and a fence keeps
    out an owner that may be late by any time: both stay.
    """
    return is_over and (outcome == BRANCH or (outcome == COMMITTED and is_known_committed))
