"""Transactions that a mark decides: a row of a database which has no two-phase commit.

The database is SQLite in a file; the coordinator is in this process, and its time is moved by hand.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.registry import Registered
from idl import system
from idl.coordination import DatabaseNotFound, mqOutcome, mqParticipant
from idl.cos import Resource, Status
from idl.databases import Kind, creation
from idl.otids import otid_of
from tests.integration.database_world import World, mark
from tests.unit.clients.embedded_coordinator import Participant

GRACE_S = 60.0


class Shop:
    """A SQLite database that is registered as `stock`, and a node that takes part as `n1`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "stock.db"
        with sqlite3.connect(self.path) as connection:
            connection.execute("CREATE TABLE work (value)")
        connection.close()
        self.world = World()
        self.registered = Registered("stock", f"sqlite:///{self.path}", grace_s=GRACE_S)
        assert self.world.register(self.registered).trouble == ""
        self.node = Participant()
        self.world.orb.publish(self.node, Resource, "node")

    def restart(self) -> None:
        """The coordinator died, and runs again; the node is as it was."""
        self.world.restart()
        self.world.orb.publish(self.node, Resource, "node")

    def mark(self, gtrid: bytes) -> None:
        """The application's own commit."""
        mark(self.path, self.registered, gtrid, "row")

    def rows(self) -> int:
        """What the application has committed."""
        connection = sqlite3.connect(self.path)
        try:
            return len(connection.execute("SELECT value FROM work").fetchall())
        finally:
            connection.close()

    def decide(self, gtrid: bytes, is_marked: bool = True) -> mqOutcome:
        """The application tells the coordinator, who carries it out at the node."""
        node = mqParticipant("n1", self.world.orb.member("node", Resource), None)
        return self.world.coordination.decideMarked(otid_of(gtrid), "stock", is_marked, (node,))

    def asked(self, gtrid: bytes) -> Status:
        """What the node is told."""
        return self.world.ask_mark("stock", gtrid)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.world.close()


def test_the_mark_is_the_decision_and_the_node_is_told(shop: Shop) -> None:
    gtrid = shop.world.begin()
    assert shop.asked(gtrid) is Status.PREPARING
    shop.mark(gtrid)
    assert shop.asked(gtrid) is Status.COMMITTED
    assert shop.decide(gtrid).status is Status.COMMITTED
    assert shop.node.told == ["commit"]
    assert shop.world.open() == 0


def test_an_application_that_died_after_its_mark_has_committed(shop: Shop) -> None:
    gtrid = shop.world.begin()
    shop.mark(gtrid)
    shop.world.die()
    assert shop.asked(gtrid) is Status.COMMITTED


def test_an_application_that_died_before_its_mark_is_rolled_back_and_kept_out(shop: Shop) -> None:
    gtrid = shop.world.begin()
    shop.world.die()
    assert shop.asked(gtrid) is Status.ROLLED_BACK
    # It was only slow, and comes now: its work must not be half of a transaction.
    with pytest.raises(sqlite3.IntegrityError):
        shop.mark(gtrid)
    assert shop.rows() == 0
    assert shop.decide(gtrid, is_marked=False).status is Status.ROLLED_BACK


def test_a_slow_application_is_waited_for_and_then_kept_out(shop: Shop) -> None:
    gtrid = shop.world.begin()
    assert shop.asked(gtrid) is Status.PREPARING
    shop.world.tasks.time += GRACE_S
    assert shop.asked(gtrid) is Status.ROLLED_BACK
    with pytest.raises(sqlite3.IntegrityError):
        shop.mark(gtrid)
    # Nor can it have the nodes commit alone.
    assert shop.decide(gtrid).status is Status.ROLLED_BACK
    assert shop.node.told == []


def test_presumed_rollback_does_not_overtake_a_mark(shop: Shop) -> None:
    gtrid = shop.world.begin()
    shop.mark(gtrid)
    # Its session ended between its commit and its call.
    shop.world.die()
    assert shop.decide(gtrid).status is Status.COMMITTED
    assert shop.node.told == ["commit"]
    assert shop.decide(gtrid).status is Status.COMMITTED


def test_a_coordinator_that_died_after_the_mark_finds_it(shop: Shop) -> None:
    gtrid = shop.world.begin()
    shop.mark(gtrid)
    shop.restart()
    assert shop.asked(gtrid) is Status.COMMITTED
    assert shop.decide(gtrid).status is Status.COMMITTED
    assert shop.node.told == ["commit"]
    # Carried out, written down, and not undone by another restart.
    shop.restart()
    assert shop.decide(gtrid).status is Status.COMMITTED


def test_a_coordinator_that_died_before_the_mark_keeps_it_out_once_it_was_asked(
    shop: Shop,
) -> None:
    early, late = shop.world.begin(), shop.world.begin()
    shop.restart()
    # Nobody has asked, so that nothing has been told to anybody: it may still be committed.
    shop.mark(early)
    assert shop.asked(early) is Status.COMMITTED
    assert shop.asked(late) is Status.ROLLED_BACK
    with pytest.raises(sqlite3.IntegrityError):
        shop.mark(late)


