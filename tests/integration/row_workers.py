"""Applications at full speed, for which a row and a message are one act: producers and consumers.

    python -m tests.integration.row_workers KIND NAME JOURNAL NODE DSN FIRST STEP LAST [BUG]

    produce   inserts a numbered row into `sent` of the client's database and puts the message
    consume   gets a message and inserts its row into `received` of the server's database

Each attempt has a name of its own, which is in the row. A worker writes down as what an attempt was
told to have ended, works until SIGTERM, and leaves with 0. A producer has the numbers FIRST, FIRST
+ STEP and so on up to LAST; a new life goes on where the last one was killed, and tries again what
is not in the table. LAST 0 is no end. With the bug "apart", row and message are two acts, as they
are without OnceMQ.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql

import oncemq

QUEUE = "orders"
CLIENT, SERVER = "client", "server"
APART = "apart"
TIMEOUT_S = 4.0
TRANSACTION_S = 8.0
WAIT_S = 0.3
PAUSE_S = 0.02
IDLE_S = 0.1
UNDONE_SHARE = 0.03
# What is to be tried again may still be held by a branch in doubt: others come first, mostly.
AGAIN_SHARE = 0.2
SQLITE = "sqlite:///"
MARIADB = "mariadb://"
# Longer than this nobody waits for a row that is in doubt.
_OPTIONS = "-c lock_timeout=100 -c statement_timeout=5000"
TROUBLES = (oncemq.OnceMQError, psycopg.Error, pymysql.MySQLError, sqlite3.Error)
_THERE_ALREADY = (
    psycopg.errors.UniqueViolation,
    pymysql.err.IntegrityError,
    sqlite3.IntegrityError,
)


def connect(dsn: str) -> Any:
    """A connection of the application to its database."""
    if dsn.startswith(SQLITE):
        return sqlite3.connect(dsn.removeprefix(SQLITE), timeout=TIMEOUT_S)
    if dsn.startswith(MARIADB):
        where = urlsplit(dsn)
        return pymysql.connect(
            host=where.hostname,
            port=where.port or 0,
            user=where.username,
            password=where.password or "",
            database=where.path.strip("/"),
            connect_timeout=3,
            init_command="SET innodb_lock_wait_timeout = 0",
        )
    return psycopg.connect(dsn, connect_timeout=3, options=_OPTIONS)


class Numbers:
    """Which number is next: those that are not in the table yet, and new ones."""

    def __init__(self, first: int, step: int, last: int, chance: random.Random) -> None:
        self._first, self._step, self._last = first, step, last
        self._chance = chance
        self._again: deque[int] = deque()
        self._new = first

    def go_on(self, found: set[int]) -> None:
        """These are in the table."""
        mine = {number for number in found if number % self._step == self._first % self._step}
        self._new = max(mine, default=self._first - self._step) + self._step
        self._again.extend(n for n in range(self._first, self._new, self._step) if n not in mine)

    def next(self) -> int | None:
        """None: there is nothing to do."""
        has_new = self._last == 0 or self._new <= self._last
        if self._again and (not has_new or self._chance.random() < AGAIN_SHARE):
            return self._again.popleft()
        if not has_new:
            return None
        self._new += self._step
        return self._new - self._step

    def again(self, number: int) -> None:
        """It may not be in the table."""
        self._again.append(number)


class Application:
    """One process: a connection to the node, one to the database, and a journal."""

    def __init__(
        self, name: str, node: str, dsn: str, numbers: Numbers, write: Callable[[str], object]
    ) -> None:
        self._name = name
        self._mq = oncemq.connect(f"mq://{node}", timeout=TIMEOUT_S, name=name)
        self._queue = self._mq.queue(QUEUE)
        self._dsn = dsn
        self._place = "?" if dsn.startswith(SQLITE) else "%s"
        self._conn: Any = None
        self._numbers = numbers
        self._write = write
        self._attempts = 0
        self._has_read = False
        self.is_apart = False
        self._chance = random.Random(name)
        self.is_stopping = False

    def work(self, turn: Callable[[Application], None]) -> None:
        """Turn after turn, until it is time to stop; what fails is tried again."""
        while not self.is_stopping:
            try:
                turn(self)
            except TROUBLES as failed:
                why = f" <- {failed.__cause__!r}" if failed.__cause__ else ""
                sys.stderr.write(f"{self._name}:{self._attempts} {failed!r}{why}\n")
                time.sleep(PAUSE_S)
        self._mq.close()

    # --- What they do in one turn

    def produce(self) -> None:
        conn = self._connection()
        if not self._has_read:
            cursor = conn.cursor()
            cursor.execute("SELECT number FROM sent")
            self._numbers.go_on({row[0] for row in cursor.fetchall()})
            conn.rollback()
            self._has_read = True
        number = self._numbers.next()
        if number is None:
            time.sleep(IDLE_S)
            return
        try:
            self._send(conn, number)
        except _THERE_ALREADY:
            # An attempt before, whose end was not told.
            return
        except BaseException:
            self._numbers.again(number)
            raise

    def _send(self, conn: Any, number: int) -> None:
        attempt = self._attempt()

        def act(tx: oncemq.Transaction) -> bool:
            self._insert(tx, conn, "sent", number, attempt)
            self._queue.put(f"{number} {attempt}".encode(), tx=tx)
            return True

        if not self._do(attempt, act):
            self._numbers.again(number)

    def consume(self) -> None:
        conn = self._connection()
        attempt = self._attempt()

        def act(tx: oncemq.Transaction) -> bool:
            message = self._queue.get(WAIT_S, tx=tx)
            if message is None:
                return False
            number, _, sent = message.payload.decode().partition(" ")
            self._insert(tx, conn, "received", int(number), sent, attempt)
            return True

        self._do(attempt, act)

    # --- How

    def _do(self, attempt: str, act: Callable[[oncemq.Transaction], bool]) -> bool:
        """Whether it is committed. How the attempt ended is written down, as it was told."""
        tx = self._mq.begin(timeout=TRANSACTION_S)
        try:
            if act(tx) and self._chance.random() >= UNDONE_SHARE:
                tx.commit()
        finally:
            try:
                if tx.status in (oncemq.Outcome.ACTIVE, oncemq.Outcome.ROLLBACK_ONLY):
                    tx.rollback()
            finally:
                self._write(f"{attempt}={tx.status.value}\n")
        return tx.status == oncemq.Outcome.COMMITTED

    def _attempt(self) -> str:
        self._attempts += 1
        return f"{self._name}:{self._attempts}"

    def _insert(self, tx: oncemq.Transaction, conn: Any, table: str, *row: object) -> None:
        db = conn if self.is_apart else tx.enlist(conn)
        try:
            places = ", ".join([self._place] * len(row))
            db.cursor().execute(f"INSERT INTO {table} VALUES ({places})", row)
        finally:
            if self.is_apart:
                conn.commit()

    def _connection(self) -> Any:
        conn = self._conn
        if conn is None or getattr(conn, "closed", False) or not getattr(conn, "open", True):
            self._conn = connect(self._dsn)
        return self._conn


KINDS: dict[str, Callable[[Application], None]] = {
    "produce": Application.produce,
    "consume": Application.consume,
}


def main(kind: str, name: str, journal: str, node: str, dsn: str, *numbers: str) -> None:
    """Works until SIGTERM."""
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL)
    first, step, last = map(int, numbers[:3])
    application = Application(
        name,
        node,
        dsn,
        Numbers(first, step, last, random.Random(name)),
        lambda line: os.write(descriptor, line.encode()),
    )
    application.is_apart = numbers[3:] == (APART,)

    def stop(number: int, frame: object) -> None:
        application.is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    sys.stdout.write(f"{name} listens on nothing, and works\n")
    sys.stdout.flush()
    application.work(KINDS[kind])


if __name__ == "__main__":
    main(*sys.argv[1:])
