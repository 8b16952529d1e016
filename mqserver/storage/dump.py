"""`oncemq dump`: the files of a store, told item by item: control record, log, pages.

Goes as far as it can in a damaged store; what it cannot read is an item too. The log is read as a
stream, one record at a time. Which runs of the data file are in use only a restart can tell, so for
the pages one is tried, which takes the memory of one. Nothing is changed. Items are plain values
that can be printed as JSON; `clients` writes them for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from mqserver.errors import Corruption, MqError, StorageError
from mqserver.storage.check import holdings_of, require_store, restart
from mqserver.storage.contents import LOG, RecordCheck, is_decision
from mqserver.storage.disk import Disk, File
from mqserver.storage.entries import IN_LOG, Entry
from mqserver.storage.file_manager import DATA_NAME
from mqserver.storage.findings import STUMBLES, Notes, told
from mqserver.storage.format import (
    BLOCK_BYTES,
    CONTENT_BYTES,
    PAGE_HEADER,
    Control,
    Record,
    RecordKind,
    pages_needed,
)
from mqserver.storage.records import (
    read_branch,
    read_checkpoint,
    read_judgement,
    read_plain,
    read_queue,
)
from mqserver.storage.runs import Holding, RunCheck
from mqserver.storage.survey import LogSurvey, survey_slots

SHOWN_BYTES = 64

Fields = dict[str, Any]


class Item(NamedTuple):
    """One thing of a store: `control`, `segment`, `record`, `payload`, `run`, `free`, `finding`,
    `end` of the log, or `stop` where it does not go on.
    """

    what: str
    fields: Fields


def dump(
    disk: Disk, has_log: bool = True, has_pages: bool = True, has_payloads: bool = False
) -> Iterator[Item]:
    """The items of the store on this disk, in the order of the files.

    Raises `StorageLocked` while a process has it open, and `WrongFormat` where there is no store,
    or one of another version.
    """
    lock = disk.lock()
    try:
        require_store(disk)
        yield from _Dump(disk, has_payloads).items(has_log, has_pages)
    finally:
        lock.close()


class _Dump:
    """One walk through a store."""

    def __init__(self, disk: Disk, has_payloads: bool) -> None:
        self._disk = disk
        self._has_payloads = has_payloads
        self._notes = Notes()

    def items(self, has_log: bool, has_pages: bool) -> Iterator[Item]:
        slots = survey_slots(self._disk, self._notes)
        whole = [slot for slot in slots if slot is not None]
        control = max(whole, key=lambda slot: slot.sequence, default=None)
        for number, slot in enumerate(slots):
            if slot is not None:
                yield Item("control", _control(number, slot, slot is control))
        yield from self._news()
        if control is None:
            yield Item("stop", {"why": "no slot of the control record is whole"})
            return
        if has_log:
            yield from self._log(control)
        if has_pages and not self._has_decisions(control):
            yield from self._pages(control)

    def _news(self) -> Iterator[Item]:
        """What was found since this was asked for last."""
        for finding in self._notes.findings:
            fields = {
                "severity": finding.severity.value,
                "file": finding.file,
                "offset": finding.offset,
                "lsn": finding.lsn,
                "what": finding.what,
            }
            yield Item("finding", fields)
        self._notes.findings.clear()

    def _has_decisions(self, control: Control) -> bool:
        """Whether this is a coordinator's log, which has no pages."""
        first = next(LogSurvey(self._disk, control, Notes()).records(), None)
        return first is not None and is_decision(first.kind)

    # --- The log

    def _log(self, control: Control) -> Iterator[Item]:
        survey = LogSurvey(self._disk, control, self._notes)
        for segment in survey.segments:
            blocks = segment.size // BLOCK_BYTES
            fields = {
                "file": segment.name,
                "bytes": segment.size,
                "lsn": segment.first * CONTENT_BYTES,
                "lsn_end": (segment.first + blocks) * CONTENT_BYTES,
            }
            yield Item("segment", fields)
        yield from self._news()
        room = control.page_bytes - PAGE_HEADER.size
        for record in survey.records():
            yield from self._news()
            yield from self._record(record, room)
        yield from self._news()
        yield Item("end", {"lsn": survey.end_lsn})

    def _record(self, record: Record, room: int) -> Iterator[Item]:
        fields = {"lsn": record.lsn, "kind": record.kind.name, "bytes": len(record.body)}
        try:
            yield Item("record", fields | _said(record, room))
            if self._has_payloads and record.kind in (RecordKind.COMMITTED, RecordKind.PREPARED):
                yield from _payloads_of(record, room)
        except (Corruption, *STUMBLES) as broken:
            yield Item("record", fields | {"unreadable": told(broken)})
            self._notes.damage(LOG, "the record makes no sense", lsn=record.lsn)

    # --- The pages

    def _pages(self, control: Control) -> Iterator[Item]:
        try:
            file = self._disk.open(DATA_NAME)
        except StorageError as refused:
            yield Item("stop", {"why": f"{DATA_NAME} cannot be opened: {told(refused)}"})
            return
        try:
            holdings, why = self._holdings(control)
            if why:
                because = "only the runs that the checkpoint names are known: a restart fails: "
                yield Item("stop", {"why": because + why})
            yield from self._runs(control, holdings, file)
        finally:
            file.close()

    def _holdings(self, control: Control) -> tuple[list[Holding], str]:
        """The runs in use; or those of the checkpoint, and why no more is known."""
        try:
            restarted = restart(self._disk)
        except (MqError, *STUMBLES) as broken:
            why = told(broken)
        else:
            restarted.close()
            return holdings_of(restarted), ""
        # What is wrong with the log is told where the log is.
        notes = Notes()
        records = RecordCheck(control, notes)
        for record in LogSurvey(self._disk, control, notes).records():
            records.see(record)
        return records.holdings(), why

    def _runs(self, control: Control, holdings: list[Holding], file: File) -> Iterator[Item]:
        runs = RunCheck(file, control, notes=self._notes)
        page = 0
        for holding in sorted(holdings, key=lambda holding: holding.first):
            if holding.first > page:
                yield Item("free", {"page": page, "pages": holding.first - page})
            runs.check(holding)
            count = pages_needed(control.page_bytes, holding.size)
            yield Item("run", _run(holding, count, is_whole=not self._notes.findings))
            yield from self._news()
            if self._has_payloads and holding.is_needed:
                yield from _payloads_in(runs, holding)
                self._notes.findings.clear()
            page = max(page, holding.first + count)
        total = file.size() // control.page_bytes
        if total > page:
            yield Item("free", {"page": page, "pages": total - page})


