"""A queue as the source of a stream: batches are durable reservations under a consumer's name.

An offset names a reservation: a frozen list of messages that the node holds for this consumer, so
that a batch is the same however often it is read, after whatever restart. What holds:

1. Messages are reserved by no query that has not its own name, drawn at random, in its checkpoint.
   So a query that goes on from a checkpoint is told from another one with the same `consumer`, and
   the other one is refused by the node. The price is a first batch without rows.
2. `latestOffset(start)` says that everything up to `start` is processed: Spark asks for what
   follows only when the batch that ends there is committed. Then it is removed; `commit` and `stop`
   come late or never, and nothing depends on them.
3. Reservations end by that, or by an operator who drops the consumer; never by time.

Rows stand in a partition in the order of the queue, and partitions follow each other in it; with
one partition (`partitions` 1) a batch is in order as a whole, and so is what one query writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from clients.errors import RAISED, OnceMQError, translated
from clients.spark.errors import OptionError
from clients.spark.options import Options, Role, read_options
from clients.spark.rows import decoder_for
from clients.spark.slices import Span, divided, partitions_for
from clients.spark.source import answers_of_list, node_of, selection_of, settled
from idl import mq, system
from idl.proxies import new_request_id

# While there is nothing to do, Spark asks about 60 times a second: let the node wait instead.
WAIT_S = 0.5
# What one batch can hold, for a trigger that asks for everything.
MESSAGES_MAX = 1_000_000
NAME_LENGTH_MAX = 100
QUERY_DIGITS = 16

T = TypeVar("T")


class ConsumerError(OnceMQError):
    """A query cannot go on reading as this consumer."""


@dataclass(frozen=True)
class Offset:
    """Everything up to this reservation of the query; an empty query has not begun yet."""

    consumer: str
    query: str = ""
    reservation: int = 0

    @property
    def holder(self) -> str:
        """The consumer as the node knows it."""
        return f"{self.consumer}@{self.query}"


def offset_of(read: Mapping[str, Any], options: Options) -> Offset:
    """The offset from a checkpoint; raises `ConsumerError` for one that is not this query's."""
    try:
        found = Offset(str(read["consumer"]), str(read["query"]), int(read["reservation"]))
    except (KeyError, TypeError, ValueError):
        raise ConsumerError(
            f"the checkpoint holds the offset {read!r}, which is none of OnceMQ's: give this query "
            "a checkpointLocation of its own"
        ) from None
    if found.consumer != options.consumer:
        raise ConsumerError(
            f'the checkpoint is that of consumer "{found.consumer}", and this query reads as '
            f'"{options.consumer}": set the option back, or give it a checkpointLocation of its own'
        )
    return found


