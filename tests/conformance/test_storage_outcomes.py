"""What every storage promises of the ends of branches: repeated, refused, remembered, decided."""

from collections.abc import Callable

import pytest

from mqserver.errors import BranchEnded
from mqserver.storage.contract import (
    EVERYTHING,
    BranchInfo,
    Outcome,
    Storage,
    Vote,
)
from tests.conformance.storage_factory import StorageFactory
from tests.conformance.storages import BILLS, ORDERS, letter, put, seen, take

pytest_plugins = ["tests.conformance.storages"]

# --- What a call answers, for each end a branch may have come to --------------------------------


def _bring_to(storage: Storage, branch: bytes, outcome: Outcome, bill: str = "bill") -> None:
    """The branch has taken one order and stored one bill, and is what it should be."""
    if outcome is Outcome.UNKNOWN:
        return
    put(storage, ORDERS, "order")
    take(storage, branch, ORDERS, 1)
    storage.store(branch, BILLS, [letter(bill)])
    if outcome is Outcome.ACTIVE:
        return
    storage.prepare(branch, b"recovery")
    match outcome:
        case Outcome.COMMITTED:
            storage.commit(branch)
        case Outcome.ROLLED_BACK:
            storage.rollback(branch)
        case Outcome.HEURISTICALLY_COMMITTED:
            storage.resolve(branch, True)
        case Outcome.HEURISTICALLY_ROLLED_BACK:
            storage.resolve(branch, False)


_UNKNOWN, _ACTIVE, _PREPARED = Outcome.UNKNOWN, Outcome.ACTIVE, Outcome.PREPARED
_COMMITTED, _ROLLED_BACK = Outcome.COMMITTED, Outcome.ROLLED_BACK
_BY_HAND, _UNDONE_BY_HAND = Outcome.HEURISTICALLY_COMMITTED, Outcome.HEURISTICALLY_ROLLED_BACK
_REFUSED = BranchEnded

_CALLS: dict[str, Callable[[Storage, bytes], object]] = {
    "prepare": lambda storage, branch: storage.prepare(branch, b""),
    "commit": lambda storage, branch: storage.commit(branch),
    "commit lazily": lambda storage, branch: storage.commit(branch, force=False),
    "commit_one_phase": lambda storage, branch: storage.commit_one_phase(branch),
    "rollback": lambda storage, branch: storage.rollback(branch),
    "resolve": lambda storage, branch: storage.resolve(branch, True),
    "forget": lambda storage, branch: storage.forget(branch),
}

