"""A transaction that is not over: its state, its participants and the objects to call, its family.

Values and plain records; what happens to them is said by `protocol.py` and done by others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.ledger import Key, Member
from coordinator.outcomes import Outcome
from coordinator.protocol import Transaction
from coordinator.tasks import Promise
from idl.coordination import Mq_Settler
from idl.cos import Resource, SubtransactionAwareResource, Synchronization


@dataclass(frozen=True)
class Settings:
    """Times, in seconds, and limits."""

    call_s: float = 5.0
    answer_s: float = 60.0
    session_s: float = 30.0
    timeout_s_max: float = 86_400.0
    settle_s: float = 0.2
    # So long what nobody waits for may be written and not on disk.
    unforced_s: float = 0.5
    retry_s: float = 0.1
    retry_s_max: float = 30.0
    transactions_max: int = 100_000
    # What one principal may have open, so that nobody can use up what is there for all.
    transactions_per_owner_max: int = 50_000
    sessions_per_owner_max: int = 2_000
    participants_max: int = 100_000
    sweep_s: float = 1.0


class Enlisted(NamedTuple):
    """A participant of a live transaction, and the objects to call."""

    member: Member
    resource: Resource
    settler: Mq_Settler | None


@dataclass(eq=False, slots=True)
class Live:
    """A transaction that is not over."""

    gtrid: bytes
    owner: str
    begun_at: float
    deadline: float | None = None
    # Those whose silence ends it, once all of them are silent; none for one that time alone ends.
    sessions: set[int] = field(default_factory=set)
    key: Key = field(default_factory=Key)
    state: Transaction = field(default_factory=Transaction)
    members: dict[int, Enlisted] = field(default_factory=dict)
    # The same by name: very many may ask for the outcome, each by its own.
    numbers: dict[str, int] = field(default_factory=dict)
    # For operators: how often each was tried, and what went wrong the last time.
    attempts: dict[int, int] = field(default_factory=dict)
    troubles: dict[int, str] = field(default_factory=dict)
    # How many have committed and are being asked to make that durable; and who has, of whom that
    # is said with the last of them. Changed by `Delivery` alone.
    settling: int = 0
    settled: list[int] = field(default_factory=list)
    is_closing: bool = False
    numbers_given: int = 0
    registered: int = 0
    digest: int = 0
    # Who waits for the decision, to act upon it, before those who take part have heard of it.
    foretell: Callable[[], object] | None = None
    # A database's mark has decided it: whoever is in doubt asks for that.
    is_marked: bool = False
    # How it ended, or why nobody can say: what whoever asks is told, once that is known; and what
    # those wait for who asked before. Changed with the lock of the transactions held.
    told: Outcome | BaseException | None = None
    done: Promise | None = None
    # The family of a transaction, and who is told of its end: see `family.py`.
    parent: Live | None = None
    children: list[Live] = field(default_factory=list)
    synchronizations: list[Synchronization] = field(default_factory=list)
    aware: list[SubtransactionAwareResource] = field(default_factory=list)

    def tell(self, told: Outcome | BaseException) -> None:
        """This is what whoever asks is told, unless something was told before."""
        if self.told is None:
            self.told = told
            if self.done is not None:
                self.done.keep(told)

    def enlist(self, number: int, enlisted: Enlisted) -> None:
        """The participant has this number."""
        self.members[number] = enlisted
        self.numbers[enlisted.member.name] = number

    def enlist_all(self, newcomers: Sequence[Enlisted]) -> tuple[int, ...]:
        """The participants have the numbers that come next: which."""
        first = self.numbers_given + 1
        self.numbers_given += len(newcomers)
        members, numbers = self.members, self.numbers
        for number, enlisted in enumerate(newcomers, first):
            members[number] = enlisted
            numbers[enlisted.member.name] = number
        return tuple(range(first, self.numbers_given + 1))

    def let_go(self) -> list[Enlisted]:
        """The participants, which are another's from now on."""
        left = list(self.members.values())
        self.members.clear()
        self.numbers.clear()
        return left
