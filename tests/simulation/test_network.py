"""Calls through the simulated network: what arrives, and what is told when nothing does.

The seeds are fixed, so that each of these tests does the same in every run.
"""

from __future__ import annotations

import pytest

from idl import system
from idl.call import Call, Orb, Principal, limited, repeating, within
from idl.cos import PropagationContext, TransIdentity, otid_t
from idl.mapping import InvalidValue
from idl.orb.client import CONNECT_TIMEOUT_S
from idl.orb.network import LINKS_PER_SERVER_MAX
from tests.simulation.desk import DESK, MAYBE, NO, Answering, Busy, Desk, desk_for, outcome, serve
from tests.simulation.network import SimulatedOrb
from tests.simulation.world import Faults, World


def ask_hastily(desk: Desk) -> object:
    with limited(0.5):
        return outcome(desk.ask, 1)


# --- Calls without faults ------------------------------------------------------------------------


def test_each_of_many_callers_gets_its_own_answer() -> None:
    with World(1, Faults(spread_s=2.0, overtaking=1.0)) as world:
        serve(world, Answering(lambda question: world.sleep(question % 7)))
        answers: dict[int, int] = {}

        def work(desk: Desk, number: int) -> None:
            answers[number] = desk.ask(number)

        for host in range(10):
            desk = desk_for(world, f"client{host}")
            for number in range(50):
                world.spawn(f"client{host}", work, desk, host * 50 + number)
        world.run()
        assert answers == {number: number for number in range(500)}
        assert world.count("overtaking") > 100


def test_more_calls_than_connections_wait_for_their_turn_in_virtual_time() -> None:
    with World(1) as world:
        serve(world, Answering(lambda question: world.sleep(1.0)))
        desk = desk_for(world)
        calls = [world.spawn("client", desk.ask, number) for number in range(100)]
        assert [call.join() for call in calls] == list(range(100))
        assert 2.0 < world.now() < 2.2
        calls = [world.spawn("client", ask_hastily, desk) for number in range(100)]
        outcomes = [call.join() for call in calls]
        assert outcomes.count((system.TIMEOUT, MAYBE)) == LINKS_PER_SERVER_MAX
        assert set(outcomes) <= {
            (system.TIMEOUT, MAYBE),
            (system.TIMEOUT, NO),
            (system.TRANSIENT, NO),
        }


def test_exceptions_of_the_contract_arrive_as_themselves() -> None:
    def fail(question: int) -> None:
        raise (Busy(question), system.TRANSACTION_REQUIRED("begin one"), KeyError("x"))[question]

    with World(1) as world:
        serve(world, Answering(fail))
        desk = desk_for(world)
        with pytest.raises(Busy) as told:
            desk.ask(0)
        assert told.value == Busy(0)
        assert outcome(desk.ask, 1) == (system.TRANSACTION_REQUIRED, NO)
        assert outcome(desk.ask, 2) == (system.UNKNOWN, MAYBE)
        assert outcome(desk.ask, -1) == (system.BAD_PARAM, NO)


def test_a_servant_knows_who_calls_under_which_key_and_in_which_transaction() -> None:
    context = PropagationContext(5, TransIdentity(None, None, otid_t(7, 0, b"t")), (), None)
    with World(1) as world:
        desk = Answering()
        serve(world, desk)
        with within(context), repeating(b"k" * 16):
            desk_for(world).ask(1)
        assert desk.calls == [Call(b"k" * 16, Principal("client"), "client", context)]


def test_references_travel_and_are_called_back() -> None:
    with World(1) as world:
        serve(world, Answering())
        orb = SimulatedOrb(world, "client")
        own = Answering()
        published = orb.publish(own, Desk)
        assert orb.proxy(DESK, Desk).pass_on(published, 5) == 5
        assert own.calls[0].peer_host == "server"
        orb.withdraw(published)
        assert outcome(published.ask, 1) == (system.OBJECT_NOT_EXIST, NO)


def test_a_closed_orb_finishes_what_it_serves_and_refuses_the_rest() -> None:
    with World(1) as world:
        orb = SimulatedOrb(world, "server")
        as_contract: Orb = orb
        as_contract.publish(Answering(lambda question: world.sleep(2.0)), Desk, "desk")
        desk = desk_for(world)
        running = world.spawn("client", desk.ask, 5)
        world.run(until=1.0)
        orb.close()
        assert running.join() == 5
        world.sleep(1.0)
        assert outcome(desk.ask, 6) == (system.TRANSIENT, NO)


