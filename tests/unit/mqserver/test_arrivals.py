"""What a storage tells its listeners: what can be had now, after it is so, and not before."""

from __future__ import annotations

import pytest

from mqserver.arrivals import Arrival, Counts, WatchedStorage
from mqserver.errors import BranchEnded, QueueNotFound
from mqserver.storage.contract import (
    EVERYTHING,
    MessageColumns,
    NewMessage,
    Outcome,
    QueueSettings,
)
from mqserver.storage.memory import MemoryStorage

B, C = b"branch-b", b"branch-c"


class Watched:
    """A watched storage with two queues, and all that was told of it."""

    def __init__(self, memory: MemoryStorage | None = None) -> None:
        self.memory = memory or MemoryStorage(lambda: 0.0)
        if memory is None:
            self.memory.create_queue("p", QueueSettings())
            self.memory.create_queue("q", QueueSettings())
        self.storage = WatchedStorage(self.memory)
        self.heard: list[Arrival] = []
        self.ends: list[tuple[bytes, Outcome]] = []
        self.storage.listen(self.heard.append)
        self.storage.listen_to_ends(lambda branch, outcome: self.ends.append((branch, outcome)))

    def store(self, branch: bytes, queue: str, *groups: int) -> range:
        """The branch has stored one message for each group."""
        return self.storage.store(branch, queue, [NewMessage(b"x", 0, group=g) for g in groups])


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_what_a_branch_stored_is_told_after_its_commit_with_keys_and_groups(
    watched: Watched,
) -> None:
    keys = watched.store(B, "q", 3, 0)
    assert watched.heard == []
    watched.storage.commit_one_phase(B)
    assert watched.heard == [Arrival("q", tuple(keys), (3, 0))]
    assert watched.ends == [(B, Outcome.COMMITTED)]


@pytest.mark.parametrize("groups", [(4,), (4, 5, 6)])
def test_messages_in_columns_are_told_with_their_groups(
    watched: Watched, groups: tuple[int, ...]
) -> None:
    keys = watched.storage.store(B, "q", MessageColumns([b"x"] * 3, [0] * 3, groups=groups))
    watched.storage.commit_one_phase(B)
    told = groups if len(groups) == 3 else groups * 3
    assert watched.heard == [Arrival("q", tuple(keys), told)]


def test_who_listens_to_some_queues_is_told_of_these_as_they_are_then(watched: Watched) -> None:
    heard: list[Arrival] = []
    queues = {"p"}
    watched.storage.listen(heard.append, queues)
    for number, queue in enumerate(["q", "p", "q"]):
        if number == 2:
            queues.add("q")
        keys = watched.store(B + bytes([number]), queue, 1)
        watched.storage.commit_one_phase(B + bytes([number]))
        told = [Arrival(queue, tuple(keys), (1,))] if queue in queues else []
        assert heard == told
        heard.clear()
    assert len(watched.heard) == 3


def test_who_listens_to_some_queues_is_told_what_returns_to_them_and_what_is_left(
    watched: Watched,
) -> None:
    heard: list[Arrival] = []
    watched.storage.listen(heard.append, {"p"})
    for queue in ("p", "q"):
        watched.store(B, queue, 1, 2)
    (own,) = watched.storage.take(B, "p", EVERYTHING, 1)
    watched.storage.commit_one_phase(B)
    assert heard == [Arrival("p", (own.key + 1,), (2,))]
    heard.clear()
    for queue in ("p", "q"):
        watched.storage.take(C, queue, EVERYTHING, 1)
    watched.storage.rollback(C)
    assert heard == [Arrival("p", (own.key + 1,), (2,))]


def test_each_queue_of_a_branch_is_told_of(watched: Watched) -> None:
    watched.store(B, "q", 1)
    watched.store(B, "p", 2)
    watched.storage.prepare(B, b"whom to ask")
    assert watched.heard == []
    watched.storage.commit(B)
    assert [(a.queue, a.groups) for a in watched.heard] == [("q", (1,)), ("p", (2,))]
    assert [outcome for _, outcome in watched.ends] == [Outcome.PREPARED, Outcome.COMMITTED]


def test_what_returns_by_a_rollback_is_told(watched: Watched) -> None:
    watched.store(B, "q", 5)
    watched.storage.commit_one_phase(B)
    watched.heard.clear()
    (taken,) = watched.storage.take(C, "q", EVERYTHING, 10)
    assert watched.heard == []
    watched.storage.rollback(C)
    assert watched.heard == [Arrival("q", (taken.key,), (5,))]


