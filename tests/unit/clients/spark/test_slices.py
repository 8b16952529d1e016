"""How messages are divided among partitions."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

import pytest

from clients.spark.slices import Span, divided, key_ranges, last_key, partitions_for


def behind(keys: Sequence[int], asked: list[int] | None = None) -> Callable[[int], int | None]:
    def first_behind(key: int) -> int | None:
        if asked is not None:
            asked.append(key)
        place = bisect.bisect_right(keys, key)
        return keys[place] if place < len(keys) else None

    return first_behind


@pytest.mark.parametrize(
    ("count", "partitions"),
    [(0, 1), (1, 1), (25_000, 1), (25_001, 2), (1_000_000, 8), (2_000_001, 9), (10_000_000, 40)],
)
def test_partitions_are_few_and_grow_with_the_messages(count: int, partitions: int) -> None:
    assert partitions_for(count) == partitions


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 11, 100])
def test_a_list_is_divided_exactly_and_in_order(count: int) -> None:
    parts = (("a", 4), ("b", 0), ("c", 5), ("d", 2))
    pieces = divided(parts, count)
    assert len(pieces) == min(count, 11)
    sizes = [sum(span.stop - span.start for span in piece) for piece in pieces]
    assert max(sizes) - min(sizes) <= 1
    seen = [(s.name, at) for piece in pieces for s in piece for at in range(s.start, s.stop)]
    assert seen == [(name, at) for name, size in parts for at in range(size)]


def test_an_empty_list_has_no_pieces() -> None:
    assert divided((), 4) == []
    assert divided((("a", 0),), 4) == []
    assert divided((("a", 2),), 1) == [(Span("a", 0, 2),)]


@pytest.mark.parametrize(
    "keys",
    [
        [1],
        [7, 8],
        list(range(1, 1000)),
        [3, 999_999_999_999_999],
        [*range(1, 100), *range(10**9, 10**9 + 100)],
        list(range(1, 100_000, 37)),
    ],
)
def test_the_last_key_is_found_in_few_questions(keys: list[int]) -> None:
    asked: list[int] = []
    assert last_key(behind(keys, asked), keys[0], len(keys)) == keys[-1]
    assert len(asked) < 120


def fill(keys: Sequence[int], ranges: Sequence[tuple[int, int]]) -> list[int]:
    """How many keys each range holds; the ranges hold all keys, each once, and in order."""
    inside = [[key for key in keys if low <= key <= high] for low, high in ranges]
    assert [key for each in inside for key in each] == list(keys)
    return [len(each) for each in inside]


@pytest.mark.parametrize(
    "keys",
    [
        list(range(1, 10_001)),
        list(range(5, 50_000, 5)),
        [*range(1, 1000), *range(10**9, 10**9 + 9000)],
        [*range(1, 3000), *range(10**6, 10**6 + 3000), *range(10**12, 10**12 + 3000)],
    ],
)
def test_ranges_of_keys_hold_about_as_many_each(keys: list[int]) -> None:
    counts = fill(keys, key_ranges(behind(keys), keys[0], keys[-1], 4))
    assert len(counts) == 4
    assert max(counts) < 1.35 * len(keys) / 4, counts


@pytest.mark.parametrize("count", [1, 2, 5, 1000])
def test_ranges_of_keys_leave_nothing_out(count: int) -> None:
    for keys in ([4], [4, 5], [4, 9, 10**15 - 1], [1, 2, 3, 500, 501, 502, 90_000]):
        ranges = key_ranges(behind(keys), keys[0], keys[-1], count)
        assert 1 <= len(ranges) <= count
        fill(keys, ranges)


def test_what_is_taken_while_keys_are_looked_up_does_no_harm() -> None:
    # The keys that were there at first are all covered, although half of them are gone.
    first, last = 10, 10_000
    ranges = key_ranges(behind([*range(10, 5000)]), first, last, 4)
    assert ranges[0][0] == first
    assert ranges[-1][1] == last
