"""Connections of sqlite3, as a transaction uses them: a part of the client's door to databases.

SQLite has no two-phase commit: it takes part with its own commit. sqlite3 would let anybody commit;
what the application is given refuses that, and a commit on the connection itself is found out by a
savepoint that it takes away.
"""

from __future__ import annotations

import sqlite3
from typing import Any, NoReturn
from urllib.parse import quote

from clients.database_drivers import (
    IDENTITY_QUERY,
    DatabaseTrouble,
    Fenced,
    first_line,
    refuse_end,
)
from clients.errors import LockTimeout, NotEnlisted
from idl import custody
from idl.databases import IDENTITY, TABLE, WHOLE, BranchId, Kind, insertion

_SAVEPOINT = "oncemq_enlisted"
# FULL does not sync the folder from which a journal was removed, with which a power cut undoes it.
_EXTRA = 3


class SqliteDriver:
    """See `Driver`. A commit behind our back is found out by a savepoint that it takes away."""

    kind = Kind.SQLITE
    can_prepare = False

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._synchronous = _EXTRA

    def address(self) -> str:
        """See `Driver.address`."""
        for row in self._run("PRAGMA database_list"):
            _, name, path = tuple(row)
            if name == "main" and path:
                return f"sqlite:///{quote(path)}"
        return ""

    def identity(self, table: str) -> str:
        """See `Driver.identity`."""
        query = IDENTITY_QUERY.format(table=table, place="?")
        try:
            rows = self._run(query, (IDENTITY, WHOLE))
        except sqlite3.Error as failed:
            if first_line(failed).startswith("no such table"):
                return ""
            raise self._trouble(failed) from failed
        return str(next(iter(rows[0]))) if rows else ""

    def check_idle(self) -> None:
        """See `Driver.check_idle`."""
        if getattr(self._connection, "autocommit", None) is False:
            raise NotEnlisted(
                "the connection is always in a transaction: open it without autocommit=False"
            )
        try:
            is_busy = self._connection.in_transaction
            self._connection.total_changes  # noqa: B018
        except sqlite3.ProgrammingError as closed:
            raise NotEnlisted(f"the connection cannot be used: {closed}") from closed
        if is_busy:
            raise NotEnlisted(
                "the connection is in a transaction of its own already: commit it or roll it back, "
                "then enlist the connection"
            )

    def begin(self, branch: BranchId) -> None:
        """See `Driver.begin`."""
        try:
            self._synchronous = int(next(iter(self._run("PRAGMA synchronous")[0])))
            if self._synchronous < _EXTRA:
                # A commit that a power cut takes away would be a decision taken back.
                self._run(f"PRAGMA synchronous = {_EXTRA}")
            # It will write, if only its mark: better to wait for others now than at the end.
            self._run("BEGIN IMMEDIATE")
            self._run(f"SAVEPOINT {_SAVEPOINT}")
        except sqlite3.Error as failed:
            self.rollback()
            trouble = self._trouble(failed)
            if trouble.retryable:
                raise LockTimeout(f"no transaction could begin: {trouble}") from failed
            raise NotEnlisted(f"no transaction could begin: {trouble}") from failed

    def why_not(self) -> str:
        """See `Driver.why_not`."""
        try:
            self._run(f"RELEASE {_SAVEPOINT}")
        except sqlite3.ProgrammingError as closed:
            return f"its connection cannot be used any more: {closed}"
        except sqlite3.Error:
            return (
                "its transaction was ended by commit(), rollback() or executescript() on the "
                "connection itself, so that rows may be there without the messages"
            )
        return ""

    def write_row(self, table: str, row: tuple[str, str, str]) -> None:
        """See `Driver.write_row`."""
        self._do(insertion(table, "?"), row)

    def prepare(self, table: str, row: tuple[str, str, str]) -> NoReturn:
        """Never called: `can_prepare` says so."""
        raise AssertionError("SQLite has no two-phase commit")

    def commit(self) -> None:
        """See `Driver.commit`."""
        try:
            self._do("COMMIT")
        except DatabaseTrouble:
            self.rollback()
            raise
        self._restore()

    def can_carry(self, table: str) -> bool:
        """See `Driver.can_carry`."""
        schema, _, name = custody.carried_table(table).rpartition(".")
        try:
            found = self._run(f"SELECT 1 FROM {schema}.sqlite_master WHERE name = ?", (name,))
        except sqlite3.Error as failed:
            raise self._trouble(failed) from failed
        return bool(found)

    def commit_carrying(self, table: str, row: tuple[str, str, bytes]) -> None:
        """See `Driver.commit_carrying`."""
        self._do(custody.insertion(table, "?"), row)
        self.commit()

    def begin_to_commit(self) -> NoReturn:
        """Never called: `can_prepare` says so."""
        raise AssertionError("SQLite has no two-phase commit")

    def commit_prepared(self) -> NoReturn:
        """Never called: `can_prepare` says so."""
        raise AssertionError("SQLite has no two-phase commit")

    def rollback(self) -> None:
        """See `Driver.rollback`."""
        try:
            if self._connection.in_transaction:
                self._run("ROLLBACK")
            self._restore()
        except sqlite3.Error:
            # It is closed, and with it what was not committed is gone.
            return

    def let_go(self) -> None:
        """See `Driver.let_go`."""
        self.rollback()

    def _restore(self) -> None:
        if self._synchronous < _EXTRA:
            self._run(f"PRAGMA synchronous = {self._synchronous}")
            self._synchronous = _EXTRA

    def _do(self, statement: str, parameters: tuple[object, ...] = ()) -> None:
        try:
            self._run(statement, parameters)
        except sqlite3.Error as failed:
            raise self._trouble(failed) from failed

    def _run(self, statement: str, parameters: tuple[object, ...] = ()) -> list[Any]:
        cursor = sqlite3.Cursor(self._connection)
        try:
            return cursor.execute(statement, parameters).fetchall()
        finally:
            cursor.close()

    def _trouble(self, failed: sqlite3.Error) -> DatabaseTrouble:
        told = first_line(failed)
        code = getattr(failed, "sqlite_errorcode", 0) or 0
        if isinstance(failed, sqlite3.IntegrityError) and _is_about_ours(told):
            return Fenced("it took too long, and was rolled back in the meantime", True)
        if told.startswith("no such table"):
            return DatabaseTrouble(f"{told}: type `oncemq database prepare NAME`")
        return DatabaseTrouble(told, code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))


def _is_about_ours(told: str) -> bool:
    return TABLE in told or custody.CARRIED_TABLE in told


class EnlistedSqlite:
    """An sqlite3 connection inside a transaction: all of it, but for what would end that."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.__dict__["_connection"] = connection

    def __getattr__(self, name: str) -> Any:
        if name in _ENDING:
            return refuse_end
        return getattr(self._connection, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._connection, name, value)

    def __enter__(self) -> NoReturn:
        refuse_end()

    def __exit__(self, *raised: object) -> None:
        """Never called, since it cannot be entered."""

    def __repr__(self) -> str:
        return f"<enlisted {self._connection!r}>"


_ENDING = ("commit", "rollback", "executescript", "close")
