"""What everybody was told in one simulated run, and whether that is what happened.

Clients write down here what they ask for and what they are told, as it happens and for ever: a
crash of a client does not erase it. When all is calm, `judge` holds it against how the branches of
the participants have ended. Pure: it asks nobody, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.ledger import Note
from idl.coordination import mqParticipantList
from idl.cos import Status
from idl.otids import show
from mqserver.storage.contract import Outcome
from tests.simulation.branches import COMMITTED, BranchDisk

COMMIT, ROLLBACK, DAMAGE = "committed", "rolled back", "heuristic"
ANSWERS = {Status.COMMITTED: COMMIT, Status.COMMITTING: COMMIT, Status.ROLLED_BACK: ROLLBACK}


class Violation(AssertionError):
    """The promise was broken."""


class Branch(NamedTuple):
    """A branch, and where it is."""

    node: str
    id: bytes


class Attempt(NamedTuple):
    """What a client wants to be committed, and what the coordinator was handed for it."""

    # Which client, and which of its goes: under a key it may meet with its own earlier work.
    go: str
    branches: frozenset[Branch]
    participants: mqParticipantList
    is_standard: bool


@dataclass
class Told:
    """What clients know of one transaction."""

    gtrid: bytes
    version: int = 0
    branches: dict[Branch, None] = field(default_factory=dict)
    # Those that have registered themselves, or may have: they count whoever decides.
    registered: dict[Branch, str] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    # In the order in which they were heard.
    answers: list[str] = field(default_factory=list)

    def hear(self, status: Status) -> None:
        """Somebody was told this."""
        if status in ANSWERS:
            self.answers.append(ANSWERS[status])


@dataclass
class Record:
    """All that was said and done in one run."""

    told: dict[bytes, Told] = field(default_factory=dict)
    # Versions of the one application that somebody was told to be committed.
    versions: list[int] = field(default_factory=list)
    # Where a branch has got something: what its owner was given.
    given: dict[Branch, int] = field(default_factory=dict)
    # Transactions that an operator of the coordinator has given up, or dismissed.
    given_up: dict[bytes, None] = field(default_factory=dict)


# Whether an operator of the node still sees the branch.
IsShown = Callable[[Branch], bool]


def judge(
    record: Record,
    disks: Mapping[str, BranchDisk],
    notes: Mapping[bytes, Iterable[Note]],
    mark: int,
    is_shown: IsShown,
) -> None:
    """What was told is what happened, everywhere."""
    committed = {}
    for told in record.told.values():
        ends = {branch: disks[branch.node].end_of(branch.id) for branch in told.branches}
        hands = {branch for branch in ends if disks[branch.node].is_by_hand(branch.id)}
        case = _Case(record, told, ends, hands, list(notes.get(told.gtrid, ())))
        _judge_ends(case, disks)
        _judge_whole(case)
        _judge_answers(case)
        _judge_damage(case, is_shown)
        committed[told.gtrid] = case.is_committed()
    _judge_versions(record, committed, mark)


class _Case(NamedTuple):
    """One transaction that is judged."""

    record: Record
    told: Told
    ends: dict[Branch, Outcome]
    # Those that an operator of their node has ended.
    by_hand: set[Branch]
    notes: list[Note]

    def __str__(self) -> str:
        told = self.told
        lines = [
            f"{show(told.gtrid)}, version {told.version}, told {told.answers}",
            *(f"  to commit {sorted(map(_shown, each.branches))}" for each in told.attempts),
            *(f"  {_shown(branch)} ended {end.name}" for branch, end in self.ends.items()),
            *(f"  noted {note.member.name} {note.heuristic.name}" for note in self.notes),
        ]
        return "\n".join(lines)

    def committed(self) -> set[Branch]:
        """The branches that were committed, but for those that an operator ended."""
        return {b for b, end in self.ends.items() if end in COMMITTED} - self.by_hand

    def is_whole(self) -> bool:
        """Whether what was committed is what one of the clients asked for."""
        return any(self._fits(attempt) for attempt in self.told.attempts)

    def _fits(self, attempt: Attempt) -> bool:
        own = attempt.branches - self.by_hand
        registered = self.told.registered.items()
        others = {branch for branch, go in registered if go != attempt.go}
        return own <= self.committed() <= own | others

    def is_against(self, branch: Branch) -> bool:
        """Whether the branch was rolled back, though all asked to commit it, and that was done."""
        attempts = self.told.attempts
        is_asked_for = attempts and all(branch in attempt.branches for attempt in attempts)
        return bool(is_asked_for) and self.is_committed() and self.ends[branch] not in COMMITTED

    def is_committed(self) -> bool:
        return bool(self.committed()) or COMMIT in self.told.answers


def _shown(branch: Branch) -> str:
    return f"{branch.node}/{branch.id[20:].hex()}"


def _judge_ends(case: _Case, disks: Mapping[str, BranchDisk]) -> None:
    for branch in case.ends:
        if branch not in case.by_hand and disks[branch.node].is_in_two_minds(branch.id):
            raise Violation(f"{_shown(branch)} was committed and rolled back: {case}")


def _judge_whole(case: _Case) -> None:
    if case.committed() and not case.is_whole():
        raise Violation(f"something else was committed than was asked for: {case}")


def _judge_answers(case: _Case) -> None:
    committed, answers = case.committed(), case.told.answers
    if COMMIT in answers and not case.is_whole():
        raise Violation(f"it was said to be committed, and is not: {case}")
    if ROLLBACK in answers and committed:
        raise Violation(f"it was said to be rolled back, and is committed: {case}")
    # Where nobody changed anything, the one is as true as the other.
    is_telling = case.told.version or any(attempt.branches for attempt in case.told.attempts)
    if COMMIT in answers and ROLLBACK in answers and is_telling:
        raise Violation(f"it was said to be committed, and to be rolled back: {case}")


def _judge_damage(case: _Case, is_shown: IsShown) -> None:
    """Heuristics have a cause, and what an operator did is known to somebody."""
    hands = case.by_hand
    given_up = case.told.gtrid in case.record.given_up
    # The only participant was asked to commit alone, and its answer was lost.
    is_alone = any(note.decided is Status.UNKNOWN for note in case.notes)
    if not (hands or given_up or is_alone) and (case.notes or DAMAGE in case.told.answers):
        raise Violation(f"something is said to have gone wrong, and nothing has: {case}")
    for branch in hands:
        if not (case.notes or given_up or is_shown(branch)):
            raise Violation(f"what an operator did is known to nobody: {case}")
        if case.is_against(branch) and not (case.notes or given_up):
            raise Violation(f"what an operator did is not known to the coordinator: {case}")


def _judge_versions(record: Record, committed: Mapping[bytes, bool], mark: int) -> None:
    if max(record.versions, default=0) > mark:
        raise Violation(f"versions {record.versions} were said to be committed; {mark} is")
    under_key: dict[int, list[Told]] = {}
    for told in record.told.values():
        if told.version and committed[told.gtrid]:
            under_key.setdefault(told.version, []).append(told)
    for version, found in under_key.items():
        if len(found) > 1:
            raise Violation(f"version {version} was committed {len(found)} times: {found}")
        if version > mark:
            raise Violation(f"version {version} was committed, and the mark is {mark}: {found}")
