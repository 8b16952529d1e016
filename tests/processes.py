"""Processes that a test has ended, looked at while they go."""

from __future__ import annotations

import psutil


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more, even if nobody has asked for its exit code yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        # It went between the two questions.
        return True
