"""A row and a message are one act, whoever is killed: client's database, queue, server's database.

Producers insert numbered rows into one database and put the messages; consumers get them and insert
rows into another; each time both are one transaction. Meanwhile applications, node, coordinator and
PostgreSQL itself are killed and started again. Then all is healed, and both tables hold the same
numbers, each once. The same with MariaDB, and with SQLite files, which have no two-phase commit.

    pytest tests/integration/test_row_and_message.py --kill-seconds 120 --kill-seed 7
    pytest tests/integration/test_row_and_message.py --kill-messages 10000
    pytest tests/integration/test_row_and_message.py --kill-planted apart

With the planted bug row and message are two acts, and that is found. The seed says who is killed,
and when; how the processes interleave it cannot say.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

import oncemq
from tests import mariadb, postgres
from tests.integration.cluster import Cluster, Life, Server, ended, stop_all
from tests.integration.conftest import KillOptions
from tests.integration.row_sides import (
    APPLICATION,
    DATABASE,
    NODE,
    MariadbSides,
    PostgresSides,
    Sides,
    SqliteSides,
)
from tests.integration.row_workers import CLIENT, QUEUE, SERVER

# So much longer it goes on where the machine is slow and not enough has happened.
SECONDS_MORE = 60.0
PAUSE_S = (0.05, 0.6)
# Where so many messages are wanted, there must be time for them.
PAUSE_LONG_S = (0.1, 1.0)
DOWN_S = (0.0, 0.2)
# So often two are killed at once, and so often the next is killed before the last one is back.
DOUBLE_SHARE = 0.25
HASTE = 0.3
PRODUCERS, CONSUMERS = 2, 2
DRAIN_S = 120.0


# --- The processes -------------------------------------------------------------------------------


class OneNode(Cluster):
    """A coordinator and one node."""

    def start(self) -> None:
        ports = self._ports
        command = ["coordinator", "--session-timeout", "3"]
        self.coordinator = Server("coordinator", ports["coordinator"], command, self.folder)
        command = ["mqserver", "--name", "n1", "--coordinator", str(self.coordinator.address)]
        self.nodes = {"n1": Server("n1", ports["n1"], command, self.folder)}
        for server in self.servers:
            server.start()
        try:
            for server in self.servers:
                server.wait_until_ready()
        except BaseException:
            self.kill()
            raise

    @property
    def node(self) -> Server:
        return self.nodes["n1"]


class Worker(Life):
    """One application; each life has a name and a journal of its own."""

    def __init__(
        self, kind: str, number: int, cluster: OneNode, dsn: str, options: KillOptions
    ) -> None:
        super().__init__(f"{kind}-{number}", [], cluster.folder)
        self.kind = kind
        self._cluster = cluster
        self._rest = [dsn, str(number + 1), str(PRODUCERS), str(options.messages)]
        self._rest += [options.bug] if options.bug else []

    def command(self) -> Sequence[str]:
        """See `Life.command`."""
        life = f"{self.name}.{self.lives}"
        journal = str(self.folder / f"{life}.journal")
        where = [self.kind, life, journal, str(self._cluster.node.address)]
        return ["tests.integration.row_workers", *where, *self._rest]


class World:
    """Everything that works, and that can be killed."""

    def __init__(
        self, folder: Path, chance: random.Random, sides: Sides, options: KillOptions
    ) -> None:
        self.sides = sides
        self.cluster = OneNode(folder, chance)
        self.cluster.start()
        dsns = sides.dsns
        self.producers = [
            Worker("produce", n, self.cluster, dsns[CLIENT], options) for n in range(PRODUCERS)
        ]
        self.consumers = [
            Worker("consume", n, self.cluster, dsns[SERVER], options) for n in range(CONSUMERS)
        ]

    @property
    def workers(self) -> list[Worker]:
        return [*self.producers, *self.consumers]

    def connect(self) -> oncemq.Connection:
        return oncemq.connect(f"mq://{self.cluster.node.address}", timeout=30.0)

    def start(self) -> None:
        """All are at work."""
        with self.connect() as mq:
            self.sides.register(mq)
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            worker.wait_until_ready()

    def count(self, side: str, table: str) -> int:
        [(count,)] = self.sides.ask(side, f"SELECT count(*) FROM {table}")
        return int(count)


class Killer:
    """Kills one after the other, and starts it again; now and then two."""

    def __init__(self, world: World, chance: random.Random, pause_s: tuple[float, float]) -> None:
        self._world = world
        self._chance = chance
        self._pause_s = pause_s
        self._bag: list[str] = []
        self.kills: Counter[str] = Counter()

    def strike(self) -> None:
        """Somebody is killed and comes back; it may still be starting when the next is killed."""
        time.sleep(self._chance.uniform(*self._pause_s))
        count = 2 if self._chance.random() < DOUBLE_SHARE else 1
        kinds = list(dict.fromkeys(self._next() for _ in range(count)))
        back = [self._kill(kind) for kind in kinds]
        for come_back in self._chance.sample(back, len(back)):
            come_back()

    @property
    def has_enough(self) -> bool:
        """Whether everybody was killed so often that it means something."""
        sides = self._world.sides
        return min(self.kills[kind] for kind in sides.kinds) >= sides.kills_min

    def text(self) -> str:
        """How often who was killed."""
        return ", ".join(f"{self.kills[kind]} of {kind}" for kind in self._world.sides.kinds)

    def _next(self) -> str:
        if not self._bag:
            kinds = self._world.sides.kinds
            self._bag = self._chance.sample(kinds, len(kinds))
        return self._bag.pop()

    def _kill(self, kind: str) -> Callable[[], None]:
        """Somebody of this kind is gone; the function brings it back."""
        self.kills[kind] += 1
        world = self._world
        if kind == DATABASE:
            world.sides.kill(self._chance)
            return world.sides.come_back
        if kind == APPLICATION:
            workers = self._chance.sample(world.workers, self._chance.randint(1, 2))
            for worker in workers:
                worker.strike(may_be_done=True)
            return lambda: _start(workers)
        server = world.cluster.node if kind == NODE else world.cluster.coordinator
        server.strike()
        return lambda: self._restart(server)

    def _restart(self, server: Server) -> None:
        time.sleep(self._chance.uniform(*DOWN_S))
        server.start()
        if self._chance.random() > HASTE:
            server.wait_until_ready()


def _start(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.start()


# --- What is found in the end --------------------------------------------------------------------


class Found:
    """Both tables and what the applications were told, once everything has come to rest."""

    def __init__(self, world: World, last: int) -> None:
        self.sent = world.sides.ask(CLIENT, "SELECT number, attempt FROM sent")
        self.received = world.sides.ask(SERVER, "SELECT number, attempt, taken FROM received")
        self.told: dict[str, str] = {}
        for path in world.cluster.folder.glob("*.journal"):
            lines = path.read_text().splitlines()
            self.told |= dict(line.split("=") for line in lines if "=" in line)
        self._last = last

    def complaints(self) -> list[str]:
        """All that is wrong."""
        sent = Counter(self.sent)
        received = Counter((number, attempt) for number, attempt, _ in self.received)
        happened = {attempt for _, attempt in self.sent} | {taken for *_, taken in self.received}
        told = self.told.items()
        wrong: dict[str, list[Any]] = {
            "lost": sorted((sent - received).elements()),
            "twice, or from nowhere": sorted((received - sent).elements()),
            "told committed, and is not": [
                a for a, t in told if t == "committed" and a not in happened
            ],
            "told rolled back, and is not": [
                a for a, t in told if t == "rolled back" and a in happened
            ],
        }
        if self._last:
            numbers = [number for number, _ in self.sent]
            wrong["never sent"] = sorted(set(range(1, self._last + 1)) - set(numbers))
        return [f"{what}: {len(which)}, {which[:10]}" for what, which in wrong.items() if which]

    def text(self) -> str:
        """How much has happened."""
        ends = Counter(self.told.values())
        told = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
        return f"{len(self.sent)} sent, {len(self.received)} received; told: {told}"


def experiment(sides: Sides, folder: Path, options: KillOptions) -> None:
    """Everything works and is killed, then healed; nothing is lost, twice or in doubt."""
    seconds, last = options.seconds or sides.seconds, options.messages
    chance = random.Random(options.seed)
    world = World(folder, chance, sides, options)
    killer = Killer(world, chance, PAUSE_LONG_S if last else PAUSE_S)
    with ended(*world.cluster.servers, *world.workers):
        world.start()
        begun = time.monotonic()
        while _goes_on(world, killer, time.monotonic() - begun, seconds, last):
            killer.strike()
        took = time.monotonic() - begun
        left = _heal(world)
        healed = time.monotonic() - begun - took
        found = Found(world, last)
        world.cluster.stop()
    text = f"{took:.0f} s; kills: {killer.text()}; {found.text()}; healed in {healed:.0f} s"
    options.count("row and message", text)
    complaints = found.complaints() + left
    if options.bug is not None:
        assert complaints, f"{options.bug} was not found: {text}"
        return
    assert not complaints, f"{complaints}\n{text}\n{folder}\n{options.replay(seconds)}"
    assert killer.has_enough, f"too little was killed: {text}"
    assert len(found.received) >= sides.messages_min, f"too little has happened: {text}"


def _goes_on(world: World, killer: Killer, passed: float, seconds: float, last: int) -> bool:
    if last:
        return world.count(CLIENT, "sent") < last
    return passed < seconds or (passed < seconds + SECONDS_MORE and not killer.has_enough)


def _heal(world: World) -> list[str]:
    """Everybody is back, the queue is worked off, and everything comes to rest; what does not."""
    cluster = world.cluster
    for life in (*cluster.servers, *world.workers):
        life.wait_until_ready()
    time.sleep(0.5)
    stop_all(world.producers)
    # Applications that were killed have left locks, which only a restart gives back at once.
    cluster.node.kill()
    cluster.node.start()
    cluster.node.wait_until_ready()
    deadline = time.monotonic() + DRAIN_S
    while any(unsettled := _unsettled(world)) and time.monotonic() < deadline:
        time.sleep(0.2)
    stop_all(world.consumers)
    undecided, branches, locked = cluster.settle()
    left: dict[str, Sequence[Any]] = {
        "not worked off": unsettled,
        "undecided at the coordinator": undecided,
        "branches at the node": branches,
        "locked": [queue for queue, count in locked.items() if count],
        "prepared in the database": world.sides.prepared(),
        "carried by the database": world.sides.carried(),
    }
    return [f"{what}: {which}" for what, which in left.items() if any(which)]


def _unsettled(world: World) -> list[int]:
    """How many messages can be got, and how many branches are in doubt, at node and databases."""
    with world.connect() as mq:
        queued = sum(1 for _ in mq.queue(QUEUE).browse())
    _, branches, locked = world.cluster.unsettled()
    # Consumers go on asking for more, so there are always some at work.
    in_doubt = [branch for branch in branches if branch.endswith(" PREPARED")]
    sides = len(world.sides.prepared()), len(world.sides.carried())
    return [queued, *sides, len(in_doubt), sum(locked.values())]


# --- The experiments -----------------------------------------------------------------------------


@pytest.fixture
def server(missing: Callable[[str], NoReturn]) -> postgres.Cluster:
    try:
        return postgres.cluster()
    except postgres.NoPostgres as absent:
        missing(str(absent))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_row_and_message_are_there_once_and_together_whoever_is_killed(
    server: postgres.Cluster, tmp_path: Path, kill_options: KillOptions
) -> None:
    experiment(PostgresSides(server, tmp_path), tmp_path, kill_options)


@pytest.fixture
def maria(missing: Callable[[str], NoReturn]) -> mariadb.Server:
    try:
        return mariadb.server()
    except mariadb.NoMariadb as absent:
        missing(str(absent))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(0)
def test_row_and_message_are_one_act_in_mariadb_too(
    maria: mariadb.Server, tmp_path: Path, kill_options: KillOptions
) -> None:
    experiment(MariadbSides(maria, tmp_path), tmp_path, kill_options)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_row_and_message_are_one_act_also_without_two_phase_commit(
    tmp_path: Path, kill_options: KillOptions
) -> None:
    experiment(SqliteSides(tmp_path), tmp_path, kill_options)
