"""Reads the byte tables of module docstrings, so that tests can hold them against the structs.

    offset  code  size  field
    0x00    4s    4     what it is

A table ends with the first line that is not a row of it.
"""

from __future__ import annotations

import re
import struct
from types import ModuleType
from typing import NamedTuple

_HEAD = re.compile(r"^\s*offset\s+code\s+size\s+field\s*$")
_ROW = re.compile(r"^\s*0x([0-9a-f]+)\s+(\d*[a-zA-Z])\s+(\d+)\s+(\S.*)$")


class Row(NamedTuple):
    """One field, as the table has it."""

    offset: int
    code: str
    size: int
    field: str


def tables_of(module: ModuleType) -> list[list[Row]]:
    """All byte tables of the module's docstring, in order."""
    tables: list[list[Row]] = []
    rows: list[Row] | None = None
    for line in (module.__doc__ or "").splitlines():
        if _HEAD.match(line):
            rows = []
            tables.append(rows)
        elif rows is not None and (found := _ROW.match(line)):
            offset, code, size, field = found.groups()
            rows.append(Row(int(offset, 16), code, int(size), field))
        else:
            rows = None
    return tables


def check_table(table: list[Row], packed: struct.Struct | None = None) -> None:
    """The offsets follow from the sizes, the sizes from the codes, and all from the struct."""
    offset = 0
    for row in table:
        assert row.offset == offset, f"{row.field} stands at {offset:#x}"
        assert row.size == struct.calcsize("=" + row.code), row.field
        offset += row.size
    if packed is not None:
        assert "".join(row.code for row in table) == packed.format.lstrip("!<>=@")
        assert offset == packed.size
