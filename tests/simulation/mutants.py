"""Planted bugs of the protocol: each is a mistake that somebody could make, as a patch for a test.

None of them is in the product, and none has a switch there. A mutant changes the coordinator or the
participants of `commitment.py`; `test_protocol_mutants.py` runs it and expects that it is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordinator import calls, interfaces, protocol
from coordinator.decision_log import DecisionLog
from coordinator.ledger import Decision, Key, Ledger, Note, decision_body, note_body
from coordinator.protocol import Event, Kind
from coordinator.sessions import Sessions, Standing
from coordinator.transactions import Transactions
from idl.cos import Status, Vote
from mqserver.errors import BranchEnded
from mqserver.storage import contract
from mqserver.storage.contract import Outcome
from mqserver.storage.format import RecordKind
from mqserver.transactions import orphans, resource
from mqserver.transactions.branch import TRANSITIONS as branch_table
from mqserver.transactions.branch import Act, Answer, Request, Step
from tests.simulation import commitment
from tests.simulation.branches import BranchStorage, Record
from tests.simulation.customers import OWNER, SERVICE

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]


# --- The decision --------------------------------------------------------------------------------


def decision_not_forced(patch: Patch) -> None:
    """The decision is written, and nobody sees to it that it reaches the disk."""

    def decide(self: DecisionLog, decision: Decision) -> None:
        self._append(RecordKind.DECISION, decision_body(decision))

    patch.setattr(DecisionLog, "decide", decide)


def commit_before_the_decision(patch: Patch) -> None:
    """Everybody is told to commit while the decision is still on its way to the disk."""

    def decide(self: commitment.SlowDecisionLog, decision: Decision) -> None:
        lsn = self._append(RecordKind.DECISION, decision_body(decision))
        self._world.spawn(SERVICE, self._log.force, lsn, after_s=0.5)

    patch.setattr(commitment.SlowDecisionLog, "decide", decide)


def version_told_before_the_decision(patch: Patch) -> None:
    """A version counts as committed as soon as its decision is written, forced or not."""

    def version_of(self: DecisionLog, application: str) -> int:
        return self.ledger.marks.get(application, 0)

    patch.setattr(DecisionLog, "version_of", version_of)


def decision_names_everybody(patch: Patch) -> None:
    """Whoever asks is told to commit, whether the decision names it or not."""
    real = protocol.answer_to

    def answer_to(transaction: Any, is_named: bool, number: int | None) -> Status | None:
        return real(transaction, True, number)

    patch.setattr(interfaces, "answer_to", answer_to)


def decision_not_resumed(patch: Patch) -> None:
    """A start does not carry out what was decided before."""
    patch.setattr(Transactions, "resume", lambda self, decision, enlist: None)


def outcome_forgotten(patch: Patch) -> None:
    """What is carried out everywhere is not remembered at all."""

    def ended(self: Ledger, gtrid: bytes) -> None:
        self.decisions.pop(gtrid, None)

    patch.setattr(Ledger, "_ended", ended)


def lone_commit_passes_for_rollback(patch: Patch) -> None:
    """What the only participant committed is not remembered, and then presumed rolled back."""
    real = Ledger._ended

    def ended(self: Ledger, gtrid: bytes) -> None:
        if gtrid in self.decisions:
            real(self, gtrid)

    patch.setattr(Ledger, "_ended", ended)


def heuristic_not_forced(patch: Patch) -> None:
    """A heuristic is forgotten at the participant before it is on the coordinator's disk."""

    def note_heuristic(self: DecisionLog, gtrid: bytes, note: Note) -> None:
        self._append(RecordKind.HEURISTIC, note_body(gtrid, note))

    patch.setattr(DecisionLog, "note_heuristic", note_heuristic)


# --- Voting twice --------------------------------------------------------------------------------


def over_names_are_voted_on(patch: Patch) -> None:
    """A name of an earlier start, or of an ended session, is taken for a new transaction."""
    real = Transactions._over

    def over(self: Transactions, gtrid: bytes, standing: Standing) -> Any:
        is_known = self._log.ledger.is_committed(gtrid)
        if standing is Standing.OVER and not is_known:
            state = protocol.Transaction(is_leased=True)
            return self._add(gtrid, OWNER, None, set(), Key(), state)
        return real(self, gtrid, standing)

    patch.setattr(Transactions, "_over", over)


def rolled_back_names_are_voted_on(patch: Patch) -> None:
    """That a transaction was rolled back is not remembered while its session lives."""
    real = Sessions.note

    def note(self: Sessions, gtrid: bytes, is_committed: bool) -> None:
        if is_committed:
            real(self, gtrid, is_committed)

    patch.setattr(Sessions, "note", note)


