"""What there is to judge of a paged storage: disks as crashes, kills and failures leave them.

Each generator makes a scenario happen on a disk, lets something go wrong, and yields every disk
that a restart may then find, with the promises it has to keep. Nothing is judged here but what the
generator needs itself; `judge_all` does that, and tells how to repeat what broke a promise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mqserver.errors import StorageError
from mqserver.storage.contract import QueueSettings
from tests.crash.conftest import CrashOptions
from tests.crash.crash_states import crash_states
from tests.crash.faults import Fault, Faults, Operation, at
from tests.crash.paged_oracle import Violation
from tests.crash.paged_scenarios import traced
from tests.crash.paged_work import History, Stopped, Work, judge, message, open_storage, recognised
from tests.crash.recording_disk import RecordingDisk
from tests.crash.trace import Noted, Trace

NESTED_EACH = 40
UNLIMITED_BYTES = RecordingDisk().capacity_bytes


class Case(NamedTuple):
    """Something to be judged: a disk, and what a run had promised when it was left so."""

    disk: RecordingDisk
    history: History
    events: tuple[object, ...]
    told: object


def judge_all(
    cases: Iterator[Case], options: CrashOptions, budget: int | None, what: str = "crash states"
) -> int:
    """Judges them one by one, and counts them; with the option `--crash-state` only that one."""
    number = 0
    for number, case in enumerate(cases, start=1):
        if options.state not in (None, number):
            continue
        try:
            judge(case.disk, case.history, case.events, number)
        except BaseException as error:
            again = options.replay(number, budget)
            error.add_note(f"{case.told}\nrepeat it with: {again}")
            raise
    options.count(what, number)
    return number


# --- Power cuts ----------------------------------------------------------------------------------


def crash_cases(name: str, seed: int, budget: int | None) -> Iterator[Case]:
    """What a power cut leaves at every moment of a scenario."""
    work = traced(name, seed)
    for state in crash_states(work.disk.trace, seed, budget):
        yield Case(state.disk(), work.history, state.events, state)


def nested_cases(name: str, seed: int, budget: int) -> Iterator[Case]:
    """What a second one leaves, during the restart, and now and then during the work after it."""
    for number, (disk, history, events, told) in enumerate(crash_cases(name, seed, budget)):
        storage = open_storage(disk)
        left = recognised(storage, history, events)
        work = Work(disk, left, storage)
        if number % 4 == 0:
            work_on(work)
        for state in crash_states(work.disk.trace, seed, NESTED_EACH):
            yield Case(state.disk(), work.history, state.events, f"{told}\nand then {state}")


def work_on(work: Work) -> None:
    """A little of everything, in the first queue that there is, or in a new one."""
    name = next(iter(work.model.state.queues), "second")
    if name not in work.model.state.queues:
        work.do("create_queue", name, QueueSettings())
    work.put(name, message("second life", 300), message("large", 800))
    work.get(name, 1)
    work.do("checkpoint")


# --- A process that ends, on a machine that goes on ----------------------------------------------


def killed_cases(name: str, seed: int, budget: int) -> Iterator[Case]:
    """A process was killed at every operation, the next one went on, and then the power was cut.

    The second one began with what the kernel showed it. What it has shown to others must not be
    lost, though it was the first one's to sync.
    """
    for operation in operations_of(name, seed):
        work = traced(name, seed, at(operation.number, Fault.CRASH))
        yield from _second_life(work, seed, budget, f"killed at {operation}")


def failed_cases(name: str, seed: int, budget: int) -> Iterator[Case]:
    """The same after every sync of a file that failed: the kernel still shows what may be lost.

    Not after those of the directory. Names are in the journal of the file system, which does not
    go on when it cannot be written.
    """
    for operation in operations_of(name, seed):
        if operation.kind == "sync" and operation.name != ".":
            work = traced(name, seed, at(operation.number, Fault.EIO))
            yield from _second_life(work, seed, budget, f"failed at {operation}")


def operations_of(name: str, seed: int) -> list[Operation]:
    """All that a scenario does to its disk."""
    found: list[Operation] = []

    def look(operation: Operation) -> None:
        if operation.kind != "read":
            found.append(operation)

    traced(name, seed, look)
    return found


def _second_life(work: Work, seed: int, budget: int, what: str) -> Iterator[Case]:
    disk, first = work.disk, work.history
    said = _events(disk.trace)
    killed = len(disk.trace.entries)
    disk.restart()
    storage = open_storage(disk)
    left = recognised(storage, first, said)
    opened = len(disk.trace.entries)
    again = Work(disk, left, storage)
    work_on(again)
    restart = Trace(disk.trace.initial, disk.trace.entries[:opened])
    for state in crash_states(restart, seed, budget, start=killed + 1):
        yield Case(state.disk(), first, said, f"{what}, and then {state}")
    for state in crash_states(disk.trace, seed, budget, start=opened + 1):
        events = state.events[len(said) :]
        yield Case(state.disk(), again.history, events, f"{what}, and then {state}")


def _events(trace: Trace) -> tuple[object, ...]:
    return tuple(entry.event for entry in trace.entries if isinstance(entry, Noted))


# --- Disks that fail or fill up ------------------------------------------------------------------


def faulty_cases(
    name: str, seed: int, fault: Callable[[int], Faults], budget: int
) -> Iterator[Case]:
    """Every operation met with a fault; the work went on where it could, and the power was cut."""
    for operation in operations_of(name, seed):
        disk = RecordingDisk(faults=fault(operation.number))
        yield from _cases_since(operation, traced(name, seed, disk=disk), seed, budget)


def full_cases(name: str, seed: int, budget: int) -> Iterator[Case]:
    """The disk had no more room from every operation on, until somebody made some."""
    for operation in operations_of(name, seed):
        disk = RecordingDisk()
        disk.faults = _filling(disk, operation.number)
        work = traced(name, seed, disk=disk)
        if work.failure is not None:
            raise Violation(f"a disk that was full at {operation} is taken for one that failed")
        yield from _cases_since(operation, work, seed, budget)


def _cases_since(operation: Operation, work: Work, seed: int, budget: int) -> Iterator[Case]:
    """What a power cut may leave from the fault on: before that nothing was unusual."""
    trace = work.disk.trace
    start = work.disk.entries_at[operation.number]
    _go_on_without_faults(work)
    for state in crash_states(trace, seed, budget, start=start):
        yield Case(state.disk(), work.history, state.events, f"{operation}, and then {state}")


def _filling(disk: RecordingDisk, number: int) -> Faults:
    def fill(operation: Operation) -> None:
        if operation.number == number and operation.kind != "read":
            disk.capacity_bytes -= disk.room()

    return fill


def _go_on_without_faults(work: Work) -> None:
    """The disk is well again and has room: a storage that did not fail has nothing to complain."""
    work.disk.faults = None
    work.disk.capacity_bytes = UNLIMITED_BYTES
    if work.failure is None and not work.is_over:
        work.may_fail = False
        work_on(work)
        work.reopen()
        work.check()
    elif not work.is_over:
        with contextlib.suppress(Stopped, StorageError):
            work.close()
