"""The objects of CosTransactions that the coordinator publishes: thin; they translate and pass on.

None of them is kept. Each belongs to a transaction and has a name made from the transaction's, so
that a reference given out before a restart still leads to its object afterwards. Whoever holds one
was given it: the names cannot be guessed. To end a transaction one must be its owner besides.
"""

from __future__ import annotations

import zlib
from collections import deque

from coordinator.family import ancestors, top_of
from coordinator.ledger import Member
from coordinator.live import Live
from coordinator.outcomes import Heuristic, Outcome
from coordinator.protocol import answer_to
from coordinator.service import CONTROL, COORDINATOR, TERMINATOR, Service
from coordinator.transactions import Known
from idl import system
from idl.call import Reference, current_call
from idl.cos import (
    Control,
    Coordinator,
    HeuristicHazard,
    HeuristicMixed,
    Inactive,
    NotPrepared,
    NotSubtransaction,
    PropagationContext,
    RecoveryCoordinator,
    Resource,
    Status,
    SubtransactionAwareResource,
    Synchronization,
    SynchronizationUnavailable,
    Terminator,
    TransactionFactory,
    Unavailable,
)
from idl.mapping import InvalidValue
from idl.otids import RECOVERY, show, split_member, split_otid

FACTORY = "factory"
# Those that register themselves are named so, with a number behind it; nobody else may be.
REGISTERED = "r"
SYNCHRONIZATIONS_MAX = 100
CONTROLS_IMPORTED_MAX = 1000


def publish(service: Service) -> None:
    """Everything of CosTransactions can be called."""
    orb = service.orb
    orb.publish(FactoryServant(service), TransactionFactory, FACTORY)
    orb.publish_family(CONTROL, lambda rest: ControlServant(service, rest), Control)
    orb.publish_family(TERMINATOR, lambda rest: TerminatorServant(service, rest), Terminator)
    orb.publish_family(COORDINATOR, lambda rest: CoordinatorServant(service, rest), Coordinator)
    orb.publish_family(
        RECOVERY, lambda rest: RecoveryCoordinatorServant(service, rest), RecoveryCoordinator
    )


def caller() -> str:
    """Who is calling."""
    return current_call().principal.name


def is_of_registered(name: str) -> bool:
    """Whether a participant that registers itself may be given this name."""
    return name.startswith(REGISTERED) and name[len(REGISTERED) :].isdecimal()


def check_owner(live: Live) -> Live:
    """The transaction, if it is the caller's. Another's looks like one that never was."""
    if live.owner != current_call().principal.name:
        raise system.INVALID_TRANSACTION("there is no such transaction of this caller's")
    return live


def tell(outcome: Outcome) -> Outcome:
    """The outcome itself, or the heuristic exception for what went wrong with it."""
    if outcome.damage is Heuristic.HAZARD:
        raise HeuristicHazard()
    if outcome.damage is not None:
        raise HeuristicMixed()
    return outcome


class FactoryServant:
    """See `TransactionFactory`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._imported: deque[Control] = deque()

    def create(self, time_out: int) -> Control:
        """A new top-level transaction; 0 asks for no limit, and gets the longest there is."""
        return self._service.control_of(self._service.transactions.begin(caller(), time_out))

    def recreate(self, ctx: PropagationContext) -> Control:
        """The control of the transaction that the context speaks of, ours or another service's."""
        try:
            gtrid, _ = split_otid(ctx.current.otid)
            known = self._service.transactions.find(gtrid)
        except InvalidValue:
            known = Outcome(Status.UNKNOWN)
        if isinstance(known, Live):
            return self._service.control_of(known)
        if known.status is not Status.UNKNOWN or ctx.current.coord is None:
            raise system.INVALID_TRANSACTION("the transaction of this context is over")
        imported = ImportedControl(ctx.current.coord, ctx.current.term)
        control = self._service.orb.publish(imported, Control)
        self._imported.append(control)
        if len(self._imported) > CONTROLS_IMPORTED_MAX:
            # The oldest goes: whoever still needs it imports it again.
            self._service.orb.withdraw(self._imported.popleft())
        return control


class ImportedControl:
    """The control of a transaction that another service coordinates."""

    def __init__(self, coordinator: Coordinator, terminator: Terminator | None) -> None:
        self._coordinator = coordinator
        self._terminator = terminator

    def get_terminator(self) -> Terminator:
        """See `Control.get_terminator`; whoever imports may not be allowed to end it."""
        if self._terminator is None:
            raise Unavailable()
        return self._terminator

    def get_coordinator(self) -> Coordinator:
        """See `Control.get_coordinator`."""
        return self._coordinator


