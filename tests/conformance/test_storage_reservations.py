"""What every storage promises about reservations: frozen lists that a named consumer works off."""

import pytest

from mqserver.errors import (
    MessageNotFound,
    ReservationError,
    ReservationNotFound,
    ReservationOutdated,
)
from mqserver.storage.contract import EVERYTHING, ConsumerInfo, Selection, Storage
from tests.conformance.storages import BILLS, ORDERS, URGENT, letter, put, seen, take, texts

pytest_plugins = ["tests.conformance.storages"]


def _reserve(storage: Storage, after: int, limit: int = 2, consumer: str = "etl") -> int:
    return storage.reserve(consumer, ORDERS, EVERYTHING, after, limit)


def _held(storage: Storage, number: int, consumer: str = "etl") -> list[str]:
    return texts(storage.fetch(consumer, number, 0, 100))


# --- Reserving -----------------------------------------------------------------------------------


def test_reservations_are_numbered_from_one(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2", "3", "4", "5")
    assert [_reserve(storage, after) for after in range(3)] == [1, 2, 3]
    assert [_held(storage, number) for number in (1, 2, 3)] == [["1", "2"], ["3", "4"], ["5"]]
    assert [storage.reserved("etl", number) for number in (1, 2, 3)] == [2, 2, 1]


def test_asked_again_the_same_number_comes_back(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2", "3")
    assert _reserve(storage, 0) == 1
    put(storage, ORDERS, "4")
    assert _reserve(storage, 0, limit=100) == 1
    assert _reserve(storage, 1) == 2
    assert _reserve(storage, 0) == 1
    assert storage.reserve("etl", ORDERS, Selection(group=77), 1, 1) == 2
    assert [_held(storage, number) for number in (1, 2)] == [["1", "2"], ["3", "4"]]


def test_where_there_is_nothing_to_hold_the_number_is_zero(storage: Storage) -> None:
    assert _reserve(storage, 0) == 0
    assert storage.consumers() == []
    put(storage, ORDERS, "1")
    assert _reserve(storage, 0, limit=0) == 0
    assert _reserve(storage, 0) == 1
    assert _reserve(storage, 1) == 0
    assert storage.consumers() == [ConsumerInfo("etl", ORDERS, 0, 1, 1)]


def test_a_reservation_is_out_of_everybody_elses_reach(storage: Storage) -> None:
    keys = put(storage, ORDERS, "1", "2", "3")
    _reserve(storage, 0)
    assert seen(storage, ORDERS) == ["3"]
    assert storage.read(ORDERS, keys[0]) is None
    assert _reserve(storage, 0, consumer="other") == 1
    assert _held(storage, 1, "other") == ["3"]
    assert take(storage, b"t", ORDERS) == []


def test_nobody_waits_for_what_is_reserved(storage: Storage) -> None:
    keys = put(storage, ORDERS, "1")
    _reserve(storage, 0)
    with pytest.raises(MessageNotFound):
        storage.take_keys(b"t", ORDERS, keys, 60)


def test_only_what_everybody_sees_is_reserved(storage: Storage) -> None:
    put(storage, ORDERS, "taken", "in doubt", "free")
    take(storage, b"a", ORDERS, 1)
    take(storage, b"b", ORDERS, 1)
    storage.prepare(b"b", b"")
    storage.store(b"c", ORDERS, [letter("not committed")])
    _reserve(storage, 0, limit=100)
    assert _held(storage, 1) == ["free"]


def test_a_reservation_holds_what_is_selected(storage: Storage) -> None:
    put(storage, ORDERS, letter("1", group=1), letter("2", group=2), letter("3", group=1))
    storage.reserve("etl", ORDERS, Selection(group=1), 0, 5)
    assert _held(storage, 1) == ["1", "3"]
    assert seen(storage, ORDERS) == ["2"]


def test_a_reservation_is_in_the_order_of_the_queue(storage: Storage) -> None:
    put(storage, URGENT, letter("low"), letter("high", priority=2), letter("middle", priority=1))
    assert storage.reserve("etl", URGENT, EVERYTHING, 0, 2) == 1
    assert _held(storage, 1) == ["high", "middle"]
    assert seen(storage, URGENT) == ["low"]


# --- Reading -------------------------------------------------------------------------------------


def test_a_reservation_is_read_as_often_as_wanted(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2")
    _reserve(storage, 0)
    first = storage.fetch("etl", 1, 0, 2)
    assert first == storage.fetch("etl", 1, 0, 2)
    assert texts(first) == ["1", "2"]


def test_a_reservation_does_not_change_with_the_queue(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2")
    _reserve(storage, 0, limit=100)
    put(storage, ORDERS, "3")
    assert _held(storage, 1) == ["1", "2"]


def test_a_reservation_is_read_in_parts(storage: Storage) -> None:
    put(storage, ORDERS, *map(str, range(10)))
    _reserve(storage, 0, limit=10)
    assert texts(storage.fetch("etl", 1, 0, 3)) == ["0", "1", "2"]
    assert texts(storage.fetch("etl", 1, 3, 4)) == ["3"]
    assert texts(storage.fetch("etl", 1, 8, 50)) == ["8", "9"]
    assert storage.fetch("etl", 1, 4, 4) == storage.fetch("etl", 1, 10, 20) == []


@pytest.mark.parametrize(("consumer", "number"), [("etl", 0), ("etl", 1), ("etl", 3), ("who", 1)])
def test_a_reservation_that_is_not_there_is_not_found(
    storage: Storage, consumer: str, number: int
) -> None:
    put(storage, ORDERS, "1", "2", "3", "4")
    _reserve(storage, 0)
    _reserve(storage, 1)
    storage.finish("etl", 1)
    with pytest.raises(ReservationNotFound):
        storage.reserved(consumer, number)
    with pytest.raises(ReservationNotFound):
        storage.fetch(consumer, number, 0, 1)


# --- Finishing -----------------------------------------------------------------------------------


def test_finished_messages_are_gone(storage: Storage) -> None:
    keys = put(storage, ORDERS, "1", "2", "3")
    _reserve(storage, 0)
    storage.finish("etl", 1)
    assert storage.queue(ORDERS).locked == 0
    assert storage.read(ORDERS, keys[0]) is None
    storage.drop_consumer("etl")
    assert take(storage, b"t", ORDERS) == ["3"]


def test_all_reservations_up_to_a_number_are_finished_at_once(storage: Storage) -> None:
    put(storage, ORDERS, *map(str, range(8)))
    for after in range(4):
        _reserve(storage, after)
    storage.finish("etl", 3)
    assert storage.consumers() == [ConsumerInfo("etl", ORDERS, 3, 4, 2)]
    assert _held(storage, 4) == ["6", "7"]


def test_finishing_may_be_repeated(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2", "3", "4")
    _reserve(storage, 0)
    _reserve(storage, 1)
    for upto in (2, 2, 1, 0):
        storage.finish("etl", upto)
        assert storage.consumers() == [ConsumerInfo("etl", ORDERS, 2, 2, 0)]


def test_numbers_go_on_behind_what_is_finished(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2", "3")
    _reserve(storage, 0)
    storage.finish("etl", 1)
    assert _reserve(storage, 1) == 2
    assert _held(storage, 2) == ["3"]


def test_what_was_never_given_is_not_finished(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2", "3")
    _reserve(storage, 0)
    with pytest.raises(ReservationNotFound):
        storage.finish("etl", 2)
    assert _held(storage, 1) == ["1", "2"]
    with pytest.raises(ReservationNotFound):
        storage.finish("who", 1)


def test_a_consumer_that_is_unknown_has_finished_nothing(storage: Storage) -> None:
    storage.finish("who", 0)
    assert storage.consumers() == []


def test_an_old_checkpoint_that_came_back_is_told(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2", "3", "4", "5")
    _reserve(storage, 0)
    _reserve(storage, 1)
    storage.finish("etl", 1)
    with pytest.raises(ReservationOutdated):
        _reserve(storage, 0)
    assert _reserve(storage, 1) == 2


def test_a_checkpoint_of_somebody_else_is_told(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2", "3")
    with pytest.raises(ReservationNotFound):
        _reserve(storage, 1)
    assert storage.consumers() == []
    _reserve(storage, 0)
    with pytest.raises(ReservationNotFound):
        _reserve(storage, 2)
    assert seen(storage, ORDERS) == ["3"]


# --- Consumers -----------------------------------------------------------------------------------


def test_a_consumer_belongs_to_one_queue_until_it_is_dropped(storage: Storage) -> None:
    put(storage, ORDERS, "order")
    put(storage, BILLS, "bill")
    _reserve(storage, 0)
    storage.finish("etl", 1)
    with pytest.raises(ReservationError):
        storage.reserve("etl", BILLS, EVERYTHING, 1, 1)
    storage.drop_consumer("etl")
    assert storage.reserve("etl", BILLS, EVERYTHING, 0, 1) == 1


def test_consumers_are_listed_by_name(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2", "3")
    put(storage, BILLS, "bill")
    _reserve(storage, 0, consumer="second")
    storage.reserve("First", BILLS, EVERYTHING, 0, 9)
    _reserve(storage, 0, consumer="third")
    storage.finish("third", 1)
    assert storage.consumers() == [
        ConsumerInfo("First", BILLS, 0, 1, 1),
        ConsumerInfo("second", ORDERS, 0, 1, 2),
        ConsumerInfo("third", ORDERS, 1, 1, 0),
    ]


def test_what_a_dropped_consumer_had_reserved_is_back_at_its_place(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2", "3", "4", "5")
    for after in range(2):
        _reserve(storage, after)
    storage.finish("etl", 1)
    put(storage, ORDERS, "6")
    storage.drop_consumer("etl")
    assert storage.consumers() == []
    assert take(storage, b"t", ORDERS) == ["3", "4", "5", "6"]


def test_a_dropped_consumer_begins_again_at_one(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2")
    _reserve(storage, 0, limit=1)
    storage.finish("etl", 1)
    storage.drop_consumer("etl")
    storage.drop_consumer("etl")
    assert _reserve(storage, 0) == 1
    assert _held(storage, 1) == ["2"]


def test_consumers_do_not_meet(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2", "3")
    _reserve(storage, 0, limit=1, consumer="a")
    _reserve(storage, 0, limit=1, consumer="b")
    storage.finish("a", 1)
    storage.drop_consumer("a")
    assert _held(storage, 1, "b") == ["2"]
    assert seen(storage, ORDERS) == ["3"]
