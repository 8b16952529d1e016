"""A connection: queues and transactions of one node, and the coordinator that decides them.

It is one object to share: between threads, and with forked children, which get connections and a
session of their own. Nothing is opened before it is needed. How a node is reached is handed in;
this module knows no transport and no servers.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from clients.current import Current
from clients.deciding import Deciding
from clients.errors import RAISED, OnceMQError, translated
from clients.heartbeat import Heartbeat
from clients.nodes import Node
from clients.queue import Queue
from clients.transaction import Outcome, Transaction
from idl import system
from idl.call import Address, Orb, limited
from idl.coordination import Mq_TransactionAdmin, mqDatabaseSettings
from idl.cos import Control, Status, TransactionFactory
from idl.mq import Mq_Admin, Mq_Fifo, Mq_Standard, check_queue_name, mqNodeInfo
from idl.otids import otid_of, parse_shown
from idl.process import here

T = TypeVar("T")

ADMIN = "admin"
FACTORY = "factory"
TRANSACTION_ADMIN = "transactions"
GRACE_S = 60.0
CLOSE_S = 2.0
DOUBTS_MAX = 1000

_OUTCOMES = {
    Status.ACTIVE: Outcome.ACTIVE,
    Status.MARKED_ROLLBACK: Outcome.ACTIVE,
    Status.PREPARING: Outcome.ACTIVE,
    Status.PREPARED: Outcome.IN_DOUBT,
    Status.COMMITTING: Outcome.COMMITTED,
    Status.COMMITTED: Outcome.COMMITTED,
    Status.ROLLING_BACK: Outcome.ROLLED_BACK,
    Status.ROLLED_BACK: Outcome.ROLLED_BACK,
}


class _Doubt(NamedTuple):
    """Who tells an outcome: the node that had all the work, or else the mark. See `Home.doubt`."""

    mark: str
    node: Node | None


class Opened(NamedTuple):
    """What a connection stands on once it is open."""

    orb: Orb
    node: Address
    realm: object
    coordinator: Address | None
    close: Callable[[], None]


# A program uses the same few names again and again.
_checked_name = functools.lru_cache(maxsize=1024)(check_queue_name)


class Way(Protocol):
    """How a node is reached."""

    def open(self) -> Opened:
        """The node can be called. Raises an `OnceMQError`."""


class Settings(NamedTuple):
    """What was said when connecting."""

    url: str
    timeout_s: float
    sender: str
    coordinator: Address | None
    # How to connect once more, in another process; None where a secret would have to travel.
    again: dict[str, Any] | None
    why_not_again: str = ""


class Connection:
    """Queues and transactions of one node. May be used from any thread; `with` closes it."""

    def __init__(
        self,
        way: Way,
        settings: Settings,
        heartbeat: Heartbeat,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        connect_again: Callable[[dict[str, Any]], Connection],
    ) -> None:
        self._way = way
        self._settings = settings
        # See `Home`.
        self.sender: Final = settings.sender
        self.timeout_s: Final = settings.timeout_s
        self._heartbeat = heartbeat
        self._clock = clock
        self._sleep = sleep
        self._connect_again = connect_again
        self._lock = threading.Lock()
        self._process = here.pid
        self._opened: Opened | None = None
        self._node: Node | None = None
        self._deciding: Deciding | None = None
        self._watched_in = 0
        # Transactions of whose outcome nobody was told, the oldest first.
        self._doubts: dict[bytes, _Doubt] = {}
        self._is_closed = False

    # --- What people use

    def queue(self, name: str) -> Queue:
        """The queue of this name; it is made when something is first put into it."""
        return Queue(self, _checked_name(name))

    def transaction(self, timeout: float = 30.0) -> Transaction:
        """For `with`: committed at the end of the block, rolled back on an exception."""
        return self.begin(timeout)

    def begin(self, timeout: float = 30.0) -> Transaction:
        """A new transaction, to be passed as `tx=` and ended by `commit()` or `rollback()`."""
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout {timeout!r}: a transaction takes a positive, finite time")
        if self._is_closed:
            self._check_open()
        return Transaction(self, timeout, self._clock)

    def outcome(self, otid: str) -> Outcome:
        """How the transaction of this name ended, as far as node and coordinator know.

        `Outcome.UNKNOWN`: nobody knows any more, it was never heard of, or it has changed nothing
        at this node; then a connection to another one may know.
        """
        gtrid = parse_shown(otid)
        doubt = self._doubts.get(gtrid)
        alone = None if doubt is None else doubt.node
        node = self.node() if alone is None or alone.is_closed else alone
        here = node.ask(node.calls.getOutcome, otid_of(gtrid))
        if here in (Status.COMMITTED, Status.ROLLED_BACK, Status.ACTIVE):
            return _OUTCOMES[here]
        deciding = self.deciding()
        try:
            if doubt is not None and doubt.mark:
                told = deciding.decide_marked(gtrid, doubt.mark, False, (), self.timeout_s)
                return _OUTCOMES[told.status]
            decided = _OUTCOMES.get(deciding.outcome(gtrid).status, Outcome.UNKNOWN)
        except RAISED as failed:
            raise translated(failed, deciding.where) from failed
        if here is Status.PREPARED:
            # A database's mark may say otherwise than a coordinator that was not told.
            return decided if decided is Outcome.COMMITTED else Outcome.IN_DOUBT
        # The coordinator is not told of what one node commits alone, so that its word for anything
        # but a commit counts only where it was asked to decide.
        is_its_own = doubt is not None and alone is None
        return decided if is_its_own or decided is Outcome.COMMITTED else Outcome.UNKNOWN

    def register_database(
        self,
        name: str,
        dsn: str,
        *,
        password_file: str = "",
        password_env: str = "",
        schema: str = "",
        grace: float = GRACE_S,
    ) -> None:
        """The coordinator knows the database and has its table there, so that it can be enlisted.

        `dsn` holds no password: the file or the variable that has it is named. What an application
        left prepared is rolled back after `grace` seconds. May be repeated. Over the network that
        is for operators: `oncemq database add`.
        """
        deciding = self.deciding()
        admin = self.node().orb.proxy(
            f"PYRO:{TRANSACTION_ADMIN}@{deciding.address}", Mq_TransactionAdmin
        )
        grace_ms = round(1000 * grace)
        settings = mqDatabaseSettings(name, dsn, password_file, password_env, schema, grace_ms)
        try:
            admin.addDatabase(settings)
            admin.prepareDatabase(name, "")
        except system.BAD_PARAM as wrong:
            raise ValueError(wrong.reason) from wrong
        except RAISED as failed:
            raise translated(failed, deciding.where) from failed

    def ping(self) -> mqNodeInfo:
        """What the node says of itself; raises if it cannot be reached."""
        node = self.node()
        return node.ask(node.calls.getNode)

    def close(self) -> None:
        """Lets go of everything; what was not committed is rolled back."""
        if self._is_closed:
            return
        self._is_closed = True
        deciding, node, opened = self._deciding, self._node, self._opened
        is_own = self._process == here.pid or self._watched_in == here.pid
        if deciding is not None and is_own:
            self._heartbeat.unwatch(deciding.leases)
            with contextlib.suppress(*RAISED), limited(CLOSE_S):
                deciding.leases.close()
        if node is not None:
            node.is_closed = True
        if opened is not None:
            opened.close()

    def __enter__(self) -> Connection:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " (closed)" if self._is_closed else ""
        return f"<Connection {self._settings.url}{state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._settings.again is None:
            raise TypeError(f"{self!r} cannot be pickled: {self._settings.why_not_again}")
        return self._connect_again, (self._settings.again,)

    # --- The standard's own objects

    @property
    def current(self) -> Current:
        """CosTransactions' `Current`, at this connection's coordinator."""
        return Current(self._factory())

    def control(self, timeout: int = 0) -> Control:
        """A new transaction's `Control`, for the calls of `standard` and `fifo`; 0: no limit."""
        deciding = self.deciding()
        try:
            return self._factory().create(timeout)
        except RAISED as failed:
            raise translated(failed, deciding.where) from failed

    def standard(self, queue: str) -> Mq_Standard:
        """The queue's `Mq_Standard`, as the contract has it."""
        return self._proxy(f"standard/{check_queue_name(queue)}", Mq_Standard)

    def fifo(self, queue: str) -> Mq_Fifo:
        """The queue's `Mq_Fifo`, as the contract has it."""
        return self._proxy(f"fifo/{check_queue_name(queue)}", Mq_Fifo)

    def admin(self) -> Mq_Admin:
        """The node's `Mq_Admin`, as the contract has it."""
        return self._proxy(ADMIN, Mq_Admin)

    def _proxy(self, name: str, interface: type[T]) -> T:
        node = self.node()
        return node.orb.proxy(f"PYRO:{name}@{node.address}", interface)

    def _factory(self) -> TransactionFactory:
        deciding = self.deciding()
        reference = f"PYRO:{FACTORY}@{deciding.address}"
        return self.node().orb.proxy(reference, TransactionFactory)

    # --- What queues and transactions use

    @property
    def realm(self) -> object:
        """See `Home.realm`."""
        return (self._node or self._open()).realm

    def node(self) -> Node:
        """See `QueueHome.node`."""
        return self._node or self._open()

    def deciding(self) -> Deciding:
        """See `Home.deciding`."""
        deciding = self._deciding or self._find_coordinator()
        if self._watched_in != here.pid:
            self._heartbeat.watch(deciding.leases)
            self._watched_in = here.pid
        return deciding

    def doubt(self, gtrid: bytes, mark: str = "", node: Node | None = None) -> None:
        """See `Home.doubt`."""
        self._doubts[gtrid] = _Doubt(mark, node)
        while len(self._doubts) > DOUBTS_MAX:
            self._doubts.pop(next(iter(self._doubts)))

    def _check_open(self) -> None:
        if self._is_closed:
            raise OnceMQError("this connection was closed: connect again")

    def _open(self) -> Node:
        self._check_open()
        with self._guarded():
            if self._node is None:
                self._opened = opened = self._way.open()
                self._node = Node(
                    opened.orb,
                    opened.node,
                    opened.realm,
                    self.timeout_s,
                    self._clock,
                    self._sleep,
                )
            return self._node

    def _find_coordinator(self) -> Deciding:
        node = self.node()
        assert self._opened is not None
        address = self._settings.coordinator or self._opened.coordinator
        if address is None:
            told = node.ask(node.calls.getNode).coordinator
            if not told:
                raise OnceMQError(
                    f"{node.where} names no coordinator: pass coordinator='HOST:PORT', or set "
                    "ONCEMQ_COORDINATOR"
                )
            address = Address.parse(told)
        with self._guarded():
            if self._deciding is None:
                self._deciding = Deciding(node.orb, address, self._clock, self._sleep)
            return self._deciding

    @contextlib.contextmanager
    def _guarded(self) -> Any:
        if self._process != here.pid:
            # The lock may have been held by a thread that exists only in the parent.
            self._lock = threading.Lock()
            self._process = here.pid
        with self._lock:
            yield
