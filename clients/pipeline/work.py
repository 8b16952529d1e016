"""A pipeline's batches, done in Spark: read, transform, write, all in one transaction.

See `Work`. Every batch builds its views anew, from the frozen list of messages that its transaction
has locked, so that whatever Spark repeats sees the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from clients.connection import Connection
from clients.errors import OnceMQError
from clients.pipeline.functions import SESSION, arguments_for, file_of
from clients.pipeline.keys import When
from clients.pipeline.plan import Plan, Source, Step
from clients.pipeline.progress import Batch
from clients.transaction import Outcome
from idl.databases import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from clients.spark.job import JobTransaction


class BadStep(OnceMQError):
    """A step cannot be done: its SQL is wrong, or its function returned no DataFrame."""


Functions = Mapping[str, Callable[..., Any]]
Frames = dict[str, "DataFrame"]
LOOK_S = 0.2


class SparkWork:
    """See `Work`."""

    def __init__(
        self, spark: SparkSession, connection: Connection, plan: Plan, functions: Functions
    ) -> None:
        self._spark = spark
        self._connection = connection
        self._plan = plan
        self._functions = functions
        # Found out once: what a database can do does not change while we look.
        self._mark: str | None = None
        for function in functions.values():
            file = file_of(function, plan.folder)
            if file is not None:
                spark.addArtifacts(str(file), pyfile=True)

    def waiting(self) -> Mapping[str, int]:
        """See `Work.waiting`."""
        return {
            source.name: len(self._connection.queue(source.queue)) for source in self._plan.sources
        }

    def outcome(self, otid: str) -> bool | None:
        """See `Work.outcome`."""
        try:
            found = self._connection.outcome(otid)
        except OnceMQError:
            return None
        return {Outcome.COMMITTED: True, Outcome.ROLLED_BACK: False}.get(found)

    # --- Batches

    def batch(self, most: Mapping[str, int], opened: Callable[[str], None]) -> Batch | None:
        """See `Work.batch`."""
        from clients.spark.job import transaction

        wanted = [source for source in self._plan.sources if most[source.name]]
        timeout_s, marked = self._plan.timeout_s, self._marked()
        with transaction(self._spark, self._connection, timeout=timeout_s, marked=marked) as job:
            opened(job.otid)
            frames, rows_in = {}, {}
            for source in self._plan.sources:
                before = job.rows[source.queue]
                # One that has nothing is there all the same, without rows.
                frames[source.name] = job.read(
                    source.queue, max_messages=max(most[source.name], 1), **_reading(source)
                )
                rows_in[source.name] = job.rows[source.queue] - before
            if not wanted or not any(rows_in.values()):
                job.rollback("there was nothing to do")
                return None
            rows_out = self._written(job, frames)
        return Batch(job.otid, rows_in, rows_out)

    def _written(self, job: JobTransaction, frames: Frames) -> dict[str, int]:
        """What is made of the rows is in its places; how many rows went to each."""
        # A stream's batch has a session of its own, which alone knows its views.
        spark = next(iter(frames.values())).sparkSession
        made = transformed(spark, self._plan, self._functions, frames)
        rows: Counter[str] = Counter()
        try:
            for sink in self._plan.sinks:
                if sink.queue:
                    rows[sink.where] += job.write(
                        made[sink.view], sink.queue, payload_format=sink.payload
                    )
                else:
                    rows[sink.where] += job.write_table(
                        made[sink.view], sink.table, database=sink.database, dsn=sink.dsn
                    )
        finally:
            for step in self._plan.steps:
                if step.is_cached:
                    made[step.name].unpersist()
        return dict(rows)

    def _marked(self) -> str:
        """The database whose own commit decides, if one of the sinks' cannot prepare."""
        from clients.spark.database_links import Password
        from clients.spark.tables import target_for

        if self._mark is None:
            found = ""
            for sink in self._plan.sinks:
                if not sink.table:
                    continue
                known = target_for(
                    self._connection, sink.table, sink.database, sink.dsn, Password()
                ).known
                if not known.isTwoPhase or known.kind == Kind.SQLITE.value:
                    found = sink.database
            self._mark = found
        return self._mark

    # --- Streams

    def stream(
        self,
        opened: Callable[[str], None],
        committed: Callable[[Batch], None],
        stop: Callable[[], bool],
    ) -> None:
        """See `Work.stream`."""
        from clients.spark.micro_batches import foreach_batch

        [source] = self._plan.sources
        done: dict[int, Batch] = {}

        # Known by the id of Spark's query, which a new checkpoint changes: its batches count anew.
        @foreach_batch(self._connection, timeout=self._plan.timeout_s, marked=self._marked())
        def one(frame: DataFrame, batch_id: int, job: JobTransaction) -> None:
            opened(job.otid)
            made = self._written(job, {source.name: frame})
            done[batch_id] = Batch(job.otid, {}, made)

        query = self._started(source, one)
        try:
            while query.isActive and not stop():
                query.awaitTermination(LOOK_S)
                _tell_done(query, source, done, committed)
            _tell_done(query, source, done, committed)
            failed = query.exception()
            if failed is not None:
                raise failed
        finally:
            if query.isActive:
                query.stop()

    def _started(self, source: Source, function: Callable[[DataFrame, int], None]) -> Any:
        from clients.spark.reaching import options_of, texts_of

        plan = self._plan
        reading = _reading(source)
        if "attributes" in reading:
            pairs = reading["attributes"].items()
            reading["attributes"] = ",".join(f"{name}={said}" for name, said in pairs)
        options = options_of(self._connection) | texts_of(
            reading
            | {
                "queue": source.queue,
                "consumer": plan.consumer or plan.name,
                "max_messages_per_trigger": plan.batch_messages,
            }
        )
        frame = self._spark.readStream.format("oncemq").options(**options).load()
        when: dict[str, Any] = {"availableNow": True}
        if plan.trigger.when is When.ONCE:
            when = {"once": True}
        elif plan.trigger.when is When.EVERY:
            when = {"processingTime": f"{round(plan.trigger.every_s * 1000)} milliseconds"}
        writing = frame.writeStream.queryName(plan.name).foreachBatch(function)
        checkpoint = str(plan.folder / plan.checkpoint)
        return writing.option("checkpointLocation", checkpoint).trigger(**when).start()


