"""Findings as they are shown: a table for a person, a line each for a pipe, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from clients.commands.terminal import print_plain
from clients.findings import Finding, Status

# Worst first.
_STATUS_STYLES = {
    Status.PROBLEM: "bold red",
    Status.WARNING: "bold yellow",
    Status.OK: "green",
    Status.NOT_NEEDED: "dim",
}


def show_findings(findings: Sequence[Finding], sentence: str, console: Console) -> None:
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
