"""What is told of the interpreter that something was measured with."""

from __future__ import annotations

import platform

import pytest

from benchmarks.machine import build_told, python_told


@pytest.mark.parametrize(
    ("prefix", "arguments", "told"),
    [
        ("/usr", "'--prefix=/usr' 'CC=gcc'", "the optimised build of Debian"),
        ("/opt/python", "'--enable-optimizations' '--with-lto'", "compiled with optimisations"),
        ("/opt/python", "'--enable-shared'", "compiled without optimisations, "),
    ],
)
def test_how_an_interpreter_was_built_is_told(prefix: str, arguments: str, told: str) -> None:
    assert build_told(prefix, arguments, "Debian").startswith(told)


def test_this_interpreter_is_told_with_its_version() -> None:
    assert python_told().startswith(f"CPython {platform.python_version()} (")
