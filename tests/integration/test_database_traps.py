"""What goes wrong with databases, what is said then, and that nothing is concluded from it.

The coordinator is in this process, and its time is moved by hand; PostgreSQL is a real one.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest

from coordinator.database_recovery import Seen
from coordinator.registry import Registered
from idl import system
from idl.coordination import Mq_TransactionAdmin
from idl.cos import Status
from idl.databases import COMMITTED, WHOLE, BranchId, branch_name, insertion
from tests.integration.database_places import GRACE_S, SECRET, Place, new_place
from tests.integration.database_world import mark, without_prepared_transactions
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


def test_a_server_that_does_not_sync_is_pointed_out(place: Place) -> None:
    place.server.execute("ALTER SYSTEM SET fsync = off")
    try:
        assert "fsync is so set that a power cut" in _look_until(place, has_trouble=True).trouble
    finally:
        place.server.execute("ALTER SYSTEM RESET fsync")
        assert _look_until(place, has_trouble=False).facts.identity


def _look_until(place: Place, has_trouble: bool) -> Seen:
    place.server.execute("SELECT pg_reload_conf()")
    deadline = time.monotonic() + 5.0
    while bool((seen := place.look()).trouble) is not has_trouble and time.monotonic() < deadline:
        time.sleep(0.01)
    return seen


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
