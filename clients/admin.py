"""Administration as plain functions: what the command calls, and a console will.

Transactions are asked for at their coordinator, branches in doubt at the node that holds them, and
both views can be laid over each other. Queues and switches are the node's. An operator may name a
transaction by any beginning of its name that fits only one. It shows nothing and asks nobody back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from idl.call import Address, Orb
from idl.coordination import (
    Mq_TransactionAdmin,
    mqOutcome,
    mqTransactionInfo,
)
from idl.cos import Status, otid_t
from idl.mapping import InvalidValue
from idl.mq import (
    ConsumerNotFound,
    Mq_Admin,
    Mq_Node,
    check_queue_name,
    mqBranchInfo,
    mqConsumerInfo,
    mqNodeInfo,
    mqQueueInfo,
    mqQueueSettings,
)
from idl.otids import show, split_otid

COORDINATOR_ADMIN = "transactions"
NODE_ADMIN = "admin"
NODE = "node"

# Words for states, as operators type them.
STATES = {status.name.lower().replace("_", "-"): status for status in Status}


class NotOne(Exception):
    """A name fits no transaction, or more than one; the message says which."""


@dataclass(frozen=True)
class Participant:
    """A participant of a transaction, as its coordinator sees it."""

    name: str
    resource: str
    state: str
    attempts: int
    trouble: str


@dataclass(frozen=True)
class TransactionView:
    """A transaction, or a branch of one at a node, as an operator sees it; times in seconds."""

    name: str
    status: str
    owner: str
    age_s: int
    time_left_s: int
    explanation: str
    key: str = ""
    participants: tuple[Participant, ...] = ()
    branches: tuple[TransactionView, ...] = ()


# --- At the coordinator --------------------------------------------------------------------------


class Transactions:
    """The transactions of one coordinator."""

    def __init__(self, orb: Orb, address: Address) -> None:
        self._admin = orb.proxy(f"PYRO:{COORDINATOR_ADMIN}@{address}", Mq_TransactionAdmin)

    def every(self) -> list[TransactionView]:
        """All that are under way, and those whose heuristic outcomes nobody has dismissed."""
        return [_view(info) for info in self._admin.listTransactions()]

    def one(self, name: str) -> TransactionView:
        """The transaction of this name, or of one that begins so."""
        return _view(self._admin.getTransaction(self._otid(name)))

    def rollback(self, name: str) -> mqOutcome:
        """Ends one that is not decided; the outcome, which may be another."""
        return self._admin.rollbackTransaction(self._otid(name))

    def forget(self, name: str) -> int:
        """Gives up participants that cannot be reached; how many they were."""
        return self._admin.forgetTransaction(self._otid(name))

    def _otid(self, name: str) -> otid_t:
        return _chosen(name, [info.otid for info in self._admin.listTransactions()])


def _view(info: mqTransactionInfo) -> TransactionView:
    key = f"{info.key.application} {info.key.version}" if info.key.version else ""
    participants = tuple(
        Participant(p.name, p.resource, p.state, p.attempts, p.trouble) for p in info.participants
    )
    return TransactionView(
        shown_name(info.otid),
        _word(info.status),
        info.owner,
        info.age,
        info.timeLeft,
        info.explanation,
        key,
        participants,
    )


# --- At a node -----------------------------------------------------------------------------------


class Branches:
    """The branches of one node."""

    def __init__(self, orb: Orb, address: Address) -> None:
        self._admin = orb.proxy(f"PYRO:{NODE_ADMIN}@{address}", Mq_Admin)

    def every(self) -> list[TransactionView]:
        """All that are at work, in doubt, or were ended by hand."""
        return [_branch_view(info) for info in self._admin.listBranches()]

    def one(self, name: str) -> TransactionView:
        """The branch of this name, or of one that begins so."""
        wanted = self._otid(name)
        return next(v for v in self.every() if v.name == shown_name(wanted))

    def decide(self, name: str, commit: bool) -> None:
        """Ends one that is in doubt, by hand: a heuristic outcome."""
        self._admin.decideBranch(self._otid(name), commit)

    def forget(self, name: str) -> None:
        """A heuristic outcome is not remembered any longer."""
        self._admin.forgetBranch(self._otid(name))

    def _otid(self, name: str) -> otid_t:
        return _chosen(name, [info.otid for info in self._admin.listBranches()])


def _branch_view(info: mqBranchInfo) -> TransactionView:
    explanation = f"{info.stored} stored, {info.deleted} taken"
    if info.state is Status.PREPARED:
        explanation = f"in doubt: {explanation}; asks {info.coordinator}"
    elif info.state is Status.ACTIVE:
        explanation = f"at work: {explanation}"
    elif info.state in (Status.COMMITTED, Status.ROLLED_BACK):
        explanation = f"ended by hand: {explanation}"
    return TransactionView(
        shown_name(info.otid), _word(info.state), info.owner, info.age, 0, explanation
    )


# --- Both ----------------------------------------------------------------------------------------


def merged(
    transactions: Sequence[TransactionView], branches: Sequence[TransactionView]
) -> list[TransactionView]:
    """Each transaction with its branches at the node, then the branches of others.

    The coordinator need not know of a transaction that works at a node: the fast way tells it only
    at the end.
    """
    known = {view.name for view in transactions}
    found = [
        replace(view, branches=tuple(b for b in branches if _transaction_of(b) == view.name))
        for view in transactions
    ]
    return found + [branch for branch in branches if _transaction_of(branch) not in known]


def _transaction_of(branch: TransactionView) -> str:
    return branch.name.partition("/")[0]


def selected(
    views: Iterable[TransactionView], state: str | None, older_s: float
) -> list[TransactionView]:
    """Those in this state that are at least so old, the oldest first."""
    found = [v for v in views if (state is None or v.status == state) and v.age_s >= older_s]
    return sorted(found, key=lambda view: -view.age_s)


def shown_name(otid: otid_t) -> str:
    """A transaction's name as operators read and type it; a branch's behind a slash."""
    gtrid, branch = split_otid(otid)
    return f"{show(gtrid)}/{branch}" if branch else show(gtrid)


def one_of(name: str, views: Sequence[TransactionView]) -> TransactionView:
    """The one of this name, or whose name alone begins so."""
    fitting = [view for view in views if view.name.startswith(name)]
    exact = [view for view in fitting if view.name == name]
    if len(exact or fitting) == 1:
        return (exact or fitting)[0]
    raise _not_one(name, [view.name for view in fitting])


def seconds(text: str) -> float:
    """A time such as `90`, `90s`, `5m`, `2h` or `1d`."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        found = float(number) * units[unit]
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise InvalidValue(f"{text!r} is not a time: write 90s, 5m, 2h or 1d")
    return found