# --- Values --------------------------------------------------------------------------------------


def _control(number: int, slot: Control, is_current: bool) -> Fields:
    return {
        "slot": number,
        "current": is_current,
        "format": slot.version,
        "identity": slot.identity.hex(),
        "sequence": slot.sequence,
        "epoch": slot.epoch,
        "page_bytes": slot.page_bytes,
        "segment_bytes": slot.segment_blocks * BLOCK_BYTES,
        "restart_lsn": slot.restart_lsn,
        "checkpoint_lsn": slot.checkpoint_lsn,
        "closed_lsn": slot.end_lsn,
        "pages": slot.pages,
        "next_key": slot.next_key,
    }


def _said(record: Record, room: int) -> Fields:
    """What a record says, but for payloads."""
    match record.kind:
        case RecordKind.COMMITTED | RecordKind.PREPARED:
            return _branch(record, room)
        case RecordKind.COMMIT | RecordKind.ROLLBACK | RecordKind.FORGOTTEN:
            return {"branch": read_plain(record)[0].hex()}
        case RecordKind.RESOLVED:
            info = read_judgement(record)
            counts = {"stored": info.stored, "taken": info.taken}
            return {"branch": info.branch.hex(), "outcome": info.outcome.name} | counts
        case RecordKind.QUEUE_SET:
            name, settings = read_queue(record)
            return {"queue": name, "settings": dict(vars(settings))}
        case RecordKind.QUEUE_DELETED:
            return {"queue": read_plain(record)[0]}
        case RecordKind.RESERVED | RecordKind.FINISHED:
            consumer, queue, number, keys = read_plain(record)
            held = {"messages": len(keys), "keys": ranges(keys)}
            return {"consumer": consumer, "queue": queue, "number": number} | held
        case RecordKind.CONSUMER_DROPPED:
            return {"consumer": read_plain(record)[0]}
        case RecordKind.CHECKPOINT:
            return _checkpoint(record)
    # A coordinator's record: it may name what only the coordinator may know.
    return {}