def names_issued_twice(patch: Patch) -> None:
    """Every start has the same incarnation, with the same secret."""

    def begin(self: DecisionLog, secret: bytes) -> None:
        if not self.ledger.incarnation:
            body = (1, secret)
            self._force(self._append(RecordKind.INCARNATION, body, may_use_spare=True))

    patch.setattr(DecisionLog, "_begin_incarnation", begin)


# --- Answers to those who ask --------------------------------------------------------------------


def rollback_answered_while_voting(patch: Patch) -> None:
    """Who asks while votes are gathered, or the decision is written, is told "rolled back"."""
    _answer_rolled_back(patch, Status.PREPARING, Status.PREPARED)


def rollback_answered_while_undecided(patch: Patch) -> None:
    """Who asks before the client has decided is told "rolled back"."""
    _answer_rolled_back(patch, Status.ACTIVE)


def _answer_rolled_back(patch: Patch, *statuses: Status) -> None:
    real = protocol.answer_to

    def answer_to(transaction: Any, is_named: bool, number: int | None) -> Status | None:
        if transaction.status in statuses:
            return Status.ROLLED_BACK
        return real(transaction, is_named, number)

    patch.setattr(interfaces, "answer_to", answer_to)


# --- Counting votes and acknowledgements ---------------------------------------------------------


def lost_vote_is_yes(patch: Patch) -> None:
    """A participant that does not answer counts as one that agrees."""
    _turn(patch, "prepare", Kind.NO_VOTE, Kind.VOTED_COMMIT)


def vote_against_is_ignored(patch: Patch) -> None:
    """A vote to roll back counts as one of somebody who changed nothing."""
    _turn(patch, "prepare", Kind.VOTED_ROLLBACK, Kind.VOTED_READ_ONLY)


def ended_before_all_acknowledged(patch: Patch) -> None:
    """A participant that was not reached counts as one that has committed."""
    _turn(patch, "commit", Kind.NOT_REACHED, Kind.DONE)


def lazy_commit_taken_for_durable(patch: Patch) -> None:
    """That a participant has committed counts as that being on its disk."""
    _turn(patch, "commit", Kind.DONE_LAZILY, Kind.DONE)


def lost_together_is_done(patch: Patch) -> None:
    """Participants of one node that were not reached with one call count as committed."""
    _turn_together(patch, Kind.NOT_REACHED, Kind.DONE)


def lazy_together_taken_for_durable(patch: Patch) -> None:
    """That participants of one node have committed counts as that being on its disk."""
    _turn_together(patch, Kind.DONE_LAZILY, Kind.DONE)


def refused_together_is_done(patch: Patch) -> None:
    """Participants that could not be committed with the others count as committed."""
    real = calls.commit_together

    def turned(*arguments: Any) -> tuple[list[Event], list[int]]:
        events, refused = real(*arguments)
        return [*events, *(Event(Kind.DONE, number) for number in refused)], []

    patch.setattr(calls, "commit_together", turned)


def _turn_together(patch: Patch, before: Kind, after: Kind) -> None:
    real = calls.commit_together

    def turned(*arguments: Any) -> tuple[list[Event], list[int]]:
        events, refused = real(*arguments)
        kinds = [after if event.kind is before else event.kind for event in events]
        return [e._replace(kind=k) for e, k in zip(events, kinds, strict=True)], refused

    patch.setattr(calls, "commit_together", turned)


def _turn(patch: Patch, name: str, before: Kind, after: Kind) -> None:
    real = getattr(calls, name)

    def turned(*arguments: Any) -> Event:
        event: Event = real(*arguments)
        return event._replace(kind=after) if event.kind is before else event

    patch.setattr(calls, name, turned)


# --- Participants --------------------------------------------------------------------------------


def vote_before_it_is_forced(patch: Patch) -> None:
    """A participant votes, and what it promises is not on its disk yet."""
    real = BranchStorage._write

    def write(self: BranchStorage, record: Record, is_forced: bool) -> None:
        real(self, record, is_forced and record.outcome is not Outcome.PREPARED)

    patch.setattr(BranchStorage, "_write", write)


def prepared_forgotten(patch: Patch) -> None:
    """A participant that starts does not look for what it had promised."""
    real = BranchStorage._apply

    def apply(self: BranchStorage, record: Record) -> None:
        is_start = record in self.disk.forced and record.branch not in self._known
        if not (is_start and record.outcome is Outcome.PREPARED):
            real(self, record)

    patch.setattr(BranchStorage, "_apply", apply)


