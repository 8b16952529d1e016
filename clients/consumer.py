"""Consuming: take, handle, commit, and again. What was not handled is there for the next try.

Messages that were taken and what is done with them are one transaction: it is committed after they
were handled, and rolled back if that failed, so that none is lost and none counts twice. A node
that is away is waited for, longer each time. It knows no transport; a queue is what it takes from.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from clients.errors import OnceMQError, OutcomeUnknown, RolledBack
from clients.messages import Message
from clients.nodes import Node
from clients.transaction import Outcome, Transaction, current_transaction

PAUSE_S = 0.1
PAUSE_S_MAX = 30.0
SLICE_S = 15.0
# How soon somebody who asks to stop is heard.
STOP_S = 0.5

log = logging.getLogger("oncemq.client")

Handler = Callable[[Message], object]


class Flag(Protocol):
    """Something that is set once, such as a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether it was set."""


Stop = Flag | Callable[[], bool]


class Source(Protocol):
    """What is consumed: a queue."""

    name: str

    def begin(self, timeout: float = 30.0) -> Transaction:
        """A new transaction."""

    def get_many(
        self, count: int, timeout: float | None = 0.0, *, tx: Transaction
    ) -> list[Message]:
        """The next messages, in the transaction."""


@dataclass(frozen=True)
class Patience:
    """How much is taken at once, how long nothing may come, who says stop, how long work takes."""

    batch: int = 1
    timeout_s: float | None = None
    stop: Stop | None = None
    transaction_s: float = 30.0

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch {self.batch}: take one message at a time, or more")

    def is_stopped(self) -> bool:
        """Whether somebody asked to stop."""
        stop = self.stop
        if stop is None:
            return False
        return stop() if callable(stop) else stop.is_set()


@dataclass
class Counts:
    """How consuming went, in messages: how often a message was handled, and how that ended."""

    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0


class Pauses:
    """Pauses that grow while things go wrong, and end early when somebody asks to stop."""

    def __init__(self, patience: Patience, sleep: Callable[[float], None]) -> None:
        self._patience = patience
        self._sleep = sleep
        self._next_s = PAUSE_S

    def reset(self) -> None:
        """Things go well again."""
        self._next_s = PAUSE_S

    def take(self) -> None:
        """One pause."""
        left_s, self._next_s = self._next_s, min(2 * self._next_s, PAUSE_S_MAX)
        while left_s > 0 and not self._patience.is_stopped():
            self._sleep(min(left_s, STOP_S))
            left_s -= STOP_S


class Taking:
    """Takes messages from a source, over any trouble on the way that passes."""

    def __init__(self, source: Source, patience: Patience, node: Node) -> None:
        self._source = source
        self._patience = patience
        self._clock = node.clock
        self.pauses = Pauses(patience, node.sleep)
        self._has_answered = False

    def next(self) -> tuple[Transaction, list[Message]]:
        """A transaction that has taken messages; none when it is time to end."""
        patience = self._patience
        deadline = None if patience.timeout_s is None else self._clock() + patience.timeout_s
        while True:
            transaction = self._source.begin(patience.transaction_s)
            try:
                return transaction, self._waited(transaction, deadline)
            except OnceMQError as failed:
                transaction.abandon()
                self._consider(failed, deadline)
            except BaseException:
                transaction.abandon()
                raise
            self.pauses.take()

    def _waited(self, transaction: Transaction, deadline: float | None) -> list[Message]:
        patience = self._patience
        while not patience.is_stopped():
            wait_s = SLICE_S if patience.stop is None else STOP_S
            if deadline is not None:
                wait_s = min(wait_s, max(deadline - self._clock(), 0.0))
            transaction.begin_anew()
            found = self._source.get_many(patience.batch, wait_s, tx=transaction)
            self._has_answered = True
            if found:
                transaction.begin_anew()
                return found
            if deadline is not None and self._clock() >= deadline:
                break
        return []

    def _consider(self, failed: OnceMQError, deadline: float | None) -> None:
        """Raises what will not pass by itself, or not in time."""
        is_late = deadline is not None and self._clock() >= deadline
        if not failed.retryable or not self._has_answered or is_late:
            raise failed
        log.warning("queue %s: %s; trying again", self._source.name, failed)


class Consumption:
    """The messages of a queue, one by one, each in a transaction that is current in the loop body.

    It is committed when the next message is asked for. It is rolled back if the body raises, if the
    loop is left by `break` or `return`, or on `close`: the message is then there for others. Who
    keeps it in a variable uses it in a `with` block, so that it is closed in time.
    """

    def __init__(self, source: Source, patience: Patience, node: Node) -> None:
        if current_transaction() is not None:
            raise OnceMQError("a consumer has transactions of its own: use it outside of others")
        self._stream = _stream(Taking(source, patience, node), source.name)
        self._begin_again: Callable[[], Iterator[Message]] = lambda: _stream(
            Taking(source, patience, node), source.name
        )
        self._is_running = False

    def __iter__(self) -> Consumption:
        if self._is_running:
            # A loop over it ended in the middle: what that had taken was not handled.
            self.close()
            self._stream = self._begin_again()
        self._is_running = True
        return self

    def __next__(self) -> Message:
        return next(self._stream)

    def close(self) -> None:
        """What was taken last, and not yet committed, is rolled back."""
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Consumption:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _stream(taking: Taking, name: str) -> Iterator[Message]:
    while True:
        transaction, messages = taking.next()
        try:
            if not messages:
                return
            transaction.enter()
            yield from messages
            transaction.leave()
            if transaction.status in (Outcome.ACTIVE, Outcome.ROLLBACK_ONLY):
                transaction.commit()
            taking.pauses.reset()
            continue
        except RolledBack as rolled_back:
            if not rolled_back.retryable:
                raise
            log.warning("queue %s: %s", name, rolled_back)
        finally:
            transaction.leave()
            transaction.abandon()
        taking.pauses.take()


class Consumer:
    """A function that handles messages of a queue; `run` has it handle them."""

    def __init__(self, source: Source, handler: Handler, node: Callable[[], Node]) -> None:
        self._source = source
        self._handler = handler
        self._node = node
        self.__doc__ = handler.__doc__

    def __call__(self, message: Message) -> object:
        return self._handler(message)

    def run(
        self,
        *,
        batch: int = 1,
        timeout: float | None = None,
        stop: Stop | None = None,
        stop_on_signals: bool = False,
        failures_max: int | None = None,
        transaction_timeout: float = 30.0,
    ) -> Counts:
        """Handles messages until none came for `timeout` seconds, or it is stopped.

        What the handler puts and gets joins the transaction of its message. When it raises, all of
        that is rolled back, and the message comes again after a pause that grows; after
        `failures_max` times in a row, what it raised is raised here.
        """
        with stopped_by_signals(stop_on_signals) as flag:
            stopping: Stop | None = stop
            if flag is not None:
                stopping = either(flag, stop)
            patience = Patience(batch, timeout, stopping, transaction_timeout)
            return self._run(Taking(self._source, patience, self._node()), failures_max)

    def _run(self, taking: Taking, failures_max: int | None) -> Counts:
        counts = Counts()
        failures = 0
        while True:
            transaction, messages = taking.next()
            try:
                if not messages:
                    return counts
                self._handle(transaction, messages)
                counts.committed += len(messages)
                failures = 0
                taking.pauses.reset()
                continue
            except OutcomeUnknown as unknown:
                counts.unknown += len(messages)
                log.warning("queue %s: %s", self._source.name, unknown)
            # Whatever the handler raises, the message must come again.
            except Exception as failed:
                failures += 1
                counts.rolled_back += len(messages)
                if failures_max is not None and failures >= failures_max:
                    raise
                self._complain(failed, messages)
            finally:
                transaction.leave()
                transaction.abandon()
            taking.pauses.take()

    def _handle(self, transaction: Transaction, messages: list[Message]) -> None:
        transaction.enter()
        for message in messages:
            self._handler(message)
        transaction.leave()
        if transaction.status in (Outcome.ACTIVE, Outcome.ROLLBACK_ONLY):
            transaction.commit()

    def _complain(self, failed: Exception, messages: list[Message]) -> None:
        key = messages[0].key
        log.warning(
            "queue %s, message %s: rolled back, and comes again: %s",
            self._source.name,
            key,
            failed,
            exc_info=None if isinstance(failed, OnceMQError) else failed,
        )


def either(flag: Flag, stop: Stop | None) -> Stop:
    """Says stop when either of the two does."""
    other = Patience(stop=stop)
    return lambda: flag.is_set() or other.is_stopped()


@contextlib.contextmanager
def stopped_by_signals(is_wanted: bool) -> Iterator[threading.Event | None]:
    """A flag that SIGTERM and SIGINT set; only the main thread can have it."""
    if not is_wanted:
        yield None
        return
    flag = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda number, frame: flag.set()) for number in numbers]
    try:
        yield flag
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
