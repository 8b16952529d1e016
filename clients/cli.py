"""The `oncemq` command: reads the command line, calls, shows, and answers with an exit code.

Decides nothing about queues, transactions or machines; the modules it calls do. On a terminal it
shows tables and colour, into a pipe plain lines, and JSON where asked. What went wrong is told in
a line or two on standard error; a traceback is shown only to those who ask for one.
"""

import functools
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
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

from clients import __version__, tx_command
from clients.doctor import DEFAULT_PORTS, judge, measured
from clients.findings import Finding, Status, has_problem, report, verdict
from clients.machine import without_passwords
from clients.probes import examine
from clients.store_lines import line_of
from clients.stores import (
    StoreTrouble,
    Trouble,
    check_store,
    dump_store,
    object_of,
    rows_of,
)
from clients.stores import verdict as store_verdict
from clients.terminal import PROGRAM, ExitCode, print_plain

TRACEBACK_VARIABLE = "ONCEMQ_TRACEBACK"


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

_TROUBLES = {
    Trouble.IN_USE: ExitCode.IN_USE,
    Trouble.NOT_A_STORE: ExitCode.NOT_A_STORE,
    Trouble.REFUSED: ExitCode.SYSTEM,
}

EXAMPLES = {
    PROGRAM: {
        "oncemq doctor": "is this machine ready?",
        "oncemq coordinator --data ./tx": "run the transaction coordinator",
        "oncemq tx list": "transactions under way",
        "oncemq check ./data": "is this store sound?",
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
    "oncemq coordinator": {
        "oncemq coordinator --data ./transactions": "on 127.0.0.1:7410",
        "oncemq coordinator --data DIR --listen HOST:PORT": "elsewhere; needs TLS beyond 127.0.0.1",
        "oncemq coordinator --data DIR --session-timeout 60": "patience with silent clients",
    },
    **tx_command.EXAMPLES,
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
        print_plain(f"{PROGRAM}: {error.strerror or type(error).__name__}", Console(stderr=True))
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
        print_plain(f"{PROGRAM} {__version__}", Console())
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
    else:
        _show(findings, verdict(findings), console)
    return ExitCode.PROBLEM if has_problem(findings) else ExitCode.OK


Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The data directory of a server that is not running.")
]


def check(
    directory: Directory,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
    _help: Help = False,
) -> int:
    """Examines a store and reports all damage.

    Changes nothing. Exit code 0: sound; 3: damaged; 4: a server has it open; 5: not a store.
    """
    console = Console()
    try:
        with Console(stderr=True).status("Reading every page and every record ..."):
            report = check_store(str(directory))
    except StoreTrouble as trouble:
        return _regret(trouble)
    if as_json:
        console.print_json(json.dumps(object_of(report, __version__)), ensure_ascii=True)
    else:
        _show(rows_of(report), store_verdict(report), console)
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
    _help: Help = False,
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


def _regret(trouble: StoreTrouble) -> int:
    print_plain(f"{PROGRAM}: {trouble}", Console(stderr=True))
    return _TROUBLES[trouble.trouble]


def coordinator(
    data: Annotated[str, typer.Option(metavar="DIR", help="The directory of its log.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where it can be reached.")
    ] = tx_command.DEFAULT_COORDINATOR,
    more: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OPTION...]", help="More of its own: see python -m coordinator --help."
        ),
    ] = None,
    _help: Help = False,
) -> int:
    """Runs the coordinator, which decides transactions and has them carried out.

    Runs until it is told to stop (SIGTERM, Ctrl-C). Other options are passed to it.
    """
    command = [sys.executable, "-m", "coordinator", "--data", data, "--listen", listen]
    # In place of this process, so that signals and exit codes are its own.
    os.execv(sys.executable, [*command, *(more or [])])


