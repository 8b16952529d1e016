"""What the lines of strace say about calls and their syncs."""

from __future__ import annotations

import pytest

from benchmarks.peers.operations import Operation
from benchmarks.peers.witness import judged, sync_ends

TRACE = [
    "71 100.100000 fdatasync(9)       = 0 <0.050000>",
    "72 100.200000 fsync(4</var/file> <unfinished ...>",
    "71 100.210000 msync(0x7f00, 4096, MS_SYNC) = -1 EIO (Input/output error) <0.000100>",
    "72 100.300000 <... fsync resumed>) = 0 <0.090000>",
    "72 100.400000 +++ exited with 0 +++",
]


def test_a_sync_ends_when_its_line_says_or_where_it_was_resumed() -> None:
    assert sync_ends(TRACE) == pytest.approx([100.15, 100.3])


def test_a_call_is_synced_if_a_sync_ended_between_call_and_answer() -> None:
    seen = judged("a", Operation.PUT, [100.0, 100.12, 100.2, 100.35], TRACE)
    assert (seen.calls, seen.synced) == (3, 2)
    assert seen.syncs_per_call == pytest.approx(2 / 3)
