"""Processes that are killed under load, again and again: nothing acknowledged is lost or doubled.

A kill cannot show that a sync is missing, because the kernel lives on; `test_power_cuts.py` does.
It shows what the threads of a living process leave behind when they all stop at once, anywhere.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqserver.storage.contract import QueueSettings
from mqserver.storage.memory import MemoryStorage
from tests.conformance.storages import put
from tests.crash.conftest import CrashOptions
from tests.crash.forked import Event, Forker
from tests.crash.kill_work import GOAL, SOURCE, Ledger, finish

KILLS = {"paged": 12, "sqlite": 8}
# Some are killed before they are open, and most in the middle of their work.
LIFE_S_MAX = 0.6


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    """A process that has imported the storages and forks."""
    with Forker("tests.crash.kill_work") as forker:
        yield forker


@pytest.mark.parametrize("kind", KILLS)
def test_what_was_acknowledged_survives_every_kill(
    tmp_path: Path, forker: Forker, crash_options: CrashOptions, kind: str
) -> None:
    chance = random.Random(crash_options.seed)
    ledger = Ledger()
    kills = crash_options.budget or KILLS[kind]
    for number in range(kills):
        name = f"{crash_options.seed}/{number}"
        events = forker.run("tests.crash.kill_work:work", tmp_path, kind, name, ledger.first)
        ledger.follow(_killed_after(forker, events, chance.uniform(0.0, LIFE_S_MAX)))
    finish(tmp_path, kind, ledger)
    # They were not all killed before they could do anything.
    assert len(ledger.put) > kills
    assert ledger.moved
    crash_options.count("kills", kills)
    crash_options.count("messages acknowledged before a kill", len(ledger.put))


def _killed_after(forker: Forker, events: Iterator[Event], life_s: float) -> Iterator[Event]:
    """What a process says until it is killed, so long after it began."""
    timer = threading.Timer(life_s, forker.kill)
    for event in events:
        if event == ("begun",):
            timer.start()
        yield event
    timer.join()


@pytest.mark.parametrize(
    ("source", "goal", "told"),
    [
        (["0/2"], ["0/0"], "lost"),
        (["0/2", "0/0"], ["0/0", "0/1"], "twice"),
        (["0/2", "0/0"], ["0/1"], "back"),
        (["0/2"], ["0/1", "0/0"], "order"),
    ],
    ids=["lost", "there twice", "moved back", "out of order"],
)
def test_the_ledger_sees_a_message_that_is(source: list[str], goal: list[str], told: str) -> None:
    ledger, storage = Ledger(), MemoryStorage(time.monotonic)
    ledger.follow([("put", 0, number) for number in range(3)])
    ledger.follow([("moved", [[0, 0], [0, 1]])])
    for queue, messages in ((SOURCE, source), (GOAL, goal)):
        storage.create_queue(queue, QueueSettings())
        put(storage, queue, *messages)
    with pytest.raises(AssertionError, match=told):
        ledger.check(storage)
