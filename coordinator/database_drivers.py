"""The coordinator's door to databases: one connection, what it is asked, and what its errors mean.

`Link` is a connection of the coordinator's own; the application has others. Every statement has a
limit of time, and every error becomes one of the few kinds of trouble below. Drivers are imported
when the first database needs them. It decides nothing, and repeats nothing.

    DatabaseTrouble
    ├── Unreachable       nobody answers, or lets us in; later, perhaps
    ├── Busy              another one is at it; later, certainly
    ├── NoSuchBranch      there is no prepared branch of that name
    └── NoTable           a table of ours is not there
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from coordinator.registry import Registered
from idl import custody
from idl.custody import CONTENT_BYTES_MAX, NOBODY, can_carry, carried_table
from idl.databases import (
    BRANCH,
    COMMITTED,
    IDENTITY,
    ROLLED_BACK,
    WHOLE,
    BranchId,
    Kind,
    creation,
    insertion,
    permission,
)
from idl.otids import GTRID_BYTES

PASSWORD_BYTES_MAX = 4096
# Names of transactions are hexadecimal, so this comes behind all that have the same beginning.
_BEHIND = "g"
# Of a row that a node can have written.
_IS_CARRIED = (
    f"length(otid) = {2 * GTRID_BYTES} AND rtrim(otid, '0123456789abcdef') = '' "
    f"AND length(content) <= {CONTENT_BYTES_MAX}"
)


class DatabaseTrouble(Exception):
    """The database did not do what it was asked; the message says why, without secrets."""


class Unreachable(DatabaseTrouble):
    """The database cannot be reached, or does not let the coordinator in."""


class Busy(DatabaseTrouble):
    """Somebody else is at work on it; it can be asked again."""


class NoSuchBranch(DatabaseTrouble):
    """There is no prepared branch of this name: it has ended, or never was."""


class NoTable(DatabaseTrouble):
    """A table of ours is not there: `oncemq database prepare NAME` makes it."""


@dataclass(frozen=True)
class Limits:
    """How long the coordinator waits for a database, in seconds."""

    connect_s: float = 5.0
    statement_s: float = 5.0
    lock_s: float = 2.0


class Facts(NamedTuple):
    """What a database is; `identity` is empty where the table is not there."""

    identity: str
    is_two_phase: bool
    trouble: str = ""
    # Its rows can carry puts to nodes.
    is_carrier: bool = False


class Prepared(NamedTuple):
    """A prepared transaction that was found, whoever made it; not every database knows its age."""

    format_id: int | None
    gtrid: str
    branch: str
    age_s: float | None = None
    owner: str = ""


class Row(NamedTuple):
    """A row of the outcome table."""

    otid: str
    branch: str
    outcome: str


class Carried(NamedTuple):
    """A committed row that carries puts to a node."""

    otid: str
    content: bytes


class TwoPhase(Protocol):
    """What is special about the prepared branches of one kind of database."""

    def is_on(self, link: Link) -> bool:
        """Whether branches can be prepared there."""

    def prepared(self, link: Link) -> list[Prepared]:
        """All prepared transactions of this database, of whomever."""

    def statement(self, is_commit: bool, branch: BranchId) -> str:
        """What ends a prepared branch."""


@dataclass(frozen=True)
class Dialect:
    """How one kind of database is spoken to."""

    kind: Kind
    place: str
    insert_once: tuple[str, str]
    older: str
    errors: type[Exception]
    trouble_of: Callable[[Exception], DatabaseTrouble]
    two_phase: TwoPhase | None = None
    # A statement that names the setting by which a power cut could take back what was committed.
    danger: str = ""
    # One that finds the table for carried puts, if it is there, and says whether it may be used.
    carrier: str = ""
    # One whose commit puts on disk what was committed before, where others may see that earlier.
    securing: str = ""


class Link:
    """One connection of the coordinator to a database, which commits every statement by itself."""

    def __init__(self, connection: Any, dialect: Dialect, table: str) -> None:
        self._connection = connection
        self._dialect = dialect
        self.table = table
        self._carried = carried_table(table)

    def close(self) -> None:
        """The connection is gone."""
        try:
            self._connection.close()
        except self._dialect.errors:
            # It was broken before, which is why it is closed.
            return

    def run(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """What the statement returns. Raises `DatabaseTrouble`."""
        try:
            cursor = self._connection.cursor()
            try:
                # Without any, a percent sign is one, and no place for another.
                cursor.execute(statement, *([tuple(parameters)] if parameters else []))
                return [tuple(row) for row in cursor.fetchall()] if cursor.description else []
            finally:
                cursor.close()
        except self._dialect.errors as failed:
            raise self._dialect.trouble_of(failed) from failed

    # --- What it is

    def facts(self) -> Facts:
        """Which database this is, and whether it can prepare branches."""
        two_phase = self._dialect.two_phase
        is_two_phase = two_phase is not None and two_phase.is_on(self)
        try:
            rows = self._select("otid = {} AND branch = {}", (IDENTITY, WHOLE))
        except NoTable as missing:
            return Facts("", is_two_phase, str(missing))
        trouble = f"{self.table} has no identity: oncemq database prepare NAME"
        if not rows:
            return Facts("", is_two_phase, trouble)
        is_carrier, trouble = self._may_carry(), self._danger()
        if is_carrier is False:
            trouble = trouble or f"{self._carried} is there, and the coordinator may not use it"
        return Facts(rows[0].outcome, is_two_phase, trouble, bool(is_carrier))

    def _may_carry(self) -> bool | None:
        """Whether the table for carried puts may be used; None where it is not there."""
        found = self.run(self._dialect.carrier) if self._dialect.carrier else []
        return bool(found[0][0]) if found else None

    def _danger(self) -> str:
        [(setting,)] = self.run(self._dialect.danger) if self._dialect.danger else [("",)]
        if not setting:
            return ""
        return f"{setting} is so set that a power cut can take back what was prepared or marked"

    def make_table(self, identity: str, role: str = "") -> None:
        """The tables are there, with an identity; this one, if there was none. May be repeated."""
        kind = self._dialect.kind
        allowing = [permission(kind, self.table, role)] if role else []
        if role and can_carry(kind):
            allowing.append(custody.permission(self.table, role))
        self.run(creation(kind, self.table))
        self._insert_once(insertion, (IDENTITY, WHOLE, identity))
        if can_carry(kind):
            self.run(custody.creation(kind, self.table))
        for statement in allowing:
            self.run(statement)

    # --- Prepared branches

    def prepared(self) -> list[Prepared]:
        """All prepared transactions of this database, ours and others'."""
        two_phase = self._dialect.two_phase
        return [] if two_phase is None else two_phase.prepared(self)

    def end(self, branch: BranchId, is_commit: bool) -> None:
        """The prepared branch is committed, or rolled back. Raises `NoSuchBranch`."""
        if self._dialect.two_phase is None:
            raise NoSuchBranch("this kind of database has no prepared branches")
        self.run(self._dialect.two_phase.statement(is_commit, branch))

    def committed(self, branches: Iterable[BranchId]) -> set[BranchId]:
        """Those of the branches that left a row, which only a commit does."""
        wanted = {(each.otid, each.branch): each for each in branches}
        if not wanted:
            return set()
        otids = sorted({otid for otid, _ in wanted})
        places = ", ".join("{}" for _ in otids)
        rows = self._select(f"otid IN ({places})", otids)
        return {
            wanted[row.otid, row.branch]
            for row in rows
            if row.outcome == BRANCH and (row.otid, row.branch) in wanted
        }

    # --- Marks

    def mark(self, gtrid: bytes) -> str | None:
        """What is decided about the whole transaction, where anything is."""
        if self._may_carry() is not None and self._carried_to(gtrid):
            self._secure()
            return COMMITTED
        rows = self._select("otid = {} AND branch = {}", (gtrid.hex(), WHOLE))
        if not rows:
            return None
        if rows[0].outcome == COMMITTED:
            self._secure()
        return rows[0].outcome

    def _secure(self) -> None:
        """What was seen is on disk, before anybody acts on it.

        An owner that was killed in its commit may have left what is seen, and not synced.
        """
        if self._dialect.securing:
            self.run(self._dialect.securing)

    def fence(self, gtrid: bytes) -> str:
        """What is decided about the transaction; where nothing was, it is now rolled back.

        Waits for an owner that is just committing its mark; raises `Busy` when that takes long.
        """
        # The table may have been made a moment ago, so that it is looked for each time. A fence is
        # in both: the owner may be late with either row.
        if self._may_carry() is not None and not self._fence_carried(gtrid):
            self._secure()
            return COMMITTED
        self._insert_once(insertion, (gtrid.hex(), WHOLE, ROLLED_BACK))
        # On disk now: a mark that comes later finds the key taken.
        found = self.mark(gtrid)
        assert found is not None
        return found

    def _fence_carried(self, gtrid: bytes) -> bool:
        """Whether nothing is carried, from now on and for ever."""
        self._insert_once(custody.insertion, (gtrid.hex(), NOBODY, b""))
        # Fences stay. If nothing stands there, it was a row that the node has had in the meantime.
        return self._carried_to(gtrid) == NOBODY

    def _carried_to(self, gtrid: bytes) -> str | None:
        """Whose the transaction's row is, `NOBODY` where it is a fence, None if there is none."""
        condition = self._filled("otid = {}")
        rows = self.run(f"SELECT node FROM {self._carried} WHERE {condition}", (gtrid.hex(),))
        return str(rows[0][0]) if rows else None

    # --- Puts that rows carry

    def carried(self, node: str, older_s: float, behind: str, limit: int) -> list[Carried]:
        """Rows of this node that are so old, in order, behind this otid; with age 0 all of them.

        One may be found a second late, but none too early. What no node can have written is left
        out, however it came there: nobody who may write there fills the coordinator's memory.
        """
        condition = f"node = {{}} AND otid > {{}} AND {_IS_CARRIED}"
        parameters: list[object] = [node, behind]
        if older_s:
            # Not with 0: where whole seconds are counted, a row of this one is not older.
            condition += f" AND {self._dialect.older}"
            parameters.append(older_s)
        found = self.run(
            f"SELECT otid, content FROM {self._carried} WHERE {self._filled(condition)} "
            f"ORDER BY otid LIMIT {limit:d}",
            parameters,
        )
        if found:
            self._secure()
        # In SQLite any column may hold anything. What is no text comes behind all that is.
        return [
            Carried(otid, content if isinstance(content, bytes) else b"")
            for otid, content in found
            if isinstance(otid, str)
        ]

    def forget_carried(self, node: str, otids: Sequence[str]) -> None:
        """Those rows that are this node's are gone, on disk; of others nothing changes."""
        places = ", ".join("{}" for _ in otids)
        condition = self._filled(f"node = {{}} AND otid IN ({places})")
        self.run(f"DELETE FROM {self._carried} WHERE {condition}", (node, *otids))

    # --- Rows that nobody needs

    def rows_of(self, identity: bytes, older_s: float, behind: str, limit: int) -> list[Row]:
        """Rows of one coordinator's transactions that are so old, in order, behind this otid."""
        condition = (
            f"otid > {{}} AND otid < {{}} AND {self._dialect.older} ORDER BY otid LIMIT {limit:d}"
        )
        first = max(identity.hex(), behind)
        return self._select(condition, (first, identity.hex() + _BEHIND, older_s))

    def forget(self, rows: Sequence[Row]) -> None:
        """The rows are gone."""
        alike: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            alike.setdefault((row.branch, row.outcome), []).append(row.otid)
        for (branch, outcome), otids in alike.items():
            places = ", ".join("{}" for _ in otids)
            condition = self._filled(f"branch = {{}} AND outcome = {{}} AND otid IN ({places})")
            statement = f"DELETE FROM {self.table} WHERE {condition}"
            self.run(statement, (branch, outcome, *otids))

    def _select(self, condition: str, parameters: Sequence[object]) -> list[Row]:
        statement = (
            f"SELECT otid, branch, outcome FROM {self.table} WHERE {self._filled(condition)}"
        )
        return [Row(*row) for row in self.run(statement, parameters)]

    def _insert_once(self, writing: Callable[[str, str], str], row: Sequence[object]) -> None:
        before, behind = self._dialect.insert_once
        statement = writing(self.table, self._dialect.place).replace("INSERT", before, 1)
        self.run(f"{statement}{behind}", row)

    def _filled(self, condition: str) -> str:
        return condition.replace("{}", self._dialect.place)


# Makes a connection to a registered database. Raises `DatabaseTrouble`.
Open = Callable[[Registered], Link]


def password_of(registered: Registered, environment: Mapping[str, str]) -> str | None:
    """The password, if the registry says where it is. Raises `Unreachable` where it is not."""
    if registered.password_env:
        found = environment.get(registered.password_env)
        if found is None:
            raise Unreachable(f"${registered.password_env} is not set for the coordinator")
        return found
    return _password_in(registered.password_file) if registered.password_file else None


def _password_in(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as refused:
        raise Unreachable(f"the password in {path} cannot be read: {refused.strerror}") from refused
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Unreachable(f"{path} is not a plain file")
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise Unreachable(f"others may look at the password: chmod 600 {path}")
        data = os.read(fd, PASSWORD_BYTES_MAX)
    finally:
        os.close(fd)
    try:
        return data.decode().rstrip("\r\n")
    except UnicodeDecodeError as wrong:
        raise Unreachable(f"{path} is not UTF-8 text") from wrong
