"""The driver of a job dies before, during and after its commit: all or nothing, and at rest.

With `--kill-seconds 1` at every place, otherwise at the one where everything is in doubt.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.integration.spark.job_driver import DECIDED, PLACES, PREPARED
from tests.integration.spark.table_places import PostgresTable
from tests.integration.spark.world import World, has_java
from tests.postgres import NoPostgres, cluster

ROOT = Path(__file__).resolve().parents[3]
RUN_S = 120.0
REST_S = 30.0
IDS = list(range(100))


@pytest.mark.thorough
def test_what_a_dead_driver_leaves_is_all_or_nothing_and_comes_to_rest(
    server: World,
    tmp_path: Path,
    missing: Callable[[str], NoReturn],
    request: pytest.FixtureRequest,
) -> None:
    if not has_java():
        missing("there is no Java; tests/setup/java.sh installs one")
    # Every driver has a Spark of its own: all places only where there is time for it.
    places = PLACES if request.config.getoption("--kill-seconds", None) else (PREPARED,)
    tables = {place: _table(server, tmp_path / place, missing) for place in places}
    queues = {place: (server.new_queue("orders"), server.new_queue()) for place in places}
    running = [_started(server, place, tmp_path, tables[place], *queues[place]) for place in places]
    for process in running:
        assert process.wait(RUN_S) == -signal.SIGKILL
    server.check_settled()
    for place, table in tables.items():
        orders, out = queues[place]
        moved, left = (IDS, []) if place == DECIDED else ([], IDS)
        _wait_for_rest(table)
        assert table.ids() == moved, place
        server.check_exact(out, [b"%d" % each for each in moved])
        server.check_exact(orders, [b"%d" % each for each in left])


def _table(server: World, folder: Path, missing: Callable[[str], NoReturn]) -> PostgresTable:
    folder.mkdir()
    try:
        return PostgresTable(cluster(), server.connection, folder)
    except NoPostgres as absent:
        missing(str(absent))


def _started(
    server: World, place: str, folder: Path, table: PostgresTable, orders: str, out: str
) -> subprocess.Popen[bytes]:
    server.fill(orders, [b"%d" % each for each in IDS])
    settings = {
        "place": place,
        "folder": str(folder / place),
        "url": server.url,
        "orders": orders,
        "out": out,
        "table": table.name,
        "database": table.database,
        "password_file": table.password_file,
    }
    file = folder / f"{place}.json"
    file.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "tests.integration.spark.job_driver", str(file)]
    with (folder / f"{place}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)


def _wait_for_rest(table: PostgresTable) -> None:
    deadline = time.monotonic() + REST_S
    while table.prepared():
        assert time.monotonic() < deadline, "branches are still prepared"
        time.sleep(0.1)
