"""The `oncemq` command: reads the command line, calls, shows, and answers with an exit code.

Decides nothing about queues, transactions or machines; the modules it calls do. On a terminal it
shows tables and colour, into a pipe plain lines, and JSON where asked. What went wrong is told in
a line or two on standard error; a traceback is shown only to those who ask for one.
"""

import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
import typer.completion
import typer.main
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from clients import __version__
from clients.doctor import DEFAULT_PORTS, judge, measured
from clients.findings import Finding, Status, has_problem, report, verdict
from clients.machine import without_passwords
from clients.probes import examine

PROGRAM = "oncemq"
TRACEBACK_VARIABLE = "ONCEMQ_TRACEBACK"


class ExitCode(IntEnum):
    """What the command answers to the shell. The numbers are a promise and are never reused.

    3 to 8 are kept for what commands on queues and transactions will have to tell.
    """

    OK = 0
    PROBLEM = 1
    USAGE = 2
    FAULT = 70
    SYSTEM = 71
    INTERRUPTED = 130
    PIPE_CLOSED = 141


class Shell(StrEnum):
    """The shells that can complete `oncemq` commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


# Worst first.
_STATUS_STYLES = {
    Status.PROBLEM: "bold red",
    Status.WARNING: "bold yellow",
    Status.OK: "green",
    Status.NOT_NEEDED: "dim",
}

EXAMPLES = {
    PROGRAM: {
        "oncemq doctor": "is this machine ready?",
        "oncemq doctor --help": "what a command does, and its options",
        'eval "$(oncemq completion bash)"': "let the Tab key complete commands",
    },
    "oncemq doctor": {
        "oncemq doctor": "this machine, with its data in ./data",
        "oncemq doctor --data /srv/mq": "measure the disk the data will be on",
        "oncemq doctor --port 9000": "is another port free?",
        "oncemq doctor --postgres postgresql://app@db/shop": "can this server take part?",
        "oncemq doctor --json": "one object, for scripts",
    },
    "oncemq completion": {
        'eval "$(oncemq completion bash)"': "a line for ~/.bashrc",
        'eval "$(oncemq completion zsh)"': "a line for ~/.zshrc, after compinit",
        "oncemq completion fish | source": "a line for ~/.config/fish/config.fish",
    },
}


def _show_help(context: typer.Context, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        _print_help(context)
        raise typer.Exit(ExitCode.OK)


Help = Annotated[
    bool,
    typer.Option("--help", "-h", is_eager=True, callback=_show_help, help="Show this and leave."),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    _write_any_character()
    try:
        answer = _command().main(arguments, prog_name=PROGRAM, standalone_mode=False)
    except typer.TyperException as error:
        _explain(error)
        return ExitCode.USAGE
    except typer.Abort:
        return ExitCode.INTERRUPTED
    except SystemExit as leaving:
        # Rich and Typer leave with 1 when nobody reads on, and that number is taken.
        return ExitCode.PIPE_CLOSED if leaving.code else ExitCode.OK
    except OSError as error:
        _print_plain(f"{PROGRAM}: {error.strerror or type(error).__name__}", Console(stderr=True))
        return ExitCode.SYSTEM
    except Exception as error:
        # The outermost edge: what arrives here is a fault of ours, and the user gets a sentence.
        _admit(error, os.environ)
        raise SystemExit(ExitCode.FAULT) from error
    return int(answer or ExitCode.OK)


def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
    _help: Help = False,
) -> int:
    """OnceMQ is a transactional message queue for Python and Spark.

    What one transaction puts, gets and writes happens once and as a whole, or not at all.
    """
    if version:
        _print_plain(f"{PROGRAM} {__version__}", Console())
        raise typer.Exit(ExitCode.OK)
    if context.invoked_subcommand is None:
        _print_help(context)
        raise typer.Exit(ExitCode.USAGE)
    return ExitCode.OK


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
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
    _help: Help = False,
) -> int:
    """Checks this machine and says what to do.

    Leaves nothing behind. Exit code 0: no problem; 1: a problem was found.
    """
    console = Console()
    with Console(stderr=True).status("Looking at this machine ..."):
        machine = examine(data, port or list(DEFAULT_PORTS), postgres, os.environ)
    findings = judge(machine)
    if as_json:
        # Escapes only, so that it stays JSON in whatever encoding the terminal has.
        text = json.dumps(report(findings, measured(machine), __version__))
        console.print_json(text, ensure_ascii=True)
    elif console.is_terminal:
        _show_table(findings, console)
    else:
        _show_lines(findings, console)
    return ExitCode.PROBLEM if has_problem(findings) else ExitCode.OK


def completion(
    context: typer.Context,
    shell: Annotated[Shell, typer.Argument(help="The shell to complete for.")],
    _help: Help = False,
) -> int:
    """Prints the script that completes commands."""
    # Typer's own callback of `--show-completion`, offered as a command: it prints and leaves.
    typer.completion.show_callback(context, context.command.params[0], shell.value)
    return ExitCode.OK


def _command() -> TyperGroup:
    """The commands as one tree, without Typer's help option: help is ours to show."""
    settings: dict[str, object] = {"help_option_names": []}
    app = typer.Typer(context_settings=settings, rich_markup_mode=None)
    app.callback(invoke_without_command=True)(start)
    for command in (doctor, completion):
        app.command(context_settings=settings)(command)
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    # Editing the user's files to install completion is not ours to do; `completion` prints it.
    group.params = [
        option for option in group.params if not str(option.name).endswith("completion")
    ]
    return group


