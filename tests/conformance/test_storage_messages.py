"""What every storage promises about messages: keys, order, selection, looking without taking."""

import zlib

import pytest

from mqserver.errors import MessageNotFound, QueueNotFound
from mqserver.storage.contract import (
    EVERYTHING,
    Message,
    NewMessage,
    QueueSettings,
    Selection,
    Storage,
    Vote,
)
from tests.conformance.storages import BILLS, ORDERS, URGENT, letter, put, seen, take, texts

pytest_plugins = ["tests.conformance.storages"]

# --- Keys and contents ---------------------------------------------------------------------------


def test_a_message_comes_back_as_it_was_stored(storage: Storage) -> None:
    payload = bytes(range(256)) * 5
    attributes = (("colour", "blau"), ("colour", "grün"), ("", ""), ("ключ", "値" * 100))
    new = NewMessage(payload, zlib.crc32(payload), 65535, 65535, 2**52, "Zoë", attributes)
    [key] = put(storage, ORDERS, new)
    assert storage.read(ORDERS, key) == Message(key, *new)
    assert storage.take(b"t", ORDERS, EVERYTHING, 1) == [Message(key, *new)]


@pytest.mark.parametrize("size", [0, 1, 4096, 300_000])
def test_a_payload_may_be_empty_or_large(storage: Storage, size: int) -> None:
    payload = bytes(index % 251 for index in range(size))
    [key] = put(storage, ORDERS, NewMessage(payload, zlib.crc32(payload)))
    assert storage.take_keys(b"t", ORDERS, [key], 0)[0].payload == payload


@pytest.mark.parametrize("size", [18, 300_000])
def test_a_digest_is_kept_even_if_it_is_wrong(storage: Storage, size: int) -> None:
    payload = b"altered on its way".ljust(size, b".")
    new = NewMessage(payload, 4_294_967_295)
    [key] = storage.store(b"s", ORDERS, [new])
    assert storage.take(b"s", ORDERS, EVERYTHING, 1) == [Message(key, *new)]
    storage.rollback(b"s")
    [key] = put(storage, ORDERS, new)
    assert storage.take(b"t", ORDERS, EVERYTHING, 1) == [Message(key, *new)]


def test_keys_grow_in_the_order_of_storing(storage: Storage) -> None:
    first = storage.store(b"a", ORDERS, [letter("1"), letter("2"), letter("3")])
    second = storage.store(b"b", BILLS, [letter("4")])
    third = storage.store(b"a", ORDERS, [letter("5")])
    assert first.start >= 1
    assert (len(first), len(second), len(third)) == (3, 1, 1)
    assert first.step == 1
    assert first.stop <= second.start < second.stop <= third.start


def test_the_keys_stand_in_the_order_of_the_messages(storage: Storage) -> None:
    keys = put(storage, URGENT, letter("low"), letter("high", priority=9), letter("low too"))
    assert [storage.read(URGENT, key) for key in keys] == storage.browse(URGENT, EVERYTHING, 0, 9)
    assert seen(storage, URGENT) == ["low", "high", "low too"]


def test_a_key_that_was_rolled_back_is_not_given_again(storage: Storage) -> None:
    lost = storage.store(b"a", ORDERS, [letter("lost"), letter("lost too")])
    storage.rollback(b"a")
    assert put(storage, ORDERS, "kept")[0] >= lost.stop


def test_a_key_that_was_taken_is_not_given_again(storage: Storage) -> None:
    [key] = put(storage, ORDERS, "taken")
    take(storage, b"t", ORDERS)
    storage.commit_one_phase(b"t")
    assert put(storage, ORDERS, "new")[0] > key


def test_storing_nothing_gives_no_keys(storage: Storage) -> None:
    assert len(storage.store(b"a", ORDERS, [])) == 0
    storage.commit_one_phase(b"a")
    assert seen(storage, ORDERS) == []


# --- Order ---------------------------------------------------------------------------------------


def test_messages_are_taken_in_the_order_of_keys(storage: Storage) -> None:
    put(storage, ORDERS, letter("1", priority=1), letter("2", priority=3))
    put(storage, ORDERS, letter("3", priority=2))
    assert take(storage, b"t", ORDERS, 2) == ["1", "2"]
    assert take(storage, b"t", ORDERS, 2) == ["3"]
    assert take(storage, b"t", ORDERS, 2) == []


