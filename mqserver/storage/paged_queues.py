"""The paged storage but for its branches: it is opened, has queues, is read, and messages reserved.

`PagedStorage` adds what branches do, and says what holds for all of it. Here is what they share:
the monitor, the managers put together, and the index with what others may see of it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from mqserver.errors import QueueExists, QueueInUse
from mqserver.storage.checkpoint import Checkpoints
from mqserver.storage.consumers import Consumers
from mqserver.storage.contract import (
    EVERYTHING,
    OUTCOMES_KEPT,
    ConsumerInfo,
    Message,
    QueueInfo,
    QueueSettings,
    Selection,
)
from mqserver.storage.disk import Disk
from mqserver.storage.entries import Entry
from mqserver.storage.file_manager import FileManager
from mqserver.storage.format import Control, RecordKind
from mqserver.storage.index import Index, is_selected
from mqserver.storage.log_manager import CONTROL_NAME, LogManager, refuse_lost_control
from mqserver.storage.payloads import Payloads
from mqserver.storage.queue_index import Queue
from mqserver.storage.records import pack_plain, pack_queue
from mqserver.storage.recovery import Recovery


@dataclass(frozen=True)
class PagedSettings:
    """Sizes of a paged storage. The first two are fixed when it is made."""

    page_bytes: int = 16 * 1024
    segment_blocks: int = 16 * 1024
    large_bytes: int = 16 * 1024
    # So many messages, of so many bytes together, that one call stores are a parcel. In pages they
    # cost a sync of their own, so that fewer bytes than this ride in the log.
    parcel_messages_min: int = 500
    parcel_bytes_min: int = 256 * 1024
    parcel_bytes_min_in_log: int = 16 * 1024
    cache_bytes: int = 128 * 1024 * 1024
    log_bytes_max: int = 64 * 1024 * 1024
    waiting_bytes_max: int = 64 * 1024 * 1024
    keys_per_block: int = 1_000_000
    outcomes_kept: int = OUTCOMES_KEPT


@dataclass(frozen=True)
class Turns:
    """What is called before this storage waits, for the disk or for whoever ends a branch.

    It is for threads that do the work of many: see `idl.turns`.
    """

    give_way: Callable[[], object] = bool
    step_aside: Callable[[], object] = bool


class PagedQueues:
    """See `Storage`; whatever of it names no branch."""

    def __init__(
        self,
        disk: Disk,
        identity: Callable[[], bytes],
        clock: Callable[[], float],
        settings: PagedSettings | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._settings = settings or PagedSettings()
        self._clock = clock
        # The lock itself is entered: a condition's own way in is several times as long.
        self._lock = threading.RLock()
        self._monitor = threading.Condition(self._lock)
        self._directory_lock = disk.lock()
        try:
            self._open(disk, identity)
        except BaseException:
            self._directory_lock.close()
            raise
        self._turns = turns or Turns()
        self._log.give_way = self._turns.give_way

    def _open(self, disk: Disk, identity: Callable[[], bytes]) -> None:
        sizes = self._settings
        if disk.exists(CONTROL_NAME):
            self._log = LogManager.examine(disk)
        else:
            control = Control(sizes.page_bytes, identity(), sizes.segment_blocks)
            refuse_lost_control(disk)
            # Before the log, with which the store comes into being: creating that syncs the names.
            FileManager.create(disk)
            self._log = LogManager.create(disk, control)
        with contextlib.ExitStack() as refused:
            refused.callback(self._log.close, clean=False)
            control = self._log.control
            self._files = FileManager(
                disk, control.seed, control.page_bytes, control.pages, self._log.fail
            )
            refused.callback(self._files.close)
            self._payloads = Payloads(self._log, self._files, sizes.cache_bytes)
            recovery = Recovery(self._log, self._files, self._payloads, sizes.outcomes_kept)
            recovery.run()
            # Nothing was changed so far: files that are refused are as they were found.
            self._log.begin()
            # A sync that failed may have lost the size that is shown; what grows anew is synced.
            self._files.shrink()
            refused.pop_all()
        self._index = recovery.index
        self._consumers = Consumers(self._index, self._log)
        limits = (sizes.log_bytes_max, sizes.waiting_bytes_max)
        self._checkpoints = Checkpoints(
            self._log, self._files, self._payloads, self._index, *limits
        )
        self._next_key = self._keys_end = max(control.next_key, recovery.last_key + 1)

    @property
    def log_bytes(self) -> int:
        """How much of the log a restart would read."""
        return self._log.length

    # --- Queues

    def create_queue(self, name: str, settings: QueueSettings) -> None:
        """See `Storage.create_queue`."""
        with self._lock:
            is_known = name in self._index.queues
            if not is_known:
                self._log.append(RecordKind.QUEUE_SET, pack_queue(name, settings))
                self._index.queues[name] = Queue(name, settings)
        # Also one that is known: whoever made it may still be waiting for the disk.
        self._log.force_all()
        if is_known:
            raise QueueExists(name)

    def change_queue(self, name: str, settings: QueueSettings) -> None:
        """See `Storage.change_queue`."""
        with self._lock:
            queue = self._index.queue(name)
            lsn = self._log.append(RecordKind.QUEUE_SET, pack_queue(name, settings))
            queue.change(settings)
        self._log.force(lsn)

    def delete_queue(self, name: str) -> None:
        """See `Storage.delete_queue`."""
        with self._lock:
            queue = self._index.queue(name)
            consumers = [c.name for c in self._index.consumers.values() if c.queue == name]
            stored = [b for b in self._index.branches.values() if b.held(name)[0]]
            if len(queue) or consumers or stored:
                raise QueueInUse(name, *consumers)
            lsn = self._log.append(RecordKind.QUEUE_DELETED, pack_plain(name))
            del self._index.queues[name]
        self._log.force(lsn)

    def queues(self) -> list[QueueInfo]:
        """See `Storage.queues`."""
        with self._lock:
            return [self._shown.queue_info(name) for name in sorted(self._shown.queues)]

    def queue(self, name: str) -> QueueInfo:
        """See `Storage.queue`."""
        with self._lock:
            return self._shown.queue_info(name)

    @property
    def _shown(self) -> Index:
        """What others may see: nothing at all, once it is not known what is on disk."""
        self._log.check_usable()
        return self._index

    # --- Reading without taking

    def read(self, queue: str, key: int) -> Message | None:
        """See `Storage.read`."""
        with self._lock:
            entry = self._shown.queue(queue).find(key)
            if entry is None or entry.holder is not None:
                return None
            return self._payloads.messages([entry])[0]

    def browse(self, queue: str, selection: Selection, after: int, limit: int) -> list[Message]:
        """See `Storage.browse`."""
        with self._lock:
            found = self._shown.queue(queue).free_by_key(after)
            if selection != EVERYTHING:
                found = (entry for entry in found if self._is_selected(entry, selection))
            return self._payloads.messages(list(islice(found, limit)))

    def mark(self, application: str) -> int:
        """See `Storage.mark`."""
        with self._lock:
            return self._shown.marks.get(application, 0)

    def _selected(self, queue: Queue, own: list[Entry], selection: Selection) -> Iterator[Entry]:
        entries: Iterator[Entry] | list[Entry] = queue.free_in_order()
        if own:
            entries = sorted([*entries, *own], key=queue.rank)
        return (entry for entry in entries if self._is_selected(entry, selection))

    def _is_selected(self, entry: Entry, selection: Selection) -> bool:
        if not is_selected(entry, selection):
            return False
        return selection.matches is None or selection.matches(self._payloads.messages([entry])[0])

    # --- Reservations

    def reserve(
        self, consumer: str, queue: str, selection: Selection, after: int, limit: int
    ) -> int:
        """See `Storage.reserve`."""
        with self._lock:
            table = self._index.queue(queue)
            free = (entry.key for entry in self._selected(table, [], selection))
            number, lsn = self._consumers.reserve(consumer, queue, after, islice(free, limit))
        self._log.force(lsn)
        self._checkpoint_if_due()
        return number

    def reserved(self, consumer: str, number: int) -> int:
        """See `Storage.reserved`."""
        with self._lock:
            return len(self._consumers.reservation(consumer, number)[1])

    def fetch(self, consumer: str, number: int, start: int, stop: int) -> list[Message]:
        """See `Storage.fetch`."""
        with self._lock:
            queue, keys = self._consumers.reservation(consumer, number)
            found = map(queue.find, keys[start:stop])
            return self._payloads.messages([entry for entry in found if entry is not None])

    def finish(self, consumer: str, upto: int) -> None:
        """See `Storage.finish`."""
        with self._lock:
            gone, lsn = self._consumers.finish(consumer, upto)
            self._payloads.drop(gone, is_durable=False)
        self._log.force(lsn)
        self._checkpoint_if_due()

    def consumers(self) -> list[ConsumerInfo]:
        """See `Storage.consumers`."""
        with self._lock:
            return self._consumers.infos()

    def drop_consumer(self, consumer: str) -> None:
        """See `Storage.drop_consumer`."""
        with self._lock:
            lsn = self._consumers.drop(consumer)
        self._log.force(lsn)

    # --- The storage itself

    def force(self) -> None:
        """See `Storage.force`."""
        self._log.force_all()

    def checkpoint(self) -> None:
        """See `Storage.checkpoint`."""
        with self._lock:
            self._checkpoints.take(self._keys_end)

    def _checkpoint_if_due(self) -> None:
        if self._checkpoints.is_due:
            with self._lock:
                self._checkpoints.take_when_due(self._keys_end)
