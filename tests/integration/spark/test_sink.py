"""The batch sink on a real Spark and real servers: what is there afterwards, counted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.spark.world import World


def numbers(spark: Any, count: int, partitions: int = 2) -> Any:
    """A DataFrame of so many messages, each its own number."""
    rows = spark.range(0, count, 1, partitions)
    return rows.selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS value")


def texts(count: int) -> list[bytes]:
    """The payloads of `numbers`."""
    return [b"%d" % number for number in range(count)]


def save(frame: Any, server: World, queue: str, **options: object) -> None:
    writer = frame.write.format("oncemq").mode("append")
    for name, value in {"url": server.url, "queue": queue, **options}.items():
        writer = writer.option(name, str(value))
    writer.save()


def test_all_rows_are_in_the_queue_once(spark: Any, server: World) -> None:
    queue = server.new_queue()
    save(numbers(spark, 20_000, 3), server, queue)
    server.check_exact(queue, texts(20_000))
    server.check_settled()


def test_an_empty_frame_is_a_transaction_too(spark: Any, server: World) -> None:
    queue = server.new_queue()
    save(numbers(spark, 0), server, queue)
    assert server.payloads(queue) == []
    server.check_settled()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"quue": "x"}, 'did you mean "queue"?'),
        ({"url": "memory:"}, "Spark's tasks are other processes"),
        ({"url": "mq://127.0.0.1:1"}, "cannot reach 127.0.0.1:1"),
        ({"txnAppId": "app"}, "txnAppId and txnVersion go together"),
    ],
)
def test_a_wrong_option_is_told_in_a_sentence(
    spark: Any, server: World, options: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match="oncemq|OnceMQ|clients") as raised:
        save(numbers(spark, 1), server, server.new_queue(), **options)
    assert told in str(raised.value)
