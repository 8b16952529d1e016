"""The queues of a node: made on first use, on or off, never fuller than allowed, never too much."""

from __future__ import annotations

from typing import cast

import pytest

from idl import wire
from idl.mapping import Structure
from idl.marshal import References, codec_of
from idl.mq import mqTaken
from mqserver import errors
from mqserver.arrivals import WatchedStorage
from mqserver.interfaces.translation import taken_of
from mqserver.queues import (
    ATTRIBUTES_MAX,
    VALUES_HARD_MAX,
    QueueLimits,
    Queues,
    key_number,
    key_text,
    values_of,
    weight,
)
from mqserver.storage.contract import (
    EVERYTHING,
    Message,
    NewMessage,
    QueueSettings,
    Selection,
    Storage,
)
from mqserver.storage.memory import MemoryStorage
from tests.unit.mqserver.node_world import Started

B, C = b"branch-b", b"branch-c"


def made(limits: QueueLimits | None = None, storage: Storage | None = None) -> Queues:
    """Queues over memory, whose arrivals are told."""
    watched = WatchedStorage(storage or MemoryStorage(lambda: 0.0))
    queues = Queues(watched, lambda: 0.0, limits)
    watched.listen(queues.waiting.arrived)
    return queues


def messages(*payloads: bytes) -> list[NewMessage]:
    """New messages with these payloads."""
    return [NewMessage(payload, 0) for payload in payloads]


def commit(queues: Queues, branch: bytes) -> None:
    """The branch has happened."""
    queues._storage.commit_one_phase(branch)


# --- Keys


def test_a_key_is_fifteen_digits_and_sorts_as_its_number() -> None:
    assert key_text(42) == "000000000000042"
    assert key_number("q", key_text(42)) == 42
    assert key_text(9) < key_text(10)


@pytest.mark.parametrize(
    "text", ["", "42", "00000000000004x", "٠٠٠٠٠٠٠٠٠٠٠٠٠٤٢", "-00000000000042"]
)
def test_what_is_no_key_is_the_key_of_no_message(text: str) -> None:
    with pytest.raises(errors.MessageNotFound):
        key_number("q", text)


# --- Making queues


def test_a_queue_is_made_when_something_is_put() -> None:
    queues = made()
    queues.store(B, "q", messages(b"x"))
    assert queues.info("q").locked == 1


def test_to_readers_a_missing_queue_is_empty_and_is_not_made() -> None:
    queues = made()
    assert queues.take(B, "q", EVERYTHING, 1, 0) == []
    assert queues.browse("q", EVERYTHING, 0, 1) == []
    assert queues.read("q", 1) is None
    assert queues.info("q").visible == 0
    assert queues._storage.queues() == []


def test_where_queues_are_made_by_operators_a_missing_one_is_not_found() -> None:
    queues = made(QueueLimits(is_creating=False))
    for use in (
        lambda: queues.store(B, "q", messages(b"x")),
        lambda: queues.take(B, "q", EVERYTHING, 1, 0),
        lambda: queues.browse("q", EVERYTHING, 0, 1),
        lambda: queues.info("q"),
        lambda: queues.set_prioritized("q", True),
    ):
        with pytest.raises(errors.QueueNotFound):
            use()
    queues.create("q", QueueSettings())
    queues.store(B, "q", messages(b"x"))


def test_no_more_queues_are_made_than_allowed() -> None:
    queues = made(QueueLimits(queues_max=2))
    queues.store(B, "one", messages(b"x"))
    queues.create("two", QueueSettings())
    with pytest.raises(errors.LimitExceeded):
        queues.store(B, "three", messages(b"x"))
    with pytest.raises(errors.LimitExceeded):
        queues.create("three", QueueSettings())
    with pytest.raises(errors.QueueExists):
        queues.create("two", QueueSettings())
    queues.delete("two")
    queues.create("three", QueueSettings())


def test_what_was_there_before_a_start_counts() -> None:
    storage = MemoryStorage(lambda: 0.0)
    storage.create_queue("old", QueueSettings(messages_max=1))
    storage.store(B, "old", messages(b"x"))
    storage.commit_one_phase(B)
    queues = made(QueueLimits(queues_max=1), storage)
    with pytest.raises(errors.QueueFull):
        queues.store(C, "old", messages(b"y"))
    with pytest.raises(errors.LimitExceeded):
        queues.store(C, "new", messages(b"y"))