def test_a_branch_that_commits_late_keeps_the_place_of_its_keys(storage: Storage) -> None:
    storage.store(b"slow", ORDERS, [letter("first")])
    put(storage, ORDERS, "second")
    storage.commit_one_phase(b"slow")
    assert take(storage, b"t", ORDERS) == ["first", "second"]


def test_a_prioritized_queue_goes_by_priority_and_then_by_key(storage: Storage) -> None:
    put(storage, URGENT, letter("b1", priority=5), letter("c", priority=0))
    put(storage, URGENT, letter("a", priority=9), letter("b2", priority=5))
    assert take(storage, b"t", URGENT, 1) == ["a"]
    assert take(storage, b"t", URGENT) == ["b1", "b2", "c"]


def test_a_queue_may_become_prioritized_and_plain_again(storage: Storage) -> None:
    put(storage, ORDERS, letter("low"), letter("high", priority=1))
    storage.change_queue(ORDERS, QueueSettings(prioritized=True))
    assert take(storage, b"t", ORDERS) == ["high", "low"]
    storage.rollback(b"t")
    storage.change_queue(ORDERS, QueueSettings())
    assert take(storage, b"u", ORDERS) == ["low", "high"]


def test_queues_keep_their_messages_apart(storage: Storage) -> None:
    [key] = put(storage, ORDERS, "order")
    put(storage, BILLS, "bill")
    assert storage.read(BILLS, key) is None
    assert take(storage, b"t", BILLS) == ["bill"]
    assert take(storage, b"t", ORDERS) == ["order"]


