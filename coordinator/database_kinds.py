"""PostgreSQL, MariaDB and SQLite, as the coordinator connects to each: drivers, settings, errors.

A part of the door in `database_drivers.py`. A driver is imported when a database first needs it, so
that a coordinator without databases needs none.

What is known of each:
- PostgreSQL commits or rolls back a prepared branch only for the role that prepared it, or for a
  superuser, and only in the same database. `max_prepared_transactions = 0`, as it comes, means that
  nothing can be prepared.
- MariaDB knows nothing of a prepared branch (XAER_NOTA) while the connection that prepared it is
  open, but lists it all the same. It does not say how old a branch is, nor of which database. Any
  account may list and end all branches of the server. Before 10.5 a prepared branch was rolled back
  with its connection, so that it counts as one that cannot prepare.
- SQLite has no prepared branches, and one writer at a time.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from coordinator.database_drivers import (
    Busy,
    DatabaseTrouble,
    Dialect,
    Limits,
    Link,
    NoSuchBranch,
    NoTable,
    Prepared,
    Unreachable,
    password_of,
)
from coordinator.registry import Registered
from idl.custody import CARRIED_TABLE, carried_table
from idl.databases import IDENTITY, MARIADB_TLS, BranchId, Kind

APPLICATION = "oncemq-coordinator"
# Beginning with this length PostgreSQL refuses the name of a prepared transaction.
GID_LENGTH_LIMIT = 200


def open_link(registered: Registered, limits: Limits) -> Link:
    """A connection to the database. Raises `DatabaseTrouble`."""
    return _OPENERS[registered.where.kind](registered, limits)


def _first_line(failed: BaseException) -> str:
    return next(iter(str(failed).strip().splitlines()), type(failed).__name__)


# --- PostgreSQL ----------------------------------------------------------------------------------

_CARRYING = ("SELECT", "INSERT", "DELETE")
_LATER = ("55P03", "57014", "55000", "40001", "40P01", "53300")


class _PreparedInPostgresql:
    """See `TwoPhase`."""

    def __init__(self, xids: Any) -> None:
        self._xids = xids

    def is_on(self, link: Link) -> bool:
        [(number,)] = link.run("SELECT current_setting('max_prepared_transactions')::int")
        return bool(number > 0)

    def prepared(self, link: Link) -> list[Prepared]:
        found = link.run(
            "SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8, owner::text"
            " FROM pg_prepared_xacts WHERE database = current_database()"
        )
        return [self._read(*row) for row in found]

    def _read(self, gid: str, age_s: float, owner: str) -> Prepared:
        xid = self._xids.from_string(gid)
        # Written again it must be the same, or we would end another than was found.
        if xid.format_id is None or str(xid) != gid:
            return Prepared(None, gid, "", max(age_s, 0.0), owner)
        return Prepared(xid.format_id, xid.gtrid, xid.bqual, max(age_s, 0.0), owner)

    def statement(self, is_commit: bool, branch: BranchId) -> str:
        gid = str(self._xids.from_parts(*branch.xid))
        # Digits, letters and the signs of base 64: nothing that could end the text.
        assert not {"'", "\\"} & set(gid)
        assert len(gid) < GID_LENGTH_LIMIT
        return f"{'COMMIT' if is_commit else 'ROLLBACK'} PREPARED '{gid}'"


def _open_postgresql(registered: Registered, limits: Limits) -> Link:
    try:
        import psycopg
    except ImportError as missing:
        told = "the driver for PostgreSQL is not installed: pip install 'oncemq[postgres]'"
        raise Unreachable(told) from missing

    def trouble_of(failed: Exception) -> DatabaseTrouble:
        assert isinstance(failed, psycopg.Error)
        return postgresql_trouble(failed.sqlstate or "", _first_line(failed), registered)

    password = password_of(registered, os.environ)
    given: dict[str, Any] = {} if password is None else {"password": password}
    try:
        connection = psycopg.connect(
            registered.where.text,
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=max(2, round(limits.connect_s)),
            application_name=APPLICATION,
            # A machine that is gone says nothing: then the connection is, after a few seconds.
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
            tcp_user_timeout=round(1000 * 2 * limits.statement_s),
            **given,
        )
    except psycopg.Error as refused:
        raise Unreachable(_first_line(refused)) from refused
    two_phase = _PreparedInPostgresql(psycopg.Xid)
    rights = " AND ".join(f"has_table_privilege(found, '{each}')" for each in _CARRYING)
    # The name is quoted, and has no quotes of texts in it: see `table_of`.
    named = carried_table(registered.table)
    dialect = Dialect(
        Kind.POSTGRESQL,
        "%s",
        ("INSERT", " ON CONFLICT DO NOTHING"),
        "at < clock_timestamp() - make_interval(secs => {})",
        psycopg.Error,
        trouble_of,
        two_phase,
        "SELECT CASE WHEN current_setting('fsync') = 'off' THEN 'fsync'"
        " WHEN current_setting('full_page_writes') = 'off' THEN 'full_page_writes' ELSE '' END",
        f"SELECT {rights} FROM (SELECT to_regclass('{named}') AS found) AS looked"
        " WHERE found IS NOT NULL",
    )
    link = Link(connection, dialect, registered.table)
    _limit_postgresql(link, limits)
    return link


def _limit_postgresql(link: Link, limits: Limits) -> None:
    """No statement takes for ever, and what it says to be committed is on disk."""
    link.run(
        "SELECT set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false),"
        " set_config('synchronous_commit',"
        " CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' WHEN 'local' THEN 'on'"
        " ELSE current_setting('synchronous_commit') END, false)",
        (str(round(1000 * limits.statement_s)), str(round(1000 * limits.lock_s))),
    )


def postgresql_trouble(state: str, told: str, registered: Registered) -> DatabaseTrouble:
    """What an error of PostgreSQL with this SQLSTATE means."""
    if state == "42704":
        return NoSuchBranch(told)
    if state in ("42P01", "3F000"):
        return _no_table(told, registered)
    if state in _LATER:
        return Busy(told)
    if state == "42501":
        return DatabaseTrouble(
            f"{told}: register the database with the role that applications use, or a superuser"
        )
    if not state or state[:2] in ("08", "57", "28"):
        return Unreachable(told)
    return DatabaseTrouble(f"{told} ({state})")


def _no_table(told: str, registered: Registered) -> NoTable:
    return NoTable(f"{told}: type `oncemq database prepare {registered.name}`")


# --- MariaDB -------------------------------------------------------------------------------------

_XAER_NOTA, _XAER_RMFAIL, _XAER_OUTSIDE = 1397, 1399, 1400
_NO_SUCH_TABLE = 1146
_MARIADB_LATER = (_XAER_RMFAIL, _XAER_OUTSIDE, 1205, 1213, 1040, 1969, 3024)
_MARIADB_REFUSALS = (1045, 1049, 1053, 1698, 1927, 2002, 2003, 2006, 2013, 2055)
_MARIADB_DENIED = (1044, 1142, 1143, 1227)


class _PreparedInMariadb:
    """See `TwoPhase`."""

    def is_on(self, link: Link) -> bool:
        [(version,)] = link.run("SELECT version()")
        return mariadb_prepares(str(version))

    def prepared(self, link: Link) -> list[Prepared]:
        # Of the whole server: a branch of another of its databases cannot be told apart.
        return [read_mariadb_xid(*row) for row in link.run("XA RECOVER")]

    def statement(self, is_commit: bool, branch: BranchId) -> str:
        format_id, gtrid, name = branch.xid
        return f"XA {'COMMIT' if is_commit else 'ROLLBACK'} '{gtrid}', '{name}', {format_id}"


def mariadb_prepares(version: str) -> bool:
    """Whether a branch that is prepared there outlives its connection."""
    found = re.search(r"(\d+)\.(\d+)[.\d]*-MariaDB", version, re.ASCII | re.IGNORECASE)
    return found is not None and (int(found[1]), int(found[2])) >= (10, 5)


def read_mariadb_xid(
    format_id: int, gtrid_length: int, branch_length: int, data: str | bytes
) -> Prepared:
    """A row of XA RECOVER."""
    text = data if isinstance(data, str) else data.decode("latin-1")
    return Prepared(format_id, text[:gtrid_length], text[gtrid_length:][:branch_length])


def _open_mariadb(registered: Registered, limits: Limits) -> Link:
    try:
        import pymysql  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as missing:
        told = "the driver for MariaDB is not installed: pip install 'oncemq[mariadb]'"
        raise Unreachable(told) from missing

    def trouble_of(failed: Exception) -> DatabaseTrouble:
        return mariadb_trouble(*_parts(failed), registered)

    where = registered.where
    try:
        connection = pymysql.connect(
            host=where.host or "localhost",
            port=where.port or 3306,
            user=where.user or None,
            password=password_of(registered, os.environ) or "",
            database=where.place,
            **mariadb_options(registered.dsn),
            autocommit=True,
            connect_timeout=limits.connect_s,
            read_timeout=2 * limits.statement_s,
            write_timeout=2 * limits.statement_s,
            program_name=APPLICATION,
        )
    except (pymysql.MySQLError, OSError) as refused:
        # Also a certificate or a key that cannot be read, which PyMySQL passes on as it is.
        raise Unreachable(_parts(refused)[1]) from refused
    dialect = Dialect(
        Kind.MARIADB,
        "%s",
        ("INSERT IGNORE", ""),
        "at < now() - INTERVAL {} SECOND",
        pymysql.MySQLError,
        trouble_of,
        _PreparedInMariadb(),
        "SELECT IF(@@innodb_flush_log_at_trx_commit <> 1, 'innodb_flush_log_at_trx_commit',"
        " IF(@@log_bin AND @@sync_binlog <> 1, 'sync_binlog', ''))",
    )
    link = Link(connection, dialect, registered.table)
    link.run(
        "SET SESSION max_statement_time = %s, innodb_lock_wait_timeout = %s",
        (limits.statement_s, max(1, round(limits.lock_s))),
    )
    return link


def mariadb_options(dsn: str) -> dict[str, Any]:
    """How PyMySQL is to connect, by what stands behind the `?` of the address.

    With certificates by which the server is known, it must have TLS and be who it says it is.
    """
    given = dict(parse_qsl(urlsplit(dsn).query))
    wanted = ("unix_socket", *MARIADB_TLS)
    options: dict[str, Any] = {name: value for name, value in given.items() if name in wanted}
    if "ssl_ca" in options:
        options["ssl_verify_cert"] = True
        options["ssl_verify_identity"] = options.get("ssl_verify_identity") != "false"
    return options


def _parts(failed: BaseException) -> tuple[int, str]:
    """The number and the words of an error of PyMySQL."""
    number = failed.args[0] if failed.args and isinstance(failed.args[0], int) else 0
    return number, _first_line(Exception(failed.args[-1]) if failed.args else failed)


def mariadb_trouble(number: int, told: str, registered: Registered) -> DatabaseTrouble:
    """What an error of MariaDB with this number means."""
    if number == _XAER_NOTA:
        return NoSuchBranch(told)
    if number == _NO_SUCH_TABLE:
        return _no_table(told, registered)
    if number in _MARIADB_LATER:
        return Busy(told)
    if not number or number in _MARIADB_REFUSALS:
        return Unreachable(told)
    if number in _MARIADB_DENIED:
        return DatabaseTrouble(
            f"{told}: the coordinator's account needs CREATE, SELECT, INSERT and DELETE on "
            f"{registered.table}, and the GRANT OPTION for --grant"
        )
    return DatabaseTrouble(f"{told} ({number})")


# --- SQLite --------------------------------------------------------------------------------------


def _open_sqlite(registered: Registered, limits: Limits) -> Link:
    path = registered.where.place

    def trouble_of(failed: Exception) -> DatabaseTrouble:
        return _sqlite_trouble(failed, registered)

    try:
        connection = sqlite3.connect(
            # A path that is wrong must not become a new, empty database.
            f"file:{quote(path)}?mode=rw",
            uri=True,
            timeout=limits.lock_s,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as refused:
        raise Unreachable(f"{path}: {_first_line(refused)}") from refused
    dialect = Dialect(
        Kind.SQLITE,
        "?",
        ("INSERT OR IGNORE", ""),
        "at < strftime('%Y-%m-%d %H:%M:%S', 'now', '-' || {} || ' seconds')",
        sqlite3.Error,
        trouble_of,
        carrier=f"SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{CARRIED_TABLE}'",
        securing=f"UPDATE {registered.table} SET outcome = outcome WHERE otid = '{IDENTITY}'",
    )
    link = Link(connection, dialect, registered.table)
    # A fence that a power cut took away would let a late mark through, and a row that came back
    # would be put again. FULL does not sync the folder from which a journal was removed.
    link.run("PRAGMA synchronous = EXTRA")
    return link


def _sqlite_trouble(failed: Exception, registered: Registered) -> DatabaseTrouble:
    told = _first_line(failed)
    code = getattr(failed, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Busy(f"{registered.where.place}: {told}")
    if told.startswith("no such table"):
        return _no_table(told, registered)
    return Unreachable(f"{registered.where.place}: {told}")


_OPENERS: dict[Kind, Callable[[Registered, Limits], Link]] = {
    Kind.POSTGRESQL: _open_postgresql,
    Kind.MARIADB: _open_mariadb,
    Kind.SQLITE: _open_sqlite,
}