def test_what_a_branch_stored_and_took_itself_is_told_to_nobody(watched: Watched) -> None:
    first, second = watched.store(B, "q", 1, 2)
    watched.storage.take_keys(B, "q", [first], 0.0)
    watched.storage.commit_one_phase(B)
    assert watched.heard == [Arrival("q", (second,), (2,))]


def test_a_rollback_tells_nothing_of_what_the_branch_had_stored(watched: Watched) -> None:
    watched.store(B, "q", 1)
    watched.storage.take(B, "q", EVERYTHING, 1)
    watched.storage.rollback(B)
    assert watched.heard == []


def test_an_end_that_is_repeated_is_told_as_an_end_only(watched: Watched) -> None:
    watched.store(B, "q", 1)
    watched.storage.commit_one_phase(B)
    watched.storage.commit_one_phase(B)
    assert len(watched.heard) == 1


@pytest.mark.parametrize(
    ("stores", "put"),
    [([("q", [1])], 1), ([("q", [1, 2])], 2), ([("q", [1]), ("p", [2, 3])], 3), ([("q", [])], 0)],
)
def test_what_commits_is_counted_unless_it_changed_nothing(
    watched: Watched, stores: list[tuple[str, list[int]]], put: int
) -> None:
    for queue, groups in stores:
        watched.store(B, queue, *groups)
    watched.storage.commit_one_phase(B)
    ends = {Outcome.COMMITTED: 1} if put else {}
    assert watched.storage.counts() == Counts(put, 0, ends)
    assert [arrival.queue for arrival in watched.heard] == [queue for queue, _ in stores]


def test_a_read_only_vote_is_an_end(watched: Watched) -> None:
    watched.storage.take(B, "q", EVERYTHING, 1)
    watched.storage.prepare(B, b"")
    assert watched.ends == [(B, Outcome.ROLLED_BACK)]
    assert watched.heard == []


@pytest.mark.parametrize(("is_commit", "groups"), [(True, (1,)), (False, (7,))])
def test_what_an_operator_ends_is_told(
    watched: Watched, is_commit: bool, groups: tuple[int, ...]
) -> None:
    watched.store(C, "p", 7)
    watched.storage.commit_one_phase(C)
    watched.store(B, "q", 1)
    watched.storage.take(B, "p", EVERYTHING, 1)
    watched.storage.prepare(B, b"whom to ask")
    watched.heard.clear()
    watched.storage.resolve(B, is_commit)
    assert [arrival.groups for arrival in watched.heard] == [groups]
    watched.heard.clear()
    # The coordinator comes late, and changes nothing.
    (watched.storage.commit if is_commit else watched.storage.rollback)(B)
    assert watched.heard == []


@pytest.mark.parametrize("is_commit", [True, False])
def test_of_a_branch_prepared_before_a_start_every_queue_is_to_be_looked_at(
    watched: Watched, is_commit: bool
) -> None:
    watched.store(B, "q", 1)
    watched.storage.prepare(B, b"whom to ask")
    later = Watched(watched.memory)
    (later.storage.commit if is_commit else later.storage.rollback)(B)
    assert later.heard == [Arrival("p", (), ()), Arrival("q", (), ())]


def test_what_a_dropped_consumer_held_is_to_be_looked_at(watched: Watched) -> None:
    watched.store(B, "q", 1)
    watched.storage.commit_one_phase(B)
    watched.storage.reserve("consumer", "q", EVERYTHING, 0, 10)
    watched.heard.clear()
    watched.storage.drop_consumer("consumer")
    assert watched.heard == [Arrival("q", (), ())]


def test_nothing_is_remembered_of_what_failed(watched: Watched) -> None:
    watched.storage.rollback(B)
    with pytest.raises(BranchEnded):
        watched.store(B, "q", 1)
    with pytest.raises(BranchEnded):
        watched.storage.take(B, "q", EVERYTHING, 1)
    with pytest.raises(BranchEnded):
        watched.storage.take_keys(B, "q", [1], 0.0)
    with pytest.raises(QueueNotFound):
        watched.store(C, "nowhere", 1)
    assert watched.storage._changes == {}


def test_work_that_is_ended_by_another_meanwhile_is_told_all_the_same(watched: Watched) -> None:
    beneath = watched.memory.store

    def ended_meanwhile(branch: bytes, queue: str, messages: list[NewMessage]) -> range:
        keys = beneath(branch, queue, messages)
        watched.storage.commit_one_phase(branch)
        return keys

    watched.memory.store = ended_meanwhile  # type: ignore[method-assign,assignment]
    watched.store(B, "q", 1)
    assert watched.heard == [Arrival("q", (), ())]
