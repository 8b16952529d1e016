"""What a coordinator's log says: every record, applied once, twice, and from a record of all."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator import ledger as ledger_module
from coordinator.ledger import (
    Decision,
    Key,
    Ledger,
    Member,
    Note,
    decision_body,
    digest_of,
    note_body,
)
from coordinator.outcomes import Heuristic
from idl.cos import Status
from mqserver.storage.format import RecordKind, pack_body, unpack_body

FIRST, SECOND, THIRD = (bytes([number]) * 32 for number in (1, 2, 3))
STORE = Member("store", "PYRO:branch@store:1", "PYRO:settler@store:1")
BANK = Member("bank", "PYRO:branch@bank:1")
COORDINATORS = frozenset(
    (
        RecordKind.INCARNATION,
        RecordKind.DECISION,
        RecordKind.DONE,
        RecordKind.ENDED,
        RecordKind.HEURISTIC,
        RecordKind.DISMISSED,
        RecordKind.DECISIONS,
    )
)

Written = tuple[RecordKind, tuple[Any, ...]]


def _decision(gtrid: bytes, key: Key | None = None, digest: int = 0) -> Written:
    made = Decision(gtrid, "alice", key or Key(), {1: STORE, 2: BANK}, digest)
    return RecordKind.DECISION, decision_body(made)


def _heuristic(gtrid: bytes, number: int = 1, decided: Status = Status.COMMITTED) -> Written:
    member = STORE if number == 1 else BANK
    note = Note(number, Heuristic.MIXED, decided, "alice", member, "by hand")
    return RecordKind.HEURISTIC, note_body(gtrid, note)


# A life of a coordinator in which every kind of record is written.
LIFE: list[Written] = [
    (RecordKind.INCARNATION, (1, b"first secret")),
    _decision(FIRST, digest=77),
    (RecordKind.DONE, (FIRST, 1)),
    _decision(SECOND, Key("import", 4)),
    _heuristic(SECOND),
    _heuristic(SECOND, 2),
    (RecordKind.ENDED, (SECOND,)),
    (RecordKind.DISMISSED, (SECOND,)),
    _heuristic(THIRD, decided=Status.ROLLED_BACK),
    (RecordKind.INCARNATION, (2, b"second secret")),
]


def _read_back(body: tuple[Any, ...]) -> tuple[Any, ...]:
    """The body as it comes from disk."""
    return tuple(unpack_body(pack_body(body), "a test")[0])


def _applied(*records: Written) -> Ledger:
    made = Ledger()
    for kind, body in records:
        made.apply(kind, _read_back(body))
    return made


def _seen(ledger: Ledger) -> bytes:
    return pack_body(ledger.packed())


# --- Records -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(1, len(LIFE) + 1))
def test_a_record_that_is_applied_twice_says_the_same(count: int) -> None:
    once = _applied(*LIFE[:count])
    assert _seen(_applied(*LIFE[:count], LIFE[count - 1])) == _seen(once)


@pytest.mark.parametrize("count", range(len(LIFE) + 1))
def test_a_record_of_all_says_what_all_the_records_said(count: int) -> None:
    made = _applied(*LIFE[:count])
    again = _applied((RecordKind.DECISIONS, made.packed()))
    assert _seen(again) == _seen(made)
    assert again.decisions == made.decisions
    assert [d.done for d in again.decisions.values()] == [d.done for d in made.decisions.values()]
    assert again.heuristics == made.heuristics
    assert again.given_up == made.given_up
    for other in (made, again):
        for kind, body in LIFE[count:]:
            other.apply(kind, _read_back(body))
    assert _seen(again) == _seen(made)


def test_a_record_of_all_replaces_everything_from_before() -> None:
    made = _applied(*LIFE, (RecordKind.DECISIONS, Ledger().packed()))
    assert _seen(made) == _seen(Ledger())


@pytest.mark.parametrize("kind", RecordKind)
def test_only_records_of_a_coordinator_are_known(kind: RecordKind) -> None:
    assert Ledger().knows(kind) == (kind in COORDINATORS)


def test_the_incarnation_is_the_highest_that_was_begun() -> None:
    assert Ledger().incarnation == 0
    assert _applied(*LIFE).incarnation == 2


def test_a_decision_comes_back_with_all_that_it_names() -> None:
    made = _applied(_decision(FIRST, Key("import", 4), 77)).decisions[FIRST]
    assert made == Decision(FIRST, "alice", Key("import", 4), {1: STORE, 2: BANK}, 77)
    assert made.done == set()


def test_who_is_done_is_remembered_as_long_as_the_decision() -> None:
    made = _applied(_decision(FIRST), (RecordKind.DONE, (FIRST, 2)))
    assert made.decisions[FIRST].done == {2}
    made.apply(RecordKind.ENDED, (FIRST,))
    made.apply(RecordKind.DONE, (FIRST, 1))
    assert made.decisions == {}


# --- Outcomes ------------------------------------------------------------------------------------


def test_a_transaction_is_committed_from_its_decision_on_and_after_its_end() -> None:
    made = Ledger()
    assert not made.is_committed(FIRST)
    made.apply(*_decision(FIRST))
    assert made.is_committed(FIRST)
    made.apply(RecordKind.ENDED, (FIRST,))
    assert made.is_committed(FIRST)
    assert not made.is_committed(SECOND)


def test_the_digest_of_the_names_outlives_the_decision() -> None:
    made = _applied(_decision(FIRST, digest=77))
    assert made.digest(FIRST) == 77
    made.apply(RecordKind.ENDED, (FIRST,))
    assert made.digest(FIRST) == 77
    assert made.digest(SECOND) is None


def test_what_ended_without_a_decision_is_committed_and_named_nobody() -> None:
    made = _applied((RecordKind.ENDED, (FIRST,)))
    assert made.is_committed(FIRST)
    assert made.digest(FIRST) == digest_of(())


def test_the_oldest_outcomes_are_dropped_and_the_horizon_tells_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger_module, "OUTCOMES_KEPT", 2)
    made = _applied(*((RecordKind.ENDED, (gtrid,)) for gtrid in (SECOND, FIRST)))
    assert not made.is_too_old(FIRST)
    made.apply(RecordKind.ENDED, (THIRD,))
    assert (made.is_committed(SECOND), made.is_committed(FIRST)) == (False, True)
    # What is below the highest name that was dropped, and is not known, may have been committed.
    assert made.is_too_old(FIRST)
    assert made.is_too_old(SECOND)
    assert not made.is_too_old(THIRD)


def test_the_horizon_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "OUTCOMES_KEPT", 1)
    ended = [THIRD, FIRST, SECOND]
    made = _applied(*((RecordKind.ENDED, (gtrid,)) for gtrid in ended))
    assert (list(made.committed), made.horizon) == ([SECOND], THIRD)


def test_a_transaction_that_ends_twice_is_not_kept_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "OUTCOMES_KEPT", 2)
    ended = [FIRST, SECOND, FIRST, THIRD]
    made = _applied(*((RecordKind.ENDED, (gtrid,)) for gtrid in ended))
    assert list(made.committed) == [SECOND, THIRD]


# --- Keys ----------------------------------------------------------------------------------------


def test_the_mark_of_an_application_is_its_highest_version_and_never_falls() -> None:
    versions = [(FIRST, 4), (SECOND, 9), (THIRD, 7)]
    made = _applied(*(_decision(gtrid, Key("import", version)) for gtrid, version in versions))
    assert made.marks == {"import": 9}


def test_each_application_has_a_mark_of_its_own() -> None:
    made = _applied(_decision(FIRST, Key("import", 4)), _decision(SECOND, Key("export", 2)))
    assert made.marks == {"import": 4, "export": 2}


def test_a_transaction_without_a_key_leaves_no_mark() -> None:
    assert _applied(_decision(FIRST)).marks == {}


def test_a_mark_outlives_the_decision_and_a_record_of_all() -> None:
    made = _applied(_decision(FIRST, Key("import", 4)), (RecordKind.ENDED, (FIRST,)))
    assert _applied((RecordKind.DECISIONS, made.packed())).marks == {"import": 4}


# --- Heuristics ----------------------------------------------------------------------------------


def test_a_heuristic_is_kept_until_it_is_dismissed() -> None:
    made = _applied(_heuristic(FIRST))
    note = Note(1, Heuristic.MIXED, Status.COMMITTED, "alice", STORE, "by hand")
    assert made.heuristics == {FIRST: {1: note}}
    made.apply(RecordKind.DISMISSED, (FIRST,))
    assert made.heuristics == {}


def test_the_heuristics_of_several_participants_stand_beside_each_other() -> None:
    made = _applied(_heuristic(FIRST), _heuristic(FIRST, 2))
    assert sorted(made.heuristics[FIRST]) == [1, 2]


def test_whoever_was_named_and_given_up_is_told_the_truth_also_when_it_is_dismissed() -> None:
    made = _applied(_heuristic(FIRST))
    assert made.was_named(FIRST, "store")
    assert not made.was_named(FIRST, "bank")
    made.apply(RecordKind.DISMISSED, (FIRST,))
    assert made.was_named(FIRST, "store")
    assert not made.was_named(FIRST, "bank")
    assert not made.was_named(SECOND, "store")


def test_a_heuristic_of_what_was_rolled_back_names_nobody() -> None:
    made = _applied(_heuristic(FIRST, decided=Status.ROLLED_BACK))
    assert not made.was_named(FIRST, "store")
    made.apply(RecordKind.DISMISSED, (FIRST,))
    assert made.given_up == {}


def test_those_given_up_are_forgotten_from_the_oldest_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "GIVEN_UP_KEPT", 2)
    made = Ledger()
    for gtrid in (SECOND, FIRST, THIRD):
        made.apply(*_heuristic(gtrid))
        made.apply(RecordKind.DISMISSED, (gtrid,))
    assert list(made.given_up) == [FIRST, THIRD]


# --- Digests -------------------------------------------------------------------------------------


def test_a_digest_depends_on_the_names_and_not_on_their_order() -> None:
    assert digest_of(("store", "bank")) == digest_of(("bank", "store"))
    assert digest_of(("store", "bank")) != digest_of(("store",))
    assert digest_of(()) == 0
