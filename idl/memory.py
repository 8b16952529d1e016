"""What a server tells Python and the allocator beneath it about memory. Said once, at its start.

The numbers of the options are those of glibc; where there is another allocator, it is told nothing.
"""

from __future__ import annotations

import ctypes
import gc

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 << 20
_LARGE_BYTES_KEPT = 32 << 20
# Where glibc begins of itself, before it has seen any that are given back.
_LARGE_BYTES = 128 << 10
_RINGS = (50_000, 20, 100)


def look_for_rings_seldom() -> None:
    """Python looks for rings of objects now and then only.

    Messages and decisions come and go by the thousand and form none: to look through them often
    takes a third of the time of those who read in bulk.
    """
    gc.set_threshold(*_RINGS)


def keep_what_is_free() -> None:
    """Some free memory is kept, for the next that is large.

    To give it back after each large message, and to ask for it again with the next, takes up to a
    third of the time of either.
    """
    _tell(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    _tell(_M_MMAP_THRESHOLD, _LARGE_BYTES_KEPT)


def give_back_what_is_large() -> None:
    """What is large is given back when it is not needed any more.

    Of itself, the allocator would keep it for the thread that had it; where now one thread, now
    another needs much for a moment, each would keep several megabytes.
    """
    _tell(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def _tell(option: int, value: int) -> None:
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is not None:
        tell(option, value)
