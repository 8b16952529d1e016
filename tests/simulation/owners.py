"""Owners of transactions that a node decides: what they do, and what they hear.

As `clients/commitment.py` does it: all branches but one vote, then the last one is asked to commit
as the decision, and its node's answer is told to the voters. An answer that is lost is asked for
again, and then found out by the coordinator. An owner may be slow, slower than anybody waits for
it, think better of it, walk away, and repeat itself when all is over. It may die at any step; what
it was told is in the `Record`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from clients.nodes import LOST, is_harmless
from coordinator.coordination import COORDINATION
from idl import system
from idl.call import Principal, limited
from idl.coordination import Mq_Coordinator, Mq_Settler, SessionEnded, mqLease, mqParticipant
from idl.cos import (
    HeuristicCommit,
    HeuristicHazard,
    HeuristicMixed,
    HeuristicRollback,
    NotPrepared,
    RecoveryCoordinator,
    Resource,
    Status,
)
from idl.decider import DECIDER, SETTLEMENT, Mq_Decider, Mq_Settlement, mqVoter
from idl.mapping import Boolean, UnsignedLong, UserException, interface, operation
from idl.mq import BranchEnded, RequestOutOfOrder, mqBranch
from idl.otids import BRANCH, MARKED, SETTLER, issue, member_name, otid_of, show
from idl.places import place_of
from mqserver.transactions.resource import branch_id
from tests.simulation.customers import CALL_S, OWNER, SERVICE
from tests.simulation.network import PORT, SimulatedOrb
from tests.simulation.verdicts import DAMAGE, Attempt, Branch, Record, Told
from tests.simulation.world import World

T = TypeVar("T")

WORKING = "working"
# As long as clients ask again for what was decided, and for what was found out.
ENDING_S = 10.0
FINDING_OUT_S = 15.0
HEARTBEAT_S = 3.0
# Longer than the coordinator waits before it has a fence put up.
LATENESS_S = 26.0


@interface("Simulated")
class Working(Protocol):
    """A node, as an owner sees it that has work done there."""

    @operation(BranchEnded, RequestOutOfOrder, idempotent=True)
    def work(self, branch: mqBranch) -> None:
        """The branch has done something, with its first request."""

    @operation(BranchEnded, RequestOutOfOrder, idempotent=True)
    def get(self, branch: mqBranch) -> UnsignedLong:
        """The branch has got the next of what there is, with its first request."""

    @operation(BranchEnded, RequestOutOfOrder, idempotent=True)
    def vote(self, branch: mqBranch, request: UnsignedLong, changes: Boolean) -> Status:
        """The branch has done something or not, and is prepared, or over if it has not."""


class Ways(NamedTuple):
    """How often owners do what, as shares."""

    work_first: float = 0.25
    read_only: float = 0.1
    # Take a moment before the decision; take longer than anybody waits.
    linger: float = 0.3
    be_late: float = 0.12
    # No sign of life is given to the coordinator.
    be_silent: float = 0.1
    roll_back: float = 0.08
    walk_away: float = 0.08
    # Ask once for the decision, and not again.
    be_impatient: float = 0.3
    # Tell nobody what was decided.
    keep_silent: float = 0.15
    pester: float = 0.3
    # What is done first is a get. Of one that comes late, to a later life of a node, no good can
    # come: calls name the life that they are for.
    gets: bool = False


class Failed(Exception):
    """A branch did not vote: the transaction is given up."""


FAILURES = (system.SystemException, UserException)


class Plan(NamedTuple):
    """A transaction whose branches have voted, but for the one that decides."""

    told: Told
    node: str
    branch: mqBranch
    request: int
    prepared: list[tuple[str, str]]


class Owner:
    """Runs transactions that a node decides, and writes down what it is told."""

    def __init__(
        self, world: World, name: str, nodes: list[str], record: Record, ways: Ways
    ) -> None:
        self._world = world
        self._chance: random.Random = world.random
        self._name = name
        self._nodes = nodes
        self._record = record
        self._ways = ways
        self._orb = SimulatedOrb(world, name, principal=Principal(OWNER))
        self._service = self._at(SERVICE, COORDINATION, Mq_Coordinator)
        self._lease: mqLease | None = None
        self._drawn = 0

    def run_one(self) -> None:
        """One transaction, as far as it goes."""
        with limited(CALL_S):
            try:
                told = self._begin()
            except FAILURES:
                return
            self._end(told)

    def live(self, is_over: Callable[[], bool]) -> None:
        """Gives signs of life until then."""
        while not is_over():
            self._world.sleep(HEARTBEAT_S)
            if self._lease is None or self._happens(self._ways.be_silent):
                continue
            try:
                with limited(CALL_S):
                    self._service.renew(self._lease.session, ())
            except SessionEnded:
                self._lease = None
            except system.SystemException:
                continue

    def _at(self, host: str, name: str, interface: type[T]) -> T:
        return self._orb.proxy(f"PYRO:{name}@{host}:{PORT}", interface)

    def _happens(self, share: float) -> bool:
        return self._chance.random() < share

    def _begin(self) -> Told:
        if self._lease is None or self._happens(0.1):
            self._lease = self._service.lease(0, 0)
            self._drawn = 0
        lease = self._lease
        self._drawn += 1
        gtrid = issue(lease.prefix, lease.secret, lease.first + self._drawn)
        self._world.note("transaction", self._name, show(gtrid))
        return self._record.told.setdefault(gtrid, Told(gtrid))

    # --- Votes

    def _end(self, told: Told) -> None:
        count = self._chance.randint(2, len(self._nodes))
        decider, *voters = self._chance.sample(self._nodes, count)
        prepared: list[tuple[str, str]] = []
        try:
            branch = self._branch(told, decider, "n1", "")
            request = self._worked(told, decider, branch)
            for number, node in enumerate(voters, start=2):
                self._vote(told, node, f"n{number}", decider, prepared)
        except (Failed, *FAILURES):
            self._give_up(told, prepared)
            return
        plan = Plan(told, decider, branch, request, prepared)
        if self._linger():
            self._decide(plan)
        elif self._happens(0.5):
            self._give_up(told, prepared)

    def _branch(self, told: Told, node: str, name: str, decider: str) -> mqBranch:
        """A branch that counts, unless it turns out to have changed nothing."""
        told.branches[Branch(node, branch_id(told.gtrid, name))] = None
        recovery = None
        if decider:
            family = f"{MARKED}/{_place(decider)}"
            member = member_name(family, told.gtrid, name)
            recovery = self._at(SERVICE, member, RecoveryCoordinator)
        return mqBranch(otid_of(told.gtrid), name, recovery)

    def _worked(self, told: Told, node: str, branch: mqBranch) -> int:
        """The number of the branch's last request; something was perhaps done before."""
        if not self._happens(self._ways.work_first):
            return 1
        working = self._at(node, WORKING, Working)
        if self._ways.gets:
            item = self._insist(working.get, branch)
            self._record.given[Branch(node, branch_id(told.gtrid, branch.name))] = item
        else:
            self._insist(working.work, branch)
        return 2

    def _insist(self, ask: Callable[..., T], *arguments: object) -> T:
        """The answer; what is lost is asked for again, for a while."""
        deadline = self._world.now() + ENDING_S
        while True:
            try:
                return ask(*arguments)
            except LOST:
                if self._world.now() >= deadline:
                    raise
            self._world.sleep(0.3)

    def _vote(
        self, told: Told, node: str, name: str, decider: str, prepared: list[tuple[str, str]]
    ) -> None:
        branch = self._branch(told, node, name, decider)
        request = self._worked(told, node, branch)
        changes = request > 1 or not self._happens(self._ways.read_only)
        status = self._insist(self._at(node, WORKING, Working).vote, branch, request, changes)
        if status is Status.PREPARED:
            prepared.append((node, name))
        elif changes:
            raise Failed

    def _linger(self) -> bool:
        """Whether the owner goes on, sooner or later."""
        if self._happens(self._ways.linger):
            self._world.sleep(self._chance.uniform(0.0, 4.0))
        if self._happens(self._ways.be_late):
            self._world.sleep(self._chance.uniform(0.8, 1.2) * LATENESS_S)
        return not self._happens(self._ways.walk_away + self._ways.roll_back)

    def _give_up(self, told: Told, prepared: list[tuple[str, str]]) -> None:
        """Nobody was asked to decide it, and nobody will be."""
        told.hear(Status.ROLLED_BACK)
        self._tell(told, prepared, is_committed=False)

    # --- The decision

    def _decide(self, plan: Plan) -> None:
        told = plan.told
        branches = {Branch(node, branch_id(told.gtrid, name)) for node, name in plan.prepared}
        own = Branch(plan.node, branch_id(told.gtrid, plan.branch.name))
        told.attempts.append(Attempt(self._name, frozenset({own, *branches}), (), False))
        status = self.ask_to_decide(plan)
        if status is None:
            status = self.find_out(plan)
        if status is Status.NO_TRANSACTION:
            self._give_up(told, plan.prepared)
        if status in (None, Status.NO_TRANSACTION):
            return
        told.hear(status)
        if not self._happens(self._ways.keep_silent):
            self._tell(told, plan.prepared, status is Status.COMMITTED)
        while self._happens(self._ways.pester):
            self._pester(plan, status)

    def ask_to_decide(self, plan: Plan) -> Status | None:
        """What the node says, at last; None where that is not known.

        No transaction: it was certainly not even asked, and will not be asked again.
        """
        deadline = self._world.now() + ENDING_S
        has_done_nothing = True
        while self._world.now() < deadline:
            try:
                with limited(CALL_S):
                    return self._asked(plan)
            except BranchEnded as over:
                committed = over.outcome is Status.COMMITTED
                return Status.COMMITTED if committed else Status.ROLLED_BACK
            except system.SystemException as failed:
                has_done_nothing = has_done_nothing and is_harmless(failed)
                if not isinstance(failed, LOST) or self._happens(self._ways.be_impatient):
                    break
            self._world.sleep(0.3)
        return Status.NO_TRANSACTION if has_done_nothing else None

    def _asked(self, plan: Plan) -> Status:
        voters = [mqVoter(name, f"PYRO:{SETTLER}@{node}:{PORT}") for node, name in plan.prepared]
        decider = self._at(plan.node, DECIDER, Mq_Decider)
        where = self._at(SERVICE, SETTLEMENT, Mq_Settlement)
        return decider.decide(plan.branch, plan.request, (), where, tuple(voters))[0]

    def find_out(self, plan: Plan) -> Status | None:
        """What the coordinator hears at the node, or has been settled there with this."""
        gtrid = plan.told.gtrid
        participants = tuple(
            mqParticipant(
                name,
                self._at(node, member_name(BRANCH, gtrid, name), Resource),
                self._at(node, SETTLER, Mq_Settler),
            )
            for node, name in plan.prepared
        )
        deadline = self._world.now() + FINDING_OUT_S
        while self._world.now() < deadline:
            try:
                with limited(CALL_S):
                    arguments = otid_of(gtrid), _place(plan.node), False, participants
                    status = self._service.decideMarked(*arguments).status
                    return status if status is Status.COMMITTED else Status.ROLLED_BACK
            except (HeuristicMixed, HeuristicHazard):
                plan.told.answers.append(DAMAGE)
                return None
            except system.INVALID_TRANSACTION:
                return None
            except LOST:
                self._world.sleep(0.5)
        return None

    def _tell(self, told: Told, prepared: list[tuple[str, str]], is_committed: bool) -> None:
        for node, name in prepared:
            named = mqBranch(otid_of(told.gtrid), name, None)
            try:
                with limited(CALL_S):
                    self._at(node, DECIDER, Mq_Decider).endVoter(named, is_committed)
            except (HeuristicRollback, HeuristicCommit, NotPrepared):
                # To who gives it up it does not matter.
                if is_committed:
                    told.answers.append(DAMAGE)
            except FAILURES:
                # It will ask by itself.
                continue

    def _pester(self, plan: Plan, status: Status) -> None:
        """Says and asks again what was said and answered before, perhaps long after."""
        self._world.sleep(self._chance.choice((0.0, 1.0, 8.0)))
        if self._happens(0.5):
            self._tell(plan.told, plan.prepared, status is Status.COMMITTED)
            return
        again = self.ask_to_decide(plan)
        if again is not None:
            # What was not even asked this time tells nothing.
            plan.told.hear(again)


def _place(node: str) -> str:
    return place_of(node, PORT)
