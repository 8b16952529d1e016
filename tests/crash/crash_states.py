"""What a restart may find after a power cut, at every moment of a trace: the states to be checked.

    for state in crash_states(disk.trace, seed, budget):
        check(recover(state.disk()), state.events)

At each entry of the trace some parts of what was done are durable and others pending
(`platter.py`). A state is the durable part and a choice of the pending ones. Where these are few,
every choice is made; where they are many, those that programs tend to get wrong, and a sample drawn
with the seed. A state that was seen before, by a program that had said the same, is left out.
Whether a state is a good one is for the caller to say.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.crash.faults import Faults
from tests.crash.platter import Change, Filling, Leftover, Part, Platter, Sector
from tests.crash.recording_disk import RecordingDisk
from tests.crash.trace import SECTOR_BYTES, Created, Noted, Removed, Renamed, Trace, Wrote

EXHAUSTIVE_MAX = 8
_GROUPS_MAX = 6
_PLACES_MAX = 48
_SAMPLES = 24

Events = tuple[object, ...]
Bits = Sequence[bool]


@dataclass(frozen=True, slots=True)
class CrashState:
    """One possible image behind the first `point` entries, and what the program had said by then.

    `parts` were pending then, `arrived` says of each what became of it, `choice` how that was
    chosen.
    """

    point: int
    events: Events
    choice: str
    parts: tuple[Part, ...]
    arrived: tuple[bool, ...]
    leftovers: Mapping[str, Leftover]

    def files(self) -> dict[str, bytes]:
        """The contents by name."""
        return {name: left.content() for name, left in self.leftovers.items()}

    def disk(self, faults: Faults | None = None) -> RecordingDisk:
        """A new disk that begins with this image."""
        return RecordingDisk(self.files(), faults)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}: {len(data)}" for name, data in self.files().items())
        parts = "".join(
            f"\n  {'arrived' if has_arrived else 'lost   '} {part}"
            for part, has_arrived in zip(self.parts, self.arrived, strict=True)
        )
        return (
            f"a crash behind entry {self.point} and {len(self.events)} events, of which the last "
            f"is {self.events[-1:]}, {self.choice}; sizes {{{sizes}}}{parts}"
        )


def crash_states(
    trace: Trace,
    seed: int = 0,
    budget: int | None = None,
    tag: Callable[[Events], Hashable] = len,
    stale_blocks: bool = False,
    start: int = 0,
) -> Iterator[CrashState]:
    """Distinct states, in the order of the trace; no more than `budget`, spread over all of it.

    Nothing is said of a crash before the entry `start`.
    Two states are the same when image and `tag` are: a caller who looks at acknowledgements alone
    gives a tag that counts those. With `stale_blocks` a block that never was written may hold what
    was written elsewhere before, as when a file system gives out the blocks of a removed file.
    """
    chance = random.Random(seed)
    platter = Platter(trace.initial)
    written: list[bytes] = []
    fillings = {"junk": _junk(chance)} | (
        {"stale": _stale(chance, written)} if stale_blocks else {}
    )
    seen: set[Hashable] = set()
    points = len(trace.entries) + 1 - start
    phase = chance.randrange(points)
    events: Events = ()
    for point in range(len(trace.entries) + 1):
        if point:
            entry = trace.entries[point - 1]
            platter.advance(point - 1, entry)
            events += (entry.event,) if isinstance(entry, Noted) else ()
            written += [entry.data] if isinstance(entry, Wrote) else []
        if point < start:
            continue
        found = _states(platter, _Moment(point, events, tag(events)), chance, fillings, seen)
        if budget is not None:
            # What one moment does not use is left to those that come after it.
            share = (budget * (point - start + 1) + phase) // points
            found = itertools.islice(found, share - len(seen))
        yield from found


@dataclass(frozen=True, slots=True)
class _Moment:
    point: int
    events: Events
    tag: Hashable


def _states(
    platter: Platter,
    moment: _Moment,
    chance: random.Random,
    fillings: Mapping[str, Filling],
    seen: set[Hashable],
) -> Iterator[CrashState]:
    """The states of one moment that were not seen before."""
    pending = platter.pending()
    parts = tuple(change.part for change in pending)
    for name, bits, filling in _filled(_choices(pending, chance), fillings):
        for change, bit in zip(pending, bits, strict=True):
            change.is_kept = bit
        fingerprint, left = platter.image(filling)
        if (fingerprint, moment.tag) not in seen:
            seen.add((fingerprint, moment.tag))
            arrived = tuple(change.is_kept for change in pending)
            yield CrashState(moment.point, moment.events, name, parts, arrived, left)


def _filled(
    choices: Iterator[tuple[str, Bits]], fillings: Mapping[str, Filling]
) -> Iterator[tuple[str, Bits, Filling | None]]:
    """Every choice as it is, and the one of metadata alone with every filling besides."""
    for name, bits in choices:
        yield name, bits, None
        if name == _METADATA:
            yield from ((f"{name} and {kind}", bits, each) for kind, each in fillings.items())


# --- Choices --------------------------------------------------------------------------------------

_METADATA = "metadata alone"


def _choices(pending: list[Change], chance: random.Random) -> Iterator[tuple[str, Bits]]:
    """Which of the pending changes arrive, the most telling choices first."""
    is_name = [isinstance(each.part, Created | Renamed | Removed) for each in pending]
    extremes = [("everything", [True] * len(pending)), ("nothing", [False] * len(pending))]
    chance.shuffle(extremes)
    yield from extremes
    yield _METADATA, [not isinstance(each.part, Sector) for each in pending]
    yield "no names", [not bit for bit in is_name]
    yield "names alone", is_name
    if len(pending) <= EXHAUSTIVE_MAX:
        subsets = list(itertools.product((False, True), repeat=len(pending)))
        chance.shuffle(subsets)
        yield from (("a subset", bits) for bits in subsets)
        return
    by_file = [each.part.file for each in pending]
    by_entry = [each.order for each in pending]
    yield from (("whole files", bits) for bits in _by_group(by_file, chance))
    yield from (("whole entries", bits) for bits in _by_group(by_entry, chance))
    yield from _around_places(len(pending), chance)
    for _ in range(_SAMPLES):
        yield "a sample", [chance.random() < 0.5 for _ in pending]


def _by_group(groups: list[int], chance: random.Random) -> Iterator[Bits]:
    """All of a group arrive, or none: every choice of few groups, one and all but one of many."""
    distinct = sorted(set(groups))
    if len(distinct) <= _GROUPS_MAX:
        chosen = [
            set(some) for n in range(len(distinct)) for some in itertools.combinations(distinct, n)
        ]
    else:
        ones = chance.sample(distinct, min(len(distinct), _PLACES_MAX))
        chosen = [{one} for one in ones] + [{*distinct} - {one} for one in ones]
    chance.shuffle(chosen)
    yield from ([group in some for group in groups] for some in chosen)


def _around_places(count: int, chance: random.Random) -> Iterator[tuple[str, Bits]]:
    """All before a place, all but it, it alone."""
    for place in chance.sample(range(count), min(count, _PLACES_MAX)):
        before, behind = place, count - place - 1
        yield "a beginning", [True] * before + [False] * (behind + 1)
        yield "all but one", [True] * before + [False] + [True] * behind
        yield "one alone", [False] * before + [True] + [False] * behind


# --- What is in blocks that never were written ----------------------------------------------------


def _junk(chance: random.Random) -> Filling:
    """The same junk in the same place, so that it does not make old states look new."""
    made: dict[tuple[int, int], Sector] = {}

    def fill(sector: Sector) -> Sector:
        place = (sector.file, sector.index)
        if place not in made:
            made[place] = Sector(*place, chance.randbytes(SECTOR_BYTES))
        return made[place]

    return fill


def _stale(chance: random.Random, written: list[bytes]) -> Filling:
    def fill(sector: Sector) -> Sector:
        data = chance.choice(written)
        start = chance.randrange(0, len(data), SECTOR_BYTES)
        return Sector(sector.file, sector.index, data[start : start + SECTOR_BYTES])

    return fill
