"""Where payloads are and how they are got: memory up to a budget, the log, pages of a file."""

from __future__ import annotations

import zlib

import pytest

from mqserver.errors import Corruption, StorageFull
from mqserver.storage.contract import QueueSettings
from mqserver.storage.entries import Entry
from mqserver.storage.file_manager import DATA_NAME, FileManager
from mqserver.storage.format import RECORD_HEADER, Control, RecordKind
from mqserver.storage.index import Index
from mqserver.storage.log_manager import LogManager
from mqserver.storage.payloads import GAP_BYTES_MAX, SPAN_BYTES_MAX, Payloads, Stored
from mqserver.storage.queue_index import Queue
from tests.crash.faults import Fault, since
from tests.crash.recording_disk import RecordingDisk

PAGE_BYTES = 256
CACHE_BYTES = 100
LARGE = b"large" * 100
PAGES_OF_LARGE = 3


class Store:
    """A log and a data file with payloads in them."""

    def __init__(self) -> None:
        self.disk = RecordingDisk()
        FileManager.create(self.disk)
        control = Control(PAGE_BYTES, bytes(16), 64)
        self.log = LogManager.create(self.disk, control)
        self.files = FileManager(self.disk, control.seed, PAGE_BYTES, 0)
        self.payloads = Payloads(self.log, self.files, CACHE_BYTES)

    def in_log(self, *contents: bytes) -> list[Entry]:
        """Messages in one record that is on disk, the first with key 1."""
        lsn = self.log.append(RecordKind.COMMITTED, b"".join(contents))
        self.log.force(lsn)
        place = lsn + RECORD_HEADER.size
        entries = []
        for key, content in enumerate(contents, start=1):
            entries.append(_entry(key, content))
            entries[-1].place = place
            place += len(content)
        return entries

    def in_pages(self, key: int, content: bytes = LARGE) -> Entry:
        """A message with a run of its own."""
        entry = _entry(key, content)
        self.payloads.write_large("q", entry, content)
        return entry


def _entry(key: int, payload: bytes) -> Entry:
    return Entry(key, len(payload), 0, 0, 0, 0, "", (), payload)


def _let_go(entries: list[Entry]) -> None:
    for entry in entries:
        entry.payload = None


@pytest.fixture
def store() -> Store:
    return Store()


# --- Reading


def test_payloads_come_from_wherever_they_are(store: Store) -> None:
    entries = [*store.in_log(b"first", b"", b"third"), store.in_pages(4)]
    # The empty one begins where the third does.
    _let_go(entries[1:])
    messages = store.payloads.messages(list(reversed(entries)))
    assert [message.key for message in messages] == [4, 3, 2, 1]
    assert [message.payload for message in messages] == [LARGE, b"third", b"", b"first"]


def test_what_is_in_memory_is_not_read(store: Store) -> None:
    entries = store.in_log(b"first", b"second")
    reads = store.disk.reads
    assert [message.payload for message in store.payloads.messages(entries)] == [
        b"first",
        b"second",
    ]
    assert store.disk.reads == reads


def test_payloads_side_by_side_are_read_at_once(store: Store) -> None:
    entries = store.in_log(*(b"%03d" % number for number in range(100)))
    _let_go(entries)
    reads = store.disk.reads
    found = store.payloads.read(entries)
    assert found == {number + 1: b"%03d" % number for number in range(100)}
    assert store.disk.reads == reads + 1


def test_payloads_far_from_each_other_are_read_apart(store: Store) -> None:
    entries = store.in_log(b"near", b"g" * (GAP_BYTES_MAX + 1), b"far")
    _let_go(entries)
    reads = store.disk.reads
    assert store.payloads.read([entries[2], entries[0]]) == {1: b"near", 3: b"far"}
    assert store.disk.reads == reads + 2


