"""Tables in a job's transaction: rows and messages together, or neither."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import pytest

import oncemq
from tests.integration.spark.table_places import PostgresTable, SqliteTable
from tests.integration.spark.world import World
from tests.postgres import NoPostgres, cluster

# What a transaction over a job needs of pandas works with every one.
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")

IDS = list(range(100))


@pytest.fixture
def postgres(
    server: World, tmp_path: Path, missing: Callable[[str], NoReturn]
) -> Iterator[PostgresTable]:
    """A table in PostgreSQL; nothing is left prepared there."""
    try:
        made = PostgresTable(cluster(), server.connection, tmp_path)
    except NoPostgres as absent:
        missing(str(absent))
    yield made
    assert made.prepared() == 0


@pytest.fixture
def sqlite(server: World, tmp_path: Path) -> SqliteTable:
    """A table in SQLite."""
    return SqliteTable(server.connection, tmp_path)


def frame_of(spark: Any, partitions: int = 3) -> Any:
    return spark.range(0, len(IDS), 1, partitions).selectExpr("id", "cast(id as string) as text")


def test_every_type_arrives_as_it_is(spark: Any, server: World, postgres: PostgresTable) -> None:
    at = datetime.datetime.fromisoformat("2026-11-17 01:02:03.456789")
    rows = [
        (1, 'a "quoted", text\nof two lines', at, Decimal("12345.67"), b"\x00\xff\\"),
        (2, "", None, Decimal("-0.01"), b""),
        (3, None, None, None, None),
    ]
    schema = "id bigint, text string, at timestamp_ntz, amount decimal(10,2), raw binary"
    with oncemq.spark.transaction(spark, server.connection) as job:
        count = job.write_table(
            spark.createDataFrame(rows, schema),
            postgres.name,
            database=postgres.database,
            password_file=postgres.password_file,
        )
    assert count == job.rows[postgres.name] == len(rows)
    assert postgres.rows() == rows


@pytest.mark.thorough
def test_rows_and_messages_are_there_together_or_not_at_all(
    spark: Any, server: World, postgres: PostgresTable
) -> None:
    orders, out = server.new_queue("orders"), server.new_queue()
    server.fill(orders, [b"%d" % each for each in IDS])

    def run(fails: bool) -> None:
        with oncemq.spark.transaction(spark, server.connection) as job:
            frame = job.read(orders, partitions=2)
            job.write(frame.select("value"), out)
            numbered = frame.selectExpr("cast(cast(value as string) as bigint) as id")
            job.write_table(
                numbered,
                postgres.name,
                database=postgres.database,
                password_file=postgres.password_file,
            )
            assert postgres.prepared() > 0
            if fails:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(fails=True)
    assert (postgres.ids(), server.payloads(out)) == ([], [])
    # The driver has seen to it by itself.
    assert postgres.prepared() == 0
    run(fails=False)
    assert postgres.ids() == IDS
    server.check_exact(out, [b"%d" % each for each in IDS])
    assert server.payloads(orders) == []


@pytest.mark.thorough
def test_a_row_that_the_table_refuses_is_told_and_may_be_left_behind(
    spark: Any, server: World, postgres: PostgresTable
) -> None:
    out = server.new_queue()
    where: dict[str, Any] = {"database": postgres.database, "password_file": postgres.password_file}
    with oncemq.spark.transaction(spark, server.connection) as job:
        twice = spark.range(2).selectExpr("cast(7 as bigint) as id").repartition(1)
        with pytest.raises(Exception, match="duplicate key value"):
            job.write_table(twice, postgres.name, **where)
        with pytest.raises(Exception, match='column "colour"'):
            job.write_table(spark.range(1).toDF("colour"), postgres.name, **where)
        with pytest.raises(oncemq.OnceMQError, match="to_json"):
            job.write_table(spark.sql("select array(1) as id"), postgres.name, **where)
        with pytest.raises(oncemq.OnceMQError, match="no database is registered as"):
            job.write_table(twice, "rows", database="nowhere")
        job.write(frame_of(spark).selectExpr("text as value"), out)
    assert postgres.ids() == []
    assert len(server.payloads(out)) == len(IDS)


@pytest.mark.thorough
def test_a_database_without_two_phase_commit_decides(
    spark: Any, server: World, sqlite: SqliteTable
) -> None:
    orders, out = server.new_queue("orders"), server.new_queue()
    server.fill(orders, [b"%d" % each for each in IDS])

    def run(fails: bool) -> None:
        with oncemq.spark.transaction(spark, server.connection) as job:
            frame = job.read(orders, partitions=2)
            numbered = frame.selectExpr("cast(cast(value as string) as bigint) as id")
            job.write_table(numbered, "rows", database=sqlite.database)
            job.write(frame.select("value"), out)
            if fails:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(fails=True)
    assert (sqlite.ids(), server.payloads(out)) == ([], [])
    run(fails=False)
    assert sqlite.ids() == IDS
    server.check_exact(out, [b"%d" % each for each in IDS])
    assert server.payloads(orders) == []


@pytest.mark.thorough
def test_one_that_decides_is_named_before_anything_is_prepared(
    spark: Any, server: World, sqlite: SqliteTable
) -> None:
    out, numbers = server.new_queue(), frame_of(spark)
    messages = numbers.selectExpr("text as value")
    with oncemq.spark.transaction(spark, server.connection) as job:
        job.write(messages, out)
        with pytest.raises(oncemq.NotEnlisted, match="marked="):
            job.write_table(numbers, "rows", database=sqlite.database)
    assert (sqlite.ids(), len(server.payloads(out))) == ([], len(IDS))
    with oncemq.spark.transaction(spark, server.connection, marked=sqlite.database) as job:
        job.write(messages, out)
        job.write_table(numbers, "rows", database=sqlite.database)
    assert (sqlite.ids(), len(server.payloads(out))) == (IDS, 2 * len(IDS))


@pytest.mark.parametrize("is_back", [True, False], ids=["back", "still away"])
def test_a_job_tells_its_branches_where_the_coordinator_cannot(
    spark: Any, server: World, sqlite: SqliteTable, is_back: bool
) -> None:
    """Beside a mark tasks prepare nothing, so that what they have put would ask nobody."""
    server.check_settled()
    branches = server.connection.admin().listBranches
    orders, out = server.new_queue("orders"), server.new_queue()
    server.fill(orders, [b"%d" % each for each in IDS])

    def run() -> None:
        with oncemq.spark.transaction(spark, server.connection, marked=sqlite.database) as job:
            job.write(job.read(orders).select("value"), out)
            assert len(branches()) > 1
            server.coordinator.kill()
            if is_back:
                server.start_again()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()
    # Nobody had to wait until the node notices their silence.
    assert branches() == ()
    server.check_exact(orders, [b"%d" % each for each in IDS])
    assert (sqlite.ids(), server.payloads(out)) == ([], [])


@pytest.mark.thorough
def test_a_version_that_a_mark_has_committed_is_known_by_the_database(
    spark: Any, server: World, sqlite: SqliteTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, application = server.new_queue(), server.new_queue("application")
    ran: list[int] = []

    @oncemq.spark.foreach_batch(server.url, application=application, marked=sqlite.database)
    def batch(frame: Any, number: int, job: Any) -> None:
        ran.append(number)
        job.write(frame.selectExpr("text as value"), out)
        numbered = frame.selectExpr(f"id + {100 * number} as id")
        job.write_table(numbered, "rows", database=sqlite.database)

    def never_heard(*arguments: object) -> NoReturn:
        raise oncemq.OutcomeUnknown(bytes(32))

    batch(frame_of(spark), 0)
    with monkeypatch.context() as patched:
        # The mark is committed, and the coordinator is not told of it.
        patched.setattr("clients.deciding.Deciding.decide_marked", never_heard)
        batch(frame_of(spark), 1)
    for number in (1, 0, 2, 2):
        batch(frame_of(spark), number)
    assert set(ran) == {0, 1, 2}
    assert sqlite.ids() == list(range(3 * len(IDS)))
    server.check_settled()
    assert len(server.payloads(out)) == 3 * len(IDS)
