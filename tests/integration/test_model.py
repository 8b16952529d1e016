"""The models of two-phase commit, checked by a real TLC, and the program that has them checked.

`make model` checks everything in docs/model. Here are its quick part, a few of the planted bugs,
and the ways in which the check itself must be able to fail.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

_MODEL = Path(__file__).parents[2] / "docs" / "model"
_NO_JAVA_OR_TLC = 3

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the model that a test may spoil."""
    return Path(shutil.copytree(_MODEL, tmp_path / "model"))


@pytest.fixture
def check(missing: Callable[[str], NoReturn]) -> Run:
    """Runs the checks of these names in a folder, and ends the test where there is no TLC."""

    def run(*names: str, folder: Path = _MODEL) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(folder / "check.py"), *names]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode == _NO_JAVA_OR_TLC:
            missing(result.stderr.strip())
        return result

    return run


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("model", ["quick", "decided_quick", "carried_quick"])
def test_protocol_keeps_its_promises_and_settles(check: Run, model: str) -> None:
    result = check(model)
    assert result.returncode == 0, result.stderr
    assert "| everything holds " in result.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("bug", "broken"),
    [
        ("decision_not_forced", "ClientHearsOneOutcome"),
        ("second_voting_round", "ClientHearsOneOutcome"),
        ("rolled_back_told_without_fence", "WhoIsInDoubtIsToldTheTruth"),
        ("committed_branch_fenced", "ToldRolledBackIsTrue"),
        ("rows_dropped_before_the_force", "NothingIsLost"),
        ("row_shown_before_it_is_durable", "NothingWithoutARow"),
        ("late_hold_revives_branch", "RowMeansPutOnce"),
        ("one_branch_asked_for", "ToldRolledBackIsTrue"),
    ],
)
def test_planted_bug_is_found(check: Run, bug: str, broken: str) -> None:
    result = check(bug)
    assert result.returncode == 0, result.stderr
    assert re.search(rf"\| {bug} +\| {broken} ", result.stdout)


def test_broken_protocol_fails_the_check_and_shows_how_it_broke(check: Run, model: Path) -> None:
    replace(model / "safety.cfg", 'Bug = "none"', 'Bug = "lost_vote_taken_for_yes"')
    result = check("safety", folder=model)
    assert result.returncode == 1
    assert "State 2: <CommitRequestReaches" in result.stderr


def test_planted_bug_that_is_not_found_fails_the_check(check: Run, model: Path) -> None:
    # Where nobody crashes, nobody forgets.
    replace(model / "safety.cfg", "MaxCrashes = 2", "MaxCrashes = 0")
    result = check("prepared_forgotten", folder=model)
    assert result.returncode == 1
    assert "prepared_forgotten: expected that a promise is broken" in result.stderr


def test_model_that_cannot_be_read_is_not_a_bug_that_was_found(check: Run, model: Path) -> None:
    replace(model / "TwoPhaseCommit.tla", "Init ==", "Init =")
    result = check("prepared_forgotten", folder=model)
    assert result.returncode == 1
    assert "TLC itself failed" in result.stderr


def test_unknown_name_is_refused_with_the_names_there_are(check: Run) -> None:
    result = check("prepared_forgoten")
    assert result.returncode == 2
    assert " prepared_forgotten " in result.stderr


def test_every_planted_bug_is_in_the_table_of_the_readme() -> None:
    planted = []
    for model in ("TwoPhaseCommit.tla", "DecidedAtANode.tla", "CarriedByADatabase.tla"):
        (names,) = re.findall(r"(?s)\nBugs == \{(.*?)\}", (_MODEL / model).read_text())
        planted += re.findall(r'"(\w+)"', names)
    _, _, section = (_MODEL / "README.md").read_text().partition("## Planted bugs")
    assert re.findall(r"(?m)^\| `(\w+)` \|", section) == planted
    assert len(set(planted)) == len(planted)
