"""The last word of the demo without Spark: exact only if every ticket is one invoice."""

from __future__ import annotations

import collections
import io
from pathlib import Path
from unittest import mock

import pytest
from rich.console import Console

from clients.demo import tickets as demo
from clients.demo.tickets import Demo


def _judged(invoices: list[bytes], is_over: bool = True) -> tuple[int, str]:
    made = Demo(Path("nowhere"), 3)
    written = io.StringIO()
    found = mock.patch.object(Demo, "found", return_value=collections.Counter(invoices))
    with found, mock.patch.object(demo, "_left", return_value=""):
        code = demo._verdict(made, Console(file=written, width=80), 1.0, is_over)
    return code, written.getvalue()


def test_each_ticket_once_is_exact() -> None:
    code, told = _judged([b"2", b"0", b"1"])
    assert (code, "Exact" in told) == (0, True)


@pytest.mark.parametrize(
    "invoices",
    [[b"0", b"1"], [b"0", b"1", b"1"], [b"0", b"1", b"2", b"2"], [b"0", b"1", b"2", b"3"]],
    ids=["lost", "lost and twice", "twice", "strange"],
)
def test_anything_else_is_not(invoices: list[bytes]) -> None:
    code, told = _judged(invoices)
    assert (code, "Not exact" in told) == (1, True)


def test_what_is_not_over_in_time_is_not_exact_either() -> None:
    assert _judged([b"0", b"1", b"2"], is_over=False)[0] == 1