def _chosen(name: str, otids: Sequence[otid_t]) -> otid_t:
    fitting = [otid for otid in otids if shown_name(otid).startswith(name)]
    exact = [otid for otid in fitting if shown_name(otid) == name]
    if len(exact or fitting) == 1:
        return (exact or fitting)[0]
    raise _not_one(name, [shown_name(otid) for otid in fitting])


def _not_one(name: str, fitting: Sequence[str]) -> NotOne:
    if not fitting:
        return NotOne(f"nothing is called {name!r}: it is over, or was never here")
    return NotOne(f"{name!r} fits {len(fitting)}: {', '.join(fitting[:5])}")


def _word(status: Status) -> str:
    return status.name.lower().replace("_", "-")


# --- Queues of a node ----------------------------------------------------------------------------


@dataclass(frozen=True)
class QueueView:
    """A queue as an operator sees it; a limit of 0 is none."""

    name: str
    enabled: bool
    prioritized: bool
    messages: int
    held: int
    bytes: int
    oldest_s: int
    messages_max: int
    bytes_max: int

    def fields(self) -> dict[str, Any]:
        """For scripts."""
        return asdict(self)


class Queues:
    """The queues of one node."""

    def __init__(self, orb: Orb, address: Address) -> None:
        self._admin = orb.proxy(f"PYRO:{NODE_ADMIN}@{address}", Mq_Admin)

    def every(self) -> list[QueueView]:
        """All queues, by name."""
        return sorted(map(_queue_view, self._admin.listQueues()), key=lambda view: view.name)

    def one(self, name: str) -> QueueView:
        """The queue of this name."""
        return _queue_view(self._admin.getQueue(check_queue_name(name)))

    def create(self, name: str, prioritized: bool, messages_max: int, bytes_max: int) -> None:
        """There is an empty queue."""
        settings = mqQueueSettings(True, prioritized, messages_max, bytes_max)
        self._admin.createQueue(check_queue_name(name), settings)

    def change(
        self,
        name: str,
        *,
        enabled: bool | None = None,
        prioritized: bool | None = None,
        messages_max: int | None = None,
        bytes_max: int | None = None,
    ) -> QueueView:
        """The queue has these settings; None leaves one as it is."""
        now = self._admin.getQueue(check_queue_name(name)).settings
        self._admin.changeQueue(
            name,
            mqQueueSettings(
                now.enabled if enabled is None else enabled,
                now.prioritized if prioritized is None else prioritized,
                now.messagesMax if messages_max is None else messages_max,
                now.bytesMax if bytes_max is None else bytes_max,
            ),
        )
        return self.one(name)

    def delete(self, name: str) -> None:
        """There is no such queue; raises `QueueInUse` while it holds anything."""
        self._admin.deleteQueue(check_queue_name(name))

    def purge(self, name: str) -> int:
        """Every message that no transaction holds is removed; how many they were."""
        return self._admin.purgeQueue(check_queue_name(name))


