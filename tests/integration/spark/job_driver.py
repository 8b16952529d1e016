"""A driver that dies where a test wants it to, in a process of its own.

    python -m tests.integration.spark.job_driver SETTINGS.json

It moves what is in a queue into another and into a table, in one transaction, and is killed at the
place that the settings name. It says nothing: what it has left behind is looked at by others.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import oncemq
from clients.deciding import Deciding
from clients.spark.job import JobTransaction
from tests.integration.spark.world import new_session

# Everything is written, and nothing has voted that waits for the end.
WRITTEN = "written"
# Everything has voted.
PREPARED = "prepared"
# It is decided, and the driver has not heard of it.
DECIDED = "decided"
PLACES = (WRITTEN, PREPARED, DECIDED)


def die(*arguments: object) -> NoReturn:
    """The process is gone, and Java with it, since nobody holds its input open any more."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody outlives this")


def plan_death(place: str) -> None:
    """The driver dies there."""
    decide = Deciding.decide

    def decide_and_die(self: Deciding, *arguments: Any) -> NoReturn:
        decide(self, *arguments)
        die()

    if place == WRITTEN:
        setattr(JobTransaction, "commit", die)  # noqa: B010
    else:
        setattr(Deciding, "decide", die if place == PREPARED else decide_and_die)  # noqa: B010


def main(settings: dict[str, str]) -> None:
    """Runs until it dies."""
    spark = new_session(Path(settings["folder"]))
    plan_death(settings["place"])
    with oncemq.spark.transaction(spark, settings["url"]) as job:
        frame = job.read(settings["orders"], partitions=2)
        job.write(frame.select("value"), settings["out"])
        job.write_table(
            frame.selectExpr("cast(cast(value as string) as bigint) as id"),
            settings["table"],
            database=settings["database"],
            password_file=settings["password_file"],
        )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
