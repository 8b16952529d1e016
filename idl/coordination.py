"""The Python image of `Mq_Coordinator.idl`: what the coordinator offers beyond CosTransactions.

Vocabulary only, as `cos.py` and `mq.py` are. It knows no transport, no state machine and no disk.
"""

from __future__ import annotations

from typing import Annotated, Protocol

from idl.cos import HeuristicHazard, HeuristicMixed, NotPrepared, Resource, Status, otid_t
from idl.mapping import (
    Boolean,
    String,
    Text,
    UnsignedLong,
    UnsignedLongLong,
    UserException,
    exception,
    interface,
    operation,
    struct,
)

BranchName = Annotated[str, Text(64)]
Application = Annotated[str, Text(128)]
DatabaseName = Annotated[str, Text(32)]
Place = Annotated[str, Text(64)]
Role = Annotated[str, Text(64)]
mqOtidList = tuple[otid_t, ...]


@struct()
class mqLease:
    """A block of names that a client gives to its transactions, and the session that holds it."""

    session: UnsignedLongLong
    prefix: bytes
    first: UnsignedLongLong
    count: UnsignedLong
    secret: bytes
    duration: UnsignedLong

    def __repr__(self) -> str:
        return f"mqLease(session={self.session}, first={self.first}, count={self.count})"


@interface()
class Mq_Settler(Protocol):
    """Commits many branches durably; who has one may answer commit before it is on disk."""

    @operation(idempotent=True)
    def commitBranches(self, branches: mqOtidList) -> mqOtidList: ...

    @operation(NotPrepared, idempotent=True)
    def settle(self, branches: mqOtidList) -> None: ...

    @operation(idempotent=True)
    def getEnded(self, branches: mqOtidList) -> mqOtidList: ...


@struct()
class mqParticipant:
    """A branch that has been prepared, and the name under which it asks for the outcome."""

    name: BranchName
    resource: Resource | None
    settler: Mq_Settler | None


mqParticipantList = tuple[mqParticipant, ...]


@struct()
class mqOutcome:
    """How a transaction ended, or where it stands; the reason says why it was rolled back."""

    status: Status
    reason: String


@struct()
class mqTransactionKey:
    """A transaction of a named application; version 0 is no key."""

    application: Application
    version: UnsignedLongLong


@struct()
class mqBegun:
    """Active: work under the otid. Committed: this version or a later one has been committed."""

    status: Status
    otid: otid_t
    isJoined: Boolean


@struct()
class mqDatabase:
    """A database that can take part; its table has an identity once the coordinator found it."""

    name: String
    kind: String
    dsn: String
    table: String
    identity: String
    isTwoPhase: Boolean


mqDatabaseList = tuple[mqDatabase, ...]


@exception()
class DatabaseNotFound(UserException):
    """No database is registered under this name; `oncemq database add` registers one."""

    database: String


@exception("Mq_Coordinator")
class SessionEnded(UserException):
    """The session was silent for too long: what it had not decided is rolled back. Begin again."""


@interface()
class Mq_Coordinator(Protocol):
    """Transactions that cost few calls, and transactions under a key."""

    # Not idempotent: a repeat takes another block, and opens another session.
    @operation(SessionEnded)
    def lease(self, session: UnsignedLongLong, oldest: UnsignedLongLong) -> mqLease: ...

    @operation(SessionEnded, idempotent=True)
    def renew(self, session: UnsignedLongLong, transactions: mqOtidList) -> None: ...

    @operation(idempotent=True)
    def endSession(self, session: UnsignedLongLong) -> None: ...

    @operation(SessionEnded, idempotent=True)
    def beginOrJoin(
        self, session: UnsignedLongLong, key: mqTransactionKey, timeout: UnsignedLong
    ) -> mqBegun: ...

    @operation(idempotent=True)
    def getVersion(self, application: Application) -> UnsignedLongLong: ...

    @operation(HeuristicMixed, HeuristicHazard, idempotent=True)
    def decide(self, otid: otid_t, participants: mqParticipantList) -> mqOutcome: ...

    @operation(HeuristicMixed, HeuristicHazard, idempotent=True)
    def decideForetold(self, otid: otid_t, participants: mqParticipantList) -> mqOutcome: ...

    @operation(DatabaseNotFound, HeuristicMixed, HeuristicHazard, idempotent=True)
    def decideMarked(
        self,
        otid: otid_t,
        place: Place,
        isMarked: Boolean,
        participants: mqParticipantList,
    ) -> mqOutcome: ...

    @operation(idempotent=True)
    def giveUp(self, otid: otid_t) -> mqOutcome: ...

    @operation(idempotent=True)
    def getOutcome(self, otid: otid_t) -> mqOutcome: ...

    @operation(idempotent=True)
    def listDatabases(self) -> mqDatabaseList: ...


# --- For operators -------------------------------------------------------------------------------


@struct()
class mqParticipantInfo:
    """A participant as an operator sees it."""

    name: String
    resource: String
    state: String
    attempts: UnsignedLong
    trouble: String


@struct()
class mqTransactionInfo:
    """A transaction as an operator sees it; times in seconds."""

    otid: otid_t
    status: Status
    owner: String
    key: mqTransactionKey
    age: UnsignedLongLong
    timeLeft: UnsignedLongLong
    explanation: String
    participants: tuple[mqParticipantInfo, ...]


mqTransactionInfoList = tuple[mqTransactionInfo, ...]


@struct()
class mqDatabaseSettings:
    """A database that is to take part, and where its password is; the grace in milliseconds."""

    name: DatabaseName
    dsn: String
    passwordFile: String
    passwordEnv: String
    schema: String
    grace: UnsignedLong


@struct()
class mqDatabaseInfo:
    """A database as it was last found, and what was prepared there; the age in seconds."""

    database: mqDatabase
    isReachable: Boolean
    trouble: String
    ours: UnsignedLong
    others: UnsignedLong
    oldest: UnsignedLongLong


mqDatabaseInfoList = tuple[mqDatabaseInfo, ...]


@exception("Mq_TransactionAdmin")
class TransactionNotFound(UserException):
    """The coordinator knows no such transaction: it is over, or was never begun here."""

    otid: otid_t


@interface()
class Mq_TransactionAdmin(Protocol):
    """What an operator sees of transactions, and may do to them."""

    @operation(idempotent=True)
    def listTransactions(self) -> mqTransactionInfoList: ...

    @operation(TransactionNotFound, idempotent=True)
    def getTransaction(self, otid: otid_t) -> mqTransactionInfo: ...

    @operation(TransactionNotFound)
    def rollbackTransaction(self, otid: otid_t) -> mqOutcome: ...

    @operation(TransactionNotFound)
    def forgetTransaction(self, otid: otid_t) -> UnsignedLong: ...

    @operation(idempotent=True)
    def listDatabaseInfos(self) -> mqDatabaseInfoList: ...

    @operation(idempotent=True)
    def addDatabase(self, settings: mqDatabaseSettings) -> mqDatabaseInfo: ...

    @operation(DatabaseNotFound)
    def removeDatabase(self, name: DatabaseName) -> None: ...

    @operation(DatabaseNotFound, idempotent=True)
    def prepareDatabase(self, name: DatabaseName, role: Role) -> mqDatabaseInfo: ...
