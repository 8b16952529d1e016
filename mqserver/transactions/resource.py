"""The CosTransactions resource of a branch: does and answers what the table says.

None is kept: each is made from its name, which holds transaction and branch, so that after a
restart the same reference leads to the same branch. There are two kinds. One is registered with a
coordinator, and has committed durably when it answers. The other is named to a coordinator together
with a settler, and answers before its commit is on disk.
"""

from __future__ import annotations

from functools import partial

from idl import system
from idl.call import Orb
from idl.coordination import Mq_Settler
from idl.cos import (
    HeuristicCommit,
    HeuristicHazard,
    HeuristicRollback,
    NotPrepared,
    RecoveryCoordinator,
    Resource,
    Vote,
    otid_t,
)
from idl.mapping import InvalidValue, UserException
from idl.otids import BRANCH, SETTLER, member_name, split_member, split_otid
from idl.turns import prompt, step_aside
from mqserver.errors import BranchEnded, StorageError
from mqserver.storage import contract
from mqserver.transactions.branch import Act, Answer, Request, step

RESOURCE = "resource"
ATTEMPTS = 5
# So many branches are settled before others have their turn.
PROMPT_BRANCHES_MAX = 100
# To look one up in its class takes four times as long.
_FOR, _NOTHING_TO_COMMIT, _COMMITTED = (
    Vote.COMMIT,
    contract.Vote.READ_ONLY,
    contract.Outcome.COMMITTED,
)


class Resources:
    """All branches of a node, as resources. May be used from any thread."""

    def __init__(self, orb: Orb, storage: contract.Storage) -> None:
        self._orb = orb
        self.storage = storage
        # Whom those ask that registered themselves; kept on disk with the vote.
        self._recoveries: dict[bytes, bytes] = {}
        # Branches in doubt that are to ask at once.
        self._impatient: set[bytes] = set()

    def publish(self) -> None:
        """Every branch can be called, whether it is known already or not."""
        self._orb.publish_family(RESOURCE, partial(self._made, True), Resource)
        self._orb.publish_family(BRANCH, partial(self._made, False), Resource)
        self._orb.publish(SettlerServant(self), Mq_Settler, SETTLER)

    def resource_of(self, gtrid: bytes, name: str, is_lazy: bool) -> Resource:
        """The object that stands for the branch."""
        family = BRANCH if is_lazy else RESOURCE
        return self._orb.member(member_name(family, gtrid, name), Resource)

    def settler(self) -> Mq_Settler:
        """The object that makes commits durable."""
        return self._orb.member(SETTLER, Mq_Settler)

    def _made(self, is_durable: bool, rest: str) -> ResourceServant:
        return ResourceServant(self, branch_id(*split_member(rest)), is_durable)

    def registered(self, branch: bytes, recovery: RecoveryCoordinator) -> None:
        """The branch takes part in a transaction, and asks there for the outcome."""
        self._recoveries[branch] = self._orb.reference_of(recovery).encode()

    def recovery_of(self, branch: bytes) -> bytes:
        """Whom the branch asks; nothing for one that has not registered itself."""
        return self._recoveries.get(branch, b"")

    def ask_soon(self, branch: bytes) -> None:
        """The outcome of the branch, which is in doubt, is known by now."""
        self._impatient.add(branch)

    def impatient(self) -> set[bytes]:
        """The branches of which that was said since this was last asked for."""
        impatient, self._impatient = self._impatient, set()
        return impatient

    def ended(self, branch: bytes) -> None:
        """The branch needs to be known here no longer."""
        self._recoveries.pop(branch, None)


def branch_id(gtrid: bytes, name: str) -> bytes:
    """The id under which the storage knows the branch."""
    return gtrid + name.encode("ascii")


