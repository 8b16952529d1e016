"""One registered database: a few connections to it, and what the coordinator asks of it.

What holds: it has at most so many connections; each question has a limit of time; after a failure
to reach it, questions fail at once for a while, so that who waits for it holds nobody else up. All
that is asked may be asked again. It decides nothing about transactions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from coordinator.database_drivers import (
    Busy,
    Carried,
    DatabaseTrouble,
    Facts,
    Limits,
    Link,
    NoSuchBranch,
    Open,
    Prepared,
    Row,
    Unreachable,
)
from coordinator.registry import Registered
from idl.custody import ROWS_AT_ONCE
from idl.databases import BRANCH, BranchId, read_xid

T = TypeVar("T")

ASKED_TOGETHER = 500


@dataclass(frozen=True)
class Times:
    """How often databases are looked at and tried, in seconds; and how many connections."""

    look_s: float = 10.0
    retry_s: float = 1.0
    retry_s_max: float = 60.0
    watch_s: float = 5.0
    wait_s: float = 5.0
    # Rows that nobody needs are kept for so long, for whoever looks; and not for longer than their
    # outcomes are remembered, or nobody could say any more that they are not needed.
    rows_s: float = 20.0
    connections_max: int = 4
    limits: Limits = field(default_factory=Limits)


class CommittedAlone(Exception):
    """A branch that was to be rolled back had been committed."""


class Database:
    """A registered database. May be used from any thread."""

    def __init__(
        self, registered: Registered, opener: Open, clock: Callable[[], float], times: Times
    ) -> None:
        self.registered = registered
        self.name = registered.name
        self._open = opener
        self._clock = clock
        self._times = times
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(times.connections_max)
        self._idle: list[Link] = []
        self._is_closed = False
        self._away_until = 0.0
        self._pause_s = times.retry_s
        self.trouble = "it has not been reached yet"

    def close(self) -> None:
        """Connections that are not in use are closed, and the others when they are done."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    # --- Branches

    def commit(self, branch: BranchId) -> None:
        """The prepared branch is committed. Raises `NoSuchBranch` if it never was prepared."""
        self.ask(lambda link: _commit(link, branch))

    def rollback(self, branch: BranchId) -> None:
        """There is nothing of the branch. Raises `CommittedAlone` if it had been committed."""
        self.ask(lambda link: _roll_back(link, branch))

    def settle(self, branches: Collection[BranchId]) -> list[BranchId]:
        """All are committed, but for those returned, which are not prepared."""
        return self.ask(lambda link: _settle(link, list(branches)))

    def ended(self, branches: Collection[BranchId]) -> list[BranchId]:
        """Those of them that are not prepared any more; there are no rows about them any longer."""
        return self.ask(lambda link: _ended(link, list(branches)))

    def prepared(self) -> list[Prepared]:
        """All that is prepared there, ours and others'."""
        return self.ask(lambda link: link.prepared(), is_probe=True)

    # --- Marks

    @property
    def grace_s(self) -> float:
        """See `Keeper.grace_s`."""
        return self.registered.grace_s

    def mark(self, gtrid: bytes) -> str | None:
        """See `Link.mark`."""
        return self.ask(lambda link: link.mark(gtrid))

    def fence(self, gtrid: bytes) -> str:
        """See `Link.fence`."""
        return self.ask(lambda link: link.fence(gtrid))

    # --- Puts that rows carry

    def carried(self, node: str, older_s: float, behind: str) -> list[Carried]:
        """See `Link.carried`; so many that they fit into an answer."""
        return self.ask(lambda link: link.carried(node, older_s, behind, ROWS_AT_ONCE))

    def forget_carried(self, node: str, otids: Sequence[str]) -> None:
        """See `Link.forget_carried`."""
        self.ask(lambda link: _forget_carried(link, node, otids))

    # --- Itself

    def facts(self) -> Facts:
        """What it is; asked also when it could not be reached a moment ago."""
        return self.ask(lambda link: link.facts(), is_probe=True)

    def make_table(self, identity: str, role: str) -> None:
        """See `Link.make_table`."""
        self.ask(lambda link: link.make_table(identity, role), is_probe=True)

    def ask(self, work: Callable[[Link], T], is_probe: bool = False) -> T:
        """What the work returns. Raises `DatabaseTrouble`."""
        if not is_probe and self._clock() < self._away_until:
            raise Unreachable(self.trouble)
        if not self._free.acquire(timeout=self._times.wait_s):
            raise Busy(f"all {self._times.connections_max} connections to {self.name} are in use")
        try:
            return self._asked(work)
        except Unreachable as away:
            with self._lock:
                self.trouble = str(away)
                self._away_until = self._clock() + self._pause_s
                self._pause_s = min(2 * self._pause_s, self._times.retry_s_max)
            raise
        finally:
            self._free.release()

    def _asked(self, work: Callable[[Link], T]) -> T:
        with self._lock:
            link = self._idle.pop() if self._idle else None
        if link is not None:
            try:
                return self._used(link, work)
            except Unreachable:
                # The server was restarted since: what else lies idle is broken too.
                self._drop_idle()
        return self._used(self._opened(), work)

    def _opened(self) -> Link:
        registered = self.registered
        link = self._open(registered)
        try:
            found = link.facts().identity if registered.identity else ""
        except DatabaseTrouble:
            link.close()
            raise
        if found and found != registered.identity:
            link.close()
            # What is not marked there may have been marked in the one that was registered.
            raise Unreachable(
                f"another database is in its place ({found}, not {registered.identity}): if that "
                f"is meant, type `oncemq database add {self.name} {registered.dsn}`"
            )
        return link

    def _used(self, link: Link, work: Callable[[Link], T]) -> T:
        is_sound = False
        try:
            answer = work(link)
            is_sound = True
            return answer
        except (DatabaseTrouble, CommittedAlone) as told:
            is_sound = not isinstance(told, Unreachable)
            raise
        finally:
            self._put_back(link, is_sound)

    def _put_back(self, link: Link, is_sound: bool) -> None:
        with self._lock:
            if is_sound:
                self.trouble, self._away_until, self._pause_s = "", 0.0, self._times.retry_s
            if is_sound and not self._is_closed:
                self._idle.append(link)
                return
        link.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()


