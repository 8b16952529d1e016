"""The paged storage on a disk that fails or is full: at every operation, once and for good.

What was acknowledged is not lost, what was not is there as a whole or not at all, and the storage
says `StorageFailed` or `StorageFull`. One that said that the disk is full goes on when it is not
any more. Then the power is cut.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqserver.errors import Corruption, StorageFailed, StorageFull
from mqserver.storage.contract import EVERYTHING, QueueSettings
from tests.crash.conftest import CrashOptions
from tests.crash.faults import Fault, Faults, at, filling_up, since
from tests.crash.paged_cases import faulty_cases, full_cases, judge_all, operations_of
from tests.crash.paged_scenarios import traced
from tests.crash.paged_work import Work, message
from tests.crash.recording_disk import RecordingDisk

FAULTS: dict[str, Callable[[int], Faults]] = {
    "EIO once": lambda number: at(number, Fault.EIO),
    "EIO for good": lambda number: since(number, Fault.EIO),
    "ENOSPC once": lambda number: at(number, Fault.ENOSPC),
    "ENOSPC for good": filling_up,
    "a short write": lambda number: at(number, Fault.SHORT, "write"),
    "short writes": lambda number: since(number, Fault.SHORT, "write"),
}
TRIED = ["reading", "segments", "moving", "closing", "random 40"]
FULL = ["creation", "large_puts", "parcels", "segments", "moving", "shrinking", "random 41"]
EACH = 2


def test_at_least_a_thousand_operations_meet_a_fault() -> None:
    count = sum(len(operations_of(name, 0)) for name in TRIED) * len(FAULTS)
    assert count >= 1_000


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", TRIED)
def test_a_fault_at_any_operation_loses_nothing(
    name: str, fault: str, crash_options: CrashOptions
) -> None:
    budget = crash_options.budget or EACH
    cases = faulty_cases(name, crash_options.seed, FAULTS[fault], budget)
    judge_all(cases, crash_options, budget, what="states after a fault")


@pytest.mark.parametrize("name", FULL)
def test_a_disk_that_is_full_at_any_moment_loses_nothing_and_goes_on_with_room(
    name: str, crash_options: CrashOptions
) -> None:
    budget = crash_options.budget or EACH
    cases = full_cases(name, crash_options.seed, budget)
    judge_all(cases, crash_options, budget, what="states after a full disk")


# --- What is said


@pytest.mark.parametrize("name", ["segments", "moving"])
@pytest.mark.parametrize("fault", [Fault.EIO, Fault.ENOSPC])
def test_a_write_or_sync_that_failed_is_told_by_every_later_change(name: str, fault: Fault) -> None:
    for operation in operations_of(name, 0):
        work = traced(name, 0, at(operation.number, fault))
        if fault is Fault.EIO or operation.kind == "sync":
            assert work.is_over or work.failure, f"nobody was told of {operation}"
        if work.failure and not work.is_over:
            _refuses_changes(work)


def _refuses_changes(work: Work) -> None:
    work.disk.faults = None
    branch = work.branch()
    for call in (
        lambda: work.storage.create_queue("new", QueueSettings()),
        lambda: work.storage.store(branch, "q", [message("more")]),
        lambda: work.storage.reserve("etl", "q", EVERYTHING, 0, 1),
        work.storage.checkpoint,
        work.storage.force,
    ):
        with pytest.raises(StorageFailed):
            call()


def test_taking_out_is_possible_on_a_full_disk() -> None:
    disk = RecordingDisk()
    work = Work(disk)
    work.do("create_queue", "q", QueueSettings())
    for number in range(8):
        work.put("q", message(f"m{number}", 400))
    disk.capacity_bytes -= disk.room()
    work.may_fail = True
    for number in range(30):
        branch = work.branch()
        if work.do("store", branch, "q", [message(f"more {number}", 500)]) is StorageFull:
            break
        if work.do("commit_one_phase", branch) is StorageFull:
            break
    else:
        pytest.fail("there is always room")
    work.may_fail = False
    work.do("rollback", branch)
    work.get("q", 100)
    disk.capacity_bytes += 1_000_000
    work.put("q", message("room again", 500))
    work.reopen()
    work.check()


# --- Reading


@pytest.mark.parametrize("name", ["moving", "shrinking", "reservations", "random 42"])
def test_a_read_that_fails_is_told_and_changes_nothing(
    name: str, crash_options: CrashOptions
) -> None:
    reads = traced(name, crash_options.seed).disk.reads
    for number in range(1, reads + 1):
        work = traced(name, crash_options.seed, at(number, Fault.EIO, "read"))
        work.disk.faults = None
        if work.is_over:
            continue
        if isinstance(work.failure, Corruption):
            with pytest.raises(Corruption, match=r"(control|data|log-).*, offset \d+"):
                work.storage.force()
            continue
        work.may_fail = False
        work.reopen()
        work.check()
    crash_options.count("reads that failed", reads)
