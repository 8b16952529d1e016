"""Rows that carry puts: in a real PostgreSQL and in SQLite, which keep them until a node has them.

The coordinator is in this process, and its time is moved by hand.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pytest

from coordinator.database_recovery import Seen
from coordinator.registry import Registered
from idl import system
from idl.cos import Status
from idl.custody import (
    CARRIED_TABLE,
    CUSTODY,
    ROWS_AT_ONCE,
    Mq_Custody,
    carried_table,
    insertion,
    mqCarried,
    node_of,
)
from idl.databases import COMMITTED, WHOLE, Kind
from idl.databases import insertion as marking
from idl.otids import NULL_OTID, otid_of
from tests.integration.database_places import new_place
from tests.integration.database_world import World
from tests.postgres import Cluster, NoPostgres, cluster

SECRET, OTHERS = "a secret of this node", "a secret of another"
NODE, OTHER = node_of(SECRET), node_of(OTHERS)


@dataclass
class Site:
    """A database that is registered as `orders`, with a table `work`."""

    world: World
    registered: Registered
    connect: Callable[[], Any]
    collision: type[Exception]

    @property
    def is_postgresql(self) -> bool:
        return self.registered.where.kind is Kind.POSTGRESQL

    @property
    def table(self) -> str:
        return carried_table(self.registered.table)

    @property
    def custody(self) -> Mq_Custody:
        return self.world.orb.member(CUSTODY, Mq_Custody)

    def run(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """What the statement returns, committed."""
        connection = self.connect()
        try:
            cursor = connection.execute(statement, parameters)
            found = cursor.fetchall() if cursor.description else []
            connection.commit()
            return [tuple(row) for row in found]
        finally:
            connection.close()

    def begun(self, gtrid: bytes, node: str = NODE, content: bytes = b"puts") -> Any:
        """An owner's transaction, which only its commit is missing from."""
        connection = self.connect()
        place = "%s" if self.is_postgresql else "?"
        try:
            connection.execute("INSERT INTO work VALUES ('row')")
            row = (gtrid.hex(), node, content)
            connection.execute(insertion(self.registered.table, place), row)
        except Exception:
            connection.close()
            raise
        return connection

    def carry(self, gtrid: bytes, node: str = NODE, content: bytes = b"puts") -> None:
        """The owner's commit. Raises where there is a fence."""
        connection = self.begun(gtrid, node, content)
        connection.commit()
        connection.close()

    def mark(self, gtrid: bytes) -> None:
        """The commit of an owner that carries nothing."""
        place = "%s" if self.is_postgresql else "?"
        self.run(marking(self.registered.table, place), gtrid.hex(), WHOLE, COMMITTED)

    def age(self, seconds: int) -> None:
        """All rows are so much older."""
        older = f"at - interval '{seconds} s'"
        if not self.is_postgresql:
            older = f"datetime(at, '-{seconds} seconds')"
        self.run(f"UPDATE {self.table} SET at = {older}")

    def found(self, age_s: float = 0.0, secret: str = SECRET) -> list[bytes]:
        """The transactions of which this node is shown a row."""
        rows = self.custody.getCarried("orders", secret, round(1000 * age_s), NULL_OTID)
        return [row.otid.tid for row in rows]

    def look(self) -> Seen:
        """What the coordinator finds there now."""
        return self.world.look("orders")

    def asked(self, gtrid: bytes) -> Status:
        """What the owner is told, who does not know whether its commit has arrived."""
        asked = self.world.coordination.decideMarked(otid_of(gtrid), "orders", False, ())
        return asked.status

    def told(self, gtrid: bytes) -> Status:
        """The same, asked until there is an answer."""
        while True:
            with contextlib.suppress(system.TRANSIENT):
                return self.asked(gtrid)

    def outcome(self, gtrid: bytes) -> Status:
        """What anybody else is told."""
        return self.world.coordination.getOutcome(otid_of(gtrid)).status

    def works(self) -> int:
        """How many owners have committed."""
        [(number,)] = self.run("SELECT count(*) FROM work")
        return int(number)


