"""A node as a whole: what it starts with, what it asks, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from idl import system
from idl.cos import RecoveryCoordinator, Resource, Status
from idl.local import LocalOrb
from idl.mapping import InvalidValue
from idl.mq import mqBranch, mqCompletion, mqTaken
from idl.otids import BRANCH, member_name, show, split_otid
from mqserver.node import Node, NodeSettings
from mqserver.storage.contract import Outcome
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.orphans import AskingTimes
from tests.unit.mqserver.node_world import ALONE, ANY, Started, World, batch, work

SOON = NodeSettings(asking=AskingTimes(first_s=0.001, longest_s=0.001))


class Recovery:
    """A coordinator that is asked for the outcome."""

    def __init__(self, answer: Status) -> None:
        self.answer = answer

    def replay_completion(self, r: Resource | None) -> Status:
        """What it was told to say."""
        assert r is not None
        return self.answer


@pytest.fixture
def world() -> Iterator[World]:
    made = World(SOON)
    yield made
    made.close()


def in_doubt(world: World) -> mqBranch:
    """A branch has put and taken, and voted; then the node was restarted."""
    world.put("from", b"old")
    recovery = world.orb.publish(Recovery(Status.PREPARING), RecoveryCoordinator, "recovery-of-it")
    branch = mqBranch(world.branch().otid, "n1", recovery)
    world.node.getMany(branch, 1, "from", ANY, 1, 0)
    world.node.pushDown(branch, 2, (work("to", b"new"),), mqCompletion.PREPARE)
    world.crash()
    return branch


def until(is_so: Callable[[], bool]) -> None:
    """Waits until something is so, which other threads see to."""
    for _ in range(5000):
        if is_so():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it does not come to that")


@pytest.mark.parametrize(
    ("answer", "queue", "payload"),
    [(Status.COMMITTED, "to", b"new"), (Status.ROLLED_BACK, "from", b"old")],
)
def test_what_was_in_doubt_is_asked_for_in_the_background_and_those_who_wait_are_told(
    world: World, answer: Status, queue: str, payload: bytes
) -> None:
    in_doubt(world)
    waiting = Started(lambda: world.node.getMany(ALONE, 0, queue, ANY, 1, 60_000))
    until(lambda: bool(world.running.queues.waiting._lines))
    assert world.seen("from") == world.seen("to") == ()
    world.orb.publish(Recovery(answer), RecoveryCoordinator, "recovery-of-it")
    until(lambda: _passed(world))
    taken = waiting.result()
    assert isinstance(taken, mqTaken)
    assert taken.messages.payloads == (payload,)


def _passed(world: World) -> bool:
    """Whether nothing is in doubt; time goes on while that is asked."""
    world.time += 1.0
    world.running._wakeup.set()
    world.running._wakeup.clear()
    return not world.storage.branches()


def test_a_resource_can_be_called_under_the_same_reference_after_a_restart(world: World) -> None:
    branch = in_doubt(world)
    resource = world.orb.member(member_name(BRANCH, split_otid(branch.otid)[0], "n1"), Resource)
    resource.commit()
    assert (world.seen("from"), world.seen("to")) == ((), (b"new",))
    assert world.node.getOutcome(branch.otid) is Status.COMMITTED


def test_work_that_nobody_speaks_for_is_rolled_back() -> None:
    world = World(NodeSettings(asking=AskingTimes(first_s=0.001, silent_s=50.0)))
    world.put("q", b"x")
    branch = world.branch()
    world.node.getMany(branch, 1, "q", ANY, 1, 0)
    until(lambda: bool(world.running.orphans._heard))
    world.time += 100.0
    until(lambda: _passed(world))
    assert world.seen("q") == (b"x",)
    assert world.node.getOutcome(branch.otid) is Status.ROLLED_BACK
    world.close()


def test_a_node_starts_switched_off_when_told_so() -> None:
    world = World(NodeSettings(enabled=False))
    assert world.admin.isEnabled() is False
    world.close()


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "ü"])
def test_a_node_has_a_name_that_can_be_part_of_others(name: str) -> None:
    with pytest.raises(InvalidValue):
        Node(LocalOrb(), MemoryStorage(lambda: 0.0), name=name)


def test_a_node_that_is_closed_refuses_everything_and_closes_once(world: World) -> None:
    waiting = Started(lambda: world.node.getMany(ALONE, 0, "q", ANY, 1, 60_000))
    until(lambda: bool(world.running.queues.waiting._lines))
    branch = world.branch()
    world.node.putMany(branch, 1, "q", batch(b"x"))
    world.close()
    assert waiting.result() == mqTaken((), batch())
    with pytest.raises(system.TRANSIENT):
        world.put("q", b"x")
    with pytest.raises(system.TRANSIENT):
        world.admin.getStatus()
    assert world.storage.outcome(split_otid(branch.otid)[0] + b"n1") is Outcome.ROLLED_BACK
    world.close()


def test_a_storage_is_closed_when_the_last_call_is_done(world: World) -> None:
    steps: list[str] = []
    beneath, closing = world.storage.store, world.storage.close
    inside, go_on = threading.Event(), threading.Event()

    def slow_store(*arguments: object) -> range:
        inside.set()
        go_on.wait(10)
        steps.append("stored")
        return beneath(*arguments)  # type: ignore[arg-type]

    def closed() -> None:
        steps.append("closed")
        closing()

    world.storage.store = slow_store  # type: ignore[method-assign,assignment]
    world.storage.close = closed  # type: ignore[method-assign]
    putting = Started(lambda: world.put("q", b"x"))
    assert inside.wait(10)
    ending = Started(world.close)
    until(lambda: world.running._is_closing)
    assert ending.is_running
    go_on.set()
    assert putting.result()
    ending.result()
    assert steps == ["stored", "closed"]


# --- The log


def test_at_level_debug_the_log_follows_each_message_and_its_transaction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    branch = world.branch("n1")
    with caplog.at_level("DEBUG", logger="oncemq.node"):
        (key,) = world.put("q", b"one")
        world.node.getMany(branch, 1, "q", ANY, 1, 0)
        world.node.rollbackBranch(branch)
        world.node.getKeys(ALONE, 0, "q", (key,))
        world.put("q", *[b"x"] * 30)
    world.close()
    told = [
        (record.getMessage(), vars(record).get("queue"), vars(record).get("message_key"))
        for record in caplog.records
    ]
    assert ("1 messages put", "q", key) in told
    assert ("1 messages got", "q", key) in told
    assert ("a branch is rolled back", None, None) in told
    assert ("1 messages got by key", "q", key) in told
    gtrid = split_otid(branch.otid)[0]
    named = [vars(record).get("transaction") for record in caplog.records]
    assert named.count(show(gtrid)) == 2
    # A bulk put is one line, and no longer than it need be.
    (many,) = [keys for text, _, keys in told if text == "30 messages put"]
    assert many is not None
    assert many.endswith(" and 20 more")


def test_at_the_usual_level_messages_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level("INFO", logger="oncemq.node"):
        world.put("q", b"one")
        world.get("q")
    world.close()
    assert "messages" not in caplog.text