class _OfTransaction:
    """What the objects of a transaction have in common: they find it anew with every call."""

    def __init__(self, service: Service, rest: str) -> None:
        self._service = service
        self._gtrid, self._branch = split_member(rest)

    def _known(self) -> Known:
        return self._service.transactions.find(self._gtrid)

    def _live(self) -> Live:
        known = self._known()
        if isinstance(known, Live):
            return known
        if known.status is Status.ROLLED_BACK:
            raise system.TRANSACTION_ROLLEDBACK(known.reason, system.Completion.YES)
        raise Inactive()


class ControlServant(_OfTransaction):
    """See `Control`."""

    def get_terminator(self) -> Terminator:
        """See `Control.get_terminator`."""
        return self._service.terminator_of(self._found())

    def get_coordinator(self) -> Coordinator:
        """See `Control.get_coordinator`."""
        return self._service.coordinator_of(self._found())

    def _found(self) -> Live:
        known = self._known()
        if not isinstance(known, Live):
            raise Unavailable()
        return known


class TerminatorServant(_OfTransaction):
    """See `Terminator`."""

    def commit(self, report_heuristics: bool) -> None:
        """Committed when it returns. A second call says what the first one said."""
        known = self._known()
        outcome = (
            self._service.family.commit(check_owner(known)) if isinstance(known, Live) else known
        )
        if report_heuristics:
            tell(outcome)
        if outcome.status is Status.UNKNOWN:
            raise system.INVALID_TRANSACTION(outcome.reason, system.Completion.MAYBE)
        if outcome.status is Status.ROLLED_BACK:
            raise system.TRANSACTION_ROLLEDBACK(outcome.reason, system.Completion.YES)

    def rollback(self) -> None:
        """Rolled back when it returns, unless it was committed before."""
        known = self._known()
        outcome = known
        if isinstance(known, Live):
            outcome = self._service.family.rollback(check_owner(known), "its owner rolled it back")
        assert isinstance(outcome, Outcome)
        if outcome.is_committed:
            raise system.INVALID_TRANSACTION("it has been committed", system.Completion.NO)
        if outcome.status is Status.UNKNOWN:
            raise system.INVALID_TRANSACTION(outcome.reason, system.Completion.MAYBE)


class RecoveryCoordinatorServant(_OfTransaction):
    """See `RecoveryCoordinator`."""

    def replay_completion(self, r: Resource | None) -> Status:
        """How the branch is to end. PREPARING and UNKNOWN: it is not known; ask again."""
        known = self._known()
        if isinstance(known, Outcome):
            return self._over()
        with self._service.transactions.lock:
            number = known.numbers.get(self._branch)
            answer = answer_to(known.state, number is not None, number)
        if answer is None:
            self._service.transactions.mark(known, "a participant has lost its work")
            raise NotPrepared()
        return answer

    def _over(self) -> Status:
        if self._service.log.ledger.was_named(self._gtrid, self._branch):
            # One that an operator had given up, or that had ended alone, and still asks.
            return Status.COMMITTED
        if self._service.transactions.is_foreign(self._gtrid):
            return Status.UNKNOWN
        # Whoever asks is prepared, so a decision that names it would still be live.
        return Status.ROLLED_BACK


