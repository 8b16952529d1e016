"""Puts that the row of a database carries: delivered once that is committed, and each once.

A branch whose puts are held here is in memory only. When its row is committed in the database, its
owner says so, and it is *delivered*: committed, without a forced write, since the row is on disk.
Of what a crash has taken away the row is found, and *taken over*: what it carries is put in another
branch. Either way a *mark* is stored with the puts, in the same record, and stays until the row is
gone. Marks, and the secret by which rows are ours, are messages in a queue that no client can name.
What holds:

1. Of one transaction something is put only where it has no mark, and then the mark is there.
2. A mark is forgotten only when its row is gone, durably, and nobody looks at an answer that may
   still have the row: so one thread at a time asks for rows and forgets.
3. Only what this node has held is ever taken over: the row has a ticket, made with the secret.

It knows no network: who asks for rows is `Custodian`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from idl import system
from idl.checksums import crc32_of_little
from idl.custody import node_of
from idl.otids import GTRID_BYTES
from idl.turns import Latch, step_aside
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
    NewMessage,
    Outcome,
    QueueSettings,
    Selection,
    Storage,
)
from mqserver.transactions.requests import Branch, branch_taken_over, give_up

# No queue of a client's has such a name: see `check_queue_name`.
QUEUE = f"{RESERVED}carried"
# What a message there is, in the place of its group. On disk: never used for something else.
SECRET, MARK = 1, 2
READ_AT_ONCE = 1000
FORGOTTEN_AT_ONCE = 200
MARKS_MAX = 200_000
TICKET_BYTES = 16
OWN = b"carried"

# Puts what is carried in this branch.
Store = Callable[[bytes], object]
Commit = Callable[[bytes], None]


class Mark(NamedTuple):
    """A transaction whose puts are here: the message that says so, where its row is, since when.

    There is no message where only the row is left, of what an operator has ended and forgotten.
    """

    key: int | None
    database: str
    since: float


class NotOurs(Exception):
    """A row that this node has not written: it is left where it is."""


class Custody:
    """What a node knows of puts that databases carry. May be used from any thread.

    `storage` is the plain one: what is stored here is no message that anybody has put. Nobody can
    guess a `new_id`. `give_up` rolls a branch back that is at work.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Callable[[], float],
        new_id: Callable[[], bytes],
        give_up: Callable[[bytes], None],
        marks_max: int = MARKS_MAX,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._new_id = new_id
        self._give_up = give_up
        self._marks_max = marks_max
        self._lock = threading.Lock()
        self._secret = b""
        self._node = ""
        self._marks: dict[bytes, Mark] = {}
        # Those that are being put at this moment; and the branches of those of which the storage
        # could not say whether they were.
        self._at_work: set[bytes] = set()
        self._unclear: dict[bytes, bytes] = {}

    # --- Itself

    def load(self) -> None:
        """What was carried before the start is known."""
        behind = 0
        while True:
            try:
                found = self._storage.browse(QUEUE, EVERYTHING, behind, READ_AT_ONCE)
            except QueueNotFound:
                return
            if not found:
                return
            for each in found:
                if each.group == SECRET:
                    # Two may have been made; the first one counts.
                    self._secret = self._secret or each.payload
                else:
                    gtrid, database = _unpacked(each.payload)
                    mark = Mark(each.key, database, self._clock())
                    with self._lock:
                        self._marks.setdefault(gtrid, mark)
            behind = found[-1].key

    @property
    def secret(self) -> str:
        """By which rows are ours; empty where nothing was ever carried.

        Who is shown it cannot sign with it.
        """
        if not self._secret:
            return ""
        return hashlib.blake2b(b"rows", digest_size=16, key=self._secret).hexdigest()

    @property
    def node(self) -> str:
        """What stands in our rows in place of the secret."""
        if not self._node:
            self._node = node_of(self.secret)
        return self._node

    def get_ready(self) -> None:
        """There is a place for marks, and a secret, on disk."""
        if self._secret:
            return
        # To make a queue takes long.
        step_aside()
        with self._lock:
            if self._secret:
                return
            with contextlib.suppress(QueueExists):
                self._storage.create_queue(QUEUE, QueueSettings())
            if not self._stored_secret():
                self._make_secret()
            # The one that a restart finds: of another the storage may not have told the end.
            self._secret = self._stored_secret()

    def _stored_secret(self) -> bytes:
        found = self._storage.browse(QUEUE, Selection(group=SECRET), 0, 1)
        return found[0].payload if found else b""

    def _make_secret(self) -> None:
        secret, own = self._new_id(), OWN + self._new_id()
        try:
            message = NewMessage(secret, crc32_of_little(secret), group=SECRET)
            self._storage.store(own, QUEUE, [message])
            # Forced before a row is written by it.
            self._storage.commit_one_phase(own)
        except BaseException:
            give_up(self._storage, own)
            raise

    def ticket(self, gtrid: bytes, content: bytes) -> bytes:
        """By which the row is known to hold what this node has checked."""
        made = hashlib.blake2b(gtrid + content, digest_size=TICKET_BYTES, key=self._secret)
        return made.digest()

    def check(self, gtrid: bytes, ticket: bytes, content: bytes) -> None:
        """Raises `NotOurs` for what this node has never held."""
        if not hmac.compare_digest(ticket, self.ticket(gtrid, content)):
            raise NotOurs

    # --- Putting

    def hold(self, held: Branch, database: str) -> None:
        """All that the branch puts is carried by a row there, and nothing else ends it well."""
        held.carrier = database

    def promise(self, held: Branch, database: str) -> None:
        """The branch is about to prepare, with a mark in it. Its row carries nothing but that."""
        held.mark = self._store_mark(held.id, held.id[:GTRID_BYTES], database)
        held.carrier = database

    def end(self, held: Branch, commit: Commit, keep: Commit) -> bool:
        """What the branch held is here; false where it is not held any more.

        What has prepared is committed by `keep`. What fails otherwise rolls the branch back: then
        its row is found by another way.
        """
        with Latch(held.end_lock):
            if held.outcome is Outcome.ACTIVE and not held.carrier:
                raise system.INVALID_TRANSACTION("no database was to carry what the branch puts")
            if held.outcome is Outcome.PREPARED and held.carrier:
                self.keep(held.id, held.carrier, keep, held.mark)
                return True
            if held.outcome is not Outcome.ACTIVE:
                return held.outcome is Outcome.COMMITTED
            is_put = False
            try:
                is_put = self.deliver(held.id, held.carrier, commit)
            finally:
                if not is_put:
                    self._give_up(held.id)
            return True

    def deliver(self, branch: bytes, database: str, commit: Commit) -> bool:
        """What the branch holds is put, unless it is here already; whether it was not.

        Raises `BranchEnded` where the branch does not hold it any more, and TRANSIENT where
        somebody is just putting it.
        """
        return self._put(branch, database, None, commit)

    def keep(self, branch: bytes, database: str, keep: Commit, key: int | None = None) -> bool:
        """What has prepared is committed, as the row says, unless it is here; whether it was not.

        `key` is its mark; where that is not known it is found.
        """
        gtrid = branch[:GTRID_BYTES]
        with self._alone(gtrid) as is_new:
            if is_new and key is None:
                # It may have asked by itself, so long ago that only its mark is left of it.
                self.load()
                is_new = gtrid not in self._marks
            if is_new:
                keep(branch)
                if key is None:
                    self.load()
                with self._lock:
                    self._marks.setdefault(gtrid, Mark(key, database, self._clock()))
            return is_new

    def branch_of(self, gtrid: bytes) -> bytes:
        """The branch in which it is put what is taken over; one that has failed is not used."""
        return branch_taken_over(self._storage, gtrid)

    def take_over(self, branch: bytes, database: str, store: Store, commit: Commit) -> bool:
        """What a committed row carries is put, unless it is here already; whether it was not.

        Whoever calls this rolls the branch back where it fails.
        """
        return self._put(branch, database, store, commit)

    def _put(self, branch: bytes, database: str, store: Store | None, commit: Commit) -> bool:
        gtrid = branch[:GTRID_BYTES]
        with self._alone(gtrid) as is_new:
            if is_new:
                if store is not None:
                    store(branch)
                key = self._store_mark(branch, gtrid, database)
                self._commit(branch, commit)
                with self._lock:
                    self._marks[gtrid] = Mark(key, database, self._clock())
            return is_new

    @contextlib.contextmanager
    def _alone(self, gtrid: bytes) -> Iterator[bool]:
        """Nobody else puts what this transaction's row carries; whether it is not here yet."""
        with self._lock:
            if gtrid in self._at_work:
                raise system.TRANSIENT("what the database carries is just being put; ask again")
            is_new = gtrid not in self._marks
            if is_new and len(self._marks) >= self._marks_max:
                raise LimitExceeded(
                    f"{len(self._marks)} rows of databases wait to be removed: see to it that the "
                    "coordinator and its databases are reached"
                )
            self._at_work.add(gtrid)
        try:
            if is_new and gtrid in self._unclear:
                is_new = not self._is_cleared_up(gtrid)
            yield is_new
        finally:
            self._at_work.discard(gtrid)

    def _store_mark(self, branch: bytes, gtrid: bytes, database: str) -> int:
        content = gtrid + database.encode()
        message = NewMessage(content, crc32_of_little(content), group=MARK)
        return self._storage.store(branch, QUEUE, [message]).start

    def _commit(self, branch: bytes, commit: Commit) -> None:
        try:
            commit(branch)
        except (BranchEnded, StorageFull):
            # It certainly is not.
            raise
        except BaseException:
            self._unclear[branch[:GTRID_BYTES]] = branch
            raise

    def _is_cleared_up(self, gtrid: bytes) -> bool:
        """Whether it was put is known from here on. Raises as long as the storage is silent."""
        try:
            self._storage.rollback(self._unclear[gtrid])
        except BranchEnded:
            # It was: then the mark is there.
            self.load()
        del self._unclear[gtrid]
        return gtrid in self._marks

    def clear_up(self, gtrid: bytes) -> None:
        """Whether it was put is known from here on, if the storage could not say so before."""
        if gtrid in self._unclear:
            self._is_cleared_up(gtrid)

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be held, as rows are not removed fast enough."""
        return len(self._marks) > self._marks_max // 2

    def is_put(self, gtrid: bytes) -> bool:
        """Whether what the row carries was put here; the row may still be there."""
        return gtrid in self._marks

    def has(self, gtrid: bytes) -> bool:
        """The same; or it is just being put, and whoever does it will see to it."""
        return gtrid in self._marks or gtrid in self._at_work

    # --- Forgetting

    def oldest(self, before: float, most: int) -> dict[str, list[bytes]]:
        """Transactions put before this time, by the database that has their rows."""
        found: dict[str, list[bytes]] = {}
        count = 0
        with self._lock:
            for gtrid, mark in self._marks.items():
                if mark.since > before or count >= most:
                    break
                found.setdefault(mark.database, []).append(gtrid)
                count += 1
        return found

    def put_off(self, gtrids: Iterable[bytes], seconds: float) -> None:
        """The rows of these are asked to be removed so much later."""
        since = self._clock() + seconds
        with self._lock:
            for gtrid in gtrids:
                mark = self._marks.pop(gtrid, None)
                if mark is not None:
                    self._marks[gtrid] = mark._replace(since=since)

    def force(self) -> None:
        """All that was put is on disk, so that rows may go."""
        self._storage.force()

    def forget(self, gtrids: Sequence[bytes]) -> None:
        """The rows of these are gone. A crash may bring the marks back, which does no harm."""
        for start in range(0, len(gtrids), FORGOTTEN_AT_ONCE):
            some = gtrids[start : start + FORGOTTEN_AT_ONCE]
            marks = [self._marks[gtrid] for gtrid in some if gtrid in self._marks]
            keys = [mark.key for mark in marks if mark.key is not None]
            try:
                self._remove(keys)
            except MessageNotFound:
                # One was removed already, whose end the storage could not tell.
                for key in keys:
                    with contextlib.suppress(MessageNotFound):
                        self._remove([key])
            with self._lock:
                for gtrid in some:
                    self._marks.pop(gtrid, None)

    def _remove(self, keys: list[int]) -> None:
        own = OWN + self._new_id()
        try:
            self._storage.take_keys(own, QUEUE, keys, 0.0)
            self._storage.commit_one_phase(own, False)
        except BaseException:
            give_up(self._storage, own)
            raise

    def __len__(self) -> int:
        return len(self._marks)


def _unpacked(content: bytes) -> tuple[bytes, str]:
    return content[:GTRID_BYTES], content[GTRID_BYTES:].decode()
