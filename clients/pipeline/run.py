"""Runs a pipeline: one transaction for each batch, again where it failed and that may pass.

In a batch, getting the messages, putting the results and writing the tables are one transaction. So
a batch that was rolled back has left its messages where they were, and one that was committed has
none left to be got twice: trying again is safe, also after an outcome that is not known. A stream
is tried again from its checkpoint, and a batch of it that was committed is skipped by its key.

What is done in Spark is behind `Work`. It knows no terminal, and is handed the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from clients.errors import OutcomeUnknown
from clients.pipeline.keys import Mode, When
from clients.pipeline.plan import Plan
from clients.pipeline.progress import Batch, Progress
from clients.pipeline.retrying import is_passing, is_spark_gone, pause_s, reason

LOOK_S = 0.2

T = TypeVar("T")


class Failed(Exception):
    """A batch failed for good and was rolled back; what was committed before it stays."""

    def __init__(self, told: str, is_unknown: bool = False) -> None:
        super().__init__(told)
        # Whether the last batch was committed is not known.
        self.is_unknown = is_unknown


class Work(Protocol):
    """What is done in Spark and at the servers."""

    def waiting(self) -> Mapping[str, int]:
        """How many messages each source has, by its name."""

    def batch(self, most: Mapping[str, int], opened: Callable[[str], None]) -> Batch | None:
        """One transaction over at most so many messages of each source; None: there were none.

        `opened` is told its otid. When this raises, it was rolled back, or its outcome is not
        known.
        """

    def outcome(self, otid: str) -> bool | None:
        """Whether the transaction was committed; None while that is not known."""

    def stream(
        self,
        opened: Callable[[str], None],
        committed: Callable[[Batch], None],
        stop: Callable[[], bool],
    ) -> None:
        """Runs the stream until it ends by its trigger, or `stop` says so; raises what failed."""


class Listener(Protocol):
    """Who is told of each event; the counts are in `Progress`."""

    def committed(self, batch: Batch) -> None:
        """A batch has happened."""

    def retrying(self, why: str, pause_s: float, attempt: int) -> None:
        """It failed, and will be tried again after a pause, for this attempt."""


class Runner:
    """One run of a pipeline."""

    def __init__(
        self,
        plan: Plan,
        work: Work,
        progress: Progress,
        listener: Listener,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        stop: Callable[[], bool],
    ) -> None:
        self._plan = plan
        self._work = work
        self._progress = progress
        self._listener = listener
        self._clock = clock
        self._sleep = sleep
        self._stop = stop
        self._attempt = 0

    def run(self) -> None:
        """Until its trigger or `stop` ends it. Raises `Failed`."""
        if self._plan.mode is Mode.STREAM:
            self._run_stream()
        elif self._plan.trigger.when is When.ONCE:
            self._tried(lambda: self._batch(self._whole_batch()))
        elif self._plan.trigger.when is When.AVAILABLE_NOW:
            self._run_available()
        else:
            self._run_for_ever()
        self._progress.state = "ended"

    # --- Batches

    def _run_available(self) -> None:
        """What was there at the beginning is done, and nothing that came later."""
        left = dict(self._tried(self._work.waiting))
        looks = 0
        while not self._stop():
            self._progress.waiting = left
            most = {name: min(self._plan.batch_messages, left[name]) for name in left}
            if not any(most.values()):
                return
            done = self._tried(lambda most=most: self._batch(most))  # type: ignore[misc]
            if done is None:
                # What a batch that failed had locked comes back when its transaction is settled.
                looks += 1
                if not self._progress.retries or looks > self._plan.retries:
                    return
                self._progress.state = "waiting for what a failed batch had locked"
                self._wait(pause_s(looks))
                continue
            looks = 0
            for name, rows in done.rows_in.items():
                left[name] -= rows

    def _run_for_ever(self) -> None:
        while not self._stop():
            begun = self._clock()
            self._progress.waiting = self._tried(self._work.waiting)
            if any(self._progress.waiting.values()):
                self._tried(lambda: self._batch(self._whole_batch()))
            else:
                self._progress.state = "waiting for messages"
            self._wait(self._plan.trigger.every_s - (self._clock() - begun))

    def _whole_batch(self) -> dict[str, int]:
        return {source.name: self._plan.batch_messages for source in self._plan.sources}

    def _batch(self, most: Mapping[str, int]) -> Batch | None:
        self._progress.state = "working"
        try:
            done = self._work.batch(most, self._opened)
        except OutcomeUnknown as unknown:
            if not self._turned_out_well(unknown.otid):
                raise
            # Its rows were not told; the messages are gone from their queues.
            done = Batch(unknown.otid, {}, {})
        except BaseException:
            self._progress.closed()
            raise
        if done is None:
            self._progress.closed()
        else:
            self._committed(done)
        return done

    def _turned_out_well(self, otid: str) -> bool:
        self._progress.state = "asking for the outcome"
        for attempt in range(1, self._plan.retries + 2):
            is_committed = self._work.outcome(otid)
            if is_committed is not None:
                return is_committed
            self._wait(pause_s(attempt))
        return False

    # --- Streams

    def _run_stream(self) -> None:
        def go() -> None:
            self._progress.state = "working"
            self._work.stream(self._opened, self._committed, self._stop)

        self._tried(go)

    # --- What all of them do

    def _opened(self, otid: str) -> None:
        self._progress.opened(otid, self._clock())

    def _committed(self, batch: Batch) -> None:
        self._attempt = 0
        self._progress.committed(batch, self._clock())
        self._listener.committed(batch)

    def _tried(self, act: Callable[[], T]) -> T:
        """What it returns; tried again while that makes sense. Raises `Failed`."""
        self._attempt = 0
        while True:
            try:
                return act()
            # Whatever a function of the user or Spark raises: it is told, and ends the run.
            except Exception as raised:
                self._progress.closed()
                if self._stop() or not self._try_again(raised):
                    raise self._final(raised) from raised

    def _try_again(self, raised: Exception) -> bool:
        if not is_passing(raised) or self._attempt >= self._plan.retries:
            return False
        self._attempt += 1
        self._progress.retries += 1
        pause = pause_s(self._attempt)
        why = reason(raised)
        self._progress.state = f"trying again: {why}"
        self._listener.retrying(why, pause, self._attempt)
        self._wait(pause)
        return True

    def _final(self, raised: Exception) -> Failed:
        why = reason(raised)
        end = "" if why.endswith((".", "!", "?")) else "."
        if is_spark_gone(raised):
            return Failed(f"{why}{end} The batch at hand was rolled back: start again.")
        tried = f" It was tried {self._attempt + 1} times." if self._attempt else ""
        if isinstance(raised, OutcomeUnknown):
            return Failed(f"{why}{end}{tried}", is_unknown=True)
        return Failed(f"{why}{end}{tried} The batch at hand was rolled back.")

    def _wait(self, pause: float) -> None:
        until = self._clock() + pause
        while (left := until - self._clock()) > 0 and not self._stop():
            self._sleep(min(left, LOOK_S))
