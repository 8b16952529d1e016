"""What was found, for programs: as JSON, and back, so that a page is made of several runs.

Every round is kept, since ratios are taken within rounds. It knows neither how something was
measured nor how it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.measure import Round
from benchmarks.peers.operations import Operation
from benchmarks.peers.running import Row
from benchmarks.peers.systems import BY_NAME
from benchmarks.peers.witness import Seen
from benchmarks.peers.workloads import WORKLOADS, Workload


@dataclass
class Found:
    """All that one run, or several, found about the peers."""

    rows: list[Row] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)


def described(found: Found) -> dict[str, Any]:
    """All of it as plain values."""
    return {
        "rows": [_row_described(row) for row in found.rows],
        "seen": [asdict(each) for each in found.seen],
    }


def _row_described(row: Row) -> dict[str, Any]:
    told = {"workload": key(row.workload), "system": row.system.name}
    if row.absent:
        return {**told, "absent": row.absent}
    return {**told, "rounds": [asdict(taken) for taken in row.rounds]}


def key(workload: Workload) -> str:
    """The name of a workload in files: `W6 put 1000000`."""
    operation = workload.operation.value.replace(" ", "-")
    return f"{workload.name} {operation} {workload.payload_bytes}"


def merged(parts: Iterable[dict[str, Any]]) -> Found:
    """What several runs have described. A later run replaces the workloads that it has."""
    rows: dict[str, list[Row]] = {}
    seen: list[Seen] = []
    for part in parts:
        fresh: dict[str, list[Row]] = {}
        for told in part["rows"]:
            fresh.setdefault(told["workload"], []).append(_row_of(told))
        rows |= fresh
        seen = [_seen_of(told) for told in part["seen"]] or seen
    known = [rows[name] for name in map(key, WORKLOADS) if name in rows]
    return Found([row for group in known for row in group], seen)


def _row_of(told: dict[str, Any]) -> Row:
    [workload] = [each for each in WORKLOADS if key(each) == told["workload"]]
    rounds = [Round(**taken) for taken in told.get("rounds", [])]
    return Row(workload, BY_NAME[told["system"]], rounds, told.get("absent", ""))


def _seen_of(told: dict[str, Any]) -> Seen:
    return Seen(**{**told, "operation": Operation(told["operation"])})
