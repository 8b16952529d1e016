"""Real power cuts under the real storages: what they have acknowledged is there afterwards.

Each storage lives through all its cuts, so that work is cut, and restarts, and restarts after a
restart that was cut. The cuts come at operation 1, 2, 3 and so on of a process, half of them while
it goes on working. That this finds a storage which breaks its promise is shown with two that do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.crash.conftest import CrashOptions
from tests.crash.cut_storages import Cut
from tests.crash.cut_work import FORCING, Follower, Violation
from tests.crash.ext4 import NoVolume, PowerCutVolume
from tests.crash.forked import Forker

pytestmark = [pytest.mark.needs_root, pytest.mark.needs("mkfs.ext4", "mount", "umount", "losetup")]

CUTS = {"paged": 110, "sqlite": 90}
# A call to SQLite is several statements, so that the cuts are further apart.
STRIDE = {"paged": 1, "sqlite": 3}
STEPS_MAX = 400
AFTER_S_MAX = 0.002

WORK = "tests.crash.cut_work:work"


@pytest.fixture
def volume(tmp_path: Path, missing: Callable[[str], NoReturn]) -> Iterator[PowerCutVolume]:
    """An ext4 volume of this test's own."""
    volume = PowerCutVolume(tmp_path)
    try:
        volume.__enter__()
    except NoVolume as error:
        missing(f"no ext4 volume can be made here: {error}")
    yield volume
    volume.__exit__(None, None, None)


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    """A process that has imported the storages and forks."""
    with Forker("tests.crash.cut_work") as forker:
        yield forker


class Session:
    """A storage on the volume, and all its power cuts."""

    def __init__(self, volume: PowerCutVolume, forker: Forker, kind: str, seed: int) -> None:
        self._volume = volume
        self._forker = forker
        self._kind = kind
        self._seed = seed
        self._follower = Follower()

    def cut(self, number: int) -> None:
        """The power was cut at an operation, and is back; what was left before was right."""
        chance = random.Random(f"{self._seed}/{number}")
        after_s = chance.random() * AFTER_S_MAX if number % 2 else None
        operation = 1 + number * STRIDE[self._kind.partition(" ")[0]]
        if not self._work(number, Cut(operation, after_s), STEPS_MAX):
            self._volume.cut()
        self._volume.remount()

    def look(self) -> int:
        """What the last cut has left is right; how many steps were acknowledged in all."""
        assert not self._work(-1, None, 0)
        return self._follower.acknowledged

    def _work(self, number: int, cut: Cut | None, steps: int) -> bool:
        seed = f"{self._seed}/{number}"
        possible = self._follower.possible
        events = self._forker.run(WORK, self._volume.path, self._kind, cut, possible, seed, steps)
        try:
            return self._follower.follow(events, seed)
        except Violation as violation:
            raise Violation(f"{self._kind}, before cut {number}: {violation}") from None


@pytest.mark.slow
@pytest.mark.parametrize("kind", CUTS)
def test_what_was_acknowledged_survives_every_power_cut(
    volume: PowerCutVolume, forker: Forker, crash_options: CrashOptions, kind: str
) -> None:
    session = Session(volume, forker, kind, crash_options.seed)
    cuts = crash_options.budget or CUTS[kind]
    for number in range(cuts):
        session.cut(number)
    # So many of the cuts came late that work was done between them.
    assert session.look() > cuts
    crash_options.count("power cuts", cuts)


@pytest.mark.parametrize("forcing", FORCING)
@pytest.mark.parametrize("kind", CUTS)
def test_a_lazy_commit_survives_a_cut_after_the_next_forced_write(
    volume: PowerCutVolume, forker: Forker, kind: str, forcing: str
) -> None:
    assert _after_a_lazy_commit(volume, forker, kind, forcing) == ("COMMITTED", 1)


@pytest.mark.parametrize("kind", CUTS)
def test_a_lazy_commit_is_lost_in_a_cut_before_it_is_forced(
    volume: PowerCutVolume, forker: Forker, kind: str
) -> None:
    assert _after_a_lazy_commit(volume, forker, kind, forcing="") == ("PREPARED", 0)


def _after_a_lazy_commit(
    volume: PowerCutVolume, forker: Forker, kind: str, forcing: str
) -> tuple[str, int]:
    """What the branch is after a cut, and how many messages there are."""
    events = forker.run("tests.crash.cut_work:commit_lazily", volume.path, kind, forcing)
    assert [what for what, *_ in events] == ["cutting", "cut"]
    volume.remount()
    [(_, outcome, messages)] = forker.run("tests.crash.cut_work:look_up", volume.path, kind)
    return outcome, messages


@pytest.mark.parametrize("kind", CUTS)
def test_a_process_that_outlives_its_disk_accepts_nothing_more(
    volume: PowerCutVolume, forker: Forker, kind: str
) -> None:
    events = list(forker.run("tests.crash.cut_work:go_on_without_a_disk", volume.path, kind))
    assert events == [("StorageFailed",)] * 4
    volume.remount()
    [(_, outcome, messages)] = forker.run("tests.crash.cut_work:look_up", volume.path, kind)
    assert (outcome, messages) == ("COMMITTED", 1)


@pytest.mark.parametrize("kind", ["paged without a sync", "sqlite with synchronous=NORMAL"])
def test_a_storage_that_does_not_wait_for_the_disk_is_found_out(
    volume: PowerCutVolume, forker: Forker, kind: str
) -> None:
    session = Session(volume, forker, kind, seed=0)

    def cut_until_found() -> None:
        for number in range(20, 60):
            session.cut(number)

    with pytest.raises(Violation):
        cut_until_found()
