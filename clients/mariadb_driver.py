"""Connections of PyMySQL to MariaDB, as a transaction uses them: a part of the client's door.

PyMySQL has no two-phase commit of its own; MariaDB has, in statements (XA START and so on). In such
a branch the server itself refuses whatever would commit: COMMIT, ROLLBACK, BEGIN, SET autocommit,
and the statements that commit unasked (CREATE TABLE, TRUNCATE, LOCK TABLES, GRANT, ...). A marked
transaction is such a branch too, committed in one phase, so that it is guarded in the same way.

What is known of MariaDB:
- A prepared branch belongs to its connection, and nobody else can end it, until that is closed. So
  one that is left to the coordinator takes its connection with it.
- Before 10.5 it was rolled back with its connection: there nothing is prepared.
- A deadlock undoes all of the branch's work and leaves it "rollback only"; what was refused for
  another reason (a duplicate key, a lock that was waited for too long) is undone alone.
- Tables that are not InnoDB's are changed at once, and stay so.

It is imported when somebody enlists a connection of it.
"""

from __future__ import annotations

import enum
import re
from typing import Any, NoReturn
from urllib.parse import quote

from clients.database_drivers import (
    IDENTITY_QUERY,
    DatabaseTrouble,
    Fenced,
    Lost,
    refuse_end,
)
from clients.errors import NotEnlisted
from idl.databases import IDENTITY, TABLE, WHOLE, BranchId, Kind, insertion

# The first version in which a prepared branch outlives its connection.
_PREPARES_SINCE = (10, 5)
_version = re.compile(r"(\d+)\.(\d+)[.\d]*-MariaDB", re.ASCII | re.IGNORECASE).search
# Killed, shutting down, and what PyMySQL calls it when nobody answers.
_LOST = (0, 1053, 1080, 1927, 2006, 2013, 2014, 2055, 4031)
_ROLLED_BACK = (1213, 1402, 1613, 1614)
_AGAIN = (1020, 1040, 1205, 1213, 1317, 1402, 1613, 1614, 1969, 3024)
_DUPLICATE = 1062
_NO_TABLE = (1049, 1146)
_NO_PERMISSION = (1044, 1142, 1143, 1227)
_WRONG_STATE = 1399
_OUTSIDE = 1400
_IN_OWN = (
    "the connection is in a transaction of its own already, to which even a select belongs: commit "
    "it or roll it back, then enlist the connection"
)


class _State(enum.Enum):
    """Where the branch of a connection stands, as far as this side knows."""

    NONE = "none"
    ACTIVE = "active"
    IDLE = "idle"
    PREPARED = "prepared"


