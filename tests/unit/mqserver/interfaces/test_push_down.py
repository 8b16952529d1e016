"""Push-down, votes, and how a transaction ended at a node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from idl import mq
from idl.cos import Status, Vote
from idl.mq import mqCompletion
from idl.otids import otid_of, split_otid
from mqserver.permissions import Permissions
from mqserver.transactions.resource import branch_id
from tests.unit.mqserver.node_world import (
    ANY,
    World,
    batch,
    calling_as,
    work,
)

COMMIT = mqCompletion.COMMIT_ONE_PHASE
PREPARE = mqCompletion.PREPARE
NONE = mqCompletion.NONE


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_a_push_down_does_all_work_of_a_branch_and_commits_it(world: World) -> None:
    (key,) = world.put("a", b"old")
    works = (work("b", b"1", b"2"), work("a", removes=(key,)), work("c", b"3"))
    status, is_read_only, keys = world.node.pushDown(world.branch(), 1, works, COMMIT)
    assert (status, is_read_only) == (Status.COMMITTED, False)
    assert [len(each) for each in keys] == [2, 0, 1]
    assert world.seen("a") == ()
    assert world.node.browse("b", ANY, "", 9).keys == keys[0]


def test_a_push_down_whose_answer_was_lost_is_answered_again(world: World) -> None:
    branch = world.branch()
    told = world.node.pushDown(branch, 1, (work("q", b"x"),), COMMIT)
    assert world.node.pushDown(branch, 1, (work("q", b"x"),), COMMIT) == told
    world.crash()
    again = world.node.pushDown(branch, 1, (work("q", b"x"),), COMMIT)
    assert again == (Status.COMMITTED, False, ((),))
    assert world.seen("q") == (b"x",)


def test_a_prepared_push_down_votes_again_also_after_a_restart(world: World) -> None:
    branch = world.prepare(world.branch(), work("q", b"x"))
    assert world.node.pushDown(branch, 1, (work("q", b"x"),), PREPARE)[0] is Status.PREPARED
    world.crash()
    assert world.node.pushDown(branch, 1, (work("q", b"x"),), PREPARE)[0] is Status.PREPARED
    assert world.node.prepareBranch(branch, 1) is Vote.COMMIT
    assert world.seen("q") == ()
    with pytest.raises(mq.BranchEnded) as over:
        world.node.rollbackBranch(branch)
    assert over.value.outcome is Status.PREPARED


def test_a_push_down_with_nothing_to_do_leaves_the_transaction(world: World) -> None:
    for completion in (PREPARE, COMMIT):
        branch = world.branch()
        world.node.getMany(branch, 1, "q", ANY, 1, 0)
        told = world.node.pushDown(branch, 2, (), completion)
        assert told == (Status.COMMITTED, True, ())
        assert world.node.pushDown(branch, 2, (), completion) == told
        assert _outcome_of(world, branch) is Status.COMMITTED
    assert world.storage.branches() == []


def test_a_push_down_that_fails_rolls_the_branch_back(world: World) -> None:
    (key,) = world.put("a", b"old")
    branch = world.branch()
    world.node.getMany(branch, 1, "a", ANY, 1, 0)
    works = (work("b", b"1"), work("b", removes=("000000000009999",)))
    with pytest.raises(mq.MessageNotFound):
        world.node.pushDown(branch, 2, works, NONE)
    assert world.node.browse("a", ANY, "", 1).keys == (key,)
    with pytest.raises(mq.BranchEnded):
        world.node.pushDown(branch, 2, works, NONE)


def test_without_anybody_to_ask_the_vote_is_against(world: World) -> None:
    with pytest.raises(mq.BranchEnded) as over:
        world.node.pushDown(world.branch(), 1, (work("q", b"x"),), PREPARE)
    assert over.value.outcome is Status.ROLLED_BACK
    assert world.seen("q") == ()


def test_a_branch_is_sealed_by_its_vote(world: World) -> None:
    branch = world.prepare(world.branch(), work("q", b"x"))
    with pytest.raises(mq.BranchEnded) as over:
        world.node.putMany(branch, 2, "q", batch(b"y"))
    assert over.value.outcome is Status.PREPARED


def test_a_vote_counts_what_was_put_and_is_against_when_something_is_missing(
    world: World,
) -> None:
    for count, vote in ((2, Vote.COMMIT), (3, Vote.ROLLBACK)):
        whom = world.prepare(world.branch(), work("p", b"x")).recovery
        branch = replace(world.branch(), recovery=whom)
        world.node.putMany(branch, 1, "q", batch(b"1", b"2"))
        assert world.node.prepareBranch(branch, count) is vote
        assert world.node.prepareBranch(branch, count) is vote
    branch = world.branch()
    world.node.getMany(branch, 1, "q", ANY, 1, 0)
    assert world.node.prepareBranch(branch, 0) is Vote.READ_ONLY
    with pytest.raises(mq.BranchEnded):
        world.node.prepareBranch(world.branch(), 0)


def test_a_rollback_of_what_never_was_keeps_late_work_out(world: World) -> None:
    branch = world.branch()
    world.node.rollbackBranch(branch)
    world.node.rollbackBranch(branch)
    with pytest.raises(mq.BranchEnded):
        world.node.putMany(branch, 1, "q", batch(b"late"))


# --- Outcomes


def test_the_outcome_of_a_transaction_is_that_of_its_branches(world: World) -> None:
    one, two = world.branch("n1", 77), world.branch("n2", 77)
    otid = one.otid
    assert world.node.getOutcome(otid) is Status.NO_TRANSACTION
    world.node.putMany(one, 1, "q", batch(b"1"))
    assert world.node.getOutcome(otid) is Status.ACTIVE
    prepared = world.prepare(two, work("q", b"2"))
    assert world.node.getOutcome(otid) is Status.PREPARED
    world.node.rollbackBranch(one)
    assert world.node.getOutcome(otid) is Status.PREPARED
    gtrid, _ = split_otid(otid)
    assert world.node.getOutcome(otid_of(gtrid, "n1")) is Status.ROLLED_BACK
    world.running.storage.commit(branch_id(gtrid, "n2"))
    assert world.node.getOutcome(otid) is Status.COMMITTED
    assert world.node.getOutcome(otid_of(gtrid, "n2")) is Status.COMMITTED
    assert prepared.recovery is not None
    world.crash()
    assert world.node.getOutcome(otid) is Status.COMMITTED


def _outcome_of(world: World, branch: mq.mqBranch) -> Status:
    """How the branch ended, and not what that says of its transaction."""
    return world.node.getOutcome(otid_of(split_otid(branch.otid)[0], branch.name))


@pytest.mark.parametrize("end", ["rolled back", "voted", "committed", "shut down"])
def test_a_branch_that_has_changed_nothing_says_nothing_about_its_transaction(
    world: World, end: str
) -> None:
    """It may have been committed, or rolled back, by what was done elsewhere."""
    world.put("q", b"old")
    assert world.get("q") == (b"old",)
    branch = world.branch()
    assert world.node.getMany(branch, 1, "q", ANY, 1, 0).keys == ()
    match end:
        case "rolled back":
            world.node.rollbackBranch(branch)
        case "voted":
            assert world.node.pushDown(branch, 2, (), PREPARE)[1]
        case "committed":
            assert world.node.pushDown(branch, 2, (), COMMIT)[1]
        case "shut down":
            world.running.work.roll_back_running()
    assert world.node.getOutcome(branch.otid) is Status.NO_TRANSACTION
    assert _outcome_of(world, branch) is not Status.NO_TRANSACTION
    with pytest.raises(mq.BranchEnded):
        world.node.putMany(branch, 3, "q", batch(b"late"))
    world.crash()
    assert world.node.getOutcome(branch.otid) is Status.NO_TRANSACTION


def test_a_branch_that_was_not_here_any_more_says_nothing_about_its_transaction(
    world: World,
) -> None:
    branch = world.branch()
    world.node.rollbackBranch(branch)
    assert world.node.getOutcome(branch.otid) is Status.NO_TRANSACTION


def test_an_attempt_that_was_given_up_says_nothing_about_its_transaction(world: World) -> None:
    """Others work for it under names of their own; what counts is what its owner accepts."""
    branch = world.branch("stage-3.part-9.2")
    world.node.putMany(branch, 1, "q", batch(b"once"))
    assert world.node.getOutcome(branch.otid) is Status.ACTIVE
    world.node.rollbackBranch(branch)
    assert world.node.getOutcome(branch.otid) is Status.NO_TRANSACTION
    assert _outcome_of(world, branch) is Status.ROLLED_BACK


def test_a_branch_that_has_lost_something_or_was_refused_says_that_it_is_rolled_back(
    world: World,
) -> None:
    world.put("q", b"old")
    taker, refused = world.branch(), world.branch()
    assert world.node.getMany(taker, 1, "q", ANY, 1, 0).keys
    world.node.rollbackBranch(taker)
    removal = work("q", removes=("000000000009999",))
    with pytest.raises(mq.MessageNotFound):
        world.node.pushDown(refused, 1, (removal,), COMMIT)
    for branch in (taker, refused):
        assert world.node.getOutcome(branch.otid) is Status.ROLLED_BACK


def test_after_a_restart_the_outcome_is_found_under_any_name(world: World) -> None:
    branch = world.prepare(world.branch("stage-3.part-9", 78), work("q", b"1"))
    world.crash()
    assert world.node.getOutcome(branch.otid) is Status.PREPARED


def test_the_outcome_is_told_to_the_owner_and_to_operators_only() -> None:
    rules = '[[allow]]\nprincipal = "*"\nqueues = ["*"]\nrights = ["read", "write"]\n'
    rules += '[roles]\noperator = ["olga"]\ncoordinator = ["carl"]\n'
    world = World(permissions=Permissions.parse(rules))
    branch = world.branch()
    world.node.putMany(branch, 1, "q", batch(b"1"))
    seen = {}
    for name in ("local", "mallory", "olga", "carl"):
        with calling_as(name):
            seen[name] = world.node.getOutcome(branch.otid)
    assert seen == {
        "local": Status.ACTIVE,
        "mallory": Status.NO_TRANSACTION,
        "olga": Status.ACTIVE,
        "carl": Status.ACTIVE,
    }
    world.close()


def test_an_otid_that_is_not_ours_is_no_transaction(world: World) -> None:
    foreign = mq.mqBranch(replace(otid_of(bytes(32)), formatID=5), "n1", None).otid
    assert world.node.getOutcome(foreign) is Status.NO_TRANSACTION


def test_the_version_of_an_application_is_its_mark(world: World) -> None:
    assert world.node.getVersion("job") == 0
    world.storage.raise_mark(b"b", "job", 7)
    world.storage.commit_one_phase(b"b")
    assert world.node.getVersion("job") == 7
