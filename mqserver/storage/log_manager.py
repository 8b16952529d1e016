"""The log: records that are appended, forced together, read again, and forgotten from the front.

It knows no messages and no transactions; the coordinator's decisions are kept in one of these too.
With the log goes the control record, which says where a restart begins. The module is long because
what appends, forces and reads shares one lock, and is clearest side by side. What holds:

1. `append` puts a record behind all others; `force` returns when it and all before it are on disk.
   Threads that force at the same time share one write and one sync (group commit): one of them
   leads, writes for all whose records were appended before its turn came, and does what follows
   from each of them.
2. A forced write begins with a block of its own, so nothing that is on disk is written again.
3. After a write or a sync has failed, nothing more is accepted: what is on disk is then not known.
4. The control record is written into its two slots in turn, each time whole and synced.
5. Nothing is changed before `begin`: a log that is refused is as it was found.
6. A process that was killed, or whose sync failed, leaves behind what the kernel shows and the disk
   may not have. `begin` writes once more what nothing on disk vouches for, and then raises the
   epoch, which tells new blocks from stale ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

from mqserver.errors import Corruption, StorageError, StorageFailed, WrongFormat
from mqserver.storage.disk import Disk
from mqserver.storage.format import (
    BLOCK_BYTES,
    CONTENT_BYTES,
    CONTROL_SLOT,
    RECORD_HEADER,
    SLOT_DISTANCE,
    Block,
    Control,
    Record,
    RecordKind,
    decode_control,
    decode_record,
    encode_blocks,
    encode_control,
    encode_record,
    is_segment_name,
    record_length,
)
from mqserver.storage.segments import NEW_NAME, Segments

CONTROL_NAME = "control"
CONTROL_NEW_NAME = "control-new"
# Files in the directory that people write, and that say nothing of a log.
SETTINGS_ENDINGS = (".toml", ".toml.new")
READ_BLOCKS = 2048
_HEADER_BYTES = RECORD_HEADER.size


class _Waiter:
    """A thread that waits at a gate: what follows from its record, and why that went wrong."""

    __slots__ = ("error", "then")

    def __init__(self, then: Callable[[], object]) -> None:
        # None once somebody has begun with it.
        self.then: Callable[[], object] | None = then
        self.error: BaseException | None = None

    def do(self) -> None:
        """What follows has been done, in place of the thread that waits."""
        then, self.then = self.then, None
        assert then is not None
        try:
            then()
        except BaseException as failed:
            self.error = failed
            # Where it is the one who does it that was interrupted, that is for it to know, too.
            if not isinstance(failed, Exception):
                raise


class _Group:
    """Threads whose records go to the disk with one write: one leads, the others wait at the gate.

    The first who waits makes the gate: most often nobody does. Who comes through it lets the next
    one through: one wakes up at a time. Changed with the log's lock held, until it is on disk.
    """

    __slots__ = ("gate", "has_leader", "waiters")

    def __init__(self) -> None:
        self.gate: threading.Lock | None = None
        self.has_leader = False
        self.waiters: list[_Waiter] = []

    def join(self, waiter: _Waiter) -> threading.Lock:
        """The gate, which the leader opens when it is done."""
        self.waiters.append(waiter)
        if self.gate is None:
            self.gate = threading.Lock()
            self.gate.acquire()
        return self.gate


class LogManager:
    """A log in a directory. `append`, `force` and `read` may be called from any thread."""

    def __init__(self, disk: Disk, control: Control, segments: Segments, end_block: int) -> None:
        self._disk = disk
        self._segments = segments
        self._control = control
        self._seed = control.seed
        self._control_file = disk.open(CONTROL_NAME)
        # The first block that nothing on disk vouches for, until `begin` has seen to it.
        self._doubtful: int | None = None
        self._lock = threading.RLock()
        # Held by the leader that writes. It is waited for without the lock above, never within it.
        self._turn = threading.Lock()
        # Called before a thread waits for the disk, with nothing held: others may come first.
        self.give_way: Callable[[], object] = bool
        # Why nothing more is accepted; see `check_usable`. Others only look at it.
        self.failure: StorageError | None = None
        # What is appended and not yet being written: it will begin with this block.
        self._base = end_block
        self._content = bytearray()
        self._starts: list[int] = []
        self._group = _Group()
        # Where the next record will begin. Read without the lock it is that of a moment ago.
        self.reached = end_block * CONTENT_BYTES
        # What is being written: the block that it begins with, content, and who waits for it.
        self._writing: tuple[int, bytearray] | None = None
        self._writing_starts: list[int] = []
        self._writing_group = self._group
        self._synced = end_block
        # Up to which block there are segments, and spares behind them.
        self._ready_for = -1
        # Where the first record of each segment begins: a restart can begin there.
        self._first_records: dict[int, int] = {}
        # The first LSN of which it is not known whether it is the first record of its segment.
        self._noted = 0

    # --- Opening

    @classmethod
    def create(cls, disk: Disk, control: Control) -> LogManager:
        """A new log. It exists once its control record has its name."""
        refuse_lost_control(disk)
        segments = Segments(disk, control.seed, control.segment_blocks)
        segments.create()
        if disk.exists(CONTROL_NEW_NAME):
            disk.remove(CONTROL_NEW_NAME)
        first = control.next(epoch=1)
        file = disk.open(CONTROL_NEW_NAME, create=True)
        # Both slots from the beginning: a slot that is not whole is then always damage.
        file.write(0, encode_control(control).ljust(SLOT_DISTANCE, b"\0"))
        file.write(SLOT_DISTANCE, encode_control(first).ljust(BLOCK_BYTES, b"\0"))
        file.sync()
        file.close()
        disk.rename(CONTROL_NEW_NAME, CONTROL_NAME)
        disk.sync_directory()
        return cls(disk, first, segments, 0)

    @classmethod
    def open(cls, disk: Disk) -> LogManager:
        """The log as it is on disk, ready to be read and appended to."""
        log = cls.examine(disk)
        log.begin()
        return log

    @classmethod
    def examine(cls, disk: Disk) -> LogManager:
        """The log as it is found, to be read. Nothing is appended before `begin`."""
        control = read_control(disk)
        segments = Segments(disk, control.seed, control.segment_blocks)
        try:
            end, doubtful = _find_end(segments, control)
        except BaseException:
            segments.close()
            raise
        log = cls(disk, control, segments, end)
        log._doubtful = doubtful
        return log

    def begin(self) -> None:
        """What was read is safe, and the log can be appended to."""
        if self._doubtful is None:
            return
        try:
            self._write_slot(self._control)
            self._segments.write_again(self._doubtful, self._synced)
            self._disk.sync_directory()
        except StorageError as failed:
            raise self.fail(failed) from failed
        # On disk before anything is appended: blocks of the last run are stale from here on.
        self.write_control(epoch=self._control.epoch + 1, end_lsn=0)
        self._doubtful = None
        # Not earlier: a control record that was not safe yet may have said what is not needed.
        self._segments.tidy(self._base)

    @property
    def control(self) -> Control:
        """The control record as it is on disk."""
        return self._control

    def write_control(self, **changes: Any) -> None:
        """The control record is on disk with these changes. Raises `StorageFull`, and is as before.

        One that finds no room was not written: it is too short to be written in part.
        """
        following = self._control.next(**changes)
        try:
            self._write_slot(following)
        except StorageFailed as failed:
            raise self.fail(failed) from failed
        self._control = following

    def _write_slot(self, control: Control) -> None:
        at = control.sequence % 2 * SLOT_DISTANCE
        self._control_file.write(at, encode_control(control))
        self._control_file.sync()

    # --- Appending

    @property
    def end_lsn(self) -> int:
        """Where the next record will begin."""
        with self._lock:
            return self.reached

    def append(self, kind: RecordKind, body: bytes, may_use_spare: bool = False) -> int:
        """The record stands behind all others; its LSN. Nothing is on disk yet.

        Raises `StorageFull`, and has then done nothing. `may_use_spare` is for records that give
        room back, and goes on a little longer.
        """
        with self._lock:
            if self.failure is not None:
                raise self.failure
            assert self._doubtful is None, "the log was examined, and not begun"
            lsn = self.reached
            end = lsn + _HEADER_BYTES + len(body)
            last = end // CONTENT_BYTES
            if last > self._ready_for:
                self._make_room(last, may_use_spare)
            content = self._content
            self._starts.append(len(content))
            content += encode_record(lsn, kind, body)
            self.reached = end
            if lsn >= self._noted:
                self._note_start(lsn)
            return lsn

    def _make_room(self, block: int, may_use_spare: bool) -> None:
        try:
            # Before anything is promised, so that a full disk is found here and not later.
            self._ready_for = self._segments.make_room(block, may_use_spare)
        except StorageFailed as failed:
            raise self.fail(failed) from failed

    def force(self, lsn: int, then: Callable[[], object] = bool, by_itself: bool = False) -> None:
        """The record that begins here, and all before it, are on disk; then `then` was called.

        Whoever writes for others calls theirs, too: a thread that wakes up only to hand the
        interpreter to the next one is what takes time. `by_itself` calls nobody's and waits for
        nobody's `then`, but for the disk alone: it is for a thread that holds what those need.
        """
        if not by_itself:
            self.give_way()
        while True:
            with self._lock:
                # With the lock held: nobody joins a group that is on disk, and has no leader left.
                if lsn < self._synced * CONTENT_BYTES:
                    break
                if self.failure is not None:
                    raise self.failure
                is_on_its_way = lsn < self._base * CONTENT_BYTES
                group = self._writing_group if is_on_its_way else self._group
                leads = not group.has_leader
                group.has_leader = True
                if not leads and not by_itself:
                    waiter = _Waiter(then)
                    gate = group.join(waiter)
            if leads:
                self._lead(group, lsn, then, by_itself)
                return
            if by_itself:
                self._write_group(group)
                continue
            with gate:
                pass
            if waiter.then is None:
                if waiter.error is not None:
                    raise waiter.error
                return
        then()

    def is_on_disk(self, lsn: int) -> bool:
        """Whether the record that begins here was forced. Raises `StorageFailed` as `force`."""
        if lsn < self._synced * CONTENT_BYTES:
            return True
        self.check_usable()
        return False

    def _lead(self, group: _Group, lsn: int, then: Callable[[], object], by_itself: bool) -> None:
        """This thread writes all that was appended until its turn comes, for itself and others."""
        is_safe = False
        try:
            self._write_group(group)
            is_safe = lsn < self._synced * CONTENT_BYTES or self.is_on_disk(lsn)
            assert is_safe, "a group is written by its leader, or by somebody before it"
            then()
            # From here on nobody joins the group: it is on disk.
            if group.gate is not None and not by_itself:
                for waiter in group.waiters:
                    waiter.do()
        finally:
            if not is_safe:
                self._step_down(group)
            elif group.gate is not None:
                group.gate.release()

    def _step_down(self, group: _Group) -> None:
        """One of the others leads: this thread has failed, or was interrupted while it waited."""
        with self._lock:
            gate, group.gate, group.has_leader = group.gate, None, False
            group.waiters = []
        if gate is not None:
            gate.release()

    def _write_group(self, group: _Group) -> None:
        """The records of the group are on disk, written by this thread if by no other."""
        with self._turn:
            with self._lock:
                if self._group is not group:
                    return
                if self.failure is not None:
                    raise self.failure
                content, base = self._content, self._base
                self._writing = (base, content)
                self._writing_starts = self._starts
                self._writing_group = group
                self._group = _Group()
                self._base = base = base + -(-len(content) // CONTENT_BYTES)
                self._content = bytearray()
                self._starts = []
                self.reached = base * CONTENT_BYTES
            self._write_out()

    def force_all(self) -> None:
        """All records are on disk."""
        with self._lock:
            self.check_usable()
            last = self.reached - 1
            is_done = last < self._synced * CONTENT_BYTES
        if not is_done:
            self.force(last)

    @property
    def is_usable(self) -> bool:
        """Whether anything is still accepted."""
        return self.failure is None

    def check_usable(self) -> None:
        """Raises `StorageFailed` once a write or a sync has failed, and what `fail` was told."""
        if self.failure is not None:
            raise self.failure

    def _note_start(self, lsn: int) -> None:
        first = self._segments.first_of(lsn // CONTENT_BYTES)
        self._first_records.setdefault(first, lsn)
        self._noted = (first + self._control.segment_blocks) * CONTENT_BYTES

    @property
    def length(self) -> int:
        """How much of the log a restart would read, as of a moment ago."""
        return self.reached - self._control.restart_lsn

    def fail(self, failed: BaseException) -> StorageError:
        """Nothing more is accepted, because of this. Those who wait are told by their leader."""
        with self._lock:
            if self.failure is None:
                self.failure = (
                    failed if isinstance(failed, Corruption) else StorageFailed(*failed.args)
                )
            return self.failure

    def _write_out(self) -> None:
        assert self._writing is not None
        base, content = self._writing
        try:
            epoch, starts = self._control.epoch, self._writing_starts
            blocks = encode_blocks(self._seed, epoch, base, self._synced, content, starts)
            # After this line all of it is on disk, whatever happens.
            self._segments.write(base, blocks)
        except StorageError as failed:
            raise self.fail(failed) from failed
        except BaseException as failed:
            self.fail(failed)
            raise
        with self._lock:
            self._writing = None
            self._synced = base + len(blocks) // BLOCK_BYTES

    # --- Reading

    def read(self, lsn: int, size: int) -> bytes:
        """Bytes of the stream, wherever they are by now."""
        with self._lock:
            for base, content in self._in_memory():
                start = lsn - base * CONTENT_BYTES
                if start >= 0:
                    return bytes(content[start : start + size])
            number, offset = divmod(lsn, CONTENT_BYTES)
            count = -(-(offset + size) // CONTENT_BYTES)
            return self._segments.read_content(number, count)[offset : offset + size]

    def _in_memory(self) -> Iterator[tuple[int, bytearray]]:
        yield self._base, self._content
        if self._writing is not None:
            yield self._writing

    def record(self, lsn: int) -> Record:
        """The record that begins here."""
        header = self.read(lsn, RECORD_HEADER.size)
        if len(header) < RECORD_HEADER.size:
            raise Corruption(f"{self.where(lsn)}: there is no log record")
        body = self.read(lsn + len(header), record_length(header))
        return decode_record(lsn, header + body, self.where(lsn))

    def where(self, lsn: int) -> str:
        """The place of an LSN, as an operator finds it."""
        return f"{self._segments.where(lsn // CONTENT_BYTES)} (LSN {lsn})"

    def records(self, lsn: int) -> Iterator[Record]:
        """All whole records from this one on, to the end that was found at the opening."""
        reader = _RecordReader(self._segments, lsn // CONTENT_BYTES, self._synced)
        for record in reader.records(lsn):
            self._note_start(record.lsn)
            yield record

    # --- Forgetting

    def restart_point(self, wanted: int) -> int:
        """The last place, not behind the wanted one, where a restart can begin."""
        with self._lock:
            before = [lsn for lsn in self._first_records.values() if lsn <= wanted]
            return max([self._control.restart_lsn, *before])

    def forget_before(self, lsn: int) -> None:
        """Nothing before this LSN is needed, and the control record says so on disk already."""
        assert self._control.restart_lsn >= lsn
        with self._lock:
            try:
                self._segments.forget_before(lsn // CONTENT_BYTES, self._base)
            except StorageFailed as failed:
                # A name that may not be on disk: nothing can be promised that is written there.
                raise self.fail(failed) from failed
            kept = {s: first for s, first in self._first_records.items() if first >= lsn}
            self._first_records = kept
            # Of the segment that is being written the first record may be gone.
            self._noted = 0

    def close(self, clean: bool = True) -> None:
        """All is on disk; with `clean` the control record says where the log ends."""
        try:
            if clean and self.failure is None:
                self.force_all()
                self.write_control(end_lsn=self._synced * CONTENT_BYTES)
        finally:
            self._control_file.close()
            self._segments.close()


def _find_end(segments: Segments, control: Control) -> tuple[int, int]:
    """The first block behind the log, and the first that nothing on disk says is synced."""
    restart_block = control.restart_lsn // CONTENT_BYTES
    segments.open(restart_block)
    end = segments.find_end(restart_block, control.epoch)
    if control.end_lsn and control.end_lsn != end * CONTENT_BYTES:
        raise Corruption(
            f"{segments.where(end)}: the log was closed at LSN {control.end_lsn} and ends at "
            f"LSN {end * CONTENT_BYTES}"
        )
    # An orderly close is noted when all of the log is synced.
    if control.end_lsn or end == restart_block:
        return end, end
    return end, max(restart_block, segments.vouched_for(end))


class _RecordReader:
    """Walks through blocks and puts records together.

    A record whose last blocks were lost in a crash is left out: the next forced write, of a later
    epoch, begins with a block and a record of its own.
    """

    def __init__(self, segments: Segments, number: int, end: int) -> None:
        self._segments = segments
        self._number = number
        self._end = end

    def _blocks(self) -> Iterator[Block]:
        return self._segments.blocks(self._number, self._end)

    def records(self, lsn: int) -> Iterator[Record]:
        pending = bytearray()
        at = lsn
        epoch = None
        skip = lsn % CONTENT_BYTES
        for number, block in enumerate(self._blocks(), start=self._number):
            if epoch is not None and block.epoch != epoch:
                pending.clear()
            epoch = block.epoch
            content = block.content[skip:]
            if not pending:
                at = number * CONTENT_BYTES + skip
                if not skip and block.first != 0:
                    raise self._damage(number, "does not begin with a record")
            skip = 0
            pending += content
            at = yield from self._whole_records(pending, at)
            if len(block.content) < CONTENT_BYTES and pending:
                raise self._damage(number, f"cuts off the record at LSN {at}")

    def _damage(self, number: int, what: str) -> Corruption:
        return Corruption(f"{self._segments.where(number)}: the block {what}")

    def _whole_records(self, pending: bytearray, at: int) -> Generator[Record, None, int]:
        while len(pending) >= RECORD_HEADER.size:
            size = RECORD_HEADER.size + record_length(bytes(pending[:4]))
            if len(pending) < size:
                break
            where = self._segments.where(at // CONTENT_BYTES)
            yield decode_record(at, bytes(pending[:size]), where)
            del pending[:size]
            at += size
        return at


# --- The control record --------------------------------------------------------------------------


def read_control(disk: Disk) -> Control:
    """The control record that counts. Raises `WrongFormat` or `Corruption`."""
    file = disk.open(CONTROL_NAME)
    try:
        slots = [_read_slot(file.read(at, CONTROL_SLOT.size), at) for at in (0, SLOT_DISTANCE)]
    finally:
        file.close()
    if slots[0].identity != slots[1].identity or abs(slots[0].sequence - slots[1].sequence) != 1:
        raise Corruption(f"{CONTROL_NAME}, offset 0: its two slots do not belong together")
    return max(slots, key=lambda slot: slot.sequence)


def _read_slot(data: bytes, at: int) -> Control:
    match decode_control(data):
        case Control() as control:
            return control
        case int() as version:
            raise WrongFormat(f"{CONTROL_NAME}, offset {at}: version {version}")
    raise Corruption(f"{CONTROL_NAME}, offset {at}: the slot is not whole")


def refuse_lost_control(disk: Disk) -> None:
    """Raises `Corruption` where there is more than an unfinished creation leaves behind."""
    for name in disk.names():
        if name.endswith(SETTINGS_ENDINGS):
            # Written by people, perhaps before the first start.
            continue
        file = disk.open(name)
        is_used = any(file.read(4, 4)) if is_segment_name(name) else file.size() > 0
        file.close()
        if is_used and name not in (CONTROL_NEW_NAME, NEW_NAME):
            raise Corruption(f"{CONTROL_NAME} is missing, and {name} holds something")
