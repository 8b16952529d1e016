"""What a coordinator's log says: decisions not yet carried out, outcomes, marks, heuristics. Pure.

The same function, `Ledger.apply`, is used when a record is written and when it is read again after
a restart, so that the two cannot differ; only a decision, which is there before its record, is not
made of that again. Every record may be applied twice.

    record        body                                  what holds then
    INCARNATION   number, secret                        names were issued under this number
    DECISION      gtrid, owner, key, names' digest,     committed; these participants are to be told
                  participants
    DONE          gtrid, participant's number           this one has committed, durably
    ENDED         gtrid                                 all have, or it took no decision; only the
                                                        outcome is remembered
    HEURISTIC     gtrid, note                           a participant ended its part alone
    DISMISSED     gtrid                                 nobody asks for its heuristics any more
    DECISIONS     all of the ledger                     this, and nothing from before

Of what is rolled back nothing is written: who asks for a name that was issued here and is not known
is told that it was rolled back. That holds as long as every outcome is remembered that anybody may
still ask for. Participants ask only until they have committed, and decisions are kept until then.
Clients may ask at any time: the last `OUTCOMES_KEPT` are remembered for them, and `horizon` is the
highest name that was ever dropped, so that what is below it and not known is unknown.
"""

from __future__ import annotations

import functools
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coordinator.outcomes import Heuristic
from idl.cos import Status
from mqserver.storage.format import RecordKind

OUTCOMES_KEPT = 50_000
GIVEN_UP_KEPT = 10_000


class Member(NamedTuple):
    """A participant as a decision names it: its own name, and the references to reach it by.

    In its transaction it has a number, under which the other records speak of it.
    """

    name: str
    resource: str
    settler: str = ""


class Key(NamedTuple):
    """A transaction of a named application; version 0 is no key."""

    application: str = ""
    version: int = 0


@dataclass(frozen=True)
class Decision:
    """A commit decision that has not been carried out everywhere."""

    gtrid: bytes
    owner: str
    key: Key
    members: dict[int, Member]
    # Of the names that the client gave: who repeats the request with others is not the same.
    digest: int = 0
    done: set[int] = field(default_factory=set, compare=False)


class Note(NamedTuple):
    """How a participant ended its part alone, beside what was decided."""

    number: int
    heuristic: Heuristic
    decided: Status
    owner: str
    member: Member
    reason: str


