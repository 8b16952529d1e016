"""A database in a simulated world: rows with a unique key, and a commit that is atomic.

It has no host: it is there while all others die, but it may be away for a while, it may lose a
connection in a commit, before or after that has happened, and a commit that its owner has given up
may still happen much later, unless the key is taken by then. See `coordinator/database_drivers.py`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from clients.database_drivers import DatabaseTrouble, Fenced, Lost
from coordinator.database_drivers import Carried, Unreachable
from idl.custody import NOBODY, ROWS_AT_ONCE
from tests.simulation.world import CALM, World

ACCESS_S = 0.05
LATE_S = 12.0
AWAY_S = 8.0


class Row(NamedTuple):
    """Whose it is, what it carries, and when it was committed."""

    node: str
    content: bytes
    at: float


class Troubles(NamedTuple):
    """How often what goes wrong, as shares of the commits and other calls."""

    before: float = 0.1
    after: float = 0.1
    late: float = 0.05
    refused: float = 0.05
    away: float = 0.03
    # Rows that somebody else writes, who has seen a true one.
    forged: float = 0.1


class SimulatedDatabase:
    """One database: for owners, who commit there, and for the coordinator."""

    def __init__(self, world: World, name: str, troubles: Troubles) -> None:
        self.name = name
        self.rows: dict[str, Row] = {}
        # For the checker: all transactions that have ever been committed.
        self.committed: set[bytes] = set()
        self.forged: set[str] = set()
        self._world = world
        self._troubles = troubles
        self._away_until = 0.0
        self._late = 0

    # --- For owners

    def commit(self, gtrid: bytes, node: str, content: bytes) -> None:
        """All that the transaction did is there, with its row. Raises `DatabaseTrouble`."""
        world, troubles = self._world, self._troubles
        self._reach(Lost("it went away before the commit"))
        if self._happens(troubles.refused):
            raise DatabaseTrouble("it does not like the rows")
        if self._happens(troubles.before):
            raise Lost("in the commit, and it has not happened")
        if self._happens(troubles.late):
            self._late += 1
            world.after(world.random.uniform(0.0, LATE_S), self._commit_late, gtrid, node, content)
            raise Lost("in the commit, which may happen at any time")
        if not self._write(gtrid, node, content):
            raise Fenced("its key is taken")
        if self._happens(troubles.after):
            raise Lost("in the commit, and it has happened")

    def _commit_late(self, gtrid: bytes, node: str, content: bytes) -> None:
        self._late -= 1
        self._write(gtrid, node, content)

    def _write(self, gtrid: bytes, node: str, content: bytes) -> bool:
        if gtrid.hex() in self.rows:
            return False
        self._world.note("row", gtrid.hex()[-8:])
        self.rows[gtrid.hex()] = Row(node, content, self._world.now())
        self.committed.add(gtrid)
        if self._happens(self._troubles.forged):
            forged = self._world.random.randbytes(len(gtrid)).hex()
            self.forged.add(forged)
            self.rows[forged] = Row(node, content, self._world.now())
        return True

    # --- For the coordinator

    def fence(self, gtrid: bytes) -> bool:
        """Whether it is committed; if it is not, it never will be."""
        self._reach(Unreachable("it is away"))
        found = self.rows.setdefault(gtrid.hex(), Row(NOBODY, b"", self._world.now()))
        return found.node != NOBODY

    def carried(self, node: str, older_s: float, behind: str) -> list[Carried]:
        """See `Database.carried`."""
        self._reach(Unreachable("it is away"))
        before = self._world.now() - older_s
        found = [
            Carried(otid, row.content)
            for otid, row in sorted(self.rows.items())
            if otid > behind and row.node == node and row.at <= before
        ]
        return found[:ROWS_AT_ONCE]

    def forget_carried(self, node: str, otids: list[str]) -> None:
        """See `Database.forget_carried`."""
        self._reach(Unreachable("it is away"))
        for otid in otids:
            if otid in self.rows and self.rows[otid].node == node:
                del self.rows[otid]
        if self._happens(self._troubles.away):
            raise Unreachable("the answer is lost")

    # --- For the checker

    def left(self) -> list[str]:
        """Rows that a node has to put, or that may still come."""
        true = [o for o, row in self.rows.items() if row.node != NOBODY and o not in self.forged]
        return true + ["late"] * self._late

    def _happens(self, share: float) -> bool:
        return self._world.faults is not CALM and self._world.random.random() < share

    def _reach(self, otherwise: Exception) -> None:
        world = self._world
        world.sleep(world.random.uniform(0.0, ACCESS_S))
        world.step()
        if self._happens(self._troubles.away):
            self._away_until = world.now() + world.random.uniform(0.0, AWAY_S)
        if world.faults is not CALM and world.now() < self._away_until:
            raise otherwise


class SimulatedDatabases:
    """As much of the coordinator's `Databases` as its servant for nodes needs."""

    def __init__(self, database: SimulatedDatabase) -> None:
        self._database = database

    def every(self) -> list[tuple[Any, Any]]:
        """See `Databases.every`."""
        seen = SimpleNamespace(facts=SimpleNamespace(is_carrier=True))
        return [(SimpleNamespace(name=self._database.name), seen)]

    def find(self, name: str) -> SimulatedDatabase:
        """See `Databases.find`."""
        assert name == self._database.name
        return self._database