class MariadbDriver:
    """See `Driver`. A direct commit or rollback is refused by the server in such a branch."""

    kind = Kind.MARIADB

    def __init__(self, connection: Any) -> None:
        import pymysql
        from pymysql.constants import SERVER_STATUS
        from pymysql.cursors import Cursor

        self._connection = connection
        self._errors = pymysql.MySQLError
        self._in_transaction = SERVER_STATUS.SERVER_STATUS_IN_TRANS
        self._cursor = Cursor
        self._state = _State.NONE
        self._xid = ""
        self._session = 0
        found = _version(str(connection.server_version))
        if found is None:
            raise NotEnlisted(
                f"the server is {connection.server_version}, which is not MariaDB: MySQL is not "
                "supported, since nobody has tried it"
            )
        self.can_prepare = (int(found[1]), int(found[2])) >= _PREPARES_SINCE

    def address(self) -> str:
        """See `Driver.address`."""
        connection = self._connection
        user, database = _text(connection.user), _text(connection.db) or "DATABASE"
        where = f"mariadb://{quote(user)}@{connection.host}:{connection.port}/{quote(database)}"
        socket = connection.unix_socket
        return f"{where}?unix_socket={quote(socket)}" if socket else where

    def identity(self, table: str) -> str:
        """See `Driver.identity`."""
        query = IDENTITY_QUERY.format(table=table, place="%s")
        connection = self._connection
        # The driver is not told of a transaction that a select has begun; the server knows.
        if self._do("SELECT @@in_transaction")[0][0]:
            raise NotEnlisted(_IN_OWN)
        try:
            rows = self._run(query, (IDENTITY, WHOLE))
            connection.rollback()
        except self._errors as failed:
            if _number(failed) in _NO_TABLE:
                return ""
            raise self._trouble(failed) from failed
        return str(rows[0][0]) if rows else ""

    def check_idle(self) -> None:
        """See `Driver.check_idle`."""
        connection = self._connection
        if not connection.open:
            raise NotEnlisted("the connection is closed")
        if connection.get_autocommit():
            raise NotEnlisted(
                "the connection commits every statement by itself: call conn.autocommit(False) "
                "before it is enlisted"
            )
        if connection.server_status & self._in_transaction:
            raise NotEnlisted(_IN_OWN)

    def begin(self, branch: BranchId) -> None:
        """See `Driver.begin`."""
        format_id, gtrid, name = branch.xid
        # Digits, letters and few signs; and 64 bytes of each at most, or it would not be read.
        assert max(len(gtrid), len(name)) <= 64
        assert not {"'", "\\"} & set(gtrid + name)
        self._xid = f"'{gtrid}','{name}',{format_id:d}"
        self._session = self._connection.thread_id()
        try:
            self._run(f"XA START {self._xid}")
        except self._errors as failed:
            trouble = self._trouble(failed)
            if isinstance(trouble, Lost):
                raise trouble from failed
            if _number(failed) == _OUTSIDE:
                raise NotEnlisted(_IN_OWN) from failed
            raise NotEnlisted(f"no transaction could begin: {trouble}") from failed
        self._state = _State.ACTIVE

    def why_not(self) -> str:
        """See `Driver.why_not`."""
        connection = self._connection
        if not connection.open:
            return (
                "its connection was closed before the transaction ended: keep it open, and do not "
                "give it back to a pool"
            )
        if connection.thread_id() != self._session:
            return "its connection was made anew, and with the old one its work is gone"
        return ""

    def write_row(self, table: str, row: tuple[str, str, str]) -> None:
        """See `Driver.write_row`."""
        try:
            self._run(insertion(table, "%s"), row)
        except self._errors as failed:
            if _number(failed) == _DUPLICATE:
                told = "it took too long, and was rolled back in the meantime"
                raise Fenced(told, True) from failed
            raise self._trouble(failed) from failed

    def prepare(self, table: str, row: tuple[str, str, str]) -> None:
        """See `Driver.prepare`."""
        self.write_row(table, row)
        self._end()
        self._do(f"XA PREPARE {self._xid}")
        self._state = _State.PREPARED

    def commit(self) -> None:
        """See `Driver.commit`."""
        try:
            self._end()
        except Lost as lost:
            # Nobody was asked to commit yet.
            raise DatabaseTrouble(str(lost), True) from lost
        try:
            self._run(f"XA COMMIT {self._xid} ONE PHASE")
        except self._errors as failed:
            trouble = self._trouble(failed)
            if _number(failed) in _ROLLED_BACK or isinstance(trouble, Lost):
                raise trouble from failed
            # It does not say that nothing has happened, so that this is not concluded.
            self._close()
            raise Lost(str(trouble)) from failed
        self._state = _State.NONE

    def can_carry(self, table: str) -> bool:
        """See `Driver.can_carry`."""
        return False

    def commit_carrying(self, table: str, row: tuple[str, str, bytes]) -> NoReturn:
        """Never called: `can_carry` says so."""
        raise AssertionError("MariaDB carries nothing")

    def begin_to_commit(self) -> None:
        """See `Driver.begin_to_commit`. PyMySQL cannot ask without waiting."""

    def commit_prepared(self) -> None:
        """See `Driver.commit_prepared`."""
        try:
            self._do(f"XA COMMIT {self._xid}")
        except DatabaseTrouble:
            self.let_go()
            raise
        self._state = _State.NONE

    def rollback(self) -> None:
        """See `Driver.rollback`."""
        try:
            if self._state is _State.ACTIVE:
                # Refused where the branch is "rollback only", and then not needed.
                self._try(f"XA END {self._xid}")
            if self._state is not _State.NONE:
                self._run(f"XA ROLLBACK {self._xid}")
            self._state = _State.NONE
        except self._errors:
            # It is gone with the connection; what is prepared then is the coordinator's.
            self._close()

    def let_go(self) -> None:
        """See `Driver.let_go`."""
        if self._state is _State.PREPARED:
            # Only then can the coordinator end it.
            self._close()
        else:
            self.rollback()

    # --- Statements

    def _end(self) -> None:
        if self._state is _State.ACTIVE:
            self._do(f"XA END {self._xid}")
            self._state = _State.IDLE

    def _try(self, statement: str) -> None:
        try:
            self._run(statement)
        except self._errors as failed:
            if _number(failed) in _LOST or not self._connection.open:
                raise

    def _do(self, statement: str) -> list[tuple[Any, ...]]:
        try:
            return self._run(statement)
        except self._errors as failed:
            raise self._trouble(failed) from failed

    def _run(self, statement: str, parameters: tuple[str, ...] | None = None) -> list[Any]:
        # Not the connection's own kind of cursor, which may give other things than tuples.
        cursor = self._cursor(self._connection)
        try:
            cursor.execute(statement, parameters)
            return list(cursor.fetchall())
        finally:
            cursor.close()

    def _close(self) -> None:
        self._state = _State.NONE
        if self._connection.open:
            self._connection.close()

    def _trouble(self, failed: Exception) -> DatabaseTrouble:
        number, told = _number(failed), _told(failed)
        if number in _LOST or not self._connection.open:
            self._close()
            return Lost(told)
        if number == _WRONG_STATE and "ROLLBACK ONLY" in told:
            return DatabaseTrouble(
                "one of its statements ran into a deadlock, which has undone all of its work", True
            )
        if number in (_WRONG_STATE, _OUTSIDE):
            return DatabaseTrouble(f"its transaction was ended by a statement: {told}")
        if number in _NO_TABLE and TABLE in told:
            return DatabaseTrouble(f"{told}: type `oncemq database prepare NAME`")
        if number in _NO_PERMISSION and TABLE in told:
            return DatabaseTrouble(
                f"{told}: type `oncemq database prepare NAME --grant USER@HOST`, with the account "
                "of the application"
            )
        return DatabaseTrouble(told, number in _AGAIN)


class EnlistedMariadb:
    """A connection of PyMySQL inside a transaction: all of it, but for what would end that."""

    def __init__(self, connection: Any) -> None:
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


_ENDING = ("commit", "rollback", "begin", "autocommit", "close", "connect")


def _number(failed: Exception) -> int:
    number = failed.args[0] if failed.args else 0
    return number if isinstance(number, int) else 0


def _told(failed: Exception) -> str:
    told = str(failed.args[-1]).strip() if failed.args else ""
    return next(iter(told.splitlines()), type(failed).__name__)


def _text(name: str | bytes | None) -> str:
    return name.decode() if isinstance(name, bytes) else name or ""
