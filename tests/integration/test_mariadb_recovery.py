"""What is prepared in a real MariaDB gets its end, whoever died and whenever; and what is said.

The coordinator is in this process, and its time is moved by hand, also that of the grace: MariaDB
does not say how old a branch is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from coordinator.database_recovery import Seen
from coordinator.registry import Registered
from idl import system
from idl.coordination import Mq_TransactionAdmin
from idl.cos import HeuristicHazard, Status
from idl.databases import BRANCH, COMMITTED, WHOLE, BranchId, branch_name, insertion
from idl.mapping import InvalidValue
from idl.otids import FORMAT_ID, Gtrid, check_branch, decode_gtrid
from tests.crash.faults import Crash, Fault, at
from tests.integration.database_world import World
from tests.integration.mariadb_rows import Conn, execute
from tests.mariadb import Server

pytest_plugins = ["tests.integration.database_fixtures"]

SECRET = "ONCEMQ_TEST_MARIADB_SECRET"
GRACE_S = 60.0
_numbers = itertools.count()


class Place:
    """A database of MariaDB that is registered with a coordinator as `orders`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.world = World()
        self.name = f"orders_{next(_numbers)}"
        server.execute(f"CREATE DATABASE {self.name}")
        server.execute(f"CREATE TABLE {self.name}.work (value varchar(200)) ENGINE=InnoDB")
        self.registered = Registered(
            "orders", server.address(self.name), password_env=SECRET, grace_s=GRACE_S
        )
        assert self.world.register(self.registered).trouble == ""
        self._made: list[Conn] = []

    def close(self) -> None:
        """Nobody is connected."""
        self.world.close()
        for made in self._made:
            if made.open:
                made.close()

    def connect(self) -> Conn:
        """An application."""
        made = self.server.connect(self.name)
        self._made.append(made)
        return made

    def work(self, gtrid: bytes, value: str, name: str = "d1") -> tuple[Conn, BranchId]:
        """A row is written and prepared, and the connection that did it, which holds the branch."""
        branch = BranchId(gtrid, name)
        connection = self.connect()
        execute(connection, f"XA START {xid(branch)}")
        execute(connection, "INSERT INTO work VALUES (%s)", value)
        row = (branch.otid, branch.branch, BRANCH)
        execute(connection, insertion(self.registered.table, "%s"), *row)
        execute(connection, f"XA END {xid(branch)}")
        execute(connection, f"XA PREPARE {xid(branch)}")
        return connection, branch

    def left(self, gtrid: bytes, value: str, name: str = "d1") -> BranchId:
        """The same, and who did it has died."""
        connection, branch = self.work(gtrid, value, name)
        self.server.disconnect(connection)
        return branch

    def rows(self) -> list[str]:
        """What is committed."""
        found = self.server.execute(f"SELECT value FROM {self.name}.work ORDER BY value")
        return [value for (value,) in found]

    def outcomes(self) -> int:
        """How many rows of the outcome table are about transactions."""
        table = f"{self.name}.oncemq_outcome"
        return len(self.server.execute(f"SELECT 1 FROM {table} WHERE otid <> 'identity'"))

    def prepared(self) -> int:
        """How many branches are prepared at the server, of whomever."""
        return len(self.server.execute("XA RECOVER"))

    def look(self) -> Seen:
        """What the coordinator finds and does now."""
        return self.world.look("orders")

    def look_after_the_grace(self) -> Seen:
        """The same when all that was seen is old enough."""
        self.look()
        self.world.tasks.time += GRACE_S
        return self.look()

    def decide(self, gtrid: bytes, branch: BranchId) -> None:
        """The client has it committed."""
        told = self.world.decide(gtrid, self.world.participant("orders", branch))
        assert told.status is Status.COMMITTED


def xid(branch: BranchId) -> str:
    format_id, gtrid, name = branch.xid
    return f"'{gtrid}', '{name}', {format_id}"


