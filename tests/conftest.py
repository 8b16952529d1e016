"""What holds for every test: what a missing component means, and how examples are generated.

A test says what it cannot do without: `@pytest.mark.needs("omniidl")` for programs on the path,
`@pytest.mark.needs_root` for the rights of root, and the fixture `missing` for what only the test
itself can find out. On a person's machine such a test is skipped and says why. With CI=true it
fails, because there a component that was lost must not pass for a test that passed.
"""

import gc
import os
import shutil
import signal
from collections.abc import Callable, Generator
from typing import Any, NoReturn

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

_IN_CI = os.environ.get("CI") == "true"
# What these start or read first takes longer than most of their tests, and serves all of them.
_TOGETHER = ("tests/integration/spark/", "tests/test_architecture.py")

# Whoever is started in the background of a shell ignores Ctrl-C, and so do its children: those that
# tests interrupt must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A deadline would measure how busy the machine is. In CI the examples are the same in every run, so
# that a failure there belongs to the change that is being tested.
settings.register_profile("oncemq", deadline=None, derandomize=_IN_CI, print_blob=True)
settings.load_profile("oncemq")


@pytest.fixture(scope="session")
def missing() -> Callable[[str], NoReturn]:
    """A function that ends the test because of what is missing: `missing("no PostgreSQL")`."""
    return _end_test


def pytest_addoption(parser: pytest.Parser) -> None:
    """What is said on the command line for all tests."""
    parser.addoption("--thorough", action="store_true", help="also what takes too long every time")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nobody looks for garbage among what is collected: thousands of tests, which all stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what was not asked for."""
    if not config.getoption("--thorough"):
        long = [item for item in items if item.get_closest_marker("thorough") is not None]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


class _SomeTogether(LoadScopeScheduling):  # type: ignore[misc]
    """Tests that share a Spark session go to one worker, as do the rules of the architecture."""

    def _split_scope(self, nodeid: str) -> str:
        return next((shared for shared in _TOGETHER if nodeid.startswith(shared)), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Who runs which test, where several processes do."""
    return _SomeTogether(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Looks for what the markers of the test ask for, before any of its fixtures is made."""
    for marker in item.iter_markers("needs"):
        for program in marker.args:
            if shutil.which(program) is None:
                _end_test(
                    f"{program} is not installed; tests/setup/components.sh {program} does it"
                )
    if item.get_closest_marker("needs_root") is not None and os.geteuid() != 0:
        _end_test("only root can run this test")


def _end_test(reason: str) -> NoReturn:
    if _IN_CI:
        pytest.fail(f"{reason} (not skipped, because CI=true)", pytrace=False)
    pytest.skip(reason)
