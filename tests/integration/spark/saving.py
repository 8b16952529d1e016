"""Writing frames of numbers, in order and with faults, for tests of the sinks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.spark.faulty import FAULTS, Faults, FaultySource
from tests.integration.spark.world import World


def numbers(spark: Any, count: int, partitions: int = 2) -> Any:
    """A DataFrame of so many messages, each its own number."""
    rows = spark.range(0, count, 1, partitions)
    return rows.selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS value")


def texts(count: int) -> list[bytes]:
    """The payloads of `numbers`."""
    return [b"%d" % number for number in range(count)]


def save(frame: Any, server: World, queue: str, **options: object) -> None:
    """The frame is written; with faults, where the options say so."""
    kind = "faulty" if FAULTS in options else "oncemq"
    writer = frame.write.format(kind).mode("append")
    for name, value in {"url": server.url, "queue": queue, **options}.items():
        writer = writer.option(name, str(value))
    writer.save()


def save_faulty(
    frame: Any, server: World, queue: str, folder: Path, *faults: str, **options: object
) -> Faults:
    """The frame is written with these faults; what happened is in the folder."""
    planned = Faults(str(folder))
    planned.plan(*faults)
    register(frame.sparkSession)
    save(frame, server, queue, **{FAULTS: folder, **options})
    return planned


def register(spark: Any) -> None:
    """The session knows `format("faulty")`."""
    spark.dataSource.register(FaultySource)
