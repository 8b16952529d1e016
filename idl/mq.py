"""The Python image of the `Mq_*.idl` files: messages, queues and the interfaces of a node.

Vocabulary only: structs, exceptions and one Protocol per interface, each value checked when it is
made. It knows no transport, no storage and no order of messages. The contract test compares every
name, type, order and exception with the IDL texts. It is long because a node has many operations.
"""

from __future__ import annotations

import enum
import re
from typing import Annotated, Protocol

from idl.cos import Control, NotPrepared, RecoveryCoordinator, Status, Vote, otid_t
from idl.mapping import (
    Boolean,
    InvalidValue,
    String,
    Text,
    UnsignedLong,
    UnsignedLongLong,
    UnsignedShort,
    UserException,
    enumeration,
    exception,
    interface,
    operation,
    struct,
)

KEY_LENGTH = 15
QUEUE_NAME_LENGTH_MAX = 128
USEC_PER_SEC = 1_000_000

_QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)

mqPayload = bytes
mqKey = Annotated[str, Text(KEY_LENGTH)]
mqQueueName = Annotated[str, Text(QUEUE_NAME_LENGTH_MAX)]
mqKeyList = tuple[mqKey, ...]
mqKeyListList = tuple[mqKeyList, ...]
Sender = Annotated[str, Text(255)]
Name = Annotated[str, Text(128)]


def check_queue_name(name: str) -> str:
    """The name itself, when it is one that a queue can have."""
    if not _QUEUE_NAME.fullmatch(name) or len(name) > QUEUE_NAME_LENGTH_MAX or set(name) == {"."}:
        raise InvalidValue(
            f"queue name {name[:60]!r}: use 1 to {QUEUE_NAME_LENGTH_MAX} letters, digits, "
            "dots, hyphens and underscores"
        )
    return name


# --- Messages ------------------------------------------------------------------------------------


@struct()
class mqTimestamp:
    """Seconds and microseconds since 1970-01-01 UTC."""

    mq_sec: UnsignedLong
    mq_usec: UnsignedLong

    def __post_init__(self) -> None:
        if self.mq_usec >= USEC_PER_SEC:
            raise InvalidValue(f"mqTimestamp.mq_usec: {self.mq_usec} is a second or more")


@struct()
class mqHeader:
    """A higher priority goes first; group 0 speaks to every consumer; the queue sets the time."""

    priority: UnsignedShort
    groupID: UnsignedShort
    time: mqTimestamp
    senderID: Sender


@struct()
class mqAttribute:
    """One pair; the same key may occur more than once."""

    key: String
    value: String


mqAttribList = tuple[mqAttribute, ...]


@struct()
class mqBatch:
    """Messages in columns; one that is empty, other than payloads, means the default for all."""

    payloads: tuple[bytes, ...]
    digests: tuple[UnsignedLong, ...]
    priorities: tuple[UnsignedShort, ...]
    groups: tuple[UnsignedShort, ...]
    times: tuple[mqTimestamp, ...]
    senders: tuple[Sender, ...]
    attribs: tuple[mqAttribList, ...]

    def __post_init__(self) -> None:
        count = len(self.payloads)
        if len(self.digests) != count:
            raise InvalidValue(f"mqBatch.digests: {len(self.digests)} for {count} payloads")
        if self.priorities or self.groups or self.times or self.senders or self.attribs:
            self._check_columns(count)

    def _check_columns(self, count: int) -> None:
        for name in ("priorities", "groups", "times", "senders", "attribs"):
            found = len(getattr(self, name))
            if found not in (0, count):
                raise InvalidValue(f"mqBatch.{name}: {found} values for {count} payloads")


@struct()
class mqTaken:
    """What a get or a browse brings: messages and their keys, in the queue's order."""

    keys: mqKeyList
    messages: mqBatch

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.messages.payloads):
            raise InvalidValue(f"mqTaken: {len(self.keys)} keys for the messages")


# --- Work of a transaction -----------------------------------------------------------------------


@struct()
class mqNodeInfo:
    """What a client must know of a node; `coordinator` is the one it recommends, as host:port."""

    name: Name
    coordinator: Sender
    messageBytesMax: UnsignedLongLong


@enumeration()
class mqCompletion(enum.Enum):
    """How a push-down leaves the branch."""

    NONE = 0
    PREPARE = 1
    COMMIT_ONE_PHASE = 2


