"""What the records of the log say: branches, queues, consumers and checkpoints as bodies, and back.

Pure. Messages are written in columns, one list for each field; a column that holds nothing but its
default is left out. Payloads stand behind the columns, one behind the other; those in pages of the
data file are not among them, and have the first page of their run in the column `runs`. A parcel is
columns, too, and says once where all of its payloads are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mqserver.errors import Corruption
from mqserver.storage.contract import BranchInfo, MessageColumns, Outcome, QueueSettings
from mqserver.storage.entries import (
    IN_LOG,
    Columns,
    Entry,
    Parcel,
    entries_in_run,
    entries_of,
    place,
)
from mqserver.storage.format import Record, pack_body, pack_with_start, unpack_body
from mqserver.storage.index import Branch, Consumer, Index
from mqserver.storage.queue_index import Queue

# --- Messages ------------------------------------------------------------------------------------


def columns_of(entries: list[Entry]) -> Columns:
    """The messages, field by field, without payloads."""
    if len(entries) == 1:
        return _columns_of_one(entries[0])
    runs = [entry.run for entry in entries]
    return (
        [entry.key for entry in entries],
        [entry.size for entry in entries],
        [entry.digest for entry in entries],
        _column([entry.priority for entry in entries], 0),
        _column([entry.group for entry in entries], 0),
        _column([entry.time_us for entry in entries], 0),
        _column([entry.sender for entry in entries], ""),
        _column([entry.attributes for entry in entries], ()),
        _column(runs, IN_LOG),
    )


def _columns_of_one(entry: Entry) -> Columns:
    # The common case of one message in a branch, without nine lists to look through.
    return (
        [entry.key],
        [entry.size],
        [entry.digest],
        [entry.priority] if entry.priority else None,
        [entry.group] if entry.group else None,
        [entry.time_us] if entry.time_us else None,
        [entry.sender] if entry.sender else None,
        [entry.attributes] if entry.attributes else None,
        [entry.run] if entry.run != IN_LOG else None,
    )


def _column(values: list[Any], default: Any) -> list[Any] | None:
    return None if values.count(default) == len(values) else values


def payloads_of(entries: list[Entry]) -> list[bytes]:
    """The payloads that stand behind the columns."""
    return [entry.payload or b"" for entry in entries if entry.run == IN_LOG]


# --- Branches ------------------------------------------------------------------------------------


def pack_only(branch: Branch, queue: str, entry: Entry) -> tuple[bytes, int]:
    """As `pack_branch`, of a branch that stored this message in the log and did nothing else."""
    stored = [(queue, _columns_of_one(entry))]
    return pack_with_start((branch.id, branch.recovery, stored, (), (), 0), (entry.payload or b"",))


def pack_branch(branch: Branch) -> tuple[bytes, int]:
    """The body that says all a branch has done, and where in it the payloads begin."""
    stored: list[tuple[object, ...]] = []
    payloads: list[bytes] = []
    added = branch.to_add() if branch.has_cancelled else branch.stored
    for queue, entries in added.items():
        if len(entries) == 1:
            # The common case, without lists to look through.
            (entry,) = entries
            stored.append((queue, _columns_of_one(entry)))
            if entry.run == IN_LOG:
                payloads.append(entry.payload or b"")
        elif entries:
            stored.append((queue, columns_of(entries)))
            payloads += payloads_of(entries)
    if branch.parcels:
        _pack_parcels(branch, stored, payloads)
    if branch.taken or branch.marks or branch.cancelled:
        meta = (branch.id, branch.recovery, stored, *_all_but_stored(branch))
    else:
        # As most branches that store have it, and nothing is asked for it.
        meta = (branch.id, branch.recovery, stored, (), (), 0)
    return pack_with_start(meta, payloads)


def _pack_parcels(branch: Branch, stored: list[tuple[object, ...]], payloads: list[bytes]) -> None:
    """One that rides in the log is as if its messages had been stored one by one."""
    for queue, parcels in branch.parcels.items():
        for parcel in parcels:
            if parcel.run == IN_LOG:
                assert parcel.payloads is not None
                stored.append((queue, (list(parcel.keys), *parcel.columns[1:])))
                payloads += parcel.payloads
            else:
                where = (parcel.run, parcel.run_bytes, parcel.place)
                stored.append((queue, parcel.columns, where))


def _all_but_stored(branch: Branch) -> tuple[Any, Any, Any]:
    """The keys it took, its marks, and what it stored and took itself."""
    taken: object = ()
    cancelled: object = 0
    if branch.has_cancelled or branch.cancelled:
        own = {e.key for entries in branch.stored.values() for e in entries if e.holder}
        taken = _keys_taken(branch, own)
        cancelled = _cancelled(branch)
    elif branch.taken:
        taken = _keys_taken(branch, ())
    return taken, list(branch.marks.items()) if branch.marks else (), cancelled


def _keys_taken(branch: Branch, but: Collection[int]) -> list[tuple[str, list[int]]]:
    found = []
    for queue, entries in branch.taken.items():
        keys = [entry.key for entry in entries]
        found.append((queue, [key for key in keys if key not in but] if but else keys))
    return found


@dataclass(frozen=True)
class BranchRecord:
    """What a branch had done."""

    branch: bytes
    recovery: bytes
    stored: list[tuple[str, list[Entry]]]
    parcels: list[tuple[str, Parcel]]
    taken: list[tuple[str, list[int]]]
    marks: list[tuple[str, int]]
    cancelled: dict[str, tuple[int, int]]


def _cancelled(branch: Branch) -> list[tuple[str, int, int]]:
    """What the branch stored and took itself: queue, how many, their bytes. 0 stands for none."""
    found = []
    for queue in {**branch.stored, **branch.cancelled}:
        own = [entry.size for entry in branch.stored.get(queue, ()) if entry.holder]
        count, size = branch.cancelled.get(queue, (0, 0))
        if count + len(own):
            found.append((queue, count + len(own), size + sum(own)))
    return found


def read_branch(record: Record, room: int) -> BranchRecord:
    """The branch of a COMMITTED or PREPARED record, with its messages placed."""
    meta, start = _unpack(record)
    branch, recovery, stored, taken, marks, cancelled = meta
    found = [(each[0], entries_of(each[1])) for each in stored if len(each) == 2]
    parcels = [
        (queue, Parcel(columns, sum(columns[1]), *where))
        for queue, columns, where in (each for each in stored if len(each) > 2)
    ]
    position = record.body_lsn + start
    for _, entries in found:
        position = place(entries, position, room)
    if position != record.body_lsn + len(record.body):
        raise Corruption(f"log record at LSN {record.lsn}: its payloads have another length")
    rest = _rest_of_branch(taken, marks, cancelled)
    return BranchRecord(branch, recovery, found, parcels, *rest)


def _rest_of_branch(taken: Any, marks: Any, cancelled: Any) -> tuple[Any, Any, Any]:
    held = [(queue, list(keys)) for queue, keys in taken]
    if isinstance(cancelled, int):
        # None, or what was written before queue and bytes were told.
        cancelled = [("", cancelled, 0)] if cancelled else []
    gone = {queue: (count, size) for queue, count, size in cancelled}
    return held, list(marks), gone


# --- The rest ------------------------------------------------------------------------------------


def pack_queue(name: str, settings: QueueSettings) -> bytes:
    """A queue and its settings."""
    return pack_body((name, _settings(settings)))


def read_queue(record: Record) -> tuple[str, QueueSettings]:
    """The queue of a QUEUE_SET record."""
    name, settings = _unpack(record)[0]
    return name, QueueSettings(*settings)


def pack_plain(*values: object) -> bytes:
    """A body of plain values."""
    return pack_body(values)


def read_plain(record: Record) -> tuple[Any, ...]:
    """The plain values of a body."""
    values: tuple[Any, ...] = _unpack(record)[0]
    return values


def pack_judgement(info: BranchInfo) -> bytes:
    """How an operator ended a branch."""
    return pack_body(_info(info))


def read_judgement(record: Record) -> BranchInfo:
    """The branch of a RESOLVED record."""
    return _branch_info(_unpack(record)[0])


def _info(info: BranchInfo) -> tuple[object, ...]:
    return (info.branch, info.outcome.value, info.recovery, info.stored, info.taken)


def _branch_info(fields: tuple[Any, ...]) -> BranchInfo:
    branch, outcome, recovery, stored, taken = fields
    return BranchInfo(branch, Outcome(outcome), recovery, stored, taken)


def _settings(settings: QueueSettings) -> tuple[object, ...]:
    return (
        settings.enabled,
        settings.prioritized,
        settings.messages_max,
        settings.bytes_max,
    )


def _unpack(record: Record) -> tuple[Any, int]:
    return unpack_body(record.body, f"log record at LSN {record.lsn}")


# --- Checkpoints ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunOnDisk:
    """A run of the data file: its content's size, its queue, and the messages in it that are gone.

    `columns` are there for a payload that has its run to itself; a bundle holds its own.
    """

    first: int
    size: int
    queue: str
    dead: tuple[int, ...]
    columns: Columns | None


@dataclass(frozen=True)
class CarriedBranch:
    """A prepared branch whose record is before the restart: the checkpoint speaks for it.

    The messages that it stored are in these runs, none of them in the log; so many are to be found
    there.
    """

    branch: bytes
    recovery: bytes
    runs: list[RunOnDisk]
    count: int
    taken: list[tuple[str, list[int]]]
    marks: list[tuple[str, int]]
    cancelled: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class CheckpointRecord:
    """What a checkpoint saw: all but the messages, the runs where those are, and who is in doubt.

    The runs of a branch in doubt are its own: they are not among those of the queues.
    """

    index: Index
    runs: list[RunOnDisk]
    carried: list[CarriedBranch]


def pack_checkpoint(
    index: Index, runs: Iterable[RunOnDisk], carried: Iterable[tuple[Branch, list[RunOnDisk]]]
) -> bytes:
    """All that the log would not tell when it is read from its restart on.

    The latter are prepared branches, with the runs that hold the messages they stored.
    """
    queues = [(queue.name, _settings(queue.settings)) for queue in index.queues.values()]
    consumers = [
        (c.name, c.queue, c.finished, [(n, keys) for n, keys in c.reservations.items()])
        for c in index.consumers.values()
    ]
    outcomes = [(branch, outcome.value) for branch, outcome in index.outcomes.items()]
    judged = [_info(info) for info in index.heuristics.values()]
    in_doubt = [
        (b.id, b.recovery, _pack_runs(held), b.count_added(), *_all_but_stored(b))
        for b, held in carried
    ]
    marks = list(index.marks.items())
    return pack_body((queues, consumers, marks, outcomes, judged, _pack_runs(runs), in_doubt))


def _pack_runs(runs: Iterable[RunOnDisk]) -> list[tuple[object, ...]]:
    return [(r.first, r.size, r.queue, _ranges(r.dead), r.columns) for r in runs]


def read_checkpoint(record: Record) -> CheckpointRecord:
    """What the checkpoint saw."""
    queues, consumers, marks, outcomes, judged, on_disk, *rest = _unpack(record)[0]
    index = Index()
    for name, settings in queues:
        index.queues[name] = Queue(name, QueueSettings(*settings))
    for name, queue, finished, reservations in consumers:
        consumer = index.consumers[name] = Consumer(name, queue)
        consumer.finished = finished
        consumer.reservations.update((number, list(keys)) for number, keys in reservations)
    index.marks.update(marks)
    index.outcomes.update((branch, Outcome(value)) for branch, value in outcomes)
    for fields in judged:
        index.judge(_branch_info(fields))
    # Before version 3 prepared branches were written to the log again, and none was carried.
    (in_doubt,) = rest or ((),)
    return CheckpointRecord(index, _runs(on_disk), [_carried(*fields) for fields in in_doubt])


def _runs(on_disk: Iterable[tuple[Any, ...]]) -> list[RunOnDisk]:
    return [RunOnDisk(f, s, q, tuple(_keys(dead)), columns) for f, s, q, dead, columns in on_disk]


def _carried(branch: bytes, recovery: bytes, runs: Any, count: int, *rest: Any) -> CarriedBranch:
    return CarriedBranch(branch, recovery, _runs(runs), count, *_rest_of_branch(*rest))


def parcel_columns(keys: range, sizes: Sequence[int], messages: MessageColumns) -> Columns:
    """Messages that were stored together, field by field."""
    return ([keys.start], sizes, messages.digests, *messages.headers(), None)


def pack_parcel(queue: str, columns: Columns, payloads: Iterable[bytes]) -> tuple[bytes, int]:
    """The content of a run that messages share which were stored together; where payloads begin."""
    return pack_with_start((queue, columns), payloads)


def pack_bundle(queue: str, entries: list[Entry], payloads: list[bytes]) -> tuple[bytes, int]:
    """The content of a run that holds many small messages, and where their payloads begin."""
    bare = list(columns_of(entries))
    bare[-1] = None
    return pack_with_start((queue, bare), payloads)


def read_bundle(run: RunOnDisk, content: bytes, room: int) -> list[Entry]:
    """The live messages of a bundle, placed."""
    (queue, columns), start = unpack_body(content, f"data, the bundle at page {run.first}")
    if queue != run.queue:
        raise Corruption(f"data: the bundle at page {run.first} belongs to another queue")
    entries = entries_in_run(columns, run.first, run.first * room + start)
    dead = set(run.dead)
    found = [entry for entry in entries if entry.key not in dead]
    if len(found) + len(dead) != len(entries):
        raise Corruption(f"data: the bundle at page {run.first} lacks messages")
    return found


def _ranges(keys: tuple[int, ...]) -> list[tuple[int, int]]:
    """Keys as first and count of those that follow each other."""
    ranges: list[tuple[int, int]] = []
    first = following = -1
    for key in sorted(keys):
        if key != following:
            if following > first:
                ranges.append((first, following - first))
            first = key
        following = key + 1
    if following > first:
        ranges.append((first, following - first))
    return ranges


def _keys(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    for first, count in ranges:
        yield from range(first, first + count)
