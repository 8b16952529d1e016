"""Connections of psycopg 3, as a transaction uses them: a part of the client's door to databases.

psycopg has two-phase commit of its own and refuses a direct commit or rollback meanwhile. Without a
prepare its `tpc_commit` is an ordinary commit, so that a marked transaction is guarded in the same
way. It is imported when somebody enlists a connection of it.

A branch is prepared in the same request that writes its row, which spares a round trip; psycopg has
no way to say that, so that its note of what is prepared is written here. What is asked for so is a
plain text that goes beneath psycopg's cursors, whose work for it would take as long again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import generators
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.rows import tuple_row

from clients.database_drivers import (
    IDENTITY_QUERY,
    DatabaseTrouble,
    Fenced,
    Lost,
    first_line,
)
from clients.errors import NotEnlisted
from idl import custody
from idl.databases import IDENTITY, TABLE, WHOLE, BranchId, Kind, insertion

_AGAIN = ("40", "53", "55P03", "57")
_UNIQUE = "23505"
_NO_TABLE = ("42P01", "3F000")
_NO_PERMISSION = "42501"
_OFF = "55000"
_MAY_CARRY = "SELECT coalesce(has_table_privilege(to_regclass(%s)::oid, 'INSERT'), false)"
_DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
# A commit that is not yet on disk may be lost in a power cut, and it is the decision.
_DURABLY = (
    " RETURNING set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
    " WHEN 'off' THEN 'on' WHEN 'local' THEN 'on' ELSE current_setting('synchronous_commit') END,"
    " true)"
)


class PsycopgDriver:
    """See `Driver`. Direct commits and rollbacks are refused by psycopg in such a transaction."""

    kind = Kind.POSTGRESQL
    can_prepare = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._xid: object = None
        # Whether it was asked to commit what is prepared, and has not answered yet.
        self._is_committing = False

    def address(self) -> str:
        """See `Driver.address`."""
        info = self._connection.info
        host = info.host if not info.host.startswith("/") else ""
        return f"postgresql://{quote(info.user)}@{host}:{info.port}/{quote(info.dbname)}"

    def identity(self, table: str) -> str:
        """See `Driver.identity`."""
        query = IDENTITY_QUERY.format(table=table, place="%s")
        connection = self._connection
        try:
            row = self._run(query, (IDENTITY, WHOLE)).fetchone()
            connection.rollback()
        except psycopg.Error as failed:
            trouble = self._trouble(failed)
            if not isinstance(trouble, Lost):
                connection.rollback()
            if getattr(failed, "sqlstate", None) in _NO_TABLE:
                return ""
            raise trouble from failed
        return "" if row is None else str(row[0])

    def check_idle(self) -> None:
        """See `Driver.check_idle`."""
        connection = self._connection
        if connection.closed:
            raise NotEnlisted("the connection is closed")
        if connection.autocommit:
            raise NotEnlisted(
                "the connection commits every statement by itself: set conn.autocommit = False "
                "before it is enlisted"
            )
        status = connection.info.transaction_status
        if status is not TransactionStatus.IDLE:
            raise NotEnlisted(
                "the connection is in a transaction of its own already, to which even a select "
                "belongs: commit it or roll it back, then enlist the connection"
            )

    def begin(self, branch: BranchId) -> None:
        """See `Driver.begin`."""
        connection = self._connection
        try:
            self._xid = connection.xid(*branch.xid)
            connection.tpc_begin(self._xid)
        except psycopg.Error as failed:
            self.let_go()
            trouble = self._trouble(failed)
            if isinstance(trouble, Lost):
                raise trouble from failed
            raise NotEnlisted(f"no transaction could begin: {trouble}") from failed

    def why_not(self) -> str:
        """See `Driver.why_not`."""
        connection = self._connection
        if connection.closed:
            return (
                "its connection was closed before the transaction ended: keep it open, and do not "
                "give it back to a pool"
            )
        status = connection.info.transaction_status
        if status is TransactionStatus.INERROR:
            return "one of its statements has failed, after which it can only be rolled back"
        if status is not TransactionStatus.INTRANS:
            return "its transaction was ended by a statement, and not by the transaction's owner"
        return ""

    def write_row(self, table: str, row: tuple[str, str, str]) -> None:
        """See `Driver.write_row`."""
        self._do(lambda: self._run(insertion(table, "%s") + _DURABLY, row))

    def prepare(self, table: str, row: tuple[str, str, str]) -> None:
        """See `Driver.prepare`."""
        connection = self._connection
        self._check_no_pipeline("prepared")
        # Digits, letters and few signs: nothing that could end a text.
        assert not {"'", "\\"} & set("".join(row) + self._name)
        written = insertion(table, "{}").format(*[f"'{value}'" for value in row])
        # First, as psycopg does it: from here on it may be prepared, whatever comes back.
        connection._tpc = (connection._tpc[0], True)
        # As one simple query: where the row is refused, PostgreSQL does not go on to the second.
        self._do(lambda: self._ask(f"{written}{_DURABLY}; PREPARE TRANSACTION '{self._name}'"))

    @property
    def _name(self) -> str:
        """The branch as PostgreSQL knows it, if it is prepared."""
        return str(self._xid)

    def _check_no_pipeline(self, what: str) -> None:
        # What is asked for in one is answered later, and would pass for done.
        if self._connection.pgconn.pipeline_status:
            raise DatabaseTrouble(
                f"its connection is in a pipeline, in which nothing can be {what}: leave the "
                "block `with conn.pipeline()` before the transaction ends"
            )

    def commit(self) -> None:
        """See `Driver.commit`."""
        # Without a prepare this is an ordinary commit.
        self._do(self._connection.tpc_commit)

    def can_carry(self, table: str) -> bool:
        """See `Driver.can_carry`."""
        name = custody.carried_table(table)
        connection = self._connection
        try:
            row = self._run(_MAY_CARRY, (name,)).fetchone()
            connection.rollback()
        except psycopg.Error as failed:
            trouble = self._trouble(failed)
            if isinstance(trouble, Lost):
                raise trouble from failed
            connection.rollback()
            return False
        return bool(row[0])

    def commit_carrying(self, table: str, row: tuple[str, str, bytes]) -> None:
        """See `Driver.commit_carrying`."""
        self._check_no_pipeline("committed")
        otid, node, content = row
        # Digits and letters: nothing that could end a text.
        assert (otid + node).isalnum()
        values = f"'{otid}'", f"'{node}'", f"decode('{content.hex()}', 'hex')"
        written = custody.insertion(table, "{}").format(*values)
        # As one simple query: where the row is refused, PostgreSQL does not go on to the commit.
        self._do(lambda: self._ask(f"{written}{_DURABLY}; COMMIT", b"COMMIT"))
        self._connection._tpc = None

    def begin_to_commit(self) -> None:
        """See `Driver.begin_to_commit`."""
        try:
            self._send(f"COMMIT PREPARED '{self._name}'")
        except psycopg.Error:
            # What is wrong with the connection will be found out when it is waited for.
            return
        self._is_committing = True

    def commit_prepared(self) -> None:
        """See `Driver.commit_prepared`."""
        try:
            if not self._is_committing:
                self._send(f"COMMIT PREPARED '{self._name}'")
            self._is_committing = False
            self._receive()
        except psycopg.Error as failed:
            self.let_go()
            raise self._trouble(failed) from failed
        self._connection._tpc = None

    def rollback(self) -> None:
        """See `Driver.rollback`."""
        try:
            self._connection.tpc_rollback()
        except psycopg.Error:
            # It is gone with the connection, or was never prepared, or the coordinator does it.
            self.let_go()

    def let_go(self) -> None:
        """See `Driver.let_go`."""
        connection = self._connection
        if connection.closed:
            return
        if getattr(connection, "_tpc", None) is None:
            return
        if self._is_committing:
            # Somebody was interrupted between the two: the answer is not to be another's.
            self._is_committing = False
            with contextlib.suppress(psycopg.Error):
                self._receive()
        # psycopg keeps its own note until its own commit succeeds, and has no other way out.
        connection._tpc = None
        try:
            connection.rollback()
        except psycopg.Error:
            connection.close()

    def _ask(self, statement: str, answer: bytes = b"") -> None:
        """It is carried out, as one simple query; its rows are of no interest."""
        self._send(statement)
        told = self._receive()
        if answer and told != answer:
            raise DatabaseTrouble(f"PostgreSQL has answered {told!r} to the commit")

    def _send(self, statement: str) -> None:
        connection = self._connection
        with connection.lock:
            connection.pgconn.send_query(statement.encode())
            connection.pgconn.flush()

    def _receive(self) -> bytes | None:
        connection = self._connection
        with connection.lock:
            # What could not be sent at once is sent first.
            results = connection.wait(generators.execute(connection.pgconn))
        if results[-1].status not in _DONE:
            raise error_from_result(results[-1], connection.info.encoding)
        told: bytes | None = results[-1].command_status
        return told

    def _run(self, statement: str, parameters: tuple[str, ...]) -> Any:
        # Not the connection's own kind of cursor, which may want other places for parameters.
        cursor = psycopg.Cursor(self._connection, row_factory=tuple_row)
        return cursor.execute(statement.encode(), parameters)

    def _do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except psycopg.Error as failed:
            raise self._trouble(failed) from failed

    def _trouble(self, failed: Exception) -> DatabaseTrouble:
        state = getattr(failed, "sqlstate", None) or ""
        told = first_line(failed)
        if self._connection.closed or self._connection.broken:
            return Lost(told)
        is_about_ours = TABLE in told or custody.CARRIED_TABLE in told
        if state == _UNIQUE and is_about_ours:
            return Fenced("it took too long, and was rolled back in the meantime", True)
        if state in _NO_TABLE and is_about_ours:
            return DatabaseTrouble(f"{told}: type `oncemq database prepare NAME`")
        if state == _NO_PERMISSION and (is_about_ours or "for schema" in told):
            return DatabaseTrouble(
                f"{told}: type `oncemq database prepare NAME --grant ROLE`, with the role of the "
                "application"
            )
        if state == _OFF or "prepared transactions are disabled" in told:
            return DatabaseTrouble(
                f"{told}: set max_prepared_transactions in postgresql.conf and restart PostgreSQL, "
                "or enlist with markable=True"
            )
        return DatabaseTrouble(told, state.startswith(_AGAIN))