def _print_help(context: typer.Context) -> None:
    """Typer's plain help and our examples, within 80 columns; a terminal adds colour."""
    lines = [context.get_help(), "", "Examples:"]
    for command, meaning in EXAMPLES[context.command_path].items():
        gap = " " * (34 - len(command)) if len(command) < 34 else "\n" + " " * 36
        lines.append(f"  {command}{gap}{meaning}")
    text = Text("\n".join(lines))
    text.highlight_regex(r"(?m)^(Usage:|\S.*:$)", "bold")
    text.highlight_regex(r"(?<![\w-])--?[a-z][a-z-]*", "cyan")
    _print_plain(text, Console())


def _show_table(findings: Sequence[Finding], console: Console) -> None:
    """The findings for a person: advice below what was found, commands on lines of their own."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        is_idle = finding.status is Status.NOT_NEEDED
        status = Text(finding.status.value, style=_STATUS_STYLES[finding.status])
        parts = [Text(finding.found, style="dim" if is_idle else "")]
        if finding.advice:
            parts.append(Text(finding.advice, style="dim" if is_idle else "italic"))
        parts += [
            Text(command, style="dim cyan" if is_idle else "cyan") for command in finding.commands
        ]
        indented = [Padding(part, (0, 0, 0, 2)) for part in parts[1:]]
        table.add_row(Text(finding.name, style="bold"), status, Group(parts[0], *indented))
    console.print(table)
    console.print()
    worst = next(status for status in _STATUS_STYLES if status in {f.status for f in findings})
    console.print(Text(verdict(findings), style=_STATUS_STYLES[worst]))


def _show_lines(findings: Sequence[Finding], console: Console) -> None:
    """The findings for a pipe: a line each, never wrapped, what to do indented below."""
    for finding in findings:
        lines = [f"{finding.status.value:<10}  {finding.name:<15}  {finding.found}"]
        lines += [f"{'':<31}{advice}" for advice in (finding.advice, *finding.commands) if advice]
        _print_plain("\n".join(lines), console)
    _print_plain(verdict(findings), console)


def _print_plain(text: str | Text, console: Console) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def _explain(error: typer.TyperException) -> None:
    """Says what is wrong with the command line, what may have been meant, and where to look."""
    message = error.message if hasattr(error, "possibilities") else error.format_message()
    if likely := getattr(error, "possibilities", None):
        message = f"{message}. Did you mean {' or '.join(repr(option) for option in likely)}?"
    message = without_passwords(" ".join(message.split()))
    context = getattr(error, "ctx", None)
    path = context.command_path if context else PROGRAM
    console = Console(stderr=True)
    _print_plain(Text.assemble((f"{PROGRAM}: ", "bold red"), message), console)
    _print_plain(f"See '{path} --help'.", console)


def _admit(error: Exception, environment: Mapping[str, str]) -> None:
    """Owns up to a fault. The error's own message stays unsaid, for it might hold a secret."""
    console = Console(stderr=True)
    if environment.get(TRACEBACK_VARIABLE):
        _print_plain("".join(traceback.format_exception(error)), console)
    _print_plain(
        f"{PROGRAM}: a fault in OnceMQ itself ({type(error).__name__}). Please report it with what "
        f"{TRACEBACK_VARIABLE}=1 makes this command print.",
        console,
    )


def _write_any_character() -> None:
    """A file name that the terminal's encoding lacks is shown with escapes and ends nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
