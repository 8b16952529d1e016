"""What every storage promises about locks: skipping, waiting in order, giving up, and circles."""

import contextlib
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from mqserver.errors import BranchEnded, Deadlock, LockTimeout, MessageNotFound
from mqserver.storage.contract import EVERYTHING, Message, Outcome, Storage, Vote
from tests.conformance.storage_factory import StorageFactory
from tests.conformance.storages import BILLS, ORDERS, furnish, letter, put, seen, take, texts

pytest_plugins = ["tests.conformance.storages"]

LONG_S = 60.0


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that wait; all of them have come back when the test is over."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


class Waiting:
    """A branch that waits, in a thread of its own, for a message that another holds."""

    _numbers = itertools.count()

    def __init__(
        self, pool: ThreadPoolExecutor, storage: Storage, holder: bytes, key: int, name: bytes = b""
    ) -> None:
        self.branch = name or b"waiting %d" % next(self._numbers)
        [probe] = put(storage, BILLS, "probe")
        storage.take_keys(self.branch, BILLS, [probe], 0)

        def wait() -> Future[list[Message]]:
            return pool.submit(storage.take_keys, self.branch, ORDERS, [key], LONG_S)

        # It waits as soon as the holder cannot wait for it any more. Should it come in the short
        # time in which the holder does wait, it is the one that is refused, and comes again.
        self._future = wait()
        for attempt in range(100):
            time.sleep(0.001 * attempt)
            try:
                storage.take_keys(holder, BILLS, [probe], 0.001)
            except Deadlock:
                return
            except LockTimeout:
                if self._future.done():
                    assert isinstance(self._future.exception(), Deadlock)
                    self._future = wait()
        pytest.fail("nobody waits")

    def got(self) -> list[str]:
        """What the branch got in the end."""
        return texts(self._future.result(LONG_S))

    def is_waiting(self) -> bool:
        """It has not come back yet."""
        return not self._future.done()


# --- Skipping ------------------------------------------------------------------------------------


