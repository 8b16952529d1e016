"""Putting and getting one message, in the caller's transaction or in one of its own.

What `Mq_Standard` and `Mq_Fifo` have in common. The transaction is that of the Control; where that
is nil, that of the call's context; and without both the call commits by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from idl.call import Call
from idl.cos import Control
from idl.mq import mqAttribList, mqHeader
from idl.turns import Latch
from mqserver.errors import BranchEnded, QueueNotFound
from mqserver.interfaces.parts import Parts
from mqserver.interfaces.translation import new_message, too_large
from mqserver.permissions import Right
from mqserver.storage.contract import EVERYTHING, Message, NewMessage, Outcome
from mqserver.transactions.requests import CLEAN_ERRORS, Branch, Done, ended, give_up

T = TypeVar("T")


class OneMessage:
    """Work on one queue, a message at a time. Cheap to make: each call has its own."""

    __slots__ = ("_parts", "_queue")

    def __init__(self, parts: Parts, queue: str) -> None:
        self._parts = parts
        self._queue = queue

    def put(
        self, control: Control | None, header: mqHeader, attrib: mqAttribList, data: bytes
    ) -> int:
        """The key of the message, which is in the queue once its transaction commits."""
        parts, queue = self._parts, self._queue
        call = parts.entered()
        parts.check(call, queue, Right.WRITE, "mqPut")
        parts.queues.check_usable(queue)
        largest = parts.queues.limits.message_bytes_max
        if len(data) > largest:
            raise too_large(len(data), largest)
        new = [new_message(header, attrib, data, parts.now_us(), call.principal.name)]
        branch = self._joined(call, control)
        if branch is None:
            done = parts.alone.carry_out(
                call.request_id,
                call.principal.name,
                lambda own: Done(parts.queues.store(own, queue, new)),
            )
            return int(done.start)
        return self._within(branch, lambda found: self._store(found, new))

    def _store(self, found: Branch, new: list[NewMessage]) -> int:
        size = len(new[0].payload)
        self._parts.work.count_stored(found, 1, size)
        keys = self._parts.queues.store(found.id, self._queue, new)
        found.stored += 1
        found.stored_bytes += size
        return keys.start

    def get(
        self,
        control: Control | None,
        take: Callable[[bytes], list[Message]],
        operation: str,
        is_alone: bool = False,
    ) -> Message | None:
        """The message that `take` takes, which is gone once its transaction commits.

        `is_alone`: in a transaction of its own, whatever the caller's is.
        """
        parts = self._parts
        call = parts.entered()
        parts.check(call, self._queue, Right.READ, operation)
        parts.queues.check_usable(self._queue)
        branch = None if is_alone else self._joined(call, control)
        found: Message | None
        if branch is None:
            found = parts.alone.carry_out(
                call.request_id, call.principal.name, lambda own: self._first(take(own))
            )
            return found

        def taken(record: Branch) -> Message | None:
            messages = take(record.id)
            record.taken += len(messages)
            return messages[0] if messages else None

        return self._within(branch, taken)

    def _first(self, messages: list[Message]) -> Done:
        if not messages:
            return Done(None, is_changed=False)
        return Done(messages[0], len(messages[0].payload))

    # --- The caller's transaction

    def _joined(self, call: Call, control: Control | None) -> Branch | None:
        """The branch of the caller's transaction; registered, if it was not yet."""
        parts = self._parts
        owner = call.principal.name

        def begin(branch: bytes) -> None:
            parts.work.join(branch, owner)
            # The storage knows it from here on: should nothing else be done, it votes read-only.
            with contextlib.suppress(QueueNotFound):
                parts.storage.take(branch, self._queue, EVERYTHING, 0)

        branch = parts.joining.branch_of(control, call.transaction, begin)
        return None if branch is None else self._open(branch, owner)

    def _open(self, branch: bytes, owner: str) -> Branch:
        outcome = self._parts.work.outcome_here(branch)
        if outcome is not Outcome.ACTIVE:
            self._parts.joining.left(branch)
            raise ended(branch, outcome)
        return self._parts.work.join(branch, owner)

    def _within(self, branch: Branch, act: Callable[[Branch], T]) -> T:
        try:
            with Latch(branch.lock):
                return act(branch)
        except BranchEnded:
            self._parts.joining.left(branch.id)
            raise
        except CLEAN_ERRORS:
            raise
        except BaseException:
            # It gave way to others, or part of it may have been done.
            give_up(self._parts.storage, branch.id)
            raise
