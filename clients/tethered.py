"""A server on a tether: it stops in good order when the process that started it is gone.

    python -m clients.tethered mqserver --data DIR ...

runs `python -m mqserver --data DIR ...`. Its standard input is a pipe that only the parent holds,
so that the end of the parent, however it comes, is the end of the input, and then as good as a
SIGTERM. For `oncemq up` and the demo, which must leave no server behind.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

PROGRAMS = ("coordinator", "mqserver")
STANDARD_INPUT = 0


def main() -> None:
    """Runs the program as if it had been started itself."""
    program = sys.argv[1]
    assert program in PROGRAMS, program
    threading.Thread(target=_watch, name="tether", daemon=True).start()
    del sys.argv[0]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


def _watch() -> None:
    # Not through sys.stdin, whose lock would be held when the interpreter ends.
    while os.read(STANDARD_INPUT, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