class Ledger:
    """All that is known from the log."""

    def __init__(self) -> None:
        self.incarnations: dict[int, bytes] = {}
        self.decisions: dict[bytes, Decision] = {}
        # In the order in which they ended, so that the first is the one to be dropped.
        self.committed: OrderedDict[bytes, int] = OrderedDict()
        self.horizon = b""
        self.marks: dict[str, int] = {}
        self.heuristics: dict[bytes, dict[int, Note]] = {}
        # Participants of committed transactions that were given up, by name: should one come back
        # and ask, it is told the truth.
        self.given_up: dict[bytes, list[str]] = {}
        self._rules: dict[RecordKind, Callable[..., None]] = {
            RecordKind.INCARNATION: self._incarnation,
            RecordKind.DECISION: self._decision,
            RecordKind.DONE: self._done,
            RecordKind.ENDED: self._ended,
            RecordKind.HEURISTIC: self._heuristic,
            RecordKind.DISMISSED: self._dismissed,
            RecordKind.DECISIONS: self._all,
        }

    @property
    def incarnation(self) -> int:
        """The number under which names are issued now."""
        return max(self.incarnations, default=0)

    def apply(self, kind: RecordKind, body: tuple[Any, ...]) -> None:
        """What the record says holds."""
        self._rules[kind](*body)

    def knows(self, kind: RecordKind) -> bool:
        """Whether a record of this kind belongs into a coordinator's log."""
        return kind in self._rules

    def is_committed(self, gtrid: bytes) -> bool:
        """Whether there is, or was, a decision to commit that is still remembered."""
        return gtrid in self.decisions or gtrid in self.committed

    def digest(self, gtrid: bytes) -> int | None:
        """That of the names under which it was committed, where it is remembered."""
        decision = self.decisions.get(gtrid)
        return self.committed.get(gtrid) if decision is None else decision.digest

    def was_named(self, gtrid: bytes, name: str) -> bool:
        """Whether a decision that is carried out named this participant, which did not answer."""
        notes = self.heuristics.get(gtrid, {}).values()
        named = [note.member.name for note in notes if note.decided is Status.COMMITTED]
        return name in named or name in self.given_up.get(gtrid, ())

    def is_too_old(self, gtrid: bytes) -> bool:
        """Whether the outcome may have been dropped from memory."""
        return gtrid <= self.horizon

    # --- Records

    def _incarnation(self, number: int, secret: bytes) -> None:
        self.incarnations[number] = secret

    def _decision(
        self,
        gtrid: bytes,
        owner: str,
        key: tuple[str, int],
        digest: int,
        members: tuple[Any, ...],
    ) -> None:
        named = {number: Member(*member) for number, *member in members}
        self.decide(Decision(gtrid, owner, Key(*key), named, digest))

    def decide(self, made: Decision) -> None:
        """What a record of this decision says holds."""
        self.decisions[made.gtrid] = made
        application, version = made.key
        if version:
            self.marks[application] = max(self.marks.get(application, 0), version)

    def _done(self, gtrid: bytes, number: int) -> None:
        if gtrid in self.decisions:
            self.decisions[gtrid].done.add(number)

    def _ended(self, gtrid: bytes) -> None:
        decision = self.decisions.pop(gtrid, None)
        # Without a decision nobody was named: the only participant, or nobody, has decided.
        self.committed.setdefault(gtrid, 0 if decision is None else decision.digest)
        while len(self.committed) > OUTCOMES_KEPT:
            # Not a plain dict, whose first entry is searched for behind all that were dropped.
            dropped, _ = self.committed.popitem(last=False)
            self.horizon = max(self.horizon, dropped)

    def _heuristic(
        self,
        gtrid: bytes,
        number: int,
        heuristic: int,
        decided: int,
        owner: str,
        member: tuple[str, str, str],
        reason: str,
    ) -> None:
        note = Note(number, Heuristic(heuristic), Status(decided), owner, Member(*member), reason)
        self.heuristics.setdefault(gtrid, {})[number] = note

    def _dismissed(self, gtrid: bytes) -> None:
        notes = self.heuristics.pop(gtrid, {}).values()
        names = [note.member.name for note in notes if note.decided is Status.COMMITTED]
        if names:
            self.given_up[gtrid] = names
            while len(self.given_up) > GIVEN_UP_KEPT:
                del self.given_up[next(iter(self.given_up))]

    # --- All of it

    def packed(self) -> tuple[Any, ...]:
        """The body of a DECISIONS record."""
        return (
            list(self.incarnations.items()),
            [
                (decision_body(decision), sorted(decision.done))
                for decision in self.decisions.values()
            ],
            list(self.committed.items()),
            self.horizon,
            list(self.marks.items()),
            [
                note_body(gtrid, note)
                for gtrid, notes in self.heuristics.items()
                for note in notes.values()
            ],
            list(self.given_up.items()),
        )

    def _all(
        self,
        incarnations: Any,
        decisions: Any,
        committed: Any,
        horizon: bytes,
        marks: Any,
        heuristics: Any,
        given_up: Any,
    ) -> None:
        self.incarnations = dict(incarnations)
        self.decisions = {}
        self.marks = dict(marks)
        for body, done in decisions:
            self._decision(*body)
            self.decisions[body[0]].done.update(done)
        self.committed = OrderedDict(committed)
        self.horizon = horizon
        self.heuristics = {}
        for body in heuristics:
            self._heuristic(*body)
        self.given_up = {gtrid: list(names) for gtrid, names in given_up}


def decision_body(decision: Decision) -> tuple[Any, ...]:
    """The body of a DECISION record."""
    members = [(number, *member) for number, member in decision.members.items()]
    return (decision.gtrid, decision.owner, tuple(decision.key), decision.digest, members)


# The same few names come again and again.
@functools.lru_cache(maxsize=1024)
def digest_of(names: tuple[str, ...]) -> int:
    """A number for the names that a client gave, in whatever order; 0 for none."""
    return zlib.crc32("\n".join(sorted(names)).encode())


def note_body(gtrid: bytes, note: Note) -> tuple[Any, ...]:
    """The body of a HEURISTIC record."""
    return (
        gtrid,
        note.number,
        note.heuristic.value,
        note.decided.value,
        note.owner,
        tuple(note.member),
        note.reason,
    )
