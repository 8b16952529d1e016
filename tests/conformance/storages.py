"""The storages that the one suite runs against, as fixtures, and the words its tests are made of.

Tests name this module in `pytest_plugins` and take one of its fixtures: `storage` for one that is
open, `factory` for the place itself, `durable`, `shared` and so on for places that can do this, and
`new_factory` for as many fresh places as a generated test needs. They also import its words, and
do so before pytest sees it named; hence PYTEST_DONT_REWRITE, and no assertion is written here.
"""

from __future__ import annotations

import itertools
import secrets
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from mqserver.storage.contract import EVERYTHING, Message, NewMessage, QueueSettings, Storage
from mqserver.storage.memory import MemoryStorage
from tests.conformance.paged_storages import PagedFactory
from tests.conformance.sql_storages import PostgresFactory, SqliteFactory
from tests.conformance.storage_factory import Capability, Missing, StorageFactory


class MemoryFactory(StorageFactory):
    """In memory: nothing outlives the storage."""

    capabilities = frozenset()

    def open(self) -> Storage:
        return MemoryStorage(time.monotonic, self.outcomes_kept)


FACTORIES: dict[str, type[StorageFactory]] = {
    "memory": MemoryFactory,
    "paged": PagedFactory,
    "sqlite": SqliteFactory,
    "postgres": PostgresFactory,
}


# --- Fixtures ------------------------------------------------------------------------------------

_Missing = Callable[[str], NoReturn]


def _make(name: str, folder: Path, missing: _Missing) -> StorageFactory:
    folder.mkdir()
    try:
        return FACTORIES[name](folder)
    except Missing as error:
        missing(f"{name}: {error}")


def _place(
    request: pytest.FixtureRequest, tmp_path: Path, missing: _Missing
) -> Iterator[StorageFactory]:
    """An empty place of every kind that has what the fixture asks for."""
    place = _make(request.param, tmp_path / "place", missing)
    yield place
    place.dispose()


def _names(*needed: Capability) -> list[str]:
    return [name for name, made in FACTORIES.items() if made.capabilities.issuperset(needed)]


factory = pytest.fixture(_place, params=_names())
durable = pytest.fixture(_place, params=_names(Capability.DURABLE))
shared = pytest.fixture(_place, params=_names(Capability.SHARED))
filling = pytest.fixture(_place, params=_names(Capability.FILLS))
breaking = pytest.fixture(_place, params=_names(Capability.BREAKS))
damaging = pytest.fixture(_place, params=_names(Capability.DAMAGES))


@pytest.fixture
def storage(factory: StorageFactory) -> Iterator[Storage]:
    """An open storage of every kind, with the queues of `furnish`."""
    opened = factory.open()
    furnish(opened)
    yield opened
    opened.close()


@pytest.fixture(params=_names())
def new_factory(
    request: pytest.FixtureRequest, tmp_path: Path, missing: _Missing
) -> Iterator[Callable[[], StorageFactory]]:
    """A function that disposes of the last place and makes another, of every kind."""
    numbers = itertools.count()
    given: list[StorageFactory] = []

    def dispose() -> None:
        while given:
            given.pop().dispose()

    def new() -> StorageFactory:
        dispose()
        given.append(_make(request.param, tmp_path / str(next(numbers)), missing))
        return given[-1]

    yield new
    dispose()


# --- Words that the tests are written in ---------------------------------------------------------

ORDERS, BILLS, URGENT = "orders", "bills", "urgent"


def furnish(storage: Storage) -> None:
    """There are two queues in the order of keys, and one in the order of priorities."""
    storage.create_queue(ORDERS, QueueSettings())
    storage.create_queue(BILLS, QueueSettings())
    storage.create_queue(URGENT, QueueSettings(prioritized=True))


def letter(text: str, **fields: Any) -> NewMessage:
    """A message that says this."""
    payload = text.encode()
    return NewMessage(payload, zlib.crc32(payload), **fields)


def put(storage: Storage, queue: str, *messages: str | NewMessage) -> list[int]:
    """The messages are committed, in a branch of their own; their keys."""
    branch = secrets.token_bytes(8)
    letters = [letter(message) if isinstance(message, str) else message for message in messages]
    keys = storage.store(branch, queue, letters)
    storage.commit_one_phase(branch)
    return list(keys)


def take(storage: Storage, branch: bytes, queue: str, limit: int = 100) -> list[str]:
    """What the branch takes, whatever it is."""
    return texts(storage.take(branch, queue, EVERYTHING, limit))


def seen(storage: Storage, queue: str) -> list[str]:
    """What everybody sees in the queue, by key."""
    return texts(storage.browse(queue, EVERYTHING, 0, 100))


def texts(messages: Sequence[Message]) -> list[str]:
    """What the messages say."""
    return [message.payload.decode() for message in messages]
