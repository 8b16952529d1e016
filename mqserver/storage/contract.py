"""What every storage promises, in prose and as a Protocol. `memory.py` is its readable version.

A storage keeps queues of messages and changes them in branches. It speaks of messages and
branches, never of bytes and pages, so that a database can do its part in SQL. It knows neither
Pyro5 nor CosTransactions nor the query language, and never asks who calls.

**Messages.** A message has a key, given by the storage when it is stored: a number from 1 on that
is never given twice in the whole storage, not after a rollback nor a crash, and grows in the order
of storing. Messages do not change. The order of a queue is the order of keys, or, where the queue
is prioritized, that of priorities (highest first) and then keys.

**Branches.** A branch is known by an id that its owner makes, and begins with its first action,
even if that fails. What it stores is seen by itself alone, and only to take it; what it takes is
locked by it, and seen by nobody. An action that raises has changed nothing. Then

- `commit_one_phase`: all of it happens, and is on disk when the call returns, unless `force=False`,
  which leaves that to the next forced write: until then a crash undoes it, and whatever was done
  since. Of a branch that changed nothing only what was done before it is on disk: its outcome may
  be lost in a crash.
- `prepare`: all of it is on disk when the call returns, and still neither has happened nor been
  undone. A prepared branch survives every crash, with its locks; nothing but `commit`, `rollback`
  or an operator ends it, and it takes no more actions. A branch that changed nothing (stored
  nothing, took nothing, raised no mark) is over at once: `Vote.READ_ONLY`. No vote is given after
  the end: a branch that voted so counts as rolled back, there being nothing left of it to happen.
- `commit` of a prepared branch: all of it happens. It is on disk when the call returns, unless
  `force=False`, which leaves that to the next forced write: a prepared branch can ask again.
- `rollback`: none of it happened. Taken messages are back at their place in the order. It is on
  disk with the next forced write; until then a crash may bring a prepared branch back. On a full
  disk a branch that is not prepared is rolled back all the same, and a restart may not know of it.

A crash rolls back every branch that was not prepared, and may forget that it ever was: who works on
with a branch across a restart must notice the restart. A branch that has ended is remembered
(`outcome`), the last `OUTCOMES_KEPT` of them across restarts, and takes no more actions: they raise
`BranchEnded`, in threads that wait for a lock too. `commit`, `commit_one_phase` and `rollback` may
be repeated, and say the same again. Of a branch that an operator has ended, `commit` and `rollback`
say how; that is remembered, with what `branches` shows of it, until `forget`.

**Disk.** What the calls named above and the text of a call promise is on disk when it returns, and
with it everything that was done before. The rest is on disk with the next forced write. So a crash
loses, but for the actions of branches that were not prepared, only the latest of what was done.

**Locks.** A message is locked by one branch at a time. `take` skips what others have locked.
`take_keys` waits for it, up to its timeout; when waiting would close a circle of branches it raises
`Deadlock` in the branch that would have closed it. Those who wait are served in order. What a
branch has stored it may take itself. A branch in which an action failed goes on as it was before.

**Marks.** A branch can raise the mark of a named application to a version. When it commits, the
mark is the highest version so raised; a mark never falls, and nobody waits for one. It tells a
repeated job that its work is done already.

**Reservations.** A named consumer holds frozen lists of messages, numbered from 1. `reserve` takes
messages out of everybody else's reach, durably, and gives them the next number; asked again with
the same `after`, it returns the same number. They are in the order of the queue, are read as often
as wanted, and removed by `finish`. Nothing but `finish` and `drop_consumer` ends a reservation, no
crash and no time; nobody waits for what is reserved. A consumer belongs to the queue of its first
reservation until it is dropped. One that is unknown has been given 0, and finished 0.

**Failure.** When a write or a sync fails, nothing that was acknowledged is lost; the storage raises
`StorageFailed` from then on. A full disk raises `StorageFull`, and once there is room work goes on.
Damage that is found raises `Corruption` with file and offset; it is never served and never mended.

All calls may come from any thread, also several for one branch; none comes after `close`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, overload

OUTCOMES_KEPT = 50_000
BRANCH_ID_BYTES_MAX = 512
RECOVERY_BYTES_MAX = 4096
# Queues whose names begin so are a node's own: no client can name, see or use them.
RESERVED = "~"

Attributes = tuple[tuple[str, str], ...]


class NewMessage(NamedTuple):
    """A message before it is stored. The digest is the sender's CRC-32 of the payload."""

    payload: bytes
    digest: int
    priority: int = 0
    group: int = 0
    time_us: int = 0
    sender: str = ""
    attributes: Attributes = ()


