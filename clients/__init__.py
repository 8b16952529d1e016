"""Everything a user imports or runs; the public names, which `oncemq` re-exports.

Talks to servers only through `idl`. `__version__` is read from the installed distribution when it
is first asked for, because reading it costs more than the rest of this import.
"""

from typing import TYPE_CHECKING

from clients.connecting import connect
from clients.connection import Connection
from clients.consumer import Consumer, Consumption, Counts
from clients.errors import (
    ConnectionLost,
    Damaged,
    Deadlock,
    HeuristicHazard,
    HeuristicMixed,
    KeyNotKnownYet,
    LimitExceeded,
    LockTimeout,
    NotAllowed,
    NotEnlisted,
    NotFound,
    OnceMQError,
    OutcomeUnknown,
    QueueDisabled,
    QueueFull,
    RolledBack,
    ServerFailed,
    Timeout,
    TransactionEnded,
)
from clients.messages import Key, Message
from clients.queue import Queue
from clients.tpc import TwoPhase
from clients.transaction import AUTOCOMMIT, Outcome, Transaction, current_transaction
from clients.workers import Worked, Worker, worker
from clients.zope_transactions import joined
from idl.access import Tls

__all__ = [
    "AUTOCOMMIT",
    "Connection",
    "ConnectionLost",
    "Consumer",
    "Consumption",
    "Counts",
    "Damaged",
    "Deadlock",
    "HeuristicHazard",
    "HeuristicMixed",
    "Key",
    "KeyNotKnownYet",
    "LimitExceeded",
    "LockTimeout",
    "Message",
    "NotAllowed",
    "NotEnlisted",
    "NotFound",
    "OnceMQError",
    "Outcome",
    "OutcomeUnknown",
    "Queue",
    "QueueDisabled",
    "QueueFull",
    "RolledBack",
    "ServerFailed",
    "Timeout",
    "Tls",
    "Transaction",
    "TransactionEnded",
    "TwoPhase",
    "Worked",
    "Worker",
    "__version__",
    "connect",
    "current_transaction",
    "joined",
    "worker",
]

__version__: str

# Hidden from type checkers, which would otherwise believe that every misspelt name exists.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> str:
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import metadata

        try:
            return metadata.version("oncemq")
        except metadata.PackageNotFoundError:
            # A source tree that nobody installed has no version of its own.
            return "0+source"
