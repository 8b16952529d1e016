"""The coordinator's door to databases: one connection, what it is asked, and what its errors mean.

`Link` is a connection of the coordinator's own; the application has others. Every statement has a
limit of time, and every error becomes one of the few kinds of trouble below. Drivers are imported
when the first database needs them. It decides nothing, and repeats nothing.

    DatabaseTrouble
    ├── Unreachable       nobody answers, or lets us in; later, perhaps
    ├── Busy              another one is at it; later, certainly
    ├── NoSuchBranch      there is no prepared branch of that name
    └── NoTable           the table for outcomes is not there
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from coordinator.registry import Registered
from idl.databases import (
    BRANCH,
    IDENTITY,
    ROLLED_BACK,
    WHOLE,
    BranchId,
    Kind,
    creation,
    insertion,
    permission,
)

PASSWORD_BYTES_MAX = 4096
# Names of transactions are hexadecimal, so this comes behind all that have the same beginning.
_BEHIND = "g"


class DatabaseTrouble(Exception):
    """The database did not do what it was asked; the message says why, without secrets."""


class Unreachable(DatabaseTrouble):
    """The database cannot be reached, or does not let the coordinator in."""


class Busy(DatabaseTrouble):
    """Somebody else is at work on it; it can be asked again."""


class NoSuchBranch(DatabaseTrouble):
    """There is no prepared branch of this name: it has ended, or never was."""


class NoTable(DatabaseTrouble):
    """The table for outcomes is not there: `oncemq database prepare NAME` makes it."""


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


class Link:
    """One connection of the coordinator to a database, which commits every statement by itself."""

    def __init__(self, connection: Any, dialect: Dialect, table: str) -> None:
        self._connection = connection
        self._dialect = dialect
        self.table = table

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
        return Facts(rows[0].outcome, is_two_phase, self._danger())

    def _danger(self) -> str:
        [(setting,)] = self.run(self._dialect.danger) if self._dialect.danger else [("",)]
        if not setting:
            return ""
        return f"{setting} is so set that a power cut can take back what was prepared or marked"

    def make_table(self, identity: str, role: str = "") -> None:
        """The table is there, and has an identity; this one, where it had none. May be repeated."""
        kind = self._dialect.kind
        allowing = permission(kind, self.table, role) if role else ""
        self.run(creation(kind, self.table))
        self._insert_once(Row(IDENTITY, WHOLE, identity))
        if allowing:
            self.run(allowing)

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
        rows = self._select("otid = {} AND branch = {}", (gtrid.hex(), WHOLE))
        return rows[0].outcome if rows else None

    def fence(self, gtrid: bytes) -> str:
        """What is decided about the transaction; where nothing was, it is now rolled back.

        Waits for an owner that is just committing its mark; raises `Busy` when that takes long.
        """
        self._insert_once(Row(gtrid.hex(), WHOLE, ROLLED_BACK))
        # On disk now: a mark that comes later finds the key taken.
        found = self.mark(gtrid)
        assert found is not None
        return found

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

    def _insert_once(self, row: Row) -> None:
        before, behind = self._dialect.insert_once
        statement = insertion(self.table, self._dialect.place).replace("INSERT", before, 1)
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
