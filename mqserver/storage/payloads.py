"""Where payloads are, and how they are got: in memory up to a budget, in the log, or in pages.

It keeps account of the runs of the data file, so that their pages are given back when nothing
durable refers to them any more: a run that the last checkpoint saw, or whose end is not on disk
yet, waits for the next checkpoint. Called with the storage's monitor held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from operator import attrgetter
from typing import NamedTuple

from mqserver.errors import Corruption
from mqserver.storage.contract import Message
from mqserver.storage.entries import IN_LOG, Entry, Parcel
from mqserver.storage.file_manager import FileManager
from mqserver.storage.index import Index
from mqserver.storage.log_manager import LogManager
from mqserver.storage.sums import Sum, Summing

SPAN_BYTES_MAX = 1024 * 1024
GAP_BYTES_MAX = 4096
_new = tuple.__new__


@dataclass
class Run:
    """A run of the data file: its queue, the size of its content, and its messages.

    A payload that has a run to itself is known by its entry; of a bundle, which holds many, those
    that are gone are known, and whether the branch that stored them `is_in_doubt`. `sum` is there
    until it was compared with the digest.
    """

    queue: str
    size: int
    live: int
    entry: Entry | None = None
    dead: set[int] = field(default_factory=set)
    sum: Sum | None = None
    is_in_doubt: bool = False


class Stored(NamedTuple):
    """Messages of a queue with payloads in the log: none of them before `lsn`; their keys."""

    lsn: int
    queue: str
    keys: Sequence[int]


class Payloads:
    """The payloads of all messages of a storage."""

    def __init__(self, log: LogManager, files: FileManager, cache_bytes: int) -> None:
        self._log = log
        self._files = files
        self._cache_bytes = cache_bytes
        self._cached = 0
        self._summing = Summing()
        self.runs: dict[int, Run] = {}
        # Runs that the checkpoint on disk refers to, and those that wait for the next one.
        self.in_checkpoint: set[int] = set()
        self.waiting: list[tuple[int, int]] = []
        # How much of the data file the next checkpoint will free.
        self.waiting_bytes = 0
        # What a checkpoint may have to move out of the log: it need not look at all there is.
        self.in_log: list[Stored] = []

    # --- Writing

    def write_large(self, queue: str, entry: Entry, payload: bytes) -> None:
        """The payload is in a run of its own. It is not safe before `sync`."""
        first = self._files.allocate(entry.size)
        try:
            # Before it is written: a second processor sums up meanwhile.
            total = self._summing.begin(payload)
            self._files.write_undivided(first, payload, self._log.end_lsn)
        except BaseException:
            self._files.free(first, entry.size)
            raise
        entry.run, entry.place, entry.payload = first, first * self._files.room, None
        self.runs[first] = Run(queue, entry.size, 1, entry, sum=total)

    def write_parcel(self, queue: str, content: bytes, count: int) -> int:
        """So many messages are in a run that they share, its first page. See `write_large`."""
        first = self._files.allocate(len(content))
        try:
            self._files.write(first, content, self._log.end_lsn)
        except BaseException:
            self._files.free(first, len(content))
            raise
        self.runs[first] = Run(queue, len(content), count, is_in_doubt=True)
        return first

    def drop_parcels(self, parcels: Iterable[Parcel], is_durable: bool) -> None:
        """Their branch was rolled back, with a record that is on disk, or not yet."""
        for parcel in parcels:
            if parcel.is_kept:
                self._cached -= parcel.size
            if parcel.run != IN_LOG:
                del self.runs[parcel.run]
                self._free_run(parcel.run, parcel.run_bytes, is_durable)

    def have_digests(self, entries: list[Entry]) -> bool:
        """Whether digests are right where a checksum is needed; may wait, without the monitor."""
        for entry in entries:
            if entry.run != IN_LOG:
                total = self.runs[entry.run].sum
                if total is not None and total.value() != entry.digest:
                    return False
        return True

    def divide(self, entries: list[Entry]) -> None:
        """Payloads whose digest is wrong go into runs that have checksums of their own."""
        for entry in entries:
            run = None if entry.run == IN_LOG else self.runs[entry.run]
            if run is None or run.sum is None or run.sum.value() == entry.digest:
                continue
            payload = self._files.read_whole(entry.run, entry.size, run.sum.value())
            first = self._files.allocate(entry.size)
            try:
                self._files.write(first, payload, self._log.end_lsn)
            except BaseException:
                self._files.free(first, entry.size)
                raise
            del self.runs[entry.run]
            self._files.free(entry.run, entry.size)
            entry.run, entry.place = first, first * self._files.room
            self.runs[first] = Run(run.queue, entry.size, 1, entry)

    def keep(self, entries: Iterable[Entry]) -> None:
        """The messages are on disk: their payloads stay in memory while the budget lasts."""
        for entry in entries:
            if entry.payload is not None:
                if self._cached + entry.size <= self._cache_bytes:
                    self._cached += entry.size
                else:
                    entry.payload = None
            elif entry.run != IN_LOG:
                self.runs[entry.run].sum = None

    def keep_parcels(self, parcels: Iterable[Parcel]) -> None:
        """The same, of messages that were stored together: of all of them, or of none."""
        for parcel in parcels:
            if parcel.payloads is not None and not parcel.is_kept:
                if self._cached + parcel.size <= self._cache_bytes:
                    self._cached += parcel.size
                    parcel.is_kept = True
                else:
                    parcel.payloads = None

    # --- Letting go

    def drop(self, entries: Iterable[Entry], is_durable: bool) -> None:
        """The messages are gone, with a record that is on disk or not yet."""
        inside: list[Entry] = []
        for entry in entries:
            if entry.payload is not None:
                self._cached -= entry.size
                entry.payload = None
            if entry.run != IN_LOG:
                inside.append(entry)
        if inside:
            self._leave(inside, is_durable)

    def discard(self, entries: Iterable[Entry]) -> None:
        """The messages never were: nothing on disk refers to them."""
        self._leave([entry for entry in entries if entry.run != IN_LOG], is_durable=True)

    def _leave(self, entries: list[Entry], is_durable: bool) -> None:
        # Messages that stand in one run mostly come one behind the other.
        for first, leaving in groupby(entries, key=attrgetter("run")):
            run = self.runs[first]
            keys = [entry.key for entry in leaving]
            run.live -= len(keys)
            if run.entry is None:
                run.dead.update(keys)
            if run.live == 0:
                del self.runs[first]
                self._free_run(first, run.size, is_durable)

    def _free_run(self, first: int, size: int, is_durable: bool) -> None:
        if is_durable and first not in self.in_checkpoint:
            self._files.free(first, size)
        else:
            self.wait_with(first, size)

    def wait_with(self, first: int, size: int) -> None:
        """The run is free once a checkpoint is on disk that does not refer to it."""
        self.waiting.append((first, size))
        self.waiting_bytes += size

    def release_waiting(self) -> None:
        """The checkpoint on disk does not refer to them."""
        for first, size in self.waiting:
            self._files.free(first, size)
        self.waiting = []
        self.waiting_bytes = 0

    def note_stored(self, lsn: int, queue: str, entries: list[Entry]) -> None:
        """The messages are committed; payloads that are in the log are there from here on."""
        if len(entries) == 1:
            # As below, in half of the time.
            self.in_log.append(_new(Stored, (lsn, queue, (entries[0].key,))))
        elif entries:
            self.in_log.append(Stored(lsn, queue, _keys_of(entries)))

    def note_parcels(self, lsn: int, queue: str, parcels: Iterable[Parcel]) -> None:
        """The messages are committed; those that ride in the log are there from here on."""
        for parcel in parcels:
            if parcel.run == IN_LOG:
                self.in_log.append(Stored(lsn, queue, parcel.keys))
            else:
                self.note_committed([parcel.run])

    def note_committed(self, bundles: Iterable[int]) -> None:
        """The messages of these bundles are in their queues: no branch speaks for them any more."""
        for first in bundles:
            if first in self.runs:
                self.runs[first].is_in_doubt = False

    def split_log(self, lsn: int, index: Index) -> tuple[dict[str, list[Entry]], list[Stored]]:
        """The messages, by queue, whose payloads are in records before this one, and all others."""
        before: dict[str, list[Entry]] = {}
        behind: list[Stored] = []
        for stored in self.in_log:
            if stored.lsn > lsn:
                behind.append(stored)
            elif stored.queue in index.queues:
                table = index.queues[stored.queue]
                parcel = table.parcel_of(stored.keys[0])
                if parcel is not None:
                    if parcel.run == IN_LOG:
                        # Moved as a whole, if at all, and looked at again by the next checkpoint.
                        behind.append(stored)
                    continue
                found = map(table.opened.get, stored.keys)
                live = [entry for entry in found if entry is not None]
                inside = [entry for entry in live if entry.run == IN_LOG]
                # An empty payload at the end of its record stands where the next one begins.
                before.setdefault(stored.queue, []).extend([e for e in inside if e.place <= lsn])
                if rest := [entry for entry in inside if entry.place > lsn]:
                    behind.append(Stored(lsn, stored.queue, _keys_of(rest)))
        return before, behind

    def parcels_before(self, lsn: int, index: Index) -> list[tuple[str, Parcel]]:
        """The parcels that nobody has opened, and queues, whose payloads are in such records."""
        found = []
        for stored in self.in_log:
            if stored.lsn <= lsn and stored.queue in index.queues:
                parcel = index.queues[stored.queue].parcel_of(stored.keys[0])
                if parcel is not None and parcel.run == IN_LOG and parcel.place <= lsn:
                    found.append((stored.queue, parcel))
        return found

    # --- Reading

    def messages(self, entries: list[Entry]) -> list[Message]:
        """The messages, with payloads from wherever they are."""
        if len(entries) == 1 and (payload := entries[0].payload) is not None:
            # As below, without lists to be made.
            return [entries[0].message(payload)]
        missing = [entry for entry in entries if entry.payload is None]
        if not missing:
            return [entry.message(entry.payload or b"") for entry in entries]
        read = self.read(missing)
        return [
            entry.message(read[entry.key] if entry.payload is None else entry.payload)
            for entry in entries
        ]

    def read(self, entries: list[Entry]) -> dict[int, bytes]:
        """Payloads by key; those that stand side by side are read at once."""
        found: dict[int, bytes] = {}
        for span in _spans(entries):
            start = span[0].place
            size = span[-1].place + span[-1].size - start
            if span[0].run == IN_LOG:
                data = self._log.read(start, size)
            else:
                data = self._read_run(span[0], start, size)
            if len(data) != size:
                raise Corruption(f"the payload of message {span[0].key} is cut off")
            for entry in span:
                found[entry.key] = data[entry.place - start : entry.place - start + entry.size]
        return found

    def _read_run(self, entry: Entry, start: int, size: int) -> bytes:
        run = self.runs[entry.run]
        if run.entry is None:
            return self._files.read(entry.run, start, size)
        # Until a record names it, nobody knows whether the digest that came with it is right.
        digest = entry.digest if run.sum is None else run.sum.value()
        return self._files.read_whole(entry.run, size, digest)


def _keys_of(entries: list[Entry]) -> Sequence[int]:
    keys = sorted(entry.key for entry in entries)
    is_range = keys[-1] - keys[0] == len(keys) - 1
    return range(keys[0], keys[-1] + 1) if is_range else keys


def _spans(entries: list[Entry]) -> list[list[Entry]]:
    if entries and _are_one_behind_the_other(entries):
        return [entries]
    spans: list[list[Entry]] = []
    end = start = run = -2
    # An empty payload stands where the next one begins, and comes before it.
    for entry in sorted(entries, key=attrgetter("run", "place", "size")):
        is_near = entry.run == run and entry.place - end <= GAP_BYTES_MAX
        if is_near and entry.place + entry.size - start <= SPAN_BYTES_MAX:
            spans[-1].append(entry)
        else:
            spans.append([entry])
            start, run = entry.place, entry.run
        end = entry.place + entry.size
    return spans


def _are_one_behind_the_other(entries: list[Entry]) -> bool:
    """Whether they are a span as they stand, as those of a parcel are when they are got."""
    first, last = entries[0], entries[-1]
    if last.run != first.run or last.place + last.size - first.place > SPAN_BYTES_MAX:
        return False
    places = accumulate([entry.size for entry in entries[:-1]], initial=first.place)
    return [entry.place for entry in entries] == list(places) and all(
        [entry.run == first.run for entry in entries]
    )
