"""Clients at full speed that write down what they do: producers, movers, consumers.

    python -m tests.integration.kill_workers KIND NAME HISTORY SEED N1 N2

N1 and N2 are where the two nodes are reached. A worker works until SIGTERM, then ends what it is
at, and leaves with 0. Whatever it does is in its history before it is done: see
`tests/history_events.py`.

    producer       puts 1 to 5 messages into a on n1: in a transaction, or at once
    mover          gets from a on n1 and puts to b on n2, in one transaction over both
    local mover    gets from a on n1 and puts to c on n1, in one phase
    consumer       gets from b on n2, now and then also from c on n1, in one transaction
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence

import oncemq
from tests.history_events import COMMITTED, ROLLED_BACK, UNKNOWN, Scribe, Seen

QUEUES = {"a": "n1", "b": "n2", "c": "n1"}
TIMEOUT_S = 4.0
TRANSACTION_S = 8.0
WAIT_S = 0.3
PAUSE_S = 0.05
BATCH = 5
LARGE = 60_000
LARGE_SHARE = 0.02
UNDONE_SHARE = 0.05
AT_ONCE_SHARE = 0.3
BOTH_SHARE = 0.3

OUTCOMES = {oncemq.Outcome.COMMITTED: COMMITTED, oncemq.Outcome.ROLLED_BACK: ROLLED_BACK}


def payload_of(message: str, size: int) -> bytes:
    """The payload of a message: its id, and bytes that follow from it."""
    return message.encode() + b" " + random.Random(message).randbytes(size)


def seen_of(message: oncemq.Message) -> Seen:
    """What a message is, judged by its content alone."""
    name = message.payload.partition(b" ")[0].decode("ascii", "replace")
    return Seen(name, digest_of(message.payload, message.group, message.attributes))


def digest_of(payload: bytes, group: int, attributes: Sequence[tuple[str, str]]) -> int:
    """Of all that was put."""
    return zlib.crc32(repr((group, tuple(attributes))).encode(), zlib.crc32(payload))


class Worker:
    """One client."""

    def __init__(self, name: str, seed: int, scribe: Scribe, nodes: dict[str, str]) -> None:
        self._name = name
        self._chance = random.Random(f"{name} {seed}")
        self._scribe = scribe
        self._connections = {
            node: oncemq.connect(f"mq://{where}", timeout=TIMEOUT_S, name=name)
            for node, where in nodes.items()
        }
        self._numbers = 0
        self._puts = 0
        self.is_stopping = False

    def work(self, turn: Callable[[Worker], None]) -> None:
        """Turn after turn, until it is time to stop."""
        while not self.is_stopping:
            turn(self)
        for connection in self._connections.values():
            connection.close()

    # --- What they do in one turn

    def produce(self) -> None:
        if self._chance.random() < AT_ONCE_SHARE:
            self._put_at_once()
            return
        with self._transaction() as (name, tx):
            for _ in range(self._chance.randint(1, BATCH)):
                self._put(name, tx, "a")

    def move(self) -> None:
        self._move_to("b")

    def move_locally(self) -> None:
        self._move_to("c")

    def consume(self) -> None:
        with self._transaction() as (name, tx):
            self._get(name, tx, "b", self._chance.randint(1, BATCH))
            if self._chance.random() < BOTH_SHARE:
                self._get(name, tx, "c", self._chance.randint(1, BATCH))

    def _move_to(self, queue: str) -> None:
        with self._transaction() as (name, tx):
            for _ in range(self._get(name, tx, "a", self._chance.randint(1, 3))):
                self._put(name, tx, queue)

    # --- How

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[tuple[str, oncemq.Transaction]]:
        """A transaction that is ended, and whose end is written down, whatever it is."""
        name = self._begin()
        tx = self._connections["n1"].begin(timeout=TRANSACTION_S)
        try:
            yield name, tx
            if self._chance.random() < UNDONE_SHARE:
                tx.rollback()
            else:
                self._scribe.ending(name, tx.otid)
                tx.commit()
        except oncemq.OnceMQError as failed:
            if tx.status not in OUTCOMES and not isinstance(failed, oncemq.OutcomeUnknown):
                with contextlib.suppress(oncemq.OnceMQError):
                    tx.rollback()
            _regret(name, failed)
        self._scribe.end(name, OUTCOMES.get(tx.status, UNKNOWN))

    def _put_at_once(self) -> None:
        name = self._begin()
        new, seen = self._new_message(name)
        self._scribe.put(name, "n1", "a", seen)
        self._scribe.ending(name)
        outcome = COMMITTED
        try:
            self._connections["n1"].queue("a").put(new)
        except oncemq.OnceMQError as failed:
            # Any other error says that nothing was done.
            is_unknown = isinstance(failed, oncemq.OutcomeUnknown)
            outcome = UNKNOWN if is_unknown else ROLLED_BACK
            _regret(name, failed)
        self._scribe.end(name, outcome)

    def _begin(self) -> str:
        self._numbers += 1
        name = f"{self._name}:{self._numbers}"
        self._scribe.begin(name)
        return name

    def _put(self, name: str, tx: oncemq.Transaction, queue: str) -> None:
        new, seen = self._new_message(name)
        self._scribe.put(name, QUEUES[queue], queue, seen)
        self._connections[QUEUES[queue]].queue(queue).put(new, tx=tx)

    def _get(self, name: str, tx: oncemq.Transaction, queue: str, count: int) -> int:
        node = QUEUES[queue]
        self._scribe.getting(name, node, queue, count)
        found = self._connections[node].queue(queue).get_many(count, WAIT_S, tx=tx)
        self._scribe.got(name, [seen_of(message) for message in found])
        return len(found)

    def _new_message(self, name: str) -> tuple[oncemq.Message, Seen]:
        self._puts += 1
        message = f"{name}/{self._puts}"
        size = LARGE if self._chance.random() < LARGE_SHARE else self._chance.randint(0, 200)
        payload = payload_of(message, size)
        group = self._chance.randint(0, 3)
        attributes = (("id", message),)
        new = oncemq.Message(payload, group=group, attributes=attributes)
        return new, Seen(message, digest_of(payload, group, attributes))


def _regret(name: str, failed: oncemq.OnceMQError) -> None:
    """What went wrong is kept for whoever wants to know why; then it goes on."""
    why = f" <- {failed.__cause__!r}" if failed.__cause__ else ""
    sys.stderr.write(f"{name}: {failed!r}{why}\n")
    time.sleep(PAUSE_S)


KINDS: dict[str, Callable[[Worker], None]] = {
    "producer": Worker.produce,
    "mover": Worker.move,
    "local-mover": Worker.move_locally,
    "consumer": Worker.consume,
}


def main(kind: str, name: str, history: str, seed: str, *nodes: str) -> None:
    """Works until SIGTERM."""
    descriptor = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL)
    scribe = Scribe(lambda line: os.write(descriptor, line.encode()), time.monotonic_ns)
    worker = Worker(name, int(seed), scribe, dict(zip(("n1", "n2"), nodes, strict=True)))

    def stop(number: int, frame: object) -> None:
        worker.is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    sys.stdout.write(f"{name} listens on nothing, and works\n")
    sys.stdout.flush()
    worker.work(KINDS[kind])


if __name__ == "__main__":
    main(*sys.argv[1:])
