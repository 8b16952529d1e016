"""Transactions that clients share by their names, over a restart of the coordinator."""

from __future__ import annotations

import pytest

from coordinator.coordination import COORDINATION
from idl.coordination import Mq_Coordinator, mqParticipant, mqTransactionKey
from idl.cos import Coordinator, Status, otid_t
from idl.otids import member_name, split_otid
from tests.unit.clients.embedded_coordinator import EmbeddedCoordinator, Participant, published

KEY = mqTransactionKey("copy", 1)


@pytest.fixture
def coordinator() -> EmbeddedCoordinator:
    return EmbeddedCoordinator()


def _of(coordinator: EmbeddedCoordinator) -> Mq_Coordinator:
    return coordinator.orb.member(COORDINATION, Mq_Coordinator)


def _register(coordinator: EmbeddedCoordinator, otid: otid_t, participant: Participant) -> None:
    name = member_name("coordinator", split_otid(otid)[0])
    asked = coordinator.orb.member(name, Coordinator)
    asked.register_resource(published(coordinator, participant))


@pytest.mark.parametrize("key", [KEY, mqTransactionKey("", 0)], ids=["keyed", "without a key"])
def test_what_clients_shared_and_had_not_decided_is_rolled_back_by_a_restart(
    coordinator: EmbeddedCoordinator, key: mqTransactionKey
) -> None:
    otid = _of(coordinator).beginOrJoin(0, key, 0).otid
    named = (mqParticipant("b0", published(coordinator, Participant()), None),)
    coordinator.restart()
    asked = _of(coordinator)
    assert asked.decide(otid, named).status is Status.ROLLED_BACK
    assert asked.giveUp(otid).status is asked.getOutcome(otid).status is Status.ROLLED_BACK


def test_what_clients_share_is_never_left_to_its_only_participant(
    coordinator: EmbeddedCoordinator,
) -> None:
    """Its outcome would be known nowhere after a restart, and told as rolled back."""
    otid = _of(coordinator).beginOrJoin(0, mqTransactionKey("", 0), 0).otid
    alone = Participant()
    _register(coordinator, otid, alone)
    assert _of(coordinator).decide(otid, ()).status is Status.COMMITTED
    assert alone.told == ["prepare", "commit"]
    coordinator.restart()
    assert _of(coordinator).getOutcome(otid).status is Status.COMMITTED


def test_what_clients_share_and_commit_without_work_is_committed(
    coordinator: EmbeddedCoordinator,
) -> None:
    otid = _of(coordinator).beginOrJoin(0, mqTransactionKey("", 0), 0).otid
    for _ in range(2):
        assert _of(coordinator).decide(otid, ()).status is Status.COMMITTED