def _branch(record: Record, room: int) -> Fields:
    said = read_branch(record, room)
    stored = [
        {
            "queue": queue,
            "messages": len(entries),
            "bytes": sum(entry.size for entry in entries),
            "keys": ranges([entry.key for entry in entries]),
            "runs": [entry.run for entry in entries if entry.run != IN_LOG],
        }
        for queue, entries in said.stored
    ]
    stored += [
        {
            "queue": queue,
            "messages": len(parcel),
            "bytes": parcel.size,
            "keys": ranges(parcel.keys),
            "runs": [parcel.run],
        }
        for queue, parcel in said.parcels
    ]
    taken = [
        {"queue": queue, "messages": len(keys), "keys": ranges(keys)}
        for queue, keys in said.taken
        if keys
    ]
    # What `recovery` says is for the coordinator alone, and has no place in a dump.
    fields = {"branch": said.branch.hex(), "recovery_bytes": len(said.recovery)}
    return fields | {"stored": stored, "taken": taken, "marks": dict(said.marks)}


def _checkpoint(record: Record) -> Fields:
    said = read_checkpoint(record)
    index = said.index
    return {
        "queues": len(index.queues),
        "consumers": len(index.consumers),
        "marks": len(index.marks),
        "outcomes": len(index.outcomes),
        "resolved": len(index.heuristics),
        "runs": len(said.runs),
        "prepared": [
            {
                "branch": carried.branch.hex(),
                "stored": carried.count,
                "taken": sum(len(keys) for _, keys in carried.taken),
                "runs": [run.first for run in carried.runs],
            }
            for carried in said.carried
        ],
    }


def _run(holding: Holding, count: int, is_whole: bool) -> Fields:
    kind = "bundle" if holding.is_bundle else "message" if holding.is_needed else "waiting"
    return {
        "page": holding.first,
        "pages": count,
        "bytes": holding.size,
        "holds": kind,
        "queue": holding.queue,
        "key": None if holding.entry is None else holding.entry.key,
        "live": holding.live,
        "dead": len(holding.dead),
        "whole": is_whole,
    }


def ranges(keys: Iterable[int]) -> list[tuple[int, int]]:
    """Keys as first and last of those that follow each other, in order."""
    found: list[tuple[int, int]] = []
    for key in sorted(keys):
        if found and key == found[-1][1] + 1:
            found[-1] = (found[-1][0], key)
        else:
            found.append((key, key))
    return found


# --- Payloads ------------------------------------------------------------------------------------


def _payloads_of(record: Record, room: int) -> Iterator[Item]:
    for queue, entries in read_branch(record, room).stored:
        for entry in entries:
            if entry.run == IN_LOG:
                start = entry.place - record.body_lsn
                yield _payload(queue, entry, record.body[start : start + entry.size])


def _payloads_in(runs: RunCheck, holding: Holding) -> Iterator[Item]:
    found: Sequence[tuple[Entry, bytes]] = ()
    if holding.entry is not None:
        found = [(holding.entry, runs.beginning(holding))]
    elif holding.is_bundle:
        found = runs.bundled(holding)
    for entry, payload in found:
        if entry.key not in holding.dead:
            yield _payload(holding.queue, entry, payload)


def _payload(queue: str, entry: Entry, payload: bytes) -> Item:
    # The way Python writes bytes: what is not plain ASCII becomes an escape.
    shown = repr(payload[:SHOWN_BYTES])[2:-1]
    fields = {"queue": queue, "key": entry.key, "bytes": entry.size, "shown": shown}
    return Item("payload", fields | {"is_cut": entry.size > SHOWN_BYTES})