@struct()
class mqBranch:
    """Part of a transaction at a node; the null otid stands for no transaction."""

    otid: otid_t
    name: Name
    recovery: RecoveryCoordinator | None


@struct()
class mqSelection:
    """Messages of a group (0 for all), of a priority or above, that carry all the attributes."""

    groupID: UnsignedShort
    priorityMin: UnsignedShort
    attribs: mqAttribList


@struct()
class mqWork:
    """All that one push-down puts into, and removes from, one queue."""

    queue: mqQueueName
    puts: mqBatch
    removes: mqKeyList


mqWorkList = tuple[mqWork, ...]


# --- What can go wrong ---------------------------------------------------------------------------


@exception()
class QueueDisabled(UserException):
    """The queue is switched off; nothing was changed. `oncemq queue enable` switches it on."""

    queue: mqQueueName


@exception()
class QueueNotFound(UserException):
    """There is no such queue; `oncemq queue create` makes one."""

    queue: mqQueueName


@exception()
class QueueFull(UserException):
    """The queue has reached its limit; nothing was put. Get messages, or raise the limit."""

    queue: mqQueueName
    limit: UnsignedLongLong


@exception()
class MessageNotFound(UserException):
    """No message with this key can be got from the queue."""

    queue: mqQueueName
    key: mqKey


@exception()
class LockTimeout(UserException):
    """Another transaction holds the message; nothing was changed. Try the transaction again."""

    queue: mqQueueName
    key: mqKey


@exception()
class Deadlock(UserException):
    """Transactions waited for each other, and this one was rolled back. Try it again."""

    victim: String


@exception("Mq_Fifo")
class QueueEmpty(UserException):
    """There is nothing to get now: the queue is empty, or others hold all that is in it."""

    queue: mqQueueName


@exception("Mq_Admin")
class QueueExists(UserException):
    """There is a queue with this name already."""

    queue: mqQueueName


@exception("Mq_Admin")
class QueueInUse(UserException):
    """The queue holds messages or is worked on, and was kept. Empty it first."""

    queue: mqQueueName
    messages: UnsignedLongLong


@exception("Mq_Admin")
class BranchNotFound(UserException):
    """The node knows no such branch."""

    otid: otid_t


@exception("Mq_Admin")
class ConsumerNotFound(UserException):
    """The node knows no such consumer."""

    consumer: Name


@exception("Mq_Node")
class BranchEnded(UserException):
    """The branch is over, or never was, and takes no more work."""

    outcome: Status


@exception("Mq_Node")
class RequestOutOfOrder(UserException):
    """The request number does not follow the last one; nothing was changed."""

    expected: UnsignedLong


@exception("Mq_Node")
class DigestMismatch(UserException):
    """A payload does not have the digest that came with it; nothing was stored. Send it again."""

    position: UnsignedLong


@exception("Mq_Node")
class ReservationOutdated(UserException):
    """The consumer has finished more than its checkpoint says; an old checkpoint came back."""

    done: UnsignedLongLong


@exception("Mq_Node")
class ReservationNotFound(UserException):
    """There is no such reservation."""

    reservation: UnsignedLongLong


# --- Interfaces of a queue -----------------------------------------------------------------------


@interface()
class Mq_Standard(Protocol):
    """Random access to one queue, by the key that the queue makes."""

    @operation(QueueDisabled, QueueFull, out=("key",))
    def mqPut(
        self, ctrl: Control | None, header: mqHeader, attrib: mqAttribList, data: mqPayload
    ) -> mqKey: ...

    @operation(
        QueueDisabled, MessageNotFound, LockTimeout, Deadlock, out=("header", "attrib", "data")
    )
    def mqGet(
        self, ctrl: Control | None, key: mqKey
    ) -> tuple[mqHeader, mqAttribList, mqPayload]: ...

    @operation(QueueDisabled, out=("header", "attrib", "data"), idempotent=True)
    def mqRead(self, key: mqKey) -> tuple[Boolean, mqHeader, mqAttribList, mqPayload]: ...

    # Not idempotent: a repeat would answer that there was no such message.
    @operation(QueueDisabled, LockTimeout)
    def mqRemove(self, key: mqKey) -> Boolean: ...

    @operation(QueueDisabled, MessageNotFound, out=("attrib",), idempotent=True)
    def mqGetAttribList(self, key: mqKey) -> mqAttribList: ...

    @operation(QueueDisabled)
    def mqStartNotify(self, channelName: Name, groupID: UnsignedShort) -> None: ...