# What the branch was; the call; its answer; what the branch is then.
_ANSWERS: list[tuple[Outcome, str, object, Outcome]] = [
    (_UNKNOWN, "prepare", _REFUSED, _UNKNOWN),
    (_UNKNOWN, "commit", _REFUSED, _UNKNOWN),
    (_UNKNOWN, "commit_one_phase", _REFUSED, _UNKNOWN),
    (_UNKNOWN, "rollback", _ROLLED_BACK, _ROLLED_BACK),
    (_UNKNOWN, "resolve", _REFUSED, _UNKNOWN),
    (_UNKNOWN, "forget", None, _UNKNOWN),
    (_ACTIVE, "prepare", Vote.COMMIT, _PREPARED),
    (_ACTIVE, "commit", _REFUSED, _ACTIVE),
    (_ACTIVE, "commit_one_phase", None, _COMMITTED),
    (_ACTIVE, "rollback", _ROLLED_BACK, _ROLLED_BACK),
    (_ACTIVE, "resolve", _REFUSED, _ACTIVE),
    (_ACTIVE, "forget", None, _ACTIVE),
    (_PREPARED, "prepare", Vote.COMMIT, _PREPARED),
    (_PREPARED, "commit", _COMMITTED, _COMMITTED),
    (_PREPARED, "commit lazily", _COMMITTED, _COMMITTED),
    (_PREPARED, "commit_one_phase", _REFUSED, _PREPARED),
    (_PREPARED, "rollback", _ROLLED_BACK, _ROLLED_BACK),
    (_PREPARED, "resolve", None, _BY_HAND),
    (_PREPARED, "forget", None, _PREPARED),
    (_COMMITTED, "prepare", _REFUSED, _COMMITTED),
    (_COMMITTED, "commit", _COMMITTED, _COMMITTED),
    (_COMMITTED, "commit lazily", _COMMITTED, _COMMITTED),
    (_COMMITTED, "commit_one_phase", None, _COMMITTED),
    (_COMMITTED, "rollback", _REFUSED, _COMMITTED),
    (_COMMITTED, "resolve", _REFUSED, _COMMITTED),
    (_COMMITTED, "forget", None, _COMMITTED),
    (_ROLLED_BACK, "prepare", _REFUSED, _ROLLED_BACK),
    (_ROLLED_BACK, "commit", _REFUSED, _ROLLED_BACK),
    (_ROLLED_BACK, "commit_one_phase", _REFUSED, _ROLLED_BACK),
    (_ROLLED_BACK, "rollback", _ROLLED_BACK, _ROLLED_BACK),
    (_ROLLED_BACK, "resolve", _REFUSED, _ROLLED_BACK),
    (_ROLLED_BACK, "forget", None, _ROLLED_BACK),
    (_BY_HAND, "prepare", _REFUSED, _BY_HAND),
    (_BY_HAND, "commit", _BY_HAND, _BY_HAND),
    (_BY_HAND, "commit_one_phase", _REFUSED, _BY_HAND),
    (_BY_HAND, "rollback", _BY_HAND, _BY_HAND),
    (_BY_HAND, "resolve", _REFUSED, _BY_HAND),
    (_BY_HAND, "forget", None, _UNKNOWN),
    (_UNDONE_BY_HAND, "prepare", _REFUSED, _UNDONE_BY_HAND),
    (_UNDONE_BY_HAND, "commit", _UNDONE_BY_HAND, _UNDONE_BY_HAND),
    (_UNDONE_BY_HAND, "commit_one_phase", _REFUSED, _UNDONE_BY_HAND),
    (_UNDONE_BY_HAND, "rollback", _UNDONE_BY_HAND, _UNDONE_BY_HAND),
    (_UNDONE_BY_HAND, "resolve", _REFUSED, _UNDONE_BY_HAND),
    (_UNDONE_BY_HAND, "forget", None, _UNKNOWN),
]


@pytest.mark.parametrize("was", Outcome, ids=lambda it: it.name)
def test_each_call_answers_by_what_the_branch_is(storage: Storage, was: Outcome) -> None:
    for number, (_, call, answer, then) in enumerate(row for row in _ANSWERS if row[0] is was):
        branch, bill = b"branch %d" % number, f"bill {number}"
        _bring_to(storage, branch, was, bill)
        _call_again_and_again(storage, branch, call, answer, then)
        has_happened = bool({was, then} & {_COMMITTED, _BY_HAND})
        assert (bill in seen(storage, BILLS)) is has_happened, call


def _call_again_and_again(
    storage: Storage, branch: bytes, call: str, answer: object, then: Outcome
) -> None:
    # What ends a branch may be repeated; what an operator does is done once.
    for _ in range(1 if call == "resolve" else 2):
        if answer is _REFUSED:
            with pytest.raises(BranchEnded):
                _CALLS[call](storage, branch)
        else:
            assert _CALLS[call](storage, branch) == answer, call
        assert storage.outcome(branch) is then, call


@pytest.mark.parametrize(
    "was", [_PREPARED, _COMMITTED, _ROLLED_BACK, _BY_HAND, _UNDONE_BY_HAND], ids=lambda it: it.name
)
def test_a_branch_that_is_prepared_or_over_takes_no_more_actions(
    storage: Storage, was: Outcome
) -> None:
    _bring_to(storage, b"b", was)
    [key] = put(storage, ORDERS, "another")
    with pytest.raises(BranchEnded):
        storage.store(b"b", ORDERS, [letter("late")])
    with pytest.raises(BranchEnded):
        storage.take(b"b", ORDERS, EVERYTHING, 1)
    with pytest.raises(BranchEnded):
        storage.take_keys(b"b", ORDERS, [key], 0)
    with pytest.raises(BranchEnded):
        storage.raise_mark(b"b", "job", 1)
    assert storage.outcome(b"b") is was
    assert storage.read(ORDERS, key) is not None
    assert storage.mark("job") == 0


