"""A transaction that many processes share by its name: begun in one, worked in and ended in others.

Spark's driver plans in one process, writes in many and commits in yet another, so that nothing but
the name of the transaction can pass from one to the next. It belongs to no session: what ends it,
if nobody does, is its time. It knows coordinator and branches, and neither Spark nor messages.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

from clients.connecting import TIMEOUT_S, connect
from clients.connection import Connection
from clients.deciding import ATTEMPT_S, COORDINATION, Deciding
from clients.errors import RAISED, ConnectionLost, OnceMQError, RolledBack, Timeout, translated
from clients.nodes import NETWORK, Node
from clients.spark.options import Options
from clients.transaction import Outcome
from idl import system
from idl.access import Tls
from idl.call import Address
from idl.coordination import Mq_Coordinator, mqBegun, mqParticipant, mqTransactionKey
from idl.cos import Status
from idl.otids import otid_of, show, split_otid

# How long a beginning is tried, and how long an end is asked for before nobody knows of it.
BEGIN_S = 20.0
DECIDE_S = 300.0
# How long a commit waits for what it has decided to be seen.
THERE_S = 60.0
PAUSE_S = 0.1
PAUSE_S_MAX = 2.0

_EMBEDDED = (
    "{!r} is a node inside one process, and Spark works in many: run a server (`oncemq up`) and "
    'give its url, as in "mq://HOST:PORT"'
)
_LOST = (system.COMM_FAILURE, system.TIMEOUT, system.TRANSIENT, system.MARSHAL)

log = logging.getLogger("oncemq.spark")

T = TypeVar("T")


class EmbeddedUrl(OnceMQError):
    """Spark works in many processes, which an embedded node cannot serve."""


class CommittedByAnother(OnceMQError):
    """Another run has committed the same; nothing of this one was kept."""


class PreparedBranch(NamedTuple):
    """A branch that has voted to commit: at a node, or in a database that is registered.

    `messages` is what it holds at a node.
    """

    node: str
    name: str
    database: str = ""
    messages: int = 0


class Begun(NamedTuple):
    """A transaction to work under; or the version was committed before, and there is none."""

    gtrid: bytes
    is_committed: bool
    is_joined: bool


def connection_to(
    url: str,
    token_file: str | None = None,
    coordinator: str | None = None,
    tls: Tls | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Connection:
    """The connection that all work of this process shares; raises an `OnceMQError`."""
    if url.partition(":")[0].strip().lower() in ("file", "memory"):
        raise EmbeddedUrl(_EMBEDDED.format(url))
    # A forked child may share the object, but there is no need for it to.
    connection = _connected(os.getpid(), url, token_file, coordinator, tls, timeout_s)
    if connection.realm is not NETWORK:
        raise EmbeddedUrl(_EMBEDDED.format(connection))
    return connection


def connection_of(options: Options) -> Connection:
    """The same for what the options of a read or write say."""
    authority, certificate, key = (
        None if each is None else Path(each)
        for each in (options.tls_authority, options.tls_certificate, options.tls_key)
    )
    tls = None if authority is None else Tls(authority, certificate, key)
    return connection_to(
        options.url or "", options.token_file, options.coordinator, tls, options.timeout
    )


@functools.lru_cache(maxsize=16)
def _connected(
    process: int,
    url: str,
    token_file: str | None,
    coordinator: str | None,
    tls: Tls | None,
    timeout_s: float,
) -> Connection:
    return connect(
        url or None, token_file=token_file, coordinator=coordinator, tls=tls, timeout=timeout_s
    )


# --- Beginning -----------------------------------------------------------------------------------


def begin(
    connection: Connection,
    timeout_s: float,
    application: str = "",
    version: int = 0,
    patience_s: float = BEGIN_S,
) -> Begun:
    """A transaction that lives so long at most; under a key, the one that is under way there.

    Versions count from 1. One that is not above the last that was committed is committed.
    """
    deciding = connection.deciding()
    coordinator = _coordinator(connection, deciding)
    key = mqTransactionKey(application, version)

    def ask() -> mqBegun:
        return coordinator.beginOrJoin(0, key, max(1, round(timeout_s)))

    try:
        begun = _insist(connection, ask, patience_s)
    except RAISED as failed:
        raise translated(failed, deciding.where) from failed
    if begun.status is Status.COMMITTED:
        return Begun(b"", True, False)
    return Begun(split_otid(begun.otid)[0], False, begun.isJoined)


def begin_alone(
    connection: Connection, timeout_s: float, application: str = "", version: int = 0
) -> Begun:
    """The same; where one is under way with this key, this takes its place.

    It may be that of a run that died. If it was alive, it cannot commit any more.
    """
    begun = begin(connection, timeout_s, application, version)
    while begun.is_joined:
        log.warning(
            "version %d of %r is being written by another run, which is given up for this one",
            version,
            application,
        )
        give_up(connection, begun.gtrid)
        begun = begin(connection, timeout_s, application, version)
    return begun


def last_version(connection: Connection, application: str) -> int:
    """The highest version of the application that was committed, 0 when there is none."""
    deciding = connection.deciding()
    coordinator = _coordinator(connection, deciding)
    try:
        return _insist(connection, lambda: coordinator.getVersion(application), BEGIN_S)
    except RAISED as failed:
        raise translated(failed, deciding.where) from failed


def _coordinator(connection: Connection, deciding: Deciding) -> Mq_Coordinator:
    reference = f"PYRO:{COORDINATION}@{deciding.address}"
    return connection.node().orb.proxy(reference, Mq_Coordinator, ATTEMPT_S)


# --- Ends ----------------------------------------------------------------------------------------


def decide(
    connection: Connection,
    gtrid: bytes,
    branches: Iterable[PreparedBranch],
    patience_s: float = DECIDE_S,
) -> None:
    """Exactly these branches are committed, and with them the transaction. May be repeated.

    Raises `RolledBack`, `CommittedByAnother`, or `OutcomeUnknown` when nobody answers for so long.
    """
    deciding = _reached(connection, patience_s)
    participants = tuple([_participant(deciding, gtrid, branch) for branch in branches])
    try:
        outcome = deciding.decide(gtrid, participants, patience_s)
    except RAISED as refused:
        told = translated(refused, deciding.where)
        outcome = deciding.give_up(gtrid, patience_s)
        if outcome.status is Status.COMMITTED:
            raise CommittedByAnother(
                f"transaction {show(gtrid)} was committed with other branches than these, by "
                "another run of the same work; nothing of this one was kept"
            ) from told
        raise RolledBack(f"transaction {show(gtrid)}: {told}") from told
    if outcome.status is not Status.COMMITTED:
        reason = outcome.reason or "the coordinator rolled it back"
        raise RolledBack(f"transaction {show(gtrid)}: {reason}")


def wait_until_there(
    connection: Connection,
    gtrid: bytes,
    branches: Iterable[PreparedBranch],
    patience_s: float = THERE_S,
) -> None:
    """What was decided can be seen at this node, or it takes longer than that; raises nothing.

    A decision is told when it is certain, and a node under load may still be carrying it out.
    """
    node = connection.node()
    deadline = node.clock() + patience_s
    here = [each for each in branches if each.node == str(node.address) and not each.database]
    for branch in here:
        while _is_prepared(node, gtrid, branch):
            if node.clock() >= deadline:
                return
            node.sleep(PAUSE_S)


def _is_prepared(node: Node, gtrid: bytes, branch: PreparedBranch) -> bool:
    """Whether the node has still to commit it; also when it does not say, being busy or away."""
    try:
        return node.calls.getOutcome(otid_of(gtrid, branch.name)) is Status.PREPARED
    except RAISED:
        return True


def give_up(connection: Connection, gtrid: bytes, patience_s: float = BEGIN_S) -> Outcome:
    """The transaction is rolled back, unless it was committed before: how it ended."""
    deciding = _reached(connection, patience_s)
    try:
        outcome = deciding.give_up(gtrid, patience_s)
    except RAISED as failed:
        raise translated(failed, deciding.where) from failed
    return _ENDS.get(outcome.status, Outcome.UNKNOWN)


def outcome_of(connection: Connection, gtrid: bytes) -> Outcome:
    """How the transaction ended, as the coordinator knows it."""
    deciding = _reached(connection, BEGIN_S)
    coordinator = _coordinator(connection, deciding)
    try:
        told = _insist(connection, lambda: coordinator.getOutcome(otid_of(gtrid)), BEGIN_S)
    except RAISED as failed:
        raise translated(failed, deciding.where) from failed
    return _ENDS.get(told.status, Outcome.UNKNOWN)


_ENDS = {
    Status.ACTIVE: Outcome.ACTIVE,
    Status.COMMITTING: Outcome.COMMITTED,
    Status.COMMITTED: Outcome.COMMITTED,
    Status.ROLLING_BACK: Outcome.ROLLED_BACK,
    Status.ROLLED_BACK: Outcome.ROLLED_BACK,
}


def _participant(deciding: Deciding, gtrid: bytes, branch: PreparedBranch) -> mqParticipant:
    if branch.database:
        return deciding.database_participant(branch.database, gtrid, branch.name)
    return deciding.participant(Address.parse(branch.node), gtrid, branch.name)


# --- Patience ------------------------------------------------------------------------------------


def wait_for_node(connection: Connection, patience_s: float = BEGIN_S) -> None:
    """The node answers; one that is just restarting is waited for. Raises an `OnceMQError`.

    For tasks: Spark tries one a few times only, and soon.
    """
    node = connection.node()
    try:
        _insist(connection, node.calls.getNode, patience_s)
    except RAISED as failed:
        raise translated(failed, node.where) from failed


def _reached(connection: Connection, patience_s: float) -> Deciding:
    """The way to the coordinator, which the node knows, and who may just be restarting."""
    node = connection.node()
    deadline = node.clock() + patience_s
    pause_s = PAUSE_S
    while True:
        try:
            return connection.deciding()
        except (ConnectionLost, Timeout):
            if node.clock() + pause_s >= deadline:
                raise
        node.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def _insist(connection: Connection, ask: Callable[[], T], patience_s: float) -> T:
    """The answer to what may be asked twice; raises what the wire raises."""
    node = connection.node()
    deadline = node.clock() + patience_s
    pause_s = PAUSE_S
    while True:
        try:
            return ask()
        except _LOST:
            if node.clock() + pause_s >= deadline:
                raise
        node.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)