# --- Switches


def test_a_queue_that_is_switched_off_takes_and_gives_nothing() -> None:
    queues = made()
    queues.create("q", QueueSettings(enabled=False))
    for use in (
        lambda: queues.store(B, "q", messages(b"x")),
        lambda: queues.take(B, "q", EVERYTHING, 1, 0),
        lambda: queues.take_keys(B, "q", [1], 0),
        lambda: queues.browse("q", EVERYTHING, 0, 1),
        lambda: queues.read("q", 1),
    ):
        with pytest.raises(errors.QueueDisabled):
            use()
    queues.store(B, "other", messages(b"x"))


def test_the_whole_node_is_switched_off_and_on() -> None:
    queues = made()
    queues.store(B, "q", messages(b"x"))
    queues.set_enabled(False)
    with pytest.raises(errors.QueueDisabled):
        queues.store(B, "q", messages(b"x"))
    with pytest.raises(errors.QueueDisabled):
        queues.take(B, "nowhere", EVERYTHING, 1, 0)
    queues.set_enabled(True)
    queues.store(B, "q", messages(b"x"))


def test_the_order_of_a_queue_is_changed_and_its_limits_stay() -> None:
    queues = made()
    queues.create("q", QueueSettings(messages_max=7))
    queues.set_prioritized("q", True)
    assert queues._storage.queue("q").settings == QueueSettings(prioritized=True, messages_max=7)
    assert queues.settings("q").prioritized


# --- Limits of a queue


def test_a_queue_never_holds_more_messages_than_allowed_whoever_stores_them() -> None:
    queues = made()
    queues.create("q", QueueSettings(messages_max=3))
    queues.store(B, "q", messages(b"1", b"2"))
    with pytest.raises(errors.QueueFull) as full:
        queues.store(C, "q", messages(b"3", b"4"))
    assert full.value.args == ("q", 3)
    queues.store(C, "q", messages(b"3"))
    with pytest.raises(errors.QueueFull):
        queues.store(C, "q", messages(b"4"))


def test_there_is_room_again_when_messages_are_gone_or_were_never_there() -> None:
    queues = made()
    queues.create("q", QueueSettings(messages_max=2))
    queues.store(B, "q", messages(b"1", b"2"))
    queues._storage.rollback(B)
    queues.store(C, "q", messages(b"1", b"2"))
    commit(queues, C)
    taker = b"taker"
    assert len(queues.take(taker, "q", EVERYTHING, 2, 0)) == 2
    with pytest.raises(errors.QueueFull):
        queues.store(b"d", "q", messages(b"3"))
    commit(queues, taker)
    queues.store(b"d", "q", messages(b"3", b"4"))


def test_a_queue_never_holds_more_bytes_than_allowed() -> None:
    queues = made()
    queues.create("q", QueueSettings(bytes_max=10))
    queues.store(B, "q", messages(b"12345", b"12345"))
    with pytest.raises(errors.QueueFull) as full:
        queues.store(B, "q", messages(b"1"))
    assert full.value.args == ("q", 10)
    queues.store(B, "q", messages(b""))


def test_a_limit_that_is_set_later_counts_what_is_there() -> None:
    queues = made()
    queues.store(B, "q", messages(b"1", b"2"))
    queues.change("q", QueueSettings(messages_max=2))
    with pytest.raises(errors.QueueFull):
        queues.store(B, "q", messages(b"3"))
    queues.change("q", QueueSettings(messages_max=3))
    queues.store(B, "q", messages(b"3"))


# --- Limits of an answer


def test_what_one_get_takes_fits_into_an_answer_whatever_the_sizes() -> None:
    limits = QueueLimits(bytes_soft_max=1000, bytes_hard_max=3000, message_bytes_max=1000)
    queues = made(limits)
    small, large = b"s" * 10, b"l" * 900
    queues.store(B, "q", messages(*[small] * 3, *[large] * 20))
    commit(queues, B)
    sizes = []
    for number in range(100):
        taken = queues.take(bytes([number]), "q", EVERYTHING, 1000, 0)
        if not taken:
            break
        sizes.append(sum(weight(message.payload, ()) for message in taken))
        assert sizes[-1] <= 3000
    assert len(sizes) > 5


