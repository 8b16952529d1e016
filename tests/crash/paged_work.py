"""Work on a paged storage beside the model, and the judge of what a crash leaves of it.

`Work` does every step to a storage and to the reference model, and notes on the disk how far it
has come: `("begin", n)` before a step that may lead as far as state n, `("safe", n)` when a call
has returned that promises state n on disk, `("done", n)` when one has that promises nothing. So a
crash may leave every state from the last safe one to the last one begun, and no other.

`judge` opens a storage on what a crash left, compares it with those states, and goes on working: a
restart that looks right and cannot be worked with is none.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from mqserver.errors import Corruption, MqError, StorageError, StorageFailed, StorageFull
from mqserver.storage.contract import EVERYTHING, NewMessage, Outcome, QueueSettings, Vote
from mqserver.storage.format import RECORD_HEADER, RecordKind, is_segment_name
from mqserver.storage.paged import PagedSettings, PagedStorage
from tests.conformance.paged_storages import SMALL, durable_image
from tests.crash.faults import Crash
from tests.crash.paged_oracle import (
    View,
    Violation,
    check_structure,
    check_tidiness,
    difference,
    view_of,
    view_of_model,
)
from tests.crash.recording_disk import RecordingDisk
from tests.storage_model import State, StorageModel

# A few messages fill a segment, a checkpoint is never far, a kilobyte goes into pages, and few
# payloads can be had without reading them.
TINY = replace(
    SMALL,
    page_bytes=512,
    segment_blocks=8,
    parcel_messages_min=4,
    parcel_bytes_min=300,
    parcel_bytes_min_in_log=1,
    cache_bytes=300,
    log_bytes_max=9_000,
    waiting_bytes_max=6_000,
    keys_per_block=20,
)

IDENTITY = b"a store of tests"
FOLLOW_UPS = 4

_FORCED_ENDS = frozenset(("prepare", "commit", "commit_one_phase", "resolve"))
_FORCED = _FORCED_ENDS | {
    "create_queue",
    "change_queue",
    "delete_queue",
    "reserve",
    "finish",
    "drop_consumer",
}
_PLAIN = QueueSettings()
_OF_STORAGE = frozenset(("force", "checkpoint"))
_ALWAYS_FORCED = _OF_STORAGE | {"commit", "commit_one_phase"}
_OF_BRANCH = frozenset(("store", "take", "take_keys", "raise_mark"))


class Stopped(Exception):
    """The storage has failed, or could not be closed or opened, and the work is over."""


def message(text: str, size: int = 0, priority: int = 0) -> NewMessage:
    """A message that begins with the text and is as long as asked for."""
    stem = text.encode()
    payload = (stem * (size // len(stem) + 1))[: max(size, len(stem))]
    return NewMessage(payload, zlib.crc32(payload), priority, time_us=len(payload), sender=text)


def open_storage(disk: RecordingDisk, settings: PagedSettings = TINY) -> PagedStorage:
    """The storage on this disk."""
    return PagedStorage(disk, lambda: IDENTITY, lambda: 0.0, settings)


# --- A run and its model -------------------------------------------------------------------------


@dataclass
class History:
    """The states that a run went through, each as a crash would leave it, and the keys given.

    `forgettable` are branches that were not prepared, and were rolled back when the disk was full:
    there was no room to remember them, so that a restart may not know of them.
    """

    states: list[State] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    forgettable: set[bytes] = field(default_factory=set)

    def add(self, state: State) -> int:
        """One more state; its number."""
        left = _crashed(state)
        self.states.append(left)
        self.views.append(view_of_model(left))
        # A key that was given is never given again, whatever became of its message.
        self.keys.append(max([state.next_key, *self.keys[-1:]]))
        return len(self.states) - 1

    def span(self, events: Sequence[object]) -> range:
        """The states that a crash may leave when a run has said this."""
        safe = begun = 0
        for event in events:
            what, number = _event(event)
            begun = number
            safe = number if what == "safe" else safe
        return range(safe, begun + 1)

    def as_remembered(self, view: View, found: View) -> View:
        """The view without the branches that a restart was free to forget, and did."""
        gone = self.forgettable - found["outcomes"].keys()
        if not gone:
            return view
        outcomes = {name: what for name, what in view["outcomes"].items() if name not in gone}
        return {**view, "outcomes": outcomes}

    def first_free_key(self, events: Sequence[object]) -> int:
        """No key below this one may be given again."""
        told = [number for what, number in map(_event, events) if what != "begin"]
        return self.keys[told[-1]] if told else 1


def _crashed(state: State) -> State:
    """The state without the branches that were at work."""
    return StorageModel(state.copied()).after_crash()[0].state


def _event(event: object) -> tuple[str, int]:
    assert isinstance(event, tuple)
    what, number = event
    return what, number


class Work:
    """A storage and the model of it. `may_fail` is for those whose disk does.

    `is_followed` is false for work of which no crash will be looked at: nothing is noted of it.
    """

    def __init__(
        self,
        disk: RecordingDisk,
        state: State | None = None,
        storage: PagedStorage | None = None,
        may_fail: bool = False,
        is_followed: bool = True,
    ) -> None:
        self.disk = disk
        self.history = History()
        self.model = StorageModel(state.copied() if state else None)
        self.history.add(self.model.state)
        self.failure: StorageError | None = None
        # Whether the storage could not be closed, or opened again.
        self.is_over = False
        self.may_fail = may_fail
        self._is_followed = is_followed
        self._branches = 0
        self.storage = storage or open_storage(disk)
        disk.note(("safe", 0))

    def branch(self) -> bytes:
        """An id that no other branch has."""
        self._branches += 1
        return b"branch %04d" % (self._branches + 100 * len(self.history.states[0].outcomes))

    def do(self, name: str, *arguments: Any) -> Any:
        """Storage and model have done it, with the same result or the same complaint."""
        self.disk.note(("begin", len(self.history.states) - bool(self.failure)))
        end = self.storage._log.end_lsn
        is_empty = name == "commit_one_phase" and self._has_changed_nothing(arguments[0])
        try:
            found = _result(getattr(self.storage, name), *arguments)
        except StorageFull as full:
            return self._was_full(full, name, arguments)
        except StorageFailed as failed:
            return self._has_failed(failed, name, arguments)
        except Corruption as damage:
            return self._met_damage(damage, name, arguments)
        except Crash:
            self._may_have_happened(name, arguments)
            raise
        before = self.model.state.copied() if self._is_followed else self.model.state
        if isinstance(found, range) and found:
            if found.start < self.model.state.next_key:
                raise Violation(f"key {found.start} is given again")
            self.model.state.next_key = found.start
        expected = _result(getattr(self.model, name, _nothing), *arguments)
        if not isinstance(found, type) and found != expected:
            raise Violation(f"{name}{arguments}: {found!r}, not {expected!r}")
        if self.may_fail and self.storage._log.end_lsn == end:
            self._note_unrecorded(before, *arguments[:1])
        if self._is_followed:
            # A commit that is repeated promises that its branch is on disk by now.
            is_due = name in _ALWAYS_FORCED or before != self.model.state
            # The end of a branch that changed nothing may be lost.
            is_safe = is_due and not is_empty and _is_forced(name, arguments, found)
            self._promise(name, is_safe)
        return found

    def _has_changed_nothing(self, branch: bytes) -> bool:
        actor = self.storage._index.branches.get(branch)
        return actor is not None and actor.is_read_only

    def _promise(self, name: str, is_safe: bool) -> None:
        if self.failure is None:
            number = self.history.add(self.model.state)
            self.disk.note(("safe" if is_safe else "done", number))
        elif is_safe:
            raise Violation(f"{name} is acknowledged after {self.failure}")

    def do_while(self, others: Callable[[], None], name: str, *arguments: Any) -> None:
        """Does a step, and something else in another thread while the step's record is synced.

        The other thread does steps that force nothing, and takes a checkpoint at their end.
        """
        expected = _result(getattr(self.model, name), *arguments)
        self.disk.note(("begin", self.history.add(self.model.state)))
        with ThreadPoolExecutor(1) as pool:
            going: list[Future[None]] = []

            def meet(file: str) -> None:
                if not going and is_segment_name(file):
                    going.append(pool.submit(others))
                    while not _has_appended_checkpoint(self.storage) and not going[0].done():
                        time.sleep(0)

            self.disk.during_sync = meet
            found = _result(getattr(self.storage, name), *arguments)
            self.disk.during_sync = None
            if not going:
                raise Violation(f"{name} is acknowledged without a sync")
            going[0].result()
        if found != expected:
            raise Violation(f"{name}{arguments}: {found!r}, not {expected!r}")
        self.disk.note(("safe", len(self.history.states) - 1))

    def put(self, queue: str, *messages: NewMessage) -> bytes:
        """A branch has stored messages and is committed."""
        branch = self.branch()
        self.do("store", branch, queue, list(messages))
        self.do("commit_one_phase", branch)
        return branch

    def get(self, queue: str, limit: int) -> bytes:
        """A branch has taken messages and is committed."""
        branch = self.branch()
        self.do("take", branch, queue, EVERYTHING, limit)
        self.do("commit_one_phase", branch)
        return branch

    def close(self) -> None:
        """The storage is closed; the branches that were at work were rolled back one by one.

        The close of one that has failed promises nothing, and is the end of the work.
        """
        if self.failure is not None:
            self.is_over = True
            self.storage.close()
            raise Stopped
        outcomes = self.model.state.outcomes
        active = [name for name, what in outcomes.items() if what is Outcome.ACTIVE]
        for branch in active:
            before = self.model.state.copied()
            self.model.rollback(branch)
            if self.may_fail:
                self._note_unrecorded(before, branch)
            self.history.add(self.model.state)
        self.disk.note(("begin", len(self.history.states) - 1))
        self._or_stop(self.storage.close)
        self.disk.note(("safe", len(self.history.states) - 1))

    def reopen(self) -> None:
        """The storage was closed in good order and is open again."""
        self.close()
        self._or_stop(self._open)

    def _open(self) -> None:
        self.storage = open_storage(self.disk)

    def _or_stop(self, call: Callable[[], None]) -> None:
        try:
            call()
        except StorageError as error:
            if not self.may_fail:
                raise
            self.is_over = True
            raise Stopped from error

    def lose_power(self) -> None:
        """The power was cut, nothing came through that was not synced, and the storage is open."""
        self.disk = RecordingDisk(durable_image(self.disk.trace))
        self.model = StorageModel(_crashed(self.model.state))
        self.storage = open_storage(self.disk)

    def check(self) -> None:
        """The storage shows what the model shows, and holds nothing that nobody needs."""
        expected = view_of_model(self.model.state)
        found = view_of(self.storage, expected["outcomes"])
        expected = self.history.as_remembered(expected, found)
        if found != expected:
            raise Violation(difference(found, expected))
        check_structure(self.storage, self.disk)

    def _note_unrecorded(self, before: State, branch: object = None) -> None:
        """A call has left nothing in the log; it may have rolled the branch back."""
        if isinstance(branch, bytes):
            was, outcome = before.outcomes.get(branch), self.model.outcome(branch)
            if outcome is Outcome.ROLLED_BACK and was is not outcome:
                self.history.forgettable.add(branch)

    def _was_full(self, full: StorageFull, name: str, arguments: tuple[Any, ...]) -> object:
        if not self.may_fail:
            raise full
        self._begin(name, arguments)
        self._promise(name, is_safe=False)
        return StorageFull

    def _has_failed(self, failed: StorageFailed, name: str, arguments: tuple[Any, ...]) -> object:
        if not self.may_fail:
            raise failed
        self._begin(name, arguments)
        if self.failure is None:
            # Nothing that comes later can happen any more.
            self.failure = failed
            self._may_have_happened(name, arguments)
        return StorageFailed

    def _met_damage(self, damage: Corruption, name: str, arguments: tuple[Any, ...]) -> object:
        if not self.may_fail:
            raise damage
        self._begin(name, arguments)
        self._promise(name, is_safe=False)
        if not self.storage._log.is_usable:
            self.failure = damage
        return Corruption

    def _may_have_happened(self, name: str, arguments: tuple[Any, ...]) -> None:
        possible = StorageModel(self.model.state.copied())
        _result(getattr(possible, name, _nothing), *arguments)
        self.history.add(possible.state)

    def _begin(self, name: str, arguments: tuple[Any, ...]) -> None:
        """A branch begins with its first action, even if that fails."""
        if name in _OF_BRANCH and self.model.outcome(arguments[0]) is Outcome.UNKNOWN:
            self.model.state.outcomes[arguments[0]] = Outcome.ACTIVE


def _is_forced(name: str, arguments: tuple[Any, ...], found: object) -> bool:
    if name in _OF_STORAGE:
        return True
    is_lazy = name in ("commit", "commit_one_phase") and arguments[1:] == (False,)
    is_refused = isinstance(found, type) or found is Vote.READ_ONLY
    return name in _FORCED and not is_lazy and not is_refused


def _has_appended_checkpoint(storage: PagedStorage) -> bool:
    log = storage._log
    kind_at = RECORD_HEADER.size - 1
    with log._lock:
        return any(log._content[at + kind_at] == RecordKind.CHECKPOINT for at in log._starts)


def _nothing(*_: object) -> None:
    return None


def _result(call: Callable[..., object], *arguments: object) -> Any:
    try:
        return call(*arguments)
    except StorageError:
        raise
    except MqError as error:
        return type(error)


# --- The judge -----------------------------------------------------------------------------------


def judge(disk: RecordingDisk, history: History, events: Sequence[object], follow_up: int) -> None:
    """What a restart finds on the disk is what was promised, and it can be worked with.

    Raises `Violation`, or what the storage raised.
    """
    storage = open_storage(disk)
    left = recognised(storage, history, events)
    check_structure(storage, disk)
    _go_on(Work(disk, left, storage, is_followed=False), left, follow_up)


def recognised(storage: PagedStorage, history: History, events: Sequence[object]) -> State:
    """The state that the storage shows, which is one of those that were promised."""
    span = history.span(events)
    found = view_of(storage, history.views[-1]["outcomes"])
    views = {each: history.as_remembered(history.views[each], found) for each in reversed(span)}
    number = next((each for each, view in views.items() if view == found), None)
    if number is None:
        nearest = views[span.stop - 1]
        raise Violation(f"none of the states of {span}: {difference(found, nearest)}")
    left = history.states[number].copied()
    left.outcomes = {name: left.outcomes[name] for name in views[number]["outcomes"]}
    left.next_key = history.first_free_key(events)
    return left


def _go_on(work: Work, left: State, follow_up: int) -> None:
    which, size = follow_up % FOLLOW_UPS, 1 + follow_up // FOLLOW_UPS % 3
    if "after" not in left.queues and which != 3:
        work.do("create_queue", "after", _PLAIN)
    if which == 0:
        # As many blocks as what was lost may have had: what lies behind must not come back.
        work.put("after", message("later", 480 * size - 150))
        work.lose_power()
    elif which == 1:
        work.put("after", message("large", 700 * size), message("small"))
        work.do("checkpoint")
        check_tidiness(work.storage, work.disk)
        work.lose_power()
    elif which == 2:
        _decide_all(work)
        work.reopen()
    else:
        _empty(work)
        work.reopen()
        work.do("checkpoint")
        check_tidiness(work.storage, work.disk)
        work.reopen()
    work.check()


def _decide_all(work: Work) -> None:
    """Every branch in doubt is decided, one in four ways each."""
    prepared = [info.branch for info in work.storage.branches() if info.outcome.name == "PREPARED"]
    ways: list[tuple[str, *tuple[bool, ...]]] = [
        ("commit",),
        ("rollback",),
        ("resolve", True),
        ("commit", False),
        ("resolve", False),
    ]
    for branch, (name, *arguments) in zip(prepared, ways * len(prepared), strict=False):
        work.do(name, branch, *arguments)


def _empty(work: Work) -> None:
    """Everything that can be had is taken, finished and given back."""
    _decide_all(work)
    for known in work.storage.consumers():
        work.do("finish", known.consumer, known.reserved)
        work.do("drop_consumer", known.consumer)
    for info in work.storage.queues():
        work.get(info.name, 1000)
