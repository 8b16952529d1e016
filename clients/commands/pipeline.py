"""`oncemq pipeline`: runs what a file describes, and shows how far it is.

A person sees counts that change; a pipe gets a line for each batch. What Spark and Java write is
kept in a file of its own, which is named when something went wrong. What a pipeline does, and when
a batch is tried again, is decided in `clients.pipeline`.
"""

import contextlib
import inspect
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from clients.commands.options import AsJson
from clients.commands.pipeline_view import PipelineView, summary_pairs
from clients.commands.reaching import SCHEME, Reach, answered, connection_of, settled
from clients.commands.terminal import ExitCode, complain, note, print_json, print_plain, show_pairs
from clients.pipeline.functions import BadFunction, load_functions
from clients.pipeline.keys import TABLES, Trigger, parse_trigger
from clients.pipeline.plan import BadPlan, Plan, read_plan
from clients.pipeline.progress import Progress
from clients.pipeline.run import Failed, Runner
from clients.spark.java import DEFAULT_MASTER, NoSpark, is_submitted, running
from idl.toml_files import read_toml

if TYPE_CHECKING:
    from clients.connection import Connection
    from idl.settings import Settings

Functions = dict[str, Callable[..., Any]]

EXAMPLES = {
    "oncemq pipeline": {
        "oncemq pipeline check orders.toml": "is the file right?",
        "oncemq pipeline run orders.toml": "run it",
    },
    "oncemq pipeline run": {
        "oncemq pipeline run orders.toml": "as the file says",
        "oncemq pipeline run orders.toml --master 'local[2,4]'": "on two cores of this machine",
        "oncemq pipeline run orders.toml --conf spark.executor.memory=4g": "Spark's settings",
        "oncemq pipeline run orders.toml --trigger '5 seconds'": "go on for ever",
        "oncemq pipeline run orders.toml --json": "a summary for scripts",
    },
    "oncemq pipeline check": {
        "oncemq pipeline check orders.toml": "the file, and the functions it names",
        "oncemq pipeline check orders.toml --spark": "and its SQL and schemas, with Spark",
    },
    "oncemq pipeline script": {
        'spark-submit "$(oncemq pipeline script)" run orders.toml': "with all of its options",
    },
}

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="What the pipeline is to do.")]
Master = Annotated[
    str, typer.Option(metavar="URL", help="Where Spark runs: local[2,4], spark://HOST:7077, ….")
]
Packages = Annotated[
    str, typer.Option(metavar="COORDINATES", help="Maven packages, with commas between them.")
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's.")
]
TriggerText = Annotated[
    str, typer.Option("--trigger", metavar="WHEN", help="available-now, once, or '5 seconds'.")
]
LogFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Keep what Spark and Java write there.")
]
WithSpark = Annotated[
    bool, typer.Option("--spark", help="Start Spark, and check SQL and schemas too.")
]


def run(
    file: File,
    reach: Reach,
    master: Master = "",
    packages: Packages = "",
    conf: Conf = None,
    trigger: TriggerText = "",
    spark_log: LogFile = None,
    as_json: AsJson = False,
) -> int:
    """Runs a pipeline: queues to Spark to queues and tables, one transaction for each batch.

    A batch that fails because a server or a worker died is rolled back and tried again. Ctrl-C
    rolls back the batch at hand; SIGTERM lets it finish. What was committed stays.
    """

    def go() -> int:
        plan = _changed(read_plan(read_toml(file)), master, packages, conf or [], trigger)
        functions = load_functions(plan)
        with connection_of(_settings(plan, reach)) as connection:
            # Before Spark is started, which takes longer than finding a wrong address.
            connection.ping()
            with SparkLog(spark_log) as log:
                return _run(plan, functions, connection, log, as_json)

    return _answered(go)


def check(file: File, spark: WithSpark = False, as_json: AsJson = False) -> int:
    """Says whether a pipeline's file is right. Nothing is run, and no server is asked.

    The file and the functions that it names are checked; with --spark also its SQL, and whether the
    rows can be messages.
    """

    def go() -> int:
        plan = read_plan(read_toml(file))
        functions = load_functions(plan)
        if spark:
            from clients.pipeline.work import analyse

            with SparkLog(None) as log, running(plan.name, **_resources(plan), log=log.file) as own:
                analyse(own, plan, functions)
        if as_json:
            print_json(_described(plan))
        else:
            show_pairs([(name, str(value)) for name, value in _described(plan).items()])
        return ExitCode.OK

    return _answered(go)


def script() -> int:
    """Prints the file that `spark-submit` is to be given; behind it, `run` and all its options."""
    beside = Path(inspect.getfile(Plan)).absolute()
    print_plain(str(beside.with_name("__main__.py")), Console())
    return ExitCode.OK


