"""`oncemq doctor`: is this machine ready? It measures, has it judged, and shows the findings."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clients import __version__
from clients.commands.finding_table import show_findings
from clients.commands.options import JsonForTable
from clients.commands.terminal import ExitCode, print_json
from clients.doctor import DEFAULT_PORTS, judge, measured
from clients.findings import has_problem, report, verdict
from clients.probes import examine

EXAMPLES = {
    "oncemq doctor": {
        "oncemq doctor": "this machine, with its data in ./data",
        "oncemq doctor --data /srv/mq": "measure the disk the data will be on",
        "oncemq doctor --port 9000": "is another port free?",
        "oncemq doctor --postgres postgresql://app@db/shop": "can this server take part?",
        "oncemq doctor --json": "one object, for scripts",
    },
}


def doctor(
    as_json: JsonForTable = False,
    data: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            file_okay=False,
            help="The data directory, existing or not; its disk is measured.",
        ),
    ] = Path("data"),
    postgres: Annotated[
        str | None,
        typer.Option(metavar="DSN", help="A PostgreSQL server that is to take part."),
    ] = None,
    port: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            min=1,
            max=65535,
            show_default=" and ".join(map(str, DEFAULT_PORTS)),
            help="A port that must be free; may be repeated.",
        ),
    ] = None,
) -> int:
    """Checks this machine and says what to do.

    Leaves nothing behind. Exit code 0: no problem; 1: a problem was found.
    """
    with Console(stderr=True).status("Looking at this machine ..."):
        machine = examine(data, port or list(DEFAULT_PORTS), postgres, os.environ)
    findings = judge(machine)
    if as_json:
        print_json(report(findings, measured(machine), __version__))
    else:
        show_findings(findings, verdict(findings), Console())
    return ExitCode.PROBLEM if has_problem(findings) else ExitCode.OK


COMMANDS: dict[str, Callable[..., int]] = {"doctor": doctor}