def test_an_orb_belongs_to_one_port_of_one_life() -> None:
    with World(1) as world:
        serve(world, Answering())
        with pytest.raises(InvalidValue, match="taken"):
            SimulatedOrb(world, "server")
        desk = desk_for(world)
        world.restart("client")
        stranger = world.spawn("client", desk.ask, 1)
        with pytest.raises(AssertionError, match="another life"):
            stranger.join()


# --- What is told when nothing comes -------------------------------------------------------------


def test_a_lost_answer_is_told_as_maybe_and_the_work_was_done_once() -> None:
    with World(1) as world:
        desk = Answering(lambda _: world.partition("server", "client", is_one_way=True))
        serve(world, desk)
        with limited(3.0):
            assert outcome(desk_for(world).ask, 1) == (system.TIMEOUT, MAYBE)
        assert world.now() == pytest.approx(3.0)
        assert len(desk.calls) == 1


@pytest.mark.parametrize("is_idempotent", [True, False])
def test_only_an_idempotent_call_is_repeated_and_under_the_same_key(is_idempotent: bool) -> None:
    with World(1) as world:
        served = Answering(lambda _: world.sleep(2.0))
        serve(world, served)
        desk = desk_for(world)
        world.after(1.0, world.restart, "server")
        answer = outcome(desk.look if is_idempotent else desk.ask, 5)
        assert answer == (5 if is_idempotent else (system.COMM_FAILURE, MAYBE))
        keys = [call.request_id for call in served.calls]
        assert keys == keys[:1] * (2 if is_idempotent else 1)


def test_a_host_that_is_down_refuses_or_stays_silent_and_nothing_was_done() -> None:
    with World(1) as world:
        desk = desk_for(world)
        assert outcome(desk.ask, 1) == (system.TRANSIENT, NO)
        world.crash("server")
        assert outcome(desk.ask, 1) == (system.TRANSIENT, NO)
        serve_again = Answering()
        world.restart("server")
        serve(world, serve_again)
        assert desk.ask(2) == 2
        world.crash("server", is_silent=True)
        world.run(until=10.0)
        # Its connection looks sound still: only the answer is missing.
        with limited(3.0):
            assert outcome(desk.ask, 3) == (system.TIMEOUT, MAYBE)
        assert outcome(desk.ask, 4) == (system.TIMEOUT, NO)
        assert world.now() == pytest.approx(13.0 + CONNECT_TIMEOUT_S)


def test_a_partition_parts_two_hosts_until_it_is_healed() -> None:
    with World(1) as world:
        serve(world, Answering())
        near, far = desk_for(world, "near"), desk_for(world, "far")
        world.partition("far", "server")
        with limited(1.0):
            assert outcome(far.ask, 1) == (system.TIMEOUT, NO)
            assert near.ask(1) == 1
            world.heal("far", "server")
            assert far.ask(1) == 1


def test_an_idle_connection_to_a_crashed_server_is_not_used_again() -> None:
    with World(1) as world:
        serve(world, Answering())
        desk = desk_for(world)
        desk.ask(1)
        world.restart("server")
        world.sleep(1.0)
        assert desk.ask(2) == 2


def test_late_answers_to_a_dead_caller_do_not_reach_the_next_one() -> None:
    with World(1) as world:
        serve(world, Answering(lambda question: world.sleep(question)))
        answers: list[int] = []

        def boot() -> None:
            life = world.living()
            assert life is not None
            desk = desk_for(world)
            answers.append(desk.ask(6 if life.number == 1 else 5))

        world.boot("client", boot)
        world.run(until=3.0)
        world.restart("client")
        world.run()
        assert answers == [5]
        assert world.count("in vain") == 1


def test_a_request_to_a_dead_life_is_refused_by_the_next_one() -> None:
    with World(1, Faults(latency_s=1.0)) as world:
        desk = Answering()
        serve(world, desk)
        caller = desk_for(world)
        caller.ask(1)
        # On its way when the server dies without a word, and there when it lives again.
        world.after(0.3, lambda: world.crash("server", is_silent=True))
        world.after(0.6, world.restart, "server")
        assert outcome(caller.ask, 2) == (system.COMM_FAILURE, MAYBE)
        assert len(desk.calls) == 1
