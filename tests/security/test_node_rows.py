"""Rows of databases, whoever wrote them, and a coordinator that answers nonsense about them."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from idl import system, wire
from idl.cos import Status, otid_t
from idl.custody import PROMISE, PUTS, mqCarried
from idl.mq import mqQueueSettings
from idl.otids import GTRID_BYTES, NULL_OTID, otid_of, split_otid
from mqserver.errors import StorageFull
from mqserver.storage.contract import NewMessage, QueueSettings
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.requests import branch_taken_over
from tests.security.carrying import AT_ONCE, DATABASE, SOON_S, Carrying, Held, eventually
from tests.security.guarded_node import ALL, ALONE

OTHER = "another"


@pytest.fixture
def guarded() -> Iterator[Carrying]:
    with contextlib.closing(Carrying()) as made:
        yield made


# --- Rows that nobody should have written --------------------------------------------------------


def forged(guarded: Carrying, held: Held) -> dict[bytes, bytes]:
    """Rows that look like one of the node's, by transactions that nobody has used."""
    content = held.content

    def new() -> bytes:
        return split_otid(guarded.new_otid())[0]

    rows = {new(): each for each in (content, b"", b"x", content[:20], content + b"x", bytes(1000))}
    for position in range(0, len(content), 7):
        changed = bytearray(content)
        changed[position] ^= 1
        rows[new()] = bytes(changed)
    for body in (b"", b"\xc1", wire.pack(1), wire.pack((1, "alice", b"nonsense")), wire.pack(())):
        # Only who knows the secret can make these.
        for kind in (PUTS, PROMISE, b"\x00"):
            gtrid = new()
            rows[gtrid] = kind + guarded.node.custody.ticket(gtrid, kind + body) + body
    return rows


def test_a_row_that_this_node_never_wrote_is_left_and_told_once_and_others_go_on(
    guarded: Carrying, caplog: pytest.LogCaptureFixture
) -> None:
    # Names grow, so that each true row has some that are forged before it.
    first = guarded.lost("a.true", b"1")
    rows = forged(guarded, first)
    guarded.relay.rows |= rows
    guarded.lost("a.true", b"2")
    with caplog.at_level(logging.WARNING, "oncemq.audit"):
        for _ in range(3):
            guarded.look()
    assert guarded.payloads("a.true") == [b"1", b"2"]
    told = [record for record in caplog.records if "never wrote" in record.getMessage()]
    assert len(told) == len(rows)
    eventually(lambda: guarded.relay.rows == rows, "the true rows are removed, and no other")


def test_one_changed_byte_of_a_row_is_enough_to_leave_it(guarded: Carrying) -> None:
    held = guarded.lost("a.byte", b"x")
    for position in range(len(held.content)):
        changed = bytearray(held.content)
        changed[position] ^= 0x80
        guarded.relay.rows = {held.gtrid: bytes(changed)}
        if position % 10 == 0:
            guarded.look()
    assert guarded.payloads("a.byte") == []
    guarded.commit(held)
    guarded.look()
    assert guarded.payloads("a.byte") == [b"x"]


def test_a_row_of_another_node_is_not_put_here(guarded: Carrying) -> None:
    with contextlib.closing(Carrying()) as other:
        theirs = other.lost("a.theirs", b"x")
    guarded.hold("a.mine", b"x")
    guarded.commit(theirs)
    guarded.look()
    assert guarded.payloads("a.theirs") == []
    assert theirs.gtrid in guarded.relay.rows


# --- A coordinator that answers nonsense ---------------------------------------------------------


def _again_and_again(guarded: Carrying, row: mqCarried) -> None:
    guarded.relay.answers[OTHER] = lambda after: (row,)


def _twice_in_one_answer(guarded: Carrying, row: mqCarried) -> None:
    guarded.relay.answers[OTHER] = lambda after: (row, row)


def _backwards(guarded: Carrying, row: mqCarried) -> None:
    numbers = itertools.count(2**64, -1)
    guarded.relay.answers[OTHER] = lambda after: (_row(next(numbers)),)


