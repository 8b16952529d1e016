"""A private MariaDB for the tests of one process, started when the first of them wants it.

`server()` is the same for all tests of a pytest process, so each worker of xdist has its own and
none is in another's way, not even a test that kills it. It is stopped and removed when this process
ends, however that happens: see `tests/setup/mariadb.sh`.
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pymysql

from tests.processes import has_ended

_SCRIPT = Path(__file__).parent / "setup" / "mariadb.sh"
USER = "oncemq"


class NoMariadb(Exception):
    """There is no MariaDB on this machine, and none could be installed; the text says why."""


@dataclass(frozen=True)
class Server:
    """A running MariaDB in which tests may do what they like."""

    port: int
    password: str
    folder: Path
    # As long as this is open the server runs.
    keeper: subprocess.Popen[str]

    def address(self, database: str, user: str = USER) -> str:
        """The address of a database, as the coordinator is told it."""
        return f"mariadb://{user}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "test", **options: Any) -> pymysql.Connection[Any]:
        """A new connection."""
        account = {"user": USER, "password": self.password, **options}
        return pymysql.connect(host="127.0.0.1", port=self.port, database=database, **account)

    def execute(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """What the statement returns, in a connection of its own."""
        with closing(self.connect(autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall())

    def disconnect(self, connection: pymysql.Connection[Any]) -> None:
        """The server has ended this connection, as if the process behind it had died."""
        number = connection.thread_id()  # type: ignore[no-untyped-call]
        self.execute(f"KILL {number}")
        while self.execute("SELECT 1 FROM information_schema.processlist WHERE id = %s", number):
            time.sleep(0.002)

    @property
    def process(self) -> psutil.Process | None:
        """The server's process, while it runs."""
        try:
            found = psutil.Process(int((self.folder / "pid").read_text()))
        except (OSError, ValueError, psutil.NoSuchProcess):
            return None
        return None if has_ended(found) else found

    def kill(self) -> None:
        """The server has died, without a chance to write anything."""
        process = self.process
        assert process is not None, "it does not run"
        process.kill()
        while not has_ended(process):
            time.sleep(0.002)

    def restart(self) -> None:
        """The server runs again, and has recovered."""
        subprocess.run([_SCRIPT, "restart", self.folder], check=True, capture_output=True)

    @contextmanager
    def with_settings(self, *lines: str) -> Iterator[None]:
        """Meanwhile the server runs with these lines behind its own settings."""
        settings = self.folder / "my.cnf"
        before = settings.read_text()
        settings.write_text(before + "".join(f"{line}\n" for line in lines))
        self.kill()
        self.restart()
        try:
            yield
        finally:
            settings.write_text(before)
            if self.process is not None:
                self.kill()
            self.restart()


@functools.cache
def server() -> Server:
    """The server of this process. Raises `NoMariadb`."""
    # Not in pytest's own folder, into which only the user who runs the tests may look; and if
    # possible in memory, where a sync costs nothing. A kill loses there what it loses on a disk.
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    folder = parent / f"oncemq-mariadb-{os.getpid()}"
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
    dsn = urlsplit(keeper.stdout.readline().strip())
    told = log.read_text()
    log.unlink()
    if dsn.port is None:
        last = told.strip().splitlines()[-1:]
        raise NoMariadb(*last)
    assert dsn.password is not None
    return Server(dsn.port, dsn.password, folder, keeper)
