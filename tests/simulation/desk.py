"""The simplest thing to simulate: a server with a desk that answers with what it was asked.

Used by the tests of the simulation itself. It shows how a system is put into a world: what boots a
host, where its orb is made, and how a client reaches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from idl import system
from idl.call import Call, current_call
from idl.mapping import UnsignedLong, UserException, exception, interface, operation
from tests.simulation.network import SimulatedOrb
from tests.simulation.world import World

DESK = "PYRO:desk@server:7000"
MAYBE, NO = system.Completion.MAYBE, system.Completion.NO


@exception("Simulated")
class Busy(UserException):
    """The desk is busy; ask again later."""

    question: UnsignedLong


@interface("Simulated")
class Desk(Protocol):
    """Answers with the number that it was asked."""

    @operation(Busy)
    def ask(self, question: UnsignedLong) -> UnsignedLong:
        """Answers."""

    @operation(idempotent=True)
    def look(self, question: UnsignedLong) -> UnsignedLong:
        """Answers, and may be asked twice."""

    @operation()
    def pass_on(self, other: Desk | None, question: UnsignedLong) -> UnsignedLong:
        """Asks another desk."""


class Answering:
    """A desk that remembers its calls; `meanwhile` is what happens while it serves one."""

    def __init__(self, meanwhile: Callable[[int], object] = lambda question: None) -> None:
        self.calls: list[Call] = []
        self.meanwhile = meanwhile

    def ask(self, question: int) -> int:
        self.calls.append(current_call())
        self.meanwhile(question)
        return question

    def look(self, question: int) -> int:
        return self.ask(question)

    def pass_on(self, other: Desk | None, question: int) -> int:
        assert other is not None
        return other.ask(question)


def serve(world: World, desk: Answering) -> None:
    """Boots the server with this desk, now and after each crash."""

    def boot() -> None:
        SimulatedOrb(world, "server").publish(desk, Desk, "desk")

    world.boot("server", boot)
    world.run(until=world.now())


def desk_for(world: World, client: str = "client") -> Desk:
    return SimulatedOrb(world, client).proxy(DESK, Desk)


def outcome(call: Callable[[int], int], question: int) -> object:
    """What the call returned, or the kind of failure and whether it may have been carried out."""
    try:
        return call(question)
    except system.SystemException as failed:
        return type(failed), failed.completed