def _always_from_the_start(guarded: Carrying, row: mqCarried) -> None:
    every = tuple([_row(number) for number in range(AT_ONCE)])
    guarded.relay.answers[OTHER] = lambda after: every


def _without_end(guarded: Carrying, row: mqCarried) -> None:
    numbers = itertools.count()
    guarded.relay.answers[OTHER] = lambda after: tuple([_row(next(numbers)) for _ in range(9)])


def _wrong_names(guarded: Carrying, row: mqCarried) -> None:
    wrong = (otid_t(7, 0, bytes(GTRID_BYTES)), NULL_OTID, otid_of(bytes(31)), otid_of(bytes(33)))
    names = itertools.cycle(wrong)
    guarded.relay.answers[OTHER] = lambda after: (mqCarried(next(names), b""),)


def _row(number: int) -> mqCarried:
    return mqCarried(otid_of(number.to_bytes(GTRID_BYTES)), b"x")


@pytest.mark.parametrize(
    "answer",
    [
        _again_and_again,
        _twice_in_one_answer,
        _backwards,
        _always_from_the_start,
        _without_end,
        _wrong_names,
    ],
)
def test_nonsense_ends_the_look_and_keeps_nobody_else_waiting(
    guarded: Carrying, answer: object
) -> None:
    assert callable(answer)
    held = guarded.lost("a.look", b"x")
    answer(guarded, mqCarried(otid_of(held.gtrid), held.content))
    # The one that answers nonsense is looked at first.
    guarded.relay.databases = (OTHER, DATABASE)
    for _ in range(2):
        begun = time.monotonic()
        with pytest.raises(system.TRANSIENT):
            guarded.node._custodian.look_at(OTHER)
        assert time.monotonic() - begun < 2.5
    assert guarded.payloads("a.look") == [b"x"]
    guarded.await_empty()


def test_rows_in_thousands_are_all_put_once(guarded: Carrying) -> None:
    count = 2500
    for number in range(count):
        guarded.lost("a.many", b"%d" % number)
    eventually(lambda: _is_looked_at(guarded), "all rows are looked at")
    assert guarded.payloads("a.many") == [b"%d" % number for number in range(count)]
    guarded.await_empty()
    assert len(guarded.payloads("a.many")) == count


def test_more_forged_rows_than_one_look_takes_hide_no_true_one(guarded: Carrying) -> None:
    begun = time.monotonic()

    def slowly(after: otid_t) -> tuple[mqCarried, ...]:
        # A look has stopped before it comes to the last of them.
        threading.Event().wait(0.1)
        behind = -1 if after == NULL_OTID else int.from_bytes(after.tid)
        numbers = range(behind + 1, min(behind + 2, 12))
        found = tuple([_row(number) for number in numbers])
        if found:
            return found
        rows = sorted(each for each in list(guarded.relay.rows) if each > after.tid)
        return tuple([mqCarried(otid_of(each), guarded.relay.rows[each]) for each in rows])

    otid = otid_of((2**100).to_bytes(GTRID_BYTES))
    held = guarded.hold("a.hidden", b"x", otid=otid)
    guarded.as_node("alice").rollbackBranch(held.branch)
    guarded.commit(held)
    guarded.relay.answers[DATABASE] = slowly
    eventually(lambda: _is_put(guarded, "a.hidden"), "the true row is found")
    assert time.monotonic() - begun < SOON_S


def _is_put(guarded: Carrying, queue: str) -> bool:
    with contextlib.suppress(system.TRANSIENT):
        guarded.look()
    return bool(guarded.payloads(queue))


def _is_looked_at(guarded: Carrying) -> bool:
    try:
        guarded.look()
    except system.TRANSIENT:
        return False
    return True


