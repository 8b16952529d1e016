"""What every durable storage promises across restarts, orderly ones and crashes.

Where a promise holds for both, the test runs with both. `lose` is the crash of a storage, after
which the next one is open.
"""

from collections.abc import Callable

import pytest

from mqserver.errors import (
    BranchEnded,
    LockTimeout,
    QueueInUse,
    QueueNotFound,
    ReservationOutdated,
)
from mqserver.storage.contract import (
    EVERYTHING,
    BranchInfo,
    ConsumerInfo,
    Outcome,
    QueueSettings,
    Storage,
)
from tests.conformance.storage_factory import StorageFactory
from tests.conformance.storages import (
    BILLS,
    ORDERS,
    URGENT,
    furnish,
    letter,
    put,
    seen,
    take,
    texts,
)

pytest_plugins = ["tests.conformance.storages"]

Restart = Callable[[Storage], Storage]


@pytest.fixture
def storage(durable: StorageFactory) -> Storage:
    """An open storage that survives a restart."""
    opened = durable.open()
    furnish(opened)
    return opened


@pytest.fixture
def lose(durable: StorageFactory) -> Restart:
    """The process dies, and another begins."""

    def restart(_: Storage) -> Storage:
        durable.crash()
        return durable.open()

    return restart


@pytest.fixture(params=["closed", "crashed", "crashed twice", "checkpoint"])
def restart(request: pytest.FixtureRequest, durable: StorageFactory, lose: Restart) -> Restart:
    """The process ends in one way or another, and another begins."""

    def close(storage: Storage) -> Storage:
        storage.close()
        return durable.open()

    def check(storage: Storage) -> Storage:
        storage.checkpoint()
        return lose(storage)

    ways: dict[str, Restart] = {
        "closed": close,
        "crashed": lose,
        "crashed twice": lambda storage: lose(lose(storage)),
        "checkpoint": check,
    }
    return ways[request.param]


# --- Messages and queues -------------------------------------------------------------------------


def test_committed_messages_survive(storage: Storage, restart: Restart) -> None:
    put(storage, ORDERS, letter("1", priority=3, group=2, sender="ann", attributes=(("a", "b"),)))
    put(storage, ORDERS, "2", "x" * 100_000)
    before = storage.browse(ORDERS, EVERYTHING, 0, 10)
    storage = restart(storage)
    assert storage.browse(ORDERS, EVERYTHING, 0, 10) == before
    assert len(before) == 3


def test_messages_that_are_gone_stay_gone(storage: Storage, restart: Restart) -> None:
    put(storage, ORDERS, "1", "2", "3")
    take(storage, b"a", ORDERS, 2)
    storage.commit_one_phase(b"a")
    storage = restart(storage)
    assert seen(storage, ORDERS) == ["3"]
    assert storage.queue(ORDERS).locked == 0


def test_queues_and_their_settings_survive(storage: Storage, restart: Restart) -> None:
    settings = QueueSettings(enabled=False, prioritized=True, messages_max=5, bytes_max=2**40)
    storage.create_queue("new", QueueSettings())
    storage.change_queue("new", settings)
    storage.delete_queue(BILLS)
    before = storage.queues()
    storage = restart(storage)
    assert storage.queues() == before
    assert storage.queue("new").settings == settings
    with pytest.raises(QueueNotFound):
        storage.queue(BILLS)


def test_the_order_of_a_queue_survives(storage: Storage, restart: Restart) -> None:
    put(storage, URGENT, letter("low"), letter("high", priority=9), letter("low too"))
    storage = restart(storage)
    put(storage, URGENT, letter("high too", priority=9))
    assert take(storage, b"t", URGENT) == ["high", "high too", "low", "low too"]


def test_keys_are_not_given_again(storage: Storage, restart: Restart) -> None:
    given = put(storage, ORDERS, "1", "2")
    take(storage, b"t", ORDERS)
    storage.commit_one_phase(b"t")
    given += storage.store(b"lost", ORDERS, [letter("3"), letter("4")])
    storage = restart(storage)
    [key] = put(storage, ORDERS, "5")
    assert key > max(given)


# --- Branches ------------------------------------------------------------------------------------


def test_branches_that_were_not_prepared_are_rolled_back(
    storage: Storage, restart: Restart
) -> None:
    put(storage, ORDERS, "1", "2")
    take(storage, b"a", ORDERS, 1)
    storage.store(b"a", BILLS, [letter("bill")])
    storage.raise_mark(b"a", "job", 1)
    storage = restart(storage)
    assert storage.branches() == []
    assert storage.outcome(b"a") in (Outcome.ROLLED_BACK, Outcome.UNKNOWN)
    assert (seen(storage, ORDERS), seen(storage, BILLS)) == (["1", "2"], [])
    assert (storage.queue(ORDERS).locked, storage.queue(BILLS).locked) == (0, 0)
    for call in (storage.commit, storage.commit_one_phase):
        with pytest.raises(BranchEnded):
            call(b"a")
    with pytest.raises(BranchEnded):
        storage.prepare(b"a", b"")


