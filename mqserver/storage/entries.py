"""Messages as the paged storage knows them: one by one, or many at once as a parcel of columns.

Pure. An entry is one message, and where its payload is. A parcel is what a large call has stored:
its messages have keys one behind the other and so have their payloads, which share a run of the
data file or stand in one record of the log. As long as nobody wants one of them no entry is made
for any: that is what bulk work saves, and what the interpreter's collector need not look at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mqserver.storage.contract import Attributes, Message

IN_LOG = -1
# Key, size, digest, priority, group, time, sender, attributes and run, each as a column. What is
# the default for all is None; a column of one stands for all, and one key for those behind it.
Columns = tuple[Any, ...]
_DEFAULTS = (0, 0, 0, "", ())
_TIMES = 5
_new = tuple.__new__


class Entry:
    """One message: what is said of it, and where its payload is.

    `run` is the first page of the run that holds the payload, or IN_LOG; `place` is the address in
    the data file or the LSN. `payload` is None where it must be read.
    """

    __slots__ = (
        "attributes",
        "digest",
        "group",
        "holder",
        "key",
        "payload",
        "place",
        "priority",
        "run",
        "sender",
        "size",
        "time_us",
    )

    def __init__(
        self,
        key: int,
        size: int,
        digest: int,
        priority: int,
        group: int,
        time_us: int,
        sender: str,
        attributes: Attributes,
        payload: bytes | None = None,
    ) -> None:
        self.key = key
        self.size = size
        self.digest = digest
        self.priority = priority
        self.group = group
        self.time_us = time_us
        self.sender = sender
        self.attributes = attributes
        self.payload = payload
        self.place = 0
        self.run = IN_LOG
        self.holder: object = None

    def message(self, payload: bytes) -> Message:
        """The message that is handed out."""
        # As `Message(...)` does, in half of the time.
        return _new(
            Message,
            (
                self.key,
                payload,
                self.digest,
                self.priority,
                self.group,
                self.time_us,
                self.sender,
                self.attributes,
            ),
        )


@dataclass(slots=True)
class Parcel:
    """Messages that were stored together: their columns, and the run that holds their payloads.

    `size` counts the payloads' bytes, `run_bytes` all that is in the run; `place` is the address of
    the first payload. One that rides in the log has IN_LOG for a run, and an LSN for a place; its
    payloads are in memory, too, until there is no budget for them: it `is_kept` while there is.
    """

    columns: Columns
    size: int
    run: int
    run_bytes: int
    place: int
    payloads: Sequence[bytes] | None = None
    is_kept: bool = False

    @property
    def keys(self) -> range:
        """The keys of its messages."""
        first = self.columns[0][0]
        return range(first, first + len(self))

    def __len__(self) -> int:
        return len(self.columns[1])

    @property
    def first_time_us(self) -> int:
        """When the first of its messages was put."""
        times: Sequence[int] = self.columns[_TIMES] or (0,)
        return times[0]

    def entries(self) -> list[Entry]:
        """Its messages one by one, placed."""
        entries = entries_in_run(self.columns, self.run, self.place)
        if self.payloads is not None:
            for entry, payload in zip(entries, self.payloads, strict=True):
                entry.payload = payload
        return entries


def entries_of(columns: Columns) -> list[Entry]:
    """The messages of these columns; where their payloads are is said by `place`."""
    keys, sizes, digests, *optional, runs = columns
    count = len(sizes)
    if len(keys) < count:
        keys = range(keys[0], keys[0] + count)
    filled = [
        column
        if column is not None and len(column) == count
        # One stands for all.
        else ((default,) if column is None else column) * count
        for column, default in zip(optional, _DEFAULTS, strict=True)
    ]
    entries = [Entry(*fields) for fields in zip(keys, sizes, digests, *filled, strict=True)]
    if runs is not None:
        for entry, run in zip(entries, runs, strict=True):
            entry.run = run
    return entries


def entries_in_run(columns: Columns, run: int, start: int) -> list[Entry]:
    """The messages of these columns, their payloads one behind the other in a run."""
    entries = entries_of(columns)
    for entry in entries:
        entry.run = run
        entry.place = start
        start += entry.size
    return entries


def place(entries: Iterable[Entry], start: int, room: int) -> int:
    """The payloads stand one behind the other from `start` on, or in runs of their own; the end."""
    for entry in entries:
        if entry.run == IN_LOG:
            entry.place = start
            start += entry.size
        else:
            entry.place = entry.run * room
    return start


def place_parcels(parcels: Iterable[Parcel], start: int) -> None:
    """The payloads of those that ride in the log stand one behind the other from `start` on."""
    for parcel in parcels:
        if parcel.run == IN_LOG:
            parcel.place = start
            start += parcel.size
