"""Which seeds a simulated test tries, and what is shown of the one that failed.

A test that is true for every seed asks for `for_each_seed` and hands it its scenario and how many
seeds to try where nobody says otherwise. The options are there when this folder is named:

    pytest tests/simulation --seeds 5000                seeds 0 to 4999, in each such test
    pytest tests/simulation --seed 10000 --seeds 5000   as many, from 10000 on
    pytest tests/simulation --seed 17                   17 only: how a failure is repeated

A test whose seeds are many is cut into parts, which run side by side; each part then takes as many
seeds as are asked for, behind those of the part before it. What a test counts (`simulated`) is
added up over all parts and workers, and stands in the last lines of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import Protocol

import pytest

Scenario = Callable[[int], object]


class ForEachSeed(Protocol):
    """Runs a scenario for so many seeds; part 1 has those behind part 0, and so on."""

    def __call__(self, scenario: Scenario, usual: int, part: int = 0) -> None: ...


# Adds to one of the numbers that are reported at the end.
Simulated = Callable[[str, int], None]
# Says after how many seeds a planted bug was found.
Found = Callable[[str, int], None]

_SEED = pytest.StashKey[int]()
_COUNTED = "simulated: "
_SECONDS = "seconds"
_FOUND = "found: "


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

    def run(scenario: Scenario, usual: int, part: int = 0) -> None:
        count = asked or (usual if first is None else 1)
        is_repeated = first is not None and asked is None
        begin = (first or 0) + (0 if is_repeated else part * count)
        for seed in range(begin, begin + count):
            request.node.stash[_SEED] = seed
            scenario(seed)
        del request.node.stash[_SEED]

    return run


@pytest.fixture
def simulated(request: pytest.FixtureRequest) -> Simulated:
    """A function that counts what was simulated: `simulated("crashes", 3)`."""

    def count(what: str, number: int) -> None:
        request.node.user_properties.append((_COUNTED + what, number))

    return count


@pytest.fixture
def found(request: pytest.FixtureRequest) -> Found:
    """A function that reports a planted bug: `found("decision not forced", 25)`."""

    def report(what: str, seeds: int) -> None:
        request.node.user_properties.append((_FOUND + what, seeds))

    return report


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how much was simulated, by all workers together, and how fast."""
    total: Counter[str] = Counter()
    found: dict[str, int] = {}
    real_s = 0.0
    for report in _reports(terminalreporter):
        counted = [pair for pair in report.user_properties if pair[0].startswith(_COUNTED)]
        real_s += report.duration if counted else 0.0
        for name, number in counted:
            total[name.removeprefix(_COUNTED)] += int(str(number))
        named = [pair for pair in report.user_properties if pair[0].startswith(_FOUND)]
        found |= {name: int(str(number)) for name, number in named}
    if found:
        told = ", ".join(f"{name.removeprefix(_FOUND)} {n}" for name, n in sorted(found.items()))
        terminalreporter.write_line(f"planted bugs were found after so many seeds: {told}")
    if total:
        hours = total.pop(_SECONDS, 0.0) / 3600
        told = ", ".join(f"{round(number)} {what}" for what, number in sorted(total.items()))
        speed = hours / max(real_s / 60, 0.01)
        terminalreporter.write_line(
            f"simulated: {told}, {hours:.1f} hours ({speed:.0f} hours per minute of a core)"
        )


def _reports(terminalreporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    every = [report for reports in terminalreporter.stats.values() for report in reports]
    return [report for report in every if getattr(report, "when", "") == "call"]
