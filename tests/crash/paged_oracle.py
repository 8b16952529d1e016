"""All that can be known of a paged storage that was just opened, beside what the model says of it.

A view is everything that a restart has to bring back: queues with their messages in order, payloads
read; branches in doubt with what they stored and took, their marks and recovery bytes; outcomes,
marks, consumers and what they hold. `view_of` reads it from a storage, `view_of_model` from a state
of the reference model; the two are equal or something is wrong.

`check_structure` looks at what nobody sees: that every page and every segment is used by somebody,
and by one only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mqserver.storage.contract import EVERYTHING, Message, Outcome
from mqserver.storage.entries import IN_LOG, Entry
from mqserver.storage.format import CONTENT_BYTES, is_segment_name
from mqserver.storage.paged import PagedStorage
from mqserver.storage.segments import SPARES_MAX
from tests.crash.recording_disk import RecordingDisk
from tests.storage_model import Row, State, StorageModel

View = Mapping[str, Any]

_MANY = 1000


class Violation(AssertionError):
    """The storage broke a promise."""


# --- Views ---------------------------------------------------------------------------------------


def view_of_model(state: State) -> View:
    """What the state says, of a storage with no branch at work."""
    model = StorageModel(state)
    # What a branch stored and took itself is counted, and of no use any more.
    rows = [row for row in state.rows if not row.stored_by or row.stored_by != row.taken_by]
    prepared = [name for name, what in state.outcomes.items() if what is Outcome.PREPARED]
    return {
        "queues": {name: _queue_of_model(model, name) for name in sorted(state.queues)},
        "branches": sorted(state.shown.values(), key=lambda info: info.branch),
        "held": {branch: _held_in_model(state, branch, rows) for branch in prepared},
        "outcomes": dict(state.outcomes),
        "marks": {name: version for name, version in state.marks.items() if version},
        "consumers": model.consumers(),
        "reserved": {
            (known.consumer, number): model.fetch(known.consumer, number, 0, _MANY)
            for known in model.consumers()
            for number in range(known.finished + 1, known.reserved + 1)
        },
    }


def _queue_of_model(model: StorageModel, name: str) -> tuple[object, ...]:
    settings = model.state.queues[name]
    own = [row for row in model.state.rows if row.queue == name]
    free = [row.message for row in own if row.is_free]
    size = sum(len(row.message.payload) for row in own)
    oldest = free[0].time_us if free else 0
    if settings.prioritized:
        free.sort(key=lambda message: (-message.priority, message.key))
    return settings, free, len(own) - len(free), size, oldest


def _held_in_model(state: State, branch: bytes, rows: list[Row]) -> tuple[object, ...]:
    stored = [(row.queue, row.message) for row in rows if row.stored_by == branch]
    taken = [(row.queue, row.message) for row in rows if row.taken_by == branch]
    marks: dict[str, int] = {}
    for application, version in state.raised.get(branch, ()):
        marks[application] = max(version, marks.get(application, version))
    return sorted(stored), sorted(taken), marks


def view_of(storage: PagedStorage, branches: Iterable[bytes]) -> View:
    """What the storage says, every payload read, of these branches and all others it knows."""
    index = storage._index
    names = {*branches, *index.outcomes, *index.branches, *index.heuristics}
    outcomes = {name: storage.outcome(name) for name in names}
    consumers = storage.consumers()
    return {
        "queues": {info.name: _queue_of(storage, info.name) for info in storage.queues()},
        "branches": storage.branches(),
        "held": {branch: _held_in(storage, branch) for branch in index.branches},
        "outcomes": {name: what for name, what in outcomes.items() if what is not Outcome.UNKNOWN},
        "marks": {name: version for name, version in index.marks.items() if version},
        "consumers": consumers,
        "reserved": {
            (known.consumer, number): storage.fetch(known.consumer, number, 0, _MANY)
            for known in consumers
            for number in range(known.finished + 1, known.reserved + 1)
        },
    }


def _queue_of(storage: PagedStorage, name: str) -> tuple[object, ...]:
    info = storage.queue(name)
    free = storage._payloads.messages(list(storage._index.queue(name).free_in_order()))
    browsed = storage.browse(name, EVERYTHING, 0, _MANY)
    if browsed != sorted(free) or len(free) != info.visible:
        raise Violation(f"browsing {name} shows something else than taking")
    return info.settings, free, info.locked, info.payload_bytes, info.oldest_us


def _held_in(storage: PagedStorage, name: bytes) -> tuple[object, ...]:
    branch = storage._index.branches[name]
    stored: list[tuple[str, Message]] = []
    for queue, entries in branch.stored.items():
        stored += ((queue, each) for each in storage._payloads.messages(entries))
    for queue, parcels in branch.parcels.items():
        entries = [entry for parcel in parcels for entry in parcel.entries()]
        stored += ((queue, each) for each in storage._payloads.messages(entries))
    taken: list[tuple[str, Message]] = []
    for queue, entries in branch.taken.items():
        taken += ((queue, each) for each in storage._payloads.messages(entries))
    return sorted(stored), sorted(taken), branch.marks


def difference(found: View, expected: View) -> str:
    """What is not as it should be."""
    different = [what for what in expected if found[what] != expected[what]]
    return "; ".join(
        f"{what}: {_short(found[what])}, not {_short(expected[what])}" for what in different
    )


def _short(value: object) -> str:
    # Payloads repeat themselves, so that not all of them need be shown.
    text = re.sub(r"payload=b'(.{12}).*?'", r"payload=\1", repr(value))
    return text if len(text) < 600 else f"{text[:600]}..."


# --- Pages and segments --------------------------------------------------------------------------


def check_structure(storage: PagedStorage, disk: RecordingDisk) -> None:
    """Every page is in use by one run or free, every run by messages, and every segment needed."""
    _check_runs(storage)
    _check_pages(storage, disk)
    _check_segments(storage, disk)


def _check_runs(storage: PagedStorage) -> None:
    live: dict[int, int] = {}
    for entry in _entries(storage):
        if entry.run != IN_LOG:
            live[entry.run] = live.get(entry.run, 0) + 1
    kept = {first: run.live for first, run in storage._payloads.runs.items()}
    if kept != live:
        raise Violation(f"runs are kept for {kept}, and messages are in {live}")


def _entries(storage: PagedStorage) -> list[Entry]:
    index = storage._index
    found = [entry for queue in index.queues.values() for entry in queue.entries.values()]
    for branch in index.branches.values():
        for entries in branch.stored.values():
            found += entries
        for parcel in branch.all_parcels():
            found += parcel.entries()
    return found


def _check_pages(storage: PagedStorage, disk: RecordingDisk) -> None:
    files, payloads = storage._files, storage._payloads
    used = [(first, files.pages_for(run.size), "used") for first, run in payloads.runs.items()]
    used += [(first, files.pages_for(size), "waiting") for first, size in payloads.waiting]
    gaps = zip(files._free._starts, files._free._counts, strict=True)
    used += [(first, count, "free") for first, count in gaps]
    page = 0
    for first, count, what in sorted(used):
        if first != page:
            raise Violation(f"page {page} is lost, or in two uses; next is {first}, {what}")
        page = first + count
    if page != files.pages:
        raise Violation(f"pages up to {page} are accounted for, of {files.pages}")
    if len(disk.image()["data"]) < page * files._page_bytes:
        raise Violation(f"the data file is too short for {page} pages")


def _check_segments(storage: PagedStorage, disk: RecordingDisk) -> None:
    blocks = storage._log._segments._blocks
    names = set(disk.names())
    firsts = sorted(int(name[4:], 16) for name in names if is_segment_name(name))
    strangers = {name for name in names if not is_segment_name(name)} - {"control", "data"}
    if strangers:
        raise Violation(f"nobody needs {strangers}")
    oldest = storage._log.control.restart_lsn // CONTENT_BYTES // blocks * blocks
    current = storage._log.end_lsn // CONTENT_BYTES // blocks * blocks
    if firsts != list(range(oldest, firsts[-1] + 1, blocks)):
        raise Violation(f"segments {firsts}, and the restart is in {oldest}")
    if (firsts[-1] - current) // blocks > SPARES_MAX:
        raise Violation(f"segments {firsts} are too many behind {current}")


def check_tidiness(storage: PagedStorage, disk: RecordingDisk) -> None:
    """Just behind a checkpoint the data file ends with what is in use, and nothing waits."""
    check_structure(storage, disk)
    files, payloads = storage._files, storage._payloads
    ends = [first + files.pages_for(run.size) for first, run in payloads.runs.items()]
    size = len(disk.image()["data"])
    if payloads.waiting or size != max(ends, default=0) * files._page_bytes:
        raise Violation(f"{size} bytes of data for pages up to {ends}, {payloads.waiting} wait")
