"""Databases in a transaction: the application's connections as branches beside those at nodes.

    the database             takes part as     what decides
    prepares branches        d1, d2, ...       a node, or the coordinator
    has no two-phase commit  the mark          its own commit, in which a row names it
    of either kind, alone    the row           its own commit, in which a row carries what is put at
                                               one node

What holds:

1. A branch is prepared only with work that can be committed: one whose statement has failed is
   rolled back, and never prepared into nothing.
2. What is prepared is named in a row of the database, so that after a loss of everything else it
   can be told whether it was committed.
3. Only one database of a transaction can be marked, and then its commit comes after every vote.

It knows what the coordinator tells of databases. Statements are the drivers', the order of the end
is the transaction's.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from clients.database_drivers import DatabaseTrouble, Driver, Lost
from clients.errors import ConnectionLost, NotEnlisted
from clients.unwrapping import Unwrapped, unwrapped
from idl.coordination import mqDatabase, mqParticipant
from idl.databases import BRANCH, COMMITTED, WHOLE, BranchId, branch_name
from idl.decider import mqVoter

# So long what the coordinator has told of databases is taken for true.
KNOWN_S = 30.0
# So long the coordinator may take to look at a database after its start.
REACH_S = 5.0
PAUSE_S = 0.05

log = logging.getLogger("oncemq.client")


class KnownDatabases:
    """The databases that the coordinator knows, and which connection leads to which of them."""

    def __init__(
        self,
        ask: Callable[[], Iterable[mqDatabase]],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._sleep = sleep
        self._told: dict[str, mqDatabase] = {}
        self._told_at = float("-inf")
        # Where a connection leads does not change: which table, of which database.
        self._carrying: weakref.WeakKeyDictionary[object, bool] = weakref.WeakKeyDictionary()
        self._led: weakref.WeakKeyDictionary[object, tuple[str, str]]
        self._led = weakref.WeakKeyDictionary()

    def find(self, opened: Unwrapped, name: str) -> mqDatabase:
        """The database to which the connection leads. Raises `NotEnlisted`."""
        if self._clock() - self._told_at >= KNOWN_S:
            self._refresh()
        try:
            return self._found(opened, name)
        except NotEnlisted:
            # It may have been registered a moment ago.
            self._refresh()
        deadline = self._clock() + REACH_S
        while True:
            try:
                return self._found(opened, name)
            except _NotReached as unreached:
                # The coordinator was started a moment ago.
                if self._clock() >= deadline:
                    raise ConnectionLost(str(unreached)) from unreached
            self._sleep(PAUSE_S)
            self._refresh()

    def _refresh(self) -> None:
        self._told = {each.name: each for each in self._ask()}
        self._told_at = self._clock()

    def _found(self, opened: Unwrapped, name: str) -> mqDatabase:
        place = self._led_to(opened)
        for each in self._told.values():
            if place == (each.table, each.identity) and name in ("", each.name):
                return each
        found = self._recognized(opened.driver, name)
        with contextlib.suppress(TypeError):
            self._led[opened.connection] = (found.table, found.identity)
        return found

    def can_carry(self, opened: Unwrapped, known: mqDatabase) -> bool:
        """Whether a row there may carry what is put; found out once for each connection."""
        try:
            found = self._carrying.get(opened.connection)
        except TypeError:
            return opened.driver.can_carry(known.table)
        if found is None:
            found = self._carrying[opened.connection] = opened.driver.can_carry(known.table)
        return found

    def _led_to(self, opened: Unwrapped) -> tuple[str, str] | None:
        try:
            return self._led.get(opened.connection)
        except TypeError:
            # SQLite's connections cannot be remembered; asking them costs nothing.
            return None

    def _recognized(self, driver: Driver, name: str) -> mqDatabase:
        alike = [each for each in self._told.values() if each.kind == driver.kind.value]
        wanted = [each for each in alike if name in ("", each.name)]
        if not wanted:
            raise NotEnlisted(_unregistered(driver, name))
        identities: dict[str, str] = {}
        for each in wanted:
            if each.table not in identities:
                identities[each.table] = _identity(driver, each)
            if each.identity and each.identity == identities[each.table]:
                return each
        for each in wanted:
            if not each.identity and identities[each.table]:
                raise _NotReached(
                    f"the coordinator has not reached database {each.name} yet: look at `oncemq "
                    "database list`"
                )
        raise NotEnlisted(_unlike(driver, wanted, name))


def _identity(driver: Driver, known: mqDatabase) -> str:
    try:
        return driver.identity(known.table)
    except Lost:
        raise
    except DatabaseTrouble as trouble:
        told = str(trouble).replace(" NAME", f" {known.name}")
        raise NotEnlisted(f"database {known.name}: {told}") from trouble


def _unregistered(driver: Driver, name: str) -> str:
    address = driver.address()
    if not address:
        return "a database in memory cannot take part: nobody could finish what was decided"
    what = f"no database is registered as {name!r}" if name else "this database is not registered"
    called = name or "NAME"
    return (
        f"{what}: type `oncemq database add {called} {address}`, or where the node is embedded "
        f"call mq.register_database({called!r}, {address!r})"
    )


def _unlike(driver: Driver, wanted: list[mqDatabase], name: str) -> str:
    unready = [each.name for each in wanted if not each.identity]
    if unready:
        return (
            f"database {unready[0]} is registered, but its table for outcomes is not there: type "
            f"`oncemq database prepare {unready[0]}`"
        )
    if name:
        return f"the connection does not lead to database {name}, but to {driver.address()}"
    return _unregistered(driver, "")


class _NotReached(NotEnlisted):
    """The database has its table, and the coordinator has not seen it."""


# --- The databases of one transaction ------------------------------------------------------------


class DatabaseBranch:
    """A database's part of one transaction."""

    def __init__(
        self,
        opened: Unwrapped,
        known: mqDatabase,
        branch: BranchId,
        is_marked: bool,
        can_carry: bool = False,
    ) -> None:
        self.opened = opened
        self.driver = opened.driver
        self.database = known.name
        self.gtrid = branch.gtrid
        self.name = branch.branch
        self.is_marked = is_marked
        self.can_carry = can_carry
        self.is_prepared = False
        self._table = known.table
        self._branch = branch
        self._is_over = False

    def why_not(self) -> str:
        """Why it cannot be committed; empty when it can."""
        trouble = self.driver.why_not()
        return f"database {self.database}: {trouble}" if trouble else ""

    def prepare(self) -> None:
        """It is prepared. Raises `DatabaseTrouble`; then it may be, for all we know."""
        # From here on the coordinator rolls it back if we do not.
        self.driver.prepare(self._table, (self._branch.otid, self._branch.branch, BRANCH))
        self.is_prepared = True

    def write_mark(self) -> None:
        """When it is committed, so is the whole transaction. Raises `DatabaseTrouble`."""
        self.driver.write_row(self._table, (self._branch.otid, WHOLE, COMMITTED))

    def commit(self) -> None:
        """Its own work is committed. Raises `DatabaseTrouble`; nothing is, unless it is `Lost`."""
        self.driver.commit()
        self._over()

    def commit_carrying(self, node: str, content: bytes) -> None:
        """The same, with a row that carries this to the node. Raises as `commit` does."""
        self.driver.commit_carrying(self._table, (self._branch.otid, node, content))
        self._over()

    def commit_prepared(self) -> None:
        """It was decided so. Where that does not succeed, the coordinator sees to it."""
        try:
            self.driver.commit_prepared()
        except DatabaseTrouble as trouble:
            log.info("database %s is left to the coordinator: %s", self.database, trouble)
        self._over()

    def rollback(self) -> None:
        """It was decided so. Where that does not succeed, the coordinator sees to it."""
        if not self._is_over:
            self.driver.rollback()
            self._over()

    def let_go(self) -> None:
        """How it ends is not known here: the coordinator sees to it."""
        if not self._is_over:
            self.driver.let_go()
            self._over()

    def _over(self) -> None:
        self._is_over = True
        self.opened.close()


