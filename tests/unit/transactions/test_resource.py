"""The resource of a branch: every request in every state, votes, and commits made durable."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from idl import system
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
from idl.local import LocalOrb
from idl.mapping import UserException
from idl.otids import FORMAT_ID, otid_of
from mqserver.errors import BranchEnded, StorageFailed, StorageFull
from mqserver.storage import contract
from mqserver.storage.contract import NewMessage, Outcome, QueueSettings
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.resource import ATTEMPTS, Resources, branch_id

GTRID = bytes(range(32))
NAME = "b0"
BRANCH = branch_id(GTRID, NAME)
RECOVERY = b"PYRO:recovery/1@coordinator:1"

_O = Outcome
Answered = Vote | type[Exception] | None

# What is answered, and what the branch is then.
TABLE: dict[tuple[Outcome, str], tuple[Answered, Outcome]] = {
    (_O.ACTIVE, "prepare"): (Vote.COMMIT, _O.PREPARED),
    (_O.ACTIVE, "commit"): (NotPrepared, _O.ACTIVE),
    (_O.ACTIVE, "commit_one_phase"): (None, _O.COMMITTED),
    (_O.ACTIVE, "rollback"): (None, _O.ROLLED_BACK),
    (_O.ACTIVE, "forget"): (None, _O.ACTIVE),
    (_O.PREPARED, "prepare"): (Vote.COMMIT, _O.PREPARED),
    (_O.PREPARED, "commit"): (None, _O.COMMITTED),
    (_O.PREPARED, "commit_one_phase"): (system.INVALID_TRANSACTION, _O.PREPARED),
    (_O.PREPARED, "rollback"): (None, _O.ROLLED_BACK),
    (_O.PREPARED, "forget"): (None, _O.PREPARED),
    (_O.COMMITTED, "prepare"): (system.INVALID_TRANSACTION, _O.COMMITTED),
    (_O.COMMITTED, "commit"): (None, _O.COMMITTED),
    (_O.COMMITTED, "commit_one_phase"): (None, _O.COMMITTED),
    (_O.COMMITTED, "rollback"): (HeuristicCommit, _O.COMMITTED),
    (_O.COMMITTED, "forget"): (None, _O.COMMITTED),
    (_O.ROLLED_BACK, "prepare"): (Vote.ROLLBACK, _O.ROLLED_BACK),
    (_O.ROLLED_BACK, "commit"): (NotPrepared, _O.ROLLED_BACK),
    (_O.ROLLED_BACK, "commit_one_phase"): (system.TRANSACTION_ROLLEDBACK, _O.ROLLED_BACK),
    (_O.ROLLED_BACK, "rollback"): (None, _O.ROLLED_BACK),
    (_O.ROLLED_BACK, "forget"): (None, _O.ROLLED_BACK),
    (_O.HEURISTICALLY_COMMITTED, "prepare"): (HeuristicHazard, _O.HEURISTICALLY_COMMITTED),
    (_O.HEURISTICALLY_COMMITTED, "commit"): (None, _O.HEURISTICALLY_COMMITTED),
    (_O.HEURISTICALLY_COMMITTED, "commit_one_phase"): (
        system.INVALID_TRANSACTION,
        _O.HEURISTICALLY_COMMITTED,
    ),
    (_O.HEURISTICALLY_COMMITTED, "rollback"): (HeuristicCommit, _O.HEURISTICALLY_COMMITTED),
    (_O.HEURISTICALLY_COMMITTED, "forget"): (None, _O.UNKNOWN),
    (_O.HEURISTICALLY_ROLLED_BACK, "prepare"): (HeuristicHazard, _O.HEURISTICALLY_ROLLED_BACK),
    (_O.HEURISTICALLY_ROLLED_BACK, "commit"): (HeuristicRollback, _O.HEURISTICALLY_ROLLED_BACK),
    (_O.HEURISTICALLY_ROLLED_BACK, "commit_one_phase"): (
        system.TRANSACTION_ROLLEDBACK,
        _O.HEURISTICALLY_ROLLED_BACK,
    ),
    (_O.HEURISTICALLY_ROLLED_BACK, "rollback"): (None, _O.HEURISTICALLY_ROLLED_BACK),
    (_O.HEURISTICALLY_ROLLED_BACK, "forget"): (None, _O.UNKNOWN),
    (_O.UNKNOWN, "prepare"): (Vote.ROLLBACK, _O.ROLLED_BACK),
    (_O.UNKNOWN, "commit"): (NotPrepared, _O.UNKNOWN),
    (_O.UNKNOWN, "commit_one_phase"): (system.TRANSACTION_ROLLEDBACK, _O.ROLLED_BACK),
    (_O.UNKNOWN, "rollback"): (None, _O.ROLLED_BACK),
    (_O.UNKNOWN, "forget"): (None, _O.UNKNOWN),
}


class CountingStorage(MemoryStorage):
    """A storage in memory that counts what is forced, and can fail to prepare."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.forced: list[str] = []
        self.trouble: Exception | None = None
        self.is_broken = False
        self.create_queue("q", QueueSettings())

    def prepare(self, branch: bytes, recovery: bytes) -> contract.Vote:
        if self.trouble is not None:
            raise self.trouble
        return super().prepare(branch, recovery)

    def rollback(self, branch: bytes) -> Outcome:
        if self.is_broken:
            raise StorageFailed()
        return super().rollback(branch)

    def commit(self, branch: bytes, force: bool = True) -> Outcome:
        if force:
            self.forced.append("commit")
        return super().commit(branch, force)

    def force(self) -> None:
        self.forced.append("force")


