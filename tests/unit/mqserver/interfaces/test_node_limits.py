"""How much a client may send, hold and have remembered, and what names a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from idl import mq, system
from idl.mq import mqAttribute, mqCompletion
from mqserver.node import NodeSettings
from tests.unit.mqserver.node_world import (
    ALONE,
    ANY,
    World,
    batch,
    calling_as,
    work,
)

COMMIT = mqCompletion.COMMIT_ONE_PHASE


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_a_client_has_only_so_many_branches_at_once() -> None:
    world = World(NodeSettings(branches_per_principal_max=2))
    branches = [world.branch() for _ in range(3)]
    for branch in branches[:2]:
        world.node.putMany(branch, 1, "q", batch(b"x"))
    with pytest.raises(system.IMP_LIMIT):
        world.node.putMany(branches[2], 1, "q", batch(b"x"))
    with calling_as("bob"):
        world.node.putMany(world.branch(), 1, "q", batch(b"x"))
    world.node.rollbackBranch(branches[0])
    world.node.putMany(branches[2], 1, "q", batch(b"x"))
    world.close()


def test_messages_calls_and_branches_have_their_sizes() -> None:
    settings = NodeSettings(
        message_bytes_max=100,
        messages_per_call_max=5,
        branch_messages_max=7,
        branch_bytes_max=300,
    )
    world = World(settings)
    world.put("q", b"x" * 100)
    refusals: list[Callable[[], object]] = [
        lambda: world.put("q", b"x" * 101),
        lambda: world.put("q", *[b"x"] * 6),
        lambda: world.node.getKeys(ALONE, 0, "q", ("000000000000001",) * 6),
        lambda: world.node.pushDown(
            world.branch(), 1, (work("q", *[b"x"] * 3), work("q", *[b"x"] * 3)), COMMIT
        ),
        lambda: world.node.pushDown(world.branch(), 1, (work("q", *[b"x" * 80] * 4),), COMMIT),
        lambda: world.node.putMany(
            ALONE, 0, "q", replace(batch(b"x"), attribs=((mqAttribute("k", "v" * 70_000),),))
        ),
    ]
    for refused in refusals:
        with pytest.raises(system.IMP_LIMIT):
            refused()
    branch = world.branch()
    world.node.putMany(branch, 1, "q", batch(*[b"x"] * 5))
    with pytest.raises(system.IMP_LIMIT):
        world.node.putMany(branch, 2, "q", batch(*[b"x"] * 3))
    world.node.putMany(branch, 2, "q", batch(*[b"x"] * 2))
    assert world.node.countMessages("q") == 1
    world.close()


def test_answers_that_are_too_large_to_be_kept_fence_their_branch_when_asked_for_again(
    world: World,
) -> None:
    work_limits = world.running.work.limits
    world.running.work.limits = replace(work_limits, answers_bytes_max=150_000)
    world.put("q", *[b"x" * 100_000] * 3)
    branches = [world.branch() for _ in range(3)]
    for branch in branches:
        world.node.getMany(branch, 1, "q", ANY, 1, 0)
    assert world.node.getMany(branches[2], 1, "q", ANY, 1, 0).keys
    with pytest.raises(mq.BranchEnded):
        world.node.getMany(branches[0], 1, "q", ANY, 1, 0)
    assert world.node.countMessages("q") == 1


def test_remembered_answers_are_bounded(world: World) -> None:
    limits = replace(world.running.work.limits, answers_kept=2, ended_kept=2)
    world.running.work.limits = limits
    world.running._parts.alone._limits = limits
    for _ in range(10):
        world.put("q", b"x")
        world.node.pushDown(world.branch("other"), 1, (work("q", b"x"),), COMMIT)
    assert len(world.running._parts.alone._done) == 2
    assert len(world.running.work._ended) == 2
    assert len(world.running.work._names) == 2
    assert world.running.work._open == {}


@pytest.mark.parametrize("name", ["", "../x", "a b", "q;drop", "."])
def test_what_is_no_queues_name_is_refused(world: World, name: str) -> None:
    for call in (
        lambda: world.node.putMany(ALONE, 0, name, batch(b"x")),
        lambda: world.node.getMany(ALONE, 0, name, ANY, 1, 0),
        lambda: world.node.browse(name, ANY, "", 1),
        lambda: world.node.countMessages(name),
        lambda: world.node.reserve("c", name, ANY, 0, 1, 0),
        lambda: world.node.pushDown(world.branch(), 1, (work(name, b"x"),), COMMIT),
    ):
        with pytest.raises(system.BAD_PARAM):
            call()
