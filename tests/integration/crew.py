"""The clients of a cluster, all their histories, and the judgement over them in the end.

Workers are killed and replaced; each life is a writer of its own, with a history of its own. What
the histories and the queues say together is judged by `tests/history.py` and
`tests/history_order.py`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import oncemq
from tests.history import Complaint, Left, judge
from tests.history_events import COMMITTED, ROLLED_BACK, UNKNOWN, Transaction, read
from tests.history_order import Times, judge_order
from tests.integration.cluster import Cluster, Life
from tests.integration.kill_workers import OUTCOMES, QUEUES, seen_of

# Who works, and how many of each.
CREW = {"producer": 1, "mover": 3, "local-mover": 1, "consumer": 2}
# Nodes give up a branch of which nothing was heard for so long, and a get that waits ends before.
RELEASE_S = 320.0
COMPLAINTS_SHOWN = 20
# Of so many that had ended the nodes are asked once more how.
ASKED_AGAIN = 1000


class Worker(Life):
    """One client; each life has a name and a history of its own."""

    def __init__(self, kind: str, number: int, cluster: Cluster, seed: int) -> None:
        super().__init__(f"{kind}-{number}", [], cluster.folder)
        self._kind = kind
        self._seed = seed
        self._nodes = [str(cluster.paths[node]) for node in cluster.nodes]

    @property
    def life(self) -> str:
        """The name of this life."""
        return f"{self.name}.{self.lives}"

    def command(self) -> Sequence[str]:
        """See `Life.command`."""
        history = self.folder / f"{self.life}.jsonl"
        who = [self._kind, self.life, str(history), str(self._seed)]
        return ["tests.integration.kill_workers", *who, *self._nodes]


class Crew:
    """All clients, and what is known about when who was killed."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.workers = [
            Worker(kind, number, cluster, seed)
            for kind, count in CREW.items()
            for number in range(count)
        ]
        self.times = Times(
            {node: [] for node in cluster.nodes}, {}, release_ns=int(RELEASE_S * 1e9)
        )

    def start(self) -> None:
        """All are at work."""
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            worker.wait_until_ready()

    def kill(self, worker: Worker) -> None:
        """The client is gone, and that is known."""
        worker.strike()
        self.times.deaths[worker.life] = time.monotonic_ns()

    def restarted(self, node: str) -> None:
        """The node is down: what was not prepared there is gone."""
        self.times.restarts[node].append(time.monotonic_ns())

    # --- What came of it

    def transactions(self) -> list[Transaction]:
        """All that was ever begun."""
        found: list[Transaction] = []
        for path in sorted(self.cluster.folder.glob("*.jsonl")):
            with path.open(newline="") as lines:
                found += read(path.stem, lines)
        return found

    def left(self) -> Left:
        """What is there, once everything has come to rest."""
        undecided, branches, locked = self.cluster.settle()
        queues = {}
        for queue, node in QUEUES.items():
            where = f"mq://{self.cluster.nodes[node].address}"
            with oncemq.connect(where, timeout=30.0) as connection:
                queues[queue] = [seen_of(m) for m in connection.queue(queue).browse()]
        return Left(queues, locked, branches, undecided)

    def ask(self, transactions: Sequence[Transaction]) -> int:
        """Those that are unknown are what their nodes say, asked now; how many were answered."""
        unknown = [each for each in transactions if each.outcome == UNKNOWN and each.otid]
        for node, server in self.cluster.nodes.items():
            with oncemq.connect(f"mq://{server.address}", timeout=30.0) as connection:
                for each in unknown:
                    if node in each.nodes and each.told == UNKNOWN:
                        outcome = connection.outcome(each.otid)
                        each.told = OUTCOMES.get(outcome, UNKNOWN)
        return sum(each.told != UNKNOWN for each in unknown)

    def contradicted(self, transactions: Sequence[Transaction]) -> list[Complaint]:
        """Where a node, asked now, says something else than the client was told at the end."""
        known = [each for each in transactions if each.otid and each.outcome in OUTCOMES.values()]
        some = known[:: max(len(known) // ASKED_AGAIN, 1)]
        found: list[Complaint] = []
        for node, server in self.cluster.nodes.items():
            with oncemq.connect(f"mq://{server.address}", timeout=30.0) as connection:
                for each in some:
                    said = OUTCOMES.get(connection.outcome(each.otid), UNKNOWN)
                    if said not in (UNKNOWN, each.outcome):
                        text = f"told to be {each.outcome}, and {node} says {said}"
                        found.append(Complaint("contradicted", each.name, "", text))
        return found

    def judged(self) -> Report:
        """All that can be said, once nobody is at work any more."""
        transactions, left = self.transactions(), self.left()
        report = Report(transactions, left, self.times)
        # What is said about those that were unknown must be the truth, too.
        report.asked = self.ask(transactions)
        report.complaints += judge(transactions, left)
        report.complaints += self.contradicted(transactions)
        return report


class Report:
    """What happened, counted, and all that is wrong with it."""

    def __init__(self, transactions: Sequence[Transaction], left: Left, times: Times) -> None:
        order = judge_order(transactions, left, times)
        self.complaints: list[Complaint] = judge(transactions, left) + order.complaints
        self.asked = 0
        self.outcomes = Counter(each.outcome for each in transactions)
        self.over_two_nodes = sum(
            each.outcome == COMMITTED and len(each.nodes) > 1 for each in transactions if each.puts
        )
        self.put = sum(len(each.puts) for each in transactions if each.outcome == COMMITTED)
        self.got = sum(
            len(get.messages)
            for each in transactions
            if each.outcome == COMMITTED
            for get in each.gets
        )
        self.left = sum(len(content) for content in left.queues.values())
        self.order_judged = order.gets

    def text(self) -> str:
        """One line."""
        told = ", ".join(f"{self.outcomes[o]} {o}" for o in (COMMITTED, ROLLED_BACK, UNKNOWN))
        return (
            f"transactions: {told} ({self.asked} told when asked later); "
            f"{self.over_two_nodes} committed over two nodes; "
            f"messages: {self.put} put, {self.got} got, {self.left} left; "
            f"order of {self.order_judged} gets"
        )

    def check(self, repeat: str, folder: Path) -> None:
        """Fails with the complaints, and says how to repeat it."""
        shown = "\n".join(str(each) for each in self.complaints[:COMPLAINTS_SHOWN])
        assert not self.complaints, (
            f"{len(self.complaints)} complaints:\n{shown}\n{self.text()}\n"
            f"histories: {folder}\nrepeat it with {repeat}"
        )
