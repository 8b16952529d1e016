"""Branches that nobody speaks for: when they ask, what ends them, and what never does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from idl import system
from idl.cos import NotPrepared, RecoveryCoordinator, Resource, Status
from idl.local import LocalOrb
from idl.marshal import OperationCodec
from idl.proxies import Proxy, text_of
from mqserver.storage.contract import NewMessage, Outcome, QueueSettings
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.orphans import AskingTimes, Orphans
from mqserver.transactions.resource import Resources, branch_id

GTRID = bytes(range(32))
BRANCH = branch_id(GTRID, "b0")
TIMES = AskingTimes(first_s=5.0, longest_s=60.0, call_s=5.0, silent_s=300.0)


class Answering:
    """A coordinator that is asked for the outcome, and what it says."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Callable[[], Status] = lambda: Status.PREPARING

    def replay_completion(self, r: Resource | None) -> Status:
        assert r is not None
        self.asked.append(self._reference_of(r))
        return self.answer()

    def publish(self, orb: LocalOrb) -> bytes:
        """Whom to ask, as a branch stores it."""
        self._reference_of = orb.reference_of
        return orb.reference_of(orb.publish(self, RecoveryCoordinator)).encode()


class Node:
    """A storage with one queue, its orphans, and a clock that goes when the test says so."""

    def __init__(self, orb: LocalOrb | None = None) -> None:
        self.time = 1000.0
        self.orb = orb or LocalOrb()
        self.storage = MemoryStorage(lambda: self.time)
        self.storage.create_queue("q", QueueSettings())
        self.resources = Resources(self.orb, self.storage)
        self.resources.publish()
        self.orphans = Orphans(self.orb, self.resources, lambda: self.time, TIMES)
        self.coordinator = Answering()
        self.recovery = self.coordinator.publish(self.orb)

    def work(self, branch: bytes = BRANCH) -> None:
        """The branch is at work."""
        self.storage.store(branch, "q", [NewMessage(b"x", 0)])

    def prepare(self, recovery: bytes | None = None, branch: bytes = BRANCH) -> None:
        """The branch is in doubt."""
        self.work(branch)
        self.storage.prepare(branch, self.recovery if recovery is None else recovery)

    def pass_time(self, seconds: float) -> None:
        """Everything that is due until then is done."""
        end = self.time + seconds
        while (due := self.orphans.ask_those_due()) <= end:
            assert due > self.time, "it must not be asked for without a pause"
            self.time = due
        self.time = end

    def outcome(self) -> Outcome:
        """What the branch is."""
        return self.storage.outcome(BRANCH)


@pytest.fixture
def node() -> Node:
    return Node()


def _raise(trouble: Exception) -> Callable[[], Status]:
    def answer() -> Status:
        raise trouble

    return answer


# --- When it is asked


def test_a_branch_in_doubt_asks_after_a_while_and_not_before(node: Node) -> None:
    node.prepare()
    node.pass_time(4.9)
    assert node.coordinator.asked == []
    node.pass_time(0.2)
    assert len(node.coordinator.asked) == 1


def test_a_branch_asks_with_the_object_that_stands_for_it(node: Node) -> None:
    node.prepare()
    node.orphans.ask_at_once()
    own = node.resources.resource_of(GTRID, "b0", is_lazy=False)
    assert node.coordinator.asked == [node.orb.reference_of(own)]


def test_after_a_start_it_asks_at_once(node: Node) -> None:
    node.prepare()
    node.coordinator.answer = lambda: Status.COMMITTED
    node.orphans.ask_at_once()
    assert node.outcome() is Outcome.COMMITTED


def test_the_pauses_grow_up_to_the_longest(node: Node) -> None:
    node.prepare()
    times: list[float] = []

    def note() -> Status:
        times.append(node.time)
        return Status.PREPARING

    node.coordinator.answer = note
    node.pass_time(400.0)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses[:6] == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_each_branch_has_pauses_of_its_own(node: Node) -> None:
    node.prepare()
    node.pass_time(100.0)
    before = len(node.coordinator.asked)
    late = branch_id(GTRID, "late")
    node.prepare(branch=late)
    node.pass_time(5.5)
    assert len(node.coordinator.asked) > before
    assert "late" in node.coordinator.asked[-1]


