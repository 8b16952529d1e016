"""What every storage promises about queues: making, changing, deleting, and what they hold."""

import pytest

from mqserver.errors import QueueExists, QueueInUse, QueueNotFound
from mqserver.storage.contract import EVERYTHING, QueueInfo, QueueSettings, Storage
from tests.conformance.storages import BILLS, ORDERS, URGENT, letter, put, seen, take

pytest_plugins = ["tests.conformance.storages"]

NAMES = ["a", "A", "a.b-c_d", "x" * 128, "0", "Orders"]
SETTINGS = QueueSettings(enabled=False, prioritized=True, messages_max=2**40, bytes_max=2**50)


@pytest.mark.parametrize("name", NAMES)
def test_a_queue_that_was_created_is_there_and_empty(storage: Storage, name: str) -> None:
    storage.create_queue(name, SETTINGS)
    assert storage.queue(name) == QueueInfo(name, SETTINGS, 0, 0, 0, 0)


def test_queues_are_listed_by_name(storage: Storage) -> None:
    for name in NAMES:
        storage.create_queue(name, QueueSettings())
    assert [info.name for info in storage.queues()] == sorted([*NAMES, ORDERS, BILLS, URGENT])
    assert storage.queues() == [storage.queue(info.name) for info in storage.queues()]


def test_a_name_is_given_to_one_queue(storage: Storage) -> None:
    put(storage, ORDERS, "kept")
    with pytest.raises(QueueExists):
        storage.create_queue(ORDERS, SETTINGS)
    assert storage.queue(ORDERS).settings == QueueSettings()
    assert seen(storage, ORDERS) == ["kept"]


def test_a_queue_has_the_settings_it_was_changed_to(storage: Storage) -> None:
    put(storage, ORDERS, "kept")
    storage.change_queue(ORDERS, SETTINGS)
    assert storage.queue(ORDERS).settings == SETTINGS
    assert seen(storage, ORDERS) == ["kept"]


def test_limits_are_kept_by_the_layer_above(storage: Storage) -> None:
    storage.change_queue(ORDERS, QueueSettings(enabled=False, messages_max=1, bytes_max=1))
    put(storage, ORDERS, "one", "two")
    assert take(storage, b"t", ORDERS) == ["one", "two"]


def test_a_queue_that_is_missing_is_not_found(storage: Storage) -> None:
    with pytest.raises(QueueNotFound):
        storage.queue("missing")
    with pytest.raises(QueueNotFound):
        storage.change_queue("missing", SETTINGS)
    with pytest.raises(QueueNotFound):
        storage.delete_queue("missing")
    with pytest.raises(QueueNotFound):
        storage.reserve("consumer", "missing", EVERYTHING, 0, 1)
    with pytest.raises(QueueNotFound):
        storage.read("missing", 1)
    with pytest.raises(QueueNotFound):
        storage.browse("missing", EVERYTHING, 0, 1)


def test_a_queue_that_is_missing_is_not_found_by_a_branch(storage: Storage) -> None:
    for messages in ([], [letter("x")]):
        with pytest.raises(QueueNotFound):
            storage.store(b"a", "missing", messages)
    for limit in (0, 1):
        with pytest.raises(QueueNotFound):
            storage.take(b"a", "missing", EVERYTHING, limit)
    for keys in ([], [1]):
        with pytest.raises(QueueNotFound):
            storage.take_keys(b"a", "missing", keys, 0)


def test_a_deleted_queue_is_gone_and_its_name_is_free(storage: Storage) -> None:
    put(storage, ORDERS, "old")
    take(storage, b"t", ORDERS)
    storage.commit_one_phase(b"t")
    storage.delete_queue(ORDERS)
    with pytest.raises(QueueNotFound):
        storage.queue(ORDERS)
    storage.create_queue(ORDERS, SETTINGS)
    assert storage.queue(ORDERS) == QueueInfo(ORDERS, SETTINGS, 0, 0, 0, 0)


# --- While a queue holds anything ----------------------------------------------------------------


def _assert_in_use(storage: Storage) -> None:
    with pytest.raises(QueueInUse):
        storage.delete_queue(ORDERS)


