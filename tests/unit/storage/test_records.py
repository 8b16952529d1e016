"""What records say is what was said: generated branches, queues, checkpoints, there and back."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqserver.errors import Corruption
from mqserver.storage.contract import BranchInfo, Outcome, QueueSettings
from mqserver.storage.entries import IN_LOG, Entry, entries_of, place
from mqserver.storage.format import Record, RecordKind, pack_body
from mqserver.storage.index import Branch, Consumer, Index
from mqserver.storage.queue_index import Queue
from mqserver.storage.records import (
    RunOnDisk,
    columns_of,
    pack_branch,
    pack_bundle,
    pack_checkpoint,
    pack_judgement,
    pack_only,
    pack_plain,
    pack_queue,
    read_branch,
    read_bundle,
    read_checkpoint,
    read_judgement,
    read_plain,
    read_queue,
)

ROOM = 100
LSN = 1000
U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U63 = st.integers(0, 2**63 - 1)
IDS = st.binary(min_size=1, max_size=64)
NAMES = st.text(min_size=1, max_size=20)
ATTRIBUTES = st.lists(st.tuples(NAMES, st.text()), max_size=3).map(tuple)
SETTINGS = st.builds(QueueSettings, st.booleans(), st.booleans(), U63, U63)
INFOS = st.builds(BranchInfo, IDS, st.sampled_from(Outcome), st.binary(), U32, U32)


@st.composite
def entry_lists(draw: st.DrawFn, keys: Iterable[int] | None = None) -> list[Entry]:
    """Messages with keys of their own, some of them in runs of the data file."""
    counter = iter(keys or itertools.count(draw(st.integers(1, 2**62))))
    entries = []
    for payload in draw(st.lists(st.binary(max_size=300), min_size=1, max_size=4)):
        fields = (draw(U32), draw(U16), draw(U63), draw(U63), draw(st.text()), draw(ATTRIBUTES))
        entry = Entry(next(counter), len(payload), *fields, payload)
        entry.run = draw(st.just(IN_LOG) | st.integers(0, 2**40))
        entries.append(entry)
    return entries


def _fields(entry: Entry) -> tuple[object, ...]:
    return (
        entry.key,
        entry.size,
        entry.digest,
        entry.priority,
        entry.group,
        entry.time_us,
        entry.sender,
        entry.attributes,
        entry.run,
    )


def _record(kind: RecordKind, body: bytes) -> Record:
    return Record(LSN, kind, body)


# --- Messages


@given(entry_lists())
def test_columns_give_back_the_messages(entries: list[Entry]) -> None:
    assert [_fields(e) for e in entries_of(columns_of(entries))] == [_fields(e) for e in entries]


def test_a_column_of_nothing_but_its_default_is_left_out() -> None:
    plain = Entry(1, 5, 6, 0, 0, 0, "", ())
    assert columns_of([plain]) == ([1], [5], [6], None, None, None, None, None, None)
    urgent = Entry(2, 5, 6, 3, 0, 0, "", ())
    assert columns_of([plain, urgent])[3] == [0, 3]


def test_payloads_stand_behind_each_other_or_in_their_runs() -> None:
    entries = [Entry(key, 10, 0, 0, 0, 0, "", ()) for key in (1, 2, 3)]
    entries[1].run = 7
    assert place(entries, 50, ROOM) == 70
    assert [entry.place for entry in entries] == [50, 7 * ROOM, 60]


# --- Branches


@given(
    name=IDS,
    recovery=st.binary(),
    stored=st.dictionaries(NAMES, entry_lists(), max_size=2),
    taken=st.dictionaries(NAMES, st.lists(U63, max_size=4), max_size=2),
    marks=st.dictionaries(NAMES, U63, max_size=2),
)
def test_a_branch_is_read_as_it_was_written(
    name: bytes,
    recovery: bytes,
    stored: dict[str, list[Entry]],
    taken: dict[str, list[int]],
    marks: dict[str, int],
) -> None:
    branch = Branch(name)
    branch.recovery, branch.stored, branch.marks = recovery, stored, marks
    own = {entry.key for entries in stored.values() for entry in entries}
    taken = {queue: [key for key in keys if key not in own] for queue, keys in taken.items()}
    branch.taken = {q: [Entry(k, 0, 0, 0, 0, 0, "", ()) for k in ks] for q, ks in taken.items()}
    body, _ = pack_branch(branch)
    said = read_branch(_record(RecordKind.PREPARED, body), ROOM)
    assert (said.branch, said.recovery, said.cancelled) == (name, recovery, {})
    assert dict(said.marks) == marks
    assert dict(said.taken) == taken
    assert {q: [_fields(e) for e in es] for q, es in said.stored} == {
        q: [_fields(e) for e in es] for q, es in stored.items()
    }


@given(stored=st.dictionaries(NAMES, entry_lists(), min_size=1, max_size=2))
def test_payloads_are_where_the_messages_say(stored: dict[str, list[Entry]]) -> None:
    branch = Branch(b"b")
    branch.stored = stored
    body, start = pack_branch(branch)
    record = _record(RecordKind.COMMITTED, body)
    originals = [entry for entries in stored.values() for entry in entries]
    read = [e for _, entries in read_branch(record, ROOM).stored for e in entries]
    assert place(originals, record.body_lsn + start, ROOM) == record.body_lsn + len(body)
    for original, entry in zip(originals, read, strict=True):
        assert entry.place == original.place
        if entry.run == IN_LOG:
            at = entry.place - record.body_lsn
            assert body[at : at + entry.size] == original.payload


@given(queue=NAMES, recovery=st.binary(max_size=20), entries=entry_lists())
def test_one_message_is_written_as_any_branch_is(
    queue: str, recovery: bytes, entries: list[Entry]
) -> None:
    branch = Branch(b"b")
    branch.recovery = recovery
    branch.stored = {queue: entries}
    only = branch.only()
    if len(entries) != 1 or entries[0].run != IN_LOG:
        assert only is None
    else:
        assert only == (queue, entries[0])
        assert pack_only(branch, *only) == pack_branch(branch)


def test_a_plain_count_of_what_a_branch_took_of_its_own_can_still_be_read() -> None:
    body = pack_body((b"b", b"", [], [], [], 2))
    said = read_branch(_record(RecordKind.PREPARED, body), ROOM)
    assert said.cancelled == {"": (2, 0)}


def test_what_a_branch_took_of_its_own_is_counted_and_left_out() -> None:
    branch = Branch(b"b")
    own, other = (Entry(key, 1, 0, 0, 0, 0, "", (), b"x") for key in (1, 2))
    own.holder = b"b"
    branch.stored = {"q": [own, other]}
    branch.take("q", [own])
    body, _ = pack_branch(branch)
    said = read_branch(_record(RecordKind.COMMITTED, body), ROOM)
    assert [entry.key for entry in said.stored[0][1]] == [2]
    assert said.taken == [("q", [])]
    assert said.cancelled == {"q": (1, 1)}


def test_a_branch_with_payloads_of_another_length_is_refused() -> None:
    branch = Branch(b"b")
    branch.stored = {"q": [Entry(1, 3, 0, 0, 0, 0, "", (), b"abc")]}
    body, _ = pack_branch(branch)
    with pytest.raises(Corruption, match=f"LSN {LSN}: its payloads have another length"):
        read_branch(_record(RecordKind.COMMITTED, body + b"d"), ROOM)


# --- The rest


@given(name=NAMES, settings=SETTINGS)
def test_a_queue_is_read_as_it_was_written(name: str, settings: QueueSettings) -> None:
    record = _record(RecordKind.QUEUE_SET, pack_queue(name, settings))
    assert read_queue(record) == (name, settings)


@given(INFOS)
def test_a_judgement_is_read_as_it_was_written(info: BranchInfo) -> None:
    assert read_judgement(_record(RecordKind.RESOLVED, pack_judgement(info))) == info


@given(st.lists(U63 | NAMES | IDS | st.lists(U63).map(tuple)))
def test_plain_values_are_read_as_they_were_written(values: list[object]) -> None:
    assert read_plain(_record(RecordKind.RESERVED, pack_plain(*values))) == tuple(values)


def test_a_record_that_cannot_be_read_tells_its_lsn() -> None:
    with pytest.raises(Corruption, match=f"log record at LSN {LSN} cannot be read"):
        read_plain(_record(RecordKind.COMMIT, b"\xff"))


# --- Checkpoints


def _consumer(name: str, queue: str, finished: int, reservations: list[list[int]]) -> Consumer:
    consumer = Consumer(name, queue)
    consumer.finished = finished
    consumer.reservations.update(enumerate(reservations, start=finished + 1))
    return consumer


@given(
    queues=st.dictionaries(NAMES, SETTINGS, max_size=3),
    consumers=st.lists(
        st.builds(_consumer, NAMES, NAMES, U32, st.lists(st.lists(U63), max_size=3)),
        max_size=2,
        unique_by=lambda consumer: consumer.name,
    ),
    marks=st.dictionaries(NAMES, U63, max_size=3),
    outcomes=st.dictionaries(IDS, st.sampled_from(Outcome), max_size=3),
    judged=st.lists(INFOS, max_size=2, unique_by=lambda info: info.branch),
)
def test_a_checkpoint_is_read_as_it_was_written(
    queues: dict[str, QueueSettings],
    consumers: list[Consumer],
    marks: dict[str, int],
    outcomes: dict[bytes, Outcome],
    judged: list[BranchInfo],
) -> None:
    index = Index()
    index.queues.update((name, Queue(name, settings)) for name, settings in queues.items())
    index.consumers.update((consumer.name, consumer) for consumer in consumers)
    index.marks.update(marks)
    index.outcomes.update(outcomes)
    for info in judged:
        index.judge(info)
    said = read_checkpoint(_record(RecordKind.CHECKPOINT, pack_checkpoint(index, [], [])))
    found, runs = said.index, said.runs
    assert {name: queue.settings for name, queue in found.queues.items()} == queues
    assert [vars(c) for c in found.consumers.values()] == [vars(consumer) for consumer in consumers]
    assert (found.marks, list(found.outcomes.items())) == (marks, list(index.outcomes.items()))
    assert list(found.heuristics.values()) == judged
    assert runs == []


@given(st.sets(st.integers(1, 60)))
def test_a_checkpoint_names_the_dead_messages_of_a_run(dead: set[int]) -> None:
    run = RunOnDisk(5, 900, "q", tuple(sorted(dead)), None)
    body = pack_checkpoint(Index(), [run], [])
    assert read_checkpoint(_record(RecordKind.CHECKPOINT, body)).runs == [run]


@given(entry_lists())
def test_a_checkpoint_tells_all_of_a_message_that_has_its_run_to_itself(
    entries: list[Entry],
) -> None:
    body = pack_checkpoint(Index(), [RunOnDisk(5, 900, "q", (), columns_of(entries))], [])
    (run,) = read_checkpoint(_record(RecordKind.CHECKPOINT, body)).runs
    assert run.columns is not None
    assert [_fields(e) for e in entries_of(run.columns)] == [_fields(e) for e in entries]


# --- Bundles


@given(entries=entry_lists(), data=st.data())
def test_a_bundle_gives_back_the_messages_that_live(
    entries: list[Entry], data: st.DataObject
) -> None:
    payloads = [entry.payload or b"" for entry in entries]
    content, start = pack_bundle("q", entries, payloads)
    keys = [entry.key for entry in entries]
    dead = data.draw(st.sets(st.sampled_from(keys)))
    run = RunOnDisk(5, len(content), "q", tuple(dead), None)
    found = read_bundle(run, content, ROOM)
    assert [entry.key for entry in found] == [key for key in keys if key not in dead]
    assert content[start:] == b"".join(payloads)
    for entry in found:
        at = entry.place - 5 * ROOM
        assert content[at : at + entry.size] == payloads[keys.index(entry.key)]
        assert entry.run == 5


def test_a_bundle_that_is_not_what_the_checkpoint_says_is_refused() -> None:
    content, _ = pack_bundle("q", [Entry(1, 1, 0, 0, 0, 0, "", ())], [b"x"])
    with pytest.raises(Corruption, match="page 5 belongs to another queue"):
        read_bundle(RunOnDisk(5, len(content), "other", (), None), content, ROOM)
    with pytest.raises(Corruption, match="page 5 lacks messages"):
        read_bundle(RunOnDisk(5, len(content), "q", (2,), None), content, ROOM)
    with pytest.raises(Corruption, match="page 5 cannot be read"):
        read_bundle(RunOnDisk(5, 3, "q", (), None), content[:3], ROOM)
