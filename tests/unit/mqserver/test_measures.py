"""What a node measures, after work of every kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from idl.exposition import Exposition
from idl.measures import Durations, Measure
from idl.mq import mqCompletion, mqQueueSettings
from idl.otids import otid_of, split_otid
from mqserver.errors import StorageFull
from mqserver.measures import QUEUES_TOLD_MAX, NodeMeasures
from mqserver.storage.contract import QueueInfo, QueueSettings
from mqserver.storage.memory import MemoryStorage
from tests.unit.mqserver.node_world import ANY, WALL_S, World, work


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def _measures(world: World, log_bytes: int | None = None) -> dict[str, Measure]:
    length = None if log_bytes is None else lambda: log_bytes
    found = NodeMeasures(world.running, lambda: (3, 1), lambda: WALL_S + 7, Durations(), length)
    return {measure.name: measure for measure in found()}


def test_messages_are_counted_when_what_put_and_got_them_is_committed(world: World) -> None:
    world.put("a", b"one", b"two", b"three")
    assert world.get("a", 2) == (b"one", b"two")
    branch = world.branch()
    world.node.pushDown(branch, 1, (work("a", b"four"),), mqCompletion.NONE)
    found = _measures(world)
    assert found["oncemq_messages_put_total"].values == {(): 3}
    assert found["oncemq_messages_got_total"].values == {(): 2}
    world.node.rollbackBranch(branch)
    found = _measures(world)
    assert found["oncemq_messages_put_total"].values == {(): 3}
    ends = found["oncemq_branches_ended_total"].values
    assert (ends[("committed",)], ends[("rolled back",)]) == (2, 1)


def test_who_asks_an_empty_queue_is_not_counted_as_rolled_back(world: World) -> None:
    world.put("a", b"one")
    world.get("a")
    for _ in range(5):
        assert world.get("a") == ()
    assert _measures(world)["oncemq_branches_ended_total"].values[("rolled back",)] == 0


def test_what_is_in_doubt_is_told_with_its_age_and_counted_when_it_ends(world: World) -> None:
    voting = world.prepare(world.branch(), work("a", b"one", b"two"))
    world.time += 90.0
    found = _measures(world)
    assert found["oncemq_branches"].values[("in doubt",)] == 1
    assert found["oncemq_in_doubt_oldest_seconds"].values == {(): 90.0}
    assert found["oncemq_branches_prepared_total"].values == {(): 1}
    assert found["oncemq_messages_put_total"].values == {(): 0}
    # Also where the node was started again in between, and knows only how much it was.
    world.crash()
    world.admin.decideBranch(otid_of(split_otid(voting.otid)[0], voting.name), True)
    found = _measures(world)
    assert found["oncemq_messages_put_total"].values == {(): 2}
    assert found["oncemq_branches_ended_total"].values[("committed by an operator",)] == 1
    assert found["oncemq_branches"].values[("heuristic",)] == 1
    assert found["oncemq_in_doubt_oldest_seconds"].values == {(): 0.0}


def test_queues_are_told_with_depth_bytes_and_age(world: World) -> None:
    world.put("a", b"one", b"three")
    world.admin.createQueue("empty", mqQueueSettings(True, False, 0, 0))
    world.node.pushDown(world.branch(), 1, (work("a", b"held"),), mqCompletion.NONE)
    found = _measures(world)
    assert found["oncemq_queue_messages"].values == {
        ("a", "ready"): 2,
        ("a", "held"): 1,
        ("empty", "ready"): 0,
        ("empty", "held"): 0,
    }
    assert found["oncemq_queue_bytes"].values[("a",)] == len(b"onethreeheld")
    assert found["oncemq_queue_oldest_seconds"].values == {("a",): 7.0, ("empty",): 0.0}
    assert found["oncemq_messages"].values == {("ready",): 2, ("held",): 1}


def test_connections_log_and_syncs_are_told_where_there_are_such(world: World) -> None:
    found = _measures(world)
    assert found["oncemq_connections"].values == {("logged in",): 3, ("before login",): 1}
    assert "oncemq_log_bytes" not in found
    found = _measures(world, log_bytes=4711)
    assert found["oncemq_log_bytes"].values == {(): 4711}
    assert "oncemq_sync_seconds" in found


def test_reservations_are_told_by_consumer(world: World) -> None:
    world.put("a", b"one", b"two")
    number = world.node.reserve("stream", "a", ANY, 0, 2, 0)
    assert _measures(world)["oncemq_consumer_messages"].values == {("stream",): 2}
    world.node.finishReservations("stream", number)
    found = _measures(world)
    assert found["oncemq_consumer_messages"].values == {("stream",): 0}
    assert found["oncemq_consumer_finished_total"].values == {("stream",): 1}


class _Crowded(MemoryStorage):
    """A storage with very many queues, or, when it is broken, none that can be asked for."""

    is_broken = False

    def queues(self) -> list[QueueInfo]:
        if self.is_broken:
            raise StorageFull("disk")
        count = 2 * QUEUES_TOLD_MAX
        return [QueueInfo(f"q{n}", QueueSettings(), 1, 0, 1, 0) for n in range(count)]


def test_of_very_many_queues_the_first_are_told_by_name_and_all_together() -> None:
    world = World(storage=_Crowded(lambda: 0.0))
    found = _measures(world)
    world.close()
    assert len(found["oncemq_queue_bytes"].values) == QUEUES_TOLD_MAX
    assert found["oncemq_queues"].values == {(): 2 * QUEUES_TOLD_MAX}
    assert found["oncemq_messages"].values[("ready",)] == 2 * QUEUES_TOLD_MAX


def test_a_storage_that_does_not_answer_is_told_as_such_beside_what_was_counted() -> None:
    storage = _Crowded(lambda: 0.0)
    world = World(storage=storage)
    storage.is_broken = True
    found = _measures(world)
    world.close()
    assert found["oncemq_storage_usable"].values == {(): 0}
    assert "oncemq_messages_put_total" in found


def test_all_of_it_can_be_written_down(world: World) -> None:
    world.put("a", b"one")
    measures = NodeMeasures(world.running, lambda: (1, 0), lambda: WALL_S, Durations(), lambda: 1)
    text = Exposition(measures).text().decode()
    assert 'oncemq_queue_messages{queue="a",state="ready"} 1.0' in text
    assert 'oncemq_branches_ended_total{outcome="committed"} 1.0' in text
