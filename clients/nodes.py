"""One node, as its client calls it: repeated where an answer was lost, and never for too long.

Every call that is made here may be repeated: it is a question, or a request that the node knows by
its number or by the id of the call. It knows what can go wrong on the way, not what the calls mean.
A node that has answered before is waited for while it restarts; one that never did is reported at
once, since the address may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from clients.errors import RAISED, OnceMQError, translated
from idl import system
from idl.call import Address, Orb, begin_repeating, limited, repeated
from idl.custody import CARRIED, Mq_Carried
from idl.decider import DECIDER, Mq_Decider
from idl.mq import Mq_Node
from idl.places import place_of
from idl.process import here
from idl.proxies import new_request_id

NODE = "node"
# One attempt to end a branch, and all of them: then the node might have forgotten how it ended.
ENDING_S = 5.0
ENDING_S_MAX = 10.0
PAUSE_S = 0.02
PAUSE_S_MAX = 1.0
# All nodes that are reached over the network can take part in one transaction.
NETWORK = "the network"

# MARSHAL: a request or its answer was altered on the way, and will hardly be so again.
LOST = (system.COMM_FAILURE, system.TIMEOUT, system.TRANSIENT, system.MARSHAL)

T = TypeVar("T")


class Node:
    """The way to one node. May be used from any thread.

    `realm` is what can take part in one transaction: the network, or one embedded node. An embedded
    node is called in the process that runs it alone.
    """

    def __init__(
        self,
        orb: Orb,
        address: Address,
        realm: object,
        timeout_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.orb = orb
        self.address = address
        # Where a transaction is decided that is decided there.
        self.place = place_of(address.host, address.port)
        self.realm = realm
        self.where = f"the node at {address}" if realm is NETWORK else "the embedded node"
        self.timeout_s = timeout_s
        self.clock = clock
        self.is_closed = False
        self.calls = orb.proxy(f"PYRO:{NODE}@{address}", Mq_Node)
        # The same object; its calls give up sooner, because they are repeated.
        self.ends = orb.proxy(f"PYRO:{NODE}@{address}", Mq_Node, min(ENDING_S, timeout_s))
        # Of what is large, and of all else, as above.
        self.slow_decider = orb.proxy(f"PYRO:{DECIDER}@{address}", Mq_Decider)
        self.decider = orb.proxy(f"PYRO:{DECIDER}@{address}", Mq_Decider, min(ENDING_S, timeout_s))
        self.carried = orb.proxy(f"PYRO:{CARRIED}@{address}", Mq_Carried, min(ENDING_S, timeout_s))
        # Until when the node is not asked whether a database may carry what is put there.
        self.carries_from = 0.0
        self._process = 0 if realm is NETWORK else here.pid
        self.sleep = sleep
        self._has_answered = False

    def ask(self, method: Callable[..., T], *arguments: object) -> T:
        """The answer to a question; raises an `OnceMQError`."""
        try:
            return self.answer(method, arguments)
        except RAISED as raised:
            raise translated(raised, self.where) from raised

    def answer_once(
        self, method: Callable[..., T], arguments: tuple[object, ...], extra_s: float = 0.0
    ) -> T:
        """The answer to a call that is carried out once, however often it arrives."""
        begun = begin_repeating(new_request_id())
        try:
            return self.answer(method, arguments, extra_s)
        finally:
            repeated(begun)

    def call(self, method: Callable[..., T], *arguments: object, extra_s: float = 0.0) -> T:
        """The answer to a call, which may take so much longer; raises what the wire raises."""
        return self.answer(method, arguments, extra_s)

    def answer(
        self, method: Callable[..., T], arguments: tuple[object, ...], extra_s: float = 0.0
    ) -> T:
        """The same as `call`, for arguments that are together already: many calls go this way."""
        self.check_usable()
        begun = self.clock()
        try:
            if extra_s:
                with limited(extra_s + self.timeout_s / 2):
                    answer = method(*arguments)
            else:
                answer = method(*arguments)
        except LOST as lost:
            return self.insist(lost, begun + extra_s + self.timeout_s, method, *arguments)
        self._has_answered = True
        return answer

    def insist(
        self,
        lost: system.SystemException,
        deadline: float,
        method: Callable[..., T],
        *arguments: object,
    ) -> T:
        """The answer to a call that was lost before, asked for again until then.

        Raises with what is known of all attempts: NO only if none can have been carried out.
        """
        completed = lost.completed
        pause_s = PAUSE_S
        while self._may_answer(completed) and self.clock() + pause_s < deadline:
            self.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            try:
                with limited(max(deadline - self.clock(), PAUSE_S)):
                    answer = method(*arguments)
            except LOST as again:
                lost = again
                if again.completed is not system.Completion.NO:
                    completed = again.completed
            except system.SystemException as refused:
                if refused.completed is not system.Completion.NO:
                    raise
                # This attempt did nothing, but what those before it did is still not known.
                raise type(refused)(refused.reason, completed) from lost
            else:
                self._has_answered = True
                return answer
        raise type(lost)(lost.reason, completed) from lost

    def check_usable(self) -> None:
        """Raises where this client has let go of the node, or is another process."""
        if self.is_closed:
            raise OnceMQError("this connection was closed: connect again")
        if self._process and self._process != here.pid:
            raise OnceMQError(
                "the embedded node runs in the process that connected, and this is a child that "
                'was forked from it: run a server (`oncemq up`) and connect to "mq://HOST:PORT"'
            )

    def _may_answer(self, completed: system.Completion) -> bool:
        is_worth_it = self._has_answered or completed is not system.Completion.NO
        return is_worth_it and not self.is_closed


# What says that nothing was done, and can be trusted in it: it was refused, or never arrived.
_REFUSALS = (
    system.BAD_PARAM,
    system.COMM_FAILURE,
    system.IMP_LIMIT,
    system.INVALID_TRANSACTION,
    system.NO_PERMISSION,
    system.OBJECT_NOT_EXIST,
    system.TIMEOUT,
    system.TRANSACTION_ROLLEDBACK,
    system.TRANSIENT,
)


def is_harmless(failed: system.SystemException) -> bool:
    """Whether what was asked for has certainly not been done."""
    return isinstance(failed, _REFUSALS) and failed.completed is not system.Completion.MAYBE
