"""The transaction of the calling thread: begun, nested, suspended, resumed and ended."""

from __future__ import annotations

import threading

import pytest

from clients.current import Current
from coordinator.interfaces import FACTORY
from idl import system
from idl.call import current_outgoing
from idl.cos import (
    InvalidControl,
    NoTransaction,
    Status,
    SubtransactionsUnavailable,
    TransactionFactory,
)
from tests.unit.clients.embedded_coordinator import EmbeddedCoordinator, Participant, published


@pytest.fixture
def coordinator() -> EmbeddedCoordinator:
    return EmbeddedCoordinator()


@pytest.fixture
def current(coordinator: EmbeddedCoordinator) -> Current:
    made = Current(coordinator.orb.member(FACTORY, TransactionFactory))
    made.resume(None)
    return made


def test_without_a_transaction_there_is_nothing_to_end(current: Current) -> None:
    assert current.get_status() is Status.NO_TRANSACTION
    assert current.get_control() is None
    assert current.suspend() is None
    assert current.get_transaction_name() == ""
    with pytest.raises(NoTransaction):
        current.commit(True)
    with pytest.raises(NoTransaction):
        current.rollback()
    with pytest.raises(NoTransaction):
        current.rollback_only()


def test_begin_and_commit(coordinator: EmbeddedCoordinator, current: Current) -> None:
    current.begin()
    assert current.get_status() is Status.ACTIVE
    control, participant = current.get_control(), Participant()
    assert control is not None
    control.get_coordinator().register_resource(published(coordinator, participant))
    current.commit(True)
    assert participant.told == ["commit_one_phase"]
    assert current.get_status() is Status.NO_TRANSACTION


def test_rollback_only_leaves_nothing_but_a_rollback(current: Current) -> None:
    current.begin()
    current.rollback_only()
    assert current.get_status() is Status.MARKED_ROLLBACK
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        current.commit(True)
    assert current.get_status() is Status.NO_TRANSACTION


def test_a_second_begin_is_a_subtransaction_and_its_end_returns_to_the_parent(
    current: Current,
) -> None:
    current.begin()
    parent = current.get_transaction_name()
    current.begin()
    assert current.get_transaction_name() != parent
    current.rollback()
    assert current.get_transaction_name() == parent
    current.commit(True)
    assert current.get_control() is None


def test_where_the_transaction_is_marked_no_subtransaction_is_begun(current: Current) -> None:
    current.begin()
    current.rollback_only()
    with pytest.raises(SubtransactionsUnavailable):
        current.begin()
    current.rollback()


def test_a_suspended_subtransaction_still_has_its_parent_when_it_is_resumed(
    current: Current,
) -> None:
    current.begin()
    parent = current.get_transaction_name()
    current.begin()
    child = current.suspend()
    assert current.get_control() is None
    current.resume(child)
    current.commit(True)
    assert current.get_transaction_name() == parent
    current.rollback()


def test_a_transaction_that_is_over_cannot_be_resumed(current: Current) -> None:
    current.begin()
    control = current.get_control()
    current.rollback()
    with pytest.raises(InvalidControl):
        current.resume(control)


def test_each_thread_has_its_own(current: Current) -> None:
    current.begin()
    seen: list[Status] = []
    thread = threading.Thread(target=lambda: seen.append(current.get_status()))
    thread.start()
    thread.join()
    assert seen == [Status.NO_TRANSACTION]
    current.rollback()


def test_calls_carry_the_current_transaction(current: Current) -> None:
    with current.carried() as nothing:
        assert nothing is None
    current.begin()
    with current.carried() as context:
        assert current_outgoing().transaction == context
    current.rollback()


def test_the_timeout_is_that_of_transactions_begun_afterwards(
    coordinator: EmbeddedCoordinator, current: Current
) -> None:
    current.set_timeout(7)
    assert current.get_timeout() == 7
    current.begin()
    coordinator.tasks.pass_time(9.0)
    assert current.get_status() is Status.ROLLED_BACK
    with pytest.raises(system.TRANSACTION_ROLLEDBACK):
        current.commit(True)
