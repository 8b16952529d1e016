"""What storages promise that share one place: what holds for branches holds across them."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from mqserver.errors import BranchEnded, Deadlock, LockTimeout, MessageNotFound
from mqserver.storage.contract import EVERYTHING, Outcome, Storage
from tests.conformance.storage_factory import StorageFactory
from tests.conformance.storages import BILLS, ORDERS, furnish, letter, put, seen, take, texts

pytest_plugins = ["tests.conformance.storages"]

Pair = tuple[Storage, Storage]
LONG_S = 60.0


@pytest.fixture
def pair(shared: StorageFactory) -> Pair:
    """Two storages on one place."""
    one = shared.open()
    furnish(one)
    # The factory closes them; one of them may be dead by then.
    return one, shared.open()


def test_what_one_commits_the_other_sees(pair: Pair) -> None:
    one, other = pair
    [key] = one.store(b"a", ORDERS, [letter("x")])
    assert (seen(other, ORDERS), take(other, b"b", ORDERS)) == ([], [])
    with pytest.raises(MessageNotFound):
        other.take_keys(b"b", ORDERS, [key], LONG_S)
    one.commit_one_phase(b"a")
    assert take(other, b"b", ORDERS) == ["x"]


def test_what_one_has_locked_the_other_skips(pair: Pair) -> None:
    one, other = pair
    keys = put(one, ORDERS, "1", "2")
    assert take(one, b"a", ORDERS, 1) == ["1"]
    with pytest.raises(LockTimeout):
        other.take_keys(b"b", ORDERS, [keys[0]], 0.01)
    assert take(other, b"b", ORDERS, 1) == ["2"]


def test_one_waits_for_what_the_other_gives_back(pair: Pair) -> None:
    one, other = pair
    [key] = put(one, ORDERS, "wanted")
    take(one, b"a", ORDERS)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(other.take_keys, b"b", ORDERS, [key], LONG_S)
        one.rollback(b"a")
        assert texts(future.result(LONG_S)) == ["wanted"]


def test_a_circle_over_both_is_found(pair: Pair) -> None:
    one, other = pair
    keys = put(one, ORDERS, "1", "2")
    one.take_keys(b"a", ORDERS, [keys[0]], 0)
    other.take_keys(b"b", ORDERS, [keys[1]], 0)

    def wait(storage: Storage, branch: bytes, key: int) -> str:
        try:
            storage.take_keys(branch, ORDERS, [key], LONG_S)
        except Deadlock:
            storage.rollback(branch)
            return "gave way"
        return "got it"

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(wait, one, b"a", keys[1]), pool.submit(wait, other, b"b", keys[0])]
        assert sorted(future.result(LONG_S) for future in futures) == ["gave way", "got it"]


def test_keys_are_given_by_one_of_them_only(pair: Pair) -> None:
    keys = [key for _ in range(10) for storage in pair for key in put(storage, BILLS, "x", "y")]
    assert len(set(keys)) == len(keys) == 40


def test_a_branch_prepared_at_one_is_ended_at_the_other(pair: Pair) -> None:
    one, other = pair
    one.store(b"a", ORDERS, [letter("x")])
    one.prepare(b"a", b"who decides")
    assert [info.recovery for info in other.branches()] == [b"who decides"]
    assert other.commit(b"a") is Outcome.COMMITTED
    assert one.outcome(b"a") is Outcome.COMMITTED
    assert seen(one, ORDERS) == ["x"]
    with pytest.raises(BranchEnded):
        one.rollback(b"a")


def test_reservations_and_marks_are_the_same_for_both(pair: Pair) -> None:
    one, other = pair
    put(one, ORDERS, "1", "2")
    assert one.reserve("etl", ORDERS, EVERYTHING, 0, 1) == 1
    assert other.reserve("etl", ORDERS, EVERYTHING, 0, 5) == 1
    assert texts(other.fetch("etl", 1, 0, 9)) == ["1"]
    one.raise_mark(b"a", "job", 3)
    one.commit_one_phase(b"a")
    assert other.mark("job") == 3


def test_closing_one_rolls_back_its_own_branches_only(shared: StorageFactory) -> None:
    one, other = shared.open(), shared.open()
    furnish(one)
    one.store(b"a", ORDERS, [letter("lost")])
    other.store(b"b", ORDERS, [letter("kept")])
    one.close()
    other.commit_one_phase(b"b")
    assert (other.outcome(b"a"), seen(other, ORDERS)) == (Outcome.ROLLED_BACK, ["kept"])
    other.close()


def test_a_start_undoes_what_was_left_in_its_place_and_nothing_of_the_living(
    shared: StorageFactory, pair: Pair
) -> None:
    one, other = pair
    put(one, ORDERS, "1", "2")
    take(one, b"dead", ORDERS, 1)
    one.store(b"dead", BILLS, [letter("half a bill")])
    take(other, b"living", ORDERS, 1)
    other.store(b"living", BILLS, [letter("bill")])
    shared.crash_one(one)
    assert other.outcome(b"dead") is Outcome.ACTIVE

    again = shared.open()
    assert other.outcome(b"dead") is Outcome.ROLLED_BACK
    assert (seen(other, ORDERS), seen(other, BILLS)) == (["1"], [])
    assert other.outcome(b"living") is Outcome.ACTIVE
    other.commit_one_phase(b"living")
    assert (seen(again, ORDERS), seen(again, BILLS)) == (["1"], ["bill"])
    again.close()


@pytest.mark.parametrize("is_prepared", [True, False])
def test_what_a_dead_storage_holds_is_let_go_by_another(
    shared: StorageFactory, pair: Pair, is_prepared: bool
) -> None:
    one, other = pair
    [key] = put(one, ORDERS, "held")
    take(one, b"a", ORDERS)
    if is_prepared:
        one.prepare(b"a", b"")
    shared.crash_one(one)
    with pytest.raises(LockTimeout):
        other.take_keys(b"b", ORDERS, [key], 0)
    assert other.rollback(b"a") is Outcome.ROLLED_BACK
    assert texts(other.take_keys(b"b", ORDERS, [key], 0)) == ["held"]


def test_a_branch_is_worked_on_where_it_began_and_nowhere_else(pair: Pair) -> None:
    one, other = pair
    one.store(b"a", ORDERS, [letter("x")])
    with pytest.raises(BranchEnded):
        other.store(b"a", ORDERS, [letter("y")])
    with pytest.raises(BranchEnded):
        other.prepare(b"a", b"")
    with pytest.raises(BranchEnded):
        other.commit_one_phase(b"a")
    one.commit_one_phase(b"a")
    assert seen(other, ORDERS) == ["x"]


def test_many_serve_one_queue_at_once_and_each_message_is_served_once(
    shared: StorageFactory, pair: Pair
) -> None:
    storages = (*pair, shared.open())
    texts_put = [str(number) for number in range(60)]
    put(pair[0], ORDERS, *texts_put)

    def serve(number: int) -> list[str]:
        storage = storages[number % len(storages)]
        served: list[str] = []
        turns = itertools.count()
        while got := take(storage, branch := b"%d/%d" % (number, next(turns)), ORDERS, 2):
            storage.commit_one_phase(branch)
            served += got
        return served

    with ThreadPoolExecutor(6) as pool:
        served = list(pool.map(serve, range(6)))
    assert sorted(itertools.chain(*served), key=int) == texts_put
    # Each of them got its messages in the order of the queue.
    assert all(own == sorted(own, key=int) for own in served)
    storages[2].close()
