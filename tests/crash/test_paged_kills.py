"""The paged storage when its process ends and the machine goes on, and the power is cut later.

A process that is killed leaves in the page cache what it had not synced; one whose sync failed
leaves there what the disk may never get. The next process is shown both. What it has shown to its
own clients must then outlive a power cut, which a loop of `kill -9` cannot see.
"""

from __future__ import annotations

import pytest

from tests.crash.conftest import CrashOptions
from tests.crash.paged_cases import failed_cases, judge_all, killed_cases

KILLED = ["creation", "lazy_ends", "segments", "moving", "shrinking", "closing", "random 30"]
FAILED = ["large_puts", "segments", "doubt_across_checkpoints", "random 31"]
# States for each kill, and for each sync that failed: during the restart, and as many after it.
EACH = 4


@pytest.mark.parametrize("name", KILLED)
def test_what_a_killed_process_left_is_safe_once_it_was_shown(
    name: str, crash_options: CrashOptions
) -> None:
    budget = crash_options.budget or EACH
    cases = killed_cases(name, crash_options.seed, budget)
    count = judge_all(cases, crash_options, budget, what="states after a kill")
    assert count >= 100


@pytest.mark.parametrize("name", FAILED)
def test_what_a_failed_sync_left_is_safe_once_it_was_shown(
    name: str, crash_options: CrashOptions
) -> None:
    budget = crash_options.budget or EACH
    cases = failed_cases(name, crash_options.seed, budget)
    count = judge_all(cases, crash_options, budget, what="states after a failed sync")
    assert count >= 60
