"""`Mq_Node`: bulk work, push-down and reservations, for the client library and Spark.

It is long because a node has many operations.

Thin: who may, what the branch is called, and the translation of batches. The rules of requests are
in `work.py`, those of queues in `queues.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from idl import system
from idl.call import Call
from idl.cos import Status, Vote, otid_t
from idl.mapping import InvalidValue
from idl.mq import (
    Mq_Node,
    mqBatch,
    mqBranch,
    mqCompletion,
    mqKeyList,
    mqKeyListList,
    mqNodeInfo,
    mqSelection,
    mqTaken,
    mqWork,
    mqWorkList,
)
from idl.otids import FORMAT_ID, GTRID_BYTES, check_branch, split_otid
from idl.turns import Latch, prompt, step_aside
from mqserver.errors import BranchEnded, LimitExceeded, MessageNotFound, ReservationNotFound
from mqserver.interfaces.parts import Parts
from mqserver.interfaces.reservations import Reservations
from mqserver.interfaces.translation import (
    answer_bytes,
    key_texts,
    new_messages,
    selection_of,
    taken_of,
    translating,
)
from mqserver.permissions import Right
from mqserver.queues import key_number, key_text
from mqserver.storage.contract import (
    EVERYTHING,
    Message,
    MessageColumns,
    NewMessage,
    Outcome,
    Selection,
)
from mqserver.transactions.joining import PREFIX
from mqserver.transactions.requests import Branch, Done, FrozenList, ended, outcome_of
from mqserver.transactions.resource import branch_id

NULL_FORMAT_ID = -1
WAIT_MS_MAX = 60_000
LISTS_PER_BRANCH_MAX = 100
NAMES_CACHED_MAX = 1000
# So many messages are taken before others have their turn.
PROMPT_MESSAGES_MAX = 100
NO_KEYS = range(0)
# Where something is put, what, and the keys of what is removed there.
ReadWork = tuple[str, Sequence[NewMessage], list[int]]
NAMED_TWICE = "a branch is named beside its transaction, not in the otid"

# To look it up in its class takes four times as long.
_WRITE = Right.WRITE
# In half the time of its own way to be made.
_new_tuple = tuple.__new__

_op = translating(Mq_Node)


class NodeServant:
    """See `Mq_Node`."""

    def __init__(self, parts: Parts, reservations: Reservations) -> None:
        self._parts = parts
        self._queues = parts.queues
        self._work = parts.work
        self._alone = parts.alone
        self._reservations = reservations
        self._message_bytes_max = parts.queues.limits.message_bytes_max
        # Names of branches that were found to be names.
        self._names: dict[str, bytes] = {}

    @_op
    @prompt
    def getNode(self) -> mqNodeInfo:
        """See `Mq_Node.getNode`."""
        self._parts.entered()
        return mqNodeInfo(self._parts.name, self._parts.coordinator, self._message_bytes_max)

    @_op
    @prompt
    def countMessages(self, queue: str) -> int:
        """See `Mq_Node.countMessages`."""
        self._parts.check(self._parts.entered(), queue, Right.BROWSE, "countMessages")
        self._queues.check_usable(queue)
        return self._queues.info(queue).visible

    # --- Putting and getting

    @_op
    @prompt
    def putMany(self, branch: mqBranch, request: int, queue: str, messages: mqBatch) -> mqKeyList:
        """See `Mq_Node.putMany`."""
        call, new = self._received("putMany", queue, messages)
        if branch.otid.formatID == NULL_FORMAT_ID:
            return self._put_alone(call, queue, new)
        return key_texts(self._put_within(call, branch, request, queue, new))

    @_op
    @prompt
    def putBulk(self, branch: mqBranch, request: int, queue: str, messages: mqBatch) -> str:
        """See `Mq_Node.putBulk`."""
        call, new = self._received("putBulk", queue, messages)
        keys = self._put_within(call, branch, request, queue, new)
        return key_text(keys.start) if keys else ""

    def _received(
        self, operation: str, queue: str, messages: mqBatch
    ) -> tuple[Call, Sequence[NewMessage]]:
        parts = self._parts
        call = parts.entered()
        parts.check(call, queue, _WRITE, operation)
        if len(messages.payloads) > parts.messages_per_call_max:
            self._check_count(len(messages.payloads))
        sender, bytes_max = call.principal.name, self._message_bytes_max
        return call, new_messages(messages, parts.now_us(), sender, bytes_max)

    def _put_within(
        self, call: Call, branch: mqBranch, request: int, queue: str, new: Sequence[NewMessage]
    ) -> range:
        def put(found: Branch) -> Done:
            return Done(self._store(found, queue, new))

        keys: range = self._request(call, branch, request, "put", put)
        return keys

    def _put_alone(self, call: Call, queue: str, new: Sequence[NewMessage]) -> mqKeyList:
        def put(branch: bytes) -> Done:
            if not new:
                return Done(NO_KEYS, is_changed=False)
            return _new_tuple(Done, (self._queues.store(branch, queue, new), 0, True))

        try:
            return key_texts(self._alone.carry_out(call.request_id, call.principal.name, put))
        except BranchEnded as over:
            if outcome_of(over) is not Outcome.COMMITTED:
                raise
            # They are there, put before a restart; which keys they got is forgotten.
            return ()

    def _store(self, found: Branch, queue: str, new: Sequence[NewMessage]) -> range:
        if not new:
            return NO_KEYS
        count = len(new)
        if count == 1:
            size = len(new[0].payload)
        elif type(new) is MessageColumns:
            size = sum(map(len, new.payloads))
        else:
            size = sum([len(each.payload) for each in new])
        self._work.count_stored(found, count, size)
        keys = self._queues.store(found.id, queue, new)
        found.stored += count
        found.stored_bytes += size
        return keys

    @_op
    @prompt
    def getMany(
        self,
        branch: mqBranch,
        request: int,
        queue: str,
        selection: mqSelection,
        count: int,
        wait: int,
    ) -> mqTaken:
        """See `Mq_Node.getMany`."""
        call = self._parts.entered()
        self._parts.check(call, queue, Right.READ, "getMany")
        wanted = self._wanted(selection, count)
        wait_s = min(wait, WAIT_MS_MAX) / 1000

        def take(branch: bytes) -> list[Message]:
            return self._queues.take(branch, queue, wanted, count, wait_s)

        return self._take(call, branch, request, "get", take)

    @_op
    @prompt
    def moveMany(
        self, queue: str, target: str, selection: mqSelection, count: int, wait: int
    ) -> int:
        """See `Mq_Node.moveMany`."""
        call = self._parts.entered()
        self._parts.check(call, queue, Right.READ, "moveMany")
        self._parts.check(call, target, Right.WRITE, "moveMany")
        self._check_count(count)
        if target not in self._queues.known:
            step_aside()
        wanted = self._wanted(selection, count)
        wait_s = min(wait, WAIT_MS_MAX) / 1000

        def move(branch: bytes) -> Done:
            taken = self._queues.take(branch, queue, wanted, count, wait_s)
            if taken:
                now_us = self._parts.now_us()
                new = [NewMessage(*each[1:])._replace(time_us=now_us) for each in taken]
                self._queues.store(branch, target, new)
            return Done(len(taken), is_changed=bool(taken))

        moved: int = self._alone.carry_out(call.request_id, call.principal.name, move)
        return moved

    @_op
    def getKeys(self, branch: mqBranch, request: int, queue: str, keys: mqKeyList) -> mqTaken:
        """See `Mq_Node.getKeys`."""
        call = self._parts.entered()
        self._parts.check(call, queue, Right.READ, "getKeys")
        self._check_count(len(keys))
        self._queues.check_usable(queue)
        numbers = [key_number(queue, key) for key in keys]

        def take(branch: bytes) -> list[Message]:
            return self._queues.take_keys(branch, queue, numbers, self._parts.lock_wait_s)

        return self._take(call, branch, request, "get by key", take)

    def _take(
        self,
        call: Call,
        branch: mqBranch,
        request: int,
        kind: str,
        take: Callable[[bytes], list[Message]],
    ) -> mqTaken:
        taken: mqTaken
        owner = call.principal.name
        if branch.otid.formatID == NULL_FORMAT_ID:
            taken = self._alone.carry_out(
                call.request_id, owner, lambda own: _done_alone(take(own))
            )
        else:
            taken = self._work.request(
                self.branch_id(branch),
                owner,
                request,
                kind,
                lambda found: _done_within(found, take(found.id)),
            )
        return taken

    @_op
    def browse(self, queue: str, selection: mqSelection, after: str, count: int) -> mqTaken:
        """See `Mq_Node.browse`."""
        self._parts.check(self._parts.entered(), queue, Right.BROWSE, "browse")
        if after and not after.isdigit():
            raise system.BAD_PARAM(f"{after!r} is not a key")
        behind = int(after or 0)
        return taken_of(self._queues.browse(queue, selection_of(selection), behind, count))

    # --- Branches

    @_op
    @prompt
    def pushDown(
        self, branch: mqBranch, request: int, work: mqWorkList, completion: mqCompletion
    ) -> tuple[Status, bool, mqKeyListList]:
        """See `Mq_Node.pushDown`."""
        recovery = b"" if branch.recovery is None else self._recovery(branch)
        return self.push(branch, request, work, completion, recovery, None)

    def push(
        self,
        branch: mqBranch,
        request: int,
        work: mqWorkList,
        completion: mqCompletion,
        recovery: bytes,
        commit: Callable[[bytes], None] | None,
    ) -> tuple[Status, bool, mqKeyListList]:
        """The same, where the branch asks there, and is committed by this function, if at all."""
        call = self._parts.entered()
        prepared = self.read_work(call, work)

        def push(found: Branch) -> list[range]:
            return self._do(found, prepared)

        own, owner = self.branch_id(branch), call.principal.name
        status, is_read_only, keys = self._work.push_down(
            own, owner, request, push, completion, recovery, commit
        )
        if keys is None:
            return status, is_read_only, tuple(() for _ in work)
        return status, is_read_only, tuple(map(key_texts, keys))

    def hold(
        self,
        call: Call,
        branch: bytes,
        request: int,
        work: list[ReadWork],
        completion: mqCompletion,
        recovery: bytes,
        also: Callable[[Branch], None],
    ) -> tuple[bool, mqKeyListList]:
        """The same of work that was read, and behind it `also`: whether nothing was changed."""

        def push(found: Branch) -> list[range]:
            done = self._do(found, work)
            also(found)
            return done

        owner = call.principal.name
        _, is_read_only, keys = self._work.push_down(
            branch, owner, request, push, completion, recovery, None
        )
        if keys is None:
            return is_read_only, tuple(() for _ in work)
        return is_read_only, tuple(map(key_texts, keys))

    def read_work(self, call: Call, work: mqWorkList) -> list[ReadWork]:
        """Everything is checked before anything is done."""
        if len(work) == 1:
            # The common case of one queue, with nothing to be summed up.
            (only,) = work
            self._check_count(len(only.puts.payloads) + len(only.removes))
            return [self._read_one(call, only, self._parts.now_us(), 0)]
        count = 0
        for each in work:
            count += len(each.puts.payloads) + len(each.removes)
        self._check_count(count)
        now_us = self._parts.now_us()
        position = 0
        prepared = []
        for each in work:
            prepared.append(self._read_one(call, each, now_us, position))
            position += len(each.puts.payloads)
        return prepared

    def _read_one(self, call: Call, work: mqWork, now_us: int, position: int) -> ReadWork:
        queue, removes = work.queue, work.removes
        if removes or queue not in self._queues.known:
            # Before anything is done: others may hold what is removed, and to make a queue is long.
            step_aside()
        if work.puts.payloads or not removes:
            self._parts.check(call, queue, _WRITE, "pushDown")
        if removes:
            self._parts.check(call, queue, Right.READ, "pushDown")
        numbers = [key_number(queue, key) for key in removes] if removes else []
        sender, bytes_max = call.principal.name, self._message_bytes_max
        return queue, new_messages(work.puts, now_us, sender, bytes_max, position), numbers

    def _do(self, found: Branch, prepared: list[ReadWork]) -> list[range]:
        done = []
        for queue, new, removes in prepared:
            done.append(self._store(found, queue, new))
            # One by one: nothing of them is sent back, so that any number of large ones will do.
            for key in removes:
                self._queues.take_keys(found.id, queue, [key], self._parts.lock_wait_s)
                found.taken += 1
        return done

    @_op
    @prompt
    def prepareBranch(self, branch: mqBranch, messages: int) -> Vote:
        """See `Mq_Node.prepareBranch`."""
        call = self._parts.entered()
        recovery = self._recovery(branch)
        return self._work.prepare(self.branch_id(branch), call.principal.name, recovery, messages)

    @_op
    @prompt
    def rollbackBranch(self, branch: mqBranch) -> None:
        """See `Mq_Node.rollbackBranch`."""
        call = self._parts.entered()
        self._work.rollback(self.branch_id(branch), call.principal.name)

    @_op
    @prompt
    def getOutcome(self, otid: otid_t) -> Status:
        """See `Mq_Node.getOutcome`."""
        caller = self._parts.entered().principal.name
        try:
            gtrid, name = split_otid(otid)
        except InvalidValue:
            return Status.NO_TRANSACTION
        permissions = self._parts.permissions
        sees_all = permissions.is_operator(caller) or permissions.is_coordinator(caller)
        return self._work.outcome(gtrid, name, caller, sees_all)

    @_op
    def getVersion(self, application: str) -> int:
        """See `Mq_Node.getVersion`."""
        self._parts.entered()
        return self._parts.storage.mark(application)

    # --- Frozen lists of a branch

    @_op
    def lockMany(
        self, branch: mqBranch, name: str, queue: str, selection: mqSelection, count: int
    ) -> int:
        """See `Mq_Node.lockMany`."""
        call = self._parts.entered()
        self._parts.check(call, queue, Right.READ, "lockMany")
        self._queues.check_usable(queue)
        found = self._work.find_or_begin(self.branch_id(branch), call.principal.name)
        with Latch(found.lock):
            if name not in found.lists:
                if len(found.lists) >= LISTS_PER_BRANCH_MAX:
                    raise LimitExceeded(f"{LISTS_PER_BRANCH_MAX} lists in one branch")
                most = min(count, self._work.limits.branch_messages_max)
                keys = self._queues.lock_now(found.id, queue, selection_of(selection), most)
                found.taken += len(keys)
                found.lists[name] = FrozenList(queue, keys)
            return len(found.lists[name].keys)

    @_op
    def fetchLocked(self, branch: mqBranch, name: str, start: int, stop: int) -> mqTaken:
        """See `Mq_Node.fetchLocked`."""
        call = self._parts.entered()
        found = self._work.find(self.branch_id(branch), call.principal.name)
        locked = found.lists.get(name)
        if locked is None:
            raise ReservationNotFound(name, 0)
        try:
            return taken_of(self._queues.taken(found.id, locked.queue, locked.keys[start:stop]))
        except MessageNotFound as gone:
            # The branch holds all of them as long as it is at work: it has just ended.
            raise ended(found.id, self._parts.storage.outcome(found.id)) from gone

    # --- Reservations

    @_op
    def reserve(
        self,
        consumer: str,
        queue: str,
        selection: mqSelection,
        after: int,
        count: int,
        wait: int,
    ) -> int:
        """See `Mq_Node.reserve`."""
        call = self._parts.entered()
        self._parts.check(call, queue, Right.READ, "reserve")
        wait_s = min(wait, WAIT_MS_MAX) / 1000
        wanted = selection_of(selection)
        return self._reservations.reserve(call, consumer, queue, wanted, after, count, wait_s)

    @_op
    def getReservationSize(self, consumer: str, reservation: int) -> int:
        """See `Mq_Node.getReservationSize`."""
        return self._reservations.size(self._parts.entered(), consumer, reservation)

    @_op
    def fetchReserved(self, consumer: str, reservation: int, start: int, stop: int) -> mqTaken:
        """See `Mq_Node.fetchReserved`."""
        call = self._parts.entered()
        return taken_of(self._reservations.fetch(call, consumer, reservation, start, stop))

    @_op
    def finishReservations(self, consumer: str, upto: int) -> None:
        """See `Mq_Node.finishReservations`."""
        self._reservations.finish(self._parts.entered(), consumer, upto)

    @_op
    def getFinished(self, consumer: str) -> int:
        """See `Mq_Node.getFinished`."""
        return self._reservations.finished(self._parts.entered(), consumer)

    # --- What they have in common

    def _wanted(self, selection: mqSelection, count: int) -> Selection:
        """What is asked for. To look through a queue, or to take many, is work that takes long."""
        wanted = selection_of(selection)
        if count > PROMPT_MESSAGES_MAX or wanted is not EVERYTHING:
            step_aside()
        return wanted

    def _request(
        self,
        call: Call,
        branch: mqBranch,
        number: int,
        kind: str,
        act: Callable[[Branch], Done],
    ) -> Any:
        return self._work.request(self.branch_id(branch), call.principal.name, number, kind, act)

    def _check_count(self, count: int) -> None:
        if count > self._parts.messages_per_call_max:
            raise LimitExceeded(f"{self._parts.messages_per_call_max} messages in one call")

    def branch_id(self, branch: mqBranch) -> bytes:
        """The id under which the storage knows the branch."""
        otid = branch.otid
        name = self._names.get(branch.name)
        if name is None or otid.formatID != FORMAT_ID or len(otid.tid) != GTRID_BYTES:
            return self._checked_id(branch)
        if otid.bqual_length:
            raise system.BAD_PARAM(NAMED_TWICE)
        return otid.tid + name

    def _checked_id(self, branch: mqBranch) -> bytes:
        try:
            gtrid, qualifier = split_otid(branch.otid)
            name = check_branch(branch.name)
        except InvalidValue as wrong:
            raise system.BAD_PARAM(str(wrong)) from wrong
        if qualifier:
            raise system.BAD_PARAM(NAMED_TWICE)
        if name.startswith(PREFIX):
            raise system.BAD_PARAM(f"branch names that begin with {PREFIX!r} are the node's own")
        if len(self._names) < NAMES_CACHED_MAX:
            self._names[name] = name.encode("ascii")
        return branch_id(gtrid, name)

    def _recovery(self, branch: mqBranch) -> bytes:
        if branch.recovery is None:
            return b""
        return self._parts.orb.reference_of(branch.recovery).encode()


def _done_alone(messages: list[Message]) -> Done:
    return Done(taken_of(messages), answer_bytes(messages), bool(messages))


def _done_within(found: Branch, messages: list[Message]) -> Done:
    found.taken += len(messages)
    return Done(taken_of(messages), answer_bytes(messages))
