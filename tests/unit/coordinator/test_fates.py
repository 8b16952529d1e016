"""What becomes of prepared branches, and what participants of a marked transaction are told."""

from __future__ import annotations

import pytest

from coordinator.fates import (
    Fate,
    Telling,
    Verdict,
    fate_of,
    is_ours,
    may_forget,
    telling,
    verdict_of,
)
from coordinator.participants import Participant, Participants, Place
from coordinator.protocol import Transaction
from idl.cos import Status
from idl.databases import (
    BRANCH,
    COMMITTED,
    ROLLED_BACK,
    BranchId,
    branch_name,
    mark_of,
    read_xid,
)
from idl.otids import FORMAT_ID, Gtrid

OURS, OTHERS = b"ourselfs", b"somebody"
GTRID = Gtrid(OURS, 1, 7, bytes(12)).encoded()
BRANCH_1 = BranchId(GTRID, branch_name(1))
MARKED_1 = BranchId(GTRID, branch_name(1, "orders"))


@pytest.mark.parametrize(
    ("verdict", "age_s", "fate"),
    [
        (Verdict.COMMITTED, 0.0, Fate.COMMIT),
        (Verdict.COMMITTED, 1e6, Fate.COMMIT),
        (Verdict.UNDECIDED, 0.0, Fate.WAIT),
        # However old: its owner lives, or the decision is being written.
        (Verdict.UNDECIDED, 1e6, Fate.WAIT),
        (Verdict.UNKNOWN, 0.0, Fate.LEAVE),
        (Verdict.UNKNOWN, 1e6, Fate.LEAVE),
        (Verdict.ROLLED_BACK, 59.0, Fate.WAIT),
        (Verdict.ROLLED_BACK, 60.0, Fate.ROLL_BACK),
    ],
)
def test_a_prepared_branch_gets_what_was_decided(
    verdict: Verdict, age_s: float, fate: Fate
) -> None:
    assert fate_of(BRANCH_1, verdict, age_s, 60.0) is fate


def test_a_branch_that_a_mark_decides_about_is_not_presumed_rolled_back() -> None:
    assert fate_of(MARKED_1, Verdict.ROLLED_BACK, 60.0, 60.0) is Fate.ASK_MARK
    assert fate_of(MARKED_1, Verdict.ROLLED_BACK, 59.0, 60.0) is Fate.WAIT
    assert fate_of(MARKED_1, Verdict.COMMITTED, 0.0, 60.0) is Fate.COMMIT
    assert (mark_of(MARKED_1.branch), mark_of(BRANCH_1.branch), mark_of("n1.x")) == (
        "orders",
        "",
        "",
    )


@pytest.mark.parametrize(
    ("verdict", "mark", "is_patient", "told"),
    [
        (Verdict.COMMITTED, None, False, Telling.SAY_COMMITTED),
        (Verdict.UNDECIDED, COMMITTED, True, Telling.SAY_COMMITTED),
        # The session of its owner is over, and the mark is there all the same.
        (Verdict.ROLLED_BACK, COMMITTED, False, Telling.SAY_COMMITTED),
        (Verdict.UNKNOWN, COMMITTED, False, Telling.SAY_COMMITTED),
        (Verdict.ROLLED_BACK, ROLLED_BACK, False, Telling.SAY_ROLLED_BACK),
        (Verdict.UNDECIDED, ROLLED_BACK, True, Telling.SAY_ROLLED_BACK),
        (Verdict.UNKNOWN, None, False, Telling.SAY_UNKNOWN),
        (Verdict.UNDECIDED, None, True, Telling.SAY_NOT_YET),
        (Verdict.UNDECIDED, None, False, Telling.FENCE),
        (Verdict.ROLLED_BACK, None, True, Telling.FENCE),
    ],
)
def test_who_asks_about_a_mark_is_told_what_it_says(
    verdict: Verdict, mark: str | None, is_patient: bool, told: Telling
) -> None:
    assert telling(verdict, mark, is_patient) is told


def test_only_rows_that_nobody_can_need_are_forgotten() -> None:
    needed = [
        (BRANCH, False, True),
        (COMMITTED, False, True),
        # Nobody told the coordinator: the mark is the only decision there is.
        (COMMITTED, True, False),
        (ROLLED_BACK, True, False),
        (ROLLED_BACK, True, True),
    ]
    assert not any(may_forget(*row) for row in needed)
    assert may_forget(BRANCH, True, True)
    assert may_forget(BRANCH, True, False)
    assert may_forget(COMMITTED, True, True)


def test_a_transaction_at_work_is_undecided_and_a_decision_counts_for_who_is_named() -> None:
    prepared = Participants([Participant(1, Place.PREPARED)])
    assert verdict_of(Transaction(), False) is Verdict.UNDECIDED
    assert verdict_of(Transaction(Status.PREPARED, prepared), True) is Verdict.UNDECIDED
    assert verdict_of(Transaction(Status.COMMITTING, prepared), True) is Verdict.COMMITTED
    assert verdict_of(Transaction(Status.COMMITTING, prepared), False) is Verdict.ROLLED_BACK
    assert verdict_of(Transaction(Status.MARKED_ROLLBACK), True) is Verdict.ROLLED_BACK


@pytest.mark.parametrize(
    "xid",
    [
        (None, "a_name_of_somebodys", ""),
        (FORMAT_ID + 1, GTRID.hex(), "d1"),
        (FORMAT_ID, GTRID.hex()[:-2], "d1"),
        (FORMAT_ID, GTRID.hex().replace("0", "g"), "d1"),
        (FORMAT_ID, GTRID.hex().upper(), "d1"),
        (FORMAT_ID, GTRID.hex(), ""),
        (FORMAT_ID, GTRID.hex(), "d 1"),
    ],
)
def test_what_is_no_xid_of_ours_is_nobodys(xid: tuple[int | None, str, str]) -> None:
    assert read_xid(*xid) is None


def test_an_xid_is_ours_by_the_identity_in_it() -> None:
    other = BranchId(Gtrid(OTHERS, 1, 7, bytes(12)).encoded(), "d1")
    assert read_xid(*BRANCH_1.xid) == BRANCH_1
    assert is_ours(BRANCH_1, OURS)
    assert not is_ours(other, OURS)
    assert not is_ours(None, OURS)
