"""Work beside the caller's, on real threads: it begins, side by side, later, or not after a close.

Threads meet at barriers and events; nothing here depends on how fast anything is, but no wait is
longer than `PATIENCE_S`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from coordinator.tasks import Promise, Tasks, ThreadPromise, ThreadTasks

PATIENCE_S = 20.0
SOON_S = 0.02


class Running:
    """Tasks under test, and what went wrong in them."""

    def __init__(
        self, threads_max: int = 16, threads_at_once: int = 16, patience_s: float = 0.0
    ) -> None:
        self.errors: SimpleQueue[BaseException] = SimpleQueue()
        self.tasks = ThreadTasks(
            time.monotonic, self.errors.put, threads_max, threads_at_once, patience_s
        )


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    made.tasks.close(PATIENCE_S)


def _threads_of(prefix: str) -> int:
    return sum(thread.name.startswith(prefix) for thread in threading.enumerate())


# --- Now -----------------------------------------------------------------------------------------


def test_work_that_is_spawned_is_done_with_its_arguments(running: Running) -> None:
    tasks: Tasks = running.tasks
    done: SimpleQueue[tuple[int, str]] = SimpleQueue()
    tasks.spawn(lambda *given: done.put(given), 1, "two")
    assert done.get(timeout=PATIENCE_S) == (1, "two")


def test_work_goes_on_side_by_side(running: Running) -> None:
    meeting = threading.Barrier(9)
    for _ in range(8):
        running.tasks.spawn(meeting.wait, PATIENCE_S)
    meeting.wait(PATIENCE_S)


def test_no_work_waits_for_other_work_to_end_however_threads_are_used_again() -> None:
    running = Running(threads_max=256, threads_at_once=1)
    for _ in range(3_000):
        meeting = threading.Barrier(3)
        running.tasks.spawn(meeting.wait, PATIENCE_S)
        running.tasks.spawn(meeting.wait, PATIENCE_S)
        meeting.wait(PATIENCE_S)
    assert running.errors.empty()
    running.tasks.close(PATIENCE_S)


def test_two_at_a_time_that_wait_for_free_threads_need_two() -> None:
    before = _threads_of("oncemq-task")
    running = Running(threads_max=256)
    for _ in range(300):
        meeting = threading.Barrier(3)
        running.tasks.spawn(meeting.wait, PATIENCE_S)
        running.tasks.spawn(meeting.wait, PATIENCE_S)
        meeting.wait(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while running.tasks._idle < 2 and time.monotonic() < deadline:
            time.sleep(0.0)
    assert _threads_of("oncemq-task") - before == 2
    running.tasks.close(PATIENCE_S)


def test_a_thread_that_is_free_is_used_again(running: Running) -> None:
    used = set()
    for _ in range(100):
        done: SimpleQueue[int] = SimpleQueue()
        running.tasks.spawn(lambda done=done: done.put(threading.get_ident()))
        used.add(done.get(timeout=PATIENCE_S))
        # It says so a moment after its work is done.
        deadline = time.monotonic() + PATIENCE_S
        while running.tasks._idle < 1 and time.monotonic() < deadline:
            time.sleep(0.0)
    assert len(used) == 1


def test_a_thread_that_has_reported_is_waited_for_before_another_is_started() -> None:
    running = Running(threads_max=256, threads_at_once=1, patience_s=3600.0)
    used = set()
    for _ in range(1_000):
        done: SimpleQueue[int] = SimpleQueue()
        running.tasks.spawn(lambda done=done: done.put(threading.get_ident()))
        # The next is spawned at once: whether that thread is free again by then is left to chance.
        used.add(done.get(timeout=PATIENCE_S))
    assert len(used) == 1
    assert len(running.tasks._threads) == 1
    running.tasks.close(PATIENCE_S)


def test_two_at_a_time_need_two_threads_however_soon_the_next_two_come() -> None:
    running = Running(threads_max=256, threads_at_once=2, patience_s=3600.0)
    for _ in range(1_000):
        meeting = threading.Barrier(3)
        running.tasks.spawn(meeting.wait, PATIENCE_S)
        running.tasks.spawn(meeting.wait, PATIENCE_S)
        # They have met, and may not have said yet that they are free.
        meeting.wait(PATIENCE_S)
    assert len(running.tasks._threads) == 2
    running.tasks.close(PATIENCE_S)
    assert running.errors.empty()


def test_work_that_has_waited_too_long_gets_a_thread_of_its_own() -> None:
    running = Running(threads_max=8, threads_at_once=1, patience_s=0.0)
    meeting = threading.Barrier(8)
    for _ in range(7):
        running.tasks.spawn(meeting.wait, PATIENCE_S)
    meeting.wait(PATIENCE_S)
    assert len(running.tasks._threads) == 7
    running.tasks.close(PATIENCE_S)


def test_with_all_threads_busy_work_waits_and_is_done_in_its_order() -> None:
    running = Running(threads_max=2)
    release, begun = threading.Event(), threading.Barrier(3)
    done: SimpleQueue[int] = SimpleQueue()

    def hold() -> None:
        begun.wait(PATIENCE_S)
        release.wait(PATIENCE_S)

    running.tasks.spawn(hold)
    running.tasks.spawn(hold)
    begun.wait(PATIENCE_S)
    running.tasks.spawn(done.put, -1)
    assert done.empty()
    release.set()
    assert done.get(timeout=PATIENCE_S) == -1
    # After that there is as much room as before.
    meeting = threading.Barrier(3)
    running.tasks.spawn(meeting.wait, PATIENCE_S)
    running.tasks.spawn(meeting.wait, PATIENCE_S)
    meeting.wait(PATIENCE_S)
    running.tasks.close(PATIENCE_S)


def test_work_may_spawn_work(running: Running) -> None:
    done = threading.Event()
    running.tasks.spawn(running.tasks.spawn, done.set)
    assert done.wait(PATIENCE_S)


# --- Later ---------------------------------------------------------------------------------------


def test_work_for_later_begins_when_the_time_has_passed(running: Running) -> None:
    began: SimpleQueue[float] = SimpleQueue()
    asked = time.monotonic()
    running.tasks.after(SOON_S, lambda: began.put(time.monotonic()))
    assert began.get(timeout=PATIENCE_S) - asked >= SOON_S


def test_work_for_later_begins_in_the_order_of_its_times() -> None:
    now = 0.0
    errors: list[BaseException] = []
    tasks = ThreadTasks(lambda: now, errors.append, threads_max=1)
    done: SimpleQueue[str] = SimpleQueue()
    tasks.after(3.0, done.put, "third")
    tasks.after(1.0, done.put, "first")
    tasks.after(2.0, done.put, "second")
    now = 3.0
    # The clock of this test rings no bell: this does.
    tasks.after(1.0 - now, done.put, "at once")
    got = [done.get(timeout=PATIENCE_S) for _ in range(4)]
    assert got == ["first", "at once", "second", "third"]
    tasks.close(PATIENCE_S)


def test_work_for_the_same_time_begins_in_the_order_in_which_it_was_asked_for() -> None:
    now = 0.0
    errors: list[BaseException] = []
    tasks = ThreadTasks(lambda: now, errors.append, threads_max=1)
    done: SimpleQueue[int] = SimpleQueue()
    for number in range(20):
        tasks.after(5.0, done.put, number)
    now = 5.0
    # The clock of this test rings no bell: this does.
    tasks.after(0.0, done.put, 20)
    assert [done.get(timeout=PATIENCE_S) for _ in range(21)] == list(range(21))
    tasks.close(PATIENCE_S)


def test_what_is_due_earlier_is_not_held_up_by_what_waits(running: Running) -> None:
    done = threading.Event()
    running.tasks.after(3600.0, lambda: None)
    running.tasks.after(0.0, done.set)
    assert done.wait(PATIENCE_S)


def test_the_time_is_that_of_the_clock() -> None:
    tasks = ThreadTasks(lambda: 12.5, lambda failed: None)
    assert tasks.now() == 12.5
    tasks.close(0.0)


# --- Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [ValueError("x"), AssertionError("y"), SystemExit(3)])
def test_what_nobody_caught_is_handed_over_and_the_thread_goes_on(
    failure: BaseException,
) -> None:
    running = Running(threads_max=1)

    def fail() -> None:
        raise failure

    running.tasks.spawn(fail)
    assert running.errors.get(timeout=PATIENCE_S) is failure
    running.tasks.after(0.0, fail)
    assert running.errors.get(timeout=PATIENCE_S) is failure
    done = threading.Event()
    running.tasks.spawn(done.set)
    assert done.wait(PATIENCE_S)
    running.tasks.close(PATIENCE_S)


# --- Closing -------------------------------------------------------------------------------------


def test_a_close_waits_for_what_is_under_way(running: Running) -> None:
    begun, done = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        time.sleep(SOON_S)
        done.set()

    running.tasks.spawn(work)
    begun.wait(PATIENCE_S)
    running.tasks.close(PATIENCE_S)
    assert done.is_set()


def test_a_close_waits_no_longer_than_it_is_told(running: Running) -> None:
    release, begun = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        release.wait(PATIENCE_S)

    running.tasks.spawn(hold)
    begun.wait(PATIENCE_S)
    asked = time.monotonic()
    running.tasks.close(SOON_S)
    assert time.monotonic() - asked < PATIENCE_S / 2
    release.set()


def test_after_a_close_nothing_new_begins(running: Running) -> None:
    done = threading.Event()
    running.tasks.after(SOON_S, done.set)
    running.tasks.close(PATIENCE_S)
    running.tasks.spawn(done.set)
    running.tasks.after(0.0, done.set)
    assert not done.wait(3 * SOON_S)


def test_a_close_leaves_no_thread_behind() -> None:
    before = _threads_of("oncemq-t")
    running = Running()
    meeting = threading.Barrier(4)
    for _ in range(3):
        running.tasks.spawn(meeting.wait, PATIENCE_S)
    meeting.wait(PATIENCE_S)
    assert _threads_of("oncemq-t") >= before + 1
    running.tasks.close(PATIENCE_S)
    assert _threads_of("oncemq-t") == before


def test_work_may_close_what_it_runs_in(running: Running) -> None:
    done = threading.Event()

    def work() -> None:
        running.tasks.close(PATIENCE_S)
        done.set()

    running.tasks.spawn(work)
    assert done.wait(PATIENCE_S)


# --- Promises ------------------------------------------------------------------------------------


def test_a_promise_is_kept_once(running: Running) -> None:
    promise: Promise = running.tasks.promise()
    assert not promise.is_kept()
    promise.keep("first")
    promise.keep("second")
    assert promise.is_kept()
    assert promise.wait() == "first"
    assert promise.wait(0.0) == "first"


def test_a_promise_may_be_kept_with_nothing() -> None:
    promise = ThreadPromise()
    promise.keep(None)
    assert promise.is_kept()
    assert promise.wait(0.0) is None


@pytest.mark.parametrize("timeout_s", [0.0, SOON_S])
def test_whoever_waits_too_long_for_a_promise_is_told_and_may_wait_again(timeout_s: float) -> None:
    promise = ThreadPromise()
    with pytest.raises(TimeoutError):
        promise.wait(timeout_s)
    promise.keep(5)
    assert promise.wait(timeout_s) == 5


def test_all_who_wait_for_a_promise_get_its_value(running: Running) -> None:
    promise = running.tasks.promise()
    waiting = threading.Barrier(6)
    got: SimpleQueue[str] = SimpleQueue()

    def wait() -> None:
        waiting.wait(PATIENCE_S)
        got.put(promise.wait(PATIENCE_S))

    for _ in range(5):
        running.tasks.spawn(wait)
    waiting.wait(PATIENCE_S)
    promise.keep("it")
    assert [got.get(timeout=PATIENCE_S) for _ in range(5)] == 5 * ["it"]


def test_of_many_who_keep_a_promise_at_once_one_is_heard(running: Running) -> None:
    for _ in range(50):
        promise, meeting = running.tasks.promise(), threading.Barrier(5)

        def keep(
            number: int, promise: Promise = promise, meeting: threading.Barrier = meeting
        ) -> None:
            meeting.wait(PATIENCE_S)
            promise.keep(number)

        for number in range(4):
            running.tasks.spawn(keep, number)
        meeting.wait(PATIENCE_S)
        heard = promise.wait(PATIENCE_S)
        assert heard in range(4)
        assert promise.wait() == heard
    assert running.errors.empty()
