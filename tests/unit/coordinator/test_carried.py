"""Rows that carry puts, over one connection: what stands for what, whose they are, and fences."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from coordinator.database import ASKED_TOGETHER, Database, Times
from coordinator.database_drivers import Carried, NoTable
from idl.custody import CARRIED_TABLE, CONTENT_BYTES_MAX, ROWS_AT_ONCE, node_of
from idl.databases import COMMITTED, ROLLED_BACK, WHOLE, insertion
from idl.otids import GTRID_BYTES
from tests.unit.clients.embedded_coordinator import ManualTasks
from tests.unit.coordinator.memory_server import REGISTERED, TABLE, Server, Shared

NODE, OTHER = node_of("secret"), node_of("another")
ONE, TWO, THREE = (bytes([n]) * GTRID_BYTES for n in (1, 2, 3))


def _database(server: Server) -> Database:
    return Database(REGISTERED, server.open, ManualTasks().now, Times(wait_s=0.01))


def _otids(rows: list[Carried]) -> list[str]:
    return [row.otid for row in rows]


# --- Marks and fences ----------------------------------------------------------------------------


def test_a_row_says_committed_and_a_fence_before_it_keeps_it_out() -> None:
    server = Server()
    database = _database(server)
    assert database.mark(ONE) is None
    server.carries(ONE, NODE)
    assert database.mark(ONE) == COMMITTED
    assert database.fence(TWO) == ROLLED_BACK
    assert database.mark(TWO) == ROLLED_BACK
    with pytest.raises(sqlite3.IntegrityError):
        server.carries(TWO, NODE)
    # Nor can it come as a mark.
    with pytest.raises(sqlite3.IntegrityError):
        server.connection.execute(insertion(TABLE, "?"), (TWO.hex(), WHOLE, COMMITTED))


def test_where_a_row_stands_no_fence_is_put_up_anywhere() -> None:
    server = Server()
    server.carries(ONE, NODE)
    assert _database(server).fence(ONE) == COMMITTED
    assert _outcomes(server) == {}


def test_a_fence_beside_a_mark_does_no_harm() -> None:
    server = Server()
    database = _database(server)
    server.connection.execute(insertion(TABLE, "?"), (ONE.hex(), WHOLE, COMMITTED))
    assert database.fence(ONE) == COMMITTED
    assert database.mark(ONE) == COMMITTED
    assert _outcomes(server) == {ONE.hex(): COMMITTED}


class Late(sqlite3.Cursor):
    """When it looks whose a row is, the node has just had it."""

    def execute(self, sql: str, parameters: Any = ()) -> Late:
        if sql.startswith("SELECT node"):
            super().execute(f"DELETE FROM {CARRIED_TABLE}")
        super().execute(sql, parameters)
        return self


def test_a_row_that_its_node_has_had_while_a_fence_was_put_up_was_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    server.carries(ONE, NODE)
    monkeypatch.setattr(Shared, "cursor", lambda shared: server.connection.cursor(Late))
    assert _database(server).fence(ONE) == COMMITTED
    assert _outcomes(server) == {}


def test_a_table_that_was_made_a_moment_ago_has_its_fence_too() -> None:
    server = Server()
    server.connection.execute(f"DROP TABLE {CARRIED_TABLE}")
    database = _database(server)
    assert database.fence(ONE) == ROLLED_BACK
    database.make_table("identity", "")
    assert database.fence(TWO) == ROLLED_BACK
    with pytest.raises(sqlite3.IntegrityError):
        server.carries(TWO, NODE)


def _outcomes(server: Server) -> dict[str, str]:
    found = server.connection.execute(f"SELECT otid, outcome FROM {TABLE} WHERE otid <> 'identity'")
    return dict(found.fetchall())


# --- Facts ---------------------------------------------------------------------------------------


def test_a_database_is_a_carrier_while_its_table_is_there() -> None:
    server = Server()
    database = _database(server)
    assert database.facts().is_carrier
    server.connection.execute(f"DROP TABLE {CARRIED_TABLE}")
    facts = database.facts()
    assert (facts.is_carrier, facts.trouble) == (False, "")
    assert database.mark(ONE) is None
    for ask in (lambda: database.carried(NODE, 0.0, ""), lambda: _forget(database, ONE)):
        with pytest.raises(NoTable, match=CARRIED_TABLE):
            ask()


def test_a_table_that_the_coordinator_may_not_use_is_pointed_out() -> None:
    server = Server()
    server.may_carry = False
    facts = _database(server).facts()
    assert not facts.is_carrier
    assert facts.trouble == f"{CARRIED_TABLE} is there, and the coordinator may not use it"


# --- Rows ----------------------------------------------------------------------------------------


def test_rows_of_a_node_are_found_in_order_and_none_of_others() -> None:
    server = Server()
    database = _database(server)
    server.carries(THREE, NODE, b"three")
    server.carries(ONE, NODE, b"one")
    server.carries(TWO, OTHER, b"two")
    assert database.carried(NODE, 0.0, "") == [
        Carried(ONE.hex(), b"one"),
        Carried(THREE.hex(), b"three"),
    ]
    assert _otids(database.carried(NODE, 0.0, ONE.hex())) == [THREE.hex()]
    assert database.carried(NODE, 0.0, THREE.hex()) == []


def test_an_answer_has_so_many_rows_and_the_next_begins_behind_them() -> None:
    server = Server()
    database = _database(server)
    wanted = [n.to_bytes(GTRID_BYTES) for n in range(2 * ROWS_AT_ONCE + 1)]
    for gtrid in wanted:
        server.carries(gtrid, NODE)
    found: list[str] = []
    sizes = []
    while rows := database.carried(NODE, 0.0, found[-1] if found else ""):
        sizes.append(len(rows))
        found += _otids(rows)
    assert sizes == [ROWS_AT_ONCE, ROWS_AT_ONCE, 1]
    assert found == [gtrid.hex() for gtrid in wanted]


def test_what_no_node_has_written_keeps_no_row_from_being_found() -> None:
    server = Server()
    database = _database(server)
    written = [(f"{n:03}", b"") for n in range(ROWS_AT_ONCE)] + [
        ("0" * 63 + "x", b""),
        ("0" * 64, b"x" * (CONTENT_BYTES_MAX + 1)),
    ]
    for otid, content in written:
        row = (otid, NODE, content)
        server.connection.execute(f"INSERT INTO {CARRIED_TABLE} VALUES (?, ?, ?, '')", row)
    no_text = (TWO.hex().encode(), NODE, b"")
    server.connection.execute(f"INSERT INTO {CARRIED_TABLE} VALUES (?, ?, ?, '')", no_text)
    server.carries(ONE, NODE, b"x" * CONTENT_BYTES_MAX)
    server.carries(THREE, NODE, "a text")
    assert database.carried(NODE, 0.0, "") == [
        Carried(ONE.hex(), b"x" * CONTENT_BYTES_MAX),
        # In which the node finds no ticket of its own.
        Carried(THREE.hex(), b""),
    ]


def test_a_node_forgets_its_own_rows_and_no_others() -> None:
    server = Server()
    database = _database(server)
    server.carries(ONE, NODE)
    server.carries(TWO, OTHER)
    database.fence(THREE)
    _forget(database, ONE, TWO, THREE)
    _forget(database, ONE, TWO, THREE)
    left = server.connection.execute(f"SELECT otid FROM {CARRIED_TABLE} ORDER BY otid").fetchall()
    assert left == [(TWO.hex(),), (THREE.hex(),)]


def test_many_are_forgotten_in_portions() -> None:
    server = Server()
    database = _database(server)
    gtrids = [n.to_bytes(GTRID_BYTES) for n in range(ASKED_TOGETHER + 2)]
    for gtrid in gtrids:
        server.carries(gtrid, NODE)
    _forget(database, *gtrids[1:])
    assert _otids(database.carried(NODE, 0.0, "")) == [gtrids[0].hex()]
    _forget(database)


def _forget(database: Database, *gtrids: bytes) -> None:
    database.forget_carried(NODE, [gtrid.hex() for gtrid in gtrids])
