"""What is said of requests: what they answer, whose branch they work in, and how that ended.

The vocabulary of `work` and `alone`; it acts on nothing but `give_up`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

from idl import system
from idl.cos import Status, Vote
from idl.mapping import UserException
from idl.otids import GTRID_BYTES, show
from mqserver.errors import (
    BranchEnded,
    LimitExceeded,
    LockTimeout,
    MessageNotFound,
    QueueError,
    StorageError,
)
from mqserver.storage.contract import Outcome, Storage

audit = logging.getLogger("oncemq.audit")

# After a restart nothing tells which names a transaction used here, but clients count them.
NAMES_TRIED = tuple(f"n{number}".encode() for number in range(1, 17))
# What a database carries is put in a branch whose name begins so, and ends with a number.
TAKEN_OVER = b"carried."
NOT_YOURS = "there is no such branch of this caller's"
# To look it up in its class, with each branch, takes four times as long.
_ACTIVE = Outcome.ACTIVE

STATUS_OF = {
    Outcome.UNKNOWN: Status.NO_TRANSACTION,
    Outcome.ACTIVE: Status.ACTIVE,
    Outcome.PREPARED: Status.PREPARED,
    Outcome.COMMITTED: Status.COMMITTED,
    Outcome.ROLLED_BACK: Status.ROLLED_BACK,
    Outcome.HEURISTICALLY_COMMITTED: Status.COMMITTED,
    Outcome.HEURISTICALLY_ROLLED_BACK: Status.ROLLED_BACK,
}
# After these nothing was changed, and the branch goes on.
CLEAN_ERRORS = (
    BranchEnded,
    QueueError,
    MessageNotFound,
    LockTimeout,
    LimitExceeded,
    UserException,
    system.SystemException,
)


@dataclass(frozen=True)
class WorkLimits:
    """How much clients may have under way, and how much of what they did is remembered."""

    branches_per_principal_max: int = 1000
    branch_messages_max: int = 1_000_000
    branch_bytes_max: int = 256 * 1024 * 1024
    answers_kept: int = 20_000
    answers_bytes_max: int = 64 * 1024 * 1024
    ended_kept: int = 20_000


class Done(NamedTuple):
    """What a request answers, how large that is, and whether anything was stored or taken."""

    answer: Any
    size: int = 0
    is_changed: bool = True


class FrozenList(NamedTuple):
    """Messages of a queue that a branch has taken; only their keys, however large they are."""

    queue: str
    keys: list[int]


class Branch:
    """A branch as its owner sees it. Requests hold `lock`, ends hold `end_lock`: see `Latch`."""

    __slots__ = (
        "answer",
        "begun_at",
        "carrier",
        "end_lock",
        "heard_at",
        "id",
        "is_answered",
        "is_joined",
        "is_refused",
        "kind",
        "lists",
        "lock",
        "mark",
        "number",
        "outcome",
        "owner",
        "recovery",
        "stored",
        "stored_bytes",
        "taken",
        "vote",
    )

    def __init__(self, branch: bytes, owner: str, now: float, is_joined: bool = False) -> None:
        self.id = branch
        self.owner = owner
        # Since when it is what it is: at work, or prepared.
        self.begun_at = now
        self.heard_at = now
        self.is_joined = is_joined
        self.lock = threading.Lock()
        self.end_lock = threading.Lock()
        self.number = 0
        self.kind = ""
        self.answer: Any = None
        self.is_answered = False
        self.stored = 0
        self.stored_bytes = 0
        self.taken = 0
        self.outcome = _ACTIVE
        self.vote: Vote | None = None
        # Whether it was rolled back because a request of it failed, so that its owner gives up.
        self.is_refused = False
        # Whom it asks for the outcome, once it has voted.
        self.recovery = b""
        # The database whose row carries all that it puts, once that was asked for.
        self.carrier = ""
        # The message that is its mark there, if it has prepared with it.
        self.mark: int | None = None
        # Frozen lists of messages that the branch has taken, by name.
        self.lists: dict[str, FrozenList] = {}

    def check_not_carried(self) -> None:
        """Raises INVALID_TRANSACTION where a database has all its work, and decides about it."""
        if self.carrier and self.mark is None:
            raise system.INVALID_TRANSACTION("a database carries what the branch puts")


def branch_taken_over(storage: Storage, gtrid: bytes) -> bytes:
    """The branch in which what the transaction's row carries is put, or may be.

    One in which that has failed is over, so that the next one has another name.
    """
    for number in itertools.count(1):
        branch = gtrid + TAKEN_OVER + b"%d" % number
        if storage.outcome(branch) is not Outcome.ROLLED_BACK:
            break
    return branch


def ended(branch: bytes, outcome: Outcome) -> BranchEnded:
    """The branch is over, and ended so."""
    return BranchEnded(branch.hex(), outcome.name)


def outcome_of(error: BranchEnded) -> Outcome:
    """How the branch ended that the error speaks of."""
    name = error.args[1] if len(error.args) > 1 else ""
    return Outcome.__members__.get(str(name), Outcome.UNKNOWN)


def status_of(error: BranchEnded) -> Status:
    """The same for clients: what nobody knows of has not happened."""
    outcome = outcome_of(error)
    return Status.ROLLED_BACK if outcome is Outcome.UNKNOWN else STATUS_OF[outcome]


def named(branch: bytes) -> dict[str, str]:
    """What a log says of a branch beside the text: its transaction and its name."""
    if len(branch) < GTRID_BYTES:
        return {"branch": branch.hex()}
    name = branch[GTRID_BYTES:].decode("ascii", "replace")
    return {"transaction": show(branch[:GTRID_BYTES]), "branch": name}


def refused(caller: str, branch: bytes) -> system.NO_PERMISSION:
    """The branch is another's, which the caller is told in the words for one that never was."""
    audit.warning("%s names a branch of another", caller, extra=named(branch))
    return system.NO_PERMISSION(NOT_YOURS)


def give_up(storage: Storage, branch: bytes) -> None:
    """The branch is rolled back, if it is at work; one that cannot be stays as it is."""
    # One that did not even begin leaves no trace, so that the call can be repeated.
    with contextlib.suppress(StorageError, BranchEnded):
        if storage.outcome(branch) is Outcome.ACTIVE:
            storage.rollback(branch)
