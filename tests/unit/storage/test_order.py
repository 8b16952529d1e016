"""The order of free messages is that of a sorted set, whatever comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqserver.storage import order
from mqserver.storage.order import Order

NUMBERS = st.integers(0, 40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), NUMBERS),
        st.tuples(st.just("discard"), NUMBERS),
        st.tuples(st.just("take_first"), st.integers(0, 12)),
        st.tuples(st.just("pop_first"), st.none()),
        st.tuples(st.just("update"), st.lists(NUMBERS, max_size=12)),
        st.tuples(st.just("update"), st.builds(lambda n, c: range(n, n + c), NUMBERS, NUMBERS)),
    ),
    max_size=40,
)


@given(STEPS, NUMBERS)
def test_it_is_a_sorted_set(steps: list[tuple[str, object]], after: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "CHUNK", 3)
        found, model = Order(), set[int]()
        for name, argument in steps:
            if name == "pop_first":
                lowest = min(model, default=None)
                assert found.pop_first() == lowest
                model.discard(-1 if lowest is None else lowest)
                assert (len(found), list(found)) == (len(model), sorted(model))
                continue
            answer = getattr(found, name)(argument)
            if name == "take_first":
                assert isinstance(argument, int)
                first = sorted(model)[:argument]
                assert answer == first
                model.difference_update(first)
            elif name == "update":
                assert isinstance(argument, list | range)
                model.update(argument)
            else:
                getattr(model, name)(argument)
            assert (len(found), list(found)) == (len(model), sorted(model))
        assert list(found.behind(after)) == sorted(n for n in model if n > after)


def test_many_numbers_are_kept_in_short_chunks() -> None:
    found = Order(range(10 * order.CHUNK))
    for number in range(-5 * order.CHUNK, 0):
        found.add(number)
    assert list(found) == list(range(-5 * order.CHUNK, 10 * order.CHUNK))
    assert max(map(len, found._chunks)) <= 2 * order.CHUNK
    assert found.take_first(5 * order.CHUNK) == list(range(-5 * order.CHUNK, 0))
    assert next(iter(found)) == 0
