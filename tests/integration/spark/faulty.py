"""`format("faulty")`: OnceMQ's sinks in which something goes wrong where a test wants it.

The option `faults` names a folder; a file there with the name of a fault plans it. What its methods
do is written there too, a file for each event, since they run in other processes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from clients.spark.attempts import Vote
from clients.spark.datasource import OnceMQDataSource
from clients.spark.options import Role, read_options
from clients.spark.overwriting import take_out
from clients.spark.sharing import connection_of
from clients.spark.sink import QueueWriter
from clients.spark.stream_sink import QueueStreamWriter

FAULTS = "faults"
# In every first attempt of a task: in the middle of its rows, or after it has prepared.
FIRST_ATTEMPT_FAILS = "first-attempt-fails"
FIRST_VOTE_IS_LOST = "first-vote-is-lost"
# The process of a first attempt is killed in the middle of its rows.
WORKER_IS_KILLED = "worker-is-killed"
# Every attempt fails: those of one partition, or all.
ONE_TASK_FAILS = "one-task-fails"
ALL_TASKS_FAIL = "all-tasks-fail"
# The committer raises, without having committed or after it.
COMMIT_FAILS = "commit-fails"
ANSWER_IS_LOST = "answer-is-lost"
# The committer raises when everything has voted, also what an overwrite takes out.
DECISION_FAILS = "decision-fails"
# Tasks stop in the middle of their rows until the test lets them go on.
TASKS_WAIT = "tasks-wait"
# In one attempt, whichever comes there first: the Java process above it is killed.
EXECUTOR_IS_KILLED = "executor-is-killed"
EXECUTOR_IS_KILLED_AFTER_VOTE = "executor-is-killed-after-its-vote"
# The first attempt of the first task stops in its middle until the test lets it go on, and then
# puts the rows that it had put before once more.
ONE_LAGS = "one-lags"

WAIT_S = 30.0
LAG_S = 120.0


class Injected(Exception):
    """What was planned."""


class Faults:
    """A folder of plans and events. It pickles."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def plan(self, *faults: str) -> None:
        """These will happen."""
        for fault in faults:
            (Path(self.folder) / fault).touch()

    def forget(self, *faults: str) -> None:
        """These will not happen any more."""
        for fault in faults:
            (Path(self.folder) / fault).unlink(missing_ok=True)

    def is_planned(self, fault: str) -> bool:
        """Whether this is to happen."""
        return (Path(self.folder) / fault).exists()

    def is_first_to(self, fault: str) -> bool:
        """Whether this is to happen, and to whoever asks now: nobody else is told so."""
        try:
            (Path(self.folder) / fault).unlink()
        except FileNotFoundError:
            return False
        return True

    def tell(self, event: str) -> None:
        """The event is written down."""
        with (Path(self.folder) / "events").open("a") as events:
            events.write(f"{event}\n")

    @property
    def events(self) -> list[str]:
        """What happened, in order."""
        file = Path(self.folder) / "events"
        return file.read_text().splitlines() if file.exists() else []

    def wait_for(self, event: str, seconds: float = WAIT_S) -> None:
        """Somebody has told this event."""
        deadline = time.monotonic() + seconds
        while event not in self.events:
            assert time.monotonic() < deadline, f"{event} did not happen: {self.events}"
            time.sleep(0.02)

    # --- In Spark's processes

    def passing(self, rows: Iterator[Any]) -> Iterator[Any]:
        """The rows of a task, with what goes wrong in their middle."""
        context = TaskContext.get()
        assert context is not None
        is_first = context.attemptNumber() == 0
        self.tell(f"attempt {context.partitionId()}.{context.attemptNumber()}")
        self.tell(f"python {sys.executable}")
        is_lagging = is_first and context.partitionId() == 0 and self.is_planned(ONE_LAGS)
        if self.is_planned(ONE_LAGS) and not is_lagging:
            # Otherwise all others may be done before the one that is to lag has begun.
            self.wait_for("lagging", LAG_S)
        for number, batch in enumerate(rows):
            yield batch
            if number == 0 and is_lagging:
                self.tell("lagging")
                self._wait_while_planned(ONE_LAGS, LAG_S)
                yield batch
            elif number == 0:
                self._in_the_middle(is_first)

    def kill_executor(self) -> None:
        """The Java process that this one works for is gone; this one does not know it yet."""
        daemon = Path("/proc") / str(os.getppid())
        [executor] = [
            int(line.split()[1])
            for line in (daemon / "status").read_text().splitlines()
            if line.startswith("PPid:")
        ]
        assert (Path("/proc") / str(executor) / "comm").read_text().strip() == "java"
        self.tell("an executor is killed")
        os.kill(executor, signal.SIGKILL)

    def _wait_while_planned(self, fault: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.is_planned(fault) and time.monotonic() < deadline:
            time.sleep(0.02)

    def _in_the_middle(self, is_first: bool) -> None:
        if self.is_planned(ALL_TASKS_FAIL):
            raise Injected("all tasks fail")
        if is_first and self.is_planned(FIRST_ATTEMPT_FAILS):
            raise Injected("the first attempt fails")
        if is_first and self.is_planned(WORKER_IS_KILLED):
            os.kill(os.getpid(), signal.SIGKILL)
        if is_first and self.is_planned(TASKS_WAIT):
            self.tell("waiting")
            self._wait_while_planned(TASKS_WAIT, WAIT_S)
        if self.is_first_to(EXECUTOR_IS_KILLED):
            self.kill_executor()

    def voted(self, vote: Vote) -> Vote:
        """The vote of a task, unless something goes wrong after it was made."""
        context = TaskContext.get()
        assert context is not None
        self.tell(f"voted {vote.rows}" if vote.gtrid else "skipped")
        if context.attemptNumber() == 0 and self.is_planned(FIRST_VOTE_IS_LOST):
            raise Injected("the first vote is lost")
        if context.partitionId() == 1 and self.is_planned(ONE_TASK_FAILS):
            raise Injected("one task fails")
        if self.is_first_to(EXECUTOR_IS_KILLED_AFTER_VOTE):
            self.kill_executor()
        return vote


class FaultyWriter(QueueWriter):
    """See `QueueWriter`."""

    def __init__(self, schema: StructType, options: Any, faults: Faults) -> None:
        super().__init__(schema, options)
        self._faults = faults

    def write(self, iterator: Iterator[Any]) -> Vote:
        return self._faults.voted(super().write(self._faults.passing(iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._faults.tell("commit")
        if self._faults.is_planned(COMMIT_FAILS):
            raise Injected("the commit fails")
        if self._faults.is_planned(DECISION_FAILS):
            connection, queue = connection_of(self._options), self._options.queue
            removed = take_out(connection, self._gtrid, queue)
            self._faults.tell(f"taken out {len(removed)}")
            raise Injected("the decision fails")
        super().commit(messages)
        if self._faults.is_planned(ANSWER_IS_LOST):
            raise Injected("the answer is lost")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._faults.tell(f"abort {sum(each is not None for each in messages)}")
        super().abort(messages)


class FaultyStreamWriter(QueueStreamWriter):
    """See `QueueStreamWriter`."""

    def __init__(self, schema: StructType, options: Any, faults: Faults) -> None:
        super().__init__(schema, options)
        self._faults = faults

    def write(self, iterator: Iterator[Any]) -> Vote:
        return self._faults.voted(super().write(self._faults.passing(iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._faults.tell(f"commit {batchId}")
        if self._faults.is_planned(COMMIT_FAILS):
            raise Injected("the commit fails")
        super().commit(messages, batchId)
        if self._faults.is_planned(ANSWER_IS_LOST):
            raise Injected("the answer is lost")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._faults.tell(f"abort {sum(each is not None for each in messages)}")
        super().abort(messages, batchId)


class FaultySource(OnceMQDataSource):
    """`format("faulty")`."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return FaultyWriter(schema, read_options(self._ours(), Role.SINK), self._faults())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = read_options(self._ours(), Role.STREAM_SINK)
        return FaultyStreamWriter(schema, options, self._faults())

    def _faults(self) -> Faults:
        return Faults(self.options[FAULTS])

    def _ours(self) -> dict[str, str]:
        return {key: value for key, value in self.options.items() if key != FAULTS}
