"""The `oncemq` command: reads the command line, calls, shows, and answers with an exit code.

Decides nothing about queues, transactions or machines; the modules it calls do. On a terminal they
show tables and colour, into a pipe plain lines, and JSON where asked. What went wrong is told in
a line or two on standard error; a traceback is shown only to those who ask for one.

A command's module is loaded when it is called: help and completion need only what stands here.
"""

import contextlib
import functools
import inspect
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, Protocol

import typer
import typer.completion
import typer.main
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from clients import __version__
from clients.commands.reaching import OPTIONS, Reach, with_options
from clients.commands.terminal import PROGRAM, ExitCode, print_plain

TRACEBACK_VARIABLE = "ONCEMQ_TRACEBACK"
_NO_HELP_OF_ITS_OWN: dict[str, object] = {"help_option_names": []}
_PASSING_ON = _NO_HELP_OF_ITS_OWN | {"ignore_unknown_options": True}

Examples = Mapping[str, Mapping[str, str]]


class Shell(StrEnum):
    """The shells that can complete `oncemq` commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class CommandModule(Protocol):
    """A module of commands: the functions by name, and examples for the help of each."""

    COMMANDS: dict[str, Callable[..., int]]
    EXAMPLES: dict[str, dict[str, str]]


class Entry(NamedTuple):
    """What the help says of a command or a group of commands, and where it is."""

    summary: str
    load: Callable[[], CommandModule]
    is_group: bool = False


# --- Modules of commands -------------------------------------------------------------------------


def _servers() -> CommandModule:
    from clients.commands import server

    return server


def _queues() -> CommandModule:
    from clients.commands import queue

    return queue


def _messages() -> CommandModule:
    from clients.commands import message

    return message


def _consuming() -> CommandModule:
    from clients.commands import consume

    return consume


def _admin() -> CommandModule:
    from clients.commands import admin

    return admin


def _transactions() -> CommandModule:
    from clients.commands import tx

    return tx


def _databases() -> CommandModule:
    from clients.commands import database

    return database


def _stores() -> CommandModule:
    from clients.commands import store

    return store


def _machine() -> CommandModule:
    from clients.commands import machine

    return machine


def _pipelines() -> CommandModule:
    from clients.commands import pipeline

    return pipeline


def _settings() -> CommandModule:
    from clients.commands import config

    return config


def _measuring() -> CommandModule:
    from clients.commands import bench

    return bench


# In the order of the help.
ENTRIES: dict[str, Entry] = {
    "up": Entry("Runs a coordinator and a node together, for development.", _servers),
    "server": Entry("Runs a node, which keeps queues.", _servers),
    "coordinator": Entry("Runs the coordinator, which decides transactions.", _servers),
    "put": Entry("Puts messages into a queue.", _messages),
    "get": Entry("Gets the next messages of a queue.", _messages),
    "browse": Entry("Shows the messages of a queue and leaves them there.", _messages),
    "consume": Entry("Follows a queue, and handles each message once.", _consuming),
    "queue": Entry("Makes, shows, changes, empties and deletes queues.", _queues, True),
    "admin": Entry("Shows a node, switches it on and off, and stops it.", _admin, True),
    "tx": Entry("Shows transactions and branches in doubt, and ends them.", _transactions, True),
    "database": Entry("Shows and registers databases that take part.", _databases, True),
    "pipeline": Entry("Runs queues through Spark, one transaction a batch.", _pipelines, True),
    "check": Entry("Examines a store and reports all damage.", _stores),
    "dump": Entry("Prints what is in a store, for people.", _stores),
    "config": Entry("Shows the settings and where each came from.", _settings, True),
    "doctor": Entry("Checks this machine and says what to do.", _machine),
    "bench": Entry("Measures how fast OnceMQ is here.", _measuring),
}

EXAMPLES: Examples = {
    PROGRAM: {
        "oncemq up": "run everything, for development",
        "echo hello | oncemq put greetings": "a message",
        "oncemq get greetings": "and back",
        "oncemq queue list": "what is there?",
        "oncemq put --help": "what a command does, and its options",
        'eval "$(oncemq completion bash)"': "let the Tab key complete commands",
    },
    "oncemq completion": {
        'eval "$(oncemq completion bash)"': "a line for ~/.bashrc",
        'eval "$(oncemq completion zsh)"': "a line for ~/.zshrc, after compinit",
        "oncemq completion fish | source": "a line for ~/.config/fish/config.fish",
    },
}


# --- The command itself --------------------------------------------------------------------------


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
    # An embedded node audits and logs; what a person must know, commands say themselves.
    logging.getLogger("oncemq").addHandler(logging.NullHandler())
    try:
        answer = _command().main(arguments, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        _explain(error)
        return ExitCode.USAGE
    except (typer.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return _nobody_reads()
    except SystemExit as leaving:
        # Rich and Typer leave with 1 when nobody reads on, and that number is taken.
        return ExitCode.PIPE_CLOSED if leaving.code else ExitCode.OK
    except OSError as error:
        print_plain(f"{PROGRAM}: {_reason(error)}", Console(stderr=True))
        return ExitCode.SYSTEM
    except Exception as error:
        # The outermost edge: what arrives here is a fault of ours, and the user gets a sentence.
        _admit(error, os.environ)
        raise SystemExit(ExitCode.FAULT) from error
    return int(answer or ExitCode.OK)


def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and leave.")] = False,
) -> int:
    """OnceMQ is a transactional message queue for Python and Spark.

    What one transaction puts, gets and writes happens once and as a whole, or not at all.
    """
    if version:
        print_plain(f"{PROGRAM} {__version__}", Console())
        raise typer.Exit(ExitCode.OK)
    return _need_a_command(context)


def _need_a_command(context: typer.Context) -> int:
    if context.invoked_subcommand is None:
        _print_help(context)
        raise typer.Exit(ExitCode.USAGE)
    return ExitCode.OK


def completion(
    context: typer.Context,
    shell: Annotated[Shell, typer.Argument(help="The shell to complete for.")],
) -> int:
    """Prints the script that completes commands."""
    # Typer's own callback of `--show-completion`, offered as a command: it prints and leaves.
    typer.completion.show_callback(context, context.command.params[0], shell.value)
    return ExitCode.OK


# --- The tree of commands ------------------------------------------------------------------------


class CommandTree(TyperGroup):
    """The commands by name; one that is called is loaded then."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See `TyperGroup.resolve_command`."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in ENTRIES:
            command = load_command(name)
        return name, command, rest


