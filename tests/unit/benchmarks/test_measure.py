"""The measuring of the benchmarks, tried with subjects whose calls take as long as they say."""

import threading
from dataclasses import dataclass, field

import pytest

from benchmarks.measure import (
    Bar,
    Comparison,
    Effort,
    Result,
    Round,
    Spread,
    Verdict,
    Yardstick,
    count_rounds,
    percentile,
    run,
    spread,
)


@dataclass
class Hand:
    """A clock that is moved by hand."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Timed:
    """A subject whose calls take the given times, over and over; it writes down what happens."""

    name: str
    clock: Hand
    takes_s: list[float]
    diary: list[str] = field(default_factory=list)
    calls: int = 0

    def start(self) -> None:
        self.diary.append(f"start {self.name}")

    def stop(self) -> None:
        self.diary.append(f"stop {self.name}")

    def one_call(self) -> None:
        self.diary.append(self.name)
        self.clock.now_s += self.takes_s[self.calls % len(self.takes_s)]
        self.calls += 1


@dataclass
class Broken(Timed):
    """A subject whose calls fail."""

    def one_call(self) -> None:
        raise ConnectionError("no answer")


def result(ours_s: list[float], limit_s: list[float], yardstick: Yardstick) -> Result:
    """Rounds with these median calls, in each of which two clients made their calls at once."""
    subjects = (Timed("ours", Hand(), [1]), Timed("limit", Hand(), [1]))
    comparison = Comparison("work", subjects, "limit", yardstick=yardstick)
    rounds = {
        name: tuple(Round(p50_s=one, p99_s=9 * one, calls_per_s=2 / one**2) for one in times)
        for name, times in (("ours", ours_s), ("limit", limit_s))
    }
    return Result(comparison, rounds)


def test_rounds_alternate_after_each_subject_has_warmed_up() -> None:
    clock, diary = Hand(), list[str]()
    a, b = (Timed(name, clock, [1.0], diary) for name in "AB")
    run(Comparison("work", (a, b), "A"), Effort(rounds=2, calls=2), clock)
    calls = "AA BB AA BB AA BB".replace(" ", "")
    assert diary == ["start A", "start B", *calls, "stop B", "stop A"]


def test_warming_up_is_not_counted() -> None:
    clock = Hand()
    slow_at_first = Timed("A", clock, [60.0, 60.0, 1.0, 1.0, 1.0, 1.0])
    found = run(Comparison("work", (slow_at_first,), "A"), Effort(rounds=2, calls=2), clock)
    assert found.typical("A") == Round(p50_s=1.0, p99_s=1.0, calls_per_s=1.0)


def test_one_slow_round_moves_neither_times_nor_ratios() -> None:
    clock = Hand()
    # One of the rounds falls into a slow minute, which slows both.
    slow = [1.0, 1.0, 50.0, 1.0, 1.0, 1.0]
    ours = Timed("ours", clock, [2 * one for one in slow])
    limit = Timed("limit", clock, slow)
    comparison = Comparison("work", (ours, limit), "limit")
    found = run(comparison, Effort(rounds=5, calls=1), clock)
    assert found.typical("ours").p50_s == 2.0
    assert found.ratio("ours", "limit") == Spread(median=2.0, low=2.0, high=2.0)


def test_a_subject_is_stopped_when_another_cannot_be_called() -> None:
    clock, diary = Hand(), list[str]()
    subjects = (Timed("A", clock, [1.0], diary), Broken("B", clock, [1.0], diary))
    with pytest.raises(ConnectionError):
        run(Comparison("work", subjects, "A"), Effort(rounds=1, calls=1), clock)
    assert diary == ["start A", "start B", "A", "stop B", "stop A"]


def test_clients_call_at_the_same_time_and_share_the_calls() -> None:
    together = threading.Barrier(3)

    class Meeting(Timed):
        """A call ends only when three callers are in it."""

        def one_call(self) -> None:
            together.wait(timeout=10)
            self.diary.append(threading.current_thread().name)

    clock = Hand()
    meeting = Meeting("A", clock, [1.0])
    ticks = iter(range(1000))
    comparison = Comparison("work", (meeting,), "A", clients=3)
    run(comparison, Effort(rounds=1, calls=6), lambda: float(next(ticks)))
    callers = meeting.diary[1:-1]
    assert len(callers) == 2 * 6
    assert [callers.count(name) for name in set(callers)] == [4, 4, 4]


def test_every_round_is_told_as_it_ends() -> None:
    clock, ended = Hand(), list[float]()
    subjects = (Timed("A", clock, [1.0]), Timed("B", clock, [1.0]))
    comparison, effort = Comparison("work", subjects, "A"), Effort(rounds=3, calls=2)
    run(comparison, effort, clock, lambda: ended.append(clock()))
    assert ended == [2.0 * number for number in range(1, 9)]
    assert len(ended) == count_rounds(comparison, effort)


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (1, 1), (50, 50), (99, 99), (100, 100)])
def test_a_percentile_is_a_value_that_was_measured(percent: float, value: float) -> None:
    assert percentile([float(one) for one in range(1, 101)], percent) == value


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert {percentile([7.0], percent) for percent in (0, 50, 99, 100)} == {7.0}


def test_half_of_the_values_lie_within_the_spread() -> None:
    values = [9.0, 1.0, 4.0, 5.0, 6.0, 2.0, 3.0, 100.0]
    around = spread(values)
    assert around == Spread(median=4.5, low=2.0, high=6.0)
    assert around.low <= around.median <= around.high


def test_a_ratio_is_taken_between_rounds_that_were_taken_together() -> None:
    # Of the medians, 4 and 5, the ratio would be another.
    found = result([1.0, 10.0, 4.0], [1.0, 5.0, 8.0], Yardstick.MEDIAN_CALL)
    assert found.ratio("ours", "limit") == Spread(median=1.0, low=0.5, high=2.0)
    assert found.ratio("limit", "limit") == Spread(1.0, 1.0, 1.0)


def test_throughput_compares_by_all_calls_and_not_by_the_median_one() -> None:
    found = result([3.0], [1.0], Yardstick.THROUGHPUT)
    assert found.ratio("ours", "limit").median == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.0, 1.1, 1.1, 1.1], Verdict.KEPT),
        ([1.0, 1.1, 1.25, 1.3], Verdict.PERHAPS_KEPT),
        ([1.1, 1.3, 1.4, 1.4], Verdict.PERHAPS_MISSED),
        ([1.3, 1.4, 1.4, 1.5], Verdict.MISSED),
    ],
)
def test_a_bar_is_certain_only_where_the_quartiles_agree(
    ratios: list[float], verdict: Verdict
) -> None:
    found = result(ratios, [1.0] * len(ratios), Yardstick.MEDIAN_CALL)
    assert found.verdict(Bar("ours", "limit", ratio_max=1.2)) is verdict


def test_a_comparison_knows_everyone_it_speaks_of() -> None:
    subject = Timed("A", Hand(), [1.0])
    with pytest.raises(AssertionError, match="not all in"):
        Comparison("work", (subject,), "B")
    with pytest.raises(AssertionError, match="not all in"):
        Comparison("work", (subject,), "A", bars=(Bar("B", "A", 1.2),))
    with pytest.raises(AssertionError, match="the same name"):
        Comparison("work", (subject, subject), "A")


def test_a_comparison_that_cannot_take_place_says_why() -> None:
    assert Comparison("TLS", (), "A", skipped="no certificates").skipped == "no certificates"
