"""What a database carries is put once, whichever way comes first, until its row is gone."""

from __future__ import annotations

import itertools

import pytest

from idl import system
from idl.custody import node_of
from idl.otids import GTRID_BYTES
from mqserver.errors import BranchEnded, LimitExceeded, StorageError, StorageFull
from mqserver.storage.contract import NewMessage, Outcome, QueueSettings
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.custody import QUEUE, Custody, NotOurs

GTRID = bytes(range(GTRID_BYTES))
OTHER = bytes(GTRID_BYTES)
HELD = GTRID + b"n1"
DATABASE = "orders"
IDS = itertools.count()


class Keeper:
    """A storage with one queue, and what is carried there."""

    def __init__(self, marks_max: int = 100) -> None:
        self.time = 0.0
        self.storage = MemoryStorage(lambda: 0.0)
        self.storage.create_queue("q", QueueSettings())
        self._marks_max = marks_max
        self.restart()

    def restart(self) -> None:
        """The node is gone and back, with what is stored; running branches are lost."""
        for info in self.storage.branches():
            self.storage.rollback(info.branch)
        self.custody = Custody(
            self.storage,
            lambda: self.time,
            lambda: next(IDS).to_bytes(16),
            self.give_up,
            self._marks_max,
        )
        self.custody.load()

    def give_up(self, branch: bytes) -> None:
        self.storage.rollback(branch)

    def store(self, branch: bytes) -> None:
        self.storage.store(branch, "q", [NewMessage(b"x", 0)])

    def hold(self, branch: bytes = HELD) -> None:
        self.custody.get_ready()
        self.store(branch)

    def lazily(self, branch: bytes) -> None:
        self.storage.commit_one_phase(branch, force=False)

    def deliver(self, branch: bytes = HELD) -> bool:
        return self.custody.deliver(branch, DATABASE, self.lazily)

    def take_over(self, gtrid: bytes = GTRID) -> bool:
        self.custody.get_ready()
        own = self.custody.branch_of(gtrid)
        return self.custody.take_over(own, DATABASE, self.store, self.storage.commit_one_phase)

    @property
    def messages(self) -> int:
        return self.storage.queue("q").visible


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


def test_what_is_delivered_is_put_and_known(keeper: Keeper) -> None:
    keeper.hold()
    assert (keeper.messages, keeper.custody.is_put(GTRID)) == (0, False)
    assert keeper.deliver()
    assert (keeper.messages, keeper.custody.is_put(GTRID)) == (1, True)
    keeper.restart()
    assert (keeper.messages, keeper.custody.is_put(GTRID)) == (1, True)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_first_delivered", [False, True])
def test_what_was_put_one_way_is_not_put_the_other_way(
    keeper: Keeper, is_first_delivered: bool, is_restarted: bool
) -> None:
    keeper.hold()
    assert keeper.deliver() if is_first_delivered else keeper.take_over()
    if is_restarted:
        keeper.restart()
    assert not keeper.take_over()
    keeper.hold(GTRID + b"n3")
    assert not keeper.deliver(GTRID + b"n3")
    assert keeper.messages == 1


def test_what_a_crash_has_taken_away_can_only_be_taken_over(keeper: Keeper) -> None:
    keeper.hold()
    keeper.restart()
    with pytest.raises(BranchEnded):
        keeper.deliver()
    assert keeper.take_over()
    assert keeper.messages == 1


def test_who_comes_while_it_is_being_put_comes_again(keeper: Keeper) -> None:
    keeper.hold()
    met: list[Exception] = []

    def meet(branch: bytes) -> None:
        assert keeper.custody.has(GTRID)
        assert not keeper.custody.is_put(GTRID)
        with pytest.raises(system.TRANSIENT) as told:
            keeper.take_over()
        met.append(told.value)
        keeper.lazily(branch)

    assert keeper.custody.deliver(HELD, DATABASE, meet)
    assert len(met) == 1
    assert keeper.messages == 1


