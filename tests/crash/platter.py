"""What a power cut may find: what is durable, and what was on its way and may or may not be there.

A `Platter` follows a trace entry by entry. It takes every change apart into what reaches the device
as a whole or not at all, and keeps these parts as pending until a sync covers them. Whoever asks
says which of the pending parts arrived and gets the files that a restart would see. It neither
chooses nor judges. The device it stands for keeps four promises and no other:

1. A sector arrives as a whole, with all that was written into it before it left.
2. The size of a file arrives apart from its data, and together with the truncations before it:
   both are in the inode.
3. A creation, a renaming, a removal each arrive as a whole, and not before those of the same name
   that came before. Other than that they arrive in no order; nor do they wait for the data, nor
   the data for them.
4. What a sync covers has arrived. What a failed sync covers may never arrive, and no later sync
   changes that; the same sector can be written once more.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from tests.crash.trace import (
    DIRECTORY,
    SECTOR_BYTES,
    Created,
    Entry,
    Noted,
    Removed,
    Renamed,
    Resized,
    Synced,
    Wrote,
)


class Sector:
    """New content of a sector. `mark` stands for place and content; it is 0 for zeros."""

    __slots__ = ("data", "file", "index", "mark")

    def __init__(self, file: int, index: int, data: bytes) -> None:
        self.file = file
        self.index = index
        self.data = data
        self.mark = _mark(index, data)

    def __repr__(self) -> str:
        return f"Sector(file={self.file}, index={self.index})"


@dataclass(frozen=True, slots=True)
class Size:
    """A new size that is not smaller than the one before."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A truncation."""

    file: int
    size: int


NameChange = Created | Renamed | Removed
Part = Sector | Size | Cut | NameChange
Filling = Callable[[Sector], Sector]


class Change:
    """A part on its way: whether it is kept in the image being made is for the asker to say."""

    __slots__ = ("is_durable", "is_kept", "is_lost", "order", "part")

    def __init__(self, order: int, part: Part) -> None:
        self.order = order
        self.part = part
        self.is_kept = self.is_durable = self.is_lost = False


@dataclass(frozen=True, slots=True)
class Leftover:
    """What is left of a file: the durable content, and the parts that arrived besides."""

    durable: bytes
    parts: tuple[Part, ...]

    def content(self) -> bytes:
        """The file as a restart reads it."""
        if not self.parts:
            return self.durable
        size, whole, sectors = _settled(len(self.durable), self.parts)
        data = bytearray(self.durable[: min(whole, size)])
        data.extend(bytes(size - len(data)))
        for index, sector in sectors.items():
            start = index * SECTOR_BYTES
            if start < size:
                data[start : start + SECTOR_BYTES] = sector.data[: size - start]
        return bytes(data)


class Platter:
    """The device at one moment of a trace."""

    def __init__(self, initial: Mapping[str, bytes]) -> None:
        self._names = {name: number for number, name in enumerate(sorted(initial), start=1)}
        self._name_changes: list[Change] = []
        self._files = {number: _Stored(initial[name]) for name, number in self._names.items()}

    def advance(self, order: int, entry: Entry) -> None:
        """The entry of the trace with this number has happened."""
        match entry:
            case Synced(file, upto, succeeded):
                self._sync(file, upto, succeeded)
            case Created() | Renamed() | Removed():
                self._name_changes.append(Change(order, entry))
                if isinstance(entry, Created):
                    self._files[entry.file] = _Stored(b"")
            case Wrote() | Resized():
                # A file that is durably removed may still be written, to no effect.
                if entry.file in self._files:
                    parts = _parts(entry)
                    self._files[entry.file].changes += (Change(order, part) for part in parts)
            case Noted():
                pass

    def pending(self) -> list[Change]:
        """What may or may not arrive, in the order in which it was done."""
        everything = [self._name_changes, *(file.changes for file in self._files.values())]
        return sorted(
            (change for changes in everything for change in changes if not change.is_durable),
            key=lambda change: change.order,
        )

    def image(self, filling: Filling | None = None) -> tuple[int, dict[str, Leftover]]:
        """The files that there are when of the pending parts those arrive that are kept.

        The number is the same for the same names and contents, and for no others. `filling` says
        what is in a block that the size covers and that never was written. Changes without which
        the kept ones could not be are kept as well.
        """
        _keep_before(self._name_changes)
        names = _renamed(self._names, self._name_changes)
        left = {name: self._files[names[name]].leftover(filling) for name in sorted(names)}
        marks = ((name, *self._files[names[name]].fingerprint(left[name])) for name in left)
        return hash(tuple(marks)), left

    def _sync(self, file: int, upto: int, succeeded: bool) -> None:
        if file == DIRECTORY:
            durable = _covered(self._name_changes, upto, succeeded)
            self._names = _renamed(self._names, durable)
            del self._name_changes[: len(durable)]
            self._forget_removed()
        elif file in self._files:
            self._files[file].sync(upto, succeeded)

    def _forget_removed(self) -> None:
        names = {*self._names.values(), *(change.part.file for change in self._name_changes)}
        self._files = {number: file for number, file in self._files.items() if number in names}


