"""The coordinator's table: whole, as it is drawn, and right on every way through it.

All ways with up to three participants are gone, each with everything that can happen on it; what
must hold is asserted by `tests/protocol_walk.py` at every step. `tests/property/test_protocol.py`
goes longer ways with more participants.
"""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path

import pytest

from coordinator import protocol
from coordinator.outcomes import Heuristic, Outcome
from coordinator.participants import Participant, Participants, Place
from coordinator.protocol import (
    ARROWS,
    IMPOSSIBLE,
    STATES,
    TRANSITIONS,
    Act,
    Effect,
    Effects,
    Event,
    Kind,
    Transaction,
    answer_to,
    check,
    outcome_of,
    step,
)
from idl.cos import Status
from tests.protocol_walk import (
    COMMIT_SIDE,
    TERMINAL,
    Explored,
    Limits,
    drawn_arrows,
    explore,
    found_on_disk,
    listed_letters,
    starts,
)

CRASH_TABLE = Path(__file__).parents[3] / "docs" / "TRANSACTIONS.md"


# --- The table, the drawing, the letters ---------------------------------------------------------


@pytest.mark.parametrize("status", STATES)
@pytest.mark.parametrize("kind", Kind)
def test_a_state_and_an_event_either_meet_in_the_table_or_cannot_meet(
    status: Status, kind: Kind
) -> None:
    assert ((status, kind) in TRANSITIONS) is not ((status, kind) in IMPOSSIBLE)


def test_the_table_has_no_other_states() -> None:
    assert set(STATES) == set(Status) - {Status.NO_TRANSACTION}
    assert {status for status, _ in TRANSITIONS} == set(STATES)


@pytest.mark.parametrize(
    ("status", "kind"), [row for row in itertools.product(STATES, Kind) if row in IMPOSSIBLE]
)
def test_what_cannot_happen_stops_the_program(status: Status, kind: Kind) -> None:
    with pytest.raises(AssertionError, match=f"{kind.name} cannot happen in {status.name}"):
        step(Transaction(status), Event(kind))


def test_the_drawing_shows_the_arrows_of_the_table() -> None:
    shown = drawn_arrows(protocol.__doc__)
    assert shown == {(a.name, b.name): letter for (a, b), letter in ARROWS.items()}


def test_every_letter_of_the_drawing_is_explained_once_and_in_order() -> None:
    assert listed_letters(protocol.__doc__) == sorted(set(ARROWS.values()))


def test_the_crash_table_speaks_of_every_letter() -> None:
    rows = re.findall(r"^\| coordinator, ([^|]*) \|", CRASH_TABLE.read_text("utf-8"), re.MULTILINE)
    spoken_of = {letter for row in rows for letter in re.findall(r"\b[a-z]\b", row)}
    assert spoken_of == set(ARROWS.values())


@pytest.mark.parametrize("status", TERMINAL)
def test_no_arrow_leads_away_from_an_end(status: Status) -> None:
    assert not [arrow for arrow in ARROWS if arrow[0] is status]


# --- Every way -----------------------------------------------------------------------------------


@functools.cache
def _two() -> Explored:
    return explore([*starts(), found_on_disk(1), found_on_disk(2)], Limits(participants=2))


@functools.cache
def _three() -> Explored:
    limits = Limits(participants=3, heuristics=1, has_all=False)
    return explore([next(starts()), found_on_disk(3)], limits)


def test_two_participants_go_every_way_and_all_promises_are_kept() -> None:
    assert len(_two().after) > 1000


def test_three_participants_go_every_way_and_all_promises_are_kept() -> None:
    assert len(_three().after) > 4000


def test_every_rule_of_the_table_is_met_and_no_other_event_can_happen() -> None:
    assert _two().rules == TRANSITIONS.keys()


def test_every_arrow_is_gone_along() -> None:
    gone = {
        (before.state.status, after.state.status)
        for before, following in _two().after.items()
        for after in following
    }
    assert {arrow for arrow in gone if arrow[0] is not arrow[1]} == ARROWS.keys()


@pytest.mark.parametrize("kind", [Kind.DONE_LAZILY, Kind.SETTLED])
def test_several_who_say_the_same_at_once_are_as_if_each_said_it(kind: Kind) -> None:
    tried = 0
    for state, told in {
        (world.state, world.told_commit) for world in (*_two().after, *_three().after)
    }:
        for numbers in itertools.permutations(told, 2) if state.status in COMMIT_SIDE else ():
            first, *others = numbers
            together, effects = step(state, Event(kind, first, others=tuple(others)))
            one_by_one, each = _stepped(state, [Event(kind, number) for number in numbers])
            assert together == one_by_one
            assert sorted(effects, key=str) == sorted(each, key=str)
            assert Effect(Act.END) not in effects[:-1]
            tried += 1
    assert tried > 100


def _stepped(state: Transaction, events: list[Event]) -> tuple[Transaction, Effects]:
    done: Effects = ()
    for event in events:
        state, effects = step(state, event)
        done += effects
    return state, done


def test_from_everywhere_an_end_can_be_reached() -> None:
    for explored in (_two(), _three()):
        assert explored.ending() == explored.after.keys()


