"""What all commands share: exit codes, and showing things to people and to pipes.

A table is a table on a terminal and lines of tab-separated fields in a pipe. What others have
written, such as a payload or the name of a sender, is never sent to a terminal as it is: whoever
wrote it could otherwise move the cursor, or worse. It knows no server and no command.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from clients.store_lines import printable

if TYPE_CHECKING:
    from rich.progress import TaskID

PROGRAM = "oncemq"
# What takes longer than this shows how far it is.
PATIENCE_S = 1.0


class ExitCode(IntEnum):
    """What the command answers to the shell. The numbers are a promise and are never reused."""

    OK = 0
    PROBLEM = 1
    USAGE = 2
    DAMAGED = 3
    IN_USE = 4
    NOT_A_STORE = 5
    UNREACHABLE = 6
    NOT_FOUND = 7
    REFUSED = 8
    NOTHING_THERE = 9
    ROLLED_BACK = 10
    OUTCOME_UNKNOWN = 11
    SERVER_ENDED = 12
    FAULT = 70
    SYSTEM = 71
    INTERRUPTED = 130
    PIPE_CLOSED = 141


# --- Lines ---------------------------------------------------------------------------------------


def print_plain(text: str | Text, console: Console) -> None:
    """The text as it is: never wrapped, and nothing in it is taken for markup."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def complain(message: str) -> None:
    """Says on standard error what went wrong."""
    _tell(Text.assemble((f"{PROGRAM}: ", "bold red"), printable(message)))


def note(message: str) -> None:
    """Says on standard error what is worth knowing beside the result."""
    _tell(Text(printable(message)))


def _tell(text: Text) -> None:
    """For a person, between words, where a line is too long; never for a pipe."""
    console = Console(stderr=True)
    console.print(text, soft_wrap=not console.is_terminal, markup=False, highlight=False)


def print_json(value: object) -> None:
    """One JSON object; with escapes only, so that it stays JSON in every encoding."""
    Console().print_json(json.dumps(value), ensure_ascii=True)


def duration(whole_s: int) -> str:
    """A time in its two largest units: `3m 20s`."""
    minutes, rest_s = divmod(whole_s, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest_s, "s")]
    shown = [f"{number}{unit}" for number, unit in parts if number]
    return " ".join(shown[:2]) or "0s"


# --- Tables --------------------------------------------------------------------------------------


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    empty: str,
    console: Console | None = None,
) -> None:
    """The rows as suits whoever reads; a column whose name begins with `>` is aligned right.

    A person who would see an empty table is told what that means instead.
    """
    console = console or Console()
    if not console.is_terminal:
        for row in rows:
            _write_fields(row, console)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        is_number = name.startswith(">")
        table.add_column(
            name.lstrip(">"), justify="right" if is_number else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(printable(value)) for value in row))
    if table.row_count:
        console.print(table)
    else:
        print_plain(empty, console)


def show_pairs(pairs: Iterable[tuple[str, str]], console: Console | None = None) -> None:
    """Names and values, a line each; in a pipe with a tab between them."""
    console = console or Console()
    shown = [(name, printable(value)) for name, value in pairs]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        if console.is_terminal:
            print_plain(Text.assemble((f"{name:<{width}}  ", "bold"), value), console)
        else:
            _write_fields((name, value), console)


def _write_fields(fields: Sequence[str], console: Console) -> None:
    # Past Rich, which would turn tabs into spaces.
    console.file.write("\t".join(map(printable, fields)) + "\n")


# --- Asking and waiting --------------------------------------------------------------------------


def confirm(question: str, is_sure: bool) -> None:
    """Returns if the answer is yes; ends the command if it is no, or if nobody can be asked."""
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody is there to be asked: add --yes if this is meant")
    if not typer.confirm(question, err=True):
        note("Nothing was changed.")
        raise typer.Abort


class Progress:
    """How far long work is, on standard error: shown after a second, and only to people."""

    def __init__(self, what: str, total: int | None, clock: Callable[[], float]) -> None:
        self._what = what
        self._total = total
        self._clock = clock
        self._begun = clock()
        self._done = 0
        self._console = Console(stderr=True)
        self._open = contextlib.ExitStack()
        self._show: Callable[[int], None] | None = None

    def advance(self, number: int) -> None:
        """So much more is done."""
        self._done += number
        if self._show is None and self._console.is_terminal:
            if self._clock() - self._begun < PATIENCE_S:
                return
            self._show = self._begin()
        if self._show is not None:
            self._show(self._done)

    def close(self) -> None:
        """Nothing is left of it on the screen."""
        self._open.close()

    def _begin(self) -> Callable[[int], None]:
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        counts = (
            "{task.completed:,}" if self._total is None else "{task.completed:,} of {task.total:,}"
        )
        bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn(counts),
            *([] if self._total is None else [TimeRemainingColumn()]),
            console=self._console,
            transient=True,
        )
        self._open.enter_context(bar)
        task: TaskID = bar.add_task(self._what, total=self._total)
        return lambda done: bar.update(task, completed=done)


@contextlib.contextmanager
def progress(what: str, total: int | None, clock: Callable[[], float]) -> Iterator[Progress]:
    """Work that may take long; see `Progress`."""
    made = Progress(what, total, clock)
    try:
        yield made
    finally:
        made.close()
