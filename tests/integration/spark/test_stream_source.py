"""Queues as sources of streams on a real Spark: every message once and in order, whoever dies.

pytest tests/integration/spark/test_stream_source.py --spark-restarts 20 --spark-seed 7
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import oncemq
from tests.integration.cluster import ROOT
from tests.integration.spark.dying import (
    COMMITTED,
    READING,
    RESERVED,
    UNCOMMITTED,
    DyingDataSource,
    left_of,
    plan_deaths,
)
from tests.integration.spark.stream_job import copying
from tests.integration.spark.world import World

GROUPS = 4
RUN_S = 240.0
RESTARTS = 1


def fill(server: World, queue: str, start: int, stop: int) -> None:
    """Numbered messages, each with the group that is its partition key."""
    server.connection.queue(queue).put_many(
        [oncemq.Message(b"%d" % n, group=1 + n % GROUPS) for n in range(start, stop)]
    )


def check_ordered(server: World, queue: str, count: int) -> None:
    """The queue holds each number once, and those of a group in order."""
    found = list(server.connection.queue(queue).browse(limit=None))
    server.check_exact(queue, [b"%d" % n for n in range(count)])
    for group in range(1, GROUPS + 1):
        ours = [int(message.payload) for message in found if message.group == group]
        assert ours == sorted(ours), f"group {group} is out of order"


class Job:
    """A query from one queue to another, and what it keeps."""

    def __init__(self, server: World, folder: Path, batch: int = 500) -> None:
        self.server = server
        self.folder = folder
        self.source, self.sink = server.new_queue("source"), server.new_queue("sink")
        (folder / "deaths").mkdir()
        self.settings = {
            "url": server.url,
            "source": self.source,
            "sink": self.sink,
            "consumer": f"copy-{self.source}",
            "checkpoint": str(folder / "checkpoint"),
            "deaths": str(folder / "deaths"),
            "maxMessagesPerTrigger": str(batch),
        }

    def run(self, spark: Any) -> None:
        """One run in this session; raises what the query raises."""
        copying(spark, self.settings).awaitTermination()

    def run_apart(self, number: int, place: str = "") -> int:
        """One run in processes of its own, whose Java is killed at the place; the exit code."""
        plan = {**self.settings, "folder": str(self.folder / f"run-{number}"), "place": place}
        file = self.folder / f"run-{number}.json"
        file.write_text(json.dumps(plan))
        command = [sys.executable, "-m", "tests.integration.spark.stream_job", str(file)]
        with (self.folder / f"run-{number}.err").open("wb") as errors:
            done = subprocess.run(
                command, cwd=ROOT, stdout=errors, stderr=errors, timeout=RUN_S, check=False
            )
        return done.returncode

    def last_words(self, number: int) -> str:
        return (self.folder / f"run-{number}.err").read_text(errors="replace")[-3000:]


@pytest.fixture
def job(spark: Any, server: World, tmp_path: Path) -> Job:
    spark.dataSource.register(DyingDataSource)
    return Job(server, tmp_path)


def reserved(server: World, consumer: str) -> list[int]:
    """How many messages are held for the consumer."""
    known = server.connection.admin().listConsumers()
    return [each.reserved for each in known if each.consumer.startswith(f"{consumer}@")]


def test_a_queue_is_copied_batch_by_batch_and_let_go(spark: Any, server: World, job: Job) -> None:
    fill(server, job.source, 0, 1200)
    job.run(spark)
    check_ordered(server, job.sink, 1200)
    assert server.payloads(job.source) == []
    # The last batch was acknowledged as well.
    assert reserved(server, job.settings["consumer"]) == [0]
    job.run(spark)
    fill(server, job.source, 1200, 1300)
    job.run(spark)
    check_ordered(server, job.sink, 1300)
    assert reserved(server, job.settings["consumer"]) == [0]
    server.check_settled()


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(RESERVED, marks=pytest.mark.thorough),
        pytest.param(UNCOMMITTED, marks=pytest.mark.thorough),
        COMMITTED,
    ],
)
def test_a_query_whose_process_dies_goes_on_from_its_checkpoint(
    spark: Any, server: World, job: Job, place: str
) -> None:
    fill(server, job.source, 0, 1200)
    plan_deaths(job.folder / "deaths", place)
    with pytest.raises(Exception, match=r"(?i)python|streaming|crash|query"):
        job.run(spark)
    assert left_of(job.folder / "deaths") == []
    job.run(spark)
    check_ordered(server, job.sink, 1200)
    assert reserved(server, job.settings["consumer"]) == [0]


@pytest.mark.thorough
def test_a_task_whose_process_dies_is_tried_again(spark: Any, server: World, job: Job) -> None:
    fill(server, job.source, 0, 600)
    plan_deaths(job.folder / "deaths", READING)
    job.run(spark)
    assert left_of(job.folder / "deaths") == []
    check_ordered(server, job.sink, 600)


def test_a_second_query_under_the_same_name_is_refused(
    spark: Any, server: World, job: Job, tmp_path: Path
) -> None:
    fill(server, job.source, 0, 10)
    job.run(spark)
    before = job.settings["checkpoint"]
    job.settings["checkpoint"] = str(tmp_path / "other")
    fill(server, job.source, 10, 20)
    with pytest.raises(Exception, match="is in use by another query") as refused:
        job.run(spark)
    assert job.settings["consumer"] in str(refused.value)
    job.settings["checkpoint"] = before
    job.run(spark)
    check_ordered(server, job.sink, 20)


@pytest.mark.thorough
def test_a_query_that_finds_nothing_lets_the_node_wait(
    spark: Any, server: World, tmp_path: Path
) -> None:
    queue = server.new_queue()
    rows = spark.readStream.format("oncemq").option("url", server.url).option("queue", queue)
    rows = rows.option("consumer", f"idle-{queue}").load()
    query = (
        rows.writeStream.format("memory")
        .queryName("idle")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        server.fill(queue, [b"1", b"2"])
        query.processAllAvailable()
        assert [bytes(row.value) for row in spark.sql("SELECT value FROM idle").collect()] == [
            b"1",
            b"2",
        ]
    finally:
        query.stop()


# Each run has a limit of its own, and how many there are is said on the command line.
@pytest.mark.timeout(0)
@pytest.mark.thorough
def test_every_message_comes_once_and_in_order_through_restarts(
    server: World, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    restarts = int(request.config.getoption("--spark-restarts", None) or RESTARTS)
    seed = int(request.config.getoption("--spark-seed", None) or random.randrange(10**6))
    again = f"--spark-restarts {restarts} --spark-seed {seed}"
    chance = random.Random(seed)
    job = Job(server, tmp_path)
    count = 0
    for number in range(restarts):
        fill(server, job.source, count, count + 1000)
        count += 1000
        place = chance.choice([RESERVED, UNCOMMITTED, COMMITTED, READING])
        assert job.run_apart(number, place) != 0, f"{again}: nobody died {place}"
        assert left_of(tmp_path / "deaths") == [], f"{again}: {job.last_words(number)}"
        if chance.random() < 0.5:
            server.node.kill()
            server.start_again()
    assert job.run_apart(restarts) == 0, f"{again}: {job.last_words(restarts)}"
    check_ordered(server, job.sink, count)
    assert server.payloads(job.source) == []
    assert reserved(server, job.settings["consumer"]) == [0]
    server.check_settled()
