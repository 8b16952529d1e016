"""Planted bugs of nodes that decide: each is a mistake that somebody could make, as a patch.

None of them is in the product, and none has a switch there. A mutant changes the nodes, the
coordinator or the owners of `deciding.py`; `test_deciding.py` runs it and expects that it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from coordinator import deciding_nodes
from coordinator.fates import Verdict
from coordinator.marks import Marks
from coordinator.settlement import SettlementServant
from idl.cos import Status, otid_t
from idl.databases import COMMITTED, ROLLED_BACK, BranchId
from idl.otids import GTRID_BYTES, split_otid
from mqserver.storage.contract import Message, Outcome
from mqserver.transactions import resource
from mqserver.transactions.decisions import FENCE, MARK, OWN, Decisions, Voter
from mqserver.transactions.resource import SettlerServant, branch_id
from tests.simulation.network import Reply, SimulatedLink
from tests.simulation.owners import Owner, Plan

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]
Commit = Callable[[bytes], None]


# --- Marks ---------------------------------------------------------------------------------------


def mark_not_stored(patch: Patch) -> None:
    """That a node has decided it knows until it is restarted."""
    real = Decisions._store

    def store(self: Decisions, branch: bytes, content: bytes, kind: int) -> int:
        return 0 if kind == MARK else real(self, branch, content, kind)

    patch.setattr(Decisions, "_store", store)


def mark_stored_after_the_commit(patch: Patch) -> None:
    """The mark is forced, but in a second write."""
    real, store = Decisions.commit, Decisions._store
    late: dict[bytes, bytes] = {}

    def keep(self: Decisions, branch: bytes, content: bytes, kind: int) -> int:
        if kind != MARK:
            return store(self, branch, content, kind)
        late[branch] = content
        return 0

    def commit(
        self: Decisions, branch: bytes, coordinator: str, voters: Sequence[Voter], end: Commit
    ) -> None:
        real(self, branch, coordinator, voters, end)
        own = OWN + self._new_id()
        key = store(self, own, late[branch], MARK)
        self._storage.commit_one_phase(own)
        gtrid = branch[:GTRID_BYTES]
        self._marks[gtrid] = self._marks[gtrid]._replace(key=key)

    patch.setattr(Decisions, "_store", keep)
    patch.setattr(Decisions, "commit", commit)


def marks_not_loaded(patch: Patch) -> None:
    """A node that starts does not look for what it had decided."""
    _load_only(patch, FENCE)


def silent_settler_has_ended(patch: Patch) -> None:
    """Voters of whom nobody says anything count as ended."""
    patch.setattr(SettlementServant, "_ended", lambda self, asked: set(asked))


def ended_without_force(patch: Patch) -> None:
    """That a voter has committed counts as that being on its disk."""

    def get_ended(self: SettlerServant, branches: tuple[otid_t, ...]) -> tuple[otid_t, ...]:
        outcome = self._storage.outcome
        over = resource._OVER
        return tuple([o for o in branches if outcome(branch_id(*split_otid(o))) in over])

    patch.setattr(SettlerServant, "getEnded", get_ended)


def prepared_counts_as_ended(patch: Patch) -> None:
    """A voter that still waits for the decision is said to have heard it."""
    patch.setattr(resource, "_OVER", (*resource._OVER, Outcome.PREPARED))


# --- Fences --------------------------------------------------------------------------------------


def fence_told_before_it_is_forced(patch: Patch) -> None:
    """A fence is written, and nobody sees to it that it reaches the disk."""

    def put_up(self: Decisions, gtrid: bytes) -> None:
        own = OWN + self._new_id()
        self._store(own, gtrid, FENCE)
        storage: Any = self._storage
        storage.commit_lazily(own)

    patch.setattr(Decisions, "_put_up", put_up)


def fences_not_loaded(patch: Patch) -> None:
    """A node that starts does not look for its fences, and decides behind them."""
    _load_only(patch, MARK)


def decided_behind_a_fence(patch: Patch) -> None:
    """A late owner is not stopped by a fence."""
    _not_looking_at(patch, "commit", "_fences")


def decided_while_it_is_fenced(patch: Patch) -> None:
    """A late owner is not stopped by a fence that is on its way to the disk."""
    _not_looking_at(patch, "commit", "_fencing", "_half_fenced")


def fenced_while_it_is_decided(patch: Patch) -> None:
    """A fence is put up though the commit is on its way to the disk."""
    _not_looking_at(patch, "fence", "_deciding")


def nothing_decided_is_rolled_back(patch: Patch) -> None:
    """That a node has not decided is told as a rollback, without a fence."""
    patch.setitem(deciding_nodes._MARKS, Status.NO_TRANSACTION, ROLLED_BACK)


def impatience_without_a_fence(patch: Patch) -> None:
    """Who has waited long enough is told "rolled back", and nothing keeps the owner out."""

    def settle(self: Marks, name: str, gtrid: bytes) -> bool:
        return self._find(name).mark(gtrid) == COMMITTED

    patch.setattr(Marks, "settle", settle)


def node_not_asked(patch: Patch) -> None:
    """The coordinator says what it knows by itself, and asks no node that may have decided."""
    real = Marks.answer

    def answer(self: Marks, name: str, branch: BranchId) -> Status:
        if self._verdicts.of(branch) is Verdict.ROLLED_BACK:
            return Status.ROLLED_BACK
        return real(self, name, branch)

    patch.setattr(Marks, "answer", answer)


# --- Lives ---------------------------------------------------------------------------------------


def calls_for_any_life(patch: Patch) -> None:
    """A copy of a call for a former life of a node is carried out by the one that listens now."""
    real = SimulatedLink._requested

    def requested(
        self: SimulatedLink, subject: str, reply: Reply, payload: bytes, is_copy: bool
    ) -> None:
        peer = self._peer
        if is_copy:
            self._peer = self._listener()
        real(self, subject, reply, payload, is_copy)
        self._peer = peer

    patch.setattr(SimulatedLink, "_requested", requested)


# --- Owners --------------------------------------------------------------------------------------


def voters_told_before_the_answer(patch: Patch) -> None:
    """The voters are told that it is committed while the decider is only being asked to."""
    real = Owner.ask_to_decide

    def ask_to_decide(self: Owner, plan: Plan) -> Status | None:
        self._tell(plan.told, plan.prepared, is_committed=True)
        return real(self, plan)

    patch.setattr(Owner, "ask_to_decide", ask_to_decide)


def lost_answer_is_rollback(patch: Patch) -> None:
    """That the decider does not answer is told to the voters as a rollback."""
    patch.setattr(Owner, "find_out", lambda self, plan: Status.ROLLED_BACK)


# --- How they are made ---------------------------------------------------------------------------


def _load_only(patch: Patch, kind: int) -> None:
    real = Decisions._know

    def know(self: Decisions, message: Message) -> None:
        if message.group == kind:
            real(self, message)

    patch.setattr(Decisions, "_know", know)


def _not_looking_at(patch: Patch, name: str, *places: str) -> None:
    """The operation looks for the transaction everywhere but in these places."""
    real = getattr(Decisions, name)

    def blind(self: Decisions, key: bytes, *rest: Any) -> Any:
        for place in places:
            getattr(self, place).discard(key[:GTRID_BYTES])
        return real(self, key, *rest)

    patch.setattr(Decisions, name, blind)
