"""How long tests with real processes go on, with which seed, and with which planted bug.

    pytest tests/integration/test_kill_everything.py --kill-seconds 120 --kill-seed 7
    pytest tests/integration/test_kill_everything.py --kill-planted "prepared forgotten"
    pytest tests/integration/test_kill_everything.py --kill-faults      on a faulty network as well
    pytest tests/integration/test_row_and_message.py --kill-messages 10000      so many, not so long

With a planted bug (`planted.py`) a test passes when it finds it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

_COUNTED = "kill test: "
_SEED = 1


@dataclass
class KillOptions:
    """What was asked for; and where to count."""

    node: str
    seconds: float | None
    seed: int
    bug: str | None
    has_faults: bool
    properties: list[tuple[str, object]]
    messages: int = 0

    def count(self, what: str, text: str) -> None:
        """This is shown at the end of the run, whether the test passes or not."""
        self.properties.append((_COUNTED + what, f"seed {self.seed}; {text}; seed {self.seed}"))

    def replay(self, seconds: float) -> str:
        """The command that does the same again."""
        faults = " --kill-faults" if self.has_faults else ""
        length = f"--kill-seconds {seconds:g}"
        if self.messages:
            length = f"--kill-messages {self.messages}"
        return f'pytest "{self.node}" {length} --kill-seed {self.seed}{faults}'


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options; they are there when this folder is named."""
    parser.addoption("--kill-seconds", type=float, help="how long processes are killed under load")
    parser.addoption("--kill-seed", type=int, help="the seed of who is killed, and when")
    parser.addoption("--kill-faults", action="store_true", help="the network is faulty as well")
    parser.addoption("--kill-messages", type=int, help="so many messages, however long it takes")
    parser.addoption("--kill-planted", help="the bug that all servers have, and that is found")


@pytest.fixture
def kill_options(request: pytest.FixtureRequest) -> KillOptions:
    """The options, which do not exist where this folder was not named on the command line."""
    get = request.config.getoption
    return KillOptions(
        node=request.node.nodeid,
        seconds=get("--kill-seconds", None),
        seed=get("--kill-seed", None) or _SEED,
        bug=get("--kill-planted", None),
        has_faults=bool(get("--kill-faults", None)),
        properties=request.node.user_properties,
        messages=get("--kill-messages", None) or 0,
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what tests with killed processes and faulty networks have counted."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, told in report.user_properties:
                    if name.startswith(_COUNTED):
                        terminalreporter.write_line(f"{name.removeprefix(_COUNTED)}: {told}")
