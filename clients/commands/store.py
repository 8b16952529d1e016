"""`oncemq check` and `oncemq dump`: stores that no server has open, examined and shown."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clients import __version__
from clients.commands.finding_table import show_findings
from clients.commands.options import JsonForTable
from clients.commands.terminal import PROGRAM, ExitCode, print_json, print_plain
from clients.store_lines import line_of
from clients.stores import (
    StoreTrouble,
    Trouble,
    check_store,
    dump_store,
    object_of,
    rows_of,
    verdict,
)

_TROUBLES = {
    Trouble.IN_USE: ExitCode.IN_USE,
    Trouble.NOT_A_STORE: ExitCode.NOT_A_STORE,
    Trouble.REFUSED: ExitCode.SYSTEM,
}

EXAMPLES = {
    "oncemq check": {
        "oncemq check ./data": "every checksum, every message",
        "oncemq check ./data --json": "one object, for scripts",
        "oncemq check ./data || echo $?": "3: damaged, 4: in use, 5: no store",
    },
    "oncemq dump": {
        "oncemq dump ./data | less": "control record, log and pages",
        "oncemq dump ./data --log": "the log alone",
        "oncemq dump ./data --pages": "the pages of the data file alone",
        "oncemq dump ./data --payloads": "with the beginning of each payload",
        "oncemq dump ./data --json": "one object a line, for scripts",
    },
}

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The data directory of a server that is not running.")
]


def check(
    directory: Directory,
    as_json: JsonForTable = False,
) -> int:
    """Examines a store and reports all damage.

    Changes nothing. Exit code 0: sound; 3: damaged; 4: a server has it open; 5: not a store.
    """
    try:
        with Console(stderr=True).status("Reading every page and every record ..."):
            report = check_store(str(directory))
    except StoreTrouble as trouble:
        return _regret(trouble)
    if as_json:
        print_json(object_of(report, __version__))
    else:
        show_findings(rows_of(report), verdict(report), Console())
    return ExitCode.OK if report.is_sound else ExitCode.DAMAGED


def dump(
    directory: Directory,
    log: Annotated[bool, typer.Option("--log", help="The log, record by record.")] = False,
    pages: Annotated[bool, typer.Option("--pages", help="The pages, run by run.")] = False,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="The first 64 bytes of every payload, escaped.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on each line.")
    ] = False,
) -> int:
    """Prints what is in a store, for people.

    Control record, log and pages; or the log or the pages alone. Changes nothing, and goes as far
    as it can where something is damaged. Exit codes are those of check.
    """
    is_damaged = False
    try:
        items = dump_store(str(directory), log or not pages, pages or not log, payloads)
        for what, fields in items:
            is_damaged |= what == "stop" or fields.get("severity") == "damage"
            line = json.dumps({"item": what} | fields) if as_json else line_of(what, fields)
            sys.stdout.write(f"{line}\n")
    except StoreTrouble as trouble:
        return _regret(trouble)
    finally:
        sys.stdout.flush()
    return ExitCode.DAMAGED if is_damaged else ExitCode.OK


COMMANDS: dict[str, Callable[..., int]] = {"check": check, "dump": dump}


def _regret(trouble: StoreTrouble) -> int:
    print_plain(f"{PROGRAM}: {trouble}", Console(stderr=True))
    return _TROUBLES[trouble.trouble]
