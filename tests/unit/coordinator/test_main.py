"""What a coordinator tells the allocator: in a process of its own that nothing else has touched."""

import subprocess
import sys

# One thread after the other has large blocks for a while, as whoever writes a checkpoint does. What
# is small and stays keeps the threads' memory from being given back as a whole.
_PROGRAM = """
import threading
from pathlib import Path
from coordinator.__main__ import _give_memory_back

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def work():
    for size in range(1_000_000, 4_000_000, 500_000):
        kept.append((bytes(size), bytearray(2_000))[1])
    turns.wait()

if {tells}:
    _give_memory_back()
kept = []
before = resident_bytes()
turns = threading.Barrier({threads})
for _ in range({threads} - 1):
    threading.Thread(target=work, daemon=True).start()
work()
print(resident_bytes() - before)
"""
_THREADS = 8
_LARGE_BYTES = 4_000_000


def kept(*, tells: bool) -> int:
    command = [sys.executable, "-c", _PROGRAM.format(tells=tells, threads=_THREADS)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_memory_of_a_checkpoint_is_given_back_by_every_thread() -> None:
    assert kept(tells=True) < _LARGE_BYTES


def test_it_would_be_kept_otherwise() -> None:
    assert kept(tells=False) > 2 * _LARGE_BYTES
