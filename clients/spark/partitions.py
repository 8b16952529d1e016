"""What tasks of a job do for its transaction, and how the job hears which of their work counts.

`mapInArrow` runs a function over every partition, and what it yields comes back from those attempts
alone that Spark has accepted: one row, the vote. An attempt whose vote does not come back has
worked for nothing, and is rolled back with everything else that nobody accepted. It holds for
Spark Connect as well, where the job's process and Spark's are on different machines.

Here is what runs in the tasks; what is done with the votes is the transaction's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from clients.errors import OnceMQError
from clients.messages import (
    Attributes,
    Item,
    Message,
    batch_of,
    checked_attributes,
    item_of,
    size_of,
)
from clients.spark.attempts import Attempt, Vote
from clients.spark.options import Options
from clients.spark.rows import Encoder
from clients.spark.sharing import PreparedBranch, connection_of
from clients.spark.sink import attempt_name
from idl.mq import check_queue_name

# So much a function's puts may take before they go to the node.
HELD_MESSAGES_MAX = 5000
HELD_BYTES_MAX = 4 * 1024 * 1024

Batches = Iterator[Any]
Work = Callable[[Batches], Vote]


@dataclass(frozen=True)
class Place:
    """Where tasks work: the node, the transaction, and whether they prepare what they have done."""

    options: Options
    gtrid: bytes
    is_prepared: bool = True

    def attempt(self) -> Attempt:
        """The work of the attempt that runs here."""
        connection = connection_of(self.options)
        return Attempt(connection, self.gtrid, attempt_name(), self.is_prepared)


def votes_of(frame: Any, work: Work) -> list[Vote]:
    """The work is done for every partition of the frame: the votes that Spark has accepted."""

    def task(batches: Batches) -> Batches:
        vote = work(batches)
        yield pa.RecordBatch.from_pydict({"vote": [_written(vote)]})

    try:
        voted = frame.mapInArrow(task, "vote string")
    except ImportError as missing:
        # Spark's own check of what it needs.
        raise OnceMQError(
            f"a transaction over a job needs pandas on driver and executors: {missing}"
        ) from missing
    return [_read(row["vote"]) for row in voted.collect()]


def _written(vote: Vote) -> str:
    return json.dumps([vote.gtrid.hex(), vote.rows, list(map(list, vote.branches))])


def _read(text: str) -> Vote:
    gtrid, rows, branches = json.loads(text)
    return Vote(bytes.fromhex(gtrid), tuple(PreparedBranch(*each) for each in branches), rows)


# --- Rows into a queue ---------------------------------------------------------------------------


@dataclass(frozen=True)
class PutRows:
    """Every row of a partition becomes a message in the queue."""

    place: Place
    queue: str
    encoder: Encoder

    def __call__(self, batches: Batches) -> Vote:
        attempt = self.place.attempt()
        try:
            for rows in batches:
                for batch in self.encoder.batches(rows):
                    attempt.put(self.queue, batch)
            return Vote(self.place.gtrid, attempt.finish(), attempt.rows)
        except BaseException:
            attempt.rollback()
            raise


# --- A function over partitions ------------------------------------------------------------------


class PartitionBranch:
    """What a function does for the transaction, in one attempt of one task: it puts messages."""

    def __init__(self, attempt: Attempt, sender: str = "") -> None:
        self._attempt = attempt
        self._sender = sender
        self._held: dict[str, list[Item]] = {}
        self._messages = 0
        self._bytes = 0

    def put(
        self,
        queue: str,
        payload: bytes | bytearray | memoryview | Message,
        *,
        priority: int = 0,
        group: int = 0,
        attributes: Mapping[str, str] | Attributes = (),
    ) -> None:
        """The message is in the queue when the transaction is committed with this attempt."""
        item = item_of(payload)
        if priority or group or attributes:
            if isinstance(item, Message):
                raise TypeError("a Message says its own priority, group and attributes")
            item = Message(
                item, priority=priority, group=group, attributes=checked_attributes(attributes)
            )
        self._hold(queue, item)

    def put_many(
        self, queue: str, messages: Iterable[bytes | bytearray | memoryview | Message]
    ) -> None:
        """The same for many, in this order."""
        for message in messages:
            self._hold(queue, item_of(message))

    def _hold(self, queue: str, item: Item) -> None:
        held = self._held.get(queue)
        if held is None:
            held = self._held[check_queue_name(queue)] = []
        held.append(item)
        self._messages += 1
        self._bytes += size_of(item)
        if self._messages >= HELD_MESSAGES_MAX or self._bytes >= HELD_BYTES_MAX:
            self.push()

    def push(self) -> None:
        """What was put is on its way to the node."""
        for queue, items in self._held.items():
            self._attempt.put(queue, batch_of(items, self._sender))
        self._held.clear()
        self._messages = self._bytes = 0


@dataclass(frozen=True)
class RunFunction:
    """A function of the user's is called with the rows of a partition and a branch to work in."""

    place: Place
    function: Callable[[Batches, PartitionBranch], object]

    def __call__(self, batches: Batches) -> Vote:
        attempt = self.place.attempt()
        branch = PartitionBranch(attempt, self.place.options.sender)
        try:
            self.function(batches, branch)
            branch.push()
            return Vote(self.place.gtrid, attempt.finish(), attempt.rows)
        except BaseException:
            attempt.rollback()
            raise
