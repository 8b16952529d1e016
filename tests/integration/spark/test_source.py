"""Looking at queues from a real Spark: rows, partitions, filters, and tasks that die."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import oncemq
from clients import structs
from clients.spark.source import LockedList, lock_list
from idl.mq import mqSelection
from tests.integration.spark.dying import READING, DyingDataSource, left_of, plan_deaths
from tests.integration.spark.world import World

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
EVERYTHING = mqSelection(0, 0, ())


def look(spark: Any, server: World, queue: str, kind: str = "oncemq", **options: object) -> Any:
    reader = spark.read.format(kind).option("url", server.url).option("queue", queue)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def sizes(frame: Any) -> list[int]:
    """How many rows each partition has."""
    counted = frame.selectExpr("spark_partition_id() AS p").groupBy("p").count().collect()
    return [row["count"] for row in sorted(counted, key=lambda row: int(row["p"]))]


def fill(server: World, queue: str, count: int) -> list[bytes]:
    payloads = [b"%d" % number for number in range(count)]
    server.fill(queue, payloads)
    return payloads


def test_a_row_has_the_payload_and_all_headers(spark: Any, server: World) -> None:
    queue = server.new_queue()
    attributes = (("kind", "order"), ("kind", "again"))
    message = oncemq.Message(b"\x00\xff", 7, 3, attributes, sender="till-4")
    key = server.connection.queue(queue).put(message)
    server.connection.queue(queue).put(b"")
    first, second = look(spark, server, queue).orderBy("key").collect()
    assert bytes(first.value) == b"\x00\xff"
    assert (first.key, first.priority, first.group, first.sender) == (str(key), 7, 3, "till-4")
    assert [(each.name, each.value) for each in first.attributes] == list(attributes)
    zoned = first.time.astimezone(UTC)
    assert abs(datetime.now(UTC) - zoned) < timedelta(minutes=5)
    assert (bytes(second.value), second.priority, second.group) == (b"", 0, 0)
    assert second.attributes == []
    assert len(server.payloads(queue)) == 2


def test_what_is_read_can_be_written_again(spark: Any, server: World) -> None:
    queue, copy = server.new_queue(), server.new_queue()
    messages = [
        oncemq.Message(b"%d" % n, n % 5, n % 3, (("n", str(n)),), sender=f"s{n % 2}")
        for n in range(500)
    ]
    server.connection.queue(queue).put_many(messages)
    frame = look(spark, server, queue, partitions=1)
    frame.write.format("oncemq").option("url", server.url).option("queue", copy).mode(
        "append"
    ).save()
    found = list(server.connection.queue(copy).browse(limit=None))
    assert [(m.payload, m.priority, m.group, m.attributes, m.sender) for m in found] == [
        (m.payload, m.priority, m.group, m.attributes, m.sender) for m in messages
    ]


def test_an_empty_or_missing_queue_has_no_rows(spark: Any, server: World) -> None:
    assert look(spark, server, server.new_queue()).collect() == []


def test_partitions_are_balanced_and_nothing_is_taken(spark: Any, server: World) -> None:
    queue, other = server.new_queue(), server.new_queue()
    payloads = fill(server, queue, 3000)
    fill(server, other, 5000)
    payloads += fill(server, queue, 9000)
    frame = look(spark, server, queue, partitions=4)
    for _ in range(2):
        assert sorted(bytes(row.value) for row in frame.collect()) == sorted(payloads)
    counts = sizes(frame)
    assert len(counts) == 4
    assert max(counts) < 1.35 * 12_000 / 4, counts
    server.check_exact(queue, payloads)


def test_options_select_messages(spark: Any, server: World) -> None:
    queue = server.new_queue()
    server.connection.queue(queue).put_many(
        [oncemq.Message(b"%d" % n, n % 5, n % 3, (("n", str(n % 2)),)) for n in range(300)]
    )
    chosen = look(spark, server, queue, group=1, priorityMin=3, attributes="n=1").collect()
    assert {(r.group, r.attributes[0].value, r.priority >= 3) for r in chosen} == {(1, "1", True)}
    assert len(chosen) == 20
    assert look(spark, server, queue, maxMessages=7).count() == 7
    assert look(spark, server, queue, maxMessages=70, partitions=4, group=2).count() == 70


def test_filters_go_to_the_node_only_where_they_were_asked_for(spark: Any, server: World) -> None:
    queue = server.new_queue()
    server.connection.queue(queue).put_many(
        [oncemq.Message(b"%d" % n, n % 5, n % 3) for n in range(300)]
    )
    condition = "`group` = 1 AND priority >= 3 AND sender = 'spark' OR priority > 100"
    pushed = "`group` = 1 AND priority >= 3 AND priority < 4 AND key > ''"
    plain = look(spark, server, queue)
    assert plain.where(pushed).count() == 20
    filtering = look(spark, server, queue, pushFilters="true")
    with pytest.raises(Exception, match=PUSH_DOWN):
        filtering.where(pushed).count()
    spark.conf.set(PUSH_DOWN, "true")
    try:
        assert filtering.where(pushed).count() == plain.where(pushed).count() == 20
        assert filtering.where(condition).count() == plain.where(condition).count() == 0
        assert filtering.where("`group` = 1").where("`group` = 2").count() == 0
        assert filtering.where("`group` = 0").count() == 100
        assert filtering.count() == 300
    finally:
        spark.conf.set(PUSH_DOWN, "false")


@pytest.mark.thorough
def test_a_task_whose_process_dies_reads_the_same_again(
    spark: Any, server: World, tmp_path: Path
) -> None:
    queue = server.new_queue()
    payloads = fill(server, queue, 12_000)
    spark.dataSource.register(DyingDataSource)
    plan_deaths(tmp_path, READING)
    frame = look(spark, server, queue, "dying", partitions=2, deaths=tmp_path)
    assert sorted(bytes(row.value) for row in frame.collect()) == sorted(payloads)
    assert left_of(tmp_path) == []


def test_a_node_that_is_away_for_a_moment_is_waited_for(spark: Any, server: World) -> None:
    queue = server.new_queue()
    fill(server, queue, 6000)
    frame = look(spark, server, queue, partitions=2)
    assert frame.count() == 6000
    server.node.kill()
    back = threading.Timer(1.0, server.start_again)
    back.start()
    try:
        assert frame.count() == 6000
    finally:
        back.join()


def test_the_order_of_a_key_can_be_kept_with_several_partitions(spark: Any, server: World) -> None:
    queue, copy = server.new_queue(), server.new_queue()
    server.connection.queue(queue).put_many(
        [oncemq.Message(b"%d" % n, group=1 + n % 3) for n in range(3000)]
    )
    rows = look(spark, server, queue, partitions=4).repartition(2, "group")
    rows = rows.sortWithinPartitions("key").select("value", "group")
    writer = rows.write.format("oncemq").option("url", server.url).option("queue", copy)
    writer.mode("append").save()
    found = list(server.connection.queue(copy).browse(limit=None))
    for group in (1, 2, 3):
        ours = [int(message.payload) for message in found if message.group == group]
        assert ours == list(range(group - 1, 3000, 3))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"grop": "1"}, 'the option "grop" is unknown for a batch read: did you mean "group"?'),
        ({"group": "many"}, "it is a whole number from 0 to 65,535"),
        ({"url": "mq://127.0.0.1:1"}, "cannot reach 127.0.0.1:1"),
        ({"url": "memory:"}, "Spark's tasks are other processes"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(
    spark: Any, server: World, options: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match=r"OnceMQ|oncemq|clients") as raised:
        look(spark, server, "q", **options).collect()
    assert told in str(raised.value)


# --- In a transaction


def taken(spark: Any, server: World, locked: LockedList, **options: object) -> Any:
    given = {"transaction": locked.otid, "listName": locked.text, **options}
    return look(spark, server, locked.queue, "oncemq", **given)


@pytest.mark.thorough
def test_a_transaction_reads_a_list_that_nobody_else_sees(spark: Any, server: World) -> None:
    queue = server.new_queue()
    payloads = fill(server, queue, 6000)
    mq = server.connection
    gtrid = mq.deciding().begin()
    locked = lock_list(mq, gtrid, "r1", queue, EVERYTHING, 5000)
    frame = taken(spark, server, locked, partitions=3)
    fill(server, queue, 10)
    for _ in range(2):
        assert [bytes(row.value) for row in frame.collect()] == payloads[:5000]
    assert sizes(frame) == [1666, 1667, 1667]
    assert len(server.payloads(queue)) == 1010
    assert look(spark, server, queue).count() == 1010
    mq.deciding().give_up(gtrid, 10)
    for name in locked.branches:
        mq.node().calls.rollbackBranch(structs.branch(gtrid, name, None))
    assert len(server.payloads(queue)) == 6010
    with pytest.raises(Exception, match="rolled back, and nothing of it happened"):
        frame.collect()
