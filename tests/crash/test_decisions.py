"""A node that decides crashes at every moment: mark and work are one, and what was told stays true.

Every state that a power cut may leave is opened again: where the message is, the mark is; who was
told "committed" finds it so, and so does who was told "rolled back", whatever comes late.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import pytest

from idl import mq
from idl.cos import Status
from idl.mq import mqCompletion, mqQueueSettings
from idl.otids import GTRID_BYTES
from mqserver.storage.contract import EVERYTHING, NewMessage, QueueSettings
from mqserver.storage.paged import PagedSettings, PagedStorage
from mqserver.transactions.decisions import FENCE, MARK, OWN, Decisions, Voter
from tests.conformance.paged_storages import durable_image
from tests.crash.crash_states import CrashState, crash_states
from tests.crash.recording_disk import RecordingDisk
from tests.unit.mqserver.node_world import World, batch

VOTERS = (Voter("n2", "PYRO:settler@far:1"),)
SETTINGS = PagedSettings(segment_blocks=16)
IDS = itertools.count()
# So large that a record has many sectors, each of which may arrive or not.
PAYLOAD = bytes(2000)
NUMBERS = range(1, 7)
STATES_MIN = 150


def _gtrid(number: int) -> bytes:
    return number.to_bytes(GTRID_BYTES)


class Node:
    """A storage on a disk, and what it has decided."""

    def __init__(self, disk: RecordingDisk, kind: type[Decisions] = Decisions) -> None:
        self.storage = PagedStorage(disk, lambda: bytes(16), time.monotonic, SETTINGS)
        self.decisions = kind(self.storage, time.monotonic, lambda: next(IDS).to_bytes(16))
        self.decisions.load()

    def decide(self, number: int) -> None:
        branch = _gtrid(number) + b"n1"
        self.decisions.get_ready()
        self.storage.store(branch, "q", [NewMessage(PAYLOAD, 0, group=number)])
        self.decisions.commit(branch, "here:1", VOTERS, self.storage.commit_one_phase)

    def there(self) -> set[int]:
        """The transactions whose messages are there."""
        return {message.group for message in self.storage.browse("q", EVERYTHING, 0, 100)}


def _work(disk: RecordingDisk, kind: type[Decisions]) -> None:
    node = Node(disk, kind)
    node.storage.create_queue("q", QueueSettings())
    disk.note("queue")
    for number in NUMBERS:
        if number % 3 == 0:
            assert node.decisions.fence(_gtrid(number)) is Status.ROLLED_BACK
            disk.note(("fenced", number))
        else:
            node.decide(number)
            disk.note(("decided", number))
    disk.note("forgetting")
    node.decisions.forget([_gtrid(1)])
    node.storage.checkpoint()


def _judge(state: CrashState) -> None:
    node = Node(state.disk())
    there = node.there()
    for number in NUMBERS:
        standing = node.decisions.find(_gtrid(number))
        is_forgotten = number == 1 and "forgetting" in state.events
        if not is_forgotten:
            assert (number in there) is (standing is Status.COMMITTED), str(state)
        if ("decided", number) in state.events:
            assert number in there, str(state)
        if ("fenced", number) in state.events:
            assert standing is Status.ROLLED_BACK, str(state)
    node.storage.close()


def _judge_all(kind: type[Decisions] = Decisions) -> int:
    disk = RecordingDisk()
    _work(disk, kind)
    states = [state for state in crash_states(disk.trace) if "queue" in state.events]
    for state in states:
        _judge(state)
    return len(states)


def test_after_every_crash_mark_and_work_are_one_and_what_was_told_is_true() -> None:
    assert _judge_all() >= STATES_MIN


class MarkedAfterwards(Decisions):
    """A planted bug: the mark is not in the write that commits the branch."""

    def commit(
        self,
        branch: bytes,
        coordinator: str,
        voters: Sequence[Voter],
        commit: Callable[[bytes], None],
    ) -> None:
        commit(branch)
        own = OWN + self._new_id()
        self._store(own, branch[:GTRID_BYTES] + b"here:1", MARK)
        self._storage.commit_one_phase(own)


class FencedInMemory(Decisions):
    """A planted bug: a fence is told that is not on disk."""

    def _put_up(self, gtrid: bytes) -> None:
        self._store(OWN + self._new_id(), gtrid, FENCE)


@pytest.mark.parametrize("kind", [MarkedAfterwards, FencedInMemory])
def test_a_planted_bug_is_noticed(kind: type[Decisions]) -> None:
    with pytest.raises(AssertionError, match="a crash behind entry"):
        _judge_all(kind)


# --- Late copies ----------------------------------------------------------------------------------


def _started_on(disk: RecordingDisk) -> World:
    return World(storage=PagedStorage(disk, lambda: bytes(16), time.monotonic, SETTINGS))


def _cut(world: World, disk: RecordingDisk) -> RecordingDisk:
    """What a power cut leaves of all that was not forced: nothing."""
    left = RecordingDisk(durable_image(disk.trace))
    world.close()
    return left


def test_who_was_told_rolled_back_is_not_committed_by_late_copies_of_its_calls() -> None:
    first = RecordingDisk()
    world = _started_on(first)
    world.admin.createQueue("q", mqQueueSettings(True, False, 0, 0))
    branch = world.branch()
    world.node.putMany(branch, 1, "q", batch(b"1"))
    second = _cut(world, first)
    world = _started_on(second)
    with pytest.raises(mq.BranchEnded) as over:
        world.node.pushDown(branch, 2, (), mqCompletion.COMMIT_ONE_PHASE)
    assert over.value.outcome is Status.ROLLED_BACK
    world = _started_on(_cut(world, second))
    for late in (
        lambda: world.node.putMany(branch, 1, "q", batch(b"1")),
        lambda: world.node.pushDown(branch, 2, (), mqCompletion.COMMIT_ONE_PHASE),
    ):
        with pytest.raises(mq.BranchEnded):
            late()
    assert world.seen("q") == ()
    world.close()
