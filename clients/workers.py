"""Queued work on a database: a message, the rows it changes and the reply are one act.

    @oncemq.worker(mq.queue("orders"), connect)
    def handle(message, db):
        db.execute("update ...")
        return b"done"

    handle.run()

What holds:

1. A message is gone if and only if its function has returned and what it did is committed.
2. A message whose function raises is put behind the others, with one more failure noted on it; at
   the last it is put among the dead letters, with the reason. Both are transactions of their own:
   it is never lost and never there twice.
3. What is no fault of the message is not counted: a database or a node that is away, a deadlock.

It knows queues and transactions; what the database is, the connection and its driver know.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from clients.consumer import Patience, Stop, Taking, either, stopped_by_signals
from clients.errors import (
    HeuristicHazard,
    HeuristicMixed,
    LockTimeout,
    NotFound,
    OnceMQError,
    OutcomeUnknown,
)
from clients.messages import Message
from clients.queue import Queue
from clients.transaction import Outcome, Transaction

# Attributes that a worker writes on messages, and the two that it reads.
FAILURES = "oncemq.failures"
REASON = "oncemq.reason"
QUEUE = "oncemq.queue"
KEY = "oncemq.key"
REPLY_TO = "reply_to"
CORRELATION = "correlation"

FAILURES_MAX = 5
REASON_LENGTH_MAX = 500
# Of SQLSTATE: a transaction in conflict with another, a lock that was not to be had, a server that
# has no room or is being stopped, a connection that is gone.
_PASSING = ("40", "55P03", "53", "57", "08")
_SQLITE_PASSING = (5, 6)
_MARIADB_PASSING = (1020, 1040, 1053, 1205, 1213, 1927, 2006, 2013)

log = logging.getLogger("oncemq.client")

Work = Callable[[Message, Any], bytes | Message | None]


@dataclass
class Worked:
    """How it went, in messages: how often one was handled, and how that ended."""

    committed: int = 0
    failed: int = 0
    dead: int = 0
    passing: int = 0
    unknown: int = 0


class _Settings(NamedTuple):
    replies: str
    dead_letters: str
    failures_max: int
    database: str
    markable: bool | None


class _Connections:
    """The worker's connection to the database: the one that was given, or one that it makes."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._makes = callable(given)
        self._made: Any = None

    def get(self) -> Any:
        if not self._makes:
            return self._given
        if self.is_broken():
            self.drop()
        if self._made is None:
            self._made = self._given()
        return self._made

    def is_broken(self) -> bool:
        used = self._made if self._makes else self._given
        is_open = getattr(used, "open", True)
        return not is_open or bool(getattr(used, "closed", False) or getattr(used, "broken", False))

    def drop(self) -> None:
        """The next one is another, where the worker makes them."""
        made, self._made = self._made, None
        close = getattr(made, "close", None)
        # PyMySQL does not like to be closed twice.
        if close is not None and getattr(made, "open", True):
            close()


class Worker:
    """A function that works off a queue; `run` has it do so."""

    def __init__(self, queue: Queue, database: Any, work: Work, settings: _Settings) -> None:
        self._queue = queue
        self._database = database
        self._work = work
        self._settings = settings
        self.__doc__ = work.__doc__

    def __call__(self, message: Message, db: Any) -> bytes | Message | None:
        return self._work(message, db)

    def run(
        self,
        *,
        timeout: float | None = None,
        stop: Stop | None = None,
        stop_on_signals: bool = False,
        transaction_timeout: float = 30.0,
    ) -> Worked:
        """Works until no message came for `timeout` seconds, or it is stopped; how it went.

        May be run in several threads and processes at once, where the database is given as a
        function that makes connections, or as an engine.
        """
        with stopped_by_signals(stop_on_signals) as flag:
            stopping = stop if flag is None else either(flag, stop)
            patience = Patience(1, timeout, stopping, transaction_timeout)
            running = _Running(self._queue, self._work, self._settings, self._database, patience)
            try:
                return running.run()
            finally:
                running.connections.drop()


