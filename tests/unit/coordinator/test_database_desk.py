"""Transactions that a mark decides: whatever the log has room for, nobody is told otherwise."""

from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from coordinator.database_desk import DatabaseDesk
from coordinator.database_objects import DatabaseObjects
from coordinator.ledger import Member
from coordinator.live import Enlisted, Live
from idl.cos import Status
from mqserver.errors import StorageFull
from tests.unit.clients.embedded_coordinator import EmbeddedCoordinator, Participant


def full(*arguments: object) -> NoReturn:
    raise StorageFull


class World:
    """A marked transaction with two prepared participants."""

    def __init__(self) -> None:
        self.coordinator = EmbeddedCoordinator()
        self.service = self.coordinator.service
        marks = SimpleNamespace(settle=lambda name, gtrid: True)
        objects = cast(DatabaseObjects, SimpleNamespace(marks=marks))
        self.desk = DatabaseDesk(self.service, objects)
        self.gtrid = self.coordinator.begin().gtrid
        self.participants = [Participant(), Participant()]
        self.prepared = [
            Enlisted(Member(f"n{number}", f"PYRO:branch/{number}@in-process:0", ""), each, None)
            for number, each in enumerate(self.participants, start=1)
        ]

    @property
    def told(self) -> list[list[str]]:
        """What each participant was told."""
        return [participant.told for participant in self.participants]


def test_those_of_a_marked_transaction_are_told_to_commit() -> None:
    world = World()
    live = world.service.transactions.find(world.gtrid)
    assert isinstance(live, Live)
    assert world.desk.carry_out(live, world.prepared).status is Status.COMMITTED
    assert world.told == [["commit"], ["commit"]]


def test_a_full_log_does_not_roll_back_what_its_mark_has_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    log: Any = world.service.log
    monkeypatch.setattr(log, "decide", full)
    live = world.service.transactions.find(world.gtrid)
    assert isinstance(live, Live)
    world.desk.carry_out(live, world.prepared)
    outcome = world.desk.by_mark("orders", world.gtrid, "local", world.prepared)
    assert outcome.status is Status.COMMITTED
    # They are in doubt, and ask for the mark; once there is room they are told.
    assert world.told == [[], []]
    monkeypatch.undo()
    assert world.desk.by_mark("orders", world.gtrid, "local", world.prepared).is_committed
    assert world.told == [["commit"], ["commit"]]
