"""Names for transactions without asking: a client's session with the coordinator, and its blocks.

Beginning a transaction takes a name from a block that was leased before, so it costs no call. The
session lives as long as it is renewed; when it ends, whatever was not decided is rolled back, and
the next name comes from a new session. Shared by threads; a forked child gets a session of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from idl.coordination import Mq_Coordinator, SessionEnded, mqLease
from idl.otids import Block, number_of
from idl.process import here

RENEWALS_PER_DURATION = 3
# One of many takes half the time of one alone: what it needs is at hand.
MADE_AT_ONCE = 16


class Leases:
    """The names that one process may give. May be used from any thread."""

    def __init__(self, coordinator: Mq_Coordinator, clock: Callable[[], float]) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._process = 0
        self._lock = threading.Lock()
        self._lease: mqLease | None = None
        # Names that are made and nobody has yet, the next one last; the first number of which no
        # name is made; and the first that does not belong to the block any more.
        self._ready: list[bytes] = []
        self._next = 0
        self._end = 0
        self._block: Block | None = None
        self._open: set[bytes] = set()
        self._renew_at = 0.0

    def draw(self) -> bytes:
        """A name that no other transaction has, or ever had."""
        if self._process != here.pid:
            self._start_anew_after_fork()
        try:
            # One step, so that no other thread gets the same.
            return self._ready.pop()
        except IndexError:
            return self._draw_anew()

    @property
    def session(self) -> int:
        """The session to which the names belong; one is opened if there is none."""
        self._start_anew_after_fork()
        with self._lock:
            return (self._lease or self._lease_block(None)).session

    def ended(self, gtrid: bytes) -> None:
        """The transaction is over: nobody will ask for its name any more."""
        self._open.discard(gtrid)

    def seconds_to_renewal(self) -> float:
        """How long until the session must give a sign of life; short when there is none."""
        return max(self._renew_at - self._clock(), 0.0) if self._lease is not None else 1.0

    def renew(self) -> bool:
        """A sign of life; False when the session was lost, and with it what was not decided.

        Raises a system exception when the coordinator was not reached: try again soon.
        """
        self._start_anew_after_fork()
        lease = self._lease
        if lease is None:
            return True
        try:
            self._coordinator.renew(lease.session, ())
        except SessionEnded:
            with self._lock:
                if self._lease is lease:
                    self._forget_session()
            return False
        self._renew_at = self._clock() + lease.duration / RENEWALS_PER_DURATION
        return True

    def close(self) -> None:
        """What was not decided is rolled back."""
        lease, self._lease = self._lease, None
        self._ready = []
        if lease is not None and self._process == here.pid:
            self._coordinator.endSession(lease.session)

    def _draw_anew(self) -> bytes:
        with self._lock:
            while True:
                # Others may have made names meanwhile, and may draw all that are made here.
                with contextlib.suppress(IndexError):
                    return self._ready.pop()
                self._make_ready(self._lease)

    def _make_ready(self, lease: mqLease | None) -> None:
        if lease is None or self._next >= self._end:
            self._lease_block(lease)
        assert self._block is not None, "what was leased is a block"
        end = min(self._next + MADE_AT_ONCE, self._end)
        names = [self._block.issue(number) for number in range(end - 1, self._next - 1, -1)]
        # Before anybody can lease: a block may be given back once none of it is open.
        self._open.update(names)
        self._next = end
        self._ready = names

    def _lease_block(self, before: mqLease | None) -> mqLease:
        session = 0 if before is None else before.session
        # The names of a session begin alike, so that the first of them has the lowest number.
        oldest = min(list(self._open), default=None)
        try:
            lease = self._coordinator.lease(
                session, self._next if oldest is None else number_of(oldest)
            )
        except SessionEnded:
            self._forget_session()
            lease = self._coordinator.lease(0, 0)
        self._lease = lease
        self._ready = []
        self._next = lease.first
        self._end = lease.first + lease.count
        self._block = Block(lease.prefix, lease.secret)
        self._renew_at = self._clock() + lease.duration / RENEWALS_PER_DURATION
        return lease

    def _forget_session(self) -> None:
        self._lease = None
        self._ready = []
        self._next = 0
        self._open = set()

    def _start_anew_after_fork(self) -> None:
        if self._process != here.pid:
            # The lock may have been held by a thread that exists only in the parent.
            self._lock = threading.Lock()
            self._forget_session()
            self._process = here.pid
