"""The named queues of a node: which there are, whether they are on, how full, and who waits.

A queue comes into being when something is first put into it, unless that is forbidden; to whoever
only reads, one that is missing looks empty. What a queue holds is kept by the storage; here are the
settings as they were last seen, the limits, and those who wait for a message. It knows branches by
their ids only, and neither clients nor permissions.

What holds:

1. Nobody stores more than the limits allow: what open branches have stored counts as well. Nodes
   that share a storage do not wait for each other, so that together they may exceed a limit a bit.
2. What one call takes has fewer bytes than `bytes_hard_max`, and fewer values than a reader builds
   from one answer, whatever the messages are, as long as none is larger than `message_bytes_max`:
   so the answer can be sent, and read. What is taken and cannot be read would be lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace

from idl.turns import step_aside
from mqserver.errors import (
    LimitExceeded,
    LockTimeout,
    MessageNotFound,
    QueueDisabled,
    QueueExists,
    QueueFull,
    QueueNotFound,
)
from mqserver.storage.contract import (
    EVERYTHING,
    Attributes,
    Message,
    MessageColumns,
    NewMessage,
    QueueInfo,
    QueueSettings,
    Selection,
    Storage,
)
from mqserver.transactions.requests import named
from mqserver.waiting import Waiting

log = logging.getLogger("oncemq.node")

KEY_DIGITS = 15
PURGED_AT_ONCE = 1000
KEYS_LOGGED_MAX = 10
# What a message has beside payload and attributes; how many of these it may have, and with how many
# characters.
HEADER_BYTES = 64
ATTRIBUTES_LENGTH_MAX = 64 * 1024
ATTRIBUTES_MAX = 10_000
# What a reader counts for a message and for each of its attributes, and where an answer ends for
# that. A body of more than two million is refused unread: see `idl.wire`.
VALUES_PER_MESSAGE = 26
VALUES_PER_ATTRIBUTE = 11
VALUES_SOFT_MAX = 1_200_000
VALUES_HARD_MAX = 1_800_000


def key_text(number: int) -> str:
    """The key as clients know it."""
    return str(number).zfill(KEY_DIGITS)


def key_number(queue: str, text: str) -> int:
    """The storage's key; raises `MessageNotFound` for a text that is none."""
    if len(text) != KEY_DIGITS or not text.isascii() or not text.isdigit():
        raise MessageNotFound(queue, text)
    return int(text)


def _log_keys(done: str, branch: bytes, queue: str, keys: Iterable[int], count: int) -> None:
    """At level debug the log says what became of each message, by its key and transaction."""
    shown = [key_text(key) for key, _ in zip(keys, range(KEYS_LOGGED_MAX), strict=False)]
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    known = {"queue": queue, "message_key": ",".join(shown) + more, **named(branch)}
    log.debug("%d messages %s", count, done, extra=known)


def weight(payload: bytes, attributes: Attributes) -> int:
    """About how many bytes a message takes in an answer; rather too many than too few."""
    size = len(payload) + HEADER_BYTES
    for key, value in attributes:
        size += 4 * (len(key) + len(value))
    return size


def values_of(attributes: Attributes) -> int:
    """How many values whoever reads a message with these builds; rather too many than too few."""
    return VALUES_PER_MESSAGE + VALUES_PER_ATTRIBUTE * len(attributes)


@dataclass(frozen=True)
class QueueLimits:
    """What a node allows, and how it waits. `is_shared`: other nodes use the same storage."""

    queues_max: int = 10_000
    message_bytes_max: int = 16 * 1024 * 1024
    is_creating: bool = True
    is_shared: bool = False
    bytes_soft_max: int = 16 * 1024 * 1024
    bytes_hard_max: int = 48 * 1024 * 1024
    recheck_s: float = 5.0
    recheck_shared_s: float = 0.5


class _Known:
    """A queue as it was last seen. What it holds is at most `counted` and `counted_bytes`.

    No message in it is larger than `largest`, or has more values than `widest`, unless other nodes
    put it there.
    """

    __slots__ = ("counted", "counted_bytes", "largest", "lock", "seen_at", "settings", "widest")

    def __init__(self, info: QueueInfo, limits: QueueLimits, now: float) -> None:
        self.lock = threading.Lock()
        self.settings = info.settings
        self.counted = info.visible + info.locked
        self.counted_bytes = info.payload_bytes
        self.largest = self.widest = 0
        if self.counted:
            largest = min(limits.message_bytes_max, info.payload_bytes)
            self.largest = largest + HEADER_BYTES + 4 * ATTRIBUTES_LENGTH_MAX
            self.widest = VALUES_PER_MESSAGE + VALUES_PER_ATTRIBUTE * ATTRIBUTES_MAX
        self.seen_at = now


