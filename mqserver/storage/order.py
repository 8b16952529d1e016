"""Numbers in order: which messages of a queue are free, and which of them comes next.

Pure. Numbers that are added are mostly the highest so far, and those taken are mostly the lowest;
both cost the same however many there are, alone or a thousand at a time, and so do many that fit
in between two others. Anything else is allowed, and costs a search.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import chain

CHUNK = 1000


class Order:
    """A sorted set of numbers, in chunks that are short enough to be changed in the middle.

    A chunk that came as a range, as parcels have it, stays one until a number between is changed.
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._chunks: list[list[int] | range] = []
        # The highest of each chunk, by which the chunk of a number is found.
        self._highest: list[int] = []
        self._count = 0
        self.update(numbers)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._chunks)

    def behind(self, number: int) -> Iterator[int]:
        """All that are higher than this one, from the lowest on."""
        place = bisect_right(self._highest, number)
        if place == len(self._chunks):
            return iter(())
        chunk = self._chunks[place]
        rest = chunk[bisect_right(chunk, number) :]
        return chain(rest, chain.from_iterable(self._chunks[place + 1 :]))

    def add(self, number: int) -> None:
        """The number is among them; it may have been before."""
        highest = self._highest
        if highest:
            if number <= highest[-1]:
                self._insert(number)
                return
            last = self._chunks[-1]
            if type(last) is list and len(last) < CHUNK:
                last.append(number)
                highest[-1] = number
                self._count += 1
                return
        self._chunks.append([number])
        highest.append(number)
        self._count += 1

    def update(self, numbers: Iterable[int]) -> None:
        """All of the numbers are among them."""
        new = numbers if isinstance(numbers, range) else sorted(set(numbers))
        place = self._place_between(new[0], new[-1]) if new else None
        if place is not None:
            pieces = [new[start : start + CHUNK] for start in range(0, len(new), CHUNK)]
            self._chunks[place:place] = pieces
            self._highest[place:place] = [piece[-1] for piece in pieces]
            self._count += len(new)
        else:
            for number in new:
                self.add(number)

    def _place_between(self, first: int, last: int) -> int | None:
        """Where chunks of numbers from `first` to `last` fit in; None where others lie between.

        A chunk in which they would lie is cut in two.
        """
        if not self._highest or first > self._highest[-1]:
            return len(self._chunks)
        place = bisect_left(self._highest, first)
        chunk = self._chunks[place]
        position = bisect_left(chunk, first)
        if chunk[position] <= last:
            return None
        if position:
            self._chunks[place : place + 1] = [chunk[:position], chunk[position:]]
            self._highest[place : place + 1] = [chunk[position - 1], chunk[-1]]
            place += 1
        return place

    def discard(self, number: int) -> None:
        """The number is not among them."""
        place = bisect_left(self._highest, number)
        if place == len(self._chunks):
            return
        chunk = self._chunks[place]
        position = bisect_left(chunk, number)
        if chunk[position] != number:
            return
        self._count -= 1
        if len(chunk) == 1:
            del self._chunks[place], self._highest[place]
        else:
            chunk = self._changeable(place)
            del chunk[position]
            self._highest[place] = chunk[-1]

    def take_first(self, count: int) -> list[int]:
        """The lowest numbers, so many or as there are; they are not among them any more."""
        taken: list[int] = []
        whole = 0
        for chunk in self._chunks:
            wanted = count - len(taken)
            if wanted < len(chunk):
                taken += chunk[:wanted]
                self._chunks[whole] = chunk[wanted:]
                break
            taken += chunk
            whole += 1
        if whole:
            del self._chunks[:whole], self._highest[:whole]
        self._count -= len(taken)
        return taken

    def pop_first(self) -> int | None:
        """The lowest number, if there is one; it is not among them any more."""
        if not self._chunks:
            return None
        chunk = self._chunks[0]
        first = chunk[0]
        if len(chunk) == 1:
            del self._chunks[0], self._highest[0]
        elif type(chunk) is list:
            del chunk[0]
        else:
            self._chunks[0] = chunk[1:]
        self._count -= 1
        return first

    def _insert(self, number: int) -> None:
        place = bisect_left(self._highest, number)
        chunk = self._chunks[place]
        if chunk[bisect_left(chunk, number)] == number:
            return
        chunk = self._changeable(place)
        insort(chunk, number)
        self._count += 1
        if len(chunk) > 2 * CHUNK:
            self._chunks[place : place + 1] = [chunk[:CHUNK], chunk[CHUNK:]]
            self._highest[place : place + 1] = [chunk[CHUNK - 1], chunk[-1]]

    def _changeable(self, place: int) -> list[int]:
        """The chunk as a list, which it is from now on."""
        chunk = self._chunks[place]
        if isinstance(chunk, range):
            chunk = self._chunks[place] = list(chunk)
        return chunk
