"""Work on a storage until the power is cut, and what may be left of it then.

A process (`work`) opens the storage, finds out in which of the possible states it is, and does one
random step after another to the storage and to the model. It says before and after each step how
far it has come. Whoever started it follows with a model of its own (`Follower`), which knows after
the cut what the states are that the next process may find. The steps come from a seed, so both do
the same; where the storage has a choice, the process says which it was.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from mqserver.errors import MqError, StorageError
from mqserver.storage.contract import EVERYTHING, NewMessage, Outcome, QueueSettings, Storage
from tests.crash.cut_steps import APPLICATION, QUEUES, Step, Steps, result_of
from tests.crash.cut_storages import OPENING, Cut, Fuse, cut_power
from tests.crash.forked import Event, Say
from tests.storage_model import StorageModel

_MANY = 1000
_OUTCOMES_KEPT = 25


class Violation(AssertionError):
    """A storage broke a promise."""


def work(
    say: Say,
    folder: Path,
    kind: str,
    cut: Cut | None,
    possible: Sequence[StorageModel],
    seed: str,
    steps: int,
) -> None:
    """So many steps, unless the power goes before; the storage is not closed."""
    fuse = Fuse(folder, cut, say)
    fuse.listen()
    try:
        _work(say, lambda: OPENING[kind](folder, fuse), possible, seed, steps)
    except StorageError as error:
        if fuse.is_lit:
            # It has noticed that the power is going, and can say no more.
            time.sleep(60)
        say("wrong", repr(error))


def _work(
    say: Say,
    opening: Callable[[], Storage],
    possible: Sequence[StorageModel],
    seed: str,
    steps: int,
) -> None:
    storage = opening()
    model = _recognised(say, storage, possible)
    if model is None:
        return
    plan = Steps(model, seed)
    for _ in range(steps):
        step = plan.next()
        say("begin")
        if step[0] == "reopen":
            storage.close()
            storage = opening()
            found = None
        else:
            found = result_of(getattr(storage, step[0]), *step[1])
        first_key = found.start if isinstance(found, range) else None
        if first_key is not None and first_key < plan.model.state.next_key:
            say("wrong", f"key {first_key} is given again")
        expected = plan.done(step, first_key)
        if found != expected:
            say("wrong", f"{step}: {found!r}, not {expected!r}")
        say("done", first_key)


def _recognised(
    say: Say, storage: Storage, possible: Sequence[StorageModel]
) -> StorageModel | None:
    """The model in the state that the storage shows."""
    branches = sorted({name for model in possible for name in model.state.outcomes})
    shown = _shown(storage, branches)
    for number, model in enumerate(possible):
        # A branch that a crash rolled back is remembered or forgotten, as the storage likes.
        undone = [
            name
            for name, told in zip(branches, shown["outcomes"], strict=True)
            if told is Outcome.ROLLED_BACK and model.outcome(name) is Outcome.UNKNOWN
        ]
        remember(model, undone)
        if _shown(model, branches) == shown:
            say("left", number, [name.hex() for name in undone])
            return model
    expected = _shown(possible[0], branches)
    different = [what for what in expected if expected[what] != shown[what]]
    say("wrong", "; ".join(f"{it}: {shown[it]!r}, not {expected[it]!r}" for it in different))
    return None


def remember(model: StorageModel, undone: Iterable[bytes]) -> None:
    """The model knows that these were rolled back."""
    for branch in undone:
        model.rollback(branch)


def _shown(storage: Storage | StorageModel, branches: Sequence[bytes]) -> dict[str, Any]:
    consumers = storage.consumers()
    return {
        "queues": storage.queues(),
        "messages": [storage.browse(info.name, EVERYTHING, 0, _MANY) for info in storage.queues()],
        "branches": sorted(storage.branches(), key=lambda info: info.branch),
        "outcomes": [storage.outcome(branch) for branch in branches],
        "mark": storage.mark(APPLICATION),
        "consumers": consumers,
        "reserved": [
            storage.fetch(known.consumer, number, 0, _MANY)
            for known in consumers
            for number in range(known.finished + 1, known.reserved + 1)
        ],
    }


# --- A commit that is left to the next forced write -----------------------------------------------

LAZY = b"lazy"


def _end_an_empty_branch(storage: Storage) -> None:
    storage.take(b"empty", QUEUES[1], EVERYTHING, 1)
    storage.commit_one_phase(b"empty")


FORCING: dict[str, Callable[[Storage], object]] = {
    "force": lambda storage: storage.force(),
    "checkpoint": lambda storage: storage.checkpoint(),
    "the same commit, forced": lambda storage: storage.commit(LAZY),
    "the same commit in one phase": lambda storage: storage.commit_one_phase(LAZY),
    "the commit of an empty branch": _end_an_empty_branch,
    "a new queue": lambda storage: storage.create_queue(QUEUES[1], QueueSettings()),
}


def commit_lazily(say: Say, folder: Path, kind: str, forcing: str) -> None:
    """A branch was committed without force, something was forced then, and the power is gone."""
    fuse = Fuse(folder, Cut(1, None), say)
    storage = OPENING[kind](folder, Fuse(folder, None, say))
    storage.create_queue(QUEUES[0], QueueSettings())
    if forcing == "the commit of an empty branch":
        storage.create_queue(QUEUES[1], QueueSettings())
    storage.store(LAZY, QUEUES[0], [NewMessage(b"lazy", zlib.crc32(b"lazy"))])
    storage.prepare(LAZY, b"")
    storage.commit(LAZY, force=False)
    if forcing:
        FORCING[forcing](storage)
    fuse.ring()


def look_up(say: Say, folder: Path, kind: str) -> None:
    """Says what became of that branch, and how many messages there are."""
    storage = OPENING[kind](folder, Fuse(folder, None, say))
    say("found", storage.outcome(LAZY).name, storage.queue(QUEUES[0]).visible)


# --- A process that outlives its disk -------------------------------------------------------------


def go_on_without_a_disk(say: Say, folder: Path, kind: str) -> None:
    """Says what comes of calls that would write after the disk has failed."""
    storage = OPENING[kind](folder, Fuse(folder, None, say))
    storage.create_queue(QUEUES[0], QueueSettings())
    new = NewMessage(b"", 0)
    storage.store(LAZY, QUEUES[0], [new])
    storage.commit_one_phase(LAZY)
    storage.store(b"open", QUEUES[0], [new])
    cut_power(folder)
    calls: list[Callable[[], object]] = [
        lambda: storage.commit_one_phase(b"open"),
        lambda: storage.commit_one_phase(b"open"),
        lambda: storage.create_queue(QUEUES[1], QueueSettings()),
        lambda: storage.force(),
    ]
    for call in calls:
        try:
            call()
            say("accepted")
        except MqError as error:
            say(type(error).__name__)


# --- Following it --------------------------------------------------------------------------------


class Follower:
    """Knows the states that the storage may be in."""

    def __init__(self) -> None:
        self.possible = [StorageModel()]
        self.acknowledged = 0

    def follow(self, events: Iterable[Event], seed: str) -> bool:
        """A process has said this, and is gone; whether the power was cut.

        What is said while the power goes counts as not said.
        """
        plan: Steps | None = None
        begun: Step | None = None
        is_cut = False
        for what, *details in events:
            if what == "wrong":
                raise Violation(*details)
            if what == "left":
                number, undone = details
                remember(self.possible[number], map(bytes.fromhex, undone))
                plan = Steps(self.possible[number], seed)
            elif what == "begin":
                assert plan is not None
                begun = plan.next()
            elif what == "done":
                assert plan is not None
                assert begun is not None
                plan.done(begun, details[0], is_promised=not is_cut)
                begun = None
                self.acknowledged += not is_cut
            else:
                is_cut = True
        # A process that came to its end while it opened the storage has left it as it was.
        if plan is not None:
            if begun is not None:
                plan.begun(begun)
            self.possible = _trimmed(plan.model.after_crash())
        return is_cut


def _trimmed(models: Sequence[StorageModel]) -> list[StorageModel]:
    """The same, without the outcomes of long ago: to ask for all of them takes long."""
    over = (Outcome.COMMITTED, Outcome.ROLLED_BACK)
    for name in list(models[0].state.outcomes)[:-_OUTCOMES_KEPT]:
        if all(model.outcome(name) in over for model in models):
            for model in models:
                del model.state.outcomes[name]
    return [StorageModel(model.state) for model in models]
