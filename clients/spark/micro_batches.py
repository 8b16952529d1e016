"""Micro-batches of a stream, each one transaction with as many outputs as it likes.

Spark may call the function of `foreachBatch` again for a batch that was done before, after a crash.
The batch's number is the version of the transaction, so that it is committed once: what comes again
is skipped. It knows the stream's DataFrame and nothing of where it comes from.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from clients.connection import Connection
from clients.errors import OnceMQError
from clients.spark.job import TIMEOUT_S, AlreadyCommitted, JobTransaction, transaction

QUERY_ID = "sql.streaming.queryId"

log = logging.getLogger("oncemq.spark")

Function = Callable[[Any, int, JobTransaction], object]


def foreach_batch(
    connection: Connection | str | None = None,
    *,
    application: str = "",
    timeout: float = TIMEOUT_S,
    marked: str = "",
) -> Callable[[Function], Callable[[Any, int], None]]:
    """Makes of `function(frame, batch_id, tx)` what `writeStream.foreachBatch` takes.

    What it does with `tx` is committed when it returns. `application` is the name under which
    batches are counted: one for each query, the same after every restart from its checkpoint.
    Without it that is the query's own id, which Spark Connect does not tell. See `transaction`.
    """

    def decorated(function: Function) -> Callable[[Any, int], None]:
        @functools.wraps(function)
        def run(frame: Any, batch_id: int) -> None:
            spark = frame.sparkSession
            key = application or _query_of(spark)
            begun = transaction(
                spark,
                connection,
                timeout=timeout,
                application=key,
                version=batch_id + 1,
                marked=marked,
            )
            with begun as tx:
                if not tx.already_committed:
                    function(frame, batch_id, tx)

        return run

    return decorated


def _query_of(spark: Any) -> str:
    context = getattr(spark, "_sc", None)
    found = None if context is None else context.getLocalProperty(QUERY_ID)
    if not found:
        raise OnceMQError(
            "which query this is cannot be found out here: say foreach_batch(…, application=NAME), "
            "with a name that the query keeps over restarts"
        )
    return str(found)


__all__ = ["AlreadyCommitted", "JobTransaction", "foreach_batch", "transaction"]
