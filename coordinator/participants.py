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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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


class Participants:
    """All participants of a transaction that have not left it."""

    __slots__ = ("_parts", "counts", "untried")

    def __init__(self, everybody: Iterable[Participant] = ()) -> None:
        self._parts: tuple[Part, ...] = ()
        # How many there are at each place, and how many prepared ones phase two has not tried.
        self.counts: Mapping[Place, int] = _NO_COUNTS
        self.untried = 0
        if everybody:
            self._fill(everybody)

    def _fill(self, everybody: Iterable[Participant]) -> None:
        gathered: dict[int, Part] = {}
        for each in sorted(everybody, key=attrgetter("number")):
            part = gathered.setdefault(each.number // TOGETHER, {})
            assert each.number not in part, "a participant is there twice"
            part[each.number] = _checked(each)
        count = max(gathered, default=-1) + 1
        self._parts = tuple([gathered.get(index, {}) for index in range(count)])
        self.counts, self.untried = self._counted()

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
        if not any([self.counts[place] for place in places]):
            return []
        return [each.number for each in self if each.place in places]

    def joined_by(self, newcomers: Iterable[Participant]) -> Participants:
        """The same with these, whose numbers nobody has."""
        added = list(newcomers)
        if len(added) == 1 and self._is_behind_all(added[0].number):
            return self._changed(None, added[0])
        return Participants([*self, *added])

    def _is_behind_all(self, number: int) -> bool:
        """Whether nobody has the number or a higher one, as far as a glance can tell."""
        index, last = number // TOGETHER, len(self._parts) - 1
        return index == last + 1 or (index == last and number > max(self._parts[last], default=-1))

    def put(self, changed: Participant) -> Participants:
        """The same, but that the participant with this number is now so."""
        before = self.find(changed.number)
        assert before is not None, "a participant changes that is not there"
        return self._changed(before, changed)

    def without(self, number: int) -> Participants:
        """The same without this one, if it is there."""
        before = self.find(number)
        return self if before is None else self._changed(before, None)

    def _changed(self, before: Participant | None, after: Participant | None) -> Participants:
        concerned = before or after
        assert concerned is not None
        index = concerned.number // TOGETHER
        parts = self._parts
        part = parts[index].copy() if index < len(parts) else {}
        counts, untried = dict(self.counts), self.untried
        if before is not None:
            counts[before.place] -= 1
            untried -= _is_untried(before)
            if after is None:
                del part[before.number]
        if after is not None:
            counts[after.place] += 1
            untried += _is_untried(after)
            part[after.number] = _checked(after)
        made = Participants()
        made._parts = (*parts[:index], part, *parts[index + 1 :])
        made.counts, made.untried = counts, untried
        return made

    def recount(self) -> None:
        """Asserts that everybody is where the counts say, and there once."""
        for index, part in enumerate(self._parts):
            assert list(part) == sorted(part)
            for number, each in part.items():
                assert each.number == number
                assert number // TOGETHER == index
                _checked(each)
        assert (self.counts, self.untried) == self._counted(), "the counts are wrong"

    def _counted(self) -> tuple[dict[Place, int], int]:
        found = Counter([each.place for each in self])
        counts = {place: found[place] for place in Place}
        return counts, sum([_is_untried(each) for each in self])


def _is_untried(participant: Participant) -> bool:
    return participant.place is Place.PREPARED and not participant.is_tried


def _checked(participant: Participant) -> Participant:
    is_noted = participant.heuristic is not None
    assert (participant.place is Place.HEURISTIC) is is_noted, "a heuristic at the wrong place"
    return participant


NOBODY = Participants()
