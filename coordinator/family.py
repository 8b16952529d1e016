"""Subtransactions, and those who are told before and after an end: what comes around the protocol.

A subtransaction never prepares. When it commits, its participants become its parent's; when it is
rolled back, they are rolled back, and the parent goes on. Ending a parent rolls back those of its
subtransactions that are still at work. Synchronizations belong to the top level: before its commit
they may still do work in it, afterwards they hear how it ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from coordinator.live import Enlisted, Live, Settings
from coordinator.outcomes import Outcome
from coordinator.tasks import Tasks
from coordinator.transactions import Transactions
from idl import system
from idl.call import limited, within
from idl.cos import Coordinator, PropagationContext, Status, Synchronization
from idl.mapping import UserException
from idl.turns import step_aside

log = logging.getLogger("oncemq.coordinator")

DEPTH_MAX = 16

# What travels with calls that are made inside a transaction, and the object that stands for it.
ContextOf = Callable[[Live], PropagationContext]
CoordinatorOf = Callable[[Live], Coordinator]


class Family:
    """Ends transactions with all that belongs to them. May be used from any thread."""

    def __init__(
        self,
        transactions: Transactions,
        tasks: Tasks,
        settings: Settings,
        context_of: ContextOf,
        coordinator_of: CoordinatorOf,
    ) -> None:
        self._transactions = transactions
        self._tasks = tasks
        self._settings = settings
        self._context_of = context_of
        self._coordinator_of = coordinator_of

    def subtransaction(self, parent: Live, owner: str) -> Live | None:
        """A new subtransaction; None when the parent is being ended."""
        if len(ancestors(parent)) >= DEPTH_MAX:
            raise system.IMP_LIMIT(f"transactions are nested {DEPTH_MAX} levels deep at most")
        with self._transactions.lock:
            if parent.state.status is not Status.ACTIVE or parent.is_closing:
                return None
            child = self._transactions.begin(owner, parent=parent)
            child.deadline = parent.deadline
            parent.children.append(child)
            return child

    def commit(
        self,
        live: Live,
        prepared: Sequence[Enlisted] = (),
        foretell: Callable[[], object] | None = None,
    ) -> Outcome:
        """See `Transactions.commit`; everybody who is to be told before has been told."""
        with self._transactions.lock:
            if live.parent or live.children or live.synchronizations or live.aware:
                # Before anything has changed: others are called, one after the other.
                step_aside()
            is_first = not live.is_closing and live.state.status is Status.ACTIVE
            is_marked = live.state.status is Status.MARKED_ROLLBACK
            live.is_closing = True
        if is_marked:
            # Nobody is told before, for it is rolled back; and what is below it goes with it.
            self._end_children(live, live.state.reason)
        elif is_first:
            # It is closing, so that there will be no new ones where there are none.
            if live.children:
                self._end_children(live, "its parent is committed without it")
            reason = self._before_completion(live) if live.synchronizations else ""
            if reason:
                return self._transactions.rollback(live, reason)
        elif live.state.status is Status.ACTIVE:
            # Another call is about to commit it, and is still telling those who come before.
            return self._transactions.outcome(live)
        return self._transactions.commit(live, prepared, foretell)

    def rollback(self, live: Live, reason: str) -> Outcome:
        """See `Transactions.rollback`; its subtransactions go with it."""
        self._end_children(live, reason)
        return self._transactions.rollback(live, reason)

    def ended(self, live: Live) -> None:
        """The transaction is over: those are told who asked to be."""
        status = live.state.status
        if live.parent is not None and live in live.parent.children:
            live.parent.children.remove(live)
        for synchronization in live.synchronizations:
            self._tasks.spawn(self._after_completion, synchronization, status)
        if live.aware and status is Status.COMMITTED:
            # At once: before the parent can be committed they must have joined it.
            self._tell_aware(live, status)
        elif live.aware:
            self._tasks.spawn(self._tell_aware, live, status)

    def _end_children(self, live: Live, reason: str) -> None:
        for child in self.closed(live):
            self.rollback(child, reason)

    def closed(self, live: Live) -> list[Live]:
        """The subtransactions that are at work; from now on there are no new ones."""
        with self._transactions.lock:
            live.is_closing = True
            return list(live.children)

    def _before_completion(self, live: Live) -> str:
        """Why the transaction must be rolled back; empty when nobody objects."""
        told = 0
        while told < len(live.synchronizations) and live.state.status is Status.ACTIVE:
            # One that is told may register another.
            synchronization = live.synchronizations[told]
            told += 1
            try:
                with within(self._context_of(live)), limited(self._settings.answer_s):
                    synchronization.before_completion()
            except (system.SystemException, UserException) as objection:
                return f"a synchronization failed before completion: {objection}"
        return ""

    def _after_completion(self, synchronization: Synchronization, status: Status) -> None:
        try:
            with limited(self._settings.call_s):
                synchronization.after_completion(status)
        except (system.SystemException, UserException) as failed:
            # The transaction is over, and nothing depends on this.
            log.info("a synchronization did not hear of the end: %s", failed)

    def _tell_aware(self, live: Live, status: Status) -> None:
        assert live.parent is not None
        for resource in live.aware:
            try:
                with limited(self._settings.call_s):
                    if status is Status.COMMITTED:
                        resource.commit_subtransaction(self._coordinator_of(live.parent))
                    else:
                        resource.rollback_subtransaction()
            except (system.SystemException, UserException) as failed:
                self._not_told(live, status, failed)

    def _not_told(self, live: Live, status: Status, failed: Exception) -> None:
        assert live.parent is not None
        if status is Status.COMMITTED:
            # It has not taken part in the parent, so the parent must not commit without it.
            told = f"a resource did not hear that its subtransaction was committed: {failed}"
            self._transactions.mark(live.parent, told)
        else:
            log.info("a resource did not hear that its subtransaction was rolled back: %s", failed)


def ancestors(live: Live) -> list[Live]:
    """The transaction itself, its parent, and so on to the top."""
    line = [live]
    while line[-1].parent is not None:
        line.append(line[-1].parent)
    return line


def top_of(live: Live) -> Live:
    """The top-level transaction of the family."""
    return ancestors(live)[-1]
