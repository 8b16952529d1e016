"""The demo's last word: exact only if every order is one invoice in both places."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from clients.demo.screen import show_verdict
from clients.demo.verdict import Invoice, Place, Verdict, invoice_of, judged

ORDERS = 3
RIGHT = [invoice_of(number) for number in range(ORDERS)]
EXACT = Place(found=3, lost=0, duplicated=0, strange=0)


def _verdict(queue: Place = EXACT, table: Place = EXACT, left: int = 0, doubt: int = 0) -> Verdict:
    return Verdict(ORDERS, queue, table, left, doubt, {"node": 2, "coordinator": 1}, 3, 4, 61.0)


def _shown(verdict: Verdict) -> str:
    written = io.StringIO()
    show_verdict(Console(file=written, width=100), verdict)
    return written.getvalue()


def test_each_order_once_is_exact() -> None:
    assert judged(ORDERS, reversed(RIGHT)) == EXACT
    assert _verdict().is_exact


@pytest.mark.parametrize(
    ("found", "place"),
    [
        (RIGHT[:2], Place(2, 1, 0, 0)),
        ([*RIGHT, RIGHT[0]], Place(4, 0, 1, 0)),
        ([*RIGHT[:2], Invoice(2, 1)], Place(3, 1, 0, 1)),
    ],
    ids=["lost", "twice", "wrong"],
)
def test_anything_else_is_not(found: list[Invoice], place: Place) -> None:
    assert judged(ORDERS, found) == place
    assert not _verdict(queue=place).is_exact
    assert not _verdict(table=place).is_exact


def test_what_is_left_behind_is_not_exact() -> None:
    assert not _verdict(left=1).is_exact
    assert not _verdict(doubt=1).is_exact


def test_the_table_says_it_in_words_and_numbers() -> None:
    told = _shown(_verdict())
    assert "Exact: every order is one invoice" in told
    assert "3 (coordinator 1, node 2)" in told
    assert "Not exact" in _shown(_verdict(table=Place(2, 1, 0, 0)))