class CoordinatorServant(_OfTransaction):
    """See `Coordinator`."""

    # --- Status

    def get_status(self) -> Status:
        """See `Coordinator.get_status`."""
        known = self._known()
        return known.state.status if isinstance(known, Live) else known.status

    def get_parent_status(self) -> Status:
        """The parent's status; that of a top-level transaction is its own."""
        known = self._known()
        if isinstance(known, Live):
            return (known.parent or known).state.status
        return known.status

    def get_top_level_status(self) -> Status:
        """The status of the family's top-level transaction."""
        known = self._known()
        return top_of(known).state.status if isinstance(known, Live) else known.status

    # --- Comparing

    def is_same_transaction(self, tc: Coordinator | None) -> bool:
        """See `Coordinator.is_same_transaction`."""
        return self._gtrid_of(tc) == self._gtrid

    def is_related_transaction(self, tc: Coordinator | None) -> bool:
        """Whether both belong to one family."""
        own, other = self._line(self._gtrid), self._line(self._gtrid_of(tc))
        return bool(other) and own[-1] == other[-1]

    def is_ancestor_transaction(self, tc: Coordinator | None) -> bool:
        """Whether this one is the other's ancestor; everybody is their own."""
        return self._gtrid in self._line(self._gtrid_of(tc))

    def is_descendant_transaction(self, tc: Coordinator | None) -> bool:
        """Whether the other one is this one's ancestor."""
        return self._gtrid_of(tc) in self._line(self._gtrid)

    def is_top_level_transaction(self) -> bool:
        """See `Coordinator.is_top_level_transaction`."""
        known = self._known()
        return not isinstance(known, Live) or known.parent is None

    def hash_transaction(self) -> int:
        """See `Coordinator.hash_transaction`."""
        return zlib.crc32(self._gtrid)

    def hash_top_level_tran(self) -> int:
        """See `Coordinator.hash_top_level_tran`."""
        return zlib.crc32(self._line(self._gtrid)[-1])

    def _gtrid_of(self, tc: Coordinator | None) -> bytes:
        if tc is None:
            return b""
        reference = Reference.parse(self._service.orb.reference_of(tc))
        own = Reference.parse(
            self._service.orb.reference_of(self._service.orb.member(FACTORY, TransactionFactory))
        )
        family, _, rest = reference.name.partition("/")
        if reference.address != own.address or family != COORDINATOR:
            return b""
        return split_member(rest)[0]

    def _line(self, gtrid: bytes) -> list[bytes]:
        if not gtrid:
            return []
        known = self._service.transactions.find(gtrid)
        return [each.gtrid for each in ancestors(known)] if isinstance(known, Live) else [gtrid]

    # --- Taking part

    def register_resource(self, r: Resource | None) -> RecoveryCoordinator:
        """The resource takes part; whom it asks for the outcome."""
        if r is None:
            raise system.BAD_PARAM("a resource is needed, and nil was given")
        live = self._live()
        transactions = self._service.transactions
        top = top_of(live)
        with transactions.lock:
            top.registered += 1
            # Unique in the family, so that it stays the same when the parent inherits it.
            name = f"{REGISTERED}{top.registered}"
            member = Member(name, self._service.orb.reference_of(r))
            if transactions.join(live, member, r) is None:
                self._refuse(live)
        return self._service.recovery_of(top.gtrid, name)

    def register_synchronization(self, sync: Synchronization | None) -> None:
        """The synchronization is told before the commit, and after the end."""
        if sync is None:
            raise system.BAD_PARAM("a synchronization is needed, and nil was given")
        live = self._live()
        if live.parent is not None:
            raise SynchronizationUnavailable()
        with self._service.transactions.lock:
            if live.state.status is not Status.ACTIVE:
                self._refuse(live)
            if len(live.synchronizations) >= SYNCHRONIZATIONS_MAX:
                raise system.IMP_LIMIT(f"{SYNCHRONIZATIONS_MAX} synchronizations are registered")
            live.synchronizations.append(sync)

    def register_subtran_aware(self, r: SubtransactionAwareResource | None) -> None:
        """The resource hears how this subtransaction ends."""
        if r is None:
            raise system.BAD_PARAM("a resource is needed, and nil was given")
        live = self._live()
        if live.parent is None:
            raise NotSubtransaction()
        with self._service.transactions.lock:
            if live.state.status is not Status.ACTIVE:
                self._refuse(live)
            live.aware.append(r)

    def _refuse(self, live: Live) -> None:
        if live.state.status is Status.MARKED_ROLLBACK:
            raise system.TRANSACTION_ROLLEDBACK(live.state.reason)
        raise Inactive()

    def rollback_only(self) -> None:
        """The transaction can only be rolled back."""
        live = self._live()
        if not self._service.transactions.mark(live, f"{caller()} allows nothing but a rollback"):
            raise Inactive()

    def create_subtransaction(self) -> Control:
        """See `Coordinator.create_subtransaction`."""
        live = check_owner(self._live())
        child = self._service.family.subtransaction(live, caller())
        if child is None:
            raise Inactive()
        return self._service.control_of(child)

    def get_transaction_name(self) -> str:
        """The name as operators read it."""
        return show(self._gtrid)

    def get_txcontext(self) -> PropagationContext:
        """What travels with calls that are made inside the transaction."""
        known = self._known()
        if not isinstance(known, Live):
            raise Unavailable()
        return self._service.context_of(known)