@pytest.mark.parametrize("has_happened", [False, True])
def test_a_commit_of_which_nobody_knows_is_found_out_before_it_is_put_again(
    keeper: Keeper, has_happened: bool
) -> None:
    keeper.hold()

    def lose(branch: bytes) -> None:
        if has_happened:
            keeper.lazily(branch)
        raise StorageError("the connection was lost")

    with pytest.raises(StorageError):
        keeper.custody.deliver(HELD, DATABASE, lose)
    assert keeper.take_over() is not has_happened
    assert keeper.custody.is_put(GTRID)
    assert keeper.messages == 1


def test_what_found_no_room_is_put_later(keeper: Keeper) -> None:
    keeper.hold()

    def refuse(branch: bytes) -> None:
        raise StorageFull("no room")

    with pytest.raises(StorageFull):
        keeper.custody.deliver(HELD, DATABASE, refuse)
    keeper.storage.rollback(HELD)
    assert keeper.messages == 0
    assert keeper.take_over()
    assert keeper.messages == 1


def test_what_is_forgotten_is_forgotten_across_a_restart_too(keeper: Keeper) -> None:
    keeper.take_over()
    keeper.time = 1.0
    keeper.take_over(OTHER)
    assert keeper.custody.oldest(0.5, 10) == {DATABASE: [GTRID]}
    assert keeper.custody.oldest(2.0, 1) == {DATABASE: [GTRID]}
    keeper.custody.forget([GTRID])
    # One that is not there any more makes no trouble.
    keeper.custody.forget([GTRID])
    assert keeper.custody.oldest(2.0, 10) == {DATABASE: [OTHER]}
    keeper.restart()
    assert keeper.custody.oldest(2.0, 10) == {DATABASE: [OTHER]}
    assert keeper.messages == 2


def test_one_that_is_put_off_is_no_longer_the_oldest(keeper: Keeper) -> None:
    for gtrid in (GTRID, OTHER):
        keeper.take_over(gtrid)
    keeper.custody.put_off([GTRID], 5.0)
    assert keeper.custody.oldest(4.0, 10) == {DATABASE: [OTHER]}
    assert keeper.custody.oldest(5.0, 10) == {DATABASE: [OTHER, GTRID]}


def test_more_is_not_held_than_is_removed_in_time() -> None:
    keeper = Keeper(marks_max=2)
    keeper.take_over()
    assert not keeper.custody.is_full
    keeper.take_over(OTHER)
    assert keeper.custody.is_full
    third = b"3" * GTRID_BYTES
    with pytest.raises(LimitExceeded):
        keeper.take_over(third)
    assert keeper.storage.outcome(keeper.custody.branch_of(third)) is Outcome.UNKNOWN


def test_the_secret_is_made_once_and_only_when_it_is_needed(keeper: Keeper) -> None:
    keeper.restart()
    assert keeper.custody.secret == ""
    assert all(info.name != QUEUE for info in keeper.storage.queues())
    keeper.custody.get_ready()
    secret = keeper.custody.secret
    keeper.custody.get_ready()
    keeper.restart()
    assert keeper.custody.secret == secret
    assert keeper.custody.node == node_of(secret)


def test_the_secret_is_the_one_that_a_restart_finds(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = keeper.storage.commit_one_phase

    def lose(branch: bytes) -> None:
        commit(branch)
        raise StorageError("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr(keeper.storage, "commit_one_phase", lose)
        with pytest.raises(StorageError):
            keeper.custody.get_ready()
    keeper.custody.get_ready()
    secret = keeper.custody.secret
    keeper.restart()
    assert keeper.custody.secret == secret


def test_a_row_is_ours_only_with_its_ticket(keeper: Keeper) -> None:
    keeper.custody.get_ready()
    ticket = keeper.custody.ticket(GTRID, b"content")
    keeper.custody.check(GTRID, ticket, b"content")
    for gtrid, shown, content in (
        (OTHER, ticket, b"content"),
        (GTRID, ticket, b"another"),
        (GTRID, bytes(len(ticket)), b"content"),
        (GTRID, b"", b"content"),
    ):
        with pytest.raises(NotOurs):
            keeper.custody.check(gtrid, shown, content)
