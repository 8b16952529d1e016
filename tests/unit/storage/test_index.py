"""What the storage knows in memory: order, holders, ends of branches, consumers. No disk here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqserver.errors import QueueNotFound
from mqserver.storage.contract import BranchInfo, Outcome, QueueSettings, Selection
from mqserver.storage.entries import Entry, Parcel
from mqserver.storage.index import Branch, Index, is_selected
from mqserver.storage.queue_index import PRIORITY_MAX, Queue

PRIORITIZED = QueueSettings(prioritized=True)


def _entry(key: int, priority: int = 0, size: int = 1, time_us: int = 0) -> Entry:
    return Entry(key, size, 0, priority, 0, time_us, "", (), b"x" * size)


def _keys(queue: Queue) -> list[int]:
    return [entry.key for entry in queue.free_in_order()]


@pytest.fixture
def index() -> Index:
    """One queue with the messages 1 to 5."""
    index = Index()
    index.queues["q"] = Queue("q", QueueSettings())
    index.queues["q"].add([_entry(key) for key in range(1, 6)])
    return index


def _branch(index: Index, stored: list[Entry], taken: list[int]) -> Branch:
    branch = Branch(b"b")
    branch.stored["q"] = stored
    queue = index.queues["q"]
    branch.taken["q"] = [queue.entries[key] for key in taken]
    for entry in branch.taken["q"]:
        queue.hold(entry, branch.id)
    index.branches[branch.id] = branch
    return branch


# --- Queues


@given(
    st.lists(
        st.tuples(st.integers(0, PRIORITY_MAX), st.integers(1, 2**63)), unique_by=lambda t: t[1]
    )
)
def test_the_order_is_that_of_keys_or_of_priorities(messages: list[tuple[int, int]]) -> None:
    queue = Queue("q", QueueSettings())
    queue.add([_entry(key, priority) for priority, key in messages])
    assert _keys(queue) == sorted(key for _, key in messages)
    queue.change(PRIORITIZED)
    expected = [key for _, key in sorted((-priority, key) for priority, key in messages)]
    assert _keys(queue) == expected
    assert [entry.key for entry in queue.free_by_key(0)] == sorted(expected)
    queue.change(QueueSettings())
    assert _keys(queue) == sorted(expected)


def test_a_prioritized_queue_knows_the_keys_of_its_free_messages() -> None:
    queue = Queue("q", PRIORITIZED)
    queue.add([_entry(key, priority=key % 3) for key in range(1, 8)])
    queue.add([_entry(8, priority=9)])
    assert [entry.key for entry in queue.hold_next(b"b", 2)] == [8, 2]
    queue.remove(4)
    held = queue.find(5)
    assert held is not None
    queue.hold(held, b"c")
    assert [entry.key for entry in queue.free_by_key(0)] == [1, 3, 6, 7]
    queue.release(held)
    queue.restore([queue.entries[2]])
    assert [entry.key for entry in queue.free_by_key(1)] == [2, 3, 5, 6, 7]
    assert sorted(_keys(queue)) == [1, 2, 3, 5, 6, 7]


def test_a_message_that_is_released_is_back_at_its_place(index: Index) -> None:
    queue = index.queues["q"]
    held = queue.hold_next(b"b", 3)
    assert [entry.key for entry in held] == [1, 2, 3]
    assert _keys(queue) == [4, 5]
    queue.release(held[1])
    queue.release(held[1])
    assert _keys(queue) == [2, 4, 5]


def test_a_message_that_is_held_stays_so_when_the_order_changes(index: Index) -> None:
    queue = index.queues["q"]
    queue.hold(queue.entries[2], b"b")
    queue.change(PRIORITIZED)
    assert _keys(queue) == [1, 3, 4, 5]
    queue.release(queue.entries[2])
    assert _keys(queue) == [1, 2, 3, 4, 5]


def test_adding_again_leaves_what_is_there(index: Index) -> None:
    queue = index.queues["q"]
    kept = queue.entries[2]
    queue.hold(kept, b"b")
    queue.add([_entry(2), _entry(6)])
    assert queue.entries[2] is kept
    assert _keys(queue) == [1, 3, 4, 5, 6]


def test_removing_is_repeatable(index: Index) -> None:
    queue = index.queues["q"]
    removed = queue.remove(1)
    assert removed is not None
    assert removed.key == 1
    assert queue.remove(1) is None
    assert _keys(queue) == [2, 3, 4, 5]


@pytest.mark.parametrize("settings", [QueueSettings(), PRIORITIZED])
def test_messages_are_browsed_behind_a_key(settings: QueueSettings) -> None:
    queue = Queue("q", settings)
    queue.add([_entry(key, priority=key) for key in range(1, 6)])
    queue.hold(queue.entries[4], b"b")
    assert [entry.key for entry in queue.free_by_key(2)] == [3, 5]


def test_the_account_of_a_queue_follows_its_messages() -> None:
    queue = Queue("q", PRIORITIZED)
    queue.add([_entry(1, size=10, time_us=7), _entry(2, priority=9, size=20, time_us=8)])
    queue.hold(queue.entries[2], b"b")
    info = queue.info()
    assert (info.visible, info.locked, info.payload_bytes, info.oldest_us) == (1, 1, 30, 7)
    queue.remove(1)
    info = queue.info()
    assert (info.visible, info.locked, info.payload_bytes, info.oldest_us) == (0, 1, 20, 0)


@pytest.mark.parametrize(
    ("times", "oldest_us"), [(None, (0, 0)), ([7], (7, 7)), ([7, 8, 9], (7, 9))]
)
def test_the_account_of_a_queue_opens_no_parcel(
    times: list[int] | None, oldest_us: tuple[int, int]
) -> None:
    queue = Queue("q", QueueSettings())
    columns = ([5], [10, 20, 30], [1, 2, 3], None, None, times, None, None, None)
    queue.add_parcel(Parcel(columns, 60, run=4, run_bytes=100, place=4000))
    info = queue.info()
    assert (info.visible, info.locked, info.payload_bytes) == (3, 0, 60)
    assert (info.oldest_us, len(queue._parcels)) == (oldest_us[0], 1)
    # Of one that is open it is the same, and another first has its own time.
    for key in (5, 6):
        found = queue.find(key)
        assert found is not None
        queue.hold(found, b"b")
    assert queue.info().oldest_us == oldest_us[1]


def test_a_missing_queue_is_named(index: Index) -> None:
    with pytest.raises(QueueNotFound, match="elsewhere"):
        index.queue("elsewhere")


# --- Branches


def test_a_branch_that_happened_has_added_and_removed(index: Index) -> None:
    branch = _branch(index, [_entry(6)], taken=[2, 3])
    branch.marks["app"] = 4
    assert [entry.key for entry in index.complete(branch)] == [2, 3]
    assert _keys(index.queues["q"]) == [1, 4, 5, 6]
    assert index.marks == {"app": 4}
    assert index.outcome(b"b") is Outcome.COMMITTED
    assert index.branches == {}


def test_a_branch_that_did_not_happen_has_changed_nothing(index: Index) -> None:
    branch = _branch(index, [_entry(6)], taken=[2, 3])
    branch.marks["app"] = 4
    assert [entry.key for entry in index.undo(branch)] == [6]
    assert _keys(index.queues["q"]) == [1, 2, 3, 4, 5]
    assert index.marks == {}
    assert index.outcome(b"b") is Outcome.ROLLED_BACK


def test_both_ends_may_be_repeated(index: Index) -> None:
    branch = _branch(index, [_entry(6)], taken=[2])
    index.complete(branch)
    assert index.complete(branch) == []
    assert _keys(index.queues["q"]) == [1, 3, 4, 5, 6]
    other = _branch(index, [], taken=[1])
    index.undo(other)
    index.undo(other)
    assert _keys(index.queues["q"]) == [1, 3, 4, 5, 6]


def test_what_a_branch_stored_and_took_itself_is_never_added(index: Index) -> None:
    own = _entry(6)
    branch = _branch(index, [own, _entry(7)], taken=[])
    own.holder = branch.id
    branch.take("q", [own])
    assert [entry.key for entry in branch.to_add()["q"]] == [7]
    assert [entry.key for entry in branch.added()] == [7]
    assert index.complete(branch) == []
    assert _keys(index.queues["q"]) == [1, 2, 3, 4, 5, 7]


def test_the_ends_do_not_mind_a_queue_that_is_gone(index: Index) -> None:
    branch = _branch(index, [_entry(6)], taken=[1])
    del index.queues["q"]
    assert index.complete(branch) == []
    index.undo(branch)
    assert index.queues == {}


def test_a_branch_counts_what_it_changed() -> None:
    branch = Branch(b"b")
    branch.stored = {"p": [_entry(1)], "q": [_entry(2)]}
    branch.taken = {"q": [_entry(3)]}
    branch.cancelled = {"q": (2, 10)}
    assert branch.info() == BranchInfo(b"b", Outcome.ACTIVE, b"", 4, 3)


def test_a_branch_without_changes_is_read_only() -> None:
    branch = Branch(b"b")
    branch.stored["q"] = []
    branch.taken["q"] = []
    assert branch.is_read_only
    branch.marks["app"] = 1
    assert not branch.is_read_only


def test_a_branch_that_did_more_than_store_one_message_is_told_apart() -> None:
    def branch(**changed: object) -> Branch:
        made = Branch(b"b")
        made.stored = {"q": [_entry(1)]}
        for name, value in changed.items():
            setattr(made, name, value)
        return made

    only = branch().only()
    assert only is not None
    assert (only[0], only[1].key) == ("q", 1)
    assert branch(stored={}).only() is None
    assert branch(stored={"q": []}).only() is None
    assert branch(stored={"q": [_entry(1), _entry(2)]}).only() is None
    assert branch(stored={"q": [_entry(1)], "r": []}).only() is None
    assert branch(taken={"q": []}, marks={"a": 1}).only() is None
    assert branch(taken={"q": [_entry(2)]}).only() is None
    assert branch(cancelled={"q": (1, 1)}).only() is None
    in_pages = branch()
    in_pages.stored["q"][0].run = 3
    assert in_pages.only() is None


def test_only_the_latest_outcomes_are_remembered() -> None:
    index = Index(outcomes_kept=3)
    for name in (b"a", b"b", b"c", b"a", b"d"):
        index.remember(name, Outcome.COMMITTED)
    assert list(index.outcomes) == [b"c", b"a", b"d"]
    assert index.outcome(b"b") is Outcome.UNKNOWN


def test_what_an_operator_decided_takes_the_place_of_the_plain_outcome(index: Index) -> None:
    index.undo(_branch(index, [], taken=[1]))
    index.judge(BranchInfo(b"b", Outcome.HEURISTICALLY_ROLLED_BACK, b"r", 0, 1))
    assert index.outcome(b"b") is Outcome.HEURISTICALLY_ROLLED_BACK
    assert index.outcomes == {}


def test_a_mark_never_falls(index: Index) -> None:
    index.raise_mark("app", 5)
    index.raise_mark("app", 3)
    assert index.marks == {"app": 5}


# --- Consumers


def test_what_is_reserved_is_not_free_and_gone_when_finished(index: Index) -> None:
    index.reserve("c", "q", 1, [1, 2])
    index.reserve("c", "q", 2, [3])
    assert _keys(index.queues["q"]) == [4, 5]
    assert index.consumers["c"].last == 2
    assert [entry.key for entry in index.finish("c", 1)] == [1, 2]
    assert index.finish("c", 1) == []
    assert (index.consumers["c"].finished, index.consumers["c"].last) == (1, 2)
    assert sorted(index.queues["q"].entries) == [3, 4, 5]


def test_a_reservation_that_is_finished_does_not_come_back(index: Index) -> None:
    index.reserve("c", "q", 1, [1])
    index.finish("c", 1)
    index.reserve("c", "q", 1, [1, 2])
    assert index.consumers["c"].reservations == {}
    assert _keys(index.queues["q"]) == [2, 3, 4, 5]


def test_reserving_does_not_mind_a_message_that_is_gone(index: Index) -> None:
    index.reserve("c", "q", 1, [1, 77])
    assert [entry.key for entry in index.finish("c", 1)] == [1]


def test_a_dropped_consumer_gives_back_what_it_held(index: Index) -> None:
    index.reserve("c", "q", 1, [1, 2])
    index.drop_consumer("c")
    index.drop_consumer("c")
    assert _keys(index.queues["q"]) == [1, 2, 3, 4, 5]
    assert index.consumers == {}
    assert index.finish("c", 1) == []


# --- Selection


@pytest.mark.parametrize(
    ("selection", "is_meant"),
    [
        (Selection(), True),
        (Selection(group=3), True),
        (Selection(group=4), False),
        (Selection(priority_min=7), True),
        (Selection(priority_min=8), False),
        (Selection(attributes=(("a", "1"),)), True),
        (Selection(attributes=(("a", "1"), ("b", "2"))), True),
        (Selection(attributes=(("a", "2"),)), False),
    ],
)
def test_a_selection_means_what_satisfies_all_of_it(selection: Selection, is_meant: bool) -> None:
    entry = Entry(1, 0, 0, 7, 3, 0, "", (("a", "1"), ("b", "2")))
    assert is_selected(entry, selection) is is_meant
