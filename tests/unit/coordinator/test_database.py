"""One database: what is asked of it, few connections, and questions that fail fast."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.database import CommittedAlone, Database, Times
from coordinator.database_drivers import (
    Busy,
    DatabaseTrouble,
    Link,
    NoSuchBranch,
    NoTable,
    Unreachable,
    password_of,
)
from coordinator.database_kinds import (
    mariadb_prepares,
    mariadb_trouble,
    postgresql_trouble,
    read_mariadb_xid,
)
from coordinator.registry import Registered
from idl.databases import BranchId
from idl.otids import FORMAT_ID, GTRID_BYTES
from tests.unit.clients.embedded_coordinator import ManualTasks
from tests.unit.coordinator.memory_server import ONE, REGISTERED, TWO, Server


def _database(server: Server, tasks: ManualTasks, times: Times | None = None) -> Database:
    return Database(REGISTERED, server.open, tasks.now, times or Times(wait_s=0.01))


# --- Branches ------------------------------------------------------------------------------------


def test_a_commit_may_be_repeated_and_is_known_by_its_row() -> None:
    server = Server()
    database = _database(server, ManualTasks())
    server.prepared_branches = {ONE}
    server.wrote(ONE)
    database.commit(ONE)
    database.commit(ONE)
    assert server.prepared_branches == set()


def test_a_branch_that_left_no_row_was_never_prepared() -> None:
    database = _database(Server(), ManualTasks())
    with pytest.raises(NoSuchBranch):
        database.commit(ONE)
    database.rollback(ONE)


def test_a_branch_that_its_connection_holds_is_neither_lost_nor_ended() -> None:
    server = Server()
    server.held = {ONE}
    database = _database(server, ManualTasks())
    for end in (database.commit, database.rollback):
        with pytest.raises(Busy, match="held by the connection"):
            end(ONE)


def test_a_branch_that_was_committed_is_not_reported_as_rolled_back() -> None:
    server = Server()
    server.wrote(ONE)
    with pytest.raises(CommittedAlone):
        _database(server, ManualTasks()).rollback(ONE)


def test_many_are_settled_at_once_and_those_that_are_lost_are_named() -> None:
    server = Server()
    server.wrote(ONE)
    server.prepared_branches = {TWO}
    lost = BranchId(bytes(GTRID_BYTES), "d9")
    assert _database(server, ManualTasks()).settle([ONE, TWO, lost]) == [lost]
    assert server.prepared_branches == set()


def test_one_that_is_held_keeps_no_other_from_being_committed() -> None:
    server = Server()
    server.held = {ONE}
    server.prepared_branches = {TWO}
    database = _database(server, ManualTasks())
    with pytest.raises(Busy):
        database.settle([ONE, TWO])
    assert server.prepared_branches == set()
    server.held = set()
    server.wrote(ONE)
    server.wrote(TWO)
    assert database.settle([ONE, TWO]) == []


# --- Connections ---------------------------------------------------------------------------------


def test_connections_are_used_again_and_closed_at_the_end() -> None:
    server = Server()
    database = _database(server, ManualTasks())
    before = server.opened
    for _ in range(5):
        database.mark(bytes(GTRID_BYTES))
    assert server.opened == before + 1
    database.close()
    assert server.closed == 1
    database.mark(bytes(GTRID_BYTES))
    assert server.closed == 2


def test_there_are_never_more_connections_than_allowed() -> None:
    server = Server()
    database = _database(server, ManualTasks(), Times(connections_max=2, wait_s=0.01))

    def within(depth: int) -> Callable[[Link], str]:
        def ask(link: Link) -> str:
            return database.ask(within(depth - 1)) if depth else "deep"

        return ask

    assert database.ask(within(1)) == "deep"
    with pytest.raises(Busy, match="all 2 connections"):
        database.ask(within(2))
    assert database.ask(within(1)) == "deep"


def test_a_connection_that_broke_while_it_lay_idle_is_replaced() -> None:
    server = Server()
    database = _database(server, ManualTasks())
    database.mark(bytes(GTRID_BYTES))
    server.is_away = True
    with pytest.raises(Unreachable):
        database.mark(bytes(GTRID_BYTES))
    server.is_away = False
    assert database.facts().identity == "identity"
    assert database.trouble == ""


def test_a_database_that_was_not_reached_is_left_alone_for_ever_longer() -> None:
    server, tasks = Server(), ManualTasks()
    server.is_away = True
    database = _database(server, tasks, Times(retry_s=1.0, retry_s_max=4.0))
    waits = []
    for _ in range(5):
        began, asked = tasks.time, server.asked
        while server.asked == asked:
            with pytest.raises(Unreachable):
                database.mark(bytes(GTRID_BYTES))
            tasks.time += 0.5
        waits.append(tasks.time - began)
    assert waits == [0.5, 1.0, 2.0, 4.0, 4.0]
    server.is_away = False
    database.facts()
    assert database.mark(bytes(GTRID_BYTES)) is None


# --- Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("42704", NoSuchBranch),
        ("42P01", NoTable),
        ("55P03", Busy),
        ("57014", Busy),
        ("55000", Busy),
        ("57P01", Unreachable),
        ("08006", Unreachable),
        ("28P01", Unreachable),
        ("", Unreachable),
        ("42501", DatabaseTrouble),
        ("XX000", DatabaseTrouble),
    ],
)
def test_errors_of_postgresql_have_their_meaning(state: str, kind: type[Exception]) -> None:
    assert type(postgresql_trouble(state, "words", REGISTERED)) is kind


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (1397, NoSuchBranch),
        (1146, NoTable),
        (1205, Busy),
        (1213, Busy),
        (1045, Unreachable),
        (2003, Unreachable),
        (0, Unreachable),
        (1927, Unreachable),
        (1142, DatabaseTrouble),
        (1064, DatabaseTrouble),
    ],
)
def test_errors_of_mariadb_have_their_meaning(number: int, kind: type[Exception]) -> None:
    assert type(mariadb_trouble(number, "words", REGISTERED)) is kind


@pytest.mark.parametrize(
    ("version", "prepares"),
    [
        ("10.4.34-MariaDB", False),
        ("10.5.0-MariaDB", True),
        ("5.5.5-10.11.19-MariaDB-0+deb12u1", True),
        ("11.8.2-MariaDB", True),
        ("8.0.36", False),
    ],
)
def test_a_mariadb_prepares_from_the_version_on_that_keeps_it(version: str, prepares: bool) -> None:
    assert mariadb_prepares(version) is prepares


def test_an_xid_of_mariadb_is_taken_apart_by_its_lengths() -> None:
    gtrid = "ab" * GTRID_BYTES
    assert read_mariadb_xid(FORMAT_ID, 64, 2, f"{gtrid}d1")[:3] == (FORMAT_ID, gtrid, "d1")
    assert read_mariadb_xid(1, 3, 2, b"\xff\x00ad1")[:3] == (1, "\xff\x00a", "d1")


def test_a_password_comes_from_where_the_registry_says() -> None:
    named = Registered("orders", REGISTERED.dsn, password_env="SECRET")
    assert password_of(named, {"SECRET": "hush"}) == "hush"
    assert password_of(REGISTERED, {"SECRET": "hush"}) is None
    with pytest.raises(Unreachable, match=r"\$SECRET is not set"):
        password_of(named, {})
