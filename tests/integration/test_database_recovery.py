"""What is prepared in a real PostgreSQL gets its end, whoever died and whenever.

The coordinator is in this process, and its time is moved by hand; that of the database is its own.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest

from idl.call import Address
from idl.coordination import Mq_Coordinator, Mq_Settler, mqParticipant
from idl.cos import HeuristicHazard, Resource, Status
from idl.databases import BranchId, branch_name
from idl.orb import NetworkOrb
from idl.otids import FORMAT_ID, Gtrid, decode_gtrid, issue, member_name, otid_of
from tests.crash.faults import Crash, Fault, at
from tests.integration.database_places import SECRET, Place, new_place
from tests.postgres import Cluster, NoPostgres, cluster

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def server(missing: Callable[[str], NoReturn]) -> Cluster:
    try:
        return cluster()
    except NoPostgres as absent:
        missing(str(absent))


@pytest.fixture
def place(server: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with new_place(server, monkeypatch) as made:
        yield made


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
