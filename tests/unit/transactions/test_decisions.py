"""What a node has decided: a mark or a fence, never both, and each as long as it is needed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from idl import system
from idl.cos import Status
from idl.otids import GTRID_BYTES
from mqserver.arrivals import WatchedStorage
from mqserver.errors import BranchEnded, LimitExceeded, StorageError, StorageFull
from mqserver.storage.contract import NewMessage, Outcome, QueueSettings
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.decisions import QUEUE, Decisions, Voter

GTRID = bytes(range(GTRID_BYTES))
OTHER = bytes(GTRID_BYTES)
BRANCH = GTRID + b"n1"
VOTERS = (Voter("n2", "PYRO:settler@far:1"), Voter("d1.x", "PYRO:database-settler/x@here:2"))
COORDINATOR = "127.0.0.1:7410"
IDS = itertools.count()


class Desk:
    """A storage with one queue, and decisions about branches that put there."""

    def __init__(self, storage: MemoryStorage | None = None) -> None:
        self.storage = storage or MemoryStorage(lambda: 0.0)
        self.time = 0.0
        if storage is None:
            self.storage.create_queue("q", QueueSettings())
        self.decisions = self._made()

    def _made(self) -> Decisions:
        made = Decisions(self.storage, lambda: self.time, lambda: next(IDS).to_bytes(16))
        made.load()
        return made

    def restart(self) -> None:
        """The node is gone and back, with what is stored."""
        self.decisions = self._made()

    def decide(self, branch: bytes = BRANCH) -> None:
        self.decisions.get_ready()
        self.storage.store(branch, "q", [NewMessage(b"x", 0)])
        self.decisions.commit(branch, COORDINATOR, VOTERS, self.storage.commit_one_phase)

    @property
    def messages(self) -> int:
        return self.storage.queue("q").visible


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_what_is_decided_has_happened_and_is_found(desk: Desk) -> None:
    assert desk.decisions.find(GTRID) is Status.NO_TRANSACTION
    desk.decide()
    assert desk.messages == 1
    assert desk.decisions.find(GTRID) is Status.COMMITTED
    assert desk.decisions.fence(GTRID) is Status.COMMITTED


def test_a_decision_and_whom_it_concerns_outlive_a_restart(desk: Desk) -> None:
    desk.decide()
    desk.restart()
    assert desk.decisions.find(GTRID) is Status.COMMITTED
    [(gtrid, mark)] = desk.decisions.waiting(desk.time, 10)
    assert (gtrid, mark.coordinator, mark.voters) == (GTRID, COORDINATOR, VOTERS)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_behind_a_fence_nothing_is_decided(desk: Desk, is_restarted: bool) -> None:
    assert desk.decisions.fence(GTRID) is Status.ROLLED_BACK
    if is_restarted:
        desk.restart()
    assert desk.decisions.find(GTRID) is Status.ROLLED_BACK
    assert desk.decisions.fence(GTRID) is Status.ROLLED_BACK
    with pytest.raises(BranchEnded):
        desk.decide()
    desk.storage.rollback(BRANCH)
    assert desk.messages == 0
    # Others are not touched by it.
    desk.decide(OTHER + b"n1")
    assert desk.messages == 1


def test_while_it_is_decided_no_fence_is_put_up(desk: Desk) -> None:
    told: list[object] = []

    def asked_meanwhile(branch: bytes) -> None:
        with pytest.raises(system.TRANSIENT):
            desk.decisions.fence(GTRID)
        told.append(desk.decisions.find(GTRID))
        desk.storage.commit_one_phase(branch)

    desk.decisions.get_ready()
    desk.storage.store(BRANCH, "q", [NewMessage(b"x", 0)])
    desk.decisions.commit(BRANCH, COORDINATOR, VOTERS, asked_meanwhile)
    # What is not on disk is not told.
    assert told == [Status.NO_TRANSACTION]
    assert desk.decisions.fence(GTRID) is Status.COMMITTED


def test_another_branch_of_the_same_transaction_does_not_decide_beside_it(desk: Desk) -> None:
    def decided_meanwhile(branch: bytes) -> None:
        with pytest.raises(system.INVALID_TRANSACTION):
            desk.decide(GTRID + b"n2")
        desk.storage.commit_one_phase(branch)

    desk.decisions.get_ready()
    desk.storage.store(BRANCH, "q", [NewMessage(b"x", 0)])
    desk.decisions.commit(BRANCH, COORDINATOR, VOTERS, decided_meanwhile)
    with pytest.raises(BranchEnded, match="COMMITTED"):
        desk.decide(GTRID + b"n3")


def test_a_fence_is_told_only_when_it_is_on_disk(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.decisions.get_ready()

    def full(branch: bytes) -> None:
        with pytest.raises(system.TRANSIENT):
            desk.decisions.fence(GTRID)
        with pytest.raises(BranchEnded):
            desk.decide()
        raise StorageFull

    with monkeypatch.context() as patch:
        patch.setattr(desk.storage, "commit_one_phase", full)
        with pytest.raises(StorageFull):
            desk.decisions.fence(GTRID)
    desk.storage.rollback(BRANCH)
    assert desk.decisions.find(GTRID) is Status.NO_TRANSACTION
    desk.restart()
    assert desk.decisions.find(GTRID) is Status.NO_TRANSACTION


def test_so_many_decisions_wait_and_no_more(desk: Desk) -> None:
    desk.decisions = Decisions(desk.storage, lambda: 0.0, lambda: next(IDS).to_bytes(16), 1)
    desk.decide()
    with pytest.raises(LimitExceeded, match="reaches the coordinator"):
        desk.decide(OTHER + b"n1")
    desk.decisions.forget([GTRID])
    desk.storage.rollback(OTHER + b"n1")
    desk.decide(OTHER + b"n2")
    assert desk.messages == 2


def test_a_decision_that_is_not_stored_is_none(desk: Desk) -> None:
    def full(branch: bytes) -> None:
        raise StorageFull

    desk.decisions.get_ready()
    with pytest.raises(StorageFull):
        desk.decisions.commit(BRANCH, COORDINATOR, VOTERS, full)
    assert desk.decisions.find(GTRID) is Status.NO_TRANSACTION
    desk.storage.rollback(BRANCH)
    assert desk.decisions.fence(GTRID) is Status.ROLLED_BACK


def test_an_owner_that_asks_late_is_told_that_it_was_committed(desk: Desk) -> None:
    desk.decide()
    desk.decisions.forget([GTRID])
    assert desk.decisions.find(GTRID) is Status.NO_TRANSACTION
    assert desk.decisions.fence(GTRID) is Status.COMMITTED
    desk.restart()
    assert desk.decisions.fence(GTRID) is Status.COMMITTED


@pytest.mark.parametrize("has_happened", [False, True])
@pytest.mark.parametrize("asked", ["find", "fence", "commit"])
def test_where_nobody_knows_whether_it_was_decided_that_is_found_out_first(
    desk: Desk, has_happened: bool, asked: str
) -> None:
    def broken(branch: bytes) -> None:
        if has_happened:
            desk.storage.commit_one_phase(branch)
        raise StorageError("whether this call has done its work is not known")

    desk.decisions.get_ready()
    desk.storage.store(BRANCH, "q", [NewMessage(b"x", 0)])
    with pytest.raises(StorageError):
        desk.decisions.commit(BRANCH, COORDINATOR, VOTERS, broken)
    if asked == "commit":
        with pytest.raises(BranchEnded):
            desk.decide()
    elif asked == "fence":
        expected = Status.COMMITTED if has_happened else Status.ROLLED_BACK
        assert desk.decisions.fence(GTRID) is expected
    else:
        expected = Status.COMMITTED if has_happened else Status.NO_TRANSACTION
        assert desk.decisions.find(GTRID) is expected
    assert desk.messages == has_happened
    desk.restart()
    is_marked = desk.decisions.find(GTRID) is Status.COMMITTED
    assert is_marked is has_happened


def test_as_long_as_the_storage_is_silent_no_fence_is_put_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(branch: bytes) -> None:
        raise StorageError("gone")

    desk.decisions.get_ready()
    desk.storage.store(BRANCH, "q", [NewMessage(b"x", 0)])
    with pytest.raises(StorageError):
        desk.decisions.commit(BRANCH, COORDINATOR, VOTERS, broken)
    with monkeypatch.context() as patch:
        patch.setattr(desk.storage, "rollback", broken)
        for ask in (desk.decisions.fence, desk.decisions.find):
            with pytest.raises(StorageError):
                ask(GTRID)
    assert desk.decisions.fence(GTRID) is Status.ROLLED_BACK


def test_behind_a_fence_that_may_be_there_nothing_is_decided(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_one_phase = desk.storage.commit_one_phase

    def broken(branch: bytes) -> None:
        commit_one_phase(branch)
        raise StorageError("whether this call has done its work is not known")

    desk.decisions.get_ready()
    with monkeypatch.context() as patch:
        patch.setattr(desk.storage, "commit_one_phase", broken)
        with pytest.raises(StorageError):
            desk.decisions.fence(GTRID)
    with pytest.raises(BranchEnded):
        desk.decide()
    assert desk.decisions.fence(GTRID) is Status.ROLLED_BACK


def test_what_nobody_waits_for_is_forgotten_for_good(desk: Desk) -> None:
    names = [number.to_bytes(GTRID_BYTES) for number in range(450)]
    for name in names:
        desk.decide(name + b"n1")
    desk.decisions.forget(names[:449])
    assert len(desk.decisions) == 1
    desk.restart()
    assert [desk.decisions.find(name) for name in names[-2:]] == [
        Status.NO_TRANSACTION,
        Status.COMMITTED,
    ]
    assert desk.storage.queue(QUEUE).visible == 1


def test_what_another_node_has_forgotten_is_forgotten_here_too() -> None:
    desk = Desk()
    desk.decide()
    desk.decide(OTHER + b"n1")
    other = Desk(desk.storage)
    other.decisions.forget([GTRID])
    desk.decisions.forget([GTRID, OTHER])
    assert len(desk.decisions) == 0
    assert desk.storage.queue(QUEUE).visible == 0


def test_those_that_are_put_off_come_behind_the_others_and_later(desk: Desk) -> None:
    desk.decide()
    desk.time = 1.0
    desk.decide(OTHER + b"n1")
    assert [gtrid for gtrid, _ in desk.decisions.waiting(1.0, 10)] == [GTRID, OTHER]
    assert [gtrid for gtrid, _ in desk.decisions.waiting(0.5, 10)] == [GTRID]
    assert [gtrid for gtrid, _ in desk.decisions.waiting(1.0, 1)] == [GTRID]
    desk.decisions.put_off([GTRID], 5.0)
    assert [gtrid for gtrid, _ in desk.decisions.waiting(5.9, 10)] == [OTHER]
    assert [gtrid for gtrid, _ in desk.decisions.waiting(6.0, 10)] == [OTHER, GTRID]


def test_the_queue_of_decisions_is_seen_by_nobody(desk: Desk) -> None:
    heard: list[object] = []
    watched = WatchedStorage(desk.storage)
    watched.listen(heard.append)
    desk.decide()
    assert [info.name for info in watched.queues()] == ["q"]
    assert heard == []


def test_a_branch_that_was_rolled_back_meanwhile_decides_nothing(desk: Desk) -> None:
    desk.decisions.get_ready()
    desk.storage.rollback(BRANCH)
    commit: Callable[[bytes], None] = desk.storage.commit_one_phase
    with pytest.raises(BranchEnded):
        desk.decisions.commit(BRANCH, COORDINATOR, VOTERS, commit)
    assert desk.storage.outcome(BRANCH) is Outcome.ROLLED_BACK
    assert desk.decisions.find(GTRID) is Status.NO_TRANSACTION
