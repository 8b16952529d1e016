"""Transactions with one database and one node, and what is there after them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import oncemq
from idl.custody import CARRIED_TABLE
from tests.integration.enlisting import File, Rows, eventually, in_doubt, payloads

Side = Rows | File


def delete(side: Side, payload: str) -> None:
    with closing(side.connect()) as other:
        other.execute(f"DELETE FROM rows WHERE payload = '{payload}'")
        other.commit()


def moved(mq: oncemq.Connection, conn: Any, is_getting: bool) -> oncemq.Transaction:
    """A row and a message, and perhaps one that was got."""
    if not is_getting:
        return act(mq, conn)
    mq.queue("in").put(b"in")
    tx = act(mq, conn)
    assert mq.queue("in").get(tx=tx) is not None
    return tx


def check_got(mq: oncemq.Connection, is_getting: bool, is_committed: bool) -> None:
    """What was got is gone, or back in its queue; nobody holds it."""
    wanted = ["in"] if is_getting and not is_committed else []
    eventually(lambda: payloads(mq, "in") == wanted, "what was got is where it belongs")
    eventually(lambda: not in_doubt(mq), "nobody is in doubt")


def act(mq: oncemq.Connection, conn: Any, payload: str = "x", **how: Any) -> oncemq.Transaction:
    """A row and a message, in a transaction that is not ended yet."""
    tx = mq.begin()
    db = tx.enlist(conn, **how)
    place = "?" if isinstance(conn, sqlite3.Connection) else "%s"
    db.execute(f"INSERT INTO rows VALUES ({place})", [payload])
    mq.queue("q").put(payload.encode(), tx=tx)
    return tx


def carried_rows(side: Side) -> int:
    """Rows that have not been removed; fences are not among them."""
    with closing(side.connect()) as other:
        schema = f"{side.schema}." if isinstance(side, Rows) else ""
        query = f"SELECT count(*) FROM {schema}{CARRIED_TABLE} WHERE node <> ''"
        [found] = other.execute(query).fetchall()
        return int(found[0])


def settled(mq: oncemq.Connection, side: Side) -> None:
    """All rows are removed, and what they carried is there."""
    eventually(lambda: carried_rows(side) == 0, "rows are removed")
