"""The lock manager against a model: any number of branches and their threads, all of them waiting.

A thread is a greenlet that runs until it waits, so that every order of events can be generated and
repeated. The model keeps one list of those who wait, in the order in which they came, and works out
everything else from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from greenlet import getcurrent, greenlet
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mqserver.errors import BranchEnded, Deadlock, LockTimeout, MqError
from mqserver.storage.lock_manager import LockManager

OWNERS = tuple(bytes([number]) for number in range(5))
NAMES = "vwxyz"


@dataclass(eq=False)
class Asked:
    """One call of `lock`: when it gives up, and what became of it."""

    owner: bytes
    name: str
    deadline: float
    end: type[MqError] | str = "waits"


class Model:
    """Who holds what and who waits, with nothing kept that could be worked out."""

    def __init__(self) -> None:
        self.holders: dict[str, bytes] = {}
        self.waiting: list[Asked] = []

    def lock(self, asked: Asked, now_s: float) -> None:
        """The request has ended, or waits."""
        if self.holders.setdefault(asked.name, asked.owner) == asked.owner:
            asked.end = "got it"
        elif asked.deadline <= now_s:
            asked.end = LockTimeout
        elif asked.owner in self._reached_from(self._before(asked.owner, asked.name)):
            asked.end = Deadlock
        else:
            self.waiting.append(asked)

    def release(self, owner: bytes, name: str) -> None:
        """The first who waits for the name holds it, if the owner held it."""
        if self.holders.get(name) == owner:
            del self.holders[name]
            line = self._line(name)
            if line:
                self.holders[name] = line[0]
                self._end(lambda it: it.name == name and it.owner == line[0], "got it")

    def release_all(self, owner: bytes) -> None:
        """The owner neither holds nor wants anything."""
        self.refuse(owner)
        for name in NAMES:
            self.release(owner, name)

    def refuse(self, owner: bytes) -> None:
        """The owner wants nothing."""
        self._end(lambda it: it.owner == owner, BranchEnded)

    def pass_time(self, now_s: float) -> None:
        """Whose time is up has given up."""
        self._end(lambda it: it.deadline <= now_s, LockTimeout)

    def _end(self, is_meant: Callable[[Asked], bool], end: type[MqError] | str) -> None:
        for asked in self.waiting:
            if is_meant(asked):
                asked.end = end
        self.waiting = [asked for asked in self.waiting if asked.end == "waits"]

    def _line(self, name: str) -> list[bytes]:
        """The owners in line, each at the place where the first of its threads began to wait."""
        return list(dict.fromkeys(asked.owner for asked in self.waiting if asked.name == name))

    def _before(self, owner: bytes, name: str) -> set[bytes]:
        line = self._line(name)
        before = line[: line.index(owner)] if owner in line else line
        return {self.holders[name], *before}

    def _reached_from(self, reached: set[bytes]) -> set[bytes]:
        while True:
            more = set(reached)
            for asked in self.waiting:
                if asked.owner in reached:
                    more |= self._before(asked.owner, asked.name)
            if more == reached:
                return reached
            reached = more


class LockMachine(RuleBasedStateMachine):
    """Does the same to both. It is the monitor too: who waits goes back to the machine."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.model = Model()
        self.locks = LockManager(self, lambda: self.now_s)
        self.asked: list[tuple[Asked, Asked]] = []
        self.asleep: list[greenlet] = []
        self.machine = getcurrent()
        self.is_awake = True

    def wait(self, timeout: float | None = None) -> bool:
        """Part of being a monitor."""
        self.asleep.append(getcurrent())
        self.machine.switch()
        return True

    def notify_all(self) -> None:
        """Part of being a monitor: all are woken after each step anyway."""

    def _wake_all(self, now: bool = True) -> None:
        """Threads that sleep look again; if not now, then after another step."""
        self.is_awake = now
        if now:
            woken, self.asleep = self.asleep, []
            for thread in woken:
                thread.switch()

    @rule(
        owner=st.sampled_from(OWNERS),
        name=st.sampled_from(NAMES),
        timeout_s=st.sampled_from((0, 1, 3, 100, 100)),
    )
    def lock(self, owner: bytes, name: str, timeout_s: int) -> None:
        deadline = self.now_s + timeout_s
        found, expected = Asked(owner, name, deadline), Asked(owner, name, deadline)
        self.asked.append((found, expected))
        self.machine = getcurrent()
        self.model.lock(expected, self.now_s)
        greenlet(self._ask).switch(found, timeout_s)

    def _ask(self, asked: Asked, timeout_s: int) -> None:
        try:
            self.locks.lock(asked.owner, asked.name, timeout_s)
        except MqError as error:
            asked.end = type(error)
        else:
            asked.end = "got it"

    @rule(owner=st.sampled_from(OWNERS), name=st.sampled_from(NAMES))
    def try_lock(self, owner: bytes, name: str) -> None:
        expected = self.model.holders.setdefault(name, owner) == owner
        assert self.locks.try_lock(owner, name) is expected

    @rule(owner=st.sampled_from(OWNERS), name=st.sampled_from(NAMES), wake=st.booleans())
    def release(self, owner: bytes, name: str, wake: bool) -> None:
        self.model.release(owner, name)
        self.locks.release(owner, [name])
        self._wake_all(wake)

    @rule(owner=st.sampled_from(OWNERS), wake=st.booleans())
    def release_all(self, owner: bytes, wake: bool) -> None:
        # The order in which names are released matters to nobody, as each has its own line.
        self.model.release_all(owner)
        self.locks.release_all(owner)
        self._wake_all(wake)

    @rule(owner=st.sampled_from(OWNERS), wake=st.booleans())
    def refuse(self, owner: bytes, wake: bool) -> None:
        self.model.refuse(owner)
        self.locks.refuse(owner)
        self._wake_all(wake)

    @rule(seconds=st.integers(1, 3))
    def pass_time(self, seconds: int) -> None:
        self.now_s += seconds
        self.model.pass_time(self.now_s)
        self._wake_all()

    @invariant()
    def both_say_the_same(self) -> None:
        """Every call has come to the same end, and every name has the same holder."""
        for found, expected in self.asked:
            assert found.end == expected.end or (found.end == "waits" and not self.is_awake)
        assert [self.locks.holder(name) for name in NAMES] == [
            self.model.holders.get(name) for name in NAMES
        ]
        for owner in OWNERS:
            held = {name for name, holder in self.model.holders.items() if holder == owner}
            assert set(self.locks.held(owner)) == held

    @invariant()
    def nobody_waits_in_a_circle(self) -> None:
        """Someone who waits for nobody can always be reached from whoever waits."""
        waiting = {asked.owner for asked in self.model.waiting}
        assert not waiting or set(self.model.holders.values()) - waiting

    def teardown(self) -> None:
        """Nobody is left asleep."""
        self.now_s += 1000
        self._wake_all()
        assert self.asleep == []


LockMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50)
test_the_lock_manager_does_what_the_model_does = LockMachine.TestCase
