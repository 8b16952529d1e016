"""What a recording disk remembers: every change, every sync, and what the program said.

Only values. Files go by number, since names change: those of the first image are numbered from 1
in the order of their names, and each new file gets the next number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SECTOR_BYTES = 512
DIRECTORY = 0


@dataclass(frozen=True, slots=True)
class Wrote:
    """Whole sectors, as they were in the page cache after the write, and what became of the size.

    A sector goes to the device as a whole: with what earlier writes had put into it, never without.
    """

    file: int
    start: int
    data: bytes
    size_before: int
    size: int


@dataclass(frozen=True, slots=True)
class Resized:
    """A truncation, or room that was allocated."""

    file: int
    size_before: int
    size: int


@dataclass(frozen=True, slots=True)
class Created:
    """A new name for a new file."""

    name: str
    file: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """A new name for a file that had one."""

    old: str
    new: str
    file: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A name that is gone."""

    name: str
    file: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A sync of a file (of the directory: 0). It covers the entries of the trace before `upto`."""

    file: int
    upto: int
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Noted:
    """Something that the program said."""

    event: object


Entry = Wrote | Resized | Created | Renamed | Removed | Synced | Noted


@dataclass(frozen=True)
class Trace:
    """All that happened to a disk, from an image on whose files are numbered from 1 by name."""

    initial: Mapping[str, bytes]
    entries: list[Entry] = field(default_factory=list)
