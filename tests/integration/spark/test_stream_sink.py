"""The streaming sink on a real Spark: micro-batches that fail, are replayed, and count once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.spark import faulty
from tests.integration.spark.faulty import FAULTS, Faults
from tests.integration.spark.saving import register
from tests.integration.spark.world import World


class Query:
    """A stream of lines from files, one file in each batch, into a queue."""

    def __init__(self, spark: Any, server: World, folder: Path) -> None:
        self._spark = spark
        self._server = server
        self._folder = folder
        self.queue = server.new_queue("stream")
        self.lines: list[bytes] = []
        for name in ("in", "faults"):
            (folder / name).mkdir()
        self.faults = Faults(str(folder / "faults"))
        register(spark)

    def add(self, count: int) -> None:
        """One more file of so many lines, each a number."""
        first = len(self.lines)
        new = [str(number) for number in range(first, first + count)]
        (self._folder / "in" / f"{first:08d}").write_text("\n".join(new) + "\n")
        self.lines += [line.encode() for line in new]

    def run(self, *faults: str, **options: str) -> None:
        """The query runs until all files are written, or it fails; from where it was."""
        self.faults.plan(*faults)
        source = self._spark.readStream.option("maxFilesPerTrigger", 1)
        writer = source.text(str(self._folder / "in")).writeStream.format("faulty")
        given = {"url": self._server.url, "queue": self.queue, FAULTS: self.faults.folder}
        given["checkpointLocation"] = str(self._folder / "checkpoint")
        query = writer.options(**given, **options).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            self.faults.forget(*faults)

    def check(self) -> None:
        """Every line is in the queue, once."""
        self._server.check_exact(self.queue, self.lines)


@pytest.fixture
def query(spark: Any, server: World, tmp_path: Path) -> Query:
    return Query(spark, server, tmp_path)


@pytest.fixture(scope="module", autouse=True)
def left_behind(servers: World) -> Iterator[None]:
    """After all of it, nothing is locked, in doubt or under way."""
    yield
    servers.check_settled()


def test_every_line_is_there_once_over_restarts(query: Query) -> None:
    for _ in range(2):
        query.add(100)
    query.run()
    query.add(50)
    query.run()
    query.run()
    query.check()
    commits = [event for event in query.faults.events if event.startswith("commit")]
    assert commits == ["commit 0", "commit 1", "commit 2"]


def test_a_batch_is_replayed_and_skipped_when_its_acknowledgement_was_lost(query: Query) -> None:
    query.add(100)
    with pytest.raises(Exception, match="the answer is lost"):
        query.run(faulty.ANSWER_IS_LOST)
    query.check()
    query.add(100)
    query.run()
    assert "skipped" in query.faults.events
    query.check()


def test_a_batch_is_written_anew_when_its_commit_failed(query: Query) -> None:
    query.add(100)
    with pytest.raises(Exception, match="the commit fails"):
        query.run(faulty.COMMIT_FAILS)
    query.run()
    query.check()


@pytest.mark.thorough
def test_a_batch_without_any_vote_is_joined_when_it_is_replayed(query: Query) -> None:
    query.add(100)
    with pytest.raises(Exception, match="all tasks fail"):
        query.run(faulty.ALL_TASKS_FAIL)
    assert "abort 0" in query.faults.events
    query.run()
    query.check()


@pytest.mark.thorough
def test_lines_are_there_once_when_first_attempts_fail(query: Query) -> None:
    query.add(100)
    query.add(100)
    query.run(faulty.FIRST_ATTEMPT_FAILS)
    query.add(100)
    query.run(faulty.FIRST_VOTE_IS_LOST)
    query.check()


def test_replacing_what_is_there_is_refused(spark: Any, server: World, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("1\n")
    counted = spark.readStream.text(str(tmp_path / "in")).groupBy("value").count().select("value")
    writer = counted.writeStream.format("oncemq").outputMode("complete").trigger(availableNow=True)
    writer = writer.option("url", server.url).option("queue", server.new_queue())
    with pytest.raises(Exception, match="a stream only adds messages"):
        writer.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()
