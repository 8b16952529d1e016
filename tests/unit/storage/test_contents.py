"""The check of records and of an index: each is shown one fault, and must see it.

The index of a small store is read by the code of a restart and then spoilt in memory.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from mqserver.storage.check import Restarted, restart
from mqserver.storage.contents import ContentCheck, RecordCheck, branches_of, queues_of
from mqserver.storage.contract import EVERYTHING, BranchInfo, NewMessage, Outcome, QueueSettings
from mqserver.storage.findings import Notes
from mqserver.storage.format import Control, Record, RecordKind, pack_body
from mqserver.storage.index import Index
from mqserver.storage.log_manager import read_control
from mqserver.storage.paged import PagedStorage
from mqserver.storage.queue_index import Queue
from tests.conformance.paged_storages import SMALL
from tests.crash.recording_disk import RecordingDisk

IN_DOUBT = b"in doubt"


def _message(text: str) -> NewMessage:
    return NewMessage(text.encode(), zlib.crc32(text.encode()))


@pytest.fixture(scope="module")
def image() -> dict[str, bytes]:
    """A store with six messages: one taken and one stored by a branch in doubt, two reserved."""
    disk = RecordingDisk()
    storage = PagedStorage(disk, lambda: bytes(16), time.monotonic, SMALL)
    storage.create_queue("orders", QueueSettings())
    storage.store(b"first", "orders", [_message(f"order {number}") for number in range(5)])
    storage.commit_one_phase(b"first")
    storage.take(IN_DOUBT, "orders", EVERYTHING, 1)
    storage.store(IN_DOUBT, "orders", [_message("in doubt")])
    storage.prepare(IN_DOUBT, b"whom to ask")
    storage.reserve("etl", "orders", EVERYTHING, 0, 2)
    storage.close()
    return disk.image()


class Spoilt:
    """What a restart has found, to be spoilt, and what the log says."""

    def __init__(self, image: dict[str, bytes]) -> None:
        disk = RecordingDisk(image)
        self.control = read_control(disk)
        self.restarted: Restarted = restart(disk)
        self.records = RecordCheck(self.control, Notes())
        for record in self.restarted.log.records(0):
            self.records.see(record)
        self.in_doubt = self.records.in_doubt

    @property
    def index(self) -> Index:
        return self.restarted.index

    @property
    def orders(self) -> Queue:
        return self.index.queues["orders"]

    def told(self) -> list[str]:
        """What the check says."""
        notes = Notes()
        check = ContentCheck(self.index, self.control, self.restarted.log.end_lsn, notes)
        check.check_all(self.restarted.payloads, self.in_doubt)
        return [finding.what for finding in notes.findings]


@pytest.fixture
def spoilt(image: dict[str, bytes]) -> Iterator[Spoilt]:
    found = Spoilt(image)
    yield found
    found.restarted.close()


def test_an_index_that_was_not_spoilt_is_consistent(spoilt: Spoilt) -> None:
    assert spoilt.told() == []


def _give_a_key_twice(spoilt: Spoilt) -> None:
    spoilt.index.queues["other"] = Queue("other", QueueSettings())
    spoilt.index.queues["other"].add([spoilt.orders.entries[5]])


def _forget_that_keys_were_given(spoilt: Spoilt) -> None:
    spoilt.control = replace(spoilt.control, next_key=5)


def _raise_a_priority(spoilt: Spoilt) -> None:
    spoilt.orders.entries[5].priority = 65536


def _move_a_payload(spoilt: Spoilt) -> None:
    spoilt.orders.entries[5].place += 1


def _move_a_payload_behind_the_end(spoilt: Spoilt) -> None:
    spoilt.orders.entries[5].place = spoilt.restarted.log.end_lsn


def _change_a_digest(spoilt: Spoilt) -> None:
    spoilt.orders.entries[5].digest ^= 1


def _lose_the_order(spoilt: Spoilt) -> None:
    spoilt.orders.entries[5].holder = IN_DOUBT


def _lose_the_size(spoilt: Spoilt) -> None:
    spoilt.orders.payload_bytes += 1


def _lose_a_reserved_message(spoilt: Spoilt) -> None:
    spoilt.orders.remove(2)


def _lose_a_consumer(spoilt: Spoilt) -> None:
    del spoilt.index.consumers["etl"]


def _lose_the_queue_of_a_consumer(spoilt: Spoilt) -> None:
    spoilt.index.consumers["etl"].queue = "gone"


def _finish_what_is_reserved(spoilt: Spoilt) -> None:
    spoilt.index.consumers["etl"].finished = 1


def _lose_a_branch(spoilt: Spoilt) -> None:
    del spoilt.index.branches[IN_DOUBT]


def _make_up_a_branch(spoilt: Spoilt) -> None:
    spoilt.in_doubt.clear()


def _lose_what_a_branch_stored(spoilt: Spoilt) -> None:
    spoilt.index.branches[IN_DOUBT].stored.clear()


def _lose_what_a_branch_took(spoilt: Spoilt) -> None:
    spoilt.index.branches[IN_DOUBT].taken["orders"].clear()


def _lose_whom_to_ask(spoilt: Spoilt) -> None:
    spoilt.index.branches[IN_DOUBT].recovery = b""


def _judge_wrongly(spoilt: Spoilt) -> None:
    spoilt.index.judge(BranchInfo(b"judged", Outcome.PREPARED, b"", 0, 0))


FAULTS: dict[Callable[[Spoilt], None], str] = {
    _give_a_key_twice: "its key was given twice",
    _forget_that_keys_were_given: "keys from 5 on were never given, and there is message 5",
    _raise_a_priority: "priority 65536 is not possible",
    _move_a_payload: "message 5 of queue 'orders': the payload does not have its digest",
    _move_a_payload_behind_the_end: "its payload is outside the log",
    _change_a_digest: "message 5 of queue 'orders': the payload does not have its digest",
    _lose_the_order: "its order is not that of its free messages",
    _lose_the_size: "its size is not that of its messages",
    _lose_a_reserved_message: "reservation 1 lacks 1 messages, 2",
    _lose_a_consumer: "its holder is not known",
    _lose_the_queue_of_a_consumer: "there is no queue 'gone'",
    _finish_what_is_reserved: "reservations [1] behind 1",
    _lose_a_branch: "a restart does not bring it back",
    _make_up_a_branch: "the log does not say what it did",
    _lose_what_a_branch_stored: "a restart finds other messages stored",
    _lose_what_a_branch_took: "a restart finds other messages taken",
    _lose_whom_to_ask: "no recovery bytes",
    _judge_wrongly: "ended by hand as PREPARED",
}


@pytest.mark.parametrize("spoil", FAULTS, ids=lambda spoil: spoil.__name__.strip("_"))
def test_a_fault_of_the_index_is_seen(spoil: Callable[[Spoilt], None], spoilt: Spoilt) -> None:
    spoil(spoilt)
    assert any(FAULTS[spoil] in told for told in spoilt.told())


def test_one_payload_that_cannot_be_read_does_not_hide_the_others(spoilt: Spoilt) -> None:
    spoilt.orders.entries[4].place = 10**9
    spoilt.orders.entries[5].digest ^= 1
    told = " ".join(spoilt.told())
    assert "message 4 of queue 'orders' cannot be read" in told
    assert "message 5 of queue 'orders': the payload does not have its digest" in told


def test_what_branches_stored_counts_as_locked(spoilt: Spoilt) -> None:
    [orders] = queues_of(spoilt.index)
    assert (orders.visible, orders.locked) == (2, 4)
    assert orders.payload_bytes == 5 * len("order 0") + len("in doubt")
    spoilt.index.judge(BranchInfo(b"a judged one", Outcome.HEURISTICALLY_COMMITTED, b"", 0, 0))
    assert [info.branch for info in branches_of(spoilt.index)] == [b"a judged one", IN_DOUBT]


def test_a_branch_is_in_doubt_until_its_end_is_in_the_log() -> None:
    for end in (RecordKind.COMMIT, RecordKind.ROLLBACK):
        records = RecordCheck(Control(1024, bytes(16), 8), Notes())
        body = pack_body((b"b", b"r", [], [("q", [1])], [], 0))
        records.see(Record(0, RecordKind.PREPARED, body))
        assert records.in_doubt[b"b"].taken == {"q": [1]}
        records.see(Record(100, end, pack_body((b"b",))))
        assert records.in_doubt == {}
        assert records.counts == {"PREPARED": 1, end.name: 1}


def test_a_branch_that_the_checkpoint_carries_is_in_doubt_unless_its_end_was_seen() -> None:
    carried: list[tuple[object, ...]] = [
        (name, b"r", [(3, 90, "q", [], None)], 2, (), (), 0) for name in (b"a", b"b")
    ]
    records = RecordCheck(Control(1024, bytes(16), 8, checkpoint_lsn=488), Notes())
    records.see(Record(0, RecordKind.COMMIT, pack_body((b"a",))))
    records.see(Record(488, RecordKind.CHECKPOINT, pack_body(((), (), (), (), (), (), carried))))
    assert {name: said.stored for name, said in records.in_doubt.items()} == {b"b": 2}
    assert [holding.first for holding in records.holdings()] == [3, 3]
    records.see(Record(976, RecordKind.ROLLBACK, pack_body((b"b",))))
    assert records.in_doubt == {}


def test_a_checkpoint_that_is_not_in_the_log_is_missed() -> None:
    notes = Notes()
    records = RecordCheck(Control(1024, bytes(16), 8, checkpoint_lsn=488), notes)
    records.see(Record(0, RecordKind.CHECKPOINT, pack_body(((), (), (), (), (), ()))))
    records.check_checkpoint()
    assert records.holdings() == []
    [finding] = notes.findings
    assert (finding.what, finding.lsn) == ("names a checkpoint that cannot be read", 488)
