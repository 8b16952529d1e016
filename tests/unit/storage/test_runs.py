"""The check of runs: each kind of fault is seen and told, with the message that is lost by it."""

from __future__ import annotations

import zlib

import pytest

from mqserver.storage.disk import File
from mqserver.storage.entries import Entry
from mqserver.storage.file_manager import DATA_NAME
from mqserver.storage.findings import Finding, Notes, Severity
from mqserver.storage.format import PAGE_HEADER, Control, encode_pages, encode_undivided
from mqserver.storage.records import pack_bundle
from mqserver.storage.runs import Holding, RunCheck
from tests.crash.recording_disk import RecordingDisk

PAGE = 128
ROOM = PAGE - PAGE_HEADER.size
CONTROL = Control(PAGE, b"identity of data", 8)
PAYLOAD = bytes(range(250))


def _entry(key: int, payload: bytes) -> Entry:
    return Entry(key, len(payload), zlib.crc32(payload), 0, 0, 0, "", (), payload)


def _run(first: int, content: bytes, lsn: int = 100) -> bytes:
    return b"".join(encode_pages(CONTROL.seed, PAGE, first, lsn, content))


def _file(data: bytes) -> File:
    return RecordingDisk({DATA_NAME: data}).open(DATA_NAME)


def _found(data: bytes, *holdings: Holding, end_lsn: int = 1000) -> list[Finding]:
    notes = Notes()
    RunCheck(_file(data), CONTROL, notes, end_lsn).check_all(holdings)
    return notes.findings


def _told(data: bytes, *holdings: Holding, end_lsn: int = 1000) -> list[tuple[int | None, str]]:
    return [(f.offset, f.what.partition(" (")[0]) for f in _found(data, *holdings, end_lsn=end_lsn)]


def _flipped(data: bytes, *places: int) -> bytes:
    changed = bytearray(data)
    for place in places:
        changed[place] ^= 1
    return bytes(changed)


MESSAGE = Holding(0, len(PAYLOAD), "q", _entry(7, PAYLOAD), live=1)


# --- A payload in a run of its own


def test_a_run_that_holds_what_it_should_is_not_spoken_of() -> None:
    assert _told(_run(0, PAYLOAD), MESSAGE) == []


def test_pages_side_by_side_are_told_together_and_others_apart() -> None:
    long = bytes(10 * ROOM)
    holding = Holding(0, len(long), "q", _entry(7, long))
    damaged = _flipped(_run(0, long), 1 * PAGE + 5, 2 * PAGE + 5, 3 * PAGE + 5, 8 * PAGE + 60)
    assert _told(damaged, holding) == [
        (1 * PAGE, "3 pages, one behind the other: the page is not whole"),
        (8 * PAGE, "the page is not whole"),
    ]


def test_the_message_that_is_lost_is_named() -> None:
    [finding] = _found(_flipped(_run(0, PAYLOAD), 40), MESSAGE)
    assert finding.what == "the page is not whole (message 7 of queue 'q')"
    assert finding.severity is Severity.DAMAGE
    assert "A server starts" in finding.advice


def test_a_page_of_another_run_is_told() -> None:
    strange = _run(0, PAYLOAD)[:PAGE] + _run(0, PAYLOAD)[:PAGE] + _run(0, PAYLOAD)[2 * PAGE :]
    assert _told(strange, MESSAGE) == [(PAGE, "page 0 stands where 1 belongs")]


def test_a_payload_that_is_not_what_was_sent_is_told() -> None:
    other = PAYLOAD[::-1]
    assert _told(_run(0, other), MESSAGE) == [(0, "the payload does not have its digest")]


def test_a_run_of_another_length_is_told() -> None:
    assert _told(_run(0, PAYLOAD[:-1]), MESSAGE) == [(0, "the run has 249 bytes, not 250")]


def test_a_file_that_ends_early_is_told() -> None:
    data = _run(0, PAYLOAD)
    assert _told(data[:-PAGE], MESSAGE) == [(2 * PAGE, "the file ends before the page")]
    assert _told(data[: PAGE + 10], MESSAGE) == [
        (PAGE, "the page is cut off"),
        (2 * PAGE, "the file ends before the page"),
    ]
    assert _told(b"", MESSAGE) == [(0, "the file ends before 3 pages")]


def test_a_run_of_any_size_beyond_the_file_is_told_at_once() -> None:
    far = Holding(2**40, 2**50, "q", _entry(7, PAYLOAD))
    [(offset, what)] = _told(_run(0, PAYLOAD), far)
    assert offset == 2**40 * PAGE
    assert what.startswith("the file ends before")


def test_a_page_from_the_future_is_told() -> None:
    data = _run(0, PAYLOAD, lsn=100)
    assert _told(data, MESSAGE, end_lsn=100) == []
    [(offset, what)] = _told(data, MESSAGE, end_lsn=99)
    assert (offset, what) == (
        0,
        "3 pages, one behind the other: the page was written at LSN 100, of the future",
    )