@pytest.fixture(params=["postgresql", "sqlite"])
def site(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    missing: Callable[[str], NoReturn],
) -> Iterator[Site]:
    if request.param == "sqlite":
        yield from _in_sqlite(tmp_path / "orders.db")
        return
    try:
        server = cluster()
    except NoPostgres as absent:
        missing(str(absent))
    with new_place(server, monkeypatch) as place:
        connect = partial(psycopg.connect, place.dsn)
        yield Site(place.world, place.registered, connect, psycopg.errors.UniqueViolation)


def _in_sqlite(path: Path) -> Iterator[Site]:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE work (value)")
    connection.close()
    registered = Registered("orders", f"sqlite:///{path}", grace_s=60.0)
    world = World()
    assert world.register(registered).trouble == ""
    yield Site(world, registered, partial(sqlite3.connect, path), sqlite3.IntegrityError)
    world.close()


@pytest.fixture
def postgresql(
    monkeypatch: pytest.MonkeyPatch, missing: Callable[[str], NoReturn]
) -> Iterator[tuple[Cluster, Site]]:
    """The same, and the server where it is."""
    try:
        server = cluster()
    except NoPostgres as absent:
        missing(str(absent))
    with new_place(server, monkeypatch) as place:
        connect = partial(psycopg.connect, place.dsn)
        yield (
            server,
            Site(place.world, place.registered, connect, psycopg.errors.UniqueViolation),
        )


# --- Rows ----------------------------------------------------------------------------------------


def test_a_committed_row_is_shown_to_its_node_until_that_has_it(site: Site) -> None:
    gtrid = site.world.begin()
    owner = site.begun(gtrid, content=b"\x00puts\xff")
    if site.is_postgresql:
        assert site.found() == []
    owner.commit()
    owner.close()
    asked = site.custody.getCarried("orders", SECRET, 0, NULL_OTID)
    assert asked == (mqCarried(otid_of(gtrid), b"\x00puts\xff"),)
    for _ in range(2):
        site.custody.forgetCarried("orders", SECRET, (otid_of(gtrid),))
        assert site.found() == []
    assert site.works() == 1


def test_rows_come_in_order_and_in_portions(site: Site) -> None:
    gtrids = [site.world.begin() for _ in range(ROWS_AT_ONCE + 2)]
    values = ", ".join(f"('{gtrid.hex()}', '{NODE}', '')" for gtrid in reversed(gtrids))
    if not site.is_postgresql:
        values = values.replace("'')", "x'')")
    site.run(f"INSERT INTO {site.table} (otid, node, content) VALUES {values}")
    assert site.found() == gtrids[:ROWS_AT_ONCE]
    behind = otid_of(gtrids[ROWS_AT_ONCE - 1])
    rest = site.custody.getCarried("orders", SECRET, 0, behind)
    assert [row.otid.tid for row in rest] == gtrids[ROWS_AT_ONCE:]
    site.custody.forgetCarried("orders", SECRET, tuple([otid_of(each) for each in gtrids[1:]]))
    assert site.found() == gtrids[:1]


def test_a_row_is_shown_when_it_is_old_enough_and_never_before(site: Site) -> None:
    gtrid = site.world.begin()
    site.carry(gtrid)
    assert site.found(0.0) == [gtrid]
    # Also where only whole seconds are counted, and this one has just begun.
    assert site.found(60.0) == []
    site.age(30)
    assert site.found(60.0) == []
    site.age(40)
    assert site.found(60.0) == [gtrid]
    assert site.found(4_000_000.0) == []
    assert site.found(0.001) == [gtrid]


def test_where_whole_seconds_are_counted_a_part_of_one_is_none(tmp_path: Path) -> None:
    for site in _in_sqlite(tmp_path / "orders.db"):
        site.carry(gtrid := site.world.begin())
        now: list[tuple[Any, ...]] = []
        while len(now) != 2 or now[0] != now[1]:
            now = [site.run("SELECT CURRENT_TIMESTAMP")[0]]
            # Perhaps at the end of the last second, a moment ago.
            site.run(f"UPDATE {site.table} SET at = datetime('now', '-1 seconds')")
            found = site.found(1.0)
            now += site.run("SELECT CURRENT_TIMESTAMP")
        assert found == []
        site.age(1)
        assert site.found(1.0) == [gtrid]