def test_a_queue_with_messages_is_not_deleted(storage: Storage) -> None:
    put(storage, ORDERS, "here")
    _assert_in_use(storage)
    assert seen(storage, ORDERS) == ["here"]


def test_a_queue_with_messages_that_are_not_committed_is_not_deleted(storage: Storage) -> None:
    storage.store(b"a", ORDERS, [letter("later")])
    _assert_in_use(storage)
    storage.prepare(b"a", b"")
    _assert_in_use(storage)
    storage.rollback(b"a")
    storage.delete_queue(ORDERS)


def test_a_queue_with_messages_that_are_taken_is_not_deleted(storage: Storage) -> None:
    put(storage, ORDERS, "taken")
    take(storage, b"a", ORDERS)
    _assert_in_use(storage)
    storage.prepare(b"a", b"")
    _assert_in_use(storage)
    storage.commit(b"a")
    storage.delete_queue(ORDERS)


def test_a_queue_with_a_consumer_is_not_deleted(storage: Storage) -> None:
    put(storage, ORDERS, "reserved")
    storage.reserve("consumer", ORDERS, EVERYTHING, 0, 1)
    _assert_in_use(storage)
    storage.finish("consumer", 1)
    _assert_in_use(storage)
    storage.drop_consumer("consumer")
    storage.delete_queue(ORDERS)


# --- What a queue holds --------------------------------------------------------------------------


def test_a_queue_counts_what_can_be_had_and_what_is_held(storage: Storage) -> None:
    put(storage, ORDERS, *(letter("x" * size, time_us=100 + size) for size in (1, 2, 3, 4)))
    assert storage.queue(ORDERS) == QueueInfo(ORDERS, QueueSettings(), 4, 0, 10, 101)
    take(storage, b"a", ORDERS, 1)
    assert storage.queue(ORDERS) == QueueInfo(ORDERS, QueueSettings(), 3, 1, 10, 102)
    storage.reserve("consumer", ORDERS, EVERYTHING, 0, 1)
    assert storage.queue(ORDERS) == QueueInfo(ORDERS, QueueSettings(), 2, 2, 10, 103)
    storage.store(b"b", ORDERS, [letter("12345", time_us=1)])
    assert storage.queue(ORDERS) == QueueInfo(ORDERS, QueueSettings(), 2, 3, 15, 103)


def test_a_queue_counts_again_what_is_given_back(storage: Storage) -> None:
    put(storage, ORDERS, letter("a", time_us=7), letter("bb", time_us=5), letter("ccc", time_us=6))
    take(storage, b"a", ORDERS, 1)
    storage.store(b"a", ORDERS, [letter("lost")])
    storage.reserve("consumer", ORDERS, EVERYTHING, 0, 5)
    assert storage.queue(ORDERS) == QueueInfo(ORDERS, QueueSettings(), 0, 4, 10, 0)
    storage.rollback(b"a")
    assert storage.queue(ORDERS) == QueueInfo(ORDERS, QueueSettings(), 1, 2, 6, 7)
    storage.drop_consumer("consumer")
    assert storage.queue(ORDERS) == QueueInfo(ORDERS, QueueSettings(), 3, 0, 6, 7)


def test_a_queue_does_not_count_what_is_gone(storage: Storage) -> None:
    put(storage, ORDERS, letter("taken"), letter("finished"), letter("left", time_us=9))
    take(storage, b"a", ORDERS, 1)
    storage.store(b"a", ORDERS, [letter("new", time_us=8)])
    storage.reserve("consumer", ORDERS, EVERYTHING, 0, 1)
    storage.commit_one_phase(b"a")
    storage.finish("consumer", 1)
    assert storage.queue(ORDERS) == QueueInfo(ORDERS, QueueSettings(), 2, 0, 7, 9)


def test_a_message_that_its_own_branch_takes_is_counted_once(storage: Storage) -> None:
    storage.store(b"a", ORDERS, [letter("own")])
    take(storage, b"a", ORDERS)
    assert storage.queue(ORDERS) == QueueInfo(ORDERS, QueueSettings(), 0, 1, 3, 0)
    storage.commit_one_phase(b"a")
    assert storage.queue(ORDERS) == QueueInfo(ORDERS, QueueSettings(), 0, 0, 0, 0)
