"""Connections of psycopg 3, as a transaction uses them: a part of the client's door to databases.

psycopg has two-phase commit of its own and refuses a direct commit or rollback meanwhile. Without a
prepare its `tpc_commit` is an ordinary commit, so that a marked transaction is guarded in the same
way. It is imported when somebody enlists a connection of it.

A branch is prepared in the same request that writes its row, which spares a round trip; psycopg has
no way to say that, so that its note of what is prepared is written here. What is asked for so goes
beneath psycopg's cursors, whose work for it would take as long again. The row that carries is
written by a prepared statement where psycopg has such: to plan it takes a quarter of the commit.
"""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import generators
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGresult
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
_NO_STATEMENT = "26000"
_DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_CAN_PIPE = psycopg.Pipeline.is_supported()
# Of transaction, node and content.
_CONTENT_IS_BINARY = [Format.TEXT, Format.TEXT, Format.BINARY]
# A commit that is not yet on disk may be lost in a power cut, and it is the decision.
_DURABLY = (
    " RETURNING set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
    " WHEN 'off' THEN 'on' WHEN 'local' THEN 'on' ELSE current_setting('synchronous_commit') END,"
    " true)"
)
# The same where a row is written of these values; the condition is always true.
_DURABLE_VALUES = (
    "SELECT $1::varchar, $2::varchar, $3::bytea WHERE CASE current_setting('synchronous_commit')"
    " WHEN 'off' THEN set_config('synchronous_commit', 'on', true)"
    " WHEN 'local' THEN set_config('synchronous_commit', 'on', true) ELSE '' END IS NOT NULL"
)

# Names of statements, by text and types; the one that was used last is the last one.
_Statements = OrderedDict[tuple[bytes, tuple[int, ...]], bytes]


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
        status = connection.pgconn.transaction_status
        if status != TransactionStatus.IDLE:
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
        status = connection.pgconn.transaction_status
        if status == TransactionStatus.INERROR:
            return "one of its statements has failed, after which it can only be rolled back"
        if status != TransactionStatus.INTRANS:
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
        known = self._prepared()
        if known is None:
            self._do(lambda: self._commit_row(table, row))
        else:
            self._do(lambda: self._commit_prepared_row(known, _carrying(table), row))
        self._connection._tpc = None

    def _prepared(self) -> _Statements | None:
        """What psycopg has prepared here, to which ours is added; None where it does not prepare.

        So whoever has a pooler between that knows no prepared statements has told it.
        """
        connection = self._connection
        if not _CAN_PIPE or connection.prepare_threshold is None:
            return None
        # It forgets them when it has PostgreSQL forget them: with a rollback, or after `DROP`.
        return getattr(getattr(connection, "_prepared", None), "_names", None)

    def _commit_prepared_row(
        self, known: _Statements, statement: bytes, row: tuple[str, str, bytes]
    ) -> None:
        otid, node, content = row
        connection, key = self._connection, (statement, ())
        is_new = key not in known
        name = f"oncemq_{otid[-32:]}".encode() if is_new else known[key]
        with connection.lock:
            try:
                results = self._piped(name, statement if is_new else b"", otid, node, content)
            except BaseException:
                # An answer may still be on its way, which nobody else is to take for theirs.
                connection.close()
                raise
        if is_new and results[0].status in _DONE:
            known[key] = name
        for each in results:
            if each.status not in _DONE:
                failed = error_from_result(each, connection.info.encoding)
                if failed.sqlstate == _NO_STATEMENT:
                    known.pop(key, None)
                raise failed
        _check_committed(results[-1].command_status)
        known.move_to_end(key)

    def _piped(
        self, name: bytes, statement: bytes, otid: str, node: str, content: bytes
    ) -> list[PGresult]:
        """What was said to each of the requests, of which none goes on where one has failed."""
        connection, pgconn = self._connection, self._connection.pgconn
        pgconn.enter_pipeline_mode()
        if statement:
            pgconn.send_prepare(name, statement)
        values = [otid.encode(), node.encode(), content]
        pgconn.send_query_prepared(name, values, _CONTENT_IS_BINARY)
        pgconn.send_query_params(b"COMMIT", None)
        pgconn.pipeline_sync()
        results: list[PGresult] = []
        heard: list[PGresult] = connection.wait(generators.execute(pgconn))
        while heard and heard[-1].status != ExecStatus.PIPELINE_SYNC:
            results += heard
            heard = connection.wait(generators.fetch_many(pgconn))
        if not heard:
            raise psycopg.OperationalError("PostgreSQL has not answered everything")
        pgconn.exit_pipeline_mode()
        return results

    def _commit_row(self, table: str, row: tuple[str, str, bytes]) -> None:
        otid, node, content = row
        # Digits and letters: nothing that could end a text.
        assert (otid + node).isalnum()
        values = f"'{otid}'", f"'{node}'", f"decode('{content.hex()}', 'hex')"
        written = custody.insertion(table, "{}").format(*values)
        # As one simple query: where the row is refused, PostgreSQL does not go on to the commit.
        _check_committed(self._ask(f"{written}{_DURABLY}; COMMIT"))

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

    def _ask(self, statement: str) -> bytes | None:
        """It is carried out, as one simple query; what was said to the end of it."""
        self._send(statement)
        return self._receive()

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
        if state == _NO_STATEMENT:
            return DatabaseTrouble(
                f"{told}: it was prepared on this connection, and somebody has had that forgotten. "
                "Try again; with a pooler between, connect with prepare_threshold=None",
                True,
            )
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


@functools.lru_cache(maxsize=64)
def _carrying(table: str) -> bytes:
    """The statement that writes a row, to be prepared."""
    name = custody.carried_table(table)
    return f"INSERT INTO {name} (otid, node, content) {_DURABLE_VALUES}".encode()


def _check_committed(told: bytes | None) -> None:
    if told != b"COMMIT":
        raise DatabaseTrouble(f"PostgreSQL has answered {told!r} to the commit")