class Queues:
    """All queues of a node. May be used from any thread."""

    def __init__(
        self, storage: Storage, clock: Callable[[], float], limits: QueueLimits | None = None
    ) -> None:
        self._storage = storage
        self._clock = clock
        self.limits = limits or QueueLimits()
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        # The queues that were used here before; to ask looks nothing up.
        self.known: Container[str] = self._known
        limits = self.limits
        self.waiting = Waiting(
            clock, limits.recheck_shared_s if limits.is_shared else limits.recheck_s
        )
        self._is_enabled = True
        for info in storage.queues():
            self._known[info.name] = _Known(info, self.limits, clock())

    # --- Switches

    @property
    def is_enabled(self) -> bool:
        """Whether the node as a whole is switched on."""
        return self._is_enabled

    def set_enabled(self, is_enabled: bool) -> None:
        """The whole node is switched on or off; those who wait learn of it. Not kept on disk."""
        self._is_enabled = is_enabled
        if not is_enabled:
            self.waiting.wake_everybody()

    def close(self) -> None:
        """Nobody waits any longer, and nobody begins to."""
        self.waiting.close()

    def check_usable(self, queue: str) -> None:
        """Raises `QueueDisabled` while the queue or the node is switched off.

        A queue that is missing raises `QueueNotFound` only where none is made by using it.
        """
        self._usable(queue)

    def _usable(self, queue: str) -> _Known | None:
        known = self._known.get(queue)
        if known is None or self.limits.is_shared:
            known = self._find(queue)
        if not self._is_enabled or (known is not None and not known.settings.enabled):
            raise QueueDisabled(queue)
        if known is None and not self.limits.is_creating:
            raise QueueNotFound(queue)
        return known

    def _find(self, queue: str) -> _Known | None:
        known = self._known.get(queue)
        if known is not None and not self.limits.is_shared:
            return known
        if known is not None and self._clock() - known.seen_at < self.limits.recheck_shared_s:
            return known
        return self._look_up(queue)

    def is_missing(self, queue: str) -> bool:
        """Whether there is no such queue yet."""
        return self._find(queue) is None

    def _look_up(self, queue: str) -> _Known | None:
        """Another node may have made, changed or deleted the queue."""
        if not self.limits.is_shared:
            return None
        try:
            found = _Known(self._storage.queue(queue), self.limits, self._clock())
        except QueueNotFound:
            self._known.pop(queue, None)
            return None
        before = self._known.get(queue)
        if before is not None:
            found.largest = max(found.largest, before.largest)
            found.widest = max(found.widest, before.widest)
        self._known[queue] = found
        return found

    # --- Making and changing

    def create(self, queue: str, settings: QueueSettings) -> None:
        """There is an empty queue with these settings. Raises `QueueExists`, `LimitExceeded`."""
        with self._lock:
            if len(self._known) >= self.limits.queues_max and queue not in self._known:
                raise LimitExceeded(f"{self.limits.queues_max} queues")
            self._storage.create_queue(queue, settings)
            info = QueueInfo(queue, settings, 0, 0, 0, 0)
            self._known[queue] = _Known(info, self.limits, self._clock())

    def change(self, queue: str, settings: QueueSettings) -> None:
        """The queue has these settings; those who wait learn of it. Raises `QueueNotFound`."""
        known = self._find(queue)
        if known is None:
            raise QueueNotFound(queue)
        with known.lock:
            self._storage.change_queue(queue, settings)
            info = self._storage.queue(queue)
            known.settings = settings
            known.counted, known.counted_bytes = info.visible + info.locked, info.payload_bytes
        if not settings.enabled:
            self.waiting.wake(queue)

    def set_prioritized(self, queue: str, is_prioritized: bool) -> None:
        """The order of the queue is by priority, or only by time."""
        known = self._find(queue) or self._made(queue)
        self.change(queue, replace(known.settings, prioritized=is_prioritized))

    def delete(self, queue: str) -> None:
        """There is no such queue. Raises `QueueInUse` while it holds anything."""
        with self._lock:
            self._storage.delete_queue(queue)
            self._known.pop(queue, None)

    def settings(self, queue: str) -> QueueSettings:
        """How the queue behaves, or would when it is made."""
        known = self._find(queue)
        return QueueSettings() if known is None else known.settings

    def info(self, queue: str) -> QueueInfo:
        """What the queue holds; one that is missing is empty where using it makes one."""
        try:
            return self._storage.queue(queue)
        except QueueNotFound:
            if not self.limits.is_creating:
                raise
            return QueueInfo(queue, QueueSettings(), 0, 0, 0, 0)

    def _made(self, queue: str, is_decided: bool = False) -> _Known:
        if not self.limits.is_creating and not is_decided:
            raise QueueNotFound(queue)
        step_aside()
        try:
            self.create(queue, QueueSettings())
        except QueueExists:
            self._look_up(queue)
        known = self._known.get(queue)
        if known is None:
            raise QueueNotFound(queue)
        return known

    # --- Putting

    def store(
        self, branch: bytes, queue: str, messages: Sequence[NewMessage], is_decided: bool = False
    ) -> range:
        """The branch has stored the messages. Unless decided, `QueueDisabled`, `QueueFull`."""
        known = self._known.get(queue)
        if known is None or self.limits.is_shared:
            known = self._find(queue) or self._made(queue, is_decided)
        settings = known.settings
        if not (self._is_enabled and settings.enabled) and not is_decided:
            raise QueueDisabled(queue)
        if len(messages) == 1 and not (only := messages[0]).attributes:
            largest, widest = len(only.payload) + HEADER_BYTES, VALUES_PER_MESSAGE
        elif type(messages) is MessageColumns and not messages.has_attributes:
            largest = weight(max(messages.payloads, key=len), ())
            widest = values_of(())
        else:
            largest = max([weight(new.payload, new.attributes) for new in messages], default=0)
            widest = max([values_of(new.attributes) for new in messages], default=0)
        if largest > known.largest or widest > known.widest:
            # Before it is stored, so that nobody takes it who counts on smaller ones.
            with known.lock:
                known.largest = max(known.largest, largest)
                known.widest = max(known.widest, widest)
        if not settings.messages_max and not settings.bytes_max:
            keys = self._storage.store(branch, queue, messages)
        else:
            with known.lock:
                if not is_decided:
                    self._make_room(known, queue, messages)
                keys = self._storage.store(branch, queue, messages)
                known.counted += len(messages)
                known.counted_bytes += sum(len(message.payload) for message in messages)
        if log.isEnabledFor(logging.DEBUG):
            _log_keys("put", branch, queue, keys, len(keys))
        return keys

    def _make_room(self, known: _Known, queue: str, messages: Sequence[NewMessage]) -> None:
        """Raises `QueueFull` when the messages do not fit. What was counted only ever shrinks."""
        size = sum(len(message.payload) for message in messages)
        if not self.limits.is_shared and not _exceeded(known, len(messages), size):
            return
        info = self._storage.queue(queue)
        known.counted, known.counted_bytes = info.visible + info.locked, info.payload_bytes
        limit = _exceeded(known, len(messages), size)
        if limit:
            raise QueueFull(queue, limit)

    # --- Getting

    def take(
        self, branch: bytes, queue: str, selection: Selection, count: int, wait_s: float
    ) -> list[Message]:
        """The branch has taken the next messages; none when there was nothing for so long."""
        known = self._usable(queue)
        if count == 1 and known is not None:
            # There is one step only, whatever its size.
            found = self._taken(branch, queue, selection, 1)
            if found or wait_s <= 0:
                return found

        def look() -> list[Message]:
            return self.take_now(branch, queue, selection, count)

        if wait_s <= 0:
            return look()
        return self.waiting.wait(queue, selection, look, lambda: self.check_usable(queue), wait_s)

    def take_now(
        self, branch: bytes, queue: str, selection: Selection, count: int
    ) -> list[Message]:
        """The branch has taken what there is, up to so many messages, and as make an answer."""

        def more(found: list[Message], most: int) -> list[Message]:
            return self._taken(branch, queue, selection, most)

        return self._collected(self._find(queue), more, count)

    def lock_now(self, branch: bytes, queue: str, selection: Selection, count: int) -> list[int]:
        """The branch has taken what there is, up to so many messages: their keys, see `taken`."""
        keys: list[int] = []
        while step := self.take_now(branch, queue, selection, count - len(keys)):
            keys += [message.key for message in step]
        return keys

    def taken(self, branch: bytes, queue: str, keys: Sequence[int]) -> list[Message]:
        """The first of these messages, which the branch has taken: as many as make an answer."""

        def more(found: list[Message], most: int) -> list[Message]:
            return self._storage.taken(branch, queue, keys[len(found) : len(found) + most])

        return self._collected(self._find(queue), more, len(keys))

    def _taken(self, branch: bytes, queue: str, selection: Selection, most: int) -> list[Message]:
        taken = self._storage.take(branch, queue, selection, most)
        if taken and log.isEnabledFor(logging.DEBUG):
            _log_keys("got", branch, queue, [message.key for message in taken], len(taken))
        return taken

    def take_keys(
        self, branch: bytes, queue: str, keys: Sequence[int], timeout_s: float
    ) -> list[Message]:
        """The branch has taken these messages, all of them. Raises as `Storage.take_keys` does."""
        self.check_usable(queue)
        known = self._find(queue)
        if known is None and keys:
            raise MessageNotFound(queue, keys[0])
        if known is not None and len(keys) > 1:
            self._check_fitting(known, queue, keys)
        try:
            taken = self._storage.take_keys(branch, queue, keys, timeout_s) if keys else []
        except LockTimeout as timeout:
            raise LockTimeout(queue, keys[0]) from timeout
        if taken and log.isEnabledFor(logging.DEBUG):
            _log_keys("got by key", branch, queue, keys, len(keys))
        return taken

    def _check_fitting(self, known: _Known, queue: str, keys: Sequence[int]) -> None:
        """Raises `LimitExceeded` for messages that would not fit into one answer.

        Once taken they could not be given back one by one.
        """
        bytes_max, count = self.limits.bytes_hard_max, len(keys)
        if count * known.largest <= bytes_max and count * known.widest <= VALUES_HARD_MAX:
            return
        size = values = 0
        for key in keys:
            message = self._storage.read(queue, key)
            if message is None:
                size, values = size + known.largest, values + known.widest
            else:
                size += weight(message.payload, message.attributes)
                values += values_of(message.attributes)
            if size > bytes_max or values > VALUES_HARD_MAX:
                raise LimitExceeded(f"{count} messages of {queue} by key, too large together")

    # --- Reading without taking

    def read(self, queue: str, key: int) -> Message | None:
        """The committed message with this key that nobody has taken or reserved."""
        self.check_usable(queue)
        return None if self._find(queue) is None else self._storage.read(queue, key)

    def browse(self, queue: str, selection: Selection, after: int, count: int) -> list[Message]:
        """Committed messages behind a key, up to so many, and about as many bytes as for a get."""
        self.check_usable(queue)

        def more(found: list[Message], most: int) -> list[Message]:
            behind = found[-1].key if found else after
            return self._storage.browse(queue, selection, behind, most)

        return self._collected(self._find(queue), more, count)

    def fetch(self, consumer: str, queue: str, number: int, start: int, stop: int) -> list[Message]:
        """Messages of a reservation from position `start`, to before `stop` or a bit less."""

        def more(found: list[Message], most: int) -> list[Message]:
            first = start + len(found)
            return self._storage.fetch(consumer, number, first, first + most)

        count = max(0, stop - start)
        return self._collected(self._find(queue), more, count)

    def _collected(
        self,
        known: _Known | None,
        more: Callable[[list[Message], int], list[Message]],
        count: int,
    ) -> list[Message]:
        """What `more` brings, in steps that are small enough for the largest messages there."""
        found: list[Message] = []
        if known is None:
            return found
        size = values = 0
        while len(found) < count and size < self.limits.bytes_soft_max:
            room = self.limits.bytes_hard_max - size
            most = min(count - len(found), max(1, room // max(1, known.largest)))
            most = min(most, max(1, (VALUES_HARD_MAX - values) // max(1, known.widest)))
            step = more(found, most)
            found += step
            if len(step) < most or len(found) >= count:
                break
            size += sum([weight(message.payload, message.attributes) for message in step])
            values += sum([values_of(message.attributes) for message in step])
            if values >= VALUES_SOFT_MAX:
                break
        return found

    def wait_for(self, queue: str, look: Callable[[], int], wait_s: float) -> int:
        """What `look` finds, which is asked again with each arrival, for so long."""
        return self.waiting.wait(queue, EVERYTHING, look, lambda: self.check_usable(queue), wait_s)

    # --- Removing

    def purge(self, queue: str, branch_of: Callable[[int], bytes]) -> int:
        """What nobody holds is gone, durably; how many that were. In steps, each a branch."""
        left = self._storage.queue(queue).visible
        purged = 0
        while left > 0:
            branch = branch_of(purged)
            most = min(left, PURGED_AT_ONCE)
            taken = self.take_now(branch, queue, EVERYTHING, most)
            if not taken:
                self._storage.rollback(branch)
                break
            self._storage.commit_one_phase(branch)
            purged += len(taken)
            left -= len(taken)
        return purged


def _exceeded(known: _Known, count: int, size: int) -> int:
    """The limit that would be exceeded; 0 when none would be."""
    settings = known.settings
    if settings.messages_max and known.counted + count > settings.messages_max:
        return settings.messages_max
    if settings.bytes_max and known.counted_bytes + size > settings.bytes_max:
        return settings.bytes_max
    return 0
