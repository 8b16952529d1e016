"""How far a pipeline is: counted while it runs, summed up at its end. Pure; time is passed in."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

RATE_S = 10.0


class Batch(NamedTuple):
    """What one transaction did: rows by source, and by sink. Its otid is what it is known by."""

    otid: str
    rows_in: Mapping[str, int]
    rows_out: Mapping[str, int]


@dataclass
class Progress:
    """The counts of one run. What was rolled back is not in them."""

    name: str
    begun_s: float
    state: str = "starting"
    otid: str = ""
    batch_begun_s: float = 0.0
    batches: int = 0
    # Committed before, and therefore not done again.
    skipped: int = 0
    retries: int = 0
    rows_in: Counter[str] = field(default_factory=Counter)
    rows_out: Counter[str] = field(default_factory=Counter)
    waiting: Mapping[str, int] = field(default_factory=dict)
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def opened(self, otid: str, now_s: float) -> None:
        """A transaction is under way."""
        self.otid = otid
        self.batch_begun_s = now_s

    def closed(self) -> None:
        """None is."""
        self.otid = ""

    def committed(self, batch: Batch, now_s: float) -> None:
        """A batch has happened."""
        self.closed()
        self.batches += 1
        self.rows_in.update(batch.rows_in)
        self.rows_out.update(batch.rows_out)
        self._recent.append((now_s, sum(batch.rows_in.values())))
        while len(self._recent) > 1 and self._recent[0][0] < now_s - RATE_S:
            self._recent.popleft()

    def total_in(self) -> int:
        """Rows that were got, and committed."""
        return sum(self.rows_in.values())

    def rate(self, now_s: float) -> float:
        """Rows a second, since the beginning."""
        return self.total_in() / max(now_s - self.begun_s, 0.001)

    def rate_now(self, now_s: float) -> float:
        """Rows a second, in the last seconds."""
        recent = [(at_s, rows) for at_s, rows in self._recent if at_s >= now_s - RATE_S]
        span_s = min(RATE_S, max(now_s - self.begun_s, 0.001))
        return sum(rows for _, rows in recent) / span_s

    def summary(self, now_s: float) -> dict[str, Any]:
        """All of it, for JSON. Keys are added over time, never changed or taken away."""
        return {
            "pipeline": self.name,
            "batches": self.batches,
            "skipped": self.skipped,
            "retries": self.retries,
            "rows_in": dict(self.rows_in),
            "rows_out": dict(self.rows_out),
            "seconds": round(now_s - self.begun_s, 3),
            "rows_per_second": round(self.rate(now_s), 1),
        }
