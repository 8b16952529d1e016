"""The watchdog of the simulation: a run that takes too much real time is ended where it stands.

In a simulation nothing may block for real: only the activity that blocks could make anything else
happen. A signal is what gets at it, even inside a lock that is being waited for; the traceback then
shows which. Only the main thread can be watched that way. Other alarms of the process, such as the
time limit of a test, go on as if there had been none of ours.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

AGAIN_S = 1.0
_AT_ONCE_S = 0.001


class Stuck(BaseException):
    """It took too much real time. Is a lock held over a wait, or does the world never rest?"""


@contextlib.contextmanager
def watched(limit_s: float, where: Callable[[], str]) -> Iterator[None]:
    """Raises `Stuck` with the place inside, wherever that is, once the time is up."""

    def bark(number: int, frame: FrameType | None) -> None:
        raise Stuck(f"{where()}, after {limit_s} s of real time. {Stuck.__doc__}")

    outer_s, _ = signal.getitimer(signal.ITIMER_REAL)
    is_main = threading.current_thread() is threading.main_thread()
    # Whoever has set an earlier alarm keeps it.
    if not is_main or 0 < outer_s < limit_s:
        yield
        return
    handler = signal.signal(signal.SIGALRM, bark)
    # Again and again, should something swallow the first one.
    signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
    try:
        yield
    finally:
        left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if outer_s:
            spent_s = limit_s - left_s
            signal.setitimer(signal.ITIMER_REAL, max(outer_s - spent_s, _AT_ONCE_S))
