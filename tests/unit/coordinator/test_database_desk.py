"""Transactions that a mark decides: whatever the log has room for, nobody is told otherwise."""

from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from coordinator.database_desk import DatabaseDesk
from coordinator.database_objects import DatabaseObjects
from coordinator.ledger import Key, Member
from coordinator.live import Enlisted, Live
from coordinator.verdicts import Verdicts
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


def test_what_the_mark_has_decided_is_not_forced_and_on_disk_a_moment_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    monkeypatch.setattr(world.service.log, "decide", full)
    forced: list[bool] = []
    monkeypatch.setattr(world.service.log, "force_all", lambda: forced.append(True))
    live = world.service.transactions.find(world.gtrid)
    assert isinstance(live, Live)
    assert world.desk.carry_out(live, world.prepared).is_committed
    assert forced == []
    world.coordinator.tasks.pass_time(world.service.settings.unforced_s)
    assert forced == [True]


def test_a_marked_transaction_with_others_in_it_or_with_a_version_is_forced() -> None:
    for others in ("a participant that registered itself", "a version"):
        world = World()
        live = world.service.transactions.find(world.gtrid)
        assert isinstance(live, Live)
        if others == "a version":
            live.key = Key("billing", 7)
        else:
            member = Member("r1", "PYRO:branch/9@in-process:0", "")
            world.service.transactions.join(live, member, Participant())
        decided: list[bytes] = []
        decide = world.service.log.decide
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                world.service.log,
                "decide",
                lambda d, a=decide, b=decided: (b.append(d.gtrid), a(d)),
            )
            assert world.desk.carry_out(live, world.prepared).is_committed
        assert decided == [world.gtrid]


def test_a_full_log_does_not_roll_back_what_its_mark_has_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    log: Any = world.service.log
    monkeypatch.setattr(log, "note_marked", full)
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


def test_a_mark_that_was_all_there_was_to_it_may_be_forgotten() -> None:
    world = World()
    verdicts = Verdicts(world.service.transactions, world.service.log)
    live = world.service.transactions.find(world.gtrid)
    assert isinstance(live, Live)
    assert not verdicts.is_known_committed(world.gtrid)
    assert world.desk.carry_out(live, ()).is_committed
    assert verdicts.is_over(world.gtrid)
    assert verdicts.is_known_committed(world.gtrid)


def test_one_that_was_rolled_back_is_not_known_to_be_committed() -> None:
    world = World()
    verdicts = Verdicts(world.service.transactions, world.service.log)
    live = world.service.transactions.find(world.gtrid)
    assert isinstance(live, Live)
    world.service.family.rollback(live, "its owner gave it up")
    assert verdicts.is_over(world.gtrid)
    assert not verdicts.is_known_committed(world.gtrid)


def test_a_commit_that_is_left_to_a_settler_wakes_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    for participant in world.participants:
        cast(Any, participant).answers_at_once = ("commit",)
    spawned: list[object] = []
    monkeypatch.setattr(world.service.tasks, "spawn", lambda *job: spawned.append(job))
    live = world.service.transactions.find(world.gtrid)
    assert isinstance(live, Live)
    assert world.service.transactions.commit(live, world.prepared).is_committed
    assert world.told == [["commit"], ["commit"]]
    assert spawned == []
