"""The decision log: what is written, what is forced, and when. Presumed abort.

Forced before anybody is told: a decision to commit, a heuristic outcome, a new incarnation. All
else is written with the next forced write: that a participant is done, that all are, that nobody
asks for a heuristic any more; and what a mark in a database has decided, which is on that one's
disk. To lose such a record costs a repetition, never an outcome; who writes it has it forced soon
after, since a participant does not remember for ever what it is then told again. What holds:

1. When `decide` returns, the decision is on disk. Decisions of several threads share one sync.
2. Each start has an incarnation of its own, on disk before the first name is issued under it. The
   first start of a log that was put back from a copy forgets those before: it cannot know what was
   decided under them after the copy was made, and must not say "rolled back" of it.
3. A record of everything is written when the log has grown, and the log before it is dropped, so
   that its length, and the time of a start, depend on what is open and not on what there was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from coordinator.ledger import Decision, Ledger, Note, decision_body, note_body
from idl.otids import IDENTITY_BYTES, SECRET_BYTES
from mqserver.errors import Corruption, StorageFull
from mqserver.storage.disk import Disk
from mqserver.storage.format import Control, RecordKind, pack_body, unpack_body
from mqserver.storage.log_manager import CONTROL_NAME, LogManager

STORE_IDENTITY_BYTES = 16
SEGMENT_BLOCKS = 4096
LOG_BYTES_MAX = 8 * 1024 * 1024
CHECKPOINTS_APART = 4

_NO_PAGES = 4096


class DecisionLog:
    """The log of one coordinator, in a directory of its own. May be used from any thread."""

    def __init__(
        self,
        disk: Disk,
        randomness: Callable[[int], bytes],
        *,
        manager: type[LogManager] = LogManager,
        segment_blocks: int = SEGMENT_BLOCKS,
        log_bytes_max: int = LOG_BYTES_MAX,
        is_restored: bool = False,
        give_way: Callable[[], object] = bool,
    ) -> None:
        self.ledger = Ledger()
        self._versions: dict[str, int] = {}
        self._lock = threading.Lock()
        self._limit = self._log_bytes_max = log_bytes_max
        self._directory_lock = disk.lock()
        try:
            if disk.exists(CONTROL_NAME):
                self._log = manager.examine(disk)
            else:
                identity = randomness(STORE_IDENTITY_BYTES)
                self._log = manager.create(disk, Control(_NO_PAGES, identity, segment_blocks))
            self._read()
            # Not earlier: a log that is refused is left as it was found.
            self._log.begin()
            self._versions = dict(self.ledger.marks)
            self._begin_incarnation(randomness(SECRET_BYTES))
            if is_restored:
                self._forget_earlier()
            self._log.give_way = give_way
        except BaseException:
            self._directory_lock.close()
            raise

    @property
    def identity(self) -> bytes:
        """What the names that are issued here begin with."""
        return self._log.control.identity[:IDENTITY_BYTES]

    @property
    def log_bytes(self) -> int:
        """How much of the log a start would read."""
        return self._log.length

    # --- Writing

    def decide(self, decision: Decision) -> None:
        """The decision is on disk. Raises `StorageFull`, and then nothing was decided."""
        self._force(self._append_decision(decision))
        application, version = decision.key
        if version:
            with self._lock:
                self._versions[application] = max(self.version_of(application), version)

    def note_marked(self, decision: Decision) -> None:
        """What a mark has decided is written down, and on disk with the next force.

        Lost before that, it is found where the mark is: that is kept until this is on disk.
        """
        assert not decision.key.version, "versions are nowhere but in this log"
        self._append_decision(decision)

    def version_of(self, application: str) -> int:
        """The highest version that is committed on disk; the ledger may be ahead of the disk."""
        return self._versions.get(application, 0)

    def note_heuristic(self, gtrid: bytes, note: Note) -> None:
        """The heuristic outcome is on disk."""
        body = note_body(gtrid, note)
        self._force(self._append(RecordKind.HEURISTIC, body, may_use_spare=True))

    def note_done(self, gtrid: bytes, number: int) -> None:
        """The participant need not be told again."""
        self._append_if_room(RecordKind.DONE, (gtrid, number))

    def end(self, gtrid: bytes) -> None:
        """Nobody needs to be told any more; only the outcome is remembered."""
        self._append_if_room(RecordKind.ENDED, (gtrid,))

    def dismiss(self, gtrid: bytes) -> None:
        """Nobody asks for the heuristics of this transaction any more."""
        self._append_if_room(RecordKind.DISMISSED, (gtrid,))

    def force_all(self) -> None:
        """All that was written is on disk."""
        self._log.force_all()

    def close(self) -> None:
        """All is on disk, and others may open the directory."""
        try:
            self._log.close()
        finally:
            self._directory_lock.close()

    def _append(self, kind: RecordKind, body: tuple[Any, ...], may_use_spare: bool = False) -> int:
        packed = pack_body(body)
        with self._lock:
            if self._log.length > self._limit:
                self._write_all()
            lsn = self._log.append(kind, packed, may_use_spare)
            # With the lock held, so that the ledger has the order of the log.
            self.ledger.apply(kind, body)
            return lsn

    def _append_decision(self, decision: Decision) -> int:
        """The same for a decision, which need not be read from its record."""
        packed = pack_body(decision_body(decision))
        with self._lock:
            if self._log.length > self._limit:
                self._write_all()
            lsn = self._log.append(RecordKind.DECISION, packed)
            self.ledger.decide(decision)
            return lsn

    def _append_if_room(self, kind: RecordKind, body: tuple[Any, ...]) -> None:
        try:
            self._append(kind, body, may_use_spare=True)
        except StorageFull:
            # It holds all the same; after a start that finds no record of it, it is done again.
            with self._lock:
                self.ledger.apply(kind, body)

    def _force(self, lsn: int) -> None:
        self._log.force(lsn)

    def _write_all(self) -> None:
        """One record says everything, and the log begins with it."""
        packed = pack_body(self.ledger.packed())
        try:
            self._begin_with_all(packed)
        except StorageFull:
            # The log as it is goes on being valid; it is tried again with the next record.
            return
        self._limit = self._log_bytes_max + CHECKPOINTS_APART * len(packed)

    def _begin_with_all(self, packed: bytes) -> None:
        lsn = self._log.append(RecordKind.DECISIONS, packed, may_use_spare=True)
        # Those who wait for their decisions may need the lock that is held here.
        self._log.force(lsn, by_itself=True)
        # After this line a start begins with that record, whatever happens.
        self._log.write_control(restart_lsn=lsn, checkpoint_lsn=lsn)
        self._log.forget_before(lsn)

    # --- Opening

    def _read(self) -> None:
        for record in self._log.records(self._log.control.restart_lsn):
            if not self.ledger.knows(record.kind):
                raise Corruption(
                    f"the log record at LSN {record.lsn} is {record.kind.name}: this directory "
                    "belongs to a queue server, not to a coordinator"
                )
            body, _ = unpack_body(record.body, f"the log record at LSN {record.lsn}")
            self.ledger.apply(record.kind, body)

    def _begin_incarnation(self, secret: bytes) -> None:
        number = self.ledger.incarnation + 1
        self._force(self._append(RecordKind.INCARNATION, (number, secret), may_use_spare=True))

    def _forget_earlier(self) -> None:
        number = self.ledger.incarnation
        self.ledger.incarnations = {number: self.ledger.incarnations[number]}
        # Before anybody is answered: after this line no start knows the incarnations before.
        self._begin_with_all(pack_body(self.ledger.packed()))