def test_rows_of_other_nodes_are_neither_shown_nor_forgotten(site: Site) -> None:
    mine, others, fenced = (site.world.begin() for _ in range(3))
    site.carry(mine)
    site.carry(others, OTHER)
    assert site.asked(fenced) is Status.ROLLED_BACK
    assert site.found() == [mine]
    # What can be read in the table opens nothing.
    assert site.found(secret=NODE) == []
    for secret in (SECRET, NODE, OTHER):
        otids = (otid_of(others), otid_of(fenced))
        site.custody.forgetCarried("orders", secret, otids)
    assert site.found(secret=OTHERS) == [others]
    with pytest.raises(site.collision):
        site.carry(fenced)


def test_rows_are_there_after_the_coordinator_died(site: Site) -> None:
    gtrid = site.world.begin()
    site.carry(gtrid)
    site.world.restart()
    assert site.found() == [gtrid]
    site.look()
    identity, carriers = site.custody.getCarriers()
    assert carriers == ("orders",)
    assert gtrid.startswith(identity)


def test_what_is_forgotten_is_on_disk(site: Site) -> None:
    shown, durable = "PRAGMA synchronous", "3"
    if site.is_postgresql:
        site.run("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
        site.world.restart()
        shown, durable = "SHOW synchronous_commit", "on"
    try:
        database = site.world.objects.databases.find("orders")
        [(found,)] = database.ask(lambda link: link.run(shown))
        assert str(found) == durable
    finally:
        if site.is_postgresql:
            site.run("ALTER ROLE CURRENT_USER RESET synchronous_commit")


# --- Fences --------------------------------------------------------------------------------------


def test_an_owner_that_does_not_know_whether_its_commit_arrived_is_told(site: Site) -> None:
    arrived, lost = site.world.begin(), site.world.begin()
    site.carry(arrived)
    assert site.asked(arrived) is Status.COMMITTED
    assert site.asked(lost) is Status.ROLLED_BACK
    # It comes after all, and its work with it: neither may be there.
    with pytest.raises(site.collision):
        site.carry(lost)
    assert site.works() == 1
    assert (site.asked(arrived), site.asked(lost)) == (Status.COMMITTED, Status.ROLLED_BACK)
    assert site.found() == [arrived]


def test_an_owner_that_is_just_committing_is_waited_for(site: Site) -> None:
    gtrid = site.world.begin()
    owner = site.begun(gtrid)
    with pytest.raises(system.TRANSIENT, match="lock"):
        site.asked(gtrid)
    owner.commit()
    owner.close()
    assert site.asked(gtrid) is Status.COMMITTED
    site.world.die()
    assert site.outcome(gtrid) is Status.COMMITTED


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_what_its_owner_did_while_a_fence_waited_is_the_answer(site: Site, end: str) -> None:
    gtrid = site.world.begin()
    owner = site.begun(gtrid)
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(site.told, gtrid)
        # So that it waits; where it does not yet, the answer is the same.
        time.sleep(0.05)
        getattr(owner, end)()
        owner.close()
        is_committed = end == "commit"
        assert told.result() is (Status.COMMITTED if is_committed else Status.ROLLED_BACK)
    assert site.found() == ([gtrid] if is_committed else [])
    with pytest.raises(site.collision):
        site.carry(gtrid)
    # There is one of both, and never both.
    shown = site.run(f"SELECT otid FROM {site.registered.table} WHERE otid <> 'identity'")
    assert shown == ([] if is_committed else [(gtrid.hex(),)])


def test_who_asks_for_the_outcome_is_told_while_the_row_is_there(site: Site) -> None:
    carried, nothing = site.world.begin(), site.world.begin()
    site.carry(carried)
    site.world.die()
    assert site.outcome(carried) is Status.COMMITTED
    assert site.outcome(nothing) is Status.ROLLED_BACK
    # To ask has fenced nobody.
    site.carry(nothing)
    assert site.outcome(nothing) is Status.COMMITTED
    site.world.restart()
    site.look()
    assert site.outcome(carried) is Status.COMMITTED


def test_a_mark_counts_beside_a_fence_that_carries_nothing(site: Site) -> None:
    gtrid = site.world.begin()
    site.mark(gtrid)
    assert site.asked(gtrid) is Status.COMMITTED
    site.world.die()
    assert site.outcome(gtrid) is Status.COMMITTED
    with pytest.raises(site.collision):
        site.carry(gtrid)


# --- The table -----------------------------------------------------------------------------------


def test_a_database_without_the_table_is_as_it_was_until_it_is_prepared(site: Site) -> None:
    site.run(f"DROP TABLE {site.table}")
    marked, fenced, carried = (site.world.begin() for _ in range(3))
    seen = site.look()
    assert (seen.trouble, seen.facts.is_carrier) == ("", False)
    assert site.custody.getCarriers()[1] == ()
    site.mark(marked)
    assert site.asked(marked) is Status.COMMITTED
    assert site.asked(fenced) is Status.ROLLED_BACK
    site.world.die()
    assert site.outcome(marked) is Status.COMMITTED
    with pytest.raises(system.TRANSIENT, match=f"{CARRIED_TABLE}.*oncemq database prepare orders"):
        site.found()
    # Nobody has made it behind anybody's back: it is for who owns the database to say so.
    site.world.restart()
    site.world.objects.databases.add(site.registered)
    assert not site.look().facts.is_carrier
    assert site.world.objects.databases.prepare("orders").facts.is_carrier
    site.carry(carried)
    assert site.asked(carried) is Status.COMMITTED
    assert site.asked(marked) is Status.COMMITTED


def test_a_table_that_was_made_behind_the_coordinator_is_looked_at(site: Site) -> None:
    late, carried = site.world.begin(), site.world.begin()
    site.run(f"ALTER TABLE {site.table} RENAME TO hidden")
    assert not site.look().facts.is_carrier
    site.run(f"ALTER TABLE hidden RENAME TO {CARRIED_TABLE}")
    # It has not been looked at since.
    site.carry(carried)
    assert site.asked(carried) is Status.COMMITTED
    assert site.asked(late) is Status.ROLLED_BACK
    with pytest.raises(site.collision):
        site.carry(late)


def test_a_role_is_granted_what_it_needs_and_no_more(postgresql: tuple[Cluster, Site]) -> None:
    server, site = postgresql
    role = f"app_{site.registered.where.place}"
    server.execute(f"CREATE ROLE {role}")
    site.world.objects.databases.prepare("orders", role)
    may = "SELECT " + ", ".join(
        f"has_table_privilege('{role}', '{site.table}', '{right}')"
        for right in ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
    )
    assert site.run(may) == [(False, True, False, False, False)]


def test_a_table_that_is_somebody_elses_is_pointed_out(postgresql: tuple[Cluster, Site]) -> None:
    server, site = postgresql
    role = f"weak_{site.registered.where.place}"
    server.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'weak'")
    site.run(f"GRANT ALL ON {site.registered.table} TO {role}")
    site.run(f"GRANT SELECT, INSERT ON {site.table} TO {role}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONCEMQ_WEAK", "weak")
        weak = site.registered.dsn.replace("//oncemq@", f"//{role}@")
        seen = site.world.objects.databases.add(
            Registered("orders", weak, password_env="ONCEMQ_WEAK")
        )
        assert not seen.facts.is_carrier
        assert seen.trouble == f"{site.table} is there, and the coordinator may not use it"
        site.run(f"GRANT DELETE ON {site.table} TO {role}")
        assert site.look().facts.is_carrier


def test_a_row_is_as_old_as_its_writing_and_not_as_its_transaction(
    postgresql: tuple[Cluster, Site],
) -> None:
    _, site = postgresql
    owner = site.begun(site.world.begin())
    assert owner.execute(f"SELECT at > now() FROM {site.table}").fetchall() == [(True,)]
    owner.close()
