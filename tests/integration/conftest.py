"""How long tests with real processes go on killing them."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option; it is there when this folder is named."""
    parser.addoption("--kill-seconds", type=float, help="how long processes are killed under load")
