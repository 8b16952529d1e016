"""Votes and heuristics as values, and how they combine into what a caller is told. Pure.

A heuristic is what a participant, or its operator, decided alone. One that agrees with the decision
is no damage; one that does not is. The caller of commit only ever hears of two kinds of damage:
mixed, when part of the transaction certainly went the other way, and hazard, when part of it may
have. Mixed is worse.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from idl.cos import Status


class Heuristic(enum.Enum):
    """How a participant ended its part alone. The numbers are on disk and never change."""

    COMMITTED = 1
    ROLLED_BACK = 2
    MIXED = 3
    HAZARD = 4


_COMMITTED_SIDE = (Status.COMMITTED, Status.COMMITTING)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transaction ended, or where it stands; with the damage, and why it was rolled back."""

    status: Status
    damage: Heuristic | None = None
    reason: str = ""

    @property
    def is_committed(self) -> bool:
        """Whether the decision was to commit."""
        return self.status in _COMMITTED_SIDE


def damage_of(is_commit: bool, heuristics: Iterable[Heuristic]) -> Heuristic | None:
    """What the heuristics of some participants mean beside the decision for all."""
    agreeing = Heuristic.COMMITTED if is_commit else Heuristic.ROLLED_BACK
    against = {heuristic for heuristic in heuristics if heuristic is not agreeing}
    if not against:
        return None
    return Heuristic.HAZARD if against == {Heuristic.HAZARD} else Heuristic.MIXED
