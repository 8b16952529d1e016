"""Calls without a transaction: each is a branch of its own, known by the call's request id.

A call that is repeated, also while the first is still running, gets the same answer. What was
answered is remembered for a while; where it is forgotten, the storage still knows the outcome.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from idl.turns import Latch, SteppedAside
from mqserver.errors import BranchEnded, StorageError
from mqserver.storage.contract import Outcome, Storage
from mqserver.transactions.requests import Done, WorkLimits, ended, give_up, refused

PREFIX = b"auto"


class _Call:
    """A call without a transaction: who made it, and what it answered."""

    __slots__ = ("done", "lock", "owner")

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.lock = Latch()
        self.done: Done | None = None


class Alone:
    """All calls without a transaction. May be used from any thread."""

    def __init__(self, storage: Storage, limits: WorkLimits | None = None) -> None:
        self._storage = storage
        self._limits = limits or WorkLimits()
        self._lock = threading.Lock()
        self._running: dict[bytes, _Call] = {}
        # Oldest first. A plain dict would look through all that was dropped to find its first.
        self._done: OrderedDict[bytes, _Call] = OrderedDict()
        self._done_bytes = 0

    def carry_out(self, request_id: bytes, owner: str, act: Callable[[bytes], Done]) -> Any:
        """What the call answers, which is a transaction of its own; repeated, the same again.

        Raises `BranchEnded` where it is known only that it ended, and how.
        """
        known = self._done.get(request_id) or self._running.get(request_id)
        if known is None:
            known = self._running.setdefault(request_id, _Call(owner))
        if known.owner != owner:
            raise refused(owner, request_id)
        with known.lock:
            known = self._done.get(request_id, known)
            if known.done is None:
                try:
                    known.done = self._carry_out(PREFIX + request_id, act)
                    self._remember(request_id, known)
                finally:
                    self._running.pop(request_id, None)
            return known.done.answer

    def _carry_out(self, branch: bytes, act: Callable[[bytes], Done]) -> Done:
        try:
            done = act(branch)
            if done.is_changed:
                self._storage.commit_one_phase(branch)
            else:
                self._storage.rollback(branch)
        except (BranchEnded, SteppedAside):
            raise
        except BaseException as failed:
            give_up(self._storage, branch)
            if self._was_committed(branch):
                # It was carried out before a restart, and perhaps that is why it fails now.
                raise ended(branch, Outcome.COMMITTED) from failed
            raise
        return done

    def _was_committed(self, branch: bytes) -> bool:
        try:
            return self._storage.outcome(branch) is Outcome.COMMITTED
        except StorageError:
            return False

    def _remember(self, request_id: bytes, known: _Call) -> None:
        assert known.done is not None
        limits = self._limits
        with self._lock:
            self._done[request_id] = known
            self._done_bytes += known.done.size
            while (
                len(self._done) > limits.answers_kept or self._done_bytes > limits.answers_bytes_max
            ):
                _, oldest = self._done.popitem(last=False)
                assert oldest.done is not None
                self._done_bytes -= oldest.done.size
