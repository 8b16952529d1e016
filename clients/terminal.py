"""What all commands share: exit codes, and printing for people and pipes."""

from __future__ import annotations

from enum import IntEnum

from rich.console import Console
from rich.text import Text

PROGRAM = "oncemq"


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
    FAULT = 70
    SYSTEM = 71
    INTERRUPTED = 130
    PIPE_CLOSED = 141


def print_plain(text: str | Text, console: Console) -> None:
    """The text as it is: never wrapped, and nothing in it is taken for markup."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def complain(message: str) -> None:
    """Says on standard error what went wrong."""
    print_plain(Text.assemble((f"{PROGRAM}: ", "bold red"), message), Console(stderr=True))
