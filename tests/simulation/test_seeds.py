"""Seeds are chosen on the command line, and a failure tells how to repeat it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.simulation import conftest

pytest_plugins = ["pytester"]

_A_TEST_THAT_FAILS_FOR_SEED_THREE = """
def test_of_seeds(for_each_seed):
    tried = []
    def scenario(seed):
        tried.append(seed)
        assert seed != 3
    for_each_seed(scenario, 10)
    assert False, f"tried {tried[0]} to {tried[-1]}"
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with our own `conftest.py` and a test that tries seeds."""
    # In CI pytest writes whole messages into its summary; a person sees one line.
    monkeypatch.delenv("CI", raising=False)
    shutil.copy(Path(conftest.__file__), pytester.path)
    pytester.makepyfile(test_it=_A_TEST_THAT_FAILS_FOR_SEED_THREE)
    return pytester


def test_a_failure_begins_and_ends_with_its_seed(project: pytest.Pytester) -> None:
    result = project.runpytest("--seeds", "5")
    result.stdout.fnmatch_lines_random(["FAILED test_it.py::test_of_seeds - seed 3"])
    lines = result.outlines
    first, last = lines.index("seed 3"), len(lines) - 1 - lines[::-1].index("seed 3: " + _REPEAT)
    assert "test_of_seeds" in lines[first - 1]
    assert any("assert 3 != 3" in line for line in lines[first:last])
    assert "short test summary" in lines[last + 1]


_REPEAT = 'repeat it with pytest "test_it.py::test_of_seeds" --seed 3'


@pytest.mark.parametrize(
    ("options", "tried"),
    [
        (("--seed", "17"), "tried 17 to 17"),
        (("--seed", "17", "--seeds", "4"), "tried 17 to 20"),
        (("--seeds", "3"), "tried 0 to 2"),
    ],
)
def test_the_command_line_chooses_the_seeds(
    project: pytest.Pytester, options: tuple[str, ...], tried: str
) -> None:
    project.runpytest(*options).stdout.fnmatch_lines_random([f"*{tried}*"])
