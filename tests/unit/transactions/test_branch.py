"""One branch of a transaction: its table, its drawing, and the promises that both make."""

from __future__ import annotations

import pytest

from mqserver.storage.contract import Outcome
from mqserver.transactions import branch
from mqserver.transactions.branch import ARROWS, TRANSITIONS, Act, Answer, Request, step
from tests.protocol_walk import drawn_arrows, listed_letters

OVER = (
    Outcome.COMMITTED,
    Outcome.ROLLED_BACK,
    Outcome.HEURISTICALLY_COMMITTED,
    Outcome.HEURISTICALLY_ROLLED_BACK,
    Outcome.UNKNOWN,
)
OPERATORS = (Request.OPERATOR_COMMIT, Request.OPERATOR_ROLLBACK)
BY_HAND = (Outcome.HEURISTICALLY_COMMITTED, Outcome.HEURISTICALLY_ROLLED_BACK)
# What each act at the storage makes of a branch.
MAKES = {
    Act.PREPARE: Outcome.PREPARED,
    Act.COMMIT: Outcome.COMMITTED,
    Act.COMMIT_ONE_PHASE: Outcome.COMMITTED,
    Act.ROLLBACK: Outcome.ROLLED_BACK,
    Act.RESOLVE_COMMIT: Outcome.HEURISTICALLY_COMMITTED,
    Act.RESOLVE_ROLLBACK: Outcome.HEURISTICALLY_ROLLED_BACK,
    Act.FORGET: Outcome.UNKNOWN,
}


# --- The table and the drawing -------------------------------------------------------------------


def test_the_table_answers_every_request_in_every_state_and_nothing_else() -> None:
    assert set(TRANSITIONS) == {(outcome, request) for outcome in Outcome for request in Request}


def test_the_drawing_shows_the_arrows_of_the_table() -> None:
    named = {(origin.name, to.name): letter for (origin, to), letter in ARROWS.items()}
    assert drawn_arrows(branch.__doc__) == named


def test_every_letter_of_the_drawing_is_explained_once_and_in_order() -> None:
    assert listed_letters(branch.__doc__) == sorted(set(ARROWS.values()))


def test_a_branch_goes_along_every_arrow_that_is_drawn_and_along_no_other() -> None:
    gone = {(outcome, taken.after) for (outcome, _), taken in TRANSITIONS.items()}
    assert {arrow for arrow in gone if arrow[0] is not arrow[1]} == set(ARROWS)


@pytest.mark.parametrize(("outcome", "request_"), sorted(TRANSITIONS, key=str))
def test_what_is_done_is_what_makes_the_branch_so(outcome: Outcome, request_: Request) -> None:
    taken = step(outcome, request_)
    assert taken.after is (outcome if taken.act is Act.NOTHING else MAKES[taken.act])


# --- Time and operators --------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [each for each in Outcome if each is not Outcome.ACTIVE])
def test_time_ends_no_branch_that_is_prepared_or_over(outcome: Outcome) -> None:
    assert step(outcome, Request.EXPIRE) == (Act.NOTHING, Answer.OK, outcome)


def test_time_rolls_back_a_branch_that_is_at_work() -> None:
    assert step(Outcome.ACTIVE, Request.EXPIRE).act is Act.ROLLBACK


def test_a_prepared_branch_is_ended_by_its_coordinator_or_by_an_operator_only() -> None:
    ending = {r for r in Request if step(Outcome.PREPARED, r).after is not Outcome.PREPARED}
    assert ending == {Request.COMMIT, Request.ROLLBACK, *OPERATORS}


def test_an_operator_can_commit_only_what_is_prepared() -> None:
    allowed = [o for o in Outcome if step(o, Request.OPERATOR_COMMIT).act is not Act.NOTHING]
    assert allowed == [Outcome.PREPARED]


@pytest.mark.parametrize("outcome", OVER)
@pytest.mark.parametrize("request_", OPERATORS)
def test_an_operator_changes_nothing_that_is_over(outcome: Outcome, request_: Request) -> None:
    assert step(outcome, request_) == (Act.NOTHING, Answer.NOT_PREPARED, outcome)


def test_only_what_was_decided_by_hand_is_remembered_until_it_is_forgotten() -> None:
    forgotten = [o for o in Outcome if step(o, Request.FORGET).act is Act.FORGET]
    assert forgotten == list(BY_HAND)
    for outcome in BY_HAND:
        left = {r for r in Request if step(outcome, r).after is not outcome}
        assert left == {Request.FORGET}


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in BY_HAND])
def test_forgetting_what_was_not_decided_by_hand_changes_nothing(outcome: Outcome) -> None:
    assert step(outcome, Request.FORGET) == (Act.NOTHING, Answer.OK, outcome)