@pytest.fixture
def place(mariadb: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv(SECRET, mariadb.password)
    made = Place(mariadb)
    yield made
    made.close()


# --- Who died, and when --------------------------------------------------------------------------


def test_an_application_that_died_after_its_prepare_is_rolled_back_after_the_grace(
    place: Place,
) -> None:
    place.left(place.world.begin(), "one")
    place.world.die()
    seen = place.look()
    assert (seen.ours, seen.ended, place.prepared()) == (1, 0, 1)
    assert place.look_after_the_grace().ended == 1
    assert (place.prepared(), place.rows()) == (0, [])


def test_an_application_that_died_after_the_decision_is_committed_for(place: Place) -> None:
    gtrid = place.world.begin()
    place.decide(gtrid, place.left(gtrid, "one"))
    place.world.settled()
    assert (place.prepared(), place.rows(), place.world.open()) == (0, ["one"], 0)


def test_a_branch_that_its_connection_still_holds_is_waited_for(place: Place) -> None:
    gtrid = place.world.begin()
    connection, branch = place.work(gtrid, "one")
    place.decide(gtrid, branch)
    # MariaDB says that there is no such branch, and lists it: nothing may be concluded from that.
    place.world.settled()
    assert (place.prepared(), place.world.open()) == (1, 1)
    assert "still held by the connection that prepared it" in place.look().trouble
    place.server.disconnect(connection)
    assert place.look().ended == 1
    place.world.tasks.pass_time(60.0)
    assert (place.prepared(), place.rows(), place.world.open()) == (0, ["one"], 0)
    assert place.world.service.transactions.with_heuristics() == []


def test_an_owner_that_was_faster_is_no_trouble(place: Place) -> None:
    gtrid = place.world.begin()
    connection, branch = place.work(gtrid, "one")
    place.decide(gtrid, branch)
    execute(connection, f"XA COMMIT {xid(branch)}")
    place.world.settled()
    assert (place.rows(), place.world.open()) == (["one"], 0)
    assert place.world.service.transactions.with_heuristics() == []


def test_a_coordinator_that_died_commits_what_it_decided_and_rolls_back_the_rest(
    place: Place,
) -> None:
    decided, undecided = place.world.begin(), place.world.begin()
    branch = place.left(decided, "decided")
    place.left(undecided, "undecided")
    place.decide(decided, branch)
    place.world.restart()
    place.world.settled()
    place.look_after_the_grace()
    assert (place.prepared(), place.rows(), place.world.open()) == (0, ["decided"], 0)


def test_a_server_that_died_while_prepared_is_finished_when_it_is_back(place: Place) -> None:
    gtrid = place.world.begin()
    _, branch = place.work(gtrid, "one")
    place.server.kill()
    place.decide(gtrid, branch)
    place.world.settled()
    assert not place.look().is_reachable
    assert place.world.open() == 1
    place.server.restart()
    assert place.prepared() == 1
    assert place.look().ended == 1
    place.world.tasks.pass_time(60.0)
    assert (place.prepared(), place.rows(), place.world.open()) == (0, ["one"], 0)


def test_a_branch_that_never_was_prepared_is_a_hazard_and_not_a_commit(place: Place) -> None:
    gtrid = place.world.begin()
    never = place.world.participant("orders", BranchId(gtrid, branch_name(1)), is_lazy=False)
    with pytest.raises(HeuristicHazard):
        place.world.decide(gtrid, never)


def test_a_branch_that_was_rolled_back_by_hand_is_noticed(place: Place) -> None:
    gtrid = place.world.begin()
    branch = place.left(gtrid, "one")
    place.server.execute(f"XA ROLLBACK {xid(branch)}")
    place.decide(gtrid, branch)
    place.world.settled()
    place.world.tasks.pass_time(60.0)
    assert place.world.service.transactions.with_heuristics() == [gtrid]


def test_what_others_have_prepared_is_never_touched(place: Place) -> None:
    own = decode_gtrid(place.world.begin())
    elsewhere = Gtrid(b"another!", own.incarnation, own.number, own.tag).encoded().hex()
    invented = Gtrid(own.identity, own.incarnation, own.number + 1, bytes(12)).encoded().hex()
    names = ["'x', 'y', 1", f"'{elsewhere}', 'd1', {FORMAT_ID}", f"'{invented}', 'd1', {FORMAT_ID}"]
    for name in names:
        connection = place.connect()
        execute(connection, f"XA START {name}")
        execute(connection, "INSERT INTO work VALUES ('foreign')")
        execute(connection, f"XA END {name}")
        execute(connection, f"XA PREPARE {name}")
        place.server.disconnect(connection)
    place.world.die()
    seen = place.look_after_the_grace()
    assert (seen.foreign, seen.ours, seen.ended, place.prepared()) == (2, 1, 0, 3)
    assert "not known to this coordinator's log" in seen.trouble
    for name in names:
        place.server.execute(f"XA ROLLBACK {name}")


def test_branches_of_another_database_of_the_server_are_ended_once(place: Place) -> None:
    other = Place(place.server)
    try:
        place.world.register(
            Registered("other", other.registered.dsn, password_env=SECRET, grace_s=GRACE_S)
        )
        decided, undecided = place.world.begin(), place.world.begin()
        # A branch is in one database, and listed in both.
        place.decide(decided, place.left(decided, "decided"))
        place.left(undecided, "undecided")
        place.world.die()
        for _ in range(2):
            place.world.look("other")
            place.look_after_the_grace()
        place.world.settled()
        assert (place.prepared(), place.rows(), place.world.open()) == (0, ["decided"], 0)
        assert place.world.service.transactions.with_heuristics() == []
    finally:
        other.close()


def test_names_as_long_as_they_may_be_are_found_again_and_longer_ones_never_made(
    place: Place,
) -> None:
    gtrid = place.world.begin()
    name = "d1." + "a" * 61
    assert (len(gtrid.hex()), len(name)) == (64, 64)
    branch = place.left(gtrid, "one", name)
    assert place.look().ours == 1
    place.decide(gtrid, branch)
    place.world.settled()
    assert (place.prepared(), place.rows()) == (0, ["one"])
    with pytest.raises(InvalidValue, match="branch"):
        check_branch(name + "a")


def test_a_coordinator_that_stops_at_any_operation_leaves_nothing_in_doubt(place: Place) -> None:
    world = place.world
    outcomes = []
    for step in itertools.count(1):
        world.disk.faults = at(world.disk.operations + step, Fault.CRASH)
        gtrid, value = world.begin(), f"value {step:02d}"
        branch = place.left(gtrid, value)
        told = None
        try:
            told = world.decide(gtrid, world.participant("orders", branch)).status
            world.settled()
            place.look()
            is_crashed = False
        except Crash:
            is_crashed = True
        world.restart()
        world.settled()
        place.look_after_the_grace()
        assert (place.prepared(), world.open()) == (0, 0)
        assert world.service.transactions.with_heuristics() == []
        assert value in place.rows() or told is not Status.COMMITTED
        outcomes.append(value in place.rows())
        if not is_crashed:
            break
    assert set(outcomes) == {True, False}


# --- What is wrong, and said ---------------------------------------------------------------------


def test_wrong_credentials_are_told_without_the_secret_and_hold_nobody_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEMQ_WRONG", "not-the-password")
    dsn = place.registered.dsn
    seen = place.world.register(Registered("locked", dsn, password_env="ONCEMQ_WRONG"))
    assert not seen.is_reachable
    assert seen.trouble.startswith("Access denied for user 'oncemq'@")
    assert "not-the-password" not in seen.trouble
    missing = place.server.address("no_such_database")
    seen = place.world.register(Registered("lost", missing, password_env=SECRET))
    assert seen.trouble == "Unknown database 'no_such_database'"
    seen = place.world.register(Registered("away", "mariadb://app@127.0.0.1:1/none"))
    assert "Can't connect to MySQL server" in seen.trouble
    assert place.look().is_reachable


def test_an_account_that_may_not_keep_the_table_is_told_what_it_needs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEMQ_WEAK", "weak")
    account = f"weak_{place.name}"
    place.server.execute(f"CREATE USER {account}@127.0.0.1 IDENTIFIED BY 'weak'")
    place.server.execute(f"GRANT SELECT ON {place.name}.* TO {account}@127.0.0.1")
    dsn = place.server.address(place.name, account)
    databases = place.world.objects.databases
    databases.add(Registered("weak", dsn, password_env="ONCEMQ_WEAK"))
    admin = place.world.orb.member("transactions", Mq_TransactionAdmin)
    with pytest.raises(system.TRANSIENT, match="needs CREATE, SELECT, INSERT and DELETE"):
        admin.prepareDatabase("weak", "")
    with pytest.raises(system.BAD_PARAM, match="not an account of MariaDB: write USER@HOST"):
        admin.prepareDatabase("orders", "a'b@127.0.0.1")
    place.server.execute(f"CREATE USER {account} IDENTIFIED BY 'weak'")
    admin.prepareDatabase("orders", account)
    [grant] = [
        text
        for (text,) in place.server.execute(f"SHOW GRANTS FOR {account}")
        if "oncemq_outcome" in text
    ]
    assert grant.startswith("GRANT SELECT, INSERT ON")


def test_a_server_whose_commits_a_power_cut_can_take_back_is_pointed_out(place: Place) -> None:
    place.server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    try:
        told = "innodb_flush_log_at_trx_commit is so set that a power cut"
        assert told in place.look().trouble
    finally:
        place.server.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    assert place.look().trouble == ""


def test_a_table_that_is_missing_is_asked_for_and_nothing_is_concluded_from_it(
    place: Place,
) -> None:
    gtrid = place.world.begin()
    connection, branch = place.work(gtrid, "one")
    execute(connection, f"XA COMMIT {xid(branch)}")
    table, hidden = f"{place.name}.oncemq_outcome", f"{place.name}.hidden"
    place.server.execute(f"RENAME TABLE {table} TO {hidden}")
    place.decide(gtrid, branch)
    place.world.settled()
    assert place.world.open() == 1
    assert "oncemq database prepare orders" in place.look().trouble
    place.server.execute(f"RENAME TABLE {hidden} TO {table}")
    place.world.tasks.pass_time(60.0)
    assert place.world.open() == 0


def test_rows_of_transactions_that_are_over_are_forgotten(place: Place) -> None:
    for value in ("one", "two"):
        gtrid = place.world.begin()
        place.decide(gtrid, place.left(gtrid, value))
    place.world.settled()
    assert place.outcomes() == 2
    place.server.execute(
        f"UPDATE {place.name}.oncemq_outcome SET at = now() - INTERVAL 1 HOUR"
        " WHERE otid <> 'identity'"
    )
    place.look()
    assert place.outcomes() == 0


# --- Marks ---------------------------------------------------------------------------------------


def test_a_fence_waits_for_an_owner_that_is_committing(place: Place) -> None:
    gtrid = place.world.begin()
    place.world.die()
    owner = place.connect()
    row = (gtrid.hex(), WHOLE, COMMITTED)
    execute(owner, insertion(place.registered.table, "%s"), *row)
    # Its commit may arrive or not: nothing may be told to anybody.
    with pytest.raises(system.TRANSIENT, match="Lock wait timeout"):
        place.world.ask_mark("orders", gtrid)
    owner.commit()
    assert place.world.ask_mark("orders", gtrid) is Status.COMMITTED


def test_a_late_mark_finds_the_fence(place: Place) -> None:
    gtrid = place.world.begin()
    place.world.die()
    owner = place.connect()
    execute(owner, "INSERT INTO work VALUES ('late')")
    # Its snapshot is older than the fence, and does not help it.
    assert execute(owner, f"SELECT 1 FROM {place.registered.table} WHERE branch = 'x'") == []
    assert place.world.ask_mark("orders", gtrid) is Status.ROLLED_BACK
    row: tuple[Any, ...] = (gtrid.hex(), WHOLE, COMMITTED)
    with pytest.raises(pymysql.err.IntegrityError):
        execute(owner, insertion(place.registered.table, "%s"), *row)
    owner.close()
    assert place.rows() == []