def test_no_more_is_taken_than_was_asked_for(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2", "3")
    assert take(storage, b"t", ORDERS, 0) == []
    assert take(storage, b"t", ORDERS, 2) == ["1", "2"]
    assert seen(storage, ORDERS) == ["3"]


# --- Selection -----------------------------------------------------------------------------------

_RED, _BIG = ("colour", "red"), ("size", "big")
_SELECTIONS = {
    "everything": (EVERYTHING, ["plain", "low", "red", "big", "both", "other"]),
    "a group": (Selection(group=2), ["big", "other"]),
    "a least priority": (Selection(priority_min=4), ["red", "both"]),
    "an attribute": (Selection(attributes=(_RED,)), ["red", "both"]),
    "attributes in any order": (Selection(attributes=(_BIG, _RED)), ["both"]),
    "an attribute's exact value": (Selection(attributes=(("colour", "re"),)), []),
    "all of it together": (Selection(1, 4, (_RED,)), ["both"]),
    "a condition": (
        Selection(matches=lambda it: it.sender == "ann", where="sender = ?", parameters=("ann",)),
        ["low", "both"],
    ),
    "a condition and a group": (
        Selection(
            group=1,
            matches=lambda it: it.sender == "ann" or it.key < 0,
            where="sender = ? OR key < ?",
            parameters=("ann", 0),
        ),
        ["both"],
    ),
}


@pytest.mark.parametrize("what", _SELECTIONS)
def test_a_selection_means_the_messages_that_satisfy_all_of_it(storage: Storage, what: str) -> None:
    put(
        storage,
        ORDERS,
        letter("plain"),
        letter("low", priority=3, sender="ann"),
        letter("red", priority=4, sender="bob", attributes=(_RED, ("colour", "blue"))),
        letter("big", group=2, attributes=(_BIG,)),
        letter("both", priority=7, group=1, sender="ann", attributes=(("a", "b"), _RED, _BIG)),
        letter("other", group=2, sender="ANN", attributes=(("red", "colour"),)),
    )
    selection, expected = _SELECTIONS[what]
    assert texts(storage.browse(ORDERS, selection, 0, 100)) == expected
    assert texts(storage.take(b"t", ORDERS, selection, 100)) == expected


def test_what_is_not_selected_stays_for_others(storage: Storage) -> None:
    put(storage, ORDERS, letter("1", group=1), letter("2", group=2), letter("3", group=1))
    assert texts(storage.take(b"t", ORDERS, Selection(group=1), 2)) == ["1", "3"]
    storage.commit_one_phase(b"t")
    assert take(storage, b"u", ORDERS) == ["2"]


def test_a_selection_counts_its_own_messages_towards_the_limit(storage: Storage) -> None:
    put(storage, ORDERS, *(letter(str(number), group=number % 3) for number in range(30)))
    assert texts(storage.take(b"t", ORDERS, Selection(group=2), 3)) == ["2", "5", "8"]


# --- Looking without taking ----------------------------------------------------------------------


def test_reading_takes_nothing(storage: Storage) -> None:
    [key] = put(storage, ORDERS, "here")
    for _ in range(3):
        assert storage.read(ORDERS, key) == storage.browse(ORDERS, EVERYTHING, 0, 1)[0]
    assert take(storage, b"t", ORDERS) == ["here"]


def test_browsing_goes_by_key_also_where_the_queue_is_prioritized(storage: Storage) -> None:
    put(storage, URGENT, letter("low"), letter("high", priority=9))
    assert seen(storage, URGENT) == ["low", "high"]


def test_browsing_goes_on_behind_a_key(storage: Storage) -> None:
    keys = put(storage, ORDERS, "1", "2", "3", "4")
    assert texts(storage.browse(ORDERS, EVERYTHING, keys[0], 2)) == ["2", "3"]
    assert texts(storage.browse(ORDERS, EVERYTHING, keys[2], 2)) == ["4"]
    assert storage.browse(ORDERS, EVERYTHING, keys[3], 2) == []
    assert storage.browse(ORDERS, EVERYTHING, 0, 0) == []


def test_nobody_reads_what_is_not_committed(storage: Storage) -> None:
    [key] = storage.store(b"a", ORDERS, [letter("secret")])
    assert storage.read(ORDERS, key) is None
    assert seen(storage, ORDERS) == []
    storage.prepare(b"a", b"")
    assert storage.read(ORDERS, key) is None
    assert seen(storage, ORDERS) == []
    storage.commit(b"a")
    assert seen(storage, ORDERS) == ["secret"]


def test_nobody_reads_what_is_taken(storage: Storage) -> None:
    keys = put(storage, ORDERS, "1", "2")
    take(storage, b"t", ORDERS, 1)
    assert storage.read(ORDERS, keys[0]) is None
    assert seen(storage, ORDERS) == ["2"]


def test_a_branch_reads_again_what_it_has_taken(storage: Storage) -> None:
    first, second = put(storage, ORDERS, "first", "second")
    [own] = storage.store(b"t", ORDERS, [letter("own")])
    storage.take_keys(b"t", ORDERS, [own], 0)
    assert take(storage, b"t", ORDERS) == ["first", "second"]
    for _ in range(2):
        assert texts(storage.taken(b"t", ORDERS, [second, own, first])) == [
            "second",
            "own",
            "first",
        ]
    assert storage.taken(b"t", ORDERS, []) == []


def test_nobody_reads_again_what_it_has_not_taken(storage: Storage) -> None:
    taken, free = put(storage, ORDERS, "taken", "free")
    [own] = storage.store(b"t", ORDERS, [letter("own")])
    storage.take_keys(b"t", ORDERS, [taken], 0)
    for branch, queue, key in (
        (b"t", ORDERS, free),
        (b"t", ORDERS, own),
        (b"t", BILLS, taken),
        (b"other", ORDERS, taken),
    ):
        with pytest.raises(MessageNotFound):
            storage.taken(branch, queue, [key])
    assert storage.prepare(b"t", b"") is Vote.COMMIT
    with pytest.raises(MessageNotFound):
        storage.taken(b"t", ORDERS, [taken])
    storage.rollback(b"t")
    with pytest.raises(MessageNotFound):
        storage.taken(b"t", ORDERS, [taken])


def test_a_key_that_is_not_there_reads_as_nothing(storage: Storage) -> None:
    [key] = put(storage, ORDERS, "only")
    assert storage.read(ORDERS, key + 1) is None


def test_messages_of_a_queue_that_is_missing_are_not_found(storage: Storage) -> None:
    with pytest.raises(QueueNotFound):
        storage.read("missing", 1)
    with pytest.raises(QueueNotFound):
        storage.browse("missing", EVERYTHING, 0, 1)
    with pytest.raises(QueueNotFound):
        storage.store(b"a", "missing", [letter("x")])
    with pytest.raises(QueueNotFound):
        storage.take(b"a", "missing", EVERYTHING, 1)
    with pytest.raises(QueueNotFound):
        storage.take_keys(b"a", "missing", [1], 0)
    with pytest.raises(QueueNotFound):
        storage.taken(b"a", "missing", [1])