COMMANDS: dict[str, Callable[..., int]] = {"run": run, "check": check, "script": script}


# --- Running -------------------------------------------------------------------------------------


def _run(
    plan: Plan, functions: Functions, connection: "Connection", log: "SparkLog", as_json: bool
) -> int:
    from clients.pipeline.work import SparkWork

    progress = Progress(plan.name, time.monotonic())
    # What a program says on standard error, `spark-submit` writes to standard output.
    is_quiet = as_json and is_submitted()
    view = PipelineView(plan, progress, plan.master or "Spark", time.monotonic, is_quiet)
    code, told = ExitCode.OK, ""
    with _asked_to_stop() as stop, view.shown():
        progress.state = "starting Spark"
        with running(plan.name, **_resources(plan), log=log.file) as spark:
            work = SparkWork(spark, connection, plan, functions)
            runner = Runner(plan, work, progress, view, time.monotonic, time.sleep, stop)
            try:
                runner.run()
            except Failed as failed:
                code = ExitCode.OUTCOME_UNKNOWN if failed.is_unknown else ExitCode.ROLLED_BACK
                told = f"{plan.name}: {failed}"
    if told:
        complain(told)
        log.keep()
    now = time.monotonic()
    if as_json:
        print_json(progress.summary(now) | {"exit_code": int(code)})
    else:
        show_pairs(summary_pairs(plan, progress, now))
    return code


def _resources(plan: Plan) -> dict[str, Any]:
    return {"master": plan.master, "packages": plan.packages, "conf": plan.conf}


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether a SIGTERM has come: then the batch at hand is finished, and no other begun."""
    asked: list[int] = []

    def stop(number: int, frame: object) -> None:
        asked.append(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGTERM, before)


class SparkLog:
    """The file that Spark and Java write to; gone at the end, unless somebody has a use for it."""

    def __init__(self, named: Path | None) -> None:
        self._is_kept = named is not None
        if named is None:
            descriptor, path = tempfile.mkstemp(prefix="oncemq-spark-", suffix=".log")
            os.close(descriptor)
            named = Path(path)
        self.file = named

    def keep(self) -> None:
        """Something went wrong: it stays, and is named."""
        self._is_kept = True
        note(f"What Spark and Java wrote is in {self.file}.")

    def __enter__(self) -> "SparkLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if kind is not None and self.file.stat().st_size:
            self.keep()
        if not self._is_kept:
            self.file.unlink()


# --- What was asked for --------------------------------------------------------------------------


def _changed(plan: Plan, master: str, packages: str, conf: list[str], trigger: str) -> Plan:
    """The plan as the command line has it."""
    return replace(
        plan,
        master=master or plan.master or ("" if is_submitted() else DEFAULT_MASTER),
        packages=tuple(packages.split(",")) if packages else plan.packages,
        conf=dict(plan.conf) | dict(_pair(each) for each in conf),
        trigger=_trigger(trigger) if trigger else plan.trigger,
    )


def _pair(said: str) -> tuple[str, str]:
    name, equals, value = said.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"--conf is KEY=VALUE, not {said!r}")
    return name.strip(), value.strip()


def _trigger(said: str) -> Trigger:
    try:
        return parse_trigger(said)
    except ValueError as wrong:
        allowed = TABLES["pipeline"]["trigger"].words
        raise typer.BadParameter(f"--trigger is {allowed}, not {said!r}") from wrong


def _settings(plan: Plan, reach: Reach) -> "Settings":
    """As for every command; the file's url counts where the command line has none."""
    settings = settled(reach if reach.url or not plan.url else replace(reach, url=plan.url))
    if not settings["client.url"].startswith(SCHEME):
        raise BadPlan(
            f"{settings['client.url']} is in this process, and Spark's executors are others: start "
            "a server with `oncemq up`, and name it as mq://HOST:PORT"
        )
    return settings


def _described(plan: Plan) -> dict[str, object]:
    return {
        "pipeline": plan.name,
        "mode": f"{plan.mode.value}, {plan.trigger}",
        "sources": ", ".join(f"queue {source.queue}" for source in plan.sources),
        "steps": ", ".join(step.name for step in plan.steps) or "none",
        "sinks": ", ".join(f"{sink.view} to {sink.where}" for sink in plan.sinks),
    }


def _answered(go: Callable[[], int]) -> int:
    """As every command does, and with what may be wrong with Spark."""
    try:
        return answered(go)
    except (NoSpark, BadFunction) as wrong:
        complain(str(wrong))
        return ExitCode.PROBLEM
