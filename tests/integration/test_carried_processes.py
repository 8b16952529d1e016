"""What a row of PostgreSQL carries is put once, whoever is killed between `hold` and `deliver`."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pytest

import oncemq
from idl.custody import CARRIED_TABLE
from tests.integration import cluster as servers
from tests.integration.enlisting import Rows, eventually, payloads
from tests.postgres import Cluster, NoPostgres, cluster

ROOT = Path(__file__).parents[2]
# Does acts until one was carried, says so, and does another; before or after a step of that it says
# so and waits until it is told to go on. Then it says how it ended.
PROGRAM = """
import sys, time
import psycopg
import oncemq
from clients import branches, commitment, two_phase

url, dsn, step, moment, queue = sys.argv[1:]
commitment.REFUSED_S = 0.05
owner = two_phase.DatabaseBranch if step == "commit_carrying" else branches.Branch
carried, is_in_earnest = [], False
commit = two_phase.DatabaseBranch.commit_carrying
def noted(*arguments):
    carried.append(True)
    return commit(*arguments)
two_phase.DatabaseBranch.commit_carrying = noted
done = getattr(owner, step)
def stopped(*arguments):
    answer = done(*arguments) if moment == "after" else None
    if is_in_earnest:
        print("there", flush=True)
        sys.stdin.readline()
    return answer if moment == "after" else done(*arguments)
setattr(owner, step, stopped)
mq = oncemq.connect(url)
conn = psycopg.connect(dsn, application_name=queue)
def act(payload):
    with mq.transaction() as tx:
        tx.enlist(conn).execute("INSERT INTO rows VALUES (%s)", [payload])
        mq.queue(queue).put(payload.encode())
while not carried:
    act("warm")
    time.sleep(0.1)
carried.clear()
is_in_earnest = True
try:
    act("x")
    print("committed", flush=True)
except oncemq.RolledBack:
    print("rolled back", flush=True)
except oncemq.OutcomeUnknown:
    print("unknown", flush=True)
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
    made = servers.Cluster(tmp_path_factory.mktemp("servers"), random.Random(2))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def rows(running: servers.Cluster, server: Cluster) -> Rows:
    made = Rows(server)
    with oncemq.connect(_url(running)) as mq:
        # Under one name for all tests: several tables of one database would all be found.
        made.register(mq, "orders")
    return made


def _url(running: servers.Cluster) -> str:
    return f"mq://{running.nodes['n1'].address}"


def _carried(rows: Rows) -> int:
    """Rows that have not been removed; fences are not among them."""
    query = f"SELECT count(*) FROM {rows.schema}.{CARRIED_TABLE} WHERE node <> ''"
    [(found,)] = rows.cluster.execute(query)
    assert isinstance(found, int)
    return found


class Application:
    """A process that stands at a step of its transaction."""

    def __init__(self, running: servers.Cluster, rows: Rows, step: str, moment: str) -> None:
        command = [sys.executable, "-c", PROGRAM, _url(running), rows.dsn, step, moment]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [*command, rows.schema], cwd=ROOT, stdin=pipe, stdout=pipe, text=True
        )
        assert self._said() == "there"

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go_on(self) -> str:
        """How it ended, as it was told."""
        assert self._process.stdin is not None
        self._process.stdin.write("go on\n")
        self._process.stdin.flush()
        said = self._said()
        assert self._process.wait(60) == 0
        return said

    def kill(self) -> None:
        """It is gone, without a word."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Nothing of it is left."""
        self._process.kill()
        self._process.wait()
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            with contextlib.suppress(BrokenPipeError):
                end.close()


def _check(running: servers.Cluster, rows: Rows, is_done: bool) -> None:
    """Row and message are both there, once, or neither; and nothing else is left."""
    with oncemq.connect(_url(running)) as mq:
        expected = ["x"] if is_done else []
        eventually(lambda: _of_act(payloads(mq, rows.schema)) == expected, "it is put")
        eventually(lambda: _carried(rows) == 0, "rows are removed")
        assert _of_act(rows.found()) == _of_act(payloads(mq, rows.schema)) == expected
        assert payloads(mq, rows.schema) == rows.found()
        eventually(lambda: not mq.admin().listBranches(), "nothing is at work")


