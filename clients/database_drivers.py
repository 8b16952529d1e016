"""What a transaction asks of a connection to a database, and what can go wrong with that.

Every error of a driver becomes one of the kinds below; what a driver does is in the module of its
name. It knows neither nodes nor the coordinator, and no driver itself.

    DatabaseTrouble
    ├── Lost      the connection is gone; what was asked last may have been done
    └── Fenced    the row cannot be written, because the transaction was rolled back before
"""

from __future__ import annotations

from typing import NoReturn, Protocol

from clients.errors import OnceMQError
from idl.databases import BranchId, Kind

# Which database it is, for whoever reads the table.
IDENTITY_QUERY = "SELECT outcome FROM {table} WHERE otid = {place} AND branch = {place}"


class DatabaseTrouble(Exception):
    """The database did not do what it was asked, and has rolled back what was not prepared.

    `retryable`: the same may succeed when the transaction is tried again.
    """

    retryable = False

    def __init__(self, told: str, retryable: bool = False) -> None:
        super().__init__(told)
        self.retryable = retryable


class Lost(DatabaseTrouble):
    """The connection is gone; whether the last request was carried out is not known."""

    def __init__(self, told: str) -> None:
        super().__init__(told, True)


class Fenced(DatabaseTrouble):
    """Somebody has decided before that the transaction is rolled back."""


class Driver(Protocol):
    """One connection of the application. What is not said to raise something raises nothing."""

    kind: Kind
    can_prepare: bool

    def address(self) -> str:
        """Where it leads, as `oncemq database add` takes it; empty for what cannot be added."""

    def identity(self, table: str) -> str:
        """Which database this is; empty where it has no such table. Raises `DatabaseTrouble`."""

    def check_idle(self) -> None:
        """Raises `NotEnlisted` where a transaction could not begin."""

    def begin(self, branch: BranchId) -> None:
        """The branch has begun, and only `prepare`, `commit` or `rollback` end it.

        Raises `NotEnlisted`, `Lost`, or `LockTimeout` where another one keeps it from beginning.
        """

    def why_not(self) -> str:
        """Why what was done cannot be committed; empty when it can."""

    def write_row(self, table: str, row: tuple[str, str, str]) -> None:
        """The row will be there when the branch is committed. Raises `DatabaseTrouble`."""

    def prepare(self, table: str, row: tuple[str, str, str]) -> None:
        """The branch is prepared, and with it the row, as by `write_row`.

        Raises `DatabaseTrouble`; then it is not, unless it is `Lost`.
        """

    def commit(self) -> None:
        """All of it has happened. Raises `DatabaseTrouble`; then nothing has, unless `Lost`."""

    def can_carry(self, table: str) -> bool:
        """Whether the database has the table for what is carried, and lets us write there."""

    def commit_carrying(self, table: str, row: tuple[str, str, bytes]) -> None:
        """The same as `commit`, and with it the row is there: transaction, node, content."""

    def begin_to_commit(self) -> None:
        """The database is at it, if that can be without waiting; `commit_prepared` follows."""

    def commit_prepared(self) -> None:
        """The prepared branch is committed. Raises `DatabaseTrouble`: then others will do it."""

    def rollback(self) -> None:
        """Nothing of it has happened, as far as the database can be reached."""

    def let_go(self) -> None:
        """The prepared branch is left to the coordinator; the connection is free, or closed."""


def first_line(failed: BaseException) -> str:
    """What the database said, without its hints."""
    return next(iter(str(failed).strip().splitlines()), type(failed).__name__)


def refuse_end(*arguments: object) -> NoReturn:
    """Instead of what would end the transaction in the database alone."""
    raise OnceMQError(
        "the connection belongs to a transaction, which commits or rolls back all of it together: "
        "call tx.commit() or tx.rollback(), or leave the `with` block"
    )
