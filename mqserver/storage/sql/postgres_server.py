"""The PostgreSQL server: what it must be set to, what it is told once, and who is which node.

A server that does not sync, or that was told to answer before it has, is refused: at the first
connection and at every later one.
"""

from __future__ import annotations

from typing import Any

import psycopg
from sqlalchemy import Engine, func
from sqlalchemy.exc import DBAPIError

from mqserver.errors import StorageError, StorageLocked
from mqserver.storage.sql.schema import to_text

# Advisory locks are known by two numbers; the first says that they are ours ("omq").
LOCKS, NODES = 0x6F6D71, 0x6F6D72
LOCK_TABLES, LOCK_KEYS, LOCK_LINE = 1, 2, 3

COMPLETION = f"""
CREATE SEQUENCE oncemq_key;
CREATE SEQUENCE oncemq_end;
-- A crash empties this table, and nothing else does: as long as it has its row, no key was lost.
CREATE UNLOGGED TABLE oncemq_no_crash (since timestamptz PRIMARY KEY);

-- Numbers without a gap, which a sequence alone does not give to two callers at once. The lock is
-- let go at once and not at the end of the transaction, so that nobody waits for a sync here.
CREATE FUNCTION oncemq_next_keys(count bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    first bigint;
BEGIN
    IF count < 1 THEN
        RETURN 0;
    END IF;
    PERFORM pg_advisory_lock({LOCKS}, {LOCK_KEYS});
    first := nextval('oncemq_key');
    IF count > 1 THEN
        PERFORM setval('oncemq_key', first + count - 1);
    END IF;
    PERFORM pg_advisory_unlock({LOCKS}, {LOCK_KEYS});
    RETURN first;
END $$;

CREATE FUNCTION oncemq_open_keys() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM oncemq_no_crash) THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_lock({LOCKS}, {LOCK_KEYS});
    PERFORM setval('oncemq_key', ceiling) FROM oncemq_key_counter
        WHERE ceiling > (SELECT last_value FROM oncemq_key);
    PERFORM pg_advisory_unlock({LOCKS}, {LOCK_KEYS});
    INSERT INTO oncemq_no_crash VALUES (clock_timestamp());
END $$;
"""


# How the server must be set, and what can be lost if it is not.
_NEEDED = {
    "fsync": ("on", "can lose messages in a power cut"),
    "full_page_writes": ("on", "can lose messages in a power cut"),
    "data_sync_retry": ("off", "can lose messages when a write fails once"),
}
_SYNCHRONOUS = ("on", "remote_write", "remote_apply")


def check(connection: psycopg.Connection[Any], description: str) -> None:
    """The connection is as durable as we promise, and no key is given twice. Or it is refused."""
    found = connection.execute(
        "SELECT current_setting('fsync'), current_setting('full_page_writes'),"
        " current_setting('data_sync_retry'), current_setting('synchronous_commit'),"
        " to_regproc('oncemq_open_keys') IS NOT NULL"
    ).fetchone()
    assert found is not None
    *settings, synchronous_commit, has_keys = found
    for (name, (needed, danger)), value in zip(_NEEDED.items(), settings, strict=True):
        if value != needed:
            raise StorageError(
                f"{description} has {name} = {value} and {danger}: "
                f"set {name} = {needed} in postgresql.conf and restart it"
            )
    if synchronous_commit not in _SYNCHRONOUS:
        raise StorageError(
            f"{description} has synchronous_commit = {synchronous_commit} and says that messages "
            "are stored before they are: set it to on for the server, the database or the user, "
            "as in ALTER DATABASE … SET synchronous_commit = on"
        )
    _fix(connection, synchronous_commit)
    if has_keys:
        connection.execute("SELECT oncemq_open_keys()")
    connection.commit()


def _fix(connection: psycopg.Connection[Any], synchronous_commit: str) -> None:
    """Nobody changes for this connection what was just checked, or ends it because it rests."""
    connection.execute(
        "SELECT set_config('synchronous_commit', %s, false),"
        " set_config('idle_in_transaction_session_timeout', '60s', false),"
        # Servers before PostgreSQL 14 do not know this one.
        " CASE WHEN current_setting('idle_session_timeout', true) IS NOT NULL"
        " THEN set_config('idle_session_timeout', '0', false) END",
        (synchronous_commit,),
    )


class SessionClaim:
    """An advisory lock of one connection. The server unlocks it when the connection is gone."""

    def __init__(self, engine: Engine, node: str) -> None:
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection.detach()
        try:
            self._acquire(node)
        except BaseException:
            self._connection.close()
            raise

    def _acquire(self, node: str) -> None:
        # The server may take a moment to see that the last owner is gone.
        self._connection.exec_driver_sql("SET lock_timeout = '5s'")
        place = func.current_schema().concat("/").concat(to_text(node))
        try:
            self._connection.execute(func.pg_advisory_lock(NODES, func.hashtext(place)).select())
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", "") == "55P03":
                raise StorageLocked(f"node {node!r} runs already on this database") from error
            raise

    def is_held(self) -> bool:
        """See `Claim.is_held`."""
        try:
            self._connection.exec_driver_sql("SELECT 1")
        except DBAPIError:
            return False
        return True

    def release(self) -> None:
        """See `Claim.release`."""
        self._connection.close()