def test_a_node_is_shut_down_while_a_look_is_under_way() -> None:
    asked, answer = threading.Event(), threading.Event()
    guarded = Carrying()
    held = guarded.lost("a.late", b"x")
    row = mqCarried(otid_of(held.gtrid), held.content)

    def late(after: otid_t) -> tuple[mqCarried, ...]:
        asked.set()
        answer.wait(SOON_S)
        return (row,)

    guarded.relay.answers[DATABASE] = late
    waiting = threading.Thread(target=lambda: _is_looked_at(guarded))
    waiting.start()
    assert asked.wait(SOON_S)
    thread = guarded.node._custodian._thread
    begun = time.monotonic()
    guarded.close()
    assert time.monotonic() - begun < SOON_S
    answer.set()
    # What comes now is taken no notice of: the storage is closed.
    thread.join(SOON_S)
    waiting.join(SOON_S)
    assert not thread.is_alive()
    assert guarded.payloads("a.late") == []


# --- A storage without room, and queues that are not as they were ---------------------------------


class FullStorage(MemoryStorage):
    """Has no room, as long as that is said."""

    def __init__(self) -> None:
        super().__init__(time.monotonic)
        self.is_full = self.is_full_for_puts = False
        self.refusals = 0

    def commit_one_phase(self, branch: bytes, force: bool = True) -> None:
        """See `Storage.commit_one_phase`."""
        self._check(self.is_full)
        super().commit_one_phase(branch, force)

    def store(self, branch: bytes, queue: str, messages: object) -> range:
        """See `Storage.store`."""
        keys = super().store(branch, queue, messages)  # type: ignore[arg-type]
        self._check(self.is_full_for_puts)
        return keys

    def _check(self, is_full: bool) -> None:
        if is_full:
            self.refusals += 1
            raise StorageFull("no room")


@pytest.fixture
def storage() -> FullStorage:
    return FullStorage()


@pytest.fixture
def full(storage: FullStorage) -> Iterator[Carrying]:
    with contextlib.closing(Carrying(storage)) as made:
        yield made


@pytest.mark.parametrize("when", ["is_full", "is_full_for_puts"])
def test_what_finds_no_room_when_it_is_taken_over_is_put_when_there_is_some(
    full: Carrying, storage: FullStorage, when: str
) -> None:
    full.lost("a.room", b"x")
    setattr(storage, when, True)
    for _ in range(3):
        with pytest.raises(system.TRANSIENT):
            full.look()
        assert full.payloads("a.room") == []
        eventually(lambda: not _is_pausing(full), "it is tried again")
    assert full.relay.rows
    setattr(storage, when, False)
    eventually(lambda: _is_put(full, "a.room"), "there is room")
    assert full.payloads("a.room") == [b"x"]
    full.await_empty()


def _is_pausing(guarded: Carrying) -> bool:
    return time.monotonic() < guarded.node._custodian._refused_until


def test_without_room_rows_are_not_tried_one_after_the_other(
    full: Carrying, storage: FullStorage
) -> None:
    held = [full.lost("a.room", b"%d" % number) for number in range(20)]
    storage.is_full = True
    with pytest.raises(system.TRANSIENT):
        full.look()
    # What is tried in vain is remembered like all that has ended, and drives that out.
    assert storage.refusals <= 2
    storage.is_full = False
    eventually(lambda: _is_put(full, "a.room"), "there is room")
    eventually(lambda: _is_looked_at(full), "all rows are looked at")
    assert len(full.payloads("a.room")) == len(held)


def test_what_finds_no_room_when_it_is_delivered_is_put_when_there_is_some(
    full: Carrying, storage: FullStorage
) -> None:
    held = full.hold("a.room", b"x")
    full.commit(held)
    storage.is_full = True
    with pytest.raises(system.IMP_LIMIT):
        full.carried("alice").deliver(held.branch, DATABASE)
    assert full.payloads("a.room") == []
    storage.is_full = False
    eventually(lambda: _is_put(full, "a.room"), "there is room")
    assert full.payloads("a.room") == [b"x"]
    full.await_empty()


