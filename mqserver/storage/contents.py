"""Whether records can be read as what they say, and whether what a restart made of them agrees.

`RecordCheck` sees the records of a log one by one. `ContentCheck` looks at the index of a restart:
keys, holders, reservations, branches in doubt, and payloads that are in the log. What is wrong is a
finding; nothing is mended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from idl.checksums import crc32
from mqserver.errors import Corruption, StorageError
from mqserver.storage.contract import BranchInfo, Outcome, QueueInfo
from mqserver.storage.entries import IN_LOG, Entry, entries_of
from mqserver.storage.findings import RESTORE, STUMBLES, Notes, told
from mqserver.storage.format import PAGE_HEADER, Control, Record, RecordKind
from mqserver.storage.index import Branch, Consumer, Index
from mqserver.storage.log_manager import CONTROL_NAME
from mqserver.storage.payloads import Payloads
from mqserver.storage.queue_index import PRIORITY_MAX, Queue
from mqserver.storage.records import (
    BranchRecord,
    RunOnDisk,
    read_branch,
    read_checkpoint,
    read_judgement,
    read_plain,
    read_queue,
)
from mqserver.storage.runs import Holding

LOG = "log"
READ_BYTES = 4 * 1024 * 1024
ASK_BY_HAND = "Nobody can be asked how it ended; an operator has to decide."

_JUDGED = (Outcome.HEURISTICALLY_COMMITTED, Outcome.HEURISTICALLY_ROLLED_BACK)


@dataclass(frozen=True)
class InDoubt:
    """What the log says of a branch that is prepared: where, and the keys by queue.

    Of one that a checkpoint carries, the log says only how many messages it has stored.
    """

    lsn: int
    stored: Mapping[str, list[int]] | int
    taken: Mapping[str, list[int]]


# --- Records -------------------------------------------------------------------------------------


class RecordCheck:
    """Reads the records of a log one by one, and remembers what others must agree with."""

    def __init__(self, control: Control, notes: Notes) -> None:
        self._control = control
        self._room = control.page_bytes - PAGE_HEADER.size
        self._notes = notes
        self._checkpoint: list[Holding] | None = None
        self.counts: Counter[str] = Counter()
        self.in_doubt: dict[bytes, InDoubt] = {}
        # Branches of which an end was seen before the checkpoint, which may still carry them.
        self._ended: set[bytes] = set()

    @property
    def has_decisions(self) -> bool:
        """Whether all of the records are a coordinator's."""
        return bool(self.counts) and all(is_decision(RecordKind[name]) for name in self.counts)

    def see(self, record: Record) -> None:
        """The record is counted, and can be read as what it says it is."""
        self.counts[record.kind.name] += 1
        try:
            self._read(record)
        except (Corruption, *STUMBLES) as broken:
            what = f"the {record.kind.name} record makes no sense: {told(broken)}"
            self._notes.damage(LOG, what, lsn=record.lsn)

    def _read(self, record: Record) -> None:
        match record.kind:
            case RecordKind.PREPARED:
                said = read_branch(record, self._room)
                self.in_doubt[said.branch] = _in_doubt(record.lsn, said)
            case RecordKind.COMMITTED:
                read_branch(record, self._room)
            case RecordKind.QUEUE_SET:
                read_queue(record)
            case RecordKind.COMMIT | RecordKind.ROLLBACK:
                self._see_end(read_plain(record)[0])
            case RecordKind.RESOLVED:
                self._see_end(read_judgement(record).branch)
            case RecordKind.CHECKPOINT:
                self._see_checkpoint(record)
            case _:
                # Plain values, as those of a coordinator are.
                read_plain(record)

    def _see_end(self, branch: bytes) -> None:
        self.in_doubt.pop(branch, None)
        if self._checkpoint is None:
            self._ended.add(branch)

    def _see_checkpoint(self, record: Record) -> None:
        said = read_checkpoint(record)
        if record.lsn != self._control.checkpoint_lsn:
            return
        held = [run for carried in said.carried for run in carried.runs]
        self._checkpoint = [_holding(run) for run in said.runs + held]
        for carried in said.carried:
            if carried.branch not in self._ended:
                told = InDoubt(record.lsn, carried.count, dict(carried.taken))
                self.in_doubt[carried.branch] = told

    def check_checkpoint(self) -> None:
        """The checkpoint that the control record names was among the records."""
        lsn = self._control.checkpoint_lsn
        if lsn and self._checkpoint is None and not self.has_decisions:
            self._notes.damage(CONTROL_NAME, "names a checkpoint that cannot be read", lsn=lsn)

    def holdings(self) -> list[Holding]:
        """The runs that the checkpoint names: until the next one nobody writes to their pages."""
        return self._checkpoint or []


