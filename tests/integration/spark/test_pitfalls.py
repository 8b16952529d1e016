"""What Spark does that a sink or source must know: every pitfall that was found has its test.

PITFALLS names them; those that have none elsewhere are here.
"""

from __future__ import annotations

import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import oncemq
from clients.spark.datasource import OnceMQDataSource
from clients.spark.java import DEFAULT_MASTER, NoSpark, ensure_java
from tests.integration.spark.saving import numbers, save, texts
from tests.integration.spark.world import World

# What a transaction over a job needs of pandas works with every one.
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")

ROOT = Path(__file__).resolve().parents[3]
HERE = "tests/integration/spark"
UNIT = "tests/unit/clients/spark"

# fmt: off
PITFALLS = {
    "P1 input that ends early looks like its end": (
        f"{HERE}/test_sink.py::test_input_that_ends_early_counts_for_nothing",
    ),
    "P2 partition and attempt are no unique name": (
        f"{UNIT}/test_attempts.py::test_no_two_attempts_have_the_same_name",
    ),
    "P3 an abort may come without any vote": (
        f"{HERE}/test_sink_failures.py::test_a_rollback_needs_no_votes",
    ),
    "P4 a write that failed may have been committed": (
        f"{HERE}/test_sink_failures.py::"
        "test_a_write_whose_acknowledgement_was_lost_can_be_repeated",
    ),
    "P5 workers outlive their task": (
        f"{UNIT}/test_attempts.py::test_an_attempt_that_comes_after_the_end_is_refused",
        f"{HERE}/test_sink_failures.py::test_nothing_is_there_when_the_job_is_cancelled",
    ),
    "P6 a locked read consumes what was locked": (
        f"{HERE}/test_pitfalls.py::test_what_was_locked_is_consumed_whatever_is_looked_at",
    ),
    "P7 nobody but tasks gives signs of life": (
        "tests/unit/transactions/test_abandoned.py::"
        "test_the_work_of_a_transaction_that_the_coordinator_has_named_waits_for_its_end",
    ),
    "P8 a batch may have several writes": (
        f"{HERE}/test_sink.py::test_a_batch_may_be_written_to_several_queues",
    ),
    "P9 threads other than the main one": (
        f"{HERE}/test_pitfalls.py::test_a_transaction_works_from_any_thread",
        f"{HERE}/test_pitfalls.py::test_a_plain_write_from_another_thread_names_its_session_first",
    ),
    "P10 a local master does not try again": (
        f"{HERE}/test_pitfalls.py::test_sessions_of_ours_try_a_task_again",
    ),
    "P11 workers run another Python": (
        f"{HERE}/test_sink_failures.py::test_tasks_run_the_python_of_the_driver",
    ),
    "P12 readers and writers are pickled": (
        f"{HERE}/test_pitfalls.py::test_whatever_spark_sends_to_tasks_pickles_after_its_use",
    ),
}
# fmt: on


@pytest.mark.parametrize("pitfall", PITFALLS)
def test_every_pitfall_has_its_test(pitfall: str) -> None:
    for named in PITFALLS[pitfall]:
        file, _, name = named.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), named


def test_every_test_that_the_guide_names_is_there() -> None:
    guide = (ROOT / "docs" / "guide" / "spark.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", guide))
    files = (ROOT / HERE).glob("test_*.py")
    there = {
        name for each in files for name in re.findall(r"^def (test_\w+)\(", each.read_text(), re.M)
    }
    assert len(named) > 15
    assert named <= there, named - there


def in_thread(act: Callable[[], object]) -> None:
    """Does it in another thread, and raises what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as failed:  # noqa: BLE001
            raised.append(failed)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def test_what_was_locked_is_consumed_whatever_is_looked_at(spark: Any, server: World) -> None:
    queue, sink = server.new_queue(), server.new_queue()
    server.fill(queue, texts(300))
    with oncemq.spark.transaction(spark, server.url) as tx:
        taken = tx.read(queue, max_messages=100)
        assert len(taken.limit(5).collect()) == 5
        assert taken.where("value = X'31'").count() == 1
        tx.write(taken.limit(5).select("value"), sink)
    assert len(server.payloads(sink)) == 5
    server.check_exact(queue, texts(300)[100:])


def test_a_transaction_works_from_any_thread(spark: Any, server: World) -> None:
    queue, sink = server.new_queue(), server.new_queue()
    server.fill(queue, texts(50))

    def move() -> None:
        with oncemq.spark.transaction(spark, server.url) as tx:
            tx.write(tx.read(queue).select("value"), sink)

    in_thread(move)
    server.check_exact(sink, texts(50))
    assert server.payloads(queue) == []


def test_a_plain_write_from_another_thread_names_its_session_first(
    spark: Any, server: World
) -> None:
    """Spark looks for Python's data sources in the thread's session, and there is none."""
    queue = server.new_queue()
    frame = numbers(spark, 20)
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        in_thread(lambda: save(frame, server, queue))

    def save_in_session() -> None:
        jvm = spark._jvm
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
        save(frame, server, queue)

    in_thread(save_in_session)
    server.check_exact(queue, texts(20))


def test_sessions_of_ours_try_a_task_again(spark: Any) -> None:
    for master in (DEFAULT_MASTER, spark.sparkContext.master):
        attempts = re.fullmatch(r"local\[[^,]+,(\d+)\]", master)
        assert attempts is not None
        assert int(attempts[1]) > 1


def test_whatever_spark_sends_to_tasks_pickles_after_its_use(server: World) -> None:
    schema = StructType([StructField("value", BinaryType())])
    queue = server.new_queue()
    server.fill(queue, texts(10))

    def source(**more: str) -> OnceMQDataSource:
        return OnceMQDataSource({"url": server.url, "queue": queue, **more})

    writer = source().writer(schema, False)
    reader: Any = source().reader(schema)
    rows = [row for each in reader.partitions() for row in reader.read(each)]
    assert sum(each.num_rows for each in rows) == 10
    stream = source(consumer=queue).streamReader(schema)
    stream.initialOffset()
    for used in (writer, reader, stream, source().streamWriter(schema, False), source()):
        again = pickle.loads(pickle.dumps(used))
        assert type(again) is type(used)
    writer.abort([])
    server.check_settled()


def test_a_machine_with_no_java_at_all_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NoSpark) as told:
        ensure_java({"PATH": "", "HOME": str(tmp_path)}, tmp_path)
    sentence = str(told.value)
    assert sentence.startswith("Spark needs Java 17 or newer, and none was found: apt-get install")
    assert "\n" not in sentence
