"""`Mq_Standard` and `Mq_Fifo`: alone, under a Control, or in the transaction of the call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from idl import mq, system
from idl.call import within
from idl.cos import (
    Control,
    Coordinator,
    PropagationContext,
    Status,
    Terminator,
    TransIdentity,
    Unavailable,
)
from idl.mq import mqAttribute, mqHeader, mqTimestamp
from idl.otids import otid_of
from mqserver.node import NodeSettings
from mqserver.storage.contract import Outcome
from tests.unit.clients.embedded_coordinator import Begun, EmbeddedCoordinator
from tests.unit.mqserver.node_world import HEADER, WALL_S, Started, World, batch

PAIRS = (mqAttribute("a", "1"), mqAttribute("a", "2"))
FILLED = mqHeader(7, 3, mqTimestamp(int(WALL_S), 250_000), "local")


@pytest.fixture
def world() -> Iterator[World]:
    made = World(coordinator=EmbeddedCoordinator())
    yield made
    made.close()


def begin(world: World) -> Begun:
    """A new transaction at the coordinator."""
    assert world.coordinator is not None
    return world.coordinator.begin()


def branches(world: World) -> list[Outcome]:
    """What the storage knows of branches that have not ended."""
    return [info.outcome for info in world.storage.branches()]


# --- Without a transaction


def test_what_is_put_is_got_by_its_key_with_all_that_was_said_of_it(world: World) -> None:
    standard = world.standard("q")
    key = standard.mqPut(None, mqHeader(7, 3, mqTimestamp(1, 2), ""), PAIRS, b"data")
    assert len(key) == 15
    assert standard.mqRead(key) == (True, FILLED, PAIRS, b"data")
    assert standard.mqGetAttribList(key) == PAIRS
    assert standard.mqGet(None, key) == (FILLED, PAIRS, b"data")
    assert standard.mqRead(key) == (False, mqHeader(0, 0, mqTimestamp(0, 0), ""), (), b"")


def test_a_sender_may_say_who_it_is(world: World) -> None:
    world.fifo("q").mqPut(None, mqHeader(0, 0, mqTimestamp(0, 0), "alice"), (), b"x")
    assert world.fifo("q").mqGetNext(None)[0].senderID == "alice"


def test_a_message_is_removed_once(world: World) -> None:
    standard = world.standard("q")
    key = standard.mqPut(None, HEADER, (), b"x")
    assert standard.mqRemove(key) is True
    assert standard.mqRemove(key) is False
    assert standard.mqRemove("no key") is False


def test_what_is_not_there_cannot_be_got(world: World) -> None:
    standard = world.standard("q")
    for call in (
        lambda: standard.mqGet(None, "000000000000001"),
        lambda: standard.mqGetAttribList("000000000000001"),
        lambda: standard.mqGet(None, "no key"),
    ):
        with pytest.raises(mq.MessageNotFound):
            call()
    assert standard.mqRead("no key")[0] is False
    with pytest.raises(mq.QueueEmpty):
        world.fifo("q").mqGetNext(None)


def test_a_fifo_queue_gives_by_time_and_by_priority_when_told_so(world: World) -> None:
    fifo = world.fifo("q")
    for priority, payload in ((1, b"low"), (9, b"high"), (9, b"high later"), (5, b"middle")):
        fifo.mqPut(None, mqHeader(priority, 0, mqTimestamp(0, 0), ""), (), payload)
    assert fifo.mqGetPriorization() is False
    assert fifo.mqGetNext(None)[2] == b"low"
    fifo.mqSetPriorization(True)
    assert fifo.mqGetPriorization() is True
    assert [fifo.mqGetNext(None)[2] for _ in range(3)] == [b"high", b"high later", b"middle"]


def test_both_interfaces_lead_to_one_queue(world: World) -> None:
    world.fifo("q").mqPut(None, HEADER, (), b"1")
    key = world.standard("q").mqPut(None, HEADER, (), b"2")
    assert world.fifo("q").mqGetNext(None)[2] == b"1"
    assert world.standard("q").mqGet(None, key)[2] == b"2"


def test_a_queue_that_is_switched_off_refuses_every_operation(world: World) -> None:
    world.admin.createQueue("q", mq.mqQueueSettings(False, False, 0, 0))
    standard, fifo = world.standard("q"), world.fifo("q")
    calls: list[Callable[[], object]] = [
        lambda: standard.mqPut(None, HEADER, (), b"x"),
        lambda: standard.mqGet(None, "000000000000001"),
        lambda: standard.mqRead("000000000000001"),
        lambda: standard.mqRemove("000000000000001"),
        lambda: standard.mqGetAttribList("000000000000001"),
        lambda: standard.mqStartNotify("channel", 0),
        lambda: fifo.mqPut(None, HEADER, (), b"x"),
        lambda: fifo.mqGetNext(None),
        lambda: fifo.mqStartNotify("channel", 0),
        lambda: fifo.mqSetPriorization(True),
        lambda: fifo.mqGetPriorization(),
    ]
    for call in calls:
        with pytest.raises(mq.QueueDisabled) as refused:
            call()
        assert refused.value.queue == "q"


def test_a_full_queue_and_a_message_that_is_too_large_are_refused() -> None:
    world = World(NodeSettings(message_bytes_max=10))
    world.admin.createQueue("q", mq.mqQueueSettings(True, False, 1, 0))
    world.fifo("q").mqPut(None, HEADER, (), b"x" * 10)
    with pytest.raises(mq.QueueFull):
        world.fifo("q").mqPut(None, HEADER, (), b"x")
    with pytest.raises(system.IMP_LIMIT):
        world.standard("p").mqPut(None, HEADER, (), b"x" * 11)
    world.close()


def test_where_queues_are_made_by_operators_a_missing_one_does_not_exist() -> None:
    world = World(NodeSettings(creates_queues=False))
    with pytest.raises(system.OBJECT_NOT_EXIST):
        world.fifo("q").mqPut(None, HEADER, (), b"x")
    world.close()


def test_a_name_that_no_queue_can_have_is_no_object(world: World) -> None:
    for name in ("a/b", "." * 3, "x" * 129):
        with pytest.raises(system.OBJECT_NOT_EXIST):
            world.fifo(name).mqGetNext(None)


# --- In a transaction


def test_what_is_put_and_got_under_a_control_happens_with_its_commit(world: World) -> None:
    world.put("from", b"moved")
    begun = begin(world)
    moved = world.fifo("from").mqGetNext(begun.control)[2]
    key = world.standard("to").mqPut(begun.control, HEADER, (), moved)
    assert world.seen("from") == world.seen("to") == ()
    assert world.standard("to").mqRead(key)[0] is False
    begun.terminator.commit(True)
    assert (world.seen("from"), world.seen("to")) == ((), (b"moved",))
    assert branches(world) == []


def test_what_is_put_and_got_under_a_control_has_not_happened_after_its_rollback(
    world: World,
) -> None:
    world.put("from", b"1", b"2")
    begun = begin(world)
    world.fifo("from").mqGetNext(begun.control)
    world.fifo("to").mqPut(begun.control, HEADER, (), b"x")
    begun.terminator.rollback()
    assert (world.seen("from"), world.seen("to")) == ((b"1", b"2"), ())
    assert branches(world) == []


def test_a_transaction_sees_its_own_messages(world: World) -> None:
    begun = begin(world)
    key = world.standard("q").mqPut(begun.control, HEADER, (), b"own")
    assert world.standard("q").mqGet(begun.control, key)[2] == b"own"
    begun.terminator.commit(True)
    assert world.seen("q") == ()


def test_one_resource_stands_for_all_work_of_a_transaction(world: World) -> None:
    begun = begin(world)
    for queue in ("a", "b", "a"):
        world.fifo(queue).mqPut(begun.control, HEADER, (), b"x")
    assert world.coordinator is not None
    live = world.coordinator.service.transactions.find(begun.gtrid)
    assert len(getattr(live, "members")) == 1  # noqa: B009
    begun.terminator.commit(True)
    assert world.seen("a") == (b"x", b"x")


def test_many_threads_that_join_at_once_register_once(world: World) -> None:
    begun = begin(world)
    calls = [
        Started(lambda: world.fifo("q").mqPut(begun.control, HEADER, (), b"x")) for _ in range(8)
    ]
    for call in calls:
        call.result()
    begun.terminator.commit(True)
    assert len(world.seen("q")) == 8


def test_the_transaction_of_the_calls_context_counts_when_the_control_is_nil(
    world: World,
) -> None:
    begun = begin(world)
    with within(begun.coordinator.get_txcontext()):
        world.fifo("q").mqPut(None, HEADER, (), b"x")
        assert world.seen("q") == ()
        with pytest.raises(mq.QueueEmpty):
            world.fifo("p").mqGetNext(None)
    begun.terminator.commit(True)
    assert world.seen("q") == (b"x",)


def test_a_remove_is_never_in_the_callers_transaction(world: World) -> None:
    (key,) = world.put("q", b"x")
    begun = begin(world)
    with within(begun.coordinator.get_txcontext()):
        assert world.standard("q").mqRemove(key)
    begun.terminator.rollback()
    assert world.seen("q") == ()


def test_a_transaction_whose_calls_found_nothing_or_failed_can_still_commit(
    world: World,
) -> None:
    world.admin.createQueue("full", mq.mqQueueSettings(True, False, 1, 0))
    world.put("full", b"x")
    begun = begin(world)
    with pytest.raises(mq.QueueEmpty):
        world.fifo("empty").mqGetNext(begun.control)
    with pytest.raises(mq.QueueFull):
        world.fifo("full").mqPut(begun.control, HEADER, (), b"y")
    with pytest.raises(mq.MessageNotFound):
        world.standard("full").mqGet(begun.control, "000000000009999")
    begun.terminator.commit(True)
    assert branches(world) == []


def test_first_a_put_that_fails_and_then_one_that_does_not(world: World) -> None:
    world.admin.createQueue("full", mq.mqQueueSettings(True, False, 1, 0))
    world.put("full", b"x")
    begun = begin(world)
    with pytest.raises(mq.QueueFull):
        world.fifo("full").mqPut(begun.control, HEADER, (), b"y")
    world.fifo("q").mqPut(begun.control, HEADER, (), b"z")
    begun.terminator.commit(True)
    assert world.seen("q") == (b"z",)


@pytest.mark.parametrize("is_commit", [True, False])
def test_late_work_in_a_transaction_that_is_over_is_refused_and_locks_nothing(
    world: World, is_commit: bool
) -> None:
    world.put("q", b"x")
    joined, never_joined = begin(world), begin(world)
    world.fifo("p").mqPut(joined.control, HEADER, (), b"x")
    for begun in (joined, never_joined):
        if is_commit:
            begun.terminator.commit(True)
        else:
            begun.terminator.rollback()
        for _ in range(2):
            with pytest.raises((system.INVALID_TRANSACTION, system.TRANSACTION_ROLLEDBACK)):
                world.fifo("q").mqGetNext(begun.control)
    assert world.seen("q") == (b"x",)
    assert branches(world) == []


def test_a_transaction_that_is_marked_for_rollback_takes_no_work(world: World) -> None:
    begun = begin(world)
    begun.coordinator.rollback_only()
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        world.fifo("q").mqPut(begun.control, HEADER, (), b"x")
    assert branches(world) == []


def test_a_node_that_was_restarted_votes_against_what_it_lost(world: World) -> None:
    begun = begin(world)
    world.fifo("q").mqPut(begun.control, HEADER, (), b"lost")
    coordinator = world.coordinator
    # The node alone is restarted: its coordinator goes on, and the control stays the same.
    world.coordinator = None
    active = [info.branch for info in world.storage.branches()]
    world.running.close()
    for branch in active:
        del getattr(world.storage, "_ended")[branch]  # noqa: B009
    assert coordinator is not None
    coordinator.orb._objects._objects.clear()
    coordinator.orb._objects._families = {
        name: family
        for name, family in coordinator.orb._objects._families.items()
        if name in ("control", "terminator", "coordinator", "recovery")
    }
    world.coordinator = coordinator
    world.boot()
    world.fifo("q").mqPut(begun.control, HEADER, (), b"new")
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        begun.terminator.commit(True)
    assert world.seen("q") == ()
    assert branches(world) == []


def test_a_deadlock_rolls_the_joined_branch_back(world: World) -> None:
    one, two = world.put("q", b"1", b"2")
    first, second = begin(world), begin(world)
    world.standard("q").mqGet(first.control, one)
    world.standard("q").mqGet(second.control, two)
    waiting = Started(lambda: world.standard("q").mqGet(first.control, two))
    while not getattr(world.storage, "_locks")._wanted:  # noqa: B009
        threading.Event().wait(0.001)
    with pytest.raises(mq.Deadlock):
        world.standard("q").mqGet(second.control, one)
    assert waiting.result() is not None
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        second.terminator.commit(True)


# --- Coordinators that are dead, or pretend


class Dead:
    """A control whose coordinator cannot be reached."""

    def __init__(self, trouble: Exception) -> None:
        self._trouble = trouble

    def get_terminator(self) -> Terminator:
        """There is none."""
        raise Unavailable()

    def get_coordinator(self) -> Coordinator:
        """There is trouble."""
        raise self._trouble


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (Unavailable(), system.INVALID_TRANSACTION),
        (system.TIMEOUT("no answer"), system.TRANSACTION_UNAVAILABLE),
        (system.COMM_FAILURE("cut"), system.TRANSACTION_UNAVAILABLE),
        (system.OBJECT_NOT_EXIST("gone"), system.TRANSACTION_UNAVAILABLE),
        (system.TRANSACTION_ROLLEDBACK("timeout"), system.TRANSACTION_ROLLEDBACK),
    ],
)
def test_a_coordinator_that_cannot_be_asked_is_told_as_it_should_be(
    world: World, trouble: Exception, told: type[Exception]
) -> None:
    world.put("q", b"x")
    control = world.orb.publish(Dead(trouble), Control)
    with pytest.raises(told):
        world.fifo("q").mqGetNext(control)
    assert world.seen("q") == (b"x",)
    assert branches(world) == []


def test_a_context_without_a_coordinator_is_no_transaction(world: World) -> None:
    nobody = PropagationContext(0, TransIdentity(None, None, otid_of(bytes(32))), (), None)
    with within(nobody), pytest.raises(system.INVALID_TRANSACTION):
        world.fifo("q").mqPut(None, HEADER, (), b"x")
    world.fifo("q").mqPut(None, HEADER, (), b"x")


def test_a_context_that_names_another_transaction_than_its_coordinator_does_not_get_there(
    world: World,
) -> None:
    victim, own = begin(world), begin(world)
    world.fifo("q").mqPut(victim.control, HEADER, (), b"victim's")
    mixed = TransIdentity(own.coordinator, None, victim.otid)
    with within(PropagationContext(0, mixed, (), None)):
        world.fifo("q").mqPut(None, HEADER, (), b"stranger's")
    own.terminator.rollback()
    victim.terminator.commit(True)
    assert world.seen("q") == (b"victim's",)


def test_joined_branches_are_shown_with_owner_and_state(world: World) -> None:
    begun = begin(world)
    world.fifo("q").mqPut(begun.control, HEADER, (), b"x")
    (info,) = world.admin.listBranches()
    assert (info.owner, info.state, info.stored) == ("local", Status.ACTIVE, 1)
    begun.terminator.commit(True)
    assert world.admin.listBranches() == ()


def test_bulk_work_and_single_messages_meet_in_one_queue(world: World) -> None:
    world.node.putMany(world.branch(), 1, "q", batch(b"not yet"))
    world.put("q", b"there")
    assert world.fifo("q").mqGetNext(None)[2] == b"there"
