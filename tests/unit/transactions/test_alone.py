"""Calls without a transaction: repeated, also while they run, and never carried out twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from idl import system
from idl.turns import SteppedAside, Turns
from mqserver.errors import BranchEnded, QueueFull
from mqserver.storage.contract import NewMessage, Outcome, QueueSettings
from mqserver.storage.memory import MemoryStorage
from mqserver.transactions.alone import PREFIX, Alone
from mqserver.transactions.requests import Done, WorkLimits

SOON_S = 10.0
REQUEST = bytes(range(16))
BRANCH = PREFIX + REQUEST


class Desk:
    """A storage with one queue, and calls that put one message each."""

    def __init__(self, limits: WorkLimits | None = None) -> None:
        self.storage = MemoryStorage(lambda: 0.0)
        self.storage.create_queue("q", QueueSettings())
        self.alone = Alone(self.storage, limits)
        self.puts = 0

    def put(self, branch: bytes) -> Done:
        self.puts += 1
        return Done(self.storage.store(branch, "q", [NewMessage(b"x", 0)]))

    def call(self, act: Callable[[bytes], Done] | None = None, owner: str = "ann") -> object:
        return self.alone.carry_out(REQUEST, owner, act or self.put)

    @property
    def messages(self) -> int:
        return self.storage.queue("q").visible


class Held:
    """What a call does that is held up in the middle, before it does anything else."""

    def __init__(self, then: Callable[[bytes], Done]) -> None:
        self._then = then
        self.is_inside = threading.Event()
        self.may_go_on = threading.Event()

    def __call__(self, branch: bytes) -> Done:
        self.is_inside.set()
        assert self.may_go_on.wait(SOON_S)
        return self._then(branch)


class Caller(str):
    """An owner's name that tells when a call of this owner's has found another under way.

    The call compares the two owners then: it has found the other, and does not wait for it yet.
    """

    __hash__ = str.__hash__
    has_found_another: threading.Event

    def __new__(cls, name: str) -> Caller:
        made = super().__new__(cls, name)
        made.has_found_another = threading.Event()
        return made

    def __eq__(self, other: object) -> bool:
        self.has_found_another.set()
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_repeated_call_gets_the_same_answer_and_is_carried_out_once(desk: Desk) -> None:
    assert desk.call() == desk.call() == range(1, 2)
    assert (desk.puts, desk.messages) == (1, 1)


def test_what_another_asked_is_not_answered(desk: Desk) -> None:
    desk.call()
    with pytest.raises(system.NO_PERMISSION):
        desk.call(owner="eve")
    assert desk.call() == range(1, 2)


def test_a_call_that_failed_may_be_repeated_and_its_branch_is_over(desk: Desk) -> None:
    def fail(branch: bytes) -> Done:
        desk.put(branch)
        raise QueueFull("q", 1)

    with pytest.raises(QueueFull):
        desk.call(fail)
    assert desk.storage.outcome(BRANCH) is Outcome.ROLLED_BACK
    with pytest.raises(BranchEnded):
        desk.call()
    assert desk.messages == 0


def test_what_was_answered_is_forgotten_when_there_is_too_much_of_it() -> None:
    desk = Desk(WorkLimits(answers_kept=2))
    for number in range(3):
        desk.alone.carry_out(bytes([number]) * 16, "ann", desk.put)
    assert desk.alone.carry_out(bytes([2]) * 16, "ann", desk.put) == range(3, 4)
    with pytest.raises(BranchEnded):
        desk.alone.carry_out(bytes(16), "ann", desk.put)
    assert desk.messages == 3


def _inside(pool: ThreadPoolExecutor, desk: Desk, held: Held) -> Future[object]:
    """The call is under way, and held up."""
    running = pool.submit(desk.call, held)
    assert held.is_inside.wait(SOON_S)
    return running


def test_a_call_that_is_repeated_while_it_runs_waits_for_the_first(desk: Desk) -> None:
    held = Held(desk.put)
    with ThreadPoolExecutor(4) as pool:
        first = _inside(pool, desk, held)
        others = [pool.submit(desk.call) for _ in range(3)]
        with pytest.raises(system.NO_PERMISSION):
            desk.call(owner="eve")
        held.may_go_on.set()
        assert {first.result(SOON_S), *[other.result(SOON_S) for other in others]} == {range(1, 2)}
    assert (desk.puts, desk.messages) == (1, 1)


def _step_aside(branch: bytes) -> Done:
    raise SteppedAside


def _call_in_turns(desk: Desk) -> object:
    """The call on a thread with turns: it is answered at once, or steps aside."""
    Turns(lambda *told: None).begin()
    return desk.call()


def test_where_the_first_stepped_aside_only_one_of_all_others_carries_it_out(desk: Desk) -> None:
    held = Held(_step_aside)
    with ThreadPoolExecutor(9) as pool:
        first = _inside(pool, desk, held)
        others = [pool.submit(desk.call) for _ in range(8)]
        held.may_go_on.set()
        with pytest.raises(SteppedAside):
            first.result(SOON_S)
        assert {other.result(SOON_S) for other in others} == {range(1, 2)}
    assert (desk.puts, desk.messages) == (1, 1)


def test_one_that_waited_for_a_first_that_stepped_aside_is_not_overtaken_by_a_later_one(
    desk: Desk,
) -> None:
    def put_and_be_held(branch: bytes) -> Done:
        done = desk.put(branch)
        has_put(branch)
        return done

    aside, has_put = Held(_step_aside), Held(lambda branch: Done(None))
    second_caller = Caller("ann")
    with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(1) as turns:
        first = _inside(pool, desk, aside)
        second = pool.submit(desk.call, put_and_be_held, second_caller)
        assert second_caller.has_found_another.wait(SOON_S)
        aside.may_go_on.set()
        assert isinstance(first.exception(SOON_S), SteppedAside)
        # The second carries the call out now. The first is over: a third finds the second alone.
        assert has_put.is_inside.wait(SOON_S)
        third = turns.submit(_call_in_turns, desk)
        refused = third.exception(SOON_S)
        has_put.may_go_on.set()
        assert second.exception(SOON_S) is None
    assert (desk.puts, desk.messages) == (1, 1), "one call, carried out twice"
    assert isinstance(refused, SteppedAside)
    assert desk.call() == second.result() == range(1, 2)


def test_on_a_thread_with_turns_nobody_waits_for_the_first(desk: Desk) -> None:
    held = Held(desk.put)
    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as turns:
        first = _inside(pool, desk, held)
        with pytest.raises(SteppedAside):
            turns.submit(_call_in_turns, desk).result(SOON_S)
        held.may_go_on.set()
        assert first.result(SOON_S) == range(1, 2)
        assert turns.submit(_call_in_turns, desk).result(SOON_S) == range(1, 2)
    assert desk.messages == 1
