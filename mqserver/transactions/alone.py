"""Calls without a transaction: each is a branch of its own, known by the call's request id.

A call that is repeated, also while the first is still running, gets the same answer. What was
answered is remembered for a while; where it is forgotten, the storage still knows the outcome.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from idl.turns import SteppedAside, step_aside
from mqserver.errors import BranchEnded, StorageError
from mqserver.storage.contract import Outcome, Storage
from mqserver.transactions.requests import Done, WorkLimits, ended, give_up, refused

PREFIX = b"auto"


class Alone:
    """All calls without a transaction. May be used from any thread."""

    def __init__(self, storage: Storage, limits: WorkLimits | None = None) -> None:
        self._storage = storage
        self._limits = limits or WorkLimits()
        self._lock = threading.Lock()
        # Who makes each call that is being carried out, and a lock that is held until it was.
        self._running: dict[bytes, tuple[str, threading.Lock]] = {}
        # Who made each that was, and what it answered; and which they are, oldest first. A dict
        # that keeps the order itself takes half as long again.
        self._done: dict[bytes, tuple[str, Done]] = {}
        self._order: deque[bytes] = deque()
        self._done_bytes = 0

    def carry_out(self, request_id: bytes, owner: str, act: Callable[[bytes], Done]) -> Any:
        """What the call answers, which is a transaction of its own; repeated, the same again.

        Raises `BranchEnded` where it is known only that it ended, and how.
        """
        own = owner, threading.Lock()
        own[1].acquire()
        while (running := self._running.setdefault(request_id, own)) is not own:
            if running[0] != owner:
                raise refused(owner, request_id)
            # It is begun again when the other is over, and mostly finds the answer then.
            step_aside()
            with running[1]:
                pass
        try:
            known = self._done.get(request_id)
            if known is None:
                return self._carry_out(request_id, owner, act)
            if known[0] != owner:
                raise refused(owner, request_id)
            return known[1].answer
        finally:
            del self._running[request_id]
            own[1].release()

    def _carry_out(self, request_id: bytes, owner: str, act: Callable[[bytes], Done]) -> Any:
        branch = PREFIX + request_id
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
        self._remember(request_id, owner, done)
        return done.answer

    def _was_committed(self, branch: bytes) -> bool:
        try:
            return self._storage.outcome(branch) is Outcome.COMMITTED
        except StorageError:
            return False

    def _remember(self, request_id: bytes, owner: str, done: Done) -> None:
        limits = self._limits
        with self._lock:
            self._done[request_id] = owner, done
            self._order.append(request_id)
            self._done_bytes += done.size
            while (
                len(self._done) > limits.answers_kept or self._done_bytes > limits.answers_bytes_max
            ):
                _, oldest = self._done.pop(self._order.popleft())
                self._done_bytes -= oldest.size
