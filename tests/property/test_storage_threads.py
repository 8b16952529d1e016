"""Many threads on one storage: nothing is lost, nothing comes twice, and nobody stays behind.

Each message is a payload of its own. Workers move messages between the queues, in branches that end
in every way there is; a consumer copies what it has reserved, and crashes between its steps now and
then. In the end every payload is there once.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mqserver.errors import MessageNotFound, RetryableError
from mqserver.storage.contract import (
    EVERYTHING,
    Message,
    NewMessage,
    Outcome,
    QueueSettings,
    Storage,
    Vote,
)
from tests.conformance.storage_factory import Capability, StorageFactory

pytest_plugins = ["tests.conformance.storages"]

QUEUES = ("orders", "bills", "urgent")
WORKERS, TURNS_MIN, MESSAGES = 8, 20, 40


def _copies(messages: list[Message]) -> list[NewMessage]:
    return [NewMessage(*message[1:]) for message in messages]


class Worker:
    """Moves messages between queues in random branches."""

    def __init__(self, storage: Storage, number: int, turns: int) -> None:
        self._storage = storage
        self._number = number
        self._turns = turns
        self._chance = random.Random(number)

    def work(self) -> None:
        """All turns are over; what could not be had was rolled back."""
        for turn in range(self._turns):
            branch = b"%d/%d" % (self._number, turn)
            try:
                self._move(branch)
                self._end(branch)
            except (RetryableError, MessageNotFound):
                self._storage.rollback(branch)

    def _move(self, branch: bytes) -> None:
        for _ in range(self._chance.randint(1, 3)):
            source, goal = self._chance.sample(QUEUES, 2)
            self._storage.store(branch, goal, _copies(self._take(branch, source)))

    def _take(self, branch: bytes, queue: str) -> list[Message]:
        if self._chance.random() < 0.5:
            return self._storage.take(branch, queue, EVERYTHING, self._chance.randint(1, 5))
        seen = self._storage.browse(queue, EVERYTHING, 0, 100)
        keys = [message.key for message in self._chance.sample(seen, min(len(seen), 2))]
        return self._storage.take_keys(branch, queue, keys, 0.05)

    def _end(self, branch: bytes) -> None:
        way = self._chance.choice(("one phase", "commit", "lazy", "undo", "prepare and undo"))
        if way == "one phase":
            self._storage.commit_one_phase(branch)
            return
        is_prepared = way != "undo" and self._storage.prepare(branch, b"") is Vote.COMMIT
        if is_prepared and way in ("commit", "lazy"):
            assert self._storage.commit(branch, way == "commit") is Outcome.COMMITTED
        else:
            assert self._storage.rollback(branch) is Outcome.ROLLED_BACK


class Consumer:
    """Copies what it reserves into another queue, once, however often it is interrupted."""

    def __init__(self, storage: Storage, turns: int) -> None:
        self._storage = storage
        self._turns = turns
        self._chance = random.Random("consumer")

    def work(self) -> None:
        """Everything that was reserved is copied and finished."""
        for attempt in range(self._turns):
            after = self._storage.mark("copy")
            self._storage.finish("copy", after)
            number = self._storage.reserve("copy", QUEUES[0], EVERYTHING, after, 3)
            if number and self._chance.random() < 0.8:
                self._copy(number, b"copy/%d" % attempt)
        self._storage.finish("copy", self._storage.mark("copy"))
        self._storage.drop_consumer("copy")

    def _copy(self, number: int, branch: bytes) -> None:
        held = self._storage.fetch("copy", number, 0, 10)
        self._storage.store(branch, QUEUES[1], _copies(held))
        self._storage.raise_mark(branch, "copy", number)
        if self._chance.random() < 0.8:
            self._storage.commit_one_phase(branch)
        else:
            self._storage.rollback(branch)


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns so often that they meet in the middle of things."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hurried")
def test_many_threads_lose_nothing_and_get_nothing_twice(
    new_factory: Callable[[], StorageFactory],
) -> None:
    factory = new_factory()
    storage = factory.open()
    payloads = sorted(b"%d" % number for number in range(MESSAGES))
    for name in QUEUES:
        storage.create_queue(name, QueueSettings(prioritized=name == "urgent"))
    storage.store(b"all", QUEUES[0], [NewMessage(payload, 0) for payload in payloads])
    storage.commit_one_phase(b"all")
    turns = max(TURNS_MIN, factory.examples_max)
    crew = [Worker(storage, number, turns).work for number in range(WORKERS)]
    with ThreadPoolExecutor(WORKERS + 1) as pool:
        for done in [pool.submit(work) for work in (*crew, Consumer(storage, turns).work)]:
            done.result()
    _check(storage, payloads)
    if Capability.DURABLE in factory.capabilities:
        storage.force()
        factory.crash()
        storage = factory.open()
        _check(storage, payloads)
    storage.close()


def _check(storage: Storage, payloads: list[bytes]) -> None:
    """Every payload is there once, free for all, and no branch is left."""
    browsed = [storage.browse(name, EVERYTHING, 0, 2 * MESSAGES) for name in QUEUES]
    assert sorted(message.payload for seen in browsed for message in seen) == payloads
    assert [info.locked for info in storage.queues()] == [0, 0, 0]
    assert (storage.branches(), storage.consumers()) == ([], [])
