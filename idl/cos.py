"""The Python image of `CosTransactions.idl` and `CosEvent.idl`: what crosses between the programs.

Vocabulary only: enums, structs, exceptions and one Protocol per interface. It knows no transport,
no state machine and no storage. The contract test compares every name, type, order and exception
with the IDL texts. The standard exceptions of CORBA, which IDL never lists, are in `system.py`.
"""

from __future__ import annotations

import enum
from typing import Protocol

from idl.mapping import (
    AnyValue,
    Boolean,
    InvalidValue,
    Long,
    String,
    UnsignedLong,
    UserException,
    enumeration,
    exception,
    interface,
    operation,
    struct,
)

NULL_FORMAT_ID = -1
TID_LENGTH_MAX = 128
BQUAL_LENGTH_MAX = 64


# --- CosTransactions -----------------------------------------------------------------------------


@enumeration("CosTransactions")
class Status(enum.Enum):
    """Where a transaction stands. The numbers are the OMG's; on our wire the names travel."""

    # There is one object of each: it is found by that, not by its name.
    __hash__ = object.__hash__

    ACTIVE = 0
    MARKED_ROLLBACK = 1
    PREPARED = 2
    COMMITTED = 3
    ROLLED_BACK = 4
    UNKNOWN = 5
    NO_TRANSACTION = 6
    PREPARING = 7
    COMMITTING = 8
    ROLLING_BACK = 9


@enumeration("CosTransactions")
class Vote(enum.Enum):
    """A resource's answer to prepare."""

    COMMIT = 0
    ROLLBACK = 1
    READ_ONLY = 2


@exception("CosTransactions")
class HeuristicRollback(UserException):
    """The participant rolled its part back by itself; ask its operator why."""


@exception("CosTransactions")
class HeuristicCommit(UserException):
    """The participant committed its part by itself; ask its operator why."""


@exception("CosTransactions")
class HeuristicMixed(UserException):
    """Part of the transaction was committed and part rolled back; `oncemq tx show` tells which."""


@exception("CosTransactions")
class HeuristicHazard(UserException):
    """Part of the transaction may have ended unlike the rest; `oncemq tx show` tells which."""


@exception("CosTransactions")
class SubtransactionsUnavailable(UserException):
    """This transaction can have no subtransactions."""


@exception("CosTransactions")
class NotSubtransaction(UserException):
    """The transaction is a top-level one; only subtransactions take this registration."""


@exception("CosTransactions")
class Inactive(UserException):
    """The transaction is already being ended; begin another one."""


@exception("CosTransactions")
class NotPrepared(UserException):
    """The resource has not been prepared."""


@exception("CosTransactions")
class NoTransaction(UserException):
    """The calling thread has no transaction; begin one first."""


@exception("CosTransactions")
class InvalidControl(UserException):
    """The control names no transaction that this client can join."""


@exception("CosTransactions")
class Unavailable(UserException):
    """The object asked for cannot be handed out."""


@exception("CosTransactions")
class SynchronizationUnavailable(UserException):
    """Only a top-level transaction takes synchronizations."""


@struct("CosTransactions")
class otid_t:
    """The name of a transaction, with the content of an XID; format -1 is the null name."""

    formatID: Long
    bqual_length: Long
    tid: bytes

    def __post_init__(self) -> None:
        bqual_length, tid_length = self.bqual_length, len(self.tid)
        if not 0 <= bqual_length <= tid_length or bqual_length > BQUAL_LENGTH_MAX:
            raise InvalidValue(f"otid_t.bqual_length: {bqual_length} does not fit the tid")
        if tid_length > TID_LENGTH_MAX:
            raise InvalidValue(f"otid_t.tid: {tid_length} bytes, {TID_LENGTH_MAX} are allowed")


@struct("CosTransactions")
class TransIdentity:
    """A transaction: who coordinates it, who may end it, and its name."""

    coord: Coordinator | None
    term: Terminator | None
    otid: otid_t


@struct("CosTransactions")
class PropagationContext:
    """What travels with a call made inside a transaction; timeout is what is left, in seconds."""

    timeout: UnsignedLong
    current: TransIdentity
    parents: tuple[TransIdentity, ...]
    implementation_specific_data: AnyValue


