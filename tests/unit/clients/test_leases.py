"""Names are drawn without asking, are never given twice, and end with their session."""

from __future__ import annotations

import os
import threading

import pytest

from clients.leases import Leases
from coordinator.coordination import COORDINATION
from idl import system
from idl.coordination import Mq_Coordinator
from idl.cos import Status
from idl.otids import BLOCK_NUMBERS, decode_gtrid, otid_of
from tests.unit.clients.embedded_coordinator import EmbeddedCoordinator


@pytest.fixture
def coordinator() -> EmbeddedCoordinator:
    return EmbeddedCoordinator()


def _proxy(coordinator: EmbeddedCoordinator) -> Mq_Coordinator:
    return coordinator.orb.member(COORDINATION, Mq_Coordinator)


def _leases(coordinator: EmbeddedCoordinator) -> Leases:
    return Leases(_proxy(coordinator), coordinator.tasks.now)


def test_a_drawn_name_is_undecided_at_the_coordinator(coordinator: EmbeddedCoordinator) -> None:
    gtrid = _leases(coordinator).draw()
    assert _proxy(coordinator).getOutcome(otid_of(gtrid)).status is Status.ACTIVE


def test_no_name_is_drawn_twice_by_any_thread_or_client(coordinator: EmbeddedCoordinator) -> None:
    drawn: list[bytes] = []
    clients = [_leases(coordinator) for _ in range(3)]

    def draw(leases: Leases) -> None:
        drawn.extend(leases.draw() for _ in range(BLOCK_NUMBERS))

    threads = [threading.Thread(target=draw, args=(leases,)) for leases in clients * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(drawn)) == len(drawn) == 6 * BLOCK_NUMBERS


def test_drawing_within_a_block_makes_no_call(coordinator: EmbeddedCoordinator) -> None:
    leases = _leases(coordinator)
    first = leases.draw()
    coordinator.orb.close()
    rest = [leases.draw() for _ in range(BLOCK_NUMBERS - 1)]
    assert len({first, *rest}) == BLOCK_NUMBERS
    with pytest.raises(system.TRANSIENT):
        leases.draw()


def test_a_silent_session_is_lost_and_the_next_name_comes_from_a_new_one(
    coordinator: EmbeddedCoordinator,
) -> None:
    leases = _leases(coordinator)
    before, session = leases.draw(), leases.session
    coordinator.tasks.pass_time(coordinator.settings.session_s + 2)
    assert not leases.renew()
    assert leases.session != session
    assert _proxy(coordinator).getOutcome(otid_of(before)).status is Status.ROLLED_BACK


def test_a_session_that_is_renewed_lives_on(coordinator: EmbeddedCoordinator) -> None:
    leases = _leases(coordinator)
    gtrid = leases.draw()
    for _ in range(10):
        assert leases.seconds_to_renewal() <= coordinator.settings.session_s / 2
        coordinator.tasks.pass_time(leases.seconds_to_renewal())
        assert leases.renew()
    assert _proxy(coordinator).getOutcome(otid_of(gtrid)).status is Status.ACTIVE


def test_closing_rolls_back_what_was_not_decided(coordinator: EmbeddedCoordinator) -> None:
    leases = _leases(coordinator)
    gtrid = leases.draw()
    leases.close()
    assert _proxy(coordinator).getOutcome(otid_of(gtrid)).status is Status.ROLLED_BACK


def test_no_name_of_a_session_that_was_closed_is_drawn(coordinator: EmbeddedCoordinator) -> None:
    leases = _leases(coordinator)
    before = decode_gtrid(leases.draw()).number
    leases.close()
    assert leases.session
    gtrid = leases.draw()
    assert decode_gtrid(gtrid).number // BLOCK_NUMBERS != before // BLOCK_NUMBERS
    assert _proxy(coordinator).getOutcome(otid_of(gtrid)).status is Status.ACTIVE


def test_blocks_whose_transactions_are_over_are_given_back(
    coordinator: EmbeddedCoordinator,
) -> None:
    leases = _leases(coordinator)
    for _ in range(20 * BLOCK_NUMBERS):
        leases.ended(leases.draw())
    (session,) = coordinator.service.transactions.sessions._sessions.values()
    assert len(session.blocks) <= 2


def test_a_forked_child_has_a_session_of_its_own(coordinator: EmbeddedCoordinator) -> None:
    leases = _leases(coordinator)
    parent = decode_gtrid(leases.draw()).number
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        own = decode_gtrid(leases.draw()).number
        os.write(writing, str(own).encode())
        os._exit(0)
    os.waitpid(child, 0)
    drawn = int(os.read(reading, 100))
    os.close(reading)
    os.close(writing)
    # In the child everything, the coordinator too, is a copy: it leased another block.
    assert drawn // BLOCK_NUMBERS != parent // BLOCK_NUMBERS