def test_a_get_stops_at_about_so_many_bytes_and_a_browse_and_a_fetch_too() -> None:
    queues = made(QueueLimits(bytes_soft_max=1000, bytes_hard_max=3000))
    queues.store(B, "q", messages(*[b"x" * 436] * 10))
    commit(queues, B)
    assert len(queues.browse("q", EVERYTHING, 0, 10)) == 6
    assert len(queues.take(B + b"2", "q", EVERYTHING, 10, 0)) == 6
    assert queues._storage.reserve("consumer", "q", EVERYTHING, 0, 10) == 1
    assert len(queues.fetch("consumer", "q", 1, 0, 10)) == 4
    assert len(queues.fetch("consumer", "q", 1, 3, 10)) == 1
    assert queues.fetch("consumer", "q", 1, 3, 2) == []


def test_messages_by_key_that_would_not_fit_together_are_refused_before_they_are_taken() -> None:
    queues = made(QueueLimits(bytes_soft_max=1000, bytes_hard_max=1500))
    keys = queues.store(B, "q", messages(b"x" * 900, b"y" * 900, b"z"))
    commit(queues, B)
    with pytest.raises(errors.LimitExceeded):
        queues.take_keys(C, "q", list(keys), 0)
    assert len(queues.take_keys(C, "q", [keys[0], keys[2]], 0)) == 2
    assert len(queues.take_keys(C, "q", [keys[1]], 0)) == 1


def _with_attributes(count: int, attributes: int) -> list[NewMessage]:
    return [NewMessage(b"x", 0, attributes=(("a", ""),) * attributes)] * count


def test_what_is_taken_at_once_can_be_read_however_many_attributes_there_are() -> None:
    queues = made()
    wide, few = ATTRIBUTES_MAX, VALUES_HARD_MAX // values_of((("", ""),) * ATTRIBUTES_MAX)
    queues.store(B, "q", _with_attributes(2 * few, wide))
    commit(queues, B)
    taken = queues.take(C, "q", EVERYTHING, 2 * few, 0)
    assert 0 < len(taken) <= few
    wire.unpack(wire.pack(_plain(taken)))
    browsed = queues.browse("q", EVERYTHING, 0, 2 * few)
    wire.unpack(wire.pack(_plain(browsed)))
    assert len(queues.lock_now(C, "q", EVERYTHING, few)) == 2 * few - len(taken)


def test_a_list_that_was_locked_is_read_in_answers_of_about_so_many_bytes() -> None:
    queues = made(QueueLimits(bytes_soft_max=1000, bytes_hard_max=3000))
    queues.store(B, "q", messages(*[b"x" * 436] * 10))
    commit(queues, B)
    keys = queues.lock_now(C, "q", EVERYTHING, 9)
    assert len(keys) == 9
    assert [message.key for message in queues.taken(C, "q", keys)] == keys[:6]
    assert [message.key for message in queues.taken(C, "q", keys[6:])] == keys[6:]
    assert queues.taken(C, "q", []) == []


def test_what_is_taken_at_once_can_be_read_however_many_small_messages_there_are() -> None:
    queues = made()
    queues.store(B, "q", [NewMessage(b"", 0, 1, 1, 1, "s", ())] * 80_000)
    commit(queues, B)
    taken = queues.take(C, "q", EVERYTHING, 80_000, 0)
    assert 10_000 < len(taken) < 80_000
    wire.unpack(wire.pack(_plain(taken)))


def test_messages_by_key_that_could_not_be_read_together_are_refused_before_they_are_taken() -> (
    None
):
    queues = made()
    keys = queues.store(B, "q", _with_attributes(20, ATTRIBUTES_MAX))
    commit(queues, B)
    with pytest.raises(errors.LimitExceeded):
        queues.take_keys(C, "q", list(keys), 0)
    assert len(queues.take_keys(C, "q", list(keys)[:10], 0)) == 10