# --- Votes ---------------------------------------------------------------------------------------


def test_only_what_is_at_work_or_prepared_is_voted_for() -> None:
    voting = [o for o in Outcome if step(o, Request.PREPARE).answer is Answer.VOTE]
    assert voting == [Outcome.ACTIVE, Outcome.PREPARED]


def test_no_other_request_is_answered_with_a_vote() -> None:
    votes = {r for (_, r), taken in TRANSITIONS.items() if "VOTE" in taken.answer.name}
    assert votes == {Request.PREPARE}


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.ROLLED_BACK])
def test_what_is_unknown_or_rolled_back_votes_against(outcome: Outcome) -> None:
    taken = step(outcome, Request.PREPARE)
    assert (taken.answer, taken.after) == (Answer.VOTE_ROLLBACK, Outcome.ROLLED_BACK)


def test_asked_again_a_prepared_branch_votes_again_and_the_storage_says_how() -> None:
    assert step(Outcome.PREPARED, Request.PREPARE) == step(Outcome.ACTIVE, Request.PREPARE)


@pytest.mark.parametrize("outcome", BY_HAND)
def test_what_was_decided_by_hand_before_the_vote_is_a_hazard(outcome: Outcome) -> None:
    assert step(outcome, Request.PREPARE).answer is Answer.HEURISTIC_HAZARD


# --- Commit and rollback -------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [Outcome.ACTIVE, Outcome.UNKNOWN, Outcome.ROLLED_BACK])
def test_a_commit_of_what_never_voted_is_refused_and_changes_nothing(outcome: Outcome) -> None:
    assert step(outcome, Request.COMMIT) == (Act.NOTHING, Answer.NOT_PREPARED, outcome)


def test_whatever_is_committed_was_prepared_or_was_asked_to_commit_alone() -> None:
    committing = {
        (outcome, request)
        for (outcome, request), taken in TRANSITIONS.items()
        if taken.after is Outcome.COMMITTED and outcome is not Outcome.COMMITTED
    }
    assert committing == {
        (Outcome.PREPARED, Request.COMMIT),
        (Outcome.ACTIVE, Request.COMMIT_ONE_PHASE),
    }


@pytest.mark.parametrize("request_", [Request.COMMIT, Request.COMMIT_ONE_PHASE])
def test_told_again_to_commit_a_branch_makes_sure_that_it_is_on_disk(request_: Request) -> None:
    taken = step(Outcome.COMMITTED, request_)
    assert taken.act is not Act.NOTHING
    assert (taken.answer, taken.after) == (Answer.OK, Outcome.COMMITTED)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_told_twice_to_roll_back_a_branch_says_the_same_twice(outcome: Outcome) -> None:
    first = step(outcome, Request.ROLLBACK)
    second = step(first.after, Request.ROLLBACK)
    assert (first.answer, first.after) == (second.answer, second.after)


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.HEURISTICALLY_COMMITTED])
def test_told_to_roll_back_what_is_committed_a_branch_says_that_it_is(outcome: Outcome) -> None:
    assert step(outcome, Request.ROLLBACK) == (Act.NOTHING, Answer.HEURISTIC_COMMIT, outcome)


def test_a_decision_that_agrees_with_an_operators_is_no_damage() -> None:
    assert step(Outcome.HEURISTICALLY_COMMITTED, Request.COMMIT).answer is Answer.OK
    assert step(Outcome.HEURISTICALLY_ROLLED_BACK, Request.ROLLBACK).answer is Answer.OK


def test_a_commit_of_what_an_operator_rolled_back_is_damage() -> None:
    taken = step(Outcome.HEURISTICALLY_ROLLED_BACK, Request.COMMIT)
    assert taken.answer is Answer.HEURISTIC_ROLLBACK


def test_a_prepared_branch_does_not_decide_alone() -> None:
    taken = step(Outcome.PREPARED, Request.COMMIT_ONE_PHASE)
    assert taken == (Act.NOTHING, Answer.WRONG_STATE, Outcome.PREPARED)


@pytest.mark.parametrize("request_", [Request.PREPARE, Request.COMMIT_ONE_PHASE, Request.ROLLBACK])
def test_late_work_for_a_branch_that_was_asked_for_and_unknown_is_refused(
    request_: Request,
) -> None:
    taken = step(Outcome.UNKNOWN, request_)
    assert (taken.act, taken.after) == (Act.ROLLBACK, Outcome.ROLLED_BACK)


def test_nothing_comes_back_to_work() -> None:
    assert not [
        key
        for key, taken in TRANSITIONS.items()
        if taken.after is Outcome.ACTIVE and key[0] is not Outcome.ACTIVE
    ]