@interface()
class Mq_Fifo(Protocol):
    """One queue in order: by time, or by priority and then by time."""

    @operation(QueueDisabled, QueueFull)
    def mqPut(
        self, ctrl: Control | None, header: mqHeader, attrib: mqAttribList, data: mqPayload
    ) -> None: ...

    @operation(QueueDisabled, QueueEmpty, out=("header", "attrib", "data"))
    def mqGetNext(self, ctrl: Control | None) -> tuple[mqHeader, mqAttribList, mqPayload]: ...

    @operation(QueueDisabled)
    def mqStartNotify(self, channelName: Name, groupID: UnsignedShort) -> None: ...

    @operation(QueueDisabled, idempotent=True)
    def mqSetPriorization(self, b: Boolean) -> None: ...

    @operation(QueueDisabled, idempotent=True)
    def mqGetPriorization(self) -> Boolean: ...


# --- Interfaces of a node ------------------------------------------------------------------------


@interface()
class Mq_Service(Protocol):
    """The switches of a node; they work while the queues are switched off."""

    @operation(idempotent=True)
    def mqShutdown(self) -> None: ...

    @operation(idempotent=True)
    def setEnabled(self, b: Boolean) -> None: ...

    @operation(idempotent=True)
    def isEnabled(self) -> Boolean: ...

    @operation(idempotent=True)
    def getStatus(self) -> String: ...


@struct()
class mqQueueSettings:
    """How a queue behaves; a limit of 0 is no limit."""

    enabled: Boolean
    prioritized: Boolean
    messagesMax: UnsignedLongLong
    bytesMax: UnsignedLongLong


@struct()
class mqQueueInfo:
    """What a queue holds; `oldest` is the age of its oldest message in seconds."""

    queue: mqQueueName
    settings: mqQueueSettings
    visible: UnsignedLongLong
    locked: UnsignedLongLong
    bytes: UnsignedLongLong
    oldest: UnsignedLongLong


@struct()
class mqBranchInfo:
    """One transaction's part at the node; `age` in seconds, since it was prepared if it was."""

    otid: otid_t
    state: Status
    owner: Sender
    age: UnsignedLongLong
    stored: UnsignedLongLong
    deleted: UnsignedLongLong
    coordinator: String


@struct()
class mqConsumerInfo:
    """What a named consumer has reserved; `age` of its oldest reservation in seconds."""

    consumer: Name
    queue: mqQueueName
    reserved: UnsignedLongLong
    age: UnsignedLongLong


mqQueueInfoList = tuple[mqQueueInfo, ...]
mqBranchInfoList = tuple[mqBranchInfo, ...]
mqConsumerInfoList = tuple[mqConsumerInfo, ...]


@interface()
class Mq_Admin(Mq_Service, Protocol):
    """What administration needs beyond Mq_Service."""

    @operation(QueueExists)
    def createQueue(self, queue: mqQueueName, settings: mqQueueSettings) -> None: ...

    @operation(QueueNotFound, idempotent=True)
    def changeQueue(self, queue: mqQueueName, settings: mqQueueSettings) -> None: ...

    @operation(QueueNotFound, QueueInUse)
    def deleteQueue(self, queue: mqQueueName) -> None: ...

    @operation(QueueNotFound)
    def purgeQueue(self, queue: mqQueueName) -> UnsignedLongLong: ...

    @operation(QueueNotFound, idempotent=True)
    def getQueue(self, queue: mqQueueName) -> mqQueueInfo: ...

    @operation(idempotent=True)
    def listQueues(self) -> mqQueueInfoList: ...

    @operation(idempotent=True)
    def listBranches(self) -> mqBranchInfoList: ...

    @operation(BranchNotFound, NotPrepared)
    def decideBranch(self, otid: otid_t, commit: Boolean) -> None: ...

    @operation(BranchNotFound)
    def forgetBranch(self, otid: otid_t) -> None: ...

    @operation(idempotent=True)
    def listConsumers(self) -> mqConsumerInfoList: ...

    @operation(ConsumerNotFound)
    def dropConsumer(self, consumer: Name) -> None: ...


_PUTTING = (QueueDisabled, QueueNotFound, QueueFull, DigestMismatch, BranchEnded, RequestOutOfOrder)


