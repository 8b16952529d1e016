"""What every storage promises about branches: who sees what, and how a branch ends."""

import pytest

from mqserver.errors import BranchEnded, MessageNotFound, QueueNotFound
from mqserver.storage.contract import (
    BRANCH_ID_BYTES_MAX,
    EVERYTHING,
    RECOVERY_BYTES_MAX,
    Outcome,
    Storage,
    Vote,
)
from tests.conformance.storages import BILLS, ORDERS, URGENT, letter, put, seen, take, texts

pytest_plugins = ["tests.conformance.storages"]

# --- Beginning, and who sees what ----------------------------------------------------------------


def test_a_branch_begins_with_its_first_action(storage: Storage) -> None:
    assert storage.outcome(b"a") is Outcome.UNKNOWN
    storage.take(b"a", ORDERS, EVERYTHING, 1)
    assert storage.outcome(b"a") is Outcome.ACTIVE


def test_a_branch_begins_even_if_its_first_action_fails(storage: Storage) -> None:
    with pytest.raises(MessageNotFound):
        storage.take_keys(b"a", ORDERS, [1], 0)
    with pytest.raises(QueueNotFound):
        storage.store(b"b", "missing", [letter("x")])
    for branch in (b"a", b"b"):
        assert storage.outcome(branch) is Outcome.ACTIVE
        assert storage.prepare(branch, b"") is Vote.READ_ONLY


def test_what_a_branch_stores_is_seen_by_itself_alone(storage: Storage) -> None:
    [key] = storage.store(b"a", ORDERS, [letter("mine")])
    assert take(storage, b"other", ORDERS) == []
    with pytest.raises(MessageNotFound):
        storage.take_keys(b"other", ORDERS, [key], 60)
    assert take(storage, b"a", ORDERS) == ["mine"]


def test_a_branch_takes_by_key_what_it_has_stored(storage: Storage) -> None:
    [key] = storage.store(b"a", ORDERS, [letter("mine")])
    assert texts(storage.take_keys(b"a", ORDERS, [key], 0)) == ["mine"]


def test_what_a_branch_has_stored_stands_in_the_order_with_the_rest(storage: Storage) -> None:
    put(storage, URGENT, letter("committed", priority=1))
    storage.store(b"a", URGENT, [letter("high", priority=2), letter("low", priority=0)])
    assert take(storage, b"a", URGENT) == ["high", "committed", "low"]


def test_what_a_branch_has_taken_it_does_not_get_again(storage: Storage) -> None:
    [key] = put(storage, ORDERS, "once")
    assert take(storage, b"t", ORDERS) == ["once"]
    assert take(storage, b"t", ORDERS) == []
    with pytest.raises(MessageNotFound):
        storage.take_keys(b"t", ORDERS, [key], 60)


