"""Every moment of a coordinator's history: what a power cut leaves, and what a restart makes of it.

Whole histories on the recording disk: every state that a power cut may leave is judged, also of a
power cut during the restart, and on disks that fail. The last part plants bugs in the decision log,
which must be found that way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.decision_log import DecisionLog
from coordinator.ledger import Ledger
from idl import system
from idl.cos import Vote
from mqserver.errors import StorageError
from mqserver.storage.log_manager import LogManager
from tests.crash.conftest import CrashOptions
from tests.crash.coordinator_work import Life, Story, judge, restarted
from tests.crash.crash_states import CrashState, crash_states
from tests.crash.faults import Fault, Faults, at, filling_up, since
from tests.crash.recording_disk import RecordingDisk

Work = Callable[[Life], object]
Patch = pytest.MonkeyPatch


# --- Histories -----------------------------------------------------------------------------------


def _fast_ones(life: Life) -> None:
    for number in range(4):
        gtrid = life.begin(life.draw(), f"a{number}", f"b{number}")
        handed = [life.push(gtrid, f"a{number}"), life.push(gtrid, f"b{number}")]
        life.decide(gtrid, *handed)
    life.tasks.go_on(lambda: False, 1.0)


def _all_kinds(life: Life) -> None:
    life.commit(life.begin_standard("one", "two"))
    life.part("no", vote=Vote.ROLLBACK)
    life.commit(life.begin_standard("yes", "no"))
    life.commit(life.begin_standard("alone"))
    given_up = life.begin(life.draw(), "given")
    life.push(given_up, "given")
    life.give_up(given_up)
    keyed = life.begin_under_key(1)
    life.note(("begun", keyed, ("keyed",), 1))
    life.decide(keyed, life.push(keyed, "keyed"))
    life.decide(life.begin_under_key(2))
    life.tasks.go_on(lambda: False, 1.0)


def _by_hand(life: Life) -> None:
    gtrid = life.begin(life.draw(), "good", "hand")
    life.note(("hand", "hand"))
    handed = [life.push(gtrid, "good"), life.push(gtrid, "hand", is_by_hand=True)]
    life.decide(gtrid, *handed)
    life.tasks.go_on(lambda: False, 1.0)


def _one_cannot_be_reached(life: Life) -> None:
    gtrid = life.begin(life.draw(), "near", "far")
    handed = [life.push(gtrid, "near"), life.push(gtrid, "far", is_silent=True)]
    life.decide(gtrid, *handed)
    life.tasks.go_on(lambda: False, 2.0)
    life.parts["far"].is_silent = False
    life.tasks.go_on(lambda: False, 5.0)


def _long_enough_for_checkpoints(life: Life) -> None:
    far = life.begin(life.draw(), "far")
    life.decide(far, life.push(far, "far", is_silent=True))
    for number in range(14):
        gtrid = life.begin(life.draw(), f"p{number}")
        life.decide(gtrid, life.push(gtrid, f"p{number}"))
        life.tasks.go_on(lambda: False, 0.5)


HISTORIES: dict[str, tuple[Work, int]] = {
    "fast ones": (_fast_ones, 60),
    "all kinds": (_all_kinds, 60),
    "by hand": (_by_hand, 30),
    "one cannot be reached": (_one_cannot_be_reached, 30),
    "long enough for checkpoints": (_long_enough_for_checkpoints, 200),
}


def _traced(work: Work, faults: Faults | None = None) -> RecordingDisk:
    """A disk on which a history has come to its end, or as far as its faults let it."""
    disk = RecordingDisk(faults=faults)
    try:
        life = Life(disk)
        life.start()
        work(life)
    except (StorageError, system.INTERNAL):
        assert faults, "a history fails only on a disk that does"
    return disk


@pytest.mark.parametrize("name", HISTORIES)
def test_every_crash_of_the_coordinator_leaves_what_was_promised(
    name: str, crash_options: CrashOptions
) -> None:
    work, floor = HISTORIES[name]
    count = 0
    for number, state in enumerate(crash_states(_traced(work).trace, crash_options.seed)):
        if crash_options.state in (None, number):
            count += 1
            try:
                judge(state.disk(), state.events)
            except BaseException as failed:
                failed.add_note(f"{state}\n{crash_options.replay(number, None)}")
                raise
    crash_options.count("states of a coordinator", count)
    assert count >= floor or crash_options.state is not None


@pytest.mark.parametrize("name", HISTORIES)
def test_a_crash_during_the_restart_of_the_coordinator_changes_nothing(
    name: str, crash_options: CrashOptions
) -> None:
    count = 0
    trace = _traced(HISTORIES[name][0]).trace
    for state in crash_states(trace, crash_options.seed, crash_options.budget or 40):
        recovering = state.disk()
        story = Story.after(state.events)
        # What participants do during the restart is noted, and holds for the next one.
        life = restarted(recovering, story, note=recovering.note)
        life.settle()
        for again in crash_states(recovering.trace, crash_options.seed, 20):
            count += 1
            judge(again.disk(), (*state.events, *again.events))
    crash_options.count("nested states of a coordinator", count)
    assert count >= 300


KINDS: dict[str, Callable[[int], Faults]] = {
    "EIO once": lambda number: at(number, Fault.EIO),
    "EIO for ever": lambda number: since(number, Fault.EIO),
    "ENOSPC once": lambda number: at(number, Fault.ENOSPC),
    "filling up": filling_up,
    "short once": lambda number: at(number, Fault.SHORT),
}


@pytest.mark.parametrize("kind", KINDS)
def test_whenever_the_disk_fails_the_coordinator_has_promised_nothing_that_is_lost(
    kind: str, crash_options: CrashOptions
) -> None:
    work = _long_enough_for_checkpoints
    count = 0
    for number in range(1, _traced(work).operations + 1):
        disk = _traced(work, KINDS[kind](number))
        for state in crash_states(disk.trace, number, crash_options.budget or 12):
            count += 1
            judge(state.disk(), state.events)
    crash_options.count("states of a coordinator on a failing disk", count)


# --- What could be wrong would be found ----------------------------------------------------------


def _decision_not_forced(patch: Patch) -> None:
    patch.setattr(DecisionLog, "_force", lambda self, lsn: None)


def _summary_not_forced(patch: Patch) -> None:
    real = LogManager.force

    def force(self: LogManager, lsn: int, by_itself: bool = False, **others: Any) -> None:
        # Nothing else of this log is forced by itself.
        if not by_itself:
            real(self, lsn, **others)

    patch.setattr(LogManager, "force", force)


def _open_decisions_left_out_of_the_summary(patch: Patch) -> None:
    real = Ledger.packed

    def packed(self: Ledger) -> tuple[Any, ...]:
        incarnations, _, *rest = real(self)
        return (incarnations, [], *rest)

    patch.setattr(Ledger, "packed", packed)


def _outcomes_left_out_of_the_summary(patch: Patch) -> None:
    real = Ledger.packed

    def packed(self: Ledger) -> tuple[Any, ...]:
        incarnations, decisions, _, *rest = real(self)
        return (incarnations, decisions, [], *rest)

    patch.setattr(Ledger, "packed", packed)


PLANTED = [
    _decision_not_forced,
    _summary_not_forced,
    _open_decisions_left_out_of_the_summary,
    _outcomes_left_out_of_the_summary,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_bug_of_the_decision_log_is_found(
    plant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    trace = _traced(_long_enough_for_checkpoints).trace
    assert any(_is_broken(state) for state in crash_states(trace))


def _is_broken(state: CrashState) -> bool:
    try:
        judge(state.disk(), state.events)
    except (AssertionError, StorageError):
        return True
    return False
