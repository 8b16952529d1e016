"""What was found goes into a file and comes back, and several files become one page."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.peers.figures import Found, described, merged
from benchmarks.peers.operations import Operation
from benchmarks.peers.systems import OURS
from benchmarks.peers.witness import Seen
from benchmarks.peers.workloads import WORKLOADS
from tests.unit.benchmarks.peers.test_report import row

GET = WORKLOADS[1]


def through_a_file(found: Found) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(described(found)))
    return told


def test_everything_comes_back_as_it_was() -> None:
    rows = [row(OURS, 10, 20), row("MariaDB", absent="not installed")]
    found = Found(rows, [Seen(OURS, Operation.PUT, 10, 9, 1.5)])
    assert merged([through_a_file(found)]) == found


def test_a_later_run_replaces_the_workloads_that_it_has_and_no_others() -> None:
    first = Found([row(OURS, 2, workload=GET), row(OURS, 1), row("MariaDB", 1)], [])
    second = Found([row(OURS, 5)], [Seen(OURS, Operation.PUT, 1, 1, 1.0)])
    third = Found([], [])
    found = merged(map(through_a_file, (first, second, third)))
    # In the order of the workloads, whatever that of the files.
    assert found == Found([row(OURS, 5), row(OURS, 2, workload=GET)], second.seen)
