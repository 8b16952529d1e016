"""Locks: one holder, a line in order, no circle, and whatever may happen while somebody waits.

Most tests need no thread: while a branch waits, the monitor plays what others do meanwhile.
"""

import threading
from collections.abc import Callable

import pytest

from mqserver.errors import BranchEnded, Deadlock, LockTimeout
from mqserver.storage.lock_manager import LockManager

A, B, C, D = b"\x0a", b"\x0b", b"\x0c", b"\x0d"
FOREVER_S = float("inf")


class Script:
    """A clock, and a monitor in which each wait is filled with the next thing that happens."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.events: list[Callable[[], object]] = []
        self.waits_s: list[float | None] = []
        self.notified = 0

    def clock(self) -> float:
        return self.now_s

    def wait(self, timeout: float | None = None) -> bool:
        self.waits_s.append(timeout)
        if self.events:
            self.events.pop(0)()
            return True
        assert timeout is not None
        self.now_s += timeout
        return False

    def notify_all(self) -> None:
        self.notified += 1


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def locks(script: Script) -> LockManager:
    return LockManager(script, script.clock)


# --- Holding -------------------------------------------------------------------------------------


def test_a_free_name_is_locked_at_once(locks: LockManager, script: Script) -> None:
    assert locks.holder("x") is None
    assert locks.try_lock(A, "x")
    locks.lock(A, ("any", "hashable"), 0)
    assert locks.holder("x") == A
    assert locks.held(A) == ("x", ("any", "hashable"))
    assert script.waits_s == []


def test_a_name_has_one_holder(locks: LockManager) -> None:
    assert locks.try_lock(A, "x")
    assert not locks.try_lock(B, "x")
    assert locks.holder("x") == A
    assert locks.held(B) == ()


def test_an_owner_may_lock_what_it_holds(locks: LockManager) -> None:
    assert locks.try_lock(A, "x")
    assert locks.try_lock(A, "x")
    locks.lock(A, "x", 0)
    locks.release(A, ["x"])
    assert locks.holder("x") is None


def test_an_owner_releases_only_what_it_holds(locks: LockManager) -> None:
    locks.try_lock(A, "x")
    locks.try_lock(B, "y")
    locks.release(A, ["y", "z", "x", "x"])
    assert (locks.holder("x"), locks.holder("y")) == (None, B)


def test_an_owner_that_has_ended_holds_nothing(locks: LockManager, script: Script) -> None:
    for name in "xyz":
        locks.try_lock(A, name)
    locks.release_all(A)
    locks.release_all(A)
    assert locks.held(A) == ()
    assert [locks.holder(name) for name in "xyz"] == [None] * 3
    # Nobody waits, so nobody is woken.
    assert script.notified == 0


# --- Waiting -------------------------------------------------------------------------------------


def test_who_waits_gets_what_is_released(locks: LockManager, script: Script) -> None:
    locks.try_lock(A, "x")
    script.events = [lambda: locks.release(A, ["x"])]
    locks.lock(B, "x", 5)
    assert locks.holder("x") == B
    assert script.waits_s == [5]
    assert script.notified == 1


def test_a_timeout_says_who_holds_the_name(locks: LockManager, script: Script) -> None:
    locks.try_lock(A, "x")
    with pytest.raises(LockTimeout, match="'x' is held by 0a"):
        locks.lock(B, "x", 5)
    assert script.now_s == 105
    locks.release_all(A)
    assert locks.holder("x") is None


def test_without_time_nobody_waits(locks: LockManager, script: Script) -> None:
    locks.try_lock(A, "x")
    for timeout_s in (0, -1):
        with pytest.raises(LockTimeout):
            locks.lock(B, "x", timeout_s)
    assert script.waits_s == []


def test_a_wakeup_for_somebody_else_costs_no_time(locks: LockManager, script: Script) -> None:
    locks.try_lock(A, "x")

    def pass_time() -> None:
        script.now_s += 2

    script.events = [pass_time, pass_time]
    with pytest.raises(LockTimeout):
        locks.lock(B, "x", 5)
    assert script.waits_s == [5, 3, 1]


def test_what_is_released_in_the_last_moment_is_had(locks: LockManager, script: Script) -> None:
    locks.try_lock(A, "x")

    def release_too_late() -> None:
        script.now_s += 10
        locks.release(A, ["x"])

    script.events = [release_too_late]
    locks.lock(B, "x", 5)
    assert locks.holder("x") == B


def test_who_may_wait_for_ever_waits_in_naps(locks: LockManager, script: Script) -> None:
    locks.try_lock(A, "x")
    script.events = [lambda: None, lambda: locks.release_all(A)]
    locks.lock(B, "x", FOREVER_S)
    assert all(wait_s is not None and wait_s < threading.TIMEOUT_MAX for wait_s in script.waits_s)


def test_a_name_is_handed_on_and_cannot_be_snatched(locks: LockManager, script: Script) -> None:
    locks.try_lock(A, "x")

    def release_and_snatch() -> None:
        locks.release(A, ["x"])
        assert not locks.try_lock(C, "x")

    script.events = [release_and_snatch]
    locks.lock(B, "x", 5)
    assert locks.holder("x") == B


def test_owners_are_served_in_the_order_in_which_they_came(
    locks: LockManager, script: Script
) -> None:
    served: list[bytes | None] = []

    def release() -> None:
        served.append(locks.holder("x"))
        locks.release_all(served[-1] or b"")

    def queue_up(*owners: bytes) -> None:
        """The first waits; while it does, the others come and wait one inside the other."""
        if owners:
            script.events.insert(0, lambda: queue_up(*owners[1:]))
            locks.lock(owners[0], "x", 5)
        else:
            for _ in range(4):
                release()

    locks.try_lock(A, "x")
    queue_up(C, B, D)
    assert served == [A, C, B, D]


def test_who_gave_up_is_not_served(locks: LockManager, script: Script) -> None:
    locks.try_lock(A, "x")
    with pytest.raises(LockTimeout):
        locks.lock(B, "x", 1)
    script.events = [lambda: locks.release_all(A)]
    locks.lock(C, "x", 1)
    assert locks.holder("x") == C


def test_who_was_interrupted_is_not_served(locks: LockManager, script: Script) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    locks.try_lock(A, "x")
    script.events = [interrupt]
    with pytest.raises(KeyboardInterrupt):
        locks.lock(B, "x", 5)
    locks.release_all(A)
    assert locks.holder("x") is None


# --- Ends while waiting --------------------------------------------------------------------------


def test_an_owner_that_has_ended_waits_no_more(locks: LockManager, script: Script) -> None:
    locks.try_lock(A, "x")
    locks.try_lock(B, "y")
    script.events = [lambda: locks.release_all(B)]
    with pytest.raises(BranchEnded):
        locks.lock(B, "x", 5)
    assert (locks.holder("x"), locks.holder("y")) == (A, None)
    locks.release_all(A)
    assert locks.holder("x") is None


def test_an_owner_that_is_refused_keeps_what_it_holds(locks: LockManager, script: Script) -> None:
    locks.try_lock(A, "x")
    locks.try_lock(B, "y")
    script.events = [lambda: locks.refuse(B)]
    with pytest.raises(BranchEnded):
        locks.lock(B, "x", 5)
    assert locks.held(B) == ("y",)


def test_who_was_served_and_then_ended_holds_nothing(locks: LockManager, script: Script) -> None:
    def serve_and_end() -> None:
        locks.release_all(A)
        assert locks.holder("x") == B
        locks.release_all(B)

    locks.try_lock(A, "x")
    script.events = [serve_and_end]
    # It was served, so this is no error; but an owner that has ended must not get a lock again.
    locks.lock(B, "x", 5)
    assert locks.holder("x") is None


# --- Circles -------------------------------------------------------------------------------------


def test_a_circle_of_two_is_refused_to_who_would_close_it(
    locks: LockManager, script: Script
) -> None:
    locks.try_lock(A, "x")
    locks.try_lock(B, "y")

    def close_the_circle() -> None:
        with pytest.raises(Deadlock) as told:
            locks.lock(A, "y", 5)
        assert told.value.args == ("branch 0a gives way over 'y'", "0a waits for 0b waits for 0a")
        assert locks.held(A) == ("x",)
        locks.release_all(A)

    script.events = [close_the_circle]
    locks.lock(B, "x", 5)
    assert locks.held(B) == ("y", "x")


def test_a_circle_is_found_before_anybody_waits(locks: LockManager, script: Script) -> None:
    locks.try_lock(A, "x")
    locks.try_lock(B, "y")

    def close_the_circle() -> None:
        waits = len(script.waits_s)
        with pytest.raises(Deadlock):
            locks.lock(A, "y", FOREVER_S)
        assert len(script.waits_s) == waits
        locks.release_all(A)

    script.events = [close_the_circle]
    locks.lock(B, "x", 5)


def test_a_circle_may_go_through_those_who_stand_before_in_the_line(
    locks: LockManager, script: Script
) -> None:
    # A holds x; B waits for x, and C, who holds y, waits behind B. A second thread of B that wants
    # y would wait for C, who waits for B to have had x.
    locks.try_lock(A, "x")
    locks.try_lock(C, "y")

    def third() -> None:
        with pytest.raises(Deadlock, match="0b waits for 0c waits for 0b"):
            locks.lock(B, "y", 5)
        locks.release_all(A)
        locks.release_all(B)

    def second() -> None:
        script.events = [third]
        locks.lock(C, "x", 5)

    script.events = [second]
    locks.lock(B, "x", 5)
    assert locks.held(C) == ("y", "x")


def test_who_has_given_up_is_part_of_no_circle(locks: LockManager) -> None:
    locks.try_lock(A, "x")
    locks.try_lock(B, "y")
    with pytest.raises(LockTimeout):
        locks.lock(B, "x", 1)
    with pytest.raises(LockTimeout):
        locks.lock(A, "y", 1)


# --- With threads --------------------------------------------------------------------------------


def test_threads_take_turns_at_one_name() -> None:
    monitor = threading.Condition()
    now_s = [0.0]
    locks = LockManager(monitor, lambda: now_s[0])
    inside: list[bytes] = []
    most = [0]

    def work(owner: bytes) -> None:
        for _ in range(50):
            with monitor:
                locks.lock(owner, "x", 60)
                inside.append(owner)
                most[0] = max(most[0], len(inside))
            with monitor:
                inside.remove(owner)
                locks.release_all(owner)

    threads = [threading.Thread(target=work, args=(bytes([number]),)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (most, inside, locks.holder("x")) == ([1], [], None)