def test_closing_remembers_that_it_rolled_branches_back(
    durable: StorageFactory, storage: Storage
) -> None:
    storage.store(b"a", BILLS, [letter("bill")])
    storage.close()
    storage = durable.open()
    assert storage.outcome(b"a") is Outcome.ROLLED_BACK
    with pytest.raises(BranchEnded):
        storage.store(b"a", BILLS, [letter("the other half")])


def _prepare(storage: Storage) -> int:
    """A branch that has taken one of two orders and stored two bills, one of them taken again."""
    keys = put(storage, ORDERS, "1", "2")
    take(storage, b"a", ORDERS, 1)
    storage.store(b"a", BILLS, [letter("kept"), letter("own")])
    own = storage.store(b"a", BILLS, [letter("taken")])
    storage.take_keys(b"a", BILLS, own, 0)
    storage.raise_mark(b"a", "job", 7)
    storage.prepare(b"a", b"who decides")
    return keys[0]


def test_a_prepared_branch_survives_with_its_locks(storage: Storage, restart: Restart) -> None:
    key = _prepare(storage)
    storage = restart(storage)
    assert storage.outcome(b"a") is Outcome.PREPARED
    assert storage.branches() == [BranchInfo(b"a", Outcome.PREPARED, b"who decides", 3, 2)]
    assert (seen(storage, ORDERS), seen(storage, BILLS), storage.mark("job")) == (["2"], [], 0)
    assert take(storage, b"b", ORDERS) == ["2"]
    with pytest.raises(LockTimeout):
        storage.take_keys(b"b", ORDERS, [key], 0)
    with pytest.raises(BranchEnded):
        storage.store(b"a", BILLS, [letter("more")])


def test_a_prepared_branch_commits_after_a_restart(storage: Storage, restart: Restart) -> None:
    _prepare(storage)
    storage = restart(storage)
    assert storage.commit(b"a") is Outcome.COMMITTED
    storage = restart(storage)
    assert (seen(storage, ORDERS), seen(storage, BILLS)) == (["2"], ["kept", "own"])
    assert storage.mark("job") == 7
    assert (storage.queue(ORDERS).locked, storage.queue(BILLS).locked) == (0, 0)


def test_a_prepared_branch_rolls_back_after_a_restart(storage: Storage, restart: Restart) -> None:
    _prepare(storage)
    storage = restart(storage)
    assert storage.rollback(b"a") is Outcome.ROLLED_BACK
    storage.force()
    storage = restart(storage)
    assert (seen(storage, ORDERS), seen(storage, BILLS)) == (["1", "2"], [])
    assert storage.mark("job") == 0
    assert (storage.queue(ORDERS).locked, storage.queue(BILLS).locked) == (0, 0)


@pytest.mark.parametrize("commit", [True, False])
def test_what_an_operator_decided_survives_until_it_is_forgotten(
    storage: Storage, restart: Restart, commit: bool
) -> None:
    _prepare(storage)
    storage.resolve(b"a", commit)
    how = Outcome.HEURISTICALLY_COMMITTED if commit else Outcome.HEURISTICALLY_ROLLED_BACK
    storage = restart(storage)
    assert storage.outcome(b"a") is how
    assert storage.branches() == [BranchInfo(b"a", how, b"who decides", 3, 2)]
    assert seen(storage, ORDERS) == (["2"] if commit else ["1", "2"])
    assert storage.commit(b"a") is storage.rollback(b"a") is how
    storage.forget(b"a")
    storage.force()
    storage = restart(storage)
    assert (storage.outcome(b"a"), storage.branches()) == (Outcome.UNKNOWN, [])


# --- Forced, and not forced ----------------------------------------------------------------------


def test_a_lazy_commit_is_prepared_or_committed_after_a_crash(
    storage: Storage, lose: Restart
) -> None:
    _prepare(storage)
    storage.commit(b"a", force=False)
    storage = lose(storage)
    found = storage.outcome(b"a")
    assert found in (Outcome.PREPARED, Outcome.COMMITTED)
    assert seen(storage, BILLS) == (["kept", "own"] if found is Outcome.COMMITTED else [])
    assert storage.commit(b"a") is Outcome.COMMITTED
    assert (seen(storage, ORDERS), seen(storage, BILLS)) == (["2"], ["kept", "own"])


