"""One look at a database: its prepared branches get what was decided, old rows are forgotten.

Who decides is in `fates.py`. It works without the application, whoever died and whenever: what was
decided is found in the coordinator's log, what is prepared in the database, and all that is done
may be done again. What cannot be done with one branch keeps no other from its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from coordinator.database import CommittedAlone, Database
from coordinator.database_drivers import (
    DatabaseTrouble,
    Facts,
    Link,
    NoSuchBranch,
    NoTable,
    Prepared,
    Row,
    Unreachable,
)
from coordinator.fates import Fate, fate_of, is_ours, may_forget
from coordinator.verdicts import Verdicts
from idl.databases import BranchId, mark_of, read_xid
from idl.otids import FORMAT_ID, show

ROWS_TOGETHER = 500
ROWS_AT_ONCE = 20_000

log = logging.getLogger("oncemq.coordinator")

# Whether the mark in the database of this name commits the transaction; fences it if nobody did.
ByMark = Callable[[str, bytes], bool]


_NO_FACTS = Facts("", False)


@dataclass(frozen=True)
class Seen:
    """What was found at a database when it was last looked at."""

    is_reachable: bool = False
    trouble: str = "it has not been looked at yet"
    facts: Facts = _NO_FACTS
    # Prepared transactions that are still there after the look.
    ours: int = 0
    foreign: int = 0
    oldest_s: float = 0.0
    ended: int = 0


@dataclass
class _Count:
    ours: int = 0
    foreign: int = 0
    oldest_s: float = 0.0
    ended: int = 0
    troubles: list[str] = field(default_factory=list)


class Recovery:
    """Looks at one database, again and again. One thread at a time."""

    def __init__(
        self,
        database: Database,
        verdicts: Verdicts,
        by_mark: ByMark,
        clock: Callable[[], float],
        rows_s: float,
    ) -> None:
        self._database = database
        self._verdicts = verdicts
        self._by_mark = by_mark
        self._clock = clock
        self._rows_s = rows_s
        # For databases that do not say how old a branch is.
        self._first_seen: dict[BranchId, float] = {}
        # What was complained about before, and need not be again.
        self._troubles: frozenset[str] = frozenset()

    def inherit(self, before: Recovery) -> None:
        """What was found by who looked there before is as old as it was."""
        self._first_seen = dict(before._first_seen)

    def look(self) -> Seen:
        """What was found, and what is left of it after what is decided has been carried out."""
        facts = self._database.facts()
        count = _Count()
        found = [(each, read_xid(*each[:3])) for each in self._database.prepared()]
        ours = [(b, each) for each, b in found if b is not None and self._is_ours(b)]
        count.foreign = len(found) - len(ours)
        now = self._clock()
        self._first_seen = {b: self._first_seen.get(b, now) for b, _ in ours}
        for branch, each in ours:
            self._treat(branch, self._age_s(branch, each, now), count)
        if facts.trouble:
            count.troubles.append(facts.trouble)
        if facts.identity:
            self._forget_rows()
        self._troubles = frozenset(count.troubles)
        told = count.troubles[0] if count.troubles else ""
        return Seen(
            True, told, facts, count.ours, count.foreign, round(count.oldest_s, 3), count.ended
        )

    def _is_ours(self, branch: BranchId) -> bool:
        return is_ours(branch, self._verdicts.identity)

    def _age_s(self, branch: BranchId, found: Prepared, now: float) -> float:
        return now - self._first_seen[branch] if found.age_s is None else found.age_s

    def _treat(self, branch: BranchId, age_s: float, count: _Count) -> None:
        try:
            is_ended = self._end(branch, age_s)
        except Unreachable:
            raise
        except DatabaseTrouble as trouble:
            told = f"{show(branch.gtrid)}/{branch.branch}: {trouble}"
            if told not in self._troubles:
                log.warning("database %s: %s", self._database.name, told)
            count.troubles.append(told)
            is_ended = False
        if is_ended:
            count.ended += 1
            return
        count.ours += 1
        count.oldest_s = max(count.oldest_s, age_s)

    def _end(self, branch: BranchId, age_s: float) -> bool:
        """Whether the branch is not prepared any more."""
        # Only now, after it was found: what is decided later concerns later looks.
        verdict = self._verdicts.of(branch)
        fate = fate_of(branch, verdict, age_s, self._database.registered.grace_s)
        if fate is Fate.ASK_MARK:
            fate = self._fate_by_mark(branch)
        if fate is Fate.LEAVE:
            raise DatabaseTrouble("its name is not known to this coordinator's log: see it by hand")
        if fate is Fate.WAIT:
            return False
        name, shown = self._database.name, show(branch.gtrid)
        log.info("database %s: %s of %s: %s", name, branch.branch, shown, fate.value)
        try:
            if fate is Fate.COMMIT:
                self._database.commit(branch)
            else:
                self._database.rollback(branch)
        except (NoSuchBranch, CommittedAlone):
            # It was ended while we looked, by who prepared it or by the delivery of the decision,
            # which also sees to it that nothing is wrong with that.
            return True
        return True

    def _fate_by_mark(self, branch: BranchId) -> Fate:
        name = mark_of(branch.branch)
        try:
            return Fate.COMMIT if self._by_mark(name, branch.gtrid) else Fate.ROLL_BACK
        except DatabaseTrouble as silent:
            # Not our own trouble: this database is there.
            raise DatabaseTrouble(f"waits for what {name} says: {silent}") from silent

    # --- Rows that nobody needs

    def _forget_rows(self) -> None:
        """Rows of transactions that are over and known are deleted, in small portions."""
        behind = ""
        for _ in range(ROWS_AT_ONCE // ROWS_TOGETHER):
            rows = self._rows(behind)
            if not rows:
                return
            behind = rows[-1].otid
            useless = [row for row in rows if self._is_useless(row)]
            if useless:
                # First: were the end forgotten and the row gone, nobody could tell what happened.
                self._verdicts.force()
                self._database.ask(partial(_forget, rows=useless))

    def _rows(self, behind: str) -> list[Row]:
        identity, rows_s = self._verdicts.identity, self._rows_s
        try:
            return self._database.ask(
                lambda link: link.rows_of(identity, rows_s, behind, ROWS_TOGETHER)
            )
        except NoTable:
            return []

    def _is_useless(self, row: Row) -> bool:
        named = read_xid(FORMAT_ID, row.otid, row.branch or "-")
        if named is None or not self._is_ours(named):
            return False
        is_committed = self._verdicts.is_known_committed(named.gtrid)
        return may_forget(row.outcome, self._verdicts.is_over(named.gtrid), is_committed)


def _forget(link: Link, rows: list[Row]) -> None:
    link.forget(rows)
