"""How messages are divided among partitions: by position in a list, or by key in a queue.

Pure. A list is divided exactly. A queue that is only looked at cannot be: nobody counts its keys.
Instead a few of them are looked up, what is empty between them is left out, and the rest is taken
for evenly filled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

# A task of Python costs 60 ms before it reads anything, so that small ones do not pay.
MESSAGES_PER_PARTITION_MIN = 25_000
MESSAGES_PER_PARTITION_MAX = 250_000
PARTITIONS_USUAL_MAX = 8
PROBES_PER_PARTITION = 8
PROBES_MAX = 512


class Span(NamedTuple):
    """Positions of one list, or keys of a queue, from `start` to before `stop`."""

    name: str
    start: int
    stop: int


def partitions_for(count: int) -> int:
    """How many partitions so many messages come in, unless somebody says it."""
    few = min(_rounded_up(count, MESSAGES_PER_PARTITION_MIN), PARTITIONS_USUAL_MAX)
    return max(1, few, _rounded_up(count, MESSAGES_PER_PARTITION_MAX))


def divided(parts: Sequence[tuple[str, int]], count: int) -> list[tuple[Span, ...]]:
    """The lists with these names and sizes, one behind the other, in so many equal pieces.

    Fewer where there are not enough messages; sizes of pieces differ by one at most.
    """
    total = sum(size for _, size in parts)
    pieces = min(count, total)
    bounds = [total * number // pieces for number in range(pieces + 1)] if pieces else [0]
    return [_spans(parts, low, high) for low, high in pairwise(bounds)]


def _spans(parts: Sequence[tuple[str, int]], low: int, high: int) -> tuple[Span, ...]:
    found = []
    before = 0
    for name, size in parts:
        start, stop = max(low - before, 0), min(high - before, size)
        if start < stop:
            found.append(Span(name, start, stop))
        before += size
    return tuple(found)


def last_key(first_behind: Callable[[int], int | None], first: int, guess: int) -> int:
    """The last key there is, `first` being the first, and about so many behind it.

    `first_behind(key)` is the next key there is, None where there is none.
    """
    low, step = first, max(1, guess)
    while (found := first_behind(low + step)) is not None:
        low, step = found, 2 * step
    high = low + step
    # There is one at `low`, and none behind `high`.
    while low < high:
        middle = (low + high) // 2
        found = first_behind(middle)
        low, high = (low, middle) if found is None else (found, high)
    return low


def key_ranges(
    first_behind: Callable[[int], int | None], first: int, last: int, count: int
) -> list[tuple[int, int]]:
    """So many ranges of keys, both ends included, that hold about as many messages each.

    The longest stretches are looked into first, and where there is nothing they are cut.
    """
    stretches = _stretches(first_behind, first, last, min(count * PROBES_PER_PARTITION, PROBES_MAX))
    total = sum(high - low + 1 for low, high in stretches)
    pieces = min(count, total)
    bounds = [total * number // pieces for number in range(pieces + 1)]
    cuts = [_key_at(stretches, bound) for bound in bounds[:-1]]
    return [(low, high - 1) for low, high in zip(cuts, [*cuts[1:], last + 1], strict=True)]


def _stretches(
    first_behind: Callable[[int], int | None], first: int, last: int, probes: int
) -> list[tuple[int, int]]:
    """From the first key to the last without the gaps that were found, in order.

    Each ends in keys that were there when they were looked up.
    """
    waiting = [(first - last, first, last)]
    done: list[tuple[int, int]] = []
    for _ in range(probes):
        if not waiting:
            break
        _, low, high = heapq.heappop(waiting)
        middle = (low + high) // 2
        found = first_behind(middle)
        # What is there no longer was taken meanwhile.
        right = high if found is None else min(found, high)
        for start, stop in ((low, middle), (right, high)):
            if stop - start > 1:
                heapq.heappush(waiting, (start - stop, start, stop))
            elif start <= stop:
                done.append((start, stop))
    return sorted([*done, *((low, high) for _, low, high in waiting)])


def _key_at(stretches: Sequence[tuple[int, int]], position: int) -> int:
    for low, high in stretches:
        size = high - low + 1
        if position < size:
            return low + position
        position -= size
    raise AssertionError(f"position {position} behind the last key")


def _rounded_up(number: int, by: int) -> int:
    return -(-number // by)