def test_no_more_is_read_at_once_than_a_span_may_have(store: Store) -> None:
    size = SPAN_BYTES_MAX // 2
    entries = [store.in_pages(key, bytes([key]) * size) for key in (1, 2, 3)]
    found = store.payloads.read(entries)
    assert {key: (payload[:1], len(payload)) for key, payload in found.items()} == {
        key: (bytes([key]), size) for key in (1, 2, 3)
    }


# --- The budget


def test_payloads_stay_in_memory_while_the_budget_lasts(store: Store) -> None:
    entries = store.in_log(b"a" * 60, b"b" * 60, b"c" * 40)
    store.payloads.keep(entries)
    assert [entry.payload is not None for entry in entries] == [True, False, True]


def test_a_message_that_goes_makes_room_for_another(store: Store) -> None:
    entries = store.in_log(b"a" * 60, b"b" * 60)
    store.payloads.keep(entries)
    store.payloads.drop(entries, is_durable=True)
    assert [entry.payload for entry in entries] == [None, None]
    (third,) = store.in_log(b"c" * CACHE_BYTES)
    store.payloads.keep([third])
    assert third.payload is not None


def test_a_large_payload_is_not_kept_in_memory(store: Store) -> None:
    entry = store.in_pages(1)
    assert entry.payload is None
    store.payloads.keep([entry])
    assert entry.payload is None


# --- Runs


def test_a_large_payload_has_a_run_to_itself(store: Store) -> None:
    entries = [store.in_pages(1), store.in_pages(2)]
    assert [entry.run for entry in entries] == [0, PAGES_OF_LARGE]
    assert sorted(store.payloads.runs) == [0, PAGES_OF_LARGE]
    assert store.files.pages == 2 * PAGES_OF_LARGE


def test_a_run_is_free_when_its_end_is_on_disk(store: Store) -> None:
    first, _ = store.in_pages(1), store.in_pages(2)
    store.payloads.drop([first], is_durable=True)
    assert store.files.free_pages == PAGES_OF_LARGE
    assert store.in_pages(3).run == first.run


def test_a_run_whose_end_is_not_on_disk_waits(store: Store) -> None:
    first, _ = store.in_pages(1), store.in_pages(2)
    store.payloads.drop([first], is_durable=False)
    assert (store.files.free_pages, store.payloads.waiting_bytes) == (0, len(LARGE))
    store.payloads.release_waiting()
    assert (store.files.free_pages, store.payloads.waiting_bytes) == (PAGES_OF_LARGE, 0)


def test_a_run_that_the_checkpoint_names_waits_for_the_next_one(store: Store) -> None:
    first, _ = store.in_pages(1), store.in_pages(2)
    store.payloads.in_checkpoint = {first.run}
    store.payloads.drop([first], is_durable=True)
    assert (store.files.free_pages, store.payloads.waiting_bytes) == (0, len(LARGE))


def test_a_message_that_never_was_frees_its_run_at_once(store: Store) -> None:
    entry = store.in_pages(1)
    store.payloads.discard([entry, *store.in_log(b"small")])
    assert store.files.pages == 0


def test_a_large_payload_that_finds_no_room_leaves_no_run(store: Store) -> None:
    store.disk.capacity_bytes -= store.disk.room() - PAGE_BYTES
    with pytest.raises(StorageFull):
        store.in_pages(1)
    assert (store.files.pages, store.payloads.runs) == (0, {})
    store.disk.capacity_bytes += len(LARGE) * 2
    assert store.in_pages(1).run == 0


def test_a_damaged_run_is_told_with_its_offset(store: Store) -> None:
    store.in_pages(1)
    entry = store.in_pages(2)
    file = store.disk.open(DATA_NAME)
    file.write(PAGE_BYTES * (entry.run + 1) + 50, b"!!!")
    with pytest.raises(Corruption, match=f"data, offset {PAGE_BYTES * entry.run}"):
        store.payloads.messages([entry])