def test_a_page_in_two_runs_is_told() -> None:
    data = _run(0, PAYLOAD)
    twice = Holding(1, ROOM, "p", _entry(8, PAYLOAD[:ROOM]))
    assert (PAGE, "page 1 is in use twice") in _told(data, MESSAGE, twice)


def test_damage_where_only_gone_messages_were_is_a_notice() -> None:
    unneeded = Holding(0, len(PAYLOAD), "", is_needed=False)
    [finding] = _found(_flipped(_run(0, PAYLOAD), 40), unneeded)
    assert finding.severity is Severity.NOTICE
    assert finding.what == "the page is not whole (only what is gone was in it)"


# --- The same, undivided


def _undivided(payload: bytes, lsn: int = 100) -> bytes:
    return b"".join(encode_undivided(CONTROL.seed, PAGE, 0, lsn, payload))


def test_an_undivided_run_that_holds_what_it_should_is_not_spoken_of() -> None:
    assert _told(_undivided(PAYLOAD), MESSAGE) == []
    notes = Notes()
    beginning = RunCheck(_file(_undivided(PAYLOAD)), CONTROL, notes).beginning(MESSAGE)
    assert beginning == PAYLOAD[:ROOM]


def test_damage_of_an_undivided_run_is_told_wherever_it_is() -> None:
    data = _undivided(PAYLOAD)
    assert _told(_flipped(data, 9), MESSAGE) == [(0, "the page is not whole")]
    told = "the payload, bytes 32 to 281, does not have its digest"
    assert _told(_flipped(data, 200), MESSAGE) == [(0, told)]
    assert _told(_flipped(data, len(data) - 1), MESSAGE) == [(2 * PAGE, "the page is not whole")]
    assert _told(data[: 2 * PAGE + 10], MESSAGE) == [(2 * PAGE, "the page is cut off")]
    assert _told(data[: 2 * PAGE], MESSAGE) == [(2 * PAGE, "the file ends before the page")]
    assert _told(data, MESSAGE, end_lsn=99) == [
        (0, "the page was written at LSN 100, of the future")
    ]
    assert _told(_undivided(PAYLOAD[1:]), MESSAGE) == [(0, "the run has 249 bytes, not 250")]


def test_an_undivided_run_that_is_not_needed_has_nothing_but_its_header_to_be_looked_at() -> None:
    unneeded = Holding(0, len(PAYLOAD), "", is_needed=False)
    assert _told(_flipped(_undivided(PAYLOAD), 200), unneeded) == []
    [finding] = _found(_flipped(_undivided(PAYLOAD), 9), unneeded)
    assert finding.severity is Severity.NOTICE


# --- A bundle of many


@pytest.fixture
def bundle() -> tuple[bytes, Holding]:
    """Three messages in one run, the second of which is gone; the third is not what was sent."""
    payloads = [b"first", b"second", b"third"]
    entries = [_entry(number, payload) for number, payload in enumerate(payloads, start=1)]
    content, _ = pack_bundle("q", entries, [b"first", b"SECOND", b"THIRD"])
    return _run(0, content), Holding(0, len(content), "q", dead={2}, live=2)


def test_every_live_message_of_a_bundle_is_looked_at(bundle: tuple[bytes, Holding]) -> None:
    [finding] = _found(*bundle)
    assert finding.what == "the payload does not have its digest (message 3 of queue 'q')"
    assert "A server starts" not in finding.advice


def test_a_damaged_bundle_is_told_once(bundle: tuple[bytes, Holding]) -> None:
    data, holding = bundle
    [finding] = _found(_flipped(data, 40), holding)
    assert finding.what == "the page is not whole (messages of queue 'q')"


def test_a_bundle_of_another_queue_is_told(bundle: tuple[bytes, Holding]) -> None:
    data, holding = bundle
    [finding] = _found(data, Holding(0, holding.size, "p"))
    assert "belongs to another queue" in finding.what


def test_the_messages_of_a_bundle_can_be_had(bundle: tuple[bytes, Holding]) -> None:
    data, holding = bundle
    runs = RunCheck(_file(data), CONTROL, Notes())
    found = [(entry.key, payload) for entry, payload in runs.bundled(holding)]
    assert found == [(1, b"first"), (2, b"SECOND"), (3, b"THIRD")]
    assert runs.beginning(holding) == data[PAGE_HEADER.size :][: holding.size]


def test_nonsense_in_place_of_a_bundle_is_told() -> None:
    [finding] = _found(_run(0, PAYLOAD), Holding(0, len(PAYLOAD), "q"))
    assert finding.what.startswith("the bundle cannot be read")
