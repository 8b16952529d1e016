"""`oncemq pipeline`: what it says of files that are wrong, and how a run is shown."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from clients import cli
from clients.commands.pipeline_view import PipelineView, summary_pairs
from clients.commands.terminal import ExitCode
from clients.pipeline.plan import Plan, Sink, Source
from clients.pipeline.progress import Batch, Progress

PLAN = Plan(
    "billing",
    sources=(Source("orders", "orders"),),
    steps=(),
    sinks=(Sink("orders", queue="invoices"), Sink("orders", table="books", database="b")),
)
DONE = Batch("f00", {"orders": 1200}, {"queue invoices": 1200, "table books": 1200})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.toml"
    path.write_text('[pipeline]\nname = "p"\n[[source]]\nqueue = "a"\n[[sink]]\nqueue = "b"\n')
    return path


def test_a_file_that_is_right_is_described(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pipeline", "check", str(file)]) == ExitCode.OK
    assert "sinks\ta to queue b" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "FILE"], "there is no key 'queu' in [sink]; did you mean 'queue'?"),
        (["run", "FILE"], "p.toml:6"),
    ],
)
def test_a_file_that_is_wrong_is_wrong_usage(
    arguments: list[str], words: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text().replace('queue = "b"', 'queu = "b"'))
    said = ["pipeline", *(str(file) if each == "FILE" else each for each in arguments)]
    assert cli.main(said) == ExitCode.USAGE
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--trigger", "soon"], "--trigger is available-now, once, or a time"),
        (["--conf", "spark.x"], "--conf is KEY=VALUE"),
        (["--url", "memory:"], "start a server with `oncemq up`"),
    ],
)
def test_options_that_cannot_be_are_refused_before_spark_is_started(
    option: list[str], words: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pipeline", "run", str(file), *option]) == ExitCode.USAGE
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_function_that_is_not_there_is_a_problem(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text() + '[[step]]\nname = "s"\nfunction = "json:lods"\n')
    assert cli.main(["pipeline", "check", str(file)]) == ExitCode.PROBLEM
    assert "did you mean 'loads'?" in capsys.readouterr().err


def test_the_file_for_spark_submit_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pipeline", "script"]) == ExitCode.OK
    assert capsys.readouterr().out.strip().endswith("clients/pipeline/__main__.py")


# --- How a run is shown --------------------------------------------------------------------------


def _view(is_terminal: bool, is_quiet: bool = False) -> tuple[PipelineView, Progress, io.StringIO]:
    progress = Progress("billing", 0.0)
    view = PipelineView(PLAN, progress, "local[2,4]", lambda: 5.0, is_quiet)
    written = io.StringIO()
    view._console = Console(file=written, width=80, force_terminal=is_terminal, color_system=None)
    return view, progress, written


def test_a_pipe_gets_a_line_for_each_event() -> None:
    view, progress, written = _view(is_terminal=False)
    progress.opened("f00", 3.0)
    progress.committed(DONE, 5.0)
    view.committed(DONE)
    view.retrying("n1 is\x1b away", 0.5, 1)
    assert written.getvalue().splitlines() == [
        "batch 1: 1,200 in, 1,200 to queue invoices, 1,200 to table books, 2s",
        r"rolled back, attempt 2 in 0.5 s: n1 is\x1b away",
    ]


def test_nothing_is_said_where_an_object_is_to_stand_alone() -> None:
    view, progress, written = _view(is_terminal=False, is_quiet=True)
    progress.committed(DONE, 5.0)
    with view.shown():
        view.committed(DONE)
        view.retrying("n1 is away", 0.5, 1)
    assert written.getvalue() == ""


def test_a_terminal_shows_counts_rates_and_the_open_transaction() -> None:
    view, progress, written = _view(is_terminal=True)
    progress.committed(DONE, 4.0)
    progress.opened("f00f00f00f00f00f00f00f00", 4.0)
    progress.waiting = {"orders": 300}
    view.committed(DONE)
    view._console.print(view._screen())
    told = written.getvalue()
    for words in (
        "billing  batch, available-now, local[2,4]  0:05",
        "1,200 in",
        "240/s",
        "300 to go",
        "table books",
        "1 batches committed, transaction f00f00f00f00f00f00f0… open for 1s",
    ):
        assert words in told


def test_the_summary_says_what_was_done() -> None:
    progress = Progress("billing", 0.0, retries=2)
    progress.committed(DONE, 4.0)
    pairs = dict(summary_pairs(PLAN, progress, 10.0))
    assert pairs["queue orders"] == "1,200 in"
    assert pairs["table books"] == "1,200 out"
    assert (pairs["retries"], pairs["time"]) == ("2", "10.0 s, 120 rows/s")