def load_command(name: str) -> TyperCommand | TyperGroup:
    """The command or group of this name, as it runs."""
    entry = ENTRIES[name]
    module = entry.load()
    app = typer.Typer(context_settings=_NO_HELP_OF_ITS_OWN, rich_markup_mode=None)
    if entry.is_group:
        _group_callback(app, entry.summary)
    chosen = module.COMMANDS if entry.is_group else {name: module.COMMANDS[name]}
    for each, function in chosen.items():
        is_passing_on = "more" in inspect.signature(function).parameters
        settings = _PASSING_ON if is_passing_on else _NO_HELP_OF_ITS_OWN
        app.command(each, context_settings=settings)(_extended(function))
    command = typer.main.get_command(app)
    _without_installer(command)
    command.name = name
    assert isinstance(command, TyperCommand | TyperGroup)
    return command


def _command() -> TyperGroup:
    """All commands as one tree, without Typer's help option: help is ours to show."""
    app = typer.Typer(cls=CommandTree, context_settings=_NO_HELP_OF_ITS_OWN, rich_markup_mode=None)
    app.callback(invoke_without_command=True)(_extended(start, is_root=True))
    app.command(context_settings=_NO_HELP_OF_ITS_OWN)(_extended(completion))
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    _without_installer(group)
    written = dict(group.commands)
    group.commands = {
        name: TyperCommand(name=name, help=entry.summary, rich_markup_mode=None)
        for name, entry in ENTRIES.items()
    }
    group.commands.update(written)
    return group


def _group_callback(app: typer.Typer, summary: str) -> None:
    def group(context: typer.Context) -> int:
        return _need_a_command(context)

    group.__doc__ = summary
    app.callback(invoke_without_command=True)(_extended(group))


def _without_installer(command: Any) -> None:
    # Editing the user's files to install completion is not ours to do; `completion` prints it.
    command.params = [
        option for option in command.params if not str(option.name).endswith("completion")
    ]


def _extended(command: Callable[..., int], is_root: bool = False) -> Callable[..., int]:
    """The command with our help option, and with those of `Reach` if it takes one.

    What was said before the command holds where it says nothing else itself.
    """
    signature = inspect.signature(command)
    takes_reach = "reach" in signature.parameters
    takes_context = "context" in signature.parameters

    @functools.wraps(command)
    def run(*, context: typer.Context, _help: bool = False, **named: Any) -> int:
        if takes_reach or is_root:
            said = Reach(**{name: named.pop(name) for name in OPTIONS})
            if is_root:
                context.obj = said
            else:
                named["reach"] = said.over(context.find_root().obj or Reach())
        return command(**named, **({"context": context} if takes_context else {}))

    if takes_reach or is_root:
        signature = with_options(signature, is_root)
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter("_help", kind, default=False, annotation=Help),
        inspect.Parameter("context", kind, annotation=typer.Context),
    ]
    own = [
        each.replace(kind=kind) for each in signature.parameters.values() if each.name != "context"
    ]
    extended = signature.replace(parameters=[*own, *added])
    vars(run)["__signature__"] = extended
    run.__annotations__ = {each.name: each.annotation for each in extended.parameters.values()}
    return run


# --- Showing help and faults ---------------------------------------------------------------------


def _print_help(context: typer.Context) -> None:
    """Typer's plain help and our examples, within 80 columns; a terminal adds colour."""
    lines = [context.get_help(), "", "Examples:"]
    for command, meaning in _examples(context.command_path).items():
        gap = " " * (34 - len(command)) if len(command) < 34 else "\n" + " " * 36
        lines.append(f"  {command}{gap}{meaning}")
    if any(getattr(option, "hidden", False) for option in context.command.params):
        lines += ["", "Token, TLS and settings file: see 'oncemq --help'."]
    text = Text("\n".join(lines))
    text.highlight_regex(r"(?m)^(Usage:|\S.*:$)", "bold")
    text.highlight_regex(r"(?<![\w-])--?[a-z][a-z-]*", "cyan")
    print_plain(text, Console())


def _examples(path: str) -> Mapping[str, str]:
    if path in EXAMPLES:
        return EXAMPLES[path]
    return ENTRIES[path.split()[1]].load().EXAMPLES[path]


def _nobody_reads() -> int:
    # What is still to be written goes nowhere, so that the interpreter's end does not complain.
    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.PIPE_CLOSED


def _reason(error: OSError) -> str:
    what = error.strerror or type(error).__name__
    return f"{error.filename}: {what}" if error.filename else what


def _explain(error: typer.TyperException) -> None:
    """Says what is wrong with the command line, what may have been meant, and where to look."""
    message = error.message if hasattr(error, "possibilities") else error.format_message()
    if likely := getattr(error, "possibilities", None):
        message = f"{message}. Did you mean {' or '.join(repr(option) for option in likely)}?"
    from clients.machine import without_passwords

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
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
