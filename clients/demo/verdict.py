"""Whether the demo came out exact: every order is one invoice in the queue and one in the table.

Pure: it is handed what was found there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

# In hundredths, as money is.
PRICE, TAX = 250, 19


class Invoice(NamedTuple):
    """An invoice as it must be."""

    order: int
    total: int


def invoice_of(order: int) -> Invoice:
    """What this order is to become. The pipeline's SQL says the same."""
    amount = PRICE + order % 1000
    return Invoice(order, amount * (100 + TAX) // 100)


class Place(NamedTuple):
    """What was found in one place, against what must be there."""

    found: int
    lost: int
    duplicated: int
    strange: int

    @property
    def is_exact(self) -> bool:
        """Each invoice once, and nothing else."""
        return not (self.lost or self.duplicated or self.strange)


def judged(orders: int, found: Iterable[Invoice]) -> Place:
    """What is wrong with a place."""
    counted = Counter(found)
    expected = {invoice_of(number) for number in range(orders)}
    return Place(
        found=counted.total(),
        lost=len(expected - counted.keys()),
        duplicated=sum(times - 1 for times in counted.values()),
        strange=len(counted.keys() - expected),
    )


class Verdict(NamedTuple):
    """The whole: both places, and what was left behind."""

    orders: int
    queue: Place
    table: Place
    orders_left: int
    in_doubt: int
    kills: Mapping[str, int]
    batches: int
    retries: int
    seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether it is as was promised."""
        is_settled = not (self.orders_left or self.in_doubt)
        return self.queue.is_exact and self.table.is_exact and is_settled
