"""Random work on a paged storage: many branches, consumers, checkpoints, restarts and power cuts.

What is done is drawn from a chance that the caller makes from a seed, so the same seed does the
same. Half of the steps end something, so that little stays open for long.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from mqserver.storage.contract import EVERYTHING, Outcome, QueueSettings
from tests.crash.paged_work import Work, message

QUEUES, CONSUMERS = ("a", "b"), ("etl", "copy")
_SIZES = (5, 60, 300, 470, 590, 650, 1100, 2500)
STEPS = 45


def do_anything(work: Work, chance: random.Random, steps: int = STEPS) -> None:
    """So many random steps; queues are made first where there are none."""
    for name in QUEUES:
        if name not in work.model.state.queues:
            work.do("create_queue", name, QueueSettings(prioritized=chance.random() < 0.3))
    kinds = list(_STEPS)
    weights = [_STEPS[kind] for kind in kinds]
    for _ in range(steps):
        chance.choices(kinds, weights)[0](work, chance)


def _store(work: Work, chance: random.Random) -> None:
    new = [
        message(f"m{chance.randrange(1000)}", chance.choice(_SIZES), priority=chance.randrange(4))
        for _ in range(chance.choice((1, 1, 2, 5)))
    ]
    work.do("store", _actor(work, chance), chance.choice(QUEUES), new)


def _take(work: Work, chance: random.Random) -> None:
    limit = chance.choice((1, 1, 2, 8))
    work.do("take", _actor(work, chance), chance.choice(QUEUES), EVERYTHING, limit)


def _mark(work: Work, chance: random.Random) -> None:
    work.do("raise_mark", _actor(work, chance), "job", chance.randrange(1, 9))


def _commit_at_once(work: Work, chance: random.Random) -> None:
    for branch in _some(work, chance, Outcome.ACTIVE):
        work.do("commit_one_phase", branch)


def _prepare(work: Work, chance: random.Random) -> None:
    for branch in _some(work, chance, Outcome.ACTIVE):
        work.do("prepare", branch, chance.randbytes(chance.choice((1, 30))))


def _decide(work: Work, chance: random.Random) -> None:
    for branch in _some(work, chance, Outcome.PREPARED):
        name, *rest = chance.choice(
            [("commit", True), ("commit", False), ("rollback",), ("resolve", chance.random() < 0.5)]
        )
        work.do(str(name), branch, *rest)


def _roll_back(work: Work, chance: random.Random) -> None:
    for branch in _some(work, chance, Outcome.ACTIVE):
        work.do("rollback", branch)


def _forget(work: Work, chance: random.Random) -> None:
    for branch in _some(work, chance, Outcome.HEURISTICALLY_COMMITTED):
        work.do("forget", branch)


def _reserve(work: Work, chance: random.Random) -> None:
    consumer = chance.choice(CONSUMERS)
    known = work.model.state.consumers.get(consumer)
    queue = known.queue if known else chance.choice(QUEUES)
    after = known.reserved if known else 0
    work.do("reserve", consumer, queue, EVERYTHING, after, chance.choice((1, 3)))


def _finish(work: Work, chance: random.Random) -> None:
    consumer = chance.choice(CONSUMERS)
    known = work.model.state.consumers.get(consumer)
    if known and known.reserved > known.finished:
        work.do("finish", consumer, chance.randint(known.finished + 1, known.reserved))
    else:
        work.do("drop_consumer", consumer)


def _change_queue(work: Work, chance: random.Random) -> None:
    settings = QueueSettings(prioritized=chance.random() < 0.5)
    work.do("change_queue", chance.choice(QUEUES), settings)


def _checkpoint(work: Work, chance: random.Random) -> None:
    work.do(chance.choice(("checkpoint", "force")))


def _reopen(work: Work, chance: random.Random) -> None:
    if work.failure is None:
        work.reopen()


_STEPS: dict[Callable[[Work, random.Random], None], int] = {
    _store: 12,
    _take: 7,
    _mark: 1,
    _commit_at_once: 8,
    _prepare: 4,
    _decide: 4,
    _roll_back: 2,
    _forget: 1,
    _reserve: 2,
    _finish: 2,
    _change_queue: 1,
    _checkpoint: 2,
    _reopen: 1,
}


def _actor(work: Work, chance: random.Random) -> bytes:
    """A branch at work, or a new one."""
    active = _named(work, Outcome.ACTIVE)
    return chance.choice(active) if len(active) > chance.randrange(3) else work.branch()


def _some(work: Work, chance: random.Random, outcome: Outcome) -> list[bytes]:
    found = _named(work, outcome)
    return [chance.choice(found)] if found else []


def _named(work: Work, outcome: Outcome) -> list[bytes]:
    return [name for name, what in work.model.state.outcomes.items() if what is outcome]
