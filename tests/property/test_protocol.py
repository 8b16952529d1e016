"""The coordinator's protocol on generated ways, with more participants than all ways can be tried.

What must hold is asserted by `tests/protocol_walk.py` at every step.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.protocol import Kind, Transaction
from idl.cos import Status
from tests.protocol_walk import (
    COMMIT_SIDE,
    Happening,
    Limits,
    World,
    advance,
    found_on_disk,
    possible,
    starts,
)

LIMITS = Limits(participants=8)
STEPS_MAX = 60

# Each number chooses among what can happen then.
choices = st.lists(st.integers(0, 10_000), max_size=STEPS_MAX)
beginnings = st.sampled_from(list(starts()))


def _walked(world: World, chosen: list[int], without: frozenset[Kind] = frozenset()) -> World:
    for number in chosen:
        ahead = [each for each in possible(world, LIMITS) if each.event.kind not in without]
        if ahead:
            world = advance(world, ahead[number % len(ahead)])
    return world


def _gathered(state: Transaction, registered: int, arriving: int) -> World:
    """Participants have registered, and commit is asked for with others that are prepared."""
    world = World(state)
    for _ in range(registered):
        join = next(each for each in possible(world, LIMITS) if each.event.kind is Kind.JOIN)
        world = advance(world, join)
    commits = [each for each in possible(world, LIMITS) if each.event.kind is Kind.COMMIT]
    return advance(world, commits[min(arriving, len(commits) - 1)])


def _brought_to_an_end(world: World) -> World:
    """Everything that is under way is answered, and nobody asks for anything new."""
    for _ in range(4 * LIMITS.participants + 2):
        if world.is_over:
            break
        world = advance(world, _next_answer(world))
    return world


def _next_answer(world: World) -> Happening:
    ahead = list(possible(world, LIMITS))
    answers = [each for each in ahead if each.call or each.event.kind is Kind.FORCED]
    settled = [each for each in ahead if each.event.kind is Kind.SETTLED]
    rollbacks = [each for each in ahead if each.event.kind is Kind.ROLLBACK]
    return [*settled, *answers, *rollbacks][0]


@settings(max_examples=300)
@given(beginnings, choices)
def test_whatever_happens_from_the_beginning_on_every_promise_is_kept(
    world: World, chosen: list[int]
) -> None:
    assert _brought_to_an_end(_walked(world, chosen)).is_over


@settings(max_examples=300)
@given(st.booleans(), st.booleans(), st.integers(0, 8), st.integers(0, 8), choices)
def test_whatever_happens_to_many_participants_every_promise_is_kept(
    is_keyed: bool, is_leased: bool, registered: int, arriving: int, chosen: list[int]
) -> None:
    state = Transaction(is_keyed=is_keyed, is_leased=is_leased)
    world = _gathered(state, registered, arriving)
    assert _brought_to_an_end(_walked(world, chosen)).is_over


@settings(max_examples=200)
@given(st.integers(1, 8), st.integers(0, 8), choices)
def test_whatever_happens_after_nobody_voted_against_it_is_committed(
    registered: int, arriving: int, chosen: list[int]
) -> None:
    against = frozenset(
        (Kind.ROLLBACK, Kind.VOTED_ROLLBACK, Kind.NO_VOTE, Kind.NOT_FORCED, Kind.HEURISTIC)
    )
    world = _gathered(Transaction(), registered, arriving)
    world = _brought_to_an_end(_walked(world, chosen, against))
    assert world.state.status is Status.COMMITTED


@settings(max_examples=200)
@given(st.integers(1, 8), choices)
def test_a_decision_that_was_found_on_disk_is_never_anything_but_committed(
    count: int, chosen: list[int]
) -> None:
    world = _walked(found_on_disk(count), chosen)
    assert world.state.status in COMMIT_SIDE
    assert _brought_to_an_end(world).state.status is Status.COMMITTED
