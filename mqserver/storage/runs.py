"""Whether the runs of a data file hold what was written there: every page, and every payload.

A run is read page by page, so that one damaged page does not hide the next and a payload of any
size needs little memory. Knows neither the log nor the index; changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from idl.checksums import crc32
from mqserver.errors import Corruption, StorageError
from mqserver.storage.disk import File
from mqserver.storage.entries import Entry
from mqserver.storage.file_manager import DATA_NAME
from mqserver.storage.findings import RESTORE, Notes, told
from mqserver.storage.format import (
    PAGE_HEADER,
    Control,
    check_undivided,
    decode_pages,
    is_undivided,
    pages_needed,
)
from mqserver.storage.records import RunOnDisk, read_bundle

LOST = (
    "A server starts, and refuses to hand out this message. Restore a backup of all of the "
    "directory, or have the message sent again."
)


@dataclass(frozen=True)
class Holding:
    """A run, its queue, and its one message; or, for a bundle, those in it that are gone.

    One that `is_needed` no more holds nothing but what the last checkpoint saw. How many messages
    are `live` is not known before a restart has been tried.
    """

    first: int
    size: int
    queue: str
    entry: Entry | None = None
    dead: Collection[int] = ()
    is_needed: bool = True
    live: int | None = None

    @property
    def is_bundle(self) -> bool:
        """Whether many messages share the run."""
        return self.is_needed and self.entry is None

    @property
    def whose(self) -> str:
        """What the run holds, for people."""
        if not self.is_needed:
            return "only what is gone was in it"
        if self.entry is not None:
            return f"message {self.entry.key} of queue {self.queue!r}"
        return f"messages of queue {self.queue!r}"


class RunCheck:
    """Holds runs against a data file."""

    def __init__(
        self, file: File, control: Control, notes: Notes, end_lsn: int | None = None
    ) -> None:
        self._file = file
        self._control = control
        self._room = control.page_bytes - PAGE_HEADER.size
        self._end_lsn = end_lsn
        self._notes = notes

    def check_all(self, holdings: Iterable[Holding]) -> None:
        """Every run holds what it should, and no page is in two of them."""
        end = 0
        for holding in sorted(holdings, key=lambda holding: holding.first):
            if holding.first < end:
                self._tell(holding, holding.first, f"page {holding.first} is in use twice")
            end = max(end, holding.first + pages_needed(self._control.page_bytes, holding.size))
            self.check(holding)

    def check(self, holding: Holding) -> None:
        """The run holds what it should: its pages are whole, and payloads have their digests."""
        if holding.is_bundle:
            self._check_bundle(holding)
        else:
            self._check_payload(holding)

    def _check_payload(self, holding: Holding) -> None:
        digest = size = 0
        is_whole = True
        for piece in self._pieces(holding):
            is_whole = is_whole and piece is not None
            digest = crc32(piece or b"", digest)
            size += len(piece or b"")
        if is_whole and size != holding.size:
            what = f"the run has {size} bytes, not {holding.size} ({holding.whose})"
            self._tell(holding, holding.first, what)
        elif is_whole and holding.entry is not None and digest != holding.entry.digest:
            where = self._range(holding)
            what = f"the payload{where} does not have its digest ({holding.whose})"
            self._tell(holding, holding.first, what)

    def _range(self, holding: Holding) -> str:
        """Where a payload is that has one checksum: where in it the damage is nobody can tell."""
        if not self._is_undivided(holding.first):
            return ""
        start = holding.first * self._control.page_bytes + PAGE_HEADER.size
        return f", bytes {start} to {start + holding.size - 1},"

    def _check_bundle(self, holding: Holding) -> None:
        for entry, payload in self.bundled(holding):
            is_whole = len(payload) == entry.size and crc32(payload) == entry.digest
            if entry.key not in holding.dead and not is_whole:
                page = entry.place // self._room
                whose = f"message {entry.key} of queue {holding.queue!r}"
                self._tell(holding, page, f"the payload does not have its digest ({whose})")

    def bundled(self, holding: Holding) -> list[tuple[Entry, bytes]]:
        """All messages of a bundle, those that are gone too; none where it is damaged."""
        pieces = list(self._pieces(holding))
        content = b"".join(piece for piece in pieces if piece is not None)
        if None in pieces:
            return []
        run = RunOnDisk(holding.first, holding.size, holding.queue, (), None)
        try:
            entries = read_bundle(run, content, self._room)
        except (Corruption, ValueError, TypeError) as broken:
            self._tell(holding, holding.first, f"the bundle cannot be read: {told(broken)}")
            return []
        address = holding.first * self._room
        return [(e, content[e.place - address : e.place - address + e.size]) for e in entries]

    def beginning(self, holding: Holding) -> bytes:
        """What stands in the first page of the run; nothing where that is damaged."""
        return next(self._pieces(holding), None) or b""

    # --- Pages

    def _pieces(self, holding: Holding) -> Iterator[bytes | None]:
        """The content of each page, None for one that is damaged."""
        wanted = pages_needed(self._control.page_bytes, holding.size)
        there = min(wanted, -(-self._file.size() // self._control.page_bytes) - holding.first)
        if there > 0:
            is_whole = not holding.is_bundle and self._is_undivided(holding.first)
            yield from (self._undivided if is_whole else self._divided)(holding, there)
        if there < wanted:
            first_missing = max(0, there)
            count = wanted - first_missing
            what = "the file ends before " + ("the page" if count == 1 else f"{count} pages")
            self._tell(holding, holding.first + first_missing, f"{what} ({holding.whose})")
            yield None

    def _is_undivided(self, page: int) -> bool:
        try:
            return is_undivided(self._read(page))
        except Corruption:
            # The first page is looked at again, and told of.
            return False

    def _divided(self, holding: Holding, there: int) -> Iterator[bytes | None]:
        bad: list[tuple[int, str]] = []
        for place in range(there):
            page = holding.first + place
            piece, what = None, ""
            try:
                piece = self._piece(page, place)
            except Corruption as broken:
                what = told(broken).rpartition(": ")[2]
            if bad and bad[0][1] != what:
                self._tell_bad(holding, bad)
                bad = []
            if what:
                bad.append((page, what))
            yield piece
        if bad:
            self._tell_bad(holding, bad)

    def _undivided(self, holding: Holding, there: int) -> Iterator[bytes | None]:
        """As above; but for the header, only the digest of all of it tells whether it is whole."""
        left = PAGE_HEADER.size + holding.size
        for page in range(holding.first, holding.first + there):
            try:
                data = self._read(page)
                if page == holding.first:
                    header = data[: PAGE_HEADER.size]
                    sizes = (self._control.page_bytes, page, holding.size)
                    check_undivided(self._control.seed, *sizes, header)
                    self._refuse_future(page, header)
                if len(data) < self._control.page_bytes:
                    raise Corruption(f"{self._where(page)}: the page is cut off")
                if data[left:].strip(b"\0"):
                    raise Corruption(f"{self._where(page)}: the page is not whole")
            except Corruption as broken:
                what = told(broken).rpartition(": ")[2]
                self._tell(holding, page, f"{what} ({holding.whose})")
                yield None
                return
            yield data[PAGE_HEADER.size : left] if page == holding.first else data[:left]
            left = max(0, left - len(data))

    def _piece(self, page: int, place: int) -> bytes:
        data = self._read(page)
        (found,) = decode_pages(self._control.seed, self._control.page_bytes, page, place, data)
        self._refuse_future(page, data)
        return bytes(found)

    def _read(self, page: int) -> bytes:
        try:
            return self._file.read(page * self._control.page_bytes, self._control.page_bytes)
        except StorageError as refused:
            what = "the page is not to be had from the device"
            raise Corruption(f"{self._where(page)}: {what}") from refused

    def _refuse_future(self, page: int, header: bytes) -> None:
        lsn = PAGE_HEADER.unpack_from(header)[3]
        if self._end_lsn is not None and lsn > self._end_lsn:
            what = f"the page was written at LSN {lsn}, of the future"
            raise Corruption(f"{self._where(page)}: {what}")

    def _where(self, page: int) -> str:
        return f"{DATA_NAME}, offset {page * self._control.page_bytes}"

    def _tell_bad(self, holding: Holding, bad: list[tuple[int, str]]) -> None:
        """Pages side by side that have the same fault are told together."""
        page, what = bad[0]
        many = f"{len(bad)} pages, one behind the other: " if len(bad) > 1 else ""
        self._tell(holding, page, f"{many}{what} ({holding.whose})")

    def _tell(self, holding: Holding, page: int, what: str) -> None:
        offset = page * self._control.page_bytes
        if holding.is_needed:
            # A bundle is read at the start, a payload that has its run to itself is not.
            advice = RESTORE if holding.is_bundle else LOST
            self._notes.damage(DATA_NAME, what, advice, offset)
        else:
            self._notes.notice(DATA_NAME, what, offset)
