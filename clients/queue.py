"""One queue, as people use it: put, get, read, browse, remove, consume.

Each call belongs to the transaction that is named, or else to that of the surrounding `with`, or is
a transaction of its own. It knows the node's requests and the way into a transaction, nothing of
how either reaches a server. What holds:

1. A call of its own is carried out once, however often it had to be sent; where that cannot be
   known it raises `OutcomeUnknown`, and any other error says that nothing was done.
2. `put_many` puts all or nothing, however many they are.
3. What a get of its own has taken is returned, whatever goes wrong with a later part of it.

It is long because every way to use a queue is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol, TypeVar, overload

from clients.branches import HELD_BYTES_MAX, Branch
from clients.consumer import Consumer, Consumption, Counts, Handler, Patience, Stop
from clients.errors import (
    LockTimeout,
    NotFound,
    OnceMQError,
    OutcomeUnknown,
    QueueFull,
    translated,
)
from clients.home import Home
from clients.messages import (
    OVERHEAD_BYTES,
    PAYLOAD_BYTES_MAX,
    Attributes,
    Item,
    Key,
    Message,
    batch_of,
    checked_attributes,
    checked_payload,
    item_of,
    message_of,
    messages_of,
    size_of,
    written_attributes,
)
from clients.nodes import Node
from clients.transaction import Autocommit, Transaction, chosen
from idl import system
from idl.mapping import UserException
from idl.mq import Mq_Standard, check_queue_name, mqBranch, mqSelection
from idl.otids import NULL_OTID

PUT_AT_ONCE = 5000
GET_AT_ONCE = 5000
BROWSE_AT_ONCE = 1000
WAIT_S_MAX = 20.0
PAUSE_S = 0.02
PAUSE_S_MAX = 0.5

ALONE = mqBranch(NULL_OTID, "", None)
EVERYTHING = mqSelection(0, 0, ())

Pairs = Iterable[tuple[str, str]] | Mapping[str, str]
T = TypeVar("T")


class QueueHome(Home, Protocol):
    """Where a queue belongs: a connection."""

    def node(self) -> Node:
        """The way to the node; raises an `OnceMQError`."""

    def begin(self, timeout: float = 30.0) -> Transaction:
        """A new transaction."""


class Queue:
    """A queue of one node. May be used from any thread."""

    __slots__ = ("_home", "name")

    def __init__(self, home: QueueHome, name: str) -> None:
        self._home = home
        self.name = name

    # --- Putting

    def put(
        self,
        payload: bytes | bytearray | memoryview | Message,
        *,
        priority: int = 0,
        group: int = 0,
        attributes: Pairs = (),
        sender: str = "",
        timeout: float = 0.0,
        tx: Transaction | Autocommit | None = None,
    ) -> Key:
        """The message is put, and durable; inside a transaction that is so when it commits.

        A full queue raises `QueueFull`, at once or when there was no room for `timeout` seconds.
        """
        if type(payload) is bytes and not (priority or group or attributes or sender):
            item: Item = payload if len(payload) <= PAYLOAD_BYTES_MAX else item_of(payload)
        else:
            item = _message(payload, priority, group, attributes, sender)
        transaction = chosen(tx)
        node = self._home.node()
        if timeout:
            return _patiently(lambda: self._put(node, transaction, item), node, timeout)
        if transaction is None:
            return self._put_alone(node, item)
        with transaction.lock:
            branch = transaction.branch_at(node)
            try:
                return branch.put(self.name, item)
            except OnceMQError as raised:
                transaction.failed(branch, raised)
                raise

    def put_many(
        self,
        messages: Iterable[bytes | bytearray | memoryview | Message],
        *,
        tx: Transaction | Autocommit | None = None,
    ) -> list[Key]:
        """All of the messages are put, in this order, or none."""
        transaction = chosen(tx)
        items = map(item_of, messages)
        if transaction is not None:
            return self._within(
                transaction, lambda branch: [branch.put(self.name, item) for item in items]
            )
        first: Sequence[Item] | None = _payloads(messages)
        if first is None:
            portion = _portion(items)
            following = next(items, None)
            if following is not None:
                return self._put_long(portion, following, items)
            first = portion
        if not first:
            return []
        node = self._home.node()
        batch = batch_of(first, self._home.sender)
        keys = self._once(node, node.calls.putMany, (ALONE, 0, self.name, batch))
        return [Key(text) for text in keys] or [Key.untold() for _ in first]

    def _put_long(self, first: list[Item], following: Item, items: Iterator[Item]) -> list[Key]:
        """More than fits into one call: a transaction, whose puts go down part by part."""
        with_all = self._home.begin()
        try:
            with with_all.lock:
                branch = with_all.branch_at(self._home.node())
                keys = [branch.put(self.name, item) for item in first]
                keys.append(branch.put(self.name, following))
                keys += [branch.put(self.name, item) for item in items]
            with_all.commit()
        except BaseException:
            with_all.abandon()
            raise
        return keys

    def _put(self, node: Node, transaction: Transaction | None, item: Item) -> Key:
        """The item is at the node, which has not refused it."""
        if transaction is not None:
            return self._put_now(transaction, item)
        return self._put_alone(node, item)

    def _put_alone(self, node: Node, item: Item) -> Key:
        batch = batch_of((item,), self._home.sender)
        keys = self._once(node, node.calls.putMany, (ALONE, 0, self.name, batch))
        return Key(keys[0]) if keys else Key.untold()

    def _put_now(self, transaction: Transaction, item: Item) -> Key:
        def put(branch: Branch) -> Key:
            branch.push(self.name)
            key = branch.put(self.name, item)
            try:
                branch.push(self.name)
            except QueueFull:
                branch.take_back(self.name, key)
                raise
            return key

        return self._within(transaction, put)

    # --- Getting

    def get(
        self,
        timeout: float | None = 0.0,
        *,
        key: Key | str | None = None,
        group: int = 0,
        priority_min: int = 0,
        attributes: Pairs = (),
        tx: Transaction | Autocommit | None = None,
    ) -> Message | None:
        """The next message in order, or None when there was none for `timeout` seconds.

        It does not wait unless it is told to; None as the timeout waits as long as it takes. With a
        key it is that message, which raises `NotFound` if it cannot be had.
        """
        if key is not None:
            return self._get_key(str(key), timeout, tx)
        selection = _selection(group, priority_min, attributes)
        found = self._get_next(selection, 1, timeout, chosen(tx))
        return found[0] if found else None

    def get_many(
        self,
        count: int,
        timeout: float | None = 0.0,
        *,
        group: int = 0,
        priority_min: int = 0,
        attributes: Pairs = (),
        tx: Transaction | Autocommit | None = None,
    ) -> list[Message]:
        """The next messages, at most so many; waits for the first of them alone."""
        if count < 1:
            return []
        selection = _selection(group, priority_min, attributes)
        transaction = chosen(tx)
        found = self._get_next(selection, min(count, GET_AT_ONCE), timeout, transaction)
        while found and len(found) < count:
            try:
                most = min(count - len(found), GET_AT_ONCE)
                more = self._get_next(selection, most, 0.0, transaction)
            except OnceMQError:
                if transaction is not None:
                    raise
                # What was got is gone from the queue; what went wrong will be seen the next time.
                break
            if not more:
                break
            found += more
        return found

    def _get_next(
        self,
        selection: mqSelection,
        count: int,
        timeout: float | None,
        transaction: Transaction | None,
    ) -> list[Message]:
        node = self._home.node()
        if timeout == 0.0:
            return self._get_now(node, selection, count, 0.0, transaction)
        deadline = None if timeout is None else node.clock() + timeout
        while True:
            wait_s = WAIT_S_MAX
            if deadline is not None:
                wait_s = min(max(deadline - node.clock(), 0.0), wait_s)
            if transaction is not None:
                wait_s = min(max(transaction.seconds_left(), 0.001), wait_s)
            found = self._get_now(node, selection, count, wait_s, transaction)
            if found or (deadline is not None and node.clock() >= deadline):
                return found

    def _get_now(
        self,
        node: Node,
        selection: mqSelection,
        count: int,
        wait_s: float,
        transaction: Transaction | None,
    ) -> list[Message]:
        if transaction is not None:
            with transaction.lock:
                branch = transaction.branch_at(node)
                try:
                    return branch.get(self.name, selection, count, wait_s)
                except OnceMQError as raised:
                    transaction.failed(branch, raised)
                    raise
        arguments = (ALONE, 0, self.name, selection, count, int(wait_s * 1000))
        return messages_of(self._once(node, node.calls.getMany, arguments, wait_s))

    def _get_key(
        self, key: str, timeout: float | None, tx: Transaction | Autocommit | None
    ) -> Message:
        transaction = chosen(tx)
        node = self._home.node()

        def get() -> list[Message]:
            if transaction is not None:
                return self._within(transaction, lambda branch: branch.get_keys(self.name, [key]))
            arguments = (ALONE, 0, self.name, (key,))
            return messages_of(self._once(node, node.calls.getKeys, arguments))

        deadline = None if timeout is None else node.clock() + timeout
        while True:
            try:
                return get()[0]
            except LockTimeout:
                if deadline is not None and node.clock() >= deadline:
                    raise

    def move_to(
        self,
        target: Queue,
        count: int = 1,
        timeout: float = 0.0,
        *,
        group: int = 0,
        priority_min: int = 0,
        attributes: Pairs = (),
        tx: Transaction | Autocommit | None = None,
    ) -> int:
        """The next messages are at the end of the other queue; how many: `count` at most.

        They are as they were but for key and time. Waits for the first of them alone. Within one
        node it is one call; where the queues are at two nodes, it is a transaction over both.
        """
        transaction = chosen(tx)
        node = self._home.node()
        if transaction is None and target._home.node() is node and 0 < count <= GET_AT_ONCE:
            selection = _selection(group, priority_min, attributes)
            arguments = (self.name, target.name, selection, count, int(timeout * 1000))
            return self._once(node, node.calls.moveMany, arguments, timeout)
        own = transaction or self._home.begin()
        try:
            found = self.get_many(
                count,
                timeout,
                group=group,
                priority_min=priority_min,
                attributes=attributes,
                tx=own,
            )
            target.put_many(found, tx=own)
            if transaction is None:
                own.commit()
        finally:
            if transaction is None:
                own.abandon()
        return len(found)

    # --- Looking

    def read(self, key: Key | str) -> Message | None:
        """The message with this key, which stays where it is; None if it cannot be had."""
        node = self._home.node()
        text = str(key)
        standard = node.orb.proxy(f"PYRO:standard/{self.name}@{node.address}", Mq_Standard)
        is_there, header, attributes, payload = node.ask(standard.mqRead, text)
        return message_of(text, header, attributes, payload) if is_there else None

    def browse(
        self,
        limit: int | None = None,
        *,
        after: Key | str | None = None,
        group: int = 0,
        priority_min: int = 0,
        attributes: Pairs = (),
    ) -> Iterator[Message]:
        """The messages that could be got now, in the order of their keys; takes nothing.

        They come page by page: what is put or got meanwhile may be seen or not.
        """
        selection = _selection(group, priority_min, attributes)
        return self._browsed(limit, "" if after is None else str(after), selection)

    def _browsed(self, limit: int | None, after: str, selection: mqSelection) -> Iterator[Message]:
        node = self._home.node()
        left = limit
        while left is None or left > 0:
            count = BROWSE_AT_ONCE if left is None else min(left, BROWSE_AT_ONCE)
            page = messages_of(node.ask(node.calls.browse, self.name, selection, after, count))
            yield from page
            if not page:
                return
            after = str(page[-1].key)
            left = None if left is None else left - len(page)

    def __len__(self) -> int:
        node = self._home.node()
        return node.ask(node.calls.countMessages, self.name)

    def __bool__(self) -> bool:
        # An empty queue is a queue: `if queue:` must not ask the node.
        return True

    def remove(self, key: Key | str, *, tx: Transaction | Autocommit | None = None) -> bool:
        """The message with this key is gone; False if it could not be had."""
        try:
            self._get_key(str(key), 0.0, tx)
        except NotFound:
            return False
        return True

    # --- Consuming

    @overload
    def consume(
        self,
        handler: None = None,
        *,
        batch: int = 1,
        timeout: float | None = None,
        stop: Stop | None = None,
        transaction_timeout: float = 30.0,
    ) -> Consumption: ...

    @overload
    def consume(
        self,
        handler: Handler,
        *,
        batch: int = 1,
        timeout: float | None = None,
        stop: Stop | None = None,
        stop_on_signals: bool = False,
        failures_max: int | None = None,
        transaction_timeout: float = 30.0,
    ) -> Counts: ...

    def consume(
        self,
        handler: Handler | None = None,
        *,
        batch: int = 1,
        timeout: float | None = None,
        stop: Stop | None = None,
        stop_on_signals: bool = False,
        failures_max: int | None = None,
        transaction_timeout: float = 30.0,
    ) -> Consumption | Counts:
        """Messages one by one, each in a transaction of its own that what is done with it joins.

        `for message in queue.consume(): ...` commits when the next one is asked for. It goes on
        for ever, or until none came for `timeout` seconds, or `stop` says so. With a handler, the
        handler is called for each, and how it went is returned at the end.
        """
        patience = Patience(batch, timeout, stop, transaction_timeout)
        if handler is None:
            return Consumption(self, patience, self._home.node())
        consumer = Consumer(self, handler, self._home.node)
        return consumer.run(
            batch=batch,
            timeout=timeout,
            stop=stop,
            stop_on_signals=stop_on_signals,
            failures_max=failures_max,
            transaction_timeout=transaction_timeout,
        )

    def consumer(self, handler: Handler) -> Consumer:
        """Makes a handler of a function: `@queue.consumer`, and then `.run()`."""
        return Consumer(self, handler, self._home.node)

    def begin(self, timeout: float = 30.0) -> Transaction:
        """A new transaction of this queue's connection."""
        return self._home.begin(timeout)

    def other(self, name: str) -> Queue:
        """Another queue of the same connection."""
        return Queue(self._home, check_queue_name(name))

    def node(self) -> Node:
        """The way to its node; raises an `OnceMQError`."""
        return self._home.node()

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"

    # --- The two ways of a call

    def _once(
        self,
        node: Node,
        method: Callable[..., T],
        arguments: tuple[object, ...],
        extra_s: float = 0.0,
    ) -> T:
        try:
            return node.answer_once(method, arguments, extra_s)
        except UserException as refused:
            raise translated(refused, node.where) from refused
        except system.SystemException as failed:
            if failed.completed is system.Completion.NO and not isinstance(failed, _BREAKDOWNS):
                raise translated(failed, node.where) from failed
            told = f"{node.where} may have carried it out, or not: {failed.reason}"
            raise OutcomeUnknown(told=told) from failed

    def _within(self, transaction: Transaction, work: Callable[[Branch], T]) -> T:
        with transaction.lock:
            branch = transaction.branch_at(self._home.node())
            try:
                return work(branch)
            except OnceMQError as raised:
                transaction.failed(branch, raised)
                raise


