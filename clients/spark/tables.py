"""Rows into tables of databases, as a part of a job's transaction.

    the database             who writes                             what decides
    prepares branches        every task, over a connection of its   the coordinator: the branches of
                             own, which it prepares                 accepted tasks are named to it
    has no two-phase commit  the job's process, over one            its own commit, in which a row
                             connection, as rows come in            marks the transaction

A database is known by the name under which the coordinator knows it: only there can be finished
what a dead job left behind. Passwords are named by where they are, and looked up by who connects;
they are part of no plan, no option and no log. It knows connections and rows, not the transaction.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from clients.connection import Connection
from clients.database_drivers import DatabaseTrouble, first_line
from clients.errors import RAISED, NotEnlisted, OnceMQError, translated
from clients.spark.attempts import Vote
from clients.spark.columns import Inserter
from clients.spark.database_links import Password, connected, errors_of
from clients.spark.sharing import PreparedBranch
from clients.spark.sink import attempt_name
from clients.two_phase import DatabaseBranch
from clients.unwrapping import unwrapped
from idl.coordination import Mq_Coordinator, mqDatabase
from idl.databases import COMMITTED, BranchId, Kind, insertion, parse_dsn
from idl.mapping import InvalidValue

COORDINATION = "coordination"
# So long the coordinator may take to look at a database after its start.
REACH_S = 5.0
PAUSE_S = 0.1
# A row with the same key may be in the way, prepared by another attempt: that ends with the job.
LOCK_WAIT_S = 10

log = logging.getLogger("oncemq.spark")


class AlreadyCommitted(OnceMQError):
    """This version of the application was committed before; the rest of the block is skipped."""


@dataclass(frozen=True)
class Target:
    """A table, and the way to it. It pickles, and holds no secret."""

    known: mqDatabase
    dsn: str
    table: str
    password: Password

    @property
    def kind(self) -> Kind:
        """What kind of database it is."""
        return Kind(self.known.kind)

    def connect(self) -> Any:
        """A new connection to the database; raises an `OnceMQError`."""
        try:
            return connected(self.kind, self.dsn, self.password, LOCK_WAIT_S)
        except ImportError as missing:
            raise OnceMQError(f"database {self.known.name}: {missing}") from missing
        except errors_of(self.kind) as refused:
            told = f"database {self.known.name} cannot be reached: {first_line(refused)}"
            raise OnceMQError(told) from refused

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """What the driver raises is told as an `OnceMQError`, with the name of the table."""
        errors: tuple[type[Exception], ...] = (DatabaseTrouble, *errors_of(self.kind))
        try:
            yield
        except errors as failed:
            told = first_line(failed)
            if "lock timeout" in told.lower():
                told += ": another task of the job, or another attempt, has a row with the same key"
            raise OnceMQError(f"table {self.table} in {self.known.name}: {told}") from failed


def target_for(
    connection: Connection, table: str, database: str, dsn: str, password: Password
) -> Target:
    """The table in the database of this name, or in the only one; raises an `OnceMQError`."""
    known = _known(connection, database)
    try:
        where = parse_dsn(dsn or known.dsn)
    except InvalidValue as wrong:
        raise OnceMQError(f"database {known.name}: {wrong}") from wrong
    if where.kind.value != known.kind:
        raise OnceMQError(
            f"database {known.name} is registered as {known.kind}, and the address that was given "
            f"is one of {where.kind.value}"
        )
    return Target(known, where.text, table, password)


def _known(connection: Connection, name: str) -> mqDatabase:
    node, deciding = connection.node(), connection.deciding()
    coordinator = node.orb.proxy(f"PYRO:{COORDINATION}@{deciding.address}", Mq_Coordinator)
    deadline = node.clock() + REACH_S
    while True:
        try:
            every = {each.name: each for each in coordinator.listDatabases()}
        except RAISED as failed:
            raise translated(failed, deciding.where) from failed
        found = every.get(name) if name else next(iter(every.values()), None)
        if found is None or (not name and len(every) > 1):
            raise NotEnlisted(_unknown(name, every))
        if found.identity:
            return found
        if node.clock() >= deadline:
            raise NotEnlisted(
                f"the coordinator has not reached database {found.name}, or its table for outcomes "
                f"is not there: look at `oncemq database list`, type `oncemq database prepare "
                f"{found.name}`"
            )
        node.sleep(PAUSE_S)


def _unknown(name: str, every: dict[str, mqDatabase]) -> str:
    names = ", ".join(sorted(every)) or "none"
    if name:
        return (
            f"no database is registered as {name!r}, but {names}: type `oncemq database add {name} "
            "ADDRESS`"
        )
    if every:
        return f"say which database: write_table(…, database=NAME); there are {names}"
    return "no database is registered: type `oncemq database add NAME ADDRESS`"


# --- By tasks ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopyRows:
    """The rows of a partition are in the table, prepared in a branch of this attempt alone."""

    target: Target
    gtrid: bytes
    inserter: Inserter

    def __call__(self, batches: Iterator[Any]) -> Vote:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return Vote(self.gtrid, (), 0)
        connection = self.target.connect()
        try:
            with self.target.telling():
                branch = self._begun(connection)
                count = self.inserter.insert(connection, itertools.chain((first,), batches))
                trouble = branch.why_not()
                if trouble:
                    raise OnceMQError(f"table {self.target.table}: {trouble}")
                branch.prepare()
                # The coordinator ends it, whichever way.
                branch.let_go()
        finally:
            connection.close()
        return Vote(self.gtrid, (PreparedBranch("", branch.name, branch.database),), count)

    def _begun(self, connection: Any) -> DatabaseBranch:
        opened, known = unwrapped(connection), self.target.known
        # Before any dot: behind one stands the name of a database whose mark decides.
        name = "d" + attempt_name()
        opened.driver.check_idle()
        if opened.driver.identity(known.table) != known.identity:
            raise NotEnlisted(
                f"the address does not lead to the database that is registered as {known.name}, "
                f"but to {opened.driver.address()}"
            )
        branch = BranchId(self.gtrid, name)
        opened.driver.begin(branch)
        if self.target.kind is Kind.POSTGRESQL:
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'")
        return DatabaseBranch(opened, known, branch, is_marked=False)


def roll_back_others(target: Target, gtrid: bytes, named: frozenset[str]) -> int:
    """Attempts that did not count, and left prepared branches, are rolled back: how many.

    Only when the transaction is over. The coordinator would do the same, a little later; whatever
    goes wrong here is left to it.
    """
    if target.kind is not Kind.POSTGRESQL:
        return 0
    count = 0
    try:
        connection = target.connect()
        with contextlib.closing(connection), target.telling():
            for xid in connection.tpc_recover():
                is_ours = xid.gtrid == gtrid.hex() and xid.bqual not in named
                if is_ours and xid.bqual.startswith("ds"):
                    connection.tpc_rollback(xid)
                    count += 1
    except OnceMQError as failed:
        log.info("what attempts have left in a database is the coordinator's to end: %s", failed)
    return count


# --- By the job's own process --------------------------------------------------------------------


def stream_into(target: Target, used: Any, frame: Any, inserter: Inserter) -> int:
    """All rows of the frame are in the table, over this enlisted connection: how many.

    What fails is undone, and the transaction can go on without it.
    """
    with target.telling():
        _run(used, "SAVEPOINT oncemq_write")
        try:
            count = inserter.insert(used, _batches_of(frame))
        except BaseException:
            with contextlib.suppress(*errors_of(target.kind)):
                _run(used, "ROLLBACK TO SAVEPOINT oncemq_write")
            raise
        _run(used, "RELEASE SAVEPOINT oncemq_write")
    return count


def _batches_of(frame: Any) -> Iterator[Any]:
    """The rows of all partitions, one partition behind the other, as record batches."""
    import pyarrow as pa

    def packed(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            cell = pa.array([sink.getvalue().to_pybytes()], pa.binary())
            yield pa.RecordBatch.from_arrays([cell], ["batch"])

    for row in frame.mapInArrow(packed, "batch binary").toLocalIterator():
        yield from pa.ipc.open_stream(bytes(row["batch"]))


def check_version(target: Target, used: Any, application: str, version: int) -> None:
    """The version is committed with the mark; raises `AlreadyCommitted` if it was before.

    Where a mark decides, the coordinator may never hear that a version was committed.
    """
    otid, place = _version_key(application), "?" if target.kind is Kind.SQLITE else "%s"
    table = target.known.table
    with target.telling():
        found = _run(used, f"SELECT max(branch) FROM {table} WHERE otid = {place}", (otid,))
        if found and found[0][0] and int(found[0][0]) >= version:
            raise AlreadyCommitted(
                f"version {version} of {application!r}, or a later one, was committed before"
            )
        _run(used, insertion(table, place), (otid, f"{version:020d}", COMMITTED))
        if target.kind is Kind.SQLITE:
            # Elsewhere an application may only add rows.
            older = f"DELETE FROM {table} WHERE otid = {place} AND branch < {place}"
            _run(used, older, (otid, f"{version:020d}"))


def _version_key(application: str) -> str:
    """What stands in place of a transaction: no name of one looks like this."""
    return "version-" + hashlib.blake2b(application.encode(), digest_size=24).hexdigest()


def _run(used: Any, statement: str, parameters: tuple[str, ...] = ()) -> list[Any]:
    cursor = used.cursor()
    try:
        cursor.execute(statement, *((parameters,) if parameters else ()))
        return list(cursor.fetchall()) if cursor.description else []
    finally:
        cursor.close()
