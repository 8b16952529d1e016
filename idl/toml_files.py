"""TOML files that programs are told by: read only where nobody else could have written them.

Every key knows the line it stands on, so that whoever must correct it finds it. What the keys mean
is for others to say.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE_BYTES_MAX = 1024 * 1024

_TABLE = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\-\"' ]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_\-]+|\"[^\"]*\"|'[^']*')\s*(?:\.[^=]*)?=")
_SYNTAX = re.compile(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", re.DOTALL)

# Names of tables and keys, and the number of a table in a list of tables.
Place = tuple[str | int, ...]


class BadFile(ValueError):
    """A file says something that cannot be, or may not be trusted; the message says where."""


@dataclass(frozen=True)
class TomlText:
    """What a file says, and where it says it."""

    name: str
    values: dict[str, Any]
    lines: dict[Place, int]

    def where(self, *place: str | int) -> str:
        """The file and the line of a key, or of the nearest table around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return f"{self.name}:{self.lines[place]}" if place else self.name


def find_toml(candidates: Iterable[Path]) -> Path | None:
    """The first of the files that is there."""
    return next((path for path in candidates if path.exists()), None)


def read_toml(path: Path) -> TomlText:
    """What the file says. Raises `BadFile`, also for a file that strangers could have written."""
    return parse_toml(_read(path), str(path))


def parse_toml(text: str, name: str) -> TomlText:
    """What the text says that stands in the file of this name."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        found = _SYNTAX.fullmatch(str(wrong))
        line = (found and found[2]) or len(text.splitlines())
        told = f"{name}:{line}: {found[1] if found else wrong}"
        raise BadFile(told) from wrong
    return TomlText(name, values, _lines(text))


def suggestion(wrong: str, right: Iterable[str]) -> str:
    """Words to add to an error: what was probably meant, else all that is allowed."""
    allowed = sorted(right)
    near = difflib.get_close_matches(wrong, allowed, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there is {', '.join(allowed)}"


def _read(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as refused:
        raise BadFile(f"{path} cannot be read: {refused.strerror}") from refused
    try:
        _refuse_strangers(path, os.fstat(fd))
        with open(fd, "rb", closefd=False) as file:
            data = file.read(FILE_BYTES_MAX + 1)
    finally:
        os.close(fd)
    if len(data) > FILE_BYTES_MAX:
        raise BadFile(f"{path} has more than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as wrong:
        line = data.count(b"\n", 0, wrong.start) + 1
        raise BadFile(f"{path}:{line}: this is not UTF-8 text") from wrong


def _refuse_strangers(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadFile(f"{path} is not a plain file")
    if status.st_uid not in (0, os.geteuid()):
        raise BadFile(f"{path} belongs to another user: chown it to whom this program runs as")
    if status.st_mode & stat.S_IWOTH:
        raise BadFile(f"{path} can be changed by everybody: chmod o-w {path}")


def _lines(text: str) -> dict[Place, int]:
    """The line of each table and key. Text that only looks like a key may add one too many."""
    lines: dict[Place, int] = {}
    counts: dict[tuple[str, ...], int] = {}
    table: Place = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            names = tuple(part.strip(" \"'") for part in header[2].split("."))
            table = names
            if header[1] == "[[":
                table = (*names, counts.get(names, 0))
                counts[names] = counts.get(names, 0) + 1
            lines.setdefault(names, number)
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, key[1].strip("\"'")), number)
    return lines
