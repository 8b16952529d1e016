"""`Mq_Decider`: the last branch of a transaction commits, and that is the decision for the others.

Thin: who may, what the branch is called, and the translation. The work itself is `Mq_Node`'s push
down; what was decided is kept by `Decisions`. Clients decide, and tell branches of their own what
was decided elsewhere; what is found here is told to coordinators alone.
"""

from __future__ import annotations

import functools

from idl import system
from idl.call import Reference
from idl.cos import Status, otid_t
from idl.decider import Mq_Decider, Mq_Settlement, mqVoterList
from idl.mapping import InvalidValue
from idl.mq import mqBranch, mqCompletion, mqKeyListList, mqWorkList
from idl.otids import MARKED, check_branch, split_otid
from idl.turns import prompt
from mqserver.errors import BranchEnded
from mqserver.interfaces.node import NodeServant
from mqserver.interfaces.parts import Parts
from mqserver.interfaces.translation import translating
from mqserver.transactions.decisions import Decisions, Voter

VOTERS_MAX = 1000
# To look one up in its class takes four times as long.
_PREPARE, _COMMIT_ONE_PHASE = mqCompletion.PREPARE, mqCompletion.COMMIT_ONE_PHASE

_op = translating(Mq_Decider)


class DeciderServant:
    """See `Mq_Decider`."""

    def __init__(self, parts: Parts, node: NodeServant, decisions: Decisions) -> None:
        self._parts = parts
        self._node = node
        self._decisions = decisions

    @_op
    @prompt
    def vote(
        self,
        branch: mqBranch,
        request: int,
        work: mqWorkList,
        place: str,
        coordinator: Mq_Settlement | None,
    ) -> tuple[Status, bool, mqKeyListList]:
        """See `Mq_Decider.vote`."""
        family, where = asked_at(place, self._address(coordinator))
        member = f"{branch.otid.tid.hex()}/{branch.name}"
        recovery = f"{family}{member}{where}".encode()
        return self._node.push(branch, request, work, _PREPARE, recovery, None)

    @_op
    @prompt
    def decide(
        self,
        branch: mqBranch,
        request: int,
        work: mqWorkList,
        coordinator: Mq_Settlement | None,
        voters: mqVoterList,
    ) -> tuple[Status, mqKeyListList]:
        """See `Mq_Decider.decide`."""
        named, where = self._voters(voters), self._address(coordinator)
        self._decisions.get_ready()
        commit_one_phase = self._parts.storage.commit_one_phase

        def decide(own: bytes) -> None:
            self._decisions.commit(own, where, named, commit_one_phase)

        try:
            status, _, keys = self._node.push(branch, request, work, _COMMIT_ONE_PHASE, b"", decide)
        except BranchEnded:
            if self._decisions.find(branch.otid.tid) is not Status.COMMITTED:
                raise
            # Decided so long ago that only the mark is left; the keys are forgotten.
            return Status.COMMITTED, tuple(() for _ in work)
        return status, keys

    def _address(self, coordinator: Mq_Settlement | None) -> str:
        """Where the coordinator is; the orb has seen to it that this caller may name it."""
        if coordinator is None:
            raise system.BAD_PARAM("there is no coordinator that could be asked")
        return self._parts.orb.reference_of(coordinator).rpartition("@")[2]

    def _voters(self, voters: mqVoterList) -> list[Voter]:
        """Those who wait for the decision. What is no reference would be asked for ever."""
        if len(voters) > VOTERS_MAX:
            raise system.IMP_LIMIT(f"{VOTERS_MAX} voters in one transaction")
        try:
            return [Voter(check_branch(each.name), _checked(each.settler)) for each in voters]
        except InvalidValue as wrong:
            raise system.BAD_PARAM(str(wrong)) from wrong

    @_op
    @prompt
    def endVoter(self, branch: mqBranch, isCommitted: bool) -> None:
        """See `Mq_Decider.endVoter`."""
        owner = self._parts.entered().principal.name
        self._parts.work.end_voter(self._node.branch_id(branch), owner, isCommitted)

    @_op
    def getDecision(self, otid: otid_t) -> Status:
        """See `Mq_Decider.getDecision`."""
        self._parts.entered()
        return self._decisions.find(_gtrid(otid))

    @_op
    def fence(self, otid: otid_t) -> Status:
        """See `Mq_Decider.fence`."""
        self._parts.entered()
        return self._decisions.fence(_gtrid(otid))


# The same few come again and again.
@functools.lru_cache(maxsize=1024)
def asked_at(place: str, coordinator: str) -> tuple[str, str]:
    """What stands before and behind the branch in the reference of the object that it asks."""
    try:
        made = Reference.parse(f"PYRO:{MARKED}/{place}@{coordinator}")
    except InvalidValue as wrong:
        raise system.BAD_PARAM(str(wrong)) from wrong
    return f"PYRO:{made.name}/", f"@{made.address}"


@functools.lru_cache(maxsize=1024)
def _checked(reference: str) -> str:
    return str(Reference.parse(reference))


def _gtrid(otid: otid_t) -> bytes:
    try:
        return split_otid(otid)[0]
    except InvalidValue as wrong:
        raise system.BAD_PARAM(str(wrong)) from wrong
