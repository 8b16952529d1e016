"""MariaDB with real servers: registered by the command; what a killed application leaves ends."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncemq
from tests.integration.cluster import Cluster, Server
from tests.integration.enlisting import eventually, in_doubt, payloads
from tests.integration.mariadb_rows import MariadbRows
from tests.mariadb import Server as MariadbServer

pytest_plugins = ["tests.integration.database_fixtures"]

ROOT = Path(__file__).parents[2]
# Does one act, and is killed after a step of it.
PROGRAM = """
import os, signal, sys
import pymysql
import oncemq
from clients import branches, mariadb_driver

url, port, password, database, step = sys.argv[1:]
owner = {"prepare": mariadb_driver.MariadbDriver, "decide": branches.Branch}[step]
done = getattr(owner, step)
def killed(*arguments):
    done(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(owner, step, killed)
mq = oncemq.connect(url)
conn = pymysql.connect(host="127.0.0.1", port=int(port), user="oncemq", password=password,
                       database=database)
with mq.transaction() as tx:
    tx.enlist(conn).cursor().execute("INSERT INTO noted VALUES (%s)", [step])
    mq.queue("q").put(step.encode())
"""


class OneNode(Cluster):
    """A coordinator and one node."""

    def start(self) -> None:
        ports = self._ports
        command = ["coordinator", "--session-timeout", "3"]
        self.coordinator = Server("coordinator", ports["coordinator"], command, self.folder)
        command = ["mqserver", "--name", "n1", "--coordinator", str(self.coordinator.address)]
        self.nodes = {"n1": Server("n1", ports["n1"], command, self.folder)}
        for server in self.servers:
            server.start()
        try:
            for server in self.servers:
                server.wait_until_ready()
        except BaseException:
            self.kill()
            raise


@pytest.fixture
def running(tmp_path: Path) -> Iterator[OneNode]:
    made = OneNode(tmp_path, random.Random(1))
    made.start()
    yield made
    made.stop()


def command(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`oncemq database …`, as a person types it."""
    return subprocess.run(
        [sys.executable, "-m", "clients.cli", "database", *words, "--url", url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
    )


def test_a_database_is_added_by_the_command_and_what_a_killed_application_left_is_ended(
    running: OneNode, mariadb: MariadbServer, tmp_path: Path
) -> None:
    maria = MariadbRows(mariadb)
    secret = tmp_path / "secret"
    secret.write_text(mariadb.password)
    secret.chmod(0o600)
    address = str(running.nodes["n1"].address)
    url = f"mq://{address}"
    options = ("--password-file", str(secret), "--grace", "1s")
    added = command(url, "add", "orders", maria.dsn, *options)
    assert (added.returncode, added.stderr) == (0, "")
    assert "orders is registered." in added.stdout
    with oncemq.connect(url) as mq:
        for step in ("prepare", "decide"):
            arguments = [url, str(mariadb.port), mariadb.password, maria.database, step]
            ended = subprocess.run(
                [sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, timeout=60
            )
            assert ended.returncode == -signal.SIGKILL
        eventually(lambda: maria.prepared() == 0, "no branch is left")
        eventually(lambda: not in_doubt(mq), "the node has heard")
        assert maria.found() == payloads(mq) == ["decide"]
    [listed] = json.loads(command(url, "list", "--json").stdout)["databases"]
    assert (listed["name"], listed["kind"], listed["prepared_ours"]) == ("orders", "mariadb", 0)
    ready = command(url, "prepare", "orders", "--grant", "oncemq@127.0.0.1")
    assert (ready.returncode, "orders is ready." in ready.stdout) == (0, True)
    assert "ENGINE=InnoDB" in command(url, "prepare", "orders", "--sql").stdout
