"""The audit log: one line of JSON for each thing that a security officer would ask about.

Values are escaped by JSON, so that nothing a peer sends can start a line of its own; secrets never
come here. A flood is counted, not written out. Where the lines go is for the program's logging to
say: they are records of the logger `oncemq.audit`.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable

LINES_PER_SECOND_MAX = 50
VALUE_LENGTH_MAX = 300

log = logging.getLogger("oncemq.audit")


class Audit:
    """Writes audit lines, at most so many a second."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._second = 0.0
        self._written = 0
        self._left_out = 0

    def record(self, event: str, **facts: object) -> None:
        """Writes one line: the event, and what is known about it."""
        if not self._has_room():
            return
        shown = {name: str(value)[:VALUE_LENGTH_MAX] for name, value in facts.items()}
        log.info("%s", json.dumps({"event": event, **shown}))

    def _has_room(self) -> bool:
        with self._lock:
            now = self._clock()
            if now - self._second >= 1.0:
                left_out, self._left_out = self._left_out, 0
                self._second, self._written = now, 0
                if left_out:
                    log.info("%s", json.dumps({"event": "lines left out", "count": left_out}))
            self._written += 1
            if self._written > LINES_PER_SECOND_MAX:
                self._left_out += 1
                return False
            return True