def test_at_the_end_everybody_was_answered_once() -> None:
    for explored in (_two(), _three()):
        ends = [world for world in explored.after if world.is_over]
        assert {(world.answers, world.ends) for world in ends} == {(1, 1)}


# --- Single rules that a reader may doubt --------------------------------------------------------


def _after(transaction: Transaction, *events: Event) -> tuple[Transaction, Effects]:
    effects: Effects = ()
    for event in events:
        transaction, effects = step(transaction, event)
    return transaction, effects


def _joined(count: int, start: Transaction | None = None) -> Transaction:
    events = [Event(Kind.JOIN, number) for number in range(count)]
    return _after(start or Transaction(), *events)[0]


def _committing(count: int) -> Transaction:
    commit = Event(Kind.COMMIT, prepared=tuple(range(count)))
    return _after(Transaction(), commit, Event(Kind.FORCED))[0]


def test_one_participant_alone_is_asked_to_commit_in_one_phase() -> None:
    _, effects = _after(_joined(1), Event(Kind.COMMIT))
    assert effects == (Effect(Act.SEND_ONE_PHASE, 0),)


@pytest.mark.parametrize(
    "start",
    [Transaction(is_keyed=True), Transaction(is_leased=True)],
    ids=["is_keyed", "is_leased"],
)
def test_whoever_will_be_asked_for_the_outcome_does_not_leave_it_to_another(
    start: Transaction,
) -> None:
    _, effects = _after(_joined(1, start), Event(Kind.COMMIT))
    assert effects == (Effect(Act.SEND_PREPARE, 0),)


def test_one_that_comes_prepared_is_not_asked_again() -> None:
    _, effects = _after(_joined(1), Event(Kind.COMMIT, prepared=(1,)))
    assert effects == (Effect(Act.SEND_PREPARE, 0),)
    _, effects = _after(Transaction(), Event(Kind.COMMIT, prepared=(0,)))
    assert effects == (Effect(Act.FORCE_DECISION),)


def test_a_rollback_does_not_overtake_the_one_who_commits_alone() -> None:
    delegated, _ = _after(_joined(1), Event(Kind.COMMIT))
    assert _after(delegated, Event(Kind.ROLLBACK)) == (delegated, ())


def test_a_rollback_comes_too_late_once_the_decision_is_at_the_disk() -> None:
    prepared, _ = _after(Transaction(), Event(Kind.COMMIT, prepared=(0, 1)))
    assert _after(prepared, Event(Kind.ROLLBACK)) == (prepared, ())


def test_a_key_is_written_though_nobody_takes_part() -> None:
    keyed, effects = _after(Transaction(is_keyed=True), Event(Kind.COMMIT))
    assert effects == (Effect(Act.FORCE_DECISION),)
    ended, effects = _after(keyed, Event(Kind.FORCED))
    assert ended.status is Status.COMMITTED
    assert effects == (Effect(Act.ANSWER), Effect(Act.END))


def test_a_decision_that_was_not_forced_is_rolled_back_with_its_reason() -> None:
    not_forced = Event(Kind.NOT_FORCED, reason="the disk is full")
    prepared, _ = _after(Transaction(), Event(Kind.COMMIT, prepared=(0, 1)))
    turned, effects = _after(prepared, not_forced)
    assert (turned.status, turned.reason) == (Status.ROLLING_BACK, "the disk is full")
    assert effects == (Effect(Act.SEND_ROLLBACK, 0), Effect(Act.SEND_ROLLBACK, 1))


def test_a_decision_without_participants_that_is_not_stored_is_rolled_back() -> None:
    keyed, _ = _after(Transaction(is_keyed=True), Event(Kind.COMMIT))
    ended, effects = _after(keyed, Event(Kind.NOT_FORCED, reason="the disk is full"))
    assert (ended.status, ended.reason) == (Status.ROLLED_BACK, "the disk is full")
    assert effects == (Effect(Act.ANSWER), Effect(Act.END))


def test_the_first_reason_for_a_rollback_is_the_one_that_is_told() -> None:
    marked, _ = _after(_joined(1), Event(Kind.MARK, reason="the first"))
    turned, _ = _after(marked, Event(Kind.ROLLBACK, reason="the second"))
    assert outcome_of(turned).reason == "the first"


def test_the_answer_waits_until_everybody_was_tried_and_not_until_all_are_reached() -> None:
    half, effects = _after(_committing(2), Event(Kind.DONE, 0))
    assert Effect(Act.ANSWER) not in effects
    _, effects = _after(half, Event(Kind.NOT_REACHED, 1))
    assert effects == (Effect(Act.SEND_COMMIT_LATER, 1), Effect(Act.ANSWER))


def test_a_commit_that_is_not_durable_does_not_end_the_transaction() -> None:
    told, effects = _after(_committing(1), Event(Kind.DONE_LAZILY, 0))
    assert told.status is Status.COMMITTING
    assert effects == (Effect(Act.ANSWER),)
    ended, effects = _after(told, Event(Kind.SETTLED, 0))
    assert ended.status is Status.COMMITTED
    assert effects == (Effect(Act.NOTE_DONE, 0), Effect(Act.END))


