"""What the clients' moments amount to, and what is told of a client that has failed."""

from __future__ import annotations

import pytest

from benchmarks.peers.running import round_of
from benchmarks.peers.team import last_word


def test_a_rate_is_that_of_the_calls_that_were_made() -> None:
    taken = round_of([[10.0, 10.1, 10.3], [10.1, 10.5]])
    assert taken.calls == 3
    assert taken.calls_per_s == pytest.approx(3 / 0.5)
    assert [taken.p50_s, taken.p99_s] == pytest.approx([0.2, 0.4])


def test_a_client_that_has_done_nothing_counts_with_the_time_of_the_others() -> None:
    taken = round_of([[10.0], [10.0, 10.5]])
    assert (taken.calls, taken.calls_per_s) == (1, 2.0)


def test_the_last_word_is_what_the_client_failed_of() -> None:
    lines = ["Traceback (most recent call last):", "  File: x", "ValueError: no", "EOFError: "]
    assert last_word(lines) == "ValueError: no"
    assert last_word([]) == "its client ended without a word"
