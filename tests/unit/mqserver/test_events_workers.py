"""Threads for the channels: as many as are needed, no more than allowed, and none for long."""

from __future__ import annotations

import threading
import time

from mqserver.events.workers import ThreadWorkers

LONG_S = 20.0


def test_work_is_done_and_no_thread_is_started_before_there_is_any() -> None:
    workers = ThreadWorkers("test", 2, time.monotonic)
    assert workers._threads == []
    done = threading.Event()
    workers.submit(done.set)
    assert done.wait(LONG_S)
    workers.close(LONG_S)


def test_two_at_a_time_are_done_by_two_threads_and_never_more() -> None:
    workers = ThreadWorkers("test", 2, time.monotonic)
    both = threading.Barrier(2)
    done = [threading.Event() for _ in range(6)]

    def meet(number: int) -> None:
        both.wait(LONG_S)
        done[number].set()

    for number in range(6):
        workers.submit(lambda number=number: meet(number))  # type: ignore[misc]
    assert all(event.wait(LONG_S) for event in done)
    assert len(workers._threads) == 2
    workers.close(LONG_S)


def test_work_for_later_is_done_when_its_time_has_come() -> None:
    workers = ThreadWorkers("test", 1, time.monotonic)
    done = threading.Event()
    workers.after(0.01, done.set)
    workers.after(3600.0, lambda: None)
    assert done.wait(LONG_S)
    workers.close(LONG_S)
    assert not any(thread.is_alive() for thread in workers._threads)


def test_work_that_fails_does_not_keep_the_next_from_being_done() -> None:
    workers = ThreadWorkers("test", 1, time.monotonic)
    done = threading.Event()

    def fail() -> None:
        raise ValueError("planted")

    workers.submit(fail)
    workers.submit(done.set)
    assert done.wait(LONG_S)
    workers.close(LONG_S)


def test_closing_does_what_was_submitted_and_drops_what_was_for_later() -> None:
    workers = ThreadWorkers("test", 1, time.monotonic)
    done = list[str]()
    workers.after(3600.0, lambda: done.append("later"))
    workers.submit(lambda: done.append("now"))
    workers.close(LONG_S)
    workers.submit(lambda: done.append("after"))
    assert done == ["now"]


def test_closing_does_not_wait_for_ever() -> None:
    workers = ThreadWorkers("test", 1, time.monotonic)
    begun, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait(LONG_S)

    workers.submit(hang)
    assert begun.wait(LONG_S)
    workers.close(0.01)
    go_on.set()
    workers._threads[0].join(LONG_S)
    assert not workers._threads[0].is_alive()
