"""A job as one transaction over queues: all of it or nothing, whatever fails in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oncemq
from clients.spark.job import JobTransaction
from clients.spark.partitions import PartitionBranch
from tests.integration.spark.world import World

# What a transaction over a job needs of pandas works with every one.
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")

ORDERS = [b"%d" % number for number in range(300)]


@pytest.fixture
def orders(server: World) -> str:
    """A queue with orders in it."""
    queue = server.new_queue("orders")
    server.fill(queue, ORDERS)
    return queue


def begun(spark: Any, server: World, **how: Any) -> JobTransaction:
    return oncemq.spark.transaction(spark, server.connection, **how)


def test_what_is_read_is_gone_and_what_is_written_is_there(
    spark: Any, server: World, orders: str
) -> None:
    one, two, three, own = (server.new_queue() for _ in range(4))

    def put(batches: Iterator[Any], branch: PartitionBranch) -> None:
        for batch in batches:
            branch.put_many(three, [value.as_py() for value in batch.column("value")])

    with begun(spark, server) as job:
        frame = job.read(orders, max_messages=200, partitions=3)
        assert job.write(frame.select("value"), one) == 200
        assert job.write(frame.where("value < '15'").select("value"), two) > 0
        assert job.foreach_partition(frame, put) == 200
        server.connection.queue(own).put(b"own")
        server.connection.queue(own).put(b"named", tx=job.tx)
        assert server.payloads(one) == []
        assert len(server.payloads(orders)) == 100
    server.check_exact(orders, ORDERS[200:])
    server.check_exact(one, ORDERS[:200])
    server.check_exact(two, [each for each in ORDERS[:200] if each < b"15"])
    server.check_exact(three, ORDERS[:200])
    server.check_exact(own, [b"own", b"named"])
    assert job.rows[one] == 200
    assert server.connection.outcome(job.otid) is oncemq.Outcome.COMMITTED


def test_an_exception_leaves_everything_as_it_was(spark: Any, server: World, orders: str) -> None:
    out = server.new_queue()

    def fail() -> None:
        with begun(spark, server) as job:
            frame = job.read(orders)
            job.write(frame.select("value"), out)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    server.check_exact(orders, ORDERS)
    assert server.payloads(out) == []


def test_attempts_that_fail_count_for_nothing(
    spark: Any, server: World, orders: str, tmp_path: Path
) -> None:
    out, folder = server.new_queue(), str(tmp_path)

    def put(batches: Iterator[Any], branch: PartitionBranch) -> None:
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            for value in batch.column("value"):
                branch.put(out, value.as_py(), priority=1)
        branch.push()
        tried = Path(folder) / str(context.partitionId())
        if not tried.exists():
            tried.touch()
            raise RuntimeError("the first attempt fails, after its puts")

    with begun(spark, server) as job:
        assert job.foreach_partition(job.read(orders, partitions=2), put) == len(ORDERS)
    server.check_exact(out, ORDERS)
    assert server.payloads(orders) == []


def test_a_write_that_failed_can_be_left_behind(spark: Any, server: World, orders: str) -> None:
    bad, good = server.new_queue(), server.new_queue()
    with begun(spark, server) as job:
        frame = job.read(orders, partitions=2)
        broken = frame.selectExpr("if(value = '299', raise_error('broken row'), value) as value")
        with pytest.raises(Exception, match="broken row"):
            job.write(broken, bad)
        job.write(frame.select("value"), good)
    assert server.payloads(bad) == []
    server.check_exact(good, ORDERS)


def test_two_nodes_take_part(spark: Any, server: World, orders: str) -> None:
    out = server.new_queue()
    with oncemq.connect(server.other_url) as other:
        with begun(spark, server) as job:
            frame = job.read(orders)
            job.write(frame.select("value"), out, connection=server.other_url)
        assert sorted(m.payload for m in other.queue(out).browse(limit=None)) == sorted(ORDERS)
        with begun(spark, server) as job:
            back = job.read(out, connection=other)
            job.write(back.select("value"), orders)
        assert len(other.queue(out)) == 0
    server.check_exact(orders, ORDERS)


def test_a_version_is_committed_once(spark: Any, server: World) -> None:
    out, application = server.new_queue(), server.new_queue("application")
    rows = spark.createDataFrame([("a",)], "value string")
    for version, is_new in ((1, True), (1, False), (3, True), (2, False)):
        with begun(spark, server, application=application, version=version) as job:
            assert job.already_committed is not is_new
            server.connection.queue(out).put(b"own")
            job.write(rows, out)
    server.check_exact(out, [b"own", b"a"] * 2)


def test_a_job_runs_in_any_thread(spark: Any, server: World, orders: str) -> None:
    out = server.new_queue()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with begun(spark, server) as job:
                job.write(job.read(orders).select("value"), out)
        except oncemq.OnceMQError as raised:
            failed.append(raised)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert failed == []
    server.check_exact(out, ORDERS)


def test_a_job_that_a_restarted_coordinator_forgot_may_be_tried_again(
    spark: Any, server: World, orders: str
) -> None:
    out = server.new_queue()

    def run() -> None:
        with begun(spark, server) as job:
            job.write(job.read(orders).select("value"), out)
            server.coordinator.kill()
            server.start_again()

    with pytest.raises(oncemq.RolledBack) as told:
        run()
    assert told.value.retryable
    assert server.payloads(out) == []


def test_micro_batches_are_skipped_when_they_come_again(spark: Any, server: World) -> None:
    out, other = server.new_queue(), server.new_queue()
    calls: list[int] = []

    @oncemq.spark.foreach_batch(server.url, application=server.new_queue("application"))
    def batch(frame: Any, number: int, job: JobTransaction) -> None:
        calls.append(number)
        job.write(frame, out)
        job.write(frame, other)

    rows = spark.createDataFrame([("a",)], "value string")
    for number in (0, 1, 1, 0, 2):
        batch(rows, number)
    assert calls == [0, 1, 2]
    for queue in (out, other):
        server.check_exact(queue, [b"a"] * 3)


def test_what_cannot_work_is_told_in_one_sentence(spark: Any, server: World) -> None:
    with pytest.raises(oncemq.OnceMQError, match="Spark works in many"):
        oncemq.spark.transaction(spark, "memory:")
    with pytest.raises(ValueError, match="application and a version"):
        begun(spark, server, version=1)
    with begun(spark, server) as job:
        rows = spark.createDataFrame([("a",)], "value string")
        with pytest.raises(oncemq.OnceMQError, match="payloadFormat"):
            job.write(rows, "q", payload_fromat="json")
        with pytest.raises(oncemq.OnceMQError, match="cannot be"):
            job.write(rows, "no such name!")


def test_at_the_end_nothing_is_left(server: World) -> None:
    server.check_settled()
