"""What nodes are shown of rows that carry puts, what they forget, and what a caller may say."""

from __future__ import annotations

import pytest

from coordinator.custody import FORGOTTEN_MAX, CustodyServant
from coordinator.database import Times
from coordinator.database_drivers import Link, Unreachable
from coordinator.databases import Databases
from coordinator.registry import Registered, Registry
from coordinator.verdicts import Verdicts
from idl import system
from idl.coordination import DatabaseNotFound
from idl.cos import otid_t
from idl.custody import CARRIED_TABLE, CUSTODY, Mq_Custody, mqCarried, node_of
from idl.local import LocalOrb
from idl.otids import GTRID_BYTES, NULL_OTID, otid_of
from tests.crash.recording_disk import RecordingDisk
from tests.unit.clients.embedded_coordinator import EmbeddedCoordinator, ManualTasks
from tests.unit.coordinator.memory_server import REGISTERED, Server

IDENTITY = b"identity"
NOWHERE = Registered("nowhere", "postgresql://app@nowhere/none")
ONE, TWO = (bytes([n]) * GTRID_BYTES for n in (1, 2))
STRANGE = otid_t(1, 0, b"other")


class World:
    """A coordinator's custody of `orders`, and of `nowhere`, which is not there."""

    def __init__(self) -> None:
        service = EmbeddedCoordinator().service
        self.server = Server()
        self.databases = Databases(
            Registry(RecordingDisk()),
            self._open,
            Verdicts(service.transactions, service.log),
            ManualTasks(),
            bytes,
            Times(wait_s=0.01),
        )
        self.databases.start(lambda name, gtrid: False)
        self.databases.add(REGISTERED)
        self.databases.add(NOWHERE)
        self.custody = published(self.databases)

    def _open(self, registered: Registered) -> Link:
        if registered.name == "nowhere":
            raise Unreachable("no route to host")
        return self.server.open(registered)


def published(databases: Databases | None) -> Mq_Custody:
    return LocalOrb().publish(CustodyServant(IDENTITY, databases), Mq_Custody, CUSTODY)


def test_carriers_are_those_that_have_the_table_also_while_they_are_away() -> None:
    world = World()
    assert world.custody.getCarriers() == (IDENTITY, ("orders",))
    world.server.is_away = True
    world.databases.look("orders")
    assert world.custody.getCarriers() == (IDENTITY, ("orders",))
    world.server.is_away = False
    world.server.connection.execute(f"DROP TABLE {CARRIED_TABLE}")
    world.databases.look("orders")
    assert world.custody.getCarriers() == (IDENTITY, ())


def test_a_coordinator_without_databases_has_no_carriers() -> None:
    custody = published(None)
    assert custody.getCarriers() == (IDENTITY, ())
    with pytest.raises(DatabaseNotFound):
        custody.getCarried("orders", "secret", 0, NULL_OTID)
    with pytest.raises(DatabaseNotFound):
        custody.forgetCarried("orders", "secret", ())


def test_a_node_is_shown_what_its_secret_opens_and_forgets_that_alone() -> None:
    world = World()
    world.server.carries(ONE, node_of("secret"), b"one")
    world.server.carries(TWO, node_of("another"), b"two")
    assert world.custody.getCarried("orders", "secret", 0, NULL_OTID) == (
        mqCarried(otid_of(ONE), b"one"),
    )
    assert world.custody.getCarried("orders", "secret", 0, otid_of(ONE)) == ()
    # The digest is in the table for everybody to read, and opens nothing.
    assert world.custody.getCarried("orders", node_of("secret"), 0, NULL_OTID) == ()
    world.custody.forgetCarried("orders", "secret", (otid_of(ONE), otid_of(TWO)))
    assert world.custody.getCarried("orders", "secret", 0, NULL_OTID) == ()
    assert len(world.custody.getCarried("orders", "another", 0, NULL_OTID)) == 1


def test_who_cannot_be_asked_is_said_to_be_away_and_what_is_not_there_to_be_unknown() -> None:
    custody = World().custody
    with pytest.raises(system.TRANSIENT, match="no route to host"):
        custody.getCarried("nowhere", "secret", 0, NULL_OTID)
    with pytest.raises(system.TRANSIENT, match="no route to host"):
        custody.forgetCarried("nowhere", "secret", (otid_of(ONE),))
    for name in ("elsewhere", "no/name", ""):
        with pytest.raises(DatabaseNotFound):
            custody.getCarried(name, "secret", 0, NULL_OTID)
        with pytest.raises(DatabaseNotFound):
            custody.forgetCarried(name, "secret", (otid_of(ONE),))


def test_without_the_table_it_is_said_what_to_type() -> None:
    world = World()
    world.server.connection.execute(f"DROP TABLE {CARRIED_TABLE}")
    with pytest.raises(system.TRANSIENT, match=CARRIED_TABLE):
        world.custody.getCarried("orders", "secret", 0, NULL_OTID)


def test_wrong_names_no_secret_and_too_many_at_once_are_refused() -> None:
    custody = World().custody
    for secret, otid in (("", otid_of(ONE)), ("secret", STRANGE)):
        with pytest.raises(system.BAD_PARAM):
            custody.getCarried("orders", secret, 0, otid)
        with pytest.raises(system.BAD_PARAM):
            custody.forgetCarried("orders", secret, (otid,))
    with pytest.raises(system.BAD_PARAM):
        custody.forgetCarried("orders", "secret", (NULL_OTID,))
    with pytest.raises(system.IMP_LIMIT):
        custody.forgetCarried("orders", "secret", (otid_of(ONE),) * (FORGOTTEN_MAX + 1))