def test_a_rollback_that_was_not_forced_may_be_prepared_again_after_a_crash(
    storage: Storage, lose: Restart
) -> None:
    _prepare(storage)
    storage.rollback(b"a")
    storage = lose(storage)
    assert storage.outcome(b"a") in (Outcome.PREPARED, Outcome.ROLLED_BACK)
    assert storage.rollback(b"a") is Outcome.ROLLED_BACK
    assert (seen(storage, ORDERS), seen(storage, BILLS)) == (["1", "2"], [])


_FORCING: dict[str, Callable[[Storage], object]] = {
    "force": lambda storage: storage.force(),
    "the same commit, forced": lambda storage: storage.commit(b"a"),
    "checkpoint": lambda storage: storage.checkpoint(),
    "another commit": lambda storage: put(storage, ORDERS, "3"),
    "a new queue": lambda storage: storage.create_queue("new", QueueSettings()),
    "a reservation": lambda storage: storage.reserve("etl", ORDERS, EVERYTHING, 0, 1),
}


@pytest.mark.parametrize("forcing", _FORCING)
def test_a_lazy_commit_is_on_disk_with_the_next_forced_write(
    storage: Storage, lose: Restart, forcing: str
) -> None:
    _prepare(storage)
    storage.commit(b"a", force=False)
    _FORCING[forcing](storage)
    storage = lose(storage)
    assert storage.outcome(b"a") is Outcome.COMMITTED
    assert seen(storage, BILLS) == ["kept", "own"]


def _commit_lazily(storage: Storage) -> None:
    storage.store(b"a", ORDERS, [letter("1"), letter("2")])
    storage.store(b"a", BILLS, [letter("own")])
    storage.commit_one_phase(b"a", force=False)


def _get(storage: Storage) -> None:
    assert take(storage, b"b", ORDERS) == ["1", "2"]
    storage.commit_one_phase(b"b")


def test_a_lazy_commit_in_one_phase_has_happened(storage: Storage) -> None:
    _commit_lazily(storage)
    assert storage.outcome(b"a") is Outcome.COMMITTED
    assert (seen(storage, ORDERS), seen(storage, BILLS)) == (["1", "2"], ["own"])
    storage.commit_one_phase(b"a", force=False)
    assert seen(storage, ORDERS) == ["1", "2"]


def test_a_lazy_commit_in_one_phase_is_whole_or_never_was_after_a_crash(
    storage: Storage, lose: Restart
) -> None:
    _commit_lazily(storage)
    storage = lose(storage)
    found = storage.outcome(b"a")
    assert found in (Outcome.COMMITTED, Outcome.UNKNOWN, Outcome.ROLLED_BACK)
    is_whole = found is Outcome.COMMITTED
    assert seen(storage, ORDERS) == (["1", "2"] if is_whole else [])
    assert seen(storage, BILLS) == (["own"] if is_whole else [])


_FORCING_ALL: dict[str, Callable[[Storage], object]] = {
    **{name: force for name, force in _FORCING.items() if "same" not in name},
    "the same commit, forced": lambda storage: storage.commit_one_phase(b"a"),
    "a get of what it has put": lambda storage: _get(storage),
}


@pytest.mark.parametrize("forcing", _FORCING_ALL)
def test_a_lazy_commit_in_one_phase_is_on_disk_with_the_next_forced_write(
    storage: Storage, lose: Restart, forcing: str
) -> None:
    _commit_lazily(storage)
    _FORCING_ALL[forcing](storage)
    storage = lose(storage)
    assert storage.outcome(b"a") is Outcome.COMMITTED
    assert seen(storage, BILLS) == ["own"]


def test_a_message_that_was_given_back_is_had_by_one_branch_only(
    storage: Storage, lose: Restart
) -> None:
    put(storage, ORDERS, "1")
    take(storage, b"a", ORDERS)
    storage.prepare(b"a", b"")
    storage.rollback(b"a")
    assert take(storage, b"b", ORDERS) == ["1"]
    storage.commit_one_phase(b"b")
    storage = lose(storage)
    assert storage.outcome(b"a") is Outcome.ROLLED_BACK
    assert storage.queue(ORDERS).locked == storage.queue(ORDERS).visible == 0


# --- Outcomes, marks, reservations ---------------------------------------------------------------


def test_outcomes_survive_the_restart(storage: Storage, restart: Restart) -> None:
    storage.rollback(b"never seen")
    storage.store(b"rolled back", ORDERS, [letter("x")])
    storage.rollback(b"rolled back")
    take(storage, b"read only", ORDERS)
    storage.prepare(b"read only", b"")
    _prepare(storage)
    storage.commit(b"a")
    storage.store(b"one phase", ORDERS, [letter("x")])
    storage.commit_one_phase(b"one phase")
    storage = restart(storage)
    for branch in (b"never seen", b"rolled back", b"read only"):
        assert storage.outcome(branch) is Outcome.ROLLED_BACK
    for branch in (b"a", b"one phase"):
        assert storage.outcome(branch) is Outcome.COMMITTED
        with pytest.raises(BranchEnded):
            storage.store(branch, ORDERS, [letter("late")])
    assert storage.commit(b"a") is Outcome.COMMITTED


