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
    """Writes audit lines, so many a second of each kind: noise of one kind hides no other."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._second = 0.0
        self._counts: dict[str, int] = {}

    def record(self, event: str, **facts: object) -> None:
        """Writes one line: the event, and what is known about it."""
        if not self._has_room(event):
            return
        shown = {name: str(value)[:VALUE_LENGTH_MAX] for name, value in facts.items()}
        log.info("%s", json.dumps({"event": event, **shown}))

    def _has_room(self, event: str) -> bool:
        with self._lock:
            now = self._clock()
            if now - self._second >= 1.0:
                counts, self._counts, self._second = self._counts, {}, now
                self._tell_left_out(counts)
            self._counts[event] = self._counts.get(event, 0) + 1
            return self._counts[event] <= LINES_PER_SECOND_MAX

    def _tell_left_out(self, counts: dict[str, int]) -> None:
        for event, count in counts.items():
            if count > LINES_PER_SECOND_MAX:
                left_out = count - LINES_PER_SECOND_MAX
                log.info("%s", json.dumps({"event": f"{event}, left out", "count": left_out}))