def tx(context: typer.Context, _help: Help = False) -> int:
    """Shows transactions and branches in doubt, and ends them by hand."""
    if context.invoked_subcommand is None:
        _print_help(context)
        raise typer.Exit(ExitCode.USAGE)
    return ExitCode.OK


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
    for command in (doctor, check, dump, completion):
        app.command(context_settings=settings)(command)
    passing = settings | {"ignore_unknown_options": True}
    app.command(context_settings=passing)(coordinator)
    app.add_typer(_tx_commands(settings), name="tx")
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    # Editing the user's files to install completion is not ours to do; `completion` prints it.
    group.params = [
        option for option in group.params if not str(option.name).endswith("completion")
    ]
    return group


def _tx_commands(settings: dict[str, object]) -> typer.Typer:
    group = typer.Typer(context_settings=settings, rich_markup_mode=None)
    group.callback(invoke_without_command=True)(tx)
    for name, command in tx_command.COMMANDS.items():
        group.command(name, context_settings=settings)(_with_help(command))
    return group


def _with_help(command: Callable[..., int]) -> Callable[..., int]:
    """The command with our help option, which it need not know of."""

    @functools.wraps(command)
    def run(*arguments: object, _help: bool = False, **named: object) -> int:
        return command(*arguments, **named)

    signature = inspect.signature(command)
    kind = inspect.Parameter.KEYWORD_ONLY
    option = inspect.Parameter("_help", kind, default=False, annotation=Help)
    extended = signature.replace(parameters=[*signature.parameters.values(), option])
    vars(run)["__signature__"] = extended
    run.__annotations__ = {**command.__annotations__, "_help": Help}
    return run


def _print_help(context: typer.Context) -> None:
    """Typer's plain help and our examples, within 80 columns; a terminal adds colour."""
    lines = [context.get_help(), "", "Examples:"]
    for command, meaning in EXAMPLES[context.command_path].items():
        gap = " " * (34 - len(command)) if len(command) < 34 else "\n" + " " * 36
        lines.append(f"  {command}{gap}{meaning}")
    text = Text("\n".join(lines))
    text.highlight_regex(r"(?m)^(Usage:|\S.*:$)", "bold")
    text.highlight_regex(r"(?<![\w-])--?[a-z][a-z-]*", "cyan")
    print_plain(text, Console())


def _show(findings: Sequence[Finding], sentence: str, console: Console) -> None:
    """The findings as suits whoever reads, and a sentence that sums them up."""
    if console.is_terminal:
        _show_table(findings, console)
        worst = next(status for status in _STATUS_STYLES if status in {f.status for f in findings})
        console.print()
        console.print(Text(sentence, style=_STATUS_STYLES[worst]))
    else:
        _show_lines(findings, console)
        print_plain(sentence, console)


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


def _show_lines(findings: Sequence[Finding], console: Console) -> None:
    """The findings for a pipe: a line each, never wrapped, what to do indented below."""
    for finding in findings:
        lines = [f"{finding.status.value:<10}  {finding.name:<15}  {finding.found}"]
        lines += [f"{'':<31}{advice}" for advice in (finding.advice, *finding.commands) if advice]
        print_plain("\n".join(lines), console)


def _explain(error: typer.TyperException) -> None:
    """Says what is wrong with the command line, what may have been meant, and where to look."""
    message = error.message if hasattr(error, "possibilities") else error.format_message()
    if likely := getattr(error, "possibilities", None):
        message = f"{message}. Did you mean {' or '.join(repr(option) for option in likely)}?"
    message = without_passwords(" ".join(message.split()))
    context = getattr(error, "ctx", None)
    path = context.command_path if context else PROGRAM
    console = Console(stderr=True)
    print_plain(Text.assemble((f"{PROGRAM}: ", "bold red"), message), console)
    print_plain(f"See '{path} --help'.", console)


def _admit(error: Exception, environment: Mapping[str, str]) -> None:
    """Owns up to a fault. The error's own message stays unsaid, for it might hold a secret."""
    console = Console(stderr=True)
    if environment.get(TRACEBACK_VARIABLE):
        print_plain("".join(traceback.format_exception(error)), console)
    print_plain(
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
