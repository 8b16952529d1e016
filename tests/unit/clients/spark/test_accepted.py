"""Votes that were accepted go through a file, as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.spark.accepted import read_accepted, write_accepted
from clients.spark.attempts import PreparedBranch, Vote


def test_votes_come_back_as_they_were(tmp_path: Path) -> None:
    votes = (
        Vote(b"g" * 32, (PreparedBranch("h:1", "a.1"), PreparedBranch("", "d.1", "crm")), 7),
        Vote(b"g" * 32, (), 0),
    )
    path = str(tmp_path / "accepted")
    write_accepted(path, votes)
    assert read_accepted(path) == votes
    assert [each.name for each in tmp_path.iterdir()] == ["accepted"]


def test_nothing_accepted_is_not_an_empty_list(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_accepted(str(tmp_path / "accepted"))
