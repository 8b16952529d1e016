"""`Mq_Carried`: puts that are held here until a database has committed the row that carries them.

Thin: who may, what the row holds, and the way into a queue for what is taken over from one. When
something is put is `Custody`'s to know, and rows are looked for by the `Custodian`. In a row stands

    offset  size  field
    0x00    1     PUTS or PROMISE
    0x01    16    ticket, made of the transaction's name and all else
    0x11          as msgpack; PUTS: the branch's name, and of each queue its name and messages,
                  each as the fields of `NewMessage`; PROMISE: the name of the branch, which has
                  prepared and holds all of it itself
"""

from __future__ import annotations

from functools import partial

from idl import wire
from idl.cos import HeuristicRollback, NotPrepared
from idl.custody import CONTENT_BYTES_MAX, PROMISE, PUTS, Mq_Carried, NotCarried
from idl.mq import mqBranch, mqCompletion, mqKeyListList, mqWorkList
from idl.otids import GTRID_BYTES, check_branch
from idl.turns import prompt, step_aside
from mqserver.errors import BranchEnded
from mqserver.interfaces.decider import asked_at
from mqserver.interfaces.node import NodeServant, ReadWork
from mqserver.interfaces.parts import Parts
from mqserver.interfaces.translation import translating
from mqserver.storage.contract import NewMessage, Outcome
from mqserver.transactions import resource
from mqserver.transactions.custodian import Custodian
from mqserver.transactions.custody import TICKET_BYTES, Custody, NotOurs
from mqserver.transactions.requests import ended, give_up

_TICKET_AT = 1
_BODY_AT = _TICKET_AT + TICKET_BYTES
_HELD, _PREPARE = mqCompletion.NONE, mqCompletion.PREPARE

_op = translating(Mq_Carried)


class CarriedServant:
    """See `Mq_Carried`."""

    def __init__(
        self, parts: Parts, node: NodeServant, custody: Custody, custodian: Custodian
    ) -> None:
        self._parts = parts
        self._node = node
        self._custody = custody
        self._custodian = custodian

    @_op
    @prompt
    def hold(
        self, branch: mqBranch, request: int, work: mqWorkList, database: str
    ) -> tuple[bytes, str, mqKeyListList]:
        """See `Mq_Carried.hold`."""
        call = self._parts.entered()
        read = self._node.read_work(call, work)
        own, gtrid = self._node.branch_id(branch), branch.otid.tid
        if self._parts.storage.outcome(self._custody.branch_of(gtrid)) is Outcome.COMMITTED:
            # This call was under way for so long that the branch itself may be forgotten.
            raise ended(own, Outcome.ROLLED_BACK)
        if not self._custodian.knows(database):
            step_aside()
            self._custodian.ask_about(database)
        reason = self._custodian.why_not(gtrid, database)
        if reason:
            raise NotCarried(reason)
        custody = self._custody
        custody.get_ready()
        if request == 1 and _has_room_for(read):
            puts = [(queue, list(messages)) for queue, messages, _ in read]
            content = self._signed(gtrid, PUTS, wire.pack((branch.name, puts)))
            if len(content) <= CONTENT_BYTES_MAX:
                hold = partial(custody.hold, database=database)
                _, keys = self._node.hold(call, own, request, read, _HELD, b"", hold)
                return content, custody.node, keys
        family, where = asked_at(database, self._parts.coordinator)
        recovery = f"{family}{gtrid.hex()}/{branch.name}{where}".encode()
        promise = partial(custody.promise, database=database)
        # What was got, or is too large for a row, is on disk before the row speaks of it.
        is_read_only, keys = self._node.hold(call, own, request, read, _PREPARE, recovery, promise)
        if is_read_only:
            raise NotCarried("the branch has changed nothing")
        return self._signed(gtrid, PROMISE, wire.pack(branch.name)), custody.node, keys

    @_op
    @prompt
    def deliver(self, branch: mqBranch, database: str) -> None:
        """See `Mq_Carried.deliver`."""
        owner = self._parts.entered().principal.name
        own = self._node.branch_id(branch)
        try:
            held = self._parts.work.known(own, owner)
            if held is not None and self._custody.end(held, self._commit, self._keep):
                return
        except BranchEnded:
            # It was given up a moment ago.
            pass
        if not self._custody.is_put(own[:GTRID_BYTES]):
            step_aside()
            self._custodian.look_at(database)

    def _commit(self, branch: bytes) -> None:
        # Not forced: what a crash takes away stands in the row.
        self._parts.storage.commit_one_phase(branch, False)

    def _keep(self, branch: bytes) -> None:
        try:
            resource.commit(self._parts.storage, branch, is_durable=False)
        except NotPrepared as lost:
            raise HeuristicRollback() from lost

    def take_over(self, gtrid: bytes, database: str, content: bytes) -> bool:
        """What a committed row carries is put, unless it is here; whether it was not."""
        kind, body = content[:_TICKET_AT], content[_BODY_AT:]
        self._custody.check(gtrid, content[_TICKET_AT:_BODY_AT], kind + body)
        if kind == PROMISE:
            return self._custody.keep(gtrid + _promiser(body), database, self._keep)
        return self._put(gtrid, database, body)

    def _put(self, gtrid: bytes, database: str, body: bytes) -> bool:
        name, work = _unpacked(body)
        storage = self._parts.storage

        def store(branch: bytes) -> None:
            for queue, messages in work:
                self._parts.queues.store(branch, queue, messages, is_decided=True)

        held = gtrid + name.encode("ascii")
        try:
            # First, and also where nothing is known of it: whatever comes late for the branch that
            # held it finds that it is over, as long as it is known what became of this one.
            storage.rollback(held)
        except BranchEnded:
            # It was delivered a moment ago, or the storage could not say so.
            self._custody.clear_up(gtrid)
            return False
        own = self._custody.branch_of(gtrid)
        try:
            is_new = self._custody.take_over(own, database, store, storage.commit_one_phase)
        except BaseException:
            give_up(storage, own)
            raise
        self._parts.work.was_taken_over(held)
        return is_new

    # --- What stands in a row

    def _signed(self, gtrid: bytes, kind: bytes, body: bytes) -> bytes:
        return kind + self._custody.ticket(gtrid, kind + body) + body


def _has_room_for(work: list[ReadWork]) -> bool:
    """Whether it may fit into a row; only puts do."""
    size = 0
    for _, messages, removes in work:
        if removes:
            return False
        size += sum([len(each.payload) for each in messages])
    return size <= CONTENT_BYTES_MAX


def _promiser(body: bytes) -> bytes:
    """The branch that has prepared. Raises `NotOurs`."""
    try:
        return check_branch(wire.unpack(body)).encode("ascii")
    except (ValueError, TypeError) as unreadable:
        raise NotOurs from unreadable


def _unpacked(body: bytes) -> tuple[str, list[tuple[str, list[NewMessage]]]]:
    """The branch that held it, and what is put. Raises `NotOurs`."""
    try:
        name, puts = wire.unpack(body)
        work = [(queue, [NewMessage(*fields) for fields in messages]) for queue, messages in puts]
        return check_branch(name), work
    except (ValueError, TypeError) as unreadable:
        # Of a version that wrote it otherwise, but for its number.
        raise NotOurs from unreadable