def is_decision(kind: RecordKind) -> bool:
    """Whether a record of this kind is a coordinator's."""
    return kind >= RecordKind.INCARNATION


def _holding(run: RunOnDisk) -> Holding:
    entry = None
    if run.columns is not None:
        (entry,) = entries_of(run.columns)
    return Holding(run.first, run.size, run.queue, entry, run.dead)


def _in_doubt(lsn: int, said: BranchRecord) -> InDoubt:
    stored = {queue: [entry.key for entry in entries] for queue, entries in said.stored}
    for queue, parcel in said.parcels:
        stored.setdefault(queue, []).extend(parcel.keys)
    return InDoubt(lsn, stored, dict(said.taken))


# --- The index -----------------------------------------------------------------------------------


class ContentCheck:
    """Holds an index against the rules that it must obey, and against the log."""

    def __init__(self, index: Index, control: Control, end_lsn: int, notes: Notes) -> None:
        self._index = index
        self._control = control
        self._end_lsn = end_lsn
        self._notes = notes
        self._taken = {
            (name, entry.key): branch.id
            for branch in index.branches.values()
            for name, entries in branch.taken.items()
            for entry in entries
        }

    def check_all(self, payloads: Payloads, in_doubt: Mapping[bytes, InDoubt]) -> None:
        """All of it is as it should be, or is noted."""
        self._check_keys()
        for queue in self._index.queues.values():
            self._check_queue(queue)
        for consumer in self._index.consumers.values():
            self._check_consumer(consumer)
        self._check_branches(in_doubt)
        self._check_judged()
        self._check_payloads(payloads)

    # --- Messages

    def _entries(self) -> Iterator[tuple[str, Entry]]:
        """Every message, with the name of its queue."""
        for queue in self._index.queues.values():
            for entry in queue.entries.values():
                yield queue.name, entry
        for branch in self._index.branches.values():
            for name, entries in branch.stored.items():
                for entry in entries:
                    yield name, entry

    def _check_keys(self) -> None:
        seen: set[int] = set()
        for name, entry in self._entries():
            whose = f"message {entry.key} of queue {name!r}"
            if entry.key in seen:
                self._tell(f"{whose}: its key was given twice")
            seen.add(entry.key)
            if not 0 < entry.key < self._control.next_key:
                what = f"says that keys from {self._control.next_key} on were never given"
                self._notes.damage(CONTROL_NAME, f"{what}, and there is {whose}")
            if not 0 <= entry.priority <= PRIORITY_MAX:
                self._tell(f"{whose}: priority {entry.priority} is not possible")
            if entry.run == IN_LOG and not self._is_in_log(entry):
                self._tell(f"{whose}: its payload is outside the log", entry.place)

    def _is_in_log(self, entry: Entry) -> bool:
        return (
            self._control.restart_lsn <= entry.place and entry.place + entry.size <= self._end_lsn
        )

    def _check_queue(self, queue: Queue) -> None:
        free = {entry.key for entry in queue.entries.values() if entry.holder is None}
        if {entry.key for entry in queue.free_in_order()} != free:
            self._tell(f"queue {queue.name!r}: its order is not that of its free messages")
        if queue.payload_bytes != sum(entry.size for entry in queue.entries.values()):
            self._tell(f"queue {queue.name!r}: its size is not that of its messages")
        for entry in queue.entries.values():
            if entry.holder is not None and not self._is_held(queue.name, entry):
                what = f"message {entry.key} of queue {queue.name!r}: its holder is not known"
                self._tell(what)

    def _is_held(self, queue: str, entry: Entry) -> bool:
        match entry.holder:
            case bytes() as branch:
                return self._taken.get((queue, entry.key)) == branch
            case (str() as name, int() as number):
                consumer = self._index.consumers.get(name)
                return consumer is not None and number in consumer.reservations
        return False

    # --- Consumers

    def _check_consumer(self, consumer: Consumer) -> None:
        whose = f"consumer {consumer.name!r}"
        queue = self._index.queues.get(consumer.queue)
        if queue is None:
            self._tell(f"{whose}: there is no queue {consumer.queue!r}")
            return
        numbers = list(consumer.reservations)
        first = consumer.finished + 1
        if numbers != list(range(first, first + len(numbers))):
            self._tell(f"{whose}: reservations {numbers} behind {consumer.finished}")
        for number, keys in consumer.reservations.items():
            lost = [key for key in keys if not _holds(queue, key, (consumer.name, number))]
            if lost:
                told_keys = ", ".join(map(str, lost[:5])) + (", ..." if len(lost) > 5 else "")
                what = f"{whose}: reservation {number} lacks {len(lost)} messages, {told_keys}"
                self._tell(what)

    # --- Branches

    def _check_branches(self, in_doubt: Mapping[bytes, InDoubt]) -> None:
        known = self._index.branches
        for name in known.keys() | in_doubt.keys():
            whose = f"prepared branch {name.hex()}"
            branch, said = known.get(name), in_doubt.get(name)
            if branch is None or branch.outcome is not Outcome.PREPARED:
                lsn = None if said is None else said.lsn
                self._tell(f"{whose}: a restart does not bring it back", lsn)
            elif said is None:
                self._tell(f"{whose}: the log does not say what it did", branch.lsn)
            else:
                self._check_branch(whose, branch, said)

    def _check_branch(self, whose: str, branch: Branch, said: InDoubt) -> None:
        if not branch.recovery:
            self._notes.notice(LOG, f"{whose}: no recovery bytes. {ASK_BY_HAND}")
        for name in branch.stored.keys() | branch.taken.keys():
            if name not in self._index.queues:
                self._tell(f"{whose}: there is no queue {name!r}", said.lsn)
        stored, taken = _keys(branch.stored), _keys(branch.taken)
        if not _is_as_said(stored, said.stored):
            self._tell(f"{whose}: a restart finds other messages stored", said.lsn)
        if taken != _sorted(said.taken):
            self._tell(f"{whose}: a restart finds other messages taken", said.lsn)

    def _check_judged(self) -> None:
        for info in self._index.heuristics.values():
            if info.outcome not in _JUDGED:
                self._tell(f"branch {info.branch.hex()}: ended by hand as {info.outcome.name}")

    # --- Payloads in the log

    def _check_payloads(self, payloads: Payloads) -> None:
        batch: list[tuple[str, Entry]] = []
        size = 0
        for name, entry in self._entries():
            if entry.run == IN_LOG:
                batch.append((name, entry))
                size += entry.size
            if size > READ_BYTES:
                self._check_batch(payloads, batch)
                batch, size = [], 0
        self._check_batch(payloads, batch)

    def _check_batch(self, payloads: Payloads, batch: list[tuple[str, Entry]]) -> None:
        try:
            found = payloads.read([entry for _, entry in batch])
        except StorageError as refused:
            if len(batch) > 1:
                for each in batch:
                    self._check_batch(payloads, [each])
                return
            ((name, entry),) = batch
            what = f"message {entry.key} of queue {name!r} cannot be read: {told(refused)}"
            self._tell(what, entry.place)
            return
        for name, entry in batch:
            if crc32(found[entry.key]) != entry.digest:
                whose = f"message {entry.key} of queue {name!r}"
                self._tell(f"{whose}: the payload does not have its digest", entry.place)

    def _tell(self, what: str, lsn: int | None = None) -> None:
        self._notes.damage(LOG, what, RESTORE, lsn=lsn)


def queues_of(index: Index) -> list[QueueInfo]:
    """All queues, by name; what prepared branches have stored is counted as locked."""
    return [index.queue_info(name) for name in sorted(index.queues)]


def branches_of(index: Index) -> list[BranchInfo]:
    """The branches that are prepared or were ended by hand, by id."""
    living = [branch.info() for branch in index.branches.values()]
    return sorted([*living, *index.heuristics.values()], key=lambda info: info.branch)


def _holds(queue: Queue, key: int, holder: tuple[str, int]) -> bool:
    entry = queue.entries.get(key)
    return entry is not None and entry.holder == holder


def _is_as_said(stored: Mapping[str, list[int]], said: Mapping[str, list[int]] | int) -> bool:
    if isinstance(said, int):
        return sum(map(len, stored.values())) == said
    return stored == _sorted(said)


def _keys(entries: Mapping[str, Iterable[Entry]]) -> dict[str, list[int]]:
    return _sorted({name: [entry.key for entry in each] for name, each in entries.items()})


def _sorted(keys: Mapping[str, Iterable[int]]) -> dict[str, list[int]]:
    """Without the queues of which nothing is said."""
    ordered = {name: sorted(each) for name, each in keys.items()}
    return {name: each for name, each in ordered.items() if each}
