"""Transactions that this node has decided: the marks of those that others wait for, and fences.

Where every other branch of a transaction is prepared, the commit of the one here is the decision.
The *mark* that says so is stored by that branch, in the same forced write, and names who waits for
it; it stays until all of them have ended. A *fence* stands where nobody has decided and nobody may
any more. Both are messages in a queue that no client can name. What holds:

1. A transaction has a mark or a fence, never both: while it is being decided, or nobody knows
   whether it was, no fence is put up, and behind a fence nothing is decided.
2. Whoever is told "committed" or "rolled back" is told what is on disk.
3. A mark is forgotten only when no voter will ask for it any more. Its owner may, and then the
   branch itself says that it was committed. Fences stay.

It knows no network: whom to ask is `Settling`'s.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from idl import system
from idl.checksums import crc32_of_little
from idl.cos import Status
from idl.otids import GTRID_BYTES
from idl.turns import step_aside
from mqserver.errors import (
    BranchEnded,
    LimitExceeded,
    MessageNotFound,
    QueueExists,
    QueueNotFound,
    StorageFull,
)
from mqserver.storage.contract import (
    EVERYTHING,
    RESERVED,
    Message,
    NewMessage,
    Outcome,
    QueueSettings,
    Storage,
)
from mqserver.transactions.requests import NAMES_TRIED, ended, give_up

# No queue of a client's has such a name: see `check_queue_name`.
QUEUE = f"{RESERVED}decisions"
# What a message there is, in the place of its group. On disk: never used for something else.
MARK, FENCE = 1, 2
READ_AT_ONCE = 1000
FORGOTTEN_AT_ONCE = 200
MARKS_MAX = 200_000
OWN = b"decisions"


class Voter(NamedTuple):
    """A prepared branch that waits for the decision, and who can say whether it has ended."""

    name: str
    settler: str


class Mark(NamedTuple):
    """A transaction that was committed here: the message, whom to ask about voters, since when."""

    key: int
    coordinator: str
    voters: tuple[Voter, ...]
    since: float


class Decisions:
    """What a node has decided. May be used from any thread.

    `storage` is the plain one: what is stored here is no message that anybody has put.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Callable[[], float],
        new_id: Callable[[], bytes],
        marks_max: int = MARKS_MAX,
    ) -> None:
        self._storage = storage
        self._marks_max = marks_max
        self._clock = clock
        self._new_id = new_id
        self._lock = threading.Lock()
        self._is_ready = False
        self._marks: dict[bytes, Mark] = {}
        self._fences: set[bytes] = set()
        # Those that are being decided at this moment, and those that are being fenced.
        self._deciding: set[bytes] = set()
        self._fencing: set[bytes] = set()
        # The branches of those of which the storage could not say whether they were decided; and
        # those that may have a fence.
        self._unclear: dict[bytes, bytes] = {}
        self._half_fenced: set[bytes] = set()

    def load(self) -> None:
        """What was decided before the start is known."""
        behind = 0
        while True:
            try:
                found = self._storage.browse(QUEUE, EVERYTHING, behind, READ_AT_ONCE)
            except QueueNotFound:
                return
            self._is_ready = True
            if not found:
                return
            for each in found:
                self._know(each)
            behind = found[-1].key

    def _know(self, message: Message) -> None:
        gtrid = message.payload[:GTRID_BYTES]
        if message.group == MARK:
            coordinator, voters = _unpacked(message.payload)
            self._marks[gtrid] = Mark(message.key, coordinator, voters, self._clock())
        else:
            self._fences.add(gtrid)

    # --- Deciding

    def commit(
        self,
        branch: bytes,
        coordinator: str,
        voters: Sequence[Voter],
        commit: Callable[[bytes], None],
    ) -> None:
        """The branch is committed, and with it the transaction. Raises `BranchEnded` if it is over.

        `commit` commits the branch in one phase.
        """
        gtrid = branch[:GTRID_BYTES]
        if gtrid in self._unclear:
            self._clear_up(gtrid)
        with self._lock:
            if gtrid in self._marks:
                raise ended(branch, Outcome.COMMITTED)
            if len(self._marks) >= self._marks_max:
                raise LimitExceeded(
                    f"{len(self._marks)} decisions of this node wait for others to end: see to it "
                    "that it reaches the coordinator"
                )
            if gtrid in self._deciding:
                raise system.INVALID_TRANSACTION("another branch of it decides here")
            if gtrid in self._fences or gtrid in self._fencing or gtrid in self._half_fenced:
                raise ended(branch, Outcome.ROLLED_BACK)
            self._deciding.add(gtrid)
        try:
            key = self._store(branch, _packed(gtrid, coordinator, voters), MARK)
            self._commit(branch, commit)
            with self._lock:
                self._marks[gtrid] = Mark(key, coordinator, tuple(voters), self._clock())
        finally:
            self._deciding.discard(gtrid)

    def _commit(self, branch: bytes, commit: Callable[[bytes], None]) -> None:
        try:
            # After this line the transaction is committed, whatever happens.
            commit(branch)
        except (BranchEnded, StorageFull):
            # It certainly is not.
            raise
        except BaseException:
            self._unclear[branch[:GTRID_BYTES]] = branch
            raise

    def _clear_up(self, gtrid: bytes) -> None:
        """Whether it was decided is known from here on. Raises as long as the storage is silent."""
        branch = self._unclear[gtrid]
        try:
            self._storage.rollback(branch)
        except BranchEnded:
            # It was: then the mark is there.
            self.load()
        del self._unclear[gtrid]

    def find(self, gtrid: bytes) -> Status:
        """Committed or rolled back, as it was decided here; or else no transaction."""
        if gtrid in self._unclear:
            self._clear_up(gtrid)
        with self._lock:
            if gtrid in self._marks:
                return Status.COMMITTED
            return Status.ROLLED_BACK if gtrid in self._fences else Status.NO_TRANSACTION

    def fence(self, gtrid: bytes) -> Status:
        """Committed if that was decided here; if nothing was, it is rolled back for ever."""
        self.get_ready()
        if gtrid in self._unclear:
            self._clear_up(gtrid)
        with self._lock:
            if gtrid in self._deciding or gtrid in self._fencing:
                raise system.TRANSIENT("the transaction is being decided; ask again")
            if gtrid in self._marks:
                return Status.COMMITTED
            if gtrid in self._fences:
                return Status.ROLLED_BACK
            # From here on nobody decides it.
            self._fencing.add(gtrid)
        try:
            if self._was_committed(gtrid):
                return Status.COMMITTED
            self._half_fenced.add(gtrid)
            self._put_up(gtrid)
            with self._lock:
                self._fences.add(gtrid)
            self._half_fenced.discard(gtrid)
        finally:
            self._fencing.discard(gtrid)
        return Status.ROLLED_BACK

    def _was_committed(self, gtrid: bytes) -> bool:
        """Whether it was decided here, and the mark is forgotten, since no voter needs it."""
        outcome = self._storage.outcome
        return any(outcome(gtrid + name) is Outcome.COMMITTED for name in NAMES_TRIED)

    def _put_up(self, gtrid: bytes) -> None:
        own = OWN + self._new_id()
        try:
            self._store(own, gtrid, FENCE)
            # Forced before it is told.
            self._storage.commit_one_phase(own)
        except BaseException:
            give_up(self._storage, own)
            raise

    def _store(self, branch: bytes, content: bytes, kind: int) -> int:
        message = NewMessage(content, crc32_of_little(content), group=kind)
        return self._storage.store(branch, QUEUE, [message]).start

    def get_ready(self) -> None:
        """There is a place for decisions. To be called before a branch does anything."""
        if self._is_ready:
            return
        # To make a queue takes long.
        step_aside()
        with contextlib.suppress(QueueExists):
            self._storage.create_queue(QUEUE, QueueSettings())
        self._is_ready = True

    # --- Forgetting

    def waiting(self, before: float, most: int) -> list[tuple[bytes, Mark]]:
        """Transactions that were decided before this time, the oldest first."""
        with self._lock:
            found: list[tuple[bytes, Mark]] = []
            for gtrid, mark in self._marks.items():
                if mark.since > before or len(found) >= most:
                    break
                found.append((gtrid, mark))
            return found

    def put_off(self, gtrids: Iterable[bytes], seconds: float) -> None:
        """These are asked about again so much later."""
        with self._lock:
            now = self._clock() + seconds
            for gtrid in gtrids:
                mark = self._marks.pop(gtrid, None)
                if mark is not None:
                    self._marks[gtrid] = mark._replace(since=now)

    def forget(self, gtrids: Sequence[bytes]) -> None:
        """Nobody will ask for these any more."""
        for start in range(0, len(gtrids), FORGOTTEN_AT_ONCE):
            some = gtrids[start : start + FORGOTTEN_AT_ONCE]
            keys = {gtrid: self._marks[gtrid].key for gtrid in some if gtrid in self._marks}
            try:
                self._remove(list(keys.values()))
            except MessageNotFound:
                # Another node with the same storage has removed some of them.
                for key in keys.values():
                    with contextlib.suppress(MessageNotFound):
                        self._remove([key])
            with self._lock:
                for gtrid in keys:
                    self._marks.pop(gtrid, None)

    def _remove(self, keys: list[int]) -> None:
        own = OWN + self._new_id()
        try:
            self._storage.take_keys(own, QUEUE, keys, 0.0)
            self._storage.commit_one_phase(own)
        except BaseException:
            give_up(self._storage, own)
            raise

    def __len__(self) -> int:
        return len(self._marks)


def _packed(gtrid: bytes, coordinator: str, voters: Sequence[Voter]) -> bytes:
    """The transaction, then lines: the coordinator, and each voter with its settler."""
    lines = [coordinator]
    for name, settler in voters:
        lines.append(f"{name} {settler}")
    return gtrid + "\n".join(lines).encode()


def _unpacked(content: bytes) -> tuple[str, tuple[Voter, ...]]:
    coordinator, *lines = content[GTRID_BYTES:].decode().split("\n")
    return coordinator, tuple([Voter(*line.split(" ", 1)) for line in lines])
