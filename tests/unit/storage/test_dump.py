"""The items of a dump: everything that is in the files, in order, as far as it can be read."""

from __future__ import annotations

import json
import time
import tracemalloc
import zlib
from typing import Any

import pytest

from mqserver.errors import StorageLocked, WrongFormat
from mqserver.storage.contract import EVERYTHING, NewMessage, QueueSettings
from mqserver.storage.dump import Item, dump, ranges
from mqserver.storage.file_manager import DATA_NAME
from mqserver.storage.format import BLOCK_BYTES, Control, RecordKind, is_segment_name, pack_body
from mqserver.storage.log_manager import CONTROL_NAME, LogManager
from mqserver.storage.paged import PagedStorage
from tests.conformance.paged_storages import SMALL
from tests.crash.recording_disk import RecordingDisk

LARGE_BYTES = 3000
Image = dict[str, bytes]


def _open(disk: RecordingDisk) -> PagedStorage:
    return PagedStorage(disk, lambda: bytes(range(16)), time.monotonic, SMALL)


def _message(payload: bytes) -> NewMessage:
    return NewMessage(payload, zlib.crc32(payload))


@pytest.fixture(scope="module")
def image() -> Image:
    """A store in whose log there is a record of every kind."""
    disk = RecordingDisk()
    storage = _open(disk)
    storage.create_queue("gone", QueueSettings())
    storage.delete_queue("gone")
    storage.create_queue("orders", QueueSettings(messages_max=9))
    storage.store(b"first", "orders", [_message(b"order \x1b %d" % n) for n in range(5)])
    storage.store(b"first", "orders", [_message(b"L" * LARGE_BYTES)])
    storage.raise_mark(b"first", "job", 4)
    storage.commit_one_phase(b"first")
    storage.checkpoint()
    for number in range(3):
        branch = b"branch %d" % number
        storage.take(branch, "orders", EVERYTHING, 1)
        storage.prepare(branch, b"the coordinator's secret")
    storage.commit(b"branch 0")
    storage.rollback(b"branch 1")
    storage.resolve(b"branch 2", False)
    storage.forget(b"branch 2")
    storage.reserve("etl", "orders", EVERYTHING, 0, 2)
    storage.finish("etl", 1)
    storage.drop_consumer("etl")
    storage.close()
    return disk.image()


def _items(image: Image, **options: bool) -> list[Item]:
    disk = RecordingDisk(image)
    items = list(dump(disk, **options))
    assert disk.operations == 0
    return items


def _of(items: list[Item], what: str) -> list[dict[str, Any]]:
    return [item.fields for item in items if item.what == what]


def _flipped(image: Image, name: str, offset: int) -> Image:
    data = image[name]
    return image | {name: data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]}


def test_both_slots_of_the_control_record_are_shown(image: Image) -> None:
    one, other = _of(_items(image), "control")
    assert (one["slot"], other["slot"]) == (0, 1)
    assert one["current"] != other["current"]
    assert one["identity"] == bytes(range(16)).hex()


def test_every_kind_of_record_is_shown_with_what_it_says(image: Image) -> None:
    records = {fields["kind"]: fields for fields in _of(_items(image), "record")}
    expected = {kind.name for kind in RecordKind if kind < RecordKind.INCARNATION}
    assert set(records) == expected
    assert records["QUEUE_DELETED"]["queue"] == "gone"
    assert records["QUEUE_SET"]["settings"]["messages_max"] == 9
    assert records["COMMITTED"]["stored"] == [
        {"queue": "orders", "messages": 6, "bytes": 3045, "keys": [(1, 6)], "runs": [0]}
    ]
    assert records["COMMITTED"]["marks"] == {"job": 4}
    assert records["PREPARED"]["taken"] == [{"queue": "orders", "messages": 1, "keys": [(3, 3)]}]
    assert records["COMMIT"]["branch"] == b"branch 0".hex()
    assert records["RESOLVED"]["outcome"] == "HEURISTICALLY_ROLLED_BACK"
    assert (records["RESERVED"]["number"], records["RESERVED"]["messages"]) == (1, 2)
    assert records["FINISHED"]["keys"] == records["RESERVED"]["keys"]
    assert records["CONSUMER_DROPPED"]["consumer"] == "etl"
    assert records["CHECKPOINT"]["runs"] == 1


def test_records_come_in_the_order_of_the_log(image: Image) -> None:
    items = _items(image)
    lsns = [fields["lsn"] for fields in _of(items, "record")]
    assert lsns == sorted(lsns)
    assert lsns[-1] < _of(items, "end")[0]["lsn"]


def test_runs_and_free_pages_make_up_the_whole_file(image: Image) -> None:
    longer = image | {DATA_NAME: image[DATA_NAME] + bytes(5 * SMALL.page_bytes)}
    items = _items(longer)
    page = 0
    for item in items:
        if item.what in ("run", "free"):
            assert item.fields["page"] == page
            page += item.fields["pages"]
    assert page * SMALL.page_bytes == len(longer[DATA_NAME])
    [run] = _of(items, "run")
    assert (run["holds"], run["queue"], run["key"], run["live"]) == ("message", "orders", 6, 1)
    assert run["whole"]


