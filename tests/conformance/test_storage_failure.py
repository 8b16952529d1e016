"""What storages promise when the disk is full, writes fail, or bytes have changed."""

import pytest

from mqserver.errors import Corruption, MqError, StorageFailed, StorageFull
from mqserver.storage.contract import EVERYTHING, Outcome, QueueSettings, Storage
from tests.conformance.storage_factory import StorageFactory
from tests.conformance.storages import ORDERS, furnish, letter, put, seen, take

pytest_plugins = ["tests.conformance.storages"]

_LARGE = "x" * 100_000


def _open(factory: StorageFactory) -> Storage:
    opened = factory.open()
    furnish(opened)
    return opened


# --- A full disk ---------------------------------------------------------------------------------


def _put_until_full(storage: Storage) -> list[bytes]:
    """Branches that were committed before the first was told that there is no room."""
    committed: list[bytes] = []
    for number in range(1000):
        branch = b"%d" % number
        try:
            storage.store(branch, ORDERS, [letter(_LARGE)])
            storage.commit_one_phase(branch)
        except StorageFull:
            return committed
        committed.append(branch)
    pytest.fail("there is always room")


def test_a_full_disk_is_told_and_loses_nothing(filling: StorageFactory) -> None:
    storage = _open(filling)
    put(storage, ORDERS, "before")
    filling.fill()
    committed = _put_until_full(storage)
    assert len(storage.browse(ORDERS, EVERYTHING, 0, 2000)) == len(committed) + 1
    filling.crash()
    filling.make_room()
    storage = filling.open()
    assert len(storage.browse(ORDERS, EVERYTHING, 0, 2000)) == len(committed) + 1
    assert {storage.outcome(branch) for branch in committed} <= {Outcome.COMMITTED}


def test_work_goes_on_once_there_is_room(filling: StorageFactory) -> None:
    storage = _open(filling)
    filling.fill()
    committed = _put_until_full(storage)
    storage.rollback(b"%d" % len(committed))
    filling.make_room()
    put(storage, ORDERS, "after")
    assert seen(storage, ORDERS)[len(committed) :] == ["after"]


# --- Writes that fail ----------------------------------------------------------------------------


def test_after_a_failed_write_nothing_more_is_accepted(breaking: StorageFactory) -> None:
    storage = _open(breaking)
    storage.store(b"a", ORDERS, [letter("x")])
    breaking.break_writes()
    with pytest.raises(StorageFailed):
        storage.commit_one_phase(b"a")
    with pytest.raises(StorageFailed):
        put(storage, ORDERS, "y")
    with pytest.raises(StorageFailed):
        storage.create_queue("new", QueueSettings())
    with pytest.raises(StorageFailed):
        storage.force()


def test_what_was_acknowledged_survives_a_failed_write(breaking: StorageFactory) -> None:
    storage = _open(breaking)
    put(storage, ORDERS, "1", "2")
    take(storage, b"in doubt", ORDERS, 1)
    storage.prepare(b"in doubt", b"")
    breaking.break_writes()
    with pytest.raises(MqError):
        put(storage, ORDERS, "not acknowledged")
    breaking.crash()
    storage = breaking.open()
    assert storage.outcome(b"in doubt") is Outcome.PREPARED
    assert seen(storage, ORDERS)[0] == "2"
    assert storage.rollback(b"in doubt") is Outcome.ROLLED_BACK


# --- Bytes that have changed ---------------------------------------------------------------------


def test_damage_is_told_and_never_served(damaging: StorageFactory) -> None:
    storage = _open(damaging)
    written = [f"{number}: {_LARGE}" for number in range(20)]
    put(storage, ORDERS, *written)
    storage.close()
    damaging.damage()
    with pytest.raises(Corruption):
        _read_everything(damaging, written)


def _read_everything(factory: StorageFactory, written: list[str]) -> None:
    storage = factory.open()
    for message in storage.browse(ORDERS, EVERYTHING, 0, 100):
        assert message.payload.decode() in written
