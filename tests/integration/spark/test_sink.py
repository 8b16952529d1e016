"""The batch sink on a real Spark and real servers: what is there afterwards, counted."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oncemq
from idl.mq import mqQueueSettings
from tests.integration.cluster import Server, ended, free_port
from tests.integration.spark import faulty
from tests.integration.spark.faulty import Faults
from tests.integration.spark.saving import numbers, register, save, save_faulty, texts
from tests.integration.spark.world import World


def test_all_rows_are_in_the_queue_once(spark: Any, server: World) -> None:
    queue = server.new_queue()
    save(numbers(spark, 20_000, 3), server, queue)
    server.check_exact(queue, texts(20_000))
    server.check_settled()


def test_the_command_knows_of_no_transaction_afterwards(spark: Any, server: World) -> None:
    queue = server.new_queue()
    save(numbers(spark, 10), server, queue)
    server.check_settled()
    command = [sys.executable, "-m", "clients.cli", "tx", "list", "--json"]
    told = subprocess.run(
        [*command, "--node", str(server.node.address)], capture_output=True, check=True, text=True
    )
    assert not any(json.loads(told.stdout).values()), told.stdout


def test_an_empty_frame_is_a_transaction_too(spark: Any, server: World) -> None:
    queue = server.new_queue()
    save(numbers(spark, 0), server, queue, txnAppId="empty", txnVersion=1)
    save(numbers(spark, 5), server, queue, txnAppId="empty", txnVersion=1)
    assert server.payloads(queue) == []
    server.check_settled()


def test_a_version_is_written_once_and_a_later_one_again(spark: Any, server: World) -> None:
    queue = server.new_queue()
    for version in (1, 2, 2, 1, 3):
        save(numbers(spark, 100), server, queue, txnAppId="load", txnVersion=version)
    server.check_exact(queue, 3 * texts(100))
    server.check_settled()


def test_columns_beside_the_value_are_headers(spark: Any, server: World) -> None:
    queue = server.new_queue()
    rows = numbers(spark, 3, 1).selectExpr(
        "value", "7 AS priority", "2 AS `group`", "map('kind', 'order') AS attributes"
    )
    save(rows, server, queue, sender="spark")
    found = list(server.connection.queue(queue).browse())
    assert {(m.priority, m.group, m.attributes, m.sender) for m in found} == {
        (7, 2, (("kind", "order"),), "spark")
    }


def test_input_that_ends_early_counts_for_nothing(
    spark: Any, server: World, tmp_path: Path
) -> None:
    """What fails before the sink looks to it like the end of its rows: P1."""
    queue = server.new_queue()
    broken = spark.range(0, 4000, 1, 2).selectExpr(
        "CAST(IF(id = 1501, raise_error('broken'), CAST(id AS STRING)) AS BINARY) AS value"
    )
    with pytest.raises(Exception, match="broken"):
        save_faulty(broken, server, queue, tmp_path)
    assert server.payloads(queue) == []


def test_a_batch_may_be_written_to_several_queues(
    spark: Any, server: World, tmp_path: Path
) -> None:
    """A plain write within foreachBatch is no replay of the one before it: P8."""
    one, other = server.new_queue(), server.new_queue()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("1\n2\n")

    def write_twice(frame: Any, batch: int) -> None:
        for queue in (one, other, one):
            save(frame, server, queue)

    stream = spark.readStream.text(str(tmp_path / "in")).writeStream.foreachBatch(write_twice)
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream.trigger(availableNow=True).start().awaitTermination()

    server.check_exact(one, [b"1", b"2", b"1", b"2"])
    server.check_exact(other, [b"1", b"2"])


# --- Overwriting ---------------------------------------------------------------------------------


def overwrite(frame: Any, server: World, queue: str, kind: str = "oncemq", **more: object) -> None:
    options = {"url": server.url, "queue": queue, "overwrite": "true", **more}
    frame.write.format(kind).mode("overwrite").options(**options).save()


def test_what_was_in_the_queue_is_gone_when_the_new_rows_are_there(
    spark: Any, server: World
) -> None:
    queue = server.new_queue()
    server.fill(queue, [b"old"] * 500)
    held = server.connection.begin(60.0)
    taken = server.connection.queue(queue).get(tx=held)
    assert taken is not None
    for count in (100, 0, 50):
        overwrite(numbers(spark, count), server, queue)
        server.check_exact(queue, texts(count))
    # What another held was not seen, and comes back to its place.
    held.rollback()
    server.check_exact(queue, [*texts(50), b"old"])
    server.check_settled()


@pytest.mark.thorough
def test_an_overwrite_that_fails_leaves_everything_as_it_was(
    spark: Any, server: World, tmp_path: Path
) -> None:
    queue = server.new_queue()
    server.fill(queue, [b"old"] * 500)
    register(spark)
    faults = Faults(str(tmp_path))
    for fault in (faulty.ONE_TASK_FAILS, faulty.COMMIT_FAILS, faulty.DECISION_FAILS):
        faults.plan(fault)
        with pytest.raises(Exception, match=r"one task fails|the commit fails|the decision fails"):
            overwrite(numbers(spark, 100), server, queue, "faulty", faults=tmp_path)
        faults.forget(fault)
        server.check_settled()
        server.check_exact(queue, [b"old"] * 500)
    assert "taken out 1" in faults.events
    overwrite(numbers(spark, 100), server, queue, "faulty", faults=tmp_path)
    server.check_exact(queue, texts(100))


# --- What is wrong is told -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"quue": "x"}, 'did you mean "queue"?'),
        ({"url": "memory:"}, "Spark's tasks are other processes"),
        ({"url": "mq://127.0.0.1:1"}, "cannot reach 127.0.0.1:1"),
        ({"txnAppId": "app"}, "txnAppId and txnVersion go together"),
        ({"txnAppId": "app", "txnVersion": "0"}, "txnVersion counts from 1"),
        ({"transactionTimeout": "soon"}, 'the option "transactionTimeout" cannot be'),
    ],
)
def test_a_wrong_option_is_told_in_a_sentence(
    spark: Any, server: World, options: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match=r"OptionError|ConnectionLost") as raised:
        save(numbers(spark, 1), server, server.new_queue(), **options)
    assert told in str(raised.value)


def test_overwriting_is_refused_unless_it_is_asked_for(spark: Any, server: World) -> None:
    queue = server.new_queue()
    server.fill(queue, [b"old"])
    writer = numbers(spark, 1).write.format("oncemq").mode("overwrite")
    with pytest.raises(Exception, match=r'if that is meant, say .option."overwrite", "true"'):
        writer.option("url", server.url).option("queue", queue).save()
    with pytest.raises(Exception, match=r'the option "overwrite" needs .mode."overwrite"'):
        save(numbers(spark, 1), server, queue, overwrite="true")
    assert server.payloads(queue) == [b"old"]


def test_a_column_that_is_no_part_of_a_message_is_told(spark: Any, server: World) -> None:
    with pytest.raises(Exception, match='the column "id" of type bigint is no part of a message'):
        save(spark.range(3), server, server.new_queue())


@pytest.fixture
def strict_url(server: World, tmp_path: Path) -> Iterator[str]:
    """A node where only operators make queues, and messages are small."""
    asked = ["--coordinator", str(server.coordinator.address), "--create-queues", "false"]
    command = ["mqserver", "--name", "strict", *asked, "--max-message-bytes", "1000"]
    node = Server("strict", free_port(random.Random()), command, tmp_path)
    with ended(node):
        node.start()
        node.wait_until_ready()
        yield f"mq://{node.address}"


@pytest.mark.thorough
def test_a_queue_or_payload_that_the_node_refuses_is_told(
    spark: Any, server: World, strict_url: str
) -> None:
    with pytest.raises(Exception, match=r"NotFound: queue .nowhere.") as raised:
        save(numbers(spark, 1, 1), server, "nowhere", url=strict_url)
    assert "There is no such queue; `oncemq queue create` makes one" in str(raised.value)

    with oncemq.connect(strict_url) as connection:
        connection.admin().createQueue("small", mqQueueSettings(True, False, 0, 0))
    large = spark.range(1).selectExpr("CAST(repeat('x', 1001) AS BINARY) AS value")
    with pytest.raises(Exception, match=r"LimitExceeded: the node at .*1000"):
        save(large, server, "small", url=strict_url)