def test_marks_survive_the_restart(storage: Storage, restart: Restart) -> None:
    storage.raise_mark(b"a", "job", 7)
    storage.commit_one_phase(b"a")
    storage = restart(storage)
    assert storage.mark("job") == 7
    storage.raise_mark(b"b", "job", 3)
    storage.commit_one_phase(b"b")
    assert restart(storage).mark("job") == 7


def test_reservations_survive_the_restart(storage: Storage, restart: Restart) -> None:
    put(storage, URGENT, *(letter(str(number), priority=number) for number in range(6)))
    for after in range(3):
        storage.reserve("etl", URGENT, EVERYTHING, after, 2)
    storage.finish("etl", 1)
    storage = restart(storage)
    assert storage.consumers() == [ConsumerInfo("etl", URGENT, 1, 3, 4)]
    assert texts(storage.fetch("etl", 2, 0, 9)) == ["3", "2"]
    assert texts(storage.fetch("etl", 3, 1, 2)) == ["0"]
    assert storage.reserve("etl", URGENT, EVERYTHING, 1, 100) == 2
    assert take(storage, b"t", URGENT) == []
    with pytest.raises(ReservationOutdated):
        storage.reserve("etl", URGENT, EVERYTHING, 0, 2)


def test_finished_reservations_stay_finished(storage: Storage, restart: Restart) -> None:
    put(storage, ORDERS, "1", "2", "3")
    storage.reserve("etl", ORDERS, EVERYTHING, 0, 2)
    storage.finish("etl", 1)
    storage = restart(storage)
    assert storage.consumers() == [ConsumerInfo("etl", ORDERS, 1, 1, 0)]
    assert (seen(storage, ORDERS), storage.queue(ORDERS).locked) == (["3"], 0)
    assert storage.reserve("etl", ORDERS, EVERYTHING, 1, 2) == 2


def test_dropped_consumers_stay_dropped(storage: Storage, restart: Restart) -> None:
    put(storage, ORDERS, "1", "2", "3")
    storage.reserve("etl", ORDERS, EVERYTHING, 0, 2)
    storage.drop_consumer("etl")
    storage = restart(storage)
    assert storage.consumers() == []
    assert take(storage, b"t", ORDERS) == ["1", "2", "3"]


def test_work_goes_on_after_many_restarts(storage: Storage, restart: Restart) -> None:
    for number in range(5):
        put(storage, ORDERS, str(number))
        branch = b"in doubt %d" % number
        take(storage, branch, ORDERS, 1)
        storage.prepare(branch, b"")
        storage = restart(storage)
    for number in range(5):
        storage.commit(b"in doubt %d" % number, force=number == 4)
    storage = restart(storage)
    assert (storage.branches(), storage.queue(ORDERS).locked) == ([], 0)


def test_what_a_branch_in_doubt_stored_and_took_itself_is_still_counted(
    storage: Storage, restart: Restart
) -> None:
    storage.store(b"a", ORDERS, [letter("12345"), letter("x" * 700), letter("kept")])
    storage.store(b"a", BILLS, [letter("123")])
    take(storage, b"a", ORDERS, 2)
    storage.prepare(b"a", b"recovery")
    before = storage.queues()
    storage = restart(storage)
    assert (storage.queues(), storage.queue(ORDERS).locked) == (before, 3)
    assert storage.branches() == [BranchInfo(b"a", Outcome.PREPARED, b"recovery", 4, 2)]
    storage = restart(storage)
    assert storage.queues() == before
    with pytest.raises(QueueInUse):
        storage.delete_queue(ORDERS)
    storage.commit(b"a")
    storage = restart(storage)
    assert (seen(storage, ORDERS), storage.queue(ORDERS).locked) == (["kept"], 0)


def test_a_branch_that_changed_nothing_leaves_what_was_done_before_on_disk(
    storage: Storage, lose: Restart
) -> None:
    storage.store(b"lazy", ORDERS, [letter("1")])
    storage.prepare(b"lazy", b"")
    storage.commit(b"lazy", force=False)
    take(storage, b"empty", BILLS, 1)
    storage.commit_one_phase(b"empty")
    storage = lose(storage)
    assert seen(storage, ORDERS) == ["1"]
    assert storage.outcome(b"lazy") is Outcome.COMMITTED
