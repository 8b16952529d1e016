"""Frozen lists of messages: those that a branch holds, and those of named consumers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from idl import mq, system
from idl.cos import Status
from idl.mq import mqCompletion
from tests.unit.mqserver.node_world import (
    ANY,
    Started,
    World,
    calling_as,
)

COMMIT = mqCompletion.COMMIT_ONE_PHASE


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_a_locked_list_stays_as_it_is_and_is_read_in_pieces(world: World) -> None:
    world.put("q", b"1", b"2", b"3")
    branch = world.branch()
    assert world.node.lockMany(branch, "read", "q", ANY, 2) == 2
    world.put("q", b"4")
    assert world.node.lockMany(branch, "read", "q", ANY, 9) == 2
    assert world.node.fetchLocked(branch, "read", 0, 9).messages.payloads == (b"1", b"2")
    assert world.node.fetchLocked(branch, "read", 1, 2).messages.payloads == (b"2",)
    assert world.node.lockMany(branch, "again", "q", ANY, 9) == 2
    with pytest.raises(mq.ReservationNotFound):
        world.node.fetchLocked(branch, "other", 0, 1)
    world.node.pushDown(branch, 1, (), COMMIT)
    assert world.seen("q") == ()


def test_a_locked_list_is_gone_with_its_branch(world: World) -> None:
    world.put("q", b"1")
    branch = world.branch()
    world.node.lockMany(branch, "read", "q", ANY, 2)
    world.crash()
    with pytest.raises(mq.BranchEnded):
        world.node.fetchLocked(branch, "read", 0, 1)
    assert world.seen("q") == (b"1",)


def test_a_locked_list_is_gone_as_soon_as_its_branch_has_ended(world: World) -> None:
    world.put("q", b"1")
    branch = world.branch()
    world.node.lockMany(branch, "read", "q", ANY, 2)
    [ending] = world.storage.branches()
    # The node has yet to hear of it.
    world.storage.rollback(ending.branch)
    with pytest.raises(mq.BranchEnded) as refused:
        world.node.fetchLocked(branch, "read", 0, 1)
    assert refused.value.outcome is Status.ROLLED_BACK


# --- Reservations


def test_a_reservation_is_the_same_list_until_it_is_finished(world: World) -> None:
    world.put("q", b"1", b"2", b"3")
    node = world.node
    assert node.reserve("c", "q", ANY, 0, 2, 0) == 1
    assert node.reserve("c", "q", ANY, 0, 2, 0) == 1
    assert node.getReservationSize("c", 1) == 2
    assert node.fetchReserved("c", 1, 0, 9).messages.payloads == (b"1", b"2")
    assert node.reserve("c", "q", ANY, 1, 9, 0) == 2
    world.crash()
    assert world.node.fetchReserved("c", 2, 0, 9).messages.payloads == (b"3",)
    assert world.seen("q") == ()
    world.node.finishReservations("c", 1)
    world.node.finishReservations("c", 1)
    assert world.node.getFinished("c") == 1
    with pytest.raises(mq.ReservationNotFound):
        world.node.fetchReserved("c", 1, 0, 1)
    with pytest.raises(mq.ReservationNotFound):
        world.node.finishReservations("c", 9)
    with pytest.raises(mq.ReservationOutdated) as old:
        world.node.reserve("c", "q", ANY, 0, 1, 0)
    assert old.value.done == 1


def test_a_consumer_that_never_was_has_nothing(world: World) -> None:
    node = world.node
    assert node.getFinished("c") == 0
    assert node.reserve("c", "q", ANY, 0, 2, 0) == 0
    node.finishReservations("c", 0)
    for call in (
        lambda: node.getReservationSize("c", 1),
        lambda: node.fetchReserved("c", 1, 0, 1),
        lambda: node.finishReservations("c", 1),
    ):
        with pytest.raises(mq.ReservationNotFound):
            call()
    world.put("q", b"1")
    with pytest.raises(system.BAD_PARAM):
        node.reserve("c", "q", ANY, 5, 2, 0)


def test_a_consumer_has_one_queue_and_one_owner(world: World) -> None:
    world.put("q", b"1")
    world.put("p", b"1")
    node = world.node
    node.reserve("c", "q", ANY, 0, 1, 0)
    with pytest.raises(system.BAD_PARAM):
        node.reserve("c", "p", ANY, 1, 1, 0)
    with calling_as("mallory"):
        for call in (
            lambda: node.reserve("c", "q", ANY, 0, 1, 0),
            lambda: node.getReservationSize("c", 1),
            lambda: node.fetchReserved("c", 1, 0, 1),
            lambda: node.finishReservations("c", 1),
            lambda: node.getFinished("c"),
        ):
            with pytest.raises(system.NO_PERMISSION):
                call()
    world.admin.dropConsumer("c")
    with calling_as("mallory"):
        assert node.reserve("c", "q", ANY, 0, 1, 0) == 1


def test_a_reservation_is_waited_for(world: World) -> None:
    waiting = Started(lambda: world.node.reserve("c", "q", ANY, 0, 5, 60_000))
    world.put("q", b"1")
    assert waiting.result() == 1


def test_a_count_of_nothing_finds_the_reservation_that_is_there(world: World) -> None:
    world.put("q", b"1", b"2")
    assert world.node.reserve("c", "q", ANY, 0, 0, 0) == 0
    assert world.node.reserve("c", "q", ANY, 0, 1, 0) == 1
    assert world.node.reserve("c", "q", ANY, 0, 0, 0) == 1
    assert world.node.reserve("c", "q", ANY, 1, 0, 0) == 0
    assert world.seen("q") == (b"2",)


# --- Consumers that say which run they are


def test_a_name_has_one_run_from_its_first_reservation_on(world: World) -> None:
    world.put("q", b"1", b"2")
    assert world.node.reserve("etl@a", "q", ANY, 0, 1, 0) == 1
    with pytest.raises(system.BAD_PARAM, match="consumer 'etl' is in use by another query"):
        world.node.reserve("etl@b", "q", ANY, 0, 1, 0)
    assert world.node.reserve("etl-2@b", "q", ANY, 0, 1, 0) == 1
    world.crash()
    with pytest.raises(system.BAD_PARAM, match="in use"):
        world.node.reserve("etl@b", "q", ANY, 0, 1, 0)
    world.node.finishReservations("etl@a", 1)
    world.time += 1_000_000
    with pytest.raises(system.BAD_PARAM, match="in use"):
        world.node.reserve("etl@b", "q", ANY, 0, 1, 0)
    assert world.node.reserve("etl@a", "q", ANY, 1, 1, 0) == 0


def test_a_name_is_kept_by_asking_and_given_up_by_silence(world: World) -> None:
    assert world.node.reserve("etl@a", "q", ANY, 0, 1, 0) == 0
    world.time += 59
    with pytest.raises(system.BAD_PARAM, match="in use"):
        world.node.reserve("etl@b", "q", ANY, 0, 1, 0)
    world.time += 2
    assert world.node.reserve("etl@b", "q", ANY, 0, 1, 0) == 0
    with pytest.raises(system.BAD_PARAM, match="in use"):
        world.node.reserve("etl@a", "q", ANY, 0, 1, 0)


def test_a_name_is_free_once_its_run_was_dropped(world: World) -> None:
    world.put("q", b"1")
    world.node.reserve("etl@a", "q", ANY, 0, 1, 0)
    world.admin.dropConsumer("etl@a")
    with pytest.raises(system.BAD_PARAM, match="no such reservation"):
        world.node.reserve("etl@a", "q", ANY, 1, 1, 0)
    assert world.node.reserve("etl@b", "q", ANY, 0, 1, 0) == 1
    assert world.node.fetchReserved("etl@b", 1, 0, 9).messages.payloads == (b"1",)
