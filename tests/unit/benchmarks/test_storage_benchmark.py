"""The benchmark of the storages: what it calls reached, and that its subjects do their work."""

from pathlib import Path

import pytest

from benchmarks import storage, storage_depth
from benchmarks.measure import Comparison, Result, Round, Spread
from benchmarks.storage_depth import Finding, Work, letters
from benchmarks.storage_limits import BARE, BARE_TWICE
from mqserver.storage.contract import QueueSettings
from mqserver.storage.memory import MemoryStorage


def finding(value: float, is_at_least: bool, rounds: Spread | None = None) -> Finding:
    """A value that is held against the bar of 200."""
    return Finding("rate", value, "messages/s", 200.0, is_at_least, rounds)


@pytest.mark.parametrize(
    ("value", "is_at_least", "is_reached"),
    [(200, True, True), (199, True, False), (200, False, True), (201, False, False)],
)
def test_a_bar_is_reached_by_the_value_that_it_names(
    value: float, is_at_least: bool, is_reached: bool
) -> None:
    assert finding(value, is_at_least).is_reached == is_reached


def test_a_finding_says_by_how_much_its_bar_is_missed() -> None:
    told = finding(150, is_at_least=True).sentence()
    assert told == "rate: 150 messages/s; the bar is at least 200: not reached, by 25%"


def test_a_finding_is_in_doubt_when_its_rounds_do_not_agree() -> None:
    told = finding(220, is_at_least=True, rounds=Spread(220, 190, 240)).sentence()
    assert told == (
        "rate: 220 (190 to 240) messages/s; the bar is at least 200: reached, by 10%, "
        "within the noise"
    )


def result(put_s: float, bare_s: float) -> Result:
    """One round of puts and one of bare appends, whose calls took so long."""
    rounds: dict[str, tuple[Round, ...]] = {
        name: (Round(p50_s=took_s, p99_s=took_s, calls_per_s=1 / took_s),)
        for name, took_s in (
            (storage.PAGED_PUT, put_s),
            (BARE, bare_s),
            (BARE_TWICE, bare_s * 2),
        )
    }
    return Result(Comparison("work", (), BARE, skipped="made by hand"), rounds)


def test_the_smallest_put_is_held_against_time_and_the_largest_against_bandwidth() -> None:
    (small,) = storage.single_findings(result(0.003, 0.002), storage_depth.SMALL_BYTES)
    large, limit = storage.single_findings(result(0.003, 0.002), storage_depth.LARGE_BYTES)
    assert (small.value, small.is_reached) == (1.5, False)
    assert large.value == pytest.approx(2 / 3)
    assert limit.value == pytest.approx(1 / 2)
    assert not large.is_reached
    assert storage.single_findings(result(0.003, 0.002), 1_000) == []


def test_gets_follow_the_puts_whose_messages_they_take() -> None:
    # Nothing is opened before it is started, so the folder need not be there.
    comparison = storage.batches(Path("nowhere"))
    names = [subject.name for subject in comparison.subjects]
    assert names[:5] == [BARE, "memory put", "memory get", "paged put", "paged get"]


def test_a_get_that_finds_too_little_is_an_error() -> None:
    memory = MemoryStorage(lambda: 0.0)
    memory.create_queue(storage_depth.QUEUE, QueueSettings())
    work = Work(memory)
    work.put(letters(10, 2))
    work.get(2)
    with pytest.raises(AssertionError, match="0 messages instead of 1"):
        work.get(1)
