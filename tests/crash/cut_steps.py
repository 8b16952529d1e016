"""Random steps of work on a storage, and what the reference model makes of them.

The same seed and the same states give the same steps, so that two who follow the same work, one in
a process that loses its power and one outside, agree on what was done.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Collection
from typing import Any

from mqserver.errors import MqError, StorageError
from mqserver.storage.contract import EVERYTHING, NewMessage, Outcome, QueueSettings, Vote
from tests.storage_model import State, StorageModel

Step = tuple[str, tuple[Any, ...]]

QUEUES, CONSUMERS, APPLICATION = ("plain", "urgent"), ("etl", "copy"), "job"
_SIZES = (1, 40, 300, 700, 2000)
_MESSAGES_MAX = 30

_ALWAYS_FORCED = frozenset(("force", "checkpoint"))
_FORCED = frozenset(
    (
        "create_queue",
        "change_queue",
        "prepare",
        "commit",
        "commit_one_phase",
        "resolve",
        "reserve",
        "finish",
        "drop_consumer",
    )
)


class Steps:
    """Random steps, each fit for what the model shows then, and what the model makes of them."""

    def __init__(self, model: StorageModel, seed: str) -> None:
        self.model = model
        self._chance = random.Random(seed)
        self._name = seed.encode()
        self._branches = 0

    def next(self) -> Step:
        """What is to be done next."""
        state = self.model.state
        for name in QUEUES:
            if name not in state.queues:
                return "create_queue", (name, QueueSettings(prioritized=name == "urgent"))
        kinds = list(_KINDS)
        [kind] = self._chance.choices(kinds, [_KINDS[kind] for kind in kinds])
        return kind(self) or self._store()

    def done(self, step: Step, first_key: int | None, is_promised: bool = True) -> object:
        """The model has done the step too; its result, or its complaint."""
        name, arguments = step
        if name == "reopen":
            self.model = self.model.after_close() if is_promised else self.model
            return None
        if first_key is not None:
            self.model.state.next_key = first_key
        before = self.model.state.copied()
        result = result_of(getattr(self.model, name, lambda *_: None), *arguments)
        is_new = before != self.model.state
        # The end of a branch that changed nothing may be lost.
        is_empty = name == "commit_one_phase" and _content(before) == _content(self.model.state)
        self.model.done(is_promised and not is_empty and _is_forced(step, result, is_new))
        return result

    def begun(self, step: Step) -> None:
        """The model may have done the step. Keys that nobody was told may be given again."""
        name, arguments = step
        if name not in ("reopen", "store"):
            result_of(getattr(self.model, name, lambda *_: None), *arguments)
            self.model.done(forced=False)

    def _store(self) -> Step:
        if len(self.model.state.rows) >= _MESSAGES_MAX:
            return self._take()
        new = [self._message() for _ in range(self._chance.choice((1, 1, 3)))]
        return "store", (self._actor(), self._chance.choice(QUEUES), new)

    def _message(self) -> NewMessage:
        payload = self._chance.randbytes(self._chance.choice(_SIZES))
        priority, time_us = self._chance.randrange(4), self._chance.randrange(1000)
        return NewMessage(payload, zlib.crc32(payload), priority, time_us=time_us)

    def _take(self) -> Step:
        queue, limit = self._chance.choice(QUEUES), self._chance.choice((1, 2, 5))
        rows = self.model.state.rows
        strangers = {row.stored_by for row in rows if row.queue == queue}
        return "take", (self._actor(strangers), queue, EVERYTHING, limit)

    def _mark(self) -> Step:
        return "raise_mark", (self._actor(), APPLICATION, self._chance.randrange(1, 99))

    def _commit_at_once(self) -> Step | None:
        branch = self._one(Outcome.ACTIVE)
        return ("commit_one_phase", (branch,)) if branch else None

    def _prepare(self) -> Step | None:
        branch = self._one(Outcome.ACTIVE)
        return ("prepare", (branch, self._chance.randbytes(5))) if branch else None

    def _decide(self) -> Step | None:
        branch = self._one(Outcome.PREPARED)
        ways = ("commit", True), ("commit", False), ("rollback",), ("resolve", True)
        name, *rest = self._chance.choice(ways)
        return (str(name), (branch, *rest)) if branch else None

    def _roll_back(self) -> Step | None:
        branch = self._one(Outcome.ACTIVE)
        return ("rollback", (branch,)) if branch else None

    def _forget(self) -> Step | None:
        branch = self._one(Outcome.HEURISTICALLY_COMMITTED)
        return ("forget", (branch,)) if branch else None

    def _reserve(self) -> Step:
        consumer = self._chance.choice(CONSUMERS)
        known = self.model.state.consumers.get(consumer)
        queue, after = (known.queue, known.reserved) if known else (QUEUES[0], 0)
        return "reserve", (consumer, queue, EVERYTHING, after, 2)

    def _finish(self) -> Step:
        consumer = self._chance.choice(CONSUMERS)
        known = self.model.state.consumers.get(consumer)
        if known and known.reserved > known.finished:
            return "finish", (consumer, known.finished + 1)
        return "drop_consumer", (consumer,)

    def _tidy(self) -> Step:
        changed = QueueSettings(prioritized=self._chance.random() < 0.5)
        ways: list[Step] = [
            ("force", ()),
            ("checkpoint", ()),
            ("reopen", ()),
            ("change_queue", (QUEUES[1], changed)),
        ]
        return self._chance.choice(ways)

    def _actor(self, strangers: Collection[bytes | None] = ()) -> bytes:
        """A branch at work that is none of the strangers, or a new one."""
        active = [name for name in self._named(Outcome.ACTIVE) if name not in strangers]
        if active and self._chance.random() < 0.7:
            return self._chance.choice(active)
        self._branches += 1
        return self._name + b"/%d" % self._branches

    def _one(self, outcome: Outcome) -> bytes | None:
        found = self._named(outcome)
        return self._chance.choice(found) if found else None

    def _named(self, outcome: Outcome) -> list[bytes]:
        return [name for name, what in self.model.state.outcomes.items() if what is outcome]


_KINDS: dict[Callable[[Steps], Step | None], int] = {
    Steps._store: 10,
    Steps._take: 8,
    Steps._mark: 1,
    Steps._commit_at_once: 9,
    Steps._prepare: 4,
    Steps._decide: 5,
    Steps._roll_back: 2,
    Steps._forget: 1,
    Steps._reserve: 2,
    Steps._finish: 2,
    Steps._tidy: 2,
}


def _content(state: State) -> tuple[object, ...]:
    return (state.rows, state.marks)


def _is_forced(step: Step, result: object, is_new: bool) -> bool:
    """Whether the step, and with it all that was before, is on disk when its call returns."""
    name, arguments = step
    is_lazy = name == "commit" and arguments[1] is False
    is_refused = isinstance(result, type) or result is Vote.READ_ONLY
    return name in _ALWAYS_FORCED or (name in _FORCED and is_new and not is_lazy and not is_refused)


def result_of(call: Callable[..., object], *arguments: object) -> object:
    """What the call returns, or the kind of its complaint."""
    try:
        return call(*arguments)
    except StorageError:
        raise
    except MqError as error:
        return type(error)