class ResourceServant:
    """See `Resource`."""

    def __init__(self, resources: Resources, branch: bytes, is_durable: bool) -> None:
        self._resources = resources
        self._storage = resources.storage
        self._branch = branch
        self._is_durable = is_durable

    @prompt
    def prepare(self) -> Vote:
        """See `Resource.prepare`."""
        vote = prepare(self._storage, self._branch, self._resources.recovery_of(self._branch))
        if vote is not _FOR:
            # It is over, and nobody will call it again.
            self._resources.ended(self._branch)
        return vote

    @prompt
    def commit(self) -> None:
        """See `Resource.commit`."""
        commit(self._storage, self._branch, self._is_durable)
        self._resources.ended(self._branch)

    @prompt
    def commit_one_phase(self) -> None:
        """See `Resource.commit_one_phase`."""
        ask(self._storage, self._branch, Request.COMMIT_ONE_PHASE)
        self._resources.ended(self._branch)

    @prompt
    def rollback(self) -> None:
        """See `Resource.rollback`."""
        ask(self._storage, self._branch, Request.ROLLBACK)
        self._resources.ended(self._branch)

    @prompt
    def forget(self) -> None:
        """See `Resource.forget`."""
        ask(self._storage, self._branch, Request.FORGET)


class SettlerServant:
    """See `Mq_Settler`."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._storage = resources.storage

    @prompt
    def commitBranches(self, branches: tuple[otid_t, ...]) -> tuple[otid_t, ...]:
        """See `Mq_Settler.commitBranches`."""
        if len(branches) > PROMPT_BRANCHES_MAX:
            step_aside()
        named = zip(branches, _named(branches), strict=True)
        return tuple([otid for otid, branch in named if not self._has_committed(branch)])

    def _has_committed(self, branch: bytes) -> bool:
        try:
            commit(self._storage, branch, is_durable=False)
        except (UserException, system.SystemException):
            # Whoever asks for this one alone is told what is the matter with it.
            return False
        self._resources.ended(branch)
        return True

    @prompt
    def settle(self, branches: tuple[otid_t, ...]) -> None:
        """See `Mq_Settler.settle`."""
        if len(branches) > PROMPT_BRANCHES_MAX:
            step_aside()
        for branch in _named(branches):
            try:
                outcome = self._storage.commit(branch, force=False)
            except BranchEnded as ended:
                raise NotPrepared() from ended
            if outcome is contract.Outcome.HEURISTICALLY_ROLLED_BACK:
                raise NotPrepared()
        # One forced write for all of them.
        self._storage.force()

    @prompt
    def getEnded(self, branches: tuple[otid_t, ...]) -> tuple[otid_t, ...]:
        """See `Mq_Settler.getEnded`."""
        if len(branches) > PROMPT_BRANCHES_MAX:
            step_aside()
        over = []
        for otid, branch in zip(branches, _named(branches), strict=True):
            outcome = self._storage.outcome(branch)
            if outcome in _OVER:
                over.append(otid)
            elif outcome is contract.Outcome.PREPARED:
                # Its owner is gone, or could not tell it.
                self._resources.ask_soon(branch)
        if over:
            self._storage.force()
        return tuple(over)


# One of which nothing is known has ended long ago, since it had been prepared. What an operator has
# done is remembered until it is forgotten, and the decision with it.
_OVER = (contract.Outcome.COMMITTED, contract.Outcome.ROLLED_BACK, contract.Outcome.UNKNOWN)


def _named(branches: tuple[otid_t, ...]) -> list[bytes]:
    try:
        return [branch_id(*split_otid(otid)) for otid in branches]
    except InvalidValue as wrong:
        raise system.BAD_PARAM(str(wrong)) from wrong


def prepare(storage: contract.Storage, branch: bytes, recovery: bytes) -> Vote:
    """The vote of a branch; one that could not keep the promise votes against it.

    That is so where the storage cannot, and where nobody has said whom to ask for the outcome.
    """
    if not recovery and storage.outcome(branch) is contract.Outcome.ACTIVE:
        ask(storage, branch, Request.ROLLBACK)
    try:
        vote = _prepared(storage, branch, recovery)
    except StorageError:
        # Nothing was promised, so it can still be undone.
        ask(storage, branch, Request.ROLLBACK)
        return Vote.ROLLBACK
    assert vote is not None
    return vote


def _prepared(storage: contract.Storage, branch: bytes, recovery: bytes) -> Vote | None:
    # The table lets the storage prepare all that it can, and mostly it can: so the table is asked
    # where it could not.
    try:
        is_read_only = storage.prepare(branch, recovery) is _NOTHING_TO_COMMIT
    except BranchEnded:
        return ask(storage, branch, Request.PREPARE, recovery, attempts=ATTEMPTS - 1)
    return Vote.READ_ONLY if is_read_only else _FOR


def commit(storage: contract.Storage, branch: bytes, is_durable: bool) -> None:
    """The branch has committed. Raises what the table says of one that has not."""
    # As with votes: of all that the storage commits the table says the same.
    try:
        if storage.commit(branch, is_durable) is _COMMITTED:
            return
    except BranchEnded:
        pass
    ask(storage, branch, Request.COMMIT, is_durable=is_durable, attempts=ATTEMPTS - 1)


def roll_back(storage: contract.Storage, branch: bytes) -> None:
    """The branch has not happened. Raises what the table says of one that has."""
    ask(storage, branch, Request.ROLLBACK)


def ask(
    storage: contract.Storage,
    branch: bytes,
    request: Request,
    recovery: bytes = b"",
    is_durable: bool = True,
    attempts: int = ATTEMPTS,
) -> Vote | None:
    """Does and answers what the table says; votes are returned, refusals raised."""
    for _ in range(attempts):
        chosen = step(storage.outcome(branch), request)
        try:
            vote = _act(storage, branch, chosen.act, recovery, is_durable)
        except BranchEnded:
            # Another call has ended the branch since we looked: look again.
            continue
        return _answer(chosen.answer, vote)
    raise system.TRANSIENT("others are ending this branch; ask again")


def _act(
    storage: contract.Storage, branch: bytes, act: Act, recovery: bytes, is_durable: bool = True
) -> Vote | None:
    match act:
        case Act.PREPARE:
            is_read_only = storage.prepare(branch, recovery) is contract.Vote.READ_ONLY
            return Vote.READ_ONLY if is_read_only else Vote.COMMIT
        case Act.COMMIT:
            if storage.commit(branch, is_durable) is not contract.Outcome.COMMITTED:
                # An operator has ended it, and the table says what that means.
                raise BranchEnded(branch.hex())
        case Act.COMMIT_ONE_PHASE:
            storage.commit_one_phase(branch)
        case Act.ROLLBACK:
            storage.rollback(branch)
        case Act.RESOLVE_COMMIT:
            storage.resolve(branch, commit=True)
        case Act.RESOLVE_ROLLBACK:
            storage.resolve(branch, commit=False)
        case Act.FORGET:
            storage.forget(branch)
        case Act.NOTHING:
            return None
    return None


def _answer(answer: Answer, vote: Vote | None) -> Vote | None:
    match answer:
        case Answer.OK | Answer.VOTE:
            return vote
        case Answer.VOTE_ROLLBACK:
            return Vote.ROLLBACK
        case Answer.ROLLED_BACK:
            raise system.TRANSACTION_ROLLEDBACK("the branch is over", system.Completion.YES)
        case Answer.NOT_PREPARED:
            raise NotPrepared()
        case Answer.HEURISTIC_COMMIT:
            raise HeuristicCommit()
        case Answer.HEURISTIC_ROLLBACK:
            raise HeuristicRollback()
        case Answer.HEURISTIC_HAZARD:
            raise HeuristicHazard()
        case Answer.WRONG_STATE:
            raise system.INVALID_TRANSACTION("the branch is past that")
