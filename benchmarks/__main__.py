"""Runs the benchmarks and shows what they found: `python -m benchmarks [NAME ...]`.

Without a name it is the comparison with other queues; the others measure our own parts.

On a terminal there is a bar while it runs and tables at the end; `--json` writes the same for
programs. The run reports its bars as kept or missed and ends with 0 either way: on a machine that
others use, a benchmark is a measurement and never a gate.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks import coordinator, databases, machine, node, orb, storage
from benchmarks.measure import (
    Bar,
    Comparison,
    Effort,
    Result,
    Setting,
    Spread,
    Verdict,
    count_rounds,
    run,
)
from benchmarks.peers import figures as peers
from benchmarks.peers import page as peers_page
from benchmarks.peers import report as peers_report
from benchmarks.peers.study import Plan, study

PAGE = Path(__file__).resolve().parent.parent / "docs" / "BENCHMARKS.md"


def _spark_source(setting: Setting) -> list[Comparison]:
    # Spark need not be installed for the others.
    from benchmarks import spark_source

    return spark_source.comparisons(setting)


def _spark_sink(setting: Setting) -> list[Comparison]:
    from benchmarks import spark_sink

    return spark_sink.comparisons(setting)


BENCHMARKS: dict[str, Callable[[Setting], list[Comparison]]] = {
    "orb": orb.comparisons,
    "coordinator": coordinator.comparisons,
    "node": node.comparisons,
    "databases": databases.comparisons,
    "spark-source": _spark_source,
    "spark-sink": _spark_sink,
}
# Studies of their own: their rounds are short and many, and some of them are no comparisons.
STORAGE = "storage"
PEERS = "peers"
SYNCS = "syncs"
THOROUGH = Effort()
QUICK = Effort(rounds=3, calls=200)
MICRO = 1e6
# Where nobody's terminal says how much room there is for the tables.
FILE_COLUMNS = 132

_STYLES = {
    Verdict.KEPT: "green",
    Verdict.PERHAPS_KEPT: "yellow",
    Verdict.PERHAPS_MISSED: "yellow",
    Verdict.MISSED: "bold red",
}


def _known(names: list[str] | None) -> list[str]:
    known = [PEERS, SYNCS, *BENCHMARKS, STORAGE]
    strange = [name for name in names or [] if name not in known]
    if strange:
        told = f"there is no benchmark {strange[0]!r}; there are: {', '.join(known)}"
        raise typer.BadParameter(told)
    return names or [PEERS]


# What can be asked for.
_Names = Annotated[
    list[str] | None,
    typer.Argument(callback=_known, metavar="NAME", help="Which; peers if none is named."),
]
_JsonFile = Annotated[
    str, typer.Option("--json", metavar="FILE", help="Write the figures here; - is the output.")
]
_Rounds = Annotated[int | None, typer.Option(min=1, max=1000, help="Rounds of each subject.")]
_Quick = Annotated[bool, typer.Option("--quick", help="Few rounds: does it still run?")]
_Tls = Annotated[bool, typer.Option("--tls", help="Measure calls over TLS, too.")]
_Full = Annotated[bool, typer.Option("--full", help="More sizes and more rounds with the peers.")]
_Workloads = Annotated[str, typer.Option(help='Only these with the peers, such as "W1 W4".')]
_Page = Annotated[
    bool, typer.Option("--page", help="Make the peers' part of docs/BENCHMARKS.md anew.")
]
_From = Annotated[
    list[str] | None,
    typer.Option("--from", metavar="FILE", help="Measure no peers: take what --json wrote."),
]


def main(
    names: _Names = None,
    json_file: _JsonFile = "",
    rounds: _Rounds = None,
    quick: _Quick = False,
    tls: _Tls = False,
    full: _Full = False,
    workloads: _Workloads = "",
    page: _Page = False,
    merged: _From = None,
) -> None:
    """Measure ours and what it stands on, in alternating rounds."""
    effort = QUICK if quick else THOROUGH
    effort = Effort(rounds or effort.rounds, effort.calls)
    # The figures alone go to the output where a program reads them.
    console = Console(stderr=json_file == "-")
    if not console.is_terminal:
        console.width = FILE_COLUMNS
    with tempfile.TemporaryDirectory(prefix="oncemq-benchmarks-") as scratch:
        setting = Setting(Path(scratch), with_tls=tls)
        chosen = {name: make(setting) for name, make in BENCHMARKS.items() if name in (names or [])}
        found = _run_all(chosen, effort)
        report = storage.Report()
        if STORAGE in (names or []):
            told = Console(stderr=True)
            report = storage.study(
                setting.scratch, quick, rounds, lambda text: told.print(f"  storage: {text} ...")
            )
    is_watched = SYNCS in (names or []) or page
    plan = Plan(PEERS in (names or []), full, rounds, workloads, is_watched)
    compared = _taken_from(merged) if merged else study(plan)
    _show_all(found, chosen, console)
    storage.show(report, console)
    peers_report.show(compared, console)
    if page and compared.rows:
        peers_page.write_page(compared, PAGE, PAGE.parent / "benchmarks", _made(merged or []))
    if json_file:
        figures = _report(found, effort)
        figures |= {"storage": storage.described(report), "peers": peers.described(compared)}
        _write(json.dumps(figures, indent=2), json_file)


def _taken_from(files: list[str]) -> peers.Found:
    """What earlier runs have written."""
    return peers.merged(json.loads(Path(file).read_text())["peers"] for file in files)


def _made(files: list[str]) -> str:
    """With what, and how, the figures of these files were found; without any, those of this run."""
    told = [json.loads(Path(file).read_text()) for file in files] or [_surroundings()]
    pythons = " and ".join(dict.fromkeys(each["python"] for each in told))
    days = sorted({each["day"] for each in told})
    return (
        f"Measured on {' and '.join(days)} with {pythons} on {machine.computer_told()}, "
        "by `make bench ARGS=--page`."
    )


def _surroundings() -> dict[str, Any]:
    return {
        "day": time.strftime("%Y-%m-%d"),
        "python": machine.python_told(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cpus": os.cpu_count(),
    }


def _run_all(chosen: dict[str, list[Comparison]], effort: Effort) -> list[Result]:
    due = [(name, one) for name, group in chosen.items() for one in group if not one.skipped]
    # Drawn between the rounds only: a thread that redraws would be measured along with the calls.
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
    found = []
    with progress:
        total = sum(count_rounds(comparison, effort) for _, comparison in due)
        task = progress.add_task("", total=total)

        def after_round() -> None:
            progress.advance(task)
            progress.refresh()

        for name, comparison in due:
            progress.update(task, description=f"{name}: {comparison.title}", refresh=True)
            found.append(run(comparison, effort, time.perf_counter, after_round))
    return found


# --- For people ----------------------------------------------------------------------------------


def _show_all(found: list[Result], chosen: dict[str, list[Comparison]], console: Console) -> None:
    for result in found:
        _show(result, console)
    for comparison in (one for group in chosen.values() for one in group if one.skipped):
        console.print(
            f"{comparison.title}: skipped, {comparison.skipped}", style="yellow", soft_wrap=True
        )


def _show(result: Result, console: Console) -> None:
    comparison = result.comparison
    table = Table(title=comparison.title, title_justify="left", title_style="bold")
    table.add_column()
    for heading in ("p50 µs", "p99 µs", "calls/s"):
        table.add_column(heading, justify="right")
    table.add_column(f"{comparison.yardstick.value} ÷ {comparison.baseline}", justify="right")
    for subject in comparison.subjects:
        typical = result.typical(subject.name)
        table.add_row(
            subject.name,
            f"{typical.p50_s * MICRO:,.1f}",
            f"{typical.p99_s * MICRO:,.1f}",
            f"{typical.calls_per_s:,.0f}",
            _shown(result.ratio(subject.name, comparison.baseline)),
        )
    console.print(table)
    for bar in comparison.bars:
        verdict = result.verdict(bar)
        console.print(
            f"{_sentence(bar, result)}: [{_STYLES[verdict]}]{verdict.value}[/]", soft_wrap=True
        )
    console.print()


def _shown(ratio: Spread) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _sentence(bar: Bar, result: Result) -> str:
    ratio = _shown(result.ratio(bar.subject, bar.reference))
    return f"{bar.subject} ÷ {bar.reference}: {ratio}; the bar is {bar.ratio_max}"


# --- For programs --------------------------------------------------------------------------------


def _report(found: list[Result], effort: Effort) -> dict[str, Any]:
    return {
        **_surroundings(),
        "rounds": effort.rounds,
        "calls_per_round": effort.calls,
        "comparisons": [_described(result) for result in found],
    }


def _described(result: Result) -> dict[str, Any]:
    comparison = result.comparison
    return {
        "title": comparison.title,
        "clients": comparison.clients,
        "baseline": comparison.baseline,
        "yardstick": comparison.yardstick.value,
        "subjects": [_described_subject(result, one.name) for one in comparison.subjects],
        "bars": [_described_bar(result, bar) for bar in comparison.bars],
    }


def _described_subject(result: Result, name: str) -> dict[str, Any]:
    typical = result.typical(name)
    return {
        "name": name,
        "p50_us": typical.p50_s * MICRO,
        "p99_us": typical.p99_s * MICRO,
        "calls_per_s": typical.calls_per_s,
        "ratio": vars(result.ratio(name, result.comparison.baseline)),
    }


def _described_bar(result: Result, bar: Bar) -> dict[str, Any]:
    ratio = vars(result.ratio(bar.subject, bar.reference))
    return {**vars(bar), "ratio": ratio, "verdict": result.verdict(bar).value}


def _write(text: str, file: str) -> None:
    if file == "-":
        sys.stdout.write(text + "\n")
    else:
        Path(file).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    # Whoever ends the run early wants its servers stopped and its folders gone, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    typer.run(main)
