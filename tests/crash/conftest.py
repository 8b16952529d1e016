"""How many crash states are tried, with which seed, and how one of them is tried again.

The options are there when this folder, or a file of it, is named:

    pytest tests/crash --crash-budget 5000 --crash-seed 7     a longer run, on other random work
    pytest "tests/crash/…::…[random 3]" --crash-state 345     one state alone: how a failure is
                                                              repeated, with the options it had

The last line of a run says how many states, damages and cuts were judged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

_COUNTED = "judged: "


@dataclass
class CrashOptions:
    """What was asked for, and what is counted. `node` is how pytest names the test."""

    node: str
    budget: int | None
    seed: int
    state: int | None
    properties: list[tuple[str, object]]

    def count(self, what: str, number: int) -> None:
        """So many of these were judged."""
        self.properties.append((_COUNTED + what, number))

    def replay(self, number: int, budget: int | None) -> str:
        """The command that judges this one alone."""
        asked = "" if budget is None else f" --crash-budget {budget}"
        return f'pytest "{self.node}" --crash-seed {self.seed}{asked} --crash-state {number}'


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    parser.addoption("--crash-budget", type=int, help="how many states each crash test tries")
    parser.addoption("--crash-seed", type=int, help="the seed of random work and random choices")
    parser.addoption("--crash-state", type=int, help="the number of the only state to try")


@pytest.fixture
def crash_options(request: pytest.FixtureRequest) -> CrashOptions:
    """The options, which do not exist where this folder was not named on the command line."""
    get = request.config.getoption
    return CrashOptions(
        node=request.node.nodeid,
        budget=get("--crash-budget", None),
        seed=get("--crash-seed", None) or 0,
        state=get("--crash-state", None),
        properties=request.node.user_properties,
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how much was judged, by all workers together."""
    total: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, number in report.user_properties:
                    if name.startswith(_COUNTED):
                        total[name.removeprefix(_COUNTED)] += int(number)
    if total:
        told = ", ".join(f"{number} {what}" for what, number in sorted(total.items()))
        terminalreporter.write_line(f"judged: {told}")
