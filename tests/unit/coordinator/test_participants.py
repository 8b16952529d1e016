"""The participants of a transaction as a value: against a plain dictionary that is copied whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.outcomes import Heuristic
from coordinator.participants import TOGETHER, Participant, Participants, Place

NOTED = Participant(7, Place.HEURISTIC, heuristic=Heuristic.MIXED)


def _is_counted(found: Participants, model: dict[int, Participant]) -> None:
    found.recount()
    everybody = [model[number] for number in sorted(model)]
    assert list(found) == everybody
    assert len(found) == len(model)
    for place in Place:
        there = [each.number for each in everybody if each.place is place]
        assert found.counts[place] == len(there)
        assert found.numbers_at(place) == there
    prepared = [each for each in everybody if each.place is Place.PREPARED]
    assert found.untried == sum(not each.is_tried for each in prepared)


# Few enough to meet again, and in several parts.
numbers = st.integers(0, 3 * TOGETHER)
places = st.sampled_from([place for place in Place if place is not Place.HEURISTIC])
changes = st.lists(st.tuples(st.integers(0, 2), numbers, places, st.booleans()), max_size=60)


@given(changes)
def test_whatever_changes_everybody_is_found_and_counted(
    chosen: list[tuple[int, int, Place, bool]],
) -> None:
    found, model = Participants(), dict[int, Participant]()
    for what, number, place, is_tried in chosen:
        before, kept = found, dict(model)
        each = Participant(number, place, is_tried)
        if number not in model:
            found, model = found.joined_by([each]), model | {number: each}
        elif what:
            found, model = found.put(each), model | {number: each}
        else:
            found = found.without(number)
            del model[number]
        assert found.find(number) == model.get(number)
        _is_counted(found, model)
        _is_counted(before, kept)


@given(st.sets(numbers), st.sets(numbers))
def test_those_who_come_together_are_put_in_the_order_of_their_numbers(
    first: set[int], then: set[int]
) -> None:
    found = Participants(map(Participant, first)).joined_by(map(Participant, then - first))
    assert [each.number for each in found] == sorted(first | then)
    found.recount()


def test_two_with_the_same_participants_are_the_same_however_they_were_made() -> None:
    once = Participants(Participant(number) for number in range(3))
    slowly = Participants([Participant(0), Participant(9), Participant(2)])
    slowly = slowly.without(9).joined_by([Participant(1)])
    assert once == slowly
    assert hash(once) == hash(slowly)
    assert once != slowly.without(0)
    assert once != tuple(once)
    assert str(Participants([Participant(4)])).startswith("Participants([Participant(number=4")


def test_whoever_leaves_twice_has_left() -> None:
    found = Participants([Participant(1), Participant(2)]).without(1)
    assert found.without(1) is found
    assert found.without(1000) is found


def test_nobody_can_be_there_twice() -> None:
    with pytest.raises(AssertionError, match="twice"):
        Participants([Participant(0), Participant(0)])
    with pytest.raises(AssertionError, match="twice"):
        Participants([Participant(0)]).joined_by([Participant(0)])


def test_nobody_changes_who_is_not_there() -> None:
    with pytest.raises(AssertionError, match="not there"):
        Participants([Participant(0)]).put(Participant(1))


@pytest.mark.parametrize(
    "wrong",
    [Participant(7, Place.HEURISTIC), Participant(7, Place.READ_ONLY, heuristic=Heuristic.HAZARD)],
)
def test_a_heuristic_is_nowhere_but_at_its_place(wrong: Participant) -> None:
    with pytest.raises(AssertionError, match="wrong place"):
        Participants([wrong])
    with pytest.raises(AssertionError, match="wrong place"):
        Participants([NOTED]).put(wrong)


def test_counts_that_are_wrong_are_noticed() -> None:
    found = Participants([NOTED])
    found.counts = found.counts | {Place.PREPARED: 1}
    with pytest.raises(AssertionError, match="counts are wrong"):
        found.recount()


# --- Several at once -----------------------------------------------------------------------------


def _prepared_of(chosen: list[tuple[int, int, Place, bool]]) -> Participants:
    """Prepared ones, some of whom were tried, and some with a heuristic outcome."""
    model: dict[int, Participant] = {}
    for what, number, _, is_tried in chosen:
        noted = Participant(number, Place.HEURISTIC, heuristic=Heuristic.MIXED)
        model[number] = noted if not what else Participant(number, Place.PREPARED, is_tried)
    return Participants(model.values())


@given(changes, st.lists(numbers, max_size=30))
def test_many_who_have_committed_are_the_same_as_one_after_the_other(
    chosen: list[tuple[int, int, Place, bool]], heard: list[int]
) -> None:
    found = _prepared_of(chosen)
    one_by_one = found
    for number in heard:
        before = one_by_one.find(number)
        if before is not None and before.place is Place.PREPARED:
            told = Participant(number, Place.PREPARED, is_tried=True, is_told=True)
            one_by_one = one_by_one.changed(before, told)
    together = found.told(heard)
    together.recount()
    found.recount()
    assert together == one_by_one
    assert (together.counts, together.untried) == (one_by_one.counts, one_by_one.untried)
    assert together is found or not together.is_counted


@given(changes, st.lists(numbers, max_size=30))
def test_many_who_leave_are_the_same_as_one_after_the_other(
    chosen: list[tuple[int, int, Place, bool]], leaving: list[int]
) -> None:
    found = _prepared_of(chosen)
    one_by_one, gone = found, list[int]()
    for number in leaving:
        before = one_by_one.find(number)
        if before is not None and before.place is Place.PREPARED:
            one_by_one = one_by_one.without(number)
            gone.append(number)
    together, left = found.left_by(leaving)
    together.recount()
    found.recount()
    assert (together, left) == (one_by_one, gone)
    assert (together.counts, together.untried) == (one_by_one.counts, one_by_one.untried)
    assert left or together is found


def test_only_who_is_prepared_commits() -> None:
    with pytest.raises(AssertionError, match="prepared"):
        Participants([Participant(1)]).told((1,))


@given(st.sets(numbers, min_size=1))
def test_those_who_come_prepared_are_as_if_each_had_been_looked_at(chosen: set[int]) -> None:
    came = sorted(chosen)
    found = Participants.all_prepared(came)
    assert found.is_counted
    _is_counted(found, {number: Participant(number, Place.PREPARED) for number in came})


@pytest.mark.parametrize("wrong", [(1, 1), (2, 1)])
def test_nobody_comes_prepared_twice(wrong: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match="twice"):
        Participants.all_prepared(wrong)