class MessageColumns(Sequence[NewMessage]):
    """Many messages before they are stored, field by field: for those who need not see each.

    A column of headers has a value for each message, or one for all.
    """

    __slots__ = ("_headers", "digests", "groups", "payloads")

    def __init__(
        self,
        payloads: Sequence[bytes],
        digests: Sequence[int],
        priorities: Sequence[int] = (0,),
        groups: Sequence[int] = (0,),
        times_us: Sequence[int] = (0,),
        senders: Sequence[str] = ("",),
        attributes: Sequence[Attributes] = ((),),
    ) -> None:
        self.payloads = payloads
        self.digests = digests
        self.groups = groups
        self._headers = (priorities, groups, times_us, senders, attributes)

    @classmethod
    def of(cls, messages: Sequence[NewMessage]) -> MessageColumns:
        """The messages, field by field."""
        return messages if isinstance(messages, cls) else cls(*zip(*messages, strict=True))

    def headers(self) -> list[Sequence[object] | None]:
        """Priorities, groups, times, senders, attributes; None where all have the default."""
        return [
            None if column.count(default) == len(column) else column
            for column, default in zip(self._headers, _NO_HEADERS, strict=True)
        ]

    @property
    def has_attributes(self) -> bool:
        """Whether any message has attributes."""
        return any(self._headers[-1])

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[NewMessage]:
        return map(NewMessage._make, self.rows())

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The messages as plain tuples, which are made in half of the time."""
        count = len(self)
        whole = [each if len(each) == count else (each[0],) * count for each in self._headers]
        return zip(self.payloads, self.digests, *whole, strict=True)

    @overload
    def __getitem__(self, index: int) -> NewMessage: ...

    @overload
    def __getitem__(self, index: slice) -> list[NewMessage]: ...

    def __getitem__(self, index: int | slice) -> NewMessage | list[NewMessage]:
        if isinstance(index, slice):
            return list(self)[index]
        headers = [each[index] if len(each) > 1 else each[0] for each in self._headers]
        return NewMessage._make((self.payloads[index], self.digests[index], *headers))


_NO_HEADERS: tuple[object, ...] = (0, 0, 0, "", ())


class Message(NamedTuple):
    """A stored message."""

    key: int
    payload: bytes
    digest: int
    priority: int = 0
    group: int = 0
    time_us: int = 0
    sender: str = ""
    attributes: Attributes = ()


@dataclass(frozen=True)
class QueueSettings:
    """How a queue behaves. All but the order is kept by the layer above; a limit of 0 is none."""

    enabled: bool = True
    prioritized: bool = False
    messages_max: int = 0
    bytes_max: int = 0


@dataclass(frozen=True)
class Selection:
    """Which messages are meant: those that satisfy all that is said here.

    `group` 0 stands for every group, and is no group of its own. A message may have more than these
    `attributes`. `matches` is for storages without SQL, `where` with its parameters for those that
    have it; both say the same, or neither says anything. `where` is a condition on columns that are
    called as the fields of `Message`, with a `?` for each parameter.
    """

    group: int = 0
    priority_min: int = 0
    attributes: Attributes = ()
    matches: Callable[[Message], bool] | None = None
    where: str = ""
    parameters: tuple[object, ...] = ()


EVERYTHING = Selection()


class Vote(enum.Enum):
    """What `prepare` answers."""

    COMMIT = 0
    READ_ONLY = 1


class Outcome(enum.Enum):
    """What a storage knows of a branch. The numbers are on disk and never change."""

    # There is one object of each: it is found by that, not by its name.
    __hash__ = object.__hash__

    UNKNOWN = 0
    ACTIVE = 1
    PREPARED = 2
    COMMITTED = 3
    ROLLED_BACK = 4
    HEURISTICALLY_COMMITTED = 5
    HEURISTICALLY_ROLLED_BACK = 6


@dataclass(frozen=True)
class BranchInfo:
    """A branch, and how many messages it changed. `recovery` is what `prepare` was given first."""

    branch: bytes
    outcome: Outcome
    recovery: bytes
    stored: int
    taken: int


@dataclass(frozen=True)
class QueueInfo:
    """What a queue holds: messages to be had, all others, which branches or consumers hold, and the
    bytes of both. What a branch has stored and taken itself is held by it until it ends, across
    crashes too. `oldest_us` is the time of the first, by key, to be had; 0 where there is none.
    """

    name: str
    settings: QueueSettings
    visible: int
    locked: int
    payload_bytes: int
    oldest_us: int


@dataclass(frozen=True)
class ConsumerInfo:
    """What a consumer holds: the last number finished, the last one given, how many messages."""

    consumer: str
    queue: str
    finished: int
    reserved: int
    messages: int


class Storage(Protocol):
    """See the module's text for what holds across the calls."""

    # --- Queues

    def create_queue(self, name: str, settings: QueueSettings) -> None:
        """There is an empty queue, durably. Raises `QueueExists`."""

    def change_queue(self, name: str, settings: QueueSettings) -> None:
        """The queue has these settings, durably."""

    def delete_queue(self, name: str) -> None:
        """There is no such queue, durably.

        Raises `QueueInUse` while it holds anything, locked or not, or a consumer belongs to it.
        """

    def queues(self) -> list[QueueInfo]:
        """All queues, by name."""

    def queue(self, name: str) -> QueueInfo:
        """One queue. Raises `QueueNotFound`, as does every call that names one that is missing."""

    # --- Actions of a branch

    def store(self, branch: bytes, queue: str, messages: Sequence[NewMessage]) -> range:
        """The branch has stored the messages; their keys, in order and without a gap."""

    def take(self, branch: bytes, queue: str, selection: Selection, limit: int) -> list[Message]:
        """The branch has locked the next messages that are selected and free, in order."""

    def take_keys(
        self, branch: bytes, queue: str, keys: Sequence[int], timeout_s: float
    ) -> list[Message]:
        """The branch has locked these messages, or none of them; as they were asked for.

        Raises `LockTimeout` or `Deadlock`; and `MessageNotFound` for one that is not there, or not
        any more, that the branch has taken already or asks for twice. It waits for none of these.
        """

    def taken(self, branch: bytes, queue: str, keys: Sequence[int]) -> list[Message]:
        """Messages that the branch has taken, again; as they were asked for.

        Raises `MessageNotFound` for one that it has not taken, and for all when it is not active.
        """

    def raise_mark(self, branch: bytes, application: str, version: int) -> None:
        """When the branch commits, the application's mark is at least this version."""

    # --- Ends of a branch

    def prepare(self, branch: bytes, recovery: bytes) -> Vote:
        """The branch can be committed and can be rolled back, whatever happens.

        A prepared branch says so again. Raises `BranchEnded` if it has ended or is unknown.
        """

    def commit(self, branch: bytes, force: bool = True) -> Outcome:
        """The prepared branch has happened; what it is then.

        Raises `BranchEnded` if it was rolled back, is not prepared, or is unknown.
        """

    def commit_one_phase(self, branch: bytes, force: bool = True) -> None:
        """The branch has happened, and is on disk. Nothing is forced where nothing is to be.

        Raises `BranchEnded` if it was rolled back, is prepared or unknown, or an operator ended it.
        """

    def rollback(self, branch: bytes) -> Outcome:
        """The branch has not happened; what it is then. Also for one that is unknown.

        That one has ended with this, so that its late actions are refused. Raises `BranchEnded` if
        it was committed.
        """

    def resolve(self, branch: bytes, commit: bool) -> None:
        """An operator has ended a prepared branch, durably; its outcome is heuristic till `forget`.

        Raises `BranchEnded` if it is not prepared.
        """

    def forget(self, branch: bytes) -> None:
        """A heuristic outcome is not remembered any longer; the branch is unknown. Others stay."""

    def outcome(self, branch: bytes) -> Outcome:
        """What is known of the branch."""

    def branches(self) -> list[BranchInfo]:
        """All branches that are active, prepared, or heuristically ended."""

    # --- Reading without taking

    def read(self, queue: str, key: int) -> Message | None:
        """The committed message with this key that nobody has taken or reserved."""

    def browse(self, queue: str, selection: Selection, after: int, limit: int) -> list[Message]:
        """Committed messages that nobody has taken or reserved, by key, behind the key `after`."""

    def mark(self, application: str) -> int:
        """The application's mark, 0 where there is none."""

    # --- Reservations

    def reserve(
        self, consumer: str, queue: str, selection: Selection, after: int, limit: int
    ) -> int:
        """The number of the consumer's reservation behind `after`; 0 when there is nothing to hold.

        Raises `ReservationOutdated` when more than `after` is finished already, and
        `ReservationNotFound` when less was ever given. `ReservationError`: it has another queue.
        """

    def reserved(self, consumer: str, number: int) -> int:
        """How many messages the reservation holds. Raises `ReservationNotFound`."""

    def fetch(self, consumer: str, number: int, start: int, stop: int) -> list[Message]:
        """The reservation's messages from position `start`, the first being 0, to before `stop`.

        Raises `ReservationNotFound`.
        """

    def finish(self, consumer: str, upto: int) -> None:
        """All reservations up to this number are processed: their messages are gone, durably.

        Repeatable. Raises `ReservationNotFound` for a number that was never given.
        """

    def consumers(self) -> list[ConsumerInfo]:
        """All consumers, by name."""

    def drop_consumer(self, consumer: str) -> None:
        """The consumer is unknown, durably; what it had reserved is back in the queue."""

    # --- The storage itself

    def force(self) -> None:
        """All that was done is on disk."""

    def checkpoint(self) -> None:
        """A restart has little to do, and the log is short."""

    def close(self) -> None:
        """All that was done is on disk, branches that are not prepared are rolled back."""