class Databases:
    """All databases of one transaction, in the order of their coming."""

    def __init__(self, known: KnownDatabases) -> None:
        self._known = known
        self.branches: list[DatabaseBranch] = []
        # Where it is decided, if neither by a mark nor by the coordinator.
        self.place = ""
        # Whether it is known that the transaction is committed.
        self.is_decided = False

    @property
    def marked(self) -> DatabaseBranch | None:
        """The one whose commit decides, if there is one."""
        return next((each for each in self.branches if each.is_marked), None)

    @property
    def carrier(self) -> DatabaseBranch | None:
        """The one whose commit can carry all else that happens, if there is no other."""
        if len(self.branches) == 1 and self.branches[0].can_carry:
            return self.branches[0]
        return None

    @property
    def two_phase(self) -> list[DatabaseBranch]:
        """Those that are prepared."""
        return [each for each in self.branches if not each.is_marked]

    def enlist(
        self, given: Any, gtrid: bytes, database: str, markable: bool | None, place: str = ""
    ) -> Any:
        """What the application goes on using. Raises `NotEnlisted`.

        `place` is where it is decided unless a mark does; empty, it is the coordinator.
        """
        opened = unwrapped(given)
        try:
            if any(each.opened.connection is opened.connection for each in self.branches):
                raise NotEnlisted("the connection is part of this transaction already")
            opened.driver.check_idle()
            known = self._known.find(opened, database)
            is_marked = self._is_marked(opened.driver, known, markable)
            mark = known.name if is_marked else self._mark(place)
            number = len(self.branches) + 1
            # A marked database has no branch; its row is about the whole transaction.
            branch = BranchId(gtrid, branch_name(number, "" if is_marked else mark))
            # Who says that it is not markable wants it to be prepared.
            can_carry = (
                markable is not False and number == 1 and self._known.can_carry(opened, known)
            )
            opened.driver.begin(branch)
        except Lost as lost:
            opened.close()
            raise ConnectionLost(f"the database cannot be reached: {lost}. Connect again") from lost
        except BaseException:
            opened.close()
            raise
        self.branches.append(DatabaseBranch(opened, known, branch, is_marked, can_carry))
        if not is_marked and mark == place:
            self.place = place
        return opened.used

    def _mark(self, place: str) -> str:
        marked = self.marked
        return place if marked is None else marked.database

    def _is_marked(self, driver: Driver, known: mqDatabase, markable: bool | None) -> bool:
        can_prepare = driver.can_prepare and known.isTwoPhase
        if can_prepare and not markable:
            return False
        if markable is False:
            raise NotEnlisted(
                f"database {known.name} has no two-phase commit{_why(driver)}: without "
                "markable=False it takes part with its own commit, as the only one of its kind"
            )
        marked = self.marked
        if marked is not None:
            raise NotEnlisted(
                f"database {known.name} has no two-phase commit{_why(driver)}, and neither has "
                f"{marked.database}, which is part of the transaction: of two that cannot prepare, "
                "one could be committed and the other not. Use two transactions, and a queue "
                "between them"
            )
        if self.branches:
            raise NotEnlisted(
                f"database {known.name} takes part with its own commit{_why(driver)}, which "
                "decides about all the others: enlist it before them"
            )
        return True

    # --- Ends

    def why_not(self) -> str:
        """Why they cannot be committed; empty when they can."""
        return next(filter(None, (each.why_not() for each in self.branches)), "")

    def vote(self) -> tuple[DatabaseBranch, DatabaseTrouble] | None:
        """Those that can are prepared, the one that cannot has its mark; or which has not, and why.

        The mark counts with that database's commit, for which all votes are waited.
        """
        for branch in self.branches:
            try:
                if branch.is_marked:
                    branch.write_mark()
                else:
                    branch.prepare()
            except DatabaseTrouble as trouble:
                return branch, trouble
        return None

    def participants(
        self, made: Callable[[str, bytes, str], mqParticipant]
    ) -> tuple[mqParticipant, ...]:
        """Those that are prepared, as the coordinator knows them."""
        return tuple([made(each.database, each.gtrid, each.name) for each in self.two_phase])

    def voters(self, made: Callable[[str, str], mqVoter]) -> tuple[mqVoter, ...]:
        """Those that are prepared, as the node knows them that decides."""
        return tuple([made(each.database, each.name) for each in self.two_phase])

    def begin_to_commit(self) -> None:
        """It was decided so: those that were prepared are on their way, as far as that goes."""
        self.is_decided = True
        for branch in self.two_phase:
            branch.driver.begin_to_commit()

    def commit_prepared(self) -> None:
        """It was decided so: those that were prepared are committed."""
        for branch in self.two_phase:
            branch.commit_prepared()

    def rollback(self) -> None:
        """It was decided so: nothing is left of any of them."""
        for branch in self.branches:
            branch.rollback()

    def let_go(self) -> None:
        """What has not ended here is left to the coordinator."""
        for branch in self.branches:
            branch.let_go()


def _why(driver: Driver) -> str:
    return " (max_prepared_transactions is 0)" if driver.can_prepare else ""


__all__ = ["DatabaseBranch", "DatabaseTrouble", "Databases", "KnownDatabases", "Lost"]
