"""Who dies when, and what is in the queue then: the batch sink, with servers and tasks killed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.spark import faulty
from tests.integration.spark.faulty import Faults
from tests.integration.spark.saving import numbers, save, save_faulty, texts
from tests.integration.spark.world import World

ROWS = 4000


@pytest.fixture(autouse=True)
def small_batches(spark: Any) -> Iterator[None]:
    """A task has several batches, so that it has a middle."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "500")
    yield
    spark.conf.set(name, before)


@pytest.fixture(scope="module", autouse=True)
def left_behind(servers: World) -> Iterator[None]:
    """After all of it, nothing is locked, in doubt or under way."""
    yield
    servers.start_again()
    servers.check_settled()


@pytest.mark.parametrize(
    "fault", [faulty.FIRST_ATTEMPT_FAILS, faulty.FIRST_VOTE_IS_LOST, faulty.WORKER_IS_KILLED]
)
def test_rows_are_there_once_when_first_attempts_fail(
    spark: Any, server: World, tmp_path: Path, fault: str
) -> None:
    queue = server.new_queue()
    happened = save_faulty(numbers(spark, ROWS), server, queue, tmp_path, fault)
    assert {"attempt 0.0", "attempt 0.1", "attempt 1.1"} <= set(happened.events)
    server.check_exact(queue, texts(ROWS))


def test_nothing_is_there_when_a_task_fails_for_good(
    spark: Any, server: World, tmp_path: Path
) -> None:
    queue = server.new_queue()
    with pytest.raises(Exception, match="one task fails"):
        save_faulty(numbers(spark, ROWS), server, queue, tmp_path, faulty.ONE_TASK_FAILS)
    events = Faults(str(tmp_path)).events
    assert events.count("attempt 1.3") == 1
    assert "commit" not in events
    assert server.payloads(queue) == []


@pytest.mark.thorough
def test_a_rollback_needs_no_votes(spark: Any, server: World, tmp_path: Path) -> None:
    queue = server.new_queue()
    with pytest.raises(Exception, match="all tasks fail"):
        save_faulty(numbers(spark, ROWS), server, queue, tmp_path, faulty.ALL_TASKS_FAIL)
    assert "abort 0" in Faults(str(tmp_path)).events
    assert server.payloads(queue) == []
    undecided, _, _ = server.cluster.unsettled()
    assert undecided == []


@pytest.mark.thorough
def test_nothing_is_there_when_the_commit_fails(spark: Any, server: World, tmp_path: Path) -> None:
    queue = server.new_queue()
    with pytest.raises(Exception, match="the commit fails"):
        save_faulty(numbers(spark, ROWS), server, queue, tmp_path, faulty.COMMIT_FAILS)
    assert Faults(str(tmp_path)).events[-2:] == ["commit", "abort 2"]
    assert server.payloads(queue) == []


def test_a_write_whose_acknowledgement_was_lost_can_be_repeated(
    spark: Any, server: World, tmp_path: Path
) -> None:
    """The job fails though its rows are there; under a version, to run it again is safe: P4."""
    queue = server.new_queue()
    version = {"txnAppId": queue, "txnVersion": 7}
    with pytest.raises(Exception, match="the answer is lost"):
        save_faulty(numbers(spark, ROWS), server, queue, tmp_path, faulty.ANSWER_IS_LOST, **version)
    assert Faults(str(tmp_path)).events[-1] == "abort 2"
    server.check_exact(queue, texts(ROWS))
    for _ in range(2):
        save(numbers(spark, ROWS), server, queue, **version)
    server.check_exact(queue, texts(ROWS))


def test_nothing_is_there_when_the_job_is_cancelled(
    spark: Any, server: World, tmp_path: Path
) -> None:
    queue = server.new_queue()

    def cancel(faults: Faults) -> None:
        spark.sparkContext.cancelAllJobs()

    with pytest.raises(Exception, match=r"(?i)cancel"), meanwhile(tmp_path, cancel):
        save_faulty(numbers(spark, ROWS), server, queue, tmp_path, faulty.TASKS_WAIT)
    Faults(str(tmp_path)).forget(faulty.TASKS_WAIT)
    assert server.payloads(queue) == []


def test_rows_are_there_once_when_the_node_is_killed_in_the_middle(
    spark: Any, server: World, tmp_path: Path
) -> None:
    queue = server.new_queue()

    def kill(faults: Faults) -> None:
        server.wait_for_branches(2)
        server.node.kill()
        server.start_again()
        faults.forget(faulty.TASKS_WAIT)

    with meanwhile(tmp_path, kill):
        save_faulty(numbers(spark, ROWS), server, queue, tmp_path, faulty.TASKS_WAIT)
    assert {"attempt 0.1", "attempt 1.1"} & set(Faults(str(tmp_path)).events)
    server.check_exact(queue, texts(ROWS))


def test_a_job_whose_coordinator_is_killed_fails_and_can_be_run_again(
    spark: Any, server: World, tmp_path: Path
) -> None:
    queue = server.new_queue()
    version = {"txnAppId": queue, "txnVersion": 1}

    def kill(faults: Faults) -> None:
        server.coordinator.kill()
        server.start_again()
        faults.forget(faulty.TASKS_WAIT)

    with pytest.raises(Exception, match="RolledBack") as raised, meanwhile(tmp_path, kill):
        save_faulty(numbers(spark, ROWS), server, queue, tmp_path, faulty.TASKS_WAIT, **version)
    assert "nothing of it happened: transaction " in str(raised.value)
    assert server.payloads(queue) == []

    save(numbers(spark, ROWS), server, queue, **version)
    save(numbers(spark, ROWS), server, queue, **version)
    server.check_exact(queue, texts(ROWS))


def test_tasks_run_the_python_of_the_driver(spark: Any, server: World, tmp_path: Path) -> None:
    """Otherwise they would not find what is installed for it: P11."""
    happened = save_faulty(numbers(spark, 1, 1), server, server.new_queue(), tmp_path)
    assert f"python {sys.executable}" in happened.events


class meanwhile:
    """For `with`: once tasks wait in the middle of their rows, something else happens."""

    def __init__(self, folder: Path, act: Callable[[Faults], None]) -> None:
        self._faults = Faults(str(folder))
        self._act = act
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._faults.wait_for("waiting")
            self._act(self._faults)
        except BaseException as raised:
            self._failed.append(raised)
            raise

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *raised: object) -> None:
        self._thread.join()
        assert not self._failed
