"""W8: rows written and read by Spark, as benchmarks/spark_sink.py and spark_source.py do it.

Here their figures become rows of the comparison with the peers. A round is one job; its calls in
a second are its rows in a second.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import measure, spark_sink, spark_source
from benchmarks.measure import Effort, Round, Setting
from benchmarks.peers.operations import Operation
from benchmarks.peers.running import Addresses, Row
from benchmarks.peers.systems import COPIED, FILES, OURS, SPARK_LIMIT, STREAMED
from benchmarks.peers.team import Broken
from benchmarks.peers.workloads import Workload

# What the systems are called among the subjects of the two benchmarks.
WRITERS = {
    OURS: spark_sink.OURS,
    FILES: spark_sink.PARQUET,
    SPARK_LIMIT: spark_sink.THROWN,
    COPIED: spark_sink.COPIED,
}
READERS = {
    OURS: spark_source.BROWSED,
    STREAMED: spark_source.RESERVED,
    SPARK_LIMIT: spark_source.MADE_UP,
}


def run(
    workload: Workload,
    rounds: int,
    _: Addresses,
    step: Callable[[str], None],
    limit_s: float | None = None,
) -> list[Row]:
    """See `running.run`. The jobs share a session: if one fails, all are absent."""
    assert limit_s is None, "rounds of jobs are counted, and not cut"
    try:
        with (
            tempfile.TemporaryDirectory(prefix="oncemq-spark-", dir="/var/tmp") as folder,
            _told_as_broken(),
        ):
            return _run(workload, rounds, step, Setting(Path(folder)))
    except Broken as reason:
        return [Row(workload, system, absent=str(reason)) for system in workload.participants()]


@contextmanager
def _told_as_broken() -> Iterator[None]:
    try:
        yield
    except Exception as failed:
        raise Broken(f"{type(failed).__name__}: {failed}".partition("\n")[0]) from failed


def _run(
    workload: Workload, rounds: int, step: Callable[[str], None], setting: Setting
) -> list[Row]:
    if workload.operation is Operation.SPARK_WRITE:
        [comparison] = spark_sink.comparisons(setting)
        names, rows_each = WRITERS, spark_sink.ROWS
    else:
        [comparison] = spark_source.comparisons(setting)
        names, rows_each = READERS, spark_source.ROWS
    effort = Effort(rounds, calls=1)
    found = measure.run(comparison, effort, time.perf_counter, partial(step, "Spark")).rounds
    rows = []
    for system in workload.participants():
        taken = found.get(names[system.name], ())
        told = "" if taken else "its server is not there"
        rows.append(Row(workload, system, [_in_rows(each, rows_each) for each in taken], told))
    return rows


def _in_rows(taken: Round, rows: int) -> Round:
    # One job is one call.
    return Round(taken.p50_s, taken.p99_s, taken.calls_per_s * rows, 1)
