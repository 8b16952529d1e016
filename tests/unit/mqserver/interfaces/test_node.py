"""`Mq_Node`: bulk work, the numbers of requests, push-down, and what comes late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from idl import mq, system
from idl.call import repeating
from idl.cos import Status
from idl.mq import mqAttribute, mqBatch, mqCompletion, mqSelection, mqTimestamp
from idl.otids import otid_of, split_otid
from mqserver.node import NodeSettings
from mqserver.storage.contract import Outcome
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.resource import branch_id
from tests.unit.mqserver.node_world import (
    ALONE,
    ANY,
    NOTHING,
    WALL_S,
    Started,
    World,
    batch,
    calling_as,
    work,
)

RID = bytes(range(16))
COMMIT = mqCompletion.COMMIT_ONE_PHASE
NONE = mqCompletion.NONE


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def outcome(world: World, branch: mq.mqBranch) -> Outcome:
    """What the storage knows of the branch."""
    return world.storage.outcome(branch_id(split_otid(branch.otid)[0], branch.name))


# --- The node, and messages


def test_a_node_says_who_it_is(world: World) -> None:
    assert world.node.getNode() == mq.mqNodeInfo("test", "in-process:0", 16 * 1024 * 1024)


def test_what_is_put_comes_back_in_order_with_keys_that_grow(world: World) -> None:
    keys = world.put("q", b"one", b"two", b"three")
    assert list(keys) == sorted(keys)
    taken = world.node.getMany(ALONE, 0, "q", ANY, 2, 0)
    assert taken.keys == keys[:2]
    assert taken.messages.payloads == (b"one", b"two")
    assert world.get("q") == (b"three",)
    assert world.get("q") == ()


def test_of_what_is_put_in_bulk_the_first_key_is_told_and_the_others_follow(world: World) -> None:
    branch = world.branch()
    first = world.node.putBulk(branch, 1, "q", batch(b"one", b"two", b"three"))
    assert world.node.putBulk(branch, 1, "q", batch(b"one", b"two", b"three")) == first
    assert world.node.putBulk(branch, 2, "q", batch()) == ""
    assert world.seen("q") == ()
    world.node.pushDown(branch, 3, (), COMMIT)
    seen = world.node.browse("q", ANY, "", 9)
    assert seen.messages.payloads == (b"one", b"two", b"three")
    assert [int(key) for key in seen.keys] == [int(first) + each for each in range(3)]
    with pytest.raises(system.BAD_PARAM):
        world.node.putBulk(ALONE, 0, "q", batch(b"alone"))


def test_everything_that_is_said_of_a_message_is_kept(world: World) -> None:
    pairs = (mqAttribute("a", "1"), mqAttribute("a", "2"))
    whole = mqBatch(
        (b"x", b"y"),
        batch(b"x", b"y").digests,
        (7, 0),
        (3, 0),
        (mqTimestamp(5, 6), mqTimestamp(7, 8)),
        ("alice", ""),
        (pairs, ()),
    )
    world.node.putMany(ALONE, 0, "q", whole)
    assert world.node.getMany(ALONE, 0, "q", ANY, 2, 0).messages == whole


def test_the_queue_sets_time_and_sender_where_the_batch_does_not(world: World) -> None:
    world.put("q", b"x")
    found = world.node.browse("q", ANY, "", 1).messages
    assert found.times == (mqTimestamp(int(WALL_S), 250_000),)
    assert found.senders == ("local",)
    assert (found.priorities, found.groups, found.attribs) == ((), (), ())


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_payload_that_was_altered_on_the_way_is_refused_and_nothing_stored(
    world: World, is_alone: bool
) -> None:
    altered = replace(batch(b"1", b"2", b"3"), digests=batch(b"1", b"x", b"3").digests)
    branch, request = (ALONE, 0) if is_alone else (world.branch(), 1)
    with pytest.raises(mq.DigestMismatch) as refused:
        world.node.putMany(branch, request, "q", altered)
    assert refused.value.position == 1
    assert world.seen("q") == ()
    pushed = (work("q", b"0"), mq.mqWork("q", altered, ()))
    with pytest.raises(mq.DigestMismatch) as refused:
        world.node.pushDown(world.branch(), 1, pushed, COMMIT)
    assert refused.value.position == 2
    assert world.seen("q") == ()


def test_messages_are_chosen_by_group_priority_and_attributes(world: World) -> None:
    pairs = (mqAttribute("type", "a"), mqAttribute("size", "s"))
    three = batch(b"1", b"2", b"3")
    world.node.putMany(
        ALONE,
        0,
        "q",
        replace(three, groups=(1, 2, 2), priorities=(5, 5, 9), attribs=((), pairs, ())),
    )
    wanted = mqSelection(0, 0, (mqAttribute("size", "s"),))
    assert world.node.browse("q", wanted, "", 9).messages.payloads == (b"2",)
    assert world.node.browse("q", mqSelection(2, 6, ()), "", 9).messages.payloads == (b"3",)
    assert world.node.getMany(ALONE, 0, "q", mqSelection(1, 0, ()), 9, 0).messages.payloads == (
        b"1",
    )


def test_a_browse_goes_on_behind_a_key_and_takes_nothing(world: World) -> None:
    keys = world.put("q", b"1", b"2", b"3")
    assert world.node.browse("q", ANY, keys[0], 1).keys == keys[1:2]
    assert world.node.browse("q", ANY, "", 2).keys == keys[:2]
    assert world.node.countMessages("q") == 3
    with pytest.raises(system.BAD_PARAM):
        world.node.browse("q", ANY, "first", 1)


def test_messages_by_key_come_as_they_were_asked_for_or_none_of_them(world: World) -> None:
    keys = world.put("q", b"1", b"2", b"3")
    with pytest.raises(mq.MessageNotFound) as missing:
        world.node.getKeys(ALONE, 0, "q", (keys[0], "000000000009999"))
    assert missing.value == mq.MessageNotFound("q", "000000000009999")
    with pytest.raises(mq.MessageNotFound):
        world.node.getKeys(ALONE, 0, "q", ("no key at all",))
    taken = world.node.getKeys(ALONE, 0, "q", (keys[2], keys[0]))
    assert taken.messages.payloads == (b"3", b"1")


def test_a_message_by_key_that_another_holds_is_waited_for(world: World) -> None:
    (key,) = world.put("q", b"x")
    holder = world.branch()
    world.node.getKeys(holder, 1, "q", (key,))
    waiting = Started(lambda: world.node.getKeys(world.branch(), 1, "q", (key,)))
    world.node.rollbackBranch(holder)
    taken = waiting.result()
    assert isinstance(taken, mq.mqTaken)
    assert taken.keys == (key,)


def test_who_waits_too_long_for_a_key_is_told_which() -> None:
    world = World(NodeSettings(lock_wait_s=0.0))
    (key,) = world.put("q", b"x")
    world.node.getKeys(world.branch(), 1, "q", (key,))
    with pytest.raises(mq.LockTimeout) as timeout:
        world.node.getKeys(ALONE, 0, "q", (key,))
    assert timeout.value == mq.LockTimeout("q", key)
    world.close()


def test_a_circle_of_waiting_branches_is_broken_and_the_victim_rolled_back(world: World) -> None:
    one, two = world.put("q", b"1", b"2")
    first, second = world.branch(), world.branch()
    world.node.getKeys(first, 1, "q", (one,))
    world.node.getKeys(second, 1, "q", (two,))
    waiting = Started(lambda: world.node.getKeys(first, 2, "q", (two,)))
    assert isinstance(world.storage, MemoryStorage)
    while not world.storage._locks._wanted:
        threading.Event().wait(0.001)
    with pytest.raises(mq.Deadlock):
        world.node.getKeys(second, 2, "q", (one,))
    assert waiting.result() is not None
    assert outcome(world, second) is Outcome.ROLLED_BACK
    with pytest.raises(mq.BranchEnded):
        world.node.putMany(second, 3, "q", batch(b"late"))


# --- Without a transaction


def test_a_put_that_is_repeated_puts_once_and_says_the_same_keys(world: World) -> None:
    with repeating(RID):
        keys = world.put("q", b"x")
        assert world.put("q", b"x") == keys
    assert world.seen("q") == (b"x",)


def test_a_get_that_is_repeated_brings_the_same_messages(world: World) -> None:
    world.put("q", b"1", b"2")
    with repeating(RID):
        assert world.get("q", 1) == (b"1",)
        assert world.get("q", 1) == (b"1",)
    assert world.get("q", 1) == (b"2",)


def test_after_a_restart_a_repeated_put_says_no_keys_and_a_repeated_get_how_it_ended(
    world: World,
) -> None:
    with repeating(RID):
        world.put("q", b"x")
    got = bytes(16)
    with repeating(got):
        world.get("q")
    world.crash()
    with repeating(RID):
        assert world.put("q", b"x") == ()
    with repeating(got), pytest.raises(mq.BranchEnded) as over:
        world.get("q")
    assert over.value.outcome is Status.COMMITTED
    assert world.seen("q") == ()


def test_another_principal_does_not_get_the_answer(world: World) -> None:
    with repeating(RID):
        world.put("q", b"x")
        with calling_as("mallory"), pytest.raises(system.NO_PERMISSION):
            world.put("q", b"x")


def test_a_put_that_failed_can_be_repeated(world: World) -> None:
    world.admin.createQueue("q", mq.mqQueueSettings(True, False, 1, 0))
    world.put("q", b"x")
    with repeating(RID):
        with pytest.raises(mq.QueueFull) as full:
            world.put("q", b"y")
        assert full.value == mq.QueueFull("q", 1)
    world.get("q")
    with repeating(RID):
        assert len(world.put("q", b"y")) == 1


def test_a_get_that_is_repeated_while_it_still_waits_gets_the_same_answer(world: World) -> None:
    def get() -> object:
        with repeating(RID):
            return world.node.getMany(ALONE, 0, "q", ANY, 1, 60_000)

    calls = [Started(get) for _ in range(3)]
    while not world.running.queues.waiting._lines:
        threading.Event().wait(0.001)
    keys = world.put("q", b"1", b"2")
    answers = [call.result() for call in calls]
    assert [answer.keys for answer in answers if isinstance(answer, mq.mqTaken)] == [keys[:1]] * 3
    assert world.seen("q") == (b"2",)


def test_an_empty_put_and_an_empty_get_leave_no_trace(world: World) -> None:
    assert world.node.putMany(ALONE, 0, "q", NOTHING) == ()
    assert world.get("q") == ()
    assert world.storage.branches() == []


# --- Requests of a branch


def test_work_in_a_branch_is_seen_when_it_commits(world: World) -> None:
    world.put("a", b"old")
    branch = world.branch()
    assert world.node.getMany(branch, 1, "a", ANY, 1, 0).messages.payloads == (b"old",)
    world.node.putMany(branch, 2, "b", batch(b"new"))
    assert (world.seen("a"), world.seen("b")) == ((), ())
    assert world.node.pushDown(branch, 3, (), COMMIT) == (Status.COMMITTED, False, ())
    assert (world.seen("a"), world.seen("b")) == ((), (b"new",))


def test_the_last_request_can_be_repeated_and_does_nothing_again(world: World) -> None:
    world.put("a", b"1", b"2")
    branch = world.branch()
    keys = world.node.putMany(branch, 1, "b", batch(b"x"))
    assert world.node.putMany(branch, 1, "b", batch(b"x")) == keys
    first = world.node.getMany(branch, 2, "a", ANY, 1, 0)
    assert world.node.getMany(branch, 2, "a", ANY, 1, 0) == first
    by_key = world.node.getKeys(branch, 3, "a", world.node.browse("a", ANY, "", 1).keys)
    assert world.node.getKeys(branch, 3, "a", by_key.keys) == by_key
    pushed = world.node.pushDown(branch, 4, (work("b", b"y"),), NONE)
    assert world.node.pushDown(branch, 4, (work("b", b"y"),), NONE) == pushed
    world.node.pushDown(branch, 5, (), COMMIT)
    assert world.seen("b") == (b"x", b"y")


@pytest.mark.parametrize("number", [0, 1, 3, 7])
def test_another_number_than_the_next_or_the_last_is_out_of_order(
    world: World, number: int
) -> None:
    branch = world.branch()
    world.node.putMany(branch, 1, "q", batch(b"1"))
    world.node.putMany(branch, 2, "q", batch(b"2"))
    world.node.putMany(branch, 3, "q", batch(b"3"))
    with pytest.raises(mq.RequestOutOfOrder) as refused:
        world.node.getMany(branch, number, "q", ANY, 1, 0)
    assert refused.value.expected == 4


def test_the_number_of_a_request_that_failed_is_used_again_or_left_behind(world: World) -> None:
    world.admin.createQueue("full", mq.mqQueueSettings(True, False, 1, 0))
    world.put("full", b"x")
    for following in (1, 2):
        branch = world.branch()
        with pytest.raises(mq.QueueFull):
            world.node.putMany(branch, 1, "full", batch(b"y"))
        world.node.putMany(branch, following, "q", batch(b"z"))
        world.node.pushDown(branch, following + 1, (), COMMIT)
    assert world.seen("q") == (b"z", b"z")


def test_a_request_that_is_repeated_while_it_still_waits_gets_the_same_answer(
    world: World,
) -> None:
    branch = world.branch()
    calls = [Started(lambda: world.node.getMany(branch, 1, "q", ANY, 1, 60_000)) for _ in "ab"]
    while not world.running.queues.waiting._lines:
        threading.Event().wait(0.001)
    keys = world.put("q", b"1", b"2")
    answers = [call.result() for call in calls]
    assert [answer.keys for answer in answers if isinstance(answer, mq.mqTaken)] == [keys[:1]] * 2


def test_a_branch_that_the_node_lost_in_a_restart_is_fenced(world: World) -> None:
    branch = world.branch()
    world.node.putMany(branch, 1, "q", batch(b"1"))
    world.crash()
    for _ in range(2):
        with pytest.raises(mq.BranchEnded) as over:
            world.node.putMany(branch, 2, "q", batch(b"2"))
        assert over.value.outcome is Status.ROLLED_BACK
    with pytest.raises(mq.BranchEnded):
        world.node.putMany(branch, 1, "q", batch(b"1"))
    assert world.seen("q") == ()


@pytest.mark.parametrize("is_committed", [True, False])
def test_after_the_end_everything_is_refused_with_the_outcome(
    world: World, is_committed: bool
) -> None:
    branch = world.branch()
    world.node.putMany(branch, 1, "q", batch(b"1"))
    if is_committed:
        world.node.pushDown(branch, 2, (), COMMIT)
    else:
        world.node.rollbackBranch(branch)
    late: list[Callable[[], object]] = [
        lambda: world.node.putMany(branch, 3, "q", batch(b"2")),
        lambda: world.node.putBulk(branch, 3, "q", batch(b"2")),
        lambda: world.node.getMany(branch, 3, "q", ANY, 1, 0),
        lambda: world.node.getKeys(branch, 3, "q", ()),
        lambda: world.node.pushDown(branch, 3, (work("q", b"2"),), COMMIT),
        lambda: world.node.prepareBranch(branch, 1),
        lambda: world.node.lockMany(branch, "list", "q", ANY, 1),
        lambda: world.node.fetchLocked(branch, "list", 0, 1),
    ]
    for call in late:
        with pytest.raises(mq.BranchEnded) as over:
            call()
        expected = Status.COMMITTED if is_committed else Status.ROLLED_BACK
        assert over.value.outcome is expected
    assert world.seen("q") == ((b"1",) if is_committed else ())


def test_anothers_branch_is_untouchable_in_the_same_words_everywhere(world: World) -> None:
    branch = world.branch()
    world.node.putMany(branch, 1, "q", batch(b"1"))
    strange: list[Callable[[], object]] = [
        lambda: world.node.putMany(branch, 2, "q", batch(b"2")),
        lambda: world.node.putBulk(branch, 2, "q", batch(b"2")),
        lambda: world.node.getMany(branch, 2, "q", ANY, 1, 0),
        lambda: world.node.pushDown(branch, 2, (), COMMIT),
        lambda: world.node.prepareBranch(branch, 1),
        lambda: world.node.rollbackBranch(branch),
        lambda: world.node.lockMany(branch, "list", "q", ANY, 1),
        lambda: world.node.fetchLocked(branch, "list", 0, 1),
    ]
    told = set()
    with calling_as("mallory"):
        for call in strange:
            with pytest.raises(system.NO_PERMISSION) as refused:
                call()
            told.add(refused.value.reason)
    assert len(told) == 1
    assert world.node.pushDown(branch, 2, (), COMMIT)[0] is Status.COMMITTED
    with calling_as("mallory"), pytest.raises(system.NO_PERMISSION):
        world.node.pushDown(branch, 2, (), COMMIT)


@pytest.mark.parametrize(
    "branch",
    [
        mq.mqBranch(otid_of(bytes(32)), "", None),
        mq.mqBranch(otid_of(bytes(32)), "a/b", None),
        mq.mqBranch(otid_of(bytes(32)), "node.0123", None),
        mq.mqBranch(otid_of(bytes(32), "n1"), "n1", None),
        mq.mqBranch(otid_of(bytes(31)), "n1", None),
        mq.mqBranch(replace(otid_of(bytes(32)), formatID=5), "n1", None),
    ],
)
def test_what_names_no_branch_is_refused(world: World, branch: mq.mqBranch) -> None:
    with pytest.raises(system.BAD_PARAM):
        world.node.putMany(branch, 1, "q", batch(b"x"))
