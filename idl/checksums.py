"""CRC-32, by the fastest way there is here: of frames, records, pages and payloads.

The same sums either way, so what was written with one can be read with the other. For much data
isal takes a tenth of the time of zlib, which for a payload of a megabyte is a good part of the
whole way of the message. It is there wherever it is built for; elsewhere zlib does.

Little is left to zlib everywhere. On processors with AVX-512, isal leaves the wide registers in
use, and from then on whatever copies 16 to 31 bytes in this thread, a request id or the name of a
transaction, takes 150 ns longer, isal's next sums too: a tenth of the way of a small message.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32 as crc32_of_little

try:
    from isal.isal_zlib import crc32 as crc32_of_much
except ImportError:
    crc32_of_much = crc32_of_little

__all__ = ["MUCH_BYTES", "crc32", "crc32_of_each", "crc32_of_little", "crc32_of_much"]

# From here on, what isal is faster by outweighs what it slows down afterwards.
MUCH_BYTES = 8 * 1024


def _by_size(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    if len(data) < MUCH_BYTES:
        return crc32_of_little(data, value)
    return crc32_of_much(data, value)


# The sum of the data, or of all that has the sum `value` and the data behind it.
crc32 = crc32_of_little if crc32_of_much is crc32_of_little else _by_size


def crc32_of_each(pieces: Sequence[bytes]) -> tuple[int, ...]:
    """The sums of many, each by itself."""
    is_much = sum(map(len, pieces)) >= MUCH_BYTES
    return tuple(map(crc32_of_much if is_much else crc32_of_little, pieces))