@interface("CosTransactions", local=True)
class Current(Protocol):
    """The transaction of the calling thread."""

    @operation(SubtransactionsUnavailable)
    def begin(self) -> None: ...

    @operation(NoTransaction, HeuristicMixed, HeuristicHazard)
    def commit(self, report_heuristics: Boolean) -> None: ...

    @operation(NoTransaction)
    def rollback(self) -> None: ...

    @operation(NoTransaction)
    def rollback_only(self) -> None: ...

    @operation()
    def get_status(self) -> Status: ...

    @operation()
    def get_transaction_name(self) -> String: ...

    @operation()
    def set_timeout(self, seconds: UnsignedLong) -> None: ...

    @operation()
    def get_timeout(self) -> UnsignedLong: ...

    @operation()
    def get_control(self) -> Control | None: ...

    @operation()
    def suspend(self) -> Control | None: ...

    @operation(InvalidControl)
    def resume(self, which: Control | None) -> None: ...


@interface("CosTransactions")
class TransactionFactory(Protocol):
    """Makes transactions; a timeout of 0 asks for no limit."""

    @operation()
    def create(self, time_out: UnsignedLong) -> Control: ...

    @operation()
    def recreate(self, ctx: PropagationContext) -> Control: ...


@interface("CosTransactions")
class Control(Protocol):
    """One transaction, as it is handed from caller to caller."""

    @operation(Unavailable, idempotent=True)
    def get_terminator(self) -> Terminator: ...

    @operation(Unavailable, idempotent=True)
    def get_coordinator(self) -> Coordinator: ...


@interface("CosTransactions")
class Terminator(Protocol):
    """Ends a transaction. TRANSACTION_ROLLEDBACK says that it ended the other way."""

    @operation(HeuristicMixed, HeuristicHazard)
    def commit(self, report_heuristics: Boolean) -> None: ...

    @operation()
    def rollback(self) -> None: ...


@interface("CosTransactions")
class Coordinator(Protocol):
    """What participants ask of a transaction."""

    @operation(idempotent=True)
    def get_status(self) -> Status: ...

    @operation(idempotent=True)
    def get_parent_status(self) -> Status: ...

    @operation(idempotent=True)
    def get_top_level_status(self) -> Status: ...

    @operation(idempotent=True)
    def is_same_transaction(self, tc: Coordinator | None) -> Boolean: ...

    @operation(idempotent=True)
    def is_related_transaction(self, tc: Coordinator | None) -> Boolean: ...

    @operation(idempotent=True)
    def is_ancestor_transaction(self, tc: Coordinator | None) -> Boolean: ...

    @operation(idempotent=True)
    def is_descendant_transaction(self, tc: Coordinator | None) -> Boolean: ...

    @operation(idempotent=True)
    def is_top_level_transaction(self) -> Boolean: ...

    @operation(idempotent=True)
    def hash_transaction(self) -> UnsignedLong: ...

    @operation(idempotent=True)
    def hash_top_level_tran(self) -> UnsignedLong: ...

    # Not idempotent: each registration adds a participant.
    @operation(Inactive)
    def register_resource(self, r: Resource | None) -> RecoveryCoordinator: ...

    @operation(Inactive, SynchronizationUnavailable)
    def register_synchronization(self, sync: Synchronization | None) -> None: ...

    @operation(Inactive, NotSubtransaction)
    def register_subtran_aware(self, r: SubtransactionAwareResource | None) -> None: ...

    @operation(Inactive, idempotent=True)
    def rollback_only(self) -> None: ...

    @operation(idempotent=True)
    def get_transaction_name(self) -> String: ...

    @operation(SubtransactionsUnavailable, Inactive)
    def create_subtransaction(self) -> Control: ...

    @operation(Unavailable, idempotent=True)
    def get_txcontext(self) -> PropagationContext: ...


@interface("CosTransactions")
class RecoveryCoordinator(Protocol):
    """Answers a prepared resource that has not heard the outcome."""

    @operation(NotPrepared, idempotent=True)
    def replay_completion(self, r: Resource | None) -> Status: ...


@interface("CosTransactions")
class Resource(Protocol):
    """A participant. Every one of these calls may come again, and gets the same answer."""

    @operation(HeuristicMixed, HeuristicHazard, idempotent=True)
    def prepare(self) -> Vote: ...

    @operation(HeuristicCommit, HeuristicMixed, HeuristicHazard, idempotent=True)
    def rollback(self) -> None: ...

    @operation(NotPrepared, HeuristicRollback, HeuristicMixed, HeuristicHazard, idempotent=True)
    def commit(self) -> None: ...

    # Not idempotent: a participant that has committed alone keeps nothing to recognise a repeat by.
    @operation(HeuristicHazard)
    def commit_one_phase(self) -> None: ...

    @operation(idempotent=True)
    def forget(self) -> None: ...


