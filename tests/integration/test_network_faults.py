"""A network that cuts, delays, repeats, swallows and alters: the same promises, the same judgement.

Between everybody and each server stands a `FaultProxy`: clients, nodes and coordinator reach each
other through it alone. Nobody is killed. The clients and the checks are those of the kill test.

    pytest tests/integration/test_network_faults.py --kill-seconds 60 --kill-seed 7
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from idl.orb import frames
from tests.integration.cluster import Cluster, ended, stop_all
from tests.integration.conftest import KillOptions
from tests.integration.crew import Crew, Report
from tests.integration.fault_proxy import WEIGHTS, FaultProxy, proxies_before, renumbered

SECONDS = 10.0
SECONDS_MORE = 30.0
FAULTS_MIN = 200


def _has_enough(proxies: list[FaultProxy]) -> bool:
    faults = sum((proxy.faults for proxy in proxies), Counter[str]())
    return faults.total() >= FAULTS_MIN and all(faults[kind] for kind in WEIGHTS)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_every_message_is_once_where_it_must_be_whatever_the_network_does(
    tmp_path: Path, kill_options: KillOptions
) -> None:
    seconds, seed = kill_options.seconds or SECONDS, kill_options.seed
    chance = random.Random(seed)
    cluster = Cluster(tmp_path, chance, kill_options.bug)
    proxies = proxies_before(cluster, chance, seed)
    cluster.start()
    crew = Crew(cluster, seed)
    with ended(*cluster.servers, *crew.workers):
        crew.start()
        begun = time.monotonic()
        for proxy in proxies:
            proxy.is_faulty = True
        while time.monotonic() < begun + seconds or (
            time.monotonic() < begun + seconds + SECONDS_MORE and not _has_enough(proxies)
        ):
            time.sleep(0.2)
        report = _heal_and_judge(crew, proxies)
        cluster.stop()
    for proxy in proxies:
        proxy.close()
    faults = sum((proxy.faults for proxy in proxies), Counter[str]())
    told = ", ".join(f"{faults[kind]} {kind}" for kind in WEIGHTS)
    passed = sum(proxy.frames for proxy in proxies)
    text = f"{seconds:g} s; of {passed} frames {told}; {report.text()}"
    kill_options.count("faults", text)
    if kill_options.bug is not None:
        assert report.complaints, f"{kill_options.bug} was not found: {text}"
        return
    report.check(kill_options.replay(seconds), tmp_path)
    assert _has_enough(proxies), f"too few faults: {text}"
    assert report.over_two_nodes >= 50, f"too little has happened: {text}"


def _heal_and_judge(crew: Crew, proxies: list[FaultProxy]) -> Report:
    for proxy in proxies:
        proxy.heal()
    time.sleep(1.0)
    stop_all(crew.workers)
    # Rollbacks that were lost have left locks, which only a restart gives back at once.
    for name, node in crew.cluster.nodes.items():
        node.strike()
        crew.restarted(name)
        node.start()
        node.wait_until_ready()
    return crew.judged()


@pytest.mark.parametrize("named", [b"", frames.naming(b"one life")])
@pytest.mark.parametrize("transaction", [b"", b"some transaction"])
def test_a_frame_with_another_number_is_as_if_it_had_been_sent_so(
    transaction: bytes, named: bytes
) -> None:
    sent, expected = (
        frames.encode(frames.INVOKE, seq, bytes(range(16)), b"a body", transaction, named=named)
        for seq in (7, 1)
    )
    assert renumbered(sent, 1) == expected