def _queue_view(info: mqQueueInfo) -> QueueView:
    settings = info.settings
    return QueueView(
        info.queue,
        settings.enabled,
        settings.prioritized,
        info.visible,
        info.locked,
        info.bytes,
        info.oldest,
        settings.messagesMax,
        settings.bytesMax,
    )


# --- Switches of a node --------------------------------------------------------------------------


@dataclass(frozen=True)
class ConsumerView:
    """A named consumer with reservations, as an operator sees it."""

    name: str
    queue: str
    reserved: int
    age_s: int

    @property
    def program(self) -> str:
        """The name without the run that it stands for."""
        return self.name.partition("@")[0]


class Switches:
    """What a node is and whether it works: the administrator's client of `Mq_Service`."""

    def __init__(self, orb: Orb, address: Address) -> None:
        self._admin = orb.proxy(f"PYRO:{NODE_ADMIN}@{address}", Mq_Admin)
        self._node = orb.proxy(f"PYRO:{NODE}@{address}", Mq_Node)

    def node(self) -> mqNodeInfo:
        """Its name, its coordinator and the largest message it takes."""
        return self._node.getNode()

    def is_enabled(self) -> bool:
        """Whether puts and gets work."""
        return self._admin.isEnabled()

    def enable(self, is_enabled: bool) -> None:
        """Puts and gets work, or are refused; administration works always."""
        self._admin.setEnabled(is_enabled)

    def status(self) -> str:
        """In the node's own words."""
        return self._admin.getStatus()

    def consumers(self) -> list[ConsumerView]:
        """Who has reserved messages."""
        return [_consumer_view(info) for info in self._admin.listConsumers()]

    def drop_consumer(self, name: str) -> list[ConsumerView]:
        """The consumers of this name are unknown; what they had reserved can be had again.

        `etl` stands for every run of it, `etl@…` for one. Raises `ConsumerNotFound`.
        """
        found = [each for each in self.consumers() if name in (each.name, each.program)]
        for each in found:
            self._admin.dropConsumer(each.name)
        if not found:
            raise ConsumerNotFound(name)
        return found

    def shut_down(self) -> None:
        """The node begins to stop: running transactions are rolled back, prepared ones kept."""
        self._admin.mqShutdown()


def _consumer_view(info: mqConsumerInfo) -> ConsumerView:
    return ConsumerView(info.consumer, info.queue, info.reserved, info.age)
