"""What has arrived in queues and was not yet handed to consumers. Whoever adds to it never waits.

It knows neither channels nor consumers.
"""

from __future__ import annotations

import threading
from collections import deque

from mqserver.arrivals import Arrival


class Inbox:
    """Arrivals in order, of so many messages at most: beyond that, one look for each queue."""

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._lock = threading.Lock()
        self._arrivals: deque[Arrival] = deque()
        self._messages = 0

    def __bool__(self) -> bool:
        return bool(self._arrivals)

    def add(self, arrival: Arrival) -> bool:
        """Whether it is the first since the inbox was emptied."""
        with self._lock:
            is_first = not self._arrivals
            self._arrivals.append(arrival)
            self._messages += 1 + len(arrival.keys)
            if self._messages > self._messages_max:
                queues = dict.fromkeys(kept.queue for kept in self._arrivals)
                self._arrivals = deque(Arrival(queue, (), ()) for queue in queues)
                self._messages = len(self._arrivals)
            return is_first

    def empty(self) -> deque[Arrival]:
        """What was in it, and is not any more."""
        with self._lock:
            arrivals, self._arrivals = self._arrivals, deque()
            self._messages = 0
            return arrivals
