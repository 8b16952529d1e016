"""Everything that a job does with queues, in a process of its own, and what came of it as JSON.

    python -m tests.integration.spark.whole_job SETTINGS.json

It runs where tests do not: on Spark Connect, of which a process cannot have both kinds, and in an
environment with another PySpark. It imports nothing of the tests' own, therefore.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import oncemq

SCHEMA = "id BIGINT, at TIMESTAMP, tags ARRAY<STRING>"


def new_session(settings: dict[str, Any]) -> Any:
    """A session of the kind that is asked for."""
    if settings["is_connect"]:
        return _connected(settings["folder"])
    return oncemq.spark.session("oncemq-tests", master="local[2,4]")


def _connected(folder: str) -> Any:
    # As `remote("local[2]")` does it, but on a free port. Spark itself takes one only where it
    # checks itself while it works, which is slower.
    server = oncemq.spark.session(
        "oncemq-tests",
        master="local[2,4]",
        conf={
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.sql.artifact.isolation.enabled": "true",
            "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
        },
    )
    service = "org.apache.spark.sql.connect.service.SparkConnectService$"
    port = getattr(getattr(server._jvm, service), "MODULE$").localPort()
    os.environ["SPARK_LOCAL_REMOTE"] = os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    from pyspark.sql.connect.session import SparkSession

    return SparkSession.Builder().remote(f"sc://127.0.0.1:{port}").create()


class WholeJob:
    """One step after the other; each says what it saw."""

    def __init__(self, spark: Any, settings: dict[str, Any]) -> None:
        self._spark = spark
        self._url = settings["url"]
        self._folder = settings["folder"]
        self._count = settings["count"]

    def run(self) -> dict[str, Any]:
        """What came of all steps."""
        import pyspark

        answer: dict[str, Any] = {
            "pyspark": pyspark.__version__,
            "module": type(self._spark).__module__,
        }
        for step in (self.write_and_read, self.move, self.stream, self.batches, self.be_told):
            begun = time.monotonic()
            answer[step.__name__] = step()
            answer[f"seconds of {step.__name__}"] = round(time.monotonic() - begun, 1)
        return answer

    def write_and_read(self) -> list[int]:
        """Rows are written as JSON, and read back."""
        rows = self._spark.range(0, self._count, 1, 2).selectExpr(
            "id", "timestamp_seconds(id) AS at", "array(CAST(id AS STRING), NULL) AS tags"
        )
        self._to(rows.write.mode("append"), "written").option("payloadFormat", "json").save()
        reader = self._from(self._spark.read, "written").option("payloadFormat", "json")
        found = reader.schema(SCHEMA).load()
        right = "CAST(id AS STRING) = tags[0] AND at = timestamp_seconds(id)"
        counted = found.selectExpr("count(*)", f"count(DISTINCT IF({right}, id, NULL))")
        return list(counted.first())

    def move(self) -> dict[str, int]:
        """Half of the messages goes through a transaction; another one is rolled back."""
        with oncemq.spark.transaction(self._spark, self._url) as tx:
            taken = tx.read("written", max_messages=self._count // 2)
            tx.write(taken.selectExpr("value", "7 AS priority"), "moved")
            tx.rollback("a try")
        with oncemq.spark.transaction(self._spark, self._url) as tx:
            taken = tx.read("written", max_messages=self._count // 2)
            tx.write(taken.selectExpr("value", "7 AS priority"), "moved")
        return dict(tx.rows)

    def stream(self) -> None:
        """A stream copies what was moved."""
        rows = self._from(self._spark.readStream, "moved").option("consumer", "copier").load()
        writer = self._to(rows.select("value", "priority").writeStream, "streamed")
        query = writer.option("checkpointLocation", f"{self._folder}/streamed")
        query.trigger(availableNow=True).start().awaitTermination()

    def batches(self) -> None:
        """Each batch of a stream is a transaction with two outputs."""

        @oncemq.spark.foreach_batch(self._url, application="batches")
        def twice(frame: Any, batch_id: int, tx: Any) -> None:
            tx.write(frame.select("value"), "one")
            tx.write(frame.where("priority = 7").select("value"), "other")

        rows = self._from(self._spark.readStream, "streamed").option("consumer", "twice").load()
        writer = rows.writeStream.foreachBatch(twice)
        writer = writer.option("checkpointLocation", f"{self._folder}/batches")
        writer.trigger(availableNow=True).start().awaitTermination()

    def be_told(self) -> str:
        """What a wrong option is answered with."""
        try:
            self._to(self._spark.range(1).write.mode("append"), "x").option("quue", "y").save()
        except Exception as told:  # noqa: BLE001
            return str(told)
        return ""

    def _to(self, writer: Any, queue: str) -> Any:
        return writer.format("oncemq").option("url", self._url).option("queue", queue)

    def _from(self, reader: Any, queue: str) -> Any:
        return reader.format("oncemq").option("url", self._url).option("queue", queue)


def main() -> None:
    """Does everything and leaves the answer."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    spark = new_session(settings)
    answer = WholeJob(spark, settings).run()
    Path(settings["answer"]).write_text(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main()