def test_without_branches_nobody_is_asked(node: Node) -> None:
    node.pass_time(1000.0)
    assert node.coordinator.asked == []


# --- What ends it


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (Status.COMMITTED, Outcome.COMMITTED),
        (Status.COMMITTING, Outcome.COMMITTED),
        (Status.ROLLED_BACK, Outcome.ROLLED_BACK),
        (Status.ROLLING_BACK, Outcome.ROLLED_BACK),
    ],
)
def test_a_clear_answer_ends_the_branch_and_it_asks_no_more(
    node: Node, status: Status, outcome: Outcome
) -> None:
    node.prepare()
    node.coordinator.answer = lambda: status
    node.pass_time(1000.0)
    assert node.outcome() is outcome
    assert len(node.coordinator.asked) == 1


UNCLEAR = [
    Status.ACTIVE,
    Status.MARKED_ROLLBACK,
    Status.PREPARED,
    Status.UNKNOWN,
    Status.NO_TRANSACTION,
    Status.PREPARING,
]


@pytest.mark.parametrize("status", UNCLEAR)
def test_any_other_answer_leaves_the_branch_in_doubt(node: Node, status: Status) -> None:
    node.prepare()
    node.coordinator.answer = lambda: status
    node.pass_time(10_000.0)
    assert node.outcome() is Outcome.PREPARED
    node.coordinator.answer = lambda: Status.COMMITTED
    node.pass_time(61.0)
    assert node.outcome() is Outcome.COMMITTED


@pytest.mark.parametrize(
    "trouble",
    [
        NotPrepared(),
        system.OBJECT_NOT_EXIST("gone"),
        system.COMM_FAILURE("cut", system.Completion.MAYBE),
        system.TRANSIENT("away"),
        system.TIMEOUT("slow"),
        system.NO_PERMISSION("no"),
        system.INTERNAL("broken"),
    ],
    ids=lambda trouble: type(trouble).__name__,
)
def test_no_answer_leaves_the_branch_in_doubt(node: Node, trouble: Exception) -> None:
    node.prepare()
    node.coordinator.answer = _raise(trouble)
    node.pass_time(1000.0)
    assert node.outcome() is Outcome.PREPARED
    assert len(node.coordinator.asked) > 10


@pytest.mark.parametrize(
    "recovery",
    [b"PYRO:recovery/none@in-process:0", b"", b"no reference", b"\xff\xfe"],
    ids=["nobody there", "empty", "no reference", "no text"],
)
def test_a_branch_with_nobody_to_ask_stays_in_doubt_and_holds_no_other_up(
    node: Node, recovery: bytes
) -> None:
    node.prepare(recovery)
    other = branch_id(GTRID, "other")
    node.prepare(branch=other)
    node.coordinator.answer = lambda: Status.COMMITTED
    node.pass_time(1000.0)
    assert node.outcome() is Outcome.PREPARED
    assert node.storage.outcome(other) is Outcome.COMMITTED


# --- Answers that come too late


def test_a_rollback_that_is_answered_after_the_commit_changes_nothing(node: Node) -> None:
    node.prepare()

    def forgotten_since() -> Status:
        node.storage.commit(BRANCH)
        return Status.ROLLED_BACK

    node.coordinator.answer = forgotten_since
    node.pass_time(1000.0)
    assert node.outcome() is Outcome.COMMITTED
    assert node.storage.queue("q").visible == 1
    assert len(node.coordinator.asked) == 1


