"""What servers say about memory: each time in a process of its own, which nothing else touched."""

import subprocess
import sys

# Large blocks come and go in a thread, as those of large messages do in a helper's.
_COMING_AND_GOING = """
import resource, threading
from idl import memory

def faults_of_large_blocks():
    def work():
        for _ in range(50):
            blocks = [bytearray(1_000_000) for _ in range(3)]
            del blocks
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if {tells}:
    memory.keep_what_is_free()
faults_of_large_blocks()
print(faults_of_large_blocks())
"""
_PAGES_OF_ALL_BLOCKS = 50 * 3 * 1_000_000 // 4096

# One thread after the other has large blocks for a while, as whoever writes a checkpoint does. What
# is small and stays keeps the threads' memory from being given back as a whole.
_ONE_AFTER_THE_OTHER = """
import threading
from pathlib import Path
from idl import memory

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def work():
    for size in range(1_000_000, 4_000_000, 500_000):
        kept.append((bytes(size), bytearray(2_000))[1])
    turns.wait()

if {tells}:
    memory.give_back_what_is_large()
kept = []
before = resident_bytes()
turns = threading.Barrier(8)
for _ in range(7):
    threading.Thread(target=work, daemon=True).start()
work()
print(resident_bytes() - before)
"""
_LARGE_BYTES = 4_000_000

_LOOKS = """
import gc
from idl import memory

if {tells}:
    memory.look_for_rings_seldom()
before = sum(each["collections"] for each in gc.get_stats())
kept = [[number] for number in range(40_000)]
print(sum(each["collections"] for each in gc.get_stats()) - before)
"""


def found(program: str, *, tells: bool) -> int:
    command = [sys.executable, "-c", program.format(tells=tells)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_memory_of_what_is_large_is_kept_for_the_next() -> None:
    assert found(_COMING_AND_GOING, tells=True) < _PAGES_OF_ALL_BLOCKS / 10


def test_it_would_not_be_kept_otherwise() -> None:
    assert found(_COMING_AND_GOING, tells=False) > _PAGES_OF_ALL_BLOCKS / 2


def test_memory_of_what_is_large_is_given_back_by_every_thread() -> None:
    assert found(_ONE_AFTER_THE_OTHER, tells=True) < _LARGE_BYTES


def test_it_would_be_kept_by_each_otherwise() -> None:
    assert found(_ONE_AFTER_THE_OTHER, tells=False) > 2 * _LARGE_BYTES


def test_rings_are_looked_for_seldom() -> None:
    assert found(_LOOKS, tells=True) <= 1 < found(_LOOKS, tells=False)
