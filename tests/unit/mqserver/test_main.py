"""What a node tells the allocator: in a process of its own, which nothing else has touched."""

import subprocess
import sys

# Large blocks come and go in a thread, as those of large messages do in a helper's.
_PROGRAM = """
import resource, threading
from mqserver.__main__ import _keep_memory

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
    _keep_memory()
faults_of_large_blocks()
print(faults_of_large_blocks())
"""
_PAGES_OF_ALL_BLOCKS = 50 * 3 * 1_000_000 // 4096


def faults(*, tells: bool) -> int:
    command = [sys.executable, "-c", _PROGRAM.format(tells=tells)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_memory_of_large_messages_is_kept_for_the_next() -> None:
    assert faults(tells=True) < _PAGES_OF_ALL_BLOCKS / 10


def test_it_would_not_be_kept_otherwise() -> None:
    assert faults(tells=False) > _PAGES_OF_ALL_BLOCKS / 2