def test_bundles_say_how_many_of_their_messages_are_gone() -> None:
    disk = RecordingDisk()
    storage = _open(disk)
    storage.create_queue("orders", QueueSettings())
    for number in range(20):
        branch = b"%d" % number
        storage.store(branch, "orders", [_message(b"x" * 500)])
        storage.commit_one_phase(branch)
    storage.checkpoint()
    storage.take(b"t", "orders", EVERYTHING, 3)
    storage.commit_one_phase(b"t")
    storage.close()
    [run, *_] = _of(_items(disk.image()), "run")
    assert (run["holds"], run["dead"]) == ("bundle", 3)
    assert run["live"] > 0


def test_a_part_can_be_asked_for(image: Image) -> None:
    log = {item.what for item in _items(image, has_pages=False)}
    pages = {item.what for item in _items(image, has_log=False)}
    assert log == {"control", "segment", "record", "end"}
    assert pages == {"control", "run"}


def test_payloads_are_shown_to_those_who_ask_escaped_and_shortened(image: Image) -> None:
    assert _of(_items(image), "payload") == []
    payloads = _of(_items(image, has_payloads=True), "payload")
    small = {fields["key"]: fields for fields in payloads if fields["bytes"] < LARGE_BYTES}
    assert small[2]["shown"] == r"order \x1b 1"
    assert not small[2]["is_cut"]
    [large] = [fields for fields in payloads if fields["bytes"] == LARGE_BYTES]
    assert large["shown"] == "L" * 64
    assert large["is_cut"]


def test_what_is_for_the_coordinator_alone_is_not_shown(image: Image) -> None:
    text = json.dumps([item.fields for item in _items(image, has_payloads=True)])
    assert b"secret".hex() not in text
    assert "secret" not in text


def test_a_coordinators_log_has_records_and_no_pages() -> None:
    disk = RecordingDisk()
    log = LogManager.create(disk, Control(4096, bytes(16), 16))
    log.append(RecordKind.INCARNATION, pack_body((1, b"secret")))
    log.close()
    items = _items(disk.image(), has_payloads=True)
    assert [item.what for item in items if item.what not in ("control", "segment")] == [
        "record",
        "end",
    ]
    assert _of(items, "record")[0]["kind"] == "INCARNATION"


# --- Damage


def test_damage_is_told_where_it_stands_and_the_rest_is_shown(image: Image) -> None:
    whole = _of(_items(image), "record")
    name = sorted(filter(is_segment_name, image))[0]
    broken = _items(_flipped(image, name, BLOCK_BYTES + 100))
    records = _of(broken, "record")
    assert records == [fields for fields in whole if fields in records]
    assert len(records) == len(whole) - 1
    [finding] = _of(broken, "finding")
    assert (finding["severity"], finding["file"], finding["offset"]) == ("damage", name, 512)
    whats = [item.what for item in broken]
    assert whats.index("finding") < whats.index("end")
    [stop] = _of(broken, "stop")
    assert "only the runs that the checkpoint names are known" in stop["why"]
    assert [run["live"] for run in _of(broken, "run")] == [None]


def test_a_damaged_run_is_marked(image: Image) -> None:
    items = _items(_flipped(image, DATA_NAME, 40))
    assert [run["whole"] for run in _of(items, "run")] == [False]
    assert _of(items, "finding")[0]["file"] == DATA_NAME


def test_without_a_control_record_nothing_can_be_shown(image: Image) -> None:
    items = _items(image | {CONTROL_NAME: b""})
    assert [item.what for item in items] == ["finding", "finding", "stop"]


def test_without_a_data_file_the_log_is_shown(image: Image) -> None:
    del (rest := dict(image))[DATA_NAME]
    items = _items(rest)
    assert _of(items, "record")
    assert "data cannot be opened" in _of(items, "stop")[0]["why"]


def test_a_record_that_makes_no_sense_is_shown_as_far_as_it_can(image: Image) -> None:
    disk = RecordingDisk(image)
    log = LogManager.open(disk)
    log.append(RecordKind.COMMITTED, pack_body(("nonsense",)))
    log.close()
    items = _items(disk.image())
    assert "unreadable" in _of(items, "record")[-1]
    assert _of(items, "finding")[0]["what"] == "the record makes no sense"


def test_where_no_store_is_nothing_is_shown() -> None:
    with pytest.raises(WrongFormat):
        list(dump(RecordingDisk({"notes.txt": b"milk"})))


def test_a_store_that_is_open_is_not_shown() -> None:
    disk = RecordingDisk()
    _open(disk)
    with pytest.raises(StorageLocked):
        next(dump(disk))


# --- Memory


def test_a_long_log_is_shown_with_the_memory_of_a_short_one() -> None:
    disk = RecordingDisk()
    log = LogManager.create(disk, Control(1024, bytes(16), 64))
    for number in range(4000):
        log.append(RecordKind.ROLLBACK, pack_body((b"%0400d" % number,)))
    log.close()
    looked_at = RecordingDisk(disk.image())
    tracemalloc.start()
    count = sum(item.what == "record" for item in dump(looked_at, has_pages=False))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 4000
    # The log has two megabytes; what is read of it at once is a quarter of one.
    assert peak < 1_000_000


def test_keys_that_follow_each_other_are_told_by_first_and_last() -> None:
    assert ranges([]) == []
    assert ranges([7, 1, 2, 3, 9, 8]) == [(1, 3), (7, 9)]
