"""The connection in what an application has: its driver, and what it goes on using.

    psycopg 3     prepares, and can be marked     psycopg itself refuses a direct commit
    PyMySQL       prepares, and can be marked     MariaDB and the wrapper refuse a direct commit
    sqlite3       can be marked                   the wrapper refuses a direct commit
    SQLAlchemy    as the connection beneath it    refused before SQLAlchemy passes it on

Drivers are known by the modules of their classes, so that none is imported before somebody uses it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from clients.database_drivers import Driver, refuse_end
from clients.errors import NotEnlisted

_OTHERS_OF_MARIADB = ("MySQLdb.", "mariadb.", "mysql.connector.")


class Unwrapped(NamedTuple):
    """A driver, what the application goes on using, and what is to be done at the end."""

    driver: Driver
    used: Any
    connection: object
    close: Callable[[], None]


def unwrapped(given: Any) -> Unwrapped:
    """The connection in what an application has. Raises `NotEnlisted`."""
    kind: Any = type(given)
    names = _names(kind)
    if "sqlalchemy.engine.base.Engine" in names:
        opened = given.connect()
        try:
            inner = _of_sqlalchemy(opened)
        except BaseException:
            opened.close()
            raise

        def leave() -> None:
            inner.close()
            _give_back(opened)

        return inner._replace(close=leave)
    if "sqlalchemy.engine.base.Connection" in names:
        return _of_sqlalchemy(given)
    if "sqlalchemy.pool.base.PoolProxiedConnection" in names:
        return unwrapped(given.driver_connection)._replace(used=given)
    if "psycopg.Connection" in names:
        return Unwrapped(_psycopg(given), given, given, _nothing)
    if "pymysql.connections.Connection" in names:
        return _of_pymysql(given)
    if "sqlite3.Connection" in names:
        return _of_sqlite(given)
    raise NotEnlisted(_refusal(given, names))


def _give_back(opened: Any) -> None:
    from sqlalchemy.exc import SQLAlchemyError

    try:
        opened.close()
    except SQLAlchemyError:
        # The connection is broken, which whoever used it was told: the pool must not keep it.
        with contextlib.suppress(SQLAlchemyError):
            opened.invalidate()
            opened.close()


def _of_sqlalchemy(connection: Any) -> Unwrapped:
    from sqlalchemy import event
    from sqlalchemy.exc import SQLAlchemyError

    inner = unwrapped(connection.connection.driver_connection)

    def refuse(ending: object) -> None:
        refuse_end()

    # SQLAlchemy commits at the driver, around any wrapper of ours; but it asks before.
    event.listen(connection, "commit", refuse)

    had_begun = connection.in_transaction()

    def leave() -> None:
        event.remove(connection, "commit", refuse)
        if not had_begun:
            # What SQLAlchemy has begun by itself is over; at the driver there is nothing left.
            with contextlib.suppress(SQLAlchemyError):
                connection.rollback()

    return inner._replace(used=connection, close=leave)


@functools.lru_cache(maxsize=64)
def _names(kind: type) -> frozenset[str]:
    return frozenset([f"{each.__module__}.{each.__name__}" for each in kind.__mro__])


def _nothing() -> None:
    """Who brought the connection closes it."""


def _refusal(given: object, names: frozenset[str]) -> str:
    if any(name.endswith((".AsyncConnection", ".AsyncEngine", ".AsyncSession")) for name in names):
        return "connections of asyncio cannot take part: transactions are synchronous"
    if "sqlalchemy.orm.session.Session" in names:
        return "a session is not a connection: enlist session.connection(), and flush() at the end"
    if "psycopg2.extensions.connection" in names:
        return "psycopg2 is not supported: use psycopg 3 (pip install 'psycopg[binary]')"
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    if kind.startswith(_OTHERS_OF_MARIADB):
        return f"{kind} is not supported: use PyMySQL (pip install 'oncemq[mariadb]')"
    return (
        f"{kind} cannot take part: enlist a connection of psycopg 3, PyMySQL or sqlite3, or a "
        "Connection or an Engine of SQLAlchemy that uses one of them"
    )


def _psycopg(connection: Any) -> Driver:
    from clients.psycopg_driver import PsycopgDriver

    return PsycopgDriver(connection)


def _of_pymysql(connection: Any) -> Unwrapped:
    from clients.mariadb_driver import EnlistedMariadb, MariadbDriver

    return Unwrapped(MariadbDriver(connection), EnlistedMariadb(connection), connection, _nothing)


def _of_sqlite(connection: Any) -> Unwrapped:
    from clients.sqlite_driver import EnlistedSqlite, SqliteDriver

    return Unwrapped(SqliteDriver(connection), EnlistedSqlite(connection), connection, _nothing)
