"""A storage of branches alone, for simulated participants: what each is, and what a crash leaves.

It keeps the promises of `mqserver/storage/contract.py` about branches and nothing else: messages
are in `tests/crash`. What is not forced is lost from the end, as from a log. `BranchDisk` also
remembers, for the checker, how each branch ever looked to others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mqserver.errors import BranchEnded
from mqserver.storage.contract import BranchInfo, Outcome, Vote
from tests.simulation.world import World

HEURISTIC = (Outcome.HEURISTICALLY_COMMITTED, Outcome.HEURISTICALLY_ROLLED_BACK)
COMMITTED = (Outcome.COMMITTED, Outcome.HEURISTICALLY_COMMITTED)
SHOWN = (Outcome.ACTIVE, Outcome.PREPARED, *HEURISTIC)


class Record(NamedTuple):
    """What a branch has become."""

    branch: bytes
    outcome: Outcome
    recovery: bytes = b""


@dataclass
class BranchDisk:
    """What survives a crash: the records that were forced."""

    forced: list[Record] = field(default_factory=list)
    # For the checker: what each branch has ended as, in this order and for ever.
    ends: dict[bytes, list[Outcome]] = field(default_factory=dict)

    def note(self, record: Record) -> None:
        """Others have seen this, or would if they looked."""
        if record.outcome not in (Outcome.PREPARED, Outcome.UNKNOWN):
            self.ends.setdefault(record.branch, []).append(record.outcome)

    def end_of(self, branch: bytes) -> Outcome:
        """How the branch ended; UNKNOWN for one that never did anything that counts."""
        return self.ends.get(branch, [Outcome.UNKNOWN])[-1]

    def is_by_hand(self, branch: bytes) -> bool:
        """Whether an operator has ended the branch."""
        return any(outcome in HEURISTIC for outcome in self.ends.get(branch, ()))

    def is_in_two_minds(self, branch: bytes) -> bool:
        """Whether the branch has ended in one way and then in the other."""
        return len({outcome in COMMITTED for outcome in self.ends.get(branch, ())}) > 1


class BranchStorage:
    """The branches of one life of a participant. See `Storage`."""

    def __init__(self, world: World, disk: BranchDisk, slow_s: float) -> None:
        self.disk = disk
        self._world = world
        self._slow_s = slow_s
        self._lazy: list[Record] = []
        self._known: dict[bytes, Record] = {}
        # Those that are not over, or that an operator should see.
        self._open: dict[bytes, Record] = {}
        self._changed: set[bytes] = set()
        for record in disk.forced:
            self._apply(record)
        for record in self._known.values():
            disk.note(record)

    def begin(self, branch: bytes, changes: bool = True) -> None:
        """The branch has done something, which changed something or not."""
        self._expect(branch, Outcome.UNKNOWN, Outcome.ACTIVE)
        self._apply(Record(branch, Outcome.ACTIVE))
        if changes:
            self._changed.add(branch)

    def prepare(self, branch: bytes, recovery: bytes) -> Vote:
        """See `Storage.prepare`."""
        self._wait()
        if self.outcome(branch) is Outcome.PREPARED:
            return Vote.COMMIT
        self._expect(branch, Outcome.ACTIVE)
        if branch not in self._changed:
            self._write(Record(branch, Outcome.ROLLED_BACK), is_forced=False)
            return Vote.READ_ONLY
        self._write(Record(branch, Outcome.PREPARED, recovery), is_forced=True)
        return Vote.COMMIT

    def commit(self, branch: bytes, force: bool = True) -> Outcome:
        """See `Storage.commit`."""
        self._wait()
        outcome = self.outcome(branch)
        if outcome in HEURISTIC:
            return outcome
        if outcome is Outcome.COMMITTED:
            if force:
                self.force()
            return outcome
        self._expect(branch, Outcome.PREPARED)
        self._write(Record(branch, Outcome.COMMITTED), is_forced=force)
        return Outcome.COMMITTED

    def commit_one_phase(self, branch: bytes, force: bool = True) -> None:
        """See `Storage.commit_one_phase`."""
        self._wait()
        if self.outcome(branch) is not Outcome.COMMITTED:
            self._expect(branch, Outcome.ACTIVE)
            self._write(Record(branch, Outcome.COMMITTED), is_forced=force)

    def rollback(self, branch: bytes) -> Outcome:
        """See `Storage.rollback`."""
        outcome = self.outcome(branch)
        if outcome is Outcome.COMMITTED:
            raise BranchEnded(branch.hex(), outcome.name)
        if outcome is Outcome.ROLLED_BACK or outcome in HEURISTIC:
            return outcome
        self._write(Record(branch, Outcome.ROLLED_BACK), is_forced=False)
        return Outcome.ROLLED_BACK

    def resolve(self, branch: bytes, commit: bool) -> None:
        """See `Storage.resolve`."""
        self._expect(branch, Outcome.PREPARED)
        self._write(Record(branch, HEURISTIC[0] if commit else HEURISTIC[1]), is_forced=True)

    def forget(self, branch: bytes) -> None:
        """See `Storage.forget`."""
        if self.outcome(branch) in HEURISTIC:
            self._write(Record(branch, Outcome.UNKNOWN), is_forced=False)

    def outcome(self, branch: bytes) -> Outcome:
        """See `Storage.outcome`."""
        known = self._known.get(branch)
        return Outcome.UNKNOWN if known is None else known.outcome

    def branches(self) -> list[BranchInfo]:
        """See `Storage.branches`."""
        return [BranchInfo(r.branch, r.outcome, r.recovery, 1, 0) for r in self._open.values()]

    def is_at_work(self) -> bool:
        """Whether a branch is active or in doubt."""
        return any(record.outcome not in HEURISTIC for record in self._open.values())

    def force(self) -> None:
        """See `Storage.force`."""
        self._world.step()
        self.disk.forced += self._lazy
        self._lazy = []
        self._world.step()

    def crash(self) -> None:
        """The host has died: some of what was not forced may be on disk all the same."""
        count = self._world.random.randint(0, len(self._lazy))
        self.disk.forced += self._lazy[:count]
        self._lazy = []

    def _write(self, record: Record, is_forced: bool) -> None:
        self._lazy.append(record)
        if is_forced:
            self.force()
        self._apply(record)
        self.disk.note(record)

    def _apply(self, record: Record) -> None:
        self._known[record.branch] = record
        if record.outcome in SHOWN:
            self._open[record.branch] = record
        else:
            self._open.pop(record.branch, None)

    def _expect(self, branch: bytes, *expected: Outcome) -> None:
        outcome = self.outcome(branch)
        if outcome not in expected:
            raise BranchEnded(branch.hex(), outcome.name)

    def _wait(self) -> None:
        """The disk is slow, and others are served meanwhile."""
        if self._slow_s:
            self._world.sleep(self._world.random.uniform(0.0, self._slow_s))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AssertionError(f"no message is stored here: {name}")