def _tell_done(
    query: Any, source: Source, done: dict[int, Batch], committed: Callable[[Batch], None]
) -> None:
    """Batches that Spark has finished, too, with the rows that it says they had."""
    for each in query.recentProgress:
        batch = done.pop(each["batchId"], None)
        # Spark ends with an empty one, which nobody wants to hear of.
        if batch is not None and each["numInputRows"]:
            committed(batch._replace(rows_in={source.name: each["numInputRows"]}))


def _reading(source: Source) -> dict[str, Any]:
    described = {"payload_format": source.payload}
    return described | ({"schema": source.schema} if source.schema else {}) | dict(source.selection)


def transformed(spark: SparkSession, plan: Plan, functions: Functions, sources: Frames) -> Frames:
    """Sources and steps, each under its name; Spark has computed nothing yet."""
    frames = dict(sources)
    for name, frame in sources.items():
        frame.createOrReplaceTempView(name)
    for step in plan.steps:
        frame = _frame_of(spark, step, functions, frames)
        frames[step.name] = frame.persist() if step.is_cached else frame
        frames[step.name].createOrReplaceTempView(step.name)
    return frames


def _frame_of(spark: SparkSession, step: Step, functions: Functions, frames: Frames) -> DataFrame:
    from pyspark.errors import AnalysisException

    try:
        if step.sql:
            return spark.sql(step.sql)
        function = functions[step.name]
        frame = function(**arguments_for(function, {**frames, SESSION: spark}))
    except AnalysisException as wrong:
        said = str(wrong).partition("\n")[0]
        raise BadStep(f"step {step.name!r}: {said}") from wrong
    if not hasattr(frame, "createOrReplaceTempView"):
        told = f"step {step.name!r}: {step.function} returned {type(frame).__name__}"
        raise BadStep(f"{told}, where a DataFrame is needed")
    found: DataFrame = frame
    return found


def analyse(spark: SparkSession, plan: Plan, functions: Functions) -> None:
    """The steps and what goes into queues are right, as far as can be known without rows.

    Raises `BadStep`, or what the rows of a source or sink have wrong.
    """
    from clients.spark.options import Role, read_options
    from clients.spark.rows import decoder_for, encoder_for, schema_for

    frames = {}
    for source in plan.sources:
        said = {"queue": source.queue, "payloadFormat": source.payload}
        said |= {"schema": source.schema} if source.schema else {}
        options = read_options(said, Role.TAKE)
        frame = spark.createDataFrame([], schema_for(options))
        frames[source.name] = spark.createDataFrame([], decoder_for(frame.schema, options).schema)
    made = transformed(spark, plan, functions, frames)
    for sink in plan.sinks:
        if sink.queue:
            said = {"queue": sink.queue, "payloadFormat": sink.payload}
            encoder_for(made[sink.view].schema, read_options(said, Role.SINK))