def stream_reader_for(given: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """What reads a stream for these options."""
    return ReservationReader(read_options(given, Role.STREAM_SOURCE), schema)


class Reserved(InputPartition):
    """Positions in reservations of one consumer."""

    def __init__(self, holder: str, spans: tuple[Span, ...]) -> None:
        super().__init__((holder, spans))


def new_query() -> str:
    """A name that no other query has."""
    return new_request_id().hex()[:QUERY_DIGITS]


class ReservationReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue for one query. It pickles; what it remembers lasts for one run of the query."""

    def __init__(
        self, options: Options, schema: StructType, new_query: Callable[[], str] = new_query
    ) -> None:
        if len(options.consumer) > NAME_LENGTH_MAX:
            raise OptionError(f'the option "consumer" has {NAME_LENGTH_MAX} characters at most')
        self._options = settled(options)
        self._decoder = decoder_for(schema, options)
        self._new_query = new_query
        self._query = ""
        self._finished = 0
        # How many messages are left of what was there at the start; None: there is no such end.
        self._left: int | None = None

    # --- Offsets

    def initialOffset(self) -> dict[str, Any]:
        """Nothing is read; the same whenever it is asked."""
        return asdict(Offset(self._options.consumer))

    def getDefaultReadLimit(self) -> ReadLimit:
        """As many messages in a batch as the option says."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends when it has read as many messages as are there now."""
        node = node_of(self._options)
        self._left = node.ask(node.calls.countMessages, self._options.queue)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; `start` where there is nothing to read."""
        begun = offset_of(start, self._options)
        if not begun.query:
            # It is in the checkpoint before anything is reserved under it.
            self._query = self._query or self._new_query()
            return asdict(Offset(begun.consumer, self._query))
        self._finish(begun)
        number = self._reserve(begun, _rows_of(limit))
        return asdict(Offset(begun.consumer, begun.query, number)) if number else start

    def _finish(self, done: Offset) -> None:
        if done.reservation <= self._finished:
            return
        node = node_of(self._options)
        self._ask(done, node.calls.finishReservations, done.holder, done.reservation)
        self._finished = done.reservation

    def _reserve(self, begun: Offset, most: int) -> int:
        if self._left is None:
            return self._ask_for(begun, most, WAIT_S)
        # One from before the start is taken up in any case; it was not counted as there.
        found = self._ask_for(begun, 0, 0)
        if not found and self._left > 0:
            found = self._ask_for(begun, min(most, self._left), 0)
            self._left -= self._size(begun, found) if found else self._left
        return found

    def _ask_for(self, begun: Offset, most: int, wait_s: float) -> int:
        options, reserve = self._options, node_of(self._options).calls.reserve
        wait_ms = int(1000 * wait_s)
        arguments = (options.queue, selection_of(options), begun.reservation, most, wait_ms)
        return self._ask(begun, reserve, begun.holder, *arguments, extra_s=wait_s)

    def _size(self, begun: Offset, number: int) -> int:
        node = node_of(self._options)
        return self._ask(begun, node.calls.getReservationSize, begun.holder, number)

    def _ask(
        self, at: Offset, method: Callable[..., T], *arguments: object, extra_s: float = 0.0
    ) -> T:
        """What the node answers; raises an `OnceMQError` with what to do about it."""
        node = node_of(self._options)
        try:
            return node.call(method, *arguments, extra_s=extra_s)
        except mq.ReservationOutdated as outdated:
            raise ConsumerError(_outdated(at, f"number {outdated.done}")) from outdated
        except mq.ReservationNotFound as lost:
            raise ConsumerError(_unknown(at)) from lost
        except system.BAD_PARAM as refused:
            raise ConsumerError(f"{node.where}: {refused.reason}") from refused
        except RAISED as failed:
            raise translated(failed, node.where) from failed

    # --- Rows

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What was reserved between the offsets, in equal pieces."""
        first, last = offset_of(start, self._options), offset_of(end, self._options)
        numbers = range(first.reservation + 1, last.reservation + 1)
        parts = [(str(number), self._size(last, number)) for number in numbers]
        wanted = self._options.partitions or partitions_for(sum(size for _, size in parts))
        return [Reserved(last.holder, spans) for spans in divided(parts, wanted)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a piece, in the order of the queue."""
        node = node_of(self._options)
        holder, spans = partition.value
        for span in spans:
            asked = (node.calls.fetchReserved, holder, int(span.name))
            for taken in answers_of_list(node, asked, span.start, span.stop):
                yield self._decoder.record_batch(taken)


def _rows_of(limit: ReadLimit) -> int:
    return limit.max_rows if isinstance(limit, ReadMaxRows) else MESSAGES_MAX


def _outdated(at: Offset, done: str) -> str:
    return (
        f'the checkpoint is old: it ends with number {at.reservation} of consumer "{at.consumer}", '
        f"and {done} is processed already. Use the newest checkpoint; going on from this one would "
        "leave a gap"
    )


def _unknown(at: Offset) -> str:
    return (
        f'the node has no reservation {at.reservation} of consumer "{at.consumer}" any more: '
        "either the checkpoint is an old one, or an operator has dropped the consumer, or the "
        "node is another. A query with a new checkpointLocation begins anew"
    )
