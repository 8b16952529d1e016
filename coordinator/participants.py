"""The participants of one transaction as a value: found by number, counted by place. Pure.

A transaction may have very many, and nearly every event concerns one of them. So a change shares
with the value before it all but a small part, and what must hold of all of them together can be
told from how many there are at each place, without looking at anybody. What holds:

1. A value never changes; every change makes another one.
2. Each number is there once at most, and they come in the order of their numbers.
3. Who has a heuristic outcome, and nobody else, is at `HEURISTIC`.
4. The counts are those of the participants; `recount` looks whether that is so.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from coordinator.outcomes import Heuristic


class Place(enum.Enum):
    """The sets that participants are in."""

    # There is one object of each: it is found by that, not by its name.
    __hash__ = object.__hash__

    PENDING = "pending"
    PREPARED = "prepared"
    READ_ONLY = "read-only"
    FAILED = "failed"
    HEURISTIC = "heuristic"


class Participant(NamedTuple):
    """A participant, known by its number in the transaction."""

    number: int
    place: Place = Place.PENDING
    # Whether phase two has tried to reach it, and whether it has committed but not yet durably.
    is_tried: bool = False
    is_told: bool = False
    heuristic: Heuristic | None = None


# So many neighbours are copied when one of them changes.
TOGETHER = 64

Part = dict[int, Participant]
_NO_COUNTS = dict.fromkeys(Place, 0)
_number = attrgetter("number")
# Makes a value without its own `__new__`, which is Python and only names the fields.
_new = tuple.__new__
_PREPARED, _HEURISTIC = Place.PREPARED, Place.HEURISTIC
_WRONG_PLACE = "a heuristic at the wrong place"


class Participants:
    """All participants of a transaction that have not left it."""

    __slots__ = ("_parts", "counts", "is_counted", "untried")

    def __init__(self, everybody: Iterable[Participant] = ()) -> None:
        self._parts: tuple[Part, ...] = ()
        # How many there are at each place, and how many prepared ones phase two has not tried.
        self.counts = _NO_COUNTS
        self.untried = 0
        # Whether each was looked at when these were counted; else they follow from others.
        self.is_counted = True
        if everybody:
            self._fill(everybody)

    def _fill(self, everybody: Iterable[Participant]) -> None:
        parts: list[Part] = []
        counts, untried = dict(_NO_COUNTS), 0
        for each in sorted(everybody, key=_number):
            number, place, is_tried, _, heuristic = each
            while number >= TOGETHER * len(parts):
                parts.append({})
            assert number not in parts[-1], "a participant is there twice"
            assert (place is _HEURISTIC) is (heuristic is not None), _WRONG_PLACE
            parts[-1][number] = each
            counts[place] += 1
            untried += place is _PREPARED and not is_tried
        self._parts, self.counts, self.untried = tuple(parts), counts, untried

    @classmethod
    def all_prepared(cls, numbers: Sequence[int]) -> Participants:
        """Those with these numbers, all of whom have prepared: what most transactions begin with.

        The numbers ascend.
        """
        made = cls.__new__(cls)
        parts: list[Part] = []
        last = -1
        for number in numbers:
            assert number > last, "a participant is there twice"
            while number >= TOGETHER * len(parts):
                parts.append({})
            parts[-1][number] = _new(Participant, (number, _PREPARED, False, False, None))
            last = number
        made._parts, made.untried, made.is_counted = tuple(parts), len(numbers), True
        made.counts = {**_NO_COUNTS, _PREPARED: len(numbers)}
        return made

    def __iter__(self) -> Iterator[Participant]:
        for part in self._parts:
            yield from part.values()

    def __len__(self) -> int:
        return sum(self.counts.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Participants) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Participants({list(self)})"

    def find(self, number: int) -> Participant | None:
        """The participant with this number, if it has not left."""
        index = number // TOGETHER
        return self._parts[index].get(number) if index < len(self._parts) else None

    def numbers_at(self, *places: Place) -> list[int]:
        """The numbers of those who are at one of these places."""
        parts = self._parts
        return [p.number for part in parts for p in part.values() if p.place in places]

    def joined_by(self, newcomers: Iterable[Participant]) -> Participants:
        """The same with these, whose numbers nobody has."""
        added = list(newcomers)
        if len(added) == 1 and self._is_behind_all(added[0].number):
            return self.changed(None, added[0])
        return Participants([*self, *added] if self._parts else added)

    def joined_by_prepared(self, numbers: Sequence[int]) -> Participants:
        """The same with those who have these numbers, and have prepared already."""
        if not self._parts:
            return Participants.all_prepared(numbers)
        return self.joined_by([Participant(number, _PREPARED) for number in numbers])

    def _is_behind_all(self, number: int) -> bool:
        """Whether nobody has the number or a higher one, as far as a glance can tell."""
        index, last = number // TOGETHER, len(self._parts) - 1
        return index == last + 1 or (index == last and number > max(self._parts[last], default=-1))

    def put(self, changed: Participant) -> Participants:
        """The same, but that the participant with this number is now so."""
        before = self.find(changed.number)
        assert before is not None, "a participant changes that is not there"
        return self.changed(before, changed)

    def without(self, number: int) -> Participants:
        """The same without this one, if it is there."""
        before = self.find(number)
        return self if before is None else self.changed(before, None)

    def changed(self, before: Participant | None, after: Participant | None) -> Participants:
        """The same with `after` in place of `before`, which was found here; None: nobody."""
        concerned = before or after
        assert concerned is not None
        index, parts = concerned.number // TOGETHER, self._parts
        part = parts[index].copy() if index < len(parts) else {}
        # Most who answer stay where they are, and then nobody is counted anew.
        is_elsewhere = before is None or after is None or before.place is not after.place
        counts = dict(self.counts) if is_elsewhere else self.counts
        untried = self.untried
        if before is not None:
            untried -= before.place is _PREPARED and not before.is_tried
            if is_elsewhere:
                counts[before.place] -= 1
            if after is None:
                del part[before.number]
        if after is not None:
            number, place, is_tried, _, heuristic = after
            assert (place is _HEURISTIC) is (heuristic is not None), _WRONG_PLACE
            untried += place is _PREPARED and not is_tried
            if is_elsewhere:
                counts[place] += 1
            part[number] = after
        return self._with({index: part}, counts, untried)

    def told(self, numbers: Iterable[int]) -> Participants:
        """The same, but that these have committed, and not yet durably.

        Who has left, or whose heuristic outcome is noted, says so too late, and is as before.
        """
        copied: dict[int, Part] = {}
        untried, count = self.untried, 0
        for number in numbers:
            part = copied.get(number // TOGETHER) or self._copied(number // TOGETHER, copied)
            found = part.get(number)
            if found is not None and found.place is not _HEURISTIC:
                assert found.place is _PREPARED, "only who is prepared can commit"
                untried -= not found.is_tried
                part[number] = _new(Participant, (number, _PREPARED, True, True, None))
                count += 1
        return self._with(copied, self.counts, untried) if count else self

    def left_by(self, numbers: Iterable[int]) -> tuple[Participants, list[int]]:
        """The same without those of them whose heuristic outcome is not noted; and who left."""
        copied: dict[int, Part] = {}
        counts, untried = dict(self.counts), self.untried
        gone: list[int] = []
        for number in numbers:
            part = copied.get(number // TOGETHER) or self._copied(number // TOGETHER, copied)
            found = part.get(number)
            if found is not None and found.place is not _HEURISTIC:
                untried -= found.place is _PREPARED and not found.is_tried
                counts[found.place] -= 1
                del part[number]
                gone.append(number)
        return (self._with(copied, counts, untried), gone) if gone else (self, gone)

    def _copied(self, index: int, copied: dict[int, Part]) -> Part:
        """A part to be changed; one that is not there, or is empty by now, has nobody."""
        if index in copied or index >= len(self._parts):
            return {}
        part = copied[index] = self._parts[index].copy()
        return part

    def _with(
        self, copied: dict[int, Part], counts: dict[Place, int], untried: int
    ) -> Participants:
        """The same with these parts in place of those that they are copies of."""
        made = Participants.__new__(Participants)
        if len(self._parts) < 2 and 0 in copied:
            made._parts = (copied[0],)
        else:
            parts = list(self._parts)
            for index, part in copied.items():
                parts[index : index + 1] = [part]
            made._parts = tuple(parts)
        made.counts, made.untried, made.is_counted = counts, untried, False
        return made

    def recount(self) -> None:
        """Asserts that everybody is where the counts say, and there once."""
        counts, untried, last = dict(_NO_COUNTS), 0, -1
        for index, part in enumerate(self._parts):
            for number, each in part.items():
                own, place, is_tried, _, heuristic = each
                assert own == number > last, "a participant under another's number"
                assert number // TOGETHER == index
                assert (place is _HEURISTIC) is (heuristic is not None), _WRONG_PLACE
                counts[place] += 1
                untried += place is _PREPARED and not is_tried
                last = number
        assert (counts, untried) == (self.counts, self.untried), "the counts are wrong"


NOBODY = Participants()
