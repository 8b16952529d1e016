"""Which failures of a batch pass, and how they are told."""

from __future__ import annotations

import pytest

from clients import errors
from clients.pipeline.retrying import is_passing, is_spark_gone, pause_s, reason

IN_A_TASK = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
{raised}

\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    ("raised", "passes", "words"),
    [
        (errors.ConnectionLost("n1 is away"), True, "n1 is away"),
        (errors.RolledBack("the node restarted"), True, "the node restarted"),
        (errors.RolledBack("the row is wrong", retryable=False), False, "the row is wrong"),
        (errors.OutcomeUnknown(b"\1" * 32), True, "whether it was committed is not known"),
        (errors.NotAllowed("not you"), False, "not you"),
        (
            ValueError(IN_A_TASK.format(raised="clients.errors.ConnectionLost: n1 is away")),
            True,
            "n1 is away",
        ),
        (
            ValueError(IN_A_TASK.format(raised="clients.spark.errors.SchemaError: no such type")),
            False,
            "no such type",
        ),
        (
            ValueError(
                IN_A_TASK.format(
                    raised=f"clients.errors.RolledBack: {errors.RolledBack('x', retryable=False)}"
                )
            ),
            False,
            "Trying it again will not help.",
        ),
        (
            ValueError(IN_A_TASK.format(raised="ZeroDivisionError: division by zero")),
            False,
            "ZeroDivisionError: division by zero",
        ),
        (
            ValueError("SparkException: Python worker exited unexpectedly (crashed)"),
            True,
            "a Python worker or an executor of Spark died",
        ),
        (ValueError("ExecutorLostFailure (executor 1 exited)"), True, "of Spark died"),
        (ConnectionRefusedError("py4j"), False, "Spark's Java process is gone"),
        (KeyError(), False, "KeyError: without a word"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_a_failure_passes_where_nothing_of_ours_was_wrong(
    raised: Exception, passes: bool, words: str
) -> None:
    assert is_passing(raised) is passes
    assert words in reason(raised)
    assert "\n" not in reason(raised)


def test_a_connection_that_spark_lost_is_not_one_of_ours() -> None:
    assert is_spark_gone(ConnectionRefusedError("py4j"))
    assert not is_spark_gone(errors.ConnectionLost("n1"))


def test_pauses_grow_to_a_limit() -> None:
    pauses = [pause_s(attempt) for attempt in range(1, 12)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.25, 15.0)
