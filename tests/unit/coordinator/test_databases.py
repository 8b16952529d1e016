"""All registered databases: which there are, and a loop for each with pauses of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.database import Times
from coordinator.database_drivers import Link, Unreachable
from coordinator.databases import Databases, NotRegistered
from coordinator.registry import FILE_NAME, Registered, Registry
from coordinator.verdicts import Verdicts
from tests.crash.recording_disk import RecordingDisk
from tests.unit.clients.embedded_coordinator import EmbeddedCoordinator, ManualTasks
from tests.unit.coordinator.memory_server import ONE, REGISTERED, TWO, Server

NOWHERE = Registered("nowhere", "postgresql://app@nowhere/none")
TIMES = Times(look_s=10.0, retry_s=1.0, retry_s_max=8.0, watch_s=5.0)


class World:
    """Databases with a registry of their own; `orders` is there and `nowhere` is not."""

    def __init__(self) -> None:
        self.embedded = EmbeddedCoordinator()
        service = self.embedded.service
        self.disk = RecordingDisk()
        self.server = Server()
        self.asked: list[tuple[str, float]] = []
        self.tasks = ManualTasks()
        self.databases = Databases(
            Registry(self.disk),
            self._open,
            Verdicts(service.transactions, service.log),
            self.tasks,
            bytes,
            TIMES,
        )
        self.databases.start(lambda name, gtrid: False)

    def _open(self, registered: Registered) -> Link:
        self.asked.append((registered.name, self.tasks.time))
        if registered.name == "nowhere":
            raise Unreachable("no route to host")
        return self.server.open(registered)

    def attempts(self, name: str) -> list[float]:
        """When a connection to it was tried."""
        return [at for asked, at in self.asked if asked == name]


def test_one_that_cannot_be_reached_is_tried_ever_more_rarely_and_holds_up_no_other() -> None:
    world = World()
    assert world.databases.add(REGISTERED).is_reachable
    assert not world.databases.add(NOWHERE).is_reachable
    world.asked.clear()
    world.tasks.pass_time(40.0)
    assert world.attempts("nowhere") == [1.0, 3.0, 7.0, 15.0, 23.0, 31.0, 39.0]
    [(_, away), (_, here)] = world.databases.every()
    assert (away.is_reachable, away.trouble) == (False, "no route to host")
    assert here.is_reachable


def test_what_a_database_is_stays_known_when_it_is_away() -> None:
    world = World()
    world.databases.add(REGISTERED)
    world.server.is_away = True
    world.tasks.pass_time(20.0)
    [(_, seen)] = world.databases.every()
    assert not seen.is_reachable
    assert (seen.facts.identity, seen.facts.is_two_phase) == ("identity", True)


def test_a_file_that_was_changed_by_hand_is_followed() -> None:
    world = World()
    Registry(world.disk).save({"orders": REGISTERED})
    world.tasks.pass_time(5.0)
    assert [registered.name for registered, _ in world.databases.every()] == ["orders"]
    Registry(world.disk).save({})
    world.tasks.pass_time(5.0)
    assert world.databases.every() == []
    world.asked.clear()
    world.tasks.pass_time(60.0)
    assert world.asked == []


def test_a_file_that_was_spoiled_by_hand_changes_nothing_until_it_is_mended() -> None:
    world = World()
    world.databases.add(REGISTERED)
    file = world.disk.open(FILE_NAME)
    before = file.read(0, file.size())
    file.write(0, b"spoiled =")
    world.tasks.pass_time(10.0)
    assert world.databases.find("orders").registered.dsn == REGISTERED.dsn
    file.write(0, before)
    world.tasks.pass_time(10.0)
    world.databases.remove("orders")
    with pytest.raises(NotRegistered, match="oncemq database add orders"):
        world.databases.find("orders")


def test_what_is_added_and_removed_is_so_after_a_restart() -> None:
    world = World()
    world.databases.add(REGISTERED)
    world.databases.add(NOWHERE)
    world.databases.remove("nowhere")
    registry = Registry(RecordingDisk(world.disk.image()))
    registry.load()
    # With what its table said it is.
    assert registry.databases == {"orders": replace(REGISTERED, identity="identity")}


def test_foreign_branches_are_counted_and_left() -> None:
    world = World()
    world.server.prepared_branches = {ONE, TWO}
    seen = world.databases.add(REGISTERED)
    assert (seen.ours, seen.foreign, seen.ended) == (0, 2, 0)
    world.tasks.pass_time(1000.0)
    assert len(world.server.prepared_branches) == 2


def test_nothing_is_looked_at_any_more_when_it_is_closed() -> None:
    world = World()
    world.databases.add(REGISTERED)
    world.databases.close()
    world.asked.clear()
    world.tasks.pass_time(1000.0)
    assert world.asked == []
    assert world.databases.every() == []