def test_taking_skips_what_others_have_locked(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2", "3")
    assert take(storage, b"a", ORDERS, 1) == ["1"]
    assert take(storage, b"b", ORDERS, 1) == ["2"]
    storage.prepare(b"a", b"")
    assert take(storage, b"c", ORDERS) == ["3"]


def test_a_message_is_locked_until_its_branch_has_ended(storage: Storage) -> None:
    [key] = put(storage, ORDERS, "held")
    take(storage, b"a", ORDERS)
    for step in (lambda: None, lambda: storage.prepare(b"a", b"")):
        step()
        with pytest.raises(LockTimeout):
            storage.take_keys(b"b", ORDERS, [key], 0)
    storage.rollback(b"a")
    assert texts(storage.take_keys(b"b", ORDERS, [key], 0)) == ["held"]


# --- Taking by key -------------------------------------------------------------------------------


def test_messages_taken_by_key_come_as_they_were_asked_for(storage: Storage) -> None:
    keys = put(storage, ORDERS, "1", "2", "3")
    asked = [keys[2], keys[0]]
    assert texts(storage.take_keys(b"a", ORDERS, asked, 0)) == ["3", "1"]
    assert seen(storage, ORDERS) == ["2"]
    assert storage.take_keys(b"a", ORDERS, [], 0) == []


@pytest.mark.parametrize("fault", ["missing", "taken", "twice", "of another queue"])
def test_all_of_the_keys_are_taken_or_none(storage: Storage, fault: str) -> None:
    keys = put(storage, ORDERS, "1", "2")
    [bill] = put(storage, BILLS, "bill")
    if fault == "taken":
        [bill] = put(storage, ORDERS, "taken")
        storage.take_keys(b"a", ORDERS, [bill], 0)
    wrong = {"missing": bill + 1000, "twice": keys[0]}.get(fault, bill)
    with pytest.raises(MessageNotFound):
        storage.take_keys(b"a", ORDERS, [*keys, wrong], LONG_S)
    assert seen(storage, ORDERS) == ["1", "2"]
    assert texts(storage.take_keys(b"a", ORDERS, keys, 0)) == ["1", "2"]


def test_nobody_waits_for_the_rest_when_one_message_is_not_there(storage: Storage) -> None:
    keys = put(storage, ORDERS, "held", "free")
    take(storage, b"a", ORDERS, 1)
    with pytest.raises(MessageNotFound):
        storage.take_keys(b"b", ORDERS, [keys[0], keys[1] + 1000], LONG_S)


def test_nobody_waits_for_what_another_branch_has_stored_and_taken_itself(storage: Storage) -> None:
    [key] = storage.store(b"other", ORDERS, [letter("own")])
    for _ in range(2):
        with pytest.raises(MessageNotFound):
            storage.take_keys(b"b", ORDERS, [key], 1.0)
        # Whether it is only stored or has been taken again, nobody else has ever seen it.
        take(storage, b"other", ORDERS)


def test_a_lock_that_is_not_given_up_in_time_is_told(storage: Storage) -> None:
    keys = put(storage, ORDERS, "held", "free")
    take(storage, b"a", ORDERS, 1)
    began = time.monotonic()
    with pytest.raises(LockTimeout):
        storage.take_keys(b"b", ORDERS, keys, 0.05)
    assert time.monotonic() - began >= 0.05
    assert take(storage, b"c", ORDERS) == ["free"]


def test_a_branch_that_waited_in_vain_goes_on_as_before(storage: Storage) -> None:
    [key] = put(storage, ORDERS, "held")
    take(storage, b"a", ORDERS)
    storage.store(b"b", BILLS, [letter("bill")])
    with pytest.raises(LockTimeout):
        storage.take_keys(b"b", ORDERS, [key], 0)
    storage.rollback(b"a")
    assert texts(storage.take_keys(b"b", ORDERS, [key], 0)) == ["held"]
    storage.commit_one_phase(b"b")
    assert seen(storage, BILLS) == ["bill"]


# --- Waiting -------------------------------------------------------------------------------------


def test_who_waits_gets_what_is_rolled_back(storage: Storage, threads: ThreadPoolExecutor) -> None:
    [key] = put(storage, ORDERS, "returned")
    take(storage, b"a", ORDERS)
    waiting = Waiting(threads, storage, b"a", key)
    storage.rollback(b"a")
    assert waiting.got() == ["returned"]
    assert take(storage, b"c", ORDERS) == []


def test_who_waits_finds_nothing_when_the_message_is_gone(
    storage: Storage, threads: ThreadPoolExecutor
) -> None:
    [key] = put(storage, ORDERS, "gone")
    take(storage, b"a", ORDERS)
    waiting = Waiting(threads, storage, b"a", key)
    storage.commit_one_phase(b"a")
    with pytest.raises(MessageNotFound):
        waiting.got()


def test_who_waits_goes_on_waiting_while_the_holder_is_prepared(
    storage: Storage, threads: ThreadPoolExecutor
) -> None:
    [key] = put(storage, ORDERS, "in doubt")
    take(storage, b"a", ORDERS)
    waiting = Waiting(threads, storage, b"a", key)
    assert storage.prepare(b"a", b"") is Vote.COMMIT
    assert waiting.is_waiting()
    storage.resolve(b"a", False)
    assert waiting.got() == ["in doubt"]


def test_those_who_wait_are_served_in_order(storage: Storage, threads: ThreadPoolExecutor) -> None:
    [key] = put(storage, ORDERS, "wanted")
    take(storage, b"a", ORDERS)
    line = [Waiting(threads, storage, b"a", key) for _ in range(4)]
    storage.rollback(b"a")
    while line:
        first, *line = line
        assert first.got() == ["wanted"]
        assert all(other.is_waiting() for other in line)
        storage.rollback(first.branch)


def test_a_branch_that_is_rolled_back_waits_no_more(
    storage: Storage, threads: ThreadPoolExecutor
) -> None:
    [key] = put(storage, ORDERS, "held")
    take(storage, b"a", ORDERS)
    waiting = Waiting(threads, storage, b"a", key)
    storage.rollback(waiting.branch)
    with pytest.raises(BranchEnded):
        waiting.got()
    storage.rollback(b"a")
    assert take(storage, b"c", ORDERS) == ["held"]


def test_a_branch_that_is_prepared_waits_no_more(
    storage: Storage, threads: ThreadPoolExecutor
) -> None:
    [key] = put(storage, ORDERS, "held")
    take(storage, b"a", ORDERS)
    waiting = Waiting(threads, storage, b"a", key)
    assert storage.prepare(waiting.branch, b"") is Vote.COMMIT
    with pytest.raises(BranchEnded):
        waiting.got()
    storage.rollback(b"a")
    assert take(storage, b"c", ORDERS) == ["held"]
    storage.commit(waiting.branch)


@pytest.mark.parametrize("end", ["rollback", "prepare"])
def test_a_branch_that_ends_while_it_is_served_keeps_no_lock(
    storage: Storage, threads: ThreadPoolExecutor, end: str
) -> None:
    [key] = put(storage, ORDERS, "wanted")
    for turn in range(20):
        holder = b"holder %d" % turn
        assert take(storage, holder, ORDERS) == ["wanted"]
        waiting = Waiting(threads, storage, holder, key)
        storage.rollback(holder)
        if end == "prepare":
            storage.prepare(waiting.branch, b"")
        storage.rollback(waiting.branch)
        # It came in time or too late; either way it has nothing now.
        with contextlib.suppress(BranchEnded):
            assert waiting.got() == ["wanted"]


def test_closing_sends_away_those_who_wait(
    factory: StorageFactory, threads: ThreadPoolExecutor
) -> None:
    storage = factory.open()
    furnish(storage)
    [key] = put(storage, ORDERS, "held")
    take(storage, b"a", ORDERS)
    storage.prepare(b"a", b"")
    future = threads.submit(storage.take_keys, b"b", ORDERS, [key], LONG_S)
    while storage.outcome(b"b") is not Outcome.ACTIVE:
        time.sleep(0.001)
    storage.close()
    with pytest.raises(BranchEnded):
        future.result(LONG_S)


# --- Circles -------------------------------------------------------------------------------------


def test_the_branch_that_would_close_a_circle_is_refused(
    storage: Storage, threads: ThreadPoolExecutor
) -> None:
    keys = put(storage, ORDERS, "1", "2")
    storage.take_keys(b"a", ORDERS, [keys[0]], 0)
    storage.take_keys(b"b", ORDERS, [keys[1]], 0)
    waiting = Waiting(threads, storage, b"a", keys[0], name=b"b")
    with pytest.raises(Deadlock):
        storage.take_keys(b"a", ORDERS, [keys[1]], LONG_S)
    assert waiting.is_waiting()
    # The victim has lost nothing of what it had, and gives way by rolling back.
    assert storage.outcome(b"a") is Outcome.ACTIVE
    storage.rollback(b"a")
    assert waiting.got() == ["1"]


def test_a_circle_of_many_branches_is_found(storage: Storage, threads: ThreadPoolExecutor) -> None:
    keys = put(storage, ORDERS, "0", "1", "2", "3")
    names = [b"branch %d" % number for number in range(4)]
    for name, key in zip(names, keys, strict=True):
        storage.take_keys(name, ORDERS, [key], 0)
    line = [
        Waiting(threads, storage, names[number], keys[number], name=names[number + 1])
        for number in range(3)
    ]
    with pytest.raises(Deadlock):
        storage.take_keys(names[0], ORDERS, [keys[3]], LONG_S)
    for waiting in line:
        assert waiting.is_waiting()
    storage.rollback(names[0])
    for number, waiting in enumerate(line):
        assert waiting.got() == [str(number)]
        storage.rollback(waiting.branch)


def test_two_branches_that_want_the_same_messages_do_not_get_stuck(
    storage: Storage, threads: ThreadPoolExecutor
) -> None:
    keys = put(storage, ORDERS, *map(str, range(10)))

    def work(number: int) -> int:
        done = 0
        for turn in range(20):
            branch = b"%d/%d" % (number, turn)
            asked = keys if number % 2 else keys[::-1]
            assert len(storage.take_keys(branch, ORDERS, asked, LONG_S)) == len(keys)
            storage.rollback(branch)
            done += 1
        return done

    assert list(threads.map(work, range(4))) == [20] * 4
    assert len(storage.browse(ORDERS, EVERYTHING, 0, 100)) == len(keys)
