"""A database in memory that can prepare branches, for tests of who asks it."""

from __future__ import annotations

import sqlite3

from coordinator.database_drivers import (
    DatabaseTrouble,
    Dialect,
    Link,
    NoSuchBranch,
    NoTable,
    Prepared,
    Unreachable,
)
from coordinator.registry import Registered
from idl import custody
from idl.custody import CARRIED_TABLE
from idl.databases import BRANCH, BranchId, Kind, branch_name, insertion
from idl.otids import GTRID_BYTES

REGISTERED = Registered("orders", "postgresql://app@host/orders")
TABLE = "oncemq_outcome"
ONE, TWO = (BranchId(bytes([n]) * GTRID_BYTES, branch_name(n)) for n in (1, 2))


class Server:
    """A database in memory, with prepared branches that live in a set. See `TwoPhase`."""

    def __init__(self) -> None:
        self.prepared_branches: set[BranchId] = set()
        # Prepared by a connection that is still open, as MariaDB has it.
        self.held: set[BranchId] = set()
        self.is_away = False
        # Whether the coordinator's role may use the table for carried puts.
        self.may_carry = True
        self.opened = self.closed = 0
        self.asked = 0
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.create_function("finish", 3, self._finish)
        self.open(REGISTERED).make_table("identity")

    def open(self, registered: Registered) -> Link:
        """A connection that shares what there is."""
        self.asked += 1
        if self.is_away:
            raise Unreachable("away")
        self.opened += 1
        place = ("INSERT OR IGNORE", "")
        dialect = Dialect(
            Kind.SQLITE,
            "?",
            place,
            "1 = {}",
            sqlite3.Error,
            self._trouble,
            self,
            carrier=f"SELECT {self.may_carry:d} FROM sqlite_master WHERE name = '{CARRIED_TABLE}'",
        )
        return Link(Shared(self), dialect, TABLE)

    def wrote(self, branch: BranchId) -> None:
        """The row that a committed branch leaves."""
        row = (branch.otid, branch.branch, BRANCH)
        self.connection.execute(insertion(TABLE, "?"), row)

    def carries(self, gtrid: bytes, node: str, content: object = b"puts") -> None:
        """The row of a committed transaction, for this node. Raises where there is a fence."""
        self.connection.execute(custody.insertion(TABLE, "?"), (gtrid.hex(), node, content))

    def is_on(self, link: Link) -> bool:
        return True

    def prepared(self, link: Link) -> list[Prepared]:
        return [Prepared(*each.xid) for each in self.prepared_branches | self.held]

    def statement(self, is_commit: bool, branch: BranchId) -> str:
        return f"SELECT finish({is_commit:d}, '{branch.otid}', '{branch.branch}')"

    def _finish(self, is_commit: int, otid: str, name: str) -> int:
        branch = BranchId(bytes.fromhex(otid), name)
        # What is not there is an error, which SQLite passes on without its words.
        self.prepared_branches.remove(branch)
        return is_commit

    def _trouble(self, failed: Exception) -> DatabaseTrouble:
        told = str(failed)
        if "user-defined function" in told:
            return NoSuchBranch(told)
        return NoTable(told) if "no such table" in told else Unreachable(told)


class Shared:
    """A connection to a `Server`; closing it closes nothing but itself."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def cursor(self) -> sqlite3.Cursor:
        if self._server.is_away:
            raise sqlite3.OperationalError("connection lost")
        return self._server.connection.cursor()

    def close(self) -> None:
        self._server.closed += 1
