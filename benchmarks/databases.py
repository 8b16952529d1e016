"""What one row in PostgreSQL and one message cost as one act, against what people do without us.

    OnceMQ                  as it comes: the database decides, its row carries the message that is
                            put; where one was got, the node prepares before
    OnceMQ, prepared        the row is prepared in the database, and the node decides: so it is with
                            several databases or nodes
    two PostgreSQL, tpc_*   row and message in two databases, prepared and committed by hand, and
                            with nobody who would finish it after a crash
    one PostgreSQL          row and a table as queue (SKIP LOCKED), in one local commit
    bare                    what our first way cannot do without: the same statements, the same
                            forced writes and round trips over plain sockets, and nothing else
    bare, prepared          the same for our second way

PostgreSQL, node and coordinator are processes of their own on the loopback interface, with their
files in one file system and everything synced. What a slower disk makes of it is shown with commits
of PostgreSQL that wait a millisecond; the node's own forced writes stay as they are. PostgreSQL is
a private one, started by the same script as that of the tests. Messages have 100 bytes.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

import oncemq
from benchmarks.bare import BareNode
from benchmarks.measure import Bar, Comparison, Setting
from benchmarks.orb import ServerProcess

HOST = "127.0.0.1"
PAYLOAD = b"x" * 100
CALLS = 50
SEED = 2000
SLOW_US = 1000

OURS = "OnceMQ"
PREPARED = "OnceMQ, prepared"
BY_HAND = "two PostgreSQL, tpc_*"
ONE_COMMIT = "one PostgreSQL, SKIP LOCKED"
BARE = "bare"
BARE_PREPARED = "bare, prepared"

BY_HAND_RATIO_MAX = 1.0
TWO_PHASE_RATIO_MAX = 2.0
MARKED_RATIO_MAX = 1.5

_SCRIPT = Path(__file__).resolve().parent.parent / "tests" / "setup" / "postgres.sh"
_ROWS = "CREATE TABLE rows (number BIGSERIAL PRIMARY KEY, content BYTEA)"
_QUEUE = "CREATE TABLE queue (number BIGSERIAL PRIMARY KEY, payload BYTEA)"
_PUT_ROW = "INSERT INTO rows (content) VALUES (%s)"
_OUTCOMES = (
    "CREATE TABLE outcomes (otid varchar(64), branch varchar(64), outcome varchar(16),"
    " at timestamptz DEFAULT now(), PRIMARY KEY (otid, branch))"
)
_CARRIED = "CREATE TABLE carried (otid varchar(64) PRIMARY KEY, node varchar(64), content bytea)"
_CARRY = f"INSERT INTO carried VALUES ('{{}}', '{'0' * 32}', '\\x{'00' * 350}')"
_OUTCOME = "INSERT INTO outcomes VALUES ('{}', 'd1', 'branch')"
_PUT = "INSERT INTO queue (payload) VALUES (%s)"
_GET = (
    "DELETE FROM queue WHERE number = (SELECT number FROM queue ORDER BY number"
    " FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING payload"
)
_FILL = "INSERT INTO queue (payload) SELECT %s FROM generate_series(1, %s)"


def comparisons(setting: Setting) -> list[Comparison]:
    """What this benchmark compares."""
    absent = why_no_postgres()
    works = (
        ("a row and a put", True, 0),
        ("a get and a row", False, 0),
        ("a row and a put, commits of PostgreSQL a millisecond slower", True, SLOW_US),
    )
    if absent:
        return [Comparison(title, (), "", skipped=absent) for title, _, _ in works]
    return [
        _compared(title, setting.scratch / str(number), is_put, PostgresServer(delay_us))
        for number, (title, is_put, delay_us) in enumerate(works)
    ]


def _compared(title: str, folder: Path, is_put: bool, server: PostgresServer) -> Comparison:
    return Comparison(
        title=title,
        subjects=(
            _Ours(OURS, server, folder / "ours", is_put, None),
            _Ours(PREPARED, server, folder / "prepared", is_put, False),
            _ByHand(server, is_put),
            _OneCommit(server, is_put),
            _Bare(BARE, server, folder / "bare", is_put, False),
            _Bare(BARE_PREPARED, server, folder / "bare-prepared", is_put, True),
        ),
        baseline=ONE_COMMIT,
        bars=(
            Bar(OURS, BY_HAND, BY_HAND_RATIO_MAX),
            Bar(OURS, ONE_COMMIT, TWO_PHASE_RATIO_MAX),
            Bar(OURS, ONE_COMMIT, MARKED_RATIO_MAX),
        ),
        calls=CALLS,
    )


# --- PostgreSQL ----------------------------------------------------------------------------------


def why_no_postgres() -> str:
    """Why there can be no PostgreSQL here; empty when there can."""
    if any(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        return ""
    found = any((Path(each) / "initdb").exists() for each in os.get_exec_path())
    return "" if found else "no PostgreSQL: tests/setup/components.sh installs it"


@dataclass
class PostgresServer:
    """One PostgreSQL for the subjects of a comparison, as long as one of them needs it.

    So many microseconds pass before each of its commits is synced, as with a slower disk.
    """

    delay_us: int = 0
    users: int = 0
    names: Any = field(default_factory=itertools.count)

    def start(self) -> None:
        """It runs, from the first user on."""
        self.users += 1
        if self.users > 1:
            return
        # Not in the scratch folder, into which PostgreSQL's own user may not look.
        folder = tempfile.mkdtemp(prefix="oncemq-benchmarks-postgres-")
        os.chmod(folder, 0o755)
        pipe = subprocess.PIPE
        quiet = subprocess.DEVNULL
        self._keeper = subprocess.Popen(
            [_SCRIPT, "serve", folder], stdin=pipe, stdout=pipe, stderr=quiet, text=True
        )
        assert self._keeper.stdout is not None
        self._dsn = self._keeper.stdout.readline().strip()
        if not self._dsn:
            self.users = 0
            raise RuntimeError(f"{_SCRIPT} could not start PostgreSQL")
        if self.delay_us:
            self._slow_down()

    def _slow_down(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for setting in (f"commit_delay = {self.delay_us}", "commit_siblings = 0"):
                connection.execute(f"ALTER SYSTEM SET {setting}".encode())
            connection.execute("SELECT pg_reload_conf()")

    def stop(self) -> None:
        """It is gone with its last user."""
        self.users -= 1
        if self.users == 0:
            # It stops and removes everything when its input ends.
            self._keeper.communicate()

    def database(self, *tables: str) -> str:
        """The address of a new database with these tables."""
        name = f"benchmark_{next(self.names)}"
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        dsn = self._dsn.removesuffix(urlsplit(self._dsn).path) + f"/{name}"
        with psycopg.connect(dsn, autocommit=True) as connection:
            for table in tables:
                connection.execute(table.encode())
        return dsn


# --- The ways ------------------------------------------------------------------------------------


@dataclass
class _Ours:
    name: str
    server: PostgresServer
    folder: Path
    is_put: bool
    markable: bool | None

    def start(self) -> None:
        self.server.start()
        dsn = self.server.database(_ROWS)
        quiet = ["--listen", f"{HOST}:0", "--log-level", "error"]
        data = ["--data", str(self.folder / "coordinator")]
        self._coordinator = ServerProcess("coordinator", *data, *quiet)
        data = ["--data", str(self.folder / "node"), "--coordinator", _address(self._coordinator)]
        self._node = ServerProcess("mqserver", *data, *quiet)
        self._mq = oncemq.connect(f"mq://{_address(self._node)}")
        self._queue = self._mq.queue("orders")
        self._register(dsn)
        self._connection = psycopg.connect(dsn)

    def _register(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        password = self.folder / "password"
        password.write_text(parts.password or "")
        password.chmod(0o600)
        plain = f"postgresql://{parts.username}@{HOST}:{parts.port}{parts.path}"
        self._mq.register_database("orders", plain, password_file=str(password))

    def stop(self) -> None:
        self._connection.close()
        self._mq.close()
        self._node.stop()
        self._coordinator.stop()
        self.server.stop()

    def one_call(self) -> None:
        with self._mq.transaction() as tx:
            db = tx.enlist(self._connection, markable=self.markable)
            if self.is_put:
                db.execute(_PUT_ROW, (PAYLOAD,))
                self._queue.put(PAYLOAD)
                return
            message = self._queue.get()
            if message is not None:
                db.execute(_PUT_ROW, (message.payload,))
        if message is None:
            self._queue.put_many([PAYLOAD] * SEED)


def _address(process: ServerProcess) -> str:
    return process.announced.rpartition(" ")[2]


@dataclass
class _ByHand:
    server: PostgresServer
    is_put: bool
    name: str = BY_HAND

    def start(self) -> None:
        self.server.start()
        self._rows = psycopg.connect(self.server.database(_ROWS))
        self._queue = psycopg.connect(self.server.database(_QUEUE))
        self._numbers = itertools.count()

    def stop(self) -> None:
        self._rows.close()
        self._queue.close()
        self.server.stop()

    def one_call(self) -> None:
        rows, queue = self._rows, self._queue
        name = f"by hand {next(self._numbers)}"
        rows.tpc_begin(rows.xid(1, name, "rows"))
        queue.tpc_begin(queue.xid(1, name, "queue"))
        _work(rows, queue, self.is_put)
        for step in ("tpc_prepare", "tpc_commit"):
            for connection in (rows, queue):
                getattr(connection, step)()


@dataclass
class _OneCommit:
    server: PostgresServer
    is_put: bool
    name: str = ONE_COMMIT

    def start(self) -> None:
        self.server.start()
        self._connection = psycopg.connect(self.server.database(_ROWS, _QUEUE))

    def stop(self) -> None:
        self._connection.close()
        self.server.stop()

    def one_call(self) -> None:
        _work(self._connection, self._connection, self.is_put)
        self._connection.commit()


@dataclass
class _Bare:
    name: str
    server: PostgresServer
    folder: Path
    is_put: bool
    is_prepared: bool

    def start(self) -> None:
        self.server.start()
        self._connection = psycopg.connect(self.server.database(_ROWS, _OUTCOMES, _CARRIED))
        self._node = BareNode(self.folder)
        self._numbers = itertools.count()

    def stop(self) -> None:
        self._node.stop()
        self._connection.close()
        self.server.stop()

    def one_call(self) -> None:
        name = f"{next(self._numbers):064x}"
        node = self._node
        self._ask("BEGIN")
        if not self.is_put:
            node.ask()
        # What the application does itself costs it the same everywhere.
        self._connection.execute(_PUT_ROW, (PAYLOAD,))
        if self.is_prepared:
            self._ask(f"{_OUTCOME.format(name)}; PREPARE TRANSACTION '{name}'")
            # The node decides.
            node.prepare()
            self._ask(f"COMMIT PREPARED '{name}'")
            return
        if self.is_put:
            node.ask()
        else:
            node.prepare()
        self._ask(f"{_CARRY.format(name)}; COMMIT")
        node.ask()

    def _ask(self, statement: str) -> None:
        # Beneath psycopg, which would do more.
        found = self._connection.pgconn.exec_(statement.encode())
        assert found.status == psycopg.pq.ExecStatus.COMMAND_OK, found.error_message


Postgres = psycopg.Connection[tuple[Any, ...]]


def _work(rows: Postgres, queue: Postgres, is_put: bool) -> None:
    """A row and a message, not committed yet."""
    if is_put:
        rows.execute(_PUT_ROW, (PAYLOAD,))
        queue.execute(_PUT, (PAYLOAD,))
        return
    found = queue.execute(_GET).fetchone()
    if found is None:
        queue.execute(_FILL, (PAYLOAD, SEED))
    else:
        rows.execute(_PUT_ROW, (found[0],))
