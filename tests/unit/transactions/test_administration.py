"""Branches as an operator sees them, and ends them by hand."""

from __future__ import annotations

import logging

import pytest

from idl.cos import HeuristicCommit, HeuristicRollback, NotPrepared, Status, otid_t
from idl.local import LocalOrb
from idl.mq import BranchNotFound
from idl.otids import otid_of, show
from mqserver.storage.contract import EVERYTHING, NewMessage, Outcome, QueueSettings
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.administration import BranchAdministration
from mqserver.transactions.resource import Resources, branch_id

GTRID = bytes(range(32))
BRANCH = branch_id(GTRID, "b0")
OTID = otid_of(GTRID, "b0")
RECOVERY = b"PYRO:recovery/1@coordinator:1"


@pytest.fixture
def storage() -> MemoryStorage:
    made = MemoryStorage(lambda: 0.0)
    made.create_queue("q", QueueSettings())
    return made


@pytest.fixture
def admin(storage: MemoryStorage) -> BranchAdministration:
    return BranchAdministration(storage, lambda branch: 12.7, lambda branch: "alice")


def _prepare(storage: MemoryStorage) -> None:
    storage.store(BRANCH, "q", [NewMessage(b"x", 0), NewMessage(b"y", 0)])
    storage.prepare(BRANCH, RECOVERY)


def test_a_branch_is_shown_with_its_owner_its_age_its_work_and_whom_it_asks(
    storage: MemoryStorage, admin: BranchAdministration
) -> None:
    _prepare(storage)
    (shown,) = admin.listBranches()
    assert shown.otid == OTID
    assert shown.state is Status.PREPARED
    assert (shown.owner, shown.age) == ("alice", 12)
    assert (shown.stored, shown.deleted) == (2, 0)
    assert shown.coordinator == RECOVERY.decode()


def test_branches_of_the_nodes_own_are_not_shown(
    storage: MemoryStorage, admin: BranchAdministration
) -> None:
    storage.store(b"own", "q", [NewMessage(b"x", 0)])
    assert admin.listBranches() == ()


def test_branches_that_are_over_are_not_shown(
    storage: MemoryStorage, admin: BranchAdministration
) -> None:
    _prepare(storage)
    storage.commit(BRANCH)
    assert admin.listBranches() == ()


@pytest.mark.parametrize(
    ("is_commit", "outcome", "status", "visible"),
    [
        (True, Outcome.HEURISTICALLY_COMMITTED, Status.COMMITTED, 2),
        (False, Outcome.HEURISTICALLY_ROLLED_BACK, Status.ROLLED_BACK, 0),
    ],
)
def test_an_operator_ends_a_branch_in_doubt_and_it_is_audited_and_shown_until_forgotten(
    storage: MemoryStorage,
    admin: BranchAdministration,
    caplog: pytest.LogCaptureFixture,
    is_commit: bool,
    outcome: Outcome,
    status: Status,
    visible: int,
) -> None:
    _prepare(storage)
    with caplog.at_level(logging.WARNING, "oncemq.audit"):
        admin.decideBranch(OTID, is_commit)
        assert storage.outcome(BRANCH) is outcome
        assert [each.state for each in admin.listBranches()] == [status]
        admin.forgetBranch(OTID)
    assert admin.listBranches() == ()
    assert storage.queue("q").visible == visible
    word = "commits" if is_commit else "rolls back"
    shown = f"{show(GTRID)}/b0"
    assert caplog.messages == [
        f"an operator {word} branch {shown} by hand",
        f"an operator forgets branch {shown}",
    ]


def test_the_coordinator_that_comes_back_hears_what_the_operator_did(
    storage: MemoryStorage, admin: BranchAdministration
) -> None:
    resources = Resources(LocalOrb(), storage)
    resources.publish()
    resource = resources.resource_of(GTRID, "b0", is_lazy=False)
    _prepare(storage)
    admin.decideBranch(OTID, False)
    with pytest.raises(HeuristicRollback):
        resource.commit()
    resource.rollback()
    resource.forget()
    assert admin.listBranches() == ()
    other = branch_id(GTRID, "b1")
    storage.store(other, "q", [NewMessage(b"x", 0)])
    storage.prepare(other, RECOVERY)
    admin.decideBranch(otid_of(GTRID, "b1"), True)
    with pytest.raises(HeuristicCommit):
        resources.resource_of(GTRID, "b1", is_lazy=False).rollback()


@pytest.mark.parametrize("is_commit", [True, False])
def test_only_a_branch_in_doubt_is_ended_by_hand(
    storage: MemoryStorage, admin: BranchAdministration, is_commit: bool
) -> None:
    storage.store(BRANCH, "q", [NewMessage(b"x", 0)])
    with pytest.raises(NotPrepared):
        admin.decideBranch(OTID, is_commit)
    assert storage.outcome(BRANCH) is Outcome.ACTIVE


def test_what_an_operator_decided_is_not_decided_again(
    storage: MemoryStorage, admin: BranchAdministration
) -> None:
    _prepare(storage)
    admin.decideBranch(OTID, True)
    with pytest.raises(NotPrepared):
        admin.decideBranch(OTID, False)
    assert storage.outcome(BRANCH) is Outcome.HEURISTICALLY_COMMITTED


def test_to_forget_a_branch_in_doubt_leaves_it_in_doubt(
    storage: MemoryStorage, admin: BranchAdministration
) -> None:
    _prepare(storage)
    admin.forgetBranch(OTID)
    assert storage.outcome(BRANCH) is Outcome.PREPARED


@pytest.mark.parametrize("otid", [OTID, otid_of(GTRID), otid_t(7, 0, b"theirs")])
def test_a_branch_that_is_not_there_is_not_found(admin: BranchAdministration, otid: otid_t) -> None:
    with pytest.raises(BranchNotFound):
        admin.decideBranch(otid, True)
    with pytest.raises(BranchNotFound):
        admin.forgetBranch(otid)


def test_other_messages_flow_while_a_branch_is_in_doubt(
    storage: MemoryStorage, admin: BranchAdministration
) -> None:
    _prepare(storage)
    other = branch_id(GTRID, "b1")
    storage.store(other, "q", [NewMessage(b"z", 0)])
    storage.commit_one_phase(other)
    taken = storage.take(branch_id(GTRID, "b2"), "q", EVERYTHING, 10)
    assert [message.payload for message in taken] == [b"z"]
    assert [each.state for each in admin.listBranches()] == [Status.PREPARED, Status.ACTIVE]