def unilateral_rollback(patch: Patch) -> None:
    """A prepared participant that cannot reach the coordinator rolls back by itself."""
    real = orphans.Orphans._ask

    def ask(self: orphans.Orphans, branch: bytes, recovery: bytes) -> bool:
        if real(self, branch, recovery):
            return True
        if self._storage.outcome(branch) is Outcome.PREPARED:
            resource.ask(self._storage, branch, Request.ROLLBACK)
        return True

    patch.setattr(orphans.Orphans, "_ask", ask)


def unknown_branch_votes_yes(patch: Patch) -> None:
    """A participant that has lost its work, or never had any, votes to commit."""
    real = resource.prepare

    def prepare(storage: contract.Storage, branch: bytes, recovery: bytes) -> Vote:
        if storage.outcome(branch) is Outcome.UNKNOWN:
            return Vote.COMMIT
        return real(storage, branch, recovery)

    patch.setattr(resource, "prepare", prepare)


def settle_only_forces(patch: Patch) -> None:
    """Asked to settle, a participant forces what it has, whether or not it has those commits."""

    def settle(self: resource.SettlerServant, branches: Any) -> None:
        self._storage.force()

    patch.setattr(resource.SettlerServant, "settle", settle)


def late_work_accepted(patch: Patch) -> None:
    """Work that comes after the end begins the branch anew."""

    def begin(self: BranchStorage, branch: bytes, changes: bool = True) -> None:
        if self.outcome(branch) is Outcome.PREPARED:
            raise BranchEnded(branch.hex())
        self._apply(Record(branch, Outcome.ACTIVE))
        if changes:
            self._changed.add(branch)

    patch.setattr(BranchStorage, "begin", begin)


def late_work_accepted_after_rollback(patch: Patch) -> None:
    """Work that comes after a rollback begins the branch anew."""

    def begin(self: BranchStorage, branch: bytes, changes: bool = True) -> None:
        self._expect(branch, Outcome.UNKNOWN, Outcome.ACTIVE, Outcome.ROLLED_BACK)
        self._apply(Record(branch, Outcome.ACTIVE))
        if changes:
            self._changed.add(branch)

    patch.setattr(BranchStorage, "begin", begin)


def unreachable_is_done(patch: Patch) -> None:
    """A settler that was not reached counts as one that has settled."""
    real = calls.settle

    def settle(*arguments: Any) -> Kind:
        kind = real(*arguments)
        return Kind.SETTLED if kind is Kind.NOT_REACHED else kind

    patch.setattr(calls, "settle", settle)


def lost_lone_commit_is_rollback(patch: Patch) -> None:
    """The only participant was asked to commit, its answer was lost, and "rolled back" is told."""
    real = calls.commit_one_phase

    def commit_one_phase(*arguments: Any) -> Event:
        event = real(*arguments)
        return Event(Kind.VOTED_ROLLBACK, event.participant) if event.heuristic else event

    patch.setattr(calls, "commit_one_phase", commit_one_phase)


def session_end_forgets_decisions(patch: Patch) -> None:
    """What a silent owner had handed to the disk is rolled back with the rest."""
    patch.setitem(protocol.TRANSITIONS, (Status.PREPARED, Kind.ROLLBACK), protocol._roll_back)
    patch.setattr(
        "coordinator.timeouts.UNDECIDED",
        (Status.ACTIVE, Status.MARKED_ROLLBACK, Status.PREPARING, Status.PREPARED),
    )


# --- Alone they do no harm: another defence stands behind each of them ----------------------------


def no_tombstone(patch: Patch) -> None:
    """Told to roll back what it never heard of, a participant does not remember that."""
    stays = Step(Act.NOTHING, Answer.OK, Outcome.UNKNOWN)
    patch.setitem(branch_table, (Outcome.UNKNOWN, Request.ROLLBACK), stays)


def rolled_back_branch_votes_again(patch: Patch) -> None:
    """A branch that was rolled back is begun anew by a late request to vote, and agrees."""
    real = resource.prepare

    def prepare(storage: BranchStorage, branch: bytes, recovery: bytes) -> Vote:
        if storage.outcome(branch) is Outcome.ROLLED_BACK and recovery:
            storage._apply(Record(branch, Outcome.ACTIVE))
            storage._changed.add(branch)
        return real(storage, branch, recovery)

    patch.setattr(resource, "prepare", prepare)
    patch.setattr(commitment, "prepare", prepare)
