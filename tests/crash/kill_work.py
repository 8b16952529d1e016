"""Work of many threads that ends only when their process is killed, and what must be left of it.

Each writer numbers its messages and puts them into one queue; its mover takes them from there, in
order, and puts them into another, in branches that end in every way. A writer says a number before
and after its message is committed; a mover says what it has moved. A number is never used again:
the next process goes on behind the last that anybody has said.

In the end every message that was acknowledged is there, once, where it was last acknowledged to be
or further on; no message is there twice; and the messages of each writer are in order.
"""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from mqserver.storage.contract import (
    EVERYTHING,
    NewMessage,
    Outcome,
    QueueSettings,
    Selection,
    Storage,
    Vote,
)
from mqserver.storage.disk import RealDisk
from mqserver.storage.paged import PagedStorage
from mqserver.storage.sql import SqlStorage
from tests.conformance.paged_storages import SMALL
from tests.crash.forked import Event, Say

WRITERS = 3
SOURCE, GOAL = "source", "goal"
_BATCH = 4
_BACKLOG_MAX = 60
_SIZES = (20, 200, 900)

OPENING: dict[str, Callable[[Path], Storage]] = {
    "paged": lambda folder: PagedStorage(
        RealDisk(folder, create=True), lambda: b"a store of tests", time.monotonic, SMALL
    ),
    "sqlite": lambda folder: SqlStorage(
        f"sqlite:///{folder / 'queues.db'}", "node", time.monotonic
    ),
}


# --- The process ---------------------------------------------------------------------------------


def work(say: Say, folder: Path, kind: str, name: str, first: list[int]) -> None:
    """Writers and movers at work, for ever. `first` is the next number of each writer."""
    say("begun")
    storage = OPENING[kind](folder)
    chance = random.Random(name)
    _furnish(storage)
    _decide(storage, chance)
    for writer, number in enumerate(first):
        crew = _Writer(storage, say, name, writer, number), _Mover(storage, say, name, writer)
        for each in crew:
            threading.Thread(target=each.work, daemon=True).start()
    while True:
        time.sleep(chance.uniform(0.02, 0.1))
        storage.checkpoint()


def _furnish(storage: Storage) -> None:
    known = {info.name for info in storage.queues()}
    for name in (SOURCE, GOAL):
        if name not in known:
            storage.create_queue(name, QueueSettings())


def _decide(storage: Storage, chance: random.Random) -> None:
    """Nobody knows any more how branches in doubt should end, so either way is right."""
    for info in storage.branches():
        if info.outcome is Outcome.PREPARED:
            chance.choice((storage.commit, storage.rollback))(info.branch)


class _Writer:
    """Puts one message after another."""

    def __init__(self, storage: Storage, say: Say, name: str, writer: int, number: int) -> None:
        self._storage = storage
        self._say = say
        self._name = f"{name}/writer {writer}"
        self._writer = writer
        self._number = number
        self._chance = random.Random(self._name)

    def work(self) -> None:
        while True:
            if self._storage.queue(SOURCE).visible > _BACKLOG_MAX:
                time.sleep(0.002)
                continue
            branch = f"{self._name}/{self._number}".encode()
            payload = b"%d/%d".ljust(self._chance.choice(_SIZES), b" ") % (
                self._writer,
                self._number,
            )
            new = NewMessage(payload, zlib.crc32(payload), group=self._writer + 1)
            self._say("putting", self._writer, self._number)
            self._storage.store(branch, SOURCE, [new])
            self._storage.commit_one_phase(branch)
            self._say("put", self._writer, self._number)
            self._number += 1


class _Mover:
    """Moves the messages of one writer."""

    def __init__(self, storage: Storage, say: Say, name: str, writer: int) -> None:
        self._storage = storage
        self._say = say
        self._name = f"{name}/mover {writer}"
        self._selection = Selection(group=writer + 1)
        self._chance = random.Random(self._name)
        self._turns = 0

    def work(self) -> None:
        while True:
            self._turns += 1
            branch = f"{self._name}/{self._turns}".encode()
            limit = self._chance.randint(1, _BATCH)
            taken = self._storage.take(branch, SOURCE, self._selection, limit)
            if not taken:
                self._storage.rollback(branch)
                time.sleep(0.001)
                continue
            self._storage.store(branch, GOAL, [NewMessage(*message[1:]) for message in taken])
            if self._end(branch):
                self._say("moved", [_parse(message.payload) for message in taken])

    def _end(self, branch: bytes) -> bool:
        """Whether the branch is committed, and so on disk."""
        way = self._chance.choice(("one phase", "one phase", "two phases", "undone", "forgotten"))
        if way == "one phase":
            self._storage.commit_one_phase(branch)
            return True
        if way == "undone":
            self._storage.rollback(branch)
            return False
        assert self._storage.prepare(branch, b"") is Vote.COMMIT
        if way == "forgotten":
            # Meanwhile others work, and the process may be killed.
            time.sleep(0.002)
            self._storage.rollback(branch)
            return False
        return self._storage.commit(branch) is Outcome.COMMITTED


def _parse(payload: bytes) -> tuple[int, int]:
    writer, number = map(int, payload.split(b"/"))
    return writer, number


# --- What must be left ---------------------------------------------------------------------------


class Ledger:
    """What the processes have said, over all their lives."""

    def __init__(self) -> None:
        self.first = [0] * WRITERS
        self.put: set[tuple[int, int]] = set()
        self.moved: set[tuple[int, int]] = set()

    def follow(self, events: Iterable[Event]) -> None:
        """A process has said this, and is gone."""
        for what, *details in events:
            if what == "putting":
                writer, number = details
                self.first[writer] = number + 1
            elif what == "put":
                self.put.add((details[0], details[1]))
            elif what == "moved":
                self.moved.update((writer, number) for writer, number in details[0])

    def check(self, storage: Storage) -> None:
        """What the storage holds is what was acknowledged, and nothing twice."""
        found = {queue: _content(storage, queue) for queue in (SOURCE, GOAL)}
        everything = found[SOURCE] + found[GOAL]
        assert len(set(everything)) == len(everything), "a message is there twice"
        assert self.put <= set(everything), "a message that was acknowledged is lost"
        assert self.moved <= set(found[GOAL]), "a message that was moved is back"
        for content in found.values():
            for numbers in _by_writer(content).values():
                assert numbers == sorted(numbers), "the order of a writer is lost"
        assert [info.locked for info in storage.queues()] == [0, 0]


def _content(storage: Storage, queue: str) -> list[tuple[int, int]]:
    messages = storage.browse(queue, EVERYTHING, 0, 1_000_000)
    assert all(zlib.crc32(message.payload) == message.digest for message in messages)
    return [_parse(message.payload) for message in messages]


def _by_writer(content: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    numbers: dict[int, list[int]] = defaultdict(list)
    for writer, number in content:
        numbers[writer].append(number)
    return numbers


def finish(folder: Path, kind: str, ledger: Ledger) -> None:
    """The last process opens the storage, ends what is in doubt, and finds what it should."""
    storage = OPENING[kind](folder)
    _furnish(storage)
    _decide(storage, random.Random(0))
    ledger.check(storage)
    storage.close()
