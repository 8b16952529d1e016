"""Writing a DataFrame into a queue as one transaction: all of its rows, each once, or nothing.

    where                        what happens
    planner, on the driver       begins the transaction; only its name travels
    task attempt                 branches of its own, prepared at its end; their names are its vote
    committer, on the driver     names exactly the votes that Spark accepted: that is the decision

Nothing that an attempt sees proves that its rows will count: its input may have ended early because
what was before it failed. So only the committer decides, and everything that nobody named is
rolled back. A write that is part of a larger transaction is `JobTransaction.write`, and not this.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from clients.connection import Connection
from clients.errors import OnceMQError
from clients.spark.attempts import Attempt, Vote, branch_name
from clients.spark.errors import OptionError
from clients.spark.options import Options
from clients.spark.overwriting import take_out
from clients.spark.rows import Encoder, encoder_for
from clients.spark.sharing import (
    CommittedByAnother,
    PreparedBranch,
    begin_alone,
    connection_of,
    decide,
    give_up,
    wait_for_node,
    wait_until_there,
)
from clients.transaction import Outcome
from idl.otids import show

log = logging.getLogger("oncemq.spark")

# What stands for the work of an attempt that has found it done before.
SKIPPED = Vote(b"", (), 0)


class QueueWriter(DataSourceArrowWriter):
    """Writes the rows of one DataFrame. Made in the planner; it pickles."""

    def __init__(self, schema: StructType, options: Options) -> None:
        check_alone(options)
        self._encoder = encoder_for(schema, options)
        connection = connection_of(options)
        self._options = settled(options, connection)
        version = options.txn_version or 0
        begun = begin_alone(connection, options.transaction_timeout, options.txn_app_id, version)
        self._gtrid = begun.gtrid
        self._is_skipped = begun.is_committed
        if begun.is_committed:
            log.warning(
                "OnceMQ: version %d of %r, or a later one, was committed before; this write to "
                "queue %r is skipped, and nothing is put",
                version,
                options.txn_app_id,
                options.queue,
            )

    def write(self, iterator: Iterator[Any]) -> Vote:
        """The vote of one attempt of one task: its rows are at the node, prepared."""
        if self._is_skipped:
            return SKIPPED
        connection = connection_of(self._options)
        return put_rows(connection, self._gtrid, self._options.queue, self._encoder, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The accepted votes are committed, all together; returns only when that is known.

        Raises with the transaction's name: `RolledBack` if nothing of it happened, and
        `OutcomeUnknown` if nobody can say.
        """
        votes = votes_of(messages)
        if self._is_skipped:
            return
        try:
            connection, queue = connection_of(self._options), self._options.queue
            is_overwriting = self._options.overwrite
            removed = take_out(connection, self._gtrid, queue) if is_overwriting else ()
            commit_votes(connection, self._gtrid, votes, removed)
        except CommittedByAnother as other:
            if not self._options.txn_app_id:
                raise
            log.warning("OnceMQ: %s", other)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The transaction is rolled back, by its name: votes may be missing, branches exist."""
        if not self._is_skipped:
            give_up_quietly(self._options, self._gtrid)


def check_alone(options: Options) -> None:
    """Raises for options that do not fit a write which is a transaction of its own."""
    if options.transaction:
        raise OptionError(
            "a write within a transaction goes through it: tx.write(frame, queue), where tx is "
            "oncemq.spark.transaction(spark, url)"
        )
    if options.txn_app_id and not options.txn_version:
        raise OptionError("txnVersion counts from 1: add 1 to the number of a batch")


def settled(options: Options, connection: Connection) -> Options:
    """The options with the addresses found here, since another process may find others."""
    coordinator = str(connection.deciding().address)
    return replace(options, url=f"mq://{connection.node().address}", coordinator=coordinator)


def put_rows(
    connection: Connection, gtrid: bytes, queue: str, encoder: Encoder, rows: Iterator[Any]
) -> Vote:
    """The rows are at the node in branches of this attempt alone, prepared."""
    wait_for_node(connection)
    attempt = Attempt(connection, gtrid, attempt_name())
    try:
        for record_batch in rows:
            for batch in encoder.batches(record_batch):
                attempt.put(queue, batch)
        return Vote(gtrid, attempt.finish(), attempt.rows)
    except BaseException:
        attempt.rollback()
        raise


def attempt_name() -> str:
    """The name of the attempt that runs here. Numbers of attempts alone are not unique."""
    context = TaskContext.get()
    if context is None:
        return branch_name(0, 0, 0)
    return branch_name(context.stageId(), context.partitionId(), context.taskAttemptId())


def votes_of(messages: Iterable[WriterCommitMessage | None]) -> list[Vote]:
    """The votes among what Spark hands over, without those of work that was done before."""
    return [each for each in messages if isinstance(each, Vote) and each.gtrid]


def commit_votes(
    connection: Connection,
    gtrid: bytes,
    votes: Iterable[Vote],
    removed: Iterable[PreparedBranch] = (),
) -> None:
    """Exactly these votes are committed, and whoever looks into the queue finds their rows.

    `removed` are the branches that take out what was there before.
    """
    branches = [branch for vote in votes for branch in vote.branches]
    branches += removed
    decide(connection, gtrid, branches)
    wait_until_there(connection, gtrid, branches)


def give_up_quietly(options: Options, gtrid: bytes) -> None:
    """The transaction is rolled back if it can be; whatever led to this is told by others."""
    try:
        outcome = give_up(connection_of(options), gtrid)
    except OnceMQError as failed:
        log.warning("OnceMQ: transaction %s will be rolled back later: %s", show(gtrid), failed)
        return
    if outcome is Outcome.COMMITTED:
        log.warning(
            "OnceMQ: transaction %s was committed, whatever the job says: do not write the same "
            "rows again",
            show(gtrid),
        )