def test_a_commit_that_is_answered_after_the_rollback_changes_nothing(node: Node) -> None:
    node.prepare()

    def ended_since() -> Status:
        node.storage.rollback(BRANCH)
        return Status.COMMITTED

    node.coordinator.answer = ended_since
    node.pass_time(1000.0)
    assert node.outcome() is Outcome.ROLLED_BACK


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_answer_that_contradicts_the_operator_leaves_the_heuristic_outcome(
    node: Node, is_commit: bool
) -> None:
    node.prepare()

    def decided_by_hand_since() -> Status:
        node.storage.resolve(BRANCH, commit=is_commit)
        return Status.ROLLED_BACK if is_commit else Status.COMMITTED

    node.coordinator.answer = decided_by_hand_since
    node.pass_time(1000.0)
    heuristics = {True: Outcome.HEURISTICALLY_COMMITTED, False: Outcome.HEURISTICALLY_ROLLED_BACK}
    assert node.outcome() is heuristics[is_commit]


def test_a_branch_that_was_ended_before_its_turn_does_not_ask(node: Node) -> None:
    node.prepare()
    other = branch_id(GTRID, "other")
    node.prepare(branch=other)

    def end_other() -> Status:
        node.storage.commit(other)
        return Status.COMMITTED

    node.coordinator.answer = end_other
    node.pass_time(1000.0)
    assert len(node.coordinator.asked) == 1


# --- Silence


def test_a_silent_branch_that_is_not_prepared_is_rolled_back(node: Node) -> None:
    node.work()
    node.pass_time(299.0)
    assert node.outcome() is Outcome.ACTIVE
    node.pass_time(10.0)
    assert node.outcome() is Outcome.ROLLED_BACK


def test_a_branch_that_is_heard_of_goes_on(node: Node) -> None:
    node.work()
    for _ in range(10):
        node.pass_time(200.0)
        node.orphans.heard_of(BRANCH)
    assert node.outcome() is Outcome.ACTIVE


def test_time_never_ends_a_prepared_branch(node: Node) -> None:
    node.work()
    node.pass_time(299.0)
    node.storage.prepare(BRANCH, node.recovery)
    node.pass_time(20_000.0)
    assert node.outcome() is Outcome.PREPARED


def test_what_a_silent_branch_had_taken_is_to_be_had_again(node: Node) -> None:
    other = branch_id(GTRID, "other")
    node.work(other)
    node.storage.commit_one_phase(other)
    node.storage.take_keys(BRANCH, "q", [1], 0.0)
    node.pass_time(310.0)
    assert node.storage.queue("q").visible == 1


# --- A coordinator that cannot be reached


class _CountingOrb(LocalOrb):
    """Counts who is asked, by address; calls to other servers than this one time out."""

    def __init__(self) -> None:
        super().__init__()
        self.tried: list[str] = []

    def invoke(self, proxy: Proxy, codec: OperationCodec, arguments: tuple[Any, ...]) -> Any:
        server = text_of(proxy).rpartition("@")[2]
        if server.startswith("dead"):
            self.tried.append(server)
            raise system.TIMEOUT("no answer in time", system.Completion.MAYBE)
        return super().invoke(proxy, codec, arguments)


@pytest.mark.parametrize("count", [1, 50])
def test_a_coordinator_that_is_not_there_is_waited_for_once_in_a_round(count: int) -> None:
    orb = _CountingOrb()
    node = Node(orb)
    for number in range(count):
        branch = branch_id(GTRID, f"b{number}")
        node.prepare(
            f"PYRO:recovery/{GTRID.hex()}/b{number}@dead-{number % 2}:7410".encode(), branch
        )
    living = branch_id(GTRID, "living")
    node.prepare(branch=living)
    node.coordinator.answer = lambda: Status.COMMITTED
    node.orphans.ask_at_once()
    assert sorted(orb.tried) == ["dead-0:7410", "dead-1:7410"][:count]
    assert node.storage.outcome(living) is Outcome.COMMITTED
    # In the next round each of them is tried once more.
    node.pass_time(TIMES.first_s)
    assert len(orb.tried) == 2 * min(count, 2)
