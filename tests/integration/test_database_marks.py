"""Transactions that a mark decides: a row of a database which has no two-phase commit.

The database is SQLite in a file; the coordinator is in this process, and its time is moved by hand.
"""

from __future__ import annotations

import itertools
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
from tests.crash.faults import Crash, Fault, at
from tests.crash.trace import Synced
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


def test_what_is_told_of_a_mark_costs_no_sync_and_its_loss_costs_nothing(shop: Shop) -> None:
    gtrid = shop.world.begin()
    shop.mark(gtrid)
    before = syncs(shop)
    assert shop.decide(gtrid).status is Status.COMMITTED
    assert syncs(shop) == before
    # What was written of it is lost, and the node had not made its commit durable either.
    shop.restart()
    assert shop.world.open() == 0
    assert shop.asked(gtrid) is Status.COMMITTED
    assert outcome(shop, gtrid) is Status.COMMITTED
    assert shop.decide(gtrid).status is Status.COMMITTED
    assert shop.node.told == ["commit", "commit"]


def test_a_mark_whose_loss_nobody_heard_of_is_kept(shop: Shop) -> None:
    gtrid = shop.world.begin()
    shop.mark(gtrid)
    shop.decide(gtrid)
    shop.restart()
    _forget_what_is_old(shop)
    assert shop.asked(gtrid) is Status.COMMITTED
    shop.world.tasks.pass_time(3600.0)
    assert shop.asked(gtrid) is Status.COMMITTED


def test_a_mark_goes_only_when_the_log_that_replaces_it_is_on_disk(shop: Shop) -> None:
    gtrid = shop.world.begin()
    shop.mark(gtrid)
    shop.decide(gtrid)
    before = syncs(shop)
    assert _forget_what_is_old(shop) == {"identity"}
    assert syncs(shop) > before
    # There is no mark any more: the log alone must know.
    shop.restart()
    assert outcome(shop, gtrid) is Status.COMMITTED


def test_a_coordinator_that_stops_at_any_operation_leaves_nobody_without_an_answer(
    shop: Shop,
) -> None:
    """Told of a mark, carried out, forced a moment later, and the mark forgotten."""
    for step in itertools.count(1):
        disk = shop.world.disk
        disk.faults = at(disk.operations + step, Fault.CRASH)
        gtrid = shop.world.begin()
        shop.mark(gtrid)
        told = None
        try:
            told = shop.decide(gtrid).status
            shop.world.settled()
            _forget_what_is_old(shop)
            is_crashed = False
        except Crash:
            is_crashed = True
        shop.restart()
        shop.world.settled()
        assert told in (Status.COMMITTED, None)
        # Whoever asks, and however: the client, or the node, which never asks after its commit.
        assert outcome(shop, gtrid) is Status.COMMITTED
        if not shop.node.told:
            assert shop.asked(gtrid) is Status.COMMITTED
        shop.node.told.clear()
        assert shop.world.open() == 0
        if not is_crashed:
            break
    assert step >= 3


def syncs(shop: Shop) -> int:
    return sum(isinstance(entry, Synced) for entry in shop.world.disk.trace.entries)


def outcome(shop: Shop, gtrid: bytes) -> Status:
    return shop.world.coordination.getOutcome(otid_of(gtrid)).status


def _forget_what_is_old(shop: Shop) -> set[str]:
    """All rows are old, and the coordinator has looked; those that are left."""
    connection = sqlite3.connect(shop.path)
    # SQLite counts whole seconds.
    connection.execute("UPDATE oncemq_outcome SET at = datetime('now', '-1 hour')")
    connection.commit()
    shop.world.look("stock")
    left = {otid for (otid,) in connection.execute("SELECT otid FROM oncemq_outcome")}
    connection.close()
    return left


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
    assert _forget_what_is_old(shop) == {untold.hex(), fenced.hex(), "identity"}


def test_who_asks_for_the_outcome_is_told_what_the_mark_says(shop: Shop) -> None:
    marked, unmarked = shop.world.begin(), shop.world.begin()
    shop.mark(marked)
    shop.world.die()
    assert outcome(shop, marked) is Status.COMMITTED
    assert outcome(shop, unmarked) is Status.ROLLED_BACK
    # To ask has fenced nobody.
    shop.mark(unmarked)
    assert outcome(shop, unmarked) is Status.COMMITTED


def test_the_outcome_is_not_made_up_where_the_database_is_silent(shop: Shop) -> None:
    gtrid = shop.world.begin()
    shop.mark(gtrid)
    shop.world.die()
    hidden = shop.path.rename(shop.path.with_suffix(".hidden"))
    shop.world.restart()
    with pytest.raises(system.TRANSIENT, match="may be marked as committed in a database"):
        outcome(shop, gtrid)
    hidden.rename(shop.path)
    assert shop.world.look("stock").is_reachable
    assert outcome(shop, gtrid) is Status.COMMITTED


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
