"""What happens to files that nobody writes: a bit that turned, a sector of zeros, a file cut off.

Generators of damaged images. An image is the contents by name; what is not damaged is shared. What
must follow is for the caller to say: as a rule, that a storage says exactly what it said before, or
refuses with file and offset.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.crash.recording_disk import RecordingDisk
from tests.crash.trace import SECTOR_BYTES

Image = Mapping[str, bytes]


@dataclass(frozen=True)
class Damage:
    """A damaged image, and what is wrong with it."""

    what: str
    files: Image

    def disk(self) -> RecordingDisk:
        """A new disk that begins with this image."""
        return RecordingDisk(self.files)


def flipped_bytes(image: Image, step: int = 1, mask: int = 0xFF) -> Iterator[Damage]:
    """One byte is another, for every file and every `step`-th byte; `mask` says which bits turn."""
    for name, data in image.items():
        for place in range(0, len(data), step):
            wrong = data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]
            yield _with(image, name, wrong, f"byte {place} of {name} flipped")


def zeroed_sectors(image: Image) -> Iterator[Damage]:
    """One sector is all zeros that was not."""
    for name, data in image.items():
        for start in range(0, len(data), SECTOR_BYTES):
            stop = min(start + SECTOR_BYTES, len(data))
            wrong = data[:start] + bytes(stop - start) + data[stop:]
            if wrong != data:
                yield _with(image, name, wrong, f"sector {start // SECTOR_BYTES} of {name} zeroed")


def cut_files(image: Image, step: int = 64) -> Iterator[Damage]:
    """One file ends early, at every `step`-th byte."""
    for name, data in image.items():
        for size in range(0, len(data), step):
            yield _with(image, name, data[:size], f"{name} cut to {size} bytes")


def removed_files(image: Image) -> Iterator[Damage]:
    """One file is gone."""
    for name in image:
        rest = {other: data for other, data in image.items() if other != name}
        yield Damage(f"{name} removed", rest)


def swapped_files(image: Image) -> Iterator[Damage]:
    """Two files that differ have each other's names."""
    for one, other in itertools.combinations(image, 2):
        if image[one] != image[other]:
            swapped = {**image, one: image[other], other: image[one]}
            yield Damage(f"{one} and {other} swapped", swapped)


def replaced_files(image: Image, foreign: Image) -> Iterator[Damage]:
    """One file is that of another store, which has one of the same name."""
    for name in image:
        if name in foreign and foreign[name] != image[name]:
            yield _with(image, name, foreign[name], f"{name} replaced by another store's")


def all_damages(image: Image, byte_step: int = 1, cut_step: int = 64) -> Iterator[Damage]:
    """Every kind of damage, one at a time."""
    yield from flipped_bytes(image, byte_step)
    yield from zeroed_sectors(image)
    yield from cut_files(image, cut_step)
    yield from removed_files(image)
    yield from swapped_files(image)


def _with(image: Image, name: str, data: bytes, what: str) -> Damage:
    return Damage(what, {**image, name: data})