def test_an_application_that_does_not_know_whether_its_commit_arrived_is_told(shop: Shop) -> None:
    arrived, lost = shop.world.begin(), shop.world.begin()
    shop.mark(arrived)
    assert shop.decide(arrived, is_marked=False).status is Status.COMMITTED
    assert shop.decide(lost, is_marked=False).status is Status.ROLLED_BACK
    with pytest.raises(sqlite3.IntegrityError):
        shop.mark(lost)
    assert shop.node.told == ["commit"]


def test_who_only_asks_changes_nothing_about_what_is_carried_out(shop: Shop) -> None:
    gtrid = shop.world.begin()
    shop.mark(gtrid)
    shop.world.die()
    asked = shop.world.coordination.decideMarked(otid_of(gtrid), "stock", False, ())
    assert asked.status is Status.COMMITTED
    shop.world.look("stock")
    assert shop.asked(gtrid) is Status.COMMITTED
    assert shop.decide(gtrid).status is Status.COMMITTED
    assert shop.node.told == ["commit"]


def test_a_database_that_says_nothing_leaves_the_node_in_doubt(shop: Shop) -> None:
    gtrid = shop.world.begin()
    shop.mark(gtrid)
    shop.world.die()
    hidden = shop.path.rename(shop.path.with_suffix(".away"))
    shop.world.objects.databases.find("stock").close()
    for _ in range(2):
        with pytest.raises(system.TRANSIENT, match="unable to open"):
            shop.asked(gtrid)
    with pytest.raises(system.TRANSIENT):
        shop.decide(gtrid)
    assert not shop.world.look("stock").is_reachable
    hidden.rename(shop.path)
    shop.world.look("stock")
    assert shop.asked(gtrid) is Status.COMMITTED


def test_an_application_that_is_just_committing_is_not_answered_for(shop: Shop) -> None:
    gtrid = shop.world.begin()
    shop.world.die()
    busy = sqlite3.connect(shop.path, isolation_level=None)
    busy.execute("BEGIN IMMEDIATE")
    with pytest.raises(system.TRANSIENT, match="locked"):
        shop.asked(gtrid)
    busy.execute("ROLLBACK")
    busy.close()
    assert shop.asked(gtrid) is Status.ROLLED_BACK


def test_names_that_were_never_issued_are_not_fenced(shop: Shop) -> None:
    gtrid = bytes(32)
    assert shop.asked(gtrid) is Status.UNKNOWN
    connection = sqlite3.connect(shop.path)
    assert connection.execute("SELECT count(*) FROM oncemq_outcome").fetchone() == (1,)
    connection.close()


def test_a_mark_is_forgotten_only_when_its_decision_is_on_disk_and_carried_out(shop: Shop) -> None:
    told, untold, fenced = (shop.world.begin() for _ in range(3))
    shop.mark(told)
    shop.mark(untold)
    shop.decide(told)
    shop.decide(fenced, is_marked=False)
    shop.world.die()
    # SQLite counts whole seconds.
    connection = sqlite3.connect(shop.path)
    connection.execute("UPDATE oncemq_outcome SET at = datetime('now', '-1 hour')")
    connection.commit()
    shop.world.look("stock")
    left = {otid for (otid,) in connection.execute("SELECT otid FROM oncemq_outcome")}
    connection.close()
    assert left == {untold.hex(), fenced.hex(), "identity"}


def test_a_database_that_is_not_registered_is_named(shop: Shop) -> None:
    gtrid = shop.world.begin()
    shop.world.die()
    with pytest.raises(DatabaseNotFound):
        shop.world.coordination.decideMarked(otid_of(gtrid), "elsewhere", False, ())
    with pytest.raises(system.TRANSIENT, match="oncemq database add elsewhere"):
        shop.world.ask_mark("elsewhere", gtrid)


def test_another_database_in_its_place_is_not_believed(shop: Shop) -> None:
    gtrid = shop.world.begin()
    shop.mark(gtrid)
    shop.world.die()
    real = shop.path.rename(shop.path.with_suffix(".real"))
    empty = sqlite3.connect(shop.path)
    empty.execute(creation(Kind.SQLITE, "oncemq_outcome"))
    empty.execute("INSERT INTO oncemq_outcome (otid, branch, outcome) VALUES ('identity', '', 'x')")
    empty.commit()
    empty.close()
    shop.restart()
    # It has no mark of the transaction, which proves nothing.
    with pytest.raises(system.TRANSIENT, match="another database is in its place"):
        shop.asked(gtrid)
    real.rename(shop.path)
    assert shop.world.look("stock").is_reachable
    assert shop.asked(gtrid) is Status.COMMITTED


def test_another_file_at_the_path_is_not_made_up(tmp_path: Path) -> None:
    world = World()
    seen = world.register(Registered("none", f"sqlite:///{tmp_path}/none.db"))
    assert not seen.is_reachable
    assert not (tmp_path / "none.db").exists()
    world.close()