# --- What an operator decides --------------------------------------------------------------------


def test_an_operator_commits_a_prepared_branch(storage: Storage) -> None:
    _bring_to(storage, b"b", _PREPARED)
    storage.resolve(b"b", True)
    assert seen(storage, BILLS) == ["bill"]
    assert storage.queue(ORDERS).locked == 0
    assert seen(storage, ORDERS) == []


def test_an_operator_rolls_a_prepared_branch_back(storage: Storage) -> None:
    _bring_to(storage, b"b", _PREPARED)
    storage.resolve(b"b", False)
    assert seen(storage, BILLS) == []
    assert take(storage, b"c", ORDERS) == ["order"]


def test_a_forgotten_branch_leaves_what_it_did(storage: Storage) -> None:
    _bring_to(storage, b"b", _BY_HAND)
    storage.forget(b"b")
    storage.forget(b"b")
    assert storage.outcome(b"b") is _UNKNOWN
    assert storage.branches() == []
    assert seen(storage, BILLS) == ["bill"]


# --- Which branches there are --------------------------------------------------------------------


def test_branches_are_shown_with_what_they_changed(storage: Storage) -> None:
    put(storage, ORDERS, "1", "2")
    take(storage, b"busy", ORDERS)
    storage.store(b"busy", BILLS, [letter("x"), letter("y"), letter("z")])
    take(storage, b"busy", BILLS, 1)
    storage.raise_mark(b"in doubt", "job", 1)
    storage.prepare(b"in doubt", b"ask there")
    assert sorted(storage.branches(), key=lambda info: info.branch) == [
        BranchInfo(b"busy", _ACTIVE, b"", 3, 3),
        BranchInfo(b"in doubt", _PREPARED, b"ask there", 0, 0),
    ]


def test_branches_that_have_ended_are_not_shown(storage: Storage) -> None:
    _bring_to(storage, b"a", _COMMITTED)
    _bring_to(storage, b"b", _ROLLED_BACK)
    storage.rollback(b"c")
    assert storage.branches() == []


@pytest.mark.parametrize("outcome", [_BY_HAND, _UNDONE_BY_HAND], ids=lambda it: it.name)
def test_branches_that_an_operator_has_ended_are_shown_until_forgotten(
    storage: Storage, outcome: Outcome
) -> None:
    _bring_to(storage, b"b", outcome)
    storage.commit(b"b")
    storage.rollback(b"b")
    assert storage.branches() == [BranchInfo(b"b", outcome, b"recovery", 1, 1)]
    storage.forget(b"b")
    assert storage.branches() == []


def test_the_last_outcomes_are_remembered(factory: StorageFactory, storage: Storage) -> None:
    storage.store(b"first", ORDERS, [letter("x")])
    storage.prepare(b"first", b"")
    storage.resolve(b"first", False)
    storage.store(b"in doubt", ORDERS, [letter("x")])
    storage.prepare(b"in doubt", b"")
    ids = [b"%d" % number for number in range(factory.outcomes_kept + 600)]
    for branch in ids:
        storage.rollback(branch)
    for branch in (*ids[600::101], ids[-1]):
        assert storage.outcome(branch) is _ROLLED_BACK
    # These two have not ended yet, so they are not among those that may be forgotten.
    assert storage.outcome(b"first") is _UNDONE_BY_HAND
    assert storage.outcome(b"in doubt") is _PREPARED


def test_a_branch_that_changed_nothing_can_be_committed_and_is_over(storage: Storage) -> None:
    for number in range(3):
        branch = b"empty %d" % number
        assert storage.take(branch, ORDERS, EVERYTHING, 1) == []
        storage.commit_one_phase(branch)
        storage.commit_one_phase(branch)
        assert storage.outcome(branch) is _COMMITTED
        with pytest.raises(BranchEnded):
            storage.store(branch, ORDERS, [letter("late")])
    assert storage.branches() == []
