"""Queues as a participant of somebody else's transaction, in the words of the DB-API (PEP 249).

    session = oncemq.TwoPhase(mq)
    session.tpc_begin(session.xid(1, "their transaction", "our branch"))
    session.put("billing", b"invoice")
    message = session.get("orders")
    session.tpc_prepare()
    session.tpc_commit()

What was prepared is kept in a queue of the node, under the other coordinator's xid, so that after a
crash of anybody `tpc_recover` names it and `tpc_commit(xid)` or `tpc_rollback(xid)` ends it, from
any client of that node. What holds:

1. Preparing takes the messages that were got out of their queues, and puts what was put into the
   journal: one transaction. Ending takes all of that out again and puts it where it belongs: one
   transaction. So a prepared branch is ended once, whoever tries and however often.
2. Until it is ended, nobody sees what was put, and nobody gets what was got.
3. A message that comes back by a rollback after the prepare is behind the others of its queue.

It knows queues and transactions of one connection, and nothing of the other coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from clients.connection import Connection
from clients.errors import NotFound, OnceMQError, ServerFailed, TransactionEnded
from clients.messages import Attributes, Message
from clients.queue import Queue
from clients.transaction import Transaction

JOURNAL = "oncemq.prepared"
PART_LENGTH_MAX = 64
_XID, _KIND, _NUMBER, _QUEUE, _PRIORITY = (
    "oncemq.xid",
    "oncemq.kind",
    "oncemq.number",
    "oncemq.queue",
    "oncemq.priority",
)
_OURS = 5
_HEAD, _PUT, _GOT = "head", "put", "got"


class Xid(NamedTuple):
    """The name of a branch, given by the other coordinator."""

    format_id: int
    gtrid: str
    bqual: str

    def __str__(self) -> str:
        return f"{self.format_id}:{self.gtrid.encode().hex()}:{self.bqual.encode().hex()}"


def _read_xid(text: str) -> Xid:
    number, gtrid, bqual = text.split(":")
    return Xid(int(number), bytes.fromhex(gtrid).decode(), bytes.fromhex(bqual).decode())


class _Entry(NamedTuple):
    """A message that was put or got, and where."""

    kind: str
    queue: str
    message: Message


class TwoPhase:
    """One branch after the other, at the node of one connection. For one thread at a time."""

    def __init__(self, mq: Connection) -> None:
        self._mq = mq
        self._journal: Queue = mq.queue(JOURNAL)
        self._xid: Xid | None = None
        self._transaction: Transaction | None = None
        self._entries: list[_Entry] = []

    def xid(self, format_id: int, gtrid: str, bqual: str) -> Xid:
        """A name from its parts, which have up to 64 characters."""
        if not 0 <= format_id < 2**31:
            raise ValueError(f"format_id {format_id} is not between 0 and {2**31 - 1}")
        for part in (gtrid, bqual):
            if len(part) > PART_LENGTH_MAX:
                raise ValueError(f"{part[:20]!r}… has more than {PART_LENGTH_MAX} characters")
        return Xid(format_id, gtrid, bqual)

    @property
    def is_at_work(self) -> bool:
        """Whether a branch has begun here, or was prepared here, and has not ended."""
        return self._xid is not None

    # --- Work

    def tpc_begin(self, xid: Xid, timeout: float = 30.0) -> None:
        """What is put and got belongs to this branch; it takes so long at most until the vote."""
        if self._xid is not None:
            raise OnceMQError("a branch has begun already: end it first")
        self._transaction = self._mq.begin(timeout)
        self._xid = xid
        self._entries = []

    def put(self, queue: str, payload: bytes | Message) -> None:
        """The message is there for others when the branch is committed."""
        self._at_work()
        message = payload if isinstance(payload, Message) else Message(payload)
        self._entries.append(_Entry(_PUT, self._mq.queue(queue).name, message))

    def get(self, queue: str, timeout: float | None = 0.0) -> Message | None:
        """The next message of others; it is gone when the branch is committed."""
        transaction = self._at_work()
        message = self._mq.queue(queue).get(timeout, tx=transaction)
        if message is not None:
            self._entries.append(_Entry(_GOT, queue, message))
        return message

    def _at_work(self) -> Transaction:
        if self._transaction is None:
            raise TransactionEnded("no branch is at work here: call tpc_begin")
        return self._transaction

    # --- Ends

    def tpc_prepare(self) -> None:
        """The branch will be committed if it is decided so, whatever happens meanwhile.

        Raises `RolledBack`, and then nothing is left of it; or `OutcomeUnknown`, and then
        `tpc_recover` tells whether it is prepared.
        """
        transaction, xid = self._at_work(), self._xid
        assert xid is not None
        try:
            if self._is_prepared(xid):
                raise OnceMQError(f"a branch {tuple(xid)} is prepared already")
            self._journal.put_many(_records(xid, self._entries), tx=transaction)
            transaction.commit()
        except OnceMQError:
            transaction.abandon()
            self._end()
            raise
        self._transaction = None

    def tpc_commit(self, xid: Xid | None = None) -> None:
        """The branch is committed: this one, or the prepared one of that name.

        Raises `NotFound` where none is prepared under the name: it has ended before, or never was.
        """
        if xid is None and self._transaction is not None:
            self._commit_alone(self._transaction)
        else:
            self._finish(xid, _PUT)

    def tpc_rollback(self, xid: Xid | None = None) -> None:
        """The branch is rolled back: this one, or the prepared one of that name."""
        if xid is None and self._transaction is not None:
            self._transaction.abandon()
            self._end()
        else:
            self._finish(xid, _GOT)

    def tpc_recover(self) -> list[Xid]:
        """The branches that are prepared at this node, by whichever client."""
        heads = self._journal.browse(attributes=[(_KIND, _HEAD)])
        return [_read_xid(head.get(_XID)) for head in heads]

    def _is_prepared(self, xid: Xid) -> bool:
        wanted = [(_XID, str(xid)), (_KIND, _HEAD)]
        return any(True for _ in self._journal.browse(1, attributes=wanted))

    def _commit_alone(self, transaction: Transaction) -> None:
        try:
            for entry in self._entries:
                if entry.kind == _PUT:
                    self._mq.queue(entry.queue).put(entry.message, tx=transaction)
            transaction.commit()
        finally:
            transaction.abandon()
            self._end()

    def _finish(self, xid: Xid | None, wanted: str) -> None:
        named = xid or self._xid
        if named is None:
            raise TransactionEnded("no branch has begun here: name one that tpc_recover names")
        transaction = self._mq.begin()
        try:
            for record in self._taken(named, transaction):
                if record.get(_KIND) == wanted:
                    queue = self._mq.queue(record.get(_QUEUE))
                    queue.put(_restored(record), tx=transaction)
            transaction.commit()
        finally:
            transaction.abandon()
        if named == self._xid:
            self._end()

    def _taken(self, xid: Xid, transaction: Transaction) -> list[Message]:
        name = (_XID, str(xid))
        # Who has the head has the others: two that end the same branch do not share it.
        head = self._journal.get(attributes=[name, (_KIND, _HEAD)], tx=transaction)
        if head is None:
            raise NotFound(f"no branch {tuple(xid)} is prepared: it has ended, or never was")
        count = int(head.get(_NUMBER))
        found = self._journal.get_many(count, attributes=[name], tx=transaction) if count else []
        if len(found) != count:
            raise ServerFailed(f"the journal {JOURNAL} has {len(found)} of {count} records")
        return sorted(found, key=lambda record: int(record.get(_NUMBER)))

    def _end(self) -> None:
        self._xid = self._transaction = None
        self._entries = []


def _records(xid: Xid, entries: list[_Entry]) -> Iterable[Message]:
    name = str(xid)
    yield _record(name, _HEAD, len(entries), "", Message(b""))
    for number, entry in enumerate(entries):
        yield _record(name, entry.kind, number, entry.queue, entry.message)


def _record(name: str, kind: str, number: int, queue: str, message: Message) -> Message:
    ours: Attributes = (
        (_XID, name),
        (_KIND, kind),
        (_NUMBER, str(number)),
        (_QUEUE, queue),
        (_PRIORITY, str(message.priority)),
    )
    pairs = (*ours, *message.attributes)
    # Without its priority: the journal must not have an order of its own.
    return Message(message.payload, 0, message.group, pairs, message.sender)


def _restored(record: Message) -> Message:
    priority = int(record.get(_PRIORITY))
    pairs = record.attributes[_OURS:]
    return Message(record.payload, priority, record.group, pairs, record.sender)
