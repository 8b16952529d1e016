"""Databases in transactions with real servers: what a killed application leaves is finished."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import oncemq
from tests.integration import cluster as servers
from tests.integration.enlisting import File, Rows, eventually, in_doubt, payloads
from tests.postgres import Cluster, NoPostgres, cluster

ROOT = Path(__file__).parents[2]
# Does one act, and is killed before or after a step of it; without a step, it is not killed.
PROGRAM = """
import os, signal, sqlite3, sys
import psycopg
import oncemq
from clients import branches, deciding, psycopg_driver, two_phase

url, dsn, step, moment, queue = sys.argv[1:]
owner = {"prepare": psycopg_driver.PsycopgDriver, "commit_prepared": psycopg_driver.PsycopgDriver,
         "begin_to_commit": psycopg_driver.PsycopgDriver,
         "decide": branches.Branch, "decide_marked": deciding.Deciding,
         "commit": two_phase.DatabaseBranch}.get(step)
if owner:
    done = getattr(owner, step)
    def killed(*arguments):
        if moment == "after":
            done(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, step, killed)
if step in ("commit", "decide_marked"):
    # What is decided by a mark is not carried.
    two_phase.Databases.carrier = property(lambda self: None)
mq = oncemq.connect(url)
is_sqlite = dsn.startswith("/")
conn = sqlite3.connect(dsn) if is_sqlite else psycopg.connect(dsn)
with mq.transaction() as tx:
    assert mq.queue(queue + ".in").get() is not None
    db = tx.enlist(conn) if is_sqlite else tx.enlist(conn, markable=False)
    db.execute(f"INSERT INTO rows VALUES ({'?' if is_sqlite else '%s'})", ['x'])
    mq.queue(queue).put(b"x")
conn.close()
mq.close()
"""


@pytest.fixture(scope="module")
def server(missing: Callable[[str], NoReturn]) -> Cluster:
    try:
        return cluster()
    except NoPostgres as absent:
        missing(str(absent))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, server: Cluster) -> Iterator[servers.Cluster]:
    # The password of the database is in the environment before the coordinator is started.
    Rows(server)
    made = servers.Cluster(tmp_path_factory.mktemp("servers"), random.Random(1))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def mq(running: servers.Cluster) -> Iterator[oncemq.Connection]:
    with oncemq.connect(url_of(running)) as made:
        yield made


def url_of(running: servers.Cluster) -> str:
    return f"mq://{running.nodes['n1'].address}"


def act(mq: oncemq.Connection, url: str, dsn: str, step: str, moment: str, queue: str) -> int:
    """How the application ended."""
    mq.queue(f"{queue}.in").put(b"x")
    command = [sys.executable, "-c", PROGRAM, url, dsn, step, moment, queue]
    return subprocess.run(command, cwd=ROOT, timeout=60).returncode


def restart(running: servers.Cluster) -> None:
    """Coordinator and node die as well: they begin with what is on disk, and ask at once."""
    for each in (running.coordinator, running.nodes["n1"]):
        each.kill()
        each.start()
        each.wait_until_ready()


@pytest.mark.parametrize(
    ("step", "moment", "is_done"),
    [
        ("", "", True),
        ("prepare", "after", False),
        # When it is foretold that it is committed, and the nodes may not have heard of it.
        ("begin_to_commit", "before", True),
        ("begin_to_commit", "after", True),
        ("decide", "after", True),
    ],
)
def test_what_a_killed_application_left_prepared_is_finished_without_it(
    mq: oncemq.Connection,
    running: servers.Cluster,
    server: Cluster,
    step: str,
    moment: str,
    is_done: bool,
) -> None:
    rows = Rows(server)
    rows.register(mq, "orders")
    ended = act(mq, url_of(running), rows.dsn, step, moment, rows.schema)
    assert ended == (-signal.SIGKILL if step else 0)
    if not is_done:
        restart(running)
    eventually(lambda: rows.prepared() == 0, "no branch is left", lambda: rows.register(mq))
    eventually(lambda: not in_doubt(mq), "the node has heard")
    assert rows.found() == payloads(mq, rows.schema) == (["x"] if is_done else [])
    assert payloads(mq, f"{rows.schema}.in") == ([] if is_done else ["x"])


def test_the_mark_of_a_killed_application_is_found(
    mq: oncemq.Connection, running: servers.Cluster, tmp_path: Path
) -> None:
    file = File(tmp_path / "stock.db")
    file.register(mq)
    ended = act(mq, url_of(running), str(file.path), "commit", "after", "marked")
    assert ended == -signal.SIGKILL
    restart(running)
    eventually(lambda: not in_doubt(mq), "the node has heard")
    assert file.found() == payloads(mq, "marked") == ["x"]
    assert payloads(mq, "marked.in") == []
