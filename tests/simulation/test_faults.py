"""Every fault happens, as often as it was asked for, stands in the log, and is the seed's doing."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import cast

import pytest

from idl import system
from idl.call import limited
from tests.simulation.desk import MAYBE, NO, Answering, Desk, desk_for, outcome, serve
from tests.simulation.world import Faults, World


def ask_often(world: World, times: int = 1500) -> tuple[Answering, list[object]]:
    """Calls one after the other from ten hosts, each with its outcome."""
    served = Answering()
    outcomes: list[object] = []
    serve(world, served)

    def work(desk: Desk) -> None:
        for number in range(times // 10):
            with limited(2.0):
                outcomes.append(outcome(desk.ask, number))

    for number in range(10):
        world.spawn(f"client{number}", work, desk_for(world, f"client{number}"))
    world.settle(lambda: len(outcomes) == times)
    world.run(until=world.now() + 30.0)
    return served, outcomes


def sent(world: World, *kinds: str) -> int:
    return sum(entry[1] == "sent" and entry[2] in kinds for entry in world.log)


def fits(count: int, probability: float, tries: int) -> bool:
    """Whether so many of so many tries are what the probability lets one expect."""
    spread = math.sqrt(tries * probability * (1.0 - probability))
    return abs(count - tries * probability) < 4.0 * spread


@pytest.mark.parametrize("probability", [0.05, 0.3])
def test_messages_are_lost_at_the_given_rate(probability: float) -> None:
    with World(1, Faults(loss=probability)) as world:
        desk, outcomes = ask_often(world)
        assert fits(world.count("lost"), probability, world.count("sent"))
        assert world.count("arrived") + world.count("lost") == world.count("sent")
        assert set(map(type, outcomes)) == {int, tuple}
        # What was answered was carried out, and what cannot have been was not.
        answered = sum(type(each) is int for each in outcomes)
        unknown = outcomes.count((system.TIMEOUT, MAYBE))
        assert answered <= len(desk.calls) <= answered + unknown


@pytest.mark.parametrize("probability", [0.05, 0.3])
def test_messages_are_duplicated_and_requests_carried_out_twice(probability: float) -> None:
    with World(1, Faults(duplication=probability)) as world:
        desk, outcomes = ask_often(world)
        assert fits(world.count("duplicated"), probability, sent(world, "request", "reply"))
        assert world.count("copy arrived") == world.count("duplicated")
        keys = [call.request_id for call in desk.calls]
        assert len(set(keys)) == len(outcomes)
        assert fits(len(keys) - len(outcomes), probability, len(outcomes))
        assert all(type(each) is int for each in outcomes)


def test_damaged_messages_are_recognised_and_never_carried_out() -> None:
    with World(1, Faults(cut=0.1)) as world:
        desk, outcomes = ask_often(world)
        assert fits(world.count("cut"), 0.1, sent(world, "request", "reply"))
        told = {each for each in outcomes if type(each) is tuple}
        assert told == {(system.COMM_FAILURE, MAYBE), (system.MARSHAL, NO)}
        damaged = outcomes.count((system.MARSHAL, NO))
        assert len(desk.calls) <= len(outcomes) - damaged


def test_broken_connections_are_told_with_what_is_known() -> None:
    with World(1, Faults(breaking=0.2)) as world:
        desk, outcomes = ask_often(world)
        moments = [entry[2] for entry in world.log if entry[1] == "broken"]
        assert set(moments) == {"before", "while", "after"}
        # A call that never left was made once more.
        assert fits(len(moments), 0.2, len(outcomes) + moments.count("before"))
        told = {each for each in outcomes if type(each) is tuple}
        assert told == {(system.COMM_FAILURE, MAYBE), (system.COMM_FAILURE, NO)}
        assert len({call.request_id for call in desk.calls}) == len(desk.calls)


def test_partitions_come_and_go_at_the_given_rate() -> None:
    with World(1, Faults(partition=0.02, outage_s=1.0)) as world:
        ask_often(world)
        assert fits(world.count("partition"), 0.02, world.count("sent"))
        assert world.count("heal") == world.count("partition")
        assert world.count("parted") >= world.count("partition")


@pytest.mark.parametrize("overtaking", [0.0, 0.5, 1.0])
def test_messages_keep_their_order_unless_they_may_overtake(overtaking: float) -> None:
    with World(1, Faults(spread_s=1.0, overtaking=overtaking)) as world:
        serve(world, Answering())
        desk = desk_for(world)
        for number in range(300):
            world.spawn("client", desk.ask, number)
        world.run()
        arrived = [cast(int, entry[2]) for entry in world.log if entry[1] == "arrived"]
        there = [number for number in arrived if world.log[number][3] == "client"]
        assert (there == sorted(there)) == (overtaking == 0.0)
        assert (world.count("overtaking") > 0) == (overtaking > 0.0)


def scenario_of_everything(seed: int) -> str:
    """A run with all faults that the seed draws; its fingerprint."""
    with World.swarm(seed) as world:
        served = Answering(lambda question: world.sleep(question % 3))
        serve(world, served)
        done: list[object] = []

        def work(number: int, desk: Desk) -> None:
            for turn in range(10):
                done.append(outcome(desk.look, number * 100 + turn))

        for number in range(5):
            host = f"client{number}"
            world.spawn(host, work, number, desk_for(world, host))
        world.run(until=30.0)
        world.calm()
        world.settle(lambda: len(done) == 50)
        return world.fingerprint()


def test_the_same_seed_is_the_same_run_byte_by_byte() -> None:
    prints = [scenario_of_everything(seed) for seed in range(20)]
    assert prints == [scenario_of_everything(seed) for seed in range(20)]
    assert len(set(prints)) == 20


def test_the_order_of_hashes_has_no_say_in_a_run() -> None:
    program = (
        "from tests.simulation.test_faults import scenario_of_everything as run;"
        "import sys; sys.stdout.write(''.join(run(seed) for seed in range(5)))"
    )
    shown = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert shown[0] == shown[1] == "".join(scenario_of_everything(seed) for seed in range(5))