class _Running:
    """One run of a worker."""

    def __init__(
        self, queue: Queue, work: Work, settings: _Settings, database: Any, patience: Patience
    ) -> None:
        self._queue = queue
        self._work = work
        self._settings = settings
        self._taking = Taking(queue, patience, queue.node())
        self.connections = _Connections(database)
        self._has_enlisted = False
        self._worked = Worked()

    def run(self) -> Worked:
        worked = self._worked
        while True:
            transaction, messages = self._taking.next()
            failed: Exception | None = None
            try:
                if not messages:
                    return worked
                self._handle(transaction, messages[0])
                worked.committed += 1
                self._taking.pauses.reset()
                continue
            except (HeuristicHazard, HeuristicMixed):
                raise
            except OutcomeUnknown as unknown:
                worked.unknown += 1
                log.warning("queue %s: %s", self._queue.name, unknown)
            # Whatever the function raises, the message must be kept.
            except Exception as raised:
                log.debug("queue %s: rolled back", self._queue.name, exc_info=raised)
                failed = raised
            finally:
                transaction.leave()
                transaction.abandon()
            if failed is not None:
                self._after(failed, messages[0])
            self._taking.pauses.take()

    def _handle(self, transaction: Transaction, message: Message) -> None:
        settings = self._settings
        transaction.enter()
        try:
            db = transaction.enlist(
                self.connections.get(), database=settings.database, markable=settings.markable
            )
        except Exception as trouble:
            raise _NoDatabase from trouble
        self._has_enlisted = True
        reply = self._work(message, db)
        transaction.leave()
        where = settings.replies or message.get(REPLY_TO)
        if reply is not None and where:
            self._queue.other(where).put(_correlated(reply, message), tx=transaction)
        if transaction.status in (Outcome.ACTIVE, Outcome.ROLLBACK_ONLY):
            transaction.commit()

    def _after(self, failed: Exception, message: Message) -> None:
        """What follows from a failure, now that nothing of the transaction is left."""
        cause = failed.__cause__ if isinstance(failed, _NoDatabase) else failed
        assert isinstance(cause, Exception)
        if isinstance(failed, _NoDatabase):
            self._consider(cause)
        elif not (_is_passing(cause) or self.connections.is_broken()):
            self._worked.failed += 1
            self._set_aside(message, cause)
            return
        self._worked.passing += 1
        if self.connections.is_broken() or isinstance(failed, _NoDatabase):
            self.connections.drop()
        log.warning("queue %s: %s; trying again", self._queue.name, _told(cause))

    def _consider(self, cause: Exception) -> None:
        """Raises what will not pass by itself: a database that never could be enlisted."""
        will_pass = isinstance(cause, OnceMQError) and cause.retryable
        if not (self._has_enlisted or will_pass):
            raise cause

    # --- Messages that failed

    def _set_aside(self, message: Message, failed: Exception) -> None:
        """The message is behind all others, or among the dead letters."""
        failures = _failures(message) + 1
        is_dead = failures >= self._settings.failures_max
        target = self._queue.other(self._settings.dead_letters) if is_dead else self._queue
        log.warning(
            "queue %s, message %s: failure %d%s: %s",
            self._queue.name,
            message.key,
            failures,
            f", put into {target.name}" if is_dead else "",
            _told(failed),
            exc_info=None if isinstance(failed, OnceMQError) else failed,
        )
        transaction = self._queue.begin()
        try:
            # One transaction: the message is in one place, whatever happens.
            self._queue.get(key=message.key, tx=transaction)
            target.put(_noted(message, failures, failed, self._queue.name), tx=transaction)
            transaction.commit()
        except (NotFound, LockTimeout):
            # Another worker has it already, and will see for itself.
            return
        except OnceMQError as trouble:
            log.warning(
                "queue %s: %s stays where it was: %s", self._queue.name, message.key, trouble
            )
            return
        finally:
            transaction.abandon()
        self._worked.dead += is_dead


class _NoDatabase(Exception):
    """The database could not be enlisted; the cause says why."""


def _is_passing(failed: Exception) -> bool:
    """Whether the same message may succeed without any change to it or to the function."""
    if isinstance(failed, OnceMQError):
        return failed.retryable
    # What SQLAlchemy raises has the driver's exception in it.
    inner = getattr(failed, "orig", None) or failed
    state = getattr(inner, "sqlstate", None) or ""
    code = getattr(inner, "sqlite_errorcode", None) or 0
    number = inner.args[0] if inner.args else None
    return (
        state.startswith(_PASSING)
        or code & 0xFF in _SQLITE_PASSING
        or (_is_of_pymysql(inner) and number in _MARIADB_PASSING)
    )


def _is_of_pymysql(failed: BaseException) -> bool:
    return type(failed).__module__.startswith("pymysql.")


def _failures(message: Message) -> int:
    text = message.get(FAILURES, "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def _correlated(reply: bytes | Message, request: Message) -> Message:
    answer = reply if isinstance(reply, Message) else Message(reply)
    if answer.get(CORRELATION):
        return answer
    correlation = request.get(CORRELATION) or request.get(KEY) or str(request.key)
    pairs = (*answer.attributes, (CORRELATION, correlation))
    return Message(answer.payload, answer.priority, answer.group, pairs, answer.sender)


def _noted(message: Message, failures: int, failed: Exception, queue: str) -> Message:
    ours = {
        FAILURES: str(failures),
        REASON: _told(failed),
        QUEUE: queue,
        KEY: message.get(KEY) or str(message.key),
    }
    kept = [pair for pair in message.attributes if pair[0] not in ours]
    pairs = (*kept, *ours.items())
    return Message(message.payload, message.priority, message.group, pairs, message.sender)


def _told(failed: BaseException) -> str:
    text = " ".join(f"{type(failed).__name__}: {failed}".split())[:REASON_LENGTH_MAX]
    return text.replace("\0", "").encode(errors="replace").decode()


def worker(
    queue: Queue,
    database: Any,
    *,
    replies: str = "",
    dead_letters: str = "",
    failures_max: int = FAILURES_MAX,
    database_name: str = "",
    markable: bool | None = None,
) -> Callable[[Work], Worker]:
    """Makes a worker of a function, which is called with each message and a connection for it.

    `database` is a function that makes a connection, an engine of SQLAlchemy, or a connection; see
    `Transaction.enlist`, also for `database_name` and `markable`. What the function returns is put
    into the queue `replies`, or else into the one that the message's attribute `reply_to` names, if
    any. After `failures_max` failures a message goes to `dead_letters`, by default `QUEUE.dlq`.
    """
    if failures_max < 1:
        raise ValueError(f"failures_max {failures_max}: a message is tried once, or more often")
    letters = dead_letters or f"{queue.name}.dlq"
    settings = _Settings(replies, letters, failures_max, database_name, markable)
    # Wrong names are found now, and not when the first message fails.
    for name in (letters, replies):
        if name:
            queue.other(name)

    def made(function: Work) -> Worker:
        return Worker(queue, database, function, settings)

    return made
