"""A node as somebody who keeps marks: what it says, and that silence is no answer."""

from __future__ import annotations

import pytest

from coordinator.database_drivers import Unreachable
from coordinator.deciding_nodes import DecidingNode
from idl import system
from idl.cos import Status, otid_t
from idl.databases import COMMITTED, ROLLED_BACK
from idl.decider import DECIDER, Mq_Decider
from idl.local import HERE, HOST_HERE, LocalOrb
from idl.otids import GTRID_BYTES

GTRID = bytes(GTRID_BYTES)


class Decider:
    """Says this, or raises it."""

    def __init__(self, said: Status | Exception) -> None:
        self.said = said
        self.asked: list[str] = []

    def vote(self, *arguments: object) -> tuple[Status, bool, tuple[tuple[str, ...], ...]]:
        raise AssertionError("that is for owners")

    def decide(self, *arguments: object) -> tuple[Status, tuple[tuple[str, ...], ...]]:
        raise AssertionError("that is for owners")

    def endVoter(self, *arguments: object) -> None:
        raise AssertionError("that is for owners")

    def getDecision(self, otid: otid_t) -> Status:
        return self._say("getDecision")

    def fence(self, otid: otid_t) -> Status:
        return self._say("fence")

    def _say(self, asked: str) -> Status:
        self.asked.append(asked)
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


def node(said: Status | Exception) -> DecidingNode:
    orb = LocalOrb()
    orb.publish(Decider(said), Mq_Decider, DECIDER)
    return DecidingNode(orb, HERE, HOST_HERE)


@pytest.mark.parametrize(
    ("said", "mark"),
    [
        (Status.COMMITTED, COMMITTED),
        (Status.ROLLED_BACK, ROLLED_BACK),
        (Status.NO_TRANSACTION, None),
    ],
)
def test_what_a_node_has_decided_is_its_mark(said: Status, mark: str | None) -> None:
    assert node(said).mark(GTRID) == mark


def test_a_fence_says_what_stands_there_then() -> None:
    assert node(Status.COMMITTED).fence(GTRID) == COMMITTED
    assert node(Status.ROLLED_BACK).fence(GTRID) == ROLLED_BACK


@pytest.mark.parametrize(
    "said", [system.COMM_FAILURE("gone"), system.NO_PERMISSION("no"), Status.ACTIVE]
)
def test_silence_and_what_is_no_decision_are_no_answer(said: Status | Exception) -> None:
    with pytest.raises(Unreachable):
        node(said).mark(GTRID)
    with pytest.raises(Unreachable):
        node(said).fence(GTRID)


def test_a_fence_that_was_not_put_up_is_none() -> None:
    with pytest.raises(Unreachable, match="no fence"):
        node(Status.NO_TRANSACTION).fence(GTRID)