@interface()
class Mq_Node(Protocol):
    """Bulk work and push-down, so that a transaction costs few calls."""

    @operation(idempotent=True)
    def getNode(self) -> mqNodeInfo: ...

    @operation(QueueDisabled, QueueNotFound, idempotent=True)
    def countMessages(self, queue: mqQueueName) -> UnsignedLongLong: ...

    # Known by branch and request number, or by the request id of the call: so it may be repeated.
    @operation(*_PUTTING, idempotent=True)
    def putMany(
        self, branch: mqBranch, request: UnsignedLong, queue: mqQueueName, messages: mqBatch
    ) -> mqKeyList: ...

    @operation(*_PUTTING, idempotent=True)
    def putBulk(
        self, branch: mqBranch, request: UnsignedLong, queue: mqQueueName, messages: mqBatch
    ) -> mqKey: ...

    @operation(QueueDisabled, QueueNotFound, BranchEnded, RequestOutOfOrder, idempotent=True)
    def getMany(
        self,
        branch: mqBranch,
        request: UnsignedLong,
        queue: mqQueueName,
        selection: mqSelection,
        count: UnsignedLong,
        wait: UnsignedLong,
    ) -> mqTaken: ...

    @operation(QueueDisabled, QueueNotFound, QueueFull, BranchEnded, idempotent=True)
    def moveMany(
        self,
        queue: mqQueueName,
        target: mqQueueName,
        selection: mqSelection,
        count: UnsignedLong,
        wait: UnsignedLong,
    ) -> UnsignedLong: ...

    @operation(
        QueueDisabled,
        QueueNotFound,
        MessageNotFound,
        LockTimeout,
        Deadlock,
        BranchEnded,
        RequestOutOfOrder,
        idempotent=True,
    )
    def getKeys(
        self, branch: mqBranch, request: UnsignedLong, queue: mqQueueName, keys: mqKeyList
    ) -> mqTaken: ...

    @operation(QueueDisabled, QueueNotFound, idempotent=True)
    def browse(
        self, queue: mqQueueName, selection: mqSelection, after: mqKey, count: UnsignedLong
    ) -> mqTaken: ...

    @operation(
        QueueDisabled,
        QueueNotFound,
        QueueFull,
        MessageNotFound,
        LockTimeout,
        Deadlock,
        DigestMismatch,
        BranchEnded,
        RequestOutOfOrder,
        out=("isReadOnly", "keys"),
        idempotent=True,
    )
    def pushDown(
        self, branch: mqBranch, request: UnsignedLong, work: mqWorkList, completion: mqCompletion
    ) -> tuple[Status, Boolean, mqKeyListList]: ...

    @operation(BranchEnded, idempotent=True)
    def prepareBranch(self, branch: mqBranch, messages: UnsignedLongLong) -> Vote: ...

    @operation(BranchEnded, idempotent=True)
    def rollbackBranch(self, branch: mqBranch) -> None: ...

    @operation(idempotent=True)
    def getOutcome(self, otid: otid_t) -> Status: ...

    @operation(idempotent=True)
    def getVersion(self, application: Name) -> UnsignedLongLong: ...

    @operation(QueueDisabled, QueueNotFound, BranchEnded, idempotent=True)
    def lockMany(
        self,
        branch: mqBranch,
        name: Name,
        queue: mqQueueName,
        selection: mqSelection,
        count: UnsignedLongLong,
    ) -> UnsignedLongLong: ...

    @operation(BranchEnded, ReservationNotFound, idempotent=True)
    def fetchLocked(
        self, branch: mqBranch, name: Name, start: UnsignedLongLong, stop: UnsignedLongLong
    ) -> mqTaken: ...

    @operation(QueueDisabled, QueueNotFound, ReservationOutdated, idempotent=True)
    def reserve(
        self,
        consumer: Name,
        queue: mqQueueName,
        selection: mqSelection,
        after: UnsignedLongLong,
        count: UnsignedLongLong,
        wait: UnsignedLong,
    ) -> UnsignedLongLong: ...

    @operation(ReservationNotFound, idempotent=True)
    def getReservationSize(
        self, consumer: Name, reservation: UnsignedLongLong
    ) -> UnsignedLongLong: ...

    @operation(ReservationNotFound, idempotent=True)
    def fetchReserved(
        self,
        consumer: Name,
        reservation: UnsignedLongLong,
        start: UnsignedLongLong,
        stop: UnsignedLongLong,
    ) -> mqTaken: ...

    @operation(ReservationNotFound, idempotent=True)
    def finishReservations(self, consumer: Name, upto: UnsignedLongLong) -> None: ...

    @operation(idempotent=True)
    def getFinished(self, consumer: Name) -> UnsignedLongLong: ...
