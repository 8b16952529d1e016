"""What a node measures: its queues, branches and messages, its disk, and who is connected.

It only reads, when somebody asks. A node with very many queues tells of the first of them by name,
so that an answer stays small, and of all of them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from idl.measures import (
    Durations,
    Kind,
    Measure,
    counter,
    counters,
    durations,
    gauge,
    gauges,
)
from mqserver.errors import StorageError
from mqserver.node import Node
from mqserver.storage.contract import BranchInfo, ConsumerInfo, Outcome, QueueInfo

QUEUES_TOLD_MAX = 1000
USEC_PER_SEC = 1_000_000
_ENDS = {
    Outcome.COMMITTED: "committed",
    Outcome.ROLLED_BACK: "rolled back",
    Outcome.HEURISTICALLY_COMMITTED: "committed by an operator",
    Outcome.HEURISTICALLY_ROLLED_BACK: "rolled back by an operator",
}
_STATES = {
    Outcome.ACTIVE: "active",
    Outcome.PREPARED: "in doubt",
    Outcome.HEURISTICALLY_COMMITTED: "heuristic",
    Outcome.HEURISTICALLY_ROLLED_BACK: "heuristic",
}


class NodeMeasures:
    """The measures of a node. `log_bytes` is for a storage that has a log of its own."""

    def __init__(
        self,
        node: Node,
        connections: Callable[[], tuple[int, int]],
        wall_clock: Callable[[], float],
        syncs: Durations,
        log_bytes: Callable[[], int] | None,
    ) -> None:
        self._node = node
        self._connections = connections
        self._wall_clock = wall_clock
        self._syncs = syncs
        self._log_bytes = log_bytes

    def __call__(self) -> Iterator[Measure]:
        """All of them, at this moment."""
        yield from self._happened()
        yield from self._reached()
        try:
            queues, branches = self._node.storage.queues(), self._node.storage.branches()
            consumers = self._node.storage.consumers()
        except StorageError:
            # What was counted is told all the same; callers are told why by their own calls.
            yield gauge("oncemq_storage_usable", "Whether the storage answers.", 0)
            return
        yield gauge("oncemq_storage_usable", "Whether the storage answers.", 1)
        yield from self._stored()
        yield from _of_queues(queues, self._wall_clock())
        yield from self._of_branches(branches)
        yield from _of_consumers(consumers)

    def _happened(self) -> Iterator[Measure]:
        counts = self._node.storage.counts()
        yield counter(
            "oncemq_messages_put_total", "Messages put by what was committed.", counts.put
        )
        yield counter(
            "oncemq_messages_got_total", "Messages got by what was committed.", counts.got
        )
        yield counters(
            "oncemq_branches_ended_total",
            "Branches that put or got anything, by how they ended.",
            "outcome",
            {text: counts.ends.get(how, 0) for how, text in _ENDS.items()},
        )
        yield counter(
            "oncemq_branches_prepared_total",
            "Branches that have voted for the commit.",
            counts.ends.get(Outcome.PREPARED, 0),
        )

    def _reached(self) -> Iterator[Measure]:
        inside, waiting = self._connections()
        yield gauges(
            "oncemq_connections",
            "Connections, by whether they have proven who they are.",
            "state",
            {"logged in": inside, "before login": waiting},
        )
        yield gauge(
            "oncemq_enabled",
            "Whether the node is switched on.",
            int(self._node.queues.is_enabled),
        )

    def _stored(self) -> Iterator[Measure]:
        if self._log_bytes is not None:
            yield gauge(
                "oncemq_log_bytes", "How much of the log a restart would read.", self._log_bytes()
            )
            yield durations(
                "oncemq_sync_seconds",
                "How long the disk takes to make safe what was written.",
                self._syncs.spread(),
            )

    def _of_branches(self, branches: list[BranchInfo]) -> Iterator[Measure]:
        found = Counter(_STATES[info.outcome] for info in branches)
        states = {state: float(found[state]) for state in dict.fromkeys(_STATES.values())}
        yield gauges("oncemq_branches", "Branches that are not over.", "state", states)
        in_doubt = [info.branch for info in branches if info.outcome is Outcome.PREPARED]
        oldest_s = max(map(self._node.work.age_of, in_doubt), default=0.0)
        yield gauge(
            "oncemq_in_doubt_oldest_seconds",
            "How long a branch has been in doubt, the longest; since the start at most.",
            oldest_s,
        )


def _of_queues(queues: list[QueueInfo], now: float) -> Iterator[Measure]:
    yield gauge("oncemq_queues", "Queues.", len(queues))
    told = queues[:QUEUES_TOLD_MAX]
    states = {"ready": sum(q.visible for q in queues), "held": sum(q.locked for q in queues)}
    yield gauges("oncemq_messages", "Messages of all queues.", "state", states)
    messages: dict[tuple[str, ...], float] = {}
    for info in told:
        messages[info.name, "ready"] = info.visible
        messages[info.name, "held"] = info.locked
    yield Measure(
        "oncemq_queue_messages",
        "Messages: to be had, or held by a branch or a consumer.",
        Kind.GAUGE,
        messages,
        ("queue", "state"),
    )
    sizes = {info.name: float(info.payload_bytes) for info in told}
    yield _by_queue("oncemq_queue_bytes", "Payloads of all messages.", sizes)
    ages = {q.name: _age_s(q, now) for q in told}
    yield _by_queue("oncemq_queue_oldest_seconds", "Age of the oldest to be had.", ages)


def _by_queue(name: str, help: str, values: Mapping[str, float]) -> Measure:
    return gauges(name, help, "queue", values)


def _age_s(info: QueueInfo, now: float) -> float:
    return max(0.0, now - info.oldest_us / USEC_PER_SEC) if info.oldest_us else 0.0


def _of_consumers(consumers: list[ConsumerInfo]) -> Iterator[Measure]:
    told = consumers[:QUEUES_TOLD_MAX]
    held = {info.consumer: float(info.messages) for info in told}
    yield gauges("oncemq_consumer_messages", "Messages reserved.", "consumer", held)
    yield counters(
        "oncemq_consumer_finished_total",
        "Reservations that were finished.",
        "consumer",
        {info.consumer: info.finished for info in told},
    )