@pytest.fixture
def storage() -> CountingStorage:
    return CountingStorage()


@pytest.fixture
def orb() -> LocalOrb:
    return LocalOrb()


@pytest.fixture
def resources(orb: LocalOrb, storage: CountingStorage) -> Resources:
    made = Resources(orb, storage)
    made.publish()
    return made


def _bring(storage: MemoryStorage, outcome: Outcome, branch: bytes = BRANCH) -> None:
    if outcome is Outcome.UNKNOWN:
        return
    storage.store(branch, "q", [NewMessage(b"x", 0)])
    if outcome not in (Outcome.ACTIVE, Outcome.ROLLED_BACK):
        storage.prepare(branch, RECOVERY)
    ends: dict[Outcome, Callable[[], object]] = {
        Outcome.COMMITTED: lambda: storage.commit(branch, force=False),
        Outcome.ROLLED_BACK: lambda: storage.rollback(branch),
        Outcome.HEURISTICALLY_COMMITTED: lambda: storage.resolve(branch, commit=True),
        Outcome.HEURISTICALLY_ROLLED_BACK: lambda: storage.resolve(branch, commit=False),
    }
    ends.get(outcome, lambda: None)()
    assert storage.outcome(branch) is outcome


def _register(orb: LocalOrb, resources: Resources) -> None:
    resources.registered(BRANCH, orb.proxy(RECOVERY.decode(), RecoveryCoordinator))


def _answer(resource: Resource, request: str) -> Answered:
    try:
        answer: Vote | None = getattr(resource, request)()
    except (UserException, system.SystemException) as refused:
        return type(refused)
    return answer


# --- The table


def test_the_table_speaks_of_every_state_and_request() -> None:
    requests = ("prepare", "commit", "commit_one_phase", "rollback", "forget")
    assert set(TABLE) == {(outcome, request) for outcome in Outcome for request in requests}


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize(("was", "request_"), TABLE, ids=lambda part: getattr(part, "name", part))
def test_each_request_is_answered_by_what_the_branch_is(
    orb: LocalOrb,
    resources: Resources,
    storage: CountingStorage,
    was: Outcome,
    request_: str,
    is_lazy: bool,
) -> None:
    _bring(storage, was)
    _register(orb, resources)
    answered = _answer(resources.resource_of(GTRID, NAME, is_lazy), request_)
    assert (answered, storage.outcome(BRANCH)) == TABLE[was, request_]


