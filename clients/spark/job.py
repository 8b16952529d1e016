"""One transaction over a whole job: what it reads is gone, and what it writes is there, or nothing.

    with oncemq.spark.transaction(spark, mq) as tx:
        orders = tx.read("orders", max_messages=100_000)
        tx.write(orders.transform(bill), "invoices")
        tx.write_table(orders.select("key", "value"), "orders", database="crm")

The transaction belongs to the process of the driver: its signs of life keep it, and when it dies
everything is rolled back when its session is over. Tasks work for it by its name. What holds:

1. Only branches whose votes Spark has accepted are part of the decision. A write that fails leaves
   nothing behind, so that the job may catch the failure and go on.
2. What was read is locked when `read` returns, stays the same for every attempt of every task, and
   is removed by the commit.
3. Where a database's mark decides, nothing of any attempt is prepared before the commit: a branch
   that asked about the mark would take it for its own.

It knows no rows and no statements; those are in `partitions.py` and `tables.py`.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from clients import structs
from clients.connection import Connection
from clients.errors import (
    RAISED,
    NotEnlisted,
    OnceMQError,
    OutcomeUnknown,
    RolledBack,
    translated,
)
from clients.messages import Attributes, checked_attributes, written_attributes
from clients.nodes import NETWORK, Node
from clients.spark import partitions, tables
from clients.spark.attempts import Vote
from clients.spark.columns import inserter_for
from clients.spark.database_links import Password, errors_of
from clients.spark.errors import OptionError
from clients.spark.options import Options, Role, read_options
from clients.spark.partitions import PartitionBranch, Place, PutRows, RunFunction
from clients.spark.reaching import options_of, reached, texts_of
from clients.spark.rows import encoder_for
from clients.spark.sharing import DECIDE_S, PreparedBranch, give_up
from clients.spark.source import lock_list
from clients.spark.tables import AlreadyCommitted, CopyRows, Target
from clients.transaction import Outcome, Transaction
from idl.call import Address, limited
from idl.coordination import mqParticipant
from idl.cos import Vote as NodeVote
from idl.databases import Kind
from idl.mq import mqSelection
from idl.otids import parse_shown

TIMEOUT_S = 3600.0
# More than there can be: each list is as long as the queue is.
EVERYTHING = 2**62
# Every partition of a table's write is a prepared transaction there, of which it allows few.
TABLE_PARTITIONS = 8
ROLLBACK_S = 5.0

log = logging.getLogger("oncemq.spark")


def transaction(
    spark: Any,
    connection: Connection | str | None = None,
    *,
    timeout: float = TIMEOUT_S,
    application: str = "",
    version: int = 0,
    marked: str = "",
) -> JobTransaction:
    """For `with`: a transaction over all that the job does in the block.

    `connection` is one to a server, or its url. After `timeout` seconds everything is rolled back.
    With `application` and `version`, which counts from 1, it is committed once: where this version
    or a later one was, `already_committed` says so, and whatever is done in the block is skipped.
    `marked` names the database whose own commit decides, if one without two-phase commit is
    written to behind other writes.
    """
    given = reached(connection)
    if bool(application) is not bool(version):
        raise ValueError("a key needs an application and a version from 1 on, or neither")
    return JobTransaction(spark, given, timeout, application, version, marked)


class JobTransaction:
    """A transaction of a Spark job. Made by `transaction`; for one thread at a time."""

    def __init__(
        self,
        spark: Any,
        connection: Connection,
        timeout_s: float,
        application: str = "",
        version: int = 0,
        marked: str = "",
    ) -> None:
        self._spark = spark
        self._connection = connection
        self._key = (application, version)
        self._named_mark = marked
        # How many rows came from each queue, and went into each queue and table.
        self.rows: Counter[str] = Counter()
        # The same transaction for everything else: `tx=` of puts and gets.
        self.tx = connection.begin(timeout_s)
        self.already_committed = not self.tx.share(application, version)
        if self.already_committed:
            self._tell_skipped()
            self.tx.set_rollback_only(self._skipped())
            self._gtrid = b""
        else:
            self._gtrid = parse_shown(self.tx.otid)
        self._lists: list[tuple[Node, str]] = []
        self._lists_made = 0
        self._branches: list[PreparedBranch] = []
        self._enlisted: dict[str, tuple[Target, Any, Any]] = {}
        self._copied: dict[str, Target] = {}

    def __enter__(self) -> JobTransaction:
        self.tx.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self.tx.leave()
        if kind is None:
            if self.tx.status in (Outcome.ACTIVE, Outcome.ROLLBACK_ONLY):
                self.commit()
            return False
        self.rollback(f"{kind.__name__} was raised")
        return isinstance(raised, AlreadyCommitted) or (
            self.already_committed and isinstance(raised, RolledBack)
        )

    def __repr__(self) -> str:
        return f"<JobTransaction {self.tx!r}>"

    @property
    def otid(self) -> str:
        """Its name, by which its outcome can be asked for; `oncemq tx list` shows it."""
        return self.tx.otid

    # --- Reading

    def read(
        self,
        queue: str,
        *,
        max_messages: int | None = None,
        group: int = 0,
        priority_min: int = 0,
        attributes: Mapping[str, str] | Attributes = (),
        connection: Connection | str | None = None,
        **options: object,
    ) -> Any:
        """A DataFrame of messages that are locked now, and removed by the commit.

        All that can be had, or so many, in the queue's order. It may be read as often as one
        likes: it stays the same. `where` and `limit` on it do not give anything back. Options are
        those of `format("oncemq")`: payload_format, schema, partitions, headers and so on.
        """
        self._check_not_skipped()
        there = self._other(connection)
        given = texts_of(options) | options_of(there) | {"queue": queue}
        self._lists_made += 1
        name = f"l{self._lists_made}"
        selection = mqSelection(
            group, priority_min, written_attributes(checked_attributes(attributes))
        )
        most = EVERYTHING if max_messages is None else max_messages
        # A wrong option is told before anything is locked.
        internal = {"transaction": self.otid, "listName": f"{name}.1:0"}
        read_options(given | internal, Role.TAKE)
        locked = lock_list(there, self._gtrid, name, queue, selection, most)
        self._lists += [(there.node(), branch) for branch in locked.branches]
        self.rows[queue] += locked.messages
        internal["listName"] = locked.text
        return self._spark.read.format("oncemq").options(**given, **internal).load()

    # --- Writing

    def write(
        self,
        frame: Any,
        queue: str,
        *,
        connection: Connection | str | None = None,
        **options: object,
    ) -> int:
        """Every row of the DataFrame is a message in the queue; says how many.

        Options are those of `format("oncemq")`: payload_format, headers, sender. What fails leaves
        nothing behind: the job may go on without it.
        """
        self._check_not_skipped()
        there = self._other(connection)
        given = texts_of(options) | options_of(there) | {"queue": queue}
        chosen = read_options(given, Role.SINK)
        if chosen.txn_app_id or chosen.transaction:
            raise OptionError(
                "within a transaction a write has no key and no transaction of its own"
            )
        encoder = encoder_for(frame.schema, chosen)
        return self._accept(queue, frame, PutRows(self._place(chosen), queue, encoder))

    def foreach_partition(
        self,
        frame: Any,
        function: Callable[[Any, PartitionBranch], object],
        *,
        connection: Connection | str | None = None,
    ) -> int:
        """The function is called in a task for each partition; says how many messages it put.

        It is given the rows as record batches of Arrow, and a branch: `branch.put(queue, payload)`
        is part of the transaction. An attempt that fails, or that Spark does not accept, has put
        nothing. It may be called more than once for a partition, and must not do anything else.
        """
        self._check_not_skipped()
        options = read_options(options_of(self._other(connection)) | {"queue": "-"}, Role.SINK)
        return self._accept("", frame, RunFunction(self._place(options), function))

    @property
    def _mark(self) -> str:
        """The database whose own commit decides, or will; empty where the coordinator does."""
        return self.tx.mark or self._named_mark

    def _place(self, options: Options) -> Place:
        return Place(options, self._gtrid, is_prepared=not self._mark)

    def _accept(self, name: str, frame: Any, work: Callable[[Any], Vote]) -> int:
        is_prepared = not self._mark
        votes = partitions.votes_of(frame, work)
        accepted = [branch for vote in votes for branch in vote.branches]
        if is_prepared:
            self.tx.accept(map(self._participant, accepted))
        self._branches += accepted
        count = sum(vote.rows for vote in votes)
        if name:
            self.rows[name] += count
        return count

    # --- Tables

    def write_table(
        self,
        frame: Any,
        table: str,
        *,
        database: str = "",
        dsn: str = "",
        password_env: str = "",
        password_file: str = "",
        partitions: int = TABLE_PARTITIONS,
    ) -> int:
        """Every row of the DataFrame is a row in the table; says how many.

        `database` is the name under which the coordinator knows it (`oncemq database add`), `dsn`
        another address of it, if executors need one. The password is looked up where the table is
        written: in the variable, the file, or where the driver looks by itself. A database with
        two-phase commit is written by tasks, `partitions` of them at most; any other through this
        process, and decides with its own commit: one in a transaction, and before all others.
        """
        self._check_not_skipped()
        password = Password(password_env, password_file)
        target = tables.target_for(self._connection, table, database, dsn, password)
        inserter = inserter_for(target.kind, table, frame.schema)
        is_two_phase = target.known.isTwoPhase and target.kind is not Kind.SQLITE
        if is_two_phase and not self._mark:
            self._copied[target.known.name] = target
            copying = CopyRows(target, self._gtrid, inserter)
            return self._accept(table, frame.coalesce(partitions), copying)
        # Also one with two-phase commit, where a mark decides about it.
        count = tables.stream_into(target, self._joined(target, is_two_phase), frame, inserter)
        self.rows[table] += count
        return count

    def enlist(self, connection: Any, *, database: str = "", markable: bool | None = None) -> Any:
        """A connection of this process is part of the transaction. See `Transaction.enlist`."""
        self._check_not_skipped()
        if self._branches and not self._mark:
            with self._explaining(database or "of this connection"):
                return self.tx.enlist(connection, database=database, markable=False)
        used = self.tx.enlist(connection, database=database, markable=markable)
        if self._named_mark and self.tx.mark != self._named_mark:
            self.tx.set_rollback_only("another database was named to decide")
            raise NotEnlisted(
                f"{self._named_mark} was named to decide about this transaction with its own "
                "commit: enlist it first"
            )
        return used

    def _joined(self, target: Target, is_two_phase: bool) -> Any:
        """The connection to the database that is part of the transaction."""
        name = target.known.name
        if name in self._enlisted:
            return self._enlisted[name][1]
        if not is_two_phase and self._mark and self._mark != name:
            raise NotEnlisted(
                f"database {name} has no two-phase commit, and neither has {self._mark}, which "
                "decides about this transaction: of two that cannot prepare, one could be "
                "committed and the other not. Use two transactions, and a queue between them"
            )
        if is_two_phase and not self.tx.mark:
            self._join_mark()
        opened = target.connect()
        try:
            with self._explaining(name):
                used = self.tx.enlist(opened, database=name, markable=not is_two_phase)
        except BaseException:
            opened.close()
            raise
        self._enlisted[name] = (target, used, opened)
        if not is_two_phase:
            self._check_version(target, used)
        return used

    def _join_mark(self) -> None:
        """The database that was named at the beginning takes part, if only with its mark."""
        target = tables.target_for(self._connection, "-", self._mark, "", Password())
        if target.known.isTwoPhase:
            raise NotEnlisted(f"database {self._mark} has two-phase commit: leave out marked=")
        self._joined(target, is_two_phase=False)

    @contextlib.contextmanager
    def _explaining(self, name: str) -> Iterator[None]:
        try:
            yield
        except NotEnlisted as refused:
            if not self._branches or self._mark:
                raise
            raise NotEnlisted(
                f"database {name}: {refused}. Its own commit would decide about all others, and "
                "tasks have prepared their work without knowing of it: write to it first, or begin "
                "with oncemq.spark.transaction(…, marked=NAME)"
            ) from refused

    def _check_version(self, target: Target, used: Any) -> None:
        application, version = self._key
        if application:
            try:
                tables.check_version(target, used, application, version)
            except AlreadyCommitted:
                self.already_committed = True
                self._tell_skipped()
                raise

    # --- Ends

    def commit(self) -> None:
        """All of it has happened. Raises `RolledBack`, `OutcomeUnknown`, or a heuristic outcome."""
        if self.already_committed:
            self.rollback(self._skipped())
            return
        try:
            if self._named_mark and not self.tx.mark and self._branches:
                self._join_mark()
            self.tx.accept(self._prepared())
            self._committed()
        except AlreadyCommitted:
            self.rollback(self._skipped())
        except BaseException:
            self.rollback("its commit failed")
            raise
        self._let_go()

    def _committed(self) -> None:
        try:
            self.tx.commit()
        except OutcomeUnknown:
            if self._mark:
                raise
            # The coordinator was away for longer than a call may take: it is waited for.
            if give_up(self._connection, self._gtrid, DECIDE_S) is not Outcome.COMMITTED:
                raise RolledBack("the coordinator was away, and had not decided it") from None

    def rollback(self, reason: str = "its owner rolled it back") -> None:
        """Nothing of it has happened."""
        if self.tx.status in (Outcome.ACTIVE, Outcome.ROLLBACK_ONLY):
            with contextlib.suppress(OnceMQError, *RAISED):
                self.tx.rollback()
            log.info("OnceMQ: transaction %s is rolled back: %s", self.tx, reason)
        if self.tx.status is Outcome.ROLLED_BACK:
            self._tell_nodes()
        self._let_go()

    def _tell_nodes(self) -> None:
        """What has not voted is rolled back at once; who is not told now asks the coordinator."""
        left = [*self._lists]
        if self._mark:
            left += [(self._node_at(each.node), each.name) for each in self._branches]
        for node, name in left:
            with contextlib.suppress(OnceMQError, *RAISED), limited(ROLLBACK_S):
                node.calls.rollbackBranch(structs.branch(self._gtrid, name, None))

    def _prepared(self) -> list[mqParticipant]:
        """What only now votes: the lists that were read, and all of it where a mark decides."""
        left = [PreparedBranch(str(node.address), name) for node, name in self._lists]
        if self._mark:
            left += self._branches
        for branch in left:
            self._prepare(self._node_at(branch.node), branch.name, branch.messages)
        return [self._participant(branch) for branch in left]

    def _participant(self, branch: PreparedBranch) -> mqParticipant:
        deciding, gtrid = self._connection.deciding(), self._gtrid
        if not branch.database:
            return deciding.participant(Address.parse(branch.node), gtrid, branch.name)
        made = deciding.database_participant(branch.database, gtrid, branch.name)
        # Without a settler: the rows are there when the decision is told.
        return mqParticipant(made.name, made.resource, None)

    def _prepare(self, node: Node, name: str, messages: int) -> None:
        recovery = self._connection.deciding().recovery_of(self._gtrid, name, self.tx.mark)
        branch = structs.branch(self._gtrid, name, recovery)
        try:
            vote = node.call(node.calls.prepareBranch, branch, messages)
        except RAISED as failed:
            raise translated(failed, node.where) from failed
        if vote is not NodeVote.COMMIT:
            raise RolledBack(f"{node.where} has lost what was done there for the transaction")

    def _node_at(self, address: str) -> Node:
        own = self._connection.node()
        if str(own.address) == address:
            return own
        return Node(own.orb, Address.parse(address), NETWORK, own.timeout_s, own.clock, own.sleep)

    def _let_go(self) -> None:
        """Connections are closed, and databases rid of what attempts have left there."""
        for target, _, opened in self._enlisted.values():
            with contextlib.suppress(*errors_of(target.kind), OSError):
                opened.close()
        self._enlisted.clear()
        is_over = self.tx.status in (Outcome.COMMITTED, Outcome.ROLLED_BACK)
        is_committed = self.tx.status is Outcome.COMMITTED
        for name, target in self._copied.items() if is_over else ():
            accepted = [each.name for each in self._branches if each.database == name]
            tables.roll_back_others(
                target, self._gtrid, frozenset(accepted if is_committed else ())
            )
        self._copied.clear()

    # --- Checks

    def _check_not_skipped(self) -> None:
        if self.already_committed:
            raise AlreadyCommitted(self._skipped())

    def _skipped(self) -> str:
        application, version = self._key
        return f"version {version} of {application!r}, or a later one, was committed before"

    def _tell_skipped(self) -> None:
        log.warning("OnceMQ: %s; what the block does is skipped", self._skipped())

    def _other(self, connection: Connection | str | None) -> Connection:
        if connection is None:
            return self._connection
        other = reached(connection)
        own = self._connection.deciding().address
        if other.deciding().address != own:
            raise OnceMQError(
                f"{other!r} has another coordinator than the transaction, which is {own}: they "
                "cannot end together"
            )
        return other


__all__ = ["AlreadyCommitted", "JobTransaction", "Transaction", "transaction"]
