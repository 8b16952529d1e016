"""A run of a pipeline: batches until there is no more, and again where a failure passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from clients import errors
from clients.pipeline.keys import Mode, Trigger, When
from clients.pipeline.plan import Plan, Sink, Source
from clients.pipeline.progress import Batch, Progress
from clients.pipeline.run import Failed, Runner

PLAN = Plan(
    "p",
    sources=(Source("orders", "orders"),),
    steps=(),
    sinks=(Sink("orders", queue="out"),),
    batch_messages=10,
    retries=3,
)


class Queue:
    """A queue of so many messages, and what goes wrong with its batches, one after the other."""

    def __init__(self, messages: int, *troubles: Exception | None) -> None:
        self.messages = messages
        self.troubles = list(troubles)
        self.is_committed: bool | None = None
        self.asked = 0
        self.streams = 0

    def waiting(self) -> Mapping[str, int]:
        return {"orders": self.messages}

    def batch(self, most: Mapping[str, int], opened: Callable[[str], None]) -> Batch | None:
        opened("otid")
        taken = min(most["orders"], self.messages)
        if self.troubles and (trouble := self.troubles.pop(0)):
            if isinstance(trouble, errors.OutcomeUnknown) and self.is_committed:
                self.messages -= taken
            raise trouble
        if not taken:
            return None
        self.messages -= taken
        return Batch("otid", {"orders": taken}, {"queue out": taken})

    def outcome(self, otid: str) -> bool | None:
        self.asked += 1
        return self.is_committed

    def stream(
        self,
        opened: Callable[[str], None],
        committed: Callable[[Batch], None],
        stop: Callable[[], bool],
    ) -> None:
        self.streams += 1
        while self.messages and not stop():
            done = self.batch({"orders": 10}, opened)
            assert done is not None
            committed(done)


class Heard:
    """What a listener was told."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.reasons: list[str] = []

    def committed(self, batch: Batch) -> None:
        self.batches.append(batch)

    def retrying(self, why: str, pause_s: float, attempt: int) -> None:
        self.reasons.append(why)


class Run:
    """A run by a clock that only sleeping moves."""

    def __init__(self, plan: Plan, queue: Queue) -> None:
        self.now = 0.0
        self.queue = queue
        self.heard = Heard()
        self.progress = Progress(plan.name, 0.0)
        self.is_stopped = False
        self.runner = Runner(
            plan,
            queue,
            self.progress,
            self.heard,
            lambda: self.now,
            self._sleep,
            lambda: self.is_stopped,
        )

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > 100:
            self.is_stopped = True


def test_what_is_there_is_done_in_batches() -> None:
    run = Run(PLAN, Queue(25))
    run.runner.run()
    assert [batch.rows_in["orders"] for batch in run.heard.batches] == [10, 10, 5]
    assert (run.progress.batches, run.progress.total_in(), run.queue.messages) == (3, 25, 0)


def test_once_is_one_batch() -> None:
    run = Run(replace(PLAN, trigger=Trigger(When.ONCE)), Queue(25))
    run.runner.run()
    assert run.queue.messages == 15


def test_a_pipeline_with_a_time_goes_on_until_it_is_stopped() -> None:
    run = Run(replace(PLAN, trigger=Trigger(When.EVERY, 5.0)), Queue(25))
    run.runner.run()
    assert (run.queue.messages, run.progress.batches) == (0, 3)
    assert run.now > 100


def test_what_comes_later_is_not_available_now() -> None:
    run = Run(PLAN, Queue(5))
    batch = run.queue.batch

    def and_more(most: Mapping[str, int], opened: Callable[[str], None]) -> Batch | None:
        run.queue.messages += 5
        return batch(most, opened)

    run.queue.batch = and_more  # type: ignore[method-assign]
    run.runner.run()
    assert run.progress.total_in() == 5


def test_a_failure_that_passes_is_tried_again_after_a_pause() -> None:
    away = errors.ConnectionLost("n1 is away")
    run = Run(PLAN, Queue(10, away, away))
    run.runner.run()
    assert run.heard.reasons == ["n1 is away"] * 2
    assert (run.progress.retries, run.progress.total_in()) == (2, 10)
    assert run.now == pytest.approx(0.75)


def test_retries_are_counted_for_each_batch() -> None:
    away = errors.ConnectionLost("n1 is away")
    run = Run(PLAN, Queue(20, away, away, away, None, away, away, away))
    run.runner.run()
    assert run.progress.batches == 2


def test_there_is_an_end_to_trying() -> None:
    run = Run(PLAN, Queue(10, *[errors.ConnectionLost("n1 is away")] * 10))
    with pytest.raises(Failed, match=r"n1 is away. It was tried 4 times. The batch at hand was"):
        run.runner.run()
    assert run.queue.messages == 10


def test_what_would_fail_again_is_not_tried_again() -> None:
    run = Run(PLAN, Queue(10, ZeroDivisionError("division by zero")))
    with pytest.raises(Failed, match="division by zero"):
        run.runner.run()
    assert run.heard.reasons == []


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_unknown_outcome_is_asked_for_before_anything_is_done_again(is_committed: bool) -> None:
    run = Run(PLAN, Queue(10, errors.OutcomeUnknown(b"\1" * 32)))
    run.queue.is_committed = is_committed
    run.runner.run()
    assert run.queue.asked == 1
    assert run.queue.messages == 0
    assert run.progress.retries == (0 if is_committed else 1)


def test_an_outcome_that_stays_unknown_is_told_as_such() -> None:
    plan = replace(PLAN, retries=0)
    run = Run(plan, Queue(10, errors.OutcomeUnknown(b"\1" * 32)))
    with pytest.raises(Failed) as failed:
        run.runner.run()
    assert failed.value.is_unknown


def test_a_stream_is_started_again_where_it_failed() -> None:
    plan = replace(PLAN, mode=Mode.STREAM)
    run = Run(plan, Queue(30, None, errors.ConnectionLost("n1 is away")))
    run.runner.run()
    assert (run.queue.streams, run.progress.batches, run.queue.messages) == (2, 3, 0)


def test_a_run_that_is_stopped_ends_after_the_batch_at_hand() -> None:
    run = Run(PLAN, Queue(30))
    run.heard.committed = lambda batch: setattr(run, "is_stopped", True)  # type: ignore[method-assign]
    run.runner.run()
    assert run.progress.batches == 1


def test_counts_and_rates_are_summed_up() -> None:
    run = Run(PLAN, Queue(20))
    run.runner.run()
    assert run.progress.summary(10.0) == {
        "pipeline": "p",
        "batches": 2,
        "skipped": 0,
        "retries": 0,
        "rows_in": {"orders": 20},
        "rows_out": {"queue out": 20},
        "seconds": 10.0,
        "rows_per_second": 2.0,
    }
    assert run.progress.rate_now(10.0) == 2.0
    assert run.progress.rate_now(60.0) == 0.0
