"""Fixtures for tests with a real Spark: one session and one cluster for each process of pytest."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from tests.integration.cluster import Cluster
from tests.integration.spark.world import World, has_java, new_session


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--spark-restarts", type=int, help="how often a streaming job is killed")
    parser.addoption("--spark-seed", type=int, help="repeats a run that was printed")
    parser.addoption("--spark-version", help="the PySpark that test_versions.py installs")


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], NoReturn]
) -> Iterator[Any]:
    """The Spark session: `local[2,4]`, so that a task has four attempts."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        missing("pyspark is not installed: pip install 'oncemq[spark]'")
    if not has_java():
        missing("there is no Java; tests/setup/java.sh installs one")
    before = dict(os.environ)
    session = new_session(tmp_path_factory.mktemp("spark"))
    try:
        yield session
    finally:
        with contextlib.suppress(ConnectionError):
            session.stop()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The processes; a test asks for `server`."""
    cluster = Cluster(tmp_path_factory.mktemp("servers"), random.Random(os.getpid()))
    cluster.start()
    world = World(cluster)
    try:
        yield world
    finally:
        world.close()


@pytest.fixture
def server(servers: World) -> Iterator[World]:
    """A coordinator and two nodes, which all run, before the test and after it."""
    yield servers
    servers.start_again()
