"""CRC-32, by the fastest way there is here: of frames, records, pages and payloads.

The same sums either way, so what was written with one can be read with the other. For much data
isal takes a tenth of the time of zlib, which for a payload of a megabyte is a good part of the
whole way of the message. It is there wherever it is built for; elsewhere zlib does.

On processors with AVX-512 isal leaves the wide registers in use. From then on whatever copies 16 to
31 bytes takes 150 ns longer, calls of two arguments included, in this thread and in those that it
starts: a tenth of the whole way of a small message. OpenSSL's SHA-512 leaves them as they should
be, so one block of it follows; and little is left to zlib, which never touches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha512
from zlib import crc32 as crc32_of_little

try:
    from isal.isal_zlib import crc32 as _crc32_of_much
except ImportError:
    _crc32_of_much = crc32_of_little

__all__ = ["MUCH_BYTES", "crc32", "crc32_of_each", "crc32_of_little"]

# From here on isal is faster, with what follows it.
MUCH_BYTES = 4 * 1024
# So many are as much, however short they are.
MANY = 64

_BLOCK = bytes(128)


def _by_size(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    if len(data) < MUCH_BYTES:
        return crc32_of_little(data, value)
    summed = _crc32_of_much(data, value)
    sha512(_BLOCK)
    return summed


# The sum of the data, or of all that has the sum `value` and the data behind it.
crc32 = crc32_of_little if _crc32_of_much is crc32_of_little else _by_size


def crc32_of_each(pieces: Sequence[bytes]) -> tuple[int, ...]:
    """The sums of many, each by itself."""
    if len(pieces) < MANY and sum(map(len, pieces)) < MUCH_BYTES:
        return tuple(map(crc32_of_little, pieces))
    summed = tuple(map(_crc32_of_much, pieces))
    sha512(_BLOCK)
    return summed
