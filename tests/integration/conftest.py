"""How long tests with real processes go on killing them, and with which seed.

pytest tests/integration/test_kill_everything.py --kill-seconds 120 --kill-seed 7
"""

from __future__ import annotations

import pytest

_COUNTED = "kill test: "


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options; they are there when this folder is named."""
    parser.addoption("--kill-seconds", type=float, help="how long processes are killed under load")
    parser.addoption("--kill-seed", type=int, help="the seed of who is killed, and when")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what tests with killed processes and faulty networks have counted."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, told in report.user_properties:
                    if name.startswith(_COUNTED):
                        terminalreporter.write_line(f"{name.removeprefix(_COUNTED)}: {told}")
