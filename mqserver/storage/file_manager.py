"""The data file: runs of pages that hold large payloads, and small ones that outlived the log.

It knows pages and runs, no messages and no log. A run is found by the address of its first byte:
page x content of a page, so that the bytes of a run have addresses one behind the other.

What holds:

1. A page that something durable refers to is never written. Whoever frees pages makes sure that
   nothing durable refers to them any more.
2. What was written is safe after `sync`, and is checked whenever it is read. A failure of this
   file is one of the whole store, which is told of it.
3. The map of free pages is made anew at every start, from what is in use.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterable, Sequence

from mqserver.errors import Corruption, StorageFailed
from mqserver.storage.disk import Bytes, Disk
from mqserver.storage.format import (
    PAGE_HEADER,
    check_content,
    check_undivided,
    decode_pages,
    encode_pages,
    encode_undivided,
    is_undivided,
    pages_needed,
)

DATA_NAME = "data"


class FileManager:
    """The data file of a store. May be used from any thread."""

    def __init__(
        self,
        disk: Disk,
        seed: int,
        page_bytes: int,
        pages: int,
        on_failure: Callable[[StorageFailed], object] = bool,
    ) -> None:
        if not disk.exists(DATA_NAME):
            raise Corruption(f"{DATA_NAME} is missing")
        self._file = disk.open(DATA_NAME)
        self._on_failure = on_failure
        self._seed = seed
        self._page_bytes = page_bytes
        self.room = page_bytes - PAGE_HEADER.size
        self._free = FreeMap()
        self._lock = threading.Lock()
        self._syncing = threading.Lock()
        self._written = 0
        self._synced = 0
        size = self._file.size()
        if size < pages * page_bytes:
            self._file.close()
            raise Corruption(f"{DATA_NAME} has {size} bytes, and {pages * page_bytes} are in use")

    @staticmethod
    def create(disk: Disk) -> None:
        """There is an empty data file; its name is safe once the directory is synced."""
        disk.open(DATA_NAME, create=True).close()

    def use(self, runs: Iterable[tuple[int, int]]) -> None:
        """These runs, of first page and number of pages, are in use; all other pages are free."""
        with self._lock:
            self._free = FreeMap()
            for first, count in sorted(runs):
                if first < self._free.end:
                    raise Corruption(f"{DATA_NAME}: page {first} is in use twice")
                self._free.extend(first)
                self._free.end = first + count
            if self._file.size() < self._free.end * self._page_bytes:
                raise Corruption(
                    f"{DATA_NAME} has {self._file.size()} bytes, and page {self._free.end - 1} "
                    "is in use"
                )

    def pages_for(self, size: int) -> int:
        """How many pages hold this many bytes."""
        return pages_needed(self._page_bytes, size)

    def allocate(self, size: int) -> int:
        """The first page of a free run with room for so many bytes; it is free no longer."""
        with self._lock:
            return self._free.take(self.pages_for(size))

    def write(self, first: int, content: bytes, lsn: int) -> None:
        """The run holds the content. It is not safe before `sync`."""
        self._write(first, encode_pages(self._seed, self._page_bytes, first, lsn, content))

    def write_undivided(self, first: int, payload: bytes, lsn: int) -> None:
        """The same, in half of the time, for whoever knows a digest of the payload or finds out."""
        self._write(first, encode_undivided(self._seed, self._page_bytes, first, lsn, payload))

    def _write(self, first: int, pieces: Sequence[Bytes]) -> None:
        try:
            self._file.write_many(first * self._page_bytes, pieces)
        except StorageFailed as failed:
            self._on_failure(failed)
            raise
        with self._lock:
            self._written += 1

    def sync(self) -> None:
        """All that was written is safe. Who comes while another thread syncs waits for it."""
        with self._syncing:
            with self._lock:
                written = self._written
            if written != self._synced:
                try:
                    self._file.sync()
                except StorageFailed as failed:
                    self._on_failure(failed)
                    raise
                self._synced = written

    def read(self, run: int, address: int, size: int) -> bytes:
        """Bytes of a run that begins with this page."""
        page, offset = divmod(address, self.room)
        count = -(-(offset + size) // self.room)
        data = self._file.read(page * self._page_bytes, count * self._page_bytes)
        pieces = decode_pages(self._seed, self._page_bytes, page, page - run, data)
        content = b"".join(pieces)[offset : offset + size]
        if len(content) != size:
            raise Corruption(f"{DATA_NAME}, offset {page * self._page_bytes}: the run is too short")
        return content

    def read_whole(self, first: int, size: int, digest: int) -> bytes:
        """The content of a run, divided or not; of one that is not, this is the digest."""
        start = first * self._page_bytes
        header = self._file.read(start, PAGE_HEADER.size)
        if not is_undivided(header):
            return self.read(first, first * self.room, size)
        check_undivided(self._seed, self._page_bytes, first, size, header)
        # By itself, since a payload that is cut out of something longer would be copied.
        payload = self._file.read(start + PAGE_HEADER.size, size)
        end = PAGE_HEADER.size + size
        rest = self._file.read(start + end, self.pages_for(size) * self._page_bytes - end)
        check_content(self._page_bytes, first, digest, payload, rest)
        return payload

    def free(self, first: int, size: int) -> None:
        """The run of so many bytes is free."""
        with self._lock:
            self._free.give(first, self.pages_for(size))

    @property
    def pages(self) -> int:
        """How many pages the file needs: all behind are free."""
        with self._lock:
            return self._free.end

    @property
    def free_pages(self) -> int:
        """How many pages are free between those in use."""
        with self._lock:
            return self._free.count

    def shrink(self) -> None:
        """The file ends where its last used page ends."""
        with self._lock:
            if self._file.size() > self._free.end * self._page_bytes:
                try:
                    self._file.truncate(self._free.end * self._page_bytes)
                except StorageFailed as failed:
                    self._on_failure(failed)
                    raise

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()


class FreeMap:
    """Which pages are free: gaps between used ones, and everything from `end` on."""

    def __init__(self) -> None:
        self.end = 0
        self._starts: list[int] = []
        self._counts: list[int] = []

    @property
    def count(self) -> int:
        """How many pages are free before `end`."""
        return sum(self._counts)

    def take(self, count: int) -> int:
        """The first page of the lowest gap that is large enough, or of the end."""
        for position, free in enumerate(self._counts):
            if free >= count:
                first = self._starts[position]
                if free == count:
                    del self._starts[position], self._counts[position]
                else:
                    self._starts[position] += count
                    self._counts[position] -= count
                return first
        first = self.end
        self.end += count
        return first

    def give(self, first: int, count: int) -> None:
        """These pages are free; gaps that touch become one."""
        position = bisect.bisect(self._starts, first)
        self._starts.insert(position, first)
        self._counts.insert(position, count)
        self._join(position)
        self._join(position - 1)
        if self._starts and self._starts[-1] + self._counts[-1] == self.end:
            self.end = self._starts.pop()
            self._counts.pop()

    def extend(self, end: int) -> None:
        """Everything before this page that was not known is free."""
        if end > self.end:
            self._starts.append(self.end)
            self._counts.append(end - self.end)
            self.end = end

    def _join(self, position: int) -> None:
        if 0 <= position < len(self._starts) - 1:
            follows = self._starts[position] + self._counts[position]
            assert follows <= self._starts[position + 1], "a page is free twice"
            if follows == self._starts[position + 1]:
                self._counts[position] += self._counts.pop(position + 1)
                del self._starts[position + 1]
