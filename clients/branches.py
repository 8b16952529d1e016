"""A transaction's part at one node: what is to be put there, and the requests that were made.

Puts wait here and go down in one call at the end, or earlier when they would take too much memory.
Requests are numbered, so that the node knows one that is repeated. What holds:

1. A number belongs to one request until that has been answered. One that was refused has changed
   nothing, and its number is used again.
2. A request that nobody has answered leaves the branch broken: it can only be rolled back.
3. The keys of puts are told when the transaction is committed, and not before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import Any, TypeVar

from clients import structs
from clients.errors import RAISED, translated
from clients.messages import OVERHEAD_BYTES, Item, Key, Message, batch_of, messages_of, size_of
from clients.nodes import ENDING_S_MAX, LOST, Node
from idl import system
from idl.cos import RecoveryCoordinator, Status
from idl.decider import Mq_Settlement, mqVoter
from idl.mapping import UserException
from idl.mq import BranchEnded, mqBranch, mqCompletion, mqSelection, mqWork
from idl.otids import otid_of
from idl.proxies import leave, ready, started, started_with

# So much is kept back in the client; what is more goes to the node before the end.
HELD_BYTES_MAX = 8 * 1024 * 1024
HELD_MESSAGES_MAX = 10_000
# What takes so long to send that it must not be given up early.
LARGE_BYTES = 1024 * 1024
# How long a node is waited for that is to hear what a database has decided.
DELIVERING_S_MAX = 5.0

# Looked up once: that takes longer in an enumeration than most of what is done with it.
_COMMIT_ONE_PHASE, _PREPARE = mqCompletion.COMMIT_ONE_PHASE, mqCompletion.PREPARE
_ACTIVE, _PREPARED = Status.ACTIVE, Status.PREPARED

T = TypeVar("T")


# A request that ends a branch: whom it is made of, what is said, and when it is given up.
_Request = tuple[Callable[..., Any], tuple[Any, ...], float]
# How a branch stands after its last request, whether it had changed nothing, and the keys.
Ended = tuple[Status, bool, tuple[tuple[str, ...], ...]]
_Decided = tuple[Status, tuple[tuple[str, ...], ...]]


class Branch:
    """Not for several threads at once: the transaction sees to that."""

    __slots__ = (
        "_answered",
        "_branch",
        "_decision",
        "_end",
        "_gtrid",
        "_has_changed",
        "_held",
        "_held_bytes",
        "_held_messages",
        "_ready",
        "_sender",
        "_texts",
        "_told",
        "has_work",
        "is_broken",
        "is_called",
        "name",
        "node",
    )

    def __init__(self, node: Node, gtrid: bytes, name: str, sender: str) -> None:
        self.node = node
        self.name = name
        # Whether the node has heard of it; and whether nobody knows what the node has done.
        self.is_called = False
        self.is_broken = False
        # Whether there is anything that has to happen: puts, or messages that were got.
        self.has_work = False
        self._gtrid = gtrid
        self._sender = sender
        self._branch: mqBranch | None = None
        self._answered = 0
        self._has_changed = False
        # What is to be put, by queue, and the keys that it will have.
        self._held: dict[str, tuple[list[Item], list[Key]]] = {}
        self._held_messages = 0
        self._held_bytes = 0
        # Keys of what is at the node already, with their texts; and the texts of all keys above, by
        # queue, once the last request was answered.
        self._told: list[tuple[list[Key], tuple[str, ...]]] = []
        self._texts: tuple[tuple[str, ...], ...] = ()
        self._ready: tuple[mqWork, ...] = ()
        # The decision and the voters that it names, and the end of a voter that is committed: both
        # made while others were waited for.
        self._decision: tuple[tuple[mqVoter, ...], Callable[[], _Decided]] | None = None
        self._end: Callable[[], None] | None = None

    @property
    def reference(self) -> mqBranch:
        """The branch as its node knows it."""
        return self._branch or self._named()

    def _named(self) -> mqBranch:
        self._branch = branch = structs.branch(self._gtrid, self.name, None)
        return branch

    # --- Work

    def put(self, queue: str, item: Item) -> Key:
        """The item will be put; its key is known after the commit."""
        key = Key.pending()
        held = self._held.get(queue)
        if held is None:
            self._held[queue] = [item], [key]
        else:
            held[0].append(item)
            held[1].append(key)
        self.has_work = True
        self._held_messages += 1
        self._held_bytes += len(item) + OVERHEAD_BYTES if type(item) is bytes else size_of(item)
        if self._held_bytes > HELD_BYTES_MAX or self._held_messages >= HELD_MESSAGES_MAX:
            self.push()
        return key

    def push(self, queue: str | None = None) -> None:
        """What was kept back, for this queue or for all, is at the node."""
        for name in list(self._held) if queue is None else [queue]:
            held = self._held.get(name)
            if held is None:
                continue
            items, keys = held
            texts = self._ask(self.node.calls.putMany, (name, batch_of(items, self._sender)))
            self._has_changed = True
            self._told.append((keys, texts))
            self._let_go(name)

    def take_back(self, queue: str, key: Key) -> None:
        """The last put into the queue, which the node has refused, is not to be put after all."""
        items, keys = self._held[queue]
        assert keys[-1] is key, "only the last put can be taken back"
        keys.pop()
        self._held_messages -= 1
        self._held_bytes -= size_of(items.pop())
        if not items:
            del self._held[queue]
        self.has_work = self._has_changed or self._held_messages > 0

    def _let_go(self, queue: str) -> None:
        items, _ = self._held.pop(queue)
        self._held_messages -= len(items)
        self._held_bytes -= sum(map(size_of, items))

    def get(self, queue: str, selection: mqSelection, count: int, wait_s: float) -> list[Message]:
        """The next messages, own puts among them; waits for the first."""
        if self._held:
            self.push(queue)
        arguments = (queue, selection, count, int(wait_s * 1000))
        taken = self._ask(self.node.calls.getMany, arguments, wait_s)
        if taken.keys:
            self.has_work = self._has_changed = True
        return messages_of(taken)

    def get_keys(self, queue: str, keys: Sequence[str]) -> list[Message]:
        """The messages with these keys."""
        taken = self._ask(self.node.calls.getKeys, (queue, tuple(keys)))
        self.has_work = self._has_changed = True
        return messages_of(taken)

    def _ask(
        self, method: Callable[..., T], arguments: tuple[object, ...], extra_s: float = 0.0
    ) -> T:
        """The answer to the next request; raises an `OnceMQError`."""
        self.is_called = True
        is_settled = False
        try:
            branch = self._branch or self._named()
            numbered = (branch, self._answered + 1, *arguments)
            answer = self.node.answer(method, numbered, extra_s)
            self._answered += 1
            is_settled = True
            return answer
        except UserException as refused:
            is_settled = True
            raise translated(refused, self.node.where) from refused
        except system.SystemException as failed:
            is_settled = failed.completed is system.Completion.NO
            raise translated(failed, self.node.where) from failed
        finally:
            # Also for what comes from a signal: then nobody knows what the node has done.
            if not is_settled:
                self.is_broken = True

    # --- Ends

    def commit_alone(self) -> Status:
        """All that is left is put, and the branch is committed: how it stands then.

        Raises what the wire raises.
        """
        request = self._last_request(_COMMIT_ONE_PHASE)
        method, arguments, _ = request
        try:
            answer = method(*arguments)
        except LOST as lost:
            answer = self._insist(lost, request)
        return self._ended(answer)[0]

    def prepare(self, recovery: RecoveryCoordinator) -> Callable[[], Ended]:
        """The same, but it only votes. It is under way; the function waits for the answer."""
        self._branch = structs.branch(self._gtrid, self.name, recovery)
        return self._voting(self._last_request(_PREPARE))

    def vote(self, place: str, coordinator: Mq_Settlement) -> Callable[[], Ended]:
        """The same, where it is decided at this place."""
        node, work = self.node, self._work_left()
        decider = node.slow_decider if self._held_bytes > LARGE_BYTES else node.decider
        branch = self._branch or self._named()
        arguments = (branch, self._answered + 1, work, place, coordinator)
        answer = self._voting((decider.vote, arguments, node.clock() + ENDING_S_MAX))
        return partial(self._voted, branch, answer)

    def _voted(self, branch: mqBranch, answer: Callable[[], Ended]) -> Ended:
        # Its node is at work: meanwhile there is time for what it will most likely be told.
        with suppress(system.SystemException):
            self._end = ready(self.node.decider.endVoter, (branch, True))
        return answer()

    def _voting(self, request: _Request) -> Callable[[], Ended]:
        method, arguments, _ = request
        waiting = started_with(method, arguments) or partial(method, *arguments)
        return partial(self._finished, waiting, request)

    def get_ready(self, coordinator: Mq_Settlement, voters: tuple[mqVoter, ...]) -> None:
        """The decision for these voters is ready to be sent, while they are waited for."""
        self._ready = self._work_left()
        method, arguments, _ = self._deciding(coordinator, voters)
        # What is wrong with it is found again, and told, by who decides.
        with suppress(system.SystemException):
            self._decision = voters, ready(method, arguments)

    def decide(self, coordinator: Mq_Settlement, voters: tuple[mqVoter, ...]) -> Status:
        """The same as `commit_alone`, and that is the decision for the voters."""
        request = method, arguments, _ = self._deciding(coordinator, voters)
        expected, decision = self._decision or ((), None)
        try:
            if decision is not None and expected == voters:
                status, texts = decision()
            else:
                status, texts = method(*arguments)
        except LOST as lost:
            status, texts = self._insist_on_decision(lost, request)
        return self._ended((status, False, texts))[0]

    def _deciding(self, coordinator: Mq_Settlement, voters: tuple[mqVoter, ...]) -> _Request:
        node = self.node
        is_large = self._held_bytes > LARGE_BYTES
        method = node.slow_decider.decide if is_large else node.decider.decide
        branch, work = self._branch or self._named(), self._ready or self._work_left()
        arguments = (branch, self._answered + 1, work, coordinator, voters)
        return method, arguments, node.clock() + ENDING_S_MAX

    def _insist_on_decision(self, lost: system.SystemException, request: _Request) -> _Decided:
        method, arguments, deadline = request
        try:
            answer: _Decided = self.node.insist(lost, deadline, method, *arguments)
        except BranchEnded:
            raise
        except UserException as refused:
            # Of this attempt. The one that was lost may have decided.
            raise system.UNKNOWN(str(refused), system.Completion.MAYBE) from refused
        return answer

    @property
    def may_be_carried(self) -> bool:
        """Whether the node may be asked to have a database decide about it."""
        node = self.node
        return self._held_bytes <= LARGE_BYTES and node.clock() >= node.carries_from

    def hold(self, database: str) -> tuple[bytes, str]:
        """The node holds the work until the database has decided: a row, and whose it is."""
        node, work = self.node, self._work_left()
        branch = self._branch or self._named()
        arguments = (branch, self._answered + 1, work, database)
        deadline = node.clock() + ENDING_S_MAX
        try:
            content, whose, texts = node.carried.hold(*arguments)
        except LOST as lost:
            held = node.insist(lost, deadline, node.carried.hold, *arguments)
            content, whose, texts = held
        self._ended((_ACTIVE, False, texts))
        return content, whose

    def carry_no_more(self, seconds: float) -> None:
        """The node has refused to hold anything, and is not asked again for so long."""
        self.node.carries_from = self.node.clock() + seconds

    def deliver(self, database: str, unheard: Callable[[Exception], None] | None = None) -> None:
        """The node knows that the database has committed the row. Raises what the wire raises.

        With `unheard` it may be on its way only, and that is told what goes wrong with it: it comes
        before whatever this connection asks the node from here on.
        """
        node = self.node
        branch = self._branch or self._named()
        if unheard is not None:
            told = (branch, database)
            waiting = started_with(node.carried.deliver, told, DELIVERING_S_MAX)
            if waiting is not None:
                if not leave(waiting, unheard):
                    waiting()
                return
        try:
            node.carried.deliver(branch, database)
        except LOST as lost:
            deadline = node.clock() + DELIVERING_S_MAX
            node.insist(lost, deadline, node.carried.deliver, branch, database)

    def end_voter(self, is_committed: bool, is_alone: bool = False) -> Callable[[], None]:
        """The node is being told what another has decided; the function waits for its answer."""
        if is_committed and is_alone and self._end is not None:
            return self._end
        method = self.node.decider.endVoter
        arguments = (self._branch or self._named(), is_committed)
        waiting = None if is_alone else started_with(method, arguments)
        return waiting or partial(method, *arguments)

    def _last_request(self, completion: mqCompletion) -> _Request:
        work = self._work_left()
        node = self.node
        method = node.calls.pushDown if self._held_bytes > LARGE_BYTES else node.ends.pushDown
        branch = self._branch or structs.branch(self._gtrid, self.name, None)
        arguments = (branch, self._answered + 1, work, completion)
        return method, arguments, node.clock() + ENDING_S_MAX

    def _work_left(self) -> tuple[mqWork, ...]:
        """All that was kept back; the node is about to be called."""
        self.is_called = True
        work = []
        for queue, (items, _) in self._held.items():
            work.append(structs.work(queue, batch_of(items, self._sender)))
        self.node.check_usable()
        return tuple(work)

    def _finished(self, waiting: Callable[[], Ended], request: _Request) -> Ended:
        try:
            answer = waiting()
        except LOST as lost:
            answer = self._insist(lost, request)
        return self._ended(answer)

    def _insist(self, lost: system.SystemException, request: _Request) -> Ended:
        method, arguments, deadline = request
        answer: Ended = self.node.insist(lost, deadline, method, *arguments)
        return answer

    def _ended(self, answer: Ended) -> Ended:
        self._texts = texts = answer[2]
        if texts and len(texts) != len(self._held):
            raise ValueError(f"{self.node.where} told the keys of {len(texts)} queues, not of all")
        return answer

    def rollback(self) -> Callable[[], None]:
        """The node is being told; the function waits until it has heard."""
        method = self.node.calls.rollbackBranch
        return started(method, self.reference) or partial(method, self.reference)

    def ask_outcome(self) -> Status:
        """How the branch ended, as far as the node knows."""
        return self.node.call(self.node.calls.getOutcome, otid_of(self._gtrid, self.name))

    def ask_for_all(self) -> Status:
        """The same of the whole transaction, under whatever name it was put there."""
        return self.node.call(self.node.calls.getOutcome, otid_of(self._gtrid))

    def tell_keys(self) -> None:
        """The transaction was committed: what was put has its keys."""
        for keys, texts in self._told:
            _tell(keys, texts)
        last = iter(self._texts)
        for _, keys in self._held.values():
            texts = next(last, ())
            if len(keys) == 1 == len(texts):
                keys[0].tell(texts[0])
            else:
                _tell(keys, texts)
        # Whoever keeps the transaction does not keep what it has put.
        self._held.clear()
        self._ready = ()
        self._decision = None

    def lose_keys(self) -> None:
        """The transaction was rolled back: there are no keys."""
        for keys in [told[0] for told in self._told] + [held[1] for held in self._held.values()]:
            for key in keys:
                key.lose()


def vote_of(answer: Callable[[], Ended]) -> Ended | Exception:
    """The vote, or why there is none; every answer that is under way is waited for."""
    try:
        vote = answer()
    except RAISED as raised:
        return raised
    status, is_read_only, _ = vote
    if is_read_only or status is _PREPARED:
        return vote
    return BranchEnded(Status.ROLLED_BACK)


def _tell(keys: list[Key], texts: tuple[str, ...]) -> None:
    # What the node could not say after a restart nobody can.
    for key, text in zip(keys, texts or repeat("", len(keys)), strict=True):
        key.tell(text)
