"""Spark and OnceMQ: partitions as enlisted clients, and a job as one transaction.

Names are looked up when they are used: Spark imports this package in many short-lived processes,
each of which needs a part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clients.spark.java import ensure_java, session
    from clients.spark.job import JobTransaction, transaction
    from clients.spark.micro_batches import foreach_batch
    from clients.spark.tables import AlreadyCommitted

__all__ = [
    "AlreadyCommitted",
    "JobTransaction",
    "ensure_java",
    "foreach_batch",
    "session",
    "transaction",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("ensure_java", "session"):
        from clients.spark import java as home
    else:
        from clients.spark import micro_batches as home  # type: ignore[no-redef]
    return getattr(home, name)
