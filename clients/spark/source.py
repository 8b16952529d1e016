"""Reading a queue in Spark: what can be had now, without taking it, or what a transaction took.

A plain read is a look: nothing is taken. What counts is what was there when Spark planned the read:
the keys from the first to the last one then. A message that somebody takes between planning and
reading is not there; one of these keys whose transaction commits in between is. Whoever needs more
certainty reads in a transaction: it locks a list of messages, which stays as it is for every
attempt of every task, and is removed by the commit. Nothing is removed by reading, ever.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
)
from pyspark.sql.types import StructType

from clients import structs
from clients.connection import Connection
from clients.errors import RAISED, ConnectionLost, OnceMQError, Timeout, translated
from clients.nodes import LOST, Node
from clients.spark.options import Options, Role, read_options
from clients.spark.rows import HEADERS, decoder_for
from clients.spark.sharing import connection_of
from clients.spark.slices import Span, divided, key_ranges, last_key, partitions_for
from idl.mq import mqAttribute, mqBatch, mqSelection, mqTaken
from idl.otids import parse_shown, show
from idl.proxies import started

# Messages in one call; an answer ends sooner where they are large. With more of them the node's
# collector of garbage comes by in the middle of each call, and looks at all that the node holds.
AT_ONCE = 5000
# A frozen list is kept by the node; what is longer is several of them, each in a branch of its own.
LIST_MESSAGES_MAX = 50_000
EVERYTHING = mqSelection(0, 0, ())
NUMBER_MAX = 2**16 - 1
PAUSE_S = 0.2

T = TypeVar("T")
# A method of a node and its arguments.
Request = tuple[Any, ...]


def selection_of(options: Options) -> mqSelection:
    """Which messages the options mean."""
    attributes = tuple([mqAttribute(name, value) for name, value in options.attributes])
    return mqSelection(options.group, options.priority_min, attributes)


# --- Frozen lists of a transaction ---------------------------------------------------------------


@dataclass(frozen=True)
class LockedList:
    """Messages of a queue that a transaction has locked, in the queue's order, as several lists.

    Each list has a branch of its own at the node (host:port), and both have the same name. What is
    locked is removed when all of these branches are prepared and the transaction commits.
    """

    gtrid: bytes
    node: str
    queue: str
    parts: tuple[tuple[str, int], ...]

    @property
    def branches(self) -> tuple[str, ...]:
        """The names of the branches that hold the messages."""
        return tuple(name for name, _ in self.parts)

    @property
    def messages(self) -> int:
        """How many messages there are."""
        return sum(size for _, size in self.parts)

    @property
    def otid(self) -> str:
        """For the option `transaction`."""
        return show(self.gtrid)

    @property
    def text(self) -> str:
        """For the option `listName`: the lists with their sizes."""
        return ",".join(f"{name}:{size}" for name, size in self.parts)


def parts_of(text: str) -> tuple[tuple[str, int], ...]:
    """The lists and their sizes; see `LockedList.text`."""
    pairs = [each.rpartition(":") for each in text.split(",") if each]
    return tuple((name, int(size)) for name, _, size in pairs)


def lock_list(
    connection: Connection, gtrid: bytes, name: str, queue: str, selection: mqSelection, most: int
) -> LockedList:
    """The transaction has locked what there is, in the queue's order, up to so many messages.

    To be called once for a name. Raises an `OnceMQError`.
    """
    node = connection.node()
    parts: list[tuple[str, int]] = []
    left = most
    while left > 0:
        part = f"{name}.{len(parts) + 1}"
        branch = structs.branch(gtrid, part, None)
        wanted = min(left, LIST_MESSAGES_MAX)
        size = node.ask(node.calls.lockMany, branch, part, queue, selection, wanted)
        if size == 0:
            # There is nothing in it, and nobody will prepare it.
            node.ask(node.calls.rollbackBranch, branch)
            break
        parts.append((part, size))
        left -= size
    return LockedList(gtrid, str(node.address), queue, tuple(parts))


# --- Readers -------------------------------------------------------------------------------------


def reader_for(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """What reads for these options: a look at a queue, or the list of a transaction."""
    if any(key.lower() == "transaction" for key in given):
        return LockedReader(read_options(given, Role.TAKE), schema)
    options = read_options(given, Role.BROWSE)
    # A reader that can have filters makes Spark refuse every read where that is switched off.
    kind = FilteringReader if options.push_filters else BrowseReader
    return kind(options, schema)


class KeyRange(InputPartition):
    """Messages with these keys, both ends included."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__((first, last))


