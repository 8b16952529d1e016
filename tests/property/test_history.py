"""The judge of histories never complains about a sound one, and sees what is planted in it.

The sound ones come from a tiny model: queues with locks at two nodes, clients whose steps are
interleaved at random, gets without answers, kills, restarts, answers that are lost, and commits
that reach a node late. What a client writes is what one would see that works on the real thing.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.history import Left, judge
from tests.history_events import COMMITTED, ROLLED_BACK, UNKNOWN, Scribe, Seen, Transaction, read
from tests.history_order import Times, judge_order

QUEUES = {"a": "n1", "b": "n2", "c": "n1"}
CLIENTS = 4
STEPS = 250
Choose = random.Random


@dataclass(eq=False)
class Branch:
    """A transaction as the nodes know it."""

    puts: list[tuple[str, Seen]] = field(default_factory=list)
    held: list[tuple[str, Stored]] = field(default_factory=list)
    nodes: set[str] = field(default_factory=set)
    is_over: bool = False


@dataclass(eq=False)
class Stored:
    """A message in a queue; seen when it is committed and nobody holds it."""

    seen: Seen
    is_committed: bool
    holder: Branch | None = None


class World:
    """The queues, and what happens to them."""

    def __init__(self, chance: Choose) -> None:
        self.chance = chance
        self.clock = itertools.count(1)
        self.now = 0
        self.queues: dict[str, list[Stored]] = {name: [] for name in QUEUES}
        self.lines: dict[str, list[str]] = {}
        self.times = Times({node: [] for node in QUEUES.values()}, {}, 30)
        self.working: list[Branch] = []
        self.in_doubt: list[tuple[Branch, list[tuple[str, Stored]], bool]] = []
        self.names = itertools.count(1)
        # Branches by client, and those of clients that were killed, with the time of that.
        self.current: dict[str, Branch] = {}
        self.silent: list[tuple[int, Branch]] = []

    def tick(self) -> int:
        self.now = next(self.clock)
        return self.now

    def free(self, queue: str, count: int) -> list[Stored]:
        found = [m for m in self.queues[queue] if m.is_committed and m.holder is None]
        return found[:count]

    def commit(self, branch: Branch, is_late: bool) -> None:
        """All it put is stored now; it happens now or, where a node is not reached, later."""
        stored = [(queue, Stored(seen, False)) for queue, seen in branch.puts]
        for queue, message in stored:
            self.queues[queue].append(message)
        branch.is_over = True
        if is_late:
            self.in_doubt.append((branch, stored, True))
        else:
            self._happen(branch, stored)

    def prepare_in_vain(self, branch: Branch) -> None:
        """It is prepared, rolled back, and hears of it later."""
        branch.is_over = True
        self.in_doubt.append((branch, [], False))

    def roll_back(self, branch: Branch) -> None:
        branch.is_over = True
        for _, message in branch.held:
            if message.holder is branch:
                message.holder = None

    def settle(self, number: int) -> None:
        branch, stored, is_committed = self.in_doubt.pop(number)
        if is_committed:
            self._happen(branch, stored)
        else:
            self.roll_back(branch)

    def restart(self, node: str) -> None:
        self.times.restarts[node].append(self.tick())
        for branch in self.working:
            if node in branch.nodes and not branch.is_over:
                self.roll_back(branch)

    def give_up_silent(self) -> None:
        """Nothing was heard of these for so long that they are rolled back."""
        while self.silent and self.silent[0][0] + self.times.release_ns // 2 < self.now:
            branch = self.silent.pop(0)[1]
            if not branch.is_over:
                self.roll_back(branch)

    def _happen(self, branch: Branch, stored: list[tuple[str, Stored]]) -> None:
        for queue, message in branch.held:
            self.queues[queue].remove(message)
        for _, message in stored:
            message.is_committed = True

    def run(self) -> None:
        clients = {f"c{n}": self.client(f"c{n}") for n in range(CLIENTS)}
        for life in range(STEPS):
            if self.chance.random() < 0.03:
                self.restart(self.chance.choice(sorted(set(QUEUES.values()))))
            if self.in_doubt and self.chance.random() < 0.1:
                self.settle(self.chance.randrange(len(self.in_doubt)))
            self.give_up_silent()
            name = self.chance.choice(sorted(clients))
            if self.chance.random() < 0.02:
                del clients[name]
                self.times.deaths[name] = self.tick()
                if name in self.current:
                    self.silent.append((self.now, self.current[name]))
                clients[f"{name}.{life}"] = self.client(f"{name}.{life}")
            else:
                next(clients[name])
        while self.in_doubt:
            self.settle(0)
        for branch in self.working:
            if not branch.is_over:
                self.roll_back(branch)

    # --- One client

    def client(self, name: str) -> Iterator[None]:
        """Each step is one thing that others may come between."""
        scribe = Scribe(self.lines.setdefault(name, []).append, self.tick)
        while True:
            transaction, branch = f"{name}/{next(self.names)}", Branch()
            self.current[name] = branch
            self.working.append(branch)
            scribe.begin(transaction)
            yield from self.work(scribe, transaction, branch)

    def work(self, scribe: Scribe, transaction: str, branch: Branch) -> Iterator[None]:
        chance = self.chance
        for number in range(chance.randint(0, 2)):
            queue = chance.choice(sorted(QUEUES))
            count = chance.randint(1, 3)
            scribe.getting(transaction, QUEUES[queue], queue, count)
            branch.nodes.add(QUEUES[queue])
            yield
            if branch.is_over and number:
                # The node was restarted since, and refuses.
                scribe.end(transaction, ROLLED_BACK)
                return
            # The first call may come after the restart, and begins the branch there anew.
            branch.is_over = False
            messages = self.free(queue, count)
            for message in messages:
                message.holder = branch
            branch.held += [(queue, message) for message in messages]
            yield
            if chance.random() < 0.05:
                scribe.end(transaction, ROLLED_BACK)
                # The node hears nothing, and gives the branch up soon.
                self.roll_back(branch)
                return
            scribe.got(transaction, [message.seen for message in messages])
            yield
        for number in range(chance.randint(0, 2)):
            queue = chance.choice(sorted(QUEUES))
            branch.nodes.add(QUEUES[queue])
            branch.puts.append((queue, Seen(f"{transaction}/{number}", hash(transaction) & 0xFF)))
            scribe.put(transaction, QUEUES[queue], *branch.puts[-1])
            yield
        yield from self.end(scribe, transaction, branch)

    def end(self, scribe: Scribe, transaction: str, branch: Branch) -> Iterator[None]:
        chance = self.chance
        if chance.random() < 0.2:
            self.roll_back(branch)
            scribe.end(transaction, ROLLED_BACK)
            return
        scribe.ending(transaction)
        yield
        is_two_phase = len(branch.nodes) > 1
        outcome = COMMITTED
        if branch.is_over or chance.random() < 0.2:
            outcome = ROLLED_BACK
        if outcome == COMMITTED:
            self.commit(branch, is_late=is_two_phase and chance.random() < 0.3)
        elif not branch.is_over and is_two_phase and chance.random() < 0.3:
            self.prepare_in_vain(branch)
        else:
            self.roll_back(branch)
        yield
        scribe.end(transaction, UNKNOWN if chance.random() < 0.2 else outcome)

    # --- What is judged

    def transactions(self) -> list[Transaction]:
        return [each for name, lines in self.lines.items() for each in read(name, lines)]

    def left(self) -> Left:
        return Left({name: [m.seen for m in queue] for name, queue in self.queues.items()})


@st.composite
def worlds(draw: Callable[[st.SearchStrategy[int]], int]) -> World:
    """A model that has run."""
    world = World(random.Random(draw(st.integers(0, 1 << 32))))
    world.run()
    return world


@settings(max_examples=150)
@given(worlds())
def test_a_sound_history_gives_no_complaint(world: World) -> None:
    transactions, left = world.transactions(), world.left()
    assert judge(transactions, left) == []
    assert judge_order(transactions, left, world.times).complaints == []


def test_sound_histories_have_everything_in_them() -> None:
    seen = dict.fromkeys(("committed", "rolled back", "unknown", "unanswered", "judged"), 0)
    for seed in range(20):
        world = World(random.Random(seed))
        world.run()
        transactions = world.transactions()
        for each in transactions:
            seen[each.outcome] += 1
            seen["unanswered"] += sum(get.answered_at is None for get in each.gets)
        seen["judged"] += judge_order(transactions, world.left(), world.times).gets
    assert min(seen.values()) >= 20, seen


def planted(world: World, kind: str) -> tuple[Left, str] | None:
    """The same end with one fault, and the message that it is about; None where none fits."""
    transactions, queues = world.transactions(), world.left().queues
    told = {p.message: p.transaction for t in transactions for p in t.puts}
    places = [
        (queue, n)
        for queue, content in queues.items()
        for n, seen in enumerate(content)
        if told[seen.message].outcome == COMMITTED
    ]
    taken = [
        (get.queue, seen)
        for each in transactions
        if each.outcome == COMMITTED
        for get in each.gets
        for seen in get.messages
    ]
    changed = {name: list(content) for name, content in queues.items()}
    if kind == "resurrected":
        if not taken:
            return None
        queue, seen = world.chance.choice(taken)
        changed[queue].insert(0, seen)
        return Left(changed), seen.message
    if not places:
        return None
    queue, n = world.chance.choice(places)
    seen = changed[queue][n]
    if kind == "lost":
        if any(
            seen in get.messages and t.outcome == UNKNOWN for t in transactions for get in t.gets
        ):
            return None
        del changed[queue][n]
    elif kind == "duplicate":
        changed[queue].insert(n, seen)
    elif kind == "altered":
        changed[queue][n] = Seen(seen.message, seen.digest + 1)
    elif kind == "order":
        writer = told[seen.message].writer
        later = [(q, m) for q, m in places if q == queue and m > n]
        same = [m for q, m in later if told[changed[q][m].message].writer == writer]
        if not same:
            return None
        changed[queue].append(changed[queue].pop(n))
    return Left(changed), seen.message


@settings(max_examples=100, suppress_health_check=[HealthCheck.filter_too_much])
@given(worlds(), st.sampled_from(["lost", "duplicate", "resurrected", "altered", "order"]))
def test_a_fault_that_is_planted_is_seen(world: World, kind: str) -> None:
    plant = planted(world, kind)
    assume(plant is not None)
    assert plant is not None
    left, message = plant
    transactions = world.transactions()
    found = judge(transactions, left)
    found += judge_order(transactions, left, world.times).complaints
    assert (kind, message) in [(complaint.kind, complaint.message) for complaint in found]