# --- Over one connection -------------------------------------------------------------------------


def _commit(link: Link, branch: BranchId) -> None:
    try:
        link.end(branch, is_commit=True)
    except NoSuchBranch:
        # The same is said after a commit, after nothing, and by MariaDB while the application's
        # connection lives. The list comes before the row: what is in neither was never prepared.
        _refuse_listed(link, branch)
        if branch not in link.committed([branch]):
            raise


def _roll_back(link: Link, branch: BranchId) -> None:
    try:
        link.end(branch, is_commit=False)
    except NoSuchBranch:
        _refuse_listed(link, branch)
        if branch in link.committed([branch]):
            raise CommittedAlone from None


def _refuse_listed(link: Link, branch: BranchId) -> None:
    if any(read_xid(*found[:3]) == branch for found in link.prepared()):
        raise Busy("the branch is still held by the connection that prepared it")


def _ended(link: Link, branches: list[BranchId]) -> list[BranchId]:
    held = {read_xid(*found[:3]) for found in link.prepared()}
    over = [branch for branch in branches if branch not in held]
    # A node has decided about them and does not ask for the rows: they were for who looks.
    link.forget([Row(branch.otid, branch.branch, BRANCH) for branch in over])
    return over


def _forget_carried(link: Link, node: str, otids: Sequence[str]) -> None:
    for first in range(0, len(otids), ASKED_TOGETHER):
        link.forget_carried(node, otids[first : first + ASKED_TOGETHER])


def _settle(link: Link, branches: list[BranchId]) -> list[BranchId]:
    lost: list[BranchId] = []
    held: Busy | None = None
    for first in range(0, len(branches), ASKED_TOGETHER):
        some = branches[first : first + ASKED_TOGETHER]
        done = link.committed(some)
        for branch in some:
            if branch in done:
                continue
            try:
                _commit(link, branch)
            except NoSuchBranch:
                lost.append(branch)
            except Busy as busy:
                # The others need not wait for it; they will be found done the next time.
                held = busy
    if held is not None:
        raise held
    return lost