def test_one_that_was_told_and_is_then_not_reached_is_told_again() -> None:
    told, _ = _after(_committing(2), Event(Kind.DONE_LAZILY, 0))
    lost, effects = _after(told, Event(Kind.NOT_REACHED, 0))
    assert Effect(Act.SEND_COMMIT_LATER, 0) in effects
    told_again = lost.participants.find(0)
    assert told_again is not None
    assert not told_again.is_told, "or the next attempt would be left out"


@pytest.mark.parametrize("kind", [Kind.DONE, Kind.DONE_LAZILY, Kind.SETTLED, Kind.NOT_REACHED])
def test_whoever_was_given_up_and_answers_then_changes_nothing(kind: Kind) -> None:
    given_up = Event(Kind.GIVEN_UP, 0, heuristic=Heuristic.HAZARD)
    left, _ = _after(_committing(2), given_up)
    assert _after(left, Event(kind, 0)) == (left, ())


def test_a_heuristic_stays_known_when_the_participant_later_says_that_all_is_well() -> None:
    asked, _ = _after(_joined(2), Event(Kind.COMMIT))
    against, _ = _after(asked, Event(Kind.VOTED_ROLLBACK, 1))
    hazard = Event(Kind.HEURISTIC, 0, heuristic=Heuristic.HAZARD)
    ended, _ = _after(against, hazard, Event(Kind.DONE, 0))
    assert outcome_of(ended).damage is Heuristic.HAZARD


def test_the_damage_that_the_caller_hears_of_is_the_worst_there_is() -> None:
    participants = (
        Participant(0, Place.HEURISTIC, heuristic=Heuristic.HAZARD),
        Participant(1, Place.HEURISTIC, heuristic=Heuristic.ROLLED_BACK),
    )
    committed = Transaction(Status.COMMITTED, Participants(participants))
    assert outcome_of(committed) == Outcome(Status.COMMITTED, Heuristic.MIXED)
    rolled_back = Transaction(Status.ROLLED_BACK, Participants(participants[1:]))
    assert outcome_of(rolled_back) == Outcome(Status.ROLLED_BACK, None), "they agree"


@pytest.mark.parametrize(
    ("status", "is_named", "number", "answer"),
    [
        (Status.ACTIVE, False, None, Status.PREPARING),
        (Status.ACTIVE, True, 1, None),
        (Status.MARKED_ROLLBACK, True, 1, Status.ROLLED_BACK),
        (Status.PREPARING, True, 1, Status.PREPARING),
        (Status.PREPARED, False, None, Status.PREPARING),
        (Status.COMMITTING, True, 1, Status.COMMITTED),
        (Status.COMMITTING, False, None, Status.ROLLED_BACK),
        (Status.ROLLING_BACK, True, 1, Status.ROLLED_BACK),
        (Status.ROLLED_BACK, False, None, Status.ROLLED_BACK),
        (Status.UNKNOWN, True, 1, Status.PREPARING),
    ],
)
def test_a_participant_that_asks_is_told_what_cannot_change_any_more(
    status: Status, is_named: bool, number: int | None, answer: Status | None
) -> None:
    assert answer_to(Transaction(status), is_named, number) is answer


# --- States that cannot be -----------------------------------------------------------------------


def test_who_was_miscounted_is_noticed_before_a_decision_and_before_the_end() -> None:
    asked, _ = _after(_joined(2), Event(Kind.COMMIT))
    voted, _ = _after(asked, Event(Kind.VOTED_COMMIT, 0))
    decided = _committing(2)
    for state, event in (
        (voted, Event(Kind.VOTED_COMMIT, 1)),
        (decided, Event(Kind.SETTLED, 0, others=(1,))),
    ):
        state.participants.untried += 1
        with pytest.raises(AssertionError, match="counts are wrong"):
            step(state, event)


def _some(*places: Place) -> Participants:
    return Participants(Participant(number, place) for number, place in enumerate(places))


@pytest.mark.parametrize(
    "wrong",
    [
        Transaction(Status.ACTIVE, _some(Place.PREPARED)),
        Transaction(Status.MARKED_ROLLBACK, _some(Place.FAILED)),
        Transaction(Status.PREPARING),
        Transaction(Status.PREPARING, _some(Place.PENDING, Place.FAILED)),
        Transaction(Status.PREPARING, _some(Place.PENDING), is_nested=True),
        Transaction(Status.PREPARED),
        Transaction(Status.PREPARED, _some(Place.PENDING)),
        Transaction(Status.COMMITTING, is_keyed=True),
        Transaction(Status.COMMITTING, _some(Place.FAILED)),
        Transaction(Status.COMMITTED, _some(Place.PREPARED)),
        Transaction(Status.ROLLING_BACK, _some(Place.READ_ONLY)),
        Transaction(Status.ROLLED_BACK, _some(Place.FAILED)),
        Transaction(Status.UNKNOWN, _some(Place.READ_ONLY)),
    ],
    ids=str,
)
def test_a_state_that_cannot_be_is_noticed(wrong: Transaction) -> None:
    with pytest.raises(AssertionError):
        check(wrong)
