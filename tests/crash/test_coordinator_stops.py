"""The coordinator stops, at every moment: what was promised holds, and what was not is rolled back.

It is the crash table of `docs/TRANSACTIONS.md`, row by row: a coordinator dies just before or just
after each arrow of its drawing (`coordinator/protocol.py`), and only what was synced is on disk.
`test_coordinator_crashes.py` leaves no moment out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from coordinator import protocol, transactions
from coordinator.decision_log import DecisionLog
from coordinator.ledger import Member
from coordinator.live import Enlisted
from coordinator.outcomes import Heuristic
from coordinator.protocol import ARROWS, Effect, Effects, Event, Transaction
from idl import system
from idl.cos import Vote
from tests.conformance.paged_storages import durable_image
from tests.crash.coordinator_work import (
    APPLICATION,
    COMMITTED,
    PREPARED,
    ROLLED_BACK,
    SETTINGS,
    WORKING,
    Life,
    Story,
    restarted,
)
from tests.crash.recording_disk import RecordingDisk
from tests.crash.trace import Noted

Work = Callable[[Life], object]


class Stopped(BaseException):
    """The coordinator died here. No handler for ordinary failures may stop that."""


# --- Dying at a letter ---------------------------------------------------------------------------


class Afterwards(NamedTuple):
    """What there is after the restart, when everything has come to rest."""

    life: Life
    story: Story
    gtrid: bytes

    @property
    def states(self) -> list[str]:
        """What the participants have become."""
        return [part.state for part in self.life.parts.values()]

    @property
    def outcome(self) -> str:
        """What a client that asks now is told."""
        return self.life.outcome(self.gtrid)


class Stopping:
    """Ends the life of a coordinator at an arrow of its protocol."""

    def __init__(self, letter: str, is_after: bool) -> None:
        self.letter = letter
        self.is_after = is_after
        self._is_due = False

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """From now on the life ends there."""
        real_step, real_carry_out = protocol.step, transactions.Transactions._carry_out

        def step(transaction: Transaction, event: Event) -> tuple[Transaction, Effects]:
            after, effects = real_step(transaction, event)
            if ARROWS.get((transaction.status, after.status)) == self.letter:
                if not self.is_after:
                    raise Stopped
                self._is_due = True
            return after, effects

        def carry_out(self_: Any, live: Any, effects: tuple[Effect, ...]) -> None:
            # The first thing that is to be done after the arrow is still done.
            first = effects[:1] if self._is_due and not _ends(effects) else effects
            real_carry_out(self_, live, first)
            if self._is_due:
                raise Stopped

        patch.setattr(transactions, "step", step)
        patch.setattr(transactions.Transactions, "_carry_out", carry_out)


def _ends(effects: Effects) -> bool:
    return len(effects) < 2


def _die(patch: pytest.MonkeyPatch, work: Work, letter: str, is_after: bool) -> Afterwards:
    """The coordinator dies at the arrow, loses all that was not synced, and is started again."""
    disk = RecordingDisk()
    with patch.context() as planted:
        Stopping(letter, is_after).plant(planted)
        with pytest.raises(Stopped):
            work(Life(disk))
    return _restart(disk)


def _restart(disk: RecordingDisk) -> Afterwards:
    events = [entry.event for entry in disk.trace.entries if isinstance(entry, Noted)]
    story = Story.after(events)
    life = restarted(RecordingDisk(durable_image(disk.trace)), story)
    life.settle()
    (begun,) = story.begun.values()
    return Afterwards(life, story, begun.gtrid)


def _two_register(life: Life) -> None:
    gtrid = life.begin_standard("one", "two")
    life.commit(gtrid)
    life.tasks.go_on(lambda: False, 5.0)


def _two_are_prepared(life: Life) -> None:
    gtrid = life.begin(life.draw(), "one", "two")
    life.decide(gtrid, life.push(gtrid, "one"), life.push(gtrid, "two"))
    life.tasks.go_on(lambda: False, 5.0)


def _nobody_changed_anything(life: Life) -> None:
    life.part("one", vote=Vote.READ_ONLY)
    life.part("two", vote=Vote.READ_ONLY)
    life.commit(life.begin_standard("one", "two"))


def _somebody_marks(life: Life) -> None:
    gtrid = life.begin_standard("one", "two")
    life.coordinator(gtrid).rollback_only()
    life.commit(gtrid)


def _somebody_is_against(life: Life) -> None:
    life.part("two", vote=Vote.ROLLBACK)
    life.commit(life.begin_standard("one", "two"))


def _nobody_takes_part(life: Life) -> None:
    life.commit(life.begin_standard())


def _nobody_is_to_be_told(life: Life) -> None:
    life.give_up(life.begin_standard())


def _one_is_alone(life: Life) -> None:
    life.commit(life.begin_standard("one"))


def _one_is_alone_and_silent(life: Life) -> None:
    life.part("one", is_silent=True)
    life.commit(life.begin_standard("one"))


def _only_a_key(life: Life) -> None:
    life.decide(life.begin_under_key(3))


Patch = pytest.MonkeyPatch


def test_crash_before_anybody_is_asked_to_prepare_rolls_back(monkeypatch: Patch) -> None:
    after = _die(monkeypatch, _two_register, "a", is_after=False)
    assert after.states == [WORKING, WORKING]
    # It is not known whether there was a single participant, who decided; so nothing is said.
    assert after.outcome == "unknown"


def test_crash_while_votes_are_asked_for_rolls_back(monkeypatch: Patch) -> None:
    after = _die(monkeypatch, _two_register, "a", is_after=True)
    assert COMMITTED not in after.states
    assert PREPARED not in after.states


def test_crash_before_the_last_vote_is_counted_rolls_back(monkeypatch: Patch) -> None:
    after = _die(monkeypatch, _two_register, "b", is_after=False)
    assert after.states == [ROLLED_BACK, ROLLED_BACK]


def test_crash_after_the_last_vote_and_before_the_decision_rolls_back(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(DecisionLog, "decide", _stop)
    disk = RecordingDisk()
    with pytest.raises(Stopped):
        _two_register(Life(disk))
    assert _restart(disk).states == [ROLLED_BACK, ROLLED_BACK]


def _stop(*arguments: object) -> None:
    raise Stopped


def test_crash_before_the_decision_is_forced_rolls_back(monkeypatch: Patch) -> None:
    disk = RecordingDisk()
    life = Life(disk)
    with monkeypatch.context() as planted:
        planted.setattr(DecisionLog, "_force", _stop)
        with pytest.raises(Stopped):
            _two_are_prepared(life)
    after = _restart(disk)
    assert after.states == [ROLLED_BACK, ROLLED_BACK]
    assert after.outcome == ROLLED_BACK


def test_crash_after_the_decision_is_forced_commits(monkeypatch: Patch) -> None:
    after = _die(monkeypatch, _two_are_prepared, "c", is_after=False)
    assert not after.story.told, "nobody had been told"
    assert after.states == [COMMITTED, COMMITTED]
    assert after.outcome == COMMITTED


def test_crash_after_the_first_was_told_to_commit_commits_the_others(monkeypatch: Patch) -> None:
    after = _die(monkeypatch, _two_are_prepared, "c", is_after=True)
    assert list(after.story.states.values()) == [COMMITTED, PREPARED]
    assert after.states == [COMMITTED, COMMITTED]
    assert after.outcome == COMMITTED


@pytest.mark.parametrize("is_after", [False, True])
def test_crash_around_the_end_of_a_decision_changes_nothing(
    is_after: bool, monkeypatch: Patch
) -> None:
    after = _die(monkeypatch, _two_are_prepared, "d", is_after)
    assert list(after.story.told.values()) == [COMMITTED]
    assert after.states == [COMMITTED, COMMITTED]
    assert after.outcome == COMMITTED


@pytest.mark.parametrize("is_after", [False, True])
def test_crash_where_nobody_changed_anything_changes_nothing(
    is_after: bool, monkeypatch: Patch
) -> None:
    after = _die(monkeypatch, _nobody_changed_anything, "e", is_after)
    assert after.states == [WORKING, WORKING]
    assert after.outcome in ("unknown", COMMITTED)


@pytest.mark.parametrize("is_after", [False, True])
def test_crash_around_the_commit_of_the_only_participant_never_says_rolled_back(
    is_after: bool, monkeypatch: Patch
) -> None:
    after = _die(monkeypatch, _one_is_alone, "e", is_after)
    assert after.states == [COMMITTED]
    assert after.outcome in ("unknown", COMMITTED)


@pytest.mark.parametrize("is_after", [False, True])
def test_crash_around_a_mark_rolls_back(is_after: bool, monkeypatch: Patch) -> None:
    after = _die(monkeypatch, _somebody_marks, "f", is_after)
    assert COMMITTED not in after.states


@pytest.mark.parametrize("letter", ["g", "h"])
@pytest.mark.parametrize("is_after", [False, True])
def test_crash_while_it_is_rolled_back_rolls_back(
    letter: str, is_after: bool, monkeypatch: Patch
) -> None:
    after = _die(monkeypatch, _somebody_is_against, letter, is_after)
    assert COMMITTED not in after.states
    assert PREPARED not in after.states


def test_crash_before_a_fast_decision_is_taken_rolls_back(monkeypatch: Patch) -> None:
    after = _die(monkeypatch, _two_are_prepared, "i", is_after=False)
    assert after.states == [ROLLED_BACK, ROLLED_BACK]
    assert after.outcome == ROLLED_BACK


def test_crash_after_a_fast_decision_was_handed_to_the_disk_does_what_is_found_there(
    monkeypatch: Patch,
) -> None:
    after = _die(monkeypatch, _two_are_prepared, "i", is_after=True)
    assert not after.story.told
    assert after.states == [COMMITTED, COMMITTED]


@pytest.mark.parametrize("is_after", [False, True])
def test_crash_where_nobody_takes_part_leaves_nothing(is_after: bool, monkeypatch: Patch) -> None:
    after = _die(monkeypatch, _nobody_takes_part, "j", is_after)
    assert after.outcome in ("unknown", COMMITTED)


@pytest.mark.parametrize("is_after", [False, True])
def test_crash_where_nobody_is_to_be_told_leaves_nothing(
    is_after: bool, monkeypatch: Patch
) -> None:
    after = _die(monkeypatch, _nobody_is_to_be_told, "k", is_after)
    assert after.outcome in ("unknown", ROLLED_BACK)


def test_crash_before_a_lost_answer_is_recorded_leaves_the_outcome_unknown(
    monkeypatch: Patch,
) -> None:
    after = _die(monkeypatch, _one_is_alone_and_silent, "l", is_after=False)
    assert after.states == [COMMITTED]
    assert after.outcome == "unknown"
    assert not after.life.service.transactions.notes_of(after.gtrid)


def test_crash_after_a_lost_answer_is_recorded_leaves_it_for_the_operator(
    monkeypatch: Patch,
) -> None:
    after = _die(monkeypatch, _one_is_alone_and_silent, "l", is_after=True)
    assert after.outcome == "unknown"
    assert len(after.life.service.transactions.notes_of(after.gtrid)) == 1


def test_crash_after_a_key_is_forced_keeps_the_key(monkeypatch: Patch) -> None:
    after = _die(monkeypatch, _only_a_key, "m", is_after=False)
    assert not after.story.told
    assert after.life.client.getVersion(APPLICATION) == 3
    assert after.outcome == COMMITTED


def test_crash_before_a_key_is_forced_leaves_the_version_free(monkeypatch: Patch) -> None:
    disk = RecordingDisk()
    life = Life(disk)
    with monkeypatch.context() as planted:
        planted.setattr(DecisionLog, "_force", _stop)
        with pytest.raises(Stopped):
            _only_a_key(life)
    after = _restart(disk)
    assert after.life.client.getVersion(APPLICATION) == 0
    assert after.life.client.getVersion("another") == 0


def test_crash_after_a_key_was_told_keeps_the_key(monkeypatch: Patch) -> None:
    after = _die(monkeypatch, _only_a_key, "m", is_after=True)
    assert after.life.client.getVersion(APPLICATION) == 3


def test_crash_after_a_heuristic_was_recorded_keeps_what_is_certain() -> None:
    disk = RecordingDisk()
    life = Life(disk)
    gtrid = life.begin(life.draw(), "hand", "far")
    handed = [
        life.push(gtrid, "hand", is_by_hand=True),
        life.push(gtrid, "far", is_silent=True),
    ]
    assert life.decide(gtrid, *handed) == "heuristic"
    # The one that told of it has forgotten it, and knows nothing any more; the other is in doubt.
    after = _restart(disk)
    (note,) = after.life.service.transactions.notes_of(gtrid)
    assert note.heuristic is Heuristic.ROLLED_BACK
    assert after.states == [ROLLED_BACK, COMMITTED]


# --- Long after it is over -----------------------------------------------------------------------


def _told_again(disk: RecordingDisk) -> list[str]:
    """Those whom a coordinator tells of a decision when it is started on what is on disk."""
    notes: list[tuple[Any, ...]] = []
    story = Story.after([e.event for e in disk.trace.entries if isinstance(e, Noted)])
    life = restarted(RecordingDisk(durable_image(disk.trace)), story, notes.append)
    decisions = life.log.ledger.decisions.values()
    return [member.name for each in decisions for member in each.members.values()]


def test_what_all_have_done_is_on_disk_soon_though_nobody_decides_any_more() -> None:
    disk = RecordingDisk()
    life = Life(disk)
    gtrid = life.begin(life.draw(), "one", "two")
    life.decide(gtrid, life.push(gtrid, "one"), life.push(gtrid, "two"))
    assert _told_again(disk) == ["one", "two"]
    life.tasks.go_on(lambda: False, SETTINGS.settle_s + SETTINGS.unforced_s + 0.1)
    # By the next start they may have forgotten it, and would know nothing of it.
    assert _told_again(disk) == []


def test_what_one_has_done_is_on_disk_soon_though_the_other_is_away() -> None:
    disk = RecordingDisk()
    life = Life(disk)
    gtrid = life.begin(life.draw(), "one", "two")
    participants = life.push(gtrid, "one"), life.push(gtrid, "two", is_silent=True)
    with suppress(TimeoutError, system.SystemException):
        life.decide(gtrid, *participants)
    life.tasks.go_on(lambda: False, SETTINGS.settle_s + SETTINGS.unforced_s + 0.1)
    (decision,) = DecisionLog(
        RecordingDisk(durable_image(disk.trace)), lambda count: bytes(count)
    ).ledger.decisions.values()
    done = [decision.members[number].name for number in decision.done]
    assert done == ["one"]


def test_damage_that_is_noted_while_others_are_told_of_theirs_stops_no_start() -> None:
    disk = RecordingDisk()
    life = Life(disk)
    gtrid = life.begin(life.draw(), "one", "two")
    handed = [life.push(gtrid, name, is_by_hand=True) for name in ("one", "two")]
    assert life.decide(gtrid, *handed) == "heuristic"
    after = _restart(disk).life
    (note, _) = after.service.transactions.notes_of(gtrid)
    told: list[str] = []

    def enlist(member: Member) -> Enlisted:
        # As what was decided before may do, which is being carried out meanwhile.
        told.append(member.name)
        after.log.note_heuristic(gtrid, note._replace(number=100 + len(told)))
        after.log.note_heuristic(b"another%d" % len(told), note)
        return Enlisted(member, after.resource(member.name), None)

    after.service.transactions.forget_heuristics(enlist)
    assert sorted(told) == ["one", "two"]