def test_marks_that_cannot_be_removed_for_want_of_room_are_tried_again_later(
    full: Carrying, storage: FullStorage
) -> None:
    full.lost("a.room", b"x")
    full.look()
    storage.is_full = True
    eventually(lambda: storage.refusals > 0, "removing was tried")
    before, begun = full.relay.removals, time.monotonic()
    eventually(lambda: full.relay.removals > before + 3, "it is tried again")
    # Nobody is asked without a pause.
    assert time.monotonic() - begun > 3 * 0.05
    storage.is_full = False
    full.await_empty()


def _delete(guarded: Carrying) -> None:
    guarded.as_admin("any").deleteQueue("a.changed")


def _disable(guarded: Carrying) -> None:
    guarded.as_admin("any").changeQueue("a.changed", mqQueueSettings(False, False, 0, 0))


def _fill(guarded: Carrying) -> None:
    guarded.as_admin("any").changeQueue("a.changed", mqQueueSettings(True, False, 1, 1))
    guarded.node.storage.store(b"full", "a.changed", [NewMessage(b"x" * 10, 0)])
    guarded.node.storage.commit_one_phase(b"full")


def _disable_the_node(guarded: Carrying) -> None:
    guarded.as_admin("root").setEnabled(False)


@pytest.mark.parametrize("change", [_delete, _disable, _fill, _disable_the_node])
def test_what_is_committed_is_put_whatever_became_of_the_queue(
    guarded: Carrying, change: object
) -> None:
    assert callable(change)
    guarded.lost("a.changed", b"1", b"2")
    change(guarded)
    guarded.look()
    assert guarded.payloads("a.changed")[-2:] == [b"1", b"2"]
    guarded.await_empty()


def test_where_there_are_too_many_queues_it_is_put_when_there_is_one_less(
    guarded: Carrying,
) -> None:
    guarded.lost("a.last", b"x")
    _delete_last(guarded)
    limit = guarded.node.settings.queues_max
    names = [info.name for info in guarded.node.storage.queues() if info.name[0] != "~"]
    added = [f"a.more{number}" for number in range(limit - len(names))]
    for name in added:
        with contextlib.suppress(system.IMP_LIMIT):
            guarded.as_admin("any").createQueue(name, mqQueueSettings(True, False, 0, 0))
    for _ in range(3):
        with pytest.raises(system.TRANSIENT):
            guarded.look()
    guarded.as_admin("any").deleteQueue(added[0])
    guarded.as_admin("any").deleteQueue(added[1])
    guarded.look()
    assert guarded.payloads("a.last") == [b"x"]


def _delete_last(guarded: Carrying) -> None:
    guarded.as_admin("any").deleteQueue("a.last")


# --- How it ended --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["n1", "n2", "n16", "carried.1", "other"])
def test_what_was_held_is_taken_over_whatever_its_branch_was_called(
    guarded: Carrying, name: str
) -> None:
    held = guarded.lost("a.named", b"x", name=name)
    guarded.look()
    assert guarded.payloads("a.named") == [b"x"]
    assert guarded.as_node("alice").getOutcome(otid_of(held.gtrid)) is Status.COMMITTED
    guarded.await_empty()
    assert guarded.payloads("a.named") == [b"x"]


def test_that_it_was_taken_over_is_told_even_when_the_storage_has_forgotten_it() -> None:
    storage = MemoryStorage(time.monotonic, outcomes_kept=20)
    with contextlib.closing(Carrying(storage)) as guarded:
        held = guarded.hold("a.forgotten", b"x")
        guarded.commit(held)
        guarded.look()
        guarded.await_empty()
        for _ in range(30):
            guarded.as_node("alice").getMany(ALONE, 0, "a.forgotten", ALL, 1, 0)
        for number in range(30):
            storage.create_queue(f"a.{number}", QueueSettings())
            branch = b"other%d" % number
            storage.store(branch, f"a.{number}", [NewMessage(b"x", 0)])
            storage.commit_one_phase(branch)
        own = branch_taken_over(storage, held.gtrid)
        assert storage.outcome(own).name == "UNKNOWN"
        # Behind a fence, "prepared" would say that it is rolled back.
        told = guarded.as_node("alice").getOutcome(otid_of(held.gtrid))
        assert told is Status.COMMITTED
