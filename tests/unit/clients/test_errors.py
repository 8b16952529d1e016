"""What people read when something went wrong: one sentence after the other, and none twice."""

import pytest

from clients.errors import NotFound, RolledBack, reason_of


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("its time was over", "its time was over. Try it again."),
        ("is the server running?", "is the server running? Try it again."),
        ("nobody answered.", "nobody answered. Try it again."),
    ],
)
def test_a_reason_ends_as_a_sentence_does(reason: str, told: str) -> None:
    assert str(RolledBack(reason)) == f"rolled back, and nothing of it happened: {told}"


def test_why_a_transaction_was_rolled_back_is_said_once_however_often_it_is_passed_on() -> None:
    first = RolledBack("the queue is full", retryable=False)
    again = RolledBack(reason_of(first), first.retryable)
    assert str(again) == str(first)
    assert str(again).count("rolled back") == 1


def test_the_reason_of_any_other_trouble_is_all_that_it_says() -> None:
    assert reason_of(NotFound("no such key")) == "no such key"
