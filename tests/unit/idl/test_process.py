"""A process knows itself, and a forked child knows that it is another."""

from __future__ import annotations

import os

from idl.process import here


def test_it_is_this_process() -> None:
    assert here.pid == os.getpid()


def test_a_forked_child_is_told_and_so_is_its_child() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        is_known = here.pid == os.getpid()
        grandchild = os.fork()
        if grandchild == 0:
            os._exit(0 if here.pid == os.getpid() else 1)
        _, status = os.waitpid(grandchild, 0)
        os.write(writing, b"known" if is_known and status == 0 else b"not known")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"known"
    assert here.pid == os.getpid()
    os.close(reading)
    os.close(writing)
