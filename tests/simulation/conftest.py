"""Which seeds a simulated test tries, and what is shown of the one that failed.

A test that is true for every seed asks for `for_each_seed` and hands it its scenario and how many
seeds to try where nobody says otherwise. The options are there when this folder is named:

    pytest tests/simulation --seeds 5000                seeds 0 to 4999, in each such test
    pytest tests/simulation --seed 10000 --seeds 5000   as many, from 10000 on
    pytest tests/simulation --seed 17                   17 only: how a failure is repeated
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

Scenario = Callable[[int], object]
ForEachSeed = Callable[[Scenario, int], None]

_SEED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the two options."""
    parser.addoption("--seed", type=int, help="the seed of simulated tests, or their first one")
    parser.addoption("--seeds", type=int, help="how many seeds each simulated test tries")


@pytest.fixture
def for_each_seed(request: pytest.FixtureRequest) -> ForEachSeed:
    """A function that runs a scenario for seed after seed: `for_each_seed(scenario, 200)`."""
    # Where the folder was not named on the command line, its options do not exist.
    first: int | None = request.config.getoption("--seed", None)
    asked: int | None = request.config.getoption("--seeds", None)

    def run(scenario: Scenario, usual: int) -> None:
        begin = first or 0
        count = asked or (usual if first is None else 1)
        for seed in range(begin, begin + count):
            request.node.stash[_SEED] = seed
            scenario(seed)
        del request.node.stash[_SEED]

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Puts the seed of a failure before and after all else that is said about it."""
    report = yield
    seed = item.stash.get(_SEED, None)
    if report.failed and seed is not None:
        repeat = f'repeat it with pytest "{item.nodeid}" --seed {seed}'
        report.longrepr = f"seed {seed}\n{report.longreprtext}\nseed {seed}: {repeat}"
    return report
