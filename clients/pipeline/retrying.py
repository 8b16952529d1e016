"""Which failures of a batch pass: what is tried again, after how long, and how it is told.

An exception of ours that was raised in a task reaches the driver as text within one of Spark's; it
is found there by its name. What passes: a server that was away, a transaction that was rolled back
for that reason, a Python worker or an executor that died. What does not: whatever the rows, the SQL
or a function do wrong, which would go wrong again. Pure.
"""

from __future__ import annotations

import re

from clients.errors import OnceMQError, OutcomeUnknown, RolledBack

PAUSE_S_MIN = 0.25
PAUSE_S_MAX = 15.0
ROLLED_BACK = "rolled back, and nothing of it happened: "

_OURS = re.compile(r"\bclients\.(?:\w+\.)+([A-Z]\w*): ([^\n]*)")
_RAISED = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*(?:Error|Exception)): ([^\n]+)", re.MULTILINE)
# What Spark says when a process of its own is gone.
_LOST = (
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "Python planner",
    "ExecutorLostFailure",
    "FetchFailed",
    "java.io.EOFException",
    "Connection reset",
    "Broken pipe",
)
_SPARK_IS_GONE = ("SparkContext was shut down", "SparkContext has been shut", "Py4JNetworkError")


def told_by(raised: BaseException) -> tuple[str, str]:
    """The name of the exception of ours that was behind it, and its words; empty if none was."""
    if isinstance(raised, OnceMQError):
        return type(raised).__name__, str(raised)
    found = _OURS.findall(str(raised))
    return found[-1] if found else ("", "")


def is_passing(raised: BaseException) -> bool:
    """Whether the same batch may succeed when it is tried again, without any change."""
    if isinstance(raised, OnceMQError):
        return raised.retryable or isinstance(raised, OutcomeUnknown)
    name, words = told_by(raised)
    if name:
        kind = _kinds(OnceMQError).get(name, OnceMQError)
        if kind is RolledBack:
            return "will not help" not in words
        return kind.retryable or kind is OutcomeUnknown
    if isinstance(raised, ConnectionError) or any(each in _all(raised) for each in _SPARK_IS_GONE):
        return False
    return any(each in str(raised) for each in _LOST)


def _kinds(kind: type[OnceMQError]) -> dict[str, type[OnceMQError]]:
    """Every exception of ours by its name."""
    found = {kind.__name__: kind}
    for each in kind.__subclasses__():
        found |= _kinds(each)
    return found


def is_spark_gone(raised: BaseException) -> bool:
    """Whether Spark's Java process ended, so that only a new start of the program helps."""
    is_lost = isinstance(raised, ConnectionError) and not told_by(raised)[0]
    return is_lost or any(each in _all(raised) for each in _SPARK_IS_GONE)


def _all(raised: BaseException) -> str:
    return f"{type(raised).__name__}: {raised}"


def reason(raised: BaseException) -> str:
    """Why it failed, in one line: our own words where there are some, else the last exception's."""
    name, words = told_by(raised)
    if words:
        # Whoever is told knows already that it was rolled back, and is told what happens next.
        return words.removeprefix(ROLLED_BACK).removesuffix(" Try it again.")
    if name:
        return name
    if is_spark_gone(raised):
        return "Spark's Java process is gone"
    text = str(raised)
    if "Traceback (most recent call last)" in text:
        python = _RAISED.findall(text[text.index("Traceback (most recent call last)") :])
        if python:
            return ": ".join(python[-1])
    if any(each in text for each in _LOST):
        return "a Python worker or an executor of Spark died"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(raised).__name__}: {lines[0] if lines else 'without a word'}"


def pause_s(attempt: int) -> float:
    """How long to wait before the attempt of this number, from 1 on."""
    return float(min(PAUSE_S_MIN * 2 ** (attempt - 1), PAUSE_S_MAX))