# Whoever says these does not know what it had done before.
_BREAKDOWNS = (system.INTERNAL, system.UNKNOWN, system.MARSHAL)


def _message(
    payload: bytes | bytearray | memoryview | Message,
    priority: int,
    group: int,
    attributes: Pairs,
    sender: str,
) -> Message:
    if not isinstance(payload, Message):
        pairs: Attributes = checked_attributes(attributes)
        return Message(checked_payload(payload), priority, group, pairs, sender)
    if priority or group or attributes or sender:
        raise TypeError(
            "a Message has its own priority, group, attributes and sender: set them there"
        )
    return payload


def _selection(group: int, priority_min: int, attributes: Pairs) -> mqSelection:
    if not (group or priority_min or attributes):
        return EVERYTHING
    return mqSelection(group, priority_min, written_attributes(checked_attributes(attributes)))


def _payloads(messages: Iterable[object]) -> list[bytes] | None:
    """The messages, where they are payloads and go into one call; that is seen at a glance."""
    if type(messages) is not list or set(map(type, messages)) != {bytes}:
        return None
    size = sum(map(len, messages)) + OVERHEAD_BYTES * len(messages)
    return messages if len(messages) <= PUT_AT_ONCE and size <= HELD_BYTES_MAX else None


def _portion(items: Iterator[Item]) -> list[Item]:
    """As many as go into one call."""
    portion: list[Item] = []
    size = 0
    for item in islice(items, PUT_AT_ONCE):
        portion.append(item)
        size += size_of(item)
        if size > HELD_BYTES_MAX:
            break
    return portion


def _patiently(put: Callable[[], T], node: Node, timeout_s: float) -> T:
    """What the put answers, which is tried again while the queue is full."""
    deadline = node.clock() + timeout_s
    pause_s = PAUSE_S
    while True:
        try:
            return put()
        except QueueFull:
            left_s = deadline - node.clock()
            if left_s <= 0:
                raise
            node.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
