"""A streaming job in a process of its own: from one queue to another, until there is no more.

    python -m tests.integration.spark.stream_job SETTINGS.json

The Java process of the job is killed at the place that the settings name, if they do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.integration.spark.dying import DEATHS, DyingDataSource, plan_deaths
from tests.integration.spark.world import new_session


def copying(spark: Any, settings: dict[str, str]) -> Any:
    """The query, which is under way. Rows stay in the order of the queue."""
    reader = spark.readStream.format("dying").option("partitions", "1")
    for name in ("url", "consumer", DEATHS, "maxMessagesPerTrigger"):
        reader = reader.option(name, settings[name])
    rows = reader.option("queue", settings["source"]).load()
    writer = rows.select("value", "group").writeStream.format("dying")
    writer = writer.option("url", settings["url"]).option("queue", settings["sink"])
    writer = writer.option(DEATHS, settings[DEATHS])
    writer = writer.option("checkpointLocation", settings["checkpoint"])
    return writer.trigger(availableNow=True).start()


def main() -> None:
    """Runs the query until it ends, or the process does."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(settings["folder"])
    folder.mkdir()
    spark = new_session(folder)
    spark.dataSource.register(DyingDataSource)
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    if settings["place"]:
        plan_deaths(Path(settings[DEATHS]), settings["place"], jvm=jvm)
    copying(spark, settings).awaitTermination()


if __name__ == "__main__":
    main()
