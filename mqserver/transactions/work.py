"""Branches at work: whose they are, which request comes next, what was answered, how they ended.

A branch of a transaction counts its requests, and keeps the last answer: so every call may be
repeated, also while the first is still running, and what comes late is refused. What the requests
do is handed in; this module knows neither queues nor messages. It is long because a branch's
requests and its ends are told apart by the same few fields of it.

    a request's number      what happens
    the next one            it is carried out, and its answer kept
    the last one again      the same answer; one that failed is carried out again
    any other               `RequestOutOfOrder`
    1, branch unknown       the branch begins
    more, branch unknown    the node was restarted and has lost the work: the branch is rolled back
    any, branch over        `BranchEnded` with its outcome, but for the last request of a push-down
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from idl import system
from idl.cos import Status, Vote
from idl.mq import RequestOutOfOrder, mqCompletion
from idl.otids import GTRID_BYTES, MARKED
from idl.turns import Latch, SteppedAside, wait_for
from mqserver.errors import BranchEnded, LimitExceeded, MqError
from mqserver.storage.contract import Outcome, Storage
from mqserver.transactions import resource
from mqserver.transactions.requests import (
    CLEAN_ERRORS,
    NAMES_TRIED,
    STATUS_OF,
    Branch,
    Done,
    WorkLimits,
    branch_taken_over,
    ended,
    give_up,
    named,
    outcome_of,
    refused,
)

log = logging.getLogger("oncemq.node")

_TRIED = frozenset(NAMES_TRIED)
SMALL_ANSWER_BYTES = 64 * 1024
# Whom branches ask that a mark decides about, in a database or at another node.
_ASKS_ELSEWHERE = f"PYRO:{MARKED}/".encode()
PUSH_DOWN = "push-down"

# In place of an answer that was too large to be kept.
_DROPPED = object()
# Of several branches of a transaction, the one that says most about it.
_TELLING = (
    Status.COMMITTED,
    Status.PREPARED,
    Status.ACTIVE,
    Status.ROLLED_BACK,
    Status.NO_TRANSACTION,
)
# To look one up in its class takes four times as long.
_UNKNOWN, _ACTIVE, _PREPARED = Outcome.UNKNOWN, Outcome.ACTIVE, Outcome.PREPARED
_COMMITTED, _IN_DOUBT, _FOR = Status.COMMITTED, Status.PREPARED, Vote.COMMIT
_COMMIT_ONE_PHASE, _NO_COMPLETION = mqCompletion.COMMIT_ONE_PHASE, mqCompletion.NONE


class Work:
    """All work under way at a node. May be used from any thread."""

    def __init__(
        self,
        storage: Storage,
        clock: Callable[[], float],
        heard_of: Callable[[bytes], None],
        limits: WorkLimits | None = None,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._heard_of = heard_of
        self.limits = limits or WorkLimits()
        self._lock = threading.Lock()
        self._started_at = clock()
        self._open: dict[bytes, Branch] = {}
        # Those that are over, and which they are, oldest first. A dict that keeps the order itself
        # takes half as long again.
        self._ended: dict[bytes, Branch] = {}
        self._order: deque[bytes] = deque()
        self._open_of: dict[str, int] = {}
        # Branches by transaction, but for those whose names are tried anyway.
        self._names: dict[bytes, list[bytes]] = {}
        # Branches whose last answer is large, oldest first.
        self._large: dict[bytes, int] = {}

    # --- Requests of a branch

    def request(
        self, branch: bytes, owner: str, number: int, kind: str, act: Callable[[Branch], Done]
    ) -> Any:
        """What the request with this number answers. Repeated, it says the same again."""
        found = self._owned(branch, owner, number)
        lock = found.lock
        if not lock.acquire(False):
            wait_for(lock)
        try:
            if number == found.number and found.is_answered and found.kind == kind:
                return found.answer
            self._take_up(found, number, kind)
            try:
                done = act(found)
            except (*CLEAN_ERRORS, SteppedAside):
                raise
            except BaseException:
                # It gave way to others, or part of it may have been done.
                self._refuse(found)
                raise
            found.answer, found.is_answered = done.answer, True
            if done.size > SMALL_ANSWER_BYTES:
                self._keep_large(found, done.size)
            return done.answer
        finally:
            lock.release()

    def _refuse(self, found: Branch) -> None:
        give_up(self._storage, found.id)
        # One that had not begun goes on.
        found.is_refused = found.outcome is Outcome.ROLLED_BACK

    def _owned(self, branch: bytes, owner: str, number: int) -> Branch:
        """The branch, which begins with this request if it is not known; the owner's alone."""
        found = self._open.get(branch) or self._ended.get(branch)
        if found is None:
            return self._begin(branch, owner, number)
        if found.owner != owner:
            raise refused(owner, branch)
        return found

    def _take_up(self, found: Branch, number: int, kind: str) -> None:
        """The request is the branch's next one, or its last one again, which failed."""
        if number != found.number + 1 or found.outcome is not _ACTIVE:
            self._check(found, number)
        if found.number:
            # It has not just begun.
            found.check_not_carried()
            self._hear_of(found)
        found.kind, found.number = kind, number
        found.is_answered, found.answer = False, None

    def _check(self, found: Branch, number: int) -> None:
        if found.outcome is not Outcome.ACTIVE:
            raise ended(found.id, found.outcome)
        # One that failed has changed nothing; it may come again, or be left behind.
        is_again = number == found.number and not found.is_answered and number > 0
        if is_again and found.answer is _DROPPED:
            raise self._fenced(found.id)
        if not is_again:
            raise RequestOutOfOrder(found.number + 1)

    def _hear_of(self, found: Branch) -> None:
        found.heard_at = self._clock()
        self._heard_of(found.id)

    def _begin(self, branch: bytes, owner: str, number: int) -> Branch:
        outcome = self._storage.outcome(branch)
        if outcome is not _UNKNOWN:
            raise ended(branch, outcome)
        if number != 1:
            raise self._fenced(branch) if number > 1 else RequestOutOfOrder(1)
        return self._open_one(Branch(branch, owner, self._clock()))

    def _fenced(self, branch: bytes) -> BranchEnded:
        log.info("a branch is rolled back: what it did before is not here", extra=named(branch))
        return ended(branch, self._storage.rollback(branch))

    def _open_one(self, made: Branch) -> Branch:
        with self._lock:
            known = self._open.get(made.id)
            if known is not None:
                if known.owner != made.owner and not made.is_joined:
                    raise refused(made.owner, made.id)
                return known
            count = self._open_of.get(made.owner, 0)
            if count >= self.limits.branches_per_principal_max:
                raise LimitExceeded(f"{made.owner} has {count} transactions under way here")
            self._open_of[made.owner] = count + 1
            self._open[made.id] = made
            if made.id[GTRID_BYTES:] not in _TRIED:
                self._names.setdefault(made.id[:GTRID_BYTES], []).append(made.id)
            return made

    def _keep_large(self, found: Branch, size: int) -> None:
        with self._lock:
            self._large.pop(found.id, None)
            self._large[found.id] = size
            while sum(self._large.values()) > self.limits.answers_bytes_max and (
                len(self._large) > 1
            ):
                oldest = next(iter(self._large))
                dropped = self._open.get(oldest)
                del self._large[oldest]
                if dropped is not None:
                    dropped.is_answered, dropped.answer = False, _DROPPED

    def count_stored(self, found: Branch, count: int, size: int) -> None:
        """The branch is about to store so much. Raises `LimitExceeded`."""
        limits = self.limits
        if found.stored + count > limits.branch_messages_max:
            raise LimitExceeded(
                f"one transaction puts at most {limits.branch_messages_max} messages: "
                "limits.transaction_messages"
            )
        if found.stored_bytes + size > limits.branch_bytes_max:
            raise LimitExceeded(
                f"one transaction puts at most {limits.branch_bytes_max} bytes: "
                "limits.transaction_bytes"
            )

    # --- Branches that a coordinator was told of

    def join(self, branch: bytes, owner: str) -> Branch:
        """The branch belongs to a transaction in which it was registered."""
        known = self._open.get(branch)
        if known is None:
            known = self._open_one(Branch(branch, owner, self._clock(), is_joined=True))
        self._hear_of(known)
        return known

    # --- Ends

    def push_down(
        self,
        branch: bytes,
        owner: str,
        number: int,
        act: Callable[[Branch], Any],
        completion: mqCompletion,
        recovery: bytes,
        commit: Callable[[bytes], None] | None = None,
    ) -> tuple[Status, bool, Any]:
        """How the branch stands then, whether it had changed nothing, and what `act` answers.

        Where that was forgotten in a restart it is None. What fails rolls the branch back. One that
        commits does so by `commit`, if there is one, also where it had changed nothing.
        """
        try:
            found = self._owned(branch, owner, number)
            lock = found.lock
            if not lock.acquire(False):
                wait_for(lock)
            try:
                if number == found.number and found.is_answered and found.kind == PUSH_DOWN:
                    told: tuple[Status, bool, Any] = found.answer
                    return told
                self._take_up(found, number, PUSH_DOWN)
                try:
                    answer = act(found)
                    status, is_read_only = self._complete(found, completion, recovery, commit)
                except BaseException:
                    self._refuse(found)
                    raise
                found.answer, found.is_answered = (status, is_read_only, answer), True
                return status, is_read_only, answer
            finally:
                lock.release()
        except BranchEnded as over:
            return self._told_before(over, branch, completion)

    def _told_before(
        self, over: BranchEnded, branch: bytes, completion: mqCompletion
    ) -> tuple[Status, bool, Any]:
        """The answer to a push-down that was carried out before a restart, or the refusal."""
        outcome = outcome_of(over)
        if completion is _COMMIT_ONE_PHASE and outcome is Outcome.ROLLED_BACK:
            # Its owner takes that for the end. So it is after a crash, too: of late copies of its
            # calls, where they name no life, one could begin the branch anew, the next commit it.
            self._storage.force()
        is_known = branch in self._open or branch in self._ended
        if is_known or completion is mqCompletion.NONE:
            raise over
        if outcome is Outcome.COMMITTED:
            return Status.COMMITTED, False, None
        if outcome is Outcome.PREPARED and completion is mqCompletion.PREPARE:
            return Status.PREPARED, False, None
        raise over

    def _complete(
        self,
        found: Branch,
        completion: mqCompletion,
        recovery: bytes,
        commit: Callable[[bytes], None] | None,
    ) -> tuple[Status, bool]:
        lock = found.end_lock
        if not lock.acquire(False):
            wait_for(lock)
        try:
            if completion is _NO_COMPLETION:
                return Status.ACTIVE, False
            found.check_not_carried()
            if commit is not None:
                commit(found.id)
                return _COMMITTED, False
            if not found.stored and not found.taken:
                self._storage.rollback(found.id)
                found.vote = Vote.READ_ONLY
                return Status.COMMITTED, True
            if completion is _COMMIT_ONE_PHASE:
                self._storage.commit_one_phase(found.id)
                return _COMMITTED, False
            found.recovery = recovery
            found.vote = resource.prepare(self._storage, found.id, recovery)
            if found.vote is not _FOR:
                raise ended(found.id, Outcome.ROLLED_BACK)
            return _IN_DOUBT, False
        finally:
            lock.release()

    def prepare(self, branch: bytes, owner: str, recovery: bytes, messages: int) -> Vote:
        """The branch's vote; against, when it has stored another number of messages."""
        found = self.known(branch, owner)
        if found is None:
            outcome = self._storage.outcome(branch)
            if outcome is Outcome.PREPARED:
                return Vote.COMMIT
            raise self._fenced(branch) if outcome is Outcome.UNKNOWN else ended(branch, outcome)
        with Latch(found.end_lock):
            if found.vote is None:
                if found.outcome is not Outcome.ACTIVE:
                    raise ended(branch, found.outcome)
                found.check_not_carried()
                found.recovery = recovery
                found.vote = self._vote(found, recovery, messages)
            return found.vote

    def _vote(self, found: Branch, recovery: bytes, messages: int) -> Vote:
        if found.stored != messages:
            log.warning(
                "a branch has stored %d messages, not %d: it is rolled back",
                found.stored,
                messages,
                extra=named(found.id),
            )
            self._storage.rollback(found.id)
            return Vote.ROLLBACK
        if not found.stored and not found.taken:
            self._storage.rollback(found.id)
            return Vote.READ_ONLY
        return resource.prepare(self._storage, found.id, recovery)

    def rollback(self, branch: bytes, owner: str) -> None:
        """The branch is rolled back. Raises `BranchEnded` if it has voted, or was committed."""
        found = self.known(branch, owner)
        if found is None:
            self._roll_back(branch)
            return
        with Latch(found.end_lock):
            if found.carrier:
                # Its owner says so, so that no row was committed.
                resource.roll_back(self._storage, branch)
                found.carrier = ""
            else:
                self._roll_back(branch)

    def _roll_back(self, branch: bytes) -> None:
        outcome = self._storage.outcome(branch)
        if outcome in (Outcome.ACTIVE, Outcome.UNKNOWN):
            self._storage.rollback(branch)
        elif outcome is not Outcome.ROLLED_BACK:
            # After its vote the coordinator decides, and nobody else.
            raise ended(branch, outcome)

    def end_voter(self, branch: bytes, owner: str, is_committed: bool) -> None:
        """The prepared branch has ended as it was decided elsewhere, of which its owner tells.

        Only where neither a coordinator decides nor anybody else could be harmed: who may commit a
        branch alone may as well say that it is to be committed. Raises what the table says.
        """
        found = self._open.get(branch) or self._ended.get(branch)
        if found is None:
            # Nobody knows whose it is any more. It asks by itself.
            raise system.TRANSIENT("the node was restarted meanwhile: the branch will ask")
        if found.owner != owner or not found.recovery.startswith(_ASKS_ELSEWHERE):
            raise refused(owner, branch)
        if is_committed:
            resource.commit(self._storage, branch, is_durable=False)
        else:
            resource.roll_back(self._storage, branch)

    def known(self, branch: bytes, owner: str) -> Branch | None:
        """The branch, at work or ended, if anything is known of it; the owner's alone."""
        found = self._open.get(branch) or self._ended.get(branch)
        if found is not None and found.owner != owner:
            raise refused(owner, branch)
        return found

    def find(self, branch: bytes, owner: str) -> Branch:
        """The branch that is at work here. Raises `BranchEnded`."""
        found = self.known(branch, owner)
        if found is None:
            outcome = self._storage.outcome(branch)
            raise self._fenced(branch) if outcome is Outcome.UNKNOWN else ended(branch, outcome)
        if found.outcome is not Outcome.ACTIVE:
            raise ended(branch, found.outcome)
        self._hear_of(found)
        return found

    def find_or_begin(self, branch: bytes, owner: str) -> Branch:
        """The branch that is at work here, which may begin with this. Raises `BranchEnded`."""
        known = self._open.get(branch) or self._ended.get(branch)
        found = self.find((known or self._begin(branch, owner, 1)).id, owner)
        found.check_not_carried()
        return found

    def has_ended(self, branch: bytes, outcome: Outcome) -> None:
        """Told by the storage, whoever ended the branch, or prepared it."""
        found = self._open.get(branch)
        if found is None:
            return
        found.outcome = outcome
        if outcome is _PREPARED:
            found.begun_at = self._clock()
            return
        with self._lock:
            if self._open.pop(branch, None) is None:
                return
            left = self._open_of.get(found.owner, 1) - 1
            if left:
                self._open_of[found.owner] = left
            else:
                self._open_of.pop(found.owner, None)
            if self._large:
                self._large.pop(branch, None)
            self._ended[branch] = found
            self._order.append(branch)
            if len(self._order) > self.limits.ended_kept:
                self._forget_oldest()
        found.is_answered, found.answer = False, None
        if found.lists:
            found.lists.clear()

    def _forget_oldest(self) -> None:
        oldest = self._order.popleft()
        del self._ended[oldest]
        if oldest[GTRID_BYTES:] in _TRIED:
            return
        names = self._names.get(oldest[:GTRID_BYTES], [])
        if oldest in names:
            names.remove(oldest)
        if not names:
            self._names.pop(oldest[:GTRID_BYTES], None)

    def was_taken_over(self, branch: bytes) -> None:
        """What the branch held was put in another one: whoever asks hears that it is committed.

        Also when the storage has forgotten that other one.
        """
        found = self._open.get(branch) or self._ended.get(branch)
        if found is not None:
            found.outcome = Outcome.COMMITTED

    def silent_since(self, time: float) -> list[bytes]:
        """Branches at work of which nothing was heard since then, and that nobody works on."""
        return [
            found.id
            for found in list(self._open.values())
            if found.outcome is Outcome.ACTIVE
            and not found.is_joined
            and found.heard_at <= time
            and not found.lock.locked()
        ]

    def give_up(self, branch: bytes) -> None:
        """The branch is rolled back, if it is at work."""
        give_up(self._storage, branch)

    def roll_back_running(self) -> int:
        """Everything that is at work is rolled back; how many branches that were."""
        running = [found.id for found in self._open.values() if found.outcome is Outcome.ACTIVE]
        for branch in running:
            with contextlib.suppress(MqError):
                self._storage.rollback(branch)
        return len(running)

    # --- What is known

    def outcome(self, gtrid: bytes, name: str, owner: str, sees_all: bool) -> Status:
        """How the transaction, or one branch of it, stands here.

        Of the transaction only what is the same everywhere: a branch that has changed nothing says
        nothing about it, nor does one attempt of several. Of one that was rolled back before a
        restart nobody knows what it was.
        """
        if name:
            return self._outcome(gtrid + name.encode("ascii"), owner, sees_all)
        names = {*self._names.get(gtrid, ()), *(gtrid + tried for tried in NAMES_TRIED)}
        names.add(branch_taken_over(self._storage, gtrid))
        found = {self._told_by(branch, owner, sees_all) for branch in names}
        best = next(status for status in _TELLING if status in found)
        is_known = any(branch in self._open or branch in self._ended for branch in names)
        if best is not Status.NO_TRANSACTION or is_known:
            return best
        # Prepared before a restart, under whatever name.
        ours = [info for info in self._storage.branches() if info.branch.startswith(gtrid)]
        return STATUS_OF[ours[0].outcome] if ours else best

    def _told_by(self, branch: bytes, owner: str, sees_all: bool) -> Status:
        """How the transaction stands by what is known of this branch of it."""
        known = self._open.get(branch) or self._ended.get(branch)
        outcome = self._storage.outcome(branch) if known is None else known.outcome
        if outcome is Outcome.ROLLED_BACK and (known is None or not _ends_all(known)):
            return Status.NO_TRANSACTION
        return self._outcome(branch, owner, sees_all)

    def _outcome(self, branch: bytes, owner: str, sees_all: bool) -> Status:
        known = self._open.get(branch) or self._ended.get(branch)
        if known is not None and known.owner != owner and not sees_all:
            return Status.NO_TRANSACTION
        if known is not None and known.carrier:
            # The database decides, whatever became of the branch.
            return _COMMITTED if known.outcome is Outcome.COMMITTED else Status.PREPARED
        if known is not None and known.outcome is Outcome.ROLLED_BACK:
            # Nothing had to happen, so that nothing is missing.
            is_read_only = known.vote is Vote.READ_ONLY
            return Status.COMMITTED if is_read_only else Status.ROLLED_BACK
        return STATUS_OF[self._storage.outcome(branch)]

    def outcome_here(self, branch: bytes) -> Outcome:
        """What the branch is; asked of the storage only where it is not at work."""
        known = self._open.get(branch)
        return self._storage.outcome(branch) if known is None else known.outcome

    def owner_of(self, branch: bytes) -> str:
        """Whose branch it is; nothing where that was before a restart."""
        known = self._open.get(branch) or self._ended.get(branch)
        return "" if known is None else known.owner

    def age_of(self, branch: bytes) -> float:
        """For how many seconds it has been what it is; since the start, where nobody knows."""
        known = self._open.get(branch)
        return self._clock() - (self._started_at if known is None else known.begun_at)


def _ends_all(lost: Branch) -> bool:
    """Whether the transaction is rolled back because this branch is: nobody works on without it."""
    is_attempt = lost.id[GTRID_BYTES:] not in _TRIED and not lost.is_joined
    return not is_attempt and bool(lost.stored or lost.taken or lost.is_refused)
