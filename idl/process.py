"""Which process this is, without asking the kernel each time: a forked child is told.

What a process has for itself (connections, locks, a session) is not for its children, so that every
step of a call looks whether it is still where it began, and to ask the kernel took longer than most
of these steps. Whoever forks by Python's rules has the child told before anything else goes on
there; without them a child could not run Python at all.
"""

from __future__ import annotations

import os


class _Process:
    """The process in which this is read."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()
        os.register_at_fork(after_in_child=self._look)

    def _look(self) -> None:
        self.pid = os.getpid()


here = _Process()
