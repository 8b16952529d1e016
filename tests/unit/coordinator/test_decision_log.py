"""The decision log on a disk in memory: what is on disk when, and what a start finds."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest

from coordinator.decision_log import DecisionLog
from coordinator.ledger import Decision, Key, Member, Note
from coordinator.outcomes import Heuristic
from idl.cos import Status
from idl.otids import IDENTITY_BYTES, SECRET_BYTES
from mqserver.errors import Corruption, StorageFailed, StorageFull, StorageLocked
from mqserver.storage.format import BLOCK_BYTES, Control, RecordKind, pack_body
from mqserver.storage.log_manager import CONTROL_NAME, LogManager
from tests.conformance.paged_storages import durable_image
from tests.crash.faults import Crash, Fault, since
from tests.crash.recording_disk import RecordingDisk

SEGMENT_BLOCKS = 8
SEGMENT_BYTES = SEGMENT_BLOCKS * BLOCK_BYTES
STORE = Member("store", "PYRO:branch@store:1", "PYRO:settler@store:1")
BANK = Member("bank", "PYRO:branch@bank:1")
DECISIONS = 20
NOTE = Note(2, Heuristic.HAZARD, Status.COMMITTED, "alice", BANK, "given up")

_numbers = itertools.count(1)


def _randomness(size: int) -> bytes:
    return next(_numbers).to_bytes(size, "little")


def _opened(disk: RecordingDisk, log_bytes_max: int = 1 << 20) -> DecisionLog:
    return DecisionLog(
        disk, _randomness, segment_blocks=SEGMENT_BLOCKS, log_bytes_max=log_bytes_max
    )


def _after_power_cut(disk: RecordingDisk) -> RecordingDisk:
    return RecordingDisk(durable_image(disk.trace))


def _after_kill(disk: RecordingDisk) -> RecordingDisk:
    return RecordingDisk(disk.image())


def _decision(number: int, key: Key | None = None) -> Decision:
    return Decision(_gtrid(number), "alice", key or Key(), {1: STORE, 2: BANK}, 77)


def _gtrid(number: int) -> bytes:
    return number.to_bytes(32)


def _size(disk: RecordingDisk) -> int:
    return sum(map(len, disk.image().values()))


def _fill(log: DecisionLog) -> int:
    """Decides until nothing more is accepted; how many decisions there are then."""
    for number in itertools.count(1):
        try:
            log.decide(_decision(number, Key("import", number)))
        except StorageFull:
            return number - 1
    raise AssertionError


@pytest.fixture
def disk() -> RecordingDisk:
    return RecordingDisk()


@pytest.fixture
def log(disk: RecordingDisk) -> DecisionLog:
    return _opened(disk)


# --- Opening -------------------------------------------------------------------------------------


def test_a_new_log_has_an_identity_and_its_first_incarnation(log: DecisionLog) -> None:
    assert len(log.identity) == IDENTITY_BYTES
    assert list(log.ledger.incarnations) == [1]
    assert len(log.ledger.incarnations[1]) == SECRET_BYTES
    assert log.ledger.decisions == {}


@pytest.mark.parametrize("leave", [_after_kill, _after_power_cut])
def test_every_start_keeps_the_identity_and_raises_the_incarnation_by_one(
    disk: RecordingDisk, log: DecisionLog, leave: Callable[[RecordingDisk], RecordingDisk]
) -> None:
    secrets = dict(log.ledger.incarnations)
    for number in (2, 3, 4):
        disk = leave(disk)
        again = _opened(disk)
        assert again.identity == log.identity
        assert again.ledger.incarnation == number
        assert {**again.ledger.incarnations, **secrets} == again.ledger.incarnations
        secrets = dict(again.ledger.incarnations)
    assert len(set(secrets.values())) == 4


def test_an_incarnation_is_on_disk_before_anything_can_be_done_under_it(
    disk: RecordingDisk, log: DecisionLog
) -> None:
    second = _opened(_after_power_cut(disk))
    assert second.ledger.incarnation == 2


def test_a_start_that_cannot_write_its_incarnation_fails_and_frees_the_directory(
    disk: RecordingDisk, log: DecisionLog
) -> None:
    log.close()
    disk.restart()
    disk.faults = since(0, Fault.EIO, "sync")
    with pytest.raises(StorageFailed):
        _opened(disk)
    disk.restart()
    assert _opened(disk).ledger.incarnation == 2


def _restored(disk: RecordingDisk) -> DecisionLog:
    return DecisionLog(disk, _randomness, segment_blocks=SEGMENT_BLOCKS, is_restored=True)


def test_a_log_that_was_put_back_forgets_the_incarnations_before_and_keeps_decisions() -> None:
    disk = RecordingDisk()
    log = _opened(disk)
    log.decide(_decision(1))
    log.close()
    again = _restored(_after_kill(disk))
    assert list(again.ledger.incarnations) == [2]
    assert again.ledger.is_committed(_gtrid(1))


def test_what_a_log_that_was_put_back_has_forgotten_stays_so_after_a_power_cut() -> None:
    disk = RecordingDisk()
    _opened(disk).close()
    disk = _after_kill(disk)
    _restored(disk)
    assert list(_opened(_after_power_cut(disk)).ledger.incarnations) == [2, 3]


def test_a_log_that_was_put_back_is_not_served_from_where_it_cannot_be_written() -> None:
    disk = RecordingDisk()
    _opened(disk).close()
    disk = _after_kill(disk)
    disk.faults = since(0, Fault.ENOSPC, "write")
    with pytest.raises((StorageFull, StorageFailed)):
        _restored(disk)


def test_wherever_a_start_stops_the_next_one_has_an_incarnation_of_its_own(
    disk: RecordingDisk, log: DecisionLog
) -> None:
    image = _after_power_cut(disk).image()
    for number in itertools.count(1):
        disk = RecordingDisk(image, since(number, Fault.CRASH))
        try:
            begun = _opened(disk).ledger.incarnation
        except Crash:
            assert _opened(_after_power_cut(disk)).ledger.incarnation in (2, 3)
            continue
        assert begun == 2
        assert _opened(_after_power_cut(disk)).ledger.incarnation == 3
        return


def test_wherever_the_first_start_stops_the_next_one_makes_a_log() -> None:
    for number in itertools.count(1):
        disk = RecordingDisk(faults=since(number, Fault.CRASH))
        try:
            _opened(disk)
        except Crash:
            assert _opened(_after_power_cut(disk)).ledger.incarnation in (1, 2)
            continue
        return


def test_a_file_of_settings_may_be_there_before_the_first_start() -> None:
    text = b'[databases.orders]\ndsn = "sqlite:////srv/orders.db"\n'
    disk = RecordingDisk({"databases.toml": text})
    assert _opened(disk).ledger.incarnation == 1
    assert disk.image()["databases.toml"] == text
    with pytest.raises(Corruption, match="control is missing, and databases"):
        _opened(RecordingDisk({"databases.db": text}))


def test_what_a_mark_has_decided_is_written_and_not_forced(
    disk: RecordingDisk, log: DecisionLog
) -> None:
    marked = Decision(b"marked", "alice", Key(), {1: STORE})
    log.note_marked(marked)
    assert log.ledger.is_committed(b"marked")
    assert not _opened(_after_power_cut(disk)).ledger.is_committed(b"marked")
    log.force_all()
    assert _opened(_after_power_cut(disk)).ledger.is_committed(b"marked")
    with pytest.raises(AssertionError, match="versions are nowhere but in this log"):
        log.note_marked(Decision(b"keyed", "alice", Key("billing", 1), {1: STORE}))


def test_a_clean_close_keeps_everything_and_lets_another_open(
    disk: RecordingDisk, log: DecisionLog
) -> None:
    log.decide(_decision(1))
    log.note_done(_gtrid(1), 1)
    log.close()
    again = _opened(disk)
    assert again.ledger.decisions[_gtrid(1)].done == {1}


def test_a_directory_that_is_in_use_is_not_opened_again(
    disk: RecordingDisk, log: DecisionLog
) -> None:
    before = disk.image()
    with pytest.raises(StorageLocked):
        _opened(disk)
    assert disk.image() == before


def test_the_log_of_a_queue_server_is_refused_and_says_so(disk: RecordingDisk) -> None:
    queues = LogManager.create(disk, Control(4096, b"identity of log!", SEGMENT_BLOCKS))
    queues.force(queues.append(RecordKind.COMMITTED, pack_body(())))
    queues.close()
    before = disk.image()
    with pytest.raises(Corruption, match=r"COMMITTED: .* belongs to a queue server"):
        _opened(disk)
    assert disk.image() == before
    disk.lock().close()


# --- Deciding ------------------------------------------------------------------------------------


def test_a_decision_is_on_disk_when_it_was_made(disk: RecordingDisk, log: DecisionLog) -> None:
    log.decide(_decision(1))
    found = _opened(_after_power_cut(disk)).ledger.decisions
    assert found == {_gtrid(1): _decision(1)}


def test_what_a_decision_says_is_what_its_record_says(
    disk: RecordingDisk, log: DecisionLog
) -> None:
    log.decide(_decision(1))
    log.decide(_decision(2, Key("import", 4)))
    log.note_marked(_decision(3))
    log.force_all()
    found = _opened(_after_power_cut(disk)).ledger
    assert found.decisions == log.ledger.decisions
    assert found.marks == log.ledger.marks == {"import": 4}


def test_a_decision_that_is_not_ended_comes_back_with_those_who_are_done(
    disk: RecordingDisk, log: DecisionLog
) -> None:
    for number in (1, 2, 3):
        log.decide(_decision(number))
    log.note_done(_gtrid(1), 2)
    log.end(_gtrid(2))
    log.force_all()
    found = _opened(_after_power_cut(disk)).ledger
    assert {gtrid: made.done for gtrid, made in found.decisions.items()} == {
        _gtrid(1): {2},
        _gtrid(3): set(),
    }
    assert found.is_committed(_gtrid(2))


def test_what_is_only_noted_is_on_disk_with_the_next_decision(
    disk: RecordingDisk, log: DecisionLog
) -> None:
    log.decide(_decision(1))
    log.note_done(_gtrid(1), 1)
    assert _opened(_after_power_cut(disk)).ledger.decisions[_gtrid(1)].done == set()
    log.decide(_decision(2))
    assert _opened(_after_power_cut(disk)).ledger.decisions[_gtrid(1)].done == {1}


def test_a_heuristic_is_on_disk_when_it_was_noted(disk: RecordingDisk, log: DecisionLog) -> None:
    log.note_heuristic(_gtrid(1), NOTE)
    assert _opened(_after_power_cut(disk)).ledger.heuristics == {_gtrid(1): {2: NOTE}}


def test_a_heuristic_that_was_dismissed_stays_away(disk: RecordingDisk, log: DecisionLog) -> None:
    log.note_heuristic(_gtrid(1), NOTE)
    log.dismiss(_gtrid(1))
    log.force_all()
    found = _opened(_after_power_cut(disk)).ledger
    assert found.heuristics == {}
    assert found.was_named(_gtrid(1), "bank")


def test_a_version_is_committed_once_its_decision_is_on_disk_and_not_before(
    disk: RecordingDisk, log: DecisionLog
) -> None:
    seen = []
    disk.during_sync = lambda name: seen.append(
        (log.version_of("import"), log.ledger.marks.get("import"))
    )
    log.decide(_decision(1, Key("import", 4)))
    assert seen == [(0, 4)]
    assert log.version_of("import") == 4
    assert _opened(_after_power_cut(disk)).version_of("import") == 4
    assert log.version_of("export") == 0


# --- Checkpoints ---------------------------------------------------------------------------------


def test_a_record_of_all_keeps_everything_and_shortens_the_log(disk: RecordingDisk) -> None:
    log = _opened(disk, log_bytes_max=SEGMENT_BYTES)
    log.decide(_decision(1, Key("import", 4)))
    log.note_done(_gtrid(1), 1)
    log.note_heuristic(_gtrid(2), NOTE)
    log.note_heuristic(_gtrid(3), NOTE)
    log.dismiss(_gtrid(3))
    first = set(disk.names())
    for number in range(10, 600):
        log.decide(_decision(number))
        log.end(_gtrid(number))
    assert not first <= set(disk.names()), "no segment was given back"
    log.force_all()
    found = _opened(_after_power_cut(disk), log_bytes_max=SEGMENT_BYTES)
    expected = log.ledger.packed()
    incarnations, *rest = found.ledger.packed()
    assert pack_body(rest) == pack_body(expected[1:])
    assert incarnations[:1] == expected[0]
    assert found.ledger.decisions == {_gtrid(1): _decision(1, Key("import", 4))}
    assert found.ledger.decisions[_gtrid(1)].done == {1}
    assert found.version_of("import") == 4


def test_the_log_stays_short_over_many_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.ledger.OUTCOMES_KEPT", 100)
    disk = RecordingDisk()
    log = _opened(disk, log_bytes_max=SEGMENT_BYTES)
    largest = 0
    for number in range(1, 20_001):
        log.decide(_decision(number))
        log.end(_gtrid(number))
        if number % 100 == 0:
            largest = max(largest, _size(disk))
            # What was recorded is of no use here, and would only fill the memory.
            disk.trace.entries.clear()
    assert largest < 12 * SEGMENT_BYTES
    found = _opened(RecordingDisk(disk.image()), log_bytes_max=SEGMENT_BYTES).ledger
    assert len(found.committed) + len(found.decisions) <= 101
    assert found.is_committed(_gtrid(20_000))
    assert found.is_too_old(_gtrid(19_000))


def test_many_open_decisions_do_not_make_every_decision_write_all_of_them(
    disk: RecordingDisk,
) -> None:
    log = _opened(disk, log_bytes_max=BLOCK_BYTES)
    seen: Counter[tuple[str, str]] = Counter()
    disk.faults = lambda operation: seen.update([(operation.kind, operation.name)])
    for number in range(1, 1_001):
        log.decide(_decision(number))
    # With each record of all, and with nothing else, the control record is written.
    assert 1 < seen["write", CONTROL_NAME] < 50
    assert len(_opened(_after_power_cut(disk)).ledger.decisions) == 1_000


# --- Trouble -------------------------------------------------------------------------------------


def test_on_a_full_disk_nothing_is_decided_and_it_goes_on_when_there_is_room(
    disk: RecordingDisk, log: DecisionLog
) -> None:
    disk.capacity_bytes = _size(disk)
    decided = _fill(log)
    with pytest.raises(StorageFull):
        log.decide(_decision(decided + 1, Key("import", decided + 1)))
    refused = _gtrid(decided + 1)
    assert not log.ledger.is_committed(refused)
    assert (log.version_of("import"), log.ledger.marks["import"]) == (decided, decided)
    assert not _opened(_after_power_cut(disk)).ledger.is_committed(refused)
    disk.capacity_bytes = 1 << 40
    log.decide(_decision(decided + 1))
    assert _opened(_after_power_cut(disk)).ledger.is_committed(refused)


def test_on_a_full_disk_what_is_decided_can_still_be_ended(
    disk: RecordingDisk, log: DecisionLog
) -> None:
    disk.capacity_bytes = _size(disk)
    assert _fill(log) > 1
    log.note_done(_gtrid(1), 1)
    log.end(_gtrid(1))
    for number in range(10_000):
        log.dismiss(_gtrid(number))
    assert _gtrid(1) not in log.ledger.decisions
    assert log.ledger.is_committed(_gtrid(1))


@pytest.mark.parametrize("kind", ["sync", "write"])
def test_after_a_failed_write_nothing_is_accepted_any_more(
    disk: RecordingDisk, log: DecisionLog, kind: str
) -> None:
    log.decide(_decision(1))
    disk.faults = lambda operation: Fault.EIO if operation.kind == kind else None
    with pytest.raises(StorageFailed):
        log.decide(_decision(2))
    disk.faults = None
    for _ in range(3):
        with pytest.raises(StorageFailed):
            log.decide(_decision(3))
        with pytest.raises(StorageFailed):
            log.note_heuristic(_gtrid(1), NOTE)
        with pytest.raises(StorageFailed):
            log.end(_gtrid(1))
    found = _opened(_after_power_cut(disk)).ledger
    assert found.is_committed(_gtrid(1))
    assert not found.is_committed(_gtrid(3))


def test_a_decision_survives_wherever_the_machine_stops_after_it_was_made() -> None:
    for number in itertools.count(1):
        disk = RecordingDisk()
        log = _opened(disk, log_bytes_max=BLOCK_BYTES)
        disk.faults = since(disk.operations + number, Fault.CRASH)
        made = _decided_until_a_crash(log)
        found = _opened(_after_power_cut(disk)).ledger
        assert all(found.is_committed(_gtrid(each)) for each in made)
        if len(made) == DECISIONS:
            return


def _decided_until_a_crash(log: DecisionLog) -> list[int]:
    made = []
    try:
        for number in range(1, DECISIONS + 1):
            log.decide(_decision(number))
            made.append(number)
            log.end(_gtrid(number))
    except Crash:
        pass
    return made