@pytest.mark.parametrize(("was", "request_"), TABLE, ids=lambda part: getattr(part, "name", part))
def test_a_repeated_request_gets_the_same_answer(
    orb: LocalOrb, resources: Resources, storage: CountingStorage, was: Outcome, request_: str
) -> None:
    _bring(storage, was)
    _register(orb, resources)
    resource = resources.resource_of(GTRID, NAME, is_lazy=False)
    first = _answer(resource, request_)
    after = storage.outcome(BRANCH)
    assert _answer(resource, request_) == first
    assert storage.outcome(BRANCH) is after


def test_a_name_that_names_no_branch_does_not_exist(orb: LocalOrb, resources: Resources) -> None:
    for name in ("resource/no-name", "branch/00", f"branch/{GTRID.hex()}/b/0"):
        with pytest.raises(system.OBJECT_NOT_EXIST):
            orb.member(name, Resource).commit()


def test_a_branch_that_others_keep_ending_is_to_be_asked_again(
    resources: Resources, storage: CountingStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[bytes] = []

    def ended_since(branch: bytes, force: bool) -> Outcome:
        tries.append(branch)
        raise BranchEnded()

    _bring(storage, Outcome.PREPARED)
    monkeypatch.setattr(storage, "commit", ended_since)
    with pytest.raises(system.TRANSIENT, match="ask again"):
        resources.resource_of(GTRID, NAME, is_lazy=False).commit()
    assert tries == [BRANCH] * ATTEMPTS


# --- Votes


def test_a_branch_that_changed_nothing_votes_read_only_and_is_over(
    orb: LocalOrb, resources: Resources, storage: CountingStorage
) -> None:
    _register(orb, resources)
    storage.take(BRANCH, "q", contract.EVERYTHING, 1)
    resource = resources.resource_of(GTRID, NAME, is_lazy=False)
    assert resource.prepare() is Vote.READ_ONLY
    assert storage.outcome(BRANCH) is Outcome.ROLLED_BACK
    assert resources.recovery_of(BRANCH) == b""


def test_a_branch_that_knows_nobody_to_ask_votes_against(
    resources: Resources, storage: CountingStorage
) -> None:
    _bring(storage, Outcome.ACTIVE)
    assert resources.resource_of(GTRID, NAME, is_lazy=False).prepare() is Vote.ROLLBACK
    assert storage.outcome(BRANCH) is Outcome.ROLLED_BACK


def test_a_prepared_branch_votes_again_after_a_restart_and_keeps_whom_it_asks(
    resources: Resources, storage: CountingStorage
) -> None:
    _bring(storage, Outcome.PREPARED)
    assert resources.resource_of(GTRID, NAME, is_lazy=False).prepare() is Vote.COMMIT
    assert [info.recovery for info in storage.branches()] == [RECOVERY]


def test_whom_a_branch_asks_is_stored_with_its_vote(
    orb: LocalOrb, resources: Resources, storage: CountingStorage
) -> None:
    _bring(storage, Outcome.ACTIVE)
    _register(orb, resources)
    assert resources.resource_of(GTRID, NAME, is_lazy=False).prepare() is Vote.COMMIT
    assert [info.recovery for info in storage.branches()] == [RECOVERY]


def test_a_storage_that_cannot_prepare_votes_against(
    orb: LocalOrb, resources: Resources, storage: CountingStorage
) -> None:
    _bring(storage, Outcome.ACTIVE)
    _register(orb, resources)
    storage.trouble = StorageFull()
    assert resources.resource_of(GTRID, NAME, is_lazy=False).prepare() is Vote.ROLLBACK
    assert storage.outcome(BRANCH) is Outcome.ROLLED_BACK
    storage.trouble = None
    assert resources.resource_of(GTRID, NAME, is_lazy=False).prepare() is Vote.ROLLBACK


def test_a_storage_that_failed_for_good_gives_no_vote(
    orb: LocalOrb, resources: Resources, storage: CountingStorage
) -> None:
    _bring(storage, Outcome.ACTIVE)
    _register(orb, resources)
    storage.trouble, storage.is_broken = StorageFailed(), True
    with pytest.raises(system.SystemException):
        resources.resource_of(GTRID, NAME, is_lazy=False).prepare()


@pytest.mark.parametrize("request_", ["commit", "rollback"])
def test_whom_an_ended_branch_asked_is_not_kept(
    orb: LocalOrb, resources: Resources, storage: CountingStorage, request_: str
) -> None:
    _bring(storage, Outcome.PREPARED)
    _register(orb, resources)
    assert resources.recovery_of(BRANCH) == RECOVERY
    getattr(resources.resource_of(GTRID, NAME, is_lazy=False), request_)()
    assert resources.recovery_of(BRANCH) == b""


# --- Commits made durable


@pytest.mark.parametrize(("is_lazy", "forced"), [(False, ["commit"]), (True, [])])
def test_a_registered_branch_commits_durably_and_a_named_one_leaves_it_to_the_settler(
    resources: Resources, storage: CountingStorage, is_lazy: bool, forced: list[str]
) -> None:
    _bring(storage, Outcome.PREPARED)
    resources.resource_of(GTRID, NAME, is_lazy).commit()
    assert storage.outcome(BRANCH) is Outcome.COMMITTED
    assert storage.forced == forced


def test_the_settler_commits_the_branches_it_is_named_and_forces_once(
    resources: Resources, storage: CountingStorage
) -> None:
    names = {
        "b0": Outcome.PREPARED,
        "b1": Outcome.COMMITTED,
        "b2": Outcome.HEURISTICALLY_COMMITTED,
    }
    for name, outcome in names.items():
        _bring(storage, outcome, branch_id(GTRID, name))
    _bring(storage, Outcome.PREPARED, branch_id(GTRID, "other"))
    resources.settler().settle(tuple(otid_of(GTRID, name) for name in names))
    assert storage.forced == ["force"]
    assert storage.outcome(BRANCH) is Outcome.COMMITTED
    assert storage.outcome(branch_id(GTRID, "other")) is Outcome.PREPARED


@pytest.mark.parametrize(
    "outcome",
    [Outcome.UNKNOWN, Outcome.ACTIVE, Outcome.ROLLED_BACK, Outcome.HEURISTICALLY_ROLLED_BACK],
)
def test_of_branches_told_together_those_commit_that_can_and_the_others_are_named(
    resources: Resources, storage: CountingStorage, outcome: Outcome
) -> None:
    good = [branch_id(GTRID, name) for name in ("b1", "b2", "b3")]
    _bring(storage, Outcome.PREPARED, good[0])
    _bring(storage, Outcome.COMMITTED, good[1])
    _bring(storage, Outcome.PREPARED, good[2])
    _bring(storage, outcome)
    names = ("b1", NAME, "b2", "b3")
    refused = resources.settler().commitBranches(tuple(otid_of(GTRID, name) for name in names))
    assert refused == (otid_of(GTRID, NAME),)
    assert [storage.outcome(branch) for branch in good] == [Outcome.COMMITTED] * 3
    assert storage.outcome(BRANCH) is outcome
    assert storage.forced == [], "that is for settle"


@pytest.mark.parametrize(
    "outcome",
    [Outcome.UNKNOWN, Outcome.ACTIVE, Outcome.ROLLED_BACK, Outcome.HEURISTICALLY_ROLLED_BACK],
)
def test_the_settler_refuses_what_it_cannot_commit_and_acknowledges_nothing(
    resources: Resources, storage: CountingStorage, outcome: Outcome
) -> None:
    _bring(storage, Outcome.PREPARED, branch_id(GTRID, "good"))
    _bring(storage, outcome)
    with pytest.raises(NotPrepared):
        resources.settler().settle((otid_of(GTRID, "good"), otid_of(GTRID, NAME)))
    assert storage.forced == []
    assert storage.outcome(BRANCH) is outcome


@pytest.mark.parametrize("otid", [otid_t(7, 0, b"theirs"), otid_t(FORMAT_ID, 0, b"short")])
def test_the_settler_refuses_what_is_no_name_of_a_branch(
    resources: Resources, storage: CountingStorage, otid: otid_t
) -> None:
    with pytest.raises(system.BAD_PARAM):
        resources.settler().settle((otid,))
    with pytest.raises(system.BAD_PARAM):
        resources.settler().commitBranches((otid,))
    assert storage.forced == []
