"""The client, as people use it: the same for a node in this process and for one far away.

It is long because all that people do with a queue is tried at each of these places.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

import oncemq
from idl.cos import NoTransaction
from idl.mq import mqHeader, mqQueueSettings, mqTimestamp
from oncemq import Connection, Message, Outcome, Queue
from tests.conformance.client_places import Place, place

NOW = mqHeader(0, 0, mqTimestamp(0, 0), "")


@pytest.fixture(scope="module", params=["memory", "file", "mq"])
def here(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    with place(request.param, tmp_path_factory.mktemp("data")) as found:
        yield found


@pytest.fixture(scope="module")
def mq(here: Place) -> Iterator[Connection]:
    with oncemq.connect(here.url, timeout=10.0) as connection:
        yield connection


_numbers = itertools.count(1)


@pytest.fixture
def fresh(mq: Connection) -> Callable[[], Queue]:
    """Makes queues that nobody has used."""
    return lambda: mq.queue(f"queue-{next(_numbers)}")


@pytest.fixture
def orders(fresh: Callable[[], Queue]) -> Queue:
    return fresh()


def payloads(queue: Queue) -> list[bytes]:
    return [message.payload for message in queue.browse()]


# --- Putting and getting


def test_messages_come_out_in_the_order_in_which_they_were_put(orders: Queue) -> None:
    keys = [orders.put(payload) for payload in (b"one", b"two", b"three")]
    got = [orders.get() for _ in range(3)]
    assert [message.payload for message in got if message] == [b"one", b"two", b"three"]
    assert [message.key for message in got if message] == keys
    assert orders.get() is None


def test_a_message_keeps_everything_that_was_put_with_it(orders: Queue) -> None:
    before = datetime.now(UTC)
    key = orders.put(b"one", priority=3, group=7, attributes=[("type", "a"), ("type", "b")])
    message = orders.get()
    assert message is not None
    assert (message.payload, message.priority, message.group) == (b"one", 3, 7)
    assert message.attributes == (("type", "a"), ("type", "b"))
    assert message.get("type") == "a"
    assert message.key == key
    assert message.time is not None
    assert abs((message.time - before).total_seconds()) < 60


def test_put_many_takes_payloads_and_messages_of_any_iterable(orders: Queue) -> None:
    given: list[bytes | Message] = [b"two", Message(b"three", priority=9)]
    keys = orders.put_many(each for each in given)
    got = orders.get_many(10)
    assert [message.payload for message in got] == [b"two", b"three"]
    assert [message.priority for message in got] == [0, 9]
    assert [message.key for message in got] == keys
    assert orders.put_many([]) == []


def test_more_messages_than_fit_into_a_call_are_put_and_got(orders: Queue) -> None:
    many = [b"%d" % number for number in range(12_000)]
    keys = orders.put_many(many)
    assert len(set(map(str, keys))) == len(orders) == 12_000
    assert [message.payload for message in orders.get_many(20_000)] == many
    assert orders.get_many(5) == []


def test_a_put_many_that_fails_in_the_middle_has_put_nothing(orders: Queue) -> None:
    def given() -> Iterator[bytes]:
        for number in range(12_000):
            yield b"%d" % number
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        orders.put_many(given())
    assert len(orders) == 0


def test_large_payloads_come_through_unharmed(orders: Queue) -> None:
    large = bytes(range(256)) * 4096 * 5
    orders.put(large)
    message = orders.get()
    assert message is not None
    assert message.payload == large


def test_a_get_waits_until_a_message_is_put(orders: Queue) -> None:
    later = threading.Timer(0.1, orders.put, [b"late"])
    later.start()
    message = orders.get(timeout=10)
    later.join()
    assert message is not None
    assert message.payload == b"late"


def test_a_get_that_waits_in_vain_returns_nothing(orders: Queue) -> None:
    begun = time.monotonic()
    assert orders.get(timeout=0.15) is None
    assert 0.1 < time.monotonic() - begun < 5


def test_messages_are_selected_by_group_priority_and_attributes(orders: Queue) -> None:
    orders.put(b"one", group=1, priority=1)
    orders.put(b"two", group=2, priority=5, attributes={"colour": "red"})
    orders.put(b"three", group=2, priority=1)

    def chosen(message: Message | None) -> bytes | None:
        return None if message is None else message.payload

    assert chosen(orders.get(group=3)) is None
    assert chosen(orders.get(attributes=[("colour", "red")])) == b"two"
    assert chosen(orders.get(priority_min=2)) is None
    assert [m.payload for m in orders.browse(group=2)] == [b"three"]
    assert [m.payload for m in orders.get_many(9, group=2)] == [b"three"]
    assert chosen(orders.get()) == b"one"


def test_a_queue_with_priorities_gives_the_highest_first(mq: Connection, orders: Queue) -> None:
    mq.admin().createQueue(orders.name, mqQueueSettings(True, True, 0, 0))
    for priority in (1, 9, 5):
        orders.put(b"%d" % priority, priority=priority)
    assert [message.payload for message in orders.get_many(3)] == [b"9", b"5", b"1"]


# --- By key


def test_a_message_is_got_by_its_key(orders: Queue) -> None:
    first, second = orders.put_many([b"one", b"two"])
    message = orders.get(key=second)
    assert message is not None
    assert message.payload == b"two"
    with pytest.raises(oncemq.NotFound, match=str(second)):
        orders.get(key=str(second))
    assert orders.get(key=str(first)) is not None


def test_reading_leaves_the_message_where_it_is(orders: Queue) -> None:
    key = orders.put(b"one", attributes={"a": "b"}, priority=4)
    seen = [orders.read(key), orders.read(str(key))]
    assert seen[0] == seen[1]
    assert seen[0] is not None
    assert (seen[0].payload, seen[0].attributes, seen[0].priority) == (b"one", (("a", "b"),), 4)
    assert len(orders) == 1
    orders.get()
    assert orders.read(key) is None
    assert orders.read("nonsense") is None


def test_removing_says_whether_there_was_anything_to_remove(orders: Queue) -> None:
    key = orders.put(b"one")
    assert orders.remove(key) is True
    assert orders.remove(key) is False
    assert len(orders) == 0


def test_browsing_goes_on_over_any_number_of_pages(orders: Queue) -> None:
    orders.put_many(b"%d" % number for number in range(2500))
    assert payloads(orders) == [b"%d" % number for number in range(2500)]
    assert len(list(orders.browse(limit=1200))) == 1200
    first = next(iter(orders.browse()))
    assert first.key is not None
    assert next(iter(orders.browse(after=first.key))).payload == b"1"
    assert list(orders.browse(limit=0)) == []
    assert len(orders) == 2500


# --- Transactions


def test_a_transaction_happens_as_a_whole(
    mq: Connection, orders: Queue, fresh: Callable[[], Queue]
) -> None:
    billing = fresh()
    orders.put(b"one")
    with mq.transaction(timeout=30) as tx:
        message = orders.get(timeout=5)
        assert message is not None
        key = billing.put(message.payload)
        assert tx.status == "active"
        assert len(orders) == len(billing) == 0
        with pytest.raises(oncemq.KeyNotKnownYet, match="committed"):
            str(key)
    assert (len(orders), payloads(billing)) == (0, [b"one"])
    assert billing.read(key) is not None
    assert tx.status is Outcome.COMMITTED
    assert mq.outcome(tx.otid) == "committed"


def test_an_exception_rolls_everything_back(
    mq: Connection, orders: Queue, fresh: Callable[[], Queue]
) -> None:
    billing = fresh()
    orders.put(b"one")
    tx = mq.transaction()
    with contextlib.suppress(ZeroDivisionError), tx:
        orders.get()
        key = billing.put(b"two")
        raise ZeroDivisionError
    assert (payloads(orders), len(billing)) == ([b"one"], 0)
    assert tx.status == mq.outcome(tx.otid) == "rolled back"
    with pytest.raises(oncemq.KeyNotKnownYet, match="rolled back"):
        str(key)


def test_explicit_transactions_are_committed_and_rolled_back(mq: Connection, orders: Queue) -> None:
    tx = mq.begin()
    orders.put(b"four", tx=tx)
    tx.commit()
    other = mq.begin()
    assert orders.get(tx=other) is not None
    other.rollback()
    other.rollback()
    assert payloads(orders) == [b"four"]
    for over in (tx, other):
        with pytest.raises(oncemq.TransactionEnded, match="Begin another"):
            orders.put(b"late", tx=over)
    with pytest.raises(oncemq.TransactionEnded):
        tx.commit()


def test_own_puts_can_be_got_in_the_transaction(mq: Connection, orders: Queue) -> None:
    with mq.transaction():
        orders.put_many([b"one", b"two"])
        got = orders.get_many(1)
        assert [message.payload for message in got] == [b"one"]
    assert payloads(orders) == [b"two"]


def test_what_another_transaction_holds_is_skipped(mq: Connection, orders: Queue) -> None:
    orders.put_many([b"one", b"two"])
    tx = mq.begin()
    first = orders.get(tx=tx)
    second = orders.get()
    tx.rollback()
    assert first is not None
    assert second is not None
    assert (first.payload, second.payload) == (b"one", b"two")
    assert payloads(orders) == [b"one"]


def test_a_call_can_be_kept_out_of_the_transaction(mq: Connection, orders: Queue) -> None:
    with contextlib.suppress(ZeroDivisionError), mq.transaction():
        orders.put(b"audit", tx=oncemq.AUTOCOMMIT)
        orders.put(b"lost")
        raise ZeroDivisionError
    assert payloads(orders) == [b"audit"]


def test_what_is_marked_can_only_be_rolled_back(mq: Connection, orders: Queue) -> None:
    with mq.transaction() as tx:
        orders.put(b"one")
        tx.set_rollback_only()
        assert tx.status == "rollback only"
    assert tx.status == "rolled back"
    other = mq.begin()
    orders.put(b"two", tx=other)
    other.set_rollback_only("changed my mind")
    with pytest.raises(oncemq.RolledBack, match="changed my mind") as told:
        other.commit()
    assert not told.value.retryable
    assert len(orders) == 0


def test_a_transaction_that_takes_too_long_is_rolled_back(mq: Connection, orders: Queue) -> None:
    orders.put(b"one")
    tx = mq.begin(timeout=0.05)
    orders.get(tx=tx)
    time.sleep(0.1)
    with pytest.raises(oncemq.RolledBack, match="seconds were over") as told:
        tx.commit()
    assert told.value.retryable
    assert tx.status is Outcome.ROLLED_BACK
    assert payloads(orders) == [b"one"]


def test_transactions_are_not_nested_by_mistake(mq: Connection) -> None:
    inner = mq.transaction()
    with mq.transaction(), pytest.raises(oncemq.OnceMQError, match="under way"):
        inner.__enter__()
    assert oncemq.current_transaction() is None


def test_a_transaction_that_did_nothing_is_committed_without_a_call(mq: Connection) -> None:
    with mq.transaction() as tx:
        assert oncemq.current_transaction() is tx
    assert tx.status is Outcome.COMMITTED


def test_a_transaction_that_found_nothing_is_committed(mq: Connection, orders: Queue) -> None:
    with mq.transaction() as tx:
        assert orders.get() is None
    assert tx.status is Outcome.COMMITTED


def test_many_puts_in_one_transaction_go_down_part_by_part(mq: Connection, orders: Queue) -> None:
    with mq.transaction():
        keys = [orders.put(b"%d" % number) for number in range(10_500)]
        assert len(orders) == 0
    assert len(orders) == 10_500
    assert [str(message.key) for message in orders.browse(limit=5)] == [str(k) for k in keys[:5]]
    assert len({str(key) for key in keys}) == 10_500


def test_threads_share_a_connection(mq: Connection, orders: Queue) -> None:
    def work() -> None:
        for _ in range(20):
            with mq.transaction():
                orders.put(b"x")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(orders) == 80


# --- Switched off, and full


def test_a_queue_that_is_switched_off_says_so(mq: Connection, orders: Queue) -> None:
    orders.put(b"one")
    admin = mq.admin()
    admin.changeQueue(orders.name, mqQueueSettings(False, False, 0, 0))
    with pytest.raises(oncemq.QueueDisabled, match=orders.name):
        orders.put(b"two")
    with pytest.raises(oncemq.RolledBack, match=orders.name) as told, mq.transaction():
        orders.put(b"three")
    assert isinstance(told.value.__cause__, oncemq.QueueDisabled)
    admin.changeQueue(orders.name, mqQueueSettings(True, False, 0, 0))
    assert payloads(orders) == [b"one"]


def test_a_full_queue_refuses_or_makes_wait(mq: Connection, orders: Queue) -> None:
    mq.admin().createQueue(orders.name, mqQueueSettings(True, False, 1, 0))
    orders.put(b"one")
    with pytest.raises(oncemq.QueueFull, match="limit 1"):
        orders.put(b"two")
    with pytest.raises(oncemq.QueueFull):
        orders.put(b"two", timeout=0.05)
    later = threading.Timer(0.1, orders.get)
    later.start()
    orders.put(b"three", timeout=10)
    later.join()
    assert payloads(orders) == [b"three"]


def test_a_full_queue_rolls_a_transaction_back_unless_it_waits(
    mq: Connection, orders: Queue
) -> None:
    mq.admin().createQueue(orders.name, mqQueueSettings(True, False, 1, 0))
    orders.put(b"one")
    with pytest.raises(oncemq.RolledBack) as told, mq.transaction():
        orders.put(b"two")
    assert isinstance(told.value.__cause__, oncemq.QueueFull)
    assert told.value.retryable
    with mq.transaction():
        with pytest.raises(oncemq.QueueFull):
            orders.put(b"three", timeout=0.03)
        assert orders.get() is not None
    assert len(orders) == 0


# --- The standard's own objects


def test_the_standard_interfaces_can_be_had(mq: Connection, orders: Queue) -> None:
    standard, fifo = mq.standard(orders.name), mq.fifo(orders.name)
    key = standard.mqPut(None, NOW, (), b"one")
    assert standard.mqGet(None, key)[2] == b"one"
    control = mq.control(30)
    fifo.mqPut(control, NOW, (), b"two")
    assert len(orders) == 0
    control.get_terminator().commit(True)
    assert fifo.mqGetNext(None)[2] == b"two"


def test_current_carries_a_transaction_along(mq: Connection, orders: Queue) -> None:
    current = mq.current
    current.begin()
    with current.carried():
        mq.fifo(orders.name).mqPut(None, NOW, (), b"one")
    current.rollback()
    assert len(orders) == 0
    with pytest.raises(NoTransaction):
        current.rollback()


# --- Moving


def test_messages_move_to_the_end_of_another_queue(fresh: Callable[[], Queue]) -> None:
    source, target = fresh(), fresh()
    target.put(b"old")
    source.put(b"one", priority=3, group=7, attributes=[("type", "a")], sender="shop")
    source.put_many([b"two", b"three"])
    assert source.move_to(target) == 1
    assert source.move_to(target, 5) == 2
    assert source.move_to(target) == 0
    assert payloads(target) == [b"old", b"one", b"two", b"three"]
    moved = list(target.browse())[1]
    assert (moved.priority, moved.group, moved.sender) == (3, 7, "shop")
    assert moved.attributes == (("type", "a"),)
    assert len(source) == 0


def test_what_is_selected_moves_alone(fresh: Callable[[], Queue]) -> None:
    source, target = fresh(), fresh()
    source.put(b"one", group=1)
    source.put(b"two", group=2)
    assert source.move_to(target, 9, group=2) == 1
    assert payloads(source) == [b"one"]
    assert payloads(target) == [b"two"]


def test_a_move_into_a_full_queue_leaves_everything_where_it_is(
    mq: Connection, fresh: Callable[[], Queue]
) -> None:
    source, target = fresh(), fresh()
    mq.admin().createQueue(target.name, mqQueueSettings(True, False, 1, 0))
    source.put_many([b"one", b"two"])
    with pytest.raises(oncemq.QueueFull):
        source.move_to(target, 2)
    assert (payloads(source), payloads(target)) == ([b"one", b"two"], [])


def test_a_move_in_a_transaction_is_part_of_it(mq: Connection, fresh: Callable[[], Queue]) -> None:
    source, target = fresh(), fresh()
    source.put_many([b"one", b"two"])
    tx = mq.begin()
    assert source.move_to(target, tx=tx) == 1
    tx.rollback()
    assert (payloads(source), payloads(target)) == ([b"one", b"two"], [])
    with mq.transaction():
        assert source.move_to(target) == 1
    assert (payloads(source), payloads(target)) == ([b"two"], [b"one"])


def test_a_move_to_a_queue_of_another_connection_is_one_act(
    here: Place, fresh: Callable[[], Queue]
) -> None:
    source = fresh()
    source.put_many([b"one", b"two"])
    with oncemq.connect(here.url) as other:
        target = other.queue(f"{source.name}-moved")
        assert source.move_to(target, 2) == 2
        assert payloads(target) == [b"one", b"two"]
    assert len(source) == 0


# --- Other connections


def test_a_second_connection_sees_what_the_first_has_put(here: Place, orders: Queue) -> None:
    orders.put(b"one")
    with oncemq.connect(here.url) as other:
        assert payloads(other.queue(orders.name)) == [b"one"]
    assert len(orders) == 1


def test_a_closed_connection_says_that_it_is_closed(here: Place) -> None:
    connection = oncemq.connect(here.url)
    queue = connection.queue("any")
    len(queue)
    connection.close()
    connection.close()
    for use in (lambda: len(queue), lambda: queue.put(b"x"), connection.begin):
        with pytest.raises(oncemq.OnceMQError, match="closed"):
            use()
    assert "closed" in repr(connection)


def test_the_name_of_a_connection_is_the_sender(here: Place, orders: Queue) -> None:
    with oncemq.connect(here.url, name="shop") as shop:
        shop.queue(orders.name).put(b"one")
    message = orders.get()
    assert message is not None
    assert message.sender == "shop"


def test_the_node_says_who_it_is(mq: Connection) -> None:
    assert mq.ping().messageBytesMax > 0


def test_an_outcome_nobody_knows_is_unknown(mq: Connection) -> None:
    tx = mq.begin()
    assert mq.outcome(tx.otid) is Outcome.UNKNOWN
    tx.rollback()
    with pytest.raises(ValueError, match="not a transaction's name"):
        mq.outcome("nonsense")
