"""Owners of transactions whose row carries what they put: what they do, and what they hear.

The steps are those of `clients/commitment.py`, which is the real one. An owner may be slow, think
better of it, walk away, and repeat itself when all is over; it may die at any step.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

from clients.commitment import Commitment, Refused
from clients.errors import RAISED, OnceMQError, OutcomeUnknown
from clients.nodes import LOST
from idl.call import Principal, limited
from idl.cos import Status
from idl.custody import CARRIED, CONTENT_BYTES_MAX, Mq_Carried, NotCarried
from idl.mq import mqBatch, mqBranch, mqWork
from idl.otids import otid_of
from tests.simulation.carrying import (
    DATABASE,
    NODE,
    QUEUE,
    SETTLING,
    WORKING,
    Carrying,
    Holding,
    Settling,
)
from tests.simulation.customers import CALL_S, SERVICE
from tests.simulation.network import PORT, SimulatedOrb
from tests.simulation.world import CALM

T = TypeVar("T")

ENDING_S = 6.0


class Ways(NamedTuple):
    """How often owners do what, as shares."""

    linger: float = 0.3
    walk_away: float = 0.08
    roll_back: float = 0.08
    # Tell nobody that the row is committed.
    keep_silent: float = 0.2
    # Take long before they find out what became of a commit.
    wait_for_it: float = 0.3
    pester: float = 0.3
    long_s: float = 8.0


class Away(Exception):
    """The owner is not interested any more."""


def owning(ways: Ways) -> Callable[[Carrying, str], None]:
    """What each owner does in its life."""

    def own(everything: Carrying, name: str) -> None:
        owner = Owner(everything, name, ways)
        while everything.todo[name]:
            begun = len(everything.told)
            owner.run_one()
            everything.todo[name] -= len(everything.told) > begun
            everything.world.sleep(everything.world.random.uniform(0.0, 2.0))

    return own


class Owner:
    """Runs transactions, and writes down what it is told."""

    def __init__(self, everything: Carrying, name: str, ways: Ways) -> None:
        self.world = everything.world
        self.name = name
        self.ways = ways
        self.database = everything.database
        self._everything = everything
        self._orb = SimulatedOrb(self.world, name, principal=Principal("owner"))

    def run_one(self) -> None:
        """One transaction, as far as it goes."""
        everything, world = self._everything, self.world
        gtrid = everything.issue()
        world.note("transaction", gtrid.hex()[-8:])
        branch = Holder(self, gtrid)
        # Those who die in it have tried.
        status = self._ended(gtrid, branch)
        everything.told[gtrid].append(status)
        while self.happens(self.ways.pester):
            branch.pester(status is Status.COMMITTED)

    def _ended(self, gtrid: bytes, branch: Holder) -> Status | None:
        deciding: Any = SimpleNamespace(decide_marked=self._settled)
        commitment = Commitment(gtrid, deciding, ENDING_S, lambda _: None, lambda _, __: None)
        try:
            if commitment.by_carrying(cast(Any, branch), cast(Any, Carrier(self, gtrid))):
                return Status.COMMITTED
        except (OutcomeUnknown, Away):
            return None
        except Refused:
            pass
        branch.roll_back()
        return Status.ROLLED_BACK

    def _settled(
        self, gtrid: bytes, place: str, is_marked: bool, participants: object, timeout_s: float
    ) -> Any:
        """See `Deciding.decide_marked`."""
        if self.happens(self.ways.wait_for_it):
            self.world.sleep(self.world.random.uniform(0.0, self.ways.long_s))
        settle = self.at(SERVICE, SETTLING, Settling).settle
        try:
            is_committed = self.insist(settle, otid_of(gtrid))
        except RAISED as silent:
            raise OutcomeUnknown(gtrid) from silent
        return SimpleNamespace(status=Status.COMMITTED if is_committed else Status.ROLLED_BACK)

    def at(self, host: str, name: str, interface: type[T]) -> T:
        """An object of another host."""
        return self._orb.proxy(f"PYRO:{name}@{host}:{PORT}", interface)

    def happens(self, share: float) -> bool:
        """Whether it does this time."""
        return self.world.faults is not CALM and self.world.random.random() < share

    def linger(self) -> None:
        """It may take a while until the owner goes on, if it does."""
        if self.happens(self.ways.linger):
            self.world.sleep(self.world.random.uniform(0.0, self.ways.long_s))
        if self.happens(self.ways.walk_away):
            raise Away

    def insist(self, ask: Callable[..., T], *arguments: object) -> T:
        """The answer; what is lost is asked for again, for a while."""
        deadline = self.world.now() + ENDING_S
        while True:
            try:
                with limited(CALL_S):
                    return ask(*arguments)
            except LOST:
                if self.world.now() >= deadline:
                    raise
            self.world.sleep(0.3)


class Carrier:
    """The transaction's part in the database. See `DatabaseBranch`."""

    database = DATABASE

    def __init__(self, owner: Owner, gtrid: bytes) -> None:
        self._owner = owner
        self._gtrid = gtrid

    def commit_carrying(self, node: str, content: bytes) -> None:
        """See `DatabaseBranch.commit_carrying`."""
        owner = self._owner
        owner.linger()
        if owner.happens(owner.ways.roll_back):
            raise Refused("the owner has thought better of it")
        owner.database.commit(self._gtrid, node, content)
        owner.world.step()