def _plain(taken: list[Message]) -> object:
    """The answer as it is sent."""
    codec = codec_of(Structure(mqTaken))
    assert codec.write is not None
    return codec.write(taken_of(taken), cast(References, None))


def test_a_timeout_by_key_names_queue_and_key() -> None:
    queues = made()
    (key,) = queues.store(B, "q", messages(b"x"))
    commit(queues, B)
    queues.take_keys(C, "q", [key], 0)
    with pytest.raises(errors.LockTimeout) as timeout:
        queues.take_keys(b"d", "q", [key], 0)
    assert timeout.value.args == ("q", key)


# --- Purging


def test_a_purge_removes_what_nobody_holds_in_steps() -> None:
    queues = made(QueueLimits(bytes_soft_max=1000, bytes_hard_max=1000))
    queues.store(B, "q", messages(*[b"x" * 100] * 50))
    commit(queues, B)
    queues.take(C, "q", EVERYTHING, 1, 0)
    queues.store(b"d", "q", messages(b"not there yet"))
    steps: list[int] = []

    def branch_of(step: int) -> bytes:
        steps.append(step)
        return b"purge" + bytes([step])

    assert queues.purge("q", branch_of) == 49
    assert len(steps) > 3
    assert queues.info("q").locked == 2
    assert queues.purge("q", lambda step: b"again" + bytes([step])) == 0


def test_a_purge_of_what_is_not_there_says_so() -> None:
    with pytest.raises(errors.QueueNotFound):
        made().purge("nowhere", lambda step: bytes([step]))


# --- A storage that other nodes use as well


def test_where_storage_is_shared_queues_of_others_are_found_and_their_switches_seen() -> None:
    storage = MemoryStorage(lambda: 0.0)
    limits = QueueLimits(is_shared=True, is_creating=False, recheck_shared_s=0.0)
    queues = made(limits, storage)
    with pytest.raises(errors.QueueNotFound):
        queues.take(B, "q", EVERYTHING, 1, 0)
    storage.create_queue("q", QueueSettings())
    assert queues.take(B, "q", EVERYTHING, 1, 0) == []
    storage.change_queue("q", QueueSettings(enabled=False))
    with pytest.raises(errors.QueueDisabled):
        queues.take(B, "q", EVERYTHING, 1, 0)
    storage.delete_queue("q")
    with pytest.raises(errors.QueueNotFound):
        queues.store(B, "q", messages(b"x"))


def test_where_storage_is_shared_the_limit_is_looked_up_each_time() -> None:
    storage = MemoryStorage(lambda: 0.0)
    queues = made(QueueLimits(is_shared=True, recheck_shared_s=1e9), storage)
    queues.create("q", QueueSettings(messages_max=2))
    storage.store(b"of another node", "q", messages(b"x", b"y"))
    with pytest.raises(errors.QueueFull):
        queues.store(B, "q", messages(b"z"))


# --- Waiting


def test_a_waiting_get_is_served_by_the_next_commit() -> None:
    queues = made()
    waiting = Started(lambda: queues.take(B, "q", EVERYTHING, 5, 60))
    queues.store(C, "q", messages(b"x"))
    assert waiting.is_running
    commit(queues, C)
    taken = waiting.result()
    assert isinstance(taken, list)
    assert [message.payload for message in taken] == [b"x"]


def test_a_waiting_get_ends_when_its_queue_is_switched_off() -> None:
    queues = made()
    queues.create("q", QueueSettings())
    waiting = Started(lambda: queues.take(B, "q", EVERYTHING, 5, 60))
    _await_line(queues, "q")
    queues.change("q", QueueSettings(enabled=False))
    with pytest.raises(errors.QueueDisabled):
        waiting.result()


def test_a_waiting_get_ends_with_the_node() -> None:
    queues = made()
    waiting = Started(lambda: queues.take(B, "q", Selection(group=3), 5, 60))
    _await_line(queues, "q")
    queues.close()
    assert waiting.result() == []


def _await_line(queues: Queues, queue: str) -> None:
    """Somebody waits at the queue."""
    while not queues.waiting._lines.get(queue):
        assert queues is not None
