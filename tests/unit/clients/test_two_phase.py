"""Which database a connection leads to, and which may take part together; without any database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clients import two_phase
from clients.database_drivers import DatabaseTrouble, Lost
from clients.errors import ConnectionLost, NotEnlisted
from clients.two_phase import DatabaseBranch, Databases, KnownDatabases
from clients.unwrapping import Unwrapped
from idl.coordination import mqDatabase
from idl.databases import BranchId, Kind

GTRID = bytes(range(32))


class FakeDriver:
    """A connection to the database with this identity, which notes what it is asked."""

    kind = Kind.POSTGRESQL

    def __init__(self, identity: str, can_prepare: bool = True) -> None:
        self._identity = identity
        self.can_prepare = can_prepare
        self.done: list[str] = []
        self.branch: BranchId | None = None
        self.trouble: dict[str, DatabaseTrouble] = {}

    def address(self) -> str:
        return "postgresql://app@host:5432/orders"

    def identity(self, table: str) -> str:
        self._note("identity")
        return self._identity

    def check_idle(self) -> None:
        """It always is."""

    def begin(self, branch: BranchId) -> None:
        self.branch = branch
        self._note("begin")

    def why_not(self) -> str:
        return ""

    def can_carry(self, table: str) -> bool:
        return False

    def commit_carrying(self, table: str, row: tuple[str, str, bytes]) -> None:
        raise AssertionError("can_carry says that it cannot")

    def write_row(self, table: str, row: tuple[str, str, str]) -> None:
        self._note(f"{table} {row[1]}:{row[2]}")

    def prepare(self, table: str, row: tuple[str, str, str]) -> None:
        self.write_row(table, row)
        self._note("prepare")

    def _note(self, what: str) -> None:
        self.done.append(what)
        if what in self.trouble:
            raise self.trouble[what]

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self._note(name)


class Connection:
    """What an application has."""

    def __init__(self, identity: str, can_prepare: bool = True) -> None:
        self.driver = FakeDriver(identity, can_prepare)


@pytest.fixture(autouse=True)
def unwrapping(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwrapped(given: Connection) -> Unwrapped:
        return Unwrapped(given.driver, given, given, lambda: None)

    monkeypatch.setattr(two_phase, "unwrapped", unwrapped)


def told(name: str, identity: str, is_two_phase: bool = True) -> mqDatabase:
    return mqDatabase(name, "postgresql", "dsn", f"{name}.t", identity, is_two_phase)


class Coordinator:
    """What it tells of databases, now and later, and how often it was asked."""

    def __init__(self, *answers: list[mqDatabase]) -> None:
        self.answers = list(answers)
        self.time = 0.0
        self.asked = 0

    def databases(self) -> list[mqDatabase]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def known(self) -> KnownDatabases:
        return KnownDatabases(self.databases, lambda: self.time, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.time += seconds


def enlisted(known: KnownDatabases, *given: Any, **how: Any) -> Databases:
    databases = Databases(known)
    for each in given:
        databases.enlist(each, GTRID, how.get("database", ""), how.get("markable"))
    return databases


def test_a_connection_is_asked_once_where_it_leads() -> None:
    coordinator = Coordinator([told("stock", "a"), told("orders", "b")])
    known = coordinator.known()
    connection = Connection("b")
    for _ in range(3):
        [branch] = enlisted(known, connection).branches
        assert (branch.database, branch.name) == ("orders", "d1")
    assert coordinator.asked == 1
    assert connection.driver.done == ["identity", "identity", "begin", "begin", "begin"]


def test_what_was_registered_a_moment_ago_is_found() -> None:
    coordinator = Coordinator([], [told("orders", "b")])
    assert enlisted(coordinator.known(), Connection("b")).branches
    assert coordinator.asked == 2


def test_a_coordinator_that_was_just_started_is_waited_for() -> None:
    empty = [told("orders", "")]
    coordinator = Coordinator(empty, empty, empty, [told("orders", "b")])
    assert enlisted(coordinator.known(), Connection("b")).branches
    assert 0 < coordinator.time < 1
    coordinator = Coordinator(empty)
    with pytest.raises(ConnectionLost, match="has not reached database orders yet"):
        enlisted(coordinator.known(), Connection("b"))
    assert coordinator.time >= two_phase.REACH_S


def test_a_database_without_the_table_is_refused_with_what_to_type() -> None:
    with pytest.raises(NotEnlisted, match="type `oncemq database prepare orders`"):
        enlisted(Coordinator([told("orders", "")]).known(), Connection(""))


def test_a_lost_connection_can_be_tried_again() -> None:
    connection = Connection("b")
    connection.driver.trouble["begin"] = Lost("gone")
    with pytest.raises(ConnectionLost, match=r"gone\. Connect again"):
        enlisted(Coordinator([told("orders", "b")]).known(), connection)


def test_branches_have_names_that_say_whose_mark_decides() -> None:
    known = Coordinator([told("m", "a"), told("x", "b"), told("y", "c")]).known()
    databases = Databases(known)
    databases.enlist(Connection("a"), GTRID, "", True)
    databases.enlist(Connection("b"), GTRID, "", None)
    databases.enlist(Connection("c"), GTRID, "", None)
    assert [each.name for each in databases.branches] == ["d1", "d2.m", "d3.m"]
    assert databases.marked is databases.branches[0]
    assert databases.two_phase == databases.branches[1:]


def test_of_those_that_vote_the_first_that_cannot_ends_it() -> None:
    known = Coordinator([told("x", "b"), told("y", "c"), told("z", "d")]).known()
    given = [Connection("b"), Connection("c"), Connection("d")]
    databases = enlisted(known, *given)
    given[1].driver.trouble["prepare"] = DatabaseTrouble("no")
    found = databases.vote()
    assert found is not None
    assert found[0] is databases.branches[1]
    databases.rollback()
    databases.let_go()
    ends = [each.driver.done[each.driver.done.index("begin") + 1 :] for each in given]
    assert ends == [
        ["x.t d1:branch", "prepare", "rollback"],
        ["y.t d2:branch", "prepare", "rollback"],
        ["rollback"],
    ]


def test_the_mark_is_written_with_the_votes_and_counts_with_the_commit() -> None:
    known = Coordinator([told("m", "a"), told("x", "b")]).known()
    first, second = Connection("a"), Connection("b")
    databases = Databases(known)
    databases.enlist(first, GTRID, "", True)
    databases.enlist(second, GTRID, "", None)
    assert databases.vote() is None
    assert first.driver.done[-2:] == ["begin", "m.t :committed"]
    assert second.driver.done[-2:] == ["x.t d2.m:branch", "prepare"]


def test_where_the_mark_cannot_be_written_nobody_else_is_prepared() -> None:
    known = Coordinator([told("m", "a"), told("x", "b")]).known()
    first, second = Connection("a"), Connection("b")
    databases = Databases(known)
    databases.enlist(first, GTRID, "", True)
    databases.enlist(second, GTRID, "", None)
    first.driver.trouble["m.t :committed"] = Lost("gone")
    found = databases.vote()
    assert found is not None
    assert found[0] is databases.marked
    assert second.driver.done[-1] == "begin"


def test_what_cannot_be_committed_here_is_left_to_the_coordinator() -> None:
    connection = Connection("b")
    [branch] = enlisted(Coordinator([told("orders", "b")]).known(), connection).branches
    connection.driver.trouble["commit_prepared"] = Lost("gone")
    branch.commit_prepared()
    branch.let_go()
    assert connection.driver.done[-1] == "commit_prepared"
    assert isinstance(branch, DatabaseBranch)