class Holder:
    """The transaction's part at the node. See `clients/branches.py`."""

    def __init__(self, owner: Owner, gtrid: bytes) -> None:
        self.node = SimpleNamespace(where=NODE)
        self.gtrid = gtrid
        self.owner = owner
        name = owner.world.random.choice(("n1", "n1", "n2", "n3"))
        self.branch = mqBranch(otid_of(gtrid), name, None)
        # Then the node prepares, and the row stands for that.
        self._is_large = owner.world.random.random() < 0.35

    def _work(self) -> tuple[mqWork, ...]:
        payload = self.gtrid + bytes(CONTENT_BYTES_MAX * self._is_large)
        return (mqWork(QUEUE, mqBatch((payload,), (zlib.crc32(payload),), (), (), (), (), ()), ()),)

    def hold(self, database: str) -> tuple[bytes, str]:
        """See `Branch.hold`."""
        carried = self.owner.at(NODE, CARRIED, Mq_Carried)
        arguments = self.branch, 1, self._work(), database
        deadline = self.owner.world.now() + ENDING_S
        while True:
            try:
                content, node, _ = self.owner.insist(carried.hold, *arguments)
                return content, node
            except NotCarried:
                # It does not know its coordinator yet.
                if self.owner.world.now() >= deadline:
                    raise
            self.owner.world.sleep(1.0)

    def carry_no_more(self, seconds: float) -> None:
        """See `Branch.carry_no_more`. It is asked again with the next one."""

    def deliver(self, database: str, unheard: Callable[[Exception], None] | None = None) -> None:
        """See `Branch.deliver`."""
        owner = self.owner
        owner.linger()
        if owner.happens(owner.ways.keep_silent):
            return
        if unheard is None:
            owner.insist(owner.at(NODE, CARRIED, Mq_Carried).deliver, self.branch, database)
        else:
            owner.world.spawn(owner.name, self._deliver_once, database, unheard)

    def _deliver_once(self, database: str, unheard: Callable[[Exception], None]) -> None:
        try:
            with limited(CALL_S):
                self.owner.at(NODE, CARRIED, Mq_Carried).deliver(self.branch, database)
        except RAISED as lost:
            unheard(lost)

    def ask_for_all(self) -> Status:
        """See `Branch.ask_for_all`."""
        outcome = self.owner.at(NODE, WORKING, Holding).outcome
        return self.owner.insist(outcome, otid_of(self.gtrid))

    def ask_outcome(self) -> Status:
        """See `Branch.ask_outcome`."""
        outcome = self.owner.at(NODE, WORKING, Holding).outcome
        return self.owner.insist(outcome, otid_of(self.gtrid, self.branch.name))

    def roll_back(self) -> None:
        """The node is told, if it can be reached."""
        try:
            with limited(CALL_S):
                self.owner.at(NODE, WORKING, Holding).rollback(self.branch)
        except RAISED:
            # It is given up as silent.
            return

    def pester(self, is_committed: bool) -> None:
        """Says again what was said before, perhaps long after."""
        self.owner.world.sleep(self.owner.world.random.choice((0.0, 1.0, 8.0)))
        carried = self.owner.at(NODE, CARRIED, Mq_Carried)
        try:
            with limited(CALL_S):
                if is_committed and self.owner.happens(0.6):
                    carried.deliver(self.branch, DATABASE)
                else:
                    carried.hold(self.branch, 1, self._work(), DATABASE)
        except (OnceMQError, *RAISED):
            return
