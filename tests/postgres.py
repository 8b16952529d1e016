"""A private PostgreSQL for the tests of one process, started when the first of them wants it.

`cluster()` is the same for all tests of a pytest process, so each worker of xdist has its own and
none is in another's way, not even a test that kills it. It is stopped and removed when this process
ends, however that happens: see `tests/setup/postgres.sh`.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg

_SCRIPT = Path(__file__).parent / "setup" / "postgres.sh"
_NO_POSTGRESQL = 3


class NoPostgres(Exception):
    """There is no PostgreSQL on this machine, and none could be installed; the text says why."""


@dataclass(frozen=True)
class Cluster:
    """A running PostgreSQL in which tests may do what they like."""

    dsn: str
    folder: Path
    # As long as this is open the cluster runs.
    keeper: subprocess.Popen[str]
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def place(self) -> str:
        """The address of an empty place that is the caller's own: a schema of the database."""
        name = f"place_{next(self._numbers)}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"{self.dsn}?options=-csearch_path%3D{name}"

    def execute(self, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        """What the statement returns, in a connection of its own."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def disconnect(self, application: str) -> None:
        """The connections of this application are gone, as if its process had died."""
        ending = (
            b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
        )
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            # The server can wait for their end by itself, but looks only ten times in a second.
            while connection.execute(ending, (application,)).fetchone():
                time.sleep(0.002)

    def kill(self) -> None:
        """Every process of the cluster has died at once, without a chance to write anything."""
        lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
        postmaster = psutil.Process(int(lines[0]))
        # Stopped first, so that it does not notice the death of the others and act on it.
        postmaster.send_signal(signal.SIGSTOP)
        others = postmaster.children(recursive=True)
        for process in (postmaster, *others):
            process.kill()
        psutil.wait_procs([postmaster, *others], timeout=10)

    def restart(self) -> None:
        """The cluster runs again, and has recovered."""
        subprocess.run([_SCRIPT, "restart", self.folder], check=True, capture_output=True)


@functools.cache
def cluster() -> Cluster:
    """The cluster of this process. Raises `NoPostgres`."""
    # Not in pytest's own folder, into which only the user who runs the tests may look; and if
    # possible in memory, where a sync costs nothing. A kill loses there what it loses on a disk.
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    folder = parent / f"oncemq-postgres-{os.getpid()}"
    log = folder.with_suffix(".log")
    with log.open("w") as words:
        keeper = subprocess.Popen(
            [_SCRIPT, "serve", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
        )
    # It ends what it keeps when its input does, which is closed here; and somebody waits for it.
    atexit.register(keeper.communicate)
    assert keeper.stdout is not None
    dsn = keeper.stdout.readline().strip()
    told = log.read_text()
    log.unlink()
    if not dsn:
        last = told.strip().splitlines()[-1:]
        raise NoPostgres(*last)
    return Cluster(dsn, folder, keeper)