class Slices(InputPartition):
    """Positions in lists."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(spans)


class BrowseReader(DataSourceReader):
    """Reads what can be had, and takes nothing."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = settled(options)
        self._decoder = decoder_for(schema, options)
        self._selection = selection_of(options)

    def partitions(self) -> list[InputPartition]:
        """What is there now, in ranges of keys."""
        node, queue = node_of(self._options), self._options.queue
        if self._options.max_messages is not None:
            return self._counted(node, self._options.max_messages)
        count = node.ask(node.calls.countMessages, queue)
        first = self._next(node, 0)
        if first is None:
            return [Slices(())]

        def first_behind(key: int) -> int | None:
            return self._next(node, key)

        last = last_key(first_behind, first, count)
        wanted = self._options.partitions or partitions_for(count)
        return [KeyRange(*each) for each in key_ranges(first_behind, first, last, wanted)]

    def _next(self, node: Node, key: int) -> int | None:
        # Whatever is selected: to find a few among many, the node has to look at each.
        found = node.ask(node.calls.browse, self._options.queue, EVERYTHING, key_text(key), 1)
        return int(found.keys[0]) if found.keys else None

    def _counted(self, node: Node, most: int) -> list[InputPartition]:
        """The first so many: they are looked at here, since only so they can be counted."""
        keys: list[str] = []
        while len(keys) < most:
            after, wanted = keys[-1] if keys else "", min(AT_ONCE, most - len(keys))
            queue, selection = self._options.queue, self._selection
            taken = node.ask(node.calls.browse, queue, selection, after, wanted)
            if not taken.keys:
                break
            keys += taken.keys
        wanted = self._options.partitions or partitions_for(len(keys))
        pieces = divided((("", len(keys)),), wanted)
        ranges = [(int(keys[each.start]), int(keys[each.stop - 1])) for (each,) in pieces]
        return [KeyRange(*each) for each in ranges] or [Slices(())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a range of keys, in the order of keys."""
        if not partition.value:
            return
        node, queue = node_of(self._options), self._options.queue
        low, high = partition.value
        after, end = key_text(low - 1), key_text(high)

        def request(after: str) -> Request:
            most = min(AT_ONCE, int(end) - int(after))
            return node.calls.browse, queue, self._selection, after, most

        def following(taken: mqTaken) -> Request | None:
            is_over = not taken.keys or taken.keys[-1] >= end
            return None if is_over else request(taken.keys[-1])

        for taken in answers(node, request(after), following):
            inside = bisect_right(taken.keys, end)
            if inside:
                yield self._decoder.record_batch(first_of(taken, inside))


class FilteringReader(BrowseReader):
    """The same, and the node leaves out what Spark's filters on group and priority leave out."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """The filters that Spark still has to apply."""
        is_header = self._options.payload_format == "binary" or bool(self._options.headers)
        schema = self._decoder.schema
        headers = {each.name for each in schema if is_header and each.name in HEADERS.names}
        left = []
        for each in filters:
            narrowed = narrower(self._selection, each, headers)
            if narrowed is None:
                left.append(each)
                continue
            self._selection, is_enough = narrowed
            left += [] if is_enough else [each]
        return left


def narrower(
    selection: mqSelection, wanted: Filter, headers: set[str]
) -> tuple[mqSelection, bool] | None:
    """What is left of the selection, and whether that is all the filter says; None: no help."""
    if not isinstance(wanted, EqualTo | GreaterThan | GreaterThanOrEqual):
        return None
    path, value = wanted.attribute, wanted.value
    if len(path) != 1 or path[0] not in headers or type(value) is not int:
        return None
    if path[0] == "priority":
        least = value + 1 if isinstance(wanted, GreaterThan) else value
        least = max(least, selection.priorityMin)
        if least > NUMBER_MAX:
            return None
        return replace(selection, priorityMin=least), not isinstance(wanted, EqualTo)
    is_group = path[0] == "group" and isinstance(wanted, EqualTo) and 0 < value <= NUMBER_MAX
    if not is_group or selection.groupID not in (0, value):
        return None
    return replace(selection, groupID=value), True


class LockedReader(DataSourceReader):
    """Reads the lists that a transaction has locked, as often as Spark likes."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = settled(options)
        self._decoder = decoder_for(schema, options)

    def partitions(self) -> list[InputPartition]:
        """The lists in equal pieces."""
        parts = parts_of(self._options.list_name)
        wanted = self._options.partitions or partitions_for(sum(size for _, size in parts))
        return [Slices(spans) for spans in divided(parts, wanted)] or [Slices(())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a piece, in the order of the list."""
        node, gtrid = node_of(self._options), parse_shown(self._options.transaction)
        for span in partition.value:
            branch = structs.branch(gtrid, span.name, None)
            asked = (node.calls.fetchLocked, branch, span.name)
            for taken in answers_of_list(node, asked, span.start, span.stop):
                yield self._decoder.record_batch(taken)


# --- What they have in common --------------------------------------------------------------------


def node_of(options: Options) -> Node:
    """The node that the options name; this process has one connection to it."""
    return connection_of(options).node()


def settled(options: Options) -> Options:
    """The options with the address found here, since another process may find another."""
    if options.url is not None:
        return options
    return replace(options, url=f"mq://{node_of(options).address}")


def patiently(node: Node, method: Callable[..., T], *arguments: object) -> T:
    """The answer to a question of a task; raises an `OnceMQError`.

    Whoever planned the task has reached the node. If it is away, it will be back: it is waited for
    as long as for an answer, also where this process has not reached it yet.
    """
    deadline = node.clock() + node.timeout_s
    while True:
        try:
            return node.ask(method, *arguments)
        except (ConnectionLost, Timeout):
            if node.clock() + PAUSE_S >= deadline:
                raise
        node.sleep(PAUSE_S)


def asked(node: Node, method: Callable[..., T], *arguments: object) -> Callable[[], T]:
    """The question is under way, if it can be; the function waits for the answer."""
    waiting = started(method, *arguments)

    def answer() -> T:
        if waiting is None:
            return patiently(node, method, *arguments)
        try:
            return waiting()
        except LOST:
            return patiently(node, method, *arguments)
        except RAISED as failed:
            raise translated(failed, node.where) from failed

    return answer


def answers(
    node: Node, first: Request, following: Callable[[mqTaken], Request | None]
) -> Iterator[mqTaken]:
    """All answers, the node being at work on the next one while one is looked at."""
    waiting: Callable[[], mqTaken] | None = asked(node, *first)
    try:
        while waiting is not None:
            taken, waiting = waiting(), None
            more = following(taken)
            if more is not None:
                waiting = asked(node, *more)
            yield taken
    finally:
        if waiting is not None:
            # Nobody wants it any more, but it is on its way.
            with contextlib.suppress(OnceMQError):
                waiting()


def answers_of_list(node: Node, question: Request, start: int, stop: int) -> Iterator[mqTaken]:
    """The messages of a list between these positions."""
    at = start

    def following(taken: mqTaken) -> Request | None:
        nonlocal at
        assert taken.keys, f"the list ends at {at}, not at {stop}"
        at += len(taken.keys)
        return (*question, at, min(at + AT_ONCE, stop)) if at < stop else None

    return answers(node, (*question, at, min(at + AT_ONCE, stop)), following)


def key_text(key: int) -> str:
    """A key as the node knows it."""
    return f"{key:015d}"


def first_of(taken: mqTaken, count: int) -> mqTaken:
    """The first so many messages."""
    if count == len(taken.keys):
        return taken
    columns = [getattr(taken.messages, each.name)[:count] for each in fields(mqBatch)]
    return mqTaken(taken.keys[:count], mqBatch(*columns))
