"""A server whose calls take turns, and one of whose calls asks another server meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from idl import system
from idl.call import Address
from idl.cos import Status, Synchronization
from idl.orb import Limits, NetworkOrb
from idl.proxies import started_with
from idl.turns import prompt, turns_here

SOON_S = 10.0
SHORT_S = 0.3


class Behind:
    """The other server: it answers when it may."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.asked = threading.Semaphore(0)

    def before_completion(self) -> None:
        self.asked.release()
        assert self.may_answer.wait(SOON_S)

    def after_completion(self, status: Status) -> None:
        """Answers at once: whoever calls this has a connection then."""


class Front:
    """Asks the other server for each `before_completion`, and notes on which kind of thread."""

    def __init__(self, behind: Synchronization) -> None:
        self._behind = behind
        self.patience_s = SOON_S
        self.in_turns: list[bool] = []

    @prompt
    def before_completion(self) -> None:
        method = self._behind.before_completion
        answer = started_with(method, (), self.patience_s) or method
        answer()
        self.in_turns.append(turns_here() is not None)

    @prompt
    def after_completion(self, status: Status) -> None:
        """Answers at once."""


class World:
    """Both servers, and a client of the first."""

    def __init__(self) -> None:
        self.behind = Behind()
        limits = Limits(drain_s=SHORT_S)
        self.orbs = [
            NetworkOrb(Address("127.0.0.1", 0), limits=limits, takes_turns=takes_turns)
            for takes_turns in (False, True)
        ]
        self.client = NetworkOrb()
        far, near = self.orbs
        target = far.publish(self.behind, Synchronization, "behind")
        self.stub = near.proxy(far.reference_of(target), Synchronization)
        self.front = Front(self.stub)
        published = near.publish(self.front, Synchronization, "front")
        self.reference = near.reference_of(published)

    def proxy(self) -> Synchronization:
        return self.client.proxy(self.reference, Synchronization, SOON_S)

    def connect(self) -> None:
        """A connection to the other server stands ready."""
        self.stub.after_completion(Status.COMMITTED)

    def close(self) -> None:
        self.behind.may_answer.set()
        for orb in (self.client, *reversed(self.orbs)):
            orb.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def asking(world: World, failures: list[Exception]) -> threading.Thread:
    """A client that asks, and waits for the answer."""

    def ask() -> None:
        try:
            world.proxy().before_completion()
        except system.SystemException as failed:
            failures.append(failed)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_others_are_answered_while_a_call_waits_for_another_server(world: World) -> None:
    world.connect()
    failures: list[Exception] = []
    waiting = asking(world, failures)
    assert world.behind.asked.acquire(timeout=SOON_S)
    world.proxy().after_completion(Status.COMMITTED)
    world.behind.may_answer.set()
    waiting.join(SOON_S)
    assert not waiting.is_alive()
    assert failures == []
    assert world.front.in_turns == [True]


def test_a_call_that_needs_a_new_connection_steps_aside(world: World) -> None:
    world.behind.may_answer.set()
    world.proxy().before_completion()
    assert world.front.in_turns == [False]


def test_a_call_is_given_up_when_its_time_is_over(world: World) -> None:
    world.connect()
    world.front.patience_s = SHORT_S
    begun = time.monotonic()
    with pytest.raises(system.TIMEOUT):
        world.proxy().before_completion()
    assert SHORT_S <= time.monotonic() - begun < SOON_S / 2


def test_a_call_whose_connection_is_lost_steps_aside_and_hears_of_it(world: World) -> None:
    hears_of_the_end_of(world, world.orbs[0])
    # The server itself is as it was.
    world.proxy().after_completion(Status.COMMITTED)


def test_a_server_that_closes_does_not_wait_for_ever(world: World) -> None:
    hears_of_the_end_of(world, world.orbs[1])


def hears_of_the_end_of(world: World, orb: NetworkOrb) -> None:
    """Who waits for an answer while it is closed hears of that."""
    world.connect()
    failures: list[Exception] = []
    waiting = asking(world, failures)
    assert world.behind.asked.acquire(timeout=SOON_S)
    orb.close()
    waiting.join(SOON_S)
    assert not waiting.is_alive()
    (failed,) = failures
    assert isinstance(failed, system.COMM_FAILURE | system.TRANSIENT)
