"""Executors that die, stages that are repeated, and tasks that run twice at once: all counted.

On a cluster of processes, as `local[*]` has no executor that could be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.integration.spark import faulty
from tests.integration.spark.faulty import Faults
from tests.integration.spark.saving import texts
from tests.integration.spark.spark_cluster import Driver, started
from tests.integration.spark.world import World, has_java

# Six Java processes are started before the first test.
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(280)]

ROWS = 8000
# Rows that a task puts at once; the one that lags puts the first of them twice.
BATCH = 500


@pytest.fixture(scope="module")
def driver(
    tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], NoReturn]
) -> Iterator[Driver]:
    """A driver with two executors."""
    if not has_java():
        missing("there is no Java; tests/setup/java.sh installs one")
    with started(tmp_path_factory.mktemp("spark-cluster")) as made:
        yield made


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    """What goes wrong, and what happened."""
    return Faults(str(tmp_path))


def save(driver: Driver, server: World, queue: str, faults: Faults, shuffled: str = "") -> str:
    return driver.run(
        "save", url=server.url, queue=queue, count=ROWS, faults=faults.folder, shuffled=shuffled
    )


@pytest.mark.parametrize("fault", [faulty.EXECUTOR_IS_KILLED, faulty.EXECUTOR_IS_KILLED_AFTER_VOTE])
def test_rows_are_there_once_when_an_executor_is_killed(
    driver: Driver, server: World, faults: Faults, fault: str
) -> None:
    queue = server.new_queue()
    faults.plan(fault)
    assert save(driver, server, queue, faults) == ""
    assert faults.events.count("an executor is killed") == 1
    assert any(event.startswith("attempt") and event.endswith(".1") for event in faults.events)
    server.check_exact(queue, texts(ROWS))
    server.check_settled()


def test_rows_are_there_once_when_a_stage_is_repeated(
    driver: Driver, server: World, faults: Faults
) -> None:
    """With its executor a part of the shuffle is lost. Attempts count from 0 again then: P2."""
    queue = server.new_queue()
    faults.plan(faulty.EXECUTOR_IS_KILLED)
    assert save(driver, server, queue, faults, shuffled="by key") == ""
    first_attempts = [event for event in faults.events if event.endswith(".0")]
    assert len(first_attempts) > len(set(first_attempts)), faults.events
    server.check_exact(queue, texts(ROWS))
    server.check_settled()


def test_rows_that_cannot_be_made_again_are_there_once_or_not_at_all(
    driver: Driver, server: World, faults: Faults
) -> None:
    """Dealt by turns, rows may come to other partitions when a part of the shuffle is repeated."""
    queue = server.new_queue()
    faults.plan(faulty.EXECUTOR_IS_KILLED_AFTER_VOTE)
    failed = save(driver, server, queue, faults, shuffled="by turns")
    assert faults.events.count("an executor is killed") == 1
    server.check_exact(queue, [] if failed else texts(ROWS))
    server.check_settled()


def test_the_attempt_that_loses_a_race_counts_for_nothing(
    driver: Driver, server: World, faults: Faults
) -> None:
    """Spark runs a task twice at once; the slower one goes on, and votes, when all is over.

    Nobody has named its branch, so that it is told to roll back when it asks.
    """
    queue = server.new_queue()
    faults.plan(faulty.ONE_LAGS)
    assert save(driver, server, queue, faults) == ""
    assert {"lagging", "attempt 0.0", "attempt 0.1"} <= set(faults.events)
    server.check_exact(queue, texts(ROWS))
    faults.forget(faulty.ONE_LAGS)
    faults.wait_for(f"voted {ROWS // 4 + BATCH}")
    server.check_settled()
    server.check_exact(queue, texts(ROWS))


def test_a_job_moves_every_message_once_when_an_executor_is_killed(
    driver: Driver, server: World, faults: Faults
) -> None:
    queue, out = server.new_queue(), server.new_queue()
    server.fill(queue, texts(ROWS))
    faults.plan(faulty.EXECUTOR_IS_KILLED)
    where = {"url": server.url, "queue": queue, "out": out, "faults": faults.folder}
    assert driver.run("move", **where) == ""
    assert faults.events.count("an executor is killed") == 1
    server.check_exact(out, texts(ROWS))
    assert server.payloads(queue) == []
    server.check_settled()