class _Stored:
    """A file: its durable content, with a mark for each sector, and what is on its way."""

    def __init__(self, durable: bytes) -> None:
        self.durable = durable
        self.changes: list[Change] = []
        self._marks = _marks(durable)
        self._mark = _joined(self._marks.values())

    def leftover(self, filling: Filling | None) -> Leftover:
        if not self.changes:
            return Leftover(self.durable, ())
        self._keep_cuts()
        parts: list[Part] = []
        for change in self.changes:
            part = change.part
            if change.is_kept:
                parts.append(part)
            elif filling and isinstance(part, Sector) and self._is_new(part):
                parts.append(filling(part))
        return Leftover(self.durable, tuple(parts))

    def fingerprint(self, leftover: Leftover) -> tuple[int, int]:
        """The size, and a mark that stands for the content."""
        if not leftover.parts:
            return len(self.durable), self._mark
        size, whole, sectors = _settled(len(self.durable), leftover.parts)
        if min(whole, size) < len(self.durable):
            return size, _joined(_marks(leftover.content()).values())
        mark = self._mark
        for index, sector in sectors.items():
            mark ^= self._marks.get(index, 0) ^ _mark_within(sector, size)
        return size, mark

    def sync(self, upto: int, succeeded: bool) -> None:
        """What the sync covers is durable, or may be lost for ever."""
        durable = _covered(self.changes, upto, succeeded)
        if not durable:
            return
        left = Leftover(self.durable, tuple(change.part for change in durable))
        size, whole, sectors = _settled(len(self.durable), left.parts)
        was_cut = min(whole, size) < len(self.durable)
        self.durable = left.content()
        if was_cut:
            self._marks = _marks(self.durable)
        else:
            self._marks |= {index: _mark_within(each, size) for index, each in sectors.items()}
        self._mark = _joined(self._marks.values())
        del self.changes[: len(durable)]

    def _keep_cuts(self) -> None:
        """Truncations before a size that is kept are in the same inode."""
        has_later = False
        for change in reversed(self.changes):
            if not isinstance(change.part, Sector):
                change.is_kept |= has_later and isinstance(change.part, Cut)
                has_later |= change.is_kept

    def _is_new(self, sector: Sector) -> bool:
        return sector.index * SECTOR_BYTES >= len(self.durable)


def _parts(entry: Wrote | Resized) -> list[Part]:
    if isinstance(entry, Resized):
        kind = Size if entry.size >= entry.size_before else Cut
        return [kind(entry.file, entry.size)]
    grown: list[Part] = [Size(entry.file, entry.size)] if entry.size > entry.size_before else []
    first = entry.start // SECTOR_BYTES
    return grown + [
        Sector(entry.file, first + place // SECTOR_BYTES, entry.data[place : place + SECTOR_BYTES])
        for place in range(0, len(entry.data), SECTOR_BYTES)
    ]


def _settled(size: int, parts: Iterable[Part]) -> tuple[int, int, dict[int, Sector]]:
    """The size, how far the durable content was never cut, and the sectors that replace it."""
    whole = size
    sectors: dict[int, Sector] = {}
    for part in parts:
        if isinstance(part, Sector):
            sectors[part.index] = part
        elif isinstance(part, Size):
            size = part.size
        elif isinstance(part, Cut):
            size = part.size
            whole = min(whole, size)
            sectors = {index: _cut(sector, size) for index, sector in sectors.items()}
    return size, whole, sectors


def _cut(sector: Sector, size: int) -> Sector:
    rest = max(0, size - sector.index * SECTOR_BYTES)
    if rest >= SECTOR_BYTES:
        return sector
    return Sector(sector.file, sector.index, sector.data[:rest].ljust(SECTOR_BYTES, b"\0"))


def _keep_before(changes: list[Change]) -> None:
    """Changes of a name before one that is kept: it could not be there without them."""
    names: set[str] = set()
    for change in reversed(changes):
        own = _names(cast(NameChange, change.part))
        change.is_kept |= not names.isdisjoint(own)
        if change.is_kept:
            names |= own


def _names(part: NameChange) -> set[str]:
    return {part.old, part.new} if isinstance(part, Renamed) else {part.name}


def _renamed(names: Mapping[str, int], changes: Iterable[Change]) -> dict[str, int]:
    names = dict(names)
    for change in changes:
        part = change.part
        if change.is_kept and isinstance(part, Removed | Renamed):
            del names[part.old if isinstance(part, Renamed) else part.name]
        if change.is_kept and isinstance(part, Created | Renamed):
            names[part.new if isinstance(part, Renamed) else part.name] = part.file
    return names


def _covered(changes: list[Change], upto: int, succeeded: bool) -> list[Change]:
    """Marks what a sync covers; the first changes up to one that is not durable."""
    for change in changes:
        if change.order < upto and not change.is_durable:
            change.is_lost = change.is_lost or not succeeded
            change.is_durable = change.is_kept = not change.is_lost
    return list(itertools.takewhile(lambda change: change.is_durable, changes))


def _mark(index: int, data: bytes) -> int:
    data = data.rstrip(b"\0")
    return hash((index, data)) if data else 0


def _mark_within(sector: Sector, size: int) -> int:
    """The mark of that part of the sector that lies within the size."""
    rest = size - sector.index * SECTOR_BYTES
    if rest >= SECTOR_BYTES:
        return sector.mark
    return _mark(sector.index, sector.data[: max(0, rest)])


def _marks(content: bytes) -> dict[int, int]:
    return {
        start // SECTOR_BYTES: _mark(start // SECTOR_BYTES, content[start : start + SECTOR_BYTES])
        for start in range(0, len(content), SECTOR_BYTES)
    }


def _joined(marks: Iterable[int]) -> int:
    return functools.reduce(operator.xor, marks, 0)
