"""Everything is killed at random, under load: every message is exactly once where it must be.

Producers, movers and consumers work at full speed over two nodes, while nodes, coordinator and
clients are killed with SIGKILL and started again on the same ports and directories. Then all is
healed, and the histories of all clients are judged, together with what is left in the queues.

    pytest tests/integration/test_kill_everything.py --kill-seconds 120 --kill-seed 7

The seed says who is killed and when, and what clients do; how the processes interleave it cannot
say.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.cluster import Cluster, Server, ended, stop_all
from tests.integration.conftest import KillOptions
from tests.integration.crew import Crew, Report, Worker
from tests.integration.fault_proxy import proxies_before

SECONDS = 30.0
# So much longer it goes on where the machine is slow and not enough has happened.
SECONDS_MORE = 60.0
PAUSE_S = (0.1, 1.0)
# So often the next is killed before the last one is back.
HASTE = 0.3
# So often two are killed at once, and so often a node is frozen first.
DOUBLE_SHARE = 0.2
FREEZE_SHARE = 0.2
FROZEN_S = (0.02, 0.3)
DOWN_S = (0.0, 0.3)
KINDS = ("n1", "n2", "coordinator", "client")
KILLS_MIN = 5


class Killer:
    """Kills one after the other, and starts it again; now and then two, or one that is frozen."""

    def __init__(self, crew: Crew, chance: random.Random) -> None:
        self._crew = crew
        self._chance = chance
        self._bag: list[str] = []
        self.kills: Counter[str] = Counter()

    def strike(self) -> None:
        """Somebody is killed and comes back; it may still be starting when the next is killed."""
        time.sleep(self._chance.uniform(*PAUSE_S))
        if self._chance.random() < FREEZE_SHARE:
            self._freeze()
            return
        count = 2 if self._chance.random() < DOUBLE_SHARE else 1
        kinds = list(dict.fromkeys(self._next() for _ in range(count)))
        back = [self._kill(kind) for kind in kinds]
        for come_back in self._chance.sample(back, len(back)):
            come_back()

    def _freeze(self) -> None:
        """A node stands still while others vote and decide; then the coordinator is killed."""
        name = self._chance.choice(list(self._crew.cluster.nodes))
        node = self._crew.cluster.nodes[name]
        node.freeze()
        time.sleep(self._chance.uniform(*FROZEN_S))
        back = [self._kill("coordinator")]
        if self._chance.random() < 0.5:
            back.append(self._kill(name))
        else:
            node.wake()
        for come_back in back:
            come_back()

    def _next(self) -> str:
        if not self._bag:
            self._bag = self._chance.sample(KINDS, len(KINDS))
        return self._bag.pop()

    def _kill(self, kind: str) -> Callable[[], None]:
        """Somebody of this kind is gone; the function brings it back."""
        self.kills[kind] += 1
        crew, cluster = self._crew, self._crew.cluster
        if kind == "client":
            workers = self._chance.sample(crew.workers, self._chance.randint(1, 3))
            for worker in workers:
                crew.kill(worker)
            return lambda: _start(workers)
        server = cluster.coordinator if kind == "coordinator" else cluster.nodes[kind]
        server.strike()
        if kind in cluster.nodes:
            crew.restarted(kind)
        return lambda: self._restart(server)

    def _restart(self, server: Server) -> None:
        time.sleep(self._chance.uniform(*DOWN_S))
        server.start()
        if self._chance.random() > HASTE:
            server.wait_until_ready()


def _start(workers: list[Worker]) -> None:
    for worker in workers:
        worker.start()


def _has_enough(killer: Killer) -> bool:
    return min(killer.kills[kind] for kind in KINDS) >= KILLS_MIN


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_every_message_is_once_where_it_must_be_whoever_is_killed(
    tmp_path: Path, kill_options: KillOptions
) -> None:
    seconds, seed = kill_options.seconds or SECONDS, kill_options.seed
    chance = random.Random(seed)
    cluster = Cluster(tmp_path, chance, kill_options.bug)
    proxies = proxies_before(cluster, chance, seed) if kill_options.has_faults else []
    cluster.start()
    crew = Crew(cluster, seed)
    killer = Killer(crew, chance)
    with ended(*cluster.servers, *crew.workers):
        crew.start()
        begun = time.monotonic()
        for proxy in proxies:
            proxy.is_faulty = True
        while time.monotonic() < begun + seconds or (
            time.monotonic() < begun + seconds + SECONDS_MORE and not _has_enough(killer)
        ):
            killer.strike()
        for proxy in proxies:
            proxy.heal()
        report = _heal_and_judge(crew)
        cluster.stop()
    for proxy in proxies:
        proxy.close()
    kills = ", ".join(f"{killer.kills[kind]} of {kind}" for kind in KINDS)
    text = f"{seconds:g} s; kills: {kills}; {report.text()}"
    kill_options.count("killed", text)
    if kill_options.bug is not None:
        assert report.complaints, f"{kill_options.bug} was not found: {text}"
        return
    report.check(kill_options.replay(seconds), tmp_path)
    assert _has_enough(killer), f"too little was killed: {text}"
    assert report.over_two_nodes >= 100, f"too little has happened: {text}"


def _heal_and_judge(crew: Crew) -> Report:
    """Everybody is back, the clients stop, and everything comes to rest."""
    cluster = crew.cluster
    for life in (*cluster.servers, *crew.workers):
        life.wait_until_ready()
    time.sleep(1.0)
    stop_all(crew.workers)
    # Clients that were killed have left locks, which only a restart gives back at once.
    for name, node in cluster.nodes.items():
        node.strike()
        crew.restarted(name)
        node.start()
        node.wait_until_ready()
    return crew.judged()
