"""`Mq_Service` and `Mq_Admin`: the switches, the queues, branches in doubt, consumers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from idl import mq, system
from idl.cos import NotPrepared, Status
from idl.mq import mqQueueSettings
from idl.otids import otid_of, split_otid
from tests.unit.mqserver.node_world import ANY, World, batch, work

PLAIN = mqQueueSettings(True, False, 0, 0)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


# --- Switches


def test_the_service_works_while_the_node_is_switched_off(world: World) -> None:
    world.put("q", b"x")
    world.admin.setEnabled(False)
    assert world.admin.isEnabled() is False
    with pytest.raises(mq.QueueDisabled):
        world.put("q", b"y")
    with pytest.raises(mq.QueueDisabled):
        world.node.countMessages("q")
    with pytest.raises(mq.QueueDisabled):
        world.node.reserve("c", "q", ANY, 0, 1, 0)
    assert "disabled" in world.admin.getStatus()
    assert [info.queue for info in world.admin.listQueues()] == ["q"]
    world.admin.createQueue("p", PLAIN)
    assert world.admin.purgeQueue("q") == 1
    world.admin.setEnabled(True)
    world.put("q", b"y")


def test_what_was_begun_is_ended_while_the_node_is_switched_off(world: World) -> None:
    branch = world.branch()
    world.node.putMany(branch, 1, "q", batch(b"x"))
    world.admin.setEnabled(False)
    assert world.node.pushDown(branch, 2, (), mq.mqCompletion.COMMIT_ONE_PHASE)[0] is (
        Status.COMMITTED
    )
    world.admin.setEnabled(True)
    assert world.seen("q") == (b"x",)


def test_a_switch_of_one_queue_outlives_a_restart_that_of_the_node_does_not(
    world: World,
) -> None:
    world.admin.createQueue("q", mqQueueSettings(False, True, 5, 6))
    world.admin.setEnabled(False)
    world.crash()
    assert world.admin.isEnabled() is True
    assert world.admin.getQueue("q").settings == mqQueueSettings(False, True, 5, 6)
    with pytest.raises(mq.QueueDisabled):
        world.put("q", b"x")


def test_a_shutdown_is_answered_before_it_happens(world: World) -> None:
    world.admin.mqShutdown()
    assert world.admin.isEnabled() is True
    assert world.shutdowns.wait(10)


def test_when_a_node_is_closed_running_work_is_rolled_back_and_prepared_work_kept(
    world: World,
) -> None:
    world.put("q", b"taken")
    running, prepared = world.branch(), world.branch()
    world.node.getMany(running, 1, "q", ANY, 1, 0)
    world.prepare(prepared, work("q", b"prepared"))
    world.close()
    with pytest.raises(system.TRANSIENT):
        world.put("q", b"late")
    world.orb.close()
    world.boot()
    assert world.seen("q") == (b"taken",)
    (info,) = world.admin.listBranches()
    assert (info.otid, info.state) == (
        otid_of(split_otid(prepared.otid)[0], "n1"),
        Status.PREPARED,
    )


# --- Status


def test_the_status_tells_people_what_there_is(world: World) -> None:
    world.put("orders", b"12345", b"x")
    world.admin.createQueue("limited", mqQueueSettings(False, True, 10, 1000))
    active = world.branch()
    world.node.getMany(active, 1, "orders", ANY, 1, 0)
    world.time += 5
    world.prepare(world.branch(), work("orders", b"x"))
    world.time += 7
    status = world.admin.getStatus()
    assert "node test: enabled" in status
    assert "coordinator: in-process:0" in status
    assert "orders: 1 messages, 2 held, 7 bytes, oldest 0 s" in status
    assert (
        "limited: 0 messages, 0 held, 0 bytes, disabled, by priority, at most 10 messages, "
        "at most 1000 bytes"
    ) in status
    assert "transactions: 1 active, 1 prepared" in status
    assert "/n1: active for 12 s, owner local, 0 stored, 1 taken" in status
    assert "/n1: prepared for 7 s, owner local, 1 stored, 0 taken, asks PYRO:object/" in status


# --- Queues


def test_a_queue_is_made_shown_changed_and_deleted(world: World) -> None:
    world.admin.createQueue("q", PLAIN)
    with pytest.raises(mq.QueueExists):
        world.admin.createQueue("q", PLAIN)
    world.admin.changeQueue("q", mqQueueSettings(True, True, 7, 8))
    world.put("q", b"123")
    info = world.admin.getQueue("q")
    assert info == mq.mqQueueInfo("q", mqQueueSettings(True, True, 7, 8), 1, 0, 3, 0)
    assert world.admin.listQueues() == (info,)
    with pytest.raises(mq.QueueInUse) as used:
        world.admin.deleteQueue("q")
    assert used.value == mq.QueueInUse("q", 1)
    assert world.admin.purgeQueue("q") == 1
    world.admin.deleteQueue("q")
    assert world.admin.listQueues() == ()


def test_what_is_not_there_is_not_found(world: World) -> None:
    for call in (
        lambda: world.admin.changeQueue("q", PLAIN),
        lambda: world.admin.deleteQueue("q"),
        lambda: world.admin.purgeQueue("q"),
        lambda: world.admin.getQueue("q"),
    ):
        with pytest.raises(mq.QueueNotFound):
            call()
    with pytest.raises(system.BAD_PARAM):
        world.admin.createQueue("../q", PLAIN)
    with pytest.raises(mq.ConsumerNotFound):
        world.admin.dropConsumer("c")


def test_a_purge_leaves_what_transactions_hold(world: World) -> None:
    world.put("q", b"1", b"2", b"3")
    branch = world.branch()
    world.node.getMany(branch, 1, "q", ANY, 1, 0)
    assert world.admin.purgeQueue("q") == 2
    world.node.rollbackBranch(branch)
    assert world.seen("q") == (b"1",)


# --- Branches


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_operator_decides_a_branch_in_doubt(world: World, is_commit: bool) -> None:
    branch = world.prepare(world.branch(), work("q", b"x"))
    gtrid, _ = split_otid(branch.otid)
    otid = otid_of(gtrid, "n1")
    world.admin.decideBranch(otid, is_commit)
    assert world.seen("q") == ((b"x",) if is_commit else ())
    with pytest.raises(NotPrepared):
        world.admin.decideBranch(otid, is_commit)
    (info,) = world.admin.listBranches()
    assert info.state is (Status.COMMITTED if is_commit else Status.ROLLED_BACK)
    assert world.node.getOutcome(branch.otid) is info.state
    world.admin.forgetBranch(otid)
    assert world.admin.listBranches() == ()
    with pytest.raises(mq.BranchNotFound):
        world.admin.forgetBranch(otid)
    with pytest.raises(mq.BranchNotFound):
        world.admin.decideBranch(otid, is_commit)


def test_work_without_a_transaction_is_no_branch_to_be_shown(world: World) -> None:
    world.put("q", b"x")
    assert world.admin.listBranches() == ()


# --- Consumers


def test_a_consumer_is_shown_and_dropped(world: World) -> None:
    world.put("q", b"1", b"2")
    world.node.reserve("c", "q", ANY, 0, 2, 0)
    world.time += 9
    assert world.admin.listConsumers() == (mq.mqConsumerInfo("c", "q", 2, 9),)
    world.admin.dropConsumer("c")
    assert world.admin.listConsumers() == ()
    assert world.seen("q") == (b"1", b"2")
