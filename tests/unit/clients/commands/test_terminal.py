"""What is shown to people and to pipes."""

from __future__ import annotations

import io
import itertools

import pytest
import typer
from rich.console import Console

from clients.commands import terminal


def _console(is_terminal: bool) -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=is_terminal, width=60, no_color=True), written


def test_a_table_is_tab_separated_in_a_pipe_and_has_no_header() -> None:
    console, written = _console(is_terminal=False)
    terminal.show_table(("queue", ">messages"), [("a\tb", "1"), ("c", "2")], "none", console)
    assert written.getvalue() == "a\\tb\t1\nc\t2\n"


def test_a_table_has_a_header_on_a_terminal_and_nothing_in_it_moves_the_cursor() -> None:
    console, written = _console(is_terminal=True)
    terminal.show_table(("queue", ">messages"), [("[b]\x1b[2J", "1")], "none", console)
    header, row = written.getvalue().splitlines()
    assert "messages" in header
    assert "[b]\\x1b[2J" in row


def test_an_empty_table_says_so_to_people_alone() -> None:
    for is_terminal, said in ((True, "none\n"), (False, "")):
        console, written = _console(is_terminal)
        terminal.show_table(("queue",), [], "none", console)
        assert written.getvalue() == said


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3600, "1h"), (90061, "1d 1h")],
)
def test_a_time_is_shown_in_its_two_largest_units(seconds: int, shown: str) -> None:
    assert terminal.duration(seconds) == shown


def test_nobody_there_is_no_yes() -> None:
    terminal.confirm("Really?", is_sure=True)
    with pytest.raises(typer.BadParameter, match="--yes"):
        terminal.confirm("Really?", is_sure=False)


def test_progress_is_shown_after_a_second_and_to_people_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = itertools.count(0, 2)
    for is_terminal in (True, False):
        console, written = _console(is_terminal)
        monkeypatch.setattr(terminal, "Console", lambda stderr, console=console: console)
        with terminal.progress("Putting", 10, lambda: next(times)) as shown:
            assert written.getvalue() == ""
            shown.advance(5)
        assert ("5 of 10" in written.getvalue()) is is_terminal
