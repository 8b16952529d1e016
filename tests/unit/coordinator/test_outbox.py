"""What one transaction alone sends: its answers are heard one by one, and told together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.delivery import Delivery, Parcel
from coordinator.live import Live
from coordinator.outbox import Outbox
from coordinator.protocol import Act, Effect
from idl.turns import SteppedAside, Turns

ALONE = cast(Turns, SimpleNamespace(waiting=0))
LIVE = Live(b"name", "alice", 0.0)


class Answers:
    """A delivery whose calls answer what the test says; it remembers what was told when."""

    def __init__(self, *answers: object) -> None:
        self.answers = dict(enumerate(answers, start=1))
        self.happened: list[object] = []
        self.outbox = Outbox(cast(Delivery, self), self._beside, self.happened.append)

    def send(self) -> None:
        """Everybody is told to commit."""
        parcels: list[Parcel] = [(Effect(Act.SEND_COMMIT, each),) for each in self.answers]
        self.outbox.send(ALONE, LIVE, parcels)

    def started_at_once(
        self, live: Live, waiting: list[Parcel]
    ) -> tuple[list[tuple[Parcel, Callable[[], Any]]], list[Parcel]]:
        begun = [each for each in waiting if self.answers[each[0].participant] != "not sent"]
        left = [each for each in waiting if each not in begun]
        return [(each, lambda: None) for each in begun], left

    def heard(self, live: Live, parcel: Parcel, asked: Callable[[], Any]) -> Sequence[int]:
        number = parcel[0].participant
        answer = self.answers[number]
        if isinstance(answer, BaseException):
            raise answer
        self.happened.append(f"heard {number}")
        return (number,) if answer == "committed" else ()

    def have_committed(self, live: Live, numbers: Sequence[int]) -> None:
        self.happened.append(list(numbers))

    def _beside(self, live: Live, parcel: Parcel) -> None:
        self.happened.append(f"beside {parcel[0].participant}")


def test_all_answers_are_heard_before_it_is_told_who_has_committed() -> None:
    answers = Answers("committed", "otherwise", "committed")
    answers.send()
    assert answers.happened == ["heard 1", "heard 2", "heard 3", [1, 3]]


def test_nothing_is_told_where_nobody_has_committed() -> None:
    answers = Answers("otherwise")
    answers.send()
    assert answers.happened == ["heard 1"]


def test_what_cannot_be_sent_at_once_is_sent_by_another_thread() -> None:
    answers = Answers("not sent", "committed")
    answers.send()
    assert answers.happened == ["beside 1", "heard 2", [2]]


def test_what_would_have_to_be_sent_anew_is_left_to_another_thread() -> None:
    answers = Answers("committed", SteppedAside(), "committed")
    answers.send()
    assert answers.happened == ["heard 1", "beside 2", "heard 3", [1, 3]]


def test_who_has_committed_is_told_also_when_something_goes_wrong_then() -> None:
    answers = Answers("committed", ZeroDivisionError(), "committed")
    with pytest.raises(ZeroDivisionError):
        answers.send()
    assert answers.happened == ["heard 1", [1]]