@interface("CosTransactions")
class TransactionalObject(Protocol):
    """The marker of objects to which the transaction travels implicitly."""


@interface("CosTransactions")
class Synchronization(Protocol):
    """Is told before a transaction is committed, and after it has ended."""

    @operation()
    def before_completion(self) -> None: ...

    @operation()
    def after_completion(self, s: Status) -> None: ...


@interface("CosTransactions")
class SubtransactionAwareResource(Resource, Protocol):
    """A participant that follows the ends of subtransactions as they come."""

    @operation()
    def commit_subtransaction(self, parent: Coordinator | None) -> None: ...

    @operation()
    def rollback_subtransaction(self) -> None: ...


# --- CosEventComm and CosEventChannelAdmin -------------------------------------------------------


@exception("CosEventComm")
class Disconnected(UserException):
    """This end of the channel is not connected; connect again to go on."""


@exception("CosEventChannelAdmin")
class AlreadyConnected(UserException):
    """This end of the channel is connected already; obtain another one."""


@exception("CosEventChannelAdmin")
class TypeError(UserException):
    """The channel cannot use a peer of this type."""


@interface("CosEventComm")
class PushConsumer(Protocol):
    """Is handed each event."""

    @operation(Disconnected)
    def push(self, data: AnyValue) -> None: ...

    @operation()
    def disconnect_push_consumer(self) -> None: ...


@interface("CosEventComm")
class PushSupplier(Protocol):
    """Hands out events by itself."""

    @operation()
    def disconnect_push_supplier(self) -> None: ...


@interface("CosEventComm")
class PullSupplier(Protocol):
    """Is asked for events."""

    @operation(Disconnected)
    def pull(self) -> AnyValue: ...

    @operation(Disconnected, out=("has_event",))
    def try_pull(self) -> tuple[AnyValue, Boolean]: ...

    @operation()
    def disconnect_pull_supplier(self) -> None: ...


@interface("CosEventComm")
class PullConsumer(Protocol):
    """Asks for events."""

    @operation()
    def disconnect_pull_consumer(self) -> None: ...


@interface("CosEventChannelAdmin")
class ProxyPushConsumer(PushConsumer, Protocol):
    """The channel, as a push supplier sees it."""

    @operation(AlreadyConnected)
    def connect_push_supplier(self, push_supplier: PushSupplier | None) -> None: ...


@interface("CosEventChannelAdmin")
class ProxyPullSupplier(PullSupplier, Protocol):
    """The channel, as a pull consumer sees it."""

    @operation(AlreadyConnected)
    def connect_pull_consumer(self, pull_consumer: PullConsumer | None) -> None: ...


@interface("CosEventChannelAdmin")
class ProxyPullConsumer(PullConsumer, Protocol):
    """The channel, as a pull supplier sees it."""

    @operation(AlreadyConnected, TypeError)
    def connect_pull_supplier(self, pull_supplier: PullSupplier | None) -> None: ...


@interface("CosEventChannelAdmin")
class ProxyPushSupplier(PushSupplier, Protocol):
    """The channel, as a push consumer sees it."""

    @operation(AlreadyConnected, TypeError)
    def connect_push_consumer(self, push_consumer: PushConsumer | None) -> None: ...


@interface("CosEventChannelAdmin")
class ConsumerAdmin(Protocol):
    """The way in for consumers."""

    @operation()
    def obtain_push_supplier(self) -> ProxyPushSupplier: ...

    @operation()
    def obtain_pull_supplier(self) -> ProxyPullSupplier: ...


@interface("CosEventChannelAdmin")
class SupplierAdmin(Protocol):
    """The way in for suppliers."""

    @operation()
    def obtain_push_consumer(self) -> ProxyPushConsumer: ...

    @operation()
    def obtain_pull_consumer(self) -> ProxyPullConsumer: ...


@interface("CosEventChannelAdmin")
class EventChannel(Protocol):
    """Every consumer hears of every event, whoever supplied it and in whatever way."""

    @operation(idempotent=True)
    def for_consumers(self) -> ConsumerAdmin: ...

    @operation(idempotent=True)
    def for_suppliers(self) -> SupplierAdmin: ...

    @operation()
    def destroy(self) -> None: ...