def test_a_large_payload_with_its_digest_stays_where_it_is(store: Store) -> None:
    entry = store.in_pages(1)
    entry.digest = zlib.crc32(LARGE)
    assert store.payloads.have_digests([entry])
    store.payloads.keep([entry])
    assert store.payloads.messages([entry])[0].payload == LARGE


def test_a_large_payload_with_a_wrong_digest_goes_where_none_is_needed(store: Store) -> None:
    entries = [*store.in_log(b"small"), store.in_pages(2)]
    before = entries[1].run
    assert not store.payloads.have_digests(entries)
    store.payloads.divide(entries)
    assert entries[1].run != before
    assert store.payloads.have_digests(entries)
    assert [m.payload for m in store.payloads.messages(entries)] == [b"small", LARGE]
    assert store.files.allocate(len(LARGE)) == before


def test_a_full_disk_leaves_a_payload_with_a_wrong_digest_where_it_was(store: Store) -> None:
    entry = store.in_pages(1)
    store.disk.faults = since(0, Fault.ENOSPC, "write")
    with pytest.raises(StorageFull):
        store.payloads.divide([entry])
    store.disk.faults = None
    assert store.payloads.messages([entry])[0].payload == LARGE
    assert store.files.pages == PAGES_OF_LARGE


# --- What is in the log


def _queue_of(*entries: Entry) -> Index:
    index = Index()
    index.queues["q"] = Queue("q", QueueSettings())
    index.queues["q"].add(list(entries))
    return index


def _placed(key: int, place: int, size: int = 10) -> Entry:
    entry = _entry(key, b"x" * size)
    entry.place = place
    return entry


def _keys(stored: list[Stored]) -> list[int]:
    return [key for each in stored for key in each.keys]


def test_what_is_before_an_lsn_leaves_the_log_and_the_rest_stays(store: Store) -> None:
    entries = [_placed(1, 100), _placed(2, 200), _placed(3, 400)]
    for entry in entries:
        store.payloads.note_stored(entry.place - 20, "q", [entry])
    before, behind = store.payloads.split_log(180, _queue_of(*entries))
    assert before == {"q": entries[:1]}
    assert _keys(behind) == [2, 3]


def test_messages_that_were_noted_together_leave_the_log_one_by_one(store: Store) -> None:
    entries = [_placed(key, 100 * key) for key in (1, 2, 3, 4)]
    store.payloads.note_stored(100, "q", entries)
    index = _queue_of(*entries)
    before, store.payloads.in_log = store.payloads.split_log(250, index)
    assert before == {"q": entries[:2]}
    for entry in entries[:2]:
        entry.run = 7
    before, store.payloads.in_log = store.payloads.split_log(350, index)
    assert before == {"q": entries[2:3]}
    assert _keys(store.payloads.in_log) == [4]


def test_messages_whose_keys_are_in_another_order_than_their_places_all_leave(store: Store) -> None:
    entries = [_placed(1, 100), _placed(7, 200), _placed(3, 300)]
    store.payloads.note_stored(100, "q", entries)
    before, behind = store.payloads.split_log(1000, _queue_of(*entries))
    assert {entry.key for entry in before["q"]} == {1, 3, 7}
    assert behind == []


def test_an_empty_payload_at_the_end_of_its_record_leaves_with_it(store: Store) -> None:
    last, following = _placed(1, 500, size=0), _placed(2, 540)
    store.payloads.note_stored(450, "q", [last])
    store.payloads.note_stored(500, "q", [following])
    before, behind = store.payloads.split_log(500, _queue_of(last, following))
    assert before == {"q": [last]}
    assert _keys(behind) == [2]


def test_messages_that_are_gone_leave_nothing_in_the_log(store: Store) -> None:
    store.payloads.note_stored(100, "q", [_placed(1, 120)])
    store.payloads.note_stored(200, "deleted", [_placed(2, 220)])
    before, behind = store.payloads.split_log(1000, _queue_of())
    assert not any(before.values())
    assert behind == []
