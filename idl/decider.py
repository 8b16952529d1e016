"""The Python image of `Mq_Decider.idl`: a node whose commit is the decision about a transaction.

Vocabulary only, as `mq.py` is.
"""

from __future__ import annotations

from typing import Annotated, Protocol

from idl.coordination import BranchName, Place, mqOtidList
from idl.cos import HeuristicCommit, HeuristicRollback, NotPrepared, Status, otid_t
from idl.mapping import (
    Boolean,
    Text,
    UnsignedLong,
    interface,
    operation,
    struct,
)
from idl.mq import (
    BranchEnded,
    Deadlock,
    DigestMismatch,
    LockTimeout,
    MessageNotFound,
    QueueDisabled,
    QueueFull,
    QueueNotFound,
    RequestOutOfOrder,
    mqBranch,
    mqKeyListList,
    mqWorkList,
)

# The objects of a node and of the coordinator.
DECIDER = "decider"
SETTLEMENT = "settlement"

SettlerReference = Annotated[str, Text(400)]


@struct()
class mqVoter:
    """A prepared branch that does what another decides, and who can say whether it has."""

    name: BranchName
    settler: SettlerReference


mqVoterList = tuple[mqVoter, ...]


@struct()
class mqDecided:
    """A transaction that was decided at a node, and who waits for that."""

    otid: otid_t
    voters: mqVoterList


mqDecidedList = tuple[mqDecided, ...]


@interface()
class Mq_Settlement(Protocol):
    """Finds out for nodes that have decided whether anybody still waits for it."""

    @operation(idempotent=True)
    def isWithinReach(self, place: Place) -> Boolean: ...

    @operation(idempotent=True)
    def settle(self, decided: mqDecidedList) -> mqOtidList: ...


_WORKING = (
    QueueDisabled,
    QueueNotFound,
    QueueFull,
    MessageNotFound,
    LockTimeout,
    Deadlock,
    DigestMismatch,
    BranchEnded,
    RequestOutOfOrder,
)


@interface()
class Mq_Decider(Protocol):
    """Commits a branch as the decision about its transaction, and remembers that."""

    @operation(*_WORKING, out=("isReadOnly", "keys"), idempotent=True)
    def vote(
        self,
        branch: mqBranch,
        request: UnsignedLong,
        work: mqWorkList,
        place: Place,
        coordinator: Mq_Settlement | None,
    ) -> tuple[Status, Boolean, mqKeyListList]: ...

    @operation(*_WORKING, out=("keys",), idempotent=True)
    def decide(
        self,
        branch: mqBranch,
        request: UnsignedLong,
        work: mqWorkList,
        coordinator: Mq_Settlement | None,
        voters: mqVoterList,
    ) -> tuple[Status, mqKeyListList]: ...

    @operation(BranchEnded, HeuristicCommit, HeuristicRollback, NotPrepared, idempotent=True)
    def endVoter(self, branch: mqBranch, isCommitted: Boolean) -> None: ...

    @operation(idempotent=True)
    def getDecision(self, otid: otid_t) -> Status: ...

    @operation(idempotent=True)
    def fence(self, otid: otid_t) -> Status: ...
