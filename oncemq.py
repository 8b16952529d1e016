"""`import oncemq`: the public names of `clients`, under the name that people write.

Holds no code of its own; what a name means is said where it is defined. `oncemq.spark` is imported
when it is used first: who does not use Spark need not have it.
"""

from typing import TYPE_CHECKING, Any

from clients import (
    AUTOCOMMIT,
    Connection,
    ConnectionLost,
    Consumer,
    Consumption,
    Counts,
    Damaged,
    Deadlock,
    HeuristicHazard,
    HeuristicMixed,
    Key,
    KeyNotKnownYet,
    LimitExceeded,
    LockTimeout,
    Message,
    NotAllowed,
    NotEnlisted,
    NotFound,
    OnceMQError,
    Outcome,
    OutcomeUnknown,
    Queue,
    QueueDisabled,
    QueueFull,
    RolledBack,
    ServerFailed,
    Timeout,
    Tls,
    Transaction,
    TransactionEnded,
    TwoPhase,
    Worked,
    Worker,
    __version__,
    connect,
    current_transaction,
    joined,
    worker,
)

if TYPE_CHECKING:
    from clients import spark as spark

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


def __getattr__(name: str) -> Any:
    if name != "spark":
        raise AttributeError(f"module 'oncemq' has no attribute {name!r}")
    from clients import spark

    return spark
