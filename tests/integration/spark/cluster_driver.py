"""A driver on a cluster: jobs are asked for on standard input, one line of JSON each.

    python -m tests.integration.spark.cluster_driver spark://HOST:PORT

Each is answered by a line that says why it failed, or nothing. It runs until its input ends. See
`spark_cluster.py`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import oncemq
from tests.integration.spark.faulty import EXECUTOR_IS_KILLED, FAULTS, Faults, FaultySource

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXECUTORS = 2
READY_S = 120.0
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": str(EXECUTORS),
    "spark.executorEnv.PYTHONPATH": "",
    # Both executors have work from the beginning, wherever it lies.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.locality.wait": "0s",
    # What a lost executor had written for others is missed soon.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    # A task has several batches, so that it has a middle.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    # A task that lags behind the others is run a second time, on the other machine. The process of
    # the attempt that loses outlives it, as it may for a while with any settings.
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "2s",
    "spark.python.task.killTimeout": "120s",
}


def new_session(master: str) -> Any:
    """A session on the cluster."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = builder.master(master).appName("oncemq-tests")
    for key, value in (SETTINGS | {"spark.executorEnv.PYTHONPATH": sys.path[0]}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(FaultySource)
    return spark


def wait_for_executors(spark: Any) -> None:
    """Both are there: one that was killed has a successor."""
    deadline = time.monotonic() + READY_S
    # The driver counts as one as well.
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() <= EXECUTORS:
        assert time.monotonic() < deadline, "the executors are not there"
        time.sleep(0.05)


# --- Jobs ----------------------------------------------------------------------------------------


def numbers(spark: Any, count: int, shuffled: str) -> Any:
    """So many messages, each its own number, in four partitions; perhaps through a shuffle."""
    rows = spark.range(0, count, 1, 4)
    if shuffled == "by key":
        rows = rows.repartition(4, "id")
    elif shuffled == "by turns":
        rows = rows.repartition(4)
    return rows.selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS value")


def save(spark: Any, asked: dict[str, Any]) -> None:
    """Numbers are written to a queue, in a transaction of their own."""
    frame = numbers(spark, asked["count"], asked.get("shuffled", ""))
    writer = frame.write.format("faulty").mode("append").option(FAULTS, asked["faults"])
    writer.option("url", asked["url"]).option("queue", asked["queue"]).save()


def move(spark: Any, asked: dict[str, Any]) -> None:
    """What is in a queue goes to another, in one transaction; an executor dies on the way."""
    faults = Faults(asked["faults"])

    def passing(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if faults.is_first_to(EXECUTOR_IS_KILLED):
                faults.kill_executor()

    with oncemq.spark.transaction(spark, asked["url"]) as job:
        taken = job.read(asked["queue"], partitions=4).select("value")
        job.write(taken.mapInArrow(passing, "value BINARY"), asked["out"])


JOBS: dict[str, Callable[[Any, dict[str, Any]], None]] = {"save": save, "move": move}


def main(master: str) -> None:
    """Jobs, until nobody asks for more."""
    spark = new_session(master)
    for line in sys.stdin:
        asked = json.loads(line)
        failed = ""
        try:
            wait_for_executors(spark)
            JOBS[asked["job"]](spark, asked)
        # Whatever Spark raises: the test says what it should have been.
        except Exception as raised:  # noqa: BLE001
            failed = f"{type(raised).__name__}: {raised}"
        sys.stdout.write(json.dumps({"failed": failed}) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
