"""What can go wrong for whoever uses OnceMQ: what happened, what was kept, what to do next.

    OnceMQError
    ├── RolledBack            nothing of it happened; `retryable`: try it again
    ├── OutcomeUnknown        it may have happened: ask `mq.outcome(otid)` later
    ├── ConnectionLost        the server cannot be reached; nothing was done
    ├── Timeout               no answer in time; nothing was done
    ├── NotFound              no such queue, or no message with this key
    ├── NotAllowed            this client may not do that, or is not let in
    ├── QueueDisabled, QueueFull
    ├── LockTimeout, Deadlock
    ├── LimitExceeded         too large, or too many at once
    ├── KeyNotKnownYet        the key of a put whose transaction is not committed
    ├── TransactionEnded      the transaction is over, or is another's
    ├── NotEnlisted           a database cannot take part in the transaction
    ├── Damaged               a payload is not what was put
    └── ServerFailed          the server could not do its work; its log has the details

`HeuristicMixed` and `HeuristicHazard` are those of CosTransactions. The exceptions of the wire are
translated in one table, at the end. This module knows no transport.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from idl import mq, system
from idl.cos import HeuristicHazard, HeuristicMixed, Status
from idl.mapping import InvalidValue, UserException
from idl.otids import show

__all__ = ["HeuristicHazard", "HeuristicMixed"]


class OnceMQError(Exception):
    """Something went wrong in OnceMQ.

    `retryable`: the same may succeed when it is tried again, without any change.
    """

    retryable = False

    def __init__(self, told: str = "") -> None:
        super().__init__(told or inspect.cleandoc(type(self).__doc__ or ""))


class RolledBack(OnceMQError):
    """The transaction was rolled back; nothing of it happened."""

    def __init__(self, reason: str, retryable: bool = True) -> None:
        self.reason = reason
        self.retryable = retryable
        what = "Try it again." if retryable else "Trying it again will not help."
        end = "" if reason.endswith((".", "!", "?")) else "."
        super().__init__(f"rolled back, and nothing of it happened: {reason}{end} {what}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.retryable)


def reason_of(raised: OnceMQError) -> str:
    """Why, in words that can be part of another sentence."""
    return raised.reason if isinstance(raised, RolledBack) else str(raised)


class OutcomeUnknown(OnceMQError):
    """Whether it happened is not known.

    `otid` names the transaction: `mq.outcome(otid)` tells more as soon as the servers are back. It
    is empty for a call outside a transaction, which has no name to ask by.
    """

    def __init__(self, gtrid: bytes = b"", told: str = "") -> None:
        self.gtrid = gtrid
        self.otid = show(gtrid) if gtrid else ""
        known = f"ask mq.outcome({self.otid!r}) when the servers are back"
        if not gtrid:
            known = "it was no transaction, and cannot be asked about: look into the queue"
        super().__init__(f"{told or 'whether it was committed is not known yet'}; {known}")
        self._told = told

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.gtrid, self._told)


class ConnectionLost(OnceMQError):
    """The server cannot be reached; nothing was done. Is it running? Then try again."""

    retryable = True


class Timeout(OnceMQError):
    """No answer came in time; nothing was done. Try again, or allow more time."""

    retryable = True


class NotFound(OnceMQError):
    """There is no such queue, or no message with this key that can be got."""


class NotAllowed(OnceMQError):
    """This client may not do that; nothing was done. Ask whoever keeps the permissions."""


class QueueDisabled(OnceMQError):
    """The queue is switched off; nothing was done. `oncemq queue enable` switches it on."""

    retryable = True


class QueueFull(OnceMQError):
    """The queue has reached its limit; nothing was put. Get messages, or raise the limit."""

    retryable = True


class LockTimeout(OnceMQError):
    """Another transaction holds the message; nothing was changed. Try the transaction again."""

    retryable = True


class Deadlock(OnceMQError):
    """Transactions waited for each other, and this one gave way. Roll it back and try it again."""

    retryable = True


class LimitExceeded(OnceMQError):
    """A limit was exceeded; nothing was done. Send less at a time, or raise the limit."""


class KeyNotKnownYet(OnceMQError):
    """The key of a put is known once its transaction is committed."""


class TransactionEnded(OnceMQError):
    """The transaction is over and takes no more work. Begin another."""


class NotEnlisted(OnceMQError):
    """The database cannot take part in the transaction; the transaction goes on without it."""


class Damaged(OnceMQError):
    """A payload is not what was put: its digest is another. `oncemq check` examines the node."""


class ServerFailed(OnceMQError):
    """The server could not do its work; its log has the details."""


# --- From the wire -------------------------------------------------------------------------------

Made = Callable[[Any, str], OnceMQError]


def _branch_ended(raised: mq.BranchEnded, where: str) -> OnceMQError:
    if raised.outcome is Status.COMMITTED:
        return OutcomeUnknown(
            told=f"{where}: it was carried out, but the answer was lost with a restart of the node"
        )
    return RolledBack(f"{where} has given it up, or was restarted")


def _failed(raised: system.SystemException, where: str) -> OnceMQError:
    return ServerFailed(f"{where}: {raised.reason or raised}")


# In this order, since the last rows are of a more general kind.
_TABLE: tuple[tuple[type[Exception], Made], ...] = (
    (mq.QueueDisabled, lambda e, w: QueueDisabled(f"queue {e.queue!r}: {_meaning(e)}")),
    (mq.QueueNotFound, lambda e, w: NotFound(f"queue {e.queue!r}: {_meaning(e)}")),
    (
        mq.QueueFull,
        lambda e, w: QueueFull(f"queue {e.queue!r}, limit {e.limit}: {_meaning(e)}"),
    ),
    (mq.QueueEmpty, lambda e, w: NotFound(f"queue {e.queue!r}: {_meaning(e)}")),
    (
        mq.MessageNotFound,
        lambda e, w: NotFound(f"queue {e.queue!r}, key {e.key!r}: {_meaning(e)}"),
    ),
    (
        mq.LockTimeout,
        lambda e, w: LockTimeout(f"queue {e.queue!r}, key {e.key!r}: {_meaning(e)}"),
    ),
    (mq.Deadlock, lambda e, w: Deadlock()),
    (mq.BranchEnded, _branch_ended),
    (mq.DigestMismatch, lambda e, w: Damaged(f"message {e.position} on its way to {w}: {e}")),
    (system.NO_PERMISSION, lambda e, w: NotAllowed(f"{w}: {e.reason or _meaning(e)}")),
    (system.TIMEOUT, lambda e, w: Timeout(f"{w}: {e.reason or _meaning(e)}")),
    (system.COMM_FAILURE, lambda e, w: ConnectionLost(f"{w}: {e.reason or _meaning(e)}")),
    (system.TRANSIENT, lambda e, w: ConnectionLost(f"{w}: {e.reason or _meaning(e)}")),
    (system.IMP_LIMIT, lambda e, w: LimitExceeded(f"{w}: {e.reason or _meaning(e)}")),
    (
        system.TRANSACTION_ROLLEDBACK,
        lambda e, w: RolledBack(f"{w}: {e.reason or _meaning(e)}"),
    ),
    (
        system.OBJECT_NOT_EXIST,
        lambda e, w: ServerFailed(f"{w} is not the kind of server that is asked here: {e.reason}"),
    ),
    (system.SystemException, _failed),
    (UserException, lambda e, w: ServerFailed(f"{w}: {e}")),
    (InvalidValue, lambda e, w: ServerFailed(f"{w}: {e}")),
)

# What may come out of a call, and is translated.
RAISED = (UserException, system.SystemException)


def translated(raised: Exception, where: str) -> OnceMQError:
    """The exception that a user sees for one of the wire; `where` is the server, in words."""
    if isinstance(raised, OnceMQError):
        return raised
    for kind, made in _TABLE:
        if isinstance(raised, kind):
            return made(raised, where)
    raise AssertionError(f"{raised!r} does not come out of a call") from raised


def _meaning(raised: Exception) -> str:
    return inspect.cleandoc(type(raised).__doc__ or "").rstrip(".")
