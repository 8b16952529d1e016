"""A coordinator with databases, for tests: no process, its time by hand; the databases are real.

`work` is an application: it begins transactions, does something in a database and prepares it. What
a crash takes away is what the objects here hold; what stays is on the coordinator's disk and in the
database.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from coordinator import coordination, interfaces
from coordinator.database import Times
from coordinator.database_drivers import Limits
from coordinator.database_objects import open_databases
from coordinator.database_recovery import Seen
from coordinator.decision_log import DecisionLog
from coordinator.registry import Registered
from coordinator.service import Service
from idl.coordination import Mq_Coordinator, Mq_Settler, mqLease, mqOutcome, mqParticipant
from idl.cos import RecoveryCoordinator, Resource, Status
from idl.databases import (
    BRANCH,
    COMMITTED,
    DATABASE,
    DATABASE_SETTLER,
    WHOLE,
    BranchId,
    branch_name,
    insertion,
)
from idl.local import LocalOrb
from idl.otids import MARKED, issue, member_name, otid_of
from tests.crash.recording_disk import RecordingDisk
from tests.postgres import Cluster
from tests.unit.clients.embedded_coordinator import ManualTasks

TIMES = Times(limits=Limits(connect_s=2.0, statement_s=2.0, lock_s=0.2), wait_s=1.0, rows_s=0.0)


class World:
    """A coordinator in this process and the databases that are registered with it."""

    def __init__(self) -> None:
        self.disk = RecordingDisk()
        self.tasks = ManualTasks()
        self._lease: mqLease | None = None
        self._names = itertools.count()
        self._boot()

    def _boot(self) -> None:
        self.orb = LocalOrb()
        log = DecisionLog(self.disk, secrets.token_bytes, segment_blocks=8)
        self.service = Service(self.orb, log, self.tasks, secrets.token_bytes)
        self.objects = open_databases(self.service, self.disk, secrets.token_bytes, TIMES)
        self.service.start()
        interfaces.publish(self.service)
        coordination.publish(self.service, self.objects)

    def restart(self) -> None:
        """The coordinator died, and runs again: what was not on disk is gone."""
        self.objects.close()
        self.disk = RecordingDisk(self.disk.image())
        self.tasks = ManualTasks(self.tasks.time)
        self._lease = None
        self._boot()

    def close(self) -> None:
        """Nothing is connected any more."""
        self.objects.close()

    @property
    def coordination(self) -> Mq_Coordinator:
        """What clients call."""
        return self.orb.member(coordination.COORDINATION, Mq_Coordinator)

    def register(self, registered: Registered) -> Seen:
        """The database is registered, and has its table."""
        seen = self.objects.databases.add(registered)
        return self.objects.databases.prepare(registered.name) if seen.is_reachable else seen

    def look(self, name: str) -> Seen:
        """What the coordinator finds and does there now."""
        return self.objects.databases.look(name)

    def begin(self) -> bytes:
        """The name of a new transaction of a client's."""
        if self._lease is None:
            self._lease = self.coordination.lease(0, 0)
            self._names = itertools.count(self._lease.first)
        return issue(self._lease.prefix, self._lease.secret, next(self._names))

    def die(self) -> None:
        """The client fell silent, and its session is over."""
        assert self._lease is not None
        self.coordination.endSession(self._lease.session)
        self._lease = None

    def participant(self, name: str, branch: BranchId, is_lazy: bool = True) -> mqParticipant:
        """A branch that is prepared in a database, as its owner names it."""
        orb = self.orb
        resource = orb.member(member_name(f"{DATABASE}/{name}", *_parts(branch)), Resource)
        settler = orb.member(f"{DATABASE_SETTLER}/{name}", Mq_Settler) if is_lazy else None
        return mqParticipant(branch.branch, resource, settler)

    def decide(self, gtrid: bytes, *participants: mqParticipant) -> mqOutcome:
        """The client has them committed."""
        return self.coordination.decide(otid_of(gtrid), participants)

    def settled(self) -> None:
        """What waits for being settled, is."""
        self.tasks.pass_time(1.0)

    def open(self) -> int:
        """How many transactions are not over."""
        return len(self.service.transactions.every())

    def ask_mark(self, name: str, gtrid: bytes, branch: str = "n1") -> Status:
        """What a participant of a marked transaction is told."""
        member = member_name(f"{MARKED}/{name}", gtrid, branch)
        return self.orb.member(member, RecoveryCoordinator).replay_completion(None)


def _parts(branch: BranchId) -> tuple[bytes, str]:
    return branch.gtrid, branch.branch


# --- Servers -------------------------------------------------------------------------------------


@contextlib.contextmanager
def without_prepared_transactions(server: Cluster) -> Iterator[None]:
    """The server runs with max_prepared_transactions = 0, as it comes."""
    # With any left, also in the log behind the last checkpoint, it would refuse to start.
    assert server.execute("SELECT gid FROM pg_prepared_xacts") == []
    server.execute("ALTER SYSTEM SET max_prepared_transactions = 0")
    _start_anew(server)
    try:
        yield
    finally:
        server.execute("ALTER SYSTEM RESET max_prepared_transactions")
        _start_anew(server)


def _start_anew(server: Cluster) -> None:
    server.execute("CHECKPOINT")
    server.kill()
    server.restart()


# --- Applications --------------------------------------------------------------------------------


def work(
    dsn: str, registered: Registered, gtrid: bytes, value: str, number: int = 1, mark: str = ""
) -> tuple[psycopg.Connection[Any], BranchId]:
    """A row is written and prepared in PostgreSQL, and the connection that did it."""
    branch = BranchId(gtrid, branch_name(number, mark))
    connection = psycopg.connect(dsn)
    connection.tpc_begin(connection.xid(*branch.xid))
    connection.execute("INSERT INTO work VALUES (%s)", (value,))
    row = (branch.otid, branch.branch, BRANCH)
    connection.execute(insertion(registered.table, "%s").encode(), row)
    connection.tpc_prepare()
    return connection, branch


def mark(path: Path, registered: Registered, gtrid: bytes, value: str) -> None:
    """A row and the mark are committed in SQLite, by one commit. Raises when there is a fence."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("INSERT INTO work VALUES (?)", (value,))
        connection.execute(insertion(registered.table, "?"), (gtrid.hex(), WHOLE, COMMITTED))
        connection.commit()
    finally:
        connection.close()
