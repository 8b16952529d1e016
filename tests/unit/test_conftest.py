"""A missing component skips a test on a person's machine and fails it where CI=true."""

import shutil
from pathlib import Path

import pytest

from tests import conftest

pytest_plugins = ["pytester"]

_TESTS_THAT_LACK_SOMETHING = """
import pytest

@pytest.mark.needs("sh", "no-such-program")
def test_with_a_program(): pass

def test_with_a_fixture(missing): missing("no database")

@pytest.mark.needs("sh")
def test_with_everything(): pass
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with our own `conftest.py` and tests that lack what they need."""
    pytester.makeini("[pytest]\nmarkers =\n    needs\n    needs_root\n")
    shutil.copy(Path(conftest.__file__), pytester.path)
    pytester.makepyfile(_TESTS_THAT_LACK_SOMETHING)
    return pytester


def test_missing_component_skips_on_a_persons_machine(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    result = project.runpytest_subprocess("-rs")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED*no-such-program is not installed*"])


def test_missing_component_fails_where_ci_is_true(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    result = project.runpytest_subprocess()
    # A marker is looked at before the test begins, which pytest counts as an error.
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*no database (not skipped, because CI=true)*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
