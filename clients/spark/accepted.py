"""The votes that Spark accepted, told to the process that owns the transaction by a file.

A write inside a user's transaction ends in a process of Spark's own, which cannot reach the owner's
objects; both are on the same machine. The file appears as a whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from clients.spark.attempts import PreparedBranch, Vote


def write_accepted(path: str, votes: Iterable[Vote]) -> None:
    """The file holds these votes."""
    plain = [[vote.gtrid.hex(), vote.rows, list(map(list, vote.branches))] for vote in votes]
    part = Path(f"{path}.part")
    part.write_text(json.dumps(plain), encoding="ascii")
    os.replace(part, path)


def read_accepted(path: str) -> tuple[Vote, ...]:
    """The votes in the file; raises `FileNotFoundError` where none were accepted."""
    return tuple(
        Vote(bytes.fromhex(gtrid), tuple(PreparedBranch(*branch) for branch in branches), rows)
        for gtrid, rows, branches in json.loads(Path(path).read_text(encoding="ascii"))
    )