def test_branches_do_not_see_each_other(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2")
    assert take(storage, b"a", ORDERS, 1) == ["1"]
    assert take(storage, b"b", ORDERS, 1) == ["2"]
    storage.commit_one_phase(b"a")
    storage.rollback(b"b")
    assert take(storage, b"c", ORDERS) == ["2"]


def test_an_action_that_fails_leaves_the_branch_as_it_was(storage: Storage) -> None:
    keys = put(storage, ORDERS, "1", "2")
    storage.store(b"a", BILLS, [letter("bill")])
    with pytest.raises(MessageNotFound):
        storage.take_keys(b"a", ORDERS, [keys[0], keys[1] + 1], 0)
    assert seen(storage, ORDERS) == ["1", "2"]
    storage.commit_one_phase(b"a")
    assert seen(storage, BILLS) == ["bill"]


def test_ids_and_recovery_may_be_as_long_as_is_said(storage: Storage) -> None:
    branch, recovery = (
        b"\x00\xff" * (BRANCH_ID_BYTES_MAX // 2),
        b"\x00\xfe" * (RECOVERY_BYTES_MAX // 2),
    )
    storage.store(branch, ORDERS, [letter("x")])
    storage.prepare(branch, recovery)
    [info] = storage.branches()
    assert (info.branch, info.recovery) == (branch, recovery)
    assert storage.commit(branch) is Outcome.COMMITTED


# --- Commit in one phase -------------------------------------------------------------------------


def test_all_of_a_branch_happens_in_one_phase(storage: Storage) -> None:
    put(storage, ORDERS, "order")
    take(storage, b"a", ORDERS)
    storage.store(b"a", BILLS, [letter("bill 1"), letter("bill 2")])
    storage.commit_one_phase(b"a")
    assert seen(storage, ORDERS) == []
    assert seen(storage, BILLS) == ["bill 1", "bill 2"]


def test_what_a_branch_stored_and_took_itself_never_was(storage: Storage) -> None:
    storage.store(b"a", ORDERS, [letter("gone"), letter("left")])
    take(storage, b"a", ORDERS, 1)
    storage.commit_one_phase(b"a")
    assert seen(storage, ORDERS) == ["left"]


def test_a_branch_that_changed_nothing_commits_in_one_phase(storage: Storage) -> None:
    take(storage, b"a", ORDERS)
    storage.commit_one_phase(b"a")
    assert storage.outcome(b"a") is Outcome.COMMITTED


def test_commit_in_one_phase_may_be_repeated(storage: Storage) -> None:
    storage.store(b"a", ORDERS, [letter("once")])
    storage.commit_one_phase(b"a")
    storage.commit_one_phase(b"a")
    assert seen(storage, ORDERS) == ["once"]


# --- Two phases ----------------------------------------------------------------------------------


def test_a_prepared_branch_has_neither_happened_nor_been_undone(storage: Storage) -> None:
    put(storage, ORDERS, "order")
    take(storage, b"a", ORDERS)
    storage.store(b"a", BILLS, [letter("bill")])
    assert storage.prepare(b"a", b"who decides") is Vote.COMMIT
    assert storage.outcome(b"a") is Outcome.PREPARED
    assert seen(storage, ORDERS) == seen(storage, BILLS) == []
    assert take(storage, b"b", ORDERS) == take(storage, b"b", BILLS) == []


@pytest.mark.parametrize("force", [True, False])
def test_all_of_a_prepared_branch_happens_with_commit(storage: Storage, force: bool) -> None:
    put(storage, ORDERS, "order")
    take(storage, b"a", ORDERS)
    storage.store(b"a", BILLS, [letter("bill")])
    storage.prepare(b"a", b"")
    assert storage.commit(b"a", force) is Outcome.COMMITTED
    assert seen(storage, ORDERS) == []
    assert seen(storage, BILLS) == ["bill"]


def test_none_of_a_prepared_branch_happens_with_rollback(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2", "3")
    take(storage, b"a", ORDERS, 2)
    storage.store(b"a", BILLS, [letter("bill")])
    storage.prepare(b"a", b"")
    assert storage.rollback(b"a") is Outcome.ROLLED_BACK
    assert seen(storage, ORDERS) == ["1", "2", "3"]
    assert seen(storage, BILLS) == []


def test_a_prepared_branch_votes_the_same_again(storage: Storage) -> None:
    storage.store(b"a", ORDERS, [letter("x")])
    assert storage.prepare(b"a", b"first") is Vote.COMMIT
    assert storage.prepare(b"a", b"second") is Vote.COMMIT
    assert [info.recovery for info in storage.branches()] == [b"first"]


@pytest.mark.parametrize("change", ["store", "take", "mark", "both"])
def test_a_branch_that_changed_anything_votes_commit(storage: Storage, change: str) -> None:
    put(storage, ORDERS, "order")
    if change in ("store", "both"):
        storage.store(b"a", BILLS, [letter("bill")])
    if change == "take":
        take(storage, b"a", ORDERS)
    if change == "mark":
        storage.raise_mark(b"a", "job", 1)
    if change == "both":
        take(storage, b"a", BILLS)
    assert storage.prepare(b"a", b"") is Vote.COMMIT


def test_a_branch_that_changed_nothing_is_over_at_once(storage: Storage) -> None:
    take(storage, b"a", ORDERS)
    storage.store(b"a", ORDERS, [])
    assert storage.prepare(b"a", b"") is Vote.READ_ONLY
    assert storage.branches() == []
    assert storage.outcome(b"a") is Outcome.ROLLED_BACK
    with pytest.raises(BranchEnded):
        take(storage, b"a", ORDERS)
    with pytest.raises(BranchEnded):
        storage.prepare(b"a", b"")
    assert storage.rollback(b"a") is Outcome.ROLLED_BACK


# --- Rollback ------------------------------------------------------------------------------------


def test_rolled_back_messages_are_back_at_their_place(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2", "3")
    put(storage, URGENT, letter("high", priority=2), letter("low", priority=1))
    take(storage, b"a", ORDERS, 2)
    take(storage, b"a", URGENT, 1)
    put(storage, ORDERS, "4")
    put(storage, URGENT, letter("high too", priority=2))
    storage.rollback(b"a")
    assert take(storage, b"b", ORDERS) == ["1", "2", "3", "4"]
    assert take(storage, b"b", URGENT) == ["high", "high too", "low"]


def test_what_a_branch_stored_is_gone_with_rollback(storage: Storage) -> None:
    storage.store(b"a", ORDERS, [letter("1"), letter("2")])
    take(storage, b"a", ORDERS, 1)
    storage.rollback(b"a")
    assert take(storage, b"b", ORDERS) == []
    assert storage.queue(ORDERS).locked == 0


def test_a_branch_that_is_unknown_can_be_rolled_back(storage: Storage) -> None:
    assert storage.rollback(b"late") is Outcome.ROLLED_BACK
    assert storage.outcome(b"late") is Outcome.ROLLED_BACK
    with pytest.raises(BranchEnded):
        storage.store(b"late", ORDERS, [letter("too late")])
    assert storage.queue(ORDERS).locked == 0
