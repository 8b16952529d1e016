"""Writing a stream into a queue: one transaction for each micro-batch, known by its number.

Spark makes this writer anew, in other processes, for planning and for committing each batch, and
nothing passes from one to the other but votes. So a task asks for the transaction under the key
(query, batch): the first begins it, the others join. A batch that is replayed after a crash finds
that it was committed, and puts nothing; one that was not, joins what is left, and the branches
that nobody names are rolled back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from clients.errors import OnceMQError, RolledBack
from clients.spark.attempts import Vote
from clients.spark.errors import OptionError
from clients.spark.options import Options
from clients.spark.rows import encoder_for
from clients.spark.sharing import (
    CommittedByAnother,
    begin,
    connection_of,
    wait_for_node,
)
from clients.spark.sink import (
    SKIPPED,
    commit_votes,
    give_up_quietly,
    put_rows,
    votes_of,
)
from idl.otids import show

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"

log = logging.getLogger("oncemq.spark")


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of one query. It pickles, and holds nothing but what was said."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._encoder = encoder_for(schema, options)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Vote:
        """The vote of one attempt of one task, in the transaction of its batch."""
        options = self._options
        connection = connection_of(options)
        wait_for_node(connection)
        query, batch = running_batch()
        application = options.txn_app_id or query
        # Batches count from 0, versions from 1.
        begun = begin(connection, options.transaction_timeout, application, batch + 1)
        if begun.is_committed:
            return SKIPPED
        return put_rows(connection, begun.gtrid, options.queue, self._encoder, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """The batch is committed, once, however often it is asked for."""
        votes = votes_of(messages)
        gtrids = sorted({vote.gtrid for vote in votes})
        if not gtrids:
            log.warning(
                "OnceMQ: batch %d was committed before; it is skipped, and nothing is put", batchId
            )
            return
        if len(gtrids) > 1:
            for gtrid in gtrids:
                give_up_quietly(self._options, gtrid)
            names = ", ".join(map(show, gtrids))
            raise RolledBack(
                f"batch {batchId}: its transaction ended while its tasks were at work, and they "
                f"have voted in several ({names}); start the query again"
            )
        try:
            commit_votes(connection_of(self._options), gtrids[0], votes)
        except CommittedByAnother as other:
            # What was committed is the same batch of the same query.
            log.warning("OnceMQ: batch %d: %s", batchId, other)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """What was voted for is rolled back; without votes, the batch's next attempt joins it."""
        for gtrid in {vote.gtrid for vote in votes_of(messages)}:
            give_up_quietly(self._options, gtrid)


def refuse_complete() -> None:
    """Raises: each batch would have to take back what those before it have put."""
    raise OptionError(
        '.outputMode("complete") would remove what is in the queue with each batch, also what '
        'others wait for: a stream only adds messages. Write with .outputMode("append") or "update"'
    )


def running_batch() -> tuple[str, int]:
    """The query and the number of the batch that this task works for."""
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY)
    batch = None if context is None else context.getLocalProperty(BATCH)
    if query is None or batch is None:
        raise OnceMQError("this task belongs to no streaming query, and has no batch to write")
    return query, int(batch)