def _of_act(found: list[str]) -> list[str]:
    return [payload for payload in found if payload != "warm"]


def _restart(*lives: servers.Server) -> None:
    for each in lives:
        each.kill()
    for each in lives:
        each.start()
        each.wait_until_ready()


# Where the application stands, and whether the row is committed then.
PLACES = [
    pytest.param("hold", "before", False, marks=pytest.mark.thorough),
    ("hold", "after", False),
    ("commit_carrying", "after", True),
    pytest.param("deliver", "after", True, marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("step", "moment", "is_done"), PLACES)
def test_what_a_killed_application_has_committed_is_put_without_it(
    running: servers.Cluster, rows: Rows, step: str, moment: str, is_done: bool
) -> None:
    with closing(Application(running, rows, step, moment)) as application:
        application.kill()
    if step == "hold":
        # What is held would be held until its owner has been silent for long.
        _restart(running.nodes["n1"])
    _check(running, rows, is_done)


@pytest.mark.parametrize(
    ("step", "moment"),
    [
        pytest.param("hold", "before", marks=pytest.mark.thorough),
        ("hold", "after"),
        ("commit_carrying", "after"),
        ("deliver", "after"),
    ],
)
def test_a_node_that_is_killed_puts_what_was_committed_when_it_is_back(
    running: servers.Cluster, rows: Rows, step: str, moment: str
) -> None:
    with closing(Application(running, rows, step, moment)) as application:
        _restart(running.nodes["n1"])
        said = application.go_on()
        # Before it is held, it may go another way, or be refused.
        assert said == "committed" or (step == "hold" and moment == "before")
        _check(running, rows, said == "committed")
        # What was delivered was not forced: it is not there because of luck.
        _restart(running.nodes["n1"])
        _check(running, rows, said == "committed")


def test_a_node_that_is_away_when_it_should_hear_of_the_commit_hears_of_it_later(
    running: servers.Cluster, rows: Rows
) -> None:
    node = running.nodes["n1"]
    with closing(Application(running, rows, "commit_carrying", "after")) as application:
        node.kill()
        assert application.go_on() == "committed"
        # And perhaps that of an act before it.
        assert _carried(rows) >= 1
        node.start()
        node.wait_until_ready()
        _check(running, rows, is_done=True)


@pytest.mark.parametrize("step", ["hold", "commit_carrying", "deliver"])
def test_a_coordinator_that_is_away_keeps_nobody_from_committing(
    running: servers.Cluster, rows: Rows, step: str
) -> None:
    with closing(Application(running, rows, step, "after")) as application:
        running.coordinator.kill()
        assert application.go_on() == "committed"
        with oncemq.connect(_url(running)) as mq:
            assert _of_act(payloads(mq, rows.schema)) == ["x"]
        # It is put, and cannot be removed.
        assert _carried(rows) >= 1
        running.coordinator.start()
        running.coordinator.wait_until_ready()
        _check(running, rows, is_done=True)


def test_when_everybody_is_killed_behind_the_commit_it_is_put_all_the_same(
    running: servers.Cluster, rows: Rows
) -> None:
    with closing(Application(running, rows, "commit_carrying", "after")) as application:
        application.kill()
        # The node is back before its coordinator, and serves others meanwhile.
        for each in (running.coordinator, running.nodes["n1"]):
            each.kill()
        for each in (running.nodes["n1"], running.coordinator):
            each.start()
            each.wait_until_ready()
        _check(running, rows, is_done=True)


def test_a_connection_that_is_killed_in_the_commit_leaves_no_doubt(
    running: servers.Cluster, rows: Rows
) -> None:
    with closing(Application(running, rows, "commit_carrying", "before")) as application:
        rows.cluster.disconnect(rows.schema)
        assert application.go_on() == "rolled back"
        _check(running, rows, is_done=False)
