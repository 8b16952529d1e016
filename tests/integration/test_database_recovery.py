"""What is prepared in a real PostgreSQL gets its end, whoever died and whenever.

The coordinator is in this process, and its time is moved by hand; that of the database is its own.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pytest

from coordinator.database_recovery import Seen
from coordinator.registry import Registered
from idl import system
from idl.call import Address
from idl.coordination import Mq_Coordinator, Mq_Settler, Mq_TransactionAdmin, mqParticipant
from idl.cos import HeuristicHazard, Resource, Status
from idl.databases import COMMITTED, WHOLE, BranchId, branch_name, insertion
from idl.orb import NetworkOrb
from idl.otids import FORMAT_ID, Gtrid, decode_gtrid, issue, member_name, otid_of
from tests.crash.faults import Crash, Fault, at
from tests.integration.database_world import World, mark, without_prepared_transactions, work
from tests.postgres import Cluster, NoPostgres, cluster

ROOT = Path(__file__).resolve().parent.parent.parent
SECRET = "ONCEMQ_TEST_PASSWORD"
GRACE_S = 0.2
_numbers = itertools.count()


@dataclass
class Place:
    """A database of PostgreSQL that is registered with a coordinator as `orders`."""

    server: Cluster
    world: World
    dsn: str
    registered: Registered

    def rows(self) -> list[str]:
        """What is committed there."""
        with psycopg.connect(self.dsn) as connection:
            found = connection.execute("SELECT value FROM work ORDER BY value").fetchall()
        return [value for (value,) in found]

    def outcomes(self) -> int:
        """How many rows of the outcome table are about transactions."""
        statement = f"SELECT count(*) FROM {self.registered.table} WHERE otid <> 'identity'"
        with psycopg.connect(self.dsn) as connection:
            [(number,)] = connection.execute(statement.encode()).fetchall()
        return int(number)

    def prepared(self) -> int:
        """How many transactions are prepared there, of whomever."""
        statement = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
        with psycopg.connect(self.dsn) as connection:
            [(number,)] = connection.execute(statement).fetchall()
        return int(number)

    def work(self, gtrid: bytes, value: str, mark: str = "") -> tuple[Any, BranchId]:
        """See `work`."""
        return work(self.dsn, self.registered, gtrid, value, mark=mark)

    def look(self) -> Seen:
        """What the coordinator finds there now."""
        return self.world.look("orders")

    def look_after_the_grace(self) -> Seen:
        """The same when all that is there is old enough."""
        time.sleep(GRACE_S)
        return self.look()


@pytest.fixture(scope="module")
def server(missing: Callable[[str], NoReturn]) -> Cluster:
    try:
        return cluster()
    except NoPostgres as absent:
        missing(str(absent))


@pytest.fixture
def place(server: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    name = f"orders_{next(_numbers)}"
    server.execute(f"CREATE DATABASE {name}")
    account, _, where = server.dsn.removesuffix("/postgres").rpartition("@")
    user, _, password = account.removeprefix("postgresql://").partition(":")
    monkeypatch.setenv(SECRET, password)
    dsn = f"postgresql://{user}@{where}/{name}"
    made = Place(
        server,
        World(),
        f"{account}@{where}/{name}",
        Registered("orders", dsn, password_env=SECRET, grace_s=GRACE_S),
    )
    with psycopg.connect(made.dsn) as connection:
        connection.execute("CREATE TABLE work (value text)")
    assert made.world.register(made.registered).trouble == ""
    yield made
    made.world.close()


# --- Who died, and when --------------------------------------------------------------------------


def test_nothing_is_left_when_nobody_dies(place: Place) -> None:
    gtrid = place.world.begin()
    connection, branch = place.work(gtrid, "one")
    outcome = place.world.decide(gtrid, place.world.participant("orders", branch))
    assert outcome.status is Status.COMMITTED
    # The owner has the connection at hand, and need not wait for the coordinator.
    connection.tpc_commit()
    connection.close()
    place.world.settled()
    assert (place.rows(), place.prepared(), place.world.open()) == (["one"], 0, 0)


def test_an_application_that_died_after_its_prepare_is_rolled_back_after_the_grace(
    place: Place,
) -> None:
    gtrid = place.world.begin()
    connection, _ = place.work(gtrid, "one")
    connection.close()
    seen = place.look_after_the_grace()
    # Its session lives, so that it may still decide: however old the branch is.
    assert (seen.ours, seen.ended) == (1, 0)
    place.world.die()
    assert place.look().ended == 1
    assert (place.rows(), place.prepared()) == ([], 0)


def test_the_grace_is_waited_for(place: Place) -> None:
    gtrid = place.world.begin()
    connection, _ = place.work(gtrid, "one")
    connection.close()
    place.world.die()
    assert place.look().ours == 1
    assert place.look_after_the_grace().ended == 1


def test_an_application_that_died_after_the_decision_is_committed_for(place: Place) -> None:
    gtrid = place.world.begin()
    connection, branch = place.work(gtrid, "one")
    place.world.decide(gtrid, place.world.participant("orders", branch))
    connection.close()
    place.world.die()
    place.world.settled()
    assert (place.rows(), place.prepared(), place.world.open()) == (["one"], 0, 0)


def test_without_a_settler_it_is_committed_when_decide_answers(place: Place) -> None:
    gtrid = place.world.begin()
    connection, branch = place.work(gtrid, "one")
    place.world.decide(gtrid, place.world.participant("orders", branch, is_lazy=False))
    assert (place.rows(), place.prepared(), place.world.open()) == (["one"], 0, 0)
    connection.close()


def test_a_coordinator_that_died_after_the_decision_commits_when_it_is_back(place: Place) -> None:
    gtrid = place.world.begin()
    connection, branch = place.work(gtrid, "one")
    place.world.decide(gtrid, place.world.participant("orders", branch))
    connection.close()
    place.world.restart()
    place.world.settled()
    assert (place.rows(), place.prepared(), place.world.open()) == (["one"], 0, 0)


def test_a_coordinator_that_died_before_the_decision_rolls_back_after_the_grace(
    place: Place,
) -> None:
    gtrid = place.world.begin()
    connection, branch = place.work(gtrid, "one")
    place.world.restart()
    outcome = place.world.decide(gtrid, place.world.participant("orders", branch))
    assert outcome.status is Status.ROLLED_BACK
    connection.close()
    assert place.look_after_the_grace().ended == 1
    assert (place.rows(), place.prepared()) == ([], 0)


def test_a_database_that_died_while_prepared_is_finished_when_it_is_back(place: Place) -> None:
    world = place.world
    decided, undecided = world.begin(), world.begin()
    first, branch = place.work(decided, "decided")
    second, _ = place.work(undecided, "undecided")
    place.server.kill()
    # The decision does not wait for a database that is away.
    world.decide(decided, world.participant("orders", branch))
    world.settled()
    assert world.open() == 1
    assert not place.look().is_reachable
    # And the coordinator dies while it cannot be reached.
    world.restart()
    place.server.restart()
    for each in (first, second):
        each.close()
    seen = place.look_after_the_grace()
    world.tasks.pass_time(60.0)
    assert seen.is_reachable
    assert (place.rows(), place.prepared(), world.open()) == (["decided"], 0, 0)


# --- There is no such branch ---------------------------------------------------------------------


def test_a_branch_that_never_was_prepared_is_a_hazard_and_not_a_commit(place: Place) -> None:
    gtrid = place.world.begin()
    branch = BranchId(gtrid, branch_name(1))
    with pytest.raises(HeuristicHazard):
        place.world.decide(gtrid, place.world.participant("orders", branch, is_lazy=False))
    notes = place.world.service.transactions.notes_of(gtrid)
    assert [note.member.name for note in notes] == ["d1"]


def test_a_branch_that_was_rolled_back_by_hand_is_noticed_when_it_is_settled(place: Place) -> None:
    gtrid = place.world.begin()
    connection, branch = place.work(gtrid, "one")
    connection.tpc_rollback()
    connection.close()
    outcome = place.world.decide(gtrid, place.world.participant("orders", branch))
    assert outcome.status is Status.COMMITTED
    place.world.settled()
    assert place.world.open() == 0
    notes = place.world.service.transactions.notes_of(gtrid)
    assert [note.heuristic.name for note in notes] == ["HAZARD"]


def test_nobody_can_have_a_branch_ended_that_is_not_decided(place: Place) -> None:
    gtrid = place.world.begin()
    connection, branch = place.work(gtrid, "one")
    resource = place.world.participant("orders", branch).resource
    assert resource is not None
    for operation in (resource.commit, resource.rollback, resource.prepare):
        with pytest.raises(Exception, match=r"undecided|prepared by who works there"):
            operation()
    assert place.prepared() == 1
    connection.tpc_rollback()
    connection.close()


# --- What is not ours ----------------------------------------------------------------------------


def test_what_others_have_prepared_is_never_touched(place: Place) -> None:
    own = decode_gtrid(place.world.begin())
    other = Gtrid(b"stranger", 1, 1, bytes(12)).encoded().hex()
    untagged = own._replace(tag=bytes(12)).encoded().hex()
    unborn = own._replace(incarnation=own.incarnation + 5).encoded().hex()
    connection = psycopg.connect(place.dsn, autocommit=True)
    xid = connection.xid
    names = [
        "somebody's own name".replace("'", ""),
        "5197137_notbase64!_x",
        str(xid(FORMAT_ID + 1, own.encoded().hex(), "d1")),
        str(xid(FORMAT_ID, other, "d1")),
        str(xid(FORMAT_ID, untagged, "d1")),
        str(xid(FORMAT_ID, unborn, "d1")),
    ]
    for name in names:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO work VALUES ('foreign')")
        connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
    place.world.die()
    seen = place.look_after_the_grace()
    assert place.prepared() == len(names)
    # Two have our identity, but this log never issued them: an operator must see them.
    assert (seen.foreign, seen.ours, seen.ended) == (4, 2, 0)
    assert "not known to this coordinator's log" in seen.trouble
    for name in names:
        connection.execute(f"ROLLBACK PREPARED '{name}'".encode())
    connection.close()


# --- Traps ---------------------------------------------------------------------------------------


def test_a_database_that_refuses_the_password_says_so_and_holds_nobody_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEMQ_WRONG", "not-the-password")
    wrong = Registered("locked", place.registered.dsn, password_env="ONCEMQ_WRONG")
    seen = place.world.register(wrong)
    assert not seen.is_reachable
    assert "password authentication failed" in seen.trouble
    assert "not-the-password" not in seen.trouble
    assert place.look().is_reachable


def test_a_password_that_is_not_there_is_asked_for(place: Place) -> None:
    dsn, world = place.registered.dsn, place.world
    seen = world.register(Registered("locked", dsn, password_env="ONCEMQ_NOT_SET"))
    assert seen.trouble == "$ONCEMQ_NOT_SET is not set for the coordinator"
    seen = world.register(Registered("locked", dsn, password_file="/nowhere/secret"))
    assert "/nowhere/secret cannot be read" in seen.trouble


def test_a_password_file_that_others_may_read_is_refused(place: Place, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(os.environ[SECRET] + "\n")
    secret.chmod(0o644)
    registered = Registered("filed", place.registered.dsn, password_file=str(secret))
    assert f"chmod 600 {secret}" in place.world.register(registered).trouble
    secret.chmod(0o600)
    assert place.world.look("filed").is_reachable


def test_a_role_that_may_not_end_branches_of_others_is_told_what_to_do(place: Place) -> None:
    role = f"weak_{place.registered.where.place}"
    place.server.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'weak'")
    with psycopg.connect(place.dsn) as connection:
        connection.execute(f"GRANT ALL ON {place.registered.table}, work TO {role}".encode())
    gtrid = place.world.begin()
    connection, _ = place.work(gtrid, "one")
    connection.close()
    place.world.die()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONCEMQ_WEAK", "weak")
        weak = place.registered.dsn.replace("//oncemq@", f"//{role}@")
        place.world.objects.databases.add(
            Registered("orders", weak, password_env="ONCEMQ_WEAK", grace_s=GRACE_S)
        )
        seen = place.look_after_the_grace()
    assert "register the database with the role that applications use" in seen.trouble
    assert place.prepared() == 1
    place.world.objects.databases.add(place.registered)
    assert place.prepared() == 0


def test_without_prepared_transactions_it_is_not_a_two_phase_database(place: Place) -> None:
    assert place.look().facts.is_two_phase
    with without_prepared_transactions(place.server):
        seen = place.look()
        assert seen.is_reachable
        assert not seen.facts.is_two_phase
        assert not place.world.coordination.listDatabases()[0].isTwoPhase
        with psycopg.connect(place.dsn) as connection:
            connection.execute("INSERT INTO work VALUES ('x')")
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
                connection.execute("PREPARE TRANSACTION 'x'")


def test_a_database_that_cannot_be_reached_holds_up_no_other(place: Place) -> None:
    nowhere = Registered("nowhere", "postgresql://app@127.0.0.1:1/none")
    assert not place.world.register(nowhere).is_reachable
    away, here = place.world.begin(), place.world.begin()
    lost = BranchId(away, branch_name(1))
    place.world.decide(away, place.world.participant("nowhere", lost))
    connection, branch = place.work(here, "one")
    connection.close()
    before = time.monotonic()
    place.world.decide(here, place.world.participant("orders", branch))
    place.world.settled()
    assert time.monotonic() - before < 2.0
    assert place.rows() == ["one"]
    # That one is waited for, as long as it takes, and an operator sees why.
    assert place.world.open() == 1
    admin = place.world.orb.member("transactions", Mq_TransactionAdmin)
    [waiting] = admin.listTransactions()
    assert "127.0.0.1" in waiting.participants[0].trouble


def test_a_table_that_is_missing_is_asked_for_and_nothing_is_concluded_from_it(
    place: Place,
) -> None:
    gtrid = place.world.begin()
    connection, branch = place.work(gtrid, "one")
    connection.tpc_commit()
    with psycopg.connect(place.dsn) as other:
        other.execute(f"ALTER TABLE {place.registered.table} RENAME TO hidden".encode())
    place.world.decide(gtrid, place.world.participant("orders", branch))
    place.world.settled()
    assert place.world.open() == 1
    assert "oncemq database prepare orders" in place.look().trouble
    with psycopg.connect(place.dsn) as other:
        other.execute("ALTER TABLE public.hidden RENAME TO oncemq_outcome")
    place.world.tasks.pass_time(60.0)
    assert place.world.open() == 0
    connection.close()


def test_rows_of_transactions_that_are_over_are_forgotten(place: Place) -> None:
    for value in ("one", "two"):
        gtrid = place.world.begin()
        connection, branch = place.work(gtrid, value)
        connection.close()
        place.world.decide(gtrid, place.world.participant("orders", branch))
    place.world.settled()
    assert place.outcomes() == 2
    place.look()
    # Their session lives, and its names are known to be over.
    assert place.outcomes() == 0
    place.world.restart()
    place.world.settled()
    assert place.world.service.transactions.with_heuristics() == []


def test_the_identity_stays_and_tells_databases_apart(place: Place) -> None:
    [told] = place.world.coordination.listDatabases()
    assert len(told.identity) == 16
    place.world.objects.databases.prepare("orders")
    [again] = place.world.coordination.listDatabases()
    assert again == told
    assert (told.kind, told.table) == ("postgresql", '"public".oncemq_outcome')
    assert "@" in told.dsn
    assert ":" not in told.dsn.partition("//")[2].partition("@")[0]


# --- Every moment of the coordinator -------------------------------------------------------------


def test_a_coordinator_that_stops_at_any_operation_leaves_nothing_in_doubt(place: Place) -> None:
    world = place.world
    outcomes = []
    # Decided, carried out, settled, and its row forgotten.
    for step in itertools.count(1):
        before = world.disk.operations
        world.disk.faults = at(before + step, Fault.CRASH)
        gtrid, value = world.begin(), f"value {step:02d}"
        connection, branch = place.work(gtrid, value)
        connection.close()
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
    # Before the decision, behind it, and the last without any stop.
    assert set(outcomes) == {True, False}
    assert len(outcomes) > 3
    assert outcomes[-1]


# --- Marks, beside prepared branches and in PostgreSQL -------------------------------------------


@pytest.fixture
def shop(place: Place, tmp_path: Path) -> tuple[Path, Registered]:
    """A SQLite database that is registered as `stock` beside `orders`."""
    path = tmp_path / "stock.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE work (value)")
    connection.close()
    registered = Registered("stock", f"sqlite:///{path}", grace_s=GRACE_S)
    assert place.world.register(registered).trouble == ""
    return path, registered


def test_a_prepared_branch_beside_a_mark_gets_what_the_mark_says(
    place: Place, shop: tuple[Path, Registered]
) -> None:
    marked, unmarked = place.world.begin(), place.world.begin()
    for gtrid in (marked, unmarked):
        connection, _ = place.work(gtrid, gtrid.hex(), mark="stock")
        connection.close()
    mark(*shop, marked, "row")
    place.world.die()
    assert place.look_after_the_grace().ended == 2
    assert (place.rows(), place.prepared()) == ([marked.hex()], 0)
    with pytest.raises(sqlite3.IntegrityError):
        mark(*shop, unmarked, "late")


def test_a_prepared_branch_waits_for_a_mark_that_cannot_be_read(
    place: Place, shop: tuple[Path, Registered]
) -> None:
    path, registered = shop
    gtrid = place.world.begin()
    connection, branch = place.work(gtrid, "one", mark="stock")
    connection.close()
    mark(path, registered, gtrid, "row")
    place.world.die()
    place.world.objects.databases.remove("stock")
    seen = place.look_after_the_grace()
    assert (seen.ours, seen.ended) == (1, 0)
    assert "waits for what stock says" in seen.trouble
    resource = place.world.participant("orders", branch).resource
    assert resource is not None
    with pytest.raises(system.TRANSIENT, match="stock"):
        resource.rollback()
    place.world.register(registered)
    with pytest.raises(system.INVALID_TRANSACTION, match="mark in stock has committed it"):
        resource.rollback()
    assert place.look().ended == 1
    assert place.rows() == ["one"]


def test_in_postgresql_a_fence_waits_for_an_owner_that_is_committing(place: Place) -> None:
    gtrid = place.world.begin()
    place.world.die()
    owner = psycopg.connect(place.dsn)
    row = (gtrid.hex(), WHOLE, COMMITTED)
    owner.execute(insertion(place.registered.table, "%s").encode(), row)
    # Its commit may arrive or not: nothing may be told to anybody.
    with pytest.raises(system.TRANSIENT, match="lock timeout"):
        place.world.ask_mark("orders", gtrid)
    owner.commit()
    assert place.world.ask_mark("orders", gtrid) is Status.COMMITTED
    owner.close()


def test_in_postgresql_a_late_mark_finds_the_fence(place: Place) -> None:
    gtrid = place.world.begin()
    place.world.die()
    owner = psycopg.connect(place.dsn)
    owner.execute("INSERT INTO work VALUES ('late')")
    assert place.world.ask_mark("orders", gtrid) is Status.ROLLED_BACK
    row = (gtrid.hex(), WHOLE, COMMITTED)
    with pytest.raises(psycopg.errors.UniqueViolation):
        owner.execute(insertion(place.registered.table, "%s").encode(), row)
    owner.close()
    assert place.rows() == []


# --- As a process --------------------------------------------------------------------------------


def test_a_coordinator_that_is_killed_after_the_decision_commits_when_it_is_back(
    place: Place, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(os.environ[SECRET])
    secret.chmod(0o600)
    process = Running(tmp_path / "tx")
    try:
        told = oncemq(
            "database", "add", "orders", place.registered.dsn, "--password-file", str(secret),
            "--coordinator", str(process.address),
        )  # fmt: skip
        assert (told.returncode, told.stdout) == (0, "orders is registered.\n")
        orb = NetworkOrb()
        where = f"@{process.address}"
        coordination = orb.proxy(f"PYRO:coordination{where}", Mq_Coordinator)
        lease = coordination.lease(0, 0)
        gtrid = issue(lease.prefix, lease.secret, lease.first)
        connection, branch = place.work(gtrid, "one")
        connection.close()
        member = member_name("PYRO:database/orders", gtrid, branch.branch)
        resource = orb.proxy(f"{member}{where}", Resource)
        settler = orb.proxy(f"PYRO:database-settler/orders{where}", Mq_Settler)
        decided = coordination.decide(
            otid_of(gtrid), (mqParticipant(branch.branch, resource, settler),)
        )
        process.end(signal.SIGKILL)
        orb.close()
        assert decided.status is Status.COMMITTED
        process = Running(tmp_path / "tx")
        deadline = time.monotonic() + 10.0
        while place.prepared() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (place.rows(), place.prepared()) == (["one"], 0)
        listed = oncemq("database", "list", "--json", "--coordinator", str(process.address))
        [found] = json.loads(listed.stdout)["databases"]
        assert (found["reachable"], found["two_phase"], found["prepared_ours"]) == (True, True, 0)
        assert os.environ[SECRET] not in (tmp_path / "tx" / "databases.toml").read_text()
        assert process.end(signal.SIGTERM)[0] == 0
    finally:
        process.process.kill()
        process.process.wait()


class Running:
    """A coordinator that was started by the command."""

    def __init__(self, data: Path) -> None:
        command = [sys.executable, "-m", "clients.cli", "coordinator", "--quiet"]
        self.process = subprocess.Popen(
            [*command, "--data", str(data), "--listen", "127.0.0.1:0"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        told = self.process.stdout.readline().strip()
        self.address = Address.parse(told.rpartition(" ")[2])

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Sends the signal; the exit code, and what was said on standard error."""
        self.process.send_signal(number)
        _, complaint = self.process.communicate(timeout=20.0)
        return self.process.returncode, complaint


def oncemq(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One command, from beginning to end."""
    return subprocess.run(
        [sys.executable, "-m", "clients.cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60.0,
    )
